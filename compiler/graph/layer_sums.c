/* Sums over the layers of a repeat, made outside of it, become carries: what the layers add is handed on from layer to
 * layer.
 *
 * In: a graph in which `sum(result, over = [layers, ..])` adds up what a repeat stacks (a loss that each layer has).
 * Out: the repeat carries the sum, from zero. So a pipeline, whose stages have a part of the layers each, passes it on
 * like every other carry. The gradient has been taken before and does not change: it is the same for every layer. */
#include "graph/copy.h"

static Node *sum_of_layers(Node *node, const Dim *dim) {
    if (node->op != OP_SUM || node->backward || node->in[0]->op != OP_RESULT) return NULL;
    Node *repeat = node->in[0]->in[0];
    bool good = repeat->op == OP_REPEAT && repeat->region->dim == dim && !repeat->backward;
    bool stacked = good && node_attr(node->in[0], "index")->integer >= repeat->region->n_carries;
    return stacked && shape_find(&node_attr(node, "over")->dims, dim) >= 0 ? repeat : NULL;
}

static void insert(Arena *arena, NodeList *list, int at, Node *node) {
    vec_push(arena, list, node);
    for (int i = list->n - 1; i > at; i--) list->at[i] = list->at[i - 1];
    list->at[at] = node;
}

/* Zero in the shape of the sum, before the repeat. */
static Node *start_at_zero(Graph *graph, const Node *sum, const Node *repeat) {
    Region scratch = {0};
    Builder b = {.graph = graph, .region = &scratch, .span = sum->span, .name = sum->name, .path = sum->path};
    Node *zero = build_broadcast(&b, build_const(&b, sum->dtype, 0), &sum->shape);
    int at = 0;
    while (graph->top.nodes.at[at] != repeat) at++;
    for (int i = 0; i < scratch.nodes.n; i++) insert(graph->arena, &graph->top.nodes, at + i, scratch.nodes.at[i]);
    return zero;
}

/* The sum as the repeat's last carry. */
static void add_carry(Graph *graph, Node *repeat, Node *sum, const Node *zero, Node *value) {
    Arena *arena = graph->arena;
    Region *region = repeat->region;
    int at = region->n_carries;
    Builder b = {.graph = graph, .region = region, .span = sum->span, .name = sum->name, .path = sum->path};
    Node *param = region_add_param(&b, region, sum->dtype, sum->shape);
    region->params.n--;
    insert(arena, &region->params, at, param);
    Shape rest = shape_without(&value->shape, &sum->shape);
    if (rest.n) value = build_reduce(&b, OP_SUM, value, &rest);
    insert(arena, &region->results, at, build_binary(&b, OP_ADD, param, build_broadcast(&b, value, &sum->shape)));
    region->n_carries++;
    NodeList inputs = {0};
    OutType *outs = NEW_N(arena, OutType, repeat->n_outs + 1);
    for (int i = 0; i < repeat->n_in; i++) vec_push(arena, &inputs, repeat->in[i]);
    insert(arena, &inputs, at, (Node *)zero);
    for (int i = 0; i < repeat->n_outs; i++) outs[i + (i >= at)] = repeat->outs[i];
    outs[at] = (OutType){.dtype = sum->dtype, .shape = sum->shape};
    repeat->in = inputs.at, repeat->n_in = inputs.n;
    repeat->outs = outs, repeat->n_outs++;
    repeat->dtype = outs[0].dtype, repeat->shape = outs[0].shape;
}

static void carry_sum(Graph *graph, Node *repeat, Node *sum) {
    Node *value = repeat->region->results.at[node_attr(sum->in[0], "index")->integer];
    int at = repeat->region->n_carries;
    add_carry(graph, repeat, sum, start_at_zero(graph, sum, repeat), value);
    for (int i = 0; i < graph->top.nodes.n; i++) { /* what was stacked has moved by one */
        Node *result = graph->top.nodes.at[i];
        if (result->op == OP_RESULT && result->in[0] == repeat && result->attrs[0].integer >= at)
            result->attrs[0].integer++;
    }
    Node **in = NEW(graph->arena, Node *);
    in[0] = repeat;
    sum->op = OP_RESULT;
    sum->in = in;
    sum->attrs = NEW(graph->arena, AttrValue);
    sum->attrs[0].integer = at;
}

void graph_carry_layer_sums(Graph *graph, const Dim *dim) {
    bool any = false;
    for (int i = 0; i < graph->top.nodes.n; i++) {
        Node *node = graph->top.nodes.at[i], *repeat = sum_of_layers(node, dim);
        if (!repeat) continue;
        carry_sum(graph, repeat, node);
        any = true;
    }
    if (any) graph_drop_dead(graph);
}
