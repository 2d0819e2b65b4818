/* Building graphs: nodes are appended to the open region, with dtype and shape inferred by the operator's entry.
 *
 * A shape error of the user's becomes a diagnostic and a poison node; an operator with a poisoned operand is poison
 * itself, so that one mistake gives one message. Nothing is folded here: that is graph/simplify.c. */
#include "ir/op.h"

#include <math.h>

/* ---- graph, dimensions, tensors ---------------------------------------------------------------------------------- */

Graph *graph_new(Session *session, Arena *arena, const char *name) {
    Graph *graph = NEW(arena, Graph);
    graph->arena = arena;
    graph->session = session;
    graph->name = intern(session->names, name);
    return graph;
}

Dim *graph_add_dim(Graph *graph, Name name, int64_t size, Span span) {
    Dim *dim = NEW(graph->arena, Dim);
    dim->name = name;
    dim->size = size;
    dim->span = span;
    dim->id = graph->dims.n;
    vec_push(graph->arena, &graph->dims, dim);
    return dim;
}

Dim *graph_find_dim(const Graph *graph, Name name) {
    for (int i = 0; i < graph->dims.n; i++)
        if (graph->dims.at[i]->name == name) return graph->dims.at[i];
    return NULL;
}

void dim_set_factors(Arena *arena, Dim *dim, Dim *const *factors, int n) {
    dim->factors = NEW_N(arena, Dim *, n);
    dim->n_factors = n;
    for (int i = 0; i < n; i++) {
        dim->factors[i] = factors[i];
        factors[i]->product = dim;
    }
}

Tensor *graph_add_tensor(Graph *graph, Name name, TensorClass class, DType dtype, Shape shape, Span span) {
    Tensor *tensor = NEW(graph->arena, Tensor);
    tensor->name = name;
    tensor->class = class;
    tensor->dtype = dtype;
    tensor->shape = shape;
    tensor->span = span;
    tensor->id = graph->tensors.n;
    vec_push(graph->arena, &graph->tensors, tensor);
    return tensor;
}

Tensor *graph_find_tensor(const Graph *graph, Name name) {
    for (int i = 0; i < graph->tensors.n; i++)
        if (graph->tensors.at[i]->name == name) return graph->tensors.at[i];
    return NULL;
}

