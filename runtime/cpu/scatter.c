/* out[index[i] - first, :] += rows[i, :] for i in order: the gradient of a lookup.
 *
 * Cut by columns: each thread goes through all rows, so that equal indices are added in order whatever the threads.
 * Rows that another rank holds (outside [0, n_out)) are skipped. */
#include "cpu/narrow.h"
#include "cpu/threads.h"

#include <string.h>

enum { WIDE = 512 };   /* narrow elements that are converted at a time */
enum { COLUMNS = 16 }; /* a cache line: threads do not share one */

typedef struct ScatterJob {
    const PrtScatter *scatter;
    float *out;
    const int32_t *index;
    const void *rows;
    int64_t first, part;
} ScatterJob;

/* Columns [lo, lo + n) of row i are added to `out`. */
static void add_row(const ScatterJob *job, int64_t i, float *out, int64_t lo, int64_t n) {
    int element = job->scatter->element;
    const void *row = prt_element(job->rows, element, i * job->scatter->row_stride + lo);
    if (element == PRT_ELEMENT_F32) {
        plan_inner.axpy_row(out, row, n, 1.0f);
        return;
    }
    float wide[WIDE];
    for (int64_t j = 0; j < n; j += WIDE) {
        int64_t columns = prt_min(WIDE, n - j);
        prt_widen(element, prt_element(row, element, j), wide, columns);
        plan_inner.axpy_row(out + j, wide, columns, 1.0f);
    }
}

static void scatter_task(void *context, int thread, int64_t task) {
    (void)thread;
    const ScatterJob *job = context;
    const PrtScatter *s = job->scatter;
    int64_t lo = task * job->part, n = prt_min(job->part, s->width - lo);
    if (!s->accumulate)
        for (int64_t i = 0; i < s->n_out; i++) memset(job->out + i * s->out_stride + lo, 0, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < s->n_rows; i++) {
        int64_t to = job->index[i] - job->first;
        if (to < 0 || to >= s->n_out) continue;
        add_row(job, i, job->out + to * s->out_stride + lo, lo, n);
    }
}

void prt_scatter(PrtRank *rank, const PrtScatter *scatter, void *const *pointers) {
    int64_t first = scatter->coordinate_axis < 0 ? 0 : rank->coords[scatter->coordinate_axis] * scatter->n_out;
    int64_t part = prt_round_up(prt_ceil_div(scatter->width, rank->threads), COLUMNS);
    ScatterJob job = {scatter, pointers[0], pointers[1], pointers[2], first, part};
    if (scatter->width > 0) prt_tasks(rank, scatter_task, &job, prt_ceil_div(scatter->width, part));
}
