/* Cuts a step into the steps of a pipeline's stages (see stages.h).
 *
 * Every node of a micro-batch's graph has a position on the way through the pipeline: chunk c's forward pass is c, its
 * backward pass 2C - 1 - c. The pipelined repeat, and whatever is stacked over it, stands in every chunk, with that
 * chunk's layers; its carries are handed on. What follows from data and constants alone is made again where it is used.
 * Other forward values stand at the first chunk that needs them, or at the last when they follow from the repeat; a
 * backward value stands at the first position at which all that it reads is at hand; cheap ones that follow from
 * forward values alone are computed again wherever they are needed. A value that another chunk needs is an edge: an
 * output here, an input there. Gradients of a weight that several stages use are not added up on the way but kept
 * apart, and joined once a step at the weight's home. */
#include "graph/stages.h"
#include "graph/step.h"

#include <limits.h>

enum { POS_FREE = -1, POS_EVERY = -2, POS_DISSOLVED = -3, POS_AGAIN = -4 };

typedef struct Edge {
    Node *value; /* or NULL: a carry of `repeat` */
    const Node *repeat;
    int carry;
    int from, to; /* positions */
    Tensor *out, *in;
} Edge;

typedef struct Cutter {
    Session *s;
    Arena *arena;
    const StageCut *cut;
    Stepper *st;
    int n_chunks;       /* over all stages: C */
    Dim *dim, **parts;  /* the repeat's dimension; that of each chunk */
    Map *stage_tensors; /* by stage: Tensor -> its own */
    Map *chunk_tensors; /* by chunk: of what is stacked over the repeat */
    int n_channels;
    /* of the graph that is cut */
    Graph *graph;
    int *pos, *uses;
    bool *touches; /* follows from a weight */
    bool *late;    /* follows from the repeat */
    bool *again;   /* by chunk and node: forward values that its backward pass computes again */
    bool *split;   /* carries of the backward repeat that are kept apart */
    const Node *forward, *backward;
    VEC(Edge) edges;
    Graph **chunks;
    Copy copy; /* of the chunk that is made */
} Cutter;

static int chunk_at(const Cutter *c, int pos) { return pos < c->n_chunks ? pos : 2 * c->n_chunks - 1 - pos; }
static int stage_of(const Cutter *c, int chunk) { return chunk % c->cut->n_stages; }
static int pos_of(const Cutter *c, int chunk, bool backward) { return backward ? 2 * c->n_chunks - 1 - chunk : chunk; }
static bool is_stacked(const Cutter *c, const Shape *shape) { return shape_find(shape, c->dim) >= 0; }
static bool is_pipelined(const Cutter *c, const Node *node) {
    return node->op == OP_REPEAT && node->region->dim == c->dim;
}

static bool refuse(const Cutter *c, Span span, const char *what) {
    Diag *d = diag_error(c->s, "P9000", span.file ? span : c->cut->span, "%s is not built yet", what);
    diag_note(d, c->cut->span, "the pipeline is asked for here");
    return false;
}

/* ---- tensors of a stage ------------------------------------------------------------------------- */

/* A tensor has one name in all stages; what is stacked has a name for each chunk of the stage. */
static Tensor *stage_tensor(Cutter *c, int chunk, Tensor *tensor) {
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
    if (tensor->of) known->of = stage_tensor(c, chunk, tensor->of);
    return known;
}

/* ---- where nodes stand -------------------------------------------------------------------------- */

static bool is_weight_gradient(const Tensor *tensor) { return tensor->class == CLASS_GRADIENT && tensor->of; }

static bool is_zero(const Node *node) {
    while (node->op == OP_BROADCAST || node->op == OP_CAST) node = node->in[0];
    return node->op == OP_CONST && node_attr(node, "value")->number == 0;
}

static bool find_repeats(Cutter *c) {
    c->forward = c->backward = NULL;
    for (int i = 0; i < c->graph->top.nodes.n; i++) {
        const Node *node = c->graph->top.nodes.at[i];
        if (!is_pipelined(c, node)) continue;
        const Node **which = node->backward ? &c->backward : &c->forward;
        if (*which) return refuse(c, node->span, "a pipeline over several repeats");
        *which = node;
    }
    return c->forward || refuse(c, (Span){0}, "a pipeline over a repeat inside another");
}

static void count_uses(Cutter *c) {
    for (int i = 0; i < c->graph->top.nodes.n; i++) {
        const Node *node = c->graph->top.nodes.at[i];
        for (int k = 0; k < node->n_in; k++) c->uses[node->in[k]->id]++;
    }
    for (int i = 0; i < c->graph->outputs.n; i++) c->uses[c->graph->outputs.at[i].value->id]++;
}

