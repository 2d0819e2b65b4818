/* The graphs of a step, through the evaluator: micro-batches add up to the whole batch; the optimizers lower the loss
 * and do what their rules say; evaluation and token-by-token sampling equal the forward pass; what has no meaning for a
 * step is refused. */
#include "grad_testing.h"

/* ---- steps ------------------------------------------------------------------------------------------------------- */

typedef struct Trainer {
    Session *s;
    ModelGraph model;
    Train train;
    Plan plan;
    Step *step;
    Machine *machine;
} Trainer;

static Node *output_value(const Graph *graph, const char *name) {
    for (int i = 0; i < graph->outputs.n; i++)
        if (strcmp(graph->outputs.at[i].tensor->name, name) == 0) return graph->outputs.at[i].value;
    return NULL;
}

static Dim *dim_of(const Graph *graph, const char *name) {
    return graph_find_dim(graph, intern(graph->session->names, name));
}

/* A model from its graph: outputs loss, loss.mask, logits, auxiliary.0. */
static Trainer trainer_new(const char *text, int64_t microbatch) {
    Trainer t = {.s = session_new()};
    Graph *graph = testing_parse(t.s, text);
    verify(graph);
    t.model = (ModelGraph){.graph = graph,
                           .loss = output_value(graph, "loss"),
                           .mask = output_value(graph, "loss.mask"),
                           .logits = output_value(graph, "logits"),
                           .batch = dim_of(graph, "batch"),
                           .seq = dim_of(graph, "seq")};
    Node *auxiliary = output_value(graph, "auxiliary.0");
    if (auxiliary) vec_push(t.s->arena, &t.model.auxiliary, auxiliary);
    for (int i = 0; i < graph->tensors.n; i++) {
        Tensor *tensor = graph->tensors.at[i];
        if (tensor->class != CLASS_WEIGHT) continue;
        Init init = {.weight = tensor, .kind = INIT_NORMAL, .a = 0.3, .key = 100 + (uint32_t)i};
        if (tensor->is_gain) init = (Init){.weight = tensor, .kind = INIT_CONST, .a = 1};
        vec_push(t.s->arena, &t.model.inits, init);
    }
    t.train =
        (Train){.clip = 1,
                .batch = t.model.batch->size,
                .optimizer = {.kind = OPT_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1}};
    ParameterGroup group = {.weight_decay = 0, .lr_scale = NAN};
    vec_push(t.s->arena, &group.words, intern(t.s->names, "norm"));
    vec_push(t.s->arena, &t.train.optimizer.groups, group);
    t.plan = (Plan){.microbatch = microbatch};
    return t;
}

static void verify_step(const Step *step) {
    const Graph *graphs[] = {step->init, step->begin,  step->count, step->total,
                             step->body, step->update, step->eval,  step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof graphs[0]; i++) {
        if (!graphs[i]) continue;
        verify(graphs[i]);
        check_reads(graphs[i], &graphs[i]->top);
    }
}

static void trainer_start(Trainer *t) {
    t->step = grad_to_step(t->s, &t->train, &t->plan, &t->model);
    if (!t->step) return;
    verify_step(t->step);
    t->machine = machine_new(t->s, NULL);
    machine_run(t->machine, t->step->init, 0, 0, 1234);
}

/* The samples of micro-batch `micro` of a batch that is drawn as a whole. */
static void set_data(Trainer *t, const Graph *graph, int64_t micro) {
    for (int i = 0; i < graph->tensors.n; i++) {
        const Tensor *tensor = graph->tensors.at[i];
        if (tensor->class != CLASS_DATA) continue;
        const Tensor *whole = tensor_of(t->model.graph, tensor->name);
        machine_set(t->machine, tensor, draw(t->s, whole, 11) + micro * shape_elements(&tensor->shape));
    }
}

/* One step as the schedule runs it; returns the loss. */
static double trainer_step(Trainer *t, int64_t number, double lr) {
    const Step *step = t->step;
    machine_set(t->machine, tensor_of(step->update, "lr"), &lr);
    if (step->begin) machine_run(t->machine, step->begin, 0, number, 1234);
    for (int64_t micro = 0; micro < step->micros && step->count; micro++) {
        set_data(t, step->count, micro);
        machine_run(t->machine, step->count, micro, number, 1234);
    }
    if (step->total) machine_run(t->machine, step->total, 0, number, 1234);
    for (int64_t micro = 0; micro < step->micros; micro++) {
        set_data(t, step->body, micro);
        machine_run(t->machine, step->body, micro, number, 1234);
    }
    machine_run(t->machine, step->update, 0, number, 1234);
    return read_scalar(t->machine, tensor_of(step->update, "loss"));
}

static double *contents(Trainer *t, const Tensor *tensor) {
    double *values = NEW_N(t->s->arena, double, shape_elements(&tensor->shape));
    machine_get(t->machine, tensor, values);
    return values;
}

