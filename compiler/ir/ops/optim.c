/* Optimizers: one weight's update from its gradient and state. Composites, so that everything fuses in one loop.
 *
 * AdamW as in Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2; SGD with momentum as in
 * PyTorch (decay added to the gradient, no dampening). Steps count from 1. */
#include <math.h>

#include "ir/op.h"

static double attr_number(const Node *node, const char *name) { return node_attr(node, name)->number; }

/* All of weight, grad and state have one shape; lr and step are scalars. */
static bool infer_update(Graph *graph, Node *node) {
    const OpInfo *info = op_info(node);
    int n_state = info->n_results - 1;
    for (int i = 0; i < node->n_in; i++) {
        const Shape *expected = i < 2 + n_state ? &node->in[0]->shape : &(Shape){0};
        if (shape_equal(&node->in[i]->shape, expected)) continue;
        diag_error(graph->session, "P0241", node->span, "`%s` of %s is over %s instead of %s", info->name, info->in[i],
                   shape_text(graph->arena, &node->in[i]->shape), shape_text(graph->arena, expected));
        return false;
    }
    node->dtype = node->in[0]->dtype;
    node->shape = node->in[0]->shape;
    node->n_outs = info->n_results;
    node->outs = NEW_N(graph->arena, OutType, info->n_results);
    for (int i = 0; i < info->n_results; i++) {
        const Node *like = node->in[i == 0 ? 0 : i + 1];
        node->outs[i] = (OutType){.dtype = like->dtype, .shape = like->shape};
    }
    return true;
}

/* ---- expansions -------------------------------------------------------------------------------------------------- */

static Node *add(Builder *b, Node *x, Node *y) { return build_binary(b, OP_ADD, x, y); }
static Node *mul(Builder *b, Node *x, Node *y) { return build_binary(b, OP_MUL, x, y); }
static Node *constant(Builder *b, double value) { return build_const(b, DT_F32, value); }

/* 1 - beta^step. For small step it is the difference of nearly equal numbers (1 - 0.999 has lost 14 bits), so there the
 * series of 1 - exp(-x), x = -step * log(beta), is taken. */
static Node *expand_bias_correction(Builder *b, const Node *node, Node *const *in) {
    Node *x = build_scale(b, in[0], -log(attr_number(node, "beta")));
    Node *series = constant(b, 1);
    for (int k = 9; k >= 2; k--)
        series = build_binary(b, OP_SUB, constant(b, 1), mul(b, build_scale(b, x, 1.0 / k), series));
    Node *direct = build_binary(b, OP_SUB, constant(b, 1), build_unary(b, OP_EXP, build_unary(b, OP_NEG, x)));
    return build_select(b, build_binary(b, OP_LT, x, constant(b, 0.5)), mul(b, x, series), direct);
}

/* An operator of its own: equal ones of all weights are expanded once. */
static Node *bias_correction(Builder *b, double beta, Node *step) {
    return build_op(b, OP_BIAS_CORRECTION, &step, 1, &(AttrValue){.number = beta});
}

static void expand_adamw(Builder *b, const Node *node, Node *const *in, Node **results) {
    Node *w = in[0], *g = in[1], *m = in[2], *v = in[3], *lr = in[4], *step = build_cast(b, in[5], DT_F32);
    double beta1 = attr_number(node, "beta1"), beta2 = attr_number(node, "beta2"),
           decay = attr_number(node, "weight_decay");
    results[1] = add(b, build_scale(b, m, beta1), build_scale(b, g, 1 - beta1));
    results[2] = add(b, build_scale(b, v, beta2), build_scale(b, mul(b, g, g), 1 - beta2));
    Node *rate1 = build_binary(b, OP_DIV, lr, bias_correction(b, beta1, step));
    Node *scale2 = build_unary(b, OP_RSQRT, bias_correction(b, beta2, step));
    Node *root = add(b, mul(b, build_unary(b, OP_SQRT, results[2]), scale2), constant(b, attr_number(node, "eps")));
    Node *kept = decay == 0 ? w : build_binary(b, OP_SUB, w, mul(b, w, build_scale(b, lr, decay)));
    results[0] = build_binary(b, OP_SUB, kept, build_binary(b, OP_DIV, mul(b, results[1], rate1), root));
}

