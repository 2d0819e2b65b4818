/* Elementwise operators: one element of the result from one element of each operand, dimensions matched by name.
 *
 * Operands must have equal dimensions, or one's must contain the others'; the gradient of a broadcast operand is summed
 * over what it lacks (build_fit). Activations are composites of these. */
#include "ir/op.h"

#include <math.h>

/* ---- inference ---------------------------------------------------------------------------------- */

static bool refuse_dtype(Graph *graph, const Node *node, DType dtype, const char *help) {
    Diag *diag = diag_error(graph->session, "P0204", node->span, "`%s` of %s", op_info(node)->name, dtype_name[dtype]);
    diag_help(diag, "%s", help);
    return false;
}

static bool same_dtypes(Graph *graph, const Node *node, int first) {
    for (int i = first + 1; i < node->n_in; i++) {
        if (node->in[i]->dtype == node->in[first]->dtype) continue;
        Diag *diag =
            diag_error(graph->session, "P0202", node->span, "operands of `%s` are %s and %s", op_info(node)->name,
                       dtype_name[node->in[first]->dtype], dtype_name[node->in[i]->dtype]);
        diag_help(diag, "convert one of them with `cast`");
        return false;
    }
    return true;
}

/* Floats only. */
static bool infer_float(Graph *graph, Node *node) {
    if (!same_dtypes(graph, node, 0)) return false;
    if (!dtype_is_float(node->in[0]->dtype))
        return refuse_dtype(graph, node, node->in[0]->dtype, "convert it to f32 with `cast`");
    return op_infer_shapes(graph, node);
}

/* Floats or i32. */
static bool infer_number(Graph *graph, Node *node) {
    if (!same_dtypes(graph, node, 0)) return false;
    DType dtype = node->in[0]->dtype;
    if (!dtype_is_float(dtype) && dtype != DT_I32) return refuse_dtype(graph, node, dtype, "convert it with `cast`");
    return op_infer_shapes(graph, node);
}

static bool infer_compare(Graph *graph, Node *node) {
    if (!infer_number(graph, node)) return false;
    node->dtype = DT_BOOL;
    return true;
}

static bool infer_truth(Graph *graph, Node *node) {
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i]->dtype != DT_BOOL)
            return refuse_dtype(graph, node, node->in[i]->dtype, "compare first: `lt`, `le` or `eq` give truth values");
    return op_infer_shapes(graph, node);
}

static bool infer_select(Graph *graph, Node *node) {
    if (node->in[0]->dtype != DT_BOOL)
        return refuse_dtype(graph, node, node->in[0]->dtype, "the condition must be bool: `lt`, `le` or `eq` give one");
    if (!same_dtypes(graph, node, 1) || !op_infer_shapes(graph, node)) return false;
    node->dtype = node->in[1]->dtype;
    return true;
}

static bool infer_cast(Graph *graph, Node *node) {
    node->dtype = (DType)node_attr(node, "dtype")->integer;
    node->shape = node->in[0]->shape;
    if (node->dtype == DT_U32 || node->in[0]->dtype == DT_U32)
        return refuse_dtype(graph, node, DT_U32, "u32 is for keys of random numbers only");
    return true;
}

