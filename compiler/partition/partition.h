/* From the step to roles: a type for each mesh axis on every value, and the conversions between them.
 *
 * The five rules of the plan block meet here as data: an ordered list of names for each axis (rule 1), storage words
 * (rule 3). Nothing in this folder knows what kind of parallelism a rule stands for. */
#ifndef PLAN_PARTITION_H
#define PLAN_PARTITION_H

#include "ir/op.h"

/* The sentences on one axis, joined, in text order: the first name that a tensor has shards it. */
/* What rule 3 stores in parts: each implies the ones before it. */
typedef enum StoredParts { STORED_WHOLE, STORED_OPTIMIZER, STORED_GRADIENTS, STORED_WEIGHTS } StoredParts;

/* How an axis that cuts the sequence runs attention: as is cheapest; keys and values gathered; heads cut instead of the
 * sequence, by two exchanges (DeepSpeed Ulysses); keys and values handed from rank to rank in turns. */
typedef enum AttentionWay { ATTENTION_ANY, ATTENTION_GATHER, ATTENTION_ULYSSES, ATTENTION_RING } AttentionWay;

/* What a block of the plan stores, of the weights that it holds for (Tensor.blocks). */
typedef struct BlockStored {
    int block; /* from 1 */
    StoredParts stored;
} BlockStored;

typedef struct AxisRules {
    VEC(Dim *) names;       /* dimensions of the graph */
    VEC(Dim *) balanced;    /* those of them, and of what other graphs cut, that lie in the balanced layout */
    StoredParts stored;     /* of any tensor */
    StoredParts stored_all; /* of every one */
    VEC(BlockStored) blocks;
    AttentionWay attention; /* `seq on AXIS using ...` */
    Span attention_span;
} AxisRules;

typedef struct Layout {
    Mesh mesh;
    AxisRules axes[MAX_MESH];
    Map *flat_dims; /* rule 3's flat ranges by name, shared by the graphs of a step */
} Layout;

/* A value cut along `dim` on this axis, in the layout that the plan gives to it. */
AxisType layout_cut(const Layout *layout, int axis, Dim *dim);
/* The type that rule 1 gives to a tensor of this shape on one axis. */
AxisType layout_type(const Layout *layout, int axis, const Shape *shape);

/* Gives every tensor and node of the graph its types and inserts every conversion, in place; graph->mesh is set.
 *
 * Node by node, in order: for each axis, the operator's dimension string lists the ways the axis can run it (cut one
 * letter, or stay whole, or pass a partial value through); the cheapest way, counting the bytes that its conversions
 * move, is taken. A value keeps the type in which it was made; each use converts it, equal conversions are shared. */
void graph_partition(Graph *graph, const Layout *layout);

/* What moving a value from one type to another costs, in bytes sent by a rank; infinity when there is no way. */
double conversion_bytes(const Mesh *mesh, int axis, double local_bytes, AxisType from, AxisType to);

#endif
