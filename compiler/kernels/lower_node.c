/* Everything that is not a loop: views, products, attention, scattered rows, collectives. */
#include "kernels/lower.h"

/* ---- views: the operand's bytes under other dimensions ----------------------------------------------------------- */

/* Blocks of a stack keep their stride; inside them elements lie in row-major order. */
static Location flat_place(Lowering *l, Node *node, const Location *from, int layers) {
    Location to = place_row_major(l, node, from->ref);
    for (int i = 0; i < layers; i++) to.stride[i] = from->stride[i];
    return to;
}

/* A flat range is the bytes of its tensor, unless padding has to follow them or they do not lie in order. */
static Location flatten_place(Lowering *l, Node *node) {
    Node *x = node->in[0];
    int layers = node->shape.n - 1;
    Location from = value_place(l, x), rows = place_row_major(l, x, from.ref);
    int64_t blocks = 1, elements = 1;
    bool in_order = true;
    for (int i = 0; i < layers; i++) blocks *= lower_extent(l, node, node->shape.dims[i]);
    for (int i = layers; i < x->shape.n; i++) {
        int64_t extent = lower_extent(l, x, x->shape.dims[i]);
        elements *= extent;
        in_order = in_order && (extent == 1 || from.stride[i] == rows.stride[i]);
    }
    int64_t range = lower_extent(l, node, node->shape.dims[node->shape.n - 1]);
    if (in_order && range == elements) return flat_place(l, node, &from, layers);
    Buffer *buffer = lower_buffer(l, intern(l->graph->session->names, "flat"), MEM_TEMPORARY, node->dtype,
                                  blocks * range * dtype_bytes(node->dtype), node->span);
    Location padded = place_row_major(l, node, (BufferRef){.buffer = buffer}), to = place_row_major(l, x, padded.ref);
    for (int i = 0; i < layers; i++) to.stride[i] = padded.stride[i];
    if (range > elements) lower_zero(l, buffer, elements, range - elements, blocks, range, node->dtype, node->span);
    lower_copy(l, x, &from, &to, false);
    return padded;
}

static Location view_place(Lowering *l, Node *node) {
    Node *x = node->in[0];
    if (node->op == OP_FLATTEN) return flatten_place(l, node);
    Location from = value_place(l, x), to = {.ref = from.ref};
    if (node->op == OP_UNFLATTEN) return flat_place(l, node, &from, x->shape.n - 1);
    for (int i = 0; i < node->shape.n; i++) {
        Dim *dim = node->shape.dims[i];
        int same = shape_find(&x->shape, dim);
        if (same >= 0) to.stride[i] = from.stride[same];
    }
    if (node->op == OP_RENAME) {
        Dim *old = node_attr(node, "from")->dims.dims[0], *new = node_attr(node, "to")->dims.dims[0];
        to.stride[shape_find(&node->shape, new)] = from.stride[shape_find(&x->shape, old)];
    } else if (node->op == OP_SPLIT) {
        Dim *whole = node_attr(node, "dim")->dims.dims[0];
        int64_t stride = from.stride[shape_find(&x->shape, whole)];
        for (int i = whole->n_factors - 1; i >= 0; i--) {
            to.stride[shape_find(&node->shape, whole->factors[i])] = stride;
            stride *= lower_extent(l, node, whole->factors[i]);
        }
    } else if (node->op == OP_JOIN) {
        Dim *whole = node_attr(node, "dim")->dims.dims[0];
        to.stride[shape_find(&node->shape, whole)] =
            from.stride[shape_find(&x->shape, whole->factors[whole->n_factors - 1])];
    } else if (node->op == OP_FLIP) {
        Dim *dim = node_attr(node, "dim")->dims.dims[0];
        int i = shape_find(&node->shape, dim);
        to.ref.offset += to.stride[i] * (lower_extent(l, node, dim) - 1) * dtype_bytes(node->dtype);
        to.stride[i] = -to.stride[i];
    }
    return to;
}

/* Whether the factors of a joined dimension lie one after the other. */
static bool join_is_view(Lowering *l, const Node *node) {
    Node *x = node->in[0];
    Location from = value_place(l, x);
    Dim *whole = node_attr(node, "dim")->dims.dims[0];
    for (int i = 0; i + 1 < whole->n_factors; i++) {
        int a = shape_find(&x->shape, whole->factors[i]), b = shape_find(&x->shape, whole->factors[i + 1]);
        if (from.stride[a] != from.stride[b] * lower_extent(l, x, whole->factors[i + 1])) return false;
    }
    return true;
}

