/* From a .plan text to kernels with addresses, run without a code generator and compared with the evaluator on the same
 * graphs: every gradient, every weight and the loss, for micro-batches, replicas, schedules and several models. Also: no
 * two live buffers overlap, and the arena is at most 1.02 times the largest sum of live bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "partition/partition.h"
#include "schedule/schedules.h"
#include "unit/kernel_machine.h"

#define TRAIN "train {\n model M\n data text(\"x\")\n batch 4\n steps 10\n optimizer adamw(lr = constant(1e-2), weight_decay = 0.1)\n clip 1.0\n seed 3\n}\n"

#define GPT                                                                                                                               \
    "import nn\nmodel M {\n dim layers = 2, embed = 8, head = 2, vocab = 17, seq = 6, positions = 6\n dim head_dim = embed / head\n dim ffn = 2 * embed\n" \
    " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n"                                                    \
    " weight table: [vocab, embed] = normal(0.2)\n weight places: [positions, embed] = normal(0.2)\n"                                           \
    " x = lookup(table, tokens) + lookup(places, position(tokens))\n"                                                                     \
    " repeat layers {\n"                                                                                                                  \
    "  x = x + nn.attention(nn.layer_norm(x, embed), embed -> (head, head_dim), causal = true)\n"                                         \
    "  x = x + nn.mlp(nn.layer_norm(x, embed), embed -> ffn, gelu)\n }\n"                                                                 \
    " loss = cross_entropy(dot(nn.layer_norm(x, embed), table, over embed), labels, over vocab)\n}\n" TRAIN

#define LLAMA                                                                                                                             \
    "import nn\nmodel M {\n dim layers = 2, embed = 8, head = 4, kv_head = 2, head_dim = 4, ffn = 12, vocab = 11, seq = 5\n"              \
    " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n"                                                    \
    " weight table: [vocab, embed] = normal(0.2)\n x = lookup(table, tokens)\n"                                                           \
    " repeat layers {\n"                                                                                                                  \
    "  x = x + nn.attention(nn.rms_norm(x, embed), embed -> (head, head_dim), kv_head, causal = true, theta = 10000)\n"                   \
    "  x = x + nn.gated_mlp(nn.rms_norm(x, embed), embed -> ffn, silu)\n }\n"                                                             \
    " weight output: [embed, vocab] = normal(0.2)\n"                                                                                      \
    " loss = cross_entropy(dot(nn.rms_norm(x, embed), output, over embed), labels, over vocab)\n}\n" TRAIN

#define MLP                                                                                                                               \
    "model M {\n dim embed = 8, ffn = 12, vocab = 9, seq = 4\n input tokens: int[batch, seq]\n"                                           \
    " target labels: int[batch, seq] = next(tokens)\n weight table: [vocab, embed] = normal(0.2)\n weight up: [embed, ffn] = normal(0.2)\n" \
    " weight down: [ffn, embed] = normal(0.2)\n x = lookup(table, tokens)\n"                                                              \
    " y = x + dot(dropout(gelu(dot(x, up, over embed)), rate = 0.25), down, over ffn)\n"                                                         \
    " loss = cross_entropy(dot(y, table, over embed), labels, over vocab)\n}\n" TRAIN

typedef struct Built {
    Session *s;
    Step *step;
    const Plan *plan;
    const Train *train;
    Schedule *schedule;
    RoleProgram *program;
} Built;

static Layout layout_of(const Plan *plan, const Graph *graph, Map *flat_dims) {
    Layout layout = {.mesh = plan->mesh, .flat_dims = flat_dims};
    for (int i = 0; i < plan->rules.n; i++) {
        static const StoredParts stored[] = {[STORAGE_OPTIMIZER] = STORED_OPTIMIZER, [STORAGE_GRADIENTS] = STORED_GRADIENTS, [STORAGE_WEIGHTS] = STORED_WEIGHTS};
        if (plan->rules.at[i].storage) layout.axes[plan->rules.at[i].axis].stored = stored[plan->rules.at[i].storage];
        if (!plan->rules.at[i].what) continue;
        Dim *dim = graph_find_dim(graph, plan->rules.at[i].what);
        if (dim) vec_push(graph->arena, &layout.axes[plan->rules.at[i].axis].names, dim);
    }
    return layout;
}

static Built build(const char *model, const char *plan, const char *schedule) {
    Built b = {.s = session_new()};
    b.s->library_path = PLAN_SOURCE_DIR "/stdlib";
    char *text = arena_printf(b.s->arena, "%s%s", model, plan);
    Ast *ast = text_to_ast(b.s, session_add_text(b.s, "case.plan", text, strlen(text)));
    Program *program = ast_to_model(b.s, ast, NULL, 0);
    ModelGraph *graph = program && program->train ? model_to_graph(b.s, program, program->train) : NULL;
    if (diag_count(b.s, SEV_ERROR)) diag_flush(b.s, stderr, false);
    assert_non_null(graph);
    b.train = program->train;
    b.plan = program->plans.at[0];
    b.step = grad_to_step(b.s, program, b.train, b.plan, graph);
    assert_non_null(b.step);
    Map flat_dims = {0};
    Graph *graphs[] = {b.step->body, b.step->update, b.step->begin, b.step->init, b.step->count, b.step->total, b.step->eval, b.step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        if (!graphs[i]) continue;
        Layout layout = graphs[i] == b.step->decode ? (Layout){.mesh = b.plan->mesh, .flat_dims = &flat_dims} : layout_of(b.plan, graphs[i], &flat_dims);
        graph_partition(graphs[i], &layout);
        Text why = {.arena = b.s->arena};
        if (!graph_verify(graphs[i], &why)) fail_msg("%s", why.at);
    }
    if (schedule) b.schedule = schedule_parse(b.s, session_add_text(b.s, "schedule", schedule, strlen(schedule)));
    else b.schedule = schedule_one_f_one_b(b.s, b.s->arena, 1, (int)b.step->micros, (ScheduleParts){.begin = b.step->begin, .count = b.step->count, .total = b.step->total});
    if (!b.schedule) diag_flush(b.s, stderr, false);
    assert_non_null(b.schedule);
    b.program = schedule_to_kernels(b.step, &b.plan->mesh, b.schedule, 0);
    kernels_to_memory(b.program);
    Text why = {.arena = b.s->arena};
    if (!memory_verify(b.program, &why)) fail_msg("%s", why.at);
    if ((double)b.program->arena_bytes > 1.02 * (double)b.program->live_peak + 4096)
        fail_msg("arena %lld, live %lld", (long long)b.program->arena_bytes, (long long)b.program->live_peak);
    return b;
}

/* ---- moving tensors between the two machines -------------------------------------------------------------------------- */

