/* Mixtures of experts: which tokens go to which expert, and the two ways between tokens and experts' slots.
 *
 * `top_k` is the only operator that looks at more than one token: it gives a route, three integer tensors. Everything
 * is decided for each sequence by itself, in token order, so a token's expert, slot and fate are the same under every
 * plan. chosen[.., seq, pick]     the expert, by falling probability; among equals the lower number slot[.., seq, pick]
 * the place in that expert's queue, or -1 where it was full source[.., expert, slot]  token * picks + pick, or -1 for
 * an empty slot In the language a route is one value (`chosen`); the operators that take it find the others beside it.
 * `to_slots` and `from_slots` move rows by these numbers, each a gather, each the gradient of the other: nothing is
 * ever scattered. */
#include <math.h>

#include "ir/ops/space.h"

enum { CHOSEN, SLOT, SOURCE };

/* ---- top_k: the route --------------------------------------------------------------------------- */

static Dim *route_dim(Graph *graph, Dim *expert, const char *what, int64_t size) {
    const char *name = arena_printf(graph->arena, "%s.%s", expert->name, what);
    for (;;) {
        Name key = intern(graph->session->names, name);
        Dim *known = graph_find_dim(graph, key);
        if (!known) return graph_add_dim(graph, key, size, expert->span);
        if (known->size == size) return known;
        name = arena_printf(graph->arena, "%s%lld", name, (long long)size);
    }
}

static int64_t slots_of(double capacity, int64_t k, int64_t tokens, int64_t experts) {
    if (capacity == 0) return tokens;
    int64_t slots = (int64_t)ceil(capacity * (double)(k * tokens) / (double)experts - 1e-9);
    return slots < 1 ? 1 : slots > tokens ? tokens : slots;
}

static bool check_top_k(Graph *graph, const Node *node, const Dim *choice) {
    const Shape *p = &node->in[0]->shape;
    if (!choice || p->n < 2 || p->dims[p->n - 1] != choice || !dtype_is_float(node->in[0]->dtype)) {
        Diag *d = diag_error(graph->session, "P0265", node->span, "`top_k` of %s%s", dtype_name[node->in[0]->dtype],
                             shape_text(graph->arena, p));
        diag_help(d, "give one probability for each choice of each token: `top_k(p, over choice)` with p over "
                     "[batch, seq, choice]");
        return false;
    }
    return true;
}

static bool infer_top_k(Graph *graph, Node *node) {
    const OpInfo *info = op_info(node);
    const Shape *p = &node->in[0]->shape;
    Shape *over = &node->attrs[op_attr_index(info, "over")].dims;
    Dim *choice = over->n ? over->dims[0] : NULL;
    if (!check_top_k(graph, node, choice)) return false;
    Dim *seq = p->dims[p->n - 2];
    *over = shape_of((Dim *[]){choice, seq}, 2); /* both whole: a queue is one for the whole sequence */
    AttrValue *expert = &node->attrs[op_attr_index(info, "expert")];
    if (!expert->dims.n && choice->like) expert->dims = shape_of(&choice->like, 1);
    if (!expert->dims.n || expert->dims.dims[0]->size != choice->size) {
        Diag *d =
            diag_error(graph->session, "P0265", node->span, "`top_k` over `%s`, which names no experts", choice->name);
        diag_help(d, "declare the choices as a second name of the experts: `dim %s = like expert`", choice->name);
        return false;
    }
    int64_t k = node_attr(node, "k")->integer;
    double capacity = node_attr(node, "capacity")->number;
    if (k < 1 || k > choice->size || !(capacity >= 0)) {
        Diag *d = diag_error(graph->session, "P0265", node->span, "`top_k` with k = %lld and capacity %g", (long long)k,
                             capacity);
        diag_help(d, "k is between 1 and the %lld experts; capacity is a factor above 0, or 0 for no limit",
                  (long long)choice->size);
        return false;
    }
    AttrValue *slot = &node->attrs[op_attr_index(info, "slot")], *pick = &node->attrs[op_attr_index(info, "pick")];
    if (!slot->dims.n) {
        Dim *dim = route_dim(graph, expert->dims.dims[0], "slot", slots_of(capacity, k, seq->size, choice->size));
        slot->dims = shape_of(&dim, 1);
    }
    if (!pick->dims.n) {
        Dim *dim = route_dim(graph, expert->dims.dims[0], "pick", k);
        pick->dims = shape_of(&dim, 1);
    }
    Shape tokens = shape_of(p->dims, p->n - 1), slots = shape_of(p->dims, p->n - 2);
    shape_add(&tokens, pick->dims.dims[0]);
    shape_add(&slots, expert->dims.dims[0]);
    if (slots.n == MAX_RANK || tokens.n == MAX_RANK) return false;
    shape_add(&slots, slot->dims.dims[0]);
    node->dtype = DT_I32;
    node->shape = tokens;
    node->n_outs = 3;
    node->outs = NEW_N(graph->arena, OutType, 3);
    node->outs[CHOSEN] = node->outs[SLOT] = (OutType){.dtype = DT_I32, .shape = tokens};
    node->outs[SOURCE] = (OutType){.dtype = DT_I32, .shape = slots};
    return true;
}

