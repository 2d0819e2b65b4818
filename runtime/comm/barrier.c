/* Groups and barriers. A waiting rank first spins, then gives its core to who wants it, then sleeps on a futex in short
 * turns, looking at each turn whether the job was given up and whether the others are overdue. Spinning is short: when
 * the one it waits for has no core, every pause delays it, and where nobody else wants the core a yield returns at
 * once. */
#include "comm/comm.h"

#include "core/util.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const double YIELDING = 200e-6; /* seconds; to sleep and to be woken costs some tens of microseconds */

PrtGroup prt_group(const PrtRank *rank, int axis) {
    if (axis == PRT_WORLD) {
        return (PrtGroup){.slot = rank->n_axes, .first = 0, .stride = 1, .size = rank->n_ranks, .me = rank->number};
    }
    int stride = 1;
    for (int a = axis + 1; a < rank->n_axes; a++) stride *= rank->sizes[a];
    int me = rank->coords[axis];
    return (PrtGroup){
        .slot = axis, .first = rank->number - me * stride, .stride = stride, .size = rank->sizes[axis], .me = me};
}

static void futex_sleep(atomic_uint *word, unsigned value, long nanoseconds) {
    struct timespec time = {.tv_nsec = nanoseconds};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &time, NULL, 0);
}

static void futex_wake(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0); }

static inline void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int prt_describe_rank(const PrtJob *job, int number, char *text, size_t size) {
    const PrtStatus *status = &job->status[number];
    const char *doing = atomic_load(&status->doing), *where = atomic_load(&status->where);
    return snprintf(text, size, "rank %d (step %lld, %s%s%s)", number, (long long)atomic_load(&status->step),
                    doing ? doing : "starting", where ? ", in " : "", where ? where : "");
}

/* "rank 1 (in F of micro-batch 2, step 7), rank 3 (...)" of those that have not come. */
static void name_missing(const PrtJob *job, const PrtGroup *group, unsigned long long phase, char *text, size_t size) {
    size_t at = 0;
    text[0] = 0;
    for (int j = 0; j < group->size && at + 1 < size; j++) {
        int other = group->first + j * group->stride;
        if (atomic_load(&job->slots[group->slot * job->n_ranks + other].phase) >= phase) continue;
        if (at) at += (size_t)snprintf(text + at, size - at, ", ");
        if (at < size) at += (size_t)prt_describe_rank(job, other, text + at, size - at);
    }
}

static void overdue(PrtRank *rank, const PrtGroup *group, unsigned long long phase, const char *where) {
    char missing[1024];
    name_missing(rank->job, group, phase, missing, sizeof missing);
    prt_fail(rank, "waited %.0f s in %s (number %llu of its group): missing %s", rank->job->timeout, where,
             (unsigned long long)rank->sequence[group->slot], missing);
}

/* Until the word is no longer `value`; false when the job's patience is over. */
bool prt_wait_change(PrtRank *rank, atomic_uint *word, atomic_uint *waiting, unsigned value) {
    PrtJob *job = rank->job;
    for (int i = 0; i < job->spin; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
        pause_core();
    }
    double start = prt_now();
    for (int i = 0; i % 16 || prt_now() - start < YIELDING; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
        if (atomic_load_explicit(&job->abort, memory_order_relaxed)) prt_leave(rank, PRT_EXIT_ABORTED);
        sched_yield();
    }
    atomic_fetch_add(waiting, 1);
    while (atomic_load(word) == value) {
        bool late = prt_now() - start > job->timeout;
        if (atomic_load(&job->abort) || late) atomic_fetch_sub(waiting, 1);
        if (atomic_load(&job->abort)) prt_leave(rank, PRT_EXIT_ABORTED);
        if (late) return false;
        futex_sleep(word, value, 20 * 1000 * 1000);
    }
    atomic_fetch_sub(waiting, 1);
    return true;
}

void prt_change(atomic_uint *word, atomic_uint *waiting, unsigned value) {
    atomic_store(word, value);
    if (atomic_load(waiting)) futex_wake(word);
}

void prt_barrier(PrtRank *rank, int axis, const char *where) {
    PrtJob *job = rank->job;
    PrtGroup group = prt_group(rank, axis);
    if (group.size == 1 || !job) return;
    PrtStatus *status = &job->status[rank->number];
    const char *outer = atomic_exchange(&status->where, where);
    PrtBarrier *barrier = &job->barriers[group.slot * job->n_ranks + group.first];
    PrtSlot *slot = &job->slots[group.slot * job->n_ranks + rank->number];
    unsigned generation = atomic_load(&barrier->generation);
    unsigned long long phase = atomic_fetch_add(&slot->phase, 1) + 1;
    if (atomic_fetch_add(&barrier->arrived, 1) + 1 == (unsigned)group.size) {
        atomic_store(&barrier->arrived, 0);
        prt_change(&barrier->generation, &barrier->waiting, generation + 1);
    } else {
        if (!prt_wait_change(rank, &barrier->generation, &barrier->waiting, generation))
            overdue(rank, &group, phase, where);
    }
    atomic_store(&status->where, outer);
}

/* Two places in turn, so that one meeting is enough: a rank shows its next number while another still reads these, but
 * the one after only when all have met again. */
int prt_show(PrtRank *rank, int64_t number, const char *where) {
    int turn = (int)(rank->sequence[rank->n_axes]++ & 1);
    if (!rank->job) return turn;
    rank->job->status[rank->number].shown[turn] = number;
    prt_barrier(rank, PRT_WORLD, where);
    return turn;
}

int64_t prt_shown(const PrtRank *rank, int turn, int from) { return rank->job->status[from].shown[turn]; }

int64_t prt_vote(PrtRank *rank, int64_t number, const char *where) {
    int turn = prt_show(rank, number, where);
    for (int i = 0; rank->job && i < rank->n_ranks; i++) {
        int64_t other = prt_shown(rank, turn, i);
        if (other > number) number = other;
    }
    return number;
}

int64_t prt_decide(PrtRank *rank, int64_t number, const char *where) {
    int turn = prt_show(rank, number, where);
    return rank->job ? prt_shown(rank, turn, 0) : number;
}
