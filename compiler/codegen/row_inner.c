/* Row kernels of attention: running softmax, its gradient, scaled sums and dot products of rows of floats.
 *
 * In: the target's vector width W. Out: the five row functions of PrtInner. All run over n floats, W at a time (sums in
 * several accumulators that are joined by a tree), the rest under a mask; so a row's result depends on n alone. */
#include "codegen/product_inner.h"

enum { MAX_UNROLL = 4 };

/* One vector of a row at element `i` under `mask` (NULL: whole). Sums are updated in place: sums[0 .. n_sums). */
typedef void RowStep(Codegen *g, const V *args, V i, V mask, V *sum);

static void row_loop(Codegen *g, RowStep *step, const V *args, V from, V to, int unroll, bool masked, V *sums,
                     int n_sums) {
    CgFor loop;
    V carried[MAX_UNROLL];
    cg_for_begin(g, &loop, from, to, cg_i64(g, unroll * g->width), false);
    for (int i = 0; i < n_sums; i++) carried[i] = cg_for_carry(g, &loop, sums[i]);
    V mask = masked ? cg_mask_below(g, g->width, cg_sub(g, to, loop.iv)) : NULL;
    for (int u = 0; u < unroll; u++)
        step(g, args, cg_add(g, loop.iv, cg_i64(g, u * g->width)), mask, n_sums ? &carried[u % n_sums] : NULL);
    cg_for_end(g, &loop, carried, sums);
}

/* Whole groups of `unroll` vectors, then whole vectors, then the rest in one masked step. */
static void row_all(Codegen *g, RowStep *step, const V *args, V n, int unroll, V *sums, int n_sums) {
    V groups = LLVMBuildAnd(g->builder, n, cg_i64(g, -unroll * g->width), "");
    V whole = LLVMBuildAnd(g->builder, n, cg_i64(g, -g->width), "");
    row_loop(g, step, args, cg_i64(g, 0), groups, unroll, false, sums, n_sums);
    if (unroll > 1) row_loop(g, step, args, groups, whole, 1, false, sums, n_sums);
    row_loop(g, step, args, whole, n, 1, true, sums, n_sums);
}

static V row_vector(Codegen *g, V row, V i, V mask) {
    return cg_masked_load(g, cg_vector(g->f32, g->width), cg_at(g, g->f32, row, i), 4, mask);
}
static void row_store(Codegen *g, V value, V row, V i, V mask) {
    cg_masked_store(g, value, cg_at(g, g->f32, row, i), 4, mask);
}
static V only(Codegen *g, V mask, V value, double otherwise) {
    return mask ? cg_select(g, mask, value, cg_const_f(LLVMTypeOf(value), otherwise)) : value;
}

static void step_scale(Codegen *g, const V *args, V i, V mask, V *sum) {
    (void)sum;
    row_store(g, cg_fmul(g, row_vector(g, args[0], i, mask), args[1]), args[0], i, mask);
}
static void step_axpy(Codegen *g, const V *args, V i, V mask, V *sum) {
    (void)sum;
    row_store(g, inner_fma(g, args[2], row_vector(g, args[1], i, mask), row_vector(g, args[0], i, mask)), args[0], i,
              mask);
}
static void step_dot(Codegen *g, const V *args, V i, V mask, V *sum) {
    *sum = inner_fma(g, row_vector(g, args[0], i, mask), row_vector(g, args[1], i, mask), *sum);
}
/* args: s, scale */
static void step_max(Codegen *g, const V *args, V i, V mask, V *sum) {
    V x = cg_fmul(g, row_vector(g, args[0], i, mask), args[1]);
    *sum = cg_fmax(g, *sum, only(g, mask, x, -(double)__builtin_inff()));
}
/* args: s, scale, minus maximum */
static void step_exp(Codegen *g, const V *args, V i, V mask, V *sum) {
    V p = cg_exp(g, inner_fma(g, row_vector(g, args[0], i, mask), args[1], args[2]));
    row_store(g, p, args[0], i, mask);
    *sum = cg_fadd(g, *sum, only(g, mask, p, 0));
}
/* args: s, dp, p, scale, minus lse, delta */
static void step_grad(Codegen *g, const V *args, V i, V mask, V *sum) {
    (void)sum;
    V p = cg_exp(g, inner_fma(g, row_vector(g, args[0], i, mask), args[3], args[4]));
    V ds = cg_fmul(g, cg_fmul(g, p, cg_fsub(g, row_vector(g, args[1], i, mask), args[5])), args[3]);
    row_store(g, p, args[2], i, mask);
    row_store(g, ds, args[0], i, mask);
}

