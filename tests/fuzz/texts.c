/* Random texts against the whole front end and the formatter: never a crash, a hang or a broken promise.
 *
 * In: .plan files to start from. Out: nothing, or the text that failed, in a file, with the seed that makes it again. Half
 * of the texts are files changed in tokens (taken away, doubled, swapped, replaced, blocks moved between files, numbers
 * made absurd), a third are written by a grammar of its own, the rest are changed in bytes. Promises, for every text:
 *   - the session ends, within seconds, with as many diagnostics as it likes, each with a span inside its file;
 *   - what is printed is valid UTF-8 without control characters;
 *   - the formatter, where it accepts a text, gives one that it leaves as it is, and that has the same syntax tree.
 *
 *     fuzz_texts SOURCE_ROOT WORK_FOLDER [--seconds S] [--seed N] [--only N] */
#include "runner.h"
#include "syntax/parse.h"

#include "plan_parser.h"

enum { MOST_FILES = 64 };

struct Corpus {
    struct {
        char *text;
        size_t size;
        Token *tokens;
        int n;
    } files[MOST_FILES];
    int n;
    Session *session; /* holds the tokens */
};

/* ---- changed tokens --------------------------------------------------------------------------------------------------------- */

static const char *const odd_tokens[] = {
    "{", "}", "(", ")", "[", "]", ",", ":", "=", "==", "->", "..", "...", ".", "+", "-", "*", "/", "\n", "\"", "\"open", "#", "over", "on", "using", "padded",
    "uneven", "repeated", "along", "like", "as", "and", "or", "not", "if", "else", "repeat", "model", "layer", "plan", "train", "mesh", "dim", "weight",
    "input", "target", "import", "const", "gpu", "cluster", "return", "batch", "x", "0", "1", "-1", "1e308", "1e999", "9223372036854775807",
    "99999999999999999999", "0.0", "1.5 GB", "3 Gb/s", "none", "true", "\"\\q\"", "\xff", "\xe2\x86\x92", "'", ";", "&&", "@", "\t", "\r\n", "a.b.c.d", "factors",
    "auxiliary", "log", "names", "in", "1 / 0", "(((((", "]]]]]", "{ {", "} }"};

static void put_token(FILE *out, const Corpus *corpus, int file, int at) {
    const Token *token = &corpus->files[file].tokens[at];
    fwrite(corpus->files[file].text + token->lo, 1, (size_t)(token->hi - token->lo), out);
}

static void changed_tokens(Random *r, const Corpus *corpus, FILE *out) {
    int file = below(r, corpus->n), rate = 1 + below(r, chance(r, 10) ? 300 : 12), other = below(r, corpus->n);
    int from = 0, to = corpus->files[file].n;
    if (chance(r, 20)) { /* a part of the file alone */
        from = below(r, to);
        to = from + below(r, to - from);
    }
    for (int i = from; i < to; i++) {
        bool change = below(r, 1000) < rate;
        int what = below(r, 6);
        if (change && what == 0) continue;
        if (change && what == 1) put_token(out, corpus, file, i), fputc(' ', out);
        if (change && what == 2) {
            put_token(out, corpus, file, below(r, corpus->files[file].n));
        } else if (change && what == 3) {
            fputs(PICK(r, odd_tokens), out);
        } else if (change && what == 4) {
            int start = below(r, corpus->files[other].n), length = below(r, 40);
            for (int k = start; k < start + length && k < corpus->files[other].n; k++) put_token(out, corpus, other, k), fputc(' ', out);
        } else if (change) {
            put_token(out, corpus, file, i);
            fputs(PICK(r, odd_tokens), out);
        } else {
            put_token(out, corpus, file, i);
        }
        if (corpus->files[file].tokens[i].kind != NEWLINE) fputc(' ', out);
    }
}

static void changed_bytes(Random *r, const Corpus *corpus, FILE *out) {
    int file = below(r, corpus->n), rate = 1 + below(r, 60);
    for (size_t i = 0; i < corpus->files[file].size; i++) {
        if (below(r, 10000) < rate) {
            int what = below(r, 4);
            if (what == 0) continue;
            if (what == 1) fputc((int)(next(r) & 255), out);
            if (what == 2) i += (size_t)below(r, 30);
            if (what == 3) fputs(PICK(r, odd_tokens), out);
        }
        if (i < corpus->files[file].size) fputc(corpus->files[file].text[i], out);
    }
}

/* ---- texts from a grammar: mostly right, so that they get past the parser --------------------------------------------------- */

