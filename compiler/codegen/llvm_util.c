/* Short forms of the LLVM C API (llvm_util.h): constants, arithmetic, masked memory, counted loops, functions.
 *
 * Nothing here sets a fast-math flag and nothing is contracted: what is written is what is computed, so the bits are
 * those of the interpreter. */
#include "codegen/llvm_util.h"

/* ---- types and constants ----------------------------------------------------------------------------------------- */

T cg_vector(T element, int lanes) { return lanes == 1 ? element : LLVMVectorType(element, (unsigned)lanes); }

int cg_lanes(T type) { return LLVMGetTypeKind(type) == LLVMVectorTypeKind ? (int)LLVMGetVectorSize(type) : 1; }

T cg_element(T type) { return LLVMGetTypeKind(type) == LLVMVectorTypeKind ? LLVMGetElementType(type) : type; }

T cg_like(T element, T like) { return cg_vector(element, cg_lanes(like)); }

V cg_i64(Codegen *g, int64_t value) { return LLVMConstInt(g->i64, (unsigned long long)value, true); }
V cg_i32(Codegen *g, int64_t value) { return LLVMConstInt(g->i32, (unsigned long long)value, true); }
V cg_f32(Codegen *g, double value) { return LLVMConstReal(g->f32, value); }

static V const_splat(T like, V scalar) {
    int lanes = cg_lanes(like);
    if (lanes == 1) return scalar;
    V parts[64];
    CHECK(lanes <= 64);
    for (int i = 0; i < lanes; i++) parts[i] = scalar;
    return LLVMConstVector(parts, (unsigned)lanes);
}

V cg_const_f(T like, double value) { return const_splat(like, LLVMConstReal(cg_element(like), value)); }

V cg_const_i(T like, int64_t value) {
    return const_splat(like, LLVMConstInt(cg_element(like), (unsigned long long)value, true));
}

V cg_splat(Codegen *g, V scalar, int lanes) {
    if (lanes == 1) return scalar;
    if (LLVMIsConstant(scalar)) return const_splat(cg_vector(LLVMTypeOf(scalar), lanes), scalar);
    T type = cg_vector(LLVMTypeOf(scalar), lanes);
    V one = LLVMBuildInsertElement(g->builder, LLVMGetPoison(type), scalar, cg_i32(g, 0), "");
    return LLVMBuildShuffleVector(g->builder, one, LLVMGetPoison(type), LLVMConstNull(cg_vector(g->i32, lanes)), "");
}

V cg_iota(Codegen *g, int lanes) {
    V parts[64];
    for (int i = 0; i < lanes; i++) parts[i] = cg_i32(g, i);
    return lanes == 1 ? parts[0] : LLVMConstVector(parts, (unsigned)lanes);
}

V cg_mask_const(Codegen *g, int lanes, int n) {
    V parts[64];
    for (int i = 0; i < lanes; i++) parts[i] = LLVMConstInt(g->i1, i < n, false);
    return lanes == 1 ? parts[0] : LLVMConstVector(parts, (unsigned)lanes);
}

V cg_mask_below(Codegen *g, int lanes, V n) {
    V narrow = LLVMBuildTrunc(g->builder, n, g->i32, "");
    return cg_icmp(g, LLVMIntSLT, cg_iota(g, lanes), cg_splat(g, narrow, lanes));
}

