/* Rows of a table picked by index, their gradient, and rotary positions. */
#include <math.h>

#include "ir/ops/space.h"

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

static bool infer_lookup(Graph *graph, Node *node) {
    const Node *table = node->in[0], *index = node->in[1];
    Shape *over = &node->attrs[op_attr_index(op_info(node), "over")].dims;
    if (over->n == 0 && table->shape.n) *over = shape_of(table->shape.dims, 1); /* rows are the first dimension */
    if (over->n != 1 || shape_find(&table->shape, over->dims[0]) < 0 || shape_find(&index->shape, over->dims[0]) >= 0) {
        Diag *d = diag_error(graph->session, "P0240", node->span, "`lookup` over %s in a table over %s",
                             shape_text(graph->arena, over), shape_text(graph->arena, &table->shape));
        diag_help(d, "name the one dimension of the table that the index counts along, as in `lookup(table, tokens, "
                     "over vocab)`");
        return false;
    }
    if (index->dtype != DT_I32) {
        Diag *d =
            diag_error(graph->session, "P0242", node->span, "`lookup` with an index of %s", dtype_name[index->dtype]);
        diag_help(d, "the table comes first, the index (an `int` tensor) second");
        return false;
    }
    Shape rest = shape_without(&table->shape, over), result = shape_union(&index->shape, &rest);
    node->dtype = table->dtype;
    node->shape = result;
    return true;
}

static void grad_lookup(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    Node *table = node->in[0], *index = node->in[1];
    AttrValue attrs[3] = {{.dims = shape_without(&index->shape, &table->shape)},
                          {.dims = node_attr(node, "over")->dims},
                          {.dims = table->shape}};
    grad_in[0] = build_op(b, OP_LOOKUP_GRAD, (Node *[]){index, grad_out[0]}, 2, attrs);
}

/* Rows that another rank holds count zero here: the result is partial. */
static void eval_lookup(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    const Dim *rows = node_attr(node, "over")->dims.dims[0];
    int64_t stride = array_stride(in[0], rows), n = array_extent(in[0], rows);
    int64_t first = eval_offset(context, node->in[0], rows);
    Space points = {0};
    space_add(&points, out[0], NULL);
    for (int64_t i = 0; i < out[0]->n; i++, space_next(&points)) {
        int64_t row = (int64_t)in[1]->at[space_offset(&points, in[1])] - first;
        out[0]->at[i] = row < 0 || row >= n ? 0 : in[0]->at[space_offset(&points, in[0]) + row * stride];
    }
}

static bool infer_lookup_grad(Graph *graph, Node *node) {
    const Shape *shape = &node_attr(node, "shape")->dims, *over = &node_attr(node, "over")->dims;
    const Shape *rows = &node_attr(node, "rows")->dims;
    Shape rest = shape_without(shape, rows), known = shape_union(&node->in[1]->shape, over);
    if (!shape_contains(shape, rows) || !shape_contains(&node->in[0]->shape, over) || !shape_contains(&known, &rest)) {
        diag_error(graph->session, "P0240", node->span, "`lookup_grad` of %s over %s into %s",
                   shape_text(graph->arena, &node->in[1]->shape), shape_text(graph->arena, over),
                   shape_text(graph->arena, shape));
        return false;
    }
    node->dtype = node->in[1]->dtype == DT_F64 ? DT_F64 : DT_F32; /* many rows are added up, whatever their type */
    node->shape = *shape;
    return true;
}

static void eval_lookup_grad(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    const Dim *rows = node_attr(node, "rows")->dims.dims[0];
    int64_t stride = array_stride(out[0], rows), n = array_extent(out[0], rows);
    int64_t first = eval_offset(context, node, rows);
    memset(out[0]->at, 0, sizeof(double) * (size_t)out[0]->n);
    Space points = {0};
    space_add(&points, in[1], NULL);
    for (int64_t i = 0; i < in[1]->n; i++, space_next(&points)) {
        int64_t row = (int64_t)in[0]->at[space_offset(&points, in[0])] - first;
        if (row >= 0 && row < n) out[0]->at[space_offset(&points, out[0]) + row * stride] += in[1]->at[i];
    }
}

/* ---- rotate ------------------------------------------------------------------------------------------------------ */

/* Rotary positions in the half-split form of `transformers`: elements j and j + width/2 of a head are a pair, turned by
 * position * theta^(-2 j / width). (Su et al., "RoFormer", 2021, with pairs as in GPT-NeoX.) */

