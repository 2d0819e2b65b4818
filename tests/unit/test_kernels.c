/* From a .plan text to kernels with addresses, run without a code generator and compared with the evaluator on the same
 * graphs: every gradient, every weight and the loss, for micro-batches, replicas, schedules and several models. Also: no
 * two live buffers overlap, and the arena is at most 1.02 times the largest sum of live bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/plan_machine.h"

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

#define GPT_DEEP "import nn\n" /* longer than GPT, and with dropout, so that what layers keep is the peak */                            \
    "model M {\n dim layers = 5, embed = 8, head = 2, vocab = 9, seq = 16, positions = 16\n dim head_dim = embed / head\n dim ffn = 4 * embed\n"   \
    " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n"                                                   \
    " weight table: [vocab, embed] = normal(0.2)\n weight places: [positions, embed] = normal(0.2)\n"                                    \
    " x = lookup(table, tokens) + lookup(places, position(tokens))\n"                                                                    \
    " repeat layers {\n"                                                                                                                 \
    "  x = x + dropout(nn.attention(nn.layer_norm(x, embed), embed -> (head, head_dim), causal = true), rate = 0.25)\n"                  \
    "  x = x + nn.mlp(nn.layer_norm(x, embed), embed -> ffn, gelu)\n }\n"                                                                \
    " loss = cross_entropy(dot(nn.layer_norm(x, embed), table, over embed), labels, over vocab)\n}\n" TRAIN

#define LLAMA LLAMA_OF("5")
#define LLAMA_EVEN LLAMA_OF("8")
#define LLAMA_OF(seq)                                                                                                                     \
    "import nn\nmodel M {\n dim layers = 2, embed = 8, head = 4, kv_head = 2, head_dim = 4, ffn = 12, vocab = 11, seq = " seq "\n"       \
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

#define EXPERTS(options)                                                                                                                  \
    "import nn\nmodel M {\n dim layers = 2, embed = 8, head = 2, head_dim = 4, ffn = 12, expert = 4, vocab = 9, seq = 6\n"                 \
    " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n"                                                    \
    " weight table: [vocab, embed] = normal(0.2)\n x = lookup(table, tokens)\n"                                                           \
    " repeat layers {\n"                                                                                                                  \
    "  x = x + nn.attention(nn.rms_norm(x, embed), embed -> (head, head_dim), causal = true)\n"                                           \
    "  x = x + nn.moe(nn.rms_norm(x, embed), embed -> ffn, expert, deviation = 0.3" options ")\n }\n"                                     \
    " weight output: [embed, vocab] = normal(0.2)\n"                                                                                      \
    " loss = cross_entropy(dot(nn.rms_norm(x, embed), output, over embed), labels, over vocab)\n}\n" TRAIN
#define MOE EXPERTS(", z_loss = 0.01")

#define TASKS                                                                                                                             \
    "import nn\nmodel M {\n dim task = 2, layers = 2, embed = 8, head = 2, head_dim = 4, ffn = 12, vocab = 9, seq = 6\n"                   \
    " input tokens: int[task, batch, seq]\n target labels: int[task, batch, seq] = next(tokens)\n"                                        \
    " weight table: [vocab, embed] = normal(0.2)\n x = lookup(table, tokens)\n"                                                           \
    " repeat layers {\n"                                                                                                                  \
    "  x = x + nn.attention(nn.rms_norm(x, embed), embed -> (head, head_dim), causal = true)\n"                                           \
    "  x = x + nn.gated_mlp(nn.rms_norm(x, embed), embed -> ffn, silu)\n }\n"                                                             \
    " weight output: [task, embed, vocab] = normal(0.2)\n"                                                                                \
    " ce = cross_entropy(dot(nn.rms_norm(x, embed), output, over embed), labels, over vocab)\n"                                           \
    " loss = sum([0.7, 0.3] along task * mean(ce, over (batch, seq)), over task)\n}\n"                                                    \
    "train {\n model M\n data task = [text(\"x\"), text(\"y\")]\n batch 4\n steps 10\n optimizer adamw(lr = constant(1e-2), weight_decay = 0.1)\n" \
    " clip 1.0\n seed 3\n}\n"

/* Values that are not zero where their operands are: what padding must not let through. */
#define SIGMOID                                                                                                                           \
    "model M {\n dim embed = 8, ffn = 12, vocab = 9, seq = 4\n input tokens: int[batch, seq]\n"                                           \
    " target labels: int[batch, seq] = next(tokens)\n weight table: [vocab, embed] = normal(0.2)\n weight up: [embed, ffn] = normal(0.2)\n" \
    " weight down: [ffn, embed] = uniform(-0.3, 0.3)\n weight gain: [ffn] = ones\n x = lookup(table, tokens)\n h = sigmoid(dot(x, up, over embed)) * gain\n"       \
    " y = x + dot(h, down, over ffn) * mean(h, over ffn) + sum(h * h, over ffn)\n p = softmax(dot(y, table, over embed), over vocab)\n"     \
    " loss = cross_entropy(p * 3, labels, over vocab) + mean(h, over ffn) * 0.1\n}\n" TRAIN

