/* From a model's text to its graph: examples and library models with their published parameter counts, graphs as golden
 * text, and one message for each mistake.
 *
 * PLAN_UPDATE_GOLDEN=1 rewrites the golden files. */
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "graph/graph.h"

typedef struct Elaborated {
    Session *s;
    ModelGraph *model;
} Elaborated;

static Elaborated elaborate(int32_t (*open)(Session *, const char *), const char *what) {
    Elaborated e = {.s = session_new()};
    e.s->library_path = PLAN_SOURCE_DIR "/stdlib";
    int32_t file = open(e.s, what);
    assert_int_not_equal(file, 0);
    Program *program = ast_to_model(e.s, text_to_ast(e.s, file), NULL, 0);
    if (program && program->train) e.model = model_to_graph(e.s, program, program->train);
    return e;
}

static int32_t open_text(Session *s, const char *text) { return session_add_text(s, "test.plan", text, strlen(text)); }

static int32_t open_file(Session *s, const char *path) {
    const char *why = NULL;
    return session_read_file(s, arena_printf(s->arena, PLAN_SOURCE_DIR "/%s", path), false, &why);
}

/* Prints what was reported when the model is missing. */
static void assert_elaborates(Elaborated e) {
    if (!e.model || diag_count(e.s, SEV_ERROR)) diag_flush(e.s, stderr, false);
    assert_non_null(e.model);
    assert_int_equal(diag_count(e.s, SEV_WARNING), 0);
    Text why = {.arena = e.s->arena};
    if (!graph_verify(e.model->graph, &why)) fail_msg("%s", why.at);
}

static const char *diagnostics(Elaborated e) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    diag_flush(e.s, out, false);
    fclose(out);
    const char *kept = arena_strndup(e.s->arena, text, size);
    free(text);
    return kept;
}

static const char *graph_text(Elaborated e) {
    Text text = {.arena = e.s->arena};
    graph_print(e.model->graph, &text);
    return text.at;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------ */

static void examples_elaborate(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int64_t parameters;
    } examples[] = {
        {"examples/01-quickstart.plan", 1293120}, {"examples/02-gpt2.plan", 124439808},
        {"examples/03-llama.plan", 4287744},      {"examples/04-classifier.plan", 407050},
        {"examples/05-cluster.plan", 124356864},  {"examples/06-experts.plan", 1903744},
        {"examples/07-tasks.plan", 689024},
    };
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        Elaborated e = elaborate(open_file, examples[i].path);
        assert_elaborates(e);
        assert_int_equal(e.model->parameters, examples[i].parameters);
        assert_non_null(e.model->logits);
        assert_true(e.model->batch->is_batch);
        session_free(e.s);
    }
}

static const Tensor *find_weight(Elaborated e, const char *name) {
    for (int i = 0; i < e.model->inits.n; i++)
        if (strcmp(e.model->inits.at[i].weight->name, name) == 0) return e.model->inits.at[i].weight;
    fail_msg("no weight %s", name);
    return NULL;
}

/* The program with which the reference begins. */
static void reference_example_elaborates(void **state) {
    (void)state;
    Session *s = session_new();
    int32_t file = open_file(s, "docs/language.md");
    const char *begin = strstr(session_file(s, (Span){file, 0, 0})->text, "```plan\n") + strlen("```plan\n");
    Elaborated e = elaborate(open_text, arena_strndup(s->arena, begin, (size_t)(strstr(begin, "```") - begin)));
    assert_elaborates(e);
    assert_non_null(find_weight(e, "layers.gated_mlp.gate"));
    session_free(e.s);
    session_free(s);
}

