/* Where the nodes of a graph stand in the pipeline (first half of stages_cut.h).
 *
 * In: the graph and the cut. Out: a position for each node, and the edges: what a chunk takes from another. The forward
 * pass is placed first, at the first chunk that needs a value; then each backward node at the first position at which
 * all that it reads is at hand. */
#include "graph/stages_cut.h"

#include <limits.h>

static bool refuse(const Cutter *c, Span span, const char *what) {
    Diag *d = diag_error(c->s, "P9000", span.file ? span : c->cut->span, "%s is not built yet", what);
    diag_note(d, c->cut->span, "the pipeline is asked for here");
    return false;
}

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

Edge *cutter_find_edge(Cutter *c, const Node *value, int to_chunk) {
    for (int i = 0; i < c->edges.n; i++)
        if (c->edges.at[i].value == value && chunk_at(c, c->edges.at[i].to) == to_chunk) return &c->edges.at[i];
    return NULL;
}

Edge *cutter_find_carry(Cutter *c, const Node *repeat, int carry, int from_chunk) {
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
    if (from < 0 || chunk_at(c, from) == chunk || cutter_find_edge(c, value, chunk)) return true;
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
    return pos == chunk || cutter_find_edge(c, value, chunk) || (may_send && pos < chunk);
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

int cutter_last_chunk(const Cutter *c, const Node *node) {
    int last = c->pos[node->id] >= 0 ? chunk_at(c, c->pos[node->id]) : 0;
    for (int k = 0; k < node->n_in && c->pos[node->id] == POS_AGAIN; k++) {
        int in = cutter_last_chunk(c, node->in[k]);
        if (in > last) last = in;
    }
    return last;
}

static bool need_leaves(Cutter *c, Node *node) {
    if (c->pos[node->id] == POS_DISSOLVED) return need_leaves(c, node->in[0]) && need_leaves(c, node->in[1]);
    return c->pos[node->id] != POS_AGAIN || need_at(c, node, pos_of(c, cutter_last_chunk(c, node), true));
}

bool cutter_place_nodes(Cutter *c) {
    const NodeList *nodes = &c->graph->top.nodes;
    if (!find_repeats(c)) return false;
    c->split = NEW_N(c->arena, bool, (c->backward ? c->backward->region->n_carries : 0) + 1);
    count_uses(c);
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
