/* Names of CPUs to what code generation needs to know: the width of a vector register.
 *
 * "native" asks LLVM what this machine is; the x86-64 levels are fixed sets of features, for programs that run
 * elsewhere. 512 bits need AVX-512 F, BW, DQ and VL; 256 bits need AVX2 and FMA; everything else gets 128. */
#include "codegen/llvm_util.h"

typedef struct CpuLevel {
    const char *name;
    int vector_bits;
} CpuLevel;

static const CpuLevel levels[] = {{"x86-64-v2", 128}, {"x86-64-v3", 256}, {"x86-64-v4", 512}};
enum { N_LEVELS = sizeof levels / sizeof levels[0] };

bool cg_has_feature(const char *features, const char *name) {
    char wanted[32];
    int n = snprintf(wanted, sizeof wanted, "+%s", name);
    for (const char *at = features; (at = strstr(at, wanted)) != NULL; at += n)
        if (at[n] == ',' || at[n] == 0) return true;
    return false;
}

static int native_bits(void) {
    char *features = LLVMGetHostCPUFeatures();
    bool wide = cg_has_feature(features, "avx512f") && cg_has_feature(features, "avx512bw") &&
                cg_has_feature(features, "avx512dq") && cg_has_feature(features, "avx512vl");
    bool middle = cg_has_feature(features, "avx2") && cg_has_feature(features, "fma");
    LLVMDisposeMessage(features);
    return wide ? 512 : middle ? 256 : 128;
}

bool target_find(Session *s, const char *cpu, Target *target) {
    *target = (Target){.cpu = cpu};
    if (strcmp(cpu, "native") == 0) {
        target->vector_bits = native_bits();
        return true;
    }
    Name names[N_LEVELS + 1] = {"native"};
    for (int i = 0; i < N_LEVELS; i++) {
        names[i + 1] = levels[i].name;
        if (strcmp(cpu, levels[i].name) != 0) continue;
#if defined(__x86_64__)
        target->vector_bits = levels[i].vector_bits;
        return true;
#else
        Diag *d = diag_error(s, "P0812", (Span){0}, "`%s` is an x86-64 processor, this machine is not", cpu);
        diag_help(d, "use --cpu native");
        return false;
#endif
    }
    Diag *d = diag_error(s, "P0812", (Span){0}, "unknown processor `%s`", cpu);
    Name near = nearest_name(cpu, names, N_LEVELS + 1);
    if (near != NULL) diag_help(d, "did you mean `%s`?", near);
    diag_help(d, "use native, x86-64-v2, x86-64-v3 or x86-64-v4");
    return false;
}
