/* Splits the backward half of a chunk of a pipeline's stage in two: BI makes what leaves the stage (gradients that
 * other stages wait for), BW the rest (gradients of weights), which may run whenever there is time.
 *
 * In: the graph of a chunk, before partitioning. BI is the backward slice of its outputs to other stages; all other
 * backward nodes become `deferred`. A repeat of which BI needs some results is split into two over the same layers: the
 * first keeps what BI needs, the second gets the other carries and stacked results. What the second reads of the first
 * is stacked by the first, layer by layer, and kept for the micro-batch like everything that a later action reads;
 * what is cheap to make from values that are kept anyway (or from something smaller) is made again instead. */
#include "graph/copy.h"

typedef struct Splitter {
    Graph *graph;
    LiveNodes needed; /* by what leaves the stage; of nodes that were there before */
    int n_before;
    Builder b;   /* of what is deferred */
    Map again;   /* BI node -> what stands for it among the deferred ones of this region */
    Map at_hand; /* node -> the splitter when it is, the graph when not */
    /* of the repeat that is split */
    Region *first, *second; /* NULL at the top */
    NodeList slices, slice_inputs, captures, capture_inputs, carries, carry_inputs;
} Splitter;

static Node *for_deferred(Splitter *s, Node *node);

static bool leaves_the_stage(const Output *output) {
    return output->tensor->class == CLASS_STAGE && output->value->backward;
}

static bool is_needed(const Splitter *s, const Node *node) {
    return node->id < s->n_before && s->needed.live[node->id];
}

static int param_index(const Region *region, const Node *param) {
    int i = 0;
    while (region->params.at[i] != param) i++;
    return i;
}

static void set_names(Splitter *s, const Node *like) {
    s->b.span = like->span;
    s->b.name = like->name;
    s->b.path = like->path;
}

/* ---- what the deferred nodes read --------------------------------------------------------------- */

/* Whether the value is there without being kept: it follows cheaply from the layer's inputs, or from forward values. */
static bool is_at_hand(Splitter *s, const Node *node) {
    if (!s->first && (!node->backward || node->op == OP_INPUT)) return true;
    if (node->op == OP_PARAM) return param_index(s->first, node) >= s->first->n_carries;
    if (node->op == OP_LAYER_INDEX) return true;
    if (!op_info(node)->cheap || node->n_outs) return false;
    const Splitter *known = map_get(&s->at_hand, node);
    if (known) return known == s;
    bool good = true;
    for (int i = 0; i < node->n_in && good; i++) good = is_at_hand(s, node->in[i]);
    map_put(s->graph->arena, &s->at_hand, node, good ? (void *)s : (void *)s->graph);
    return good;
}

static int64_t node_bytes(const Node *node) { return shape_elements(&node->shape) * dtype_bytes(node->dtype); }

/* A copy, a view or a broadcast: what it is made of is no larger. */
static bool is_grown(const Node *node) {
    return op_info(node)->cheap && node->n_in == 1 && !node->n_outs && node_bytes(node) >= node_bytes(node->in[0]);
}

static Node *clone(Splitter *s, const Node *node) {
    Node **in = NEW_N(s->graph->arena, Node *, node->n_in);
    for (int i = 0; i < node->n_in; i++) in[i] = for_deferred(s, node->in[i]);
    set_names(s, node);
    if (node->op == OP_LAYER_INDEX) return build_layer_index(&s->b);
    return build_op(&s->b, node->op, in, node->n_in, node->attrs);
}

static Node *add_param(Splitter *s, const Node *like, NodeList *params, NodeList *inputs, Node *input) {
    set_names(s, like);
    Node *param = region_add_param(&s->b, s->second, like->dtype, like->shape);
    s->second->params.n--; /* close_second puts them in order */
    vec_push(s->graph->arena, params, param);
    vec_push(s->graph->arena, inputs, input);
    return param;
}

