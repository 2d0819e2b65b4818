/* Collectives: conversions between the types of a value along one mesh axis. They change what a rank holds, never the
 * global value, so their gradient is a conversion too, which partitioning inserts itself (it runs after gradients).
 *
 * The evaluator runs ranks node by node, so each rank reads what the others hold, element by element, by logical index.
 */
#include "ir/op.h"

#include <math.h>

static bool infer_same(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = node->in[0]->dtype;
    node->shape = node->in[0]->shape;
    return true;
}

/* The ranks that differ from this one only along `axis`, by their coordinate there. */
static int64_t peer(const EvalContext *context, int axis, int64_t coordinate) {
    int64_t stride = 1;
    for (int i = context->mesh->n - 1; i > axis; i--) stride *= context->mesh->axes[i].size;
    return context->rank + (coordinate - mesh_coordinate(context->mesh, context->rank, axis)) * stride;
}

/* The c-th rank of the group that differs from this one along `axes` (a bit each) alone; the last axis counts fastest.
 */
static int64_t member(const EvalContext *context, uint32_t axes, int64_t c) {
    int64_t rank = context->rank;
    for (int a = context->mesh->n - 1; a >= 0; a--) {
        if (!(axes >> a & 1)) continue;
        rank += peer(context, a, c % context->mesh->axes[a].size) - context->rank;
        c /= context->mesh->axes[a].size;
    }
    return rank;
}

static int64_t members(const Mesh *mesh, uint32_t axes) {
    int64_t n = 1;
    for (int a = 0; a < mesh->n; a++) n *= axes >> a & 1 ? mesh->axes[a].size : 1;
    return n;
}

uint32_t collective_axes(const Node *node) {
    uint32_t axes = 1u << node_attr(node, "axis")->integer;
    return node->op == OP_ALL_TO_ALL ? axes | (uint32_t)node_attr(node, "outer")->integer : axes;
}

/* The element at a logical index, or false when the rank does not hold it. */
static bool element_of(const EvalContext *context, const Node *in, int64_t rank, const int64_t *logical,
                       double *value) {
    const Array *array = eval_peer(context, in, rank);
    int64_t at = 0;
    for (int d = 0; d < in->shape.n; d++) {
        int64_t local = logical_to_local(context->mesh, in->type, in->shape.dims[d], rank, logical[d]);
        if (local < 0) return false;
        at = at * array->extent[d] + local;
    }
    *value = array->at[at];
    return true;
}

static double combine(ReduceKind reduce, double x, double y) {
    switch (reduce) {
    case REDUCE_SUM: return x + y;
    case REDUCE_MAX: return x > y ? x : y;
    case REDUCE_MIN: return x < y ? x : y;
    case REDUCE_OR: return x != 0 || y != 0;
    }
    return 0;
}

/* Each element of the result, from the ranks along the axes that hold it: reduced, or any one of them. */
static void eval_collective(EvalContext *context, const Node *node, Array *out, bool reduces) {
    const Node *in = node->in[0];
    uint32_t axes = collective_axes(node);
    ReduceKind reduce = reduces ? (ReduceKind)node_attr(node, "reduce")->integer : REDUCE_SUM;
    int64_t index[MAX_RANK] = {0}, at = 0;
    do {
        int64_t logical[MAX_RANK];
        for (int d = 0; d < node->shape.n; d++)
            logical[d] = local_to_logical(context->mesh, node->type, node->shape.dims[d], context->rank, index[d]);
        int held = 0;
        for (int64_t c = 0; c < members(context->mesh, axes) && (reduces || !held); c++) {
            double value;
            if (!element_of(context, in, member(context, axes, c), logical, &value)) continue;
            out->at[at] = held ? combine(reduce, out->at[at], value) : value;
            held++;
        }
        if (!held) BUG("no rank of the group of `%s` holds an element of the result", op_info(node)->name);
        at++;
    } while (array_next(out, index));
}

static void eval_reducing(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)in;
    eval_collective(context, node, out[0], true);
}

static void eval_moving(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)in;
    eval_collective(context, node, out[0], false);
}

#define HEAD "graph case { mesh data = 2, tensor = 2; dim a = 4, b = 8, c = 3\n"
static const OpCase cases_all_reduce[] = {
    {.what = "a sum over one of two axes",
     .low = -2,
     .high = 2,
     .graph = HEAD "tensor x: f32[a, b] {data: sharded(a), tensor: sharded(b)}\n"
                   "%0 = input x; %1 = sum(%0, over = [b]) : f32[a] {data: sharded(a), tensor: partial(sum)}\n"
                   "%2 = all_reduce(%1, axis = 1, reduce = 0) : f32[a] {data: sharded(a)}; output %2 }"},
    {.what = "a maximum",
     .low = -2,
     .high = 2,
     .graph = HEAD "tensor x: f32[a, b] {tensor: sharded(b)}\n"
                   "%0 = input x; %1 = max_over(%0, over = [b]) : f32[a] {tensor: partial(max)}\n"
                   "%2 = all_reduce(%1, axis = 1, reduce = 1) : f32[a]; output %2 }"},
    {0}};