static const char *const dims[] = {"a", "b", "c", "layers", "embed", "head", "batch", "seq", "vocab"};
static const char *const tensors[] = {"x", "y", "w", "v", "tokens", "labels", "z"};
static const char *const functions[] = {"dot", "gelu", "silu", "sum", "mean", "max", "softmax", "lookup", "cross_entropy", "layer_norm", "rms_norm", "attend",
                                        "rename", "position", "exp", "log", "sqrt", "tanh", "nn.mlp", "nn.linear", "nn.attention", "f", "dropout", "rotate", "where", "concat"};
static const char *const operators[] = {" + ", " - ", " * ", " / ", " == ", " < ", " and "};

static void put_expression(Random *r, FILE *out, int depth) {
    int what = below(r, depth > 0 ? 9 : 4);
    if (what == 0) fprintf(out, "%d", below(r, 5));
    else if (what == 1) fprintf(out, "%s", PICK(r, dims));
    else if (what <= 3) fprintf(out, "%s", PICK(r, tensors));
    else if (what == 4) fprintf(out, "0.%d", below(r, 100));
    else if (what <= 6) {
        put_expression(r, out, depth - 1);
        fputs(PICK(r, operators), out);
        put_expression(r, out, depth - 1);
    } else {
        fprintf(out, "%s(", PICK(r, functions));
        for (int i = 0, n = below(r, 4); i < n; i++) {
            if (i) fputs(", ", out);
            put_expression(r, out, depth - 1);
            if (chance(r, 10)) fprintf(out, " -> %s", PICK(r, dims));
        }
        if (chance(r, 60)) fprintf(out, ", over %s", PICK(r, dims));
        if (chance(r, 10)) fprintf(out, ", eps = 0.1");
        fputc(')', out);
    }
}

static void put_type(Random *r, FILE *out) {
    fputc('[', out);
    for (int i = 0, n = below(r, 4); i < n; i++) fprintf(out, "%s%s", i ? ", " : "", PICK(r, dims));
    fputc(']', out);
}

static void put_statements(Random *r, FILE *out, int depth) {
    for (int i = 0, n = 1 + below(r, 6); i < n; i++) {
        int what = below(r, depth > 0 ? 10 : 6);
        fputs("    ", out);
        if (what == 0) fprintf(out, "dim %s = %d\n", PICK(r, dims), below(r, 9));
        else if (what == 1) fprintf(out, "weight %s: ", PICK(r, tensors)), put_type(r, out), fputs(chance(r, 80) ? " = normal(0.02)\n" : "\n", out);
        else if (what <= 5) fprintf(out, "%s = ", PICK(r, tensors)), put_expression(r, out, 3), fputc('\n', out);
        else if (what == 6) fprintf(out, "if "), put_expression(r, out, 1), fputs(" {\n", out), put_statements(r, out, depth - 1), fputs("    }\n", out);
        else if (what == 7) fprintf(out, "repeat %s {\n", PICK(r, dims)), put_statements(r, out, depth - 1), fputs("    }\n", out);
        else if (what == 8) fprintf(out, "return "), put_expression(r, out, 2), fputc('\n', out);
        else fprintf(out, "dim %s = like %s\n", PICK(r, dims), PICK(r, dims));
    }
}

static void written(Random *r, FILE *out) {
    static const char *const rules[] = {"batch on data", "head, vocab on tensor", "weights on data", "layers on pipe using one_f_one_b", "seq on data", "microbatch 2",
                                        "mesh data = 2", "mesh data = 2, tensor = 4", "a, b on tensor", "precision bf16", "recompute all", "vocab padded on data",
                                        "layers uneven(1, 2) on pipe", "in layers 0..1 {\n batch on data\n }", "optimizer on data", "a on nothing"};
    fputs("import nn\nlayer f(x: [..., a], a -> b, rate = 0.1) {\n", out);
    put_statements(r, out, 2);
    fputs("    return x\n}\nmodel M {\n    dim layers = 2, embed = 8, head = 2, vocab = 16, seq = 4, a = 8, b = 6\n"
          "    input tokens: int[batch, seq]\n    target labels: int[batch, seq] = next(tokens)\n"
          "    weight w: [vocab, a] = normal(0.02)\n    x = lookup(w, tokens)\n",
          out);
    put_statements(r, out, 3);
    fputs(chance(r, 80) ? "    loss = cross_entropy(dot(x, w, over a), labels, over vocab)\n}\n" : "    loss = x\n}\n", out);
    fprintf(out, "train {\n    model M\n    data text(\"a.txt\")\n    batch %d\n    steps %d\n    optimizer adamw(lr = 0.1)%s\n}\n", below(r, 20), below(r, 20),
            chance(r, 20) ? " {\n        w: weight_decay = 0\n    }" : "");
    for (int k = 0, plans = 1 + below(r, 3); k < plans; k++) {
        fprintf(out, "plan p%d {\n", k);
        for (int i = 0, n = below(r, 5); i < n; i++) fprintf(out, "    %s\n", PICK(r, rules));
        fputs("}\n", out);
    }
}