/* The counts are those of the published models. */
static void library_models_have_their_published_sizes(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int64_t parameters;
    } models[] = {
        {"gpt2.GPT2", 124439808},
        {"gpt2.GPT2_Medium", 354823168},
        {"gpt2.GPT2_Large", 774030080},
        {"gpt2.GPT2_XL", 1557611200},
        {"llama.Llama_7B", 6738415616},
        {"llama.Llama_13B", 13015864320},
        {"llama.Llama2_7B", 6738415616},
        {"llama.Llama2_13B", 13015864320},
        {"llama.Llama2_70B", 68976648192},
        {"llama.Llama3_8B", 8030261248},
        {"llama.Llama3_70B", 70553706496},
        {"llama.Llama3_405B", 405853388800},
        {"classifier.Classifier", 669706},
        {"mixtral.Mixtral_8x7B", 46702792704},
        {"mixtral.Mixtral_8x22B", 140630071296},
        {"gpt2.GPT3_13B", 12853386240},
        {"gpt2.GPT3_175B", 174604259328},
        {"deepseek.DeepSeek_V3", 671026419200},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char text[400];
        const char *data =
            strncmp(models[i].model, "classifier", 10) == 0 ? "arrays(image = \"x\", label = \"y\")" : "tokens(\"x\")";
        snprintf(
            text, sizeof text,
            "import models.%.*s\ntrain {\n model %s\n data %s\n batch 2\n steps 1\n optimizer adamw(lr = 0.001)\n}\n",
            (int)strcspn(models[i].model, "."), models[i].model, models[i].model, data);
        Elaborated e = elaborate(open_text, text);
        assert_elaborates(e);
        assert_int_equal(e.model->parameters, models[i].parameters);
        session_free(e.s);
    }
}

static void gpt2_in_detail(void **state) {
    (void)state;
    Elaborated e = elaborate(open_file, "examples/02-gpt2.plan");
    assert_elaborates(e);
    const Tensor *wq = find_weight(e, "layers.attention.wq");
    assert_string_equal(shape_text(e.s->arena, &wq->shape), "[layers, embed, head, head_dim]");
    assert_null(wq->group);
    assert_string_equal(find_weight(e, "layers.attention.bq")->group, "bias");
    assert_string_equal(find_weight(e, "layers.mlp.b_down")->group, "bias");
    assert_string_equal(find_weight(e, "layers.layer_norm_2.gain")->group, "norm");
    assert_true(find_weight(e, "layer_norm.gain")->is_gain);
    assert_false(find_weight(e, "token_table")->is_gain);
    assert_string_equal(e.model->seq->name, "seq");
    assert_string_equal(shape_text(e.s->arena, &e.model->logits->shape), "[batch, seq, vocab]");
    assert_string_equal(shape_text(e.s->arena, &e.model->loss->shape), "[batch, seq]");
    /* 6 for each weight in a product (all but the position table and what is added), and 12 x layers x embed x seq. */
    double products = 124439808 - 1024.0 * 768 - 12 * 13 * 768.0 - 2 * 768.0;
    assert_true(e.model->flops_per_token == 6 * products + 12.0 * 12 * 768 * 1024);
    const Tensor *labels = NULL;
    for (int i = 0; i < e.model->graph->tensors.n; i++)
        if (strcmp(e.model->graph->tensors.at[i]->name, "labels") == 0) labels = e.model->graph->tensors.at[i];
    assert_string_equal(labels->of->name, "tokens");
    session_free(e.s);
}

static const Init *find_init(Elaborated e, const char *name) {
    for (int i = 0; i < e.model->inits.n; i++)
        if (strcmp(e.model->inits.at[i].weight->name, name) == 0) return &e.model->inits.at[i];
    fail_msg("no weight %s", name);
    return NULL;
}

