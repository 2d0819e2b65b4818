/* Random numbers as pure functions of (key, operands, logical index): see ir/random.h. The operands are whole-number
 * scalars such as the seed, the step and the layer index. */
#include "ir/random.h"

#include <math.h>

static const double TWO_PI = 6.283185307179586;

static bool infer_random(Graph *graph, Node *node) {
    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i]->dtype == DT_I32 && node->in[i]->shape.n == 0) continue;
        Diag *diag = diag_error(graph->session, "P0204", node->span, "`%s` takes whole-number scalars, not %s%s",
                                op_info(node)->name, dtype_name[node->in[i]->dtype],
                                shape_text(graph->arena, &node->in[i]->shape));
        diag_help(diag, "give it the seed, the step or the index of a layer");
        return false;
    }
    node->dtype = DT_F32;
    node->shape = node_attr(node, "dims")->dims;
    return true;
}

static uint32_t low_bits(double value) { return (uint32_t)(int64_t)value; }

/* Where an element stands: its column is the index in the last dimension, its row that in all others, batch first. */
static void place(const Node *node, const int64_t *logical, uint32_t *row, uint32_t *column) {
    const Shape *shape = &node->shape;
    *row = 0;
    *column = shape->n ? (uint32_t)logical[shape->n - 1] : 0;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d + 1 < shape->n; d++)
            if (shape->dims[d]->is_batch == (pass == 0))
                *row = *row * (uint32_t)dim_logical(shape->dims[d]) + (uint32_t)logical[d];
}

static double uniform(uint32_t key, uint32_t row, uint32_t column) {
    return random_unit(random_bits(key, row, column));
}

/* Box-Muller: the logarithm's argument is in (0, 1]. */
static double normal(uint32_t key, uint32_t row, uint32_t column) {
    double u = uniform(key, row, column), v = uniform(key ^ RANDOM_SECOND, row, column);
    return sqrt(-2 * log(1 - u)) * cos(TWO_PI * v);
}

static void eval_random(EvalContext *context, const Node *node, const Array *const *in, Array *out,
                        double (*draw)(uint32_t, uint32_t, uint32_t)) {
    uint32_t key = (uint32_t)node_attr(node, "key")->integer;
    for (int i = 0; i < node->n_in; i++) key = random_mix(key, low_bits(in[i]->at[0]), i);
    int64_t index[MAX_RANK] = {0}, at = 0;
    do {
        int64_t logical[MAX_RANK];
        for (int d = 0; d < node->shape.n; d++)
            logical[d] = dim_index(node->shape.dims[d], eval_logical(context, node, node->shape.dims[d], index[d]));
        uint32_t row, column;
        place(node, logical, &row, &column);
        out->at[at++] = draw(key, row, column);
    } while (array_next(out, index));
}

static void eval_uniform(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    eval_random(context, node, in, out[0], uniform);
}

static void eval_normal(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    eval_random(context, node, in, out[0], normal);
}

/* ---- the same as loop instructions -------------------------------------------------------------- */

static LoopValue emit_key(LoopBuilder *b, const Node *node, const LoopValue *in) {
    LoopValue key = loop_const_i(b, (int32_t)(uint32_t)node_attr(node, "key")->integer);
    for (int i = 0; i < node->n_in; i++) {
        LoopValue mixed = loop_emit(b, LOOP_IXOR, key, in[i], -1);
        key = loop_random_bits(b, mixed, loop_const_i(b, (int32_t)RANDOM_MIX), loop_const_i(b, i));
    }
    return key;
}

static LoopValue emit_row(LoopBuilder *b, const Node *node, const LoopValue *logical) {
    LoopValue row = -1;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d + 1 < node->shape.n; d++) {
            if (node->shape.dims[d]->is_batch != (pass == 0)) continue;
            if (row < 0) {
                row = logical[d];
                continue;
            }
            LoopValue scaled =
                loop_emit(b, LOOP_IMUL, row, loop_const_i(b, (int32_t)dim_logical(node->shape.dims[d])), -1);
            row = loop_emit(b, LOOP_IADD, scaled, logical[d], -1);
        }
    return row < 0 ? loop_const_i(b, 0) : row;
}

typedef struct Stream {
    LoopValue key, row, column;
} Stream;

