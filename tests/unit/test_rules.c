/* Sentences of a plan that change the graph before it is partitioned: layers in groups, and repeats inside repeats, which
 * groups are made of; gathered weights that are kept; rules for a part of the model; dimensions in
 * unequal parts. Kernels, evaluator and one rank give the same numbers, and memory is what the rule says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/plan_machine.h"

#define TRAIN "train {\n model M\n data text(\"x\")\n batch 4\n steps 10\n optimizer adamw(lr = constant(1e-2), weight_decay = 0.1)\n clip 1.0\n seed 3\n}\n"

/* Dropout, a number for each layer, and a value that is stacked over the layers. */
#define GPT(layers)                                                                                                                       \
    "import nn\nmodel M {\n dim layers = " layers ", embed = 8, head = 4, vocab = 12, seq = 8, positions = 8\n dim head_dim = 2\n dim ffn = 2 * embed\n" \
    " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n"                                                    \
    " weight table: [vocab, embed] = normal(0.2)\n weight places: [positions, embed] = normal(0.2)\n"                                     \
    " x = lookup(table, tokens) + lookup(places, position(tokens))\n y = x\n"                                                             \
    " repeat layers as i {\n"                                                                                                             \
    "  x = x + dropout(nn.attention(nn.layer_norm(x, embed), embed -> (head, head_dim), causal = true), rate = 0.25)\n"                   \
    "  x = x + nn.mlp(nn.layer_norm(x, embed), embed -> ffn, gelu) + 0.1 * cast(i, float) * y\n"                                          \
    "  auxiliary 0.01 * mean(x * x, over (batch, seq, embed))\n }\n"                                                                      \
    " loss = cross_entropy(dot(nn.layer_norm(x, embed), table, over embed), labels, over vocab)\n}\n" TRAIN

/* A repeat in a repeat: weights of both, a carry of both, a value of the outer one that the inner one reads. */
#define NESTED                                                                                                                            \
    "model M {\n dim block = 3, layer = 2, embed = 8, ffn = 8, vocab = 12, seq = 4\n input tokens: int[batch, seq]\n"                     \
    " target labels: int[batch, seq] = next(tokens)\n weight table: [vocab, embed] = normal(0.3)\n x = lookup(table, tokens)\n"           \
    " repeat block {\n  weight gain: [embed] = normal(0.3)\n  y = x * gain\n"                                                             \
    "  repeat layer {\n   weight up: [embed, ffn] = normal(0.3)\n   weight down: [ffn, embed] = normal(0.3)\n"                            \
    "   x = x + dropout(dot(gelu(dot(x + y, up, over embed)), down, over ffn), rate = 0.25)\n  }\n  x = x + sigmoid(y)\n }\n"             \
    " loss = cross_entropy(dot(x, table, over embed), labels, over vocab)\n}\n" TRAIN

static int64_t live(const char *model, const char *plan) {
    Built b = build(model, plan, NULL);
    int64_t bytes = b.program->live_peak;
    session_free(b.s);
    return bytes;
}

static void test_nested(void **state) {
    (void)state;
    equal(NESTED, "plan p { microbatch 2 }\n");
    equal(NESTED, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n ffn, vocab, seq on tensor\n}\n");
    equal(NESTED, "plan p {\n mesh data = 2\n batch on data\n weights on data\n microbatch 1\n}\n");
    equal(NESTED, "plan p {\n mesh data = 2\n batch on data\n gradients on data\n recompute full\n}\n");
}