static bool infer_rotate(Graph *graph, Node *node) {
    const Node *x = node->in[0], *position = node->in[1];
    Shape *over = &node->attrs[op_attr_index(op_info(node), "over")].dims;
    if (over->n == 0 && x->shape.n) *over = shape_of(&x->shape.dims[x->shape.n - 1], 1);
    if (over->n != 1 || shape_find(&x->shape, over->dims[0]) < 0 || over->dims[0]->size % 2 != 0) {
        Diag *d = diag_error(graph->session, "P0245", node->span, "`rotate` over %s", shape_text(graph->arena, over));
        if (over->n == 1) diag_label(d, "`%s` has %lld elements", over->dims[0]->name, (long long)over->dims[0]->size);
        diag_help(d, "rotary positions turn pairs: one dimension of even size");
        return false;
    }
    if (!shape_contains(&x->shape, &position->shape) || shape_find(&position->shape, over->dims[0]) >= 0 ||
        position->dtype != DT_I32) {
        Diag *d = diag_error(graph->session, "P0241", node->span, "`rotate` of %s by positions of %s%s",
                             shape_text(graph->arena, &x->shape), dtype_name[position->dtype],
                             shape_text(graph->arena, &position->shape));
        diag_help(d, "give the positions of the tensor: `rotate(q, position(x), theta)`");
        return false;
    }
    if (!(node_attr(node, "theta")->number > 0)) {
        diag_error(graph->session, "P0245", node->span, "`rotate` with theta %g", node_attr(node, "theta")->number);
        return false;
    }
    node->dtype = x->dtype;
    node->shape = x->shape;
    return true;
}

static Dim *dim_beside(Graph *graph, Dim *dim, const char *what, int64_t size) {
    Name name = intern(graph->session->names, arena_printf(graph->arena, "%s.%s", dim->name, what));
    Dim *known = graph_find_dim(graph, name);
    return known ? known : graph_add_dim(graph, name, size, dim->span);
}

Dim *rotate_pairs(Graph *graph, Dim *width) {
    Dim *pairs = dim_beside(graph, width, "pairs", width->size);
    if (pairs->n_factors) return pairs;
    Dim *factors[2] = {dim_beside(graph, width, "side", 2), dim_beside(graph, width, "pair", width->size / 2)};
    pairs->like = width;
    dim_set_factors(graph->arena, pairs, factors, 2);
    return pairs;
}

static Node *view(Builder *b, Op op, Node *x, Dim *dim) {
    return build_op(b, op, &x, 1, &(AttrValue){.dims = shape_of(&dim, 1)});
}

/* x cos + swapped(x) sin, where swapped exchanges the halves and the sine of the first half is negative. */
static Node *expand_rotate(Builder *b, const Node *node, Node *const *in) {
    Dim *width = node_attr(node, "over")->dims.dims[0], *pairs = rotate_pairs(b->graph, width);
    Dim *side = pairs->factors[0], *pair = pairs->factors[1];
    Node *x = view(b, OP_SPLIT, build_rename(b, in[0], width, pairs), pairs);
    double rate = -2 * log(node_attr(node, "theta")->number) / (double)width->size;
    Node *frequency = build_unary(b, OP_EXP, build_scale(b, build_cast(b, build_ramp(b, pair), DT_F32), rate));
    Shape angles = in[1]->shape;
    shape_add(&angles, pair);
    Node *angle = build_binary(b, OP_MUL, build_broadcast(b, build_cast(b, in[1], DT_F32), &angles), frequency);
    Node *swapped =
        build_binary(b, OP_MUL, view(b, OP_FLIP, x, side), build_vector(b, (double[]){-1, 1}, side, DT_F32));
    Node *y = build_binary(b, OP_ADD, build_binary(b, OP_MUL, x, build_unary(b, OP_COS, angle)),
                           build_binary(b, OP_MUL, swapped, build_unary(b, OP_SIN, angle)));
    return build_rename(b, view(b, OP_JOIN, y, pairs), pairs, width);
}

