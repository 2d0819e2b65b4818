/* Kernel kinds that are more than a loop: matrix products, attention, scattered rows.
 *
 * These are plain descriptions with strides, filled by schedule_to_kernels.c from named dimensions; codegen turns them
 * into constants of the program, and the runtime's drivers (runtime/cpu) run them with generated inner kernels. */
#ifndef PLAN_PRODUCT_H
#define PLAN_PRODUCT_H

#include "base/base.h"

enum { PRODUCT_MAX_DIMS = 4 };
/* Memory that the runtime's drivers of products and attention use, for each worker thread. */
enum { PRODUCT_SCRATCH_BYTES = 4 << 20 };

/* Types of elements as kernels see them: numbers of DType and of the runtime's list. Sums are always of f32. */
typedef enum ElementType { ELEMENT_F32 = 0, ELEMENT_BF16 = 2, ELEMENT_F16 = 3 } ElementType;

/* One dimension of a product: its extent, and its stride (in elements) in A, B and C; 0 where it does not occur. */
typedef struct ProductDim {
    int64_t extent, a, b, c;
} ProductDim;

/* C[batch, m, n] (+)= sum over k of A[batch, m, k] * B[batch, k, n]; each group holds up to four dimensions, the last
 * one fastest. It is fastest when the last n or the last m has stride 1 in C (any strides work). The epilogue is a Loop
 * over [rows, columns] of C, run on rows of C once they are complete: rows are the points of (batch..., m...), or of
 * (batch..., n...) where the last n has not stride 1 in C; see PrtProduct in runtime/include/plan_rt.h. */
typedef struct Product {
    ProductDim batch[PRODUCT_MAX_DIMS], m[PRODUCT_MAX_DIMS], n[PRODUCT_MAX_DIMS], k[PRODUCT_MAX_DIMS];
    int n_batch, n_m, n_n, n_k;
    bool accumulate; /* C is added to; it is f32 then */
    double scale;    /* of the product, before the epilogue; 1 */
    ElementType a, b, c;
} Product;

/* One axis of the mesh that cuts positions, as DimCut (ir/ir.h): which of them a rank holds follows from its
 * coordinate.
 */
typedef struct PositionCut {
    int32_t axis, parts, balanced, turn;
} PositionCut;
enum { POSITION_MAX_CUTS = 8 };

/* Attention of one rank: out = softmax(scale * q k^T, masked) v for each batch point and head, without a stored
 * [seq, key]; lse (log of the sum of exponentials) is kept for the gradient. Strides in elements. The logical position
 * of query i is that of the i-th that the rank holds plus q_start, of key j likewise with k_start; causal: only keys at
 * or before the query. head = kv_head * group, the left one major. */
typedef struct Attend {
    int64_t batch, seq, key, kv_head, group, width; /* width: of a head */
    int64_t q_batch, q_seq, q_head; /* stride of head = (kv_head, group) flattened; width has stride 1 */
    int64_t k_batch, k_key, k_head;
    int64_t v_batch, v_key, v_head;
    int64_t o_batch, o_seq, o_head; /* also of d_out; dq, dk, dv are laid out as q, k, v */
    int64_t l_batch, l_seq, l_head; /* lse */
    double scale;
    bool causal;
    ElementType element;    /* of q, k, v, out and d_out; lse and the gradients are f32 */
    int n_q_cuts, n_k_cuts; /* outermost first; none unless causal */
    PositionCut q_cuts[POSITION_MAX_CUTS], k_cuts[POSITION_MAX_CUTS];
} Attend;

/* out[index[i], :] += rows[i, :] for i in order; rows outside [0, n_out) are skipped (they belong to other ranks). The
 * work is cut by columns, so the order of additions never depends on threads. Without accumulate, out is zeroed first.
 */
typedef struct Scatter {
    int64_t n_rows, n_out, width;
    int64_t row_stride, out_stride;
    int64_t index_offset; /* logical index of out's first row, on this rank: coordinate * n_out; see coordinate_axis */
    int coordinate_axis;  /* -1: none */
    bool accumulate;
    ElementType element; /* of rows; out is f32 */
} Scatter;

/* What is done with exact numbers (PrtExact in runtime/include/plan_rt.h, with the same kinds). Strides in elements. */
typedef enum ExactKind { EXACT_ZERO, EXACT_SUM, EXACT_COPY, EXACT_ADD, EXACT_ROUND, EXACT_ROWS } ExactKind;
enum { EXACT_MAX_AXES = 10 };
typedef struct Exact {
    ExactKind kind;
    int64_t extent[EXACT_MAX_AXES], out[EXACT_MAX_AXES], in[EXACT_MAX_AXES], in2[EXACT_MAX_AXES];
    int n_axes;
    bool accumulate;
    int64_t shift; /* of `in`, for each step of the rank's coordinate on the axis */
    int axis;      /* -1: none */
} Exact;

/* The route of each of `sequences` sequences: p[seq, experts] gives chosen[seq, picks], slot[seq, picks] and
 * source[experts, slots], all row-major (see ir/ops/expert.c for their meaning). */
typedef struct TopK {
    int64_t sequences, seq, experts, picks, slots;
} TopK;

#endif