/* Gives each pick of a sequence its place in its expert's queue. chosen and slot: [seq * picks]; source: [expert *
 * slots], or NULL. */
static void queue(const double *chosen, int64_t n, int64_t experts, int64_t slots, int64_t *used, double *slot,
                  double *source) {
    for (int64_t e = 0; e < experts; e++) used[e] = 0;
    for (int64_t i = 0; source && i < experts * slots; i++) source[i] = -1;
    for (int64_t i = 0; i < n; i++) {
        int64_t e = (int64_t)chosen[i], at = used[e]++;
        if (slot) slot[i] = at < slots ? (double)at : -1;
        if (source && at < slots) source[e * slots + at] = (double)i;
    }
}

/* The best that is left, the lower number among equals; what is not a number comes last. */
static int64_t best_choice(const double *p, int64_t n, const bool *taken) {
    int64_t best = -1;
    for (int64_t c = 0; c < n; c++) {
        if (taken[c]) continue;
        if (best < 0 || p[c] > p[best] || (isnan(p[best]) && !isnan(p[c]))) best = c;
    }
    return best;
}

static void eval_top_k(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    int n = in[0]->shape.n;
    int64_t experts = in[0]->extent[n - 1], tokens = in[0]->extent[n - 2], sequences = in[0]->n / (experts * tokens);
    int64_t k = node_attr(node, "pick")->dims.dims[0]->size, slots = node_attr(node, "slot")->dims.dims[0]->size;
    bool *taken = NEW_N(context->arena, bool, experts);
    int64_t *used = NEW_N(context->arena, int64_t, experts);
    for (int64_t t = 0; t < sequences * tokens; t++) {
        memset(taken, 0, sizeof *taken * (size_t)experts);
        for (int64_t j = 0; j < k; j++) {
            int64_t best = best_choice(in[0]->at + t * experts, experts, taken);
            taken[best] = true;
            out[CHOSEN]->at[t * k + j] = (double)best;
        }
    }
    for (int64_t s = 0; s < sequences; s++)
        queue(out[CHOSEN]->at + s * tokens * k, tokens * k, experts, slots, used, out[SLOT]->at + s * tokens * k,
              out[SOURCE]->at + s * experts * slots);
}

/* ---- routes as operands ------------------------------------------------------------------------- */

/* The top_k that an operand is result `index` of; NULL after a diagnostic. */
static Node *route_of(Graph *graph, const Node *node, int operand, int index) {
    const Node *route = node->in[operand];
    if (route->op == OP_RESULT && route->in[0]->op == OP_TOP_K && node_attr(route, "index")->integer == index)
        return route->in[0];
    Diag *d = diag_error(graph->session, "P0266", node->span, "`%s` by what is no route", op_info(node)->name);
    diag_help(d, "take the route from `top_k` in the same layer: `route = top_k(p, over choice)`");
    return NULL;
}

