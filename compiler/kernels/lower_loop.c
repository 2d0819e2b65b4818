/* One loop unit becomes one Loop.
 *
 * Time in a loop runs over passes: even times are row passes, odd times inner passes; a unit without reductions is one
 * row pass over all its dimensions. A map over the whole domain is computed in every pass that needs it (its inputs are
 * loaded again: cheaper than storing it) unless it was stored in an earlier pass; row values are computed once. Stores
 * come at the end of their pass, so that in-place results never overwrite what the pass still reads. */
#include "kernels/lower.h"

typedef struct Emit {
    Lowering *l;
    Unit *unit;
    LoopBuilder b;
    Kernel *kernel;
    Shape axes; /* outer dimensions, then inner ones */
    int n_outer;
    int time;              /* of the pass that is being emitted */
    Map full, rows;        /* Node -> LoopValue + 1, in this pass; of the row, for good */
    Map times;             /* Node -> time + 1 */
    VEC(Node *) row_loads; /* outside values over rows: read in the first row pass */
} Emit;

static bool in_unit(const Emit *e, const Node *node) {
    const Value *value = node->mark;
    return value && (value->unit == e->unit || value->inlined || value->generator);
}

static bool is_reduce(const Node *node) { return op_info(node)->lower == LOWER_REDUCE; }

/* A value with nothing of the inner dimensions, in a loop that has some. */
static bool is_row(const Emit *e, const Node *node) {
    if (!e->unit->reduced.n) return false;
    for (int i = 0; i < node->shape.n; i++)
        if (shape_find(&e->unit->reduced, node->shape.dims[i]) >= 0) return false;
    return true;
}

/* Operand 0 of these is read at places of its own, not element by element. */
static int first_element_operand(const Node *node) {
    LowerKind lower = op_info(node)->lower;
    return lower_is_gather(lower) || lower == LOWER_CACHE;
}

/* ---- times -------------------------------------------------------------------------------------- */

static int node_time(Emit *e, Node *node) {
    void *known = map_get(&e->times, node);
    if (known) return (int)(intptr_t)known - 1;
    int time = 0;
    bool row = is_row(e, node) && !is_reduce(node);
    if (!in_unit(e, node))
        time = row ? 0 : 1;
    else {
        for (int k = first_element_operand(node); k < node->n_in; k++) {
            int t = node_time(e, node->in[k]) + (is_reduce(node->in[k]) && in_unit(e, node->in[k]));
            if (t > time) time = t;
        }
        if (e->unit->reduced.n && (row ? time % 2 == 1 : time % 2 == 0)) time++;
    }
    if (!e->unit->reduced.n) time = 0;
    map_put(e->l->arena, &e->times, node, (void *)(intptr_t)(time + 1));
    return time;
}

/* ---- accesses ----------------------------------------------------------------------------------- */

static LoopMemory memory_of(DType dtype) {
    static const LoopMemory memory[DT_COUNT] = {
        [DT_F32] = LOOP_MEM_F32, [DT_BF16] = LOOP_MEM_BF16, [DT_F16] = LOOP_MEM_F16,
        [DT_I32] = LOOP_MEM_I32, [DT_U32] = LOOP_MEM_I32,   [DT_BOOL] = LOOP_MEM_U8};
    if (dtype == DT_F64 || dtype == DT_EXACT) BUG("%s has no loop memory", dtype_name[dtype]);
    return memory[dtype];
}

static bool same_ref(const BufferRef *a, const BufferRef *b) {
    bool same = a->buffer == b->buffer && a->offset == b->offset && a->step == b->step && a->scale == b->scale &&
                a->shift == b->shift && a->modulus == b->modulus && a->depth == b->depth && a->n_outer == b->n_outer;
    for (int i = 0; same && i < a->n_outer; i++) {
        const RefStep *x = &a->outer[i], *y = &b->outer[i];
        same = x->step == y->step && x->scale == y->scale && x->shift == y->shift && x->modulus == y->modulus &&
               x->depth == y->depth;
    }
    return same;
}