/* Additions that only join a weight's gradient. */
static void dissolve(Cutter *c, const Node *node) {
    if (node->op != OP_ADD || !node->backward || c->uses[node->id] != 1 || is_stacked(c, &node->shape)) return;
    if (!shape_equal(&node->in[0]->shape, &node->shape) || !shape_equal(&node->in[1]->shape, &node->shape)) return;
    c->pos[node->id] = POS_DISSOLVED;
    dissolve(c, node->in[0]);
    dissolve(c, node->in[1]);
}

/* An accumulator of the backward repeat whose sum goes into a weight's gradient and nowhere else. */
static bool carry_is_apart(const Cutter *c, int carry) {
    const Region *region = c->backward->region;
    const Node *next = region->results.at[carry], *param = region->params.at[carry];
    if (!is_zero(c->backward->in[carry]) || next->op != OP_ADD || (next->in[0] != param && next->in[1] != param))
        return false;
    for (int i = 0; i < c->graph->top.nodes.n; i++) {
        const Node *result = c->graph->top.nodes.at[i];
        if (result->op != OP_RESULT || result->in[0] != c->backward || node_attr(result, "index")->integer != carry)
            continue;
        for (int k = 0; k < c->graph->top.nodes.n; k++) {
            const Node *user = c->graph->top.nodes.at[k];
            for (int j = 0; j < user->n_in; j++)
                if (user->in[j] == result && c->pos[user->id] != POS_DISSOLVED) return false;
        }
        for (int k = 0; k < c->graph->outputs.n; k++)
            if (c->graph->outputs.at[k].value == result && !is_weight_gradient(c->graph->outputs.at[k].tensor))
                return false;
    }
    return true;
}

/* Position of a carry's last value, or POS_EVERY; INT_MIN when the node is no such thing. */
static int carry_pos(const Cutter *c, const Node *node) {
    if (node->op != OP_RESULT || !is_pipelined(c, node->in[0])) return INT_MIN;
    int64_t index = node_attr(node, "index")->integer;
    if (index >= node->in[0]->region->n_carries) return POS_EVERY;
    if (node->in[0] == c->forward) return c->n_chunks - 1;
    return c->split[index] ? POS_EVERY : 2 * c->n_chunks - 1;
}

/* What the backward pass alone needs stands where it follows from: what a repeat of the first stage saves is there. */
static void place_saved(Cutter *c) {
    for (int i = 0; i < c->graph->top.nodes.n; i++) {
        const Node *node = c->graph->top.nodes.at[i];
        int at = -1;
        if (c->pos[node->id] != INT_MAX) continue;
        for (int k = 0; k < node->n_in; k++)
            if (c->pos[node->in[k]->id] > at) at = c->pos[node->in[k]->id];
        c->pos[node->id] = at < 0 ? c->n_chunks - 1 : at;
    }
}

static void place_forward(Cutter *c) {
    const NodeList *nodes = &c->graph->top.nodes;
    bool *heavy = NEW_N(c->arena, bool, c->graph->n_nodes + 1);
    for (int i = 0; i < nodes->n; i++) {
        const Node *node = nodes->at[i];
        int carry = carry_pos(c, node);
        bool touches = node->op == OP_INPUT && node->tensor->class == CLASS_WEIGHT,
             late = carry >= 0 && node->in[0] == c->forward;
        for (int k = 0; k < node->n_in; k++) {
            touches |= c->touches[node->in[k]->id];
            late |= c->late[node->in[k]->id];
            heavy[node->id] |= heavy[node->in[k]->id];
        }
        heavy[node->id] |= touches && node->n_in && !op_info(node)->cheap;
        c->touches[node->id] = touches, c->late[node->id] = late;
        if (c->pos[node->id] == POS_DISSOLVED || (node->backward && node->op != OP_INPUT && carry == INT_MIN)) continue;
        bool every = is_pipelined(c, node) || is_stacked(c, &node->shape) || carry == POS_EVERY;
        c->pos[node->id] = every             ? POS_EVERY
                           : carry >= 0      ? carry
                           : late            ? c->n_chunks - 1
                           : heavy[node->id] ? INT_MAX
                                             : POS_FREE;
    }
    for (int i = nodes->n - 1; i >= 0; i--) { /* the first chunk that needs it */
        const Node *node = nodes->at[i];
        if (node->backward || c->pos[node->id] == POS_FREE || c->pos[node->id] == INT_MAX) continue;
        int at = c->pos[node->id] == POS_EVERY ? 0 : c->pos[node->id];
        for (int k = 0; k < node->n_in; k++) {
            int *pos = &c->pos[node->in[k]->id];
            if (heavy[node->in[k]->id] && !c->late[node->in[k]->id] && *pos >= 0 && at < *pos) *pos = at;
        }
    }
    place_saved(c);
}

