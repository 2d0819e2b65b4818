/* Work for the threads of one rank: cut into tasks whose results do not depend on who runs them. */
#ifndef PRT_THREADS_H
#define PRT_THREADS_H

#include "core/rank.h"

/* Runs one task; `thread` is 0 .. rank->threads-1 and names the scratch memory that may be used. */
typedef void PrtTask(void *context, int thread, int64_t task);

/* Runs tasks 0 .. n-1, each once, on the rank's threads, and returns when all are done; the caller takes part. Threads
 * take the next task when they are free, so tasks should write disjoint memory and be cut by the problem alone (or
 * not depend on how it is cut). Not for use inside a task. */
void prt_tasks(PrtRank *rank, PrtTask *task, void *context, int64_t n);

static inline char *prt_scratch(const PrtRank *rank, int thread) {
    return rank->scratch + (int64_t)thread * rank->scratch_bytes;
}
static inline int64_t prt_min(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t prt_max(int64_t x, int64_t y) { return x > y ? x : y; }
static inline int64_t prt_ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static inline int64_t prt_round_up(int64_t x, int64_t y) { return prt_ceil_div(x, y) * y; }

#endif
