/* plc explain CODE: the entry of an error code in the reference. plc explain FILE: what its plans cost. */
#include "driver/library.h"
#include "driver/pipeline.h"

/* "P0301" of "P0301", "p0301" or "error[P0301]"; NULL when `text` is no code. */
static Name code_of(Session *s, const char *text) {
    const char *bracket = strchr(text, '[');
    if (bracket) text = bracket + 1;
    if ((*text != 'P' && *text != 'p') || strspn(text + 1, "0123456789") != 4) return NULL;
    if (text[5] && !(bracket && text[5] == ']')) return NULL;
    return intern(s->names, arena_printf(s->arena, "P%.4s", text + 1));
}

/* Start of the entry `## CODE: ...`, or NULL; `*end` is where the next begins. */
static const char *entry_find(const char *errors, const char *code, const char **end) {
    const char *at = strstr(errors, "## P");
    while (at) {
        const char *next = strstr(at + 4, "\n## ");
        if (!strncmp(at + 3, code, 5) && at[8] == ':') {
            *end = next ? next + 1 : at + strlen(at);
            return at;
        }
        at = next ? strstr(next, "## P") : NULL;
    }
    return NULL;
}

static const char *nearest_code(Session *s, const char *errors, Name code) {
    VEC(Name) codes = {0};
    for (const char *at = errors; (at = strstr(at, "## P")); at += 4)
        vec_push(s->arena, &codes, intern_n(s->names, at + 3, 5));
    return nearest_name(code, codes.at, codes.n);
}

int command_explain(Session *s, const Options *options) {
    const char *what = options->arguments[0];
    Name code = code_of(s, what);
    if (!code) return pipeline_explain(s, options);
    const char *errors = library_errors(s), *end = NULL;
    if (!errors) {
        Diag *d = diag_error(s, "P0822", (Span){0, 0, 0}, "the error reference `errors.md` was not found");
        diag_help(d, "it is installed beside the standard library, in share/plan");
        return EXIT_ENVIRONMENT;
    }
    const char *entry = entry_find(errors, code, &end);
    if (!entry) {
        const char *near = nearest_code(s, errors, code);
        fprintf(stderr, "plc: no error has the code `%s`\n", code);
        if (near) fprintf(stderr, "help: did you mean `%s`?\n", near);
        return EXIT_USAGE;
    }
    while (end > entry && (end[-1] == '\n' || end[-1] == ' ')) end--;
    printf("%.*s\n", (int)(end - entry - 3), entry + 3);
    return EXIT_DONE;
}
