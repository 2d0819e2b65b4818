/* Losses, and dropout. */
#include <math.h>

#include "ir/ops/space.h"

/* ---- cross_entropy ----------------------------------------------------------------------------------------------- */

static bool infer_cross_entropy(Graph *graph, Node *node) {
    const Node *logits = node->in[0], *labels = node->in[1];
    const Shape *over = &node_attr(node, "over")->dims;
    Shape rest = shape_without(&logits->shape, over);
    if (over->n != 1 || shape_find(&logits->shape, over->dims[0]) < 0) {
        Diag *d = diag_error(graph->session, "P0240", node->span, "`cross_entropy` over %s of logits over %s",
                             shape_text(graph->arena, over), shape_text(graph->arena, &logits->shape));
        diag_help(d, "name the dimension of the classes after `over`");
        return false;
    }
    if (!dtype_is_float(logits->dtype) || labels->dtype != DT_I32) {
        Diag *d = diag_error(graph->session, "P0242", node->span, "`cross_entropy` of %s logits and %s labels",
                             dtype_name[logits->dtype], dtype_name[labels->dtype]);
        diag_help(d, "logits come first, labels (an `int` tensor) second");
        return false;
    }
    if (rest.n != labels->shape.n || !shape_contains(&rest, &labels->shape)) {
        Diag *d =
            diag_error(graph->session, "P0241", node->span, "`cross_entropy` of logits over %s with labels over %s",
                       shape_text(graph->arena, &logits->shape), shape_text(graph->arena, &labels->shape));
        diag_help(d, "labels have the dimensions of the logits but for `%s`", over->dims[0]->name);
        return false;
    }
    node->dtype = logits->dtype;
    node->shape = rest;
    return true;
}

/* log(sum(exp(z))) - z[label], z below its maximum; the label is picked by comparing indices, so that a sharded class
 * dimension needs no gathered logits. */
static Node *expand_cross_entropy(Builder *b, const Node *node, Node *const *in) {
    const Shape *over = &node_attr(node, "over")->dims, *all = &in[0]->shape;
    Node *top = build_unary(b, OP_STOP_GRADIENT, build_reduce(b, OP_MAX_OVER, in[0], over));
    Node *z = build_binary(b, OP_SUB, in[0], top);
    Node *log_sum = build_unary(b, OP_LOG, build_reduce(b, OP_SUM, build_unary(b, OP_EXP, z), over));
    Node *is_label = build_binary(b, OP_EQ, build_broadcast(b, in[1], all), build_ramp(b, over->dims[0]));
    Node *zero = build_broadcast(b, build_const(b, z->dtype, 0), all);
    Node *picked = build_reduce(b, OP_SUM, build_select(b, is_label, z, zero), over);
    return build_binary(b, OP_SUB, log_sum, picked);
}