void graph_add_output(Graph *graph, Tensor *tensor, Node *value, bool accumulate) {
    vec_push(graph->arena, &graph->outputs, (Output){tensor, value, accumulate});
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static AttrValue standard_attr(const OpInfo *info, int i) {
    double standard = info->attrs[i].standard;
    if (isnan(standard)) BUG("operator %s: attribute %s must be given", info->name, info->attrs[i].name);
    return (AttrValue){.integer = (int64_t)standard, .number = standard};
}

static Node *new_node(Builder *b, Op op, Node *const *in, int n_in, const AttrValue *attrs) {
    Arena *arena = b->graph->arena;
    Node *node = NEW(arena, Node);
    node->op = op;
    node->id = b->graph->n_nodes++;
    node->in = NEW_N(arena, Node *, n_in);
    node->n_in = n_in;
    for (int i = 0; i < n_in; i++) node->in[i] = in[i];
    int n_attrs = op_n_attrs(op_table[op]);
    node->attrs = NEW_N(arena, AttrValue, n_attrs);
    for (int i = 0; i < n_attrs; i++) node->attrs[i] = attrs ? attrs[i] : standard_attr(op_table[op], i);
    node->backward = b->backward;
    node->deferred = b->deferred;
    node->name = b->name;
    node->path = b->path;
    node->span = b->span;
    return node;
}

/* Appends the node once its dtype and shape are known; poison in its place when they cannot be. */
static Node *append(Builder *b, Node *node) {
    const OpInfo *info = op_info(node);
    bool poisoned = false;
    for (int i = 0; i < node->n_in; i++) poisoned = poisoned || node->in[i]->op == OP_POISON;
    if (!poisoned) poisoned = !(info->infer ? info->infer(b->graph, node) : op_infer_shapes(b->graph, node));
    if (poisoned) { *node = (Node){.op = OP_POISON, .id = node->id, .name = node->name, .span = node->span}; }
    vec_push(b->graph->arena, &b->region->nodes, node);
    return node;
}

Node *build_op(Builder *b, Op op, Node *const *in, int n_in, const AttrValue *attrs) {
    return append(b, new_node(b, op, in, n_in, attrs));
}

Node *build_result(Builder *b, Node *tuple, int index) {
    return build_op(b, OP_RESULT, &tuple, 1, &(AttrValue){.integer = index});
}

Node *build_input(Builder *b, Tensor *tensor) {
    Node *node = new_node(b, OP_INPUT, NULL, 0, NULL);
    node->tensor = tensor;
    return append(b, node);
}

Node *build_const(Builder *b, DType dtype, double value) {
    return build_op(b, OP_CONST, NULL, 0, (AttrValue[]){{.number = value}, {.integer = (int64_t)dtype}});
}

Node *build_vector(Builder *b, const double *values, Dim *dim, DType dtype) {
    double *list = NEW_N(b->graph->arena, double, dim->size);
    for (int64_t i = 0; i < dim->size; i++) list[i] = values[i];
    AttrValue attrs[] = {
        {.list = list, .integer = dim->size}, {.dims = shape_of(&dim, 1)}, {.integer = (int64_t)dtype}};
    return build_op(b, OP_VECTOR, NULL, 0, attrs);
}

Node *build_unary(Builder *b, Op op, Node *x) { return build_op(b, op, &x, 1, NULL); }

Node *build_binary(Builder *b, Op op, Node *x, Node *y) { return build_op(b, op, (Node *[]){x, y}, 2, NULL); }

Node *build_scale(Builder *b, Node *x, double factor) {
    return build_binary(b, OP_MUL, x, build_const(b, x->dtype, factor));
}

Node *build_select(Builder *b, Node *condition, Node *x, Node *y) {
    return build_op(b, OP_SELECT, (Node *[]){condition, x, y}, 3, NULL);
}

Node *build_reduce(Builder *b, Op op, Node *x, const Shape *over) {
    if (over->n == 0) return x;
    return build_op(b, op, &x, 1, &(AttrValue){.dims = *over});
}

Node *build_dot(Builder *b, Node *x, Node *y, const Shape *over) {
    AttrValue attrs[sizeof((OpInfo *)0)->attrs / sizeof(AttrInfo)] = {{.integer = 0}};
    attrs[op_attr_index(op_table[OP_DOT], "over")].dims = *over;
    return build_op(b, OP_DOT, (Node *[]){x, y}, 2, attrs);
}

Node *build_ramp(Builder *b, Dim *dim) {
    return build_op(b, OP_RAMP, NULL, 0, &(AttrValue){.dims = shape_of(&dim, 1)});
}

Node *build_rename(Builder *b, Node *x, Dim *from, Dim *to) {
    if (from == to) return x;
    return build_op(b, OP_RENAME, &x, 1, (AttrValue[]){{.dims = shape_of(&from, 1)}, {.dims = shape_of(&to, 1)}});
}

Node *build_cast(Builder *b, Node *x, DType dtype) {
    if (x->dtype == dtype) return x;
    return build_op(b, OP_CAST, &x, 1, &(AttrValue){.integer = (int64_t)dtype});
}

Node *build_broadcast(Builder *b, Node *x, const Shape *shape) {
    if (x->op == OP_POISON || shape_equal(&x->shape, shape)) return x;
    return build_op(b, OP_BROADCAST, &x, 1, &(AttrValue){.dims = *shape});
}

Node *build_fit(Builder *b, Node *x, const Shape *shape) {
    Shape extra = shape_without(&x->shape, shape);
    return build_broadcast(b, build_reduce(b, OP_SUM, x, &extra), shape);
}

Node *build_layer_index(Builder *b) {
    CHECK(b->region->parent != NULL);
    if (!b->region->index) b->region->index = build_op(b, OP_LAYER_INDEX, NULL, 0, NULL);
    return b->region->index;
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

Region *region_open(Builder *b, Dim *dim, bool descending) {
    dim->is_repeated = true;
    Region *region = NEW(b->graph->arena, Region);
    region->parent = b->region;
    region->dim = dim;
    region->descending = descending;
    b->region = region;
    return region;
}

Node *region_add_param(Builder *b, Region *region, DType dtype, Shape shape) {
    Node *node = new_node(b, OP_PARAM, NULL, 0, NULL);
    node->dtype = dtype;
    node->shape = shape;
    vec_push(b->graph->arena, &region->params, node);
    return node;
}

/* A value with the same dimensions as the carry, in the carry's order; others as they are. */
static Node *in_order_of(Builder *b, Node *value, const Shape *carry) {
    bool same = value->shape.n == carry->n && shape_contains(carry, &value->shape);
    return same ? build_broadcast(b, value, carry) : value;
}

Node *region_close(Builder *b, Region *region, Node *const *inputs, int n_carries, int n_slices, int n_captures,
                   Node *const *results, int n_stacked) {
    CHECK(b->region == region && region->params.n == n_carries + n_slices + n_captures);
    region->n_carries = n_carries;
    region->n_slices = n_slices;
    region->n_captures = n_captures;
    region->n_stacked = n_stacked;
    bool poisoned = false;
    for (int i = 0; i < n_carries + n_stacked; i++) {
        Node *result = results[i];
        if (i < n_carries) result = in_order_of(b, result, &region->params.at[i]->shape);
        vec_push(b->graph->arena, &region->results, result);
        poisoned = poisoned || result->op == OP_POISON;
    }
    b->region = region->parent;
    if (poisoned) return append(b, new_node(b, OP_POISON, NULL, 0, NULL));
    Node *node = new_node(b, OP_REPEAT, inputs, region->params.n, NULL);
    node->region = region;
    region->owner = node;
    return append(b, node);
}
