/* Foundations: arenas, interned names, growable arrays, maps, sources, diagnostics.
 *
 * Nothing here is global. Every stage receives a Session, so that the compiler can be fuzzed and can serve an editor.
 * Memory is owned by arenas and freed with them; there are no single frees. */
#ifndef PLAN_BASE_H
#define PLAN_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- arena -------------------------------------------------------------------------------------------------- */

typedef struct Arena Arena;

Arena *arena_new(void);
void arena_free(Arena *arena);
/* Zeroed memory, aligned to 16 bytes. Never NULL: out of memory ends the process with exit code 3. */
void *arena_alloc(Arena *arena, size_t bytes);
char *arena_strndup(Arena *arena, const char *text, size_t length);
char *arena_printf(Arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(Arena *arena, const char *format, va_list args);
/* Bytes handed out so far, and the number of calls: growth tests count these. */
size_t arena_bytes(const Arena *arena);
size_t arena_calls(const Arena *arena);

#define NEW(arena, T) ((T *)arena_alloc((arena), sizeof(T)))
#define NEW_N(arena, T, n) ((T *)arena_alloc((arena), sizeof(T) * (size_t)(n)))

/* ---- growable array, owned by an arena ---------------------------------------------------------------------- */

#define VEC(T)                                                                                                         \
    struct {                                                                                                           \
        T *at;                                                                                                         \
        int n, cap;                                                                                                    \
    }
#define vec_push(arena, v, ...)                                                                                        \
    (vec_reserve_((arena), (void **)&(v)->at, &(v)->cap, (v)->n + 1, sizeof *(v)->at),                                 \
     (void)((v)->at[(v)->n++] = (__VA_ARGS__)))
#define vec_last(v) ((v)->at[(v)->n - 1])
void vec_reserve_(Arena *arena, void **at, int *cap, int need, size_t size);

/* ---- names -------------------------------------------------------------------------------------------------- */

/* An interned, NUL-terminated string: two names are equal exactly when their pointers are. */
typedef const char *Name;
typedef struct Interner Interner;
Interner *interner_new(Arena *arena);
Name intern(Interner *interner, const char *text);
Name intern_n(Interner *interner, const char *text, size_t length);

/* Map from a pointer (usually a Name) to a pointer. A zeroed Map is empty. Iteration order is insertion order. */
typedef struct Map {
    Arena *arena;
    struct MapEntry {
        const void *key;
        void *value;
    } * entries; /* in insertion order, `n` of them */
    int n, cap;
    int32_t *slots;
    int n_slots;
} Map;
void *map_get(const Map *map, const void *key);                     /* NULL when absent */
void map_put(Arena *arena, Map *map, const void *key, void *value); /* replaces */

/* ---- text being built --------------------------------------------------------------------------------------- */

typedef struct Text {
    Arena *arena;
    char *at; /* always NUL-terminated once something was added */
    size_t n, cap;
} Text;
void text_printf(Text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add(Text *text, const char *bytes, size_t n);
void text_puts(Text *text, const char *string);

/* ---- sources and spans -------------------------------------------------------------------------------------- */

/* A half-open byte range of one source file. `file` 0 means "nowhere" (made by the compiler). */
typedef struct Span {
    int32_t file, lo, hi;
} Span;
Span span_join(Span a, Span b);

typedef struct SourceFile {
    const char *path;      /* as the user gave it; `<stdlib>/nn.plan` for the library's */
    const char *real_path; /* what was opened */
    const char *text;      /* NUL-terminated; `size` bytes before that */
    int32_t size;
    int32_t *line_starts, n_lines;
    bool is_library; /* a file of the standard library */
} SourceFile;

/* Bytes (at least 1) of the UTF-8 character at `at` < `end`, and its code point: U+FFFD for a byte that begins none. */
int utf8_decode(const char *at, const char *end, uint32_t *code);

typedef struct Place {
    int line, column;
} Place; /* both from 1; columns count characters */

/* ---- diagnostics -------------------------------------------------------------------------------------------- */

typedef enum Severity { SEV_ERROR, SEV_WARNING, SEV_NOTE, SEV_PERF } Severity;

typedef struct Diag Diag;
typedef struct Session Session;

/* Reports a problem. `code` is like "P0301" and has an entry in docs/errors.md; the message is lower case without a
 * full stop and says the problem first, subjects quoted in backticks. The returned Diag takes labels, notes and helps;
 * it is never NULL. The same code at the same span is reported once. */
Diag *diag_error(Session *s, const char *code, Span span, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
Diag *diag_warning(Session *s, const char *code, Span span, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
Diag *diag_perf(Session *s, const char *code, Span span, const char *format, ...) __attribute__((format(printf, 4, 5)));
Diag *diag_note_alone(Session *s, const char *code, Span span, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Text beside the carets of the main span. */
void diag_label(Diag *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `note:` with a second span (file 0: without). */
void diag_note(Diag *d, Span span, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* `help:` with a concrete way out. */
void diag_help(Diag *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A machine-applicable edit for --json and editors. */
void diag_fix(Diag *d, Span span, const char *replacement);

/* Prints what was reported so far, in order of file and position, at most 20 errors; clears the list. `color`: ANSI. */
void diag_flush(Session *s, FILE *out, bool color);
/* One JSON object a line, with the fields of rustc's --error-format=json. */
void diag_flush_json(Session *s, FILE *out);
int diag_count(const Session *s, Severity severity);
/* Whether an error was reported in this span, with a code that begins like this ("P00": of the parser). What was left
 * out after a mistake proves nothing: later stages ask before they call something missing. */
bool diag_any_error(const Session *s, const char *code, Span within);

/* The candidate nearest to `word` by edit distance (at most a third of its length, at least 1), or NULL. Of equally
 * near ones, that with the longest common beginning; then the first. */
Name nearest_name(Name word, const Name *candidates, int n);

/* A fault of ours: prints where, asks for a report, exits 70. */
#define BUG(...) bug_(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void bug_(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define CHECK(condition) ((condition) ? (void)0 : BUG("check failed: %s", #condition))

/* ---- session ------------------------------------------------------------------------------------------------ */

struct Session {
    Arena *arena;
    Interner *names;
    VEC(SourceFile) files; /* Span.file is an index into it plus 1 */
    VEC(Diag *) diags;
    int counts[4];            /* by Severity */
    Map reported;             /* what was reported already, by code and span */
    const char *library_path; /* folder of the standard library */
};

Session *session_new(void);
void session_free(Session *s);
/* Reads a file into the session. Returns its Span.file, or 0 (with `*why` set) when it cannot be read. "-" is stdin. */
int32_t session_read_file(Session *s, const char *path, bool is_library, const char **why);
int32_t session_add_text(Session *s, const char *path, const char *text, size_t size);
const SourceFile *session_file(const Session *s, Span span); /* NULL for file 0 */
Place session_place(const Session *s, Span span);            /* of span.lo */
/* "file:line" of a span, or "(compiler)". */
const char *session_where(Session *s, Span span);

/* "12.5 GiB", "3.2 MB": for messages. */
const char *format_bytes(Arena *arena, double bytes); /* binary units */

#endif
