/* Random graphs and schedules in text form: the readers of `--emit graph` and `--schedule` never crash, and what they accept
 * is right or is refused by the verifier.
 *
 * In: golden graphs, graphs of the examples, schedules. Out: nothing, or the text that failed. Promises, for every text:
 *   - graph_parse ends, with a graph or with diagnostics that have a place in the text;
 *   - a graph that the verifier accepts is printed, read and printed again with the same text;
 *   - the same for schedules.
 *
 *     fuzz_graphs SOURCE_ROOT WORK_FOLDER [--seconds S] [--seed N] [--only N] */
#include "runner.h"
#include "schedule/schedule.h"

#include <ctype.h>
#include <stdlib.h>

enum { MOST_FILES = 16, MOST_TOKENS = 1 << 16 };

typedef struct Piece {
    int lo, hi;
} Piece;

struct Corpus {
    struct {
        char *text;
        size_t size;
        Piece *tokens;
        int n;
    } files[MOST_FILES];
    int n;
};

static const char *const odd[] = {"%0", "%1", "%99999", "f32", "i32", "bool", "f16", "[", "]", "(", ")", "{", "}", ":", ",", "=", "add", "dot", "sum", "repeat layers", "carry", "slice",
                                  "capture", "next", "result", "output", "input", "dim x = 3", "tensor t: weight f32[]", "over", "= [", "-1", "0", "1e300", "9223372036854775807", "nan",
                                  "true", "\n", "#", "\"", "like", "batch", "seq", "embed", "graph g {", "mesh data = 2", "{data: partial(sum)}", "{data: sharded(batch)}", "backward",
                                  "micro", "role 0:", "0F0", "1B7", "OPT", "SEND", "schedule x roles 2 chunks 1 micros 4", "all_reduce", "axis = 0", "attend", "constant", "value = 2"};

static void make_text(Random *r, const Corpus *corpus, FILE *out) {
    int file = below(r, corpus->n), rate = 1 + below(r, chance(r, 10) ? 200 : 8), at = 0;
    const char *text = corpus->files[file].text;
    bool bytes = chance(r, 20);
    for (int i = 0; i < corpus->files[file].n; i++) {
        Piece token = corpus->files[file].tokens[i];
        fwrite(text + at, 1, (size_t)(token.lo - at), out);
        at = token.hi;
        Piece other = corpus->files[file].tokens[below(r, corpus->files[file].n)];
        int what = below(r, 1000) < rate ? below(r, 6) : 6;
        if (what == 1) fprintf(out, "%.*s ", token.hi - token.lo, text + token.lo);
        if (what == 2) fprintf(out, "%.*s", other.hi - other.lo, text + other.lo);
        if (what == 3) fputs(PICK(r, odd), out);
        if (what == 4) i += below(r, 20);
        if (what == 5 && bytes) fputc((int)(next(r) & 255), out);
        if (what == 1 || what >= 5) fwrite(text + token.lo, 1, (size_t)(token.hi - token.lo), out);
        if (what == 4 && i < corpus->files[file].n) at = corpus->files[file].tokens[i].hi;
    }
}

static const char *printed(Session *s, const Graph *graph) {
    Text text = {.arena = s->arena};
    text_puts(&text, "");
    graph_print(graph, &text);
    return text.at;
}

static bool check_graph(Session *s, const char *text, size_t size) {
    Graph *graph = graph_parse(s, session_add_text(s, "fuzz.graph", text, size));
    if (!graph) return false;
    Text why = {.arena = s->arena};
    if (!graph_verify(graph, &why)) return false;
    const char *once = printed(s, graph);
    Graph *again = graph_parse(s, session_add_text(s, "again.graph", once, strlen(once)));
    if (!again) broken("a printed graph is not read");
    if (strcmp(printed(s, again), once)) broken("a graph is printed another way the second time");
    if (!graph_verify(again, &why)) broken("a graph that was read again is refused");
    return true;
}