static Stream emit_stream(LoopBuilder *b, const Node *node, const LoopValue *in) {
    const LoopValue *logical = in + node->n_in;
    Stream stream = {.key = emit_key(b, node, in), .row = emit_row(b, node, logical)};
    stream.column = node->shape.n ? logical[node->shape.n - 1] : loop_const_i(b, 0);
    return stream;
}

static LoopValue emit_unit(LoopBuilder *b, LoopValue key, Stream stream) {
    return loop_emit(b, LOOP_U_TO_UNIT, loop_random_bits(b, key, stream.row, stream.column), -1, -1);
}

static LoopValue emit_uniform(LoopBuilder *b, const Node *node, const LoopValue *in) {
    Stream stream = emit_stream(b, node, in);
    return emit_unit(b, stream.key, stream);
}

static LoopValue emit_normal(LoopBuilder *b, const Node *node, const LoopValue *in) {
    Stream stream = emit_stream(b, node, in);
    LoopValue u = emit_unit(b, stream.key, stream);
    LoopValue second = loop_emit(b, LOOP_IXOR, stream.key, loop_const_i(b, (int32_t)RANDOM_SECOND), -1);
    LoopValue v = emit_unit(b, second, stream);
    LoopValue log_u = loop_emit(b, LOOP_LOG, loop_emit(b, LOOP_SUB, loop_const_f(b, 1), u, -1), -1, -1);
    LoopValue radius = loop_emit(b, LOOP_SQRT, loop_emit(b, LOOP_MUL, loop_const_f(b, -2), log_u, -1), -1, -1);
    LoopValue angle = loop_emit(b, LOOP_COS, loop_emit(b, LOOP_MUL, loop_const_f(b, TWO_PI), v, -1), -1, -1);
    return loop_emit(b, LOOP_MUL, radius, angle, -1);
}

#define CASES(name)                                                                                                    \
    static const OpCase cases_##name[] = {                                                                             \
        {.what = "of a seed",                                                                                          \
         .graph = "graph case { dim a = 4, b = 6; tensor seed: scalar i32[]\n"                                         \
                  "%0 = " #name "(@seed, key = 3000000000, dims = [a, b]); output %0 }"},                              \
        {.what = "of seed and step, in a micro-batch, batch not first",                                                \
         .graph = "graph case micro { dim a = 4, batch = 4 batch, c = 3; tensor seed: scalar i32[]; tensor step: "     \
                  "scalar i32[]\n"                                                                                     \
                  "%0 = " #name "(@seed, @step, key = 7, dims = [a, batch, c]); output %0 }"},                         \
        {.what = "for each layer",                                                                                     \
         .graph = "graph case { dim layers = 3, a = 8; tensor seed: scalar i32[]\n"                                    \
                  "%0 = repeat layers (%1 = capture @seed) { %2 = layer_index()\n"                                     \
                  "%3 = " #name "(%1, %2, key = 5, dims = [a]); stack %3 }\n"                                          \
                  "%4 = result(%0, index = 0); output %4 }"},                                                          \
        {0}};
CASES(random_uniform)
CASES(random_normal)

const OpInfo op_info_random_uniform = {.op = OP_RANDOM_UNIFORM,
                                       .name = "random_uniform",
                                       .doc = "numbers in [0, 1) that depend on key, operands and logical index alone",
                                       .family = "random",
                                       .variadic = "counter",
                                       .attrs = {{"key", ATTR_INT, NAN}, {"dims", ATTR_DIMS, NAN}},
                                       .dims = "... -> dims",
                                       .cheap = true,
                                       .infer = infer_random,
                                       .no_grad = true,
                                       .lower = LOWER_MAP,
                                       .emit = emit_uniform,
                                       .reads_index = true,
                                       .eval = eval_uniform,
                                       .flops = 30,
                                       .cases = cases_random_uniform};

const OpInfo op_info_random_normal = {
    .op = OP_RANDOM_NORMAL,
    .name = "random_normal",
    .doc = "normal numbers (mean 0, deviation 1) that depend on key, operands and logical index alone",
    .family = "random",
    .variadic = "counter",
    .attrs = {{"key", ATTR_INT, NAN}, {"dims", ATTR_DIMS, NAN}},
    .dims = "... -> dims",
    .cheap = true,
    .infer = infer_random,
    .no_grad = true,
    .lower = LOWER_MAP,
    .emit = emit_normal,
    .reads_index = true,
    .eval = eval_normal,
    .flops = 90,
    .cases = cases_random_normal};