static Dim *route_name(const Node *top_k, const char *what) { return node_attr(top_k, what)->dims.dims[0]; }
static Dim *route_seq(const Node *top_k) { return node_attr(top_k, "over")->dims.dims[1]; }

static Node *build_to_slots(Builder *b, Node *x, Node *source) {
    const Node *route = source->in[0];
    Dim *seq = route_seq(route), *pick = route_name(route, "pick");
    Shape over = shape_of(&seq, 1);
    if (shape_find(&x->shape, pick) >= 0) shape_add(&over, pick);
    AttrValue attrs[2] = {{.dims = over}, {.dims = shape_of(&pick, 1)}};
    return build_op(b, OP_TO_SLOTS, (Node *[]){x, source}, 2, attrs);
}

static Node *build_from_slots(Builder *b, Node *y, Node *chosen, Node *slot) {
    const Node *route = chosen->in[0];
    AttrValue attrs[2] = {{.dims = node_attr(route, "expert")->dims}, {.dims = node_attr(route, "slot")->dims}};
    return build_op(b, OP_FROM_SLOTS, (Node *[]){y, chosen, slot}, 3, attrs);
}

/* ---- to_slots, from_slots ----------------------------------------------------------------------- */

static bool refuse_rows(Graph *graph, const Node *node, const Shape *needed) {
    Diag *d = diag_error(graph->session, "P0265", node->span, "`%s` of %s", op_info(node)->name,
                         shape_text(graph->arena, &node->in[0]->shape));
    diag_help(d, "it needs the dimensions %s, as the route has them", shape_text(graph->arena, needed));
    return false;
}

/* Once conversions stand between, or the values come from another layer's stack, a route is known by its shape alone.
 */
static bool is_routing(Graph *graph, const Node *node) {
    for (int i = 1; i < node->n_in; i++)
        if (node->in[i]->dtype != DT_I32 || node->in[i]->shape.n < 2) {
            diag_error(graph->session, "P0266", node->span, "`%s` by what is no route", op_info(node)->name);
            return false;
        }
    return true;
}

static bool infer_to_slots(Graph *graph, Node *node) {
    const Node *x = node->in[0];
    if (!is_routing(graph, node)) return false;
    const Shape *over = &node_attr(node, "over")->dims;
    Shape places = shape_of(node->in[1]->shape.dims, node->in[1]->shape.n - 2), needed = shape_union(&places, over);
    if (!shape_contains(&x->shape, &needed)) return refuse_rows(graph, node, &needed);
    Shape rest = shape_without(&x->shape, over);
    node->dtype = x->dtype;
    node->shape = shape_union(&node->in[1]->shape, &rest);
    return true;
}

static bool infer_from_slots(Graph *graph, Node *node) {
    const Node *y = node->in[0];
    if (!is_routing(graph, node)) return false;
    Shape where = shape_union(&node_attr(node, "expert")->dims, &node_attr(node, "slot")->dims);
    Shape places = shape_of(node->in[1]->shape.dims, node->in[1]->shape.n - 2), needed = shape_union(&places, &where);
    if (!shape_contains(&y->shape, &needed)) return refuse_rows(graph, node, &needed);
    Shape rest = shape_without(&y->shape, &where);
    node->dtype = y->dtype;
    node->shape = shape_union(&node->in[1]->shape, &rest);
    return true;
}

static void grad_to_slots(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    Node *route = node->in[1]->in[0];
    Node *rows = build_from_slots(b, grad_out[0], build_result(b, route, CHOSEN), build_result(b, route, SLOT));
    grad_in[0] = build_fit(b, rows, &node->in[0]->shape);
}

static void grad_from_slots(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    Node *rows = build_to_slots(b, grad_out[0], build_result(b, node->in[1]->in[0], SOURCE));
    grad_in[0] = build_fit(b, rows, &node->in[0]->shape);
}