static bool infer_broadcast(Graph *graph, Node *node) {
    const Shape *to = &node_attr(node, "dims")->dims, *from = &node->in[0]->shape;
    if (!shape_contains(to, from)) {
        Diag *diag = diag_error(graph->session, "P0201", node->span, "%s cannot be broadcast to %s",
                                shape_text(graph->arena, from), shape_text(graph->arena, to));
        Shape lost = shape_without(from, to);
        diag_help(diag, "sum over `%s` first, or add it to the dimensions", lost.dims[0]->name);
        return false;
    }
    node->dtype = node->in[0]->dtype;
    node->shape = *to;
    return true;
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

typedef double Scalar(const double *x);

static void eval_map(const Array *const *in, int n_in, Array *out, Scalar *f) {
    int64_t stride[3][MAX_RANK] = {{0}}; /* of each operand along the result's dimensions; 0 where it is broadcast */
    for (int i = 0; i < n_in; i++) {
        int64_t elements = 1;
        for (int d = in[i]->shape.n - 1; d >= 0; d--) {
            stride[i][shape_find(&out->shape, in[i]->shape.dims[d])] = elements;
            elements *= in[i]->extent[d];
        }
    }
    int64_t index[MAX_RANK] = {0}, at = 0;
    do {
        double x[3] = {0};
        for (int i = 0; i < n_in; i++) {
            int64_t offset = 0;
            for (int d = 0; d < out->shape.n; d++) offset += index[d] * stride[i][d];
            x[i] = in[i]->at[offset];
        }
        out->at[at++] = f(x);
    } while (array_next(out, index));
}

#define MAP(name, expression)                                                                                          \
    static double scalar_##name(const double *x) { return expression; }                                                \
    static void eval_##name(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {       \
        (void)context;                                                                                                 \
        eval_map(in, node->n_in, out[0], scalar_##name);                                                               \
    }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

MAP(abs, fabs(x[0]))
MAP(add, x[0] + x[1])
MAP(and, x[0] != 0 && x[1] != 0)
MAP(copy, x[0])
MAP(cos, cos(x[0]))
MAP(div, x[0] / x[1])
MAP(eq, x[0] == x[1])
MAP(exp, exp(x[0]))
MAP(gelu, gelu(x[0]))
MAP(le, x[0] <= x[1])
MAP(log, log(x[0]))
MAP(lt, x[0] < x[1])
MAP(max, x[0] > x[1] ? x[0] : x[1])
MAP(min, x[0] < x[1] ? x[0] : x[1])
MAP(mul, x[0] * x[1])
MAP(neg, -x[0])
MAP(not, x[0] == 0)
MAP(or, x[0] != 0 || x[1] != 0)
MAP(pow, pow(x[0], x[1]))
MAP(relu, x[0] > 0 ? x[0] : 0)
MAP(rsqrt, 1 / sqrt(x[0]))
MAP(select, x[0] != 0 ? x[1] : x[2])
MAP(sigmoid, sigmoid(x[0]))
MAP(silu, x[0] * sigmoid(x[0]))
MAP(sin, sin(x[0]))
MAP(sqrt, sqrt(x[0]))
MAP(sub, x[0] - x[1])
MAP(tanh, tanh(x[0]))

static void eval_cast(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    for (int64_t i = 0; i < out[0]->n; i++) {
        double x = in[0]->at[i];
        out[0]->at[i] = node->dtype == DT_BOOL ? x != 0 : node->dtype == DT_I32 ? trunc(x) : x;
    }
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

#define GRAD(name) static void grad_##name(Builder *b, Node *node, Node *const *grad_out, Node **grad_in)

static Node *mul(Builder *b, Node *x, Node *y) { return build_binary(b, OP_MUL, x, y); }
static Node *neg(Builder *b, Node *x) { return build_unary(b, OP_NEG, x); }
static Node *zero(Builder *b, const Node *x) { return build_const(b, x->dtype, 0); }

GRAD(abs) {
    Node *x = node->in[0], *g = grad_out[0];
    grad_in[0] = build_select(b, build_binary(b, OP_LT, x, zero(b, x)), neg(b, g), g);
}

GRAD(add) {
    for (int i = 0; i < 2; i++) grad_in[i] = build_fit(b, grad_out[0], &node->in[i]->shape);
}

GRAD(sub) {
    grad_in[0] = build_fit(b, grad_out[0], &node->in[0]->shape);
    grad_in[1] = build_fit(b, neg(b, grad_out[0]), &node->in[1]->shape);
}

GRAD(mul) {
    for (int i = 0; i < 2; i++) grad_in[i] = build_fit(b, mul(b, grad_out[0], node->in[1 - i]), &node->in[i]->shape);
}

GRAD(div) {
    Node *by = build_binary(b, OP_DIV, grad_out[0], node->in[1]);
    grad_in[0] = build_fit(b, by, &node->in[0]->shape);
    grad_in[1] =
        build_fit(b, neg(b, mul(b, by, build_binary(b, OP_DIV, node->in[0], node->in[1]))), &node->in[1]->shape);
}

/* At ties the first operand has the gradient. */
static void grad_extreme(Builder *b, Node *node, Node *g, Node **grad_in, bool first_wins_when_less) {
    Node *x = node->in[0], *y = node->in[1];
    Node *wins = first_wins_when_less ? build_binary(b, OP_LE, x, y) : build_binary(b, OP_LE, y, x);
    grad_in[0] = build_fit(b, build_select(b, wins, g, zero(b, g)), &x->shape);
    grad_in[1] = build_fit(b, build_select(b, wins, zero(b, g), g), &y->shape);
}

GRAD(max) { grad_extreme(b, node, grad_out[0], grad_in, false); }
GRAD(min) { grad_extreme(b, node, grad_out[0], grad_in, true); }

GRAD(pow) {
    Node *x = node->in[0], *y = node->in[1], *g = grad_out[0];
    Node *lower = build_binary(b, OP_POW, x, build_binary(b, OP_SUB, y, build_const(b, y->dtype, 1)));
    grad_in[0] = build_fit(b, mul(b, g, mul(b, lower, y)), &x->shape);
    if (y->op == OP_CONST) return;
    grad_in[1] = build_fit(b, mul(b, g, mul(b, node, build_unary(b, OP_LOG, x))), &y->shape);
}

GRAD(neg) {
    (void)node;
    grad_in[0] = neg(b, grad_out[0]);
}

GRAD(exp) { grad_in[0] = mul(b, grad_out[0], node); }

GRAD(log) { grad_in[0] = build_binary(b, OP_DIV, grad_out[0], node->in[0]); }

GRAD(sqrt) { grad_in[0] = build_binary(b, OP_DIV, build_scale(b, grad_out[0], 0.5), node); }

GRAD(rsqrt) {
    Node *cube = mul(b, mul(b, node, node), node);
    grad_in[0] = mul(b, build_scale(b, grad_out[0], -0.5), cube);
}

GRAD(tanh) {
    Node *one = build_const(b, node->dtype, 1);
    grad_in[0] = mul(b, grad_out[0], build_binary(b, OP_SUB, one, mul(b, node, node)));
}

GRAD(sin) { grad_in[0] = mul(b, grad_out[0], build_unary(b, OP_COS, node->in[0])); }

GRAD(cos) { grad_in[0] = neg(b, mul(b, grad_out[0], build_unary(b, OP_SIN, node->in[0]))); }

GRAD(cast) {
    if (dtype_is_float(node->dtype) && dtype_is_float(node->in[0]->dtype))
        grad_in[0] = build_cast(b, grad_out[0], node->in[0]->dtype);
}

GRAD(select) {
    Node *g = grad_out[0];
    if (!dtype_is_float(node->dtype)) return;
    grad_in[1] = build_fit(b, build_select(b, node->in[0], g, zero(b, g)), &node->in[1]->shape);
    grad_in[2] = build_fit(b, build_select(b, node->in[0], zero(b, g), g), &node->in[2]->shape);
}

GRAD(broadcast) { grad_in[0] = build_fit(b, grad_out[0], &node->in[0]->shape); }

/* ---- expansions -------------------------------------------------------------------------------------------------- */

static Node *expand_relu(Builder *b, const Node *node, Node *const *in) {
    (void)node;
    return build_binary(b, OP_MAX, in[0], zero(b, in[0]));
}

/* By tanh, since exp(-x) overflows for x below -88 and then has a gradient of infinity times zero. */
static Node *expand_sigmoid(Builder *b, const Node *node, Node *const *in) {
    (void)node;
    Node *half = build_scale(b, build_unary(b, OP_TANH, build_scale(b, in[0], 0.5)), 0.5);
    return build_binary(b, OP_ADD, half, build_const(b, in[0]->dtype, 0.5));
}

static Node *expand_silu(Builder *b, const Node *node, Node *const *in) {
    return mul(b, in[0], expand_sigmoid(b, node, in));
}

static Node *expand_gelu(Builder *b, const Node *node, Node *const *in) {
    (void)node;
    Node *x = in[0];
    Node *inner = build_binary(b, OP_ADD, x, mul(b, build_scale(b, mul(b, x, x), 0.044715), x));
    Node *t = build_unary(b, OP_TANH, build_scale(b, inner, 0.7978845608028654)); /* sqrt(2 / pi) */
    return mul(b, build_scale(b, x, 0.5), build_binary(b, OP_ADD, t, build_const(b, x->dtype, 1)));
}

/* ---- loop instructions ------------------------------------------------------------------------------------------- */

#define EMIT(name) static LoopValue emit_##name(LoopBuilder *b, const Node *node, const LoopValue *in)

static bool is_float(const Node *node) { return dtype_is_float(node->in[0]->dtype); }

/* One instruction for floats, another for i32. */
#define EMIT_BY_TYPE(name, float_op, int_op)                                                                           \
    EMIT(name) { return loop_emit(b, is_float(node) ? float_op : int_op, in[0], node->n_in > 1 ? in[1] : -1, -1); }

#define EMIT_ONE(name, loop_op)                                                                                        \
    EMIT(name) { return loop_emit(b, loop_op, in[0], node->n_in > 1 ? in[1] : -1, -1); }

EMIT_BY_TYPE(add, LOOP_ADD, LOOP_IADD)
EMIT_BY_TYPE(sub, LOOP_SUB, LOOP_ISUB)
EMIT_BY_TYPE(mul, LOOP_MUL, LOOP_IMUL)
EMIT_BY_TYPE(lt, LOOP_FLT, LOOP_ILT)
EMIT_BY_TYPE(le, LOOP_FLE, LOOP_ILE)
EMIT_BY_TYPE(eq, LOOP_FEQ, LOOP_IEQ)
EMIT_ONE(div, LOOP_DIV)
EMIT_ONE(pow, LOOP_POW)
EMIT_ONE(exp, LOOP_EXP)
EMIT_ONE(log, LOOP_LOG)
EMIT_ONE(sqrt, LOOP_SQRT)
EMIT_ONE(rsqrt, LOOP_RSQRT)
EMIT_ONE(tanh, LOOP_TANH)
EMIT_ONE(sin, LOOP_SIN)
EMIT_ONE(cos, LOOP_COS)
EMIT_ONE(and, LOOP_AND)
EMIT_ONE(or, LOOP_OR)
EMIT_ONE(not, LOOP_NOT)

EMIT(max) {
    if (is_float(node)) return loop_emit(b, LOOP_MAX, in[0], in[1], -1);
    return loop_emit(b, LOOP_SELECT, loop_emit(b, LOOP_ILT, in[0], in[1], -1), in[1], in[0]);
}

EMIT(min) {
    if (is_float(node)) return loop_emit(b, LOOP_MIN, in[0], in[1], -1);
    return loop_emit(b, LOOP_SELECT, loop_emit(b, LOOP_ILT, in[0], in[1], -1), in[0], in[1]);
}

EMIT(neg) {
    if (is_float(node)) return loop_emit(b, LOOP_NEG, in[0], -1, -1);
    return loop_emit(b, LOOP_ISUB, loop_const_i(b, 0), in[0], -1);
}

EMIT(abs) {
    if (is_float(node)) return loop_emit(b, LOOP_ABS, in[0], -1, -1);
    LoopValue none = loop_const_i(b, 0);
    LoopValue negative = loop_emit(b, LOOP_ILT, in[0], none, -1);
    return loop_emit(b, LOOP_SELECT, negative, loop_emit(b, LOOP_ISUB, none, in[0], -1), in[0]);
}

EMIT(select) {
    (void)node;
    return loop_emit(b, LOOP_SELECT, in[0], in[1], in[2]);
}

EMIT(copy) {
    (void)b, (void)node;
    return in[0];
}

static LoopValue truth_to(LoopBuilder *b, LoopValue x, DType to) {
    if (to == DT_BOOL) return x;
    if (dtype_is_float(to)) return loop_emit(b, LOOP_B_TO_F, x, -1, -1);
    return loop_emit(b, LOOP_SELECT, x, loop_const_i(b, 1), loop_const_i(b, 0));
}

EMIT(cast) {
    DType from = node->in[0]->dtype, to = node->dtype;
    if (from == DT_BOOL) return truth_to(b, in[0], to);
    if (dtype_is_float(from)) {
        if (dtype_is_float(to)) return in[0]; /* stores and loads convert */
        if (to == DT_I32) return loop_emit(b, LOOP_F_TO_I, in[0], -1, -1);
        return loop_emit(b, LOOP_NOT, loop_emit(b, LOOP_FEQ, in[0], loop_const_f(b, 0), -1), -1, -1);
    }
    if (dtype_is_float(to)) return loop_emit(b, LOOP_I_TO_F, in[0], -1, -1);
    if (to == DT_I32) return in[0];
    return loop_emit(b, LOOP_NOT, loop_emit(b, LOOP_IEQ, in[0], loop_const_i(b, 0), -1), -1, -1);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

#define DIMS "dim a = 3, b = 8, c = 4\n"
#define UNARY(op) "graph case { " DIMS "tensor x: f32[a, b, c]; %0 = " op "(@x); output %0 }"
#define BINARY(op)                                                                                                     \
    "graph case { " DIMS "tensor x: f32[a, b, c]; tensor y: f32[a, b, c]; %0 = " op "(@x, @y); output %0 }"
#define BINARY_RIGHT(op)                                                                                               \
    "graph case { " DIMS "tensor x: f32[a, b, c]; tensor y: f32[c, a]; %0 = " op "(@x, @y); output %0 }"
#define BINARY_LEFT(op) "graph case { " DIMS "tensor x: f32[b]; tensor y: f32[a, b]; %0 = " op "(@x, @y); output %0 }"
#define BINARY_INT(op) "graph case { " DIMS "tensor x: i32[a, b]; tensor y: i32[a, b]; %0 = " op "(@x, @y); output %0 }"
#define TRUTHS(op)                                                                                                     \
    "graph case { " DIMS "tensor x: f32[a, b]; tensor y: f32[b]; tensor z: f32[]; %0 = lt(@x, @z); %1 = le(@z, @y)\n"  \
    "%2 = " op "; output %2 }"

#define UNARY_CASES(name, lo, hi)                                                                                      \
    static const OpCase cases_##name[] = {{.what = "three dimensions", .graph = UNARY(#name), .low = lo, .high = hi},  \
                                          {0}};
#define BINARY_CASES(name, lo, hi)                                                                                     \
    static const OpCase cases_##name[] = {                                                                             \
        {.what = "equal dimensions", .graph = BINARY(#name), .low = lo, .high = hi},                                   \
        {.what = "right operand broadcast, other order", .graph = BINARY_RIGHT(#name), .low = lo, .high = hi},         \
        {.what = "left operand broadcast", .graph = BINARY_LEFT(#name), .low = lo, .high = hi},                        \
        {0}};
#define NUMBER_CASES(name, lo, hi)                                                                                     \
    static const OpCase cases_##name[] = {                                                                             \
        {.what = "equal dimensions", .graph = BINARY(#name), .low = lo, .high = hi},                                   \
        {.what = "right operand broadcast, other order", .graph = BINARY_RIGHT(#name), .low = lo, .high = hi},         \
        {.what = "left operand broadcast", .graph = BINARY_LEFT(#name), .low = lo, .high = hi},                        \
        {.what = "whole numbers", .graph = BINARY_INT(#name)},                                                         \
        {0}};

NUMBER_CASES(add, -2, 2)
NUMBER_CASES(sub, -2, 2)
NUMBER_CASES(mul, -2, 2)
NUMBER_CASES(max, -2, 2)
NUMBER_CASES(min, -2, 2)
NUMBER_CASES(lt, -2, 2)
NUMBER_CASES(le, -2, 2)
NUMBER_CASES(eq, -2, 2)
BINARY_CASES(div, 0.5, 2)
BINARY_CASES(pow, 0.5, 2)
UNARY_CASES(abs, -2, 2)
UNARY_CASES(neg, -2, 2)
UNARY_CASES(exp, -3, 3)
UNARY_CASES(log, 0.1, 4)
UNARY_CASES(sqrt, 0.1, 4)
UNARY_CASES(rsqrt, 0.1, 4)
UNARY_CASES(tanh, -3, 3)
UNARY_CASES(sin, -6, 6)
UNARY_CASES(cos, -6, 6)
UNARY_CASES(relu, -2, 2)
UNARY_CASES(sigmoid, -9, 9)
UNARY_CASES(silu, -9, 9)
UNARY_CASES(gelu, -4, 4)
UNARY_CASES(stop_gradient, -2, 2)
static const OpCase cases_and[] = {{.what = "broadcast", .graph = TRUTHS("and(%0, %1)"), .low = -1, .high = 1}, {0}};
static const OpCase cases_or[] = {{.what = "broadcast", .graph = TRUTHS("or(%0, %1)"), .low = -1, .high = 1}, {0}};
static const OpCase cases_not[] = {{.what = "of a comparison", .graph = TRUTHS("not(%0)"), .low = -1, .high = 1}, {0}};
static const OpCase cases_select[] = {
    {.what = "equal dimensions",
     .graph = "graph case { " DIMS "tensor x: f32[a, b]; tensor y: f32[a, b]; tensor z: f32[]; %0 = lt(@x, @z)\n"
              "%1 = select(%0, @x, @y); output %1 }",
     .low = -1,
     .high = 1},
    {.what = "scalar alternative, smaller condition",
     .graph = "graph case { " DIMS "tensor x: f32[b]; tensor y: f32[a, b, c]; tensor z: f32[]; %0 = lt(@x, @z)\n"
              "%1 = select(%0, @z, @y); output %1 }",
     .low = -1,
     .high = 1},
    {0}};
static const OpCase cases_cast[] = {
    {.what = "f32 to f64",
     .graph = "graph case { " DIMS "tensor x: f32[a, b]; %0 = cast(@x, dtype = f64); output %0 }",
     .low = -2,
     .high = 2},
    {.what = "f32 to bf16 and back",
     .tolerance = 1e-2,
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS
              "tensor x: f32[a, b]; %0 = cast(@x, dtype = bf16); %1 = cast(%0, dtype = f32); output %1 }"},
    {.what = "i32 to f32",
     .graph = "graph case { " DIMS "tensor x: i32[a, b]; %0 = cast(@x, dtype = f32); output %0 }"},
    {.what = "f32 to i32",
     .graph = "graph case { " DIMS "tensor x: f32[a, b]; %0 = cast(@x, dtype = i32); output %0 }",
     .low = -9,
     .high = 9},
    {.what = "truth to numbers",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[a]; tensor y: f32[]; %0 = lt(@x, @y); %1 = cast(%0, dtype = f32)\n"
              "%2 = cast(%0, dtype = i32); output %1; output %2 }"},
    {.what = "numbers to truth",
     .graph = "graph case { " DIMS "tensor x: i32[a, b]; %0 = cast(@x, dtype = bool); output %0 }"},
    {0}};
static const OpCase cases_broadcast[] = {
    {.what = "two more dimensions",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[b]; %0 = broadcast(@x, dims = [a, b, c]); output %0 }"},
    {.what = "transposed",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[a, b, c]; %0 = broadcast(@x, dims = [c, a, b]); output %0 }"},
    {.what = "of a scalar",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[]; %0 = broadcast(@x, dims = [a]); output %0 }"},
    {0}};

/* ---- entries ----------------------------------------------------------------------------------------------------- */

#define ENTRY(name_, NAME)                                                                                             \
    .op = OP_##NAME, .name = #name_, .family = "elementwise", .eval = eval_##name_, .cases = cases_##name_
#define MAPPED(name_) .lower = LOWER_MAP, .emit = emit_##name_, .cheap = true
#define COMPOSED(name_) .lower = LOWER_EXPAND, .expand = expand_##name_

const OpInfo op_info_abs = {ENTRY(abs, ABS),      MAPPED(abs),      .doc = "the magnitude of x", .in = {"x"},
                            .dims = "... -> ...", .language = true, .infer = infer_number,       .grad = grad_abs};
const OpInfo op_info_add = {
    ENTRY(add, ADD),       MAPPED(add),     .doc = "x + y", .in = {"x", "y"}, .dims = "~..., ~... -> ...",
    .infer = infer_number, .grad = grad_add};
const OpInfo op_info_and = {ENTRY(and, AND),
                            MAPPED(and),
                            .doc = "whether both x and y hold",
                            .in = {"x", "y"},
                            .dims = "..., ... -> ...",
                            .language = true,
                            .infer = infer_truth,
                            .no_grad = true};
const OpInfo op_info_broadcast = {.op = OP_BROADCAST,
                                  .name = "broadcast",
                                  .family = "elementwise",
                                  MAPPED(copy),
                                  .eval = eval_copy,
                                  .cases = cases_broadcast,
                                  .doc = "x repeated over the dimensions that it lacks, in the given order",
                                  .in = {"x"},
                                  .attrs = {{"dims", ATTR_DIMS, NAN}},
                                  .dims = "~... -> dims",
                                  .language = true,
                                  .infer = infer_broadcast,
                                  .grad = grad_broadcast};
const OpInfo op_info_cast = {ENTRY(cast, CAST),
                             MAPPED(cast),
                             .doc = "x in another type; toward zero for whole numbers",
                             .in = {"x"},
                             .attrs = {{"dtype", ATTR_DTYPE, NAN}},
                             .dims = "~... -> ...",
                             .language = true,
                             .infer = infer_cast,
                             .grad = grad_cast};
const OpInfo op_info_cos = {ENTRY(cos, COS),      MAPPED(cos),          .doc = "cosine of x, in radians",
                            .in = {"x"},          .dims = "... -> ...", .language = true,
                            .infer = infer_float, .grad = grad_cos,     .flops = 8};
const OpInfo op_info_div = {
    ENTRY(div, DIV),      MAPPED(div),     .doc = "x / y", .in = {"x", "y"}, .dims = "*..., ... -> ...",
    .infer = infer_float, .grad = grad_div};
const OpInfo op_info_eq = {ENTRY(eq, EQ),
                           MAPPED(eq),
                           .doc = "whether x equals y",
                           .in = {"x", "y"},
                           .dims = "..., ... -> ...",
                           .language = true,
                           .infer = infer_compare,
                           .no_grad = true};
const OpInfo op_info_exp = {ENTRY(exp, EXP),
                            MAPPED(exp),
                            .precision = PRECISION_FULL,
                            .doc = "e to the power of x",
                            .in = {"x"},
                            .dims = "... -> ...",
                            .language = true,
                            .infer = infer_float,
                            .grad = grad_exp,
                            .flops = 8};
const OpInfo op_info_gelu = {ENTRY(gelu, GELU),
                             COMPOSED(gelu),
                             .precision = PRECISION_INSIDE,
                             .doc = "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))",
                             .in = {"x"},
                             .dims = "... -> ...",
                             .language = true,
                             .infer = infer_float,
                             .flops = 16};
const OpInfo op_info_le = {ENTRY(le, LE),
                           MAPPED(le),
                           .doc = "whether x is at most y",
                           .in = {"x", "y"},
                           .dims = "..., ... -> ...",
                           .language = true,
                           .infer = infer_compare,
                           .no_grad = true};
const OpInfo op_info_log = {ENTRY(log, LOG),
                            MAPPED(log),
                            .precision = PRECISION_FULL,
                            .doc = "natural logarithm of x",
                            .in = {"x"},
                            .dims = "... -> ...",
                            .language = true,
                            .infer = infer_float,
                            .grad = grad_log,
                            .flops = 8};
const OpInfo op_info_lt = {ENTRY(lt, LT),
                           MAPPED(lt),
                           .doc = "whether x is less than y",
                           .in = {"x", "y"},
                           .dims = "..., ... -> ...",
                           .language = true,
                           .infer = infer_compare,
                           .no_grad = true};
const OpInfo op_info_max = {
    ENTRY(max, MAX),           MAPPED(max),      .doc = "the larger of x and y", .in = {"x", "y"},
    .dims = "..., ... -> ...", .language = true, .infer = infer_number,          .grad = grad_max};
const OpInfo op_info_min = {
    ENTRY(min, MIN),           MAPPED(min),      .doc = "the smaller of x and y", .in = {"x", "y"},
    .dims = "..., ... -> ...", .language = true, .infer = infer_number,           .grad = grad_min};
const OpInfo op_info_mul = {
    ENTRY(mul, MUL),       MAPPED(mul),     .doc = "x * y", .in = {"x", "y"}, .dims = "*..., *... -> ...",
    .infer = infer_number, .grad = grad_mul};
const OpInfo op_info_neg = {ENTRY(neg, NEG),       MAPPED(neg),           .doc = "-x",     .in = {"x"},
                            .dims = "~... -> ...", .infer = infer_number, .grad = grad_neg};
const OpInfo op_info_not = {ENTRY(not, NOT),      MAPPED(not ),         .doc = "whether x does not hold",
                            .in = {"x"},          .dims = "... -> ...", .language = true,
                            .infer = infer_truth, .no_grad = true};
const OpInfo op_info_or = {ENTRY(or, OR),
                           MAPPED(or),
                           .doc = "whether x or y holds",
                           .in = {"x", "y"},
                           .dims = "..., ... -> ...",
                           .language = true,
                           .infer = infer_truth,
                           .no_grad = true};
const OpInfo op_info_pow = {ENTRY(pow, POW),
                            MAPPED(pow),
                            .doc = "x to the power of y, for positive x",
                            .in = {"x", "y"},
                            .dims = "..., ... -> ...",
                            .language = true,
                            .infer = infer_float,
                            .grad = grad_pow,
                            .precision = PRECISION_FULL,
                            .flops = 16};
const OpInfo op_info_relu = {ENTRY(relu, RELU),    COMPOSED(relu),   .doc = "max(x, 0)",  .in = {"x"},
                             .dims = "... -> ...", .language = true, .infer = infer_float};
const OpInfo op_info_rsqrt = {ENTRY(rsqrt, RSQRT),  MAPPED(rsqrt),        .precision = PRECISION_FULL,
                              .doc = "1 / sqrt(x)", .in = {"x"},          .dims = "... -> ...",
                              .language = true,     .infer = infer_float, .grad = grad_rsqrt};
const OpInfo op_info_select = {ENTRY(select, SELECT),
                               MAPPED(select),
                               .doc = "x where the condition holds, y elsewhere",
                               .in = {"condition", "x", "y"},
                               .dims = "..., ~..., ~... -> ...",
                               .language = true,
                               .infer = infer_select,
                               .grad = grad_select};
const OpInfo op_info_sigmoid = {ENTRY(sigmoid, SIGMOID),    COMPOSED(sigmoid),    .precision = PRECISION_INSIDE,
                                .doc = "1 / (1 + exp(-x))", .in = {"x"},          .dims = "... -> ...",
                                .language = true,           .infer = infer_float, .flops = 10};
const OpInfo op_info_silu = {ENTRY(silu, SILU),       COMPOSED(silu),       .precision = PRECISION_INSIDE,
                             .doc = "x * sigmoid(x)", .in = {"x"},          .dims = "... -> ...",
                             .language = true,        .infer = infer_float, .flops = 11};
const OpInfo op_info_sin = {ENTRY(sin, SIN),      MAPPED(sin),          .doc = "sine of x, in radians",
                            .in = {"x"},          .dims = "... -> ...", .language = true,
                            .infer = infer_float, .grad = grad_sin,     .flops = 8};
const OpInfo op_info_sqrt = {ENTRY(sqrt, SQRT),    MAPPED(sqrt),     .doc = "square root of x", .in = {"x"},
                             .dims = "... -> ...", .language = true, .infer = infer_float,      .grad = grad_sqrt};
const OpInfo op_info_stop_gradient = {.op = OP_STOP_GRADIENT,
                                      .name = "stop_gradient",
                                      .family = "elementwise",
                                      MAPPED(copy),
                                      .eval = eval_copy,
                                      .cases = cases_stop_gradient,
                                      .doc = "x, through which no gradient passes",
                                      .in = {"x"},
                                      .dims = "~... -> ...",
                                      .language = true,
                                      .no_grad = true};
const OpInfo op_info_sub = {
    ENTRY(sub, SUB),       MAPPED(sub),     .doc = "x - y", .in = {"x", "y"}, .dims = "~..., ~... -> ...",
    .infer = infer_number, .grad = grad_sub};
const OpInfo op_info_tanh = {ENTRY(tanh, TANH),    MAPPED(tanh),         .doc = "hyperbolic tangent of x",
                             .in = {"x"},          .dims = "... -> ...", .language = true,
                             .infer = infer_float, .grad = grad_tanh,    .flops = 8};
