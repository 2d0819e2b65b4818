/* What the files of codegen share: the module being built, and short forms of the LLVM C API.
 *
 * In: a target. Out: IR built directly in SSA. Every helper takes the Codegen first and works on scalars (f32) as well
 * as on vectors (<W x f32>) of any width: "like" arguments give the type of a result. Names: cg_ is "codegen".
 * Only codegen/ includes this file. */
#ifndef PLAN_LLVM_UTIL_H
#define PLAN_LLVM_UTIL_H

#include "codegen/codegen.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Core.h>
#include <llvm-c/DebugInfo.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>

typedef LLVMValueRef V;
typedef LLVMTypeRef T;
typedef LLVMBasicBlockRef Block;

struct Codegen {
    Session *session;
    Arena *arena; /* freed with the module */
    Target target;
    LLVMContextRef context;
    LLVMModuleRef module;
    LLVMBuilderRef builder;
    LLVMTargetMachineRef machine;
    LLVMTargetDataRef layout;
    int width;    /* floats in a vector register: 4, 8 or 16 */
    bool has_fma; /* otherwise cg_fma computes the same bits in double */
    bool has_f16; /* conversions between f16 and f32 */
    bool is_gpu;  /* NVPTX */
    V function;   /* being built */
    T f32, f64, i1, i8, i16, i32, i64, ptr, nothing;
    /* debug info; NULL when left out */
    LLVMDIBuilderRef debug;
    LLVMMetadataRef debug_unit, debug_scope;     /* scope: the subprogram being built, or NULL */
    int32_t debug_file;                          /* Span.file of debug_scope */
    LLVMMetadataRef *debug_files, *debug_blocks; /* by Span.file; blocks: the scope for lines of another file */
    int n_debug_files;
};

/* ---- types and constants ----------------------------------------------------------------------------------------- */

T cg_vector(T element, int lanes); /* lanes 1: the element itself */
int cg_lanes(T type);              /* 1 for scalars */
T cg_element(T type);
T cg_like(T element, T like); /* `element` with as many lanes as `like` */
V cg_i64(Codegen *g, int64_t value);
V cg_i32(Codegen *g, int64_t value);
V cg_f32(Codegen *g, double value);
V cg_const_f(T like, double value); /* splat when `like` is a vector */
V cg_const_i(T like, int64_t value);
V cg_splat(Codegen *g, V scalar, int lanes);
V cg_iota(Codegen *g, int lanes);              /* i32: 0, 1, 2 ... */
V cg_mask_const(Codegen *g, int lanes, int n); /* i1: the first n lanes; n may be <= 0 or >= lanes */
V cg_mask_below(Codegen *g, int lanes, V n);   /* i1: lane < n, n is i64 */
V cg_shuffle(Codegen *g, V x, V y, const int *lanes, int n);

/* ---- arithmetic: short forms ------------------------------------------------------------------------------------- */

V cg_add(Codegen *g, V x, V y); /* integers */
V cg_sub(Codegen *g, V x, V y);
V cg_mul(Codegen *g, V x, V y);
V cg_imin(Codegen *g, V x, V y); /* signed */
V cg_fadd(Codegen *g, V x, V y); /* floats; never contracted */
V cg_fsub(Codegen *g, V x, V y);
V cg_fmul(Codegen *g, V x, V y);
V cg_fdiv(Codegen *g, V x, V y);
V cg_fma(Codegen *g, V x, V y, V z); /* x * y + z, rounded once, on every target */
V cg_fmin(Codegen *g, V x, V y);     /* x < y ? x : y, but NaN when either is */
V cg_fmax(Codegen *g, V x, V y);
V cg_select(Codegen *g, V condition, V x, V y);
V cg_icmp(Codegen *g, LLVMIntPredicate predicate, V x, V y);
V cg_fcmp(Codegen *g, LLVMRealPredicate predicate, V x, V y);
V cg_bitcast(Codegen *g, V x, T type);
/* Calls the intrinsic `name` overloaded on `overloads`. */
V cg_intrinsic(Codegen *g, const char *name, T *overloads, int n_overloads, V *args, int n_args);
V cg_unary_intrinsic(Codegen *g, const char *name, V x); /* overloaded on x's type */

typedef enum CgReduce { CG_SUM, CG_MAX, CG_MIN } CgReduce;
V cg_combine(Codegen *g, CgReduce kind, V x, V y);
V cg_identity(CgReduce kind, T like);
/* The balanced tree of loop.h over all lanes of `n` vectors (lane k of vector v is accumulator v * lanes + k):
 * accumulator i takes i + half, half = total / 2, ... 1. Both n and lanes are powers of two. */