static bool check_schedule(Session *s, const char *text, size_t size) {
    Schedule *schedule = schedule_parse(s, session_add_text(s, "fuzz.schedule", text, size));
    if (!schedule) return false;
    (void)schedule_verify(schedule, (Span){0});
    Text once = {.arena = s->arena}, twice = {.arena = s->arena};
    schedule_print(schedule, &once);
    Schedule *again = schedule_parse(s, session_add_text(s, "again.schedule", once.at, once.n));
    if (!again) broken("a printed schedule is not read");
    schedule_print(again, &twice);
    if (strcmp(once.at, twice.at)) broken("a schedule is printed another way the second time");
    return true;
}

static void check_text(Shared *shared, const char *root, const char *text, size_t size) {
    (void)root;
    Session *s = session_new();
    bool read = strncmp(text, "schedule", size < 8 ? size : 8) == 0 ? check_schedule(s, text, size) : check_graph(s, text, size);
    shared->reread += read;
    shared->accepted += diag_count(s, SEV_ERROR) == 0;
    shared->errors += (uint64_t)diag_count(s, SEV_ERROR);
    check_diagnostics(s);
    session_free(s);
}

/* Tokens roughly: words and numbers, and single characters. */
static void add_text(Corpus *corpus, char *text, size_t size) {
    Piece *tokens = malloc(MOST_TOKENS * sizeof *tokens);
    int n = 0;
    for (int i = 0; i < (int)size && n < MOST_TOKENS;) {
        int lo = i++;
        if (isspace((unsigned char)text[lo])) continue;
        while (isalnum((unsigned char)text[lo]) && i < (int)size && (isalnum((unsigned char)text[i]) || text[i] == '_' || text[i] == '.')) i++;
        tokens[n++] = (Piece){lo, i};
    }
    corpus->files[corpus->n].text = text;
    corpus->files[corpus->n].size = size;
    corpus->files[corpus->n].tokens = tokens;
    corpus->files[corpus->n++].n = n;
}

/* The graph of an example, as it is printed. */
static void add_example(Corpus *corpus, const char *root, const char *name) {
    char path[1024], library[1024];
    size_t size;
    snprintf(path, sizeof path, "%s/examples/%s", root, name);
    snprintf(library, sizeof library, "%s/stdlib", root);
    char *text = front_read(path, &size);
    Session *s = session_new();
    s->library_path = library;
    Program *program = ast_to_model(s, text_to_ast(s, session_add_text(s, path, text, size)), NULL, 0);
    ModelGraph *model = program && program->train ? model_to_graph(s, program, program->train) : NULL;
    if (!model) broken("an example has no graph");
    const char *graph = printed(s, model->graph);
    add_text(corpus, strdup(graph), strlen(graph));
    session_free(s);
    free(text);
}

static void corpus_read(Corpus *corpus, const char *root) {
    static const char *const goldens[] = {"features", "llama"};
    static const char *const schedules[] = {"schedule one_f_one_b roles 1 chunks 1 micros 2\nrole 0: BEGIN 0F0 0B0 0F1 0B1 OPT\n",
                                            "schedule x roles 2 chunks 1 micros 3\nrole 0: 0F0 0F1 0B0 0F2 0B1 0B2 OPT\nrole 1: 0F0 0B0 0F1 0B1 0F2 0B2 OPT\n"};
    for (int i = 0; i < 2; i++) {
        char path[1024];
        size_t size;
        snprintf(path, sizeof path, "%s/tests/golden/graph/%s.graph", root, goldens[i]);
        char *text = front_read(path, &size);
        add_text(corpus, text, size);
        add_text(corpus, strdup(schedules[i]), strlen(schedules[i]));
    }
    add_example(corpus, root, "01-quickstart.plan");
    add_example(corpus, root, "04-classifier.plan");
}

int main(int argc, char **argv) {
    static Corpus corpus;
    int status = fuzz_main(argc, argv, &corpus);
    for (int i = 0; i < corpus.n; i++) {
        free(corpus.files[i].text);
        free(corpus.files[i].tokens);
    }
    return status;
}
