/* What test_grad.c and test_step.c share: drawn inputs, counts, and a small GPT in text form. */
#ifndef PLAN_TESTS_GRAD_TESTING_H
#define PLAN_TESTS_GRAD_TESTING_H

#include "graph/graph.h"
#include "ir_testing.h"

static inline void verify(const Graph *graph) {
    if (diag_count(graph->session, SEV_ERROR)) {
        diag_flush(graph->session, stderr, false);
        fail_msg("reported an error");
    }
    testing_verify(graph);
}

static inline Tensor *tensor_of(const Graph *graph, const char *name) {
    Tensor *tensor = graph_find_tensor(graph, intern(graph->session->names, name));
    if (!tensor) fail_msg("graph %s has no tensor %s\n%s", graph->name, name, testing_print(graph));
    return tensor;
}

/* Floats in [-1, 1); whole numbers below 5, which every table and class dimension here exceeds. */
static inline double *draw(Session *s, const Tensor *tensor, uint64_t seed) {
    uint64_t state = seed * 7919 + 17;
    for (const char *c = tensor->name; *c; c++) state = state * 31 + (unsigned char)*c;
    int64_t n = shape_elements(&tensor->shape);
    double *values = NEW_N(s->arena, double, n);
    for (int i = 0; i < 8; i++) testing_random(&state);
    for (int64_t i = 0; i < n; i++) {
        double u = testing_random(&state);
        values[i] = tensor->dtype == DT_I32 ? floor(5 * u) : tensor->dtype == DT_BOOL ? u < 0.5 : 2 * u - 1;
    }
    return values;
}

static inline double read_scalar(Machine *machine, const Tensor *tensor) {
    double value;
    machine_get(machine, tensor, &value);
    return value;
}

static inline int count_ops(const Region *region, Op op, bool backward) {
    int n = 0;
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        n += node->op == op && node->backward == backward;
        if (node->region) n += count_ops(node->region, op, backward);
    }
    return n;
}

/* A backward node reads no cheap forward node, and no forward input. */
static inline void check_reads(const Graph *graph, const Region *region) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        for (int k = 0; k < node->n_in && node->backward; k++) {
            const Node *in = node->in[k];
            if (!in->backward && (op_info(in)->cheap || in->op == OP_INPUT || in->op == OP_PARAM))
                fail_msg("backward node %d reads forward node %d (%s)\n%s", node->id, in->id, op_info(in)->name,
                         testing_print(graph));
        }
        if (node->region) check_reads(graph, node->region);
    }
}

/* ---- a small GPT ------------------------------------------------------------------------------------------------- */

#define GPT_DIMS                                                                                                       \
    "dim batch = 4 batch, seq = 6, key = 6 like seq, embed = 8, head = 4 factors (kv, group), kv = 2, group = 2, "     \
    "width = 2\n"                                                                                                      \
    "dim ffn = 12, vocab = 10, layers = 3, places = 8\n"
#define GPT_WEIGHTS                                                                                                    \
    "tensor tokens: data i32[batch, seq]; tensor labels: data i32[batch, seq]\n"                                       \
    "tensor table: weight f32[vocab, embed]; tensor place: weight f32[places, embed]\n"                                \
    "tensor layers.norm.w: weight f32[layers, embed] group norm gain; tensor layers.norm.b: weight f32[layers, "       \
    "embed] group bias gain\n"                                                                                         \
    "tensor layers.wq: weight f32[layers, embed, head, width]; tensor layers.wk: weight f32[layers, embed, kv, "       \
    "width]\n"                                                                                                         \
    "tensor layers.wv: weight f32[layers, embed, kv, width]; tensor layers.wo: weight f32[layers, head, width, "       \
    "embed]\n"                                                                                                         \
    "tensor layers.up: weight f32[layers, embed, ffn]; tensor layers.down: weight f32[layers, ffn, embed]\n"
#define GPT_BODY(drop)                                                                                                 \
    "%0 = input table; %1 = ramp(dim = seq); %2 = lookup(%0, @tokens, over = [vocab]); %3 = lookup(@place, %1, over "  \
    "= [places])\n"                                                                                                    \
    "%4 = add(%2, %3)\n"                                                                                               \
    "%5 = repeat layers (%6 = carry %4, %7 = slice @layers.norm.w, %8 = slice @layers.norm.b, %9 = slice "             \
    "@layers.wq,\n"                                                                                                    \
    "    %10 = slice @layers.wk, %11 = slice @layers.wv, %12 = slice @layers.wo, %13 = slice @layers.up, %14 = slice " \
    "@layers.down) {\n"                                                                                                \
    "  %15 = layer_norm(%6, %7, %8, over = [embed])\n"                                                                 \
    "  %16 = dot(%15, %9, over = [embed]); %17 = dot(%15, %10, over = [embed]); %18 = dot(%15, %11, over = [embed])\n" \
    "  %19 = ramp(dim = seq); %20 = rotate(%16, %19, over = [width]); %21 = rotate(%17, %19, over = [width])\n"        \
    "  %22 = rename(%21, from = seq, to = key); %23 = rename(%18, from = seq, to = key)\n"                             \
    "  %24 = attend(%20, %22, %23, over = [key], causal = true); %25 = result(%24, index = 0)\n"                       \
    "  %26 = dot(%25, %12, over = [head, width]); %27 = add(%6, " drop "); %28 = rms_norm(%27, over = [embed])\n"      \
    "  %29 = dot(%28, %13, over = [embed]); %30 = gelu(%29); %31 = dot(%30, %14, over = [ffn]); %32 = add(%27, %31)\n" \
    "  next %32\n"                                                                                                     \
    "}\n"                                                                                                              \
    "%33 = result(%5, index = 0); %34 = layer_norm(%33, over = [embed]); %35 = dot(%34, %0, over = [embed])\n"         \
    "%36 = cross_entropy(%35, @labels, over = [vocab])\n"
#define GPT(tail) "graph model { " GPT_DIMS GPT_WEIGHTS GPT_BODY("%26") tail "}"

#endif
