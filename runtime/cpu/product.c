/* Matrix products: C (+)= scale * A B over groups of strided dimensions (compiler/ir/product.h, PrtProduct).
 *
 * The work is cut in batch points x bands of rows x bands of columns, one part for each thread. Inside a part, k runs
 * in blocks; blocks of A and panels of B are packed into the thread's scratch memory, and the generated micro-kernel
 * multiplies panel by panel. Sums over k are cut at the same places whatever the parts, and a tile starts at
 * a multiple of its size, so the bits of C depend on the shape alone. When columns of C are not contiguous but rows
 * are, A and B change roles. */
#include "cpu/strided.h"

#include <string.h>

enum { MAX_TILE = 1024 };
/* Products of so few rows read each element of B once: packing it would double the traffic. */
enum { FEW_ROWS = 3, FEW_COLUMNS = 2048 /* of C at a time: they stay in L1 */ };
enum { EPILOGUE_GRAIN = 16384 }; /* elements */
/* Below this many operations waking a thread costs more than it saves. */
static const double single_thread_flops = 5e5;

typedef enum Few { FEW_NO, FEW_SUM_OF_ROWS, FEW_DOTS } Few; /* how a product of few rows is done */

typedef struct ProductJob {
    const PrtProduct *product;
    PrtRank *rank;
    void *const *pointers;
    const void *a_base, *b_base;
    void *c_base;
    int64_t batch, m, n, k; /* points; m are C's rows after the change of roles */
    Strided a_batch, b_batch, c_batch, c_m, c_n;
    PackSource a, b;
    int64_t block_k;                       /* points of k in a block */
    int64_t parts_batch, parts_m, parts_n; /* how the work is cut */
    bool c_direct;                         /* columns of C are contiguous */
    bool rows_are_m;                       /* the epilogue's rows are this job's rows */
    bool epilogue_in_band;
    Few few;
} ProductJob;

typedef struct Range {
    int64_t lo, hi;
} Range;

/* ---- description ----------------------------------------------------------------------------------------------- */

static int64_t count_points(const PrtProductDim *dims, int n) {
    int64_t result = 1;
    for (int i = 0; i < n; i++) result *= dims[i].extent;
    return result;
}

/* Even blocks: 400 is 2 x 200, not 384 + 16. */
static int64_t even_block(int64_t n, int64_t largest, int64_t unit) {
    return prt_round_up(prt_ceil_div(n, prt_ceil_div(n, largest)), unit);
}

static Few few_rows(const ProductJob *job) {
    if (job->product->a || job->product->b || job->product->c) return FEW_NO; /* narrow ones go through packing */
    bool plain = job->a.lane.n == 1 && job->a.depth.n == 1 && job->b.lane.n == 1 && job->b.depth.n == 1;
    if (job->m > FEW_ROWS || !plain || job->c_m.n != 1 || job->c_n.n != 1 || !job->c_direct) return FEW_NO;
    if (strided_last(&job->b.lane) == 1) return FEW_SUM_OF_ROWS;
    return strided_last(&job->b.depth) == 1 && strided_last(&job->a.depth) == 1 ? FEW_DOTS : FEW_NO;
}

static ProductJob describe(PrtRank *rank, const PrtProduct *p, void *const *pointers) {
    const PrtInner *inner = &plan_inner;
    ProductJob job = {.product = p, .rank = rank, .pointers = pointers, .c_base = pointers[2]};
    bool rows_declared_m = p->n_n == 0 || p->n[p->n_n - 1].c == 1;
    Strided c_m = strided_of(p->m, p->n_m, OPERAND_C), c_n = strided_of(p->n, p->n_n, OPERAND_C);
    bool one_column = count_points(p->n, p->n_n) == 1;
    bool swap = (strided_last(&c_n) != 1 || one_column) && strided_last(&c_m) == 1 && count_points(p->m, p->n_m) > 1;

    Operand a = swap ? OPERAND_B : OPERAND_A, b = swap ? OPERAND_A : OPERAND_B;
    const PrtProductDim *m = swap ? p->n : p->m, *n = swap ? p->m : p->n;
    int n_m = swap ? p->n_n : p->n_m, n_n = swap ? p->n_m : p->n_n;
    job.a_base = pointers[swap ? 1 : 0];
    job.b_base = pointers[swap ? 0 : 1];
    job.c_m = swap ? c_n : c_m;
    job.c_n = swap ? c_m : c_n;
    job.batch = count_points(p->batch, p->n_batch);
    job.m = count_points(m, n_m);
    job.n = count_points(n, n_n);
    job.k = count_points(p->k, p->n_k);
    job.a_batch = strided_of(p->batch, p->n_batch, a);
    job.b_batch = strided_of(p->batch, p->n_batch, b);
    job.c_batch = strided_of(p->batch, p->n_batch, OPERAND_C);
    job.a = pack_source(strided_of(m, n_m, a), strided_of(p->k, p->n_k, a), inner->pack_a, inner->panel_m,
                        inner->tile_m, swap ? p->b : p->a);
    job.b = pack_source(strided_of(n, n_n, b), strided_of(p->k, p->n_k, b), inner->pack_b, inner->tile_n, inner->tile_n,
                        swap ? p->a : p->b);
    job.block_k = even_block(job.k, inner->block_k, 4);
    job.c_direct = strided_last(&job.c_n) == 1;
    job.rows_are_m = rows_declared_m != swap;
    job.few = few_rows(&job);
    return job;
}

