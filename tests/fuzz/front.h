/* What the fuzzing programs share: `plc check` on a text in memory, and the words of what it reported. */
#ifndef PLAN_FUZZ_FRONT_H
#define PLAN_FUZZ_FRONT_H

#include "base/diag_list.h"
#include "graph/graph.h"

/* Every check of `plc check`, on `text` as if it were the file at `path`. The caller frees `*session`. */
static inline void front_check(Session **session, const char *library, const char *path, const char *text, size_t size) {
    Session *s = session_new();
    *session = s;
    s->library_path = library;
    int32_t file = session_add_text(s, path, text, size);
    const Ast *ast = text_to_ast(s, file);
    bool syntax_errors = diag_count(s, SEV_ERROR) > 0;
    Program *program = ast_to_model(s, ast, NULL, 0);
    if (!program || !program->train || !program->train->model || (syntax_errors && !program->train)) return;
    int errors = diag_count(s, SEV_ERROR);
    ModelGraph *model = model_to_graph(s, program, program->train);
    if (!model) return;
    bool whole = !syntax_errors && diag_count(s, SEV_ERROR) == errors;
    for (int i = 0; i < program->plans.n; i++) {
        Span where;
        plan_check(s, program->train, program->plans.at[i], model->dims.at, model->dims.n, whole);
        (void)plan_unbuilt(program->plans.at[i], &where);
    }
}

/* The whole file, NUL-terminated, from malloc; ends the program when it cannot be read. */
static inline char *front_read(const char *path, size_t *size) {
    FILE *in = fopen(path, "rb");
    char *text = NULL;
    size_t room = 0, n = 0;
    if (in) {
        FILE *out = open_memstream(&text, &room);
        char block[4096];
        while (out && (n = fread(block, 1, sizeof block, in)) > 0) fwrite(block, 1, n, out);
        if (out) fclose(out);
        fclose(in);
    }
    if (!text) {
        fprintf(stderr, "cannot read %s\n", path);
        _Exit(2);
    }
    *size = room;
    return text;
}

#endif