static void eval_rotate(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    const Dim *width = node_attr(node, "over")->dims.dims[0];
    int64_t n = array_extent(in[0], width), stride = array_stride(in[0], width);
    double theta = node_attr(node, "theta")->number;
    Space points = {0};
    space_add(&points, in[0], NULL);
    for (int64_t i = 0; i < in[0]->n; i++, space_next(&points)) {
        int64_t j = points.index[space_find(&points, width)], pair = j < n / 2 ? j : j - n / 2;
        double angle = in[1]->at[space_offset(&points, in[1])] * pow(theta, -2 * (double)pair / (double)n);
        double other = j < n / 2 ? -in[0]->at[i + n / 2 * stride] : in[0]->at[i - n / 2 * stride];
        out[0]->at[i] = in[0]->at[i] * cos(angle) + other * sin(angle);
    }
}

#define TABLE                                                                                                          \
    "graph case { dim vocab = 12, embed = 6, batch = 4, seq = 3; tensor t: f32[vocab, embed]; tensor i: i32[batch, "   \
    "seq]\n"
static const OpCase cases_lookup[] = {
    {.what = "rows", .low = -2, .high = 2, .graph = TABLE "%0 = lookup(@t, @i, over = [vocab]); output %0 }"},
    {.what = "by position",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim place = 8, embed = 6, seq = 4; tensor t: f32[place, embed]\n"
              "%0 = ramp(dim = seq); %1 = lookup(@t, %0, over = [place]); output %1 }"},
    {.what = "a table for each task",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim task = 2, vocab = 6, embed = 4, batch = 3; tensor t: f32[task, vocab, embed]; tensor "
              "i: i32[task, batch]\n"
              "%0 = lookup(@t, @i, over = [vocab]); output %0 }"},
    {0}};
static const OpCase cases_lookup_grad[] = {
    {.what = "rows",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim vocab = 12, embed = 6, batch = 4, seq = 3; tensor i: i32[batch, seq]; tensor g: "
              "f32[batch, seq, embed]\n"
              "%0 = lookup_grad(@i, @g, over = [batch, seq], rows = vocab, shape = [vocab, embed]); output %0 }"},
    {0}};
static const OpCase cases_rotate[] = {
    {.what = "heads",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim batch = 2, seq = 5, head = 2, width = 8; tensor x: f32[batch, seq, head, width]\n"
              "%0 = ramp(dim = seq); %1 = rotate(@x, %0, over = [width]); output %1 }"},
    {.what = "one pair, other base",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim seq = 5, width = 2; tensor x: f32[seq, width]\n"
              "%0 = ramp(dim = seq); %1 = rotate(@x, %0, over = [width], theta = 100); output %1 }"},
    {0}};

const OpInfo op_info_lookup = {
    .op = OP_LOOKUP,
    .name = "lookup",
    .family = "embed",
    .doc = "rows of a table: result[i, ..] = table[index[i], ..]; `over` is the table's first dimension unless stated",
    .in = {"table", "index"},
    .attrs = {{"over", ATTR_DIMS, 0}},
    .dims = "*o@ ..., ... -> ... ...",
    .language = true,
    .infer = infer_lookup,
    .grad = grad_lookup,
    .lower = LOWER_GATHER,
    .precision = PRECISION_NARROW,
    .eval = eval_lookup,
    .cases = cases_lookup,
};

const OpInfo op_info_lookup_grad = {
    .op = OP_LOOKUP_GRAD,
    .name = "lookup_grad",
    .family = "embed",
    .doc =
        "gradient of lookup: rows of grad added at index, in order; rows outside the table (of this rank) are skipped",
    .in = {"index", "grad"},
    .attrs = {{"over", ATTR_DIMS, 0}, {"rows", ATTR_DIM, NAN}, {"shape", ATTR_DIMS, NAN}},
    .dims = "... o+, *... o+ -> ... rows",
    .no_grad = true,
    .infer = infer_lookup_grad,
    .lower = LOWER_SCATTER,
    .eval = eval_lookup_grad,
    .cases = cases_lookup_grad,
};

const OpInfo op_info_rotate = {
    .op = OP_ROTATE,
    .name = "rotate",
    .family = "embed",
    .doc = "rotary positions: pairs (j, j + n/2) of `over` turned by position * theta^(-2j/n); `over` is the last "
           "dimension unless stated",
    .in = {"x", "position"},
    .attrs = {{"theta", ATTR_FLOAT, 10000}, {"over", ATTR_DIMS, 0}},
    .dims = "... o!, ... -> ... o!",
    .language = true,
    .flops = 4,
    .infer = infer_rotate,
    .expand = expand_rotate,
    .lower = LOWER_EXPAND,
    .precision = PRECISION_INSIDE,
    .eval = eval_rotate,
    .cases = cases_rotate,
};
