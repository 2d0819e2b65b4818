/* The cut of one graph into the graphs of a pipeline's chunks. Private to this folder: step_stages.c makes steps of it,
 * stages_place.c finds where nodes stand, stages_chunk.c makes the graphs.
 *
 * Every node of a micro-batch's graph has a position on the way through the pipeline: chunk c's forward pass is c, its
 * backward pass 2C - 1 - c. The pipelined repeat, and whatever is stacked over it, stands in every chunk, with that
 * chunk's layers; its carries are handed on. What follows from data and constants alone is made again where it is used.
 * Other forward values stand at the first chunk that needs them, or at the last when they follow from the repeat; a
 * backward value stands at the first position at which all that it reads is at hand; cheap ones that follow from
 * forward values alone are computed again wherever they are needed. A value that another chunk needs is an edge: an
 * output here, an input there. */
#ifndef PLAN_GRAPH_STAGES_CUT_H
#define PLAN_GRAPH_STAGES_CUT_H

#include "graph/stages.h"
#include "graph/step.h"

enum { POS_FREE = -1, POS_EVERY = -2, POS_DISSOLVED = -3, POS_AGAIN = -4 };

typedef struct Edge {
    Node *value; /* or NULL: a carry of `repeat` */
    const Node *repeat;
    int carry;
    int from, to; /* positions */
    Tensor *out, *in;
} Edge;

typedef struct Cutter {
    Session *s;
    Arena *arena;
    const StageCut *cut;
    Stepper *st;
    int n_chunks;       /* over all stages: C */
    Dim *dim, **parts;  /* the repeat's dimension; that of each chunk */
    Map *stage_tensors; /* by stage: Tensor -> its own */
    Map *chunk_tensors; /* by chunk: of what is stacked over the repeat */
    int n_channels;
    /* of the graph that is cut */
    Graph *graph;
    int *pos, *uses;
    bool *touches; /* follows from a weight */
    bool *late;    /* follows from the repeat */
    bool *again;   /* by chunk and node: forward values that its backward pass computes again */
    bool *split;   /* carries of the backward repeat that are kept apart */
    const Node *forward, *backward;
    VEC(Edge) edges;
    Graph **chunks;
    Copy copy; /* of the chunk that is made */
} Cutter;

static inline int chunk_at(const Cutter *c, int pos) { return pos < c->n_chunks ? pos : 2 * c->n_chunks - 1 - pos; }
static inline int stage_of(const Cutter *c, int chunk) { return chunk % c->cut->n_stages; }
static inline int pos_of(const Cutter *c, int chunk, bool backward) {
    return backward ? 2 * c->n_chunks - 1 - chunk : chunk;
}
static inline bool is_stacked(const Cutter *c, const Shape *shape) { return shape_find(shape, c->dim) >= 0; }
static inline bool is_pipelined(const Cutter *c, const Node *node) {
    return node->op == OP_REPEAT && node->region->dim == c->dim;
}
static inline bool is_weight_gradient(const Tensor *tensor) { return tensor->class == CLASS_GRADIENT && tensor->of; }

/* ---- tensors of a stage (stages_chunk.c) -------------------------------------------------------- */

/* A tensor has one name in all stages; what is stacked has a name for each chunk of the stage. */
Tensor *cutter_tensor(Cutter *c, int chunk, Tensor *tensor);

/* ---- where nodes stand (stages_place.c) --------------------------------------------------------- */

/* The pipelined repeats, positions of all nodes, and the edges that they need. False after diagnostics. */
bool cutter_place_nodes(Cutter *c);
/* The edge of the value, or of a repeat's carry; NULL when there is none. */
Edge *cutter_find_edge(Cutter *c, const Node *value, int to_chunk);
Edge *cutter_find_carry(Cutter *c, const Node *repeat, int carry, int from_chunk);
/* The last chunk that a value computed again follows from. */
int cutter_last_chunk(const Cutter *c, const Node *node);

/* ---- the graphs (stages_chunk.c) ---------------------------------------------------------------- */

/* An empty graph with the dimensions of this chunk; `c->copy` copies into it. */
Graph *cutter_begin_graph(Cutter *c, int chunk);
/* Cuts the graph: `c->chunks` and `c->edges` are of it. False after diagnostics. */
bool cutter_cut_graph(Cutter *c, Graph *graph, const char *prefix);

#endif
