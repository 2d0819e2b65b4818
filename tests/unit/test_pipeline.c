/* Pipelines without processes (see stage_machine.h): losses, gradient norm and the losses of evaluation equal those of
 * one rank, for every schedule, alone and with everything else. */
#include "unit/stage_machine.h"

#define TRAIN "train {\n model M\n data text(\"x\")\n batch 4\n steps 10\n optimizer adamw(lr = constant(1e-2), weight_decay = 0.1)\n clip 1.0\n seed 3\n}\n"

/* Tied weights, an embedding of positions, dropout, a skip from the embedding to the end. */
#define GPT                                                                                                                               \
    "import nn\nmodel M {\n dim layers = 4, embed = 8, head = 2, vocab = 16, seq = 6, positions = 6\n dim head_dim = embed / head\n dim ffn = 2 * embed\n" \
    " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n"                                                    \
    " weight table: [vocab, embed] = normal(0.2)\n weight places: [positions, embed] = normal(0.2)\n"                                     \
    " x = dropout(lookup(table, tokens) + lookup(places, position(tokens)), rate = 0.1)\n y = x\n"                                        \
    " repeat layers {\n"                                                                                                                  \
    "  x = x + nn.attention(nn.layer_norm(x, embed), embed -> (head, head_dim), causal = true)\n"                                         \
    "  x = x + dropout(nn.mlp(nn.layer_norm(x, embed), embed -> ffn, gelu), rate = 0.1)\n }\n"                                            \
    " loss = cross_entropy(dot(nn.layer_norm(x + SKIP, embed), table, over embed), labels, over vocab)\n}\n" TRAIN

/* A weight that every layer uses: each stage holds a copy. */
#define SHARED                                                                                                                            \
    "model M {\n dim layers = 4, embed = 8, vocab = 16, seq = 4\n input tokens: int[batch, seq]\n"                                        \
    " target labels: int[batch, seq] = next(tokens)\n weight table: [vocab, embed] = normal(0.2)\n weight shift: [embed] = normal(0.2)\n" \
    " x = lookup(table, tokens)\n"                                                              \
    " repeat layers {\n  weight w: [embed] = normal(0.3)\n  x = x + gelu(x * shift) * w\n }\n"                                                                               \
    " loss = cross_entropy(dot(x, table, over embed), labels, over vocab)\n}\n" TRAIN

static void close_to(double got, double want, const char *what, const char *plan) {
    if (!(fabs(got - want) <= 1e-5 * fabs(want))) fail_msg("%s is %.9g, not %.9g, with %s", what, got, want, plan);
}

static void expect_equal(const char *model, Losses one, const char *plan) {
    Losses many = run_stages(model, plan);
    close_to(many.loss[0], one.loss[0], "the first loss", plan);
    close_to(many.loss[1], one.loss[1], "the second loss", plan);
    close_to(many.norm[0], one.norm[0], "the gradient's norm", plan);
    if (many.micro_batch == one.micro_batch) close_to(many.eval, one.eval, "the loss of evaluation", plan);
}

static const char *gpt(bool skip) {
    static char text[2][4096];
    const char *model = GPT, *at = strstr(model, "SKIP");
    snprintf(text[skip], sizeof text[skip], "%.*s%s%s", (int)(at - model), model, skip ? "y" : "x", at + 4);
    return text[skip];
}

static void test_alone(void **state) {
    (void)state;
    const char *model = gpt(false);
    Losses one = run_stages(model, "plan p { microbatch 1 }\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2\n layers on pipe using gpipe\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 4\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 3\n layers uneven(2, 0, 2) on pipe using one_f_one_b\n microbatch 2\n}\n");
    expect_equal(model, run_stages(model, "plan p { }\n"), "plan p {\n mesh pipe = 2\n layers on pipe\n}\n");
}

static void test_shared(void **state) {
    (void)state;
    Losses one = run_stages(SHARED, "plan p { microbatch 1 }\n"), skip = run_stages(gpt(true), "plan p { microbatch 1 }\n");
    expect_equal(gpt(true), skip, "plan p {\n mesh pipe = 4\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(gpt(true), skip, "plan p {\n mesh pipe = 2, tensor = 2\n layers on pipe using interleaved(chunks = 2)\n head, ffn, seq on tensor\n microbatch 1\n}\n");
    expect_equal(SHARED, one, "plan p {\n mesh pipe = 2\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(SHARED, one, "plan p {\n mesh pipe = 4\n layers on pipe using gpipe\n microbatch 1\n}\n");
    expect_equal(SHARED, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n weights on data\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
}

static void test_combined(void **state) {
    (void)state;
    const char *model = gpt(false);
    Losses one = run_stages(model, "plan p { microbatch 1 }\n");
    expect_equal(model, one, "plan p {\n mesh data = 2, pipe = 2\n batch on data\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, tensor = 2\n layers on pipe using one_f_one_b\n head, ffn, vocab, seq on tensor\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n optimizer on data\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n gradients on data\n layers on pipe using gpipe\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2, tensor = 2\n batch on data\n weights on data\n layers uneven(3, 1) on pipe using one_f_one_b\n head, ffn on tensor\n microbatch 1\n}\n");
}

static void test_interleaved(void **state) {
    (void)state;
    const char *model = gpt(false);
    Losses one = run_stages(model, "plan p { microbatch 1 }\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2\n layers on pipe using interleaved(chunks = 2)\n microbatch 1\n}\n");
    expect_equal(SHARED, run_stages(SHARED, "plan p { microbatch 2 }\n"), "plan p {\n mesh pipe = 2\n layers on pipe using interleaved(chunks = 2)\n microbatch 2\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n weights on data\n layers uneven(1, 2, 1, 0) on pipe using interleaved(chunks = 2)\n microbatch 1\n}\n");
}

static void test_zero_bubble(void **state) {
    (void)state;
    const char *model = gpt(false);
    Losses one = run_stages(model, "plan p { microbatch 1 }\n"), skip = run_stages(gpt(true), "plan p { microbatch 1 }\n"), shared = run_stages(SHARED, "plan p { microbatch 1 }\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 4\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 3\n layers uneven(2, 0, 2) on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(gpt(true), skip, "plan p {\n mesh pipe = 4\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(SHARED, shared, "plan p {\n mesh pipe = 4\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(SHARED, shared, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n weights on data\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 4\n layers on pipe using zero_bubble\n recompute full\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, tensor = 2\n layers on pipe using zero_bubble\n head, ffn, vocab, seq on tensor\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n gradients on data\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2, tensor = 2\n batch on data\n weights on data\n layers uneven(3, 1) on pipe using zero_bubble\n head, ffn on tensor\n microbatch 1\n}\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_zero_bubble), cmocka_unit_test(test_alone), cmocka_unit_test(test_shared), cmocka_unit_test(test_combined),
                                       cmocka_unit_test(test_interleaved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