static int pointer_of(Emit *e, BufferRef ref) {
    for (int i = 0; i < e->kernel->n_refs; i++)
        if (same_ref(&e->kernel->refs[i], &ref)) return i;
    kernel_add_ref(e->l, e->kernel, ref);
    return e->kernel->n_refs - 1;
}

static LoopAccess access_to(Emit *e, const Location *place, const Shape *shape, DType dtype, const Shape *skip) {
    LoopAccess access = {.pointer = pointer_of(e, place->ref), .memory = memory_of(dtype)};
    for (int i = 0; i < shape->n; i++) {
        if (skip && shape_find(skip, shape->dims[i]) >= 0) continue;
        int axis = shape_find(&e->axes, shape->dims[i]);
        if (axis < 0) BUG("`%s` is not a dimension of the loop", shape->dims[i]->name);
        access.stride[axis] = place->stride[i];
    }
    return access;
}

static LoopValue load_scalar(Emit *e, Buffer *buffer) {
    Location place = {.ref = {.buffer = buffer}};
    Shape none = {0};
    return loop_load(&e->b, access_to(e, &place, &none, DT_I32, NULL));
}

/* The part that this rank has in a cut: its coordinate, less the turns that the value has gone on. */
static LoopValue cut_coordinate(Emit *e, const DimCut *cut) {
    LoopValue coordinate = load_scalar(e, lower_coordinate(e->l, cut->axis));
    if (!cut->turn) return coordinate;
    LoopValue less = loop_emit(&e->b, LOOP_ISUB, coordinate, loop_const_i(&e->b, cut->turn), -1);
    LoopValue round = loop_emit(&e->b, LOOP_IADD, less, loop_const_i(&e->b, cut->parts), -1);
    LoopValue below = loop_emit(&e->b, LOOP_ILT, coordinate, loop_const_i(&e->b, cut->turn), -1);
    return loop_emit(&e->b, LOOP_SELECT, below, round, less);
}

/* `index` minus where this rank's block of `dim` in `node` starts: what data chooses is cut in blocks. */
static LoopValue index_in_block(Emit *e, const Node *node, const Dim *dim, LoopValue index) {
    DimCut cuts[MAX_MESH];
    int n = dim_cuts(e->l->graph->mesh, node->type, dim, cuts);
    int64_t part = dim->size;
    for (int i = 0; i < n; i++) {
        CHECK(cuts[i].layout != LAYOUT_BALANCED);
        part /= cuts[i].parts;
        LoopValue coordinate = cut_coordinate(e, &cuts[i]);
        LoopValue start = loop_emit(&e->b, LOOP_IMUL, coordinate, loop_const_i(&e->b, part), -1);
        index = loop_emit(&e->b, LOOP_ISUB, index, start, -1);
    }
    return index;
}

/* What local_to_logical (ir/shape.c) computes: from the innermost cut outwards. */
static LoopValue index_in_whole(Emit *e, const Node *node, const Dim *dim, LoopValue index) {
    DimCut cuts[MAX_MESH];
    int n = dim_cuts(e->l->graph->mesh, node->type, dim, cuts);
    int64_t extent = lower_extent(e->l, node, dim);
    for (int i = n - 1; i >= 0; extent *= cuts[i--].parts) {
        LoopValue part = cut_coordinate(e, &cuts[i]);
        int64_t unit = extent;
        if (cuts[i].layout == LAYOUT_BALANCED) {
            unit = extent / 2;
            LoopValue last = loop_const_i(&e->b, 2 * cuts[i].parts - 2);
            LoopValue mirrored = loop_emit(&e->b, LOOP_ISUB, last, part, -1);
            LoopValue is_first = loop_emit(&e->b, LOOP_ILT, index, loop_const_i(&e->b, unit), -1);
            part = loop_emit(&e->b, LOOP_SELECT, is_first, part, mirrored);
        }
        LoopValue start = loop_emit(&e->b, LOOP_IMUL, part, loop_const_i(&e->b, unit), -1);
        index = loop_emit(&e->b, LOOP_IADD, index, start, -1);
    }
    return index;
}

