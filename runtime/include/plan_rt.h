/* The runtime: what a compiled program and `libplan_rt` expect of each other.
 *
 * The compiler emits one object with
 *   const char plan_program[];                 JSON, NUL-terminated: docs/program.md describes every field
 *   const PrtAction plan_entries[];            one for each entry of each role, in the order of "entries"
 *   const PrtInner plan_inner;                 the generated inner kernels of products and attention
 * and links it with libplan_rt, which holds `main`. Generated code calls only the functions of plan_rt_abi.def.
 *
 * All functions that can fail return a PrtStatus, or end the run through prt_fail (which names the rank). */
#ifndef PLAN_RT_H
#define PLAN_RT_H

#include <stdbool.h>
#include <stdint.h>

#define PRT_ABI_VERSION 1

typedef struct PrtRank PrtRank; /* one rank: its arena, coordinates, threads, groups; opaque to generated code */

/* Runs one entry (an action of the schedule, init, eval, decode) on this rank. `arena` is its base address. */
typedef void PrtAction(PrtRank *rank, char *arena, int64_t micro);
/* A generated loop kernel: rows [lo, hi). */
typedef void PrtKernel(void *const *pointers, int64_t lo, int64_t hi);

/* How lanes (columns of B, rows of A) and depth (k) lie in memory: picks a packing function. */
typedef enum PrtPack { PRT_PACK_LANES /* lane stride 1 */, PRT_PACK_DEPTH /* k stride 1 */, PRT_PACK_ANY } PrtPack;
/* Packs `lanes` lanes by k steps into dst[k][panel width]; the missing lanes are written as zeros. Reads nothing else.
 */
typedef void PrtPackFunction(const float *src, float *dst, int64_t k, int64_t k_stride, int64_t lane_stride,
                             int64_t lanes);

/* Generated for the target's vector width; the drivers in cpu/ block for the caches and call these. No pointer needs an
 * alignment but packed panels, which lie at multiples of a vector register. */
typedef struct PrtInner {
    int32_t tile_m, tile_n; /* C tile of the micro-kernel */
    int32_t vector;         /* floats in a vector register */
    int32_t panel_m;        /* width of a packed panel of A: tile_m rounded up to `vector`; of B it is tile_n */
    int32_t block_k, block_m, block_n; /* cache blocks: k of a panel, rows of A, columns of B; multiples of the tile */
    int32_t probe_flops;               /* floating-point operations of one step of `probe` */
    /* c[rows, columns] (+)= alpha * a panel * b panel: a is packed [k][panel_m], b is packed [k][tile_n]; c has row
     * stride ldc and column stride 1. rows and columns may be less than the tile: nothing else of c is touched. An
     * element's sum does not depend on its place in the tile. accumulate 0: c is overwritten. */
    void (*tile)(const float *a, const float *b, float *c, int64_t k, int64_t ldc, int64_t rows, int64_t columns,
                 float alpha, int64_t accumulate);
    PrtPackFunction *pack_a[3], *pack_b[3]; /* by PrtPack; lanes at most tile_m, tile_n */
    /* A row of attention scores meets the next keys: s[j] becomes exp(scale * s[j] - *m'), where *m' is the new maximum
     * of scale * s; *m and *l (maximum and sum of exponentials so far: -inf and 0 at first) are updated. Returns exp(*m
     * - *m'), the factor for earlier sums. n >= 1. */
    float (*softmax_row)(float *s, int64_t n, float scale, float *m, float *l);
    void (*scale_row)(float *x, int64_t n, float factor);                /* x *= factor */
    void (*axpy_row)(float *y, const float *x, int64_t n, float factor); /* y += factor * x */
    /* p = exp(scale * s - lse) to `p`; ds = p * (dp - delta) * scale to `s`. */
    void (*softmax_grad_row)(float *s, const float *dp, float *p, int64_t n, float scale, float lse, float delta);
    float (*dot_row)(const float *x, const float *y, int64_t n);
    float (*probe)(int64_t steps); /* independent multiply-adds at full rate, for the machine's peak */
} PrtInner;

/* Memory that the drivers use for each worker thread (PRODUCT_SCRATCH_BYTES in compiler/ir/product.h). */
enum { PRT_SCRATCH_BYTES = 4 << 20 };

/* Descriptors as generated constants; the fields are those of compiler/ir/product.h (checked by a test). */
typedef struct PrtProductDim {
    int64_t extent, a, b, c;
} PrtProductDim;
/* The epilogue is the loop kernel of a Loop over [rows, columns of C]. Its rows (the flattened outer space) are the
 * points of (batch..., m...) in the order of the descriptor, or of (batch..., n...) where the last n has not stride 1
 * in C. Its pointers are those of prt_product from the third on: C first. It is called on disjoint ranges of rows that
 * cover all rows once, from any thread, each after these rows of C are complete: so it may read and write its rows of C
 * in place and read other operands, and gives what a standalone call after the product would. No lanes_outer. */