static void eval_to_slots(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    const Dim *pick = node_attr(node, "pick")->dims.dims[0], *seq = node_attr(node, "over")->dims.dims[0];
    int64_t k = pick->size, per_token = array_stride(in[0], seq), per_pick = array_stride(in[0], pick);
    Space points = {0};
    space_add(&points, out[0], NULL);
    for (int64_t i = 0; i < out[0]->n; i++, space_next(&points)) {
        int64_t from = (int64_t)in[1]->at[space_offset(&points, in[1])];
        const double *row = in[0]->at + space_offset(&points, in[0]);
        out[0]->at[i] = from < 0 ? 0 : row[from / k * per_token + from % k * per_pick];
    }
}

/* Experts of other ranks count zero here: the result is partial. */
static void eval_from_slots(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    const Dim *expert = node_attr(node, "expert")->dims.dims[0], *slot = node_attr(node, "slot")->dims.dims[0];
    int64_t per_expert = array_stride(in[0], expert), per_slot = array_stride(in[0], slot);
    int64_t first = eval_offset(context, node->in[0], expert), held = array_extent(in[0], expert);
    Space points = {0};
    space_add(&points, out[0], NULL);
    for (int64_t i = 0; i < out[0]->n; i++, space_next(&points)) {
        int64_t e = (int64_t)in[1]->at[space_offset(&points, in[1])] - first;
        int64_t at = (int64_t)in[2]->at[space_offset(&points, in[2])];
        const double *row = in[0]->at + space_offset(&points, in[0]);
        out[0]->at[i] = at < 0 || e < 0 || e >= held ? 0 : row[e * per_expert + at * per_slot];
    }
}

/* ---- the language's: dispatch, combine, balance_loss -------------------------------------------- */

static bool infer_dispatch(Graph *graph, Node *node) {
    const Node *route = route_of(graph, node, 1, CHOSEN), *x = node->in[0];
    if (!route) return false;
    Dim *seq = route_seq(route);
    const Shape *places = &route->outs[SOURCE].shape;
    Shape over = shape_of(&seq, 1), batch = shape_of(places->dims, places->n - 2), needed = shape_union(&batch, &over);
    if (!shape_contains(&x->shape, &needed)) return refuse_rows(graph, node, &needed);
    Shape rest = shape_without(&x->shape, &over);
    node->dtype = x->dtype;
    node->shape = shape_union(places, &rest);
    return true;
}

static Node *expand_dispatch(Builder *b, const Node *node, Node *const *in) {
    (void)node;
    return build_to_slots(b, in[0], build_result(b, in[1]->in[0], SOURCE));
}

/* What weighs a token's picks: an operand of its own, or what the route was chosen by. */
static Node *pick_weights(Node *const *in, int n_in, const Node *route) { return n_in > 2 ? in[2] : route->in[0]; }

static bool infer_combine(Graph *graph, Node *node) {
    const Node *route = route_of(graph, node, 1, CHOSEN), *y = node->in[0];
    if (!route) return false;
    const Node *weights = pick_weights(node->in, node->n_in, route);
    if (node->n_in > 3 || !shape_equal(&weights->shape, &route->in[0]->shape) || weights->dtype != y->dtype) {
        Diag *d = diag_error(graph->session, "P0562", node->span, "`combine` by weights %s%s",
                             dtype_name[weights->dtype], shape_text(graph->arena, &weights->shape));
        diag_help(d, "they are one tensor of %s%s, as `top_k` has it", dtype_name[y->dtype],
                  shape_text(graph->arena, &route->in[0]->shape));
        return false;
    }
    const Shape *places = &route->outs[SOURCE].shape, *tokens = &route->outs[CHOSEN].shape;
    if (!shape_contains(&y->shape, places)) return refuse_rows(graph, node, places);
    Shape rest = shape_without(&y->shape, places), of_token = shape_of(tokens->dims, tokens->n - 1);
    node->dtype = y->dtype;
    node->shape = shape_union(&of_token, &rest);
    return true;
}