static void test_groups(void **state) {
    (void)state;
    static const char *const words[] = {"1", "2", "3", "6"};
    double kept = run(GPT("6"), "plan p { }\n", NULL);
    int64_t whole = live(GPT("6"), "plan p { }\n");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char plan[64];
        snprintf(plan, sizeof plan, "plan p { recompute every %s }\n", words[i]);
        assert_true(run(GPT("6"), plan, NULL) == kept);
        if (words[i][0] != '6') assert_true(live(GPT("6"), plan) < whole);
    }
    assert_true(live(GPT("6"), "plan p { recompute every 1 }\n") == live(GPT("6"), "plan p { recompute full }\n"));
    /* of 16 layers, 16 inputs and one layer's values, against 4 inputs and those of 4 layers; the optimum is between */
    assert_true(live(GPT("16"), "plan p { recompute every 2 }\n") < live(GPT("16"), "plan p { recompute every 8 }\n"));
    assert_true(live(GPT("16"), "plan p { recompute every 4 }\n") < live(GPT("16"), "plan p { recompute every 16 }\n"));
}

static void test_groups_with_others(void **state) {
    (void)state;
    equal(GPT("4"), "plan p {\n mesh data = 2, tensor = 2\n batch on data\n head, ffn, vocab, seq on tensor\n microbatch 1\n recompute every 2\n}\n");
    equal(GPT("4"), "plan p {\n mesh data = 2\n batch on data\n weights on data\n microbatch 1\n recompute every 2\n}\n");
    equal(GPT("6"), "plan p {\n mesh data = 2, tensor = 2\n batch on data\n weights on data\n head, ffn on tensor\n recompute every 3\n}\n");
    equal(GPT("4"), "plan p {\n mesh outer = 2, inner = 2\n batch on outer, inner\n weights on inner\n seq on outer\n recompute every 4\n}\n");
    equal(GPT("4"), "plan p {\n mesh tensor = 5\n vocab padded on tensor\n recompute every 2\n}\n");
    equal(NESTED, "plan p {\n mesh data = 2\n batch on data\n weights on data\n recompute every 3\n}\n");
}

/* ---- gathered weights ------------------------------------------------------------------------------------------------- */

static int64_t gathers_in(const KernelList *list, int64_t rounds) {
    int64_t n = 0;
    for (int i = 0; i < list->n; i++) {
        const Kernel *kernel = list->at[i];
        if (kernel->kind == KERNEL_REPEAT) n += gathers_in(&kernel->body, kernel->count);
        bool gathers = kernel->kind == KERNEL_COLLECTIVE && kernel->collective->op == OP_ALL_GATHER;
        if (gathers) n += kernel->rounds == ROUNDS_ALL ? rounds : rounds - 1;
    }
    return n;
}

static int64_t gathers(const Built *b, const char *entry) {
    for (int i = 0; i < b->program->entries.n; i++)
        if (strcmp(b->program->entries.at[i].name, entry) == 0) return gathers_in(&b->program->entries.at[i].body, 1);
    return 0;
}

#define STORED(using) "plan p {\n mesh data = 2\n batch on data\n weights on data" using "\n microbatch 1\n}\n"

static void test_keeping(void **state) {
    (void)state;
    static const char *const plans[] = {STORED(""), STORED(" using free"), STORED(" using keep_for_backward"), STORED(" using keep")};
    int64_t n[4][3], bytes[4];
    for (int i = 0; i < 4; i++) {
        equal(GPT("4"), plans[i]);
        Built b = build(GPT("4"), plans[i], NULL);
        n[i][0] = gathers(&b, "begin"), n[i][1] = gathers(&b, "F"), n[i][2] = gathers(&b, "B");
        bytes[i] = b.program->live_peak;
        session_free(b.s);
    }
    enum { STACKED = 10, OTHERS = 4 }; /* 2 norms of 2, 4 of attention, 2 of the mlp; two tables and the last norm */
    assert_int_equal(n[0][0], 0);
    assert_int_equal(n[0][1], 4 * STACKED + OTHERS); /* each layer's, in each micro-batch */
    assert_true(n[0][2] > 4 * (STACKED - 2)); /* the biases of norms have no use there */
    for (int k = 0; k < 3; k++) assert_int_equal(n[1][k], n[0][k]);
    assert_int_equal(n[2][0], 0);
    assert_int_equal(n[2][1], STACKED + OTHERS); /* all layers at once, in each micro-batch */
    assert_int_equal(n[2][2], 0);
    assert_int_equal(n[3][0], STACKED + OTHERS); /* and once a step */
    assert_int_equal(n[3][1] + n[3][2], 0);
    assert_true(bytes[2] > bytes[0] && bytes[3] > bytes[0]);
}

