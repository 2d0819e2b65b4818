/* Reductions over named dimensions. */
#include "ir/op.h"

#include <math.h>

static bool infer_reduce(Graph *graph, Node *node) {
    const char *name = op_info(node)->name;
    if (!dtype_is_float(node->in[0]->dtype)) {
        Diag *diag =
            diag_error(graph->session, "P0204", node->span, "`%s` of %s", name, dtype_name[node->in[0]->dtype]);
        diag_help(diag, "convert it to f32 with `cast`");
        return false;
    }
    return op_infer_shapes(graph, node);
}

static void eval_reduce(const Array *in, Array *out, double start, bool maximum) {
    for (int64_t i = 0; i < out->n; i++) out->at[i] = start;
    int64_t index[MAX_RANK] = {0};
    int64_t at = 0;
    do {
        double *total = &out->at[array_offset(out, in, index)];
        double x = in->at[at++];
        if (!maximum)
            *total += x;
        else if (x > *total)
            *total = x;
    } while (array_next(in, index));
}

static void eval_sum(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context, (void)node;
    eval_reduce(in[0], out[0], 0, false);
}

static void eval_max_over(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context, (void)node;
    eval_reduce(in[0], out[0], -INFINITY, true);
}

static void eval_mean(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    eval_reduce(in[0], out[0], 0, false);
    for (int64_t i = 0; i < out[0]->n; i++)
        out[0]->at[i] /= (double)shape_logical_elements(&node_attr(node, "over")->dims);
}

static void grad_sum(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    grad_in[0] = build_broadcast(b, grad_out[0], &node->in[0]->shape);
}

/* The gradient goes to the elements that are the maximum, shared equally among ties. */
static void grad_max_over(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    Node *x = node->in[0];
    const Shape *over = &node_attr(node, "over")->dims;
    Node *is_top = build_cast(b, build_binary(b, OP_EQ, x, node), x->dtype);
    Node *share = build_binary(b, OP_DIV, grad_out[0], build_reduce(b, OP_SUM, is_top, over));
    grad_in[0] = build_fit(b, build_binary(b, OP_MUL, is_top, share), &x->shape);
}

static Node *expand_mean(Builder *b, const Node *node, Node *const *in) {
    const Shape *over = &node_attr(node, "over")->dims;
    return build_scale(b, build_reduce(b, OP_SUM, in[0], over), 1 / (double)shape_logical_elements(over));
}

#define DIMS "dim a = 4, b = 8, c = 5\n"
#define CASES(name)                                                                                                    \
    static const OpCase cases_##name[] = {                                                                             \
        {.what = "last dimension",                                                                                     \
         .low = -2,                                                                                                    \
         .high = 2,                                                                                                    \
         .graph = "graph case { " DIMS "tensor x: f32[a, b, c]; %0 = " #name "(@x, over = [c]); output %0 }"},         \
        {.what = "first dimension",                                                                                    \
         .low = -2,                                                                                                    \
         .high = 2,                                                                                                    \
         .graph = "graph case { " DIMS "tensor x: f32[a, b, c]; %0 = " #name "(@x, over = [a]); output %0 }"},         \
        {.what = "outer two",                                                                                          \
         .low = -2,                                                                                                    \
         .high = 2,                                                                                                    \
         .graph = "graph case { " DIMS "tensor x: f32[a, b, c]; %0 = " #name "(@x, over = [b, a]); output %0 }"},      \
        {.what = "all",                                                                                                \
         .low = -2,                                                                                                    \
         .high = 2,                                                                                                    \
         .graph = "graph case { " DIMS "tensor x: f32[a, b]; %0 = " #name "(@x, over = [a, b]); output %0 }"},         \
        {0}};
CASES(sum)
CASES(max_over)
CASES(mean)

const OpInfo op_info_sum = {.op = OP_SUM,
                            .name = "sum",
                            .doc = "the sum of x over dimensions",
                            .family = "reduce",
                            .in = {"x"},
                            .attrs = {{"over", ATTR_DIMS, NAN}},
                            .dims = "~... o+ -> ...",
                            .language = true,
                            .infer = infer_reduce,
                            .grad = grad_sum,
                            .lower = LOWER_REDUCE,
                            .precision = PRECISION_FULL,
                            .eval = eval_sum,
                            .cases = cases_sum};

const OpInfo op_info_max_over = {.op = OP_MAX_OVER,
                                 .name = "max_over",
                                 .doc = "the largest x over dimensions",
                                 .family = "reduce",
                                 .in = {"x"},
                                 .attrs = {{"over", ATTR_DIMS, NAN}},
                                 .dims = "... o^ -> ...",
                                 .language = true,
                                 .infer = infer_reduce,
                                 .grad = grad_max_over,
                                 .lower = LOWER_REDUCE,
                                 .precision = PRECISION_FULL,
                                 .eval = eval_max_over,
                                 .cases = cases_max_over};

const OpInfo op_info_mean = {.op = OP_MEAN,
                             .name = "mean",
                             .doc = "sum(x) / the number of positions",
                             .family = "reduce",
                             .in = {"x"},
                             .attrs = {{"over", ATTR_DIMS, NAN}},
                             .dims = "~... o+ -> ...",
                             .language = true,
                             .infer = infer_reduce,
                             .expand = expand_mean,
                             .lower = LOWER_EXPAND,
                             .precision = PRECISION_FULL,
                             .eval = eval_mean,
                             .cases = cases_mean};