V cg_reduce_tree(Codegen *g, CgReduce kind, V *vectors, int n);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

V cg_at(Codegen *g, T element, V pointer, V index); /* index in elements, i64 */
V cg_load(Codegen *g, T type, V pointer, int align);
void cg_store(Codegen *g, V value, V pointer, int align);
/* mask NULL: a plain load; lanes that are off are zero. */
V cg_masked_load(Codegen *g, T type, V pointer, int align, V mask);
void cg_masked_store(Codegen *g, V value, V pointer, int align, V mask);
void cg_prefetch(Codegen *g, V pointer, bool for_write); /* into L1 */

/* ---- functions and control flow ---------------------------------------------------------------------------------- */

/* A new function with the target's attributes, positioned at its entry; `internal`: private to the module, not
 * inlined. Pointers are not marked noalias. There is no unwinding. */
V cg_function(Codegen *g, const char *name, T result, T *params, int n_params, bool internal);
void cg_param_attribute(Codegen *g, V function, int param, const char *name); /* "noalias", "readonly", ... */
void cg_string_attribute(Codegen *g, V function, const char *key, const char *value);
V cg_call(Codegen *g, V function, V *args, int n_args);
Block cg_block(Codegen *g, const char *name); /* appended to the function being built */
void cg_position(Codegen *g, Block block);
void cg_branch(Codegen *g, Block to);
void cg_branch_if(Codegen *g, V condition, Block yes, Block no);

/* for (iv = from; iv < to; iv += step), i64, tested at the bottom. cg_for_begin positions in the body; call
 * cg_for_carry for each carried value before anything else; cg_for_end gives their values after the loop in `results`
 * (may be NULL when nothing is carried). `at_least_once`: no test before the first iteration. */
enum { CG_MAX_CARRIED = 64 };
typedef struct CgFor {
    Block before, body, exit;
    V iv, to, step;
    bool at_least_once;
    int n;
    V phi[CG_MAX_CARRIED], initial[CG_MAX_CARRIED];
} CgFor;
void cg_for_begin(Codegen *g, CgFor *loop, V from, V to, V step, bool at_least_once);
V cg_for_carry(Codegen *g, CgFor *loop, V initial);
void cg_for_end(Codegen *g, CgFor *loop, const V *next, V *results);

/* if (condition) { ... } without values: begin positions inside, end after it. */
Block cg_if_begin(Codegen *g, V condition);
void cg_if_end(Codegen *g, Block join);

/* ---- math (vector_math.c): the same operations as ir/loop_math.h does in C, so the same bits --------------------- */

V cg_exp(Codegen *g, V x);
V cg_log(Codegen *g, V x);
V cg_tanh(Codegen *g, V x);
V cg_sin(Codegen *g, V x);
V cg_cos(Codegen *g, V x);
V cg_pow(Codegen *g, V x, V y);
V cg_f32_to_bf16(Codegen *g, V x); /* to i16 bits, nearest even */
V cg_bf16_to_f32(Codegen *g, V bits);
V cg_f32_to_f16(Codegen *g, V x);
V cg_f16_to_f32(Codegen *g, V bits);
V cg_f_to_i(Codegen *g, V x); /* toward zero, saturating; NaN is 0 */

/* ---- debug info (debug_info.c) ----------------------------------------------------------------------------------- */

void cg_debug_begin(Codegen *g);
void cg_debug_function(Codegen *g, V function, const char *name, Span span); /* file 0: without */
void cg_debug_at(Codegen *g, Span span); /* location of the instructions that follow; file 0: the function's line */
void cg_debug_leave(Codegen *g);         /* after the function is complete */
void cg_debug_finish(Codegen *g);        /* before the module is verified */

/* ---- modules (llvm_to_object.c, target.c) ------------------------------------------------------------------------ */

Codegen *cg_new_gpu(Session *s, const char *module_name, int sm);
void cg_verify(Codegen *g); /* BUG when the module is not valid */
bool cg_has_feature(const char *features, const char *name);
/* Two loops with the same key have the same code for the host, but for lines in debug info. */
const char *cg_loop_key(Arena *arena, const Loop *loop);
/* The GPU's form of a loop (nvptx.c), in a module for the GPU, or for the host with emulated threads (tests). */
void cg_gpu_kernel(Codegen *g, const Loop *loop);

#endif
