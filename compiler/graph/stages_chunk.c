/* The graphs of the chunks (second half of stages_cut.h).
 *
 * In: positions and edges. Out: a graph for each chunk, with its layers of the repeat: an edge that ends here is an
 * input, one that begins here an output. Weight gradients are added up from what this chunk has of them. */
#include "graph/stages_cut.h"

/* ---- tensors of a stage ------------------------------------------------------------------------- */

Tensor *cutter_tensor(Cutter *c, int chunk, Tensor *tensor) {
    bool stacked = is_stacked(c, &tensor->shape);
    Map *map = stacked ? &c->chunk_tensors[chunk] : &c->stage_tensors[stage_of(c, chunk)];
    Tensor *known = map_get(map, tensor);
    if (known) return known;
    known = NEW(c->arena, Tensor);
    *known = *tensor;
    map_put(c->arena, map, tensor, known);
    map_put(c->arena, map, known, known);
    if (stacked) known->shape.dims[shape_find(&tensor->shape, c->dim)] = c->parts[chunk];
    int local = chunk / c->cut->n_stages;
    if (stacked && local) known->name = step_name(c->st, "%s#%d", tensor->name, local);
    if (tensor->of) known->of = cutter_tensor(c, chunk, tensor->of);
    return known;
}

/* ---- the graph of a chunk ----------------------------------------------------------------------- */

static bool is_here(const Cutter *c, const Node *node, int chunk) {
    int pos = c->pos[node->id];
    if (pos == POS_EVERY) return c->cut->count[chunk] > 0;
    if (pos == POS_AGAIN) return c->again[chunk * c->graph->n_nodes + node->id];
    return pos == POS_FREE || (pos >= 0 && chunk_at(c, pos) == chunk);
}

static Node *edge_input(Cutter *c, const Edge *edge) {
    Builder b = c->copy.b;
    b.backward = edge->from >= c->n_chunks;
    b.name = edge->value ? edge->value->name : NULL;
    vec_push(c->arena, &c->copy.to->tensors, edge->in);
    return build_input(&b, edge->in);
}

static void copy_one(Cutter *c, Node *node) {
    Region one = {.nodes = {.at = &node, .n = 1}};
    copy_region(&c->copy, &one);
}

static void map_inputs(Cutter *c, const Node *node, int chunk) {
    for (int k = 0; k < node->n_in; k++) {
        Node *in = node->in[k];
        if (is_here(c, in, chunk) || map_get(&c->copy.nodes, in)) continue;
        const Edge *edge = cutter_find_edge(c, in, chunk);
        if (edge) map_put(c->arena, &c->copy.nodes, in, edge_input(c, edge));
    }
}

static void send(Cutter *c, const Edge *edge, Node *value) { step_output(c->copy.to, edge->out, value, false); }

/* The repeat with this chunk's layers; a carry comes from the chunk before and goes to the one after. */
static void copy_pipelined(Cutter *c, Node *node, int chunk) {
    Region *region = node->region;
    int C = c->n_chunks, begin = node->backward ? C - 1 : 0, end = node->backward ? 0 : C - 1;
    int before = node->backward ? chunk + 1 : chunk - 1;
    Node *repeat = NEW(c->arena, Node), **start = NEW_N(c->arena, Node *, region->n_carries + 1);
    *repeat = *node;
    repeat->in = NEW_N(c->arena, Node *, node->n_in);
    for (int k = 0; k < node->n_in; k++) {
        repeat->in[k] = node->in[k];
        bool handed = k < region->n_carries && !(node->backward && c->split[k]) && chunk != begin;
        if (handed) {
            repeat->in[k] = NEW(c->arena, Node); /* stands for the input */
            map_put(c->arena, &c->copy.nodes, repeat->in[k], edge_input(c, cutter_find_carry(c, node, k, before)));
        }
        if (k < region->n_carries) start[k] = repeat->in[k];
    }
    bool some = c->cut->count[chunk] > 0;
    if (some) {
        copy_one(c, repeat);
        map_put(c->arena, &c->copy.nodes, node, copy_value(&c->copy, repeat));
    }
    c->copy.b.backward = node->backward;
    for (int k = 0; k < region->n_carries; k++) {
        if (node->backward && c->split[k]) continue;
        if (chunk != end)
            send(c, cutter_find_carry(c, node, k, chunk),
                 some ? build_result(&c->copy.b, copy_value(&c->copy, repeat), k) : copy_value(&c->copy, start[k]));
        for (int i = 0; i < c->graph->top.nodes.n && !some; i++) { /* no layers: the last value is the first */
            const Node *result = c->graph->top.nodes.at[i];
            if (result->op == OP_RESULT && result->in[0] == node && node_attr(result, "index")->integer == k)
                map_put(c->arena, &c->copy.nodes, result, copy_value(&c->copy, start[k]));
        }
    }
}