V cg_shuffle(Codegen *g, V x, V y, const int *lanes, int n) {
    V parts[64];
    for (int i = 0; i < n; i++) parts[i] = cg_i32(g, lanes[i]);
    return LLVMBuildShuffleVector(g->builder, x, y, LLVMConstVector(parts, (unsigned)n), "");
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

V cg_add(Codegen *g, V x, V y) { return LLVMBuildAdd(g->builder, x, y, ""); }
V cg_sub(Codegen *g, V x, V y) { return LLVMBuildSub(g->builder, x, y, ""); }
V cg_mul(Codegen *g, V x, V y) { return LLVMBuildMul(g->builder, x, y, ""); }
V cg_imin(Codegen *g, V x, V y) { return cg_select(g, cg_icmp(g, LLVMIntSLT, x, y), x, y); }
V cg_fadd(Codegen *g, V x, V y) { return LLVMBuildFAdd(g->builder, x, y, ""); }
V cg_fsub(Codegen *g, V x, V y) { return LLVMBuildFSub(g->builder, x, y, ""); }
V cg_fmul(Codegen *g, V x, V y) { return LLVMBuildFMul(g->builder, x, y, ""); }
V cg_fdiv(Codegen *g, V x, V y) { return LLVMBuildFDiv(g->builder, x, y, ""); }
V cg_select(Codegen *g, V condition, V x, V y) { return LLVMBuildSelect(g->builder, condition, x, y, ""); }

V cg_icmp(Codegen *g, LLVMIntPredicate predicate, V x, V y) { return LLVMBuildICmp(g->builder, predicate, x, y, ""); }

V cg_fcmp(Codegen *g, LLVMRealPredicate predicate, V x, V y) { return LLVMBuildFCmp(g->builder, predicate, x, y, ""); }

V cg_bitcast(Codegen *g, V x, T type) { return LLVMBuildBitCast(g->builder, x, type, ""); }

V cg_intrinsic(Codegen *g, const char *name, T *overloads, int n_overloads, V *args, int n_args) {
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    if (id == 0) BUG("no intrinsic %s", name);
    V function = LLVMGetIntrinsicDeclaration(g->module, id, overloads, (size_t)n_overloads);
    T type = LLVMIntrinsicGetType(g->context, id, overloads, (size_t)n_overloads);
    return LLVMBuildCall2(g->builder, type, function, args, (unsigned)n_args, "");
}

V cg_unary_intrinsic(Codegen *g, const char *name, V x) {
    T type = LLVMTypeOf(x);
    return cg_intrinsic(g, name, &type, 1, &x, 1);
}

/* A fused multiply-add for targets without the instruction: the product is exact in double, the sum is rounded to odd
 * (so that rounding it once more to float gives the correctly rounded result; Boldo and Melquiond, 2008). */
static V fma_in_double(Codegen *g, V x, V y, V z) {
    T single = LLVMTypeOf(x), wide = cg_like(g->f64, single), bits = cg_like(g->i64, single);
    LLVMBuilderRef b = g->builder;
    V product = cg_fmul(g, LLVMBuildFPExt(b, x, wide, ""), LLVMBuildFPExt(b, y, wide, ""));
    V addend = LLVMBuildFPExt(b, z, wide, "");
    V sum = cg_fadd(g, product, addend);
    V back = cg_fsub(g, sum, product);
    V error = cg_fadd(g, cg_fsub(g, product, cg_fsub(g, sum, back)), cg_fsub(g, addend, back));
    V sum_bits = cg_bitcast(g, sum, bits), zero = LLVMConstNull(wide);
    V even = cg_icmp(g, LLVMIntEQ, LLVMBuildAnd(b, sum_bits, cg_const_i(bits, 1), ""), LLVMConstNull(bits));
    V inexact = cg_fcmp(g, LLVMRealONE, error, zero);
    V outward = cg_icmp(g, LLVMIntEQ, cg_fcmp(g, LLVMRealOGT, error, zero), cg_fcmp(g, LLVMRealOGT, sum, zero));
    V step = cg_select(g, outward, cg_const_i(bits, 1), cg_const_i(bits, -1));
    V odd = cg_add(g, sum_bits, cg_select(g, LLVMBuildAnd(b, inexact, even, ""), step, LLVMConstNull(bits)));
    return LLVMBuildFPTrunc(b, cg_bitcast(g, odd, wide), single, "");
}

V cg_fma(Codegen *g, V x, V y, V z) {
    if (!g->has_fma) return fma_in_double(g, x, y, z);
    T type = LLVMTypeOf(x);
    V args[3] = {x, y, z};
    return cg_intrinsic(g, "llvm.fma", &type, 1, args, 3);
}

/* The first select is one min or max instruction (which returns y when either is NaN); the second keeps a NaN in x. */
V cg_fmin(Codegen *g, V x, V y) {
    V least = cg_select(g, cg_fcmp(g, LLVMRealOLT, x, y), x, y);
    return cg_select(g, cg_fcmp(g, LLVMRealUNO, x, x), x, least);
}

V cg_fmax(Codegen *g, V x, V y) {
    V most = cg_select(g, cg_fcmp(g, LLVMRealOGT, x, y), x, y);
    return cg_select(g, cg_fcmp(g, LLVMRealUNO, x, x), x, most);
}

V cg_combine(Codegen *g, CgReduce kind, V x, V y) {
    return kind == CG_SUM ? cg_fadd(g, x, y) : kind == CG_MAX ? cg_fmax(g, x, y) : cg_fmin(g, x, y);
}

V cg_identity(CgReduce kind, T like) {
    double infinity = (double)__builtin_inff();
    return cg_const_f(like, kind == CG_SUM ? 0 : kind == CG_MAX ? -infinity : infinity);
}

V cg_reduce_tree(Codegen *g, CgReduce kind, V *vectors, int n) {
    for (; n > 1; n /= 2)
        for (int i = 0; i < n / 2; i++) vectors[i] = cg_combine(g, kind, vectors[i], vectors[i + n / 2]);
    V x = vectors[0];
    for (int lanes = cg_lanes(LLVMTypeOf(x)); lanes > 2; lanes /= 2) {
        int low[32], high[32];
        for (int i = 0; i < lanes / 2; i++) low[i] = i, high[i] = i + lanes / 2;
        V none = LLVMGetPoison(LLVMTypeOf(x));
        x = cg_combine(g, kind, cg_shuffle(g, x, none, low, lanes / 2), cg_shuffle(g, x, none, high, lanes / 2));
    }
    if (cg_lanes(LLVMTypeOf(x)) == 1) return x;
    return cg_combine(g, kind, LLVMBuildExtractElement(g->builder, x, cg_i32(g, 0), ""),
                      LLVMBuildExtractElement(g->builder, x, cg_i32(g, 1), ""));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

V cg_at(Codegen *g, T element, V pointer, V index) {
    return LLVMBuildInBoundsGEP2(g->builder, element, pointer, &index, 1, "");
}

V cg_load(Codegen *g, T type, V pointer, int align) {
    V x = LLVMBuildLoad2(g->builder, type, pointer, "");
    LLVMSetAlignment(x, (unsigned)align);
    return x;
}

void cg_store(Codegen *g, V value, V pointer, int align) {
    LLVMSetAlignment(LLVMBuildStore(g->builder, value, pointer), (unsigned)align);
}

V cg_masked_load(Codegen *g, T type, V pointer, int align, V mask) {
    if (mask == NULL) return cg_load(g, type, pointer, align);
    T overloads[2] = {type, LLVMTypeOf(pointer)};
    V args[4] = {pointer, cg_i32(g, align), mask, LLVMConstNull(type)};
    return cg_intrinsic(g, "llvm.masked.load", overloads, 2, args, 4);
}

void cg_masked_store(Codegen *g, V value, V pointer, int align, V mask) {
    if (mask == NULL) {
        cg_store(g, value, pointer, align);
        return;
    }
    T overloads[2] = {LLVMTypeOf(value), LLVMTypeOf(pointer)};
    V args[4] = {value, pointer, cg_i32(g, align), mask};
    cg_intrinsic(g, "llvm.masked.store", overloads, 2, args, 4);
}

void cg_prefetch(Codegen *g, V pointer, bool for_write) {
    T type = LLVMTypeOf(pointer);
    V args[4] = {pointer, cg_i32(g, for_write), cg_i32(g, 3), cg_i32(g, 1)};
    cg_intrinsic(g, "llvm.prefetch", &type, 1, args, 4);
}

/* ---- functions and control flow ---------------------------------------------------------------------------------- */

static void enum_attribute(Codegen *g, V function, LLVMAttributeIndex index, const char *name) {
    unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
    if (kind == 0) BUG("no attribute %s", name);
    LLVMAddAttributeAtIndex(function, index, LLVMCreateEnumAttribute(g->context, kind, 0));
}

void cg_param_attribute(Codegen *g, V function, int param, const char *name) {
    enum_attribute(g, function, (LLVMAttributeIndex)(param + 1), name);
}

void cg_string_attribute(Codegen *g, V function, const char *key, const char *value) {
    LLVMAttributeRef attribute =
        LLVMCreateStringAttribute(g->context, key, (unsigned)strlen(key), value, (unsigned)strlen(value));
    LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, attribute);
}

V cg_function(Codegen *g, const char *name, T result, T *params, int n_params, bool internal) {
    V function = LLVMAddFunction(g->module, name, LLVMFunctionType(result, params, (unsigned)n_params, false));
    LLVMAttributeIndex whole = (LLVMAttributeIndex)LLVMAttributeFunctionIndex;
    if (internal) {
        LLVMSetLinkage(function, LLVMInternalLinkage);
        enum_attribute(g, function, whole, "noinline");
    }
    enum_attribute(g, function, whole, "nounwind");
    if (!g->is_gpu) {
        /* Without both, the code generator prefers 256 bits on many CPUs with 512 and splits every vector. */
        char bits[16];
        snprintf(bits, sizeof bits, "%d", 32 * g->width);
        cg_string_attribute(g, function, "prefer-vector-width", bits);
        cg_string_attribute(g, function, "min-legal-vector-width", bits);
    }
    g->function = function;
    LLVMSetCurrentDebugLocation2(g->builder, NULL);
    cg_position(g, cg_block(g, "entry"));
    return function;
}

V cg_call(Codegen *g, V function, V *args, int n_args) {
    return LLVMBuildCall2(g->builder, LLVMGlobalGetValueType(function), function, args, (unsigned)n_args, "");
}

Block cg_block(Codegen *g, const char *name) { return LLVMAppendBasicBlockInContext(g->context, g->function, name); }

void cg_position(Codegen *g, Block block) { LLVMPositionBuilderAtEnd(g->builder, block); }

void cg_branch(Codegen *g, Block to) { LLVMBuildBr(g->builder, to); }

void cg_branch_if(Codegen *g, V condition, Block yes, Block no) { LLVMBuildCondBr(g->builder, condition, yes, no); }

void cg_for_begin(Codegen *g, CgFor *loop, V from, V to, V step, bool at_least_once) {
    loop->before = LLVMGetInsertBlock(g->builder);
    loop->body = cg_block(g, "loop");
    loop->exit = cg_block(g, "done");
    loop->to = to;
    loop->step = step;
    loop->at_least_once = at_least_once;
    loop->n = 0;
    if (at_least_once)
        cg_branch(g, loop->body);
    else
        cg_branch_if(g, cg_icmp(g, LLVMIntSLT, from, to), loop->body, loop->exit);
    cg_position(g, loop->body);
    loop->iv = LLVMBuildPhi(g->builder, LLVMTypeOf(from), "i");
    LLVMAddIncoming(loop->iv, &from, &loop->before, 1);
}

V cg_for_carry(Codegen *g, CgFor *loop, V initial) {
    CHECK(loop->n < CG_MAX_CARRIED);
    V phi = LLVMBuildPhi(g->builder, LLVMTypeOf(initial), "");
    LLVMAddIncoming(phi, &initial, &loop->before, 1);
    loop->phi[loop->n] = phi;
    loop->initial[loop->n++] = initial;
    return phi;
}

void cg_for_end(Codegen *g, CgFor *loop, const V *next, V *results) {
    Block latch = LLVMGetInsertBlock(g->builder);
    V iv = LLVMBuildNSWAdd(g->builder, loop->iv, loop->step, "");
    LLVMAddIncoming(loop->iv, &iv, &latch, 1);
    for (int i = 0; i < loop->n; i++) {
        V value = next[i];
        LLVMAddIncoming(loop->phi[i], &value, &latch, 1);
    }
    cg_branch_if(g, cg_icmp(g, LLVMIntSLT, iv, loop->to), loop->body, loop->exit);
    LLVMMoveBasicBlockAfter(loop->exit, latch);
    cg_position(g, loop->exit);
    if (results == NULL) return;
    for (int i = 0; i < loop->n; i++) {
        if (loop->at_least_once) {
            results[i] = next[i];
            continue;
        }
        V phi = LLVMBuildPhi(g->builder, LLVMTypeOf(loop->phi[i]), ""), values[2] = {loop->initial[i], next[i]};
        Block from[2] = {loop->before, latch};
        LLVMAddIncoming(phi, values, from, 2);
        results[i] = phi;
    }
}

Block cg_if_begin(Codegen *g, V condition) {
    Block inside = cg_block(g, "then"), join = cg_block(g, "join");
    cg_branch_if(g, condition, inside, join);
    cg_position(g, inside);
    return join;
}

void cg_if_end(Codegen *g, Block join) {
    Block from = LLVMGetInsertBlock(g->builder);
    cg_branch(g, join);
    LLVMMoveBasicBlockAfter(join, from);
    cg_position(g, join);
}