/* A copy of x in row-major order. */
static Location contiguous(Lowering *l, Node *x) {
    Location place = value_place(l, x);
    if (place_is_row_major(l, x, &place)) return place;
    Buffer *buffer = lower_buffer(l, intern(l->graph->session->names, "contiguous"), MEM_TEMPORARY, x->dtype,
                                  lower_bytes(l, x->dtype, &x->shape, x), x->span);
    Location copy = place_row_major(l, x, (BufferRef){.buffer = buffer});
    lower_copy(l, x, &place, &copy, false);
    return copy;
}

Location value_contiguous(Lowering *l, Node *node) { return contiguous(l, node); }

static void lower_view(Lowering *l, Node *node) {
    Value *value = value_of(node);
    Location place;
    if (node->op == OP_JOIN && !join_is_view(l, node)) {
        Node *x = node->in[0];
        Value *old = value_of(x);
        Location kept = old->place;
        old->place = contiguous(l, x);
        place = view_place(l, node);
        old->place = kept;
    } else
        place = view_place(l, node);
    if (value->has_place)
        lower_copy(l, node, &place, &value->place, value->accumulate);
    else
        value->place = place, value->has_place = true;
}

/* ---- products ----------------------------------------------------------------------------------- */

static ElementType element_of(const Node *node) {
    if (node->dtype == DT_EXACT) return ELEMENT_F32; /* Kernel.makes_exact says the rest */
    CHECK(node->dtype == DT_F32 || node->dtype == DT_BF16 || node->dtype == DT_F16);
    return (ElementType)node->dtype;
}

static int64_t stride_in(const Location *place, const Shape *shape, const Dim *dim) {
    int i = shape_find(shape, dim);
    return i < 0 ? 0 : place->stride[i];
}

/* Adds a dimension to a group; merges it with the one before when both form one stride in every operand. */
static void product_dim_add(ProductDim *dims, int *n, ProductDim dim) {
    if (dim.extent == 1) return;
    if (*n) {
        ProductDim *last = &dims[*n - 1];
        if (last->a == dim.a * dim.extent && last->b == dim.b * dim.extent && last->c == dim.c * dim.extent) {
            *last = (ProductDim){last->extent * dim.extent, dim.a, dim.b, dim.c};
            return;
        }
    }
    if (*n == PRODUCT_MAX_DIMS) BUG("a product with more than %d separate dimensions in one group", PRODUCT_MAX_DIMS);
    dims[(*n)++] = dim;
}

static void lower_product(Lowering *l, Node *node) {
    Node *x = node->in[0], *y = node->in[1];
    Location a = value_place(l, x), b = value_place(l, y), c = value_place(l, node);
    Kernel *kernel = lower_kernel(l, KERNEL_PRODUCT, "dot", node->span);
    kernel_add_ref(l, kernel, a.ref);
    kernel_add_ref(l, kernel, b.ref);
    kernel_add_ref(l, kernel, c.ref);
    Product *product = NEW(l->arena, Product);
    product->scale = 1;
    product->a = element_of(x), product->b = element_of(y), product->c = element_of(node);
    product->accumulate = value_of(node)->accumulate;
    const Shape *over = &node_attr(node, "over")->dims;
    for (int i = 0; i < x->shape.n; i++) { /* the order of sums is that of the first operand's dimensions */
        Dim *dim = x->shape.dims[i];
        if (shape_find(over, dim) < 0) continue;
        product_dim_add(product->k, &product->n_k,
                        (ProductDim){lower_extent(l, x, dim), a.stride[i], stride_in(&b, &y->shape, dim), 0});
    }
    for (int i = 0; i < node->shape.n; i++) {
        Dim *dim = node->shape.dims[i];
        bool in_x = shape_find(&x->shape, dim) >= 0, in_y = shape_find(&y->shape, dim) >= 0;
        ProductDim d = {lower_extent(l, node, dim), stride_in(&a, &x->shape, dim), stride_in(&b, &y->shape, dim),
                        c.stride[i]};
        if (in_x && in_y)
            product_dim_add(product->batch, &product->n_batch, d);
        else if (in_x)
            product_dim_add(product->m, &product->n_m, d);
        else
            product_dim_add(product->n, &product->n_n, d);
    }
    kernel->product = product;
    kernel->leaf = l->graph->reproducible ? lower_leaf(node) : 0;
    kernel->makes_exact = node->dtype == DT_EXACT;
}

/* ---- attention ---------------------------------------------------------------------------------- */