/* dim_index as loop instructions: what stands in a part is moved up by the padding of the parts before it. */
static LoopValue index_in_parts(Emit *e, const Dim *dim, LoopValue place) {
    LoopValue index = loop_const_i(&e->b, (int32_t)dim->unpadded);
    int64_t room = dim->size / dim->n_parts, before = 0;
    for (int i = 0; i < dim->n_parts; i++) {
        LoopValue low = loop_const_i(&e->b, (int32_t)(i * room - 1)),
                  high = loop_const_i(&e->b, (int32_t)(i * room + dim->parts[i]));
        LoopValue after = loop_emit(&e->b, LOOP_ILT, low, place, -1),
                  inside = loop_emit(&e->b, LOOP_ILT, place, high, -1);
        LoopValue here = loop_emit(&e->b, LOOP_IADD, place, loop_const_i(&e->b, (int32_t)(before - i * room)), -1);
        LoopValue later = loop_emit(&e->b, LOOP_SELECT, inside, here, index);
        index = loop_emit(&e->b, LOOP_SELECT, after, later, index);
        before += dim->parts[i];
    }
    return index;
}

/* The logical index of a dimension: that of the loop's index among the rank's positions, plus the micro-batch. */
static LoopValue logical_index(Emit *e, const Node *node, Dim *dim) {
    int axis = shape_find(&e->axes, dim);
    LoopValue index = axis < 0 ? loop_const_i(&e->b, 0) : loop_index(&e->b, axis);
    index = index_in_whole(e, node, dim, index);
    if (dim->first) index = loop_emit(&e->b, LOOP_IADD, index, loop_const_i(&e->b, (int32_t)dim->first), -1);
    if (dim->is_batch && e->l->graph->micro) {
        LoopValue micro = load_scalar(e, lower_scalar(e->l, "micro", DT_I32));
        index = loop_emit(&e->b, LOOP_IADD, index,
                          loop_emit(&e->b, LOOP_IMUL, micro, loop_const_i(&e->b, dim->size), -1), -1);
    }
    return dim->n_parts ? index_in_parts(e, dim, index) : index;
}

/* ---- values ------------------------------------------------------------------------------------- */

static LoopValue emit_value(Emit *e, Node *node);

static LoopValue emit_load(Emit *e, Node *node) {
    Location place = value_place(e->l, node);
    return loop_load(&e->b, access_to(e, &place, &node->shape, node->dtype, NULL));
}

/* The element at `index`, or zero where `inside` is false: the index is brought into range first. */
static LoopValue gather_inside(Emit *e, LoopAccess access, LoopValue index, LoopValue inside) {
    LoopValue row = loop_gather(&e->b, access, loop_emit(&e->b, LOOP_SELECT, inside, index, loop_const_i(&e->b, 0)));
    return loop_emit(&e->b, LOOP_SELECT, inside, row, loop_const_f(&e->b, 0));
}

static LoopValue is_below(Emit *e, LoopValue index, int64_t n) {
    LoopValue zero = loop_const_i(&e->b, 0);
    return loop_emit(&e->b, LOOP_AND, loop_emit(&e->b, LOOP_ILE, zero, index, -1),
                     loop_emit(&e->b, LOOP_ILT, index, loop_const_i(&e->b, n), -1), -1);
}

/* Rows of a table, chosen by data. Rows that another rank holds read as zero: the sum over ranks has them once. */
static LoopValue emit_gather(Emit *e, Node *node) {
    Node *table = node->in[0];
    const Shape *over = &node_attr(node, "over")->dims;
    Location place = value_place(e->l, table);
    LoopValue index = emit_value(e, node->in[1]);
    Dim *rows = over->dims[0];
    int64_t held = lower_extent(e->l, table, rows);
    LoopAccess access = access_to(e, &place, &table->shape, table->dtype, over);
    access.index_stride = place.stride[shape_find(&table->shape, rows)];
    if (held == rows->size) return loop_gather(&e->b, access, index);
    index = index_in_block(e, table, rows, index);
    return gather_inside(e, access, index, is_below(e, index, held));
}

