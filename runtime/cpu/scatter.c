/* out[index[i] - first, :] += rows[i, :] for i in order: the gradient of a lookup.
 *
 * Cut by columns: each thread goes through all rows, so that equal indices are added in order whatever the threads.
 * Rows that another rank holds (outside [0, n_out)) are skipped. */
#include "cpu/threads.h"

#include <string.h>

enum { COLUMNS = 16 }; /* a cache line: threads do not share one */

typedef struct ScatterJob {
    const PrtScatter *scatter;
    float *out;
    const int32_t *index;
    const float *rows;
    int64_t first, part;
} ScatterJob;

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
        plan_inner.axpy_row(job->out + to * s->out_stride + lo, job->rows + i * s->row_stride + lo, n, 1.0f);
    }
}

void prt_scatter(PrtRank *rank, const PrtScatter *scatter, void *const *pointers) {
    int64_t first = scatter->coordinate_axis < 0 ? 0 : rank->coords[scatter->coordinate_axis] * scatter->n_out;
    int64_t part = prt_round_up(prt_ceil_div(scatter->width, rank->threads), COLUMNS);
    ScatterJob job = {scatter, pointers[0], pointers[1], pointers[2], first, part};
    if (scatter->width > 0) prt_tasks(rank, scatter_task, &job, prt_ceil_div(scatter->width, part));
}
