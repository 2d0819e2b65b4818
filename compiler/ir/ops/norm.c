/* Normalisations: composites over sums and elementwise operators.
 *
 * Variances are taken in two passes (of the centred values), as the numbers need. Maxima are subtracted before
 * exponentials, without a gradient: the result does not depend on them. */
#include <math.h>

#include "ir/ops/space.h"

static const Shape *over_of(const Node *node) { return &node_attr(node, "over")->dims; }

static bool infer_norm(Graph *graph, Node *node) {
    const Node *x = node->in[0];
    const Shape *over = over_of(node);
    const char *name = op_info(node)->name;
    if (over->n == 0 || !shape_contains(&x->shape, over)) {
        Diag *d = diag_error(graph->session, "P0240", node->span, "`%s` over %s of a tensor over %s", name,
                             shape_text(graph->arena, over), shape_text(graph->arena, &x->shape));
        diag_help(d, "name dimensions of the tensor after `over`");
        return false;
    }
    if (!dtype_is_float(x->dtype)) {
        diag_error(graph->session, "P0242", node->span, "`%s` of %s", name, dtype_name[x->dtype]);
        return false;
    }
    int most = node->op == OP_LAYER_NORM ? 3 : node->op == OP_RMS_NORM ? 2 : 1;
    if (node->n_in > most) {
        diag_error(graph->session, "P0241", node->span, "`%s` of %d tensors: it takes at most %d", name, node->n_in,
                   most);
        return false;
    }
    for (int i = 1; i < node->n_in; i++) {
        if (shape_contains(over, &node->in[i]->shape) && node->in[i]->dtype == x->dtype) continue;
        Diag *d = diag_error(graph->session, "P0241", node->span, "`%s` over %s with a gain or bias of %s%s", name,
                             shape_text(graph->arena, over), dtype_name[node->in[i]->dtype],
                             shape_text(graph->arena, &node->in[i]->shape));
        diag_help(d, "gain and bias have only dimensions that stand after `over`");
        return false;
    }
    node->dtype = x->dtype;
    node->shape = x->shape;
    return true;
}

/* ---- expansions --------------------------------------------------------------------------------- */

static Node *mean_of(Builder *b, Node *x, const Shape *over) {
    return build_scale(b, build_reduce(b, OP_SUM, x, over), 1 / (double)shape_elements(over));
}

static Node *inverse_root(Builder *b, const Node *node, Node *mean_square) {
    Node *eps = build_const(b, mean_square->dtype, node_attr(node, "eps")->number);
    return build_unary(b, OP_RSQRT, build_binary(b, OP_ADD, mean_square, eps));
}

static Node *gain_and_bias(Builder *b, const Node *node, Node *y, Node *const *in) {
    if (node->n_in > 1) y = build_binary(b, OP_MUL, y, in[1]);
    if (node->n_in > 2) y = build_binary(b, OP_ADD, y, in[2]);
    return y;
}

static Node *expand_layer_norm(Builder *b, const Node *node, Node *const *in) {
    const Shape *over = over_of(node);
    Node *centred = build_binary(b, OP_SUB, in[0], mean_of(b, in[0], over));
    Node *root = inverse_root(b, node, mean_of(b, build_binary(b, OP_MUL, centred, centred), over));
    return gain_and_bias(b, node, build_binary(b, OP_MUL, centred, root), in);
}

static Node *expand_rms_norm(Builder *b, const Node *node, Node *const *in) {
    Node *root = inverse_root(b, node, mean_of(b, build_binary(b, OP_MUL, in[0], in[0]), over_of(node)));
    return gain_and_bias(b, node, build_binary(b, OP_MUL, in[0], root), in);
}

static Node *below_maximum(Builder *b, Node *x, const Shape *over) {
    Node *top = build_unary(b, OP_STOP_GRADIENT, build_reduce(b, OP_MAX_OVER, x, over));
    return build_binary(b, OP_SUB, x, top);
}

static Node *expand_softmax(Builder *b, const Node *node, Node *const *in) {
    Node *e = build_unary(b, OP_EXP, below_maximum(b, in[0], over_of(node)));
    return build_binary(b, OP_DIV, e, build_reduce(b, OP_SUM, e, over_of(node)));
}