static void test_single(void **state) {
    (void)state;
    run(MLP, "plan p { }\n", NULL);
    run(GPT, "plan p { }\n", NULL);
    run(LLAMA, "plan p { }\n", NULL);
}

__attribute__((format(printf, 2, 0))) static void run_in(const char *model, const char *plan) {
    char text[256];
    snprintf(text, sizeof text, plan, "bf16");
    run(model, text, NULL);
    snprintf(text, sizeof text, plan, "fp16");
    run(model, text, NULL);
}

/* 16-bit activations: every kernel kind reads and writes them, and each collective moves or sums them. */
static void test_precision(void **state) {
    (void)state;
    static const char *const plans[] = {
        "plan p { precision %s }\n",
        "plan p {\n microbatch 2\n recompute full\n precision %s\n}\n",
        "plan p {\n mesh data = 2\n batch on data\n weights on data\n microbatch 1\n precision %s\n}\n",
        "plan p {\n mesh data = 2\n batch on data\n optimizer on data\n precision %s\n}\n",
        "plan p {\n mesh tensor = 2\n head, ffn on tensor\n precision %s\n}\n",
        "plan p {\n mesh data = 2, tensor = 2\n batch on data\n gradients on data\n head, ffn, seq on tensor\n precision %s\n}\n",
    };
    static const char *const models[] = {GPT_DEEP, GPT, MOE};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) run_in(models[m], plans[i]);
    run_in(LLAMA, plans[0]);
    run_in(LLAMA, plans[2]);
    run_in(TASKS, plans[0]);
    run_in(SIGMOID, plans[0]);
    run_in(SIGMOID, "plan p {\n mesh tensor = 2\n vocab padded, ffn on tensor\n precision %s\n}\n");
    run_in(MLP, "plan p {\n mesh tensor = 3\n vocab on tensor\n precision %s\n}\n");
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
    equal(GPT, "plan p {\n mesh context = 2\n seq on context using ulysses\n}\n");
    equal(GPT, "plan p {\n mesh context = 3\n seq on context using gather\n}\n");
    equal(LLAMA, "plan p {\n mesh data = 2, context = 5\n batch on data\n seq on context using gather\n weights on data\n}\n");
}

