/* place: the elements of x as a part of a longer dimension, or a part of them as a shorter one. With it tensors are
 * joined end to end (a sum of two placed ones) and cut, along dimensions that no plan divides. */
#include <math.h>

#include "ir/ops/space.h"

static bool infer_place(Graph *graph, Node *node) {
    Dim *from = node_attr(node, "from")->dims.dims[0], *to = node_attr(node, "to")->dims.dims[0];
    const Node *x = node->in[0];
    int64_t at = node_attr(node, "at")->integer;
    if (!dtype_is_float(x->dtype) || shape_find(&x->shape, from) < 0 || shape_find(&x->shape, to) >= 0) {
        Diag *d = diag_error(graph->session, "P0560", node->span, "`place` of %s%s from `%s` to `%s`",
                             dtype_name[x->dtype], shape_text(graph->arena, &x->shape), from->name, to->name);
        diag_help(d, "it takes floats that have the first dimension and lack the second");
        return false;
    }
    if (at <= -from->size || at >= to->size) {
        Diag *d = diag_error(graph->session, "P0561", node->span,
                             "`place` of `%s` (%lld) at %lld of `%s` (%lld): no element has a place there", from->name,
                             (long long)from->size, (long long)at, to->name, (long long)to->size);
        diag_help(d, "`at` lies between %lld and %lld", (long long)(1 - from->size), (long long)(to->size - 1));
        return false;
    }
    node->dtype = x->dtype;
    node->shape = x->shape;
    node->shape.dims[shape_find(&x->shape, from)] = to;
    return true;
}

static void grad_place(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    AttrValue attrs[3] = {
        *node_attr(node, "to"), *node_attr(node, "from"), {.integer = -node_attr(node, "at")->integer}};
    attrs[2].number = (double)attrs[2].integer;
    grad_in[0] = build_op(b, OP_PLACE, (Node *[]){build_fit(b, grad_out[0], &node->shape)}, 1, attrs);
}

static void eval_place(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    const Dim *from = node_attr(node, "from")->dims.dims[0], *to = node_attr(node, "to")->dims.dims[0];
    int64_t stride = array_stride(in[0], from), at = node_attr(node, "at")->integer;
    Space points = {0};
    space_add(&points, out[0], NULL);
    int along = space_find(&points, to);
    for (int64_t i = 0; i < out[0]->n; i++, space_next(&points)) {
        int64_t j = points.index[along] - at;
        out[0]->at[i] = j < 0 || j >= from->size ? 0 : in[0]->at[space_offset(&points, in[0]) + j * stride];
    }
}

#define HEAD "graph case { dim a = 4, b = 3, c = 8, d = 5; "
static const OpCase cases_place[] = {
    {.what = "into a longer dimension",
     .low = -2,
     .high = 2,
     .graph = HEAD "tensor x: f32[a, b, d]; %0 = place(@x, from = b, to = c, at = 2); output %0 }"},
    {.what = "a part, over the edge",
     .low = -2,
     .high = 2,
     .graph = HEAD "tensor x: f32[c, a]; %0 = place(@x, from = c, to = d, at = -4); output %0 }"},
    {.what = "two joined end to end",
     .low = -2,
     .high = 2,
     .graph = HEAD "tensor x: f32[a, b]; tensor y: f32[a, d]; %0 = place(@x, from = b, to = c, at = 0)\n"
                   "%1 = place(@y, from = d, to = c, at = 3); %2 = add(%0, %1); output %2 }"},
    {0}};

const OpInfo op_info_place = {
    .op = OP_PLACE,
    .name = "place",
    .family = "movement",
    .doc = "y[.., j] = x[.., j - at] where x has such an element, else 0: x as a part of a longer dimension, or a part "
           "of x",
    .in = {"x"},
    .attrs = {{"from", ATTR_DIM, NAN}, {"to", ATTR_DIM, NAN}, {"at", ATTR_INT, 0}},
    .dims = "~... from! -> ... to!",
    .language = true,
    .infer = infer_place,
    .grad = grad_place,
    .lower = LOWER_PLACE,
    .eval = eval_place,
    .cases = cases_place,
};