static Node *expand_log_softmax(Builder *b, const Node *node, Node *const *in) {
    Node *z = below_maximum(b, in[0], over_of(node));
    Node *sum = build_reduce(b, OP_SUM, build_unary(b, OP_EXP, z), over_of(node));
    return build_binary(b, OP_SUB, z, build_unary(b, OP_LOG, sum));
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

/* Rows of an array along `over`: `outer` points of the other dimensions, each with `inner` points. */
typedef struct Rows {
    Space outer, inner;
    int64_t n_outer, n_inner;
} Rows;

static Rows rows_of(const Array *x, const Shape *over) {
    Rows rows = {0};
    Shape rest = shape_without(&x->shape, over);
    space_add(&rows.outer, x, &rest);
    space_add(&rows.inner, x, over);
    rows.n_outer = space_points(&rows.outer);
    rows.n_inner = space_points(&rows.inner);
    return rows;
}

static void eval_normalise(const Node *node, const Array *const *in, Array *out, bool centre) {
    Rows rows = rows_of(in[0], over_of(node));
    for (int64_t r = 0; r < rows.n_outer; r++, space_next(&rows.outer)) {
        int64_t base = space_offset(&rows.outer, in[0]);
        double mean = 0, square = 0;
        for (int64_t i = 0; i < rows.n_inner && centre; i++, space_next(&rows.inner))
            mean += in[0]->at[base + space_offset(&rows.inner, in[0])] / (double)rows.n_inner;
        for (int64_t i = 0; i < rows.n_inner; i++, space_next(&rows.inner)) {
            double x = in[0]->at[base + space_offset(&rows.inner, in[0])] - mean;
            square += x * x / (double)rows.n_inner;
        }
        for (int64_t i = 0; i < rows.n_inner; i++, space_next(&rows.inner)) {
            int64_t at = base + space_offset(&rows.inner, in[0]);
            double y = (in[0]->at[at] - mean) / sqrt(square + node_attr(node, "eps")->number);
            if (node->n_in > 1) y *= in[1]->at[space_offset(&rows.inner, in[1])];
            if (node->n_in > 2) y += in[2]->at[space_offset(&rows.inner, in[2])];
            out->at[at] = y;
        }
    }
}

static void eval_layer_norm(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    eval_normalise(node, in, out[0], true);
}

static void eval_rms_norm(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    eval_normalise(node, in, out[0], false);
}

static void eval_softmaxes(const Node *node, const Array *x, Array *out, bool log_of) {
    Rows rows = rows_of(x, over_of(node));
    for (int64_t r = 0; r < rows.n_outer; r++, space_next(&rows.outer)) {
        int64_t base = space_offset(&rows.outer, x);
        double top = -INFINITY, sum = 0;
        for (int64_t i = 0; i < rows.n_inner; i++, space_next(&rows.inner))
            top = fmax(top, x->at[base + space_offset(&rows.inner, x)]);
        for (int64_t i = 0; i < rows.n_inner; i++, space_next(&rows.inner))
            sum += exp(x->at[base + space_offset(&rows.inner, x)] - top);
        for (int64_t i = 0; i < rows.n_inner; i++, space_next(&rows.inner)) {
            int64_t at = base + space_offset(&rows.inner, x);
            double log_p = x->at[at] - top - log(sum);
            out->at[at] = log_of ? log_p : exp(log_p);
        }
    }
}

static void eval_softmax(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    eval_softmaxes(node, in[0], out[0], false);
}

static void eval_log_softmax(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    eval_softmaxes(node, in[0], out[0], true);
}

#define NORM(dims, x, rest, call)                                                                                      \
    .low = -3, .high = 3, .graph = "graph case { dim " dims "; tensor x: f32[" x "]\n" rest "%0 = " call "; output %0 }"
#define GAIN "tensor w: f32[embed]\n"
#define GAIN_BIAS GAIN "tensor b: f32[embed]\n"
static const OpCase cases_layer_norm[] = {
    {.what = "gain and bias",
     NORM("batch = 4, seq = 3, embed = 16", "batch, seq, embed", GAIN_BIAS, "layer_norm(@x, @w, @b, over = [embed])")},
    {.what = "bare, odd size", NORM("batch = 4, embed = 7", "batch, embed", "", "layer_norm(@x, over = [embed])")},
    {.what = "gain, first dimension",
     NORM("batch = 4, embed = 6", "embed, batch", GAIN, "layer_norm(@x, @w, over = [embed], eps = 0.001)")},
    {.what = "over two", NORM("batch = 4, a = 2, c = 3", "batch, a, c", "", "layer_norm(@x, over = [a, c])")},
    {0}};
static const OpCase cases_rms_norm[] = {
    {.what = "gain",
     NORM("batch = 4, seq = 3, embed = 16", "batch, seq, embed", GAIN, "rms_norm(@x, @w, over = [embed])")},
    {.what = "bare, odd size",
     NORM("batch = 4, embed = 7", "batch, embed", "", "rms_norm(@x, over = [embed], eps = 0.001)")},
    {0}};
static const OpCase cases_softmax[] = {
    {.what = "last", NORM("batch = 4, c = 11", "batch, c", "", "softmax(@x, over = [c])")},
    {.what = "first", NORM("batch = 4, c = 6", "c, batch", "", "softmax(@x, over = [c])")},
    {0}};
static const OpCase cases_log_softmax[] = {
    {.what = "last", NORM("batch = 4, c = 11", "batch, c", "", "log_softmax(@x, over = [c])")}, {0}};

const OpInfo op_info_layer_norm = {
    .op = OP_LAYER_NORM,
    .name = "layer_norm",
    .family = "norm",
    .doc = "(x - mean) / sqrt(variance + eps) over `over`, times a gain and plus a bias where they are given",
    .in = {"x"},
    .variadic = "gain_bias",
    .attrs = {{"over", ATTR_DIMS, NAN}, {"eps", ATTR_FLOAT, 1e-5}},
    .dims = "... o!, ... o! -> ... o!",
    .language = true,
    .flops = 8,
    .infer = infer_norm,
    .expand = expand_layer_norm,
    .lower = LOWER_EXPAND,
    .precision = PRECISION_INSIDE,
    .eval = eval_layer_norm,
    .cases = cases_layer_norm,
};

const OpInfo op_info_rms_norm = {
    .op = OP_RMS_NORM,
    .name = "rms_norm",
    .family = "norm",
    .doc = "x / sqrt(mean(x * x) + eps) over `over`, times a gain where it is given",
    .in = {"x"},
    .variadic = "gain",
    .attrs = {{"over", ATTR_DIMS, NAN}, {"eps", ATTR_FLOAT, 1e-5}},
    .dims = "... o!, ... o! -> ... o!",
    .language = true,
    .flops = 6,
    .infer = infer_norm,
    .expand = expand_rms_norm,
    .lower = LOWER_EXPAND,
    .precision = PRECISION_INSIDE,
    .eval = eval_rms_norm,
    .cases = cases_rms_norm,
};

const OpInfo op_info_softmax = {
    .op = OP_SOFTMAX,
    .name = "softmax",
    .family = "norm",
    .doc = "exp(x) / sum(exp(x)) over `over`",
    .in = {"x"},
    .attrs = {{"over", ATTR_DIMS, NAN}},
    .dims = "... o! -> ... o!",
    .language = true,
    .flops = 5,
    .infer = infer_norm,
    .expand = expand_softmax,
    .lower = LOWER_EXPAND,
    .precision = PRECISION_FULL,
    .eval = eval_softmax,
    .cases = cases_softmax,
};

const OpInfo op_info_log_softmax = {
    .op = OP_LOG_SOFTMAX,
    .name = "log_softmax",
    .family = "norm",
    .doc = "x - log(sum(exp(x))) over `over`",
    .in = {"x"},
    .attrs = {{"over", ATTR_DIMS, NAN}},
    .dims = "... o! -> ... o!",
    .language = true,
    .flops = 5,
    .infer = infer_norm,
    .expand = expand_log_softmax,
    .lower = LOWER_EXPAND,
    .precision = PRECISION_FULL,
    .eval = eval_log_softmax,
    .cases = cases_log_softmax,
};
