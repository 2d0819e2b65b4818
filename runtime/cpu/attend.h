/* What attention and its gradient share: block sizes, packed operands, and who sees whom. For attend.c, attend_grad.c.
 */
#ifndef PRT_ATTEND_H
#define PRT_ATTEND_H

#include "cpu/narrow.h"
#include "cpu/threads.h"

typedef struct AttendJob {
    const PrtAttend *shape;
    void *const *pointers;
    int64_t offset;           /* q_start - k_start */
    int64_t block_q, block_k; /* queries and keys at a time; they depend on the shape alone */
    int64_t leaf;             /* gradient: queries summed in order, before a balanced tree; 0: all of them are */
    PrtRank *rank;
} AttendJob;

/* ---- who sees whom: a rank's positions are those that the cuts leave to it, in order ---- */

static inline int64_t attend_part(const AttendJob *job, const PrtPositionCut *cut) {
    return (job->rank->coords[cut->axis] - cut->turn + cut->parts) % cut->parts;
}

/* The logical position of the i-th of `n`. */
static inline int64_t attend_position(const AttendJob *job, const PrtPositionCut *cuts, int n_cuts, int64_t n,
                                      int64_t i) {
    for (const PrtPositionCut *cut = cuts + n_cuts; cut-- > cuts; n *= cut->parts) {
        int64_t part = attend_part(job, cut), half = n / 2;
        i += !cut->balanced ? part * n : i < half ? part * half : (2 * cut->parts - 2 - part) * half;
    }
    return i;
}
/* How many of the `n` lie before a logical position. */
static inline int64_t attend_before(const AttendJob *job, const PrtPositionCut *cuts, int n_cuts, int64_t n,
                                    int64_t position) {
    for (const PrtPositionCut *cut = cuts; cut < cuts + n_cuts; cut++) n *= cut->parts;
    for (const PrtPositionCut *cut = cuts; cut < cuts + n_cuts; cut++) {
        int64_t part = attend_part(job, cut), unit = n / cut->parts / (cut->balanced ? 2 : 1);
        int64_t first = prt_max(0, prt_min(unit, position - part * unit));
        int64_t last = prt_max(0, prt_min(unit, position - (2 * cut->parts - 1 - part) * unit));
        position = cut->balanced ? first + last : first;
        n /= cut->parts;
    }
    return prt_max(0, prt_min(n, position));
}

/* Keys that query `i` sees are 0 .. result-1. */
static inline int64_t attend_limit(const AttendJob *job, int64_t i) {
    const PrtAttend *s = job->shape;
    if (!s->causal) return s->key;
    int64_t query = attend_position(job, s->q_cuts, s->n_q_cuts, s->seq, i) + job->offset;
    return attend_before(job, s->k_cuts, s->n_k_cuts, s->key, query + 1);
}
/* The first query that sees key `j`. */
static inline int64_t attend_first(const AttendJob *job, int64_t j) {
    const PrtAttend *s = job->shape;
    if (!s->causal) return 0;
    int64_t key = attend_position(job, s->k_cuts, s->n_k_cuts, s->key, j) - job->offset;
    return attend_before(job, s->q_cuts, s->n_q_cuts, s->seq, key);
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

/* Packs an operand of this element type: lanes (rows of A, columns of B) and depth at their strides, one of which is 1.
 */
void attend_pack_a(int element, const void *from, int64_t lane_stride, int64_t lanes, int64_t depth_stride,
                   int64_t depth, float *out);
void attend_pack_b(int element, const void *from, int64_t lane_stride, int64_t lanes, int64_t depth_stride,
                   int64_t depth, float *out);

/* Halves the blocks until `floats(job)` fit into a thread's scratch memory; fails when the smallest do not. */
void attend_choose_blocks(AttendJob *job, int64_t queries, int64_t keys, int64_t (*floats)(const AttendJob *job));

#endif
