/* prt_product_ordered: matrix products whose sums have an order that no plan changes.
 *
 * k is cut in leaves of a fixed number of points, each summed in order. What becomes of the leaves:
 *   - C is f32: they are joined by a balanced tree, of which a rank that holds 4 or 2 of 8 leaves has a whole branch;
 *   - C is exact (exact.h): they are added as exact numbers, in whatever order.
 * C is made in blocks that stay in the cache with the sums that are not yet joined. Cutting for threads, and blocks of
 * rows and columns, are not seen in the bits: an element's sums do not depend on its place in a tile. */
#include <string.h>

#include "cpu/exact.h"
#include "cpu/strided.h"

enum { ROWS = 192, COLUMNS = 256, EXACT_ROWS = 96, EXACT_COLUMNS = 128 }; /* of a block, about */
enum { LEVELS = 4 /* sums that wait: 8 leaves have 3, and the next one */, MAX_TILE = 1024 };
static const double single_thread_flops = 5e5;

typedef struct Ordered {
    const PrtProduct *product;
    PrtRank *rank;
    const float *a_base, *b_base;
    void *c_base;
    int64_t batch, m, n, k, leaf, chunk; /* chunk: points of k that are packed at a time */
    int64_t rows, columns;               /* of a block */
    bool exact;
    Strided a_batch, b_batch, c_batch, c_m, c_n;
    PackSource a, b;
    int64_t parts_batch, parts_m, parts_n;
} Ordered;

/* One block of C in the making. */
typedef struct Block {
    const float *a, *b; /* of its batch point */
    int64_t i, j, rows, columns, batch;
    float *packed_a, *packed_b;
    int64_t k, n_k;      /* which points of k have been packed */
    float *sums[LEVELS]; /* [rows][columns] each: branches of the tree that wait for the one beside them */
    double *exact;       /* tile by tile, high parts and low parts */
} Block;

static int64_t points_of(const PrtProductDim *dims, int n) {
    int64_t result = 1;
    for (int i = 0; i < n; i++) result *= dims[i].extent;
    return result;
}

/* ---- a block's share of some points of k ------------------------------------------------------------------------- */

/* Packs `n_k` points of k. */
static void pack_chunk(const Ordered *job, Block *block, int64_t k, int64_t n_k) {
    pack_block(&job->a, block->a, block->i, block->rows, k, n_k, block->packed_a);
    pack_block(&job->b, block->b, block->j, block->columns, k, n_k, block->packed_b);
    block->k = k, block->n_k = n_k;
}

/* out (+)= the product over [k, k + n_k), which are among those that have been packed. */
static void add_tiles(const Ordered *job, const Block *block, float *out, int64_t k, int64_t n_k, bool add) {
    const PrtInner *inner = &plan_inner;
    const float *b = block->packed_b + (k - block->k) * inner->tile_n;
    for (int64_t j = 0; j < block->columns; j += inner->tile_n, b += block->n_k * inner->tile_n) {
        const float *a = block->packed_a + (k - block->k) * inner->panel_m;
        for (int64_t i = 0; i < block->rows; i += inner->tile_m, a += block->n_k * inner->panel_m)
            inner->tile(a, b, out + i * job->columns + j, n_k, job->columns, inner->tile_m, inner->tile_n,
                        job->product->scale, add);
    }
}

/* A long leaf is packed in parts, short ones together. */
static void one_leaf(const Ordered *job, Block *block, int64_t k, int64_t end, float *out) {
    for (int64_t at = k; at < end;) {
        if (at >= block->k + block->n_k)
            pack_chunk(job, block, at, prt_min(job->chunk, (job->leaf > job->chunk ? end : job->k) - at));
        int64_t n_k = prt_min(end, block->k + block->n_k) - at;
        add_tiles(job, block, out, at, n_k, at > k);
        at += n_k;
    }
}

static void join(const Ordered *job, const Block *block, float *restrict earlier, const float *restrict later) {
    for (int64_t i = 0; i < block->rows; i++)
        for (int64_t j = 0; j < block->columns; j++) earlier[i * job->columns + j] += later[i * job->columns + j];
}

/* The balanced tree: leaf number l completes as many branches as l + 1 can be halved. */
static float *sum_of_leaves(const Ordered *job, Block *block) {
    int waiting = 0;
    block->k = block->n_k = 0;
    for (int64_t k = 0, leaf = 0; k < job->k; k += job->leaf, leaf++) {
        one_leaf(job, block, k, prt_min(k + job->leaf, job->k), block->sums[waiting++]);
        for (int64_t l = leaf; l & 1; l >>= 1, waiting--)
            join(job, block, block->sums[waiting - 2], block->sums[waiting - 1]);
    }
    for (; waiting > 1; waiting--) join(job, block, block->sums[waiting - 2], block->sums[waiting - 1]);
    return block->sums[0];
}