/* An index along two dimensions at once: major * its stride + minor * the other, in steps of the minor one where the
 * major one is a multiple of it. */
static LoopValue pair_index(Emit *e, LoopAccess *access, LoopValue major, int64_t major_stride, LoopValue minor,
                            int64_t minor_stride) {
    bool in_steps = minor_stride > 0 && major_stride % minor_stride == 0;
    access->index_stride = in_steps ? minor_stride : 1;
    LoopValue at = loop_emit(&e->b, LOOP_IMUL, major, loop_const_i(&e->b, major_stride / access->index_stride), -1);
    if (!in_steps) minor = loop_emit(&e->b, LOOP_IMUL, minor, loop_const_i(&e->b, minor_stride), -1);
    return loop_emit(&e->b, LOOP_IADD, at, minor, -1);
}

/* index / n for 0 <= index with index * n < 2^32, by a multiplication. */
static LoopValue divided(Emit *e, LoopValue index, int64_t n) {
    if (n == 1) return index;
    return loop_emit(&e->b, LOOP_IMULHI, index, loop_const_i(&e->b, ((INT64_C(1) << 32) + n - 1) / n), -1);
}

/* The element `at` places before. */
static LoopValue emit_place(Emit *e, Node *node) {
    Node *x = node->in[0];
    const Shape *from = &node_attr(node, "from")->dims;
    Location place = value_place(e->l, x);
    LoopAccess access = access_to(e, &place, &x->shape, x->dtype, from);
    access.index_stride = place.stride[shape_find(&x->shape, from->dims[0])];
    LoopValue at = loop_const_i(&e->b, node_attr(node, "at")->integer),
              index = loop_emit(&e->b, LOOP_ISUB, logical_index(e, node, node_attr(node, "to")->dims.dims[0]), at, -1);
    return gather_inside(e, access, index, is_below(e, index, from->dims[0]->size));
}

/* The row of the token (and pick) that queued for this slot. */
static LoopValue emit_to_slots(Emit *e, Node *node) {
    Node *x = node->in[0];
    const Shape *over = &node_attr(node, "over")->dims;
    Location place = value_place(e->l, x);
    LoopAccess access = access_to(e, &place, &x->shape, x->dtype, over);
    LoopValue source = emit_value(e, node->in[1]);
    int64_t picks = node_attr(node, "pick")->dims.dims[0]->size,
            stride = place.stride[shape_find(&x->shape, over->dims[0])];
    LoopValue inside = loop_emit(&e->b, LOOP_ILE, loop_const_i(&e->b, 0), source, -1);
    LoopValue token = divided(e, source, picks), index = token;
    if (over->n == 1)
        access.index_stride = stride;
    else {
        LoopValue pick =
            loop_emit(&e->b, LOOP_ISUB, source, loop_emit(&e->b, LOOP_IMUL, token, loop_const_i(&e->b, picks), -1), -1);
        index = pair_index(e, &access, token, stride, pick, place.stride[shape_find(&x->shape, over->dims[1])]);
    }
    return gather_inside(e, access, index, inside);
}

