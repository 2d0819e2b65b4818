/* Sums of reproducible mode: the same operators as sum, dot, lookup_grad and add, whose result is an exact number
 * (DT_EXACT) that no order of additions changes. graph/reproducible.c puts them in the place of those; exact_round
 * leads back to f32. To the evaluator an exact number is a number. */
#include <math.h>

#include "ir/op.h"

static bool expects(Graph *graph, const Node *node, int operand, DType dtype) {
    if (node->in[operand]->dtype == dtype) return true;
    diag_error(graph->session, "P0242", node->span, "`%s` of %s", op_info(node)->name,
               dtype_name[node->in[operand]->dtype]);
    return false;
}

static bool infer_exact_sum(Graph *graph, Node *node) {
    if (!expects(graph, node, 0, DT_F32) || !op_infer_shapes(graph, node)) return false;
    node->dtype = DT_EXACT;
    return true;
}

static bool infer_exact_dot(Graph *graph, Node *node) {
    if (!expects(graph, node, 0, DT_F32) || !op_table[OP_DOT]->infer(graph, node)) return false;
    node->dtype = DT_EXACT;
    return true;
}

static bool infer_exact_lookup_grad(Graph *graph, Node *node) {
    if (!expects(graph, node, 1, DT_F32) || !op_table[OP_LOOKUP_GRAD]->infer(graph, node)) return false;
    node->dtype = DT_EXACT;
    return true;
}

static bool infer_exact_add(Graph *graph, Node *node) {
    return expects(graph, node, 0, DT_EXACT) && expects(graph, node, 1, DT_EXACT) && op_infer_shapes(graph, node);
}

static bool infer_exact_round(Graph *graph, Node *node) {
    if (!expects(graph, node, 0, DT_EXACT)) return false;
    node->dtype = DT_F32;
    node->shape = node->in[0]->shape;
    return true;
}

static void eval_sum(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    op_table[OP_SUM]->eval(context, node, in, out);
}
static void eval_dot(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    op_table[OP_DOT]->eval(context, node, in, out);
}
static void eval_lookup_grad(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    op_table[OP_LOOKUP_GRAD]->eval(context, node, in, out);
}
static void eval_add(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    op_table[OP_ADD]->eval(context, node, in, out);
}
static void eval_round(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context, (void)node;
    for (int64_t i = 0; i < out[0]->n; i++) out[0]->at[i] = in[0]->at[i];
}

#define CASE(dims, text, ...)                                                                                          \
    { .low = -2, .high = 2, .graph = "graph case { dim " dims "\n" text "; output %1 }", __VA_ARGS__ }
static const OpCase cases_exact_sum[] = {
    CASE("a = 4, b = 8, c = 5", "tensor x: f32[a, b, c]; %0 = exact_sum(@x, over = [a, b]); %1 = exact_round(%0)",
         .what = "outer two"),
    CASE("a = 4, b = 8", "tensor x: f32[a, b]; %0 = exact_sum(@x, over = [a, b]); %1 = exact_round(%0)", .what = "all"),
    CASE("a = 4, b = 8", "tensor x: f32[a, b]; %0 = exact_sum(@x, over = []); %1 = exact_round(%0)", .what = "none"),
    {0}};
static const OpCase cases_exact_dot[] = {
    CASE("batch = 4, seq = 8, m = 5, n = 3",
         "tensor x: f32[batch, seq, m]; tensor y: f32[batch, seq, n]\n"
         "%0 = exact_dot(@x, @y, over = [batch, seq], order = [m, n], leaf = 1); %1 = exact_round(%0)",
         .what = "a weight's gradient"),
    {0}};
static const OpCase cases_exact_lookup_grad[] = {
    CASE("vocab = 12, embed = 6, batch = 4, seq = 3",
         "tensor i: i32[batch, seq]; tensor g: f32[batch, seq, embed]\n"
         "%0 = exact_lookup_grad(@i, @g, over = [batch, seq], rows = vocab, shape = [vocab, embed]); "
         "%1 = exact_round(%0)",
         .what = "rows"),
    {0}};
static const OpCase cases_exact_add[] = {
    {.what = "two sums",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim a = 4, b = 8; tensor x: f32[a, b]; tensor y: f32[a, b]\n"
              "%0 = exact_sum(@x, over = [a]); %1 = exact_sum(@y, over = [a]); %2 = exact_add(%0, %1)\n"
              "%3 = exact_round(%2); output %3 }"},
    {0}};
static const OpCase cases_exact_round[] = {
    CASE("a = 4", "tensor x: f32[a]; %0 = exact_sum(@x, over = []); %1 = exact_round(%0)", .what = "there and back"),
    {0}};

const OpInfo op_info_exact_sum = {.op = OP_EXACT_SUM,
                                  .name = "exact_sum",
                                  .family = "exact",
                                  .doc = "the sum of x over dimensions (or x itself) as an exact number",
                                  .in = {"x"},
                                  .attrs = {{"over", ATTR_DIMS, 0}},
                                  .dims = "... o+ -> ...",
                                  .no_grad = true,
                                  .flops = 8,
                                  .infer = infer_exact_sum,
                                  .lower = LOWER_EXACT,
                                  .eval = eval_sum,
                                  .cases = cases_exact_sum};

const OpInfo op_info_exact_dot = {
    .op = OP_EXACT_DOT,
    .name = "exact_dot",
    .family = "exact",
    .doc = "dot with an exact result: runs of `leaf` points of the last summed dimension are added in order, the runs "
           "as exact numbers",
    .in = {"x", "y"},
    .attrs = {{"over", ATTR_DIMS, NAN}, {"order", ATTR_DIMS, 0}, {"leaf", ATTR_INT, 1}},
    .dims = "... o+, ... o+ -> ...",
    .no_grad = true,
    .flops = 2,
    .infer = infer_exact_dot,
    .lower = LOWER_PRODUCT,
    .eval = eval_dot,
    .cases = cases_exact_dot};

const OpInfo op_info_exact_lookup_grad = {
    .op = OP_EXACT_LOOKUP_GRAD,
    .name = "exact_lookup_grad",
    .family = "exact",
    .doc = "lookup_grad with an exact result",
    .in = {"index", "grad"},
    .attrs = {{"over", ATTR_DIMS, 0}, {"rows", ATTR_DIM, NAN}, {"shape", ATTR_DIMS, NAN}},
    .dims = "... o+, ... o+ -> ... rows",
    .no_grad = true,
    .infer = infer_exact_lookup_grad,
    .lower = LOWER_EXACT,
    .eval = eval_lookup_grad,
    .cases = cases_exact_lookup_grad};

const OpInfo op_info_exact_add = {.op = OP_EXACT_ADD,
                                  .name = "exact_add",
                                  .family = "exact",
                                  .doc = "x + y of exact numbers",
                                  .in = {"x", "y"},
                                  .dims = "~..., ~... -> ...",
                                  .no_grad = true,
                                  .infer = infer_exact_add,
                                  .lower = LOWER_EXACT,
                                  .eval = eval_add,
                                  .cases = cases_exact_add};

const OpInfo op_info_exact_round = {.op = OP_EXACT_ROUND,
                                    .name = "exact_round",
                                    .family = "exact",
                                    .doc = "the f32 nearest to an exact number",
                                    .in = {"x"},
                                    .dims = "... -> ...",
                                    .no_grad = true,
                                    .infer = infer_exact_round,
                                    .lower = LOWER_EXACT,
                                    .eval = eval_round,
                                    .cases = cases_exact_round};
