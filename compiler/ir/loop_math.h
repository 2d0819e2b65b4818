/* The mathematical functions of loops in C, and their coefficients.
 *
 * codegen/vector_math.c emits exactly these operations, in this order, with these coefficients; so the interpreter and
 * generated code give the same bits on every vector width and target. Every change is made in both places; a test
 * compares them bit for bit, and both with libm in double. Polynomials are those of Cephes (S. Moshier). Errors are
 * within 2 units in the last place for exp, log, pow and tanh, and 2e-7 absolute for sin and cos. */
#ifndef PLAN_LOOP_MATH_H
#define PLAN_LOOP_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* No contraction of a * b + c: fmaf stands where it is meant. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

/* Added to a float below 2^22 in magnitude, 1.5 * 2^23 leaves its nearest integer in the low bits. */
#define MATH_ROUND 12582912.0
#define MATH_ROUND_BITS 0x4B400000
#define MATH_LOG2E 1.44269504088896341
#define MATH_LN2_HIGH 0.693359375 /* 9 bits: n times it is exact */
#define MATH_LN2_LOW (-2.12194440e-4)
#define MATH_LN2 0.693147180559945309
#define MATH_EXP_LOW (-104.0) /* e^-104 rounds to zero */
#define MATH_EXP_HIGH 89.0    /* e^89 is beyond the largest float */
#define MATH_SQRT_HALF_BITS 0x3F3504F3
#define MATH_SMALLEST_NORMAL 1.17549435082228751e-38
#define MATH_TWO_23 8388608.0
#define MATH_TANH_SMALL 0.625
#define MATH_TANH_LARGE 10.0 /* tanh rounds to 1 well below */
#define MATH_TWO_OVER_PI 0.636619772367581343
/* pi / 2 in three floats */
#define MATH_PIO2_1 1.57079637050628662
#define MATH_PIO2_2 (-4.37113900018624283e-8)
#define MATH_PIO2_3 (-1.71512451e-15)
#define MATH_TRIG_LIMIT 4194304.0 /* 2^22 */

static const double math_exp_poly[] = {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                                       4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1};
static const double math_log_poly[] = {7.0376836292e-2,  -1.1514610310e-1, 1.1676998740e-1,
                                       -1.2420140846e-1, 1.4249322787e-1,  -1.6668057665e-1,
                                       2.0000714765e-1,  -2.4999993993e-1, 3.3333331174e-1};
static const double math_tanh_poly[] = {-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
                                        -3.33332819422e-1};
static const double math_sin_poly[] = {-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1};
static const double math_cos_poly[] = {2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2};
/* log((1 + s) / (1 - s)) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...), in double, for pow */
static const double math_atanh_poly[] = {1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0};
#define MATH_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static inline uint32_t math_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float math_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float math_horner(float x, const double *coefficients, int n) {
    float p = (float)coefficients[0];
    for (int i = 1; i < n; i++) p = fmaf(p, x, (float)coefficients[i]);
    return p;
}

static inline float math_power_of_two(int32_t n) { return math_float((uint32_t)(n + 127) << 23); }

/* e^r for |r| <= ln 2 / 2 */
static inline float math_exp_reduced(float r) {
    float p = math_horner(r, math_exp_poly, MATH_COUNT(math_exp_poly));
    return fmaf(p, r * r, r) + 1.0f;
}

/* p * 2^n in two steps, so that results below the normal range are rounded once */
static inline float math_scale(float p, int32_t n) {
    int32_t half = n >> 1;
    return p * math_power_of_two(half) * math_power_of_two(n - half);
}

static inline float loop_expf(float x) {
    float t = x < (float)MATH_EXP_HIGH ? x : (float)MATH_EXP_HIGH;
    t = t > (float)MATH_EXP_LOW ? t : (float)MATH_EXP_LOW;
    float shifted = fmaf(t, (float)MATH_LOG2E, (float)MATH_ROUND);
    float n = shifted - (float)MATH_ROUND;
    float r = fmaf(n, -(float)MATH_LN2_HIGH, t);
    r = fmaf(n, -(float)MATH_LN2_LOW, r);
    float y = math_scale(math_exp_reduced(r), (int32_t)(math_bits(shifted) - MATH_ROUND_BITS));
    return x != x ? x : y;
}

/* x = m * 2^e with m in [sqrt(1/2), sqrt(2)), for x > 0 */
static inline float math_split(float x, int32_t *e) {
    int tiny = x < (float)MATH_SMALLEST_NORMAL;
    uint32_t bits = math_bits(tiny ? x * (float)MATH_TWO_23 : x);
    int32_t exponent = (int32_t)(bits - MATH_SQRT_HALF_BITS) >> 23;
    *e = exponent - (tiny ? 23 : 0);
    return math_float(bits - ((uint32_t)exponent << 23));
}

static inline float loop_logf(float x) {
    int32_t e;
    float f = math_split(x, &e) - 1.0f, n = (float)e, z = f * f;
    float p = math_horner(f, math_log_poly, MATH_COUNT(math_log_poly)) * (f * z);
    p = fmaf(n, (float)MATH_LN2_LOW, p);
    p = fmaf(z, -0.5f, p);
    float y = fmaf(n, (float)MATH_LN2_HIGH, f + p);
    y = x == INFINITY ? x : y;
    return x > 0 ? y : x == 0 ? -INFINITY : NAN;
}

