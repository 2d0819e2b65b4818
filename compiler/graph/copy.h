/* Copying a graph with rewriting: what graph_simplify and grad_to_step are made of.
 *
 * A copy walks the source in order, hands each node to a rule (or expands it, folds it, shares it with an equal node)
 * and builds what comes out in the target. Dimensions and tensors may be replaced on the way. A rule that stands deep
 * in repeats can ask for values from outside (captures), for a layer's slice of a stored tensor, and can stack a value
 * up to a stored tensor: parameters and results of the repeats around it are added as needed. */
#ifndef PLAN_GRAPH_COPY_H
#define PLAN_GRAPH_COPY_H

#include "graph/graph.h"

typedef struct Copy Copy;
typedef struct CopyLevel CopyLevel;

/* What stands for `node` in the target, with `in` its inputs there; NULL: the usual. Nodes are built with &copy->b and
 * are themselves rewritten again, so the rule must not make the kind of node that it replaces. */
typedef Node *CopyRule(Copy *copy, const Node *node, Node *const *in);

struct Copy {
    Graph *to;
    Builder b;
    Map dims;              /* Dim -> Dim: replaced ones; others are shared */
    Map groups;            /* Dim -> Dim: repeats over it are put in groups, with a repeat over the other in each */
    Map tensors;           /* Tensor -> Tensor */
    Map nodes;             /* source node -> target node */
    Map tuples;            /* tuple that was expanded -> Node *[n_results] */
    bool keeps_composites; /* nothing is expanded */
    CopyRule *rule;
    void *context;
    /* Where parts of the target have other dimensions: `enter` sets `dims` for a node before it is copied, and `fit`
     * gives an operand the dimensions that its reader expects. Both or neither. */
    void (*enter)(Copy *copy, const Node *node);
    Node *(*fit)(Copy *copy, const Node *source, Node *value);
    const Node *source; /* that is copied */
    CopyLevel *level;
};

void copy_begin(Copy *copy, Graph *to);
/* All nodes of the region (the top of a graph). */
void copy_region(Copy *copy, const Region *from);
/* Outputs that name nodes which were rewritten follow them; then what is dead is dropped. */
void copy_finish(Copy *copy);
Node *copy_value(const Copy *copy, const Node *node); /* of a source node that was copied */
Dim *copy_dim(const Copy *copy, Dim *dim);
Shape copy_shape(const Copy *copy, const Shape *shape);
Tensor *copy_tensor(Copy *copy, Tensor *tensor);

/* For rules. The value of a tensor that does not depend on layers, here. */
Node *copy_capture(Copy *copy, Tensor *tensor);
/* A number for each run of this place by the repeats around it; NULL outside of repeats. */
Node *copy_layer_number(Copy *copy);
/* The dimensions of the repeats around this place, outermost first. */
Shape copy_layers(const Copy *copy);
/* This layer's part of a tensor whose shape begins with copy_layers. */
Node *copy_slice(Copy *copy, Tensor *tensor);
/* Writes the value of each layer to such a tensor. */
void copy_stack(Copy *copy, Tensor *tensor, Node *value);

/* A repeat over groups of `dim`'s layers, whose body repeats over the layers of one: the same node otherwise. `each` is
 * how many of them a group has (nest.c). */
Node *repeat_in_groups(Arena *arena, const Node *repeat, Dim *each);

/* The node as something simpler when all that needs is at hand (x * 1, a constant of constants); NULL otherwise. */
Node *fold_node(Builder *b, const Node *node, Node *const *in);
/* What some of the outputs need (all, when `counts` is NULL): the backward slice, exact also inside repeats. Node ids
 * are below graph->n_nodes. */
typedef struct ParamHome ParamHome;
typedef struct LiveNodes {
    Arena *arena;
    bool *live;      /* by Node.id */
    ParamHome *home; /* by Node.id, of parameters */
    Map results;     /* repeat -> bool[n_outs]: results that are used */
} LiveNodes;
LiveNodes graph_live_nodes(Arena *arena, const Graph *graph, bool (*counts)(const Output *output));
void live_nodes_add(LiveNodes *live, const Node *node); /* and what it needs */
/* Sums over `dim` of what its repeat stacks become carries of the repeat (layer_sums.c). */
void graph_carry_layer_sums(Graph *graph, const Dim *dim);
/* Marks the nodes of a chunk's backward half that no other stage waits for as `deferred` (split_backward.c). */
void graph_split_backward(Graph *graph);
/* Drops what no output needs: nodes, and carries, slices, captures and stacked results of repeats; numbers the rest. */
void graph_drop_dead(Graph *graph);

#endif
