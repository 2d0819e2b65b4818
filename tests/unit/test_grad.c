/* Gradients and the graphs of a step, through the evaluator:
 *   gradients   of hand-made graphs with repeats and of random ones, against central differences
 *   structure   what the backward half may read, what is shared and dropped
 *   step        micro-batches add up to the whole batch; AdamW lowers the loss; evaluation; sampling equals the forward pass */
#include "graph/copy.h"
#include "graph/graph.h"
#include "ir_testing.h"

/* ---- running ------------------------------------------------------------------------------------------------------------ */

static void verify(const Graph *graph) {
    if (diag_count(graph->session, SEV_ERROR)) {
        diag_flush(graph->session, stderr, false);
        fail_msg("reported an error");
    }
    testing_verify(graph);
}

static Tensor *tensor_of(const Graph *graph, const char *name) {
    Tensor *tensor = graph_find_tensor(graph, intern(graph->session->names, name));
    if (!tensor) fail_msg("graph %s has no tensor %s\n%s", graph->name, name, testing_print(graph));
    return tensor;
}

/* Floats in [-1, 1); whole numbers below 5, which every table and class dimension here exceeds. */
static double *draw(Session *s, const Tensor *tensor, uint64_t seed) {
    uint64_t state = seed * 7919 + 17;
    for (const char *c = tensor->name; *c; c++) state = state * 31 + (unsigned char)*c;
    int64_t n = shape_elements(&tensor->shape);
    double *values = NEW_N(s->arena, double, n);
    for (int i = 0; i < 8; i++) testing_random(&state);
    for (int64_t i = 0; i < n; i++) {
        double u = testing_random(&state);
        values[i] = tensor->dtype == DT_I32 ? floor(5 * u) : tensor->dtype == DT_BOOL ? u < 0.5 : 2 * u - 1;
    }
    return values;
}

static double read_scalar(Machine *machine, const Tensor *tensor) {
    double value;
    machine_get(machine, tensor, &value);
    return value;
}

/* ---- gradients against differences ------------------------------------------------------------------------------------------ */

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
    graph_to_grad(graph, graph->outputs.at[0].value, t.weights, t.n, values);
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
                fail_msg("gradient of %s[%d] is %.9g, differences give %.9g\n%s", weight->name, (int)at, taken[i][at], numeric,
                         testing_print(t->graph));
        }
    }
}

static int count_ops(const Region *region, Op op, bool backward) {
    int n = 0;
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        n += node->op == op && node->backward == backward;
        if (node->region) n += count_ops(node->region, op, backward);
    }
    return n;
}

/* A backward node reads no cheap forward node, and no forward input. */
static void check_reads(const Graph *graph, const Region *region) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        for (int k = 0; k < node->n_in && node->backward; k++) {
            const Node *in = node->in[k];
            if (!in->backward && (op_info(in)->cheap || in->op == OP_INPUT || in->op == OP_PARAM))
                fail_msg("backward node %d reads forward node %d (%s)\n%s", node->id, in->id, op_info(in)->name, testing_print(graph));
        }
        if (node->region) check_reads(graph, node->region);
    }
}

/* ---- graphs ------------------------------------------------------------------------------------------------------------------- */

#define GPT_DIMS                                                                                                              \
    "dim batch = 4 batch, seq = 6, key = 6 like seq, embed = 8, head = 4 factors (kv, group), kv = 2, group = 2, width = 2\n" \
    "dim ffn = 12, vocab = 10, layers = 3, places = 8\n"
#define GPT_WEIGHTS                                                                                                           \
    "tensor tokens: data i32[batch, seq]; tensor labels: data i32[batch, seq]\n"                                              \
    "tensor table: weight f32[vocab, embed]; tensor place: weight f32[places, embed]\n"                                       \
    "tensor layers.norm.w: weight f32[layers, embed] group norm gain; tensor layers.norm.b: weight f32[layers, embed] group bias gain\n" \
    "tensor layers.wq: weight f32[layers, embed, head, width]; tensor layers.wk: weight f32[layers, embed, kv, width]\n"      \
    "tensor layers.wv: weight f32[layers, embed, kv, width]; tensor layers.wo: weight f32[layers, head, width, embed]\n"      \
    "tensor layers.up: weight f32[layers, embed, ffn]; tensor layers.down: weight f32[layers, ffn, embed]\n"