/* The leaves of one tile, as exact terms; `sum` has a tile of high parts, then one of low parts. */
static void exact_tile(const Ordered *job, const float *a, const float *b, int64_t n_k, double *sum) {
    const PrtInner *inner = &plan_inner;
    int64_t n = (int64_t)inner->tile_m * inner->tile_n;
    _Alignas(64) float tile[MAX_TILE];
    for (int64_t k = 0; k < n_k; k += job->leaf) {
        inner->tile(a + k * inner->panel_m, b + k * inner->tile_n, tile, prt_min(job->leaf, n_k - k), inner->tile_n,
                    inner->tile_m, inner->tile_n, job->product->scale, 0);
        prt_exact_add_terms(sum, sum + n, tile, n);
    }
    for (int64_t i = 0; i < n; i++) {
        double carry = prt_exact_cut(sum[n + i], PRT_EXACT_HIGH);
        sum[n + i] -= carry;
        sum[i] += carry;
    }
}

static void exact_chunk(const Ordered *job, const Block *block, int64_t n_k) {
    const PrtInner *inner = &plan_inner;
    double *sum = block->exact;
    const float *b = block->packed_b;
    for (int64_t j = 0; j < block->columns; j += inner->tile_n, b += n_k * inner->tile_n) {
        const float *a = block->packed_a;
        for (int64_t i = 0; i < block->rows; i += inner->tile_m, a += n_k * inner->panel_m) {
            exact_tile(job, a, b, n_k, sum);
            sum += 2 * inner->tile_m * inner->tile_n;
        }
    }
}

/* ---- storing ----------------------------------------------------------------------------------------------------- */

static void store_block(const Ordered *job, const Block *block, const float *sum) {
    bool side_by_side = strided_last(&job->c_n) == 1 && strided_run(&job->c_n, block->j) >= block->columns;
    for (int64_t i = 0; i < block->rows; i++) {
        const float *from = sum + i * job->columns;
        float *row = (float *)job->c_base + block->batch + strided_offset(&job->c_m, block->i + i);
        if (side_by_side && !job->product->accumulate) {
            memcpy(row + strided_offset(&job->c_n, block->j), from, (size_t)block->columns * sizeof(float));
            continue;
        }
        for (int64_t j = 0; j < block->columns; j++) {
            float *to = row + strided_offset(&job->c_n, block->j + j);
            *to = job->product->accumulate ? *to + from[j] : from[j];
        }
    }
}