/* Keys and values go round, and each rank holds a piece of either end of the sequence. */
static void test_ring(void **state) {
    (void)state;
    equal(GPT_DEEP, "plan p {\n mesh context = 2\n seq on context using ring\n}\n");
    equal(GPT_DEEP, "plan p {\n mesh context = 4\n seq on context using ring\n microbatch 2\n}\n");
    equal(GPT, "plan p {\n mesh context = 3\n seq on context using ring\n}\n");
    equal(LLAMA_EVEN, "plan p {\n mesh context = 2\n seq on context using ring\n}\n");
    equal(LLAMA_EVEN, "plan p {\n mesh context = 4\n seq on context using ring\n}\n");
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

/* Every form of the layer on one rank. */
static void test_experts(void **state) {
    (void)state;
    run(MOE, "plan p { }\n", NULL);
    run(EXPERTS(", capacity = none, shared = 1"), "plan p { microbatch 1 }\n", NULL);
    run(EXPERTS(", capacity = 0.5, k = 1, normalize = false, gated = false, activation = gelu"), "plan p { }\n", NULL);
    run(EXPERTS(", k = 3, sigmoid_gate = true, balance = 0.1"), "plan p { microbatch 2 }\n", NULL);
}

/* Experts over the ranks that hold the tokens, on an axis of their own, over two axes; with every other sentence. */
static void test_expert_plans(void **state) {
    (void)state;
    equal(MOE, "plan p {\n mesh data = 2\n expert, batch on data\n}\n");
    equal(MOE, "plan p {\n mesh data = 4\n expert, batch on data\n}\n");
    equal(MOE, "plan p {\n mesh data = 2\n expert, batch on data\n microbatch 1\n}\n");
    equal(MOE, "plan p {\n mesh ep = 4\n expert on ep\n}\n");
    equal(MOE, "plan p {\n mesh data = 2, ep = 2\n batch on data\n expert, batch on ep\n}\n");
    equal(MOE, "plan p {\n mesh data = 2, ep = 2\n expert, batch on data\n expert, batch on ep\n}\n");
    equal(MOE, "plan p {\n mesh data = 2, tensor = 2\n expert, batch on data\n head, ffn on tensor\n}\n");
    equal(MOE, "plan p {\n mesh data = 2, tensor = 2\n expert, batch on data\n head, ffn, seq on tensor\n}\n");
    equal(MOE, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n expert, head, seq on tensor\n}\n");
    equal(MOE, "plan p {\n mesh context = 2\n expert, seq on context\n}\n");
    equal(MOE, "plan p {\n mesh data = 2, context = 2\n expert, batch on data\n expert, seq on context\n}\n");
    equal(MOE, "plan p {\n mesh data = 2\n expert, batch on data\n optimizer on data\n}\n");
    equal(MOE, "plan p {\n mesh data = 2\n expert, batch on data\n gradients on data\n microbatch 1\n}\n");
    equal(MOE, "plan p {\n mesh data = 4\n expert, batch on data\n weights on data\n}\n");
    equal(MOE, "plan p {\n mesh data = 2, tensor = 2\n expert, batch on data\n head, ffn, seq on tensor\n weights on data\n microbatch 1\n}\n");
    equal(EXPERTS(", capacity = none, shared = 2"), "plan p {\n mesh data = 2, tensor = 2\n expert, batch on data\n head, ffn on tensor\n}\n");
    equal(EXPERTS(", capacity = 0.5, k = 1, normalize = false"), "plan p {\n mesh data = 4\n expert, batch on data\n}\n");
}

/* A data set for each task: groups of ranks, each with its own; heads stay with their task, all else is shared. */
static void test_tasks(void **state) {
    (void)state;
    run(TASKS, "plan p { microbatch 2 }\n", NULL);
    equal(TASKS, "plan p {\n mesh context = 2\n task on context\n}\n");
    equal(TASKS, "plan p {\n mesh context = 2, data = 2\n task on context\n batch on data\n microbatch 1\n}\n");
    equal(TASKS, "plan p {\n mesh data = 2, context = 2\n task on context\n batch on data\n weights on data\n}\n");
    equal(TASKS, "plan p {\n mesh context = 2, tensor = 2\n task on context\n head, ffn, seq on tensor\n optimizer on context\n}\n");
    equal(TASKS, "plan p {\n mesh data = 2\n task, batch on data\n}\n");
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

/* Under `recompute`, the same numbers from less memory: everything in a layer but its carry, or one call's own values. */
static void test_recompute(void **state) {
    (void)state;
    static const char *const models[] = {GPT_DEEP, LLAMA};
    static const char *const words[] = {"full", "attention", "attention, mlp, gated_mlp", "layers"};
    for (size_t m = 0; m < 2; m++) {
        double kept = run(models[m], "plan p { }\n", NULL);
        Built whole = build(models[m], "plan p { }\n", NULL);
        int64_t attention = 0;
        for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
            char plan[128];
            snprintf(plan, sizeof plan, "plan p { recompute %s }\n", words[w]);
            assert_true(run(models[m], plan, NULL) == kept);
            Built less = build(models[m], plan, NULL);
            int64_t saved = whole.program->live_peak - less.program->live_peak;
            if (saved <= 0 || (w == 2 && saved <= attention)) fail_msg("recompute %s saves %lld bytes", words[w], (long long)saved);
            if (w == 1) attention = saved;
            session_free(less.s);
        }
        session_free(whole.s);
    }
    equal(GPT, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n head, ffn, seq on tensor\n microbatch 1\n recompute full\n}\n");
    equal(GPT, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n weights on data\n head, ffn, seq on tensor\n recompute attention\n}\n");
}

/* Sizes that an axis does not divide, made longer: the same training as on one rank, whatever stands behind the end. */
static void test_padded(void **state) {
    (void)state;
    run(SIGMOID, "plan p {\n mesh tensor = 3\n ffn, vocab on tensor\n}\n", NULL);
    equal(MLP, "plan p {\n mesh tensor = 2\n vocab padded on tensor\n}\n");
    equal(MLP, "plan p {\n mesh tensor = 5\n ffn padded, vocab padded on tensor\n microbatch 2\n}\n");
    equal(MLP, "plan p {\n mesh data = 2, tensor = 5\n batch on data\n weights on data\n ffn padded, vocab padded on tensor\n}\n");
    equal(GPT, "plan p {\n mesh tensor = 2\n head, ffn, vocab padded, seq on tensor\n}\n");
    equal(GPT, "plan p {\n mesh tensor = 4\n vocab padded on tensor\n recompute full\n}\n");
    equal(GPT, "plan p {\n mesh data = 2, tensor = 3\n batch on data\n vocab padded, ffn padded, seq on tensor\n optimizer on data\n microbatch 1\n}\n");
    equal(LLAMA, "plan p {\n mesh tensor = 2\n vocab padded, head, ffn on tensor\n}\n");
    equal(SIGMOID, "plan p {\n mesh tensor = 5\n ffn padded, vocab padded on tensor\n}\n");
}

/* Fewer key and value heads than ranks: copies of them, whose gradients add up. */
static void test_repeated(void **state) {
    (void)state;
    equal(LLAMA, "plan p {\n mesh tensor = 4\n head, ffn, kv_head repeated on tensor\n}\n");
    equal(LLAMA, "plan p {\n mesh tensor = 4\n head, ffn, kv_head repeated, vocab padded on tensor\n recompute attention\n}\n");
    equal(LLAMA, "plan p {\n mesh data = 2, tensor = 4\n batch on data\n weights on data\n head, ffn, kv_head repeated on tensor\n microbatch 1\n}\n");
}

static int count_kernels(const KernelList *list, KernelKind kind, Rounds rounds) {
    int n = 0;
    for (int i = 0; i < list->n; i++) n += list->at[i]->kind == kind && list->at[i]->rounds == rounds;
    return n;
}

static Kernel *first_repeat(const RoleProgram *program, const char *entry) {
    for (int e = 0; e < program->entries.n; e++)
        for (int i = 0; i < program->entries.at[e].body.n && strcmp(program->entries.at[e].name, entry) == 0; i++)
            if (program->entries.at[e].body.at[i]->kind == KERNEL_REPEAT) return program->entries.at[e].body.at[i];
    return NULL;
}

/* Stored weights: a layer meets once, having started the next one's gathers; its sums are added a round later. Without
 * that meeting, or with a start that comes too late, the check says so. */
static void test_overlap(void **state) {
    (void)state;
    Built b = build(GPT_DEEP, "plan p {\n mesh data = 2\n batch on data\n weights on data\n microbatch 1\n}\n", NULL);
    Text why = {.arena = b.s->arena};
    static const char *const halves[] = {"F", "B"};
    for (int half = 0; half < 2; half++) {
        Kernel *repeat = first_repeat(b.program, halves[half]);
        KernelList *body = &repeat->body;
        assert_int_equal(count_kernels(body, KERNEL_FINISH, ROUNDS_ALL), 1);
        assert_true(count_kernels(body, KERNEL_COLLECTIVE, ROUNDS_BUT_LAST) >= 6);
        assert_int_equal(count_kernels(body, KERNEL_LOOP, ROUNDS_BUT_FIRST) > 0, half == 1);
        assert_int_equal(body->at[0]->kind, KERNEL_FINISH);
        body->at[0]->kind = KERNEL_TRANSFER;
        body->at[0]->handover = &(Handover){.kind = HANDOVER_WAIT};
        assert_false(overlap_verify(b.program, &why));
        body->at[0]->kind = KERNEL_FINISH;
        assert_true(overlap_verify(b.program, &why));
        int at = 1;
        while (!body->at[at]->begins) at++;
        const Kernel *ahead = body->at[at]; /* its memory is given away while it is in flight */
        Buffer *out = ahead->refs[1].buffer;
        int last = out->last;
        out->last = out->first;
        assert_false(overlap_verify(b.program, &why));
        out->last = last;
        assert_true(overlap_verify(b.program, &why));
    }
    session_free(b.s);
    Built plain = build(GPT_DEEP, "plan p {\n mesh data = 2\n batch on data\n microbatch 1\n}\n", NULL);
    Kernel *repeat = first_repeat(plain.program, "B");
    int joined = 0;
    for (int i = 0; i < repeat->body.n; i++) { /* the last micro-batch joins the layer's gradients */
        const Kernel *kernel = repeat->body.at[i];
        if (kernel->kind != KERNEL_COLLECTIVE) continue;
        assert_true(kernel->begins && kernel->micro == plain.step->micros);
        joined++;
    }
    assert_true(joined >= 6);
    session_free(plain.s);
}

/* Reproducible mode computes the same values: exact sums, gathered operands, branches of trees, in every kind of plan. */
static void test_reproducible(void **state) {
    reproducible_builds = true;
    test_single(state);
    test_micro(state);
    test_replicas(state);
    test_cuts(state);
    test_context(state);
    test_stored(state);
    test_expert_plans(state);
    test_recompute(state);
    test_padded(state);
    reproducible_builds = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overlap), cmocka_unit_test(test_single), cmocka_unit_test(test_precision), cmocka_unit_test(test_micro), cmocka_unit_test(test_replicas), cmocka_unit_test(test_recompute), cmocka_unit_test(test_padded), cmocka_unit_test(test_repeated), cmocka_unit_test(test_cuts), cmocka_unit_test(test_context), cmocka_unit_test(test_ring),
                                       cmocka_unit_test(test_stored), cmocka_unit_test(test_experts), cmocka_unit_test(test_expert_plans), cmocka_unit_test(test_tasks), cmocka_unit_test(test_schedules), cmocka_unit_test(test_in_flight), cmocka_unit_test(test_reproducible)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
