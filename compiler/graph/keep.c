/* `weights on AXIS using keep` and `using keep_for_backward`: what becomes of a gathered weight.
 *
 * In: the graphs of a step (or of a stage), before partitioning. Each use of a stored weight would gather it anew.
 *   keep_for_backward: the forward half reads the weight through `whole`, and the backward half reads that value: a
 *     forward value that is saved, so it is counted like one, for each micro-batch in flight.
 *   keep: a graph that runs once a step, `begin`, writes `whole` of the weight to a tensor that all micro-batches read.
 * Partitioning gathers before `whole`, as before any view. */
#include "graph/step.h"

typedef enum Keeping { KEEP_NOTHING, KEEP_FOR_BACKWARD, KEEP_FOR_STEP } Keeping;

/* Rule 1: whether the axis cuts a tensor of this shape. */
static bool is_cut(const Plan *plan, int axis, const Graph *graph, const Shape *shape) {
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        Dim *dim = rule->axis == axis && rule->what ? graph_find_dim(graph, rule->what) : NULL;
        for (; dim; dim = dim->n_factors ? dim->factors[0] : NULL)
            if (shape_find(shape, dim) >= 0) return true;
    }
    return false;
}

/* What the rule of the axis that stores the weight says: the first one that may, as in partitioning. */
static Keeping keeping(const Plan *plan, const Graph *graph, const Tensor *weight) {
    for (int a = 0; a < plan->mesh.n; a++)
        for (int i = 0; i < plan->rules.n; i++) {
            const Rule *rule = &plan->rules.at[i];
            if (rule->axis != a || rule->storage != STORAGE_WEIGHTS || is_cut(plan, a, graph, &weight->shape)) continue;
            if (rule->block && !(weight->blocks >> (rule->block - 1) & 1)) continue;
            if (!rule->using_name || strcmp(rule->using_name, "free") == 0) return KEEP_NOTHING;
            return strcmp(rule->using_name, "keep") == 0 ? KEEP_FOR_STEP : KEEP_FOR_BACKWARD;
        }
    return KEEP_NOTHING;
}

static bool plan_keeps(const Plan *plan) {
    for (int i = 0; plan && i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (rule->storage == STORAGE_WEIGHTS && rule->using_name && strcmp(rule->using_name, "free") != 0) return true;
    }
    return false;
}

static Builder builder_at(Graph *graph, const Node *node) {
    return (Builder){.graph = graph, .region = &graph->top, .span = node->span, .name = node->name, .path = node->path};
}

/* ---- from forward to backward ------------------------------------------------------------------------------------ */

/* The `whole` behind the forward half's input of each kept weight; all readers read it. */
static void share_between_halves(Graph *graph, const Plan *plan) {
    NodeList old = graph->top.nodes;
    Map wholes = {0}; /* Tensor -> whole */
    graph->top.nodes = (NodeList){0};
    for (int i = 0; i < old.n; i++) {
        Node *node = old.at[i];
        for (int k = 0; k < node->n_in; k++) {
            Node *read = node->in[k];
            Node *whole = read->op == OP_INPUT ? map_get(&wholes, read->tensor) : NULL;
            if (whole) node->in[k] = whole;
        }
        vec_push(graph->arena, &graph->top.nodes, node);
        bool kept = node->op == OP_INPUT && !node->backward && node->tensor->class == CLASS_WEIGHT &&
                    keeping(plan, graph, node->tensor) == KEEP_FOR_BACKWARD;
        if (!kept || map_get(&wholes, node->tensor)) continue;
        Builder b = builder_at(graph, node);
        map_put(graph->arena, &wholes, node->tensor, build_op(&b, OP_WHOLE, &node, 1, NULL));
    }
    if (wholes.n) graph_drop_dead(graph); /* the backward half's own inputs */
}

/* ---- for the whole step ------------------------------------------------------------------------------------------ */

static Graph *begin_graph(Step *step) {
    if (step->begin) return step->begin;
    Graph *graph = step->begin = graph_new(step->session, step->session->arena, "begin");
    for (int i = 0; i < step->update->dims.n; i++) vec_push(graph->arena, &graph->dims, step->update->dims.at[i]);
    return graph;
}

static Tensor *gathered_copy(Step *step, Map *copies, Tensor *weight, Span span) {
    Tensor *copy = map_get(copies, weight);
    if (copy) return copy;
    Graph *begin = begin_graph(step);
    Arena *arena = begin->arena;
    copy = NEW(arena, Tensor);
    *copy = (Tensor){.name = intern(step->session->names, arena_printf(arena, "%s.gathered", weight->name)),
                     .class = CLASS_STAGE,
                     .dtype = weight->dtype,
                     .shape = weight->shape,
                     .of = weight,
                     .span = span};
    map_put(arena, copies, weight, copy);
    Builder b = step_builder(begin);
    b.span = weight->span;
    Node *stored = step_input(&b, weight);
    step_output(begin, copy, build_op(&b, OP_WHOLE, &stored, 1, NULL), false);
    return copy;
}

static void read_copies(Step *step, Map *copies, Graph *graph, const Plan *plan) {
    for (int i = 0; i < graph->top.nodes.n; i++) {
        Node *node = graph->top.nodes.at[i];
        if (node->op != OP_INPUT || node->tensor->class != CLASS_WEIGHT) continue;
        if (keeping(plan, graph, node->tensor) != KEEP_FOR_STEP) continue;
        node->tensor = gathered_copy(step, copies, node->tensor, node->tensor->span);
        bool listed = false;
        for (int k = 0; k < graph->tensors.n; k++) listed |= graph->tensors.at[k] == node->tensor;
        if (!listed) vec_push(graph->arena, &graph->tensors, node->tensor);
    }
}

void step_keep_weights(Step *step, const Plan *plan) {
    if (!plan_keeps(plan)) return;
    Map copies = {0};
    for (int i = -1; i < step->n_chunks; i++) {
        Graph *body = i < 0 ? step->body : step->bodies[i];
        if (!body) continue;
        share_between_halves(body, plan);
        read_copies(step, &copies, body, plan);
    }
}