#define GPT_BODY(drop)                                                                                                        \
    "%0 = input table; %1 = ramp(dim = seq); %2 = lookup(%0, @tokens, over = [vocab]); %3 = lookup(@place, %1, over = [places])\n" \
    "%4 = add(%2, %3)\n"                                                                                                      \
    "%5 = repeat layers (%6 = carry %4, %7 = slice @layers.norm.w, %8 = slice @layers.norm.b, %9 = slice @layers.wq,\n"       \
    "    %10 = slice @layers.wk, %11 = slice @layers.wv, %12 = slice @layers.wo, %13 = slice @layers.up, %14 = slice @layers.down) {\n" \
    "  %15 = layer_norm(%6, %7, %8, over = [embed])\n"                                                                        \
    "  %16 = dot(%15, %9, over = [embed]); %17 = dot(%15, %10, over = [embed]); %18 = dot(%15, %11, over = [embed])\n"        \
    "  %19 = ramp(dim = seq); %20 = rotate(%16, %19, over = [width]); %21 = rotate(%17, %19, over = [width])\n"               \
    "  %22 = rename(%21, from = seq, to = key); %23 = rename(%18, from = seq, to = key)\n"                                    \
    "  %24 = attend(%20, %22, %23, over = [key], causal = true); %25 = result(%24, index = 0)\n"                              \
    "  %26 = dot(%25, %12, over = [head, width]); %27 = add(%6, " drop "); %28 = rms_norm(%27, over = [embed])\n"             \
    "  %29 = dot(%28, %13, over = [embed]); %30 = gelu(%29); %31 = dot(%30, %14, over = [ffn]); %32 = add(%27, %31)\n"        \
    "  next %32\n"                                                                                                            \
    "}\n"                                                                                                                     \
    "%33 = result(%5, index = 0); %34 = layer_norm(%33, over = [embed]); %35 = dot(%34, %0, over = [embed])\n"                \
    "%36 = cross_entropy(%35, @labels, over = [vocab])\n"