/* Keys come from names alone: other sizes give the same keys; no two weights share one. */
static void initial_values(void **state) {
    (void)state;
    Elaborated big = elaborate(open_file, "examples/02-gpt2.plan");
    assert_elaborates(big);
    const Init *wo = find_init(big, "layers.attention.wo");
    assert_int_equal(wo->kind, INIT_NORMAL);
    assert_true(wo->a > 0.00408 && wo->a < 0.00409); /* 0.02 / sqrt(24) */
    assert_int_equal(find_init(big, "layer_norm.gain")->kind, INIT_CONST);
    assert_true(find_init(big, "layer_norm.gain")->a == 1);
    for (int i = 0; i < big.model->inits.n; i++)
        for (int k = 0; k < i; k++) assert_int_not_equal(big.model->inits.at[i].key, big.model->inits.at[k].key);
    Elaborated small =
        elaborate(open_text,
                  "import models.gpt2\ntrain {\n model gpt2.GPT2(layers = 3)\n data tokens(\"x\")\n batch 2\n steps 1\n"
                  " optimizer adamw(lr = 0.001)\n}\n");
    assert_elaborates(small);
    assert_int_equal(find_init(small, "layers.attention.wo")->key, wo->key);
    assert_true(find_init(small, "layers.attention.wo")->a > wo->a);
    session_free(big.s);
    session_free(small.s);
}

/* The graph of 120 layers is that of 12 with another size. */
static void depth_costs_nothing(void **state) {
    (void)state;
    int nodes[2];
    for (int i = 0; i < 2; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "import models.gpt2\ntrain {\n model gpt2.GPT2(layers = %d)\n data tokens(\"x\")\n batch 2\n steps 1\n"
                 " optimizer adamw(lr = 0.001)\n}\n",
                 i ? 120 : 12);
        Elaborated e = elaborate(open_text, text);
        assert_elaborates(e);
        nodes[i] = e.model->graph->n_nodes;
        session_free(e.s);
    }
    assert_int_equal(nodes[0], nodes[1]);
}

/* ---- golden graphs ------------------------------------------------------------------------------ */

static void golden(const char *name) {
    char source[100];
    snprintf(source, sizeof source, "tests/golden/graph/%s.plan", name);
    Elaborated e = elaborate(open_file, source);
    assert_elaborates(e);
    const char *path = arena_printf(e.s->arena, PLAN_SOURCE_DIR "/tests/golden/graph/%s.graph", name);
    const char *text = graph_text(e);
    if (getenv("PLAN_UPDATE_GOLDEN")) {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fputs(text, out);
        fclose(out);
    }
    const char *why = NULL;
    int32_t file = session_read_file(e.s, path, false, &why);
    assert_int_not_equal(file, 0);
    assert_string_equal(text, session_file(e.s, (Span){file, 0, 0})->text);
    Graph *parsed = graph_parse(e.s, file);
    if (!parsed) diag_flush(e.s, stderr, false);
    assert_non_null(parsed);
    Text again = {.arena = e.s->arena};
    graph_print(parsed, &again);
    assert_string_equal(again.at, text);
    session_free(e.s);
}

static void golden_llama(void **state) {
    (void)state;
    golden("llama");
}

static void golden_features(void **state) {
    (void)state;
    golden("features");
}

/* ---- small models, and their mistakes ---------------------------------------------------------------------------- */

static const char base[] =
    "import nn\n"
    "model M {\n"
    "    dim layers = 2, embed = 8, head = 2, vocab = 16, seq = 4, positions = 4\n"
    "    dim head_dim = embed / head, ffn = 4 * embed\n"
    "    input  tokens: int[batch, seq]\n"
    "    target labels: int[batch, seq] = next(tokens)\n"
    "    target mask: float[batch, seq] = 1\n"
    "    weight token_table: [vocab, embed] = normal(0.02)\n"
    "    weight position_table: [positions, embed] = normal(0.02)\n"
    "    x = lookup(token_table, tokens) + lookup(position_table, position(tokens))\n"
    "    repeat layers {\n"
    "        x = x + nn.attention(nn.layer_norm(x, embed), embed -> (head, head_dim), causal = true)\n"
    "        x = x + nn.mlp(nn.layer_norm(x, embed), embed -> ffn, gelu)\n"
    "    }\n"
    "    logits = dot(nn.layer_norm(x, embed), token_table, over embed)\n"
    "    loss   = cross_entropy(logits, labels, over vocab, weight = mask)\n"
    "}\n"
    "train {\n"
    "    model M\n"
    "    data text(\"x\")\n"
    "    batch 4\n"
    "    steps 2\n"
    "    optimizer adamw(lr = 0.001)\n"
    "}\n";

