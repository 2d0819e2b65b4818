/* What runs once: initial weights, clearing of accumulators, and the update with clipping. */
#include "graph/step.h"

#include <math.h>

static Node *filled(Builder *b, const Tensor *tensor, double value) {
    return build_broadcast(b, build_const(b, tensor->dtype, value), &tensor->shape);
}

/* ---- moments ----------------------------------------------------------------------------------------------------- */

enum { MAX_MOMENTS = 2 };

static int moment_count(const Optimizer *optimizer) {
    if (optimizer->kind == OPT_ADAMW) return 2;
    return optimizer->momentum != 0 ? 1 : 0;
}

/* One tensor for each weight and moment, the same in init and update. */
static Tensor *moment(Stepper *st, Tensor *weight, int which) {
    const char *prefix = st->train->optimizer.kind == OPT_ADAMW ? which == 0 ? "adam.m" : "adam.v" : "sgd.m";
    Name name = step_name(st, "%s.%s", prefix, weight->name);
    for (int i = 0; st->step->init && i < st->step->init->tensors.n; i++)
        if (st->step->init->tensors.at[i]->name == name) return st->step->init->tensors.at[i];
    Tensor *tensor = step_tensor(st, name, CLASS_MOMENT, DT_F32, weight->shape);
    tensor->of = weight;
    tensor->span = weight->span;
    return tensor;
}

/* ---- init --------------------------------------------------------------------------------------- */

static Node *initial_value(Stepper *st, Builder *b, const Init *init) {
    AttrValue attrs[2] = {{.integer = (int64_t)init->key}, {.dims = init->weight->shape}};
    Node *seed = step_input(b, st->seed);
    if (init->kind == INIT_CONST) return filled(b, init->weight, init->a);
    if (init->kind == INIT_NORMAL) return build_scale(b, build_op(b, OP_RANDOM_NORMAL, &seed, 1, attrs), init->a);
    Node *unit = build_op(b, OP_RANDOM_UNIFORM, &seed, 1, attrs);
    return build_binary(b, OP_ADD, build_scale(b, unit, init->b - init->a), build_const(b, DT_F32, init->a));
}

/* A stacked weight is one random tensor, so its numbers do not depend on where a layer is kept. */
Graph *step_init(Stepper *st) {
    Graph *graph = step_graph(st, "init", NULL);
    Builder b = step_builder(graph);
    for (int i = 0; i < st->model->inits.n; i++) {
        const Init *init = &st->model->inits.at[i];
        b.span = init->weight->span;
        Node *value = initial_value(st, &b, init);
        for (int k = 0; k < value->shape.n; k++)
            if (value->shape.dims[k]->unpadded) value = build_masked(&b, value, value->shape.dims[k], 0);
        step_output(graph, step_weight(st, init->weight), value, false);
    }
    for (int i = 0; i < st->n_weights; i++)
        for (int k = 0; k < moment_count(&st->train->optimizer); k++) {
            Tensor *tensor = moment(st, st->weights[i], k);
            b.span = tensor->span;
            step_output(graph, tensor, filled(&b, tensor, 0), false);
        }
    scale_init(st, &b);
    graph_simplify(graph);
    return graph;
}

/* ---- begin ------------------------------------------------------------------------------------------------------- */

Graph *step_begin(Stepper *st) {
    if (st->step->micros == 1 && st->step->n_chunks < 2) return NULL; /* sums of one are written, not added */
    Graph *graph = step_graph(st, "begin", NULL);
    Builder b = step_builder(graph);
    for (int i = 0; i < st->n_weights; i++)
        step_output(graph, st->gradients[i], filled(&b, st->gradients[i], 0), false);
    for (int i = 0; i < st->running.n; i++)
        step_output(graph, st->running.at[i].sum, filled(&b, st->running.at[i].sum, 0), false);
    if (st->targets) step_output(graph, st->targets_partial, filled(&b, st->targets_partial, 0), false);
    graph_simplify(graph);
    return graph;
}

/* ---- update ------------------------------------------------------------------------------------------------------ */

