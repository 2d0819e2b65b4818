/* A plan against the memory that a rank has: the micro-batch where none is stated, and the refusal with ways out. */
#ifndef PLAN_FIT_MEMORY_H
#define PLAN_FIT_MEMORY_H

#include "codegen/program_to_json.h"

/* To addresses, in this session's arena; NULL after diagnostics. */
typedef ProgramFacts *FitBuild(void *context, Session *s, const Plan *plan);

typedef struct Fit {
    Session *s;
    const Plan *plan;
    const ModelGraph *model;
    double machine_bytes; /* of --memory: what this machine has, all ranks together; 0: ask the system */
    int threads;          /* of --threads; 0: not given */
    FitBuild *build;
    void *context;
} Fit;

/* The plan built to addresses, with the largest micro-batch that fits where it states none (reported as a note). NULL
 * after diagnostics: P0601 when a rank needs more than it has. facts->plan is the plan as it was built. */
ProgramFacts *fit_memory(const Fit *fit);

#endif
