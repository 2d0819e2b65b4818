/* Reproducible mode: every sum of a step gets an order that no plan changes. See docs/decisions/reproducible.md. */
#ifndef PLAN_GRAPH_REPRODUCIBLE_H
#define PLAN_GRAPH_REPRODUCIBLE_H

#include "graph/graph.h"

/* Whether the mode keeps its promise under this plan; false after diagnostics. */
bool plan_is_reproducible(Session *s, const Plan *plan, const Graph *model);

/* Before partitioning, in place: sums over the batch, and all sums of what runs once, become exact numbers,
 * accumulators too; every graph is marked `reproducible`, which keeps partitioning and lowering from orders of their
 * own. False after diagnostics. */
bool step_make_reproducible(Session *s, Step *step);

#endif
