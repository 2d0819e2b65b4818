/* For each node and mesh axis, how the axis runs the operator: which letter of its iteration space is cut, or none, or
 * a partial value passed through. The cheapest way wins, counting the bytes that its conversions move and the work that
 * ranks would repeat. Nothing is inserted here: the choice stands in NodeChoice, and convert.c acts on it. */
#include "partition/choose.h"

#include <math.h>

/* A floating-point operation against a byte sent, for weighing repeated work: the order of a CPU core or GPU against
 * its links. Only ties and near-ties depend on it. */
static const double bytes_for_flop = 0.02;

NodeChoice *choice_of(Choices *c, const Node *node) {
    NodeChoice *choice = map_get(&c->of, node);
    if (!choice) {
        choice = NEW(c->arena, NodeChoice);
        choice->need = NEW_N(c->arena, AxisType, (node->n_in + 1) * MAX_MESH);
        map_put(c->arena, &c->of, node, choice);
    }
    return choice;
}

static void add_made(Choices *c, const Node *value, int axis, AxisType type) {
    vec_push(c->arena, &c->made, (Made){value, axis, type, (int)(intptr_t)map_get(&c->made_of, value)});
    map_put(c->arena, &c->made_of, value, (void *)(intptr_t)c->made.n);
}

/* Forgets all but the first n. */
static void forget_made(Choices *c, int n) {
    while (c->made.n > n) {
        const Made *last = &c->made.at[--c->made.n];
        map_put(c->arena, &c->made_of, last->value, (void *)(intptr_t)last->before);
    }
}

bool node_is_source(const Node *node) {
    return node->n_in == 0 && node->op != OP_INPUT && node->op != OP_PARAM && node->op != OP_POISON;
}

bool node_is_remade(const Node *node) {
    if (op_info(node)->lower != LOWER_MAP || node->n_in == 0 || node->n_in > 4) return false;
    for (int i = 0; i < node->n_in; i++)
        if (!node_is_source(node->in[i])) return false;
    return true;
}

/* Zero is a valid partial value on every rank. */
static bool node_is_zero(const Node *node) {
    if (node->op == OP_BROADCAST || node->op == OP_CAST) return node_is_zero(node->in[0]);
    return node->op == OP_CONST && node_attr(node, "value")->number == 0;
}

/* Shape and type of the value that `node` stands for, on one axis. */
static double local_bytes(const Choices *c, const Node *node, int axis) {
    double bytes = (double)dtype_bytes(node->dtype);
    for (int i = 0; i < node->shape.n; i++) bytes *= (double)node->shape.dims[i]->size;
    for (int a = 0; a < c->layout->mesh.n; a++)
        if (a != axis && node->type[a].kind == AXIS_SHARDED) bytes /= (double)c->layout->mesh.axes[a].size;
    return bytes;
}

/* Rule 1 cuts a weight so that its work is cut: the activations come to it, whatever is smaller at this batch. */
static const double weight_stays = 1e4;

static double convert_cost(const Choices *c, const Node *value, int axis, AxisType need) {
    if (axis_type_equal(value->type[axis], need)) return 0;
    bool stays =
        value->type[axis].kind == AXIS_SHARDED && !type_is_flat(value->type[axis]) && map_get(&c->weights, value);
    if ((node_is_source(value) || node_is_remade(value)) && need.kind != AXIS_PARTIAL) return 0;
    if (need.kind == AXIS_PARTIAL && node_is_zero(value)) return 0;
    for (int i = (int)(intptr_t)map_get(&c->made_of, value); i; i = c->made.at[i - 1].before)
        if (c->made.at[i - 1].axis == axis && axis_type_equal(c->made.at[i - 1].type, need)) return 0;
    double bytes = local_bytes(c, value, axis);
    if (value->type[axis].kind == AXIS_SHARDED) bytes /= (double)c->layout->mesh.axes[axis].size;
    return conversion_bytes(&c->layout->mesh, axis, bytes, value->type[axis], need) * (stays ? weight_stays : 1);
}