/* Deeply nested or very wide: recursion and quadratic loops. */
static void extreme(Random *r, FILE *out) {
    static const char *const openings[] = {"(", "[", "f(", "-", "not ", "1 + ", "a.", "x = ", "{", "if a {\n", "repeat layers {\n", "a, ", "a = 1, ", "else ", "\"", "1..", "[x] along ("};
    const char *opening = PICK(r, openings);
    int n = 1 << below(r, 14);
    fputs(chance(r, 50) ? "model M {\n    x = " : "train {\n    batch ", out);
    for (int i = 0; i < n; i++) fputs(opening, out);
    if (chance(r, 50))
        for (int i = 0; i < n; i++) fputs(chance(r, 50) ? ")" : "}", out);
}

static void make_text(Random *r, const Corpus *corpus, FILE *out) {
    int kind = below(r, 100);
    if (kind < 48) changed_tokens(r, corpus, out);
    else if (kind < 82) written(r, out);
    else if (kind < 97) changed_bytes(r, corpus, out);
    else extreme(r, out);
}

/* ---- promises ------------------------------------------------------------------------------------------------------------------ */

static const char *dumped(Session *s, const Ast *ast) {
    Text text = {.arena = s->arena};
    text_puts(&text, "");
    ast_dump(ast, &text);
    return text.at;
}

/* The formatter's text has the same tree, and is its own canonical form. */
static bool check_format(const char *text, size_t size) {
    Session *s = session_new();
    int32_t file = session_add_text(s, "fuzz.plan", text, size);
    const char *canonical = ast_print(s, file);
    if (canonical) {
        int32_t again = session_add_text(s, "canonical.plan", canonical, strlen(canonical));
        const char *twice = ast_print(s, again);
        if (!twice) broken("the formatter does not accept its own text");
        if (strcmp(twice, canonical)) broken("the formatter changes its own text");
        const char *before = dumped(s, text_to_ast(s, file)), *after = dumped(s, text_to_ast(s, again));
        if (strcmp(before, after)) broken("the formatter changes what the text means");
    }
    session_free(s);
    return canonical != NULL;
}

static void check_text(Shared *shared, const char *root, const char *text, size_t size) {
    char library[1024], path[1024];
    snprintf(library, sizeof library, "%s/stdlib", root);
    snprintf(path, sizeof path, "%s/examples/fuzz.plan", root);
    Session *s;
    front_check(&s, library, path, text, size);
    int errors = diag_count(s, SEV_ERROR);
    check_diagnostics(s);
    session_free(s);
    shared->reread += check_format(text, size);
    shared->accepted += errors == 0;
    shared->errors += (uint64_t)errors;
}

/* ---- running --------------------------------------------------------------------------------------------------------------------- */

static void corpus_read(Corpus *corpus, const char *root) {
    static const char *const files[] = {"examples/01-quickstart.plan", "examples/02-gpt2.plan", "examples/03-llama.plan", "examples/04-classifier.plan",
                                        "examples/05-cluster.plan", "stdlib/nn.plan", "stdlib/clusters.plan", "stdlib/models/gpt2.plan", "stdlib/models/llama.plan",
                                        "tests/golden/syntax/forms.plan", "tests/golden/syntax/everything.plan", "tests/golden/syntax/attention.plan",
                                        "tests/golden/graph/features.plan"};
    corpus->session = session_new();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", root, files[i]);
        Session *s = corpus->session;
        char *text = front_read(path, &corpus->files[corpus->n].size);
        int32_t file = session_add_text(s, path, text, corpus->files[corpus->n].size);
        Parser p = {.s = s, .arena = s->arena, .file = file, .text = s->files.at[file - 1].text, .size = s->files.at[file - 1].size};
        lex_file(&p);
        corpus->files[corpus->n].text = text;
        corpus->files[corpus->n].tokens = p.raw.at;
        corpus->files[corpus->n++].n = p.raw.n - 1;
    }
}

int main(int argc, char **argv) {
    static Corpus corpus;
    int status = fuzz_main(argc, argv, &corpus);
    if (corpus.session) session_free(corpus.session);
    for (int i = 0; i < corpus.n; i++) free(corpus.files[i].text);
    return status;
}
