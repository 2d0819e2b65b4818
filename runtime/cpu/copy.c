/* Copies memory; large copies in parts, since one core cannot use all of the memory's bandwidth. */
#include "cpu/threads.h"

#include <string.h>

enum { PART_BYTES = 256 << 10 };

typedef struct CopyJob {
    char *out;
    const char *in;
    int64_t bytes, part;
} CopyJob;

static void copy_task(void *context, int thread, int64_t task) {
    (void)thread;
    const CopyJob *job = context;
    int64_t lo = task * job->part;
    memcpy(job->out + lo, job->in + lo, (size_t)prt_min(job->part, job->bytes - lo));
}

void prt_copy(PrtRank *rank, void *out, const void *in, int64_t bytes) {
    if (bytes <= 0 || out == in) return;
    int64_t part = prt_max(prt_ceil_div(bytes, rank->threads), PART_BYTES);
    CopyJob job = {out, in, bytes, prt_round_up(part, 64)};
    prt_tasks(rank, copy_task, &job, prt_ceil_div(bytes, job.part));
}
