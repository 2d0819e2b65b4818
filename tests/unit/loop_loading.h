/* Generated kernels into the running test: object, shared object (linked by cc), dlopen. */
#ifndef LOOP_LOADING_H
#define LOOP_LOADING_H

#include "codegen/codegen.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

typedef void HostKernel(void *const *pointers, int64_t lo, int64_t hi);

/* A folder of our own, removed by the caller. */
static inline const char *folder_new(Arena *arena) {
    const char *base = getenv("TMPDIR");
    char *path = arena_printf(arena, "%s/plan_loops_XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(path) == NULL) BUG("no temporary folder");
    return path;
}

/* The module, linked with `stub` (C text, or NULL). The files are removed once it is loaded. */
static inline void *load_module(Arena *arena, Codegen *g, const char *stub) {
    const char *folder = folder_new(arena);
    const char *object = arena_printf(arena, "%s/loops.o", folder),
               *shared = arena_printf(arena, "%s/loops.so", folder);
    const char *source = arena_printf(arena, "%s/stub.c", folder);
    if (!codegen_object(g, object)) BUG("no object");
    if (stub != NULL) {
        FILE *file = fopen(source, "w");
        if (file == NULL) BUG("cannot write %s", source);
        fputs(stub, file);
        fclose(file);
    }
    const char *command =
        arena_printf(arena, "cc -shared -fPIC -o %s %s %s -lm", shared, object, stub != NULL ? source : "");
    if (system(command) != 0) BUG("`%s` failed", command);
    void *library = dlopen(shared, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) BUG("%s", dlerror());
    unlink(object);
    unlink(shared);
    unlink(source);
    rmdir(folder);
    return library;
}

static inline HostKernel *kernel_find(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) BUG("no kernel `%s`", name);
    HostKernel *kernel;
    memcpy(&kernel, &symbol, sizeof kernel);
    return kernel;
}

#endif