/* ---- edges -------------------------------------------------------------------------------------- */

static Edge *find_edge(Cutter *c, const Node *value, int to_chunk) {
    for (int i = 0; i < c->edges.n; i++)
        if (c->edges.at[i].value == value && chunk_at(c, c->edges.at[i].to) == to_chunk) return &c->edges.at[i];
    return NULL;
}

static Edge *find_carry(Cutter *c, const Node *repeat, int carry, int from_chunk) {
    for (int i = 0; i < c->edges.n; i++) {
        Edge *edge = &c->edges.at[i];
        if (edge->repeat == repeat && edge->carry == carry && chunk_at(c, edge->from) == from_chunk) return edge;
    }
    return NULL;
}

static bool need_at(Cutter *c, Node *value, int to) {
    int from = c->pos[value->id], chunk = chunk_at(c, to);
    if (from == POS_AGAIN) {
        bool good = true;
        c->again[chunk * c->graph->n_nodes + value->id] = true;
        for (int k = 0; k < value->n_in && good; k++) good = need_at(c, value->in[k], to);
        return good;
    }
    if (from < 0 || chunk_at(c, from) == chunk || find_edge(c, value, chunk)) return true;
    if (from < c->n_chunks && to >= c->n_chunks) to = chunk; /* sent forward, and kept for the backward pass */
    if (to < from) return refuse(c, value->span, "this value in the backward pass of an earlier stage");
    vec_push(c->arena, &c->edges, (Edge){.value = value, .carry = -1, .from = from, .to = to});
    return true;
}

/* What a node that stands in every chunk needs of values that do not. */
static bool need_everywhere(Cutter *c, const Node *node) {
    const Region *region = is_pipelined(c, node) ? node->region : NULL;
    int C = c->n_chunks;
    for (int k = 0; k < node->n_in; k++) {
        if (node->op == OP_RESULT) continue;
        if (region && k < region->n_carries) {
            if (!need_at(c, node->in[k], node->backward ? C : 0)) return false;
            continue;
        }
        for (int chunk = 0; chunk < C; chunk++)
            if (c->cut->count[chunk] && !need_at(c, node->in[k], pos_of(c, chunk, node->backward))) return false;
    }
    for (int k = 0; region && k < region->n_carries; k++)
        for (int chunk = 0; chunk + 1 < C && !(node->backward && c->split[k]); chunk++) {
            int from = node->backward ? chunk + 1 : chunk, to = node->backward ? chunk : chunk + 1;
            vec_push(c->arena, &c->edges,
                     (Edge){.repeat = node,
                            .carry = k,
                            .from = pos_of(c, from, node->backward),
                            .to = pos_of(c, to, node->backward)});
        }
    return true;
}

/* Whether the value is there in a chunk's backward pass, or can be sent there with the forward pass. */
static bool has_at(Cutter *c, const Node *value, int chunk, bool may_send) {
    int pos = c->pos[value->id];
    if (pos == POS_AGAIN) {
        for (int k = 0; k < value->n_in; k++)
            if (!has_at(c, value->in[k], chunk, may_send)) return false;
        return true;
    }
    if (pos < 0 || pos >= c->n_chunks) return true;
    return pos == chunk || find_edge(c, value, chunk) || (may_send && pos < chunk);
}

static bool place_backward_node(Cutter *c, const Node *node) {
    int low = -1, *pos = &c->pos[node->id];
    bool placed = false;
    for (int k = 0; k < node->n_in; k++) {
        int in = c->pos[node->in[k]->id];
        if (in >= c->n_chunks && in > low) low = in;
        placed |= in >= 0 || in == POS_AGAIN;
    }
    *pos = POS_FREE;
    if (placed && low < 0 && op_info(node)->cheap) *pos = POS_AGAIN;
    if (!placed || *pos == POS_AGAIN) return true;
    for (int may_send = 0; may_send < 2; may_send++)
        for (int at = low < c->n_chunks ? c->n_chunks : low; at < 2 * c->n_chunks; at++) {
            bool good = true;
            for (int k = 0; k < node->n_in; k++) good = good && has_at(c, node->in[k], chunk_at(c, at), may_send);
            if (!good) continue;
            *pos = at;
            return true;
        }
    return refuse(c, node->span, "a gradient that needs values of several stages");
}

