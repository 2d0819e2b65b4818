/* A session: the arena, the names, the files and the diagnostics of one run of the compiler. */
#include "base/base.h"

Session *session_new(void) {
    Arena *arena = arena_new();
    Session *s = NEW(arena, Session);
    s->arena = arena;
    s->names = interner_new(arena);
    return s;
}

void session_free(Session *s) {
    if (s) arena_free(s->arena);
}

const char *format_bytes(Arena *arena, double bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    const char *sign = bytes < 0 ? "-" : "";
    double size = bytes < 0 ? -bytes : bytes;
    if (size < 1023.5) return arena_printf(arena, "%s%.0f byte%s", sign, size, size >= 0.5 && size < 1.5 ? "" : "s");
    int unit = 0;
    /* 1023.95 and not 1024, so that rounding never prints "1024.0 MiB" */
    for (size /= 1024; size >= 1023.95 && unit < 4; size /= 1024) unit++;
    return arena_printf(arena, "%s%.1f %s", sign, size, units[unit]);
}