static Node *add_leaves(Cutter *c, Node *node, int chunk, Node *sum) {
    if (c->pos[node->id] == POS_DISSOLVED)
        return add_leaves(c, node->in[1], chunk, add_leaves(c, node->in[0], chunk, sum));
    if (!is_here(c, node, chunk) || (c->pos[node->id] == POS_FREE && chunk != c->n_chunks - 1)) return sum;
    if (c->pos[node->id] == POS_AGAIN && chunk != cutter_last_chunk(c, node)) return sum;
    Node *value = copy_value(&c->copy, node);
    c->copy.b.backward = node->backward;
    c->copy.b.span = node->span;
    return sum ? build_binary(&c->copy.b, OP_ADD, sum, value) : value;
}

Graph *cutter_begin_graph(Cutter *c, int chunk) {
    Graph *graph = graph_new(c->s, c->arena, c->graph->name);
    graph->micro = c->graph->micro;
    for (int i = 0; i < c->graph->dims.n; i++)
        vec_push(c->arena, &graph->dims, c->graph->dims.at[i] == c->dim ? c->parts[chunk] : c->graph->dims.at[i]);
    copy_begin(&c->copy, graph);
    map_put(c->arena, &c->copy.dims, c->dim, c->parts[chunk]);
    for (int i = 0; i < c->graph->tensors.n; i++) {
        Tensor *own = cutter_tensor(c, chunk, c->graph->tensors.at[i]);
        map_put(c->arena, &c->copy.tensors, c->graph->tensors.at[i], own);
        map_put(c->arena, &c->copy.tensors, own, own);
    }
    return graph;
}

static Graph *make_chunk(Cutter *c, int chunk) {
    Graph *graph = cutter_begin_graph(c, chunk);
    for (int i = 0; i < c->graph->top.nodes.n; i++) {
        Node *node = c->graph->top.nodes.at[i];
        bool pipelined = is_pipelined(c, node);
        if (c->pos[node->id] == POS_DISSOLVED || !(pipelined || is_here(c, node, chunk)) ||
            map_get(&c->copy.nodes, node))
            continue;
        map_inputs(c, node, chunk);
        if (pipelined)
            copy_pipelined(c, node, chunk);
        else
            copy_one(c, node);
    }
    for (int i = 0; i < c->edges.n; i++)
        if (c->edges.at[i].value && chunk_at(c, c->edges.at[i].from) == chunk)
            send(c, &c->edges.at[i], copy_value(&c->copy, c->edges.at[i].value));
    for (int i = 0; i < c->graph->outputs.n; i++) {
        const Output *output = &c->graph->outputs.at[i];
        Node *value = add_leaves(c, output->value, chunk, NULL);
        bool again = is_weight_gradient(output->tensor) && c->n_chunks > c->cut->n_stages;
        if (value) step_output(graph, cutter_tensor(c, chunk, output->tensor), value, output->accumulate || again);
    }
    copy_finish(&c->copy);
    if (c->cut->splits_backward) graph_split_backward(graph);
    return graph;
}

/* Tensors of the edges. Between chunks of one stage it is one tensor, with room for every micro-batch. */
static void make_edge_tensors(Cutter *c, const char *prefix) {
    for (int i = 0; i < c->edges.n; i++) {
        Edge *edge = &c->edges.at[i];
        const Node *like = edge->value ? edge->value : edge->repeat->region->params.at[edge->carry];
        edge->out = step_tensor(c->st, step_name(c->st, "%s.%d", prefix, i), CLASS_STAGE, like->dtype, like->shape);
        edge->out->span = like->span;
        edge->in = NEW(c->arena, Tensor);
        *edge->in = *edge->out;
        int from = chunk_at(c, edge->from), to = chunk_at(c, edge->to);
        if (stage_of(c, from) == stage_of(c, to)) {
            edge->out->flights = (int)c->st->step->micros;
            edge->in = edge->out;
        } else if (edge->to < c->n_chunks && c->backward)
            edge->in->flights = FLIGHTS_SAVED;
        /* What skips chunks is taken much later than it is made. */
        bool skips = edge->to != edge->from + 1 && c->backward;
        if (skips && edge->in != edge->out) edge->out->flights = (int)c->st->step->micros;
        edge->in->name = edge->in == edge->out ? edge->out->name : step_name(c->st, "%s.%d.in", prefix, i);
    }
}

bool cutter_cut_graph(Cutter *c, Graph *graph, const char *prefix) {
    c->graph = graph;
    c->dim = graph_find_dim(graph, c->cut->dim);
    graph_carry_layer_sums(graph, c->dim);
    c->edges.n = 0;
    c->pos = NEW_N(c->arena, int, graph->n_nodes + 1);
    c->uses = NEW_N(c->arena, int, graph->n_nodes + 1);
    c->touches = NEW_N(c->arena, bool, graph->n_nodes + 1);
    c->late = NEW_N(c->arena, bool, graph->n_nodes + 1);
    c->again = NEW_N(c->arena, bool, (graph->n_nodes + 1) * c->n_chunks);
    for (int i = 0; i <= graph->n_nodes; i++) c->pos[i] = POS_FREE;
    if (!cutter_place_nodes(c)) return false;
    make_edge_tensors(c, prefix);
    c->chunks = NEW_N(c->arena, Graph *, c->n_chunks);
    for (int chunk = 0; chunk < c->n_chunks; chunk++) c->chunks[chunk] = make_chunk(c, chunk);
    return true;
}
