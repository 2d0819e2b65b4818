/* plc fmt: brings files into canonical form, in place; with --check only says which are not. `-` goes to standard
 * output. */
#include "driver/options.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes beside the file and renames, so that a full disk never leaves half a program. */
static bool write_file(Session *s, const char *path, const char *text) {
    const char *beside = arena_printf(s->arena, "%s.fmt-%d", path, (int)getpid());
    struct stat before;
    FILE *out = fopen(beside, "wb");
    bool ok = out && fwrite(text, 1, strlen(text), out) == strlen(text);
    if (out && fclose(out)) ok = false;
    if (ok && !stat(path, &before)) ok = !chmod(beside, before.st_mode & 07777);
    if (ok && !rename(beside, path)) return true;
    diag_error(s, "P0821", (Span){0, 0, 0}, "`%s` cannot be written: %s", path, strerror(errno));
    unlink(beside);
    return false;
}

/* Returns an exit code. */
static int format_file(Session *s, const Options *options, const char *path) {
    const char *why = NULL;
    int32_t file = session_read_file(s, path, false, &why);
    if (!file) {
        diag_error(s, "P0010", (Span){0, 0, 0}, "`%s` cannot be read: %s", path, why);
        return EXIT_ERRORS;
    }
    const char *text = ast_print(s, file);
    if (!text) return EXIT_ERRORS;
    const SourceFile *source = session_file(s, (Span){file, 0, 0});
    bool same = strlen(text) == (size_t)source->size && !memcmp(text, source->text, (size_t)source->size);
    if (options->check) {
        if (!same) printf("%s\n", path);
        return same ? EXIT_DONE : EXIT_ERRORS;
    }
    if (!strcmp(path, "-")) {
        fputs(text, stdout);
        return EXIT_DONE;
    }
    return same || write_file(s, path, text) ? EXIT_DONE : EXIT_ENVIRONMENT;
}

int command_fmt(Session *s, const Options *options) {
    int worst = EXIT_DONE;
    for (int i = 0; i < options->n_arguments; i++) {
        int status = format_file(s, options, options->arguments[i]);
        if (status > worst) worst = status;
    }
    return worst;
}
