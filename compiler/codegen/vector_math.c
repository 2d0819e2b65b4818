/* The mathematical functions of loops as LLVM IR, for a scalar or a vector of any width.
 *
 * Operation by operation what ir/loop_math.h does in C, with its coefficients: the two files change together. Where C
 * branches, this selects; where C shifts bits, this shifts them in a vector of i32. */
#include "codegen/llvm_util.h"

#include "ir/loop_math.h"

static T ints(Codegen *g, V x) { return cg_like(g->i32, LLVMTypeOf(x)); }
static V number(V like, double value) { return cg_const_f(LLVMTypeOf(like), (double)(float)value); }
static V bits_of(Codegen *g, V x) { return cg_bitcast(g, x, ints(g, x)); }
static V float_of(Codegen *g, V bits) { return cg_bitcast(g, bits, cg_like(g->f32, LLVMTypeOf(bits))); }
static V whole(V like, int64_t value) { return cg_const_i(LLVMTypeOf(like), value); }
static V and_(Codegen *g, V x, int64_t mask) { return LLVMBuildAnd(g->builder, x, whole(x, mask), ""); }
static V or_(Codegen *g, V x, V y) { return LLVMBuildOr(g->builder, x, y, ""); }
static V shift_left(Codegen *g, V x, int by) { return LLVMBuildShl(g->builder, x, whole(x, by), ""); }
static V shift_right(Codegen *g, V x, int by) { return LLVMBuildLShr(g->builder, x, whole(x, by), ""); }
static V shift_signed(Codegen *g, V x, int by) { return LLVMBuildAShr(g->builder, x, whole(x, by), ""); }
static V is_nan(Codegen *g, V x) { return cg_fcmp(g, LLVMRealUNO, x, x); }

static V horner(Codegen *g, V x, const double *coefficients, int n) {
    V p = number(x, coefficients[0]);
    for (int i = 1; i < n; i++) p = cg_fma(g, p, x, number(x, coefficients[i]));
    return p;
}

static V power_of_two(Codegen *g, V n) { return float_of(g, shift_left(g, cg_add(g, n, whole(n, 127)), 23)); }

static V exp_reduced(Codegen *g, V r) {
    V p = horner(g, r, math_exp_poly, MATH_COUNT(math_exp_poly));
    return cg_fadd(g, cg_fma(g, p, cg_fmul(g, r, r), r), number(r, 1));
}

static V scale(Codegen *g, V p, V n) {
    V half = shift_signed(g, n, 1);
    return cg_fmul(g, cg_fmul(g, p, power_of_two(g, half)), power_of_two(g, cg_sub(g, n, half)));
}

/* The nearest integer of x * factor: as a float, and (in *shifted) in the low bits of a float. */
static V nearest(Codegen *g, V x, double factor, V *shifted) {
    *shifted = cg_fma(g, x, number(x, factor), number(x, MATH_ROUND));
    return cg_fsub(g, *shifted, number(x, MATH_ROUND));
}

static V integer_of(Codegen *g, V shifted) {
    V bits = bits_of(g, shifted);
    return cg_sub(g, bits, whole(bits, MATH_ROUND_BITS));
}

/* e^t without the scaling: *n is the power of two. */
static V exp_parts(Codegen *g, V t, V *n) {
    V shifted, rounded = nearest(g, t, MATH_LOG2E, &shifted);
    V r = cg_fma(g, rounded, number(t, -MATH_LN2_HIGH), t);
    r = cg_fma(g, rounded, number(t, -(double)(float)MATH_LN2_LOW), r);
    *n = integer_of(g, shifted);
    return exp_reduced(g, r);
}

V cg_exp(Codegen *g, V x) {
    V high = number(x, MATH_EXP_HIGH), low = number(x, MATH_EXP_LOW), n;
    V t = cg_select(g, cg_fcmp(g, LLVMRealOLT, x, high), x, high);
    t = cg_select(g, cg_fcmp(g, LLVMRealOGT, t, low), t, low);
    V p = exp_parts(g, t, &n);
    return cg_select(g, is_nan(g, x), x, scale(g, p, n));
}

static V split(Codegen *g, V x, V *e) {
    V tiny = cg_fcmp(g, LLVMRealOLT, x, number(x, MATH_SMALLEST_NORMAL));
    V bits = bits_of(g, cg_select(g, tiny, cg_fmul(g, x, number(x, MATH_TWO_23)), x));
    V exponent = shift_signed(g, cg_sub(g, bits, whole(bits, MATH_SQRT_HALF_BITS)), 23);
    *e = cg_sub(g, exponent, cg_select(g, tiny, whole(bits, 23), whole(bits, 0)));
    return float_of(g, cg_sub(g, bits, shift_left(g, exponent, 23)));
}

