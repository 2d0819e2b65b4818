/* Inside compiler/graph only: the making of a step's graphs. Each file makes some of them:
 *   grad_to_step.c  sizes, names, count, body, eval      step_update.c  init, begin, update
 *   step_batch.c    which values are finished sums       step_decode.c  sampling */
#ifndef PLAN_GRAPH_STEP_H
#define PLAN_GRAPH_STEP_H

#include "graph/copy.h"

/* A sum over the micro-batches of a step that becomes a result: the loss, a logged value. */
typedef struct Running {
    Name name; /* of the result */
    Tensor *sum;
} Running;

/* The loss scale of fp16 (loss_scale.c): tensors are NULL in other precisions. */
typedef struct ScaleState {
    Tensor *factor, *good, *skipped;
    Node *finite; /* in `update`: whether the step counts */
} ScaleState;

typedef struct Stepper {
    Session *s;
    Arena *arena;
    const Train *train;
    const Plan *plan;
    const ModelGraph *model, *whole; /* whole: in f32, what samples */
    Step *step;
    Tensor *lr, *number, *seed, *position; /* scalars; number: `step` */
    Tensor *targets, *targets_partial;     /* weights of the targets, summed; NULL without a mask */
    VEC(Running) running;
    ScaleState scale;
    Map micro_dims;    /* Dim -> Dim: those of a micro-batch */
    Map own_tensors;   /* the model's weight -> this step's: types are those of one plan */
    Map micro_tensors; /* Tensor -> Tensor: shared by count, body and eval */
    int n_weights;     /* trained ones, with their gradients' tensors */
    Tensor **weights, **gradients;
    Tensor *
        *others; /* of a stage: for each weight, n_others gradients that come from other stages, or NULLs; or NULL */
    int n_others;
    bool is_stage, has_loss; /* of a pipeline; has_loss: the stage that makes it */
} Stepper;

/* Everything but the graphs that run once: NULL after diagnostics. */
Step *step_micro(Stepper *st);
void step_stepper(Stepper *st, Session *s, const Train *train, const Plan *plan, ModelGraph *model);

Name step_name(Stepper *st, const char *format, ...) __attribute__((format(printf, 2, 3)));
Tensor *step_tensor(Stepper *st, Name name, TensorClass class, DType dtype, Shape shape);
/* An empty graph with the model's dimensions, those in `replaced` exchanged. */
Graph *step_graph(Stepper *st, const char *name, const Map *replaced);
Builder step_builder(Graph *graph);
/* This step's tensor of a weight of the model. */
Tensor *step_weight(const Stepper *st, Tensor *weight);
Node *step_input(Builder *b, Tensor *tensor); /* one node for each tensor */
void step_output(Graph *graph, Tensor *tensor, Node *value, bool accumulate);
bool dim_is_batch(const Dim *dim); /* the batch, or a second name of it */

/* Simplifies in place with a rule. */
void graph_rewrite(Graph *graph, CopyRule *rule, void *context);
/* Leaves dropout away. */
Node *rule_without_dropout(Copy *copy, const Node *node, Node *const *in);

/* What a scalar that is computed in each micro-batch adds to the step's: itself when it is a sum over samples, its
 * share 1/micros when it does not depend on samples. NULL after a diagnostic, when it is neither a sum of the two. */
Node *step_share(Stepper *st, Graph *graph, Node *value);

/* The model over the longer dimensions of rule 4's `padded` (pad.c); the model itself when the plan pads nothing. */
const ModelGraph *model_padded(Session *s, const Plan *plan, const ModelGraph *model);
/* The model with copies of the factor that the plan repeats (repeat_heads.c); the model itself when it repeats none. */
const ModelGraph *model_repeated(Session *s, const Plan *plan, const ModelGraph *model);
/* The model with the casts that the plan's `precision` asks for (precision.c); the model itself in fp32. */
const ModelGraph *model_narrowed(Session *s, const Plan *plan, const ModelGraph *model);
DType plan_dtype(const Plan *plan);
/* The model with its repeats in groups, for `recompute every n` (nest.c); the model itself when the plan has no such.
 */
const ModelGraph *model_nested(Session *s, const Plan *plan, const ModelGraph *model);
/* A copy of the model, with the dimensions, tensors and rule of `setup`, and more dimensions. */
ModelGraph *model_rewritten(Session *s, const ModelGraph *model, Copy *setup, Dim *const *more, int n_more);
/* Auxiliary losses, loss, mask, logits and outputs of a copied model. */
void model_copy_results(ModelGraph *made, const ModelGraph *model, Copy *copy);
/* The random stream of the model's dropout with this number, from 1. */
int64_t dropout_key(uint32_t number);
/* x with `outside` behind the end of a padded dimension. */
Node *build_masked(Builder *b, Node *x, Dim *dim, double outside);

/* Makes the state; multiplies the loss; gives the state its first values. */
void scale_open(Stepper *st);
Node *scale_loss(Stepper *st, Builder *b, Node *loss);
void scale_init(Stepper *st, Builder *b);
/* In `update`, in this order: a gradient without the scale; the norm tells whether the step counts; what a tensor
 * becomes; the optimizer's count of steps; the next state. Without a scale each is what it was. */
Node *scale_removed(Stepper *st, Builder *b, Node *gradient);
void scale_look(Stepper *st, Builder *b, Node *norm);
Node *scale_keep(const Stepper *st, Builder *b, Node *updated, Node *old);
Node *scale_steps(Stepper *st, Builder *b);
void scale_update(Stepper *st, Builder *b);

Graph *step_init(Stepper *st);
Graph *step_begin(Stepper *st);
Graph *step_update(Stepper *st);
Graph *step_decode(Stepper *st); /* NULL for models that cannot be sampled token by token */

#endif