/* The last component of a logical name: "layers.attention.wq" -> "wq". */
static const char *last_component(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* A word means a weight by its own name, or by the word that its layer gave it (`bias`, `norm`). */
static bool word_means(Name word, const Tensor *weight) {
    return word == weight->group || word == weight->name || strcmp(word, last_component(weight->name)) == 0;
}

/* The first group that means the weight. */
static const ParameterGroup *group_of(const Optimizer *optimizer, const Tensor *weight) {
    for (int i = 0; i < optimizer->groups.n; i++)
        for (int k = 0; k < optimizer->groups.at[i].words.n; k++)
            if (word_means(optimizer->groups.at[i].words.at[k], weight)) return &optimizer->groups.at[i];
    return NULL;
}

static bool word_is_idle(const ModelGraph *model, Name word) {
    for (int i = 0; i < model->inits.n; i++)
        if (word_means(word, model->inits.at[i].weight)) return false;
    return true;
}

static void report_idle(Session *s, const ModelGraph *model, const ParameterGroup *group, Name word) {
    Diag *d = diag_error(s, "P0248", group->span, "parameter group `%s` means no weight of the model", word);
    VEC(Name) names = {0};
    vec_push(s->arena, &names, "bias");
    vec_push(s->arena, &names, "norm");
    for (int i = 0; i < model->inits.n; i++)
        vec_push(s->arena, &names, last_component(model->inits.at[i].weight->name));
    Name nearest = nearest_name(word, names.at, names.n);
    if (nearest)
        diag_help(d, "did you mean `%s`?", nearest);
    else
        diag_help(d, "groups are named by a weight's own name, or `bias` and `norm` for all of their kind");
}

/* Biases and gains that decay although no group speaks of them: most likely not meant. */
static void warn_of_decay(Session *s, const Train *train, const ModelGraph *model) {
    const Tensor *first = NULL;
    int n = 0;
    for (int i = 0; i < model->inits.n && train->optimizer.weight_decay > 0; i++) {
        const Tensor *weight = model->inits.at[i].weight;
        bool named = weight->group && (strcmp(weight->group, "bias") == 0 || strcmp(weight->group, "norm") == 0);
        if (!named || weight->frozen || group_of(&train->optimizer, weight)) continue;
        if (n++ == 0) first = weight;
    }
    if (n == 0) return;
    Diag *d = diag_warning(s, "P0249", train->optimizer.span, "`weight_decay` also shrinks %d %s, such as `%s`", n,
                           n == 1 ? "bias or gain" : "biases and gains", first->name);
    diag_note(d, first->span, "declared here");
    diag_help(d, "follow the optimizer with `{ bias, norm: weight_decay = 0 }`, or name the decay that is meant");
}

/* A model may have no biases or no norms: only those two words may be idle. */
void model_check_groups(Session *s, const Train *train, const ModelGraph *model) {
    for (int i = 0; i < train->optimizer.groups.n; i++) {
        const ParameterGroup *group = &train->optimizer.groups.at[i];
        for (int k = 0; k < group->words.n; k++) {
            Name word = group->words.at[k];
            if (strcmp(word, "bias") == 0 || strcmp(word, "norm") == 0 || !word_is_idle(model, word)) continue;
            report_idle(s, model, group, word);
        }
    }
    warn_of_decay(s, train, model);
}

double step_weight_decay(const Train *train, const Tensor *weight) {
    const ParameterGroup *group = group_of(&train->optimizer, weight);
    return group && !isnan(group->weight_decay) ? group->weight_decay : train->optimizer.weight_decay;
}

/* Of a weight, over all stages that use it. */
static Node *gradient_of(Stepper *st, Builder *b, int i) {
    Node *g = step_input(b, st->gradients[i]);
    for (int k = 0; st->others && k < st->n_others; k++)
        if (st->others[i * st->n_others + k])
            g = build_binary(b, OP_ADD, g, step_input(b, st->others[i * st->n_others + k]));
    return scale_removed(st, b, g);
}

/* The sum over the stages of a pipeline; elsewhere the value itself. */
static Node *over_stages(const Stepper *st, Builder *b, Node *value) {
    if (!st->is_stage) return value;
    AttrValue attrs[] = {{.integer = st->step->stage_axis}, {.integer = REDUCE_SUM}};
    return build_op(b, OP_ALL_REDUCE, &value, 1, attrs);
}

static Node *gradient_norm(Stepper *st, Builder *b) {
    Node *sum = build_const(b, DT_F32, 0);
    for (int i = 0; i < st->n_weights; i++) {
        Node *g = gradient_of(st, b, i);
        b->span = st->weights[i]->span;
        sum = build_binary(b, OP_ADD, sum, build_reduce(b, OP_SUM, build_binary(b, OP_MUL, g, g), &g->shape));
    }
    return build_unary(b, OP_SQRT, over_stages(st, b, sum));
}

/* min(1, clip / (norm + 1e-6)), as the others do it; NULL without clipping. */
static Node *clip_factor(Stepper *st, Builder *b, Node *norm) {
    if (isnan(st->train->clip)) return NULL;
    Node *room = build_binary(b, OP_ADD, norm, build_const(b, DT_F32, 1e-6));
    Node *factor = build_binary(b, OP_DIV, build_const(b, DT_F32, st->train->clip), room);
    return build_binary(b, OP_MIN, factor, build_const(b, DT_F32, 1));
}

static void update_weight(Stepper *st, Builder *b, int i, Node *clip) {
    const Optimizer *optimizer = &st->train->optimizer;
    Tensor *weight = st->weights[i];
    const ParameterGroup *group = group_of(optimizer, weight);
    double decay = step_weight_decay(st->train, weight);
    Node *lr = step_input(b, st->lr), *w = step_input(b, weight), *g = gradient_of(st, b, i);
    b->span = weight->span;
    if (group && !isnan(group->lr_scale)) lr = build_scale(b, lr, group->lr_scale);
    if (clip) g = build_binary(b, OP_MUL, g, clip);
    Node *m = moment_count(optimizer) > 0 ? step_input(b, moment(st, weight, 0)) : filled(b, weight, 0), *updated;
    if (optimizer->kind == OPT_ADAMW) {
        AttrValue attrs[] = {{.number = optimizer->beta1},
                             {.number = optimizer->beta2},
                             {.number = optimizer->epsilon},
                             {.number = decay}};
        Node *in[] = {w, g, m, step_input(b, moment(st, weight, 1)), lr, scale_steps(st, b)};
        updated = build_op(b, OP_ADAMW, in, 6, attrs);
    } else {
        AttrValue attrs[] = {{.number = optimizer->momentum}, {.number = decay}};
        updated = build_op(b, OP_SGD, (Node *[]){w, g, m, lr}, 4, attrs);
    }
    step_output(b->graph, weight, scale_keep(st, b, build_result(b, updated, 0), w), false);
    for (int k = 0; k < moment_count(optimizer); k++) {
        Tensor *tensor = moment(st, weight, k);
        step_output(b->graph, tensor, scale_keep(st, b, build_result(b, updated, k + 1), step_input(b, tensor)), false);
    }
}

Graph *step_update(Stepper *st) {
    Graph *graph = step_graph(st, "update", NULL);
    Builder b = step_builder(graph);
    for (int i = 0; i < st->running.n; i++) {
        Tensor *result = step_tensor(st, st->running.at[i].name, CLASS_RESULT, DT_F32, (Shape){0});
        bool made = !st->is_stage || st->has_loss;
        Node *sum = made ? step_input(&b, st->running.at[i].sum) : build_const(&b, DT_F32, 0);
        step_output(graph, result, over_stages(st, &b, sum), false);
    }
    Node *norm = gradient_norm(st, &b);
    step_output(graph, step_tensor(st, step_name(st, "grad_norm"), CLASS_RESULT, DT_F32, (Shape){0}), norm, false);
    scale_look(st, &b, norm);
    Node *clip = clip_factor(st, &b, norm);
    for (int i = 0; i < st->n_weights; i++) update_weight(st, &b, i, clip);
    scale_update(st, &b);
    graph_simplify(graph);
    return graph;
}
