/* Between the two halves of partitioning: what was chosen for each node. Private to this folder. */
#ifndef PLAN_CHOOSE_H
#define PLAN_CHOOSE_H

#include "partition/partition.h"

typedef struct NodeChoice {
    AxisType *need; /* for input i on axis a: need[i * MAX_MESH + a] */
} NodeChoice;

/* A conversion that some use has already asked for: free for the next one. */
typedef struct Made {
    const Node *value;
    int axis;
    AxisType type;
} Made;

typedef struct Choices {
    Arena *arena;
    Session *session;
    const Layout *layout;
    Map of;       /* Node -> NodeChoice */
    double flops; /* of the node that is chosen */
    VEC(Made) made;
    Map weights; /* nodes that are weights, or a layer's slice, another view or precision of one */
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

NodeChoice *choice_of(Choices *c, const Node *node);
/* Constants, index ramps, random bits: they have no type, each use makes the part it needs. */
bool node_is_source(const Node *node);
/* Sets the type of every node of the region (parameters are set by the caller) and the types that its uses need. */
void choose_region(Choices *c, Region *region);

#endif