/* The logarithm `y` of a positive finite x, completed for the rest; y may be double. */
static V log_complete(Codegen *g, V x, V y) {
    T type = LLVMTypeOf(y);
    double infinity = (double)INFINITY;
    V zero = number(x, 0);
    y = cg_select(g, cg_fcmp(g, LLVMRealOEQ, x, number(x, infinity)), cg_const_f(type, infinity), y);
    V rest = cg_select(g, cg_fcmp(g, LLVMRealOEQ, x, zero), cg_const_f(type, -infinity), cg_const_f(type, (double)NAN));
    return cg_select(g, cg_fcmp(g, LLVMRealOGT, x, zero), y, rest);
}

V cg_log(Codegen *g, V x) {
    V e, f = cg_fsub(g, split(g, x, &e), number(x, 1));
    V n = LLVMBuildSIToFP(g->builder, e, LLVMTypeOf(x), ""), z = cg_fmul(g, f, f);
    V p = cg_fmul(g, horner(g, f, math_log_poly, MATH_COUNT(math_log_poly)), cg_fmul(g, f, z));
    p = cg_fma(g, n, number(x, MATH_LN2_LOW), p);
    p = cg_fma(g, z, number(x, -0.5), p);
    return log_complete(g, x, cg_fma(g, n, number(x, MATH_LN2_HIGH), cg_fadd(g, f, p)));
}

V cg_tanh(Codegen *g, V x) {
    V a = cg_unary_intrinsic(g, "llvm.fabs", x), z = cg_fmul(g, x, x), n;
    V small = cg_fmul(g, horner(g, z, math_tanh_poly, MATH_COUNT(math_tanh_poly)), z);
    small = cg_fma(g, small, x, x);
    V limit = number(x, MATH_TANH_LARGE);
    V t = cg_select(g, cg_fcmp(g, LLVMRealOLT, a, limit), a, limit);
    V p = exp_parts(g, cg_fadd(g, t, t), &n);
    V e = cg_fmul(g, p, power_of_two(g, n));
    V large = cg_fsub(g, number(x, 1), cg_fdiv(g, number(x, 2), cg_fadd(g, e, number(x, 1))));
    large = float_of(g, or_(g, bits_of(g, large), and_(g, bits_of(g, x), INT32_MIN)));
    return cg_select(g, cg_fcmp(g, LLVMRealOGE, a, number(x, MATH_TANH_SMALL)), large, small);
}

static V trig(Codegen *g, V x, int quarter) {
    V shifted, n = nearest(g, x, MATH_TWO_OVER_PI, &shifted);
    V bits = bits_of(g, shifted), quadrant = cg_add(g, bits, whole(bits, quarter));
    V r = cg_fma(g, n, number(x, -MATH_PIO2_1), x);
    r = cg_fma(g, n, number(x, -(double)(float)MATH_PIO2_2), r);
    r = cg_fma(g, n, number(x, -(double)(float)MATH_PIO2_3), r);
    V z = cg_fmul(g, r, r);
    V s = cg_fmul(g, horner(g, z, math_sin_poly, MATH_COUNT(math_sin_poly)), z);
    s = cg_fma(g, s, r, r);
    V rest = cg_fma(g, z, number(x, -0.5), number(x, 1));
    V c = cg_fma(g, horner(g, z, math_cos_poly, MATH_COUNT(math_cos_poly)), cg_fmul(g, z, z), rest);
    V odd = cg_icmp(g, LLVMIntNE, and_(g, quadrant, 1), whole(bits, 0));
    V sign = shift_left(g, and_(g, quadrant, 2), 30);
    V y = float_of(g, LLVMBuildXor(g->builder, bits_of(g, cg_select(g, odd, c, s)), sign, ""));
    V inside = cg_fcmp(g, LLVMRealOLE, cg_unary_intrinsic(g, "llvm.fabs", x), number(x, MATH_TRIG_LIMIT));
    return cg_select(g, inside, y, number(x, (double)NAN));
}

V cg_sin(Codegen *g, V x) { return trig(g, x, 0); }
V cg_cos(Codegen *g, V x) { return trig(g, x, 1); }

/* log x in double */
static V log_wide(Codegen *g, V x) {
    T wide = cg_like(g->f64, LLVMTypeOf(x));
    V e, m = LLVMBuildFPExt(g->builder, split(g, x, &e), wide, ""), one = cg_const_f(wide, 1);
    V s = cg_fdiv(g, cg_fsub(g, m, one), cg_fadd(g, m, one)), s2 = cg_fmul(g, s, s);
    V p = cg_const_f(wide, math_atanh_poly[0]);
    for (int i = 1; i < MATH_COUNT(math_atanh_poly); i++)
        p = cg_fadd(g, cg_fmul(g, p, s2), cg_const_f(wide, math_atanh_poly[i]));
    V n = LLVMBuildSIToFP(g->builder, e, wide, "");
    V y = cg_fadd(g, cg_fmul(g, n, cg_const_f(wide, MATH_LN2)), cg_fmul(g, cg_fadd(g, s, s), p));
    return log_complete(g, x, y);
}

