/* Rules for a part of the model, `in layers 0..3 { ... }`, as rules for the whole of another model. */
#ifndef PLAN_GRAPH_NARROW_H
#define PLAN_GRAPH_NARROW_H

#include "graph/step.h"

/* The plan without blocks of dimensions, for `*model`, which becomes one in which the parts have dimensions of their
 * own. The plan itself when it has no blocks; NULL after diagnostics. */
const Plan *plan_narrowed(Session *s, const Plan *plan, ModelGraph **model);
bool plan_is_narrowed(const Plan *plan);

/* The first block that is checked but not built, for P9000; NULL when there is none. */
const char *narrowing_unbuilt(Session *s, const ModelGraph *model, const Plan *plan, Span *where);

/* Whether `word` is a run of whole components of the path: "attention" or "attention.wq" of "layers.attention.wq". */
bool path_has_part(const char *path, const char *word);

#endif