/* One stride that walks all batch dimensions, or false. */
static bool batch_stride(Lowering *l, const Node *node, const Location *place, const Shape *batch, int64_t *stride,
                         int64_t *extent) {
    *extent = 1;
    *stride = 0;
    for (int i = batch->n - 1; i >= 0; i--) {
        int at = shape_find(&node->shape, batch->dims[i]);
        int64_t size = lower_extent(l, node, batch->dims[i]);
        if (size == 1) continue;
        if (*extent == 1)
            *stride = place->stride[at];
        else if (place->stride[at] != *stride * *extent)
            return false;
        *extent *= size;
    }
    return true;
}

typedef struct Strides {
    int64_t batch, row, head;
} Strides;

static Strides strides_of(Lowering *l, Node *node, Location *place, const AttendParts *parts, const Dim *row,
                          const Dim *head) {
    Strides s = {0};
    int64_t extent;
    int width = shape_find(&node->shape, parts->width);
    bool good =
        batch_stride(l, node, place, &parts->batch, &s.batch, &extent) && (width < 0 || place->stride[width] == 1);
    if (!good) {
        *place = contiguous(l, node);
        CHECK(batch_stride(l, node, place, &parts->batch, &s.batch, &extent));
    }
    s.row = row ? stride_in(place, &node->shape, row) : 0;
    s.head = head ? stride_in(place, &node->shape, head) : 0;
    return s;
}

/* Which positions a rank holds: causality compares logical ones. */
static int position_cuts(const Lowering *l, const Node *node, const Dim *dim, PositionCut *cuts) {
    DimCut all[MAX_MESH];
    int n = dim_cuts(l->graph->mesh, node->type, dim, all);
    for (int i = 0; i < n; i++)
        cuts[i] = (PositionCut){all[i].axis, (int32_t)all[i].parts, all[i].layout == LAYOUT_BALANCED, all[i].turn};
    return n;
}

static Attend *attend_new(Lowering *l, Node *node, Location places[3], const AttendParts *parts) {
    Node *q = node->in[0], *k = node->in[1], *v = node->in[2];
    Attend *a = NEW(l->arena, Attend);
    Strides sq = strides_of(l, q, &places[0], parts, parts->seq, parts->head);
    Strides sk = strides_of(l, k, &places[1], parts, parts->key, parts->kv_head);
    Strides sv = strides_of(l, v, &places[2], parts, parts->key, parts->kv_head);
    a->batch = 1;
    for (int i = 0; i < parts->batch.n; i++) a->batch *= lower_extent(l, q, parts->batch.dims[i]);
    a->seq = parts->seq ? lower_extent(l, q, parts->seq) : 1;
    a->key = lower_extent(l, k, parts->key);
    a->kv_head = parts->kv_head ? lower_extent(l, k, parts->kv_head) : 1;
    a->group = (parts->head ? lower_extent(l, q, parts->head) : 1) / a->kv_head;
    a->width = lower_extent(l, q, parts->width);
    a->q_batch = sq.batch, a->q_seq = sq.row, a->q_head = sq.head;
    a->k_batch = sk.batch, a->k_key = sk.row, a->k_head = sk.head;
    a->v_batch = sv.batch, a->v_key = sv.row, a->v_head = sv.head;
    a->scale = parts->scale;
    a->causal = parts->causal;
    a->element = element_of(q);
    if (a->causal && parts->seq) a->n_q_cuts = position_cuts(l, q, parts->seq, a->q_cuts);
    if (a->causal) a->n_k_cuts = position_cuts(l, k, parts->key, a->k_cuts);
    return a;
}

/* Places of a tuple's results, made row-major where none was given. */
static void tuple_places(Lowering *l, Node *node) {
    Value *value = value_of(node);
    for (int k = 0; k < node->n_outs; k++) {
        if (value->has_outs[k]) continue;
        Node like = {.shape = node->outs[k].shape, .dtype = node->outs[k].dtype};
        memcpy(like.type, node->outs[k].type, sizeof like.type);
        const char *name = node->name ? node->name : op_info(node)->name;
        Buffer *buffer = lower_buffer(l, intern(l->graph->session->names, name),
                                      value->outs_copies[k] ? MEM_ACTIVATION : MEM_TEMPORARY, like.dtype,
                                      lower_bytes(l, like.dtype, &like.shape, &like), node->span);
        if (value->outs_copies[k]) buffer->flights = value->outs_copies[k];
        value->outs[k] = place_row_major(l, &like, (BufferRef){.buffer = buffer});
        value->has_outs[k] = true;
    }
}