/* The same step in micro-batches of 1, 2 and 4: gradients, loss, norm and new weights agree. */
static void compare_micros(const char *text) {
    Trainer whole = trainer_new(text, 0);
    trainer_start(&whole);
    assert_non_null(whole.step);
    double loss = trainer_step(&whole, 1, 0.01);
    for (int64_t microbatch = 1; microbatch <= 2; microbatch++) {
        Trainer parts = trainer_new(text, microbatch);
        trainer_start(&parts);
        assert_int_equal(parts.step->micros * microbatch, parts.model.batch->size);
        double other = trainer_step(&parts, 1, 0.01);
        if (!(fabs(loss - other) <= 1e-12 * fabs(loss))) fail_msg("losses %.15g and %.15g", loss, other);
        const Graph *update = whole.step->update;
        for (int i = 0; i < update->tensors.n; i++) {
            const Tensor *a = update->tensors.at[i], *b = tensor_of(parts.step->update, a->name);
            if (a->class == CLASS_SCALAR) continue;
            const double *x = contents(&whole, a), *y = contents(&parts, b);
            for (int64_t k = 0; k < shape_elements(&a->shape); k++)
                if (!(fabs(x[k] - y[k]) <= 1e-8 * (1e-3 + fabs(x[k]))))
                    fail_msg("%s[%d]: %.15g and %.15g", a->name, (int)k, x[k], y[k]);
        }
        session_free(parts.s);
    }
    session_free(whole.s);
}

#define LOSS                                                                                                           \
    "tensor loss: result f32[batch, seq]; output loss = %36; tensor logits: result f32[batch, seq, vocab]; output "    \
    "logits = %35\n"
#define MASKED                                                                                                         \
    "tensor mask: data f32[batch, seq]; %37 = input mask; %38 = mul(%37, %37); tensor loss.mask: result f32[batch, "   \
    "seq]; output loss.mask = %38\n"

static void test_micros(void **state) {
    (void)state;
    compare_micros(GPT(LOSS));
    compare_micros(GPT(MASKED LOSS));
    /* a scalar loss: a mean over the batch of the step, and a penalty that counts once */
    compare_micros(
        GPT("%37 = mean(%36, over = [batch, seq]); %38 = mul(%0, %0); %39 = sum(%38, over = [vocab, embed])\n"
            "%40 = add(%37, %39); tensor loss: result f32[]; output loss = %40 "));
    /* an auxiliary loss for each sequence, and one without samples */
    compare_micros(GPT(LOSS "%37 = mul(%33, %33); %38 = mean(%37, over = [seq, embed]); tensor auxiliary.0: result "
                            "f32[batch]; output auxiliary.0 = %38 "));
    compare_micros(
        GPT(LOSS "%37 = mean(%0, over = [vocab, embed]); tensor auxiliary.0: result f32[]; output auxiliary.0 = %37 "));
}

static void test_dropout(void **state) {
    (void)state;
    static const char *const text = "graph model { " GPT_DIMS GPT_WEIGHTS
                                    "%0 = lookup(@table, @tokens, over = [vocab]); %1 = dropout(%0, rate = 0.25)\n"
                                    "%2 = repeat layers (%3 = carry %1, %4 = slice @layers.norm.w) { %5 = mul(%3, %4); "
                                    "%6 = dropout(%5, rate = 0.5); %7 = add(%3, %6); next %7 }\n"
                                    "%8 = result(%2, index = 0); %9 = dot(%8, @table, over = [embed]); %10 = "
                                    "cross_entropy(%9, @labels, over = [vocab])\n"
                                    "tensor loss: result f32[batch, seq]; output loss = %10 }";
    compare_micros(text);
    Trainer t = trainer_new(text, 2);
    trainer_start(&t);
    assert_int_equal(count_ops(&t.step->body->top, OP_RANDOM_UNIFORM, false), 2);
    assert_int_equal(count_ops(&t.step->body->top, OP_RANDOM_UNIFORM, true), 2);
    assert_int_equal(count_ops(&t.step->eval->top, OP_RANDOM_UNIFORM, false), 0);
    double first = trainer_step(&t, 1, 0), second = trainer_step(&t, 2, 0), again = trainer_step(&t, 1, 0);
    assert_true(first != second && first == again); /* masks follow the step */
    session_free(t.s);
}