static void expand_sgd(Builder *b, const Node *node, Node *const *in, Node **results) {
    Node *w = in[0], *g = in[1], *m = in[2], *lr = in[3];
    double decay = attr_number(node, "weight_decay"), momentum = attr_number(node, "momentum");
    if (decay != 0) g = add(b, g, build_scale(b, w, decay));
    results[1] = momentum == 0 ? g : add(b, build_scale(b, m, momentum), g);
    results[0] = build_binary(b, OP_SUB, w, mul(b, results[1], lr));
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

static void eval_bias_correction(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    for (int64_t i = 0; i < in[0]->n; i++) out[0]->at[i] = -expm1(in[0]->at[i] * log(attr_number(node, "beta")));
}

static void eval_adamw(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    double beta1 = attr_number(node, "beta1"), beta2 = attr_number(node, "beta2");
    double lr = in[4]->at[0], step = in[5]->at[0];
    for (int64_t i = 0; i < in[0]->n; i++) {
        double g = in[1]->at[i];
        double m = beta1 * in[2]->at[i] + (1 - beta1) * g, v = beta2 * in[3]->at[i] + (1 - beta2) * g * g;
        double m_hat = m / (1 - pow(beta1, step)), v_hat = v / (1 - pow(beta2, step));
        double w = in[0]->at[i];
        out[0]->at[i] =
            w - lr * (m_hat / (sqrt(v_hat) + attr_number(node, "eps")) + attr_number(node, "weight_decay") * w);
        out[1]->at[i] = m;
        out[2]->at[i] = v;
    }
}

static void eval_sgd(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    for (int64_t i = 0; i < in[0]->n; i++) {
        double g = in[1]->at[i] + attr_number(node, "weight_decay") * in[0]->at[i];
        out[1]->at[i] = attr_number(node, "momentum") * in[2]->at[i] + g;
        out[0]->at[i] = in[0]->at[i] - in[3]->at[0] * out[1]->at[i];
    }
}

#define STATE "graph case { dim a = 4, b = 6; tensor w: f32[a, b]; tensor g: f32[a, b]; tensor m: f32[a, b]\n"
#define NUMBERS "%0 = const(value = 0.01); %1 = const(value = 3, dtype = i32)\n"
static const OpCase cases_adamw[] = {
    {.what = "third step",
     .low = 0.1,
     .high = 2,
     .graph =
         STATE "tensor v: f32[a, b]\n" NUMBERS "%2 = adamw(@w, @g, @m, @v, %0, %1, beta2 = 0.95, weight_decay = 0.1)\n"
               "%3 = result(%2, index = 0); %4 = result(%2, index = 1); %5 = result(%2, index = 2)\n"
               "output %3; output %4; output %5 }"},
    {.what = "slow second moment",
     .low = 0.1,
     .high = 2,
     .graph = STATE "tensor v: f32[a, b]\n" NUMBERS
                    "%2 = adamw(@w, @g, @m, @v, %0, %1)\n%3 = result(%2, index = 0); output %3 }"},
    {0}};
static const OpCase cases_sgd[] = {
    {.what = "momentum and decay",
     .low = -2,
     .high = 2,
     .graph = STATE NUMBERS "%2 = sgd(@w, @g, @m, %0, momentum = 0.9, weight_decay = 0.1)\n"
                            "%3 = result(%2, index = 0); %4 = result(%2, index = 1); output %3; output %4 }"},
    {.what = "plain",
     .low = -2,
     .high = 2,
     .graph = STATE NUMBERS "%2 = sgd(@w, @g, @m, %0); %3 = result(%2, index = 0); output %3 }"},
    {0}};

static const OpCase cases_bias_correction[] = {
    {.what = "first steps",
     .low = 1,
     .high = 3,
     .graph = "graph case { dim a = 6; tensor x: f32[a]\n%0 = bias_correction(@x, beta = 0.999); output %0 }"},
    {.what = "late",
     .low = 100,
     .high = 5000,
     .graph = "graph case { dim a = 6; tensor x: f32[a]\n%0 = bias_correction(@x, beta = 0.95); output %0 }"},
    {0}};

const OpInfo op_info_bias_correction = {
    .op = OP_BIAS_CORRECTION,
    .name = "bias_correction",
    .family = "optim",
    .doc = "1 - beta^step: what a moving average that began at zero is divided by",
    .in = {"step"},
    .attrs = {{"beta", ATTR_FLOAT, 0.9}},
    .dims = "... -> ...",
    .no_grad = true,
    .flops = 30,
    .expand = expand_bias_correction,
    .lower = LOWER_EXPAND,
    .eval = eval_bias_correction,
    .cases = cases_bias_correction,
};

const OpInfo op_info_adamw = {
    .op = OP_ADAMW,
    .name = "adamw",
    .family = "optim",
    .doc = "Adam with decoupled weight decay: weight, first and second moment after a step",
    .in = {"weight", "grad", "m", "v", "lr", "step"},
    .attrs = {{"beta1", ATTR_FLOAT, 0.9},
              {"beta2", ATTR_FLOAT, 0.999},
              {"eps", ATTR_FLOAT, 1e-8},
              {"weight_decay", ATTR_FLOAT, 0}},
    .dims = "..., ..., ..., ..., ..., ... -> ..., ..., ...",
    .n_results = 3,
    .no_grad = true,
    .flops = 12,
    .infer = infer_update,
    .expand_results = expand_adamw,
    .lower = LOWER_EXPAND,
    .eval = eval_adamw,
    .cases = cases_adamw,
};

const OpInfo op_info_sgd = {
    .op = OP_SGD,
    .name = "sgd",
    .family = "optim",
    .doc = "gradient descent with momentum: weight and momentum after a step",
    .in = {"weight", "grad", "m", "lr"},
    .attrs = {{"momentum", ATTR_FLOAT, 0}, {"weight_decay", ATTR_FLOAT, 0}},
    .dims = "..., ..., ..., ... -> ..., ...",
    .n_results = 2,
    .no_grad = true,
    .flops = 4,
    .infer = infer_update,
    .expand_results = expand_sgd,
    .lower = LOWER_EXPAND,
    .eval = eval_sgd,
    .cases = cases_sgd,
};