int shape_layers(const Shape *shape) {
    int n = 0;
    while (n + 1 < shape->n && shape->dims[n]->is_repeated) n++;
    return n;
}

/* The dimension of `shape` that is cut when `dim` is: itself, its leftmost factor, or what it is the leftmost of. */
static Dim *cut_with(const Shape *shape, Dim *dim) {
    if (shape_find(shape, dim) >= 0) return dim;
    for (Dim *d = dim->n_factors ? dim->factors[0] : NULL; d; d = d->n_factors ? d->factors[0] : NULL)
        if (shape_find(shape, d) >= 0) return d;
    for (Dim *d = dim; d->product && d->product->factors[0] == d; d = d->product)
        if (shape_find(shape, d->product) >= 0) return d->product;
    return NULL;
}

typedef struct Way {
    AxisType out;
    AxisType in[16];
    double cost;
    bool ring;
} Way;

static const AxisType replicated = {.kind = AXIS_REPLICATED};
static const AxisType partial_sum = {.kind = AXIS_PARTIAL, .reduce = REDUCE_SUM};

static const AxisType flat = {.kind = AXIS_SHARDED, .layout = LAYOUT_FLAT};

static bool divides(const Choices *c, const AxisType *type, int axis, Dim *dim) {
    DimCut cuts[MAX_MESH];
    AxisType types[MAX_MESH];
    for (int a = 0; a < c->layout->mesh.n; a++) {
        bool is_cut = a == axis || (type[a].kind == AXIS_SHARDED && type[a].dim == dim);
        types[a] = is_cut ? layout_cut(c->layout, a, dim) : replicated;
    }
    return dim->size % cuts_multiple(cuts, dim_cuts(&c->layout->mesh, types, dim, cuts)) == 0;
}

/* Adds up what the way costs: its conversions, the later conversion to what rule 1 wants, the work of a rank. A partial
 * result of operands that lie as they are wanted counts nothing: it stays partial until a use needs it, and a gradient
 * that adds up over micro-batches is then joined once a step. */
static void weigh(const Choices *c, const Node *node, int axis, bool cut, Way *way) {
    double n = (double)c->layout->mesh.axes[axis].size, work = c->flops * bytes_for_flop / (cut ? n : 1);
    way->cost = 0;
    for (int i = 0; i < node->n_in; i++) way->cost += convert_cost(c, node->in[i], axis, way->in[i]);
    bool free = (way->cost == 0 && way->out.kind == AXIS_PARTIAL) || type_is_flat(way->out);
    way->cost += work;
    if (free) return;
    AxisType target = layout_type(c->layout, axis, &node->shape);
    double bytes = local_bytes(c, node, axis);
    if (way->out.kind == AXIS_SHARDED) bytes /= n;
    way->cost += conversion_bytes(&c->layout->mesh, axis, bytes, way->out, target);
}

static bool is_stored(const Node *node) {
    return node->op == OP_INPUT && node->tensor->of &&
           (node->tensor->class == CLASS_GRADIENT || node->tensor->class == CLASS_MOMENT);
}

/* ---- what stands behind the elements of a flat range ---- */

bool flat_is_padded(const Layout *layout, const Node *value, int axis) {
    int64_t elements = 1, others = 1;
    for (int i = shape_layers(&value->shape); i < value->shape.n; i++) elements *= value->shape.dims[i]->size;
    for (int a = 0; a < layout->mesh.n; a++)
        if (a != axis && value->type[a].kind == AXIS_SHARDED) others *= layout->mesh.axes[a].size;
    return elements / others % layout->mesh.axes[axis].size != 0;
}

