/* The worker threads of one rank.
 *
 * A job is a task function, its context and a number of tasks. `state` holds the job's number and the next free task
 * in one word, so that a thread that wakes late cannot take a task of a job it did not read: its compare-and-swap
 * fails. While the caller writes the next job, the word is closed: no thread takes a task of the old number with the
 * new job's function or count. Waiting threads look at `wake` for a moment (the next kernel usually comes within
 * microseconds), then sleep on it; an idle rank costs nothing. The caller runs tasks too: a job is done soon even when
 * no worker gets a core. */
#include "cpu/threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPIN = 1000 };                      /* pauses; some 20 to 50 us */
static const uint64_t CLOSED = UINT32_MAX; /* as the next task: above every number of tasks */

typedef struct Worker {
    PrtPool *pool;
    pthread_t thread;
    int number;
} Worker;

struct PrtPool {
    int threads, spin;
    _Alignas(64) _Atomic uint64_t state;    /* job number << 32 | next task */
    _Alignas(64) _Atomic uint32_t wake;     /* number of the newest job; workers sleep on it */
    _Atomic uint32_t sleeping;              /* workers that do */
    _Alignas(64) _Atomic uint32_t finished; /* tasks of this job; the caller sleeps on it */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic(PrtTask *) task;
    _Atomic(void *) context;
    _Atomic uint32_t n_tasks;
    _Atomic bool stop;
    Worker workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Takes and runs tasks of the current job until none is left. */
static void run_tasks(PrtPool *pool, int thread) {
    uint64_t state = atomic_load(&pool->state);
    for (;;) {
        PrtTask *task = atomic_load_explicit(&pool->task, memory_order_acquire);
        void *context = atomic_load_explicit(&pool->context, memory_order_acquire);
        uint32_t n = atomic_load_explicit(&pool->n_tasks, memory_order_acquire), next = (uint32_t)state;
        if (next >= n) {
            uint64_t now = atomic_load(&pool->state);
            if (now == state) return;
            state = now; /* n may have been another job's */
            continue;
        }
        if (!atomic_compare_exchange_weak(&pool->state, &state, state + 1)) continue;
        task(context, thread, next);
        if (atomic_fetch_add(&pool->finished, 1) + 1 == n && atomic_load(&pool->caller_sleeps))
            futex_wake(&pool->finished);
        state = atomic_load(&pool->state);
    }
}

static void wait_for_job(PrtPool *pool, uint32_t seen) {
    for (int i = 0; i < pool->spin; i++) {
        if (atomic_load_explicit(&pool->wake, memory_order_acquire) != seen) return;
        relax();
    }
    atomic_fetch_add(&pool->sleeping, 1);
    while (atomic_load(&pool->wake) == seen) futex_wait(&pool->wake, seen);
    atomic_fetch_sub(&pool->sleeping, 1);
}

static void wait_for_end(PrtPool *pool, uint32_t n) {
    for (int i = 0; i < pool->spin; i++) {
        if (atomic_load_explicit(&pool->finished, memory_order_acquire) == n) return;
        relax();
    }
    atomic_store(&pool->caller_sleeps, 1);
    for (uint32_t done; (done = atomic_load(&pool->finished)) != n;) futex_wait(&pool->finished, done);
    atomic_store(&pool->caller_sleeps, 0);
}

static void *worker_main(void *argument) {
    Worker *worker = argument;
    PrtPool *pool = worker->pool;
    for (uint32_t seen = 0;;) {
        wait_for_job(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        seen = atomic_load(&pool->wake);
        run_tasks(pool, worker->number);
    }
}

static void pin(pthread_t thread, const int *cpus, int n_cpus, int number) {
    if (n_cpus == 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpus[number % n_cpus], &set);
    pthread_setaffinity_np(thread, sizeof set, &set); /* best effort: a container may forbid it */
}

static void wake_workers(PrtPool *pool) {
    atomic_fetch_add(&pool->wake, 1);
    if (atomic_load(&pool->sleeping) > 0) futex_wake(&pool->wake);
}

static void stop_workers(PrtPool *pool, int n) {
    atomic_store(&pool->stop, true);
    wake_workers(pool);
    for (int i = 0; i < n; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool);
}

PrtPool *prt_pool_open(int threads, const int *cpus, int n_cpus) {
    pin(pthread_self(), cpus, n_cpus, 0);
    errno = 0;
    if (threads <= 1) return NULL;
    size_t bytes = sizeof(PrtPool) + (size_t)(threads - 1) * sizeof(Worker);
    PrtPool *pool = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (pool == NULL) return NULL;
    *pool = (PrtPool){.threads = threads, .spin = n_cpus > 0 && n_cpus < threads ? 0 : SPIN};
    sigset_t all, before; /* signals belong to the caller's thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 0, error = 0;
    while (started < threads - 1 && error == 0) {
        Worker *worker = &pool->workers[started];
        *worker = (Worker){.pool = pool, .number = started + 1};
        error = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (error == 0) pin(worker->thread, cpus, n_cpus, ++started);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return pool;
    stop_workers(pool, started);
    errno = error;
    return NULL;
}

void prt_pool_close(PrtPool *pool) {
    if (pool != NULL) stop_workers(pool, pool->threads - 1);
}

/* A job of at most 2^31 tasks. */
static void pool_run(PrtPool *pool, PrtTask *task, void *context, uint32_t n) {
    uint64_t job = (atomic_load_explicit(&pool->state, memory_order_relaxed) >> 32) + 1;
    atomic_store(&pool->state, job << 32 | CLOSED);
    atomic_store_explicit(&pool->task, task, memory_order_release); /* who reads these sees the word closed */
    atomic_store_explicit(&pool->context, context, memory_order_release);
    atomic_store_explicit(&pool->n_tasks, n, memory_order_release);
    atomic_store_explicit(&pool->finished, 0, memory_order_relaxed);
    atomic_store(&pool->state, job << 32);
    wake_workers(pool);
    run_tasks(pool, 0);
    wait_for_end(pool, n);
}

void prt_tasks(PrtRank *rank, PrtTask *task, void *context, int64_t n) {
    if (rank->pool == NULL || n <= 1) {
        for (int64_t i = 0; i < n; i++) task(context, 0, i);
        return;
    }
    if (n > INT32_MAX) prt_fail(rank, "a kernel of %lld tasks: at most 2147483647 are possible", (long long)n);
    pool_run(rank->pool, task, context, (uint32_t)n);
}