/* ---- cutting for threads --------------------------------------------------------------------------------------- */

/* Time of the largest part, in cycles for each k: multiply-adds, and packing of the part's rows and columns. */
static double part_cost(const ProductJob *job, int64_t batch, int64_t m, int64_t n) {
    const PrtInner *inner = &plan_inner;
    double rows = (double)(prt_ceil_div(prt_ceil_div(job->m, inner->tile_m), m) * inner->tile_m);
    double columns = (double)(prt_ceil_div(prt_ceil_div(job->n, inner->tile_n), n) * inner->tile_n);
    return (double)prt_ceil_div(job->batch, batch) * (rows * columns / (2 * inner->vector) + rows + columns);
}

static void choose_parts(ProductJob *job) {
    const PrtInner *inner = &plan_inner;
    int64_t threads = job->rank->threads;
    double flops = 2.0 * (double)job->batch * (double)job->m * (double)job->n * (double)job->k;
    job->parts_batch = job->parts_m = job->parts_n = 1;
    if (threads > 1 && flops > single_thread_flops) {
        int64_t most_m = job->few ? 1 : prt_ceil_div(job->m, inner->tile_m),
                most_n = prt_ceil_div(job->n, inner->tile_n);
        double best = part_cost(job, 1, 1, 1);
        for (int64_t n = 1; n <= prt_min(threads, most_n); n++)
            for (int64_t m = 1; m <= prt_min(threads / n, most_m); m++) {
                int64_t batch = prt_min(threads / n / m, job->batch);
                double cost = part_cost(job, batch, m, n);
                if (cost >= best) continue;
                best = cost;
                job->parts_batch = batch, job->parts_m = m, job->parts_n = n;
            }
    }
    job->epilogue_in_band =
        job->product->epilogue && !job->product->c && job->rows_are_m && job->parts_n == 1 && job->n <= inner->block_n;
}

/* Part `i` of `parts` of `n` points, cut at multiples of `unit`. */
static Range part_of(int64_t n, int64_t unit, int64_t i, int64_t parts) {
    int64_t units = prt_ceil_div(n, unit);
    return (Range){units * i / parts * unit, prt_min(units * (i + 1) / parts * unit, n)};
}

/* ---- one part -------------------------------------------------------------------------------------------------- */

/* The tile at (i, j) of C; where its rows or columns do not lie one stride apart, through a buffer. */
static void put_tile(const ProductJob *job, const float *a, const float *b, float *c, int64_t i, int64_t rows,
                     int64_t j, int64_t columns, int64_t k, bool add) {
    const PrtInner *inner = &plan_inner;
    float alpha = job->product->scale;
    if (job->c_direct && strided_run(&job->c_m, i) >= rows && strided_run(&job->c_n, j) >= columns) {
        c += strided_offset(&job->c_m, i) + strided_offset(&job->c_n, j);
        inner->tile(a, b, c, k, strided_last(&job->c_m), rows, columns, alpha, add);
        return;
    }
    _Alignas(64) float tile[MAX_TILE];
    inner->tile(a, b, tile, k, inner->tile_n, inner->tile_m, inner->tile_n, alpha, 0);
    for (int64_t y = 0; y < columns; y++) {
        float *column = c + strided_offset(&job->c_n, j + y);
        for (int64_t x = 0; x < rows; x++) {
            float *to = column + strided_offset(&job->c_m, i + x), value = tile[x * inner->tile_n + y];
            *to = add ? *to + value : value;
        }
    }
}

/* A block of k of one part, while it meets blocks of rows. */
typedef struct Step {
    const void *a, *b; /* of this batch point */
    float *c;
    float *packed_a, *packed_b;
    int64_t k, n_k;
    bool pack_b; /* the first block of rows packs the panels of B as it comes to them: they are used while in L1 */
    bool keep_b; /* there are more blocks of rows: each panel has a place of its own */
} Step;