static void test_training(void **state) {
    (void)state;
    for (int kind = OPT_ADAMW; kind <= OPT_SGD; kind++)
        for (int momentum = 0; momentum <= (kind == OPT_SGD); momentum++) {
            Trainer t = trainer_new(GPT(LOSS), 2);
            t.train.optimizer.kind = kind == OPT_ADAMW ? OPT_ADAMW : OPT_SGD;
            t.train.optimizer.momentum = momentum * 0.5;
            trainer_start(&t);
            double first = 0, last = 0;
            for (int64_t number = 1; number <= 10; number++) {
                last = trainer_step(&t, number, kind == OPT_ADAMW ? 0.02 : 0.3);
                if (number == 1) first = last;
            }
            if (!(last < 0.8 * first)) fail_msg("loss went from %g to %g", first, last);
            session_free(t.s);
        }
}

/* Against the rules by hand: the clip factor, and a weight without decay. */
static void test_update(void **state) {
    (void)state;
    Trainer t = trainer_new(GPT(LOSS), 0);
    t.train.clip = 0.01;
    trainer_start(&t);
    Tensor *gain = tensor_of(t.step->update, "layers.norm.w"), *wq = tensor_of(t.step->update, "layers.wq");
    double *w0 = contents(&t, wq), *g0 = contents(&t, gain);
    trainer_step(&t, 1, 0.01);
    double sum = 0, norm = read_scalar(t.machine, tensor_of(t.step->update, "grad_norm"));
    for (int i = 0; i < t.step->update->tensors.n; i++) {
        const Tensor *tensor = t.step->update->tensors.at[i];
        if (tensor->class != CLASS_GRADIENT || !tensor->of) continue;
        const double *g = contents(&t, tensor);
        for (int64_t k = 0; k < shape_elements(&tensor->shape); k++) sum += g[k] * g[k];
    }
    assert_true(fabs(norm - sqrt(sum)) <= 1e-12 * norm && norm > 0.01);
    const Tensor *tensors[2] = {wq, gain};
    const double *before[2] = {w0, g0}, decay[2] = {0.1, 0};
    for (int i = 0; i < 2; i++) {
        const Tensor *gradient = tensor_of(t.step->update, arena_printf(t.s->arena, "grad.%s", tensors[i]->name));
        const double *g = contents(&t, gradient), *w = contents(&t, tensors[i]);
        for (int64_t k = 0; k < shape_elements(&gradient->shape); k++) {
            double clipped = g[k] * 0.01 / (norm + 1e-6); /* after one step m / sqrt(v) is its sign */
            double expected = before[i][k] - 0.01 * (clipped / (fabs(clipped) + 1e-8) + decay[i] * before[i][k]);
            if (!(fabs(w[k] - expected) <= 1e-7))
                fail_msg("%s[%d] is %.12g instead of %.12g", tensors[i]->name, (int)k, w[k], expected);
        }
        assert_true(step_weight_decay(&t.train, tensors[i]) == decay[i]);
    }
    session_free(t.s);
}

static void test_frozen(void **state) {
    (void)state;
    Trainer t = trainer_new(GPT(LOSS), 0);
    tensor_of(t.model.graph, "layers.wq")->frozen = true;
    trainer_start(&t);
    assert_null(graph_find_tensor(t.step->body, intern(t.s->names, "grad.layers.wq")));
    assert_null(graph_find_tensor(t.step->init, intern(t.s->names, "adam.m.layers.wq")));
    assert_non_null(graph_find_tensor(t.step->init, intern(t.s->names, "layers.wq")));
    assert_null(graph_find_tensor(t.step->update, intern(t.s->names, "layers.wq")));
    trainer_step(&t, 1, 0.01);
    session_free(t.s);
}

static void test_evaluation(void **state) {
    (void)state;
    static const char *const texts[] = {GPT(LOSS), GPT(MASKED LOSS)};
    for (int i = 0; i < 2; i++) {
        Trainer t = trainer_new(texts[i], 2);
        trainer_start(&t);
        double zero = 0;
        machine_set(t.machine, tensor_of(t.step->eval, "eval_loss"), &zero);
        machine_set(t.machine, tensor_of(t.step->eval, "eval_count"), &zero);
        for (int64_t micro = 0; micro < t.step->micros; micro++) {
            set_data(&t, t.step->eval, micro);
            machine_run(t.machine, t.step->eval, micro, 1, 1234);
        }
        double mean = read_scalar(t.machine, tensor_of(t.step->eval, "eval_loss")) /
                      read_scalar(t.machine, tensor_of(t.step->eval, "eval_count"));
        double loss = trainer_step(&t, 1, 0.01); /* of the same samples and weights */
        if (!(fabs(mean - loss) <= 1e-12 * loss)) fail_msg("evaluated %.15g, trained on %.15g", mean, loss);
        session_free(t.s);
    }
}

