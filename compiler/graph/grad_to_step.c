/* From the model to the graphs of one training step.
 *
 * In: the forward graph with the batch of a whole step. Out: the graphs of Step. The body computes one micro-batch: its
 * part of the step's loss (divided by the targets of the whole step, which `count` has added up before) and the
 * gradients, which add up over the micro-batches. So the sum over micro-batches and ranks is the step's loss, whatever
 * the plan. Everything else here is bookkeeping: which tensors exist, and what they are called. */
#include "graph/step.h"

#include <math.h>

/* ---- names, tensors, graphs -------------------------------------------------------------------------------------- */

Name step_name(Stepper *st, const char *format, ...) {
    va_list args;
    va_start(args, format);
    Name name = intern(st->s->names, arena_vprintf(st->arena, format, args));
    va_end(args);
    return name;
}

Tensor *step_tensor(Stepper *st, Name name, TensorClass class, DType dtype, Shape shape) {
    Tensor *tensor = NEW(st->arena, Tensor);
    *tensor = (Tensor){.name = name, .class = class, .dtype = dtype, .shape = shape};
    return tensor;
}

static Tensor *scalar(Stepper *st, const char *name, TensorClass class, DType dtype) {
    return step_tensor(st, step_name(st, "%s", name), class, dtype, (Shape){0});
}

Graph *step_graph(Stepper *st, const char *name, const Map *replaced) {
    Graph *graph = graph_new(st->s, st->arena, name);
    const Graph *model = st->model->graph;
    for (int i = 0; i < model->dims.n; i++) {
        Dim *dim = replaced ? map_get(replaced, model->dims.at[i]) : NULL;
        vec_push(st->arena, &graph->dims, dim ? dim : model->dims.at[i]);
    }
    return graph;
}

Builder step_builder(Graph *graph) { return (Builder){.graph = graph, .region = &graph->top}; }

static void list_tensor(Graph *graph, Tensor *tensor) {
    for (int i = 0; i < graph->tensors.n; i++)
        if (graph->tensors.at[i] == tensor) return;
    vec_push(graph->arena, &graph->tensors, tensor);
    if (tensor->of && tensor->of->class == CLASS_WEIGHT) list_tensor(graph, tensor->of);
}

Node *step_input(Builder *b, Tensor *tensor) {
    for (int i = 0; i < b->region->nodes.n; i++)
        if (b->region->nodes.at[i]->tensor == tensor && b->region->nodes.at[i]->backward == b->backward)
            return b->region->nodes.at[i];
    list_tensor(b->graph, tensor);
    return build_input(b, tensor);
}

void step_output(Graph *graph, Tensor *tensor, Node *value, bool accumulate) {
    list_tensor(graph, tensor);
    graph_add_output(graph, tensor, value, accumulate);
}

bool dim_is_batch(const Dim *dim) { return dim->is_batch || (dim->like && dim->like->is_batch); }