/* p at the chosen places, picked by comparing numbers: its gradient is a select and no scatter. */
static Node *chosen_weights(Builder *b, Node *p, Node *chosen, Dim *choice) {
    Shape all = chosen->shape, over = shape_of(&choice, 1);
    shape_add(&all, choice);
    Node *is_chosen = build_binary(b, OP_EQ, build_broadcast(b, chosen, &all), build_ramp(b, choice));
    Node *zero = build_broadcast(b, build_const(b, p->dtype, 0), &all);
    return build_reduce(b, OP_SUM, build_select(b, is_chosen, build_broadcast(b, p, &all), zero), &over);
}

static Node *expand_combine(Builder *b, const Node *node, Node *const *in) {
    Node *route = in[1]->in[0], *slot = build_result(b, route, SLOT);
    Shape picks = node_attr(route, "pick")->dims;
    Node *weight =
        chosen_weights(b, pick_weights(in, node->n_in, route), in[1], node_attr(route, "over")->dims.dims[0]);
    if (node_attr(node, "normalize")->integer)
        weight = build_binary(b, OP_DIV, weight, build_reduce(b, OP_SUM, weight, &picks));
    Node *rows = build_from_slots(b, in[0], in[1], slot);
    rows = build_cast(b, rows, weight->dtype);
    return build_cast(b, build_reduce(b, OP_SUM, build_binary(b, OP_MUL, rows, weight), &picks), in[0]->dtype);
}

static void eval_dispatch(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    const Node *route = node->in[1]->in[0];
    const Array *chosen = in[1];
    int n = chosen->shape.n;
    int64_t k = chosen->extent[n - 1], picks = k * chosen->extent[n - 2];
    int64_t experts = route_name(route, "expert")->size, slots = route_name(route, "slot")->size;
    Array source = {.shape = route->outs[SOURCE].shape, .n = chosen->n / picks * experts * slots};
    memcpy(source.extent, chosen->extent, sizeof source.extent);
    source.extent[n - 2] = experts, source.extent[n - 1] = slots;
    source.at = NEW_N(context->arena, double, source.n);
    int64_t *used = NEW_N(context->arena, int64_t, experts);
    for (int64_t s = 0; s < chosen->n / picks; s++)
        queue(chosen->at + s * picks, picks, experts, slots, used, NULL, source.at + s * experts * slots);
    int64_t per_token = array_stride(in[0], route_seq(route));
    Space points = {0};
    space_add(&points, out[0], NULL);
    for (int64_t i = 0; i < out[0]->n; i++, space_next(&points)) {
        int64_t from = (int64_t)source.at[space_offset(&points, &source)];
        out[0]->at[i] = from < 0 ? 0 : in[0]->at[space_offset(&points, in[0]) + from / k * per_token];
    }
}

static void eval_combine(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    const Node *route = node->in[1]->in[0];
    const Array *chosen = in[1], *p = node->n_in > 2 ? in[2] : eval_peer(context, route->in[0], context->rank);
    int n = chosen->shape.n;
    int64_t k = chosen->extent[n - 1], picks = k * chosen->extent[n - 2];
    int64_t experts = route_name(route, "expert")->size, slots = route_name(route, "slot")->size;
    int64_t per_expert = array_stride(in[0], route_name(route, "expert")),
            per_slot = array_stride(in[0], route_name(route, "slot"));
    double *slot = NEW_N(context->arena, double, chosen->n);
    int64_t *used = NEW_N(context->arena, int64_t, experts);
    for (int64_t s = 0; s < chosen->n / picks; s++)
        queue(chosen->at + s * picks, picks, experts, slots, used, slot + s * picks, NULL);
    Space points = {0};
    space_add(&points, out[0], NULL);
    for (int64_t i = 0; i < out[0]->n; i++, space_next(&points)) {
        int64_t token = space_offset(&points, chosen) / k; /* the pick is not among the points: it stands at 0 */
        double total = 0, weights = 0;
        for (int64_t j = 0; j < k; j++) {
            int64_t e = (int64_t)chosen->at[token * k + j], at = (int64_t)slot[token * k + j];
            double w = p->at[token * experts + e];
            weights += w;
            if (at >= 0) total += w * in[0]->at[space_offset(&points, in[0]) + e * per_expert + at * per_slot];
        }
        out[0]->at[i] = node_attr(node, "normalize")->integer ? total / weights : total;
    }
}