static Node like_out(const Node *node, int k) {
    Node like = {.shape = node->outs[k].shape, .dtype = node->outs[k].dtype, .span = node->span};
    memcpy(like.type, node->outs[k].type, sizeof like.type);
    return like;
}

/* The query's position while sampling. */
static void add_start(Lowering *l, Kernel *kernel, const Dim *seq) {
    if (!seq || !seq->at_position) return;
    kernel->start = lower_scalar(l, "position", DT_I32);
    lower_touch(l, kernel->start, kernel->first);
}

static void lower_attend(Lowering *l, Node *node) {
    AttendParts parts = attend_parts(node);
    Location in[3];
    for (int i = 0; i < 3; i++) in[i] = value_place(l, node->in[i]);
    tuple_places(l, node);
    Value *value = value_of(node);
    Attend *a = attend_new(l, node, in, &parts);
    Kernel *kernel = lower_kernel(l, KERNEL_ATTEND, "attend", node->span);
    for (int i = 0; i < 3; i++) kernel_add_ref(l, kernel, in[i].ref);
    for (int k = 0; k < 2; k++) kernel_add_ref(l, kernel, value->outs[k].ref);
    Node out = like_out(node, 0), lse = like_out(node, 1);
    Strides so = strides_of(l, &out, &value->outs[0], &parts, parts.seq, parts.head);
    Strides sl = strides_of(l, &lse, &value->outs[1], &parts, parts.seq, parts.head);
    a->o_batch = so.batch, a->o_seq = so.row, a->o_head = so.head;
    a->l_batch = sl.batch, a->l_seq = sl.row, a->l_head = sl.head;
    kernel->attend = a;
    add_start(l, kernel, parts.seq);
}

static void lower_attend_grad(Lowering *l, Node *node) {
    AttendParts parts = attend_parts(node);
    Location in[6];
    for (int i = 0; i < 6; i++) in[i] = contiguous(l, node->in[i]); /* the gradients are laid out as their operands */
    tuple_places(l, node);
    Value *value = value_of(node);
    Attend *a = attend_new(l, node, in, &parts);
    Strides so = strides_of(l, node->in[3], &in[3], &parts, parts.seq, parts.head);
    Strides sl = strides_of(l, node->in[4], &in[4], &parts, parts.seq, parts.head);
    a->o_batch = so.batch, a->o_seq = so.row, a->o_head = so.head;
    a->l_batch = sl.batch, a->l_seq = sl.row, a->l_head = sl.head;
    Kernel *kernel = lower_kernel(l, KERNEL_ATTEND_GRAD, "attend_grad", node->span);
    for (int i = 0; i < 6; i++) kernel_add_ref(l, kernel, in[i].ref);
    for (int k = 0; k < 3; k++) kernel_add_ref(l, kernel, value->outs[k].ref);
    kernel->attend = a;
    kernel->leaf = l->graph->reproducible ? (parts.seq->size + 7) / 8 : 0; /* 8 leaves of the whole sequence */
    add_start(l, kernel, parts.seq);
}

/* ---- scattered rows ----------------------------------------------------------------------------- */

static void lower_scatter(Lowering *l, Node *node) {
    Node *index = node->in[0], *rows = node->in[1];
    Location i = contiguous(l, index), r = contiguous(l, rows), out = value_place(l, node);
    Kernel *kernel = lower_kernel(l, KERNEL_SCATTER, "lookup_grad", node->span);
    kernel_add_ref(l, kernel, out.ref);
    kernel_add_ref(l, kernel, i.ref);
    kernel_add_ref(l, kernel, r.ref);
    Scatter *s = NEW(l->arena, Scatter);
    Dim *over = node_attr(node, "rows")->dims.dims[0];
    s->n_rows = 1;
    for (int k = 0; k < index->shape.n; k++) s->n_rows *= lower_extent(l, index, index->shape.dims[k]);
    s->width = 1;
    for (int k = 0; k < node->shape.n; k++)
        if (node->shape.dims[k] != over) s->width *= lower_extent(l, node, node->shape.dims[k]);
    s->n_out = lower_extent(l, node, over);
    s->row_stride = s->width;
    s->out_stride = out.stride[shape_find(&node->shape, over)];
    s->coordinate_axis = -1;
    for (int a = 0; l->graph->mesh && a < l->graph->mesh->n; a++)
        if (node->type[a].kind == AXIS_SHARDED && dim_is_cut_by(over, node->type[a].dim)) s->coordinate_axis = a;
    s->accumulate = value_of(node)->accumulate;
    s->element = element_of(rows);
    kernel->scatter = s;
}

