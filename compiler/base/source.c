/* Source files and places in them: reading, line tables, and line and column from byte offsets.
 *
 * Spans are byte offsets everywhere; lines and columns are computed here, only when something is printed. A column
 * counts characters (UTF-8 code points; a byte that is not UTF-8 counts as one). */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { LARGEST_FILE = 256 * 1024 * 1024 };

Span span_join(Span a, Span b) {
    if (!a.file) return b;
    if (!b.file || a.file != b.file) return a;
    return (Span){a.file, a.lo < b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi};
}

static void file_find_lines(Session *s, SourceFile *file) {
    int32_t n = 1;
    for (int32_t i = 0; i < file->size; i++) n += file->text[i] == '\n';
    file->line_starts = NEW_N(s->arena, int32_t, n);
    file->n_lines = n;
    int32_t line = 1;
    for (int32_t i = 0; i < file->size; i++)
        if (file->text[i] == '\n') file->line_starts[line++] = i + 1;
}

static int32_t session_add_file(Session *s, SourceFile file) {
    file_find_lines(s, &file);
    vec_push(s->arena, &s->files, file);
    return s->files.n;
}

int32_t session_add_text(Session *s, const char *path, const char *text, size_t size) {
    if (size > LARGEST_FILE) size = LARGEST_FILE;
    const char *own_path = arena_strndup(s->arena, path, strlen(path));
    return session_add_file(s, (SourceFile){.path = own_path,
                                            .real_path = own_path,
                                            .text = arena_strndup(s->arena, text, size),
                                            .size = (int32_t)size});
}

/* The whole of an open file; NULL with `*why` set when that fails. */
static const char *read_all(Session *s, FILE *in, int32_t *size, const char **why) {
    Text text = {.arena = s->arena};
    char block[16384];
    size_t n;
    errno = 0;
    text_puts(&text, "");
    while ((n = fread(block, 1, sizeof block, in)) > 0) {
        text_add(&text, block, n);
        if (text.n > LARGEST_FILE) {
            *why = "it is larger than 256 MiB";
            return NULL;
        }
    }
    if (ferror(in)) {
        *why = strerror(errno);
        return NULL;
    }
    *size = (int32_t)text.n;
    return text.at;
}

/* Files of the standard library are shown by their name in it, wherever it is installed. */
static const char *shown_path(Session *s, const char *path, bool is_library) {
    if (!is_library) return arena_strndup(s->arena, path, strlen(path));
    size_t prefix = s->library_path ? strlen(s->library_path) : 0;
    if (prefix && !strncmp(path, s->library_path, prefix) && path[prefix] == '/')
        return arena_printf(s->arena, "<stdlib>%s", path + prefix);
    const char *slash = strrchr(path, '/');
    return arena_printf(s->arena, "<stdlib>/%s", slash ? slash + 1 : path);
}

int32_t session_read_file(Session *s, const char *path, bool is_library, const char **why) {
    const char *ignored;
    if (!why) why = &ignored;
    bool is_stdin = !strcmp(path, "-");
    struct stat status;
    if (!is_stdin && !stat(path, &status) && S_ISDIR(status.st_mode)) {
        *why = "it is a folder";
        return 0;
    }
    FILE *in = is_stdin ? stdin : fopen(path, "rb");
    if (!in) {
        *why = arena_printf(s->arena, "%s", strerror(errno));
        return 0;
    }
    int32_t size = 0;
    const char *text = read_all(s, in, &size, why);
    if (!is_stdin) fclose(in);
    if (!text) return 0;
    return session_add_file(s, (SourceFile){.path = is_stdin ? "<stdin>" : shown_path(s, path, is_library),
                                            .real_path = arena_strndup(s->arena, path, strlen(path)),
                                            .text = text,
                                            .size = size,
                                            .is_library = is_library});
}

const SourceFile *session_file(const Session *s, Span span) {
    if (span.file <= 0 || span.file > s->files.n) return NULL;
    return &s->files.at[span.file - 1];
}

/* Bytes of the UTF-8 character at `at`, and its code point; a byte that begins none is one character, U+FFFD. */
int utf8_decode(const char *at, const char *end, uint32_t *code) {
    unsigned char first = (unsigned char)*at;
    int n = first < 0x80                    ? 1
            : first >= 0xc2 && first < 0xe0 ? 2
            : (first & 0xf0) == 0xe0        ? 3
            : first >= 0xf0 && first < 0xf5 ? 4
                                            : 0;
    *code = n == 1 ? first : n ? first & (0x7fu >> n) : 0xfffd;
    if (!n || end - at < n) return *code = 0xfffd, 1;
    for (int i = 1; i < n; i++) {
        unsigned char next = (unsigned char)at[i];
        if ((next & 0xc0) != 0x80) return *code = 0xfffd, 1;
        *code = *code << 6 | (next & 0x3fu);
    }
    bool overlong = (n == 3 && *code < 0x800) || (n == 4 && *code < 0x10000);
    if (overlong || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000)) return *code = 0xfffd, 1;
    return n;
}

Place session_place(const Session *s, Span span) {
    const SourceFile *file = session_file(s, span);
    if (!file) return (Place){0, 0};
    int32_t at = span.lo < 0 ? 0 : span.lo > file->size ? file->size : span.lo;
    int32_t lo = 0, hi = file->n_lines; /* line_starts[lo] <= at < line_starts[hi] */
    while (hi - lo > 1) {
        int32_t mid = lo + (hi - lo) / 2;
        if (file->line_starts[mid] <= at)
            lo = mid;
        else
            hi = mid;
    }
    int column = 1;
    uint32_t code;
    const char *end = file->text + at;
    for (const char *p = file->text + file->line_starts[lo]; p < end; column++) p += utf8_decode(p, end, &code);
    return (Place){lo + 1, column};
}

const char *session_where(Session *s, Span span) {
    const SourceFile *file = session_file(s, span);
    return file ? arena_printf(s->arena, "%s:%d", file->path, session_place(s, span).line) : "(compiler)";
}
