/* Partitioning of all graphs of a step, or of the steps of a pipeline's stages. */
#ifndef PLAN_STEP_PARTITION_H
#define PLAN_STEP_PARTITION_H

#include "graph/graph.h"
#include "partition/partition.h"

/* The names of each axis's list, as dimensions of this graph. */
Layout plan_layout(const Plan *plan, const Graph *graph, Map *flat_dims);
Layout plan_sampling_layout(const Plan *plan, const Graph *graph, Map *flat_dims);
/* `n` steps: the whole one, or one for each stage. Checks every graph with the verifier when `verifies`. */
void steps_partition(Step *const *steps, int n, const Plan *plan, bool verifies);

#endif
