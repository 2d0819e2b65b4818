/* One LLVM module: made for a target, verified, and written as text, assembly or a position-independent object.
 *
 * No optimisation pipeline runs: the IR is already in SSA with vectors chosen and addresses hoisted, and the code
 * generator's own passes (strength reduction, scheduling, register allocation) do the rest. This keeps compile time
 * proportional to the code and at a few milliseconds a kernel. */
#include "codegen/llvm_util.h"

#include <stdlib.h>

static void initialise_targets(bool is_gpu) {
    if (is_gpu) {
        LLVMInitializeNVPTXTargetInfo();
        LLVMInitializeNVPTXTarget();
        LLVMInitializeNVPTXTargetMC();
        LLVMInitializeNVPTXAsmPrinter();
        return;
    }
    LLVMInitializeNativeTarget();
    LLVMInitializeNativeAsmPrinter();
}

static void types_init(Codegen *g) {
    LLVMContextRef c = g->context;
    g->f32 = LLVMFloatTypeInContext(c);
    g->f64 = LLVMDoubleTypeInContext(c);
    g->i1 = LLVMInt1TypeInContext(c);
    g->i8 = LLVMInt8TypeInContext(c);
    g->i16 = LLVMInt16TypeInContext(c);
    g->i32 = LLVMInt32TypeInContext(c);
    g->i64 = LLVMInt64TypeInContext(c);
    g->ptr = LLVMPointerTypeInContext(c, 0);
    g->nothing = LLVMVoidTypeInContext(c);
}

/* cpu and features as LLVM names them; triple NULL: this machine's. */
static Codegen *module_new(Session *s, const Target *target, const char *name, const char *triple, const char *cpu,
                           const char *features) {
    Arena *arena = arena_new();
    Codegen *g = NEW(arena, Codegen);
    g->session = s;
    g->arena = arena;
    g->target = *target;
    g->width = target->vector_bits / 32;
    initialise_targets(triple != NULL);
    char *host_triple = LLVMGetDefaultTargetTriple(), *why = NULL;
    LLVMTargetRef llvm_target;
    if (triple == NULL) triple = host_triple;
    if (LLVMGetTargetFromTriple(triple, &llvm_target, &why)) BUG("no target for `%s`: %s", triple, why);
    g->machine = LLVMCreateTargetMachine(llvm_target, triple, cpu, features, LLVMCodeGenLevelDefault, LLVMRelocPIC,
                                         LLVMCodeModelDefault);
    g->context = LLVMContextCreate();
    g->module = LLVMModuleCreateWithNameInContext(name, g->context);
    g->builder = LLVMCreateBuilderInContext(g->context);
    g->layout = LLVMCreateTargetDataLayout(g->machine);
    LLVMSetTarget(g->module, triple);
    LLVMSetModuleDataLayout(g->module, g->layout);
    LLVMDisposeMessage(host_triple);
    types_init(g);
    return g;
}

Codegen *codegen_new(Session *s, const Target *target, const char *module_name) {
    bool native = strcmp(target->cpu, "native") == 0;
    char *host_cpu = LLVMGetHostCPUName(), *host_features = LLVMGetHostCPUFeatures();
    Codegen *g = module_new(s, target, module_name, NULL, native ? host_cpu : target->cpu, native ? host_features : "");
#if defined(__x86_64__)
    g->has_fma = native ? cg_has_feature(host_features, "fma") : target->vector_bits >= 256;
    g->has_f16 = native ? cg_has_feature(host_features, "f16c") : target->vector_bits >= 256;
#else
    g->has_fma = true; /* AArch64 and the rest of what Debian runs on have both */
    g->has_f16 = false;
#endif
    LLVMDisposeMessage(host_cpu);
    LLVMDisposeMessage(host_features);
    cg_debug_begin(g);
    return g;
}

Codegen *cg_new_gpu(Session *s, const char *module_name, int sm) {
    Target target = {.cpu = "nvptx", .vector_bits = 32, .no_debug_info = true};
    char cpu[16];
    snprintf(cpu, sizeof cpu, "sm_%d", sm);
    /* The PTX version that introduced the newest of the architectures is understood by every driver since. */
    Codegen *g = module_new(s, &target, module_name, "nvptx64-nvidia-cuda", cpu, sm >= 90 ? "+ptx78" : "+ptx70");
    g->is_gpu = g->has_fma = g->has_f16 = true;
    return g;
}

void codegen_free(Codegen *g) {
    if (g->debug != NULL) LLVMDisposeDIBuilder(g->debug);
    LLVMDisposeBuilder(g->builder);
    LLVMDisposeTargetData(g->layout);
    LLVMDisposeModule(g->module);
    LLVMContextDispose(g->context);
    LLVMDisposeTargetMachine(g->machine);
    arena_free(g->arena);
}

const char *codegen_text(Codegen *g) {
    cg_debug_finish(g);
    char *text = LLVMPrintModuleToString(g->module);
    const char *copy = arena_strndup(g->arena, text, strlen(text));
    LLVMDisposeMessage(text);
    return copy;
}

void cg_verify(Codegen *g) {
    cg_debug_finish(g);
    char *why = NULL;
    if (LLVMVerifyModule(g->module, LLVMReturnStatusAction, &why)) BUG("generated code is not valid: %s", why);
    LLVMDisposeMessage(why);
}

static bool emit(Codegen *g, const char *path, LLVMCodeGenFileType kind) {
    cg_verify(g);
    char *why = NULL;
    /* Emission changes the module, so it works on a copy: an object and its assembly can both be asked for. */
    LLVMModuleRef copy = LLVMCloneModule(g->module);
    bool failed = LLVMTargetMachineEmitToFile(g->machine, copy, path, kind, &why);
    LLVMDisposeModule(copy);
    if (!failed) return true;
    diag_error(g->session, "P0811", (Span){0}, "cannot write `%s`: %s", path, why);
    LLVMDisposeMessage(why);
    return false;
}

bool codegen_object(Codegen *g, const char *path) { return emit(g, path, LLVMObjectFile); }
bool codegen_assembly(Codegen *g, const char *path) { return emit(g, path, LLVMAssemblyFile); }