typedef struct PrtProduct {
    PrtProductDim batch[4], m[4], n[4], k[4];
    int32_t n_batch, n_m, n_n, n_k;
    int32_t accumulate, has_epilogue;
    float scale;
    uint8_t a, b, c, reserved; /* element types: 0 f32, 2 bf16, 3 f16; C is f32 where it is added to */
    PrtKernel *epilogue;       /* or NULL */
} PrtProduct;
typedef struct PrtPositionCut {
    int32_t axis, parts, balanced, turn;
} PrtPositionCut;
typedef struct PrtAttend {
    int64_t batch, seq, key, kv_head, group, width;
    int64_t q_batch, q_seq, q_head, k_batch, k_key, k_head, v_batch, v_key, v_head, o_batch, o_seq, o_head, l_batch,
        l_seq, l_head;
    float scale;
    int32_t causal;
    int32_t element; /* type of q, k, v, out, d_out; lse and the gradients are f32 */
    int32_t reserved;
    int32_t n_q_cuts, n_k_cuts;
    PrtPositionCut q_cuts[8], k_cuts[8];
} PrtAttend;
typedef struct PrtScatter {
    int64_t n_rows, n_out, width, row_stride, out_stride;
    int32_t coordinate_axis, accumulate;
    int32_t element; /* type of rows; out is f32 */
    int32_t reserved;
} PrtScatter;
/* Reproducible mode: exact numbers (two doubles each, runtime/cpu/exact.h) and what is done with them. Axes 0..n_axes,
 * strides in elements of each operand; 0 in `out`: summed over. */
typedef enum PrtExactKind {
    PRT_EXACT_ZERO,  /* out = 0 */
    PRT_EXACT_SUM,   /* out (+)= sum of in; in is f32 */
    PRT_EXACT_COPY,  /* out (+)= in; both are exact */
    PRT_EXACT_ADD,   /* out (+)= in + in2; all are exact */
    PRT_EXACT_ROUND, /* out = in; out is f32 */
    PRT_EXACT_ROWS   /* out[index[i] - first, :] (+)= in[i, :]: axes are (out's rows, i, columns); in2 is the index */
} PrtExactKind;
enum { PRT_EXACT_AXES = 10 };
typedef struct PrtExact {
    int64_t extent[PRT_EXACT_AXES], out[PRT_EXACT_AXES], in[PRT_EXACT_AXES], in2[PRT_EXACT_AXES];
    int64_t shift; /* `in` starts this many elements further for each step of the rank's coordinate on `axis` */
    int32_t kind;  /* PrtExactKind */
    int32_t n_axes, accumulate, axis;
} PrtExact;
typedef struct PrtTopK {
    int64_t sequences, seq, experts, picks, slots;
} PrtTopK;
typedef struct PrtCollective {
    int32_t kind;                   /* PrtCollectiveKind */
    int32_t axis;                   /* of the mesh */
    int32_t reduce;                 /* 0 sum, 1 max, 2 min, 3 or, PRT_SUM_BY_TREE: a sum in balanced pairs */
    int32_t dtype;                  /* 0 f32, 2 bf16, 3 f16, 4 i32, PRT_DTYPE_EXACT */
    int64_t elements, outer, inner; /* an exact number is 4 elements */
    const char *where;              /* "train.plan:41 all_reduce of grad.token_table over data" */
    int64_t balanced; /* the whole is 2n pieces: rank j's block is the pieces j and 2n-1-j, one after the other */
} PrtCollective;
enum { PRT_SUM_BY_TREE = 4, PRT_DTYPE_EXACT = 9 };
typedef enum PrtCollectiveKind {
    PRT_ALL_REDUCE,
    PRT_ALL_GATHER,
    PRT_REDUCE_SCATTER,
    PRT_ALL_TO_ALL,
    PRT_PASS
} PrtCollectiveKind;

/* Between ranks that differ on one mesh axis alone: a post, the taking of it, or the wait until it is taken. */
typedef enum PrtHandoverKind { PRT_SEND, PRT_RECEIVE, PRT_WAIT } PrtHandoverKind;
typedef struct PrtHandover {
    int32_t kind;    /* PrtHandoverKind */
    int32_t axis;    /* of the mesh */
    int32_t peer;    /* the other rank's coordinate on the axis */
    int32_t channel; /* one for each pair of a send and a receive in the program */
    int32_t depth;   /* a send or wait goes on when fewer messages than this are not yet taken */
    int32_t reserved;
    int64_t bytes;
    const char *where;
} PrtHandover;

#define RT(name, result, ...) result name(__VA_ARGS__);
#include "plan_rt_abi.def"
#undef RT

#endif
