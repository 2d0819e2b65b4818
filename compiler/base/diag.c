/* Diagnostics are collected in the session and printed in order of place when a command ends or a stage gives up. */
#include "base/diag_list.h"

#include <stdlib.h>

/* The same code at the same place is one problem, whoever finds it again. Without a place the text tells them apart. */
static bool diag_is_new(Session *s, const char *code, Span span, const char *message) {
    const char *identity = span.file ? arena_printf(s->arena, "%s:%d:%d:%d", code, span.file, span.lo, span.hi)
                                     : arena_printf(s->arena, "%s:%s", code, message);
    Name key = intern(s->names, identity);
    if (map_get(&s->reported, key)) return false;
    map_put(s->arena, &s->reported, key, (void *)(uintptr_t)key);
    return true;
}

static Diag *diag_add(Session *s, Severity severity, const char *code, Span span, const char *format, va_list args) {
    Diag *d = NEW(s->arena, Diag);
    const char *message = arena_vprintf(s->arena, format, args);
    *d =
        (Diag){.session = s, .severity = severity, .code = code, .message = message, .span = span, .order = s->diags.n};
    if (!diag_is_new(s, code, span, message)) return d; /* takes labels and notes, and is never printed */
    s->counts[severity]++;
    vec_push(s->arena, &s->diags, d);
    return d;
}

#define DEFINE_DIAG(NAME, SEVERITY)                                                                                    \
    Diag *NAME(Session *s, const char *code, Span span, const char *format, ...) {                                     \
        va_list args;                                                                                                  \
        va_start(args, format);                                                                                        \
        Diag *d = diag_add(s, SEVERITY, code, span, format, args);                                                     \
        va_end(args);                                                                                                  \
        return d;                                                                                                      \
    }
DEFINE_DIAG(diag_error, SEV_ERROR)
DEFINE_DIAG(diag_warning, SEV_WARNING)
DEFINE_DIAG(diag_perf, SEV_PERF)
DEFINE_DIAG(diag_note_alone, SEV_NOTE)

void diag_label(Diag *d, const char *format, ...) {
    va_list args;
    va_start(args, format);
    d->label = arena_vprintf(d->session->arena, format, args);
    va_end(args);
}

void diag_note(Diag *d, Span span, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = arena_vprintf(d->session->arena, format, args);
    va_end(args);
    vec_push(d->session->arena, &d->notes, (DiagChild){span, text, NULL});
}

void diag_help(Diag *d, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = arena_vprintf(d->session->arena, format, args);
    va_end(args);
    vec_push(d->session->arena, &d->helps, (DiagChild){{0, 0, 0}, text, NULL});
}

void diag_fix(Diag *d, Span span, const char *replacement) {
    const char *own = arena_strndup(d->session->arena, replacement, strlen(replacement));
    vec_push(d->session->arena, &d->fixes, (DiagChild){span, NULL, own});
}

bool diag_any_error(const Session *s, const char *code, Span within) {
    for (int i = 0; i < s->diags.n; i++) {
        const Diag *d = s->diags.at[i];
        if (d->severity == SEV_ERROR && strncmp(d->code, code, strlen(code)) == 0 && d->span.file == within.file &&
            d->span.lo >= within.lo && d->span.lo <= within.hi)
            return true;
    }
    return false;
}

int diag_count(const Session *s, Severity severity) { return s->counts[severity]; }

const char *severity_name(Severity severity) {
    static const char *const names[] = {"error", "warning", "note", "performance"};
    return names[severity];
}

static int compare_diags(const void *left, const void *right) {
    const Diag *a = *(Diag *const *)left, *b = *(Diag *const *)right;
    if (!a->span.file != !b->span.file) return a->span.file ? -1 : 1;
    if (a->span.file != b->span.file) return a->span.file < b->span.file ? -1 : 1;
    if (a->span.lo != b->span.lo) return a->span.lo < b->span.lo ? -1 : 1;
    return a->order - b->order;
}

void diag_sort(Session *s) {
    if (s->diags.n) qsort(s->diags.at, (size_t)s->diags.n, sizeof *s->diags.at, compare_diags);
}

void diag_flush(Session *s, FILE *out, bool color) {
    diag_sort(s);
    int shown[4] = {0}, hidden = 0;
    bool first = true;
    for (int i = 0; i < s->diags.n; i++) {
        const Diag *d = s->diags.at[i];
        if (++shown[d->severity] > MOST_SHOWN) {
            hidden += d->severity == SEV_ERROR;
            continue;
        }
        Text text = {.arena = s->arena};
        diag_render(d, &text, color);
        if (!first) fputc('\n', out);
        first = false;
        fwrite(text.at, 1, text.n, out);
    }
    if (hidden) fprintf(out, "\nand %d more error%s\n", hidden, hidden == 1 ? "" : "s");
    s->diags.n = 0;
    fflush(out);
}