/* `base` with the first `from` replaced by `to`. */
static const char *edited(char *buffer, size_t size, const char *from, const char *to) {
    const char *at = strstr(base, from);
    if (!at) fail_msg("the base program has no '%s'", from);
    snprintf(buffer, size, "%.*s%s%s", (int)(at - base), base, to, at + strlen(from));
    return buffer;
}

static void weighted_loss(void **state) {
    (void)state;
    Elaborated e = elaborate(open_text, base);
    assert_elaborates(e);
    assert_non_null(e.model->mask);
    assert_string_equal(e.model->mask->tensor->name, "mask");
    assert_string_equal(e.model->mask->tensor->of->name, "tokens");
    session_free(e.s);
}

/* What a round hands out is added up in a carry from zero, for the log divided by the rounds. */
static void handed_out_of_a_repeat(void **state) {
    (void)state;
    char text[4000];
    edited(text, sizeof text, "    logits =",
           "    repeat layers {\n        x = x * 2\n        s = mean(x, over (batch, seq, embed))\n"
           "        auxiliary s\n        log s\n    }\n    logits =");
    Elaborated e = elaborate(open_text, text);
    assert_elaborates(e);
    assert_int_equal(e.model->auxiliary.n, 1);
    const Node *sum = e.model->auxiliary.at[0], *repeat = sum->in[0];
    assert_int_equal(sum->op, OP_RESULT);
    assert_int_equal(repeat->op, OP_REPEAT);
    assert_int_equal(repeat->region->n_carries, 3);
    const Node *next = repeat->region->results.at[node_attr(sum, "index")->integer];
    assert_int_equal(next->op, OP_ADD);
    assert_ptr_equal(next->in[0], repeat->region->params.at[node_attr(sum, "index")->integer]);
    assert_string_equal(shape_text(e.s->arena, &sum->shape), "[]");
    assert_non_null(strstr(graph_text(e), "output log.s = "));
    session_free(e.s);
}

/* A rate is an attribute, though dropout takes further operands: the counters of its random stream, added later. */
static void dropout_of_a_rate(void **state) {
    (void)state;
    Elaborated e =
        elaborate(open_text, "import models.gpt2\ntrain {\n model gpt2.GPT2(dropout = 0.25)\n data tokens(\"x\")\n"
                             " batch 2\n steps 1\n optimizer adamw(lr = 0.001)\n}\n");
    assert_elaborates(e);
    const Region *top = &e.model->graph->top;
    int found = 0;
    for (int i = 0; i < top->nodes.n; i++) {
        const Node *node = top->nodes.at[i];
        if (node->op == OP_DROPOUT) found++;
        if (node->op == OP_DROPOUT) assert_true(node->n_in == 1 && node_attr(node, "rate")->number == 0.25);
        for (int k = 0; node->region && k < node->region->nodes.n; k++)
            found += node->region->nodes.at[k]->op == OP_DROPOUT;
    }
    assert_int_equal(found, 3); /* after the tables, attention, the MLP */
    session_free(e.s);
}

/* A file's layers see the constants of their own file. */
static void constants_of_an_import(void **state) {
    (void)state;
    char folder[] = "/tmp/plan-elaborate-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char library[100], main_path[100];
    snprintf(library, sizeof library, "%s/mine.plan", folder);
    snprintf(main_path, sizeof main_path, "%s/main.plan", folder);
    FILE *out = fopen(library, "w");
    fputs("const HALF = 1 / 2, QUARTER = HALF * HALF\nlayer shrink(x: [...]) {\n    return x * QUARTER\n}\n", out);
    fclose(out);
    out = fopen(main_path, "w");
    fputs("import mine\nconst QUARTER = 7\nmodel M {\n    dim d = 2\n    input x: float[batch, d]\n    weight w: [d] = "
          "QUARTER\n"
          "    loss = mean(mine.shrink(x * w), over d)\n}\n"
          "train {\n    model M\n    data arrays(x = \"x\")\n    batch 2\n    steps 1\n    optimizer adamw(lr = "
          "0.001)\n}\n",
          out);
    fclose(out);
    Elaborated e = {.s = session_new()};
    const char *why = NULL;
    int32_t file = session_read_file(e.s, main_path, false, &why);
    Program *program = ast_to_model(e.s, text_to_ast(e.s, file), NULL, 0);
    e.model = model_to_graph(e.s, program, program->train);
    assert_elaborates(e);
    assert_true(find_init(e, "w")->a == 7);
    assert_non_null(strstr(graph_text(e), "const(value = 0.25"));
    session_free(e.s);
    remove(library);
    remove(main_path);
    remove(folder);
}

