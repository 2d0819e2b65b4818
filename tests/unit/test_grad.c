/* Gradients, through the evaluator: of hand-made graphs with repeats and of random ones, against central differences;
 * and their structure: what the backward half may read, what is saved, shared and dropped. */
#include "grad_testing.h"

/* ---- gradients against differences ------------------------------------------------------------------------------- */

enum { MAX_WEIGHTS = 24 };

typedef struct Taken {
    Graph *graph;
    int n;
    Tensor *weights[MAX_WEIGHTS], *gradients[MAX_WEIGHTS]; /* gradient NULL: no influence */
    Tensor *loss;
} Taken;

/* Simplifies, differentiates the first output (a scalar) by all weights, and simplifies again. */
static Taken take_gradients(Session *s, Graph *graph) {
    Taken t = {.graph = graph, .loss = graph->outputs.at[0].tensor};
    graph_simplify(graph);
    verify(graph);
    for (int i = 0; i < graph->tensors.n; i++)
        if (graph->tensors.at[i]->class == CLASS_WEIGHT) t.weights[t.n++] = graph->tensors.at[i];
    Node *values[MAX_WEIGHTS];
    graph_to_grad(graph, graph->outputs.at[0].value, t.weights, t.n, NULL, values);
    for (int i = 0; i < t.n; i++) {
        if (!values[i]) continue;
        Name name = intern(s->names, arena_printf(s->arena, "grad.%s", t.weights[i]->name));
        t.gradients[i] = graph_add_tensor(graph, name, CLASS_GRADIENT, values[i]->dtype, values[i]->shape, (Span){0});
        graph_add_output(graph, t.gradients[i], values[i], false);
    }
    verify(graph);
    graph_simplify(graph);
    verify(graph);
    return t;
}

static double loss_at(Machine *machine, const Taken *t, const Tensor *weight, const double *values) {
    machine_set(machine, weight, values);
    machine_run(machine, t->graph, 0, 3, 99);
    return read_scalar(machine, t->loss);
}