static bool shape_has_batch(const Shape *shape) {
    for (int i = 0; i < shape->n; i++)
        if (dim_is_batch(shape->dims[i])) return true;
    return false;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

typedef struct Training {
    Stepper *st;
    uint32_t dropouts; /* met so far: each has a key of its own, the same under every plan */
} Training;

int64_t dropout_key(uint32_t number) { return (int64_t)(uint32_t)(0x9e3779b1u * number); }

static Node *dropout_with_counters(Copy *copy, const Node *node, Node *const *in, Training *training) {
    AttrValue attrs[2] = {node->attrs[0], node->attrs[1]};
    int64_t *key = &attrs[op_attr_index(op_info(node), "key")].integer;
    training->dropouts++;
    if (*key == 0) *key = dropout_key(training->dropouts); /* else it has been given one */
    Node *operands[4] = {in[0], copy_capture(copy, training->st->seed), copy_capture(copy, training->st->number)};
    int n = 3;
    Node *layer = copy_layer_number(copy);
    if (layer) operands[n++] = layer;
    return build_op(&copy->b, OP_DROPOUT, operands, n, attrs);
}

/* Dropout gets its random stream. A mean over the batch is that of the whole step. */
static Node *rule_training(Copy *copy, const Node *node, Node *const *in) {
    Training *training = copy->context;
    if (node->op == OP_DROPOUT && node->n_in == 1) return dropout_with_counters(copy, node, in, training);
    if (node->op != OP_MEAN) return NULL;
    const Shape *over = &node_attr(node, "over")->dims;
    double n = (double)shape_logical_elements(over);
    if (shape_has_batch(over)) n *= (double)training->st->step->micros;
    return build_scale(&copy->b, build_reduce(&copy->b, OP_SUM, in[0], over), 1 / n);
}

Node *rule_without_dropout(Copy *copy, const Node *node, Node *const *in) {
    (void)copy;
    return node->op == OP_DROPOUT ? in[0] : NULL;
}

/* Once gradients are taken it has no meaning left. */
static Node *rule_without_stops(Copy *copy, const Node *node, Node *const *in) {
    (void)copy;
    return node->op == OP_STOP_GRADIENT ? in[0] : NULL;
}

void graph_rewrite(Graph *graph, CopyRule *rule, void *context) {
    Region old = graph->top;
    graph->top = (Region){0};
    Copy copy;
    copy_begin(&copy, graph);
    copy.rule = rule;
    copy.context = context;
    copy_region(&copy, &old);
    copy_finish(&copy);
}

/* ---- micro-batches ----------------------------------------------------------------------------------------------- */

/* Over how many ranks the rules cut the batch. */
static int64_t batch_ranks(const Plan *plan) {
    int64_t ranks = 1;
    for (int i = 0; plan && i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (rule->what && strcmp(rule->what, "batch") == 0 && rule->storage == STORAGE_NONE)
            ranks *= plan->mesh.axes[rule->axis].size;
    }
    return ranks;
}

int64_t plan_micros(const Plan *plan, const ModelGraph *model) {
    int64_t batch = model->batch->size, each = plan->microbatch ? plan->microbatch * batch_ranks(plan) : batch;
    return batch % each ? 0 : batch / each;
}

static bool choose_micros(Stepper *st) {
    int64_t batch = st->model->batch->size, ranks = batch_ranks(st->plan);
    int64_t each = st->plan ? st->plan->microbatch : 0;
    st->step->micro_batch = each ? each * ranks : batch;
    st->step->micros = batch / st->step->micro_batch;
    if (st->step->micros * st->step->micro_batch == batch) return true;
    Diag *d = diag_error(st->s, "P0246", st->plan->microbatch_span,
                         "micro-batches of %lld on %lld ranks do not divide the batch (%lld)", (long long)each,
                         (long long)ranks, (long long)batch);
    diag_help(d, "batch = microbatch x ranks of `batch` x a whole number");
    return false;
}

static void replace_batch(Stepper *st) {
    if (st->step->micros == 1) return;
    const Graph *model = st->model->graph;
    Dim *batch = NULL;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < model->dims.n; i++) {
            Dim *dim = model->dims.at[i];
            if (!dim_is_batch(dim) || dim->is_batch != (pass == 0)) continue;
            Dim *micro = NEW(st->arena, Dim);
            *micro = *dim;
            micro->size = st->step->micro_batch;
            if (pass == 0)
                batch = micro;
            else
                micro->like = batch;
            map_put(st->arena, &st->micro_dims, dim, micro);
        }
}

static Copy copy_model(Stepper *st, Graph *to, CopyRule *rule, void *context) {
    Copy copy;
    copy_begin(&copy, to);
    copy.dims = st->micro_dims;
    copy.tensors = st->micro_tensors;
    copy.rule = rule;
    copy.context = context;
    to->micro = true;
    copy_region(&copy, &st->model->graph->top);
    st->micro_tensors = copy.tensors;
    return copy;
}

/* ---- the loss ----------------------------------------------------------------------------------- */

/* `value` summed over all it has, weighted. */
static Node *weighted_sum(Builder *b, Node *value, Node *mask) {
    if (mask)
        value = build_binary(b, OP_MUL, value, build_broadcast(b, build_cast(b, mask, value->dtype), &value->shape));
    return build_reduce(b, OP_SUM, value, &value->shape);
}

static Node *mask_of(Builder *b, const Copy *copy, const ModelGraph *model, const Node *loss) {
    if (!model->mask) return NULL;
    return build_broadcast(b, build_cast(b, copy_value(copy, model->mask), DT_F32), &loss->shape);
}

/* This micro-batch's part of the step's mean of `value`, which has `elements` in the whole step; a scalar stays. */
static Node *part_of_mean(Stepper *st, Builder *b, Node *value, int64_t elements) {
    if (value->shape.n) value = build_scale(b, weighted_sum(b, value, NULL), 1 / (double)elements);
    return step_share(st, b->graph, value);
}

static Node *loss_part(Stepper *st, Builder *b, const Copy *copy) {
    const ModelGraph *model = st->model;
    Node *loss = copy_value(copy, model->loss);
    b->span = loss->span;
    if (!model->mask || loss->shape.n == 0) return part_of_mean(st, b, loss, shape_elements(&model->loss->shape));
    Node *targets = build_binary(b, OP_MAX, step_input(b, st->targets), build_const(b, DT_F32, 1e-30));
    return step_share(st, b->graph,
                      build_binary(b, OP_DIV, weighted_sum(b, loss, mask_of(b, copy, model, loss)), targets));
}