/* The row of the slot where this pick queued. Experts of another rank read as zero, and so does a dropped pick. */
static LoopValue emit_from_slots(Emit *e, Node *node) {
    Node *y = node->in[0];
    const Dim *expert = node_attr(node, "expert")->dims.dims[0], *slot = node_attr(node, "slot")->dims.dims[0];
    Shape where = shape_union(&node_attr(node, "expert")->dims, &node_attr(node, "slot")->dims);
    Location place = value_place(e->l, y);
    LoopAccess access = access_to(e, &place, &y->shape, y->dtype, &where);
    LoopValue chosen = index_in_block(e, y, expert, emit_value(e, node->in[1])), at = emit_value(e, node->in[2]);
    LoopValue inside = loop_emit(&e->b, LOOP_ILE, loop_const_i(&e->b, 0), at, -1);
    int64_t held = lower_extent(e->l, y, expert);
    if (held < expert->size) inside = loop_emit(&e->b, LOOP_AND, inside, is_below(e, chosen, held), -1);
    LoopValue index = pair_index(e, &access, chosen, place.stride[shape_find(&y->shape, expert)], at,
                                 place.stride[shape_find(&y->shape, slot)]);
    return gather_inside(e, access, index, inside);
}

/* The cache while sampling: what is new at its position, the rest as it was. */
static LoopValue emit_cache(Emit *e, Node *node) {
    Node *x = node->in[0];
    Dim *key = node_attr(node, "key")->dims.dims[0];
    LoopValue old = emit_value(e, node->in[1]), position = emit_value(e, node->in[2]);
    LoopValue here = loop_emit(&e->b, LOOP_IEQ, logical_index(e, node, key), position, -1);
    Location place = value_place(e->l, x);
    LoopValue new = loop_load(&e->b, access_to(e, &place, &x->shape, x->dtype, &node_attr(node, "seq")->dims));
    return loop_emit(&e->b, LOOP_SELECT, here, new, old);
}

static LoopValue emit_map(Emit *e, Node *node) {
    LoopValue in[16 + MAX_RANK];
    CHECK(node->n_in <= 16);
    for (int k = 0; k < node->n_in; k++) in[k] = emit_value(e, node->in[k]);
    for (int i = 0; i < node->shape.n; i++)
        in[node->n_in + i] = op_info(node)->reads_index ? logical_index(e, node, node->shape.dims[i]) : -1;
    Span span = e->b.span;
    e->b.span = node->span;
    LoopValue value = op_info(node)->emit(&e->b, node, in);
    e->b.span = span;
    return value;
}

/* A value is what its type can hold, whether it is stored or stays inside the loop: so a plan's numbers do not depend
 * on what is fused. Numbers of the program are taken as they are. */
static bool is_number(const Node *node) {
    if (node->op == OP_BROADCAST || node->op == OP_CAST) return is_number(node->in[0]);
    return node->n_in == 0;
}

static LoopValue rounded(Emit *e, const Node *node, LoopValue value) {
    bool narrow = node->dtype == DT_BF16 || node->dtype == DT_F16, moved = node->op == OP_BROADCAST;
    if (!narrow || moved || is_number(node)) return value;
    return loop_emit(&e->b, node->dtype == DT_BF16 ? LOOP_TO_BF16 : LOOP_TO_F16, value, -1, -1);
}

static LoopOp reduce_op(const Node *node) { return node->op == OP_SUM ? LOOP_REDUCE_SUM : LOOP_REDUCE_MAX; }

static LoopValue emit_value(Emit *e, Node *node) {
    bool row = is_row(e, node);
    Map *memo = row ? &e->rows : &e->full;
    void *known = map_get(memo, node);
    if (known) return (LoopValue)(intptr_t)known - 1;
    LoopValue value;
    bool early =
        in_unit(e, node) && value_of(node)->stored && !value_of(node)->generator && node_time(e, node) < e->time;
    if (!in_unit(e, node) || (early && !row))
        value = emit_load(e, node);
    else if (is_reduce(node))
        value = loop_emit(&e->b, reduce_op(node), emit_value(e, node->in[0]), -1, -1);
    else if (op_info(node)->lower == LOWER_GATHER)
        value = emit_gather(e, node);
    else if (op_info(node)->lower == LOWER_PLACE)
        value = emit_place(e, node);
    else if (op_info(node)->lower == LOWER_TO_SLOTS)
        value = emit_to_slots(e, node);
    else if (op_info(node)->lower == LOWER_FROM_SLOTS)
        value = emit_from_slots(e, node);
    else if (op_info(node)->lower == LOWER_CACHE)
        value = emit_cache(e, node);
    else
        value = rounded(e, node, emit_map(e, node));
    /* A row value that an inner pass had to make is known in that pass only, unless it is a reduction. */
    if (row && e->time % 2 == 1 && !is_reduce(node)) memo = &e->full;
    map_put(e->l->arena, memo, node, (void *)(intptr_t)(value + 1));
    return value;
}