static bool infer_balance_loss(Graph *graph, Node *node) {
    const Node *route = route_of(graph, node, 1, CHOSEN), *p = node->in[0];
    if (!route) return false;
    if (!shape_equal(&p->shape, &route->in[0]->shape) || !dtype_is_float(p->dtype))
        return refuse_rows(graph, node, &route->in[0]->shape);
    node->dtype = p->dtype;
    node->shape = shape_of(p->shape.dims, p->shape.n - 2);
    return true;
}

static Node *expand_balance_loss(Builder *b, const Node *node, Node *const *in) {
    (void)node;
    const Node *route = in[1]->in[0];
    Dim *choice = node_attr(route, "over")->dims.dims[0], *seq = route_seq(route), *pick = route_name(route, "pick");
    Shape all = in[1]->shape, picks = shape_of((Dim *[]){seq, pick}, 2), tokens = shape_of(&seq, 1),
          over = shape_of(&choice, 1);
    shape_add(&all, choice);
    Node *is_chosen =
        build_cast(b, build_binary(b, OP_EQ, build_broadcast(b, in[1], &all), build_ramp(b, choice)), in[0]->dtype);
    Node *share = build_reduce(b, OP_SUM, is_chosen, &picks), *mass = build_reduce(b, OP_SUM, in[0], &tokens);
    double n = (double)seq->size, scale = (double)choice->size / (n * n * (double)pick->size);
    return build_scale(b, build_reduce(b, OP_SUM, build_binary(b, OP_MUL, mass, share), &over), scale);
}

static void eval_balance_loss(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context, (void)node;
    int n = in[0]->shape.n;
    int64_t experts = in[0]->extent[n - 1], tokens = in[0]->extent[n - 2], picks = in[1]->extent[n - 1];
    for (int64_t s = 0; s < out[0]->n; s++) {
        double total = 0;
        for (int64_t e = 0; e < experts; e++) {
            double share = 0, mass = 0;
            for (int64_t t = 0; t < tokens; t++) mass += in[0]->at[(s * tokens + t) * experts + e];
            for (int64_t i = 0; i < tokens * picks; i++) share += (int64_t)in[1]->at[s * tokens * picks + i] == e;
            total += share / (double)(tokens * picks) * mass / (double)tokens;
        }
        out[0]->at[s] = total * (double)experts;
    }
}

/* ---- cases -------------------------------------------------------------------------------------- */

#define SLOTS(n)                                                                                                       \
    "graph case { dim batch = 4, seq = 6, expert = 4, choice = 4 like expert, in = 4, expert.slot = " #n "\n"          \
    "tensor p: f32[batch, seq, choice]; tensor y: f32[batch, expert, expert.slot, in]\n"
#define PX                                                                                                             \
    "graph case { dim batch = 4, seq = 6, expert = 4, choice = 4 like expert, in = 4\n"                                \
    "tensor p: f32[batch, seq, choice]; tensor x: f32[batch, seq, in]\n"
static const OpCase cases_top_k[] = {
    {.what = "two of four, room for some",
     .low = 0.1,
     .high = 1,
     .graph = PX "%0 = top_k(@p, over = [choice], k = 2, capacity = 0.8); %1 = result(%0, index = 0)\n"
                 "%2 = result(%0, index = 1); %3 = result(%0, index = 2); output %1; output %2; output %3 }"},
    {.what = "room for all",
     .low = 0.1,
     .high = 1,
     .graph = PX "%0 = top_k(@p, over = [choice], k = 1); %1 = result(%0, index = 2); output %1 }"},
    {0}};
