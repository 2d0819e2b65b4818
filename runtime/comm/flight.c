/* Collectives that are started and finished later.
 *
 * A start writes what it is about into the rank's ring, counts it as posted, and goes on. A flight that all ranks of
 * the group have posted can be moved: each rank does its own share. It does so at its next start, while the operands
 * are still in a cache, or at the finish. A finish waits until all ranks have posted, moves what is left, and waits
 * until all have moved: then the operands and results are this rank's alone again. */
#include "comm/comm.h"

typedef struct Axis {
    PrtRank *rank;
    PrtGroup group;
    PrtPosts *posts, *mine; /* of all ranks, by number; of this one */
} Axis;

static Axis axis_of(PrtRank *rank, int axis) {
    PrtPosts *posts = &rank->job->posts[axis * rank->n_ranks];
    return (Axis){rank, prt_group(rank, axis), posts, &posts[rank->number]};
}

static PrtPosts *posts_of(const Axis *a, int j) { return &a->posts[a->group.first + j * a->group.stride]; }

/* Counters wrap round; no two are further apart than the ring is long. */
static bool reached(unsigned counter, unsigned number) { return (int)(counter - number) >= 0; }

static bool all_posted(const Axis *a, unsigned number) {
    for (int j = 0; j < a->group.size; j++)
        if (!reached(atomic_load_explicit(&posts_of(a, j)->posted, memory_order_acquire), number)) return false;
    return true;
}

static void count(atomic_uint *counter, atomic_uint *waiting) {
    prt_change(counter, waiting, atomic_load(counter) + 1);
}

static void move(const Axis *a, unsigned number) {
    prt_flight_move(a->rank, &a->group, a->posts, number);
    count(&a->mine->moved, &a->mine->moved_waiting);
}

static void wait_for(const Axis *a, int j, bool moved, unsigned number, const char *where) {
    PrtPosts *posts = posts_of(a, j);
    atomic_uint *word = moved ? &posts->moved : &posts->posted;
    atomic_uint *waiting = moved ? &posts->moved_waiting : &posts->posted_waiting;
    for (unsigned now; !reached(now = atomic_load(word), number);)
        if (!prt_wait_change(a->rank, word, waiting, now)) {
            char missing[256];
            prt_describe_rank(a->rank->job, a->group.first + j * a->group.stride, missing, sizeof missing);
            prt_fail(a->rank, "waited %.0f s in %s (number %u of those started on its axis): missing %s",
                     a->rank->job->timeout, where, number, missing);
        }
}

void prt_collective_start(PrtRank *rank, const PrtCollective *c, const void *in, void *out) {
    if (prt_collective_alone(rank, c, in, out)) return;
    if (rank->flying[c->axis] == PRT_FLIGHTS) prt_collective_finish(rank, c->axis);
    Axis a = axis_of(rank, c->axis);
    unsigned number = atomic_load(&a.mine->posted) + 1;
    a.mine->ring[number % PRT_FLIGHTS] = (PrtFlight){c, in, out};
    rank->flying[c->axis]++;
    count(&a.mine->posted, &a.mine->posted_waiting);
    for (unsigned next; (next = atomic_load(&a.mine->moved) + 1) != number + 1 && all_posted(&a, next);) move(&a, next);
}

void prt_collective_finish(PrtRank *rank, int64_t axis) {
    if (!rank->flying[axis]) return;
    Axis a = axis_of(rank, (int)axis);
    unsigned last = atomic_load(&a.mine->posted);
    PrtStatus *status = &rank->job->status[rank->number];
    const char *where = a.mine->ring[last % PRT_FLIGHTS].what->where, *outer = atomic_exchange(&status->where, where);
    for (unsigned next; (next = atomic_load(&a.mine->moved) + 1) != last + 1;) {
        const char *here = a.mine->ring[next % PRT_FLIGHTS].what->where;
        atomic_store(&status->where, here);
        for (int j = 0; j < a.group.size; j++) wait_for(&a, j, false, next, here);
        move(&a, next);
    }
    for (int j = 0; j < a.group.size; j++) wait_for(&a, j, true, last, where);
    rank->flying[axis] = 0;
    atomic_store(&status->where, outer);
}