Padding flat_padding(const Node *node, int axis) {
    if (node->op == OP_CONST) return node_is_zero(node) ? PADDING_ZERO : PADDING_OTHER;
    if (node->shape.n == 0) return PADDING_UNKNOWN;
    if (!type_is_flat(node->type[axis])) return PADDING_ZERO;                /* its conversion puts zeros there */
    if (node->op == OP_INPUT || node->op == OP_FLATTEN) return PADDING_ZERO; /* so does all that is stored */
    if (node->op == OP_SHARD || node->op == OP_REDUCE_SCATTER || node->op == OP_ALL_REDUCE) {
        return node->in[0]->op == OP_FLATTEN ? PADDING_ZERO : flat_padding(node->in[0], axis);
    }
    if (node->op == OP_RESULT && node->in[0]->op == OP_REPEAT) {
        const Region *region = node->in[0]->region;
        int64_t k = node_attr(node, "index")->integer;
        return k < region->n_carries ? PADDING_UNKNOWN : flat_padding(region->results.at[k], axis);
    }
    Padding a = node->n_in > 0 ? flat_padding(node->in[0], axis) : PADDING_UNKNOWN;
    bool keeps_zero = node->op == OP_NEG || node->op == OP_SQRT || node->op == OP_CAST || node->op == OP_ABS;
    if (keeps_zero || node->op == OP_EXACT_ROUND) return a;
    if (node->op == OP_SELECT) { /* by a scalar: one or the other */
        Padding x = flat_padding(node->in[1], axis), y = flat_padding(node->in[2], axis);
        return node->in[0]->shape.n == 0 && x == y ? x : PADDING_UNKNOWN;
    }
    if (node->n_in != 2) return PADDING_UNKNOWN;
    if (node->op == OP_MUL && a == PADDING_ZERO) return a;
    Padding b = node->in[1] == node->in[0] ? a : flat_padding(node->in[1], axis);
    if (node->op == OP_MUL && b == PADDING_ZERO) return b;
    if (node->op == OP_DIV && a == PADDING_ZERO && b != PADDING_ZERO) return PADDING_ZERO;
    if ((node->op == OP_ADD || node->op == OP_SUB) && a == PADDING_ZERO) return b;
    if (node->op == OP_ADD && b == PADDING_ZERO) return a;
    return PADDING_UNKNOWN;
}

/* A value is a flat range along one axis alone: the first that asked for it. */
static bool flat_elsewhere(const Choices *c, const Node *node, int axis) {
    for (int a = 0; a < c->layout->mesh.n; a++) {
        if (a == axis) continue;
        if (a < axis && type_is_flat(node->type[a])) return true;
        for (int i = 0; i < node->n_in; i++)
            if (type_is_flat(node->in[i]->type[a])) return true;
    }
    return false;
}

/* Element by element on the flat range: every operand has the result's shape, or is a scalar. A sum over all elements
 * of a flat range is partial, when what stands behind them counts nothing. */
static void try_flat(const Choices *c, const Node *node, int axis, const Iteration *space, Way *best) {
    if (!c->layout->axes[axis].stored || node->n_outs || flat_elsewhere(c, node, axis)) return;
    if (node->op == OP_SUM && c->reproducible) return;
    if (node->op == OP_SUM || node->op == OP_EXACT_SUM) {
        if (node->op == OP_EXACT_SUM && !node_attr(node, "over")->dims.n) return;
        const Shape *x = &node->in[0]->shape;
        bool all = node->shape.n == 0 || node->shape.n == shape_layers(x);
        for (int i = 0; i < node->shape.n; i++) all = all && node->shape.dims[i] == x->dims[i];
        if (!all || !type_is_flat(node->in[0]->type[axis])) return;
        if (flat_is_padded(c->layout, node->in[0], axis) && flat_padding(node->in[0], axis) != PADDING_ZERO) return;
        Way way = {.out = partial_sum, .in = {flat}};
        weigh(c, node, axis, true, &way);
        if (way.cost < best->cost) *best = way;
        return;
    }
    if (node->shape.n == 0) return;
    bool wanted = false;
    for (int i = 0; i < space->n; i++)
        if (space->letters[i].kind != LETTER_PARALLEL) return;
    Way way = {.out = flat};
    for (int i = 0; i < node->n_in; i++) {
        const Node *in = node->in[i];
        bool whole = in->shape.n == 0, same = shape_equal(&in->shape, &node->shape);
        if (!whole && !same) return;
        way.in[i] = whole ? replicated : flat;
        wanted |= same && (type_is_flat(in->type[axis]) || is_stored(in) || (c->once && map_get(&c->weights, in)));
    }
    if (!wanted) return;
    weigh(c, node, axis, true, &way);
    if (way.cost < best->cost) *best = way;
}