static const OpCase cases_all_gather[] = {
    {.what = "the inner of two axes on one dimension",
     .low = -2,
     .high = 2,
     .graph = HEAD "tensor x: f32[c, b] {data: sharded(b), tensor: sharded(b)}\n"
                   "%0 = input x; %1 = all_gather(%0, axis = 1, dim = b) : f32[c, b] {data: sharded(b)}; output %1 }"},
    {0}};
static const OpCase cases_reduce_scatter[] = {
    {.what = "a partial sum",
     .low = -2,
     .high = 2,
     .graph = HEAD "tensor x: f32[a, b] {tensor: sharded(b)}\n"
                   "%0 = input x; %1 = sum(%0, over = [b]) : f32[a] {tensor: partial(sum)}\n"
                   "%2 = reduce_scatter(%1, axis = 1, dim = a, reduce = 0) : f32[a] {tensor: sharded(a)}; output %2 }"},
    {0}};
static const OpCase cases_all_to_all[] = {
    {.what = "from one dimension to another",
     .low = -2,
     .high = 2,
     .graph = HEAD
     "tensor x: f32[a, c, b] {data: sharded(a)}\n"
     "%0 = input x; %1 = all_to_all(%0, axis = 0, from = a, to = b) : f32[a, c, b] {data: sharded(b)}; output %1 }"},
    {.what = "along two axes at once",
     .low = -2,
     .high = 2,
     .graph = HEAD "tensor x: f32[a, c, b] {data: sharded(a), tensor: sharded(a)}\n"
                   "%0 = input x; %1 = all_to_all(%0, axis = 1, from = a, to = b, outer = 1) : f32[a, c, b] {data: "
                   "sharded(b), tensor: sharded(b)}; output %1 }"},
    {0}};
static const OpCase cases_pass[] = {
    {.what = "to the next of four",
     .low = -2,
     .high = 2,
     .graph = "graph case { mesh data = 4; dim a = 8, b = 3; tensor x: f32[a, b] {data: sharded(a, balanced)}\n"
              "%0 = input x; %1 = pass(%0, axis = 0) : f32[a, b] {data: sharded(a, balanced, turn 1)}\n"
              "%2 = exp(%1) : f32[a, b] {data: sharded(a, balanced, turn 1)}\n"
              "%3 = pass(%2, axis = 0) : f32[a, b] {data: sharded(a, balanced, turn 2)}; output %3 }"},
    {0}};
static const OpCase cases_shard[] = {
    {.what = "along one axis",
     .low = -2,
     .high = 2,
     .graph = HEAD
     "tensor x: f32[a, b] {data: sharded(b)}\n"
     "%0 = input x; %1 = shard(%0, axis = 1, dim = b) : f32[a, b] {data: sharded(b), tensor: sharded(b)}; output %1 }"},
    {0}};

#define ENTRY(name_, NAME)                                                                                             \
    .op = OP_##NAME, .name = #name_, .family = "collective", .in = {"x"}, .dims = "... -> ...", .infer = infer_same,   \
    .no_grad = true, .lower = LOWER_COLLECTIVE, .cases = cases_##name_

const OpInfo op_info_all_reduce = {
    ENTRY(all_reduce, ALL_REDUCE), .doc = "partial on an axis to replicated: every rank gets the reduction",
    .attrs = {{"axis", ATTR_INT, NAN}, {"reduce", ATTR_INT, REDUCE_SUM}}, .eval = eval_reducing};

const OpInfo op_info_all_gather = {ENTRY(all_gather, ALL_GATHER),
                                   .doc = "sharded on an axis to replicated: every rank gets all parts",
                                   .attrs = {{"axis", ATTR_INT, NAN}, {"dim", ATTR_DIM, NAN}}, .eval = eval_moving};

const OpInfo op_info_reduce_scatter = {
    ENTRY(reduce_scatter, REDUCE_SCATTER),
    .doc = "partial on an axis to sharded: every rank gets its part of the reduction",
    .attrs = {{"axis", ATTR_INT, NAN}, {"dim", ATTR_DIM, NAN}, {"reduce", ATTR_INT, REDUCE_SUM}},
    .eval = eval_reducing};

const OpInfo op_info_all_to_all = {
    ENTRY(all_to_all, ALL_TO_ALL),
    .doc =
        "sharded along one dimension to sharded along another; `outer` has a bit for each further axis that cuts both, "
        "outside of `axis`",
    .attrs = {{"axis", ATTR_INT, NAN}, {"from", ATTR_DIM, NAN}, {"to", ATTR_DIM, NAN}, {"outer", ATTR_INT, 0}},
    .eval = eval_moving};

const OpInfo op_info_pass = {ENTRY(pass, PASS),
                             .doc = "a step of a ring: every rank hands its part to the next along the axis",
                             .attrs = {{"axis", ATTR_INT, NAN}}, .eval = eval_moving};

const OpInfo op_info_shard = {ENTRY(shard, SHARD), .doc = "replicated on an axis to sharded: every rank keeps its part",
                              .attrs = {{"axis", ATTR_INT, NAN}, {"dim", ATTR_DIM, NAN}}, .eval = eval_moving};