static const OpCase cases_to_slots[] = {
    {.what = "tokens",
     .low = 0.1,
     .high = 1,
     .graph = PX "%0 = top_k(@p, over = [choice], k = 2, capacity = 0.8); %1 = result(%0, index = 2)\n"
                 "%2 = to_slots(@x, %1, over = [seq], pick = expert.pick); output %2 }"},
    {.what = "a constant for each token",
     .low = 0.1,
     .high = 1,
     .graph = PX "%0 = top_k(@p, over = [choice], k = 2, capacity = 0.8); %1 = result(%0, index = 2)\n"
                 "%2 = const(value = 1, dtype = f32); %3 = broadcast(%2, dims = [batch, seq])\n"
                 "%4 = to_slots(%3, %1, over = [seq], pick = expert.pick); output %4 }"},
    {0}};
static const OpCase cases_from_slots[] = {
    {.what = "rows",
     .low = 0.1,
     .high = 1,
     .graph = SLOTS(3) "%0 = top_k(@p, over = [choice], k = 2, capacity = 0.8); %1 = result(%0, index = 0)\n"
                       "%2 = result(%0, index = 1); %3 = from_slots(@y, %1, %2, expert = expert, slot = expert.slot); "
                       "output %3 }"},
    {0}};
static const OpCase cases_dispatch[] = {
    {.what = "with drops",
     .low = 0.1,
     .high = 1,
     .graph = PX "%0 = top_k(@p, over = [choice], k = 2, capacity = 0.8); %1 = result(%0, index = 0)\n"
                 "%2 = dispatch(@x, %1); output %2 }"},
    {.what = "dropless",
     .low = 0.1,
     .high = 1,
     .graph =
         PX "%0 = top_k(@p, over = [choice], k = 1); %1 = result(%0, index = 0); %2 = dispatch(@x, %1); output %2 }"},
    {0}};
static const OpCase cases_combine[] = {
    {.what = "with drops",
     .low = 0.1,
     .high = 1,
     .graph = SLOTS(3) "%0 = top_k(@p, over = [choice], k = 2, capacity = 0.8); %1 = result(%0, index = 0)\n"
                       "%2 = combine(@y, %1); output %2 }"},
    {.what = "weights as they are",
     .low = 0.1,
     .high = 1,
     .graph = SLOTS(6) "%0 = top_k(@p, over = [choice], k = 1); %1 = result(%0, index = 0)\n"
                       "%2 = combine(@y, %1, normalize = false); output %2 }"},
    {.what = "chosen by one, weighted by another",
     .low = 0.1,
     .high = 1,
     .graph = SLOTS(6) "%0 = input p; %1 = mul(%0, %0); %2 = neg(%1); %3 = top_k(%2, over = [choice], k = 2)\n"
                       "%4 = result(%3, index = 0); %5 = combine(@y, %4, %0); output %5 }"},
    {.what = "there and back",
     .low = 0.1,
     .high = 1,
     .graph = PX "%0 = top_k(@p, over = [choice], k = 3, capacity = 1); %1 = result(%0, index = 0)\n"
                 "%2 = dispatch(@x, %1); %3 = mul(%2, %2); %4 = combine(%3, %1); output %4 }"},
    {0}};
static const OpCase cases_balance_loss[] = {
    {.what = "of sequences",
     .low = 0.1,
     .high = 1,
     .graph = PX "%0 = top_k(@p, over = [choice], k = 2, capacity = 0.8); %1 = result(%0, index = 0)\n"
                 "%2 = balance_loss(@p, %1); output %2 }"},
    {0}};