/* The last chunk that a value computed again follows from. */
static int last_chunk(const Cutter *c, const Node *node) {
    int last = c->pos[node->id] >= 0 ? chunk_at(c, c->pos[node->id]) : 0;
    for (int k = 0; k < node->n_in && c->pos[node->id] == POS_AGAIN; k++) {
        int in = last_chunk(c, node->in[k]);
        if (in > last) last = in;
    }
    return last;
}

static bool need_leaves(Cutter *c, Node *node) {
    if (c->pos[node->id] == POS_DISSOLVED) return need_leaves(c, node->in[0]) && need_leaves(c, node->in[1]);
    return c->pos[node->id] != POS_AGAIN || need_at(c, node, pos_of(c, last_chunk(c, node), true));
}

static bool place_nodes(Cutter *c) {
    const NodeList *nodes = &c->graph->top.nodes;
    for (int i = 0; i < c->graph->outputs.n; i++)
        if (is_weight_gradient(c->graph->outputs.at[i].tensor)) dissolve(c, c->graph->outputs.at[i].value);
    for (int i = 0; c->backward && i < c->backward->region->n_carries; i++) c->split[i] = carry_is_apart(c, i);
    place_forward(c);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < nodes->n; i++) {
            Node *node = nodes->at[i];
            int *pos = &c->pos[node->id];
            if (node->backward != (pass == 1) || *pos == POS_DISSOLVED || node->op == OP_INPUT) continue;
            if (node->backward && carry_pos(c, node) == INT_MIN) {
                if (is_pipelined(c, node) || is_stacked(c, &node->shape))
                    *pos = POS_EVERY;
                else if (!place_backward_node(c, node))
                    return false;
            }
            if (*pos == POS_EVERY && !need_everywhere(c, node)) return false;
            for (int k = 0; k < node->n_in && *pos != POS_EVERY && node->op != OP_RESULT; k++) {
                if (c->pos[node->in[k]->id] == POS_EVERY)
                    return refuse(c, node->span, "a value of all layers outside of them");
                if (*pos >= 0 && !need_at(c, node->in[k], *pos)) return false;
            }
        }
    for (int i = 0; i < c->graph->outputs.n; i++)
        if (!need_leaves(c, c->graph->outputs.at[i].value)) return false;
    return true;
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
        const Edge *edge = find_edge(c, in, chunk);
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
            map_put(c->arena, &c->copy.nodes, repeat->in[k], edge_input(c, find_carry(c, node, k, before)));
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
            send(c, find_carry(c, node, k, chunk),
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
    if (c->pos[node->id] == POS_AGAIN && chunk != last_chunk(c, node)) return sum;
    Node *value = copy_value(&c->copy, node);
    c->copy.b.backward = node->backward;
    c->copy.b.span = node->span;
    return sum ? build_binary(&c->copy.b, OP_ADD, sum, value) : value;
}

static Graph *chunk_graph(Cutter *c, int chunk) {
    Graph *graph = graph_new(c->s, c->arena, c->graph->name);
    graph->micro = c->graph->micro;
    for (int i = 0; i < c->graph->dims.n; i++)
        vec_push(c->arena, &graph->dims, c->graph->dims.at[i] == c->dim ? c->parts[chunk] : c->graph->dims.at[i]);
    copy_begin(&c->copy, graph);
    map_put(c->arena, &c->copy.dims, c->dim, c->parts[chunk]);
    for (int i = 0; i < c->graph->tensors.n; i++) {
        Tensor *own = stage_tensor(c, chunk, c->graph->tensors.at[i]);
        map_put(c->arena, &c->copy.tensors, c->graph->tensors.at[i], own);
        map_put(c->arena, &c->copy.tensors, own, own);
    }
    return graph;
}