static V emit_scale(Codegen *g) {
    T params[] = {g->ptr, g->i64, g->f32};
    V f = cg_function(g, "plan_inner.scale_row", g->nothing, params, 3, true);
    V args[] = {LLVMGetParam(f, 0), cg_splat(g, LLVMGetParam(f, 2), g->width)};
    row_all(g, step_scale, args, LLVMGetParam(f, 1), MAX_UNROLL, NULL, 0);
    LLVMBuildRetVoid(g->builder);
    return f;
}

static V emit_axpy(Codegen *g) {
    T params[] = {g->ptr, g->ptr, g->i64, g->f32};
    V f = cg_function(g, "plan_inner.axpy_row", g->nothing, params, 4, true);
    cg_param_attribute(g, f, 0, "noalias");
    V args[] = {LLVMGetParam(f, 0), LLVMGetParam(f, 1), cg_splat(g, LLVMGetParam(f, 3), g->width)};
    row_all(g, step_axpy, args, LLVMGetParam(f, 2), MAX_UNROLL, NULL, 0);
    LLVMBuildRetVoid(g->builder);
    return f;
}

static V emit_dot(Codegen *g) {
    T params[] = {g->ptr, g->ptr, g->i64};
    V f = cg_function(g, "plan_inner.dot_row", g->f32, params, 3, true);
    V args[] = {LLVMGetParam(f, 0), LLVMGetParam(f, 1)}, sums[MAX_UNROLL];
    for (int i = 0; i < MAX_UNROLL; i++) sums[i] = cg_const_f(cg_vector(g->f32, g->width), 0);
    row_all(g, step_dot, args, LLVMGetParam(f, 2), MAX_UNROLL, sums, MAX_UNROLL);
    LLVMBuildRet(g->builder, cg_reduce_tree(g, CG_SUM, sums, MAX_UNROLL));
    return f;
}

/* Both exponents are taken against the new maximum; while every score is minus infinity, against 0, so that no NaN
 * appears that was not in the scores. */
static V emit_softmax(Codegen *g) {
    T params[] = {g->ptr, g->i64, g->f32, g->ptr, g->ptr};
    V f = cg_function(g, "plan_inner.softmax_row", g->f32, params, 5, true);
    V s = LLVMGetParam(f, 0), n = LLVMGetParam(f, 1), m = LLVMGetParam(f, 3), l = LLVMGetParam(f, 4);
    T vector = cg_vector(g->f32, g->width);
    double infinity = (double)__builtin_inff();
    V args[3] = {s, cg_splat(g, LLVMGetParam(f, 2), g->width)}, top[2], sum[2];
    for (int i = 0; i < 2; i++) top[i] = cg_const_f(vector, -infinity), sum[i] = cg_const_f(vector, 0);
    row_all(g, step_max, args, n, 2, top, 2);
    V before = cg_load(g, g->f32, m, 4);
    V now = cg_fmax(g, before, cg_reduce_tree(g, CG_MAX, top, 2));
    V empty = cg_fcmp(g, LLVMRealOEQ, now, cg_f32(g, -infinity));
    V base = cg_select(g, empty, cg_f32(g, 0), now);
    args[2] = cg_splat(g, cg_fsub(g, cg_f32(g, 0), base), g->width);
    row_all(g, step_exp, args, n, 2, sum, 2);
    V factor = cg_exp(g, cg_fsub(g, before, base));
    cg_store(g, inner_fma(g, cg_load(g, g->f32, l, 4), factor, cg_reduce_tree(g, CG_SUM, sum, 2)), l, 4);
    cg_store(g, now, m, 4);
    LLVMBuildRet(g->builder, factor);
    return f;
}

static V emit_softmax_grad(Codegen *g) {
    T params[] = {g->ptr, g->ptr, g->ptr, g->i64, g->f32, g->f32, g->f32};
    V f = cg_function(g, "plan_inner.softmax_grad_row", g->nothing, params, 7, true);
    V minus_lse = cg_fsub(g, cg_f32(g, 0), LLVMGetParam(f, 5));
    V args[] = {LLVMGetParam(f, 0),
                LLVMGetParam(f, 1),
                LLVMGetParam(f, 2),
                cg_splat(g, LLVMGetParam(f, 4), g->width),
                cg_splat(g, minus_lse, g->width),
                cg_splat(g, LLVMGetParam(f, 6), g->width)};
    for (int i = 0; i < 3; i++) cg_param_attribute(g, f, i, "noalias");
    row_all(g, step_grad, args, LLVMGetParam(f, 3), 1, NULL, 0);
    LLVMBuildRetVoid(g->builder);
    return f;
}

void emit_row_kernels(Codegen *g, V functions[INNER_ROWS]) {
    functions[0] = emit_softmax(g);
    functions[1] = emit_scale(g);
    functions[2] = emit_axpy(g);
    functions[3] = emit_softmax_grad(g);
    functions[4] = emit_dot(g);
}