static int64_t local_elements(const Array *a) { return a->n; }

static void copy_to_kernels(Built *b, Machine *m, KernelMachine *k) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        Tensor *tensor = b->program->buffers.at[i]->tensor;
        if (!tensor || (tensor->class != CLASS_WEIGHT && tensor->class != CLASS_MOMENT)) continue;
        for (int64_t r = 0; r < k->n_ranks; r++) {
            const Array *a = machine_array(m, tensor, r);
            float *to = km_tensor(k, r, tensor->name);
            for (int64_t e = 0; e < local_elements(a); e++) {
                to[e] = (float)a->at[e];
                a->at[e] = (double)to[e];
            }
        }
    }
}

static void set_scalar(Built *b, Machine *m, KernelMachine *k, const char *name, double value) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        Tensor *tensor = b->program->buffers.at[i]->tensor;
        if (!tensor || strcmp(tensor->name, name) != 0) continue;
        for (int64_t r = 0; r < k->n_ranks; r++) {
            if (tensor->dtype == DT_F32) *(float *)km_tensor(k, r, name) = (float)value;
            else *(int32_t *)km_tensor(k, r, name) = (int32_t)value;
            if (strcmp(name, "micro") != 0) machine_array(m, tensor, r)->at[0] = value;
        }
    }
}

/* The sequence with logical index i of the step has the same tokens whoever holds it. */
static void fill_data(Built *b, Machine *m, KernelMachine *k, int64_t micro) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        const Buffer *buffer = b->program->buffers.at[i];
        Tensor *tensor = buffer->tensor;
        if (!tensor || tensor->class != CLASS_DATA || !shape_elements(&tensor->shape)) continue;
        int64_t seq = tensor->shape.n > 1 ? tensor->shape.dims[1]->size : 1, n = tensor->shape.dims[0]->size;
        if (!tensor->shape.dims[0]->is_batch) continue;
        double *all = malloc(sizeof *all * (size_t)(n * seq));
        for (int64_t e = 0; e < n * seq; e++) {
            int64_t sample = micro * n + e / seq, at = e % seq + (tensor->of ? 1 : 0);
            all[e] = (double)((sample * 31 + at * 7 + at * at * 3) % 9);
        }
        machine_set(m, tensor, all);
        for (int64_t r = 0; r < k->n_ranks; r++) {
            const Array *a = machine_array(m, tensor, r);
            int32_t *to = (int32_t *)((char *)km_tensor(k, r, tensor->name) + (micro % buffer->flights) * buffer->bytes);
            for (int64_t e = 0; e < a->n; e++) to[e] = (int32_t)a->at[e];
        }
        free(all);
    }
}