/* ---- passes ------------------------------------------------------------------------------------- */

/* What is read from outside over rows, so that it is loaded once a row and not once an element. */
static void collect_row_loads(Emit *e, Node *node, Map *seen) {
    if (map_get(seen, node)) return;
    map_put(e->l->arena, seen, node, node);
    if (!in_unit(e, node)) {
        if (is_row(e, node)) vec_push(e->l->arena, &e->row_loads, node);
        return;
    }
    for (int k = first_element_operand(node); k < node->n_in; k++) collect_row_loads(e, node->in[k], seen);
}

static void emit_store(Emit *e, Node *node, LoopValue value) {
    Location place = value_place(e->l, node);
    LoopAccess access = access_to(e, &place, &node->shape, node->dtype, NULL);
    if (value_of(node)->accumulate) value = loop_emit(&e->b, LOOP_ADD, loop_load(&e->b, access), value, -1);
    loop_store(&e->b, access, value);
}

static void emit_pass(Emit *e, int time) {
    e->time = time;
    e->full = (Map){0};
    loop_begin_pass(&e->b, time % 2 == 0);
    if (time == 0)
        for (int i = 0; i < e->row_loads.n; i++) emit_value(e, e->row_loads.at[i]);
    struct {
        Node *node;
        LoopValue value;
    } stores[64];
    int n = 0;
    for (int i = 0; i < e->unit->nodes.n; i++) {
        Node *node = e->unit->nodes.at[i];
        int t = node_time(e, node);
        bool row_value = is_row(e, node) && !is_reduce(node);
        if (t == time && (is_reduce(node) || row_value)) emit_value(e, node);
        bool now = is_reduce(node) ? t + 1 == time : t == time;
        if (!value_of(node)->stored || !now) continue;
        CHECK(n < 64);
        stores[n].node = node;
        stores[n++].value = emit_value(e, node);
    }
    for (int i = 0; i < n; i++) emit_store(e, stores[i].node, stores[i].value);
}

/* The result of an elementwise unit may take the memory of an operand that nothing else reads any more. */
static void reuse_in_place(Emit *e) {
    int last = 0;
    for (int i = 0; i < e->unit->nodes.n; i++) {
        int t = node_time(e, e->unit->nodes.at[i]) + is_reduce(e->unit->nodes.at[i]);
        if (t > last) last = t;
    }
    Map seen = {0};
    VEC(Node *) leaves = {0};
    VEC(Node *) stack = {0};
    for (int i = 0; i < e->unit->nodes.n; i++) vec_push(e->l->arena, &stack, e->unit->nodes.at[i]);
    while (stack.n) {
        Node *node = stack.at[--stack.n];
        if (map_get(&seen, node)) continue;
        map_put(e->l->arena, &seen, node, node);
        if (!in_unit(e, node)) {
            if (node->mark) vec_push(e->l->arena, &leaves, node);
            continue;
        }
        if (first_element_operand(node)) map_put(e->l->arena, &seen, node->in[0], node->in[0]);
        for (int k = first_element_operand(node); k < node->n_in; k++) vec_push(e->l->arena, &stack, node->in[k]);
    }
    for (int i = 0; i < e->unit->nodes.n; i++) {
        Node *node = e->unit->nodes.at[i];
        Value *value = value_of(node);
        if (!value->stored || value->has_place || value->saved || value->generator || is_reduce(node) ||
            node_time(e, node) != last)
            continue;
        for (int k = 0; k < leaves.n; k++) {
            Value *old = value_of(leaves.at[k]);
            if (old->fixed || value_is_kept(e->l, old) || !old->has_place || old->uses_left != 1 ||
                old->node->op == OP_INPUT)
                continue;
            Buffer *buffer = old->place.ref.buffer;
            if (buffer->persistent || buffer->home != e->l->home || old->place.ref.step || old->place.ref.offset)
                continue;
            if (old->node->dtype != node->dtype || !shape_equal(&old->node->shape, &node->shape)) continue;
            if (lower_bytes(e->l, node->dtype, &node->shape, node) !=
                lower_bytes(e->l, node->dtype, &node->shape, old->node))
                continue;
            if (!place_is_row_major(e->l, old->node, &old->place) || (e->unit->reduced.n && is_row(e, node))) continue;
            value->place = old->place;
            value->has_place = true;
            old->uses_left = 0;
            break;
        }
    }
}