/* The first repeat stacks the value for the second. */
static Node *stack(Splitter *s, Node *value) {
    Arena *arena = s->graph->arena;
    Node *repeat = s->first->owner;
    OutType *outs = NEW_N(arena, OutType, repeat->n_outs + 1);
    for (int i = 0; i < repeat->n_outs; i++) outs[i] = repeat->outs[i];
    Shape front = shape_of(&s->first->dim, 1);
    outs[repeat->n_outs] = (OutType){.dtype = value->dtype, .shape = shape_union(&front, &value->shape)};
    vec_push(arena, &s->first->results, value);
    s->first->n_stacked++;
    repeat->outs = outs;
    Builder b = s->b;
    b.region = s->first->parent;
    b.deferred = false;
    b.span = value->span, b.name = value->name, b.path = value->path;
    Node *result = build_result(&b, repeat, repeat->n_outs++);
    return add_param(s, value, &s->slices, &s->slice_inputs, result);
}

static Node *param_for_deferred(Splitter *s, Node *param) {
    const Region *first = s->first;
    int index = param_index(first, param);
    Node *input = first->owner->in[index];
    if (index >= first->n_carries + first->n_slices)
        return add_param(s, param, &s->captures, &s->capture_inputs, input);
    if (index >= first->n_carries) return add_param(s, param, &s->slices, &s->slice_inputs, input);
    return stack(s, param);
}

/* What a deferred node reads for `node`. */
static Node *for_deferred(Splitter *s, Node *node) {
    bool needed = node->op == OP_PARAM || node->op == OP_LAYER_INDEX || is_needed(s, node);
    if (!s->first && (!node->backward || node->op == OP_INPUT || node->op == OP_PARAM)) return node;
    if (!needed) return node;
    Node *known = map_get(&s->again, node);
    if (known) return known;
    Node *value;
    if (node->op == OP_PARAM)
        value = param_for_deferred(s, node);
    else if (is_at_hand(s, node) || is_grown(node))
        value = clone(s, node);
    else
        value = s->first ? stack(s, node) : node;
    map_put(s->graph->arena, &s->again, node, value);
    return value;
}

/* ---- a repeat ----------------------------------------------------------------------------------- */

static void defer(Splitter *s, Node *node) {
    for (int k = 0; k < node->n_in; k++) node->in[k] = for_deferred(s, node->in[k]);
    node->deferred = true;
    if (node->region) node->region->parent = s->b.region;
    vec_push(s->graph->arena, &s->b.region->nodes, node);
}

/* A tuple is made whole, and its results where it is; only repeats at the top are split. True: something was added. */
static bool keep_tuples(Splitter *s, const Region *region) {
    bool added = false;
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->region) added = keep_tuples(s, node->region) || added;
        if (node->op != OP_RESULT || is_needed(s, node) || !is_needed(s, node->in[0])) continue;
        if (node->in[0]->op == OP_REPEAT && !region->parent) continue;
        live_nodes_add(&s->needed, node);
        added = true;
    }
    return added;
}

/* Carries of the second: those that what leaves the stage does not need. */
static void open_carries(Splitter *s, const bool *used) {
    const Region *first = s->first;
    for (int k = 0; k < first->n_carries; k++) {
        if (used[k]) continue;
        Node *param = add_param(s, first->params.at[k], &s->carries, &s->carry_inputs, first->owner->in[k]);
        map_put(s->graph->arena, &s->again, first->params.at[k], param);
    }
}

static void append(Arena *arena, NodeList *to, const NodeList *from) {
    for (int i = 0; i < from->n; i++) vec_push(arena, to, from->at[i]);
}