static bool lists(const AxisRules *rules, const Dim *dim) {
    for (int i = 0; i < rules->names.n; i++)
        if (rules->names.at[i] == dim) return true;
    return false;
}

/* Whether the plan's word for attention on this axis allows cutting this letter. */
static bool way_allows(const Choices *c, const Node *node, int axis, const Dim *letter) {
    AttentionWay way = c->layout->axes[axis].attention;
    if (way == ATTENTION_ANY || op_info(node)->lower != LOWER_ATTEND) return true;
    AttendParts parts = attend_parts(node);
    if (shape_find(&parts.batch, letter) >= 0) return lists(&c->layout->axes[axis], letter);
    return way == ATTENTION_ULYSSES ? letter == parts.head || letter == parts.kv_head : letter == parts.seq;
}

/* The dimension of an operand or result of attention that a ring cuts: queries', or keys'. */
static Dim *ring_dim(const AttendParts *parts, const Shape *shape) {
    Dim *key = cut_with(shape, parts->key);
    return key ? key : cut_with(shape, parts->seq);
}

static bool names_dim(const Layout *layout, int axis, const Dim *dim) {
    const AxisRules *rules = &layout->axes[axis];
    for (int i = 0; dim && i < rules->names.n; i++)
        if (dim_is_cut_by(dim, rules->names.at[i])) return true;
    return false;
}

/* Queries stay, keys and values go round: attention over the keys that a rank holds at each turn (partition/ring.c).
 * Forward they are handed on n - 1 times; backward once more, and what is added to their gradients n times. */
static void try_ring(const Choices *c, const Node *node, int axis, Way *best) {
    AttendParts parts = attend_parts(node);
    if (c->layout->axes[axis].attention != ATTENTION_RING || !names_dim(c->layout, axis, parts.seq)) return;
    Way way = {.ring = true};
    double n = (double)c->layout->mesh.axes[axis].size, bytes = 0;
    for (int i = 0; i < node->n_in; i++) {
        Dim *dim = ring_dim(&parts, &node->in[i]->shape);
        if (!dim || !divides(c, node->in[i]->type, axis, dim)) return;
        way.in[i] = layout_cut(c->layout, axis, dim);
        if (shape_find(&node->in[i]->shape, parts.key) >= 0) bytes += local_bytes(c, node->in[i], axis) / n;
    }
    way.out = layout_cut(c->layout, axis, cut_with(&node->shape, parts.seq));
    weigh(c, node, axis, true, &way);
    way.cost += bytes * (node->n_in == 3 ? n - 1 : 2 * n - 1);
    *best = way;
}

static bool is_flat(const Choices *c, const Node *value) {
    for (int a = 0; a < c->layout->mesh.n; a++)
        if (type_is_flat(value->type[a])) return true;
    return false;
}