static void compare(Built *b, Machine *m, KernelMachine *k, TensorClass class, double tolerance, const char *when) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        Tensor *tensor = b->program->buffers.at[i]->tensor;
        if (!tensor || tensor->class != class || tensor->dtype != DT_F32) continue;
        if (class == CLASS_RESULT && strcmp(tensor->name, "loss") != 0 && strcmp(tensor->name, "grad_norm") != 0) continue;
        for (int64_t r = 0; r < k->n_ranks; r++) {
            const Array *a = machine_array(m, tensor, r);
            const float *x = km_tensor(k, r, tensor->name);
            double error = 0, size = 0;
            for (int64_t e = 0; e < a->n; e++) error += pow((double)x[e] - a->at[e], 2), size += a->at[e] * a->at[e];
            if (!(sqrt(error) <= tolerance * (sqrt(size) + 1e-3))) fail_msg("%s: %s on rank %lld: off by %g of %g", when, tensor->name, (long long)r, sqrt(error), sqrt(size));
        }
    }
}

/* Two steps; returns the second loss. */
static double run(const char *model, const char *plan, const char *schedule) {
    Built b = build(model, plan, schedule);
    KernelMachine k = km_open(b.program, &b.plan->mesh);
    Machine *m = machine_new(b.s, &b.plan->mesh);
    set_scalar(&b, m, &k, "seed", 3);
    set_scalar(&b, m, &k, "lr", 1e-2);
    set_scalar(&b, m, &k, "step", 1);
    machine_run(m, b.step->init, 0, 0, 3);
    assert_true(km_run(&k, "init", 0));
    compare(&b, m, &k, CLASS_WEIGHT, 1e-5, "initial weights");
    copy_to_kernels(&b, m, &k);
    for (int step = 1; step <= 2; step++) {
        set_scalar(&b, m, &k, "step", step);
        if (b.step->begin) machine_run(m, b.step->begin, 0, step, 3);
        km_run(&k, "begin", 0);
        for (int64_t micro = 0; micro < b.step->micros; micro++) {
            fill_data(&b, m, &k, micro);
            machine_run(m, b.step->body, micro, step, 3);
        }
        for (int i = 0; i < b.schedule->roles[0].actions.n; i++) {
            const Action *action = &b.schedule->roles[0].actions.at[i];
            if (action->kind == ACTION_F) {
                fill_data(&b, m, &k, action->micro);
                assert_true(km_run(&k, "F", action->micro));
            } else if (action->kind == ACTION_B) assert_true(km_run(&k, "B", action->micro));
        }
        compare(&b, m, &k, CLASS_GRADIENT, 2e-5, "gradients");
        machine_run(m, b.step->update, 0, step, 3);
        assert_true(km_run(&k, "update", 0));
        compare(&b, m, &k, CLASS_RESULT, 1e-5, "results");
        compare(&b, m, &k, CLASS_WEIGHT, 2e-4, "updated weights");
    }
    double loss = (double)*(float *)km_tensor(&k, 0, "loss");
    km_close(&k);
    session_free(b.s);
    return loss;
}

/* The same losses as one rank has. */
static void equal(const char *model, const char *plan) {
    double one = run(model, "plan p { }\n", NULL), many = run(model, plan, NULL);
    if (fabs(one - many) > 1e-5 * fabs(one)) fail_msg("loss %.9g on one rank, %.9g with %s", one, many, plan);
}

static void test_single(void **state) {
    (void)state;
    run(MLP, "plan p { }\n", NULL);
    run(GPT, "plan p { }\n", NULL);
    run(LLAMA, "plan p { }\n", NULL);
}

static void test_micro(void **state) {
    (void)state;
    run(MLP, "plan p { microbatch 1 }\n", NULL);
    run(GPT, "plan p { microbatch 2 }\n", NULL);
}

static void test_replicas(void **state) {
    (void)state;
    run(MLP, "plan p {\n mesh data = 2\n batch on data\n}\n", NULL);
    run(GPT, "plan p {\n mesh data = 4\n batch on data\n}\n", NULL);
    run(LLAMA, "plan p {\n mesh data = 2\n batch on data\n microbatch 1\n}\n", NULL);
    run(MLP, "plan p {\n mesh a = 2, b = 2\n batch on a\n batch on b\n}\n", NULL);
}

