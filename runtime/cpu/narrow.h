/* bf16 and f16 numbers in memory, f32 in computations: conversions of rows, and packing of narrow operands.
 *
 * Rounding is to nearest even, as in generated loops (compiler/codegen/vector_math.c). An element type is that of
 * plan_rt.h: 0 f32, 2 bf16, 3 f16. */
#ifndef PRT_NARROW_H
#define PRT_NARROW_H

#include "plan_rt.h"

enum { PRT_ELEMENT_F32 = 0, PRT_ELEMENT_BF16 = 2, PRT_ELEMENT_F16 = 3 };

static inline int64_t prt_element_bytes(int element) { return element == PRT_ELEMENT_F32 ? 4 : 2; }
static inline const void *prt_element(const void *base, int element, int64_t i) {
    return (const char *)base + i * prt_element_bytes(element);
}
static inline void *prt_element_to(void *base, int element, int64_t i) {
    return (char *)base + i * prt_element_bytes(element);
}

/* n elements, one after the other; f32 is copied. */
void prt_widen(int element, const void *from, float *to, int64_t n);
void prt_narrow(int element, const float *from, void *to, int64_t n);
float prt_widen_one(int element, const void *from);

/* What `pack` does (PrtPackFunction), from elements of this type. `depth_first`: k has stride 1, and lanes may have
 * any; else lanes have stride 1. `panel`: floats of one step of k in dst. */
void prt_pack(PrtPackFunction *pack, int element, bool depth_first, const void *src, float *dst, int64_t k,
              int64_t k_stride, int64_t lane_stride, int64_t lanes, int64_t panel);

#endif