/* A weight that only one branch of an `if` reads is in use; a second repeat over the same dimension has its own path.
 */
static void paths_of_weights(void **state) {
    (void)state;
    char text[4000];
    edited(text, sizeof text, "    logits =",
           "    repeat layers {\n        x = nn.linear(x, embed -> wide, false)\n        x = nn.linear(x, wide -> "
           "embed)\n    }\n    logits =");
    char *at = strstr(text, "positions = 4");
    memcpy(at, "positions=4, ", strlen("positions = 4"));
    char final[4000];
    snprintf(final, sizeof final, "%.*s wide = 3%s", (int)(at - text) + 13, text, at + 13);
    Elaborated e = elaborate(open_text, final);
    assert_elaborates(e);
    const Tensor *first = find_weight(e, "layers_2.linear.w"), *second = find_weight(e, "layers_2.linear_2.w");
    assert_string_equal(shape_text(e.s->arena, &first->shape), "[layers, embed, wide]");
    assert_string_equal(shape_text(e.s->arena, &second->shape), "[layers, wide, embed]");
    assert_string_equal(shape_text(e.s->arena, &find_weight(e, "layers_2.linear_2.b")->shape), "[layers, embed]");
    session_free(e.s);
}

/* ---- mistakes ----------------------------------------------------------------------------------- */

typedef struct Mistake {
    const char *from, *to; /* an edit of the base program */
    const char *says[4];   /* parts of the one message: code, words, line */
} Mistake;