#define GPT(tail) "graph model { " GPT_DIMS GPT_WEIGHTS GPT_BODY("%26") tail "}"
#define GPT_DROPOUT(tail)                                                                                                     \
    "graph model { " GPT_DIMS GPT_WEIGHTS GPT_BODY("%26") tail "}"

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
        "graph t { dim a = 3, layers = 4; tensor x: data f32[a]; tensor w: weight f32[layers, a]; tensor c: weight f32[a]\n"
        "%0 = repeat layers descending (%1 = carry @x, %2 = carry @x, %3 = slice @w, %4 = capture @c) {\n"
        "  %5 = mul(%1, %3); %6 = tanh(%5); %7 = mul(%6, %4); next %7; next %6; stack %5 }\n"
        "%8 = result(%0, index = 2); %9 = exp(%8); %10 = sum(%9, over = [a, layers])\n"
        "%11 = result(%0, index = 0); %12 = sum(%11, over = [a]); %13 = add(%10, %12); output %13 }",
        /* carries that change places; one that starts without a weight; a gradient through its start */
        "graph t { dim a = 3, layers = 3; tensor w: weight f32[a]; tensor v: weight f32[layers, a]; tensor x: data f32[a]\n"
        "%0 = repeat layers (%1 = carry @w, %2 = carry @x, %3 = slice @v) { %4 = mul(%2, %3); %5 = sin(%4); next %5; next %1 }\n"
        "%6 = result(%0, index = 0); %7 = result(%0, index = 1); %8 = mul(%6, %7); %9 = sum(%8, over = [a]); output %9 }",
        /* the layer index; a value of the outside that is cheap; a weight used twice */
        "graph t { dim a = 4, layers = 3; tensor w: weight f32[a]; %0 = input w; %1 = exp(%0)\n"
        "%2 = repeat layers (%3 = carry %0, %4 = capture %1) { %5 = layer_index(); %6 = cast(%5, dtype = f32); %7 = add(%6, %4)\n"
        "  %8 = mul(%3, %7); next %8 }\n"
        "%9 = result(%2, index = 0); %10 = mul(%9, %0); %11 = sum(%10, over = [a]); output %11 }",
        /* a repeat in a repeat: values saved through both, a weight for each pair of layers */
        "graph t { dim a = 3, b = 2, outer = 2, inner = 3; tensor x: data f32[b, a]; tensor w: weight f32[outer, inner, a, a2]\n"
        "dim a2 = 3; tensor u: weight f32[outer, a2]; tensor c: weight f32[a]\n"
        "%0 = repeat outer (%1 = carry @x, %2 = slice @w, %3 = slice @u, %4 = capture @c) {\n"
        "  %5 = repeat inner (%6 = carry %1, %7 = slice %2, %8 = capture %3, %9 = capture %4) {\n"
        "    %10 = dot(%6, %7, over = [a]); %11 = mul(%10, %8); %12 = tanh(%11); %13 = rename(%12, from = a2, to = a)\n"
        "    %14 = mul(%13, %9); next %14; stack %13 }\n"
        "  %15 = result(%5, index = 0); %16 = result(%5, index = 1); %17 = sum(%16, over = [inner]); %18 = add(%15, %17)\n"
        "  next %18 }\n"
        "%19 = result(%0, index = 0); %20 = mul(%19, %19); %21 = sum(%20, over = [a, b]); output %21 }",
        /* nothing of the body depends on the carry */
        "graph t { dim a = 3, layers = 3; tensor w: weight f32[layers, a]; tensor x: data f32[a]\n"
        "%0 = repeat layers (%1 = carry @x, %2 = slice @w) { %3 = exp(%2); next %1; stack %3 }\n"
        "%4 = result(%0, index = 1); %5 = sum(%4, over = [layers, a]); output %5 }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) gradients_of_text(texts[i]);
}

/* ---- random graphs --------------------------------------------------------------------------------------------------------------- */

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
        if (shape_find(&y->shape, x->shape.dims[i]) >= 0 && (over.n == 0 || below(m, 2))) shape_add(&over, x->shape.dims[i]);
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
        keep(&m, build_input(&m.b, graph_add_tensor(graph, name, i ? CLASS_WEIGHT : CLASS_DATA, DT_F32, random_shape(&m), (Span){0})));
    }
    for (int i = 0; i < 4; i++) keep(&m, random_node(&m));
    Shape front = shape_of(&m.dims[3], 1), rest = random_shape(&m);
    random_repeat(&m, graph_add_tensor(graph, intern(s->names, "stacked"), CLASS_WEIGHT, DT_F32, shape_union(&front, &rest), (Span){0}));
    for (int i = 0; i < 4; i++) keep(&m, random_node(&m));
    Node *loss = build_const(&m.b, DT_F32, 0);
    for (int i = m.n - 5; i < m.n; i++) {
        Node *value = build_unary(&m.b, OP_SIN, m.values[i]);
        loss = build_binary(&m.b, OP_ADD, loss, build_reduce(&m.b, OP_SUM, value, &value->shape));
    }
    graph_add_output(graph, graph_add_tensor(graph, intern(s->names, "loss"), CLASS_RESULT, DT_F32, (Shape){0}, (Span){0}), loss, false);
    verify(graph);
    Machine *before = machine_new(s, NULL);
    for (int i = 0; i < graph->tensors.n; i++) machine_set(before, graph->tensors.at[i], draw(s, graph->tensors.at[i], seed));
    machine_run(before, graph, 0, 3, 99);
    double expected = read_scalar(before, tensor_of(graph, "loss"));
    Taken t = take_gradients(s, graph);
    check_reads(graph, &graph->top);
    Machine *after = machine_new(s, NULL);
    for (int i = 0; i < graph->tensors.n; i++) machine_set(after, graph->tensors.at[i], draw(s, graph->tensors.at[i], seed));
    machine_run(after, graph, 0, 3, 99);
    if (!(fabs(read_scalar(after, t.loss) - expected) <= 1e-12 * (1 + fabs(expected)))) fail_msg("seed %d: another loss", (int)seed);
    check_gradients(s, &t, seed);
    session_free(s);
}