/* Token by token, the logits are those of the whole sequence. */
static void test_decode(void **state) {
    (void)state;
    Trainer t = trainer_new(GPT(LOSS), 0);
    Graph *forward = testing_parse(t.s, GPT("tensor logits: result f32[batch, seq, vocab]; output logits = %35 "));
    trainer_start(&t);
    const Graph *decode = t.step->decode;
    assert_non_null(decode);
    Machine *whole = machine_new(t.s, NULL);
    for (int i = 0; i < forward->tensors.n; i++) {
        const Tensor *tensor = forward->tensors.at[i];
        if (tensor->class == CLASS_WEIGHT)
            machine_set(whole, tensor, contents(&t, tensor_of(t.step->init, tensor->name)));
        if (tensor->class == CLASS_DATA) machine_set(whole, tensor, draw(t.s, tensor, 11));
    }
    machine_run(whole, forward, 0, 1, 1);
    double logits[4 * 6 * 10], one[10];
    machine_get(whole, tensor_of(forward, "logits"), logits);
    const double *tokens = draw(t.s, tensor_of(t.model.graph, "tokens"), 11);
    for (int position = 0; position < 6; position++) {
        double at = position;
        machine_set(t.machine, tensor_of(decode, "tokens"), &tokens[position]);
        machine_set(t.machine, tensor_of(decode, "position"), &at);
        machine_run(t.machine, decode, 0, 1, 1);
        assert_int_equal(shape_elements(&tensor_of(decode, "logits")->shape), 10);
        machine_get(t.machine, tensor_of(decode, "logits"), one);
        for (int c = 0; c < 10; c++)
            if (!(fabs(one[c] - logits[position * 10 + c]) <= 1e-10))
                fail_msg("position %d: %.12g instead of %.12g", position, one[c], logits[position * 10 + c]);
    }
    session_free(t.s);
}

/* Models whose positions see later ones have no sampling. */
static void test_no_decode(void **state) {
    (void)state;
    Trainer t = trainer_new(
        "graph model { dim batch = 2 batch, seq = 4, vocab = 6, embed = 3; tensor tokens: data i32[batch, seq]\n"
        "tensor labels: data i32[batch, seq]; tensor table: weight f32[vocab, embed]\n"
        "%0 = lookup(@table, @tokens, over = [vocab]); %1 = sum(%0, over = [seq]); %2 = add(%0, %1)\n"
        "%3 = dot(%2, @table, over = [embed]); %4 = cross_entropy(%3, @labels, over = [vocab])\n"
        "tensor loss: result f32[batch, seq]; output loss = %4; tensor logits: result f32[batch, seq, vocab]; output "
        "logits = %3 }",
        0);
    trainer_start(&t);
    assert_non_null(t.step);
    assert_null(t.step->decode);
    session_free(t.s);
}

/* What would change with the size of micro-batches is refused, however many there are. */
static void test_refused(void **state) {
    (void)state;
    static const char *const tails[] = {
        "%37 = mean(%36, over = [batch, seq]); %38 = exp(%37); tensor loss: result f32[]; output loss = %38 ",
        "%37 = mean(%36, over = [batch]); %38 = sub(%36, %37); tensor loss: result f32[batch, seq]; output loss = %38 ",
        "%37 = max_over(%36, over = [batch, seq]); tensor loss: result f32[]; output loss = %37 ",
    };
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++)
        for (int64_t microbatch = 0; microbatch <= 2; microbatch += 2) {
            char text[8192];
            snprintf(text, sizeof text, "graph model { %s%s%s%s}", GPT_DIMS, GPT_WEIGHTS, GPT_BODY("%26"), tails[i]);
            Trainer t = trainer_new(text, microbatch);
            trainer_start(&t);
            assert_null(t.step);
            assert_int_equal(diag_count(t.s, SEV_ERROR), 1);
            session_free(t.s);
        }
    Trainer t = trainer_new(GPT(LOSS), 3); /* 3 does not divide 4 */
    trainer_start(&t);
    assert_null(t.step);
    session_free(t.s);
}

/* Two plans of one model share no weight: partitioning for one leaves the other alone. */
static void test_steps_are_apart(void **state) {
    (void)state;
    Trainer t = trainer_new(GPT(LOSS), 2);
    const Step *one = grad_to_step(t.s, &t.train, &t.plan, &t.model), *other = grad_to_step(t.s, &t.train, &t.plan, &t.model);
    assert_true(one->init->outputs.n > 0);
    for (int i = 0; i < one->init->outputs.n; i++) {
        Tensor *tensor = one->init->outputs.at[i].tensor;
        assert_ptr_equal(graph_find_tensor(one->update, tensor->name), tensor); /* within a step they are shared */
        assert_ptr_not_equal(other->init->outputs.at[i].tensor, tensor);
        assert_string_equal(other->init->outputs.at[i].tensor->name, tensor->name);
    }
    session_free(t.s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micros), cmocka_unit_test(test_steps_are_apart), cmocka_unit_test(test_dropout),   cmocka_unit_test(test_training),
        cmocka_unit_test(test_update), cmocka_unit_test(test_frozen),    cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_decode), cmocka_unit_test(test_no_decode), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