static void test_keeping_with_others(void **state) {
    (void)state;
    equal(GPT("4"), "plan p {\n mesh data = 2, tensor = 2\n batch on data\n weights on data using keep\n head, ffn, vocab, seq on tensor\n microbatch 1\n recompute every 2\n}\n");
    equal(GPT("4"), "plan p {\n mesh data = 2, tensor = 2\n batch on data\n weights on data using keep_for_backward\n head, ffn, vocab on tensor\n}\n");
    equal(GPT("4"), "plan p {\n mesh outer = 2, inner = 2\n batch on outer, inner\n weights on inner using keep\n}\n");
    equal(NESTED, STORED(" using keep"));
    equal(NESTED, STORED(" using keep_for_backward"));
}

/* ---- rules for a part of the model ------------------------------------------------------------------------------------ */

#define PARTS(rules) "plan p {\n mesh data = 2, tensor = 2\n batch on data\n" rules "}\n"

static void test_ranges(void **state) {
    (void)state;
    equal(GPT("4"), PARTS(" in layers 0..1 { head, ffn on tensor }\n"));
    equal(GPT("4"), PARTS(" in layers 1..2 { head, ffn, seq on tensor }\n vocab on tensor\n microbatch 1\n"));
    equal(GPT("4"), PARTS(" in layers 0..0 { ffn on tensor }\n in layers 3..3 { head, seq on tensor }\n recompute full\n"));
    equal(GPT("6"), PARTS(" in layers 2..3 { head, ffn, seq on tensor }\n recompute every 2\n"));
    equal(GPT("4"), PARTS(" in layers 1..3 { embed on tensor }\n"));
    equal(NESTED, PARTS(" in block 1..2 { ffn, seq on tensor }\n in layer { embed on tensor }\n"));
}

static void test_calls(void **state) {
    (void)state;
    equal(GPT("4"), PARTS(" in mlp { ffn, seq on tensor }\n"));
    equal(GPT("4"), PARTS(" in attention { head, seq on tensor }\n in mlp { ffn on tensor }\n vocab on tensor\n"));
    equal(GPT("4"), PARTS(" in layers 1..2 { head on tensor }\n in mlp { ffn on tensor }\n in layer_norm_2 { seq on tensor }\n"));
}

static int flat_weights(const Built *b) {
    int n = 0;
    for (int i = 0; i < b->step->init->tensors.n; i++) {
        const Tensor *tensor = b->step->init->tensors.at[i];
        n += tensor->class == CLASS_WEIGHT && tensor->logical.n > 0;
    }
    return n;
}

static void test_stored_parts(void **state) {
    (void)state;
    const char *call = PARTS(" in mlp { weights on data }\n ffn on tensor\n"),
               *range = PARTS(" in layers 0..1 { weights on data using keep }\n in layers 3..3 { optimizer on data }\n ffn on tensor\n microbatch 1\n");
    equal(GPT("4"), call);
    equal(GPT("4"), range);
    Built b = build(GPT("4"), call, NULL);
    assert_int_equal(flat_weights(&b), 2); /* up and down */
    session_free(b.s);
    b = build(GPT("4"), range, NULL);
    assert_int_equal(flat_weights(&b), 10); /* those of two layers, each a stack of its own */
    session_free(b.s);
}

/* ---- unequal parts ---------------------------------------------------------------------------------------------------- */