static void test_random(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) random_graph(seed);
}

/* ---- structure -------------------------------------------------------------------------------------------------------------------- */

static void test_simplify(void **state) {
    (void)state;
    Session *s = session_new();
    Graph *graph = testing_parse(s,
        "graph t { dim a = 3, layers = 3; tensor x: data f32[a]; tensor w: data f32[layers, a]; tensor u: data f32[layers, a]\n"
        "%0 = input x; %1 = exp(%0); %2 = exp(%0); %3 = add(%1, %2); %4 = const(value = 1, dtype = f32); %5 = mul(%3, %4)\n"
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
    Graph *graph = testing_parse(s, GPT("%37 = mean(%36, over = [batch, seq]); tensor loss: result f32[]; output loss = %37 "));
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

/* ---- steps ------------------------------------------------------------------------------------------------------------------------- */

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

static Dim *dim_of(const Graph *graph, const char *name) { return graph_find_dim(graph, intern(graph->session->names, name)); }

/* A model from its graph: outputs loss, loss.mask, logits, auxiliary.0. */
static Trainer trainer_new(const char *text, int64_t microbatch) {
    Trainer t = {.s = session_new()};
    Graph *graph = testing_parse(t.s, text);
    verify(graph);
    t.model = (ModelGraph){.graph = graph, .loss = output_value(graph, "loss"), .mask = output_value(graph, "loss.mask"),
                           .logits = output_value(graph, "logits"), .batch = dim_of(graph, "batch"), .seq = dim_of(graph, "seq")};
    Node *auxiliary = output_value(graph, "auxiliary.0");
    if (auxiliary) vec_push(t.s->arena, &t.model.auxiliary, auxiliary);
    for (int i = 0; i < graph->tensors.n; i++) {
        Tensor *tensor = graph->tensors.at[i];
        if (tensor->class != CLASS_WEIGHT) continue;
        Init init = {.weight = tensor, .kind = INIT_NORMAL, .a = 0.3, .key = 100 + (uint32_t)i};
        if (tensor->is_gain) init = (Init){.weight = tensor, .kind = INIT_CONST, .a = 1};
        vec_push(t.s->arena, &t.model.inits, init);
    }
    t.train = (Train){.clip = 1, .batch = t.model.batch->size,
                      .optimizer = {.kind = OPT_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1}};
    ParameterGroup group = {.weight_decay = 0, .lr_scale = NAN};
    vec_push(t.s->arena, &group.words, intern(t.s->names, "norm"));
    vec_push(t.s->arena, &t.train.optimizer.groups, group);
    t.plan = (Plan){.microbatch = microbatch};
    return t;
}

static void verify_step(const Step *step) {
    const Graph *graphs[] = {step->init, step->begin, step->count, step->total, step->body, step->update, step->eval, step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof graphs[0]; i++) {
        if (!graphs[i]) continue;
        verify(graphs[i]);
        check_reads(graphs[i], &graphs[i]->top);
    }
}

static void trainer_start(Trainer *t) {
    t->step = grad_to_step(t->s, NULL, &t->train, &t->plan, &t->model);
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
                if (!(fabs(x[k] - y[k]) <= 1e-8 * (1e-3 + fabs(x[k])))) fail_msg("%s[%d]: %.15g and %.15g", a->name, (int)k, x[k], y[k]);
        }
        session_free(parts.s);
    }
    session_free(whole.s);
}

#define LOSS "tensor loss: result f32[batch, seq]; output loss = %36; tensor logits: result f32[batch, seq, vocab]; output logits = %35 "
#define MASKED "tensor mask: data f32[batch, seq]; %37 = input mask; %38 = mul(%37, %37); tensor loss.mask: result f32[batch, seq]; output loss.mask = %38 "