static inline float loop_tanhf(float x) {
    float a = fabsf(x), z = x * x;
    float small = fmaf(math_horner(z, math_tanh_poly, MATH_COUNT(math_tanh_poly)) * z, x, x);
    float t = a < (float)MATH_TANH_LARGE ? a : (float)MATH_TANH_LARGE;
    t = t + t;
    float shifted = fmaf(t, (float)MATH_LOG2E, (float)MATH_ROUND);
    float n = shifted - (float)MATH_ROUND;
    float r = fmaf(n, -(float)MATH_LN2_HIGH, t);
    r = fmaf(n, -(float)MATH_LN2_LOW, r);
    float e = math_exp_reduced(r) * math_power_of_two((int32_t)(math_bits(shifted) - MATH_ROUND_BITS));
    float large = 1.0f - 2.0f / (e + 1.0f);
    large = math_float(math_bits(large) | (math_bits(x) & 0x80000000u));
    return a >= (float)MATH_TANH_SMALL ? large : small; /* NaN takes the polynomial, which keeps it */
}

/* sin(x + quarter * pi / 2) */
static inline float math_trig(float x, uint32_t quarter) {
    float shifted = fmaf(x, (float)MATH_TWO_OVER_PI, (float)MATH_ROUND);
    float n = shifted - (float)MATH_ROUND;
    uint32_t quadrant = math_bits(shifted) + quarter; /* the low two bits of MATH_ROUND_BITS are zero */
    float r = fmaf(n, -(float)MATH_PIO2_1, x);
    r = fmaf(n, -(float)MATH_PIO2_2, r);
    r = fmaf(n, -(float)MATH_PIO2_3, r);
    float z = r * r;
    float s = fmaf(math_horner(z, math_sin_poly, MATH_COUNT(math_sin_poly)) * z, r, r);
    float c = fmaf(math_horner(z, math_cos_poly, MATH_COUNT(math_cos_poly)), z * z, fmaf(z, -0.5f, 1.0f));
    float y = math_float(math_bits((quadrant & 1) != 0 ? c : s) ^ (quadrant & 2) << 30);
    return fabsf(x) <= (float)MATH_TRIG_LIMIT ? y : NAN;
}

static inline float loop_sinf(float x) { return math_trig(x, 0); }
static inline float loop_cosf(float x) { return math_trig(x, 1); }

/* x^y = e^(y log x) with the exponent in double, so that its error does not grow with it. */
static inline float loop_powf(float x, float y) {
    int32_t e;
    double m = (double)math_split(x, &e);
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, p = math_atanh_poly[0];
    for (int i = 1; i < MATH_COUNT(math_atanh_poly); i++) p = p * s2 + math_atanh_poly[i];
    double log_x = (double)e * MATH_LN2 + (s + s) * p;
    log_x = x == INFINITY ? (double)x : log_x;
    log_x = x > 0 ? log_x : x == 0 ? -(double)INFINITY : (double)NAN;
    double power = (double)y * log_x;
    double t = power < MATH_EXP_HIGH ? power : MATH_EXP_HIGH;
    t = t > MATH_EXP_LOW ? t : MATH_EXP_LOW;
    float shifted = fmaf((float)t, (float)MATH_LOG2E, (float)MATH_ROUND);
    double n = (double)(shifted - (float)MATH_ROUND);
    float r = (float)(t - n * MATH_LN2);
    float z = math_scale(math_exp_reduced(r), (int32_t)(math_bits(shifted) - MATH_ROUND_BITS));
    z = power != power ? NAN : z;
    return y == 0 ? 1.0f : z;
}

/* ---- narrow floats, rounded to nearest even ---------------------------------------------------------------------- */

static inline uint16_t loop_to_bf16(float x) {
    uint32_t bits = math_bits(x);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline float loop_from_bf16(uint16_t bits) { return math_float((uint32_t)bits << 16); }

static inline uint16_t loop_to_f16(float x) {
    uint32_t bits = math_bits(x), sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (bits >= 0x47800000) return (uint16_t)(sign | 0x7C00); /* 2^16 and beyond */
    if (bits < 0x38800000) /* below 2^-14: adding 1/2 leaves the rounded subnormal in the low bits */
        return (uint16_t)(sign | (math_bits(math_float(bits) + 0.5f) - 0x3F000000));
    return (uint16_t)(sign | (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
}

static inline float loop_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    float scaled = math_float((uint32_t)(half & 0x7FFF) << 13) * math_float(0x77800000); /* 2^112 */
    uint32_t bits = math_bits(scaled);
    if (bits >= 0x47800000) bits |= 0x7F800000; /* was infinite or NaN */
    return math_float(bits | sign);
}

static inline int32_t loop_to_int(float x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return INT32_MAX;
    if (x <= -2147483648.0f) return INT32_MIN;
    return (int32_t)x;
}

static inline float loop_minf(float x, float y) { return x != x ? x : x < y ? x : y; }
static inline float loop_maxf(float x, float y) { return x != x ? x : x > y ? x : y; }

#endif