/* A result that adds up over the micro-batches: written to a running sum, which `update` hands out. */
static void add_running(Stepper *st, Graph *body, Name name, Node *value) {
    Tensor *sum = step_tensor(st, step_name(st, "%s.sum", name), CLASS_GRADIENT, DT_F32, (Shape){0});
    step_output(body, sum, value, st->step->micros > 1);
    vec_push(st->arena, &st->running, (Running){name, sum});
}

static bool add_logs(Stepper *st, Builder *b, const Copy *copy) {
    const Graph *model = st->model->graph;
    for (int i = 0; i < model->outputs.n; i++) {
        const Output *output = &model->outputs.at[i];
        if (strncmp(output->tensor->name, "log.", 4) != 0) continue;
        Node *value = part_of_mean(st, b, copy_value(copy, output->value), shape_elements(&output->value->shape));
        if (!value) return false;
        add_running(st, b->graph, output->tensor->name, value);
    }
    return true;
}

/* The loss with the auxiliary ones; NULL after a diagnostic. */
static Node *total_loss(Stepper *st, Builder *b, const Copy *copy) {
    Node *loss = loss_part(st, b, copy);
    for (int i = 0; loss && i < st->model->auxiliary.n; i++) {
        const Node *auxiliary = st->model->auxiliary.at[i];
        Node *part = part_of_mean(st, b, copy_value(copy, auxiliary), shape_elements(&auxiliary->shape));
        loss = part ? build_binary(b, OP_ADD, loss, part) : NULL;
    }
    return loss;
}

/* ---- graphs of a micro-batch ------------------------------------------------------------------------------------- */

static bool plan_recomputes_all(const Plan *plan) {
    if (plan && plan->recompute_every == 1) return true; /* each layer keeps its input */
    return plan && plan->recompute.n == 1 && strcmp(plan->recompute.at[0], "full") == 0;
}

/* The gradient of each trained weight; those that the loss does not depend on drop out of the list. */
static void add_gradients(Stepper *st, Graph *body, Node *loss) {
    Node **values = NEW_N(st->arena, Node *, st->n_weights + 1);
    Recompute again = {.full = plan_recomputes_all(st->plan)};
    if (st->plan) again.names = st->plan->recompute.at, again.n = st->plan->recompute.n;
    Builder b = step_builder(body);
    b.span = loss->span;
    graph_to_grad(body, scale_loss(st, &b, loss), st->weights, st->n_weights, &again, values);
    int n = 0;
    for (int i = 0; i < st->n_weights; i++) {
        if (!values[i]) continue;
        Tensor *weight = st->weights[n] = st->weights[i];
        Tensor *gradient = st->gradients[n++] =
            step_tensor(st, step_name(st, "grad.%s", weight->name), CLASS_GRADIENT, DT_F32, weight->shape);
        gradient->of = weight;
        gradient->span = weight->span;
        step_output(body, gradient, values[i], st->step->micros > 1);
    }
    st->n_weights = n;
}

static Graph *step_body(Stepper *st) {
    Graph *body = step_graph(st, "body", &st->micro_dims);
    Training training = {.st = st};
    Copy copy = copy_model(st, body, rule_training, &training);
    Builder b = step_builder(body);
    Node *loss = total_loss(st, &b, &copy);
    if (!loss || !add_logs(st, &b, &copy)) return NULL;
    Name name = step_name(st, "loss");
    add_running(st, body, name, loss);
    graph_simplify(body); /* before gradients: what is dead has none */
    for (int i = 0; i < body->outputs.n; i++)
        if (body->outputs.at[i].tensor == vec_last(&st->running).sum) loss = body->outputs.at[i].value;
    add_gradients(st, body, loss);
    graph_rewrite(body, rule_without_stops, NULL);
    return body;
}

/* Targets of a micro-batch, added up; and their sum over the step. */
static void make_count(Stepper *st) {
    if (!st->model->mask || st->model->loss->shape.n == 0) return;
    st->targets = scalar(st, "targets", CLASS_GRADIENT, DT_F32);
    st->targets_partial = scalar(st, "targets.sum", CLASS_GRADIENT, DT_F32);
    Graph *count = st->step->count = step_graph(st, "count", &st->micro_dims);
    Copy copy = copy_model(st, count, rule_without_dropout, NULL);
    Builder b = step_builder(count);
    Node *mask = mask_of(&b, &copy, st->model, copy_value(&copy, st->model->loss));
    step_output(count, st->targets_partial, weighted_sum(&b, mask, NULL), st->step->micros > 1);
    graph_simplify(count);
    Graph *total = st->step->total = step_graph(st, "total", NULL);
    b = step_builder(total);
    step_output(total, st->targets, step_input(&b, st->targets_partial), false);
}