static void test_micros(void **state) {
    (void)state;
    compare_micros(GPT(LOSS));
    compare_micros(GPT(MASKED LOSS));
    /* a scalar loss: a mean over the batch of the step, and a penalty that counts once */
    compare_micros(GPT("%37 = mean(%36, over = [batch, seq]); %38 = mul(%0, %0); %39 = sum(%38, over = [vocab, embed])\n"
                       "%40 = add(%37, %39); tensor loss: result f32[]; output loss = %40 "));
    /* an auxiliary loss for each sequence, and one without samples */
    compare_micros(GPT(LOSS "%37 = mul(%33, %33); %38 = mean(%37, over = [seq, embed]); tensor auxiliary.0: result f32[batch]; output auxiliary.0 = %38 "));
    compare_micros(GPT(LOSS "%37 = mean(%0, over = [vocab, embed]); tensor auxiliary.0: result f32[]; output auxiliary.0 = %37 "));
}

static void test_dropout(void **state) {
    (void)state;
    static const char *const text = "graph model { " GPT_DIMS GPT_WEIGHTS
        "%0 = lookup(@table, @tokens, over = [vocab]); %1 = dropout(%0, rate = 0.25)\n"
        "%2 = repeat layers (%3 = carry %1, %4 = slice @layers.norm.w) { %5 = mul(%3, %4); %6 = dropout(%5, rate = 0.5); %7 = add(%3, %6); next %7 }\n"
        "%8 = result(%2, index = 0); %9 = dot(%8, @table, over = [embed]); %10 = cross_entropy(%9, @labels, over = [vocab])\n"
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
            if (!(fabs(w[k] - expected) <= 1e-7)) fail_msg("%s[%d] is %.12g instead of %.12g", tensors[i]->name, (int)k, w[k], expected);
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
        double mean = read_scalar(t.machine, tensor_of(t.step->eval, "eval_loss")) / read_scalar(t.machine, tensor_of(t.step->eval, "eval_count"));
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
        if (tensor->class == CLASS_WEIGHT) machine_set(whole, tensor, contents(&t, tensor_of(t.step->init, tensor->name)));
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
            if (!(fabs(one[c] - logits[position * 10 + c]) <= 1e-10)) fail_msg("position %d: %.12g instead of %.12g", position, one[c], logits[position * 10 + c]);
    }
    session_free(t.s);
}

/* Models whose positions see later ones have no sampling. */
static void test_no_decode(void **state) {
    (void)state;
    Trainer t = trainer_new("graph model { dim batch = 2 batch, seq = 4, vocab = 6, embed = 3; tensor tokens: data i32[batch, seq]\n"
                            "tensor labels: data i32[batch, seq]; tensor table: weight f32[vocab, embed]\n"
                            "%0 = lookup(@table, @tokens, over = [vocab]); %1 = sum(%0, over = [seq]); %2 = add(%0, %1)\n"
                            "%3 = dot(%2, @table, over = [embed]); %4 = cross_entropy(%3, @labels, over = [vocab])\n"
                            "tensor loss: result f32[batch, seq]; output loss = %4; tensor logits: result f32[batch, seq, vocab]; output logits = %3 }", 0);
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
            Trainer t = trainer_new(arena_printf(session_new()->arena, "graph model { %s%s%s%s}", GPT_DIMS, GPT_WEIGHTS, GPT_BODY("%26"), tails[i]), microbatch);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt),      cmocka_unit_test(test_repeats),  cmocka_unit_test(test_random),
        cmocka_unit_test(test_simplify), cmocka_unit_test(test_saved),    cmocka_unit_test(test_micros),
        cmocka_unit_test(test_dropout),  cmocka_unit_test(test_training), cmocka_unit_test(test_update),
        cmocka_unit_test(test_frozen),   cmocka_unit_test(test_evaluation), cmocka_unit_test(test_decode),
        cmocka_unit_test(test_no_decode), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