#define LLAMA                                                                                                                             \
    "import nn\nmodel M {\n dim layers = 2, embed = 8, head = 4, kv_head = 2, head_dim = 4, ffn = 13, vocab = 11, seq = 5\n"             \
    " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n"                                                   \
    " weight table: [vocab, embed] = normal(0.2)\n x = lookup(table, tokens)\n"                                                          \
    " repeat layers {\n"                                                                                                                 \
    "  x = x + nn.attention(nn.rms_norm(x, embed), embed -> (head, head_dim), kv_head, causal = true, theta = 10000)\n"                  \
    "  x = x + dropout(nn.gated_mlp(nn.rms_norm(x, embed), embed -> ffn, silu), rate = 0.25)\n }\n"                                      \
    " loss = cross_entropy(dot(nn.rms_norm(x, embed), table, over embed), labels, over vocab)\n}\n" TRAIN

/* Values that are not zero where their operands are, a mean, a softmax: what padding must not let through. */
#define SIGMOID                                                                                                                           \
    "model M {\n dim embed = 8, ffn = 12, vocab = 9, seq = 4\n input tokens: int[batch, seq]\n"                                          \
    " target labels: int[batch, seq] = next(tokens)\n weight table: [vocab, embed] = normal(0.2)\n weight up: [embed, ffn] = normal(0.2)\n" \
    " weight down: [ffn, embed] = uniform(-0.3, 0.3)\n weight gain: [ffn] = ones\n x = lookup(table, tokens)\n h = dropout(sigmoid(dot(x, up, over embed)), rate = 0.25) * gain\n" \
    " y = x + dot(h, down, over ffn) * mean(h, over ffn) + sum(h * h, over ffn)\n p = softmax(dot(y, table, over embed), over vocab)\n"    \
    " loss = cross_entropy(p * 3, labels, over vocab) + mean(h, over ffn) * 0.1\n}\n" TRAIN

static void test_uneven(void **state) {
    (void)state;
    equal(SIGMOID, "plan p {\n mesh tensor = 2\n ffn uneven(3, 9), vocab uneven(5, 4) on tensor\n}\n");
    equal(SIGMOID, "plan p {\n mesh tensor = 4\n ffn uneven(0, 1, 10, 1), vocab uneven(9, 0, 0, 0) on tensor\n microbatch 2\n}\n");
    equal(SIGMOID, "plan p {\n mesh tensor = 4\n ffn uneven(3, 3, 3, 3) on tensor\n}\n"); /* equal after all */
    equal(LLAMA, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n head uneven(0, 4), ffn uneven(12, 1), vocab uneven(2, 9) on tensor\n microbatch 1\n}\n");
    equal(LLAMA, "plan p {\n mesh data = 2, tensor = 2\n batch on data\n weights on data\n head, ffn uneven(6, 7), vocab padded on tensor\n recompute full\n}\n");
    equal(LLAMA, "plan p {\n mesh tensor = 3\n head padded, ffn padded, vocab uneven(1, 2, 8) on tensor\n}\n");
    Built b = build(LLAMA, "plan p {\n mesh tensor = 2\n ffn uneven(12, 1) on tensor\n}\n", NULL);
    for (int i = 0; i < b.program->buffers.n; i++) { /* room for the largest part, on each rank */
        const Buffer *buffer = b.program->buffers.at[i];
        if (buffer->tensor && strcmp(buffer->tensor->name, "layers.gated_mlp.up") == 0) assert_int_equal(buffer->bytes, 2 * 8 * 12 * 4);
    }
    session_free(b.s);
}

static void test_uneven_index(void **state) {
    (void)state;
    static const int64_t parts[] = {3, 0, 2};
    Dim dim = {.size = 9, .unpadded = 5, .parts = parts, .n_parts = 3};
    static const int64_t index[] = {0, 1, 2, 5, 5, 5, 3, 4, 5};
    for (int i = 0; i < 9; i++) assert_int_equal(dim_index(&dim, i), index[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nested), cmocka_unit_test(test_groups), cmocka_unit_test(test_groups_with_others),
                                       cmocka_unit_test(test_keeping), cmocka_unit_test(test_keeping_with_others), cmocka_unit_test(test_ranges),
                                       cmocka_unit_test(test_calls), cmocka_unit_test(test_stored_parts),
                                       cmocka_unit_test(test_uneven), cmocka_unit_test(test_uneven_index)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
