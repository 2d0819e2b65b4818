/* Matrix products, by the names of dimensions.
 *
 * dot(x, y, over k) sums x * y over k. Dimensions of both operands outside `over` are a batch; the others are those of
 * the product. So one operator is every matrix product, and its gradients are products again: `order` asks for the
 * result's dimensions in a given order, so that a weight's gradient is made in the weight's own layout; `wide` gives
 * the f32 sums of narrow operands as they are, for the same purpose. */
#include <math.h>

#include "ir/ops/space.h"

static bool infer_dot(Graph *graph, Node *node) {
    const Node *x = node->in[0], *y = node->in[1];
    const Shape *over = &node_attr(node, "over")->dims, *order = &node_attr(node, "order")->dims;
    for (int i = 0; i < over->n; i++) {
        const Node *lacks = shape_find(&x->shape, over->dims[i]) < 0   ? x
                            : shape_find(&y->shape, over->dims[i]) < 0 ? y
                                                                       : NULL;
        if (!lacks) continue;
        Diag *d =
            diag_error(graph->session, "P0240", node->span, "`dot` sums over `%s`, which its %s operand %s lacks",
                       over->dims[i]->name, lacks == x ? "first" : "second", shape_text(graph->arena, &lacks->shape));
        diag_help(d, "both operands need every dimension after `over`");
        return false;
    }
    if (over->n == 0) {
        Diag *d = diag_error(graph->session, "P0241", node->span, "`dot` has no dimension to sum over");
        diag_help(d, "write `over` and the dimensions that both operands share");
        return false;
    }
    if (x->dtype != y->dtype) {
        diag_error(graph->session, "P0242", node->span, "`dot` of %s and %s", dtype_name[x->dtype],
                   dtype_name[y->dtype]);
        return false;
    }
    Shape result = shape_without(&x->shape, over);
    for (int i = 0; i < y->shape.n; i++) {
        Dim *dim = y->shape.dims[i];
        if (shape_find(&x->shape, dim) >= 0) continue;
        if (result.n == MAX_RANK) {
            diag_error(graph->session, "P0243", node->span, "`dot` of %s and %s has more than %d dimensions",
                       shape_text(graph->arena, &x->shape), shape_text(graph->arena, &y->shape), MAX_RANK);
            return false;
        }
        result.dims[result.n++] = dim;
    }
    if (order->n) {
        if (order->n != result.n || !shape_contains(order, &result)) {
            diag_error(graph->session, "P0240", node->span, "`dot` makes %s, which %s does not put in order",
                       shape_text(graph->arena, &result), shape_text(graph->arena, order));
            return false;
        }
        result = *order;
    }
    node->dtype = node->op == OP_DOT && node_attr(node, "wide")->integer ? DT_F32 : x->dtype; /* exact_dot is another */
    node->shape = result;
    return true;
}

/* sum of x * y over what only the other one has, in the order of `order`. */
static Node *dot_in_order(Builder *b, Node *x, Node *y, const Shape *order) {
    Shape over = {0};
    for (int i = 0; i < x->shape.n; i++)
        if (shape_find(order, x->shape.dims[i]) < 0) over.dims[over.n++] = x->shape.dims[i];
    if (over.n == 0) return build_binary(b, OP_MUL, build_broadcast(b, x, order), build_broadcast(b, y, order));
    AttrValue attrs[3] = {{.dims = over}, {.dims = *order}};
    return build_op(b, OP_DOT, (Node *[]){x, y}, 2, attrs);
}

static void grad_dot(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    Node *x = node->in[0], *y = node->in[1], *g = build_cast(b, grad_out[0], x->dtype);
    grad_in[0] = dot_in_order(b, g, y, &x->shape);
    /* The operand whose dimensions come first in y's order stands first, so that `order` changes nothing in most cases.
     */
    bool x_first = y->shape.n && shape_find(&x->shape, y->shape.dims[0]) >= 0;
    grad_in[1] = x_first ? dot_in_order(b, x, g, &y->shape) : dot_in_order(b, g, x, &y->shape);
}

static void eval_dot(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    const Shape *over = &node_attr(node, "over")->dims;
    Space free = {0}, summed = {0};
    space_add(&free, out[0], NULL);
    space_add(&summed, in[0], over);
    int64_t x_stride[SPACE_MAX], y_stride[SPACE_MAX], terms = space_points(&summed);
    for (int i = 0; i < summed.n; i++) {
        x_stride[i] = array_stride(in[0], summed.dims[i]);
        y_stride[i] = array_stride(in[1], summed.dims[i]);
    }
    for (int64_t p = 0; p < out[0]->n; p++, space_next(&free)) {
        const double *x = in[0]->at + space_offset(&free, in[0]), *y = in[1]->at + space_offset(&free, in[1]);
        double sum = 0;
        for (int64_t k = 0; k < terms; k++, space_next(&summed)) {
            int64_t at_x = 0, at_y = 0;
            for (int i = 0; i < summed.n; i++) {
                at_x += summed.index[i] * x_stride[i];
                at_y += summed.index[i] * y_stride[i];
            }
            sum += x[at_x] * y[at_y];
        }
        out[0]->at[p] = sum;
    }
}

#define CASE(dims, x, y, over, ...)                                                                                    \
    {                                                                                                                  \
        .low = -2, .high = 2,                                                                                          \
        .graph = "graph case { dim " dims "; tensor x: f32[" x "]; tensor y: f32[" y "]\n"                             \
                 "%0 = dot(@x, @y, over = [" over "]); output %0 }",                                                   \
        __VA_ARGS__                                                                                                    \
    }
static const OpCase cases_dot[] = {
    CASE("m = 4, k = 8, n = 6", "m, k", "k, n", "k", .what = "matrix product"),
    CASE("m = 5, k = 7, n = 3", "k, m", "n, k", "k", .what = "odd sizes, both transposed"),
    CASE("batch = 4, seq = 3, embed = 6, head = 2, width = 4", "batch, seq, embed", "embed, head, width", "embed",
         .what = "projection into heads"),
    CASE("batch = 4, seq = 3, embed = 6, head = 2, width = 4", "batch, seq, head, width", "head, width, embed",
         "head, width", .what = "two dimensions summed"),
    CASE("b = 2, m = 4, k = 3, n = 4", "b, m, k", "b, k, n", "k", .what = "a batch of products"),
    CASE("m = 4, k = 6", "m, k", "k", "k", .what = "matrix by vector"),
    CASE("k = 8", "k", "k", "k", .what = "inner product"),
    {.what = "result in a given order",
     .low = -2,
     .high = 2,
     .graph = "graph case { dim m = 4, k = 6, n = 2; tensor x: f32[m, k]; tensor y: f32[k, n]\n"
              "%0 = dot(@x, @y, over = [k], order = [n, m]); output %0 }"},
    {0}};

const OpInfo op_info_dot = {
    .op = OP_DOT,
    .name = "dot",
    .family = "linear",
    .doc = "sum of x * y over the dimensions `over`; other shared dimensions are a batch",
    .in = {"x", "y"},
    .attrs = {{"over", ATTR_DIMS, NAN}, {"order", ATTR_DIMS, 0}, {"wide", ATTR_BOOL, 0, .hidden = true}},
    .dims = "*... o+, *... o+ -> ...",
    .language = true,
    .flops = 2,
    .infer = infer_dot,
    .grad = grad_dot,
    .lower = LOWER_PRODUCT,
    .precision = PRECISION_NARROW,
    .eval = eval_dot,
    .cases = cases_dot,
};