/* ---- routes ------------------------------------------------------------------------------------- */

static void lower_top_k(Lowering *l, Node *node) {
    Node *p = node->in[0];
    Location in = contiguous(l, p);
    tuple_places(l, node);
    Value *value = value_of(node);
    Kernel *kernel = lower_kernel(l, KERNEL_TOP_K, "top_k", node->span);
    kernel_add_ref(l, kernel, in.ref);
    for (int k = 0; k < 3; k++) {
        Node like = like_out(node, k);
        CHECK(place_is_row_major(l, &like, &value->outs[k]));
        kernel_add_ref(l, kernel, value->outs[k].ref);
    }
    TopK *top_k = NEW(l->arena, TopK);
    int n = p->shape.n;
    *top_k = (TopK){.sequences = 1, .seq = p->shape.dims[n - 2]->size, .experts = p->shape.dims[n - 1]->size};
    for (int i = 0; i + 2 < n; i++) top_k->sequences *= lower_extent(l, p, p->shape.dims[i]);
    top_k->picks = node_attr(node, "pick")->dims.dims[0]->size;
    top_k->slots = node_attr(node, "slot")->dims.dims[0]->size;
    kernel->top_k = top_k;
}

/* ---- collectives -------------------------------------------------------------------------------- */

/* A gradient accumulator may be joined where it lies: nothing reads the partial sum any more. */
static bool reduce_in_place(const Lowering *l, const Node *x) {
    const Value *value = value_of(x);
    if (value->uses_left != 1 || !value->has_place || value->fixed || value_is_kept(l, value)) return false;
    if (x->op == OP_INPUT) return x->tensor->class == CLASS_GRADIENT;
    return !value->place.ref.buffer->persistent && value->place.ref.buffer->home == l->home && !value->place.ref.step;
}

static const char *value_name(const Node *x) {
    while (x->op != OP_INPUT && !x->name && x->n_in == 1) x = x->in[0];
    return x->op == OP_INPUT ? x->tensor->name : x->name ? x->name : op_info(x)->name;
}

Kernel *lower_collective_kernel(Lowering *l, Node *node, Collective c, BufferRef in, BufferRef out) {
    Kernel *kernel = lower_kernel(l, KERNEL_COLLECTIVE, op_info(node)->name, node->span);
    kernel_add_ref(l, kernel, in);
    kernel_add_ref(l, kernel, out);
    const Node *x = node->in[0];
    const char *from = axis_type_text(l->arena, x->type[c.axis]), *to = axis_type_text(l->arena, node->type[c.axis]);
    c.why = node->op == OP_PASS
                ? arena_printf(l->arena, "`%s` goes to the next rank of a ring of %lld",
                               node->name ? node->name : value_name(x), (long long)l->graph->mesh->axes[c.axis].size)
            : axis_type_equal(x->type[c.axis], node->type[c.axis])
                ? arena_printf(l->arena, "each stage has a part of `%s`", value_name(x))
                : arena_printf(l->arena, "`%s` is %s, its use needs %s", value_name(x), from, to);
    c.where = arena_printf(l->arena, "%s: %s over %s", session_where(l->graph->session, node->span),
                           op_info(node)->name, l->graph->mesh->axes[c.axis].name);
    kernel->collective = NEW(l->arena, Collective);
    *kernel->collective = c;
    return kernel;
}

int lower_pieces(AxisType cut, int64_t n, int64_t extent, Piece pieces[2]) {
    if (cut.layout != LAYOUT_BALANCED) {
        pieces[0] = (Piece){extent, 0, 1};
        return 1;
    }
    pieces[0] = (Piece){extent / 2, 0, 1};
    pieces[1] = (Piece){extent / 2, 2 * n - 1, -1};
    return 2;
}