static void try_letter(const Choices *c, const Node *node, int axis, const Letter *letter, Way *best) {
    Way way = {.out = replicated};
    if (letter->kind == LETTER_WHOLE || !way_allows(c, node, axis, letter->dim)) return;
    /* what data chooses is found by where a block starts */
    if (letter->kind == LETTER_INDEXED && layout_cut(c->layout, axis, letter->dim).layout != LAYOUT_BLOCK) return;
    if (c->reproducible && !cut_keeps_order(c, node, axis, letter)) return;
    bool wanted = false;
    for (int i = 0; i < node->n_in; i++) {
        Dim *dim = cut_with(&node->in[i]->shape, letter->dim);
        way.in[i] = dim ? layout_cut(c->layout, axis, dim) : replicated;
        if (dim && !divides(c, node->in[i]->type, axis, dim)) return;
        bool cut = dim && node->in[i]->type[axis].kind == AXIS_SHARDED && node->in[i]->type[axis].dim == dim;
        if (dim && !cut && is_flat(c, node->in[i])) return; /* a range is never cut anew */
        wanted |= cut;
    }
    Dim *out = cut_with(&node->shape, letter->dim);
    AxisType target = layout_type(c->layout, axis, &node->shape);
    if (out) {
        way.out = layout_cut(c->layout, axis, out);
        if (target.kind == AXIS_SHARDED && target.dim == out) wanted = true;
    } else {
        ReduceKind reduce = letter->kind == LETTER_MAX   ? REDUCE_MAX
                            : letter->kind == LETTER_MIN ? REDUCE_MIN
                                                         : REDUCE_SUM;
        way.out = (AxisType){.kind = AXIS_PARTIAL, .reduce = reduce};
    }
    if (c->layout->axes[axis].attention && op_info(node)->lower == LOWER_ATTEND) wanted = true;
    if (!wanted) return;
    weigh(c, node, axis, true, &way);
    if (way.cost < best->cost) *best = way;
}

/* Partial sums pass through what is linear in them: all jointly linear operands together, or one operand of a product
 * while the others are whole. */
static void try_partial(const Choices *c, const Node *node, int axis, const Iteration *space, Way *best) {
    AxisType partial = {.kind = AXIS_PARTIAL, .reduce = REDUCE_SUM};
    if (c->reproducible && node->dtype != DT_EXACT) return; /* (a + b) + (c + d) is not (a + c) + (b + d) */
    if (space->joint) {
        Way way = {.out = partial};
        bool any = false;
        for (int i = 0; i < node->n_in; i++) {
            way.in[i] = space->joint >> i & 1 ? partial : replicated;
            any |= axis_type_equal(node->in[i]->type[axis], partial);
        }
        if (any) {
            weigh(c, node, axis, false, &way);
            if (way.cost < best->cost) *best = way;
        }
    }
    for (int k = 0; k < node->n_in; k++) {
        if (!(space->single >> k & 1) || !axis_type_equal(node->in[k]->type[axis], partial)) continue;
        Way way = {.out = partial};
        for (int i = 0; i < node->n_in; i++) way.in[i] = i == k ? partial : replicated;
        weigh(c, node, axis, false, &way);
        if (way.cost < best->cost) *best = way;
    }
}

/* A view defines nothing: it keeps its operand's type, under the new name. Where the cut dimension has no name in the
 * result, the operand has to be whole. */
static void choose_view(Choices *c, Node *node, int axis) {
    AxisType type = node->in[0]->type[axis];
    if (type_is_flat(type)) type = (AxisType){.kind = AXIS_REPLICATED};
    Dim *dim = type.kind == AXIS_SHARDED ? view_result_dim(node, type.dim) : NULL;
    if (dim && !divides(c, node->type, axis, dim)) dim = NULL; /* a leftmost factor may be smaller than the axis */
    if (dim && layout_cut(c->layout, axis, dim).layout != type.layout) dim = NULL;
    AxisType need = type.kind == AXIS_SHARDED && !dim ? replicated : type;
    choice_of(c, node)->need[axis] = need;
    if (!axis_type_equal(node->in[0]->type[axis], need)) add_made(c, node->in[0], axis, need);
    node->type[axis] = need;
    if (need.kind == AXIS_SHARDED) node->type[axis].dim = dim;
}

