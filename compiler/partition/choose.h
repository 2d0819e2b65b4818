/* Between the two halves of partitioning: what was chosen for each node. Private to this folder. */
#ifndef PLAN_CHOOSE_H
#define PLAN_CHOOSE_H

#include "partition/partition.h"

typedef struct NodeChoice {
    AxisType *need; /* for input i on axis a: need[i * MAX_MESH + a] */
    unsigned rings; /* of attention: the axes along which keys and values go round, a bit each */
} NodeChoice;

/* A conversion that some use has already asked for: free for the next one. */
typedef struct Made {
    const Node *value;
    int axis;
    AxisType type;
    int before; /* 1 + index of the value's one before, or 0 */
} Made;

typedef struct Choices {
    Arena *arena;
    Session *session;
    const Layout *layout;
    bool reproducible; /* no cut may change the order of a sum (reproducible.c) */
    Map of;            /* Node -> NodeChoice */
    double flops;      /* of the node that is chosen */
    VEC(Made) made;
    Map made_of; /* value -> 1 + index of its last one in `made` */
    Map weights; /* nodes that are weights, or a layer's slice, another view or precision of one */
    bool once;   /* the graph runs once a step: what it makes of weights is for their update, or for a norm */
    Map stacked; /* repeat node -> AxisType *: wanted types of its results, MAX_MESH each; only cuts count */
} Choices;

/* The type before rule 3 made the tensor a flat range. */
static inline const AxisType *tensor_type(const Tensor *tensor) {
    return tensor->logical.n ? tensor->logical_type : tensor->type;
}
static inline bool type_is_flat(AxisType type) { return type.kind == AXIS_SHARDED && type.layout == LAYOUT_FLAT; }
/* How many of its first dimensions stack the value over layers: they stay apart from the flat range. */
int shape_layers(const Shape *shape);
/* A flat range ends with padding where its parts are not equal. All that is stored has zeros there; other values have
 * what their operators make of zeros, and only zeros may be summed or stored. */
typedef enum Padding { PADDING_UNKNOWN, PADDING_ZERO, PADDING_OTHER } Padding;
bool flat_is_padded(const Layout *layout, const Node *value, int axis);
Padding flat_padding(const Node *node, int axis);

/* Of reproducible graphs: whether the bits of the node's results stay the same when the axis cuts this letter. */
bool cut_keeps_order(const Choices *c, const Node *node, int axis, const Letter *letter);

NodeChoice *choice_of(Choices *c, const Node *node);
/* Constants, index ramps, random bits: they have no type, each use makes the part it needs. */
bool node_is_source(const Node *node);
/* Appends what an attention node with `rings` becomes to `out`, its inputs being converted; results[k] are its values.
 */
void ring_expand(Graph *graph, Region *region, const Mesh *mesh, const Node *node, unsigned rings, NodeList *out,
                 Node **results);
/* Element by element from sources alone, such as the mask of a padded dimension: each use makes its own part. */
bool node_is_remade(const Node *node);
/* Sets the type of every node of the region (parameters are set by the caller) and the types that its uses need. */
void choose_region(Choices *c, Region *region);

#endif