static void eval_cross_entropy(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    const Dim *classes = node_attr(node, "over")->dims.dims[0];
    int64_t n = array_extent(in[0], classes), stride = array_stride(in[0], classes);
    int64_t first = eval_offset(context, node->in[0], classes);
    Space points = {0};
    space_add(&points, out[0], NULL);
    for (int64_t i = 0; i < out[0]->n; i++, space_next(&points)) {
        const double *x = in[0]->at + space_offset(&points, in[0]);
        double top = -INFINITY, sum = 0;
        for (int64_t c = 0; c < n; c++) top = fmax(top, x[c * stride]);
        for (int64_t c = 0; c < n; c++) sum += exp(x[c * stride] - top);
        int64_t label = (int64_t)in[1]->at[space_offset(&points, in[1])] - first;
        double picked = label >= 0 && label < n ? x[label * stride] - top : 0;
        out[0]->at[i] = log(sum) - picked;
    }
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* Operands after x are counters of the random stream: seed, step, layer. grad_to_step adds them, and a key for each
 * dropout of the model; in evaluation and sampling it leaves dropout away. */
static bool infer_dropout(Graph *graph, Node *node) {
    double rate = node_attr(node, "rate")->number;
    if (!(rate >= 0 && rate < 1)) {
        Diag *d = diag_error(graph->session, "P0245", node->span, "`dropout` with rate %g", rate);
        diag_help(d, "the rate is the share that is dropped: at least 0 and less than 1");
        return false;
    }
    if (!dtype_is_float(node->in[0]->dtype)) {
        diag_error(graph->session, "P0242", node->span, "`dropout` of %s", dtype_name[node->in[0]->dtype]);
        return false;
    }
    node->dtype = node->in[0]->dtype;
    node->shape = node->in[0]->shape;
    return true;
}

static Node *random_of(Builder *b, const Node *node, Node *const *in) {
    AttrValue attrs[2] = {{.integer = node_attr(node, "key")->integer}, {.dims = in[0]->shape}};
    return build_op(b, OP_RANDOM_UNIFORM, in + 1, node->n_in - 1, attrs);
}

static Node *expand_dropout(Builder *b, const Node *node, Node *const *in) {
    double rate = node_attr(node, "rate")->number;
    if (rate == 0) return in[0];
    Node *dropped = build_binary(b, OP_LT, random_of(b, node, in), build_const(b, DT_F32, rate));
    Node *zero = build_const(b, in[0]->dtype, 0), *scale = build_const(b, in[0]->dtype, 1 / (1 - rate));
    Node *factor =
        build_select(b, dropped, build_broadcast(b, zero, &dropped->shape), build_broadcast(b, scale, &dropped->shape));
    return build_binary(b, OP_MUL, in[0], factor);
}

/* The mask is that of the random operator, whose own evaluation is called. */
static void eval_dropout(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    double rate = node_attr(node, "rate")->number;
    AttrValue attrs[2] = {{.integer = node_attr(node, "key")->integer}, {.dims = node->shape}};
    Node random = *node;
    random.op = OP_RANDOM_UNIFORM;
    random.in = node->in + 1;
    random.n_in = node->n_in - 1;
    random.attrs = attrs;
    op_table[OP_RANDOM_UNIFORM]->eval(context, &random, in + 1, out);
    for (int64_t i = 0; i < out[0]->n; i++)
        out[0]->at[i] = out[0]->at[i] < (double)(float)rate ? 0 : in[0]->at[i] / (1 - rate);
}

#define SHAPES                                                                                                         \
    "graph case { dim batch = 3, seq = 5, vocab = 11; tensor x: f32[batch, seq, vocab]; tensor label: i32[batch, "     \
    "seq]\n"
static const OpCase cases_cross_entropy[] = {
    {.what = "of tokens",
     .low = -3,
     .high = 3,
     .graph = SHAPES "%0 = cross_entropy(@x, @label, over = [vocab]); output %0 }"},
    {.what = "large logits",
     .low = -80,
     .high = 80,
     .graph = SHAPES "%0 = cross_entropy(@x, @label, over = [vocab]); output %0 }"},
    {.what = "classes first",
     .low = -3,
     .high = 3,
     .graph = "graph case { dim batch = 4, class = 6; tensor x: f32[class, batch]; tensor label: i32[batch]\n"
              "%0 = cross_entropy(@x, @label, over = [class]); output %0 }"},
    {0}};

static const OpCase cases_dropout[] = {
    {.what = "a tenth",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim batch = 4, embed = 8; tensor x: f32[batch, embed]; tensor seed: scalar i32[]\n"
              "%0 = dropout(@x, @seed, rate = 0.1, key = 5); output %0 }"},
    {.what = "in layers",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim layers = 3, embed = 8; tensor x: f32[layers, embed]; tensor seed: scalar i32[]\n"
              "%0 = repeat layers (%1 = slice @x, %2 = capture @seed) { %3 = layer_index()\n"
              "%4 = dropout(%1, %2, %3, rate = 0.5, key = 9); stack %4 }; %5 = result(%0, index = 0); output %5 }"},
    {0}};

const OpInfo op_info_cross_entropy = {
    .op = OP_CROSS_ENTROPY,
    .name = "cross_entropy",
    .family = "loss",
    .doc = "log(sum(exp(logits))) - logits[label] over `over`: a value for each target",
    .in = {"logits", "labels"},
    .attrs = {{"over", ATTR_DIMS, NAN}},
    .dims = "... o!, ... -> ...",
    .language = true,
    .flops = 6,
    .infer = infer_cross_entropy,
    .expand = expand_cross_entropy,
    .lower = LOWER_EXPAND,
    .precision = PRECISION_FULL,
    .eval = eval_cross_entropy,
    .cases = cases_cross_entropy,
};

const OpInfo op_info_dropout = {
    .op = OP_DROPOUT,
    .name = "dropout",
    .family = "loss",
    .doc = "x / (1 - rate), and 0 for a random share `rate` of it; x in evaluation and sampling",
    .in = {"x"},
    .variadic = "counter",
    .attrs = {{"rate", ATTR_FLOAT, NAN}, {"key", ATTR_INT, 0}},
    .dims = "... -> ...",
    .language = true,
    .flops = 30,
    .infer = infer_dropout,
    .expand = expand_dropout,
    .lower = LOWER_EXPAND,
    .precision = PRECISION_INSIDE,
    .eval = eval_dropout,
    .cases = cases_dropout,
};
