/* Conversions between f32 and the two 16-bit types: see narrow.h. bf16 is the upper half of an f32; f16 is converted by
 * the processor where it can (F16C), else by arithmetic. */
#include "cpu/narrow.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define CLONES
#else
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#endif

enum { STAGED = 256 }; /* steps of k that are converted at a time: with all lanes they stay in L1 */
enum { MAX_LANES = 32 };

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint16_t to_bf16(float x) {
    uint32_t bits = bits_of(x), rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? bits >> 16 | 0x40 : rounded);
}

CLONES static void widen_bf16(const uint16_t *restrict from, float *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = float_of((uint32_t)from[i] << 16);
}

CLONES static void narrow_bf16(const float *restrict from, uint16_t *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = to_bf16(from[i]);
}

/* ---- f16 ------------------------------------------------------------------------------------------------------- */

static float from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    float scaled = float_of((uint32_t)(half & 0x7FFF) << 13) * 0x1p112f;
    uint32_t bits = bits_of(scaled);
    if (bits >= 0x47800000) bits |= 0x7F800000; /* was infinite or not a number */
    return float_of(bits | sign);
}

static uint16_t to_f16(float x) {
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (bits >= 0x47800000) return (uint16_t)(sign | 0x7C00); /* 2^16 and beyond */
    if (bits < 0x38800000) /* below 2^-14: adding 1/2 leaves the rounded subnormal in the low bits */
        return (uint16_t)(sign | (bits_of(float_of(bits) + 0.5f) - 0x3F000000));
    return (uint16_t)(sign | (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
}

#if defined(__x86_64__)
__attribute__((target("f16c,avx"))) static int64_t widen_f16_by_eight(const uint16_t *from, float *to, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
    return i;
}

__attribute__((target("f16c,avx"))) static int64_t narrow_f16_by_eight(const float *from, uint16_t *to, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}

static bool has_f16c(void) { return __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx"); }
#else
static int64_t widen_f16_by_eight(const uint16_t *from, float *to, int64_t n) { return (void)from, (void)to, n * 0; }
static int64_t narrow_f16_by_eight(const float *from, uint16_t *to, int64_t n) { return (void)from, (void)to, n * 0; }
static bool has_f16c(void) { return false; }
#endif

static void widen_f16(const uint16_t *from, float *to, int64_t n) {
    for (int64_t i = has_f16c() ? widen_f16_by_eight(from, to, n) : 0; i < n; i++) to[i] = from_f16(from[i]);
}

static void narrow_f16(const float *from, uint16_t *to, int64_t n) {
    for (int64_t i = has_f16c() ? narrow_f16_by_eight(from, to, n) : 0; i < n; i++) to[i] = to_f16(from[i]);
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

void prt_widen(int element, const void *from, float *to, int64_t n) {
    if (element == PRT_ELEMENT_BF16)
        widen_bf16(from, to, n);
    else if (element == PRT_ELEMENT_F16)
        widen_f16(from, to, n);
    else
        memcpy(to, from, (size_t)n * sizeof(float));
}

void prt_narrow(int element, const float *from, void *to, int64_t n) {
    if (element == PRT_ELEMENT_BF16)
        narrow_bf16(from, to, n);
    else if (element == PRT_ELEMENT_F16)
        narrow_f16(from, to, n);
    else
        memcpy(to, from, (size_t)n * sizeof(float));
}

float prt_widen_one(int element, const void *from) {
    if (element == PRT_ELEMENT_F32) return *(const float *)from;
    uint16_t half = *(const uint16_t *)from;
    return element == PRT_ELEMENT_BF16 ? float_of((uint32_t)half << 16) : from_f16(half);
}

/* ---- packing --------------------------------------------------------------------------------------------------- */

/* Rows of contiguous elements become f32 first, then the target's own function transposes or copies them. */
void prt_pack(PrtPackFunction *pack, int element, bool depth_first, const void *src, float *dst, int64_t k,
              int64_t k_stride, int64_t lane_stride, int64_t lanes, int64_t panel) {
    if (element == PRT_ELEMENT_F32) {
        pack(src, dst, k, k_stride, lane_stride, lanes);
        return;
    }
    float staged[STAGED * MAX_LANES];
    for (int64_t first = 0; first < k; first += STAGED, dst += STAGED * panel) {
        int64_t n = k - first < STAGED ? k - first : STAGED;
        int64_t rows = depth_first ? lanes : n, each = depth_first ? n : lanes,
                stride = depth_first ? lane_stride : k_stride;
        const void *from = prt_element(src, element, first * k_stride);
        for (int64_t i = 0; i < rows; i++)
            prt_widen(element, prt_element(from, element, i * stride), staged + i * each, each);
        pack(staged, dst, n, depth_first ? 1 : lanes, depth_first ? n : 1, lanes);
    }
}
