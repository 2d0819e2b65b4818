/* Ours, for bench_collectives.py: ranks as processes with shared arenas, as in a compiled program.
 *
 *   bench_collectives RANKS MOST_BYTES [SPIN]
 *
 * Reads lines "KIND BYTES ROUNDS" (KIND as PrtCollectiveKind; BYTES of the larger buffer of a rank) and answers each
 * with the median over the rounds of the slowest rank's seconds. An all-reduce works in place; the others go from one
 * buffer to another. The first round checks the values. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern const PrtInner plan_inner;
const PrtInner plan_inner = {.tile_m = 1};

enum { MOST_RANKS = 64, MOST_ROUNDS = 4096 };

typedef struct Order {
    int kind, rounds;
    int64_t elements;
    double seconds[MOST_RANKS]; /* of the round, by rank */
} Order;

typedef struct Bench {
    PrtRank rank;
    Order *order;
    float *in, *out;
    int64_t most; /* elements */
} Bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *x, const void *y) {
    return (*(const double *)x > *(const double *)y) - (*(const double *)x < *(const double *)y);
}

static void *shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(1);
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static float value_of(int rank, int64_t i) { return (float)(rank + 1 + i % 7); }

static void check(const Bench *b, const PrtCollective *c) {
    int n = b->rank.n_ranks, me = b->rank.number;
    float all = 0; /* of the ranks' own parts of a sum */
    for (int r = 0; r < n; r++) all += (float)(r + 1);
    int64_t count = c->kind == PRT_REDUCE_SCATTER ? c->inner : c->elements;
    for (int64_t i = 0; i < count; i++) {
        int from = (int)(i / c->inner);
        float expected = c->kind == PRT_ALL_REDUCE       ? all + (float)(n * (i % 7))
                         : c->kind == PRT_ALL_GATHER     ? value_of(from, i % c->inner)
                         : c->kind == PRT_REDUCE_SCATTER ? all + (float)(n * ((me * c->inner + i) % 7))
                                                         : value_of(from, me * c->inner + i % c->inner);
        if (b->out[i] != expected) prt_fail((PrtRank *)(uintptr_t)&b->rank, "wrong value at %lld", (long long)i);
    }
}

/* Descriptions are constants of a program: others read them while their rank has gone on. */
static PrtCollective described;

static void run(Bench *b, double *medians) {
    Order *order = b->order;
    int n = b->rank.n_ranks;
    int64_t part = order->elements / n, whole = part * n;
    PrtCollective *c = &described;
    *c = (PrtCollective){order->kind, 0, 0, 0, whole, 1, order->kind == PRT_ALL_REDUCE ? whole : part, "the benchmark"};
    for (int64_t i = 0; i < whole; i++) b->in[i] = value_of(b->rank.number, i);
    float *out = b->out;
    b->out = order->kind == PRT_ALL_REDUCE ? b->in : out;
    for (int i = -2; i < order->rounds; i++) {
        prt_barrier(&b->rank, PRT_WORLD, "the benchmark");
        double start = now();
        prt_collective(&b->rank, c, b->in, b->out);
        order->seconds[b->rank.number] = now() - start;
        if (i == -2) check(b, c);
        prt_barrier(&b->rank, PRT_WORLD, "the benchmark");
        for (int r = 0; r < n && i >= 0; r++)
            if (r == 0 || order->seconds[r] > medians[i]) medians[i] = order->seconds[r];
        prt_barrier(&b->rank, PRT_WORLD, "the benchmark");
    }
    b->out = out;
}

static void rank_main(Bench *b) {
    static double medians[MOST_ROUNDS];
    for (;;) {
        char line[128];
        bool leads = b->rank.number == 0, more = true;
        if (leads) {
            long long bytes;
            more = fgets(line, sizeof line, stdin) &&
                   sscanf(line, "%d %lld %d", &b->order->kind, &bytes, &b->order->rounds) == 3 &&
                   b->order->rounds <= MOST_ROUNDS && bytes / 4 <= b->most;
            b->order->elements = more ? bytes / 4 : 0;
        }
        if (prt_decide(&b->rank, more, "the next order") == 0) return;
        run(b, medians);
        if (!leads) continue;
        qsort(medians, (size_t)b->order->rounds, sizeof *medians, by_value);
        printf("%.9f\n", medians[b->order->rounds / 2]);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    int n = argc > 2 ? atoi(argv[1]) : 0;
    int64_t bytes = argc > 2 ? atoll(argv[2]) : 0;
    if (n < 1 || n > MOST_RANKS || bytes < 4) return 2;
    PrtJob *job = prt_job_init(shared((size_t)prt_job_bytes(n, 1)), n, 1);
    job->spin = argc > 3 ? atoi(argv[3]) : prt_job_spin(n, (int)sysconf(_SC_NPROCESSORS_ONLN));
    Order *order = shared(sizeof *order);
    Bench *ranks = calloc((size_t)n, sizeof *ranks);
    if (!ranks) return 1;
    for (int r = 0; r < n; r++) {
        char *arena = shared((size_t)bytes * 2);
        ranks[r] = (Bench){.order = order, .in = (float *)(void *)arena, .most = bytes / 4};
        ranks[r].out = ranks[r].in + bytes / 4;
        ranks[r].rank = (PrtRank){.number = r,
                                  .n_ranks = n,
                                  .n_axes = 1,
                                  .sizes = {n},
                                  .coords = {r},
                                  .threads = 1,
                                  .arena = arena,
                                  .arena_bytes = bytes * 2,
                                  .job = job};
    }
    for (int r = 1; r < n; r++)
        if (fork() == 0) {
            rank_main(&ranks[r]);
            _exit(0);
        }
    rank_main(&ranks[0]);
    while (wait(NULL) > 0) continue;
    return 0;
}
