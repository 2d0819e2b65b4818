/* Finds the standard library and the error reference from where the executable lies. */
#include "driver/library.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

const char *library_exe_folder(Session *s) {
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return ".";
    path[n] = 0;
    char *slash = strrchr(path, '/');
    return arena_strndup(s->arena, path, slash && slash > path ? (size_t)(slash - path) : 1);
}

void library_find(Session *s) {
    const char *installed = arena_printf(s->arena, "%s/../share/plan/stdlib", library_exe_folder(s));
    char real[PATH_MAX];
    if (realpath(installed, real)) {
        s->library_path = arena_strndup(s->arena, real, strlen(real));
        return;
    }
#ifdef PLAN_STDLIB_DIR
    if (!access(PLAN_STDLIB_DIR, R_OK)) s->library_path = PLAN_STDLIB_DIR;
#endif
}

const char *library_errors(Session *s) {
    static const char *const places[] = {"errors.md", "docs/errors.md"}; /* installed; in the source tree */
    for (int i = 0; s->library_path && i < 2; i++) {
        const char *path = arena_printf(s->arena, "%s/../%s", s->library_path, places[i]);
        int32_t file = access(path, R_OK) ? 0 : session_read_file(s, path, true, NULL);
        if (file) return session_file(s, (Span){file, 0, 0})->text;
    }
    return NULL;
}