/* Rows x columns of C; a panel of B is used for all rows before the next. */
static void multiply_block(const ProductJob *job, const Step *s, Range rows, Range columns) {
    const PrtInner *inner = &plan_inner;
    bool add = job->product->accumulate || s->k > 0;
    float *b = s->packed_b;
    pack_block(&job->a, s->a, rows.lo, rows.hi - rows.lo, s->k, s->n_k, s->packed_a);
    for (int64_t j = columns.lo; j < columns.hi; j += inner->tile_n) {
        int64_t n = prt_min(inner->tile_n, columns.hi - j);
        if (s->pack_b) pack_block(&job->b, s->b, j, n, s->k, s->n_k, b);
        const float *a = s->packed_a;
        for (int64_t i = rows.lo; i < rows.hi; i += inner->tile_m, a += s->n_k * inner->panel_m)
            put_tile(job, a, b, s->c, i, prt_min(inner->tile_m, rows.hi - i), j, n, s->n_k, add);
        if (s->keep_b) b += s->n_k * inner->tile_n;
    }
}

static void multiply_part(const ProductJob *job, int thread, int64_t point, Range m, Range n) {
    const PrtInner *inner = &plan_inner;
    int64_t block_m = even_block(m.hi - m.lo, inner->block_m, inner->tile_m);
    int64_t block_n = even_block(n.hi - n.lo, inner->block_n, inner->tile_n);
    Step step = {.a = prt_element(job->a_base, job->a.element, strided_offset(&job->a_batch, point)),
                 .b = prt_element(job->b_base, job->b.element, strided_offset(&job->b_batch, point)),
                 .c = (float *)job->c_base + strided_offset(&job->c_batch, point),
                 .packed_a = (float *)prt_scratch(job->rank, thread),
                 .keep_b = m.hi - m.lo > block_m};
    step.packed_b = step.packed_a + prt_round_up(block_m / inner->tile_m * inner->panel_m * job->block_k, 16);
    for (int64_t j = n.lo; j < n.hi; j += block_n) {
        Range columns = {j, prt_min(j + block_n, n.hi)};
        for (step.k = 0; step.k < job->k; step.k += job->block_k) {
            step.n_k = prt_min(job->block_k, job->k - step.k);
            for (int64_t i = m.lo; i < m.hi; i += block_m) {
                Range rows = {i, prt_min(i + block_m, m.hi)};
                step.pack_b = i == m.lo;
                multiply_block(job, &step, rows, columns);
                if (job->epilogue_in_band && step.k + step.n_k == job->k)
                    job->product->epilogue(job->pointers + 2, point * job->m + rows.lo, point * job->m + rows.hi);
            }
        }
    }
}

/* ---- a narrow C ------------------------------------------------------------------------------------------------ */

enum { NARROW_COLUMNS = 512 }; /* of C that are summed at a time */

/* Rows of sums, rounded into C. */
static void store_narrow(const ProductJob *job, const float *sums, int64_t ld, int64_t point, Range rows,
                         Range columns) {
    int element = job->product->c;
    void *c = prt_element_to(job->c_base, element, strided_offset(&job->c_batch, point));
    for (int64_t i = rows.lo; i < rows.hi; i++, sums += ld) {
        void *row = prt_element_to(c, element, strided_offset(&job->c_m, i));
        for (int64_t j = columns.lo; j < columns.hi;) {
            int64_t run = job->c_direct ? prt_min(strided_run(&job->c_n, j), columns.hi - j) : 1;
            prt_narrow(element, sums + (j - columns.lo), prt_element_to(row, element, strided_offset(&job->c_n, j)),
                       run);
            j += run;
        }
    }
}

/* As multiply_part, but all of k is summed in f32 before an element of C is written, a block of C at a time. */
static void multiply_part_narrow(const ProductJob *job, int thread, int64_t point, Range m, Range n) {
    const PrtInner *inner = &plan_inner;
    int64_t block_m = even_block(m.hi - m.lo, inner->block_m, inner->tile_m);
    int64_t block_n = even_block(n.hi - n.lo, NARROW_COLUMNS, inner->tile_n);
    const void *a = prt_element(job->a_base, job->a.element, strided_offset(&job->a_batch, point));
    const void *b = prt_element(job->b_base, job->b.element, strided_offset(&job->b_batch, point));
    float *packed_a = (float *)prt_scratch(job->rank, thread);
    float *packed_b = packed_a + prt_round_up(block_m / inner->tile_m * inner->panel_m * job->block_k, 16);
    float *sums = packed_b + inner->tile_n * job->block_k;
    for (int64_t j = n.lo; j < n.hi; j += block_n) {
        Range columns = {j, prt_min(j + block_n, n.hi)};
        for (int64_t i = m.lo; i < m.hi; i += block_m) {
            Range rows = {i, prt_min(i + block_m, m.hi)};
            for (int64_t k = 0; k < job->k; k += job->block_k) {
                int64_t n_k = prt_min(job->block_k, job->k - k);
                pack_block(&job->a, a, rows.lo, rows.hi - rows.lo, k, n_k, packed_a);
                for (int64_t y = columns.lo; y < columns.hi; y += inner->tile_n) {
                    pack_block(&job->b, b, y, prt_min(inner->tile_n, columns.hi - y), k, n_k, packed_b);
                    for (int64_t x = 0; x < rows.hi - rows.lo; x += inner->tile_m)
                        inner->tile(packed_a + x / inner->tile_m * n_k * inner->panel_m, packed_b,
                                    sums + x * block_n + (y - columns.lo), n_k, block_n, inner->tile_m, inner->tile_n,
                                    job->product->scale, k > 0);
                }
            }
            store_narrow(job, sums, block_n, point, rows, columns);
        }
    }
}