static void store_exact(const Ordered *job, const Block *block) {
    const PrtInner *inner = &plan_inner;
    int64_t tile = (int64_t)inner->tile_m * inner->tile_n, tiles_m = prt_ceil_div(block->rows, inner->tile_m);
    for (int64_t i = 0; i < block->rows; i++) {
        PrtExactNumber *row = (PrtExactNumber *)job->c_base + block->batch + strided_offset(&job->c_m, block->i + i);
        for (int64_t j = 0; j < block->columns; j++) {
            int64_t at = (j / inner->tile_n * tiles_m + i / inner->tile_m) * 2 * tile;
            const double *from = block->exact + at + i % inner->tile_m * inner->tile_n + j % inner->tile_n;
            PrtExactNumber *to = row + strided_offset(&job->c_n, block->j + j);
            if (job->product->accumulate)
                prt_exact_add_number(to, from[0], from[tile]);
            else
                *to = (PrtExactNumber){from[0], from[tile]};
        }
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static float *take(float **scratch, int64_t floats) {
    float *result = *scratch;
    *scratch += prt_round_up(floats, 16);
    return result;
}

static void make_block(const Ordered *job, Block *block) {
    if (!job->exact) {
        store_block(job, block, sum_of_leaves(job, block));
        return;
    }
    memset(block->exact, 0, (size_t)(job->rows * job->columns) * sizeof(PrtExactNumber));
    for (int64_t k = 0; k < job->k; k += job->chunk) {
        int64_t n_k = prt_min(job->chunk, job->k - k);
        pack_chunk(job, block, k, n_k);
        exact_chunk(job, block, n_k);
    }
    store_exact(job, block);
}

typedef struct Range {
    int64_t lo, hi;
} Range;

static Range part_of(int64_t n, int64_t unit, int64_t i, int64_t parts) {
    int64_t units = prt_ceil_div(n, unit);
    return (Range){units * i / parts * unit, prt_min(units * (i + 1) / parts * unit, n)};
}

static void ordered_task(void *context, int thread, int64_t task) {
    const Ordered *job = context;
    const PrtInner *inner = &plan_inner;
    Range n = part_of(job->n, inner->tile_n, task % job->parts_n, job->parts_n);
    Range m = part_of(job->m, inner->tile_m, task / job->parts_n % job->parts_m, job->parts_m);
    Range batch = part_of(job->batch, 1, task / job->parts_n / job->parts_m, job->parts_batch);
    float *scratch = (float *)prt_scratch(job->rank, thread);
    Block block = {.packed_a = take(&scratch, job->rows / inner->tile_m * inner->panel_m * job->chunk),
                   .packed_b = take(&scratch, job->columns * job->chunk)};
    if (job->exact) block.exact = (double *)(void *)take(&scratch, 4 * job->rows * job->columns);
    for (int l = 0; l < LEVELS && !job->exact; l++) block.sums[l] = take(&scratch, job->rows * job->columns);
    for (int64_t point = batch.lo; point < batch.hi; point++) {
        block.a = job->a_base + strided_offset(&job->a_batch, point);
        block.b = job->b_base + strided_offset(&job->b_batch, point);
        block.batch = strided_offset(&job->c_batch, point);
        for (block.j = n.lo; block.j < n.hi; block.j += job->columns)
            for (block.i = m.lo; block.i < m.hi; block.i += job->rows) {
                block.rows = prt_min(job->rows, m.hi - block.i);
                block.columns = prt_min(job->columns, n.hi - block.j);
                make_block(job, &block);
            }
    }
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* Threads get batch points, else rows or columns, whichever there are more of. */
static void choose_parts(Ordered *job) {
    const PrtInner *inner = &plan_inner;
    int64_t threads = job->rank->threads, tiles_m = prt_ceil_div(job->m, inner->tile_m),
            tiles_n = prt_ceil_div(job->n, inner->tile_n);
    double flops = 2.0 * (double)job->batch * (double)job->m * (double)job->n * (double)job->k;
    job->parts_batch = job->parts_m = job->parts_n = 1;
    if (flops <= single_thread_flops) return;
    if (job->batch >= threads)
        job->parts_batch = threads;
    else if (tiles_m >= tiles_n)
        job->parts_m = prt_min(threads, tiles_m);
    else
        job->parts_n = prt_min(threads, tiles_n);
}

/* In a chunk there are whole leaves, or equal parts of a long leaf of the tree. */
static int64_t chunk_of(const Ordered *job) {
    int64_t most = plan_inner.block_k;
    if (job->exact) return job->leaf * prt_max(1, prt_min(PRT_EXACT_TERMS, most / job->leaf));
    if (job->leaf <= most) return most / job->leaf * job->leaf;
    return prt_round_up(prt_ceil_div(job->leaf, prt_ceil_div(job->leaf, most)), 4);
}

void prt_product_ordered(PrtRank *rank, const PrtProduct *p, void *const *pointers, int64_t leaf, int64_t exact) {
    const PrtInner *inner = &plan_inner;
    Ordered job = {.product = p,
                   .rank = rank,
                   .a_base = pointers[0],
                   .b_base = pointers[1],
                   .c_base = pointers[2],
                   .batch = points_of(p->batch, p->n_batch),
                   .m = points_of(p->m, p->n_m),
                   .n = points_of(p->n, p->n_n),
                   .k = points_of(p->k, p->n_k),
                   .leaf = leaf,
                   .exact = exact != 0,
                   .a_batch = strided_of(p->batch, p->n_batch, OPERAND_A),
                   .b_batch = strided_of(p->batch, p->n_batch, OPERAND_B),
                   .c_batch = strided_of(p->batch, p->n_batch, OPERAND_C),
                   .c_m = strided_of(p->m, p->n_m, OPERAND_C),
                   .c_n = strided_of(p->n, p->n_n, OPERAND_C)};
    job.a = pack_source(strided_of(p->m, p->n_m, OPERAND_A), strided_of(p->k, p->n_k, OPERAND_A), inner->pack_a,
                        inner->panel_m, inner->tile_m, PRT_ELEMENT_F32);
    job.b = pack_source(strided_of(p->n, p->n_n, OPERAND_B), strided_of(p->k, p->n_k, OPERAND_B), inner->pack_b,
                        inner->tile_n, inner->tile_n, PRT_ELEMENT_F32);
    job.chunk = chunk_of(&job);
    job.rows = prt_round_up(prt_min(job.exact ? EXACT_ROWS : ROWS, job.m), inner->tile_m);
    job.columns = prt_round_up(prt_min(job.exact ? EXACT_COLUMNS : COLUMNS, job.n), inner->tile_n);
    int64_t floats = (job.rows / inner->tile_m * inner->panel_m + job.columns) * job.chunk +
                     LEVELS * job.rows * job.columns + 16 * (LEVELS + 3);
    if (floats * 4 > rank->scratch_bytes)
        prt_fail(rank, "an ordered product needs %lld bytes of scratch memory a thread, the plan has %lld",
                 (long long)floats * 4, (long long)rank->scratch_bytes);
    choose_parts(&job);
    prt_tasks(rank, ordered_task, &job, job.parts_batch * job.parts_m * job.parts_n);
}
