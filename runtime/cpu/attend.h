/* What attention and its gradient share: block sizes, packed operands, and who sees whom. For attend.c, attend_grad.c.
 */
#ifndef PRT_ATTEND_H
#define PRT_ATTEND_H

#include "cpu/threads.h"

typedef struct AttendJob {
    const PrtAttend *shape;
    void *const *pointers;
    int64_t offset;           /* q_start - k_start: query i sees keys up to i + offset */
    int64_t block_q, block_k; /* queries and keys at a time; they depend on the shape alone */
    int64_t leaf;             /* gradient: queries summed in order, before a balanced tree; 0: all of them are */
    PrtRank *rank;
} AttendJob;

/* Keys that query `i` sees are 0 .. result-1. */
static inline int64_t attend_limit(const AttendJob *job, int64_t i) {
    if (!job->shape->causal) return job->shape->key;
    return prt_max(0, prt_min(job->shape->key, i + job->offset + 1));
}
/* Of the `n` keys from `first` on, those that query `i` sees. */
static inline int64_t attend_seen(const AttendJob *job, int64_t i, int64_t first, int64_t n) {
    return prt_max(0, prt_min(n, attend_limit(job, i) - first));
}

/* A scratch area being handed out; base NULL: only counted. */
typedef struct AttendScratch {
    float *base;
    int64_t used; /* floats */
} AttendScratch;
static inline float *attend_take(AttendScratch *scratch, int64_t n) {
    float *result = scratch->base ? scratch->base + scratch->used : NULL;
    scratch->used += prt_round_up(n, 16);
    return result;
}
/* Floats of a packed operand A (rows x depth), B (depth x columns). */
static inline int64_t attend_a_floats(int64_t rows, int64_t depth) {
    return prt_ceil_div(rows, plan_inner.tile_m) * plan_inner.panel_m * depth;
}
static inline int64_t attend_b_floats(int64_t columns, int64_t depth) {
    return prt_round_up(columns, plan_inner.tile_n) * depth;
}

/* Packs an operand: lanes (rows of A, columns of B) and depth at their strides, one of which is 1. */
void attend_pack_a(const float *from, int64_t lane_stride, int64_t lanes, int64_t depth_stride, int64_t depth,
                   float *out);
void attend_pack_b(const float *from, int64_t lane_stride, int64_t lanes, int64_t depth_stride, int64_t depth,
                   float *out);

/* Halves the blocks until `floats(job)` fit into a thread's scratch memory; fails when the smallest do not. */
void attend_choose_blocks(AttendJob *job, int64_t queries, int64_t keys, int64_t (*floats)(const AttendJob *job));

#endif
