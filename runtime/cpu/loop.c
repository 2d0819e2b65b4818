/* Runs a generated loop kernel over all its rows, cut evenly for the rank's threads.
 *
 * A row's result does not depend on the cut (ir/loop.h). Bounds are multiples of 16, as kernels whose lanes are rows
 * need; each part has at least `grain` rows, below which a second thread does not pay. */
#include "cpu/threads.h"

enum { LANES = 16 };

typedef struct LoopJob {
    PrtKernel *kernel;
    void *const *pointers;
    int64_t rows, part;
} LoopJob;

static void loop_task(void *context, int thread, int64_t task) {
    (void)thread;
    const LoopJob *job = context;
    int64_t lo = task * job->part;
    job->kernel(job->pointers, lo, prt_min(lo + job->part, job->rows));
}

void prt_loop(PrtRank *rank, PrtKernel *kernel, void *const *pointers, int64_t rows, int64_t grain) {
    if (rows <= 0) return;
    int64_t part = prt_max(prt_ceil_div(rows, rank->threads), prt_max(grain, 1));
    LoopJob job = {kernel, pointers, rows, prt_round_up(part, LANES)};
    prt_tasks(rank, loop_task, &job, prt_ceil_div(rows, job.part));
}
