/* Simplification: composites become primitives, constants are folded, equal nodes shared, dead ones dropped.
 *
 * graph_simplify copies the graph into itself (copy.c does the expansion and the sharing). Foldings here are those that
 * gradients and expansions leave behind; each keeps the value exactly. */
#include "graph/copy.h"

/* The number that every element of the value is, if that is known. */
static bool constant_value(const Node *node, double *value) {
    while (node->op == OP_BROADCAST) node = node->in[0];
    if (node->op != OP_CONST) return false;
    *value = node_attr(node, "value")->number;
    return true;
}

static bool is_constant(const Node *node, double value) {
    double known;
    return constant_value(node, &known) && known == value;
}

/* Elementwise operators of constants: their own evaluation gives the number. */
static Node *fold_constants(Builder *b, const Node *node, Node *const *in) {
    const OpInfo *info = op_info(node);
    if (info->lower != LOWER_MAP || info->reads_index || !info->cheap || node->n_in == 0 || node->n_in > 4) return NULL;
    const Array *arrays[4];
    for (int i = 0; i < node->n_in; i++) {
        if (in[i]->op != OP_CONST) return NULL;
        Array *array = NEW(b->graph->arena, Array);
        *array = (Array){.dtype = in[i]->dtype, .n = 1, .at = NEW(b->graph->arena, double)};
        array->at[0] = node_attr(in[i], "value")->number;
        arrays[i] = array;
    }
    Array result = {.dtype = node->dtype, .n = 1, .at = NEW(b->graph->arena, double)};
    EvalContext context = {.arena = b->graph->arena};
    info->eval(&context, node, arrays, (Array *[]){&result});
    return build_const(b, node->dtype, result.at[0]);
}

static Node *fold_binary(const Node *node, Node *const *in) {
    /* Which operand has the shape of the result. */
    bool left = in[0]->shape.n == node->shape.n;
    bool right = in[1]->shape.n == node->shape.n && (!left || shape_equal(&in[0]->shape, &in[1]->shape));
    if (node->op == OP_ADD && left && is_constant(in[1], 0)) return in[0];
    if (node->op == OP_ADD && right && is_constant(in[0], 0)) return in[1];
    if (node->op == OP_SUB && left && is_constant(in[1], 0)) return in[0];
    if (node->op == OP_MUL && left && is_constant(in[1], 1)) return in[0];
    if (node->op == OP_MUL && right && is_constant(in[0], 1)) return in[1];
    if (node->op == OP_DIV && left && is_constant(in[1], 1)) return in[0];
    return NULL;
}

Node *fold_node(Builder *b, const Node *node, Node *const *in) {
    if (node->shape.n == 0) {
        Node *constant = fold_constants(b, node, in);
        if (constant) return constant;
    }
    if (node->n_in == 2) return fold_binary(node, in);
    if (node->op == OP_NEG && in[0]->op == OP_NEG) return in[0]->in[0];
    return NULL;
}

void graph_simplify(Graph *graph) {
    Region old = graph->top;
    graph->top = (Region){0};
    Copy copy;
    copy_begin(&copy, graph);
    copy_region(&copy, &old);
    copy_finish(&copy);
}