/* ---- the unit ----------------------------------------------------------------------------------- */

static Span unit_span(const Unit *unit) {
    for (int i = unit->nodes.n - 1; i >= 0; i--)
        if (unit->nodes.at[i]->span.file) return unit->nodes.at[i]->span;
    return (Span){0};
}

static const Node *node_with(const Unit *unit, const Dim *dim) {
    for (int i = 0; i < unit->nodes.n; i++) {
        const Node *node = unit->nodes.at[i];
        if (shape_find(&node->shape, dim) >= 0) return node;
        for (int k = 0; k < node->n_in; k++)
            if (shape_find(&node->in[k]->shape, dim) >= 0 && op_info(node)->lower == LOWER_REDUCE) return node->in[k];
    }
    BUG("no node of the unit has `%s`", dim->name);
}

void lower_loop_unit(Lowering *l, Unit *unit) {
    Node *only = unit->nodes.n == 1 ? unit->nodes.at[0] : NULL;
    if (only && only->dtype == DT_EXACT) { /* a constant, which is zero */
        lower_exact_zero(l, value_place(l, only).ref, lower_bytes(l, DT_EXACT, &only->shape, only) / 16, 1, 0,
                         only->span);
        return;
    }
    const char *what = op_info(vec_last(&unit->nodes))->name;
    Kernel *kernel = lower_kernel(l, KERNEL_LOOP, what, unit_span(unit));
    Emit e = {.l = l, .unit = unit, .kernel = kernel};
    Shape outer = shape_without(&unit->domain, &unit->reduced);
    int64_t extent[LOOP_MAX_AXES];
    for (int i = 0; i < outer.n; i++) e.axes.dims[e.axes.n++] = outer.dims[i];
    e.n_outer = outer.n;
    for (int i = 0; i < unit->domain.n; i++)
        if (shape_find(&unit->reduced, unit->domain.dims[i]) >= 0) e.axes.dims[e.axes.n++] = unit->domain.dims[i];
    for (int i = 0; i < e.axes.n; i++) extent[i] = lower_extent(l, node_with(unit, e.axes.dims[i]), e.axes.dims[i]);
    /* A short sum, as the last of a norm over stacked layers, runs point by point: lanes along it would make the code
     * follow from the number of layers. */
    bool is_short = e.axes.n == 1 && e.n_outer == 0 && extent[0] < 1024;
    if (is_short) extent[1] = 1;
    Loop *loop = loop_new(l->arena, kernel->name, extent, e.n_outer, e.axes.n + is_short);
    loop->span = kernel->span;
    const Dim *last = unit->domain.n ? unit->domain.dims[unit->domain.n - 1] : NULL;
    for (int i = 0; l->graph->reproducible && unit->reduced.n && i < unit->nodes.n; i++) {
        const Node *node = unit->nodes.at[i]; /* the order follows from a sum's own operand, not from what was fused */
        if (is_reduce(node)) last = node->in[0]->shape.dims[node->in[0]->shape.n - 1];
    }
    loop->lanes_outer = e.n_outer > 0 && (!unit->reduced.n || shape_find(&unit->reduced, last) < 0);
    if (unit->reduced.n) loop->block = loop->lanes_outer ? 64 : 4096;
    e.b = (LoopBuilder){.arena = l->arena, .loop = loop, .span = kernel->span};
    kernel->loop = loop;
    int end = 0;
    Map seen = {0};
    for (int i = 0; i < unit->nodes.n; i++) {
        Node *node = unit->nodes.at[i];
        int t = node_time(&e, node) + is_reduce(node);
        if (t > end) end = t;
        collect_row_loads(&e, node, &seen);
    }
    reuse_in_place(&e);
    for (int t = 0; t <= end; t++) emit_pass(&e, t);
    loop->n_pointers = kernel->n_refs;
}