/* Tensor, sequence and vocabulary cuts, alone and with replicas: the same kernels, other types. */
static void test_cuts(void **state) {
    (void)state;
    run(MLP, "plan p {\n mesh tensor = 2\n ffn on tensor\n}\n", NULL);
    run(MLP, "plan p {\n mesh tensor = 3\n vocab on tensor\n}\n", NULL);
    run(MLP, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n ffn, seq on tensor\n}\n", NULL);
    run(GPT, "plan p {\n mesh tensor = 2\n head, ffn on tensor\n}\n", NULL);
    run(GPT, "plan p {\n mesh tensor = 2\n head, ffn, seq on tensor\n}\n", NULL);
    run(GPT, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n head, ffn, seq on tensor\n microbatch 1\n}\n", NULL);
    run(LLAMA, "plan p {\n mesh tensor = 2\n head, ffn on tensor\n}\n", NULL);
    run(LLAMA, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n head, ffn on tensor\n microbatch 1\n}\n", NULL);
}

/* The sequence cut through attention: keys and values are gathered, queries keep their logical positions. */
static void test_context(void **state) {
    (void)state;
    run(GPT, "plan p {\n mesh context = 2\n seq on context\n}\n", NULL);
    run(GPT, "plan p {\n mesh context = 3, tensor = 2\n seq on context\n head, ffn on tensor\n}\n", NULL);
    run(LLAMA, "plan p {\n mesh context = 5\n seq on context\n}\n", NULL);
}

/* Optimizer state, gradients, weights stored in parts: alone, with micro-batches, sizes that do not divide, other cuts. */
static void test_stored(void **state) {
    (void)state;
    equal(MLP, "plan p {\n mesh data = 2\n batch on data\n optimizer on data\n}\n");
    equal(MLP, "plan p {\n mesh data = 4\n batch on data\n gradients on data\n microbatch 1\n}\n");
    equal(MLP, "plan p {\n mesh data = 2\n batch on data\n weights on data\n}\n");
    equal(GPT, "plan p {\n mesh data = 2\n batch on data\n optimizer on data\n microbatch 1\n}\n");
    equal(GPT, "plan p {\n mesh data = 2\n batch on data\n gradients on data\n microbatch 1\n}\n");
    equal(GPT, "plan p {\n mesh data = 4\n batch on data\n weights on data\n}\n");
    equal(LLAMA, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n weights on data\n head, ffn on tensor\n}\n");
    equal(GPT, "plan p {\n mesh outer = 2, data = 2\n batch on outer\n batch on data\n weights on data\n}\n");
    equal(GPT, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n optimizer on data\n head, ffn, seq on tensor\n microbatch 1\n}\n");
}

/* Two actions swapped: two micro-batches are in flight, so what is saved has two copies. */
static void test_schedules(void **state) {
    (void)state;
    run(MLP, "plan p { microbatch 2 }\n", "schedule mine roles 1 chunks 1 micros 2\nrole 0: BEGIN 0F0 0F1 0B0 0B1 OPT\n");
    run(GPT, "plan p { microbatch 1 }\n", "schedule mine roles 1 chunks 1 micros 4\nrole 0: BEGIN 0F0 0F1 0B0 0F2 0B1 0F3 0B3 0B2 OPT\n");
}

static void test_in_flight(void **state) {
    (void)state;
    Built plain = build(GPT, "plan p { microbatch 2 }\n", NULL);
    Built swapped = build(GPT, "plan p { microbatch 2 }\n", "schedule mine roles 1 chunks 1 micros 2\nrole 0: BEGIN 0F0 0F1 0B0 0B1 OPT\n");
    assert_int_equal(schedule_in_flight(plain.schedule, 0, 0), 1);
    assert_int_equal(schedule_in_flight(swapped.schedule, 0, 0), 2);
    assert_true(swapped.program->by_kind[MEM_ACTIVATION] > plain.program->by_kind[MEM_ACTIVATION]);
    session_free(plain.s);
    session_free(swapped.s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_single), cmocka_unit_test(test_micro), cmocka_unit_test(test_replicas), cmocka_unit_test(test_cuts), cmocka_unit_test(test_context),
                                       cmocka_unit_test(test_stored), cmocka_unit_test(test_schedules), cmocka_unit_test(test_in_flight)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
