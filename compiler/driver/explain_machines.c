/* In: a plan on a cluster of several machines, which may hold different numbers of GPUs. Out: for each axis whose
 * groups of ranks lie on several machines, how many ranks each machine has of one group: those are joined first. */
#include "driver/explain_machines.h"

static int64_t machine_of(const Cluster *cluster, int64_t rank) {
    int64_t machine = 0;
    for (int i = 0; i < cluster->groups.n; i++) {
        const NodeGroup *group = &cluster->groups.at[i];
        if (rank < group->nodes * group->gpus) return machine + rank / group->gpus;
        rank -= group->nodes * group->gpus;
        machine += group->nodes;
    }
    return machine;
}

/* "1 + 3" for the group of `first` on the axis; its number of machines. */
static int64_t group_text(const ProgramFacts *facts, int axis, int64_t first, Text *text) {
    const Mesh *mesh = facts->mesh;
    int64_t stride = 1, machines = 0, ranks = 0, last = -1;
    for (int a = axis + 1; a < mesh->n; a++) stride *= mesh->axes[a].size;
    for (int64_t j = 0; j <= mesh->axes[axis].size; j++) {
        int64_t machine = j < mesh->axes[axis].size ? machine_of(facts->plan->cluster, first + j * stride) : -1;
        if (machine != last && ranks) {
            text_printf(text, "%s%lld", machines ? " + " : "", (long long)ranks);
            machines++, ranks = 0;
        }
        last = machine, ranks++;
    }
    return machines;
}

enum { LONGEST_GROUP = 64 };

void explain_machines(const ProgramFacts *facts, Text *out) {
    const Mesh *mesh = facts->mesh;
    for (int axis = 0; facts->plan->cluster && axis < mesh->n; axis++) {
        if (mesh->axes[axis].size > LONGEST_GROUP) continue;
        for (int64_t rank = 0; rank < mesh_ranks(mesh); rank++) {
            Text text = {.arena = facts->step->session->arena};
            if (mesh_coordinate(mesh, rank, axis) != 0) continue;
            int64_t machines = group_text(facts, axis, rank, &text);
            if (machines < 2) continue;
            text_printf(out, "`%s` goes over %lld machines (%s ranks): reduced inside each first\n",
                        mesh->axes[axis].name, (long long)machines, text.at);
            break;
        }
    }
}