/* ---- few rows -------------------------------------------------------------------------------------------------- */

/* Rows of B, each times one element of A, are added to C. */
static void add_rows(const ProductJob *job, const float *a, const float *b, float *c, Range n) {
    int64_t row_c = strided_last(&job->c_m), row_a = strided_last(&job->a.lane), k_a = strided_last(&job->a.depth);
    int64_t k_b = strided_last(&job->b.depth);
    for (int64_t j = n.lo; j < n.hi; j += FEW_COLUMNS) {
        int64_t columns = prt_min(FEW_COLUMNS, n.hi - j);
        if (!job->product->accumulate)
            for (int64_t i = 0; i < job->m; i++) memset(c + i * row_c + j, 0, (size_t)columns * sizeof(float));
        for (int64_t k = 0; k < job->k; k++)
            for (int64_t i = 0; i < job->m; i++)
                plan_inner.axpy_row(c + i * row_c + j, b + k * k_b + j, columns,
                                    job->product->scale * a[i * row_a + k * k_a]);
    }
}

static void dot_columns(const ProductJob *job, const float *a, const float *b, float *c, Range n) {
    int64_t row_c = strided_last(&job->c_m), row_a = strided_last(&job->a.lane), column_b = strided_last(&job->b.lane);
    for (int64_t j = n.lo; j < n.hi; j++)
        for (int64_t i = 0; i < job->m; i++) {
            float value = job->product->scale * plan_inner.dot_row(a + i * row_a, b + j * column_b, job->k);
            float *to = c + i * row_c + j;
            *to = job->product->accumulate ? *to + value : value;
        }
}

static void multiply_few(const ProductJob *job, int64_t point, Range n) {
    const float *a = (const float *)job->a_base + strided_offset(&job->a_batch, point),
                *b = (const float *)job->b_base + strided_offset(&job->b_batch, point);
    float *c = (float *)job->c_base + strided_offset(&job->c_batch, point);
    if (job->few == FEW_SUM_OF_ROWS)
        add_rows(job, a, b, c, n);
    else
        dot_columns(job, a, b, c, n);
    if (job->epilogue_in_band) job->product->epilogue(job->pointers + 2, point * job->m, (point + 1) * job->m);
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static void product_task(void *context, int thread, int64_t task) {
    const ProductJob *job = context;
    Range n = part_of(job->n, plan_inner.tile_n, task % job->parts_n, job->parts_n);
    Range m = part_of(job->m, plan_inner.tile_m, task / job->parts_n % job->parts_m, job->parts_m);
    Range batch = part_of(job->batch, 1, task / job->parts_n / job->parts_m, job->parts_batch);
    for (int64_t point = batch.lo; point < batch.hi; point++) {
        if (job->few)
            multiply_few(job, point, n);
        else if (job->product->c)
            multiply_part_narrow(job, thread, point, m, n);
        else
            multiply_part(job, thread, point, m, n);
    }
}

void prt_product(PrtRank *rank, const PrtProduct *product, void *const *pointers) {
    ProductJob job = describe(rank, product, pointers);
    if (rank->scratch_bytes < PRT_SCRATCH_BYTES)
        prt_fail(rank, "products need %d bytes of scratch memory a thread, the plan has %lld", PRT_SCRATCH_BYTES,
                 (long long)rank->scratch_bytes);
    choose_parts(&job);
    prt_tasks(rank, product_task, &job, job.parts_batch * job.parts_m * job.parts_n);
    if (product->epilogue == NULL || job.epilogue_in_band) return;
    int64_t rows = job.rows_are_m ? job.m : job.n, columns = job.rows_are_m ? job.n : job.m;
    prt_loop(rank, product->epilogue, pointers + 2, job.batch * rows, prt_ceil_div(EPILOGUE_GRAIN, columns));
}
