/* Drops what no output needs, also inside repeats, and numbers the nodes again.
 *
 * A carry lives when its last value is used or its parameter is read by something that lives; a stacked result when it
 * is used; a slice or a capture when its parameter is. All other parts of a repeat go, so passes may add parameters and
 * results freely. */
#include "graph/copy.h"

struct ParamHome { /* where a parameter stands */
    const Region *region;
    int index;
};

typedef struct LiveNodes Marks;

static void mark_value(Marks *marks, const Node *node);

static void find_homes(Marks *marks, const Region *region) {
    for (int i = 0; i < region->params.n; i++) marks->home[region->params.at[i]->id] = (ParamHome){region, i};
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->op != OP_REPEAT) continue;
        map_put(marks->arena, &marks->results, node, NEW_N(marks->arena, bool, node->n_outs));
        find_homes(marks, node->region);
    }
}

static void mark_result(Marks *marks, const Node *repeat, int index) {
    bool *used = map_get(&marks->results, repeat);
    if (used[index]) return;
    used[index] = true;
    marks->live[repeat->id] = true;
    mark_value(marks, repeat->region->results.at[index]);
    if (index < repeat->region->n_carries) mark_value(marks, repeat->region->params.at[index]);
}

static void mark_value(Marks *marks, const Node *node) {
    if (marks->live[node->id] && node->op != OP_REPEAT) return;
    marks->live[node->id] = true;
    if (node->op == OP_RESULT && node->in[0]->op == OP_REPEAT) {
        mark_result(marks, node->in[0], (int)node_attr(node, "index")->integer);
    } else if (node->op == OP_PARAM) {
        ParamHome home = marks->home[node->id];
        if (home.index < home.region->n_carries) mark_result(marks, home.region->owner, home.index);
        mark_value(marks, home.region->owner->in[home.index]);
    } else {
        for (int i = 0; i < node->n_in; i++) mark_value(marks, node->in[i]);
    }
}

/* ---- sweeping ---------------------------------------------------------------------------------------------------- */

static void sweep_region(Marks *marks, Region *region);

/* Keeps the living parts of a repeat. `renumber` gets the new number of each result. */
static void sweep_repeat(Marks *marks, Node *repeat, int *renumber) {
    Region *region = repeat->region;
    const bool *used = map_get(&marks->results, repeat);
    int groups[3] = {region->n_carries, region->n_slices, region->n_captures}, kept[3] = {0, 0, 0}, n = 0, at = 0;
    for (int group = 0; group < 3; group++)
        for (int i = 0; i < groups[group]; i++, at++) {
            if (!(group == 0 ? used[i] : marks->live[region->params.at[at]->id])) continue;
            region->params.at[n] = region->params.at[at];
            repeat->in[n++] = repeat->in[at];
            kept[group]++;
        }
    region->params.n = repeat->n_in = n;
    int results = 0;
    for (int i = 0; i < repeat->n_outs; i++) {
        if (!used[i]) continue;
        renumber[i] = results;
        region->results.at[results] = region->results.at[i];
        repeat->outs[results++] = repeat->outs[i];
    }
    region->results.n = repeat->n_outs = results;
    region->n_carries = kept[0];
    region->n_slices = kept[1];
    region->n_captures = kept[2];
    region->n_stacked = results - kept[0];
    repeat->dtype = repeat->outs[0].dtype;
    repeat->shape = repeat->outs[0].shape;
    sweep_region(marks, region);
}

static void sweep_region(Marks *marks, Region *region) {
    Map renumbers = {0};
    int n = 0;
    for (int i = 0; i < region->nodes.n; i++) {
        Node *node = region->nodes.at[i];
        if (!marks->live[node->id]) continue;
        region->nodes.at[n++] = node;
        if (node->op == OP_REPEAT) {
            int *renumber = NEW_N(marks->arena, int, node->n_outs);
            map_put(marks->arena, &renumbers, node, renumber);
            sweep_repeat(marks, node, renumber);
        }
        if (node->op != OP_RESULT) continue;
        const int *renumber = map_get(&renumbers, node->in[0]);
        if (renumber) node->attrs[0].integer = renumber[node->attrs[0].integer];
    }
    region->nodes.n = n;
    if (region->index && !marks->live[region->index->id]) region->index = NULL;
}

static void number_region(Region *region, int *next) {
    for (int i = 0; i < region->params.n; i++) region->params.at[i]->id = (*next)++;
    for (int i = 0; i < region->nodes.n; i++) {
        region->nodes.at[i]->id = (*next)++;
        if (region->nodes.at[i]->region) number_region(region->nodes.at[i]->region, next);
    }
}

/* Tensors that neither a node reads nor an output writes are not those of this graph. */
static void mark_tensors(const Region *region, Arena *arena, Map *used) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->tensor) map_put(arena, used, node->tensor, node->tensor);
        if (node->region) mark_tensors(node->region, arena, used);
    }
}

static void sweep_tensors(Graph *graph, Arena *arena) {
    Map used = {0};
    mark_tensors(&graph->top, arena, &used);
    for (int i = 0; i < graph->outputs.n; i++)
        map_put(arena, &used, graph->outputs.at[i].tensor, graph->outputs.at[i].tensor);
    int n = 0;
    for (int i = 0; i < used.n; i++) { /* grows: what a tensor is a moment or gradient of stays too */
        Tensor *of = ((Tensor *)used.entries[i].value)->of;
        if (of) map_put(arena, &used, of, of);
    }
    for (int i = 0; i < graph->tensors.n; i++)
        if (map_get(&used, graph->tensors.at[i])) graph->tensors.at[n++] = graph->tensors.at[i];
    graph->tensors.n = n;
}

void live_nodes_add(LiveNodes *live, const Node *node) { mark_value(live, node); }

LiveNodes graph_live_nodes(Arena *arena, const Graph *graph, bool (*counts)(const Output *output)) {
    Marks marks = {.arena = arena,
                   .live = NEW_N(arena, bool, graph->n_nodes + 1),
                   .home = NEW_N(arena, ParamHome, graph->n_nodes + 1)};
    find_homes(&marks, &graph->top);
    for (int i = 0; i < graph->outputs.n; i++)
        if (!counts || counts(&graph->outputs.at[i])) mark_value(&marks, graph->outputs.at[i].value);
    return marks;
}

void graph_drop_dead(Graph *graph) {
    Arena *arena = arena_new();
    Marks marks = graph_live_nodes(arena, graph, NULL);
    sweep_region(&marks, &graph->top);
    sweep_tensors(graph, arena);
    graph->n_nodes = 0;
    number_region(&graph->top, &graph->n_nodes);
    arena_free(arena);
}