/* The second repeat; number[k]: which of its results the first's k-th has become. */
static Node *close_second(Splitter *top, Splitter *s, const bool *used, int n_results, int *number) {
    Arena *arena = s->graph->arena;
    NodeList inputs = {0}, results = {0};
    int n_carries = s->first->n_carries;
    for (int k = 0; k < n_results; k++) {
        number[k] = used[k] ? -1 : results.n;
        if (!used[k]) vec_push(arena, &results, for_deferred(s, s->first->results.at[k]));
    }
    append(arena, &s->second->params, &s->carries);
    append(arena, &s->second->params, &s->slices);
    append(arena, &s->second->params, &s->captures);
    append(arena, &inputs, &s->carry_inputs);
    append(arena, &inputs, &s->slice_inputs);
    append(arena, &inputs, &s->capture_inputs);
    for (int i = 0; i < inputs.n; i++) inputs.at[i] = for_deferred(top, inputs.at[i]);
    int kept_carries = 0;
    for (int k = 0; k < n_carries; k++) kept_carries += !used[k];
    set_names(s, s->first->owner);
    return region_close(&s->b, s->second, inputs.at, kept_carries, s->slices.n, s->captures.n, results.at,
                        results.n - kept_carries);
}

/* Puts the second repeat behind the first. */
static Node *split_repeat(Splitter *top, Node *repeat, int *number) {
    Splitter inner = {.graph = top->graph, .needed = top->needed, .n_before = top->n_before, .b = top->b};
    Splitter *s = &inner;
    const bool *used = map_get(&s->needed.results, repeat);
    int n_results = repeat->n_outs;
    s->first = repeat->region;
    s->second = region_open(&s->b, s->first->dim, s->first->descending);
    open_carries(s, used);
    NodeList nodes = s->first->nodes;
    s->first->nodes = (NodeList){0};
    for (int i = 0; i < nodes.n; i++) {
        if (is_needed(s, nodes.at[i]) || nodes.at[i]->op == OP_LAYER_INDEX)
            vec_push(s->graph->arena, &s->first->nodes, nodes.at[i]);
        else
            defer(s, nodes.at[i]);
    }
    Node *made = close_second(top, s, used, n_results, number);
    if (made->op == OP_POISON) BUG("the deferred half of a repeat over %s is ill-formed", s->first->dim->name);
    return made;
}

/* ---- the graph ---------------------------------------------------------------------------------- */

static bool all_used(const bool *used, int n) {
    for (int i = 0; i < n; i++)
        if (!used[i]) return false;
    return true;
}

void graph_split_backward(Graph *graph) {
    Arena *scratch = arena_new();
    Splitter s = {.graph = graph,
                  .needed = graph_live_nodes(scratch, graph, leaves_the_stage),
                  .n_before = graph->n_nodes,
                  .b = {.graph = graph, .region = &graph->top, .backward = true, .deferred = true}};
    while (keep_tuples(&s, &graph->top)) {}
    Map seconds = {0}, numbers = {0}; /* by the first repeat */
    NodeList nodes = graph->top.nodes;
    graph->top.nodes = (NodeList){0};
    for (int i = 0; i < nodes.n; i++) {
        Node *node = nodes.at[i];
        bool of_second = node->op == OP_RESULT && map_get(&seconds, node->in[0]) && !is_needed(&s, node);
        if (of_second) {
            const int *number = map_get(&numbers, node->in[0]);
            node->attrs[0].integer = number[node->attrs[0].integer];
            node->in[0] = map_get(&seconds, node->in[0]);
        }
        if (node->backward && node->op != OP_INPUT && !is_needed(&s, node)) {
            defer(&s, node);
            continue;
        }
        vec_push(graph->arena, &graph->top.nodes, node);
        const bool *used = node->op == OP_REPEAT && node->backward ? map_get(&s.needed.results, node) : NULL;
        if (!used || all_used(used, node->n_outs)) continue;
        int *number = NEW_N(graph->arena, int, node->n_outs);
        map_put(graph->arena, &seconds, node, split_repeat(&s, node, number));
        map_put(graph->arena, &numbers, node, number);
    }
    graph_drop_dead(graph);
    arena_free(scratch);
}
