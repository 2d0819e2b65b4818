/* From the typed model to the graphs of one training step. */
#ifndef PLAN_GRAPH_H
#define PLAN_GRAPH_H

#include "ir/op.h"
#include "model/model.h"

/* The model as written: one graph, forward only, composite operators kept. Outputs: "loss" (a value for each target,
 * or a scalar), "loss.mask" when targets are weighted, "auxiliary.N", "log.NAME", and "logits" when the loss is a
 * cross-entropy (what sampling reads). Weight initialisers are in `inits`. */
typedef struct Init {
    Tensor *weight;
    enum { INIT_NORMAL, INIT_UNIFORM, INIT_CONST } kind;
    double a, b;  /* standard deviation; bounds; value */
    uint32_t key; /* from the logical name: the same under every plan */
} Init;

typedef struct ModelGraph {
    Graph *graph;
    VEC(Init) inits;
    Node *loss, *mask, *logits; /* mask, logits: may be NULL */
    VEC(Node *) auxiliary;
    VEC(Dim *) dims; /* of the model, with sizes: what rules may name */
    Dim *batch;
    Dim *seq;               /* the dimension along which `next` shifts, or NULL */
    double flops_per_token; /* filled by the cost count */
    int64_t parameters;
} ModelGraph;

/* Elaborates the model that `train` names: layers are inlined, dimensions scoped, every shape checked. Reports all
 * mistakes; NULL when there were errors. */
ModelGraph *model_to_graph(Session *s, const Program *program, const Train *train);

/* Rewrites composite operators into primitives, folds constants, drops dead nodes. In place. */
void graph_simplify(Graph *graph);

/* What the backward half makes again instead of keeping it. `full`: in a repeat, everything but its carries. A name
 * means all that a layer call (or a repeat) of that name makes for itself, or a tensor. */
typedef struct Recompute {
    bool full;
    const Name *names;
    int n;
} Recompute;

/* Adds d(target)/d(each weight) for the scalar `target` (already summed), with nodes marked `backward`; returns one
 * node for each weight of `weights` (NULL where the weight has no influence). Forward values that the backward half
 * needs are saved, except for those of cheap operators, which are cloned there, and those that `again` (or NULL)
 * names. */
void graph_to_grad(Graph *graph, Node *target, Tensor *const *weights, int n, const Recompute *again, Node **gradients);

/* The graphs of a step. Any may be NULL where it is not needed: `begin` with one micro-batch, `count` and `total`
 * without weights on the targets, `decode` for models that cannot be sampled token by token.
 *
 * Tensors are shared between the graphs by identity, except those with `batch` or `seq`, which have the same name: a
 * micro-batch has a `batch` of its own size, decode has `batch` and `seq` of size 1. Accumulators are of class
 * GRADIENT: "grad.W" for each trained weight, "loss.sum" and "log.NAME.sum" (handed out as results by `update`),
 * "targets.sum" (from `count`) and "targets" (from `total`, read by `body`). They add up only with several
 * micro-batches. Dropout is a matter of the graph: `body` has it, with a random stream of (key, seed, step, layer);
 * `eval` and `decode` are built without. */
/* A value that one stage of a pipeline hands to another. Sender and receiver have an entry each, with the same channel.
 */
typedef enum TransferWhen {
    TRANSFER_F,        /* made, or needed, by the forward pass of a chunk */
    TRANSFER_B,        /* ... by the backward pass */
    TRANSFER_EVAL,     /* ... by an evaluation */
    TRANSFER_DECODE,   /* ... for one token of sampling */
    TRANSFER_GRADIENT, /* before the update: to the weight's home */
    TRANSFER_WEIGHT    /* after it: to a copy */
} TransferWhen;

enum { MAX_CHANNEL_DEPTH = 64 }; /* messages in a channel: PRT_CHANNEL_DEPTH */

typedef struct Transfer {
    Tensor *tensor;
    bool sends;
    int peer; /* the other stage */
    TransferWhen when;
    int chunk;   /* of this stage, from 0 */
    int channel; /* number among all transfers of the program */
    Name value;  /* as the user knows it: a variable, a tensor */
    Span span;
} Transfer;

typedef struct Step {
    Session *session;
    const ModelGraph *model;
    Graph *init;                 /* weights and moments */
    Graph *begin;                /* clears accumulators */
    Graph *count;                /* micro: targets of a micro-batch, added up */
    Graph *total;                /* once: their sum over ranks */
    Graph *body;                 /* micro: forward half and backward half */
    Graph *update;               /* once: clip and optimizer */
    Graph *eval;                 /* micro: forward alone, on validation data */
    Graph *decode;               /* one token for sampling */
    int64_t micros, micro_batch; /* micro_batch: sequences of all ranks in one micro-batch */
    /* Of a pipeline's stage: `body`, `eval` and `decode` are NULL, there is one for each chunk instead; `decodes` is
     * NULL where the model cannot be sampled. */
    int stage, n_stages, n_chunks; /* n_stages 0: not a stage */
    int stage_axis;
    Graph **bodies, **evals, **decodes;
    VEC(Transfer) transfers;
    VEC(Tensor *) sent, received; /* pairs: the received gradient has the type of the one that is sent */
} Step;

/* The training step of `model` under `plan`'s micro-batch size. Loss normalisation, clipping and the optimizer become
 * ordinary nodes. */
Step *grad_to_step(Session *s, const Train *train, const Plan *plan, ModelGraph *model);

/* `weights on AXIS using keep | keep_for_backward`: the step's graphs gather such weights once a step (in `begin`,
 * where all micro-batches read them) or once for both passes of a micro-batch. grad_to_step and grad_to_stages do it.
 */
void step_keep_weights(Step *step, const Plan *plan);

/* Micro-batches of a step; 0: the batch is not a whole number of them. */
int64_t plan_micros(const Plan *plan, const ModelGraph *model);

/* The first padding of the plan that has no meaning in this model, for P9000; NULL when there is none. */
const char *padding_unbuilt(Arena *arena, const ModelGraph *model, const Plan *plan, Span *where);

/* The same for `repeated`. */
const char *repeating_unbuilt(const ModelGraph *model, const Plan *plan, Span *where);

/* Reports a `recompute every n` whose n does not divide the layers of a repeat, or of a pipeline's chunk. */
void model_check_groups_of_layers(Session *s, const ModelGraph *model, const Plan *plan);

/* Reports words of the optimizer's groups that mean no weight of the model. */
void model_check_groups(Session *s, const Train *train, const ModelGraph *model);

/* The weight decay of a tensor: that of its parameter group, or the optimizer's. */
double step_weight_decay(const Train *train, const Tensor *weight);

#endif
