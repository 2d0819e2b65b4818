/* Pipeline stages: a step cut into one program for each stage.
 *
 * In: the whole step, before partitioning, and which layers each chunk has. Out: a Step for each stage, with the graphs
 * of its chunks. A chunk's graph holds the repeat cut to its layers; what it needs of other chunks are inputs of class
 * STAGE, what others need of it are outputs. Every later pass sees ordinary graphs and one list of transfers. */
#ifndef PLAN_GRAPH_STAGES_H
#define PLAN_GRAPH_STAGES_H

#include "graph/graph.h"

/* Chunk c of the layers, in model order, belongs to stage c % n_stages. */
typedef struct StageCut {
    int axis;               /* of the mesh */
    Name dim;               /* what the pipelined repeat runs over */
    int n_stages, n_chunks; /* n_chunks: over all stages */
    int64_t *first, *count; /* layers of each chunk; count may be 0 */
    bool splits_backward;   /* the schedule has BI and BW (set by the caller) */
    Span span;              /* of the rule */
} StageCut;

/* The cut that the plan asks for; false when no rule names a repeat of the model. Sizes have been checked. */
bool plan_stage_cut(Session *s, const Plan *plan, const ModelGraph *model, StageCut *cut);

/* The same number of chunks on every stage, and of layers in every chunk. */
void stage_cut_evenly(Session *s, StageCut *cut, int chunks, int64_t layers);

/* One Step for each stage; `*whole` is the step that they are made of (sizes, model). NULL after diagnostics. */
Step **grad_to_stages(Session *s, const Train *train, const Plan *plan, ModelGraph *model, const StageCut *cut,
                      Step **whole);

#endif
