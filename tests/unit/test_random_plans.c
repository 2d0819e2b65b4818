/* Random models under random plans. What the checker accepts runs on simulated ranks, as graphs and as kernels, and has
 * the losses of one rank; what it refuses, and what it accepts, agrees with a predicate of its own that is written down
 * here. Every rule has to occur, alone and in pairs. Seeds are printed: PLAN_SEED=n replays one, PLAN_COUNT=n runs more. */
#include "unit/plan_machine.h"

#include <time.h>

typedef struct Rng {
    uint64_t state;
} Rng;

static int pick(Rng *r, int n) {
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((r->state >> 33) % (uint64_t)n);
}

/* ---- what is drawn ------------------------------------------------------------------------------------------------------- */

enum { RULE_BATCH, RULE_FFN, RULE_HEAD, RULE_VOCAB, RULE_SEQ, RULE_EXPERT, RULE_OPTIMIZER, RULE_GRADIENTS, RULE_WEIGHTS, RULE_MICRO, N_RULES };
static const char *const rule_name[N_RULES] = {"batch", "ffn", "head", "vocab", "seq", "expert", "optimizer", "gradients", "weights", "microbatch"};

typedef struct Case {
    int batch, seq, embed, head, ffn, vocab, layers, micro; /* micro 0: not stated */
    int expert; /* 0: a plain MLP */
    bool drops;
    bool attention, rms;
    int n_axes, size[3];
    int n_words[3], words[3][4]; /* the list of an axis, in order */
    int storage[3];              /* a RULE_*, or -1 */
} Case;

static int size_of(const Case *c, int rule) {
    const int sizes[] = {c->batch, c->ffn, c->head, c->vocab, c->seq, c->expert};
    return sizes[rule];
}

static Case draw(Rng *r) {
    static const int batches[] = {4, 8, 8, 12}, seqs[] = {4, 8, 8, 12, 6}, ffns[] = {8, 16, 16, 12}, vocabs[] = {8, 16, 12, 8, 16, 9};
    Case c = {.batch = batches[pick(r, 4)], .seq = seqs[pick(r, 5)], .head = pick(r, 3) ? 4 : 2, .ffn = ffns[pick(r, 4)],
              .vocab = vocabs[pick(r, 6)], .layers = 1 + pick(r, 2), .attention = pick(r, 4) > 0, .rms = pick(r, 2)};
    c.embed = 2 * c.head;
    if (pick(r, 2)) c.expert = pick(r, 4) ? 4 : 6, c.drops = pick(r, 2);
    c.n_axes = 1 + pick(r, 3);
    bool used[N_RULES] = {false};
    for (int a = 0; a < c.n_axes; a++) {
        c.size[a] = pick(r, 8) ? 2 : pick(r, 2) ? 4 : 3;
        c.storage[a] = -1;
        int n = 1 + pick(r, 3);
        for (int k = 0; k < n || (!c.n_words[a] && k < 20); k++) {
            int rule = a == 0 && k == 0 && pick(r, 3) ? RULE_BATCH : pick(r, 6);
            bool again = used[rule] && (rule == RULE_BATCH || rule == RULE_EXPERT) && pick(r, 3) == 0; /* on two axes */
            for (int w = 0; w < c.n_words[a]; w++) again = again && c.words[a][w] != rule;
            if ((rule == RULE_HEAD && !c.attention) || (rule == RULE_EXPERT && !c.expert) || (used[rule] && !again)) continue;
            used[rule] = true;
            c.words[a][c.n_words[a]++] = rule;
        }
        bool has_batch = c.n_words[a] && c.words[a][0] == RULE_BATCH;
        if (has_batch && pick(r, 4)) c.storage[a] = RULE_OPTIMIZER + pick(r, 3);
    }
    if (pick(r, 2)) c.micro = 1 + pick(r, 2);
    return c;
}

/* ---- the predicate: independent of the compiler ---------------------------------------------------------------------------- */

/* Legal: every axis has a word, every cut dimension divides over all axes that cut it together, and the step's batch
 * divides over ranks and micro-batches. */
static bool legal(const Case *c) {
    for (int rule = RULE_BATCH; rule <= RULE_EXPERT; rule++) {
        int parts = 1;
        for (int a = 0; a < c->n_axes; a++)
            for (int k = 0; k < c->n_words[a]; k++)
                if (c->words[a][k] == rule) parts *= c->size[a];
        if (rule == RULE_BATCH && c->micro) parts *= c->micro;
        if (size_of(c, rule) % parts) return false;
    }
    for (int a = 0; a < c->n_axes; a++)
        if (!c->n_words[a]) return false;
    return true;
}

/* ---- as text ----------------------------------------------------------------------------------------------------------------- */