static Graph *make_chunk(Cutter *c, int chunk) {
    Graph *graph = chunk_graph(c, chunk);
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
        if (value) step_output(graph, stage_tensor(c, chunk, output->tensor), value, output->accumulate || again);
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

static bool cut_graph(Cutter *c, Graph *graph, const char *prefix) {
    c->graph = graph;
    c->dim = graph_find_dim(graph, c->cut->dim);
    graph_carry_layer_sums(graph, c->dim);
    c->edges.n = 0;
    c->pos = NEW_N(c->arena, int, graph->n_nodes + 1);
    c->uses = NEW_N(c->arena, int, graph->n_nodes + 1);
    c->touches = NEW_N(c->arena, bool, graph->n_nodes + 1);
    c->late = NEW_N(c->arena, bool, graph->n_nodes + 1);
    c->again = NEW_N(c->arena, bool, (graph->n_nodes + 1) * c->n_chunks);
    if (!find_repeats(c)) return false;
    c->split = NEW_N(c->arena, bool, (c->backward ? c->backward->region->n_carries : 0) + 1);
    for (int i = 0; i <= graph->n_nodes; i++) c->pos[i] = POS_FREE;
    count_uses(c);
    if (!place_nodes(c)) return false;
    make_edge_tensors(c, prefix);
    c->chunks = NEW_N(c->arena, Graph *, c->n_chunks);
    for (int chunk = 0; chunk < c->n_chunks; chunk++) c->chunks[chunk] = make_chunk(c, chunk);
    return true;
}

/* ---- the steps of the stages -------------------------------------------------------------------- */

static void add_transfer(Cutter *c, Step *from, Step *to, Tensor *out, Tensor *in, Transfer what, int to_chunk,
                         TransferWhen to_when) {
    what.channel = c->n_channels++;
    what.span = out->span;
    Transfer sends = what, takes = what;
    sends.sends = true, sends.tensor = out, sends.peer = to->stage;
    takes.tensor = in, takes.peer = from->stage, takes.chunk = to_chunk, takes.when = to_when;
    vec_push(c->arena, &from->transfers, sends);
    vec_push(c->arena, &to->transfers, takes);
}

/* The variable that is handed over, or what it is computed from. */
static Name edge_name(const Edge *edge) {
    const Node *node = edge->value ? edge->value : edge->repeat->region->params.at[edge->carry];
    while (!node->name && node->n_in == 1) node = node->in[0];
    return node->name;
}

/* `alone`: what all of them are part of; NULL: of the forward pass or the backward pass, by position. */
static void add_edges(Cutter *c, Step **stages, const TransferWhen *alone) {
    for (int i = 0; i < c->edges.n; i++) {
        const Edge *edge = &c->edges.at[i];
        int from = chunk_at(c, edge->from), to = chunk_at(c, edge->to), n = c->cut->n_stages;
        if (edge->out == edge->in) continue;
        TransferWhen out = alone ? *alone : edge->from < c->n_chunks ? TRANSFER_F : TRANSFER_B;
        TransferWhen in = alone ? *alone : edge->to < c->n_chunks ? TRANSFER_F : TRANSFER_B;
        add_transfer(c, stages[from % n], stages[to % n], edge->out, edge->in,
                     (Transfer){.when = out, .chunk = from / n, .value = edge_name(edge)}, to / n, in);
    }
}

static bool graph_has_tensor(const Graph *graph, const Tensor *tensor) {
    for (int i = 0; graph && i < graph->tensors.n; i++)
        if (graph->tensors.at[i] == tensor) return true;
    return false;
}

static bool graph_writes(const Graph *graph, const Tensor *tensor) {
    for (int i = 0; graph && i < graph->outputs.n; i++)
        if (graph->outputs.at[i].tensor == tensor) return true;
    return false;
}

/* A graph without layers, as a stage's own. */
static Graph *copy_whole(Cutter *c, Graph *graph, int stage) {
    if (!graph) return NULL;
    Graph *before = c->graph;
    c->graph = graph;
    Graph *made = chunk_graph(c, stage);
    copy_region(&c->copy, &graph->top);
    for (int i = 0; i < graph->outputs.n; i++) {
        const Output *output = &graph->outputs.at[i];
        step_output(made, stage_tensor(c, stage, output->tensor), copy_value(&c->copy, output->value),
                    output->accumulate);
    }
    copy_finish(&c->copy);
    c->graph = before;
    return made;
}

typedef struct StageWeights {
    Stepper st;
    ModelGraph model;
    int n_home, n_all; /* trained weights: its own first, then copies */
} StageWeights;

/* Which chunks use the weight, and have a part of its gradient. */
static bool chunk_uses(const Cutter *c, const Graph *const *evals, int chunk, const Tensor *own) {
    (void)c;
    return graph_has_tensor(c->chunks[chunk], own) || graph_has_tensor(evals[chunk], own);
}

static void add_weight(StageWeights *w, Arena *arena, const Init *init, Tensor *own, Tensor *gradient, bool home) {
    Init mine = *init;
    mine.weight = own;
    own->is_copy = !home;
    map_put(arena, &w->st.own_tensors, own, own); /* it is the stage's already */
    vec_push(arena, &w->model.inits, mine);
    if (!gradient) return;
    Stepper *st = &w->st;
    int at = w->n_all++;
    if (home) { /* before the copies */
        st->weights[at] = st->weights[w->n_home], st->gradients[at] = st->gradients[w->n_home];
        at = w->n_home++;
    }
    st->weights[at] = own, st->gradients[at] = gradient;
}

/* Homes and copies of one weight that is not stacked. */
static void share_weight(Cutter *c, StageWeights *stages, Step **steps, const Graph *const *evals, const Init *init,
                         Tensor *gradient) {
    int n = c->cut->n_stages, home = -1;
    for (int pass = 0; pass < 2 && home < 0; pass++)
        for (int chunk = 0; chunk < c->n_chunks && home < 0; chunk++) {
            bool writes = gradient && graph_writes(c->chunks[chunk], stage_tensor(c, chunk, gradient));
            if (pass == 0 ? writes : chunk_uses(c, evals, chunk, stage_tensor(c, chunk, init->weight)))
                home = stage_of(c, chunk);
        }
    if (home < 0) home = 0;
    bool *uses = NEW_N(c->arena, bool, n), *writes = NEW_N(c->arena, bool, n);
    for (int chunk = 0; chunk < c->n_chunks; chunk++) {
        uses[stage_of(c, chunk)] |= chunk_uses(c, evals, chunk, stage_tensor(c, chunk, init->weight));
        writes[stage_of(c, chunk)] |= gradient && graph_writes(c->chunks[chunk], stage_tensor(c, chunk, gradient));
    }
    for (int s = 0; s < n; s++) {
        if (s != home && !uses[s]) continue;
        Tensor *own = stage_tensor(c, s, init->weight),
               *sum = gradient && (writes[s] || s == home) ? stage_tensor(c, s, gradient) : NULL;
        add_weight(&stages[s], c->arena, init, own, sum, s == home);
        if (s == home || !gradient) continue;
        Tensor *at_home = stage_tensor(c, home, init->weight);
        add_transfer(c, steps[home], steps[s], at_home, own,
                     (Transfer){.when = TRANSFER_WEIGHT, .value = init->weight->name}, 0, TRANSFER_WEIGHT);
        if (!sum) continue;
        Tensor *received = step_tensor(c->st, step_name(c->st, "%s.from.%d", gradient->name, s), CLASS_GRADIENT,
                                       sum->dtype, sum->shape);
        received->of = at_home;
        add_transfer(c, steps[s], steps[home], sum, received,
                     (Transfer){.when = TRANSFER_GRADIENT, .value = gradient->name}, 0, TRANSFER_GRADIENT);
        vec_push(c->arena, &steps[home]->sent, sum);
        vec_push(c->arena, &steps[home]->received, received);
    }
}

static void share_weights(Cutter *c, StageWeights *stages, Step **steps, const Graph *const *evals) {
    const ModelGraph *model = c->st->model;
    for (int i = 0; i < model->inits.n; i++) {
        Init *init = NEW(c->arena, Init);
        *init = model->inits.at[i];
        init->weight = step_weight(c->st, init->weight);
        Tensor *gradient = NULL;
        for (int k = 0; k < c->st->n_weights; k++)
            if (c->st->weights[k] == init->weight) gradient = c->st->gradients[k];
        if (!is_stacked(c, &init->weight->shape)) {
            share_weight(c, stages, steps, evals, init, gradient);
            continue;
        }
        for (int chunk = 0; chunk < c->n_chunks; chunk++)
            if (c->cut->count[chunk])
                add_weight(&stages[stage_of(c, chunk)], c->arena, init, stage_tensor(c, chunk, init->weight),
                           gradient ? stage_tensor(c, chunk, gradient) : NULL, true);
    }
}

/* Dimensions of the graphs that run once: the parts of all its chunks. */
static Graph *stage_dims(Cutter *c, int stage) {
    const Graph *model = c->st->model->graph;
    Graph *graph = graph_new(c->s, c->arena, "stage");
    for (int i = 0; i < model->dims.n; i++)
        vec_push(c->arena, &graph->dims, model->dims.at[i] == c->dim ? c->parts[stage] : model->dims.at[i]);
    for (int chunk = stage + c->cut->n_stages; chunk < c->n_chunks; chunk += c->cut->n_stages)
        vec_push(c->arena, &graph->dims, c->parts[chunk]);
    return graph;
}

static void open_stage(Cutter *c, StageWeights *w, Step *step) {
    Stepper *st = &w->st;
    *st = *c->st;
    st->step = step;
    st->own_tensors = (Map){0};
    w->model = *c->st->model;
    w->model.inits.n = w->model.inits.cap = 0;
    w->model.inits.at = NULL;
    w->model.graph = stage_dims(c, step->stage);
    st->model = &w->model;
    st->lr = stage_tensor(c, step->stage, st->lr);
    st->number = stage_tensor(c, step->stage, st->number);
    st->seed = stage_tensor(c, step->stage, st->seed);
    Tensor **scale[] = {&st->scale.factor, &st->scale.good, &st->scale.skipped}; /* equal on all stages: one saves it */
    for (int i = 0; st->scale.factor && i < 3; i++) {
        *scale[i] = stage_tensor(c, step->stage, *scale[i]);
        (*scale[i])->is_copy = step->stage > 0;
    }
    int most = c->st->n_weights * (c->n_chunks / c->cut->n_stages) + 1;
    st->weights = NEW_N(c->arena, Tensor *, most + 1);
    st->gradients = NEW_N(c->arena, Tensor *, most + 1);
    st->n_weights = 0;
    st->running.at = NULL, st->running.n = st->running.cap = 0;
    for (int i = 0; i < c->st->running.n; i++)
        vec_push(c->arena, &st->running,
                 (Running){c->st->running.at[i].name, stage_tensor(c, step->stage, c->st->running.at[i].sum)});
    if (st->targets) st->targets = stage_tensor(c, step->stage, st->targets);
    if (st->targets_partial) st->targets_partial = stage_tensor(c, step->stage, st->targets_partial);
}

static void close_stage(Cutter *c, StageWeights *w) {
    Stepper *st = &w->st;
    Step *step = st->step;
    const Step *whole = c->st->step;
    st->n_others = c->cut->n_stages;
    st->others = NEW_N(c->arena, Tensor *, (w->n_home + 1) * st->n_others);
    for (int i = 0; i < step->received.n; i++)
        for (int k = 0, at = 0; k < w->n_home; k++, at = 0)
            if (st->weights[k] == step->received.at[i]->of) {
                while (st->others[k * st->n_others + at]) at++;
                st->others[k * st->n_others + at] = step->received.at[i];
            }
    st->n_weights = w->n_home; /* moments are those of the home */
    step->init = step_init(st);
    st->is_stage = true;
    st->has_loss = step->stage == stage_of(c, c->n_chunks - 1);
    step->update = step_update(st);
    st->n_weights = w->n_all;
    if (!st->has_loss) st->running.n = 0; /* they are made there alone */
    step->begin = step_begin(st);
    step->count = copy_whole(c, whole->count, step->stage);
    step->total = copy_whole(c, whole->total, step->stage);
}

static void make_parts(Cutter *c) {
    const StageCut *cut = c->cut;
    c->parts = NEW_N(c->arena, Dim *, cut->n_chunks);
    for (int i = 0; i < cut->n_chunks; i++) {
        Dim *part = c->parts[i] = NEW(c->arena, Dim);
        *part = *c->dim;
        part->name = step_name(c->st, "%s.%d", c->dim->name, i);
        part->part_of = c->dim;
        part->first = cut->first[i];
        part->size = cut->count[i] ? cut->count[i] : 1;
    }
}

/* The same cut, counted in groups of layers. */
static StageCut cut_of_groups(Arena *arena, const StageCut *cut, const Dim *each) {
    StageCut groups = *cut;
    if (!each) return groups;
    groups.first = NEW_N(arena, int64_t, cut->n_chunks);
    groups.count = NEW_N(arena, int64_t, cut->n_chunks);
    for (int i = 0; i < cut->n_chunks; i++)
        groups.first[i] = cut->first[i] / each->size, groups.count[i] = cut->count[i] / each->size;
    return groups;
}

Step **grad_to_stages(Session *s, const Program *program, const Train *train, const Plan *plan, ModelGraph *model,
                      const StageCut *cut, Step **whole) {
    (void)program;
    int errors = diag_count(s, SEV_ERROR);
    Stepper st;
    step_stepper(&st, s, train, plan, model);
    if (!step_micro(&st)) return NULL;
    *whole = st.step;
    Cutter c = {.s = s, .arena = s->arena, .cut = cut, .st = &st, .n_chunks = cut->n_chunks};
    c.dim = graph_find_dim(st.model->graph, cut->dim);
    StageCut groups = cut_of_groups(s->arena, cut, c.dim->nested);
    c.cut = cut = &groups;
    c.stage_tensors = NEW_N(s->arena, Map, cut->n_stages);
    c.chunk_tensors = NEW_N(s->arena, Map, cut->n_chunks);
    make_parts(&c);
    Graph *decode = step_decode(&st);
    Step **steps = NEW_N(s->arena, Step *, cut->n_stages);
    StageWeights *stages = NEW_N(s->arena, StageWeights, cut->n_stages);
    int local = cut->n_chunks / cut->n_stages;
    for (int i = 0; i < cut->n_stages; i++) {
        steps[i] = NEW(s->arena, Step);
        *steps[i] = (Step){.session = s,
                           .model = st.model,
                           .micros = st.step->micros,
                           .micro_batch = st.step->micro_batch,
                           .stage = i,
                           .n_stages = cut->n_stages,
                           .n_chunks = local,
                           .stage_axis = cut->axis};
        steps[i]->bodies = NEW_N(s->arena, Graph *, local);
        steps[i]->evals = NEW_N(s->arena, Graph *, local);
        if (decode) steps[i]->decodes = NEW_N(s->arena, Graph *, local);
        open_stage(&c, &stages[i], steps[i]);
    }
    static const TransferWhen sampling = TRANSFER_DECODE, evaluating = TRANSFER_EVAL;
    Graph **decodes = NULL;
    if (decode) {
        if (!cut_graph(&c, decode, "decode")) return NULL;
        add_edges(&c, steps, &sampling);
        decodes = c.chunks;
    }
    if (!cut_graph(&c, st.step->eval, "eval")) return NULL;
    add_edges(&c, steps, &evaluating);
    Graph **evals = c.chunks;
    if (!cut_graph(&c, st.step->body, "pipe")) return NULL;
    add_edges(&c, steps, NULL);
    for (int chunk = 0; chunk < cut->n_chunks; chunk++) {
        steps[stage_of(&c, chunk)]->bodies[chunk / cut->n_stages] = c.chunks[chunk];
        steps[stage_of(&c, chunk)]->evals[chunk / cut->n_stages] = evals[chunk];
        if (decode) steps[stage_of(&c, chunk)]->decodes[chunk / cut->n_stages] = decodes[chunk];
    }
    share_weights(&c, stages, steps, (const Graph *const *)evals);
    for (int i = 0; i < cut->n_stages; i++) {
        close_stage(&c, &stages[i]);
        step_keep_weights(steps[i], plan);
    }
    return diag_count(s, SEV_ERROR) > errors ? NULL : steps;
}

/* ---- what the plan asks for --------------------------------------------------------------------- */

static bool repeats(const Region *region, Name dim) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Region *inner = region->nodes.at[i]->region;
        if (inner && (inner->dim->name == dim || repeats(inner, dim))) return true;
    }
    return false;
}