/* A few elements of each weight, from both sides. */
static void check_gradients(Session *s, const Taken *t, uint64_t seed) {
    Machine *machine = machine_new(s, NULL);
    for (int i = 0; i < t->graph->tensors.n; i++)
        if (t->graph->tensors.at[i]->class <= CLASS_WEIGHT || t->graph->tensors.at[i]->class == CLASS_DATA)
            machine_set(machine, t->graph->tensors.at[i], draw(s, t->graph->tensors.at[i], seed));
    machine_run(machine, t->graph, 0, 3, 99);
    double *taken[MAX_WEIGHTS];
    for (int i = 0; i < t->n; i++) {
        taken[i] = NEW_N(s->arena, double, shape_elements(&t->weights[i]->shape));
        if (t->gradients[i]) machine_get(machine, t->gradients[i], taken[i]);
    }
    uint64_t state = seed + 5;
    for (int i = 0; i < t->n; i++) {
        const Tensor *weight = t->weights[i];
        double *values = draw(s, weight, seed);
        int64_t n = shape_elements(&weight->shape);
        for (int k = 0; k < 6; k++) {
            int64_t at = (int64_t)(testing_random(&state) * (double)n);
            double x = values[at], h = 1e-5;
            values[at] = x + h;
            double above = loss_at(machine, t, weight, values);
            values[at] = x - h;
            double below = loss_at(machine, t, weight, values), numeric = (above - below) / (2 * h);
            values[at] = x;
            loss_at(machine, t, weight, values);
            if (!(fabs(numeric - taken[i][at]) <= 2e-6 * (1 + fabs(numeric))))
                fail_msg("gradient of %s[%d] is %.9g, differences give %.9g\n%s", weight->name, (int)at, taken[i][at],
                         numeric, testing_print(t->graph));
        }
    }
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static void gradients_of_text(const char *text) {
    Session *s = session_new();
    Graph *graph = testing_parse(s, text);
    verify(graph);
    Taken t = take_gradients(s, graph);
    check_reads(graph, &graph->top);
    check_gradients(s, &t, 3);
    session_free(s);
}

static void test_gpt(void **state) {
    (void)state;
    gradients_of_text(GPT("%37 = mean(%36, over = [batch, seq]); tensor loss: result f32[]; output loss = %37 "));
}

static void test_repeats(void **state) {
    (void)state;
    static const char *const texts[] = {
        /* captured weight, stacked values that reach the loss, a carry that nothing reads, descending */
        "graph t { dim a = 3, layers = 4; tensor x: data f32[a]; tensor w: weight f32[layers, a]; tensor c: weight "
        "f32[a]\n"
        "%0 = repeat layers descending (%1 = carry @x, %2 = carry @x, %3 = slice @w, %4 = capture @c) {\n"
        "  %5 = mul(%1, %3); %6 = tanh(%5); %7 = mul(%6, %4); next %7; next %6; stack %5 }\n"
        "%8 = result(%0, index = 2); %9 = exp(%8); %10 = sum(%9, over = [a, layers])\n"
        "%11 = result(%0, index = 0); %12 = sum(%11, over = [a]); %13 = add(%10, %12); output %13 }",
        /* carries that change places; one that starts without a weight; a gradient through its start */
        "graph t { dim a = 3, layers = 3; tensor w: weight f32[a]; tensor v: weight f32[layers, a]; tensor x: data "
        "f32[a]\n"
        "%0 = repeat layers (%1 = carry @w, %2 = carry @x, %3 = slice @v) { %4 = mul(%2, %3); %5 = sin(%4); next %5; "
        "next %1 }\n"
        "%6 = result(%0, index = 0); %7 = result(%0, index = 1); %8 = mul(%6, %7); %9 = sum(%8, over = [a]); output %9 "
        "}",
        /* the layer index; a value of the outside that is cheap; a weight used twice */
        "graph t { dim a = 4, layers = 3; tensor w: weight f32[a]; %0 = input w; %1 = exp(%0)\n"
        "%2 = repeat layers (%3 = carry %0, %4 = capture %1) { %5 = layer_index(); %6 = cast(%5, dtype = f32); %7 = "
        "add(%6, %4)\n"
        "  %8 = mul(%3, %7); next %8 }\n"
        "%9 = result(%2, index = 0); %10 = mul(%9, %0); %11 = sum(%10, over = [a]); output %11 }",
        /* a repeat in a repeat: values saved through both, a weight for each pair of layers */
        "graph t { dim a = 3, a2 = 3, b = 2, outer = 2, inner = 3; tensor x: data f32[b, a]; tensor w: weight "
        "f32[outer, inner, a, a2]\n"
        "tensor u: weight f32[outer, a2]; tensor c: weight f32[a]\n"
        "%0 = repeat outer (%1 = carry @x, %2 = slice @w, %3 = slice @u, %4 = capture @c) {\n"
        "  %5 = repeat inner (%6 = carry %1, %7 = slice %2, %8 = capture %3, %9 = capture %4) {\n"
        "    %10 = dot(%6, %7, over = [a]); %11 = mul(%10, %8); %12 = tanh(%11); %13 = rename(%12, from = a2, to = a)\n"
        "    %14 = mul(%13, %9); next %14; stack %13 }\n"
        "  %15 = result(%5, index = 0); %16 = result(%5, index = 1); %17 = sum(%16, over = [inner]); %18 = add(%15, "
        "%17)\n"
        "  next %18 }\n"
        "%19 = result(%0, index = 0); %20 = mul(%19, %19); %21 = sum(%20, over = [a, b]); output %21 }",
        /* nothing of the body depends on the carry */
        "graph t { dim a = 3, layers = 3; tensor w: weight f32[layers, a]; tensor x: data f32[a]\n"
        "%0 = repeat layers (%1 = carry @x, %2 = slice @w) { %3 = exp(%2); next %1; stack %3 }\n"
        "%4 = result(%0, index = 1); %5 = sum(%4, over = [layers, a]); output %5 }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) gradients_of_text(texts[i]);
}

/* ---- random graphs ----------------------------------------------------------------------------------------------- */

typedef struct Maker {
    Builder b;
    uint64_t state;
    Dim *dims[4];
    Node *values[64];
    int n;
} Maker;

static int below(Maker *m, int n) { return (int)(testing_random(&m->state) * n); }
static Node *pick(Maker *m) { return m->values[below(m, m->n)]; }
static void keep(Maker *m, Node *node) { m->values[m->n++] = node; }

static Node *random_binary(Maker *m, Op op) {
    Node *x = pick(m), *y = pick(m);
    Shape all = shape_union(&x->shape, &y->shape);
    return build_binary(&m->b, op, build_broadcast(&m->b, x, &all), y);
}

static Node *random_dot(Maker *m) {
    Node *x = pick(m), *y = pick(m);
    Shape over = {0};
    for (int i = 0; i < x->shape.n; i++)
        if (shape_find(&y->shape, x->shape.dims[i]) >= 0 && (over.n == 0 || below(m, 2)))
            shape_add(&over, x->shape.dims[i]);
    return over.n ? build_dot(&m->b, x, y, &over) : x;
}

/* Keeps numbers small: what grows goes through tanh. */
static Node *random_node(Maker *m) {
    static const Op unary[] = {OP_TANH, OP_SIN, OP_SIGMOID, OP_NEG, OP_GELU, OP_SILU, OP_COS};
    Node *x = pick(m);
    switch (below(m, 8)) {
    case 0: return random_binary(m, OP_ADD);
    case 1: return random_binary(m, OP_MUL);
    case 2: return random_binary(m, OP_SUB);
    case 3: return build_unary(&m->b, OP_TANH, random_dot(m));
    case 4: {
        Shape over = x->shape.n ? shape_of(&x->shape.dims[below(m, x->shape.n)], 1) : (Shape){0};
        return build_unary(&m->b, OP_SIN, build_reduce(&m->b, OP_SUM, x, &over));
    }
    case 5: {
        if (!x->shape.n) return build_unary(&m->b, OP_COS, x);
        Shape over = shape_of(&x->shape.dims[below(m, x->shape.n)], 1);
        return build_op(&m->b, below(m, 2) ? OP_SOFTMAX : OP_LOG_SOFTMAX, &x, 1, &(AttrValue){.dims = over});
    }
    default: return build_unary(&m->b, unary[below(m, 7)], x);
    }
}

static Shape random_shape(Maker *m) {
    Shape shape = {0};
    for (int i = 0; i < 3; i++)
        if (below(m, 2)) shape_add(&shape, m->dims[i]);
    return shape;
}

/* A few nodes in a repeat: two carries, a slice, captures of what stands outside. */
static void random_repeat(Maker *m, Tensor *stacked) {
    Node *inputs[6] = {pick(m), pick(m), build_input(&m->b, stacked), pick(m), pick(m)}, *outside[64];
    int n_outside = m->n;
    memcpy(outside, m->values, sizeof outside);
    Region *region = region_open(&m->b, m->dims[3], below(m, 2));
    m->n = 0;
    for (int i = 0; i < 5; i++) {
        Shape shape = i == 2 ? shape_of(inputs[i]->shape.dims + 1, inputs[i]->shape.n - 1) : inputs[i]->shape;
        keep(m, region_add_param(&m->b, region, inputs[i]->dtype, shape));
    }
    for (int i = 0, n = 3 + below(m, 6); i < n; i++) keep(m, random_node(m));
    Node *results[3];
    for (int i = 0; i < 2; i++) {
        Node *next = build_unary(&m->b, OP_TANH, pick(m));
        Shape all = shape_union(&m->values[i]->shape, &next->shape);
        results[i] = build_fit(&m->b, build_broadcast(&m->b, next, &all), &m->values[i]->shape);
    }
    results[2] = pick(m);
    Node *repeat = region_close(&m->b, region, inputs, 2, 1, 2, results, 1);
    memcpy(m->values, outside, sizeof outside);
    m->n = n_outside;
    for (int i = 0; i < 3; i++) keep(m, build_result(&m->b, repeat, i));
}

static void random_graph(uint64_t seed) {
    static const char *const names[] = {"a", "b", "c", "layers"};
    Session *s = session_new();
    Graph *graph = graph_new(s, s->arena, "random");
    Maker m = {.b = {.graph = graph, .region = &graph->top}, .state = seed * 2654435761u + 1};
    for (int i = 0; i < 4; i++) m.dims[i] = graph_add_dim(graph, intern(s->names, names[i]), 2 + i % 3, (Span){0});
    for (int i = 0; i < 4; i++) {
        Name name = intern(s->names, arena_printf(s->arena, "w%d", i));
        keep(&m, build_input(&m.b, graph_add_tensor(graph, name, i ? CLASS_WEIGHT : CLASS_DATA, DT_F32,
                                                    random_shape(&m), (Span){0})));
    }
    for (int i = 0; i < 4; i++) keep(&m, random_node(&m));
    Shape front = shape_of(&m.dims[3], 1), rest = random_shape(&m);
    random_repeat(&m, graph_add_tensor(graph, intern(s->names, "stacked"), CLASS_WEIGHT, DT_F32,
                                       shape_union(&front, &rest), (Span){0}));
    for (int i = 0; i < 4; i++) keep(&m, random_node(&m));
    Node *loss = build_const(&m.b, DT_F32, 0);
    for (int i = m.n - 5; i < m.n; i++) {
        Node *value = build_unary(&m.b, OP_SIN, m.values[i]);
        loss = build_binary(&m.b, OP_ADD, loss, build_reduce(&m.b, OP_SUM, value, &value->shape));
    }
    graph_add_output(graph,
                     graph_add_tensor(graph, intern(s->names, "loss"), CLASS_RESULT, DT_F32, (Shape){0}, (Span){0}),
                     loss, false);
    verify(graph);
    Machine *before = machine_new(s, NULL);
    for (int i = 0; i < graph->tensors.n; i++)
        machine_set(before, graph->tensors.at[i], draw(s, graph->tensors.at[i], seed));
    machine_run(before, graph, 0, 3, 99);
    double expected = read_scalar(before, tensor_of(graph, "loss"));
    Taken t = take_gradients(s, graph);
    check_reads(graph, &graph->top);
    Machine *after = machine_new(s, NULL);
    for (int i = 0; i < graph->tensors.n; i++)
        machine_set(after, graph->tensors.at[i], draw(s, graph->tensors.at[i], seed));
    machine_run(after, graph, 0, 3, 99);
    if (!(fabs(read_scalar(after, t.loss) - expected) <= 1e-12 * (1 + fabs(expected))))
        fail_msg("seed %d: another loss", (int)seed);
    check_gradients(s, &t, seed);
    session_free(s);
}

static void test_random(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) random_graph(seed);
}

/* ---- structure ---------------------------------------------------------------------------------- */

static void test_simplify(void **state) {
    (void)state;
    Session *s = session_new();
    Graph *graph = testing_parse(
        s, "graph t { dim a = 3, layers = 3; tensor x: data f32[a]; tensor w: data f32[layers, a]; tensor u: data "
           "f32[layers, a]\n"
           "%0 = input x; %1 = exp(%0); %2 = exp(%0); %3 = add(%1, %2); %4 = const(value = 1, dtype = f32); %5 = "
           "mul(%3, %4)\n"
           "%6 = const(value = 2, dtype = f32); %7 = add(%4, %6); %8 = mul(%5, %7); %9 = sin(%8)\n"
           "%10 = repeat layers (%11 = carry %8, %12 = carry %9, %13 = slice @w, %14 = slice @u, %15 = capture %9) {\n"
           "  %16 = mul(%11, %13); %17 = mul(%12, %14); next %16; next %17; stack %15 }\n"
           "%18 = result(%10, index = 0); output %18 }");
    graph_simplify(graph);
    verify(graph);
    assert_int_equal(count_ops(&graph->top, OP_EXP, false), 1);   /* shared */
    assert_int_equal(count_ops(&graph->top, OP_CONST, false), 1); /* 1 + 2 */
    assert_int_equal(count_ops(&graph->top, OP_SIN, false), 0);   /* fed a dead carry and a dead capture */
    assert_int_equal(count_ops(&graph->top, OP_MUL, false), 2);
    for (int i = 0; i < graph->top.nodes.n; i++) {
        const Node *node = graph->top.nodes.at[i];
        if (node->op == OP_REPEAT) assert_int_equal(node->n_in, 2);
    }
    assert_null(graph_find_tensor(graph, intern(s->names, "u")));
    session_free(s);
}

/* What the backward half keeps of a layer: products and sums, not what is cheap to make again. */
static void test_saved(void **state) {
    (void)state;
    Session *s = session_new();
    Graph *graph =
        testing_parse(s, GPT("%37 = mean(%36, over = [batch, seq]); tensor loss: result f32[]; output loss = %37 "));
    Taken t = take_gradients(s, graph);
    assert_int_equal(count_ops(&graph->top, OP_ATTEND_GRAD, true), 1);
    assert_int_equal(count_ops(&graph->top, OP_REPEAT, true), 1);
    for (int i = 0; i < graph->top.nodes.n; i++) {
        const Node *node = graph->top.nodes.at[i];
        if (node->op != OP_REPEAT) continue;
        const Region *region = node->region;
        assert_int_equal(region->n_carries, 1);
        if (node->backward) assert_int_equal(region->n_stacked, 8); /* a gradient for each stacked weight */
        for (int k = region->n_carries; k < region->results.n && !node->backward; k++)
            assert_false(op_info(region->results.at[k])->cheap);
    }
    for (int i = 0; i < t.n; i++) {
        if (strncmp(t.weights[i]->name, "layers.", 7) != 0) continue;
        for (int k = 0; k < graph->outputs.n; k++) {
            if (graph->outputs.at[k].tensor != t.gradients[i]) continue;
            const Node *value = graph->outputs.at[k].value; /* straight from the repeat */
            assert_true(value->op == OP_RESULT && value->in[0]->op == OP_REPEAT);
        }
    }
    session_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt),      cmocka_unit_test(test_repeats), cmocka_unit_test(test_random),
        cmocka_unit_test(test_simplify), cmocka_unit_test(test_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