static void refuse_way(const Choices *c, const Node *node, int axis) {
    const MeshAxis *mesh_axis = &c->layout->mesh.axes[axis];
    AttendParts parts = attend_parts(node);
    const Dim *heads = parts.kv_head ? parts.kv_head : parts.head;
    Diag *d = diag_error(c->session, "P0430", c->layout->axes[axis].attention_span,
                         "attention cannot be cut this way over `%s` (%lld): it has %lld heads of keys and values",
                         mesh_axis->name, (long long)mesh_axis->size, (long long)(heads ? heads->size : 1));
    diag_note(d, node->span, "this attention");
    diag_help(d, "`using gather` and `using ring` cut the sequence for any number of heads");
}

/* A sum over the stages of a pipeline: each of them has a scalar of its own, whole on all other axes. */
static void choose_sum(Choices *c, Node *node, int axis) {
    choice_of(c, node)->need[axis] = replicated;
    if (!axis_type_equal(node->in[0]->type[axis], replicated)) add_made(c, node->in[0], axis, replicated);
    node->type[axis] = replicated;
}

/* Whether every rank of the axis has all that the node reads, and nobody wants a part of what it makes: most scalars
 * and most axes of a large mesh. */
static bool is_whole(const Choices *c, const Node *node, int axis) {
    const AxisRules *rules = &c->layout->axes[axis];
    if (rules->stored || rules->attention) return false;
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i]->type[axis].kind != AXIS_REPLICATED) return false;
    return layout_type(c->layout, axis, &node->shape).kind == AXIS_REPLICATED;
}

static void choose_whole(Choices *c, Node *node, int axis) {
    NodeChoice *choice = choice_of(c, node);
    for (int i = 0; i < node->n_in; i++) choice->need[i * MAX_MESH + axis] = replicated;
    node->type[axis] = replicated;
    for (int k = 0; k < node->n_outs; k++) node->outs[k].type[axis] = replicated;
}

static void choose_axis(Choices *c, Node *node, const Iteration *space, int axis) {
    if (op_info(node)->lower == LOWER_COLLECTIVE) {
        choose_sum(c, node, axis);
        return;
    }
    if (op_info(node)->lower == LOWER_VIEW) {
        choose_view(c, node, axis);
        return;
    }
    if (is_whole(c, node, axis)) {
        choose_whole(c, node, axis);
        return;
    }
    Way best = {.out = replicated};
    CHECK(node->n_in <= 16);
    weigh(c, node, axis, false, &best);
    bool asked = c->layout->axes[axis].attention != ATTENTION_ANY && op_info(node)->lower == LOWER_ATTEND;
    const Way whole = best;
    if (asked) best.cost = INFINITY; /* only where nothing else is possible */
    for (int i = 0; i < space->n; i++) try_letter(c, node, axis, &space->letters[i], &best);
    try_partial(c, node, axis, space, &best);
    try_flat(c, node, axis, space, &best);
    if (op_info(node)->lower == LOWER_ATTEND) try_ring(c, node, axis, &best);
    if (asked && best.out.kind != AXIS_SHARDED) {
        best = whole;
        if (!c->reproducible) refuse_way(c, node, axis); /* there what would change the order of sums is gathered */
    }
    NodeChoice *choice = choice_of(c, node);
    choice->rings = (choice->rings & ~(1u << axis)) | (unsigned)best.ring << axis;
    for (int i = 0; i < node->n_in; i++) {
        choice->need[i * MAX_MESH + axis] = best.in[i];
        if (!axis_type_equal(node->in[i]->type[axis], best.in[i])) add_made(c, node->in[i], axis, best.in[i]);
    }
    node->type[axis] = best.out;
    for (int k = 0; k < node->n_outs; k++) {
        Dim *dim = best.out.kind == AXIS_SHARDED && best.out.dim ? cut_with(&node->outs[k].shape, best.out.dim) : NULL;
        /* One of several results that lacks the dimension is a sum over it: dk and dv where queries are cut. */
        if (best.ring && !dim) dim = cut_with(&node->outs[k].shape, attend_parts(node).key);
        node->outs[k].type[axis] = dim                             ? layout_cut(c->layout, axis, dim)
                                   : best.out.kind == AXIS_SHARDED ? partial_sum
                                                                   : best.out;
    }
}