void stage_cut_evenly(Session *s, StageCut *cut, int chunks, int64_t layers) {
    cut->n_chunks = cut->n_stages * chunks;
    cut->first = NEW_N(s->arena, int64_t, cut->n_chunks);
    cut->count = NEW_N(s->arena, int64_t, cut->n_chunks);
    for (int k = 0; k < cut->n_chunks; k++) {
        cut->count[k] = layers / cut->n_chunks;
        cut->first[k] = k * cut->count[k];
    }
}

bool plan_stage_cut(Session *s, const Plan *plan, const ModelGraph *model, StageCut *cut) {
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (!rule->what || !repeats(&model->graph->top, rule->what)) continue;
        int chunks = rule->chunks > 0 ? (int)rule->chunks : 1;
        *cut = (StageCut){.axis = rule->axis,
                          .dim = rule->what,
                          .n_stages = (int)plan->mesh.axes[rule->axis].size,
                          .span = rule->span};
        cut->n_chunks = cut->n_stages * chunks;
        cut->first = NEW_N(s->arena, int64_t, cut->n_chunks);
        cut->count = NEW_N(s->arena, int64_t, cut->n_chunks);
        int64_t at = 0, size = graph_find_dim(model->graph, rule->what)->size;
        for (int k = 0; k < cut->n_chunks; k++) {
            cut->first[k] = at;
            cut->count[k] = rule->uneven.n > k ? rule->uneven.at[k] : size / cut->n_chunks;
            at += cut->count[k];
        }
        return true;
    }
    return false;
}