void lower_strided_copy(Lowering *l, const CopySpace *space, DType dtype, BufferRef from, BufferRef to, bool accumulate,
                        Span span) {
    if (dtype == DT_EXACT) {
        lower_exact_copy(l, space, from, to, accumulate, span);
        return;
    }
    Kernel *kernel = lower_kernel(l, KERNEL_LOOP, "copy", span);
    Loop *loop = loop_new(l->arena, kernel->name, space->extent, space->n, space->n);
    loop->span = span;
    loop->lanes_outer = space->n > 0;
    Emit e = {.l = l, .kernel = kernel};
    e.b = (LoopBuilder){.arena = l->arena, .loop = loop, .span = span};
    LoopAccess in = {
        .pointer = pointer_of(&e, from), .memory = memory_of(dtype), .index_stride = space->coordinate_stride};
    LoopAccess out = {.pointer = pointer_of(&e, to), .memory = memory_of(dtype)};
    memcpy(in.stride, space->from, sizeof space->from);
    memcpy(out.stride, space->to, sizeof space->to);
    loop_begin_pass(&e.b, true);
    LoopValue value;
    if (space->coordinate)
        value = loop_gather(&e.b, in, load_scalar(&e, space->coordinate));
    else
        value = loop_load(&e.b, in);
    if (accumulate) value = loop_emit(&e.b, LOOP_ADD, loop_load(&e.b, out), value, -1);
    loop_store(&e.b, out, value);
    kernel->loop = loop;
    loop->n_pointers = kernel->n_refs;
}

void lower_zero(Lowering *l, Buffer *buffer, int64_t first, int64_t n, int64_t blocks, int64_t stride, DType dtype,
                Span span) {
    if (dtype == DT_EXACT) {
        BufferRef at = {.buffer = buffer, .offset = first * dtype_bytes(dtype)};
        lower_exact_zero(l, at, n, blocks, stride, span);
        return;
    }
    Kernel *kernel = lower_kernel(l, KERNEL_LOOP, "zero", span);
    int64_t extent[] = {blocks, n};
    Loop *loop = loop_new(l->arena, kernel->name, extent, 2, 2);
    loop->span = span;
    loop->lanes_outer = true;
    Emit e = {.l = l, .kernel = kernel};
    e.b = (LoopBuilder){.arena = l->arena, .loop = loop, .span = span};
    LoopAccess out = {.pointer = pointer_of(&e, (BufferRef){.buffer = buffer}),
                      .memory = memory_of(dtype),
                      .offset = first,
                      .stride = {stride, 1}};
    loop_begin_pass(&e.b, true);
    loop_store(&e.b, out, loop_const_f(&e.b, 0));
    kernel->loop = loop;
    loop->n_pointers = kernel->n_refs;
}

void lower_copy(Lowering *l, Node *like, const Location *from, const Location *to, bool accumulate) {
    CopySpace space = {.n = like->shape.n};
    for (int i = 0; i < like->shape.n; i++) {
        space.extent[i] = lower_extent(l, like, like->shape.dims[i]);
        space.from[i] = from->stride[i], space.to[i] = to->stride[i];
    }
    lower_strided_copy(l, &space, like->dtype, from->ref, to->ref, accumulate, like->span);
}
