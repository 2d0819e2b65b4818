/* The control block's layout, and the ways out of a job. */
#include "core/job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int64_t prt_job_bytes(int n_ranks, int n_axes) {
    size_t groups = (size_t)n_ranks * (size_t)(n_axes + 1);
    size_t bytes = (sizeof(PrtJob) + 63) / 64 * 64;
    bytes += (size_t)n_ranks * sizeof(PrtStatus) + groups * (sizeof(PrtBarrier) + sizeof(PrtSlot));
    bytes += (size_t)n_ranks * (size_t)n_axes * sizeof(PrtPosts);
    return (int64_t)((bytes + 4095) / 4096 * 4096);
}

PrtJob *prt_job_init(void *memory, int n_ranks, int n_axes) {
    PrtJob *job = memory;
    size_t groups = (size_t)n_ranks * (size_t)(n_axes + 1);
    char *at = (char *)memory + (sizeof(PrtJob) + 63) / 64 * 64;
    job->n_ranks = n_ranks;
    job->n_axes = n_axes;
    job->timeout = 600;
    job->spin = prt_job_spin(1, 1);
    job->status = (PrtStatus *)(void *)at;
    at += (size_t)n_ranks * sizeof(PrtStatus);
    job->barriers = (PrtBarrier *)(void *)at;
    at += groups * sizeof(PrtBarrier);
    job->slots = (PrtSlot *)(void *)at;
    at += groups * sizeof(PrtSlot);
    job->posts = (PrtPosts *)(void *)at;
    return job;
}

/* Where each thread has a core, the others are about to come; else one of them waits for this core. */
int prt_job_spin(int threads, int cores) { return threads <= cores ? 500 : 20; }

bool prt_job_first(PrtJob *job, int rank, const char *message) {
    int none = 0;
    bool first = atomic_compare_exchange_strong(&job->first, &none, rank + 1);
    if (first) {
        snprintf(job->message, sizeof job->message, "%s", message);
        atomic_store(&job->message_ready, 1);
    }
    atomic_store(&job->abort, 1);
    return first;
}

_Noreturn void prt_leave(PrtRank *rank, int status) {
    if (rank->job && rank->job->leave) rank->job->leave(rank, status);
    fflush(NULL);
    _exit(status);
}

_Noreturn void prt_fail(PrtRank *rank, const char *format, ...) {
    char message[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    if (!rank->job) fprintf(stderr, "error: rank %d: %s\n", rank->number, message);
    bool first = !rank->job || prt_job_first(rank->job, rank->number, message);
    prt_leave(rank, first ? PRT_EXIT_FAILED : PRT_EXIT_ABORTED);
}

void *prt_need(PrtRank *rank, void *p) {
    if (!p) prt_fail(rank, "out of memory");
    return p;
}
