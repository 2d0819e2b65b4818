/* From kernels with addresses to an object file and a program. The only folder that sees LLVM. */
#ifndef PLAN_CODEGEN_H
#define PLAN_CODEGEN_H

#include "kernels/kernels.h"

typedef struct Target {
    const char *cpu;    /* "native", "x86-64-v2", "x86-64-v3", "x86-64-v4" */
    int vector_bits;    /* 128, 256, 512: from the cpu */
    bool no_debug_info; /* leave out the map from code to lines */
} Target;

/* False (with a diagnostic) for a name that is not known. */
bool target_find(Session *s, const char *cpu, Target *target);

typedef struct Codegen Codegen; /* one LLVM module */
Codegen *codegen_new(Session *s, const Target *target, const char *module_name);
void codegen_free(Codegen *g);

/* Adds the function `void loop->name(void *const *pointers, i64 lo, i64 hi)`. */
void codegen_loop(Codegen *g, const Loop *loop);
/* Adds the inner kernels of products and attention and the constant `plan_inner`. */
void codegen_inner(Codegen *g);
/* Adds the entries of all roles, descriptors, and the JSON text. */
void codegen_program(Codegen *g, RoleProgram *const *roles, int n_roles, const char *json);

const char *codegen_text(Codegen *g); /* LLVM IR; freed with the module */
/* Verifies, optimises lightly and writes. False after a diagnostic. */
bool codegen_object(Codegen *g, const char *path);
bool codegen_assembly(Codegen *g, const char *path);

/* PTX of one loop for `sm` (75, 80, 90): text in the arena, or NULL after a diagnostic. */
const char *loop_to_ptx(Session *s, const Loop *loop, int sm);

/* Links the object with libplan_rt into `out` through the system's C compiler driver. False after a diagnostic. */
bool objects_to_binary(Session *s, const char *object, const char *runtime_library, const char *out);

#endif
