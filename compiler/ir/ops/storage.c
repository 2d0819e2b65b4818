/* Rule 3's storage: a tensor as one flat range of elements, which an axis can cut in equal parts whatever its
 * dimensions.
 *
 * flatten and unflatten are views of what a rank holds: the local elements in row-major order, the leading dimensions
 * of a stack kept apart, with zeros behind them up to the flat dimension's size. Only partitioning makes them. whole is
 * the value itself, out of storage: what reads it shares one gathered copy. */
#include <math.h>

#include "ir/op.h"

static bool infer_flatten(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = node->in[0]->dtype;
    node->shape = node_attr(node, "lead")->dims;
    shape_add(&node->shape, node_attr(node, "flat")->dims.dims[0]);
    return true;
}

static bool infer_unflatten(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = node->in[0]->dtype;
    node->shape = node_attr(node, "shape")->dims;
    return true;
}

/* Blocks of the leading dimensions: `from` elements become `to`, the rest is zero or dropped. */
static void eval_blocks(const Array *in, Array *out, int64_t blocks) {
    int64_t from = in->n / blocks, to = out->n / blocks;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = 0; i < to; i++) out->at[b * to + i] = i < from ? in->at[b * from + i] : 0;
}

static void eval_flatten(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    int64_t blocks = 1;
    for (int i = 0; i + 1 < node->shape.n; i++) blocks *= out[0]->extent[i];
    eval_blocks(in[0], out[0], blocks);
}

static void eval_unflatten(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    int64_t blocks = 1;
    for (int i = 0; i + 1 < node->in[0]->shape.n; i++) blocks *= in[0]->extent[i];
    eval_blocks(in[0], out[0], blocks);
}

static bool infer_whole(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = node->in[0]->dtype;
    node->shape = node->in[0]->shape;
    return true;
}

static void eval_whole(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context, (void)node;
    for (int64_t i = 0; i < out[0]->n; i++) out[0]->at[i] = in[0]->at[i];
}

static const OpCase cases_whole[] = {
    {.what = "a matrix",
     .graph = "graph case { dim a = 3, b = 5; tensor x: data f32[a, b]\n%0 = input x; %1 = whole(%0); output %1 }",
     .low = -1,
     .high = 1},
    {0}};
static const OpCase cases_flatten[] = {
    {.what = "padded",
     .graph = "graph case { dim layers = 2, a = 3, b = 5, f = 16; tensor x: data f32[layers, a, b]\n"
              "%0 = input x; %1 = flatten(%0, flat = f, lead = [layers]); output %1 }",
     .low = -1,
     .high = 1},
    {0}};
static const OpCase cases_unflatten[] = {
    {.what = "padding dropped",
     .graph = "graph case { dim layers = 2, a = 3, b = 5, f = 16; tensor x: data f32[layers, f]\n"
              "%0 = input x; %1 = unflatten(%0, shape = [layers, a, b]); output %1 }",
     .low = -1,
     .high = 1},
    {0}};

const OpInfo op_info_flatten = {.op = OP_FLATTEN,
                                .name = "flatten",
                                .doc = "what a rank holds of x as one flat range, padded with zeros",
                                .family = "storage",
                                .in = {"x"},
                                .attrs = {{"flat", ATTR_DIM, NAN}, {"lead", ATTR_DIMS, 0}},
                                .dims = "~... -> lead flat",
                                .infer = infer_flatten,
                                .no_grad = true,
                                .lower = LOWER_VIEW,
                                .eval = eval_flatten,
                                .cases = cases_flatten};

const OpInfo op_info_unflatten = {.op = OP_UNFLATTEN,
                                  .name = "unflatten",
                                  .doc = "a flat range as the tensor that it stores",
                                  .family = "storage",
                                  .in = {"x"},
                                  .attrs = {{"shape", ATTR_DIMS, NAN}},
                                  .dims = "~... -> shape",
                                  .infer = infer_unflatten,
                                  .no_grad = true,
                                  .lower = LOWER_VIEW,
                                  .eval = eval_unflatten,
                                  .cases = cases_unflatten};

const OpInfo op_info_whole = {.op = OP_WHOLE,
                              .name = "whole",
                              .doc = "x as its axes cut it, gathered where it is stored in parts",
                              .family = "storage",
                              .in = {"x"},
                              .dims = "~... -> ...",
                              .infer = infer_whole,
                              .no_grad = true,
                              .lower = LOWER_VIEW,
                              .eval = eval_whole,
                              .cases = cases_whole};