static void copy_types(AxisType *to, const AxisType *from) { memcpy(to, from, sizeof(AxisType) * MAX_MESH); }

/* A carry keeps one type through all layers: what rule 1 says of its shape; but an accumulator that starts at zero and
 * only collects partial sums stays partial, so that it is joined once and not in every layer. */
static void choose_repeat(Choices *c, Node *node) {
    Region *region = node->region;
    NodeChoice *choice = choice_of(c, node);
    for (int i = 0; i < node->n_in; i++) {
        Node *param = region->params.at[i];
        if (i >= region->n_carries) copy_types(param->type, node->in[i]->type);
        if (map_get(&c->weights, node->in[i])) map_put(c->arena, &c->weights, param, param);
        if (i >= region->n_carries) continue;
        for (int a = 0; a < c->layout->mesh.n; a++) param->type[a] = layout_type(c->layout, a, &param->shape);
    }
    for (bool again = true; again;) {
        again = false;
        int made = c->made.n;
        choose_region(c, region);
        for (int i = 0; i < region->n_carries; i++)
            for (int a = 0; a < c->layout->mesh.n; a++) {
                Node *param = region->params.at[i];
                if (region->results.at[i]->type[a].kind != AXIS_PARTIAL || param->type[a].kind == AXIS_PARTIAL)
                    continue;
                if (param->type[a].kind != AXIS_REPLICATED || !node_is_zero(node->in[i])) continue;
                param->type[a] = region->results.at[i]->type[a];
                again = true;
            }
        if (again) forget_made(c, made);
    }
    for (int i = 0; i < node->n_in; i++)
        copy_types(&choice->need[i * MAX_MESH], i < region->n_carries ? region->params.at[i]->type : node->in[i]->type);
    const AxisType *wanted = map_get(&c->stacked, node);
    for (int k = 0; k < node->n_outs; k++) {
        copy_types(node->outs[k].type,
                   k < region->n_carries ? region->params.at[k]->type : region->results.at[k]->type);
        for (int a = 0; wanted && k >= region->n_carries && a < c->layout->mesh.n;
             a++) /* each layer's part goes to its place at once */
            if (wanted[k * MAX_MESH + a].kind == AXIS_SHARDED) node->outs[k].type[a] = wanted[k * MAX_MESH + a];
    }
}

void choose_region(Choices *c, Region *region) {
    for (int i = 0; i < region->nodes.n; i++) {
        Node *node = region->nodes.at[i];
        if (node->op == OP_PARAM || node->op == OP_POISON) continue;
        if (node->op == OP_INPUT) {
            copy_types(node->type, tensor_type(node->tensor));
            node->tensor->typed = true; /* whoever writes it later writes what was read here */
        } else if (node->op == OP_RESULT)
            copy_types(node->type, node->in[0]->outs[node_attr(node, "index")->integer].type), choice_of(c, node);
        else if (node->op == OP_REPEAT)
            choose_repeat(c, node);
        else {
            Iteration space = op_iteration(node);
            c->flops = op_flops_over(node, &space);
            for (int a = 0; a < c->layout->mesh.n; a++) choose_axis(c, node, &space, a);
        }
        if (node->op == OP_RESULT) copy_types(choice_of(c, node)->need, node->type);
        const Tensor *tensor = node->op == OP_INPUT ? node->tensor : NULL;
        if (tensor && tensor->class == CLASS_STAGE && tensor->of) tensor = tensor->of; /* its gathered copy */
        bool is_weight = tensor && tensor->class == CLASS_WEIGHT;
        bool sees_weight =
            (op_info(node)->lower == LOWER_VIEW || node->op == OP_CAST) && map_get(&c->weights, node->in[0]);
        if (is_weight || sees_weight) map_put(c->arena, &c->weights, node, node);
    }
}
