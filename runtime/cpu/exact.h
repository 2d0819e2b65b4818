/* Sums whose bits do not depend on the order of their terms: what reproducible mode adds up with.
 *
 * An exact number is a fixed-point number in two doubles: `high` is a multiple of 2^-34, `low` a multiple of 2^-80 that
 * is at most half a step of `high` after each addition. A float is cut on this grid once (below 2^-81 it counts zero);
 * all additions after that are exact while the sum stays below 2^18, so they may come in any order, over threads,
 * micro-batches and ranks. Rounding high + low to a float gives the same bits however the sum is split between them.
 * Beyond the range sums are those of double precision: right, but no longer of one order. */
#ifndef PRT_EXACT_H
#define PRT_EXACT_H

#include "plan_rt.h"

typedef struct PrtExactNumber {
    double high, low;
} PrtExactNumber;

/* Adding and taking away 1.5 * 2^52 steps rounds to the step. */
#define PRT_EXACT_HIGH 0x1.8p18
#define PRT_EXACT_LOW 0x1.8p-28

static inline double prt_exact_cut(double x, double magic) { return (x + magic) - magic; }

static inline void prt_exact_add_number(PrtExactNumber *sum, double high, double low) {
    double both = sum->low + low, carry = prt_exact_cut(both, PRT_EXACT_HIGH);
    sum->low = both - carry;
    sum->high += high + carry;
}

static inline void prt_exact_add(PrtExactNumber *sum, float x) {
    double high = prt_exact_cut((double)x, PRT_EXACT_HIGH);
    prt_exact_add_number(sum, high, prt_exact_cut((double)x - high, PRT_EXACT_LOW));
}

static inline float prt_exact_round(PrtExactNumber x) { return (float)(x.high + x.low); }

/* Terms that may be added to `high` and `low` without a carry: the low parts' sum stays below 2^53 of its steps. */
enum { PRT_EXACT_TERMS = 256 };
/* high[i] + low[i] += x[i], without a carry. */
void prt_exact_add_terms(double *high, double *low, const float *x, int64_t n);
/* sum[i] += x[i], and the same for exact x. */
void prt_exact_add_row(PrtExactNumber *sum, const float *x, int64_t n);
void prt_exact_add_exact_row(PrtExactNumber *sum, const PrtExactNumber *x, int64_t n);

#endif
