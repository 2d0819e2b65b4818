/* Counts of a compilation: allocations, nodes of the graphs, kernels, buffers, actions. They show how the cost of a
 * plan grows, which times on a busy machine do not. */
#include "driver/stats.h"

static int64_t region_nodes(const Region *region) {
    int64_t n = region->nodes.n + region->params.n;
    for (int i = 0; i < region->nodes.n; i++)
        if (region->nodes.at[i]->region) n += region_nodes(region->nodes.at[i]->region);
    return n;
}

static int64_t graph_nodes(const Graph *graph) { return graph ? region_nodes(&graph->top) : 0; }

static int64_t step_nodes(const Step *step) {
    const Graph *graphs[] = {step->init, step->begin,  step->count, step->total,
                             step->body, step->update, step->eval,  step->decode};
    int64_t n = 0;
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) n += graph_nodes(graphs[i]);
    for (int i = 0; i < step->n_chunks; i++) n += graph_nodes(step->bodies[i]) + graph_nodes(step->evals[i]);
    return n;
}

static int64_t list_kernels(const KernelList *list) {
    int64_t n = list->n;
    for (int i = 0; i < list->n; i++) n += list_kernels(&list->at[i]->body);
    return n;
}

void stats_print(const Session *s, const ModelGraph *model, const ProgramFacts *facts, Text *out) {
    int64_t nodes = 0, kernels = 0, buffers = 0, actions = 0;
    for (int r = 0; r < facts->n_roles; r++) {
        const RoleProgram *role = facts->roles[r];
        nodes += step_nodes(facts->steps[r]);
        buffers += role->buffers.n;
        actions += facts->schedule->roles[r].actions.n;
        for (int e = 0; e < role->entries.n; e++) kernels += list_kernels(&role->entries.at[e].body);
    }
    const struct {
        const char *name;
        int64_t number;
    } counts[] = {{"ranks", mesh_ranks(facts->mesh)},
                  {"roles", facts->n_roles},
                  {"model_nodes", graph_nodes(model->graph)},
                  {"role_nodes", nodes},
                  {"kernels", kernels},
                  {"buffers", buffers},
                  {"actions", actions},
                  {"allocations", (int64_t)arena_calls(s->arena)},
                  {"allocated_bytes", (int64_t)arena_bytes(s->arena)}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        text_printf(out, "%s %lld\n", counts[i].name, (long long)counts[i].number);
}
