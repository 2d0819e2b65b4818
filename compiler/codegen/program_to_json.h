/* Inside codegen and for its caller: what is known of a program when it is generated, and its description as JSON. */
#ifndef PLAN_PROGRAM_TO_JSON_H
#define PLAN_PROGRAM_TO_JSON_H

#include "graph/graph.h"
#include "kernels/kernels.h"

/* What is known of a program when it is generated. */
typedef struct ProgramFacts {
    const Train *train;
    const Plan *plan;
    const Step *step;
    const Mesh *mesh;
    bool batch_on_axis[MAX_MESH]; /* the axes that divide the batch */
    const Schedule *schedule;
    RoleProgram **roles;
    Step *const *steps; /* of each role */
    int n_roles;
    int step_axis;  /* with several roles: the mesh axis whose coordinate is a rank's role */
    int n_channels; /* of transfers between roles */
} ProgramFacts;

/* JSON text in the session's arena; see docs/program.md. */
const char *program_to_json(const ProgramFacts *facts);

#endif
