/* The order in which the graphs of a step get their types.
 *
 * A micro-batch's body comes first: accumulators take the types of the gradients that it makes. Of a pipeline, all
 * bodies come first, since a gradient that another stage sends has the type in which it was made there. */
#include "partition/step_partition.h"

#include "model/resolve.h"

static AttentionWay attention_way(const char *word) {
    static const char *const words[] = {
        [ATTENTION_GATHER] = "gather", [ATTENTION_ULYSSES] = "ulysses", [ATTENTION_RING] = "ring"};
    for (int way = ATTENTION_GATHER; way <= ATTENTION_RING; way++)
        if (strcmp(words[way], word) == 0) return (AttentionWay)way;
    return ATTENTION_ANY;
}

Layout plan_layout(const Plan *plan, const Graph *graph, Map *flat_dims) {
    Layout layout = {.mesh = plan->mesh, .flat_dims = flat_dims};
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        static const StoredParts stored[] = {[STORAGE_OPTIMIZER] = STORED_OPTIMIZER,
                                             [STORAGE_GRADIENTS] = STORED_GRADIENTS,
                                             [STORAGE_WEIGHTS] = STORED_WEIGHTS};
        AxisRules *axis = &layout.axes[rule->axis];
        if (rule->storage && stored[rule->storage] > axis->stored) axis->stored = stored[rule->storage];
        if (rule->storage && !rule->block && stored[rule->storage] > axis->stored_all)
            axis->stored_all = stored[rule->storage];
        if (rule->storage && rule->block)
            vec_push(graph->arena, &axis->blocks, (BlockStored){rule->block, stored[rule->storage]});
        if (!rule->what) continue;
        if (rule->using_name && !using_is_schedule(rule->using_name)) { /* plan_unbuilt has refused every other word */
            layout.axes[rule->axis].attention = attention_way(rule->using_name);
            layout.axes[rule->axis].attention_span = rule->span;
        }
        Dim *dim =
            rule->how == STORE_REPEATED ? NULL : graph_find_dim(graph, rule->what); /* it is cut through its product */
        if (!dim) continue;
        vec_push(graph->arena, &layout.axes[rule->axis].names, dim);
        if (rule->using_name && attention_way(rule->using_name) == ATTENTION_RING) /* causal work is equal */
            vec_push(graph->arena, &layout.axes[rule->axis].balanced, dim);
    }
    return layout;
}

/* Sampling runs on one rank, with whole weights: the rules only say in which layout they are stored. */
Layout plan_sampling_layout(const Plan *plan, const Graph *graph, Map *flat_dims) {
    Layout layout = plan_layout(plan, graph, flat_dims);
    for (int a = 0; a < layout.mesh.n; a++) {
        layout.axes[a].names.n = 0;
        layout.axes[a].stored = STORED_WHOLE;
        layout.axes[a].attention = ATTENTION_ANY;
    }
    return layout;
}

typedef struct Pass {
    const Plan *plan;
    Map *flat_dims;
    bool verifies;
} Pass;

static void verify(const Pass *pass, const Graph *graph, const char *when) {
    Text why = {.arena = graph->arena};
    if (pass->verifies && !graph_verify(graph, &why)) BUG("%s, graph %s: %s", when, graph->name, why.at);
}

static void partition(const Pass *pass, Graph *graph) {
    if (!graph) return;
    Layout layout = plan_layout(pass->plan, graph, pass->flat_dims);
    graph_partition(graph, &layout);
    verify(pass, graph, "after partitioning");
}

static void partition_decode(const Pass *pass, Graph *graph) {
    if (!graph) return;
    Layout one = plan_sampling_layout(pass->plan, graph, pass->flat_dims);
    graph_partition(graph, &one);
    verify(pass, graph, "after partitioning");
}

static void partition_once(const Pass *pass, Step *step) {
    for (int i = 0; i < step->sent.n; i++) {
        const Tensor *sent = step->sent.at[i];
        Tensor *received = step->received.at[i];
        received->shape = sent->shape, received->logical = sent->logical, received->typed = true;
        memcpy(received->type, sent->type, sizeof sent->type);
        memcpy(received->logical_type, sent->logical_type, sizeof sent->logical_type);
    }
    Graph *graphs[] = {step->update, step->begin, step->init, step->count, step->total, step->eval};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) partition(pass, graphs[i]);
    partition_decode(pass, step->decode);
    for (int k = 0; step->decodes && k < step->n_chunks; k++) partition_decode(pass, step->decodes[k]);
}

/* Before any of them has types: tensors are shared, so those that are stored in parts are so in all graphs. */
static void verify_all(const Pass *pass, const Step *step, const char *when) {
    const Graph *graphs[] = {step->body,  step->update, step->begin, step->init,
                             step->count, step->total,  step->eval,  step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++)
        if (graphs[i]) verify(pass, graphs[i], when);
    for (int k = 0; k < step->n_chunks; k++) {
        verify(pass, step->bodies[k], when);
        verify(pass, step->evals[k], when);
        if (step->decodes) verify(pass, step->decodes[k], when);
    }
}

void steps_partition(Step *const *steps, int n, const Plan *plan, bool verifies) {
    Pass pass = {plan, NEW(steps[0]->session->arena, Map), verifies};
    for (int i = 0; i < n; i++) verify_all(&pass, steps[i], "before partitioning");
    for (int i = 0; i < n; i++) {
        partition(&pass, steps[i]->body);
        for (int k = 0; k < steps[i]->n_chunks; k++) {
            partition(&pass, steps[i]->bodies[k]);
            partition(&pass, steps[i]->evals[k]);
        }
    }
    for (int i = 0; i < n; i++) partition_once(&pass, steps[i]);
    /* once more: a tensor has one type in all graphs */
    for (int i = 0; i < n; i++) verify_all(&pass, steps[i], "after partitioning all graphs");
}