static char *model_text(Arena *arena, const Case *c) {
    Text t = {.arena = arena};
    text_printf(&t, "import nn\nmodel M {\n dim layers = %d, embed = %d, head = %d, ffn = %d, vocab = %d, seq = %d\n dim head_dim = embed / head\n", c->layers,
                c->embed, c->attention ? c->head : 1, c->ffn, c->vocab, c->seq);
    if (c->expert) text_printf(&t, " dim expert = %d\n", c->expert);
    const char *norm = c->rms ? "rms_norm" : "layer_norm";
    text_puts(&t, " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n weight table: [vocab, embed] = normal(0.2)\n"
                  " x = lookup(table, tokens)\n repeat layers {\n");
    if (c->attention)
        text_printf(&t, "  x = x + nn.attention(nn.%s(x, embed), embed -> (head, head_dim), causal = true)\n", norm);
    if (c->expert)
        text_printf(&t, "  x = x + nn.moe(nn.%s(x, embed), embed -> ffn, expert, capacity = %s, z_loss = 0.01, deviation = 0.3)\n }\n", norm,
                    c->drops ? "0.75" : "none");
    else text_printf(&t, "  x = x + nn.%s(nn.%s(x, embed), embed -> ffn, %s)\n }\n", c->rms ? "gated_mlp" : "mlp", norm, c->rms ? "silu" : "gelu");
    text_printf(&t, " loss = cross_entropy(dot(nn.%s(x, embed), table, over embed), labels, over vocab)\n}\n", norm);
    text_printf(&t, "train {\n model M\n data text(\"x\")\n batch %d\n steps 10\n optimizer adamw(lr = constant(1e-2), weight_decay = 0.1)\n clip 1.0\n seed 3\n}\n",
                c->batch);
    return t.at;
}

static char *plan_text(Arena *arena, const Case *c) {
    Text t = {.arena = arena};
    text_puts(&t, "plan p {\n mesh");
    for (int a = 0; a < c->n_axes; a++) text_printf(&t, "%s a%d = %d", a ? "," : "", a, c->size[a]);
    text_puts(&t, "\n");
    for (int a = 0; a < c->n_axes; a++) {
        for (int k = 0; k < c->n_words[a]; k++) text_printf(&t, "%s %s", k ? "," : "", rule_name[c->words[a][k]]);
        if (c->n_words[a]) text_printf(&t, " on a%d\n", a);
        if (c->storage[a] >= 0) text_printf(&t, " %s on a%d\n", rule_name[c->storage[a]], a);
    }
    if (c->micro) text_printf(&t, " microbatch %d\n", c->micro);
    text_puts(&t, "}\n");
    return t.at;
}

/* Whether the checker takes the plan. */
static bool accepted(const char *model, const char *plan) {
    Session *s = session_new();
    s->library_path = PLAN_SOURCE_DIR "/stdlib";
    char *text = arena_printf(s->arena, "%s%s", model, plan);
    Program *program = ast_to_model(s, text_to_ast(s, session_add_text(s, "case.plan", text, strlen(text))), NULL, 0);
    ModelGraph *graph = program && program->train ? model_to_graph(s, program, program->train) : NULL;
    if (graph) plan_check(s, program, program->train, program->plans.at[0], graph->dims.at, graph->dims.n);
    bool good = graph && diag_count(s, SEV_ERROR) == 0;
    session_free(s);
    return good;
}

static void rules_of(const Case *c, bool *rules) {
    for (int a = 0; a < c->n_axes; a++) {
        for (int k = 0; k < c->n_words[a]; k++) rules[c->words[a][k]] = true;
        if (c->storage[a] >= 0) rules[c->storage[a]] = true;
    }
    rules[RULE_MICRO] = c->micro > 0;
}

static void test_random_plans(void **state) {
    (void)state;
    const char *seed_text = getenv("PLAN_SEED"), *count_text = getenv("PLAN_COUNT");
    int count = count_text ? atoi(count_text) : 200, first = seed_text ? atoi(seed_text) : 1, taken = 0;
    if (seed_text) count = 1;
    int alone[N_RULES] = {0}, pairs[N_RULES][N_RULES] = {{0}};
    for (int i = first; i < first + count; i++) {
        Rng r = {.state = (uint64_t)i * 2654435761u};
        Case c = draw(&r);
        Arena *arena = arena_new();
        char *model = model_text(arena, &c), *plan = plan_text(arena, &c);
        if (seed_text) print_message("%s%s", model, plan);
        bool good = accepted(model, plan);
        if (good != legal(&c)) fail_msg("seed %d: the checker %s this plan\n%s%s", i, good ? "takes" : "refuses", model, plan);
        if (good) {
            double one = run(model, "plan p { }\n", NULL), many = run(model, plan, NULL);
            if (!(fabs(one - many) <= 2e-5 * fabs(one))) fail_msg("seed %d: loss %.9g, %.9g on one rank\n%s%s", i, many, one, model, plan);
            bool rules[N_RULES] = {false};
            rules_of(&c, rules);
            for (int x = 0; x < N_RULES; x++)
                for (int y = 0; y < N_RULES; y++) alone[x] += rules[x] && x == y, pairs[x][y] += rules[x] && rules[y];
            taken++;
        }
        arena_free(arena);
    }
    print_message("%d plans from seed %d, %d accepted\n", count, first, taken);
    if (count < 200) return; /* too few for every pair to occur */
    if (taken * 10 < count * 6) fail_msg("only %d of %d plans were accepted", taken, count);
    for (int x = 0; x < N_RULES; x++) {
        if (alone[x] * 20 < count) fail_msg("`%s` occurred %d times", rule_name[x], alone[x]);
        for (int y = 0; y < x; y++) { /* one storage word an axis: pairs of those are rarer */
            bool storage = x >= RULE_OPTIMIZER && x <= RULE_WEIGHTS && y >= RULE_OPTIMIZER;
            if (!storage && pairs[x][y] * 100 < count) fail_msg("`%s` with `%s` occurred %d times", rule_name[x], rule_name[y], pairs[x][y]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_plans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