/* clang-format off */
static const Mistake mistakes[] = {
    /* names */
    {"lookup(position_table", "lookup(position_tabel", {"P0150", "did you mean `position_table`?", "test.plan:10:46"}},
    {"[positions, embed] = normal", "[position, embed] = normal", {"P0150", "did you mean `positions`?", "test.plan:9"}},
    {"repeat layers {", "repeat layer {", {"P0150", "did you mean `layers`?", "test.plan:11:12"}},
    {"gelu)", "glu)", {"P0150", "did you mean `gelu`?"}},
    {"= true", "= treu", {"P0150", "did you mean `true`?"}},
    {"next(tokens)", "next(token)", {"P0150", "did you mean `tokens`?", "test.plan:6:43"}},
    {"over embed)", "over embde)", {"P0150", "did you mean `embed`?", "test.plan:15"}},
    {"seq = 4,", "seq = 4, embed = 3,", {"P0151", "`embed` is declared twice", "test.plan:3:63"}},
    {"seq = 4,", "seq = 4, batch = 3,", {"P0151", "`batch` is declared already"}},
    {"    logits =", "    repeat layers {\n        h = x\n        x = h\n    }\n    logits = h +", {"P0152", "`h` is not visible here", "`repeat layers`"}},
    {"cross_entropy(", "cross_entrpy(", {"P0153", "did you mean `cross_entropy`?", "test.plan:16:14"}},
    {"nn.attention", "nn.atention", {"P0153", "`nn` has no layer `atention`", "did you mean `attention`?"}},
    {"nn.mlp", "mm.mlp", {"P0153", "`mm` is not imported", "did you mean `nn.mlp`?"}},
    {"nn.mlp", "mlp", {"P0153", "did you mean `nn.mlp`?"}},
    {"gelu)", "3)", {"P0154", "`activation` is the number 3", "inside `mlp` of the standard library", "test.plan:13:17"}},
    {"over embed)", "over token_table)", {"P0155", "`token_table` is a tensor [vocab, embed], not a dimension"}},
    {"causal = true", "casual = true", {"P0156", "layer `attention` has no parameter `casual`", "did you mean `causal`?"}},
    {"labels, over vocab", "labels, ovr = 3, over vocab", {"P0156", "`cross_entropy` has no argument `ovr`", "did you mean `over`?"}},
    {"weight = mask", "wegiht = mask", {"P0156", "did you mean `weight`?"}},
    {"causal = true", "causal = true, causal = false", {"P0157", "`causal` of `attention` is given twice"}},
    {"labels, over vocab", "labels, over vocab, over seq", {"P0157", "`over` of `cross_entropy` is given twice"}},
    {"nn.layer_norm(x, embed), embed -> ffn", "nn.layer_norm(x, embed, 0.1, 3), embed -> ffn", {"P0159", "takes 3 arguments"}},
    {"nn.layer_norm(x, embed), embed -> ffn", "nn.layer_norm(x), embed -> ffn", {"P0160", "`layer_norm` lacks its argument `in`"}},
    {"cross_entropy(logits, labels, over vocab", "cross_entropy(logits, over vocab", {"P0160", "lacks its operand `labels`"}},
    {", labels, over vocab", ", labels", {"P0160", "`cross_entropy` lacks `over`"}},
    {"    logits =", "    embed = x\n    logits =", {"P0161", "`embed` is a dimension: nothing can be assigned to it"}},
    {"next(tokens)", "nxt(tokens)", {"P0162", "did you mean `next`?"}},
    {"    logits =", "    y = next(tokens)\n    x = x + y\n    logits =", {"P0162", "`next` belongs to a target"}},
    {"embed -> ffn, gelu", "embed, gelu", {"P0163", "`in` of `mlp` is given as `in -> hidden`"}},
    {"embed -> (head, head_dim)", "embed -> head", {"P0163", "`attention` takes 2 dimensions after the arrow, not 1"}},
    {"nn.layer_norm(x, embed), embed -> ffn", "nn.layer_norm(embed, embed), embed -> ffn", {"P0164", "`x` of `layer_norm` is a tensor, not dimension `embed`"}},
    {"nn.layer_norm(x, embed), embed -> ffn", "nn.layer_norm(x, x), embed -> ffn", {"P0164", "`in` of `layer_norm` is a dimension or a size"}},
    {"import nn\n", "import nn\nlayer f(x: [...]) {\n    return f(x)\n}\n", {"P0182", "layer `f` is never called"}},
    {"    logits =", "    x = dropout(x)\n    logits =", {"P0160", "`dropout` lacks `rate`", "`dropout(x, rate)`"}},
    {"    logits =", "    x = dropout(x, x)\n    logits =", {"P0255", "`rate` of `dropout` must be a number"}},
    /* statements */
    {"loss   = cross_entropy(logits, labels, over vocab, weight = mask)", "los = cross_entropy(logits, labels, over vocab, weight = mask)", {"P0175", "did you mean `loss` instead of `los`?", "test.plan:16:5"}},
    {"loss   = cross", "loss = 3\n    y = cross", {"P0168", "`loss` must be a tensor of floats, not the number 3"}},
    {"    logits =", "    if x == x {\n        x = x + x\n    }\n    logits =", {"P0169", "a condition must be known at compile time"}},
    {"    logits =", "    return x\n    logits =", {"P0170", "a model returns nothing"}},
    {"    repeat layers {\n", "    repeat layers {\n        input more: int[batch]\n", {"P0171", "`input` stands in a model, outside every repeat"}},
    {"repeat layers {\n", "repeat layers {\n        repeat layers {\n            x = x + 1\n        }\n", {"P0173", "inside its own repeat"}},
    {"    logits =", "    repeat layers {\n        h = x\n        _ = h\n    }\n    logits =", {"P0173", "`repeat layers` changes nothing"}},
    /* what is left over */
    {" + lookup(position_table, position(tokens))", "", {"P0180", "weight `position_table` is never used", "test.plan:9:12"}},
    {", weight = mask", "", {"P0180", "target `mask` is never used"}},
    {"    logits =", "    z = dot(x, position_table, over embed)\n    _z = z\n    weight w: [embed] = zeros\n    y = x * w\n    _y = y\n    logits =",
     {"P0183", "the loss does not depend on weight `w`"}},
    /* shapes */
    {"x = x + nn.mlp", "x = token_table + nn.mlp", {"P0201", "[vocab, embed] and [batch, seq, embed]", "test.plan:13:25"}},
    {"x = x + nn.mlp", "x = none + nn.mlp", {"P0255", "`+` cannot take `none`"}},
    {"x = x + nn.mlp", "x = nn.mlp + nn.mlp", {"P0250", "layer `mlp` stands where a tensor belongs"}},
    {"[vocab, embed] = normal", "[embed, embed] = normal", {"P0251", "`embed` stands twice in one tensor"}},
    {"    repeat layers {\n", "    repeat layers {\n        weight w: [layers, embed] = ones\n        x = x * w\n", {"P0251", "stands inside `repeat layers`"}},
    {"[vocab, embed] = normal", "[batch, embed] = normal", {"P0251", "a weight cannot have dimension `batch`"}},
    {"[vocab, embed] = normal", "[..., embed] = normal", {"P0252", "only a layer's parameter"}},
    {"embed -> ffn, gelu", "head -> ffn, gelu", {"P0254", "it has no dimension `head`", "test.plan:13:24"}},
    {"embed = 8", "embed = x", {"P0150", "`x` is unknown"}},
    {"x = x + nn.mlp(nn.layer_norm(x, embed), embed -> ffn, gelu)", "x = nn.linear(x, embed -> ffn)", {"P0260", "f32[batch, seq, embed]", "f32[batch, seq, ffn]"}},
    {"cross_entropy(logits, labels, over vocab, weight = mask)", "dropless(slack = 2.0)", {"P9000", "in rounds of a smaller capacity, is not built yet"}},
    {"weight = mask)", "weight = labels)", {"P0257", "`weight` is a tensor of floats"}},
    {"    loss ", "    l = cross_entropy(logits, labels, over vocab, weight = mask)\n    loss = mean(l, over seq)\n    los ", {"P0257", "its weights would be lost"}},
    {"x = x + nn.mlp", "x = [1, 2] + nn.mlp", {"P0258", "a list needs the dimension"}},
    {"position(tokens)", "position(token_table)", {"P0259", "hold positions", "position(x, over seq)"}},
    {"int[batch, seq]\n", "itn[batch, seq]\n", {"P0261", "did you mean `int`?"}},
    {"int[batch, seq]\n", "int[seq]\n", {"P0261", "has no dimension `batch`"}},
    {"int[batch, seq]\n", "int[batch, seq] = next(tokens)\n", {"P0262", "an input has no value"}},
    {"labels: int[batch, seq]", "labels: int[batch, embed]", {"P0263", "i32[batch, embed]", "i32[batch, seq]"}},
    {"= normal(0.02)", "= norml(0.02)", {"P0264", "did you mean `normal`?"}},
    {"= normal(0.02)", "= zero", {"P0264", "did you mean `zeros`?"}},
    {"= normal(0.02)", "= uniform(1)", {"P0264", "`uniform` takes 2 numbers, not 1"}},
    {"= normal(0.02)", "= uniform(1, 0)", {"P0264", "the lower one comes first"}},
    {"= normal(0.02)", "", {"P0264", "has no initial value"}},
    /* sizes */
    /* data */
    {"data text(\"x\")", "data arrays(tokns = \"x.npy\")", {"P0520", "the model has no input `tokns`"}},
    {"data text(\"x\")", "data arrays(tokens = \"x.npy\", y = \"y.npy\")", {"P0520", "the model has no input `y`"}},
    {"= next(tokens)", "", {"P0521", "`text` cannot fill input `labels`"}},
    {"data text(\"x\")", "data sseq = [text(\"x\"), text(\"y\")]", {"P0522", "did you mean `seq`?"}},
    {"data text(\"x\")", "data seq = [text(\"x\"), text(\"y\")]", {"P0522", "`seq` is 4, but 2 data sets are given"}},
    {"optimizer adamw", "freeze atention\n    optimizer adamw", {"P0184", "did you mean `attention`?"}},
    {"head = 2", "head = 3", {"P0350", "8 / 3 leaves a rest of 2", "`head` could be 2 or 4"}},
    {"causal = true", "3, causal = true", {"P0350", "`group` is not a whole number: 2 / 3", "inside `attention` of the standard library"}},
    {"layers = 2", "layers = 0", {"P0351", "`layers` must be at least 1, not 0"}},
    {"layers = 2", "layers = 2.5", {"P0351", "`layers` must be a whole number, not 2.5"}},
    {"layers = 2", "layers", {"P0351", "`layers` has no size"}},
    {"    dim head_dim", "    dim a = 3\n    factors embed = (head, a)\n    dim head_dim", {"P0352", "`embed` is 8, but its factors make 2 x 3 = 6"}},
    {"embed / head,", "embed / (head - 2),", {"P0353", "division by zero"}},
};
/* clang-format on */