/* The rank's own part of a whole value: copies that start at its coordinate. */
static void lower_shard(Lowering *l, Node *node, int axis) {
    Node *x = node->in[0];
    Location in = value_place(l, x), out = value_place(l, node);
    int d = shape_find(&node->shape, node->type[axis].dim);
    CopySpace space = {.n = node->shape.n, .coordinate = lower_coordinate(l, axis), .coordinate_axis = axis};
    for (int i = 0; i < node->shape.n; i++) {
        space.extent[i] = lower_extent(l, node, node->shape.dims[i]);
        space.from[i] = in.stride[i], space.to[i] = out.stride[i];
    }
    Piece pieces[2];
    int64_t width = dtype_bytes(node->dtype);
    int n = lower_pieces(node->type[axis], l->graph->mesh->axes[axis].size, space.extent[d], pieces);
    for (int k = 0; k < n; k++) {
        BufferRef from = in.ref, to = out.ref;
        int64_t piece = pieces[k].unit * in.stride[d];
        from.offset += pieces[k].first * piece * width;
        to.offset += k * pieces[k].unit * out.stride[d] * width;
        space.extent[d] = pieces[k].unit;
        space.coordinate_stride = pieces[k].step * piece;
        lower_strided_copy(l, &space, node->dtype, from, to, false, node->span);
    }
}

static void lower_collective(Lowering *l, Node *node) {
    Node *x = node->in[0];
    int axis = (int)node_attr(node, "axis")->integer;
    if (node->op == OP_SHARD) {
        lower_shard(l, node, axis);
        return;
    }
    if (node->op == OP_ALL_TO_ALL) {
        lower_exchange(l, node);
        return;
    }
    Location in = value_place(l, x);
    Value *value = value_of(node);
    bool in_place =
        node->op == OP_ALL_REDUCE && !value->has_place && place_is_row_major(l, x, &in) && reduce_in_place(l, x);
    if (in_place) value->place = in, value->has_place = true;
    if (in_place && value->saved) { /* what was made for this action alone now has to last */
        in.ref.buffer->kind = MEM_ACTIVATION;
        if (in.ref.buffer->flights < value->copies) in.ref.buffer->flights = value->copies;
    }
    if (!in_place && !place_is_row_major(l, x, &in)) in = contiguous(l, x);
    Location out = value_place(l, node), wanted = out;
    bool direct = place_is_row_major(l, node, &out);
    if (!direct) {
        Buffer *buffer = lower_buffer(l, intern(l->graph->session->names, "collective"), MEM_TEMPORARY, node->dtype,
                                      lower_bytes(l, node->dtype, &node->shape, node), node->span);
        out = place_row_major(l, node, (BufferRef){.buffer = buffer});
    }
    Collective c = {.op = node->op,
                    .axis = axis,
                    .reduce = x->type[axis].reduce,
                    .by_tree = l->graph->reproducible && node->dtype == DT_F32 && x->type[axis].reduce == REDUCE_SUM,
                    .dtype = node->dtype,
                    .elements = 1,
                    .outer = 1,
                    .inner = 1};
    const Node *whole = node->op == OP_REDUCE_SCATTER ? x : node, *part = node->op == OP_REDUCE_SCATTER ? node : x;
    for (int i = 0; i < node->shape.n; i++) c.elements *= lower_extent(l, whole, node->shape.dims[i]);
    AxisType cut = part->type[axis];
    bool inner = false;
    c.balanced = node->op != OP_PASS && cut.kind == AXIS_SHARDED && cut.layout == LAYOUT_BALANCED;
    for (int i = 0; i < node->shape.n && cut.kind == AXIS_SHARDED; i++) {
        inner |= node->shape.dims[i] == cut.dim;
        *(inner ? &c.inner : &c.outer) *= lower_extent(l, part, node->shape.dims[i]);
    }
    lower_collective_kernel(l, node, c, in.ref, out.ref);
    if (!direct) lower_copy(l, node, &out, &wanted, false);
}

/* ---- dispatch ----------------------------------------------------------------------------------- */

static void lower_result(Node *node) {
    Value *value = value_of(node);
    value->place = value_of(node->in[0])->outs[node_attr(node, "index")->integer];
    value->has_place = true;
}

void lower_node_unit(Lowering *l, Node *node) {
    switch (op_info(node)->lower) {
    case LOWER_VIEW: lower_view(l, node); return;
    case LOWER_PRODUCT: lower_product(l, node); return;
    case LOWER_SCATTER: lower_scatter(l, node); return;
    case LOWER_EXACT: lower_exact(l, node); return;
    case LOWER_TOP_K: lower_top_k(l, node); return;
    case LOWER_COLLECTIVE: lower_collective(l, node); return;
    case LOWER_ATTEND:
        if (node->n_outs == 2)
            lower_attend(l, node);
        else
            lower_attend_grad(l, node);
        return;
    default: break;
    }
    if (node->op == OP_REPEAT)
        lower_repeat(l, node);
    else if (node->op == OP_RESULT)
        lower_result(node);
    else
        BUG("`%s` has no lowering", op_info(node)->name);
}