const OpInfo op_info_top_k = {
    .op = OP_TOP_K,
    .name = "top_k",
    .family = "expert",
    .doc = "a route: the k best experts of each token of p[.., seq, choice], queued for each sequence in token order; "
           "each expert has room for capacity * k * seq / experts tokens of a sequence (0: for all)",
    .in = {"p"},
    .attrs = {{"over", ATTR_DIMS, NAN},
              {"k", ATTR_INT, 2},
              {"capacity", ATTR_FLOAT, 0},
              {"expert", ATTR_DIM, 0},
              {"slot", ATTR_DIM, 0},
              {"pick", ATTR_DIM, 0}},
    .dims = "... o! -> ... pick!, ... pick!, ... expert! slot!",
    .language = true,
    .n_results = 3,
    .no_grad = true,
    .infer = infer_top_k,
    .lower = LOWER_TOP_K,
    .precision = PRECISION_FULL,
    .eval = eval_top_k,
    .cases = cases_top_k,
};

const OpInfo op_info_to_slots = {
    .op = OP_TO_SLOTS,
    .name = "to_slots",
    .family = "expert",
    .doc = "rows of tokens (or of their picks) at the experts' slots, zeros where nobody queued",
    .in = {"x", "source"},
    .attrs = {{"over", ATTR_DIMS, NAN}, {"pick", ATTR_DIM, NAN}},
    .dims = "*... o!, ... -> ...",
    .infer = infer_to_slots,
    .grad = grad_to_slots,
    .lower = LOWER_TO_SLOTS,
    .eval = eval_to_slots,
    .cases = cases_to_slots,
};

const OpInfo op_info_from_slots = {
    .op = OP_FROM_SLOTS,
    .name = "from_slots",
    .family = "expert",
    .doc = "rows of the experts' slots for each pick of each token, zeros where it was dropped",
    .in = {"y", "chosen", "slots"},
    .attrs = {{"expert", ATTR_DIM, NAN}, {"slot", ATTR_DIM, NAN}},
    .dims = "*... expert@ slot!, ..., ... -> ...",
    .infer = infer_from_slots,
    .grad = grad_from_slots,
    .lower = LOWER_FROM_SLOTS,
    .eval = eval_from_slots,
    .cases = cases_from_slots,
};

const OpInfo op_info_dispatch = {
    .op = OP_DISPATCH,
    .name = "dispatch",
    .family = "expert",
    .doc = "tokens at their experts: x[.., seq, in] becomes [.., expert, slot, in], zeros in empty slots",
    .in = {"x", "route"},
    .dims = "..., ... -> ...",
    .language = true,
    .infer = infer_dispatch,
    .expand = expand_dispatch,
    .lower = LOWER_EXPAND,
    .eval = eval_dispatch,
    .cases = cases_dispatch,
};

const OpInfo op_info_combine = {
    .op = OP_COMBINE,
    .name = "combine",
    .family = "expert",
    .doc = "what the experts made of each token, weighted by the route's probabilities (with `normalize`, divided by "
           "their "
           "sum over the k picks), or by `weights` of the same shape; a dropped pick counts zero",
    .in = {"y", "route"},
    .variadic = "weights",
    .attrs = {{"normalize", ATTR_BOOL, 1}},
    .dims = "..., ... -> ...",
    .language = true,
    .infer = infer_combine,
    .expand = expand_combine,
    .lower = LOWER_EXPAND,
    .eval = eval_combine,
    .cases = cases_combine,
};

const OpInfo op_info_balance_loss = {
    .op = OP_BALANCE_LOSS,
    .name = "balance_loss",
    .family = "expert",
    .doc =
        "experts * sum over experts of (share of a sequence's picks) * (mean probability): 1 when balanced (Fedus et "
        "al., \"Switch Transformers\", 2022)",
    .in = {"p", "route"},
    .dims = "..., ... -> ...",
    .language = true,
    .infer = infer_balance_loss,
    .expand = expand_balance_loss,
    .lower = LOWER_EXPAND,
    .precision = PRECISION_FULL,
    .eval = eval_balance_loss,
    .cases = cases_balance_loss,
};