V cg_pow(Codegen *g, V x, V y) {
    T type = LLVMTypeOf(x), wide = cg_like(g->f64, type);
    LLVMBuilderRef b = g->builder;
    V power = cg_fmul(g, LLVMBuildFPExt(b, y, wide, ""), log_wide(g, x));
    V high = cg_const_f(wide, MATH_EXP_HIGH), low = cg_const_f(wide, MATH_EXP_LOW);
    V t = cg_select(g, cg_fcmp(g, LLVMRealOLT, power, high), power, high);
    t = cg_select(g, cg_fcmp(g, LLVMRealOGT, t, low), t, low);
    V shifted, n = nearest(g, LLVMBuildFPTrunc(b, t, type, ""), MATH_LOG2E, &shifted);
    V whole_part = cg_fmul(g, LLVMBuildFPExt(b, n, wide, ""), cg_const_f(wide, MATH_LN2));
    V r = LLVMBuildFPTrunc(b, cg_fsub(g, t, whole_part), type, "");
    V z = scale(g, exp_reduced(g, r), integer_of(g, shifted));
    z = cg_select(g, is_nan(g, power), number(x, (double)NAN), z);
    return cg_select(g, cg_fcmp(g, LLVMRealOEQ, y, number(y, 0)), number(x, 1), z);
}

/* ---- narrow floats ----------------------------------------------------------------------------------------------- */

static V narrow(Codegen *g, V bits) { return LLVMBuildTrunc(g->builder, bits, cg_like(g->i16, LLVMTypeOf(bits)), ""); }
static V widen(Codegen *g, V bits) { return LLVMBuildZExt(g->builder, bits, cg_like(g->i32, LLVMTypeOf(bits)), ""); }

/* In integers: the machine's conversion instruction flushes subnormals. */
V cg_f32_to_bf16(Codegen *g, V x) {
    V bits = bits_of(g, x), upper = shift_right(g, bits, 16);
    V rounded = cg_add(g, cg_add(g, bits, whole(bits, 0x7FFF)), and_(g, upper, 1));
    return narrow(g, cg_select(g, is_nan(g, x), or_(g, upper, whole(bits, 0x40)), shift_right(g, rounded, 16)));
}

V cg_bf16_to_f32(Codegen *g, V half) { return float_of(g, shift_left(g, widen(g, half), 16)); }

V cg_f32_to_f16(Codegen *g, V x) {
    T half = cg_like(LLVMHalfTypeInContext(g->context), LLVMTypeOf(x));
    V raw = bits_of(g, x), sign = and_(g, shift_right(g, raw, 16), 0x8000), bits = and_(g, raw, 0x7FFFFFFF);
    V nan = or_(g, sign, whole(bits, 0x7E00));
    if (g->has_f16) {
        V converted = cg_bitcast(g, LLVMBuildFPTrunc(g->builder, x, half, ""), cg_like(g->i16, LLVMTypeOf(x)));
        return cg_select(g, is_nan(g, x), narrow(g, nan), converted);
    }
    V tiny = cg_fadd(g, float_of(g, bits), number(x, 0.5));
    tiny = or_(g, sign, cg_sub(g, bits_of(g, tiny), whole(bits, 0x3F000000)));
    V normal = cg_add(g, cg_sub(g, bits, whole(bits, 0x38000000 - 0xFFF)), and_(g, shift_right(g, bits, 13), 1));
    normal = or_(g, sign, shift_right(g, normal, 13));
    V y = cg_select(g, cg_icmp(g, LLVMIntULT, bits, whole(bits, 0x38800000)), tiny, normal);
    V infinite = or_(g, sign, whole(bits, 0x7C00));
    y = cg_select(g, cg_icmp(g, LLVMIntUGE, bits, whole(bits, 0x47800000)), infinite, y);
    return narrow(g, cg_select(g, is_nan(g, x), nan, y));
}

V cg_f16_to_f32(Codegen *g, V half) {
    T type = cg_like(g->f32, LLVMTypeOf(half));
    if (g->has_f16) {
        T native = cg_like(LLVMHalfTypeInContext(g->context), type);
        return LLVMBuildFPExt(g->builder, cg_bitcast(g, half, native), type, "");
    }
    V raw = widen(g, half), sign = shift_left(g, and_(g, raw, 0x8000), 16);
    V magnitude = float_of(g, shift_left(g, and_(g, raw, 0x7FFF), 13));
    V bits = bits_of(g, cg_fmul(g, magnitude, float_of(g, whole(raw, 0x77800000))));
    V special = cg_icmp(g, LLVMIntUGE, bits, whole(bits, 0x47800000));
    bits = cg_select(g, special, or_(g, bits, whole(bits, 0x7F800000)), bits);
    return float_of(g, or_(g, bits, sign));
}

V cg_f_to_i(Codegen *g, V x) {
    T overloads[2] = {ints(g, x), LLVMTypeOf(x)};
    return cg_intrinsic(g, "llvm.fptosi.sat", overloads, 2, &x, 1);
}