/* One mistake, one message: an error, or a warning where the table's code is a warning's. */
static void one_mistake_one_message(void **state) {
    (void)state;
    int failures = 0;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        const Mistake *mistake = &mistakes[i];
        char text[4000];
        Elaborated e = elaborate(open_text, edited(text, sizeof text, mistake->from, mistake->to));
        int errors = diag_count(e.s, SEV_ERROR), warnings = diag_count(e.s, SEV_WARNING);
        bool failed = errors + warnings != 1 || (errors && e.model);
        const char *said = diagnostics(e);
        for (int k = 0; k < 4 && mistake->says[k]; k++) failed = failed || !strstr(said, mistake->says[k]);
        if (failed) {
            print_error("'%s' -> '%s': %d errors, %d warnings; expected %s %s\n%s\n", mistake->from, mistake->to,
                        errors, warnings, mistake->says[0], mistake->says[1] ? mistake->says[1] : "", said);
            failures++;
        }
        session_free(e.s);
    }
    assert_int_equal(failures, 0);
}

static void recursion_is_refused(void **state) {
    (void)state;
    char text[4000];
    edited(text, sizeof text, "import nn\n",
           "import nn\nlayer even(x: [...]) {\n    return odd(x)\n}\nlayer odd(x: [...]) {\n    return even(x)\n}\n");
    char final[4000];
    snprintf(final, sizeof final, "%.*seven(x) + %s", (int)(strstr(text, "x + nn.mlp") - text), text,
             strstr(text, "x + nn.mlp"));
    Elaborated e = elaborate(open_text, final);
    assert_int_equal(diag_count(e.s, SEV_ERROR), 1);
    const char *said = diagnostics(e);
    assert_non_null(strstr(said, "P0165"));
    assert_non_null(strstr(said, "layer `even` calls itself"));
    session_free(e.s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples_elaborate),
        cmocka_unit_test(library_models_have_their_published_sizes),
        cmocka_unit_test(reference_example_elaborates),
        cmocka_unit_test(gpt2_in_detail),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(depth_costs_nothing),
        cmocka_unit_test(golden_llama),
        cmocka_unit_test(golden_features),
        cmocka_unit_test(weighted_loss),
        cmocka_unit_test(handed_out_of_a_repeat),
        cmocka_unit_test(dropout_of_a_rate),
        cmocka_unit_test(constants_of_an_import),
        cmocka_unit_test(paths_of_weights),
        cmocka_unit_test(one_mistake_one_message),
        cmocka_unit_test(recursion_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