/* Sums of losses and of targets; a scalar loss counts as one. */
static Graph *step_eval(Stepper *st) {
    Graph *eval = step_graph(st, "eval", &st->micro_dims);
    Copy copy = copy_model(st, eval, rule_without_dropout, NULL);
    Builder b = step_builder(eval);
    Node *loss = copy_value(&copy, st->model->loss), *mask = loss->shape.n ? mask_of(&b, &copy, st->model, loss) : NULL;
    Node *count = mask ? weighted_sum(&b, mask, NULL) : build_const(&b, DT_F32, (double)shape_elements(&loss->shape));
    step_output(eval, scalar(st, "eval_loss", CLASS_RESULT, DT_F32), weighted_sum(&b, loss, mask), true);
    step_output(eval, scalar(st, "eval_count", CLASS_RESULT, DT_F32), count, true);
    graph_rewrite(eval, rule_without_stops, NULL);
    return eval;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* Weights belong to a step, since partitioning types them: another plan of the same model has others. */
static void own_weights(Stepper *st) {
    const Graph *model = st->model->graph;
    for (int i = 0; i < model->tensors.n; i++) {
        Tensor *tensor = model->tensors.at[i], *own = NEW(st->arena, Tensor);
        *own = *tensor;
        bool replaced = false; /* then the micro-batch has one of its own anyway */
        for (int k = 0; k < tensor->shape.n; k++) replaced |= map_get(&st->micro_dims, tensor->shape.dims[k]) != NULL;
        if (tensor->class == CLASS_WEIGHT) map_put(st->arena, &st->own_tensors, tensor, own);
        if (!replaced) map_put(st->arena, &st->micro_tensors, tensor, own);
    }
}

Tensor *step_weight(const Stepper *st, Tensor *weight) {
    Tensor *own = map_get(&st->own_tensors, weight);
    CHECK(own != NULL);
    return own;
}

static void list_weights(Stepper *st) {
    int n = st->model->inits.n;
    st->weights = NEW_N(st->arena, Tensor *, n + 1);
    st->gradients = NEW_N(st->arena, Tensor *, n + 1);
    for (int i = 0; i < n; i++)
        if (!st->model->inits.at[i].weight->frozen)
            st->weights[st->n_weights++] = step_weight(st, st->model->inits.at[i].weight);
}

/* Dimensions that expansions make belong to the model, so that every graph of the step has them in the same place. */
static void add_hidden_dims(Graph *model, const Region *region) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->op == OP_ROTATE) rotate_pairs(model, node_attr(node, "over")->dims.dims[0]);
        if (node->region) add_hidden_dims(model, node->region);
    }
}

void step_stepper(Stepper *st, Session *s, const Train *train, const Plan *plan, ModelGraph *whole) {
    const ModelGraph *full = model_nested(s, plan, model_repeated(s, plan, model_padded(s, plan, whole)));
    add_hidden_dims(full->graph, &full->graph->top);
    const ModelGraph *model = model_narrowed(s, plan, full);
    Step *step = NEW(s->arena, Step);
    *st =
        (Stepper){.s = s, .arena = s->arena, .train = train, .plan = plan, .model = model, .whole = full, .step = step};
    step->session = s;
    step->model = model;
    st->lr = scalar(st, "lr", CLASS_SCALAR, DT_F32);
    st->number = scalar(st, "step", CLASS_SCALAR, DT_I32);
    st->seed = scalar(st, "seed", CLASS_SCALAR, DT_I32);
    st->position = scalar(st, "position", CLASS_SCALAR, DT_I32);
    scale_open(st);
}

Step *step_micro(Stepper *st) {
    if (!choose_micros(st)) return NULL;
    replace_batch(st);
    own_weights(st);
    list_weights(st);
    make_count(st);
    st->step->body = step_body(st);
    if (!st->step->body) return NULL;
    st->step->eval = step_eval(st);
    return st->step;
}

Step *grad_to_step(Session *s, const Train *train, const Plan *plan, ModelGraph *model) {
    Stepper st;
    step_stepper(&st, s, train, plan, model);
    Step *step = step_micro(&st);
    if (!step) return NULL;
    step->init = step_init(&st);
    step->begin = step_begin(&st);
    step->update = step_update(&st);
    step->decode = step_decode(&st);
    step_keep_weights(step, plan);
    return step;
}
