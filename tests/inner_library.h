/* Generated inner kernels and runtime/cpu as a loaded library: for test_codegen_product and bench_product.
 *
 * In: a processor level. Out: a dlopen handle with plan_inner and the drivers. Failures end the program. */
#ifndef PLAN_TEST_INNER_LIBRARY_H
#define PLAN_TEST_INNER_LIBRARY_H

#include "codegen/codegen.h"

#include <dlfcn.h>
#include <stdlib.h>

static inline void inner_command(const char *command) {
    if (system(command) != 0) fprintf(stderr, "failed: %s\n", command), exit(1);
}

/* Compiles the drivers into `folder`, with a prt_fail that prints. */
static inline void inner_build_runtime(const char *folder) {
    char command[2048];
    snprintf(command, sizeof command,
             "cd %s && printf '#include <stdio.h>\\n#include <stdlib.h>\\ntypedef struct PrtRank R;_Noreturn void "
             "prt_fail(R "
             "*r,const char *f,...){(void)r;puts(f);abort();}' > stub.c && cc -O2 -g -fPIC -D_GNU_SOURCE -I%s/runtime "
             "-I%s/runtime/include -c stub.c %s/runtime/cpu/*.c",
             folder, PLAN_SOURCE_DIR, PLAN_SOURCE_DIR, PLAN_SOURCE_DIR);
    inner_command(command);
}

/* Emits the kernels of `cpu` into `folder`/name.obj; bits 0: the width that the processor has. */
static inline void inner_emit(const char *folder, const char *name, const char *cpu, int bits) {
    char path[256];
    Session *s = session_new();
    Target target;
    bool ok = target_find(s, cpu, &target);
    if (bits) target.vector_bits = bits;
    Codegen *g = ok ? codegen_new(s, &target, "inner") : NULL;
    if (g != NULL) codegen_inner(g);
    snprintf(path, sizeof path, "%s/%s.obj", folder, name);
    ok = g != NULL && codegen_object(g, path);
    diag_flush(s, stderr, false);
    if (!ok) exit(1);
    codegen_free(g);
    session_free(s);
}

/* Links what inner_emit and inner_build_runtime made, and loads it. */
static inline void *inner_load(const char *folder, const char *name) {
    char command[1024], path[256];
    snprintf(command, sizeof command, "cd %s && cc -shared -Wl,-Bsymbolic -o %s.so %s.obj *.o -lm -lpthread", folder,
             name, name);
    inner_command(command);
    snprintf(path, sizeof path, "%s/%s.so", folder, name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) fprintf(stderr, "%s\n", dlerror()), exit(1);
    return handle;
}

/* Stores the address of a symbol in the pointer, to data or a function, at `to`. */
static inline void inner_symbol(void *handle, const char *name, void *to) {
    void *p = dlsym(handle, name);
    if (p == NULL) fprintf(stderr, "%s\n", dlerror()), exit(1);
    memcpy(to, &p, sizeof p);
}

#endif
