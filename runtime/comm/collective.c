/* prt_collective: all-reduce, all-gather, reduce-scatter and all-to-all over shared memory.
 *
 * Every rank shows its addresses in its slot, meets the others, moves or sums its share straight from and to their
 * arenas, and meets them again. Small all-reduces go by value through the slots: one meeting, two sets of values in
 * turn (a rank can be at most one collective ahead). Sums are in the order of the ranks. */
#include "comm/comm.h"

#include "log/trace.h"

#include <string.h>

#define CHUNK 2048 /* elements summed at a time: stays in the first-level cache */
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#undef CLONES
#define CLONES
#endif

static const char *const kind_name[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};

CLONES static void combine_f32(float *restrict sum, const float *restrict x, int64_t n, int reduce) {
    if (reduce == 0) {
        for (int64_t i = 0; i < n; i++) sum[i] += x[i];
    } else if (reduce == 1) {
        for (int64_t i = 0; i < n; i++) sum[i] = x[i] > sum[i] || x[i] != x[i] ? x[i] : sum[i];
    } else {
        for (int64_t i = 0; i < n; i++) sum[i] = x[i] < sum[i] || x[i] != x[i] ? x[i] : sum[i];
    }
}

CLONES static void combine_i32(int32_t *restrict sum, const int32_t *restrict x, int64_t n, int reduce) {
    if (reduce == 0) {
        for (int64_t i = 0; i < n; i++) sum[i] = (int32_t)((uint32_t)sum[i] + (uint32_t)x[i]);
    } else if (reduce == 1) {
        for (int64_t i = 0; i < n; i++) sum[i] = x[i] > sum[i] ? x[i] : sum[i];
    } else if (reduce == 2) {
        for (int64_t i = 0; i < n; i++) sum[i] = x[i] < sum[i] ? x[i] : sum[i];
    } else {
        for (int64_t i = 0; i < n; i++) sum[i] |= x[i];
    }
}

static void combine(const PrtCollective *c, void *sum, const void *x, int64_t n) {
    if (c->dtype == 0)
        combine_f32(sum, x, n, c->reduce);
    else
        combine_i32(sum, x, n, c->reduce);
}

typedef struct Meeting {
    PrtRank *rank;
    const PrtCollective *what;
    PrtGroup group;
    PrtSlot *slots; /* of the axis, by rank number */
} Meeting;

static const PrtSlot *slot_of(const Meeting *m, int j) { return &m->slots[m->group.first + j * m->group.stride]; }

/* Every rank of the group must be in the same collective: else the program is wrong, and says so at once. */
static void check_same(const Meeting *m) {
    const PrtSlot *mine = slot_of(m, m->group.me);
    uint64_t sequence = m->rank->sequence[m->group.slot];
    int turn = (int)(sequence & 1);
    for (int j = 0; j < m->group.size; j++) {
        const PrtSlot *other = slot_of(m, j);
        const PrtCollective *a = mine->what[turn], *b = other->what[turn];
        if (a == b || !b) continue;
        if (a->kind == b->kind && a->elements == b->elements && a->outer == b->outer && a->inner == b->inner &&
            a->dtype == b->dtype && a->reduce == b->reduce) {
            continue;
        }
        prt_fail(
            m->rank,
            "collective %llu does not match: rank %d is in %s (%s, %lld elements), rank %d in %s (%s, %lld elements)",
            (unsigned long long)sequence, m->rank->number, a->where, kind_name[a->kind], (long long)a->elements,
            m->group.first + j * m->group.stride, b->where, kind_name[b->kind], (long long)b->elements);
    }
}

/* sum over the group of `n` elements at `offset` of each rank's input, into `sum` (the first n of it). */
static void reduce_chunk(const Meeting *m, int64_t offset, int64_t n, uint32_t *sum) {
    memcpy(sum, (const uint32_t *)slot_of(m, 0)->in + offset, (size_t)n * 4);
    for (int j = 1; j < m->group.size; j++) combine(m->what, sum, (const uint32_t *)slot_of(m, j)->in + offset, n);
}

/* A kernel for prt_loop: rows are chunks of this rank's share [*pointers[1], *pointers[2]). */
static void all_reduce_rows(void *const *pointers, int64_t first, int64_t last) {
    const Meeting *m = pointers[0];
    int64_t start = *(const int64_t *)pointers[1], end = *(const int64_t *)pointers[2];
    uint32_t sum[CHUNK];
    for (int64_t chunk = first; chunk < last; chunk++) {
        int64_t lo = start + chunk * CHUNK, n = end - lo < CHUNK ? end - lo : CHUNK;
        reduce_chunk(m, lo, n, sum);
        for (int j = 0; j < m->group.size; j++) memcpy((uint32_t *)slot_of(m, j)->out + lo, sum, (size_t)n * 4);
    }
}

static void all_reduce(const Meeting *m) {
    int64_t n = m->what->elements, lines = (n + 15) / 16; /* of the cache: no two ranks write the same */
    int64_t lo = lines * m->group.me / m->group.size * 16, hi = lines * (m->group.me + 1) / m->group.size * 16;
    if (hi > n) hi = n;
    void *pointers[] = {(void *)(uintptr_t)m, &lo, &hi};
    int64_t chunks = (hi - lo + CHUNK - 1) / CHUNK;
    if (m->rank->pool)
        prt_loop(m->rank, all_reduce_rows, pointers, chunks, 16);
    else
        all_reduce_rows(pointers, 0, chunks);
}

static void reduce_scatter(const Meeting *m) {
    const PrtCollective *c = m->what;
    uint32_t *out = slot_of(m, m->group.me)->out;
    for (int64_t o = 0; o < c->outer; o++) {
        int64_t from = (o * m->group.size + m->group.me) * c->inner;
        for (int64_t i = 0; i < c->inner; i += CHUNK) {
            int64_t n = c->inner - i < CHUNK ? c->inner - i : CHUNK;
            reduce_chunk(m, from + i, n, out + o * c->inner + i);
        }
    }
}

static void all_gather(const Meeting *m) {
    const PrtCollective *c = m->what;
    uint32_t *out = slot_of(m, m->group.me)->out;
    for (int64_t o = 0; o < c->outer; o++) {
        for (int j = 0; j < m->group.size; j++) {
            const uint32_t *in = slot_of(m, j)->in;
            memcpy(out + (o * m->group.size + j) * c->inner, in + o * c->inner, (size_t)c->inner * 4);
        }
    }
}

static void all_to_all(const Meeting *m) {
    const PrtCollective *c = m->what;
    uint32_t *out = slot_of(m, m->group.me)->out;
    for (int64_t o = 0; o < c->outer; o++) {
        for (int j = 0; j < m->group.size; j++) {
            const uint32_t *in = slot_of(m, j)->in;
            memcpy(out + (o * m->group.size + j) * c->inner, in + (o * m->group.size + m->group.me) * c->inner,
                   (size_t)c->inner * 4);
        }
    }
}

static void by_value(const Meeting *m, const void *in, void *out) {
    const PrtCollective *c = m->what;
    PrtSlot *mine = &m->slots[m->rank->number];
    int turn = (int)(m->rank->sequence[m->group.slot] & 1);
    memcpy(mine->values[turn], in, (size_t)c->elements * 4);
    prt_barrier(m->rank, c->axis, c->where);
    check_same(m);
    uint32_t sum[PRT_INLINE];
    memcpy(sum, slot_of(m, 0)->values[turn], (size_t)c->elements * 4);
    for (int j = 1; j < m->group.size; j++) combine(c, sum, slot_of(m, j)->values[turn], c->elements);
    memcpy(out, sum, (size_t)c->elements * 4);
}

static void alone(const PrtCollective *c, const void *in, void *out) {
    int64_t elements = c->kind == PRT_ALL_REDUCE ? c->elements : c->outer * c->inner;
    if (in != out) memcpy(out, in, (size_t)elements * 4);
}

static void check_address(PrtRank *rank, const PrtCollective *c, const void *p) {
    const char *at = p;
    if (rank->arena && (at < rank->arena || at >= rank->arena + rank->arena_bytes)) {
        prt_fail(rank, "%s: its buffer lies outside of the rank's arena", c->where);
    }
}

void prt_collective_now(PrtRank *rank, const PrtCollective *c, const void *in, void *out) {
    if (c->kind < 0 || c->kind > PRT_ALL_TO_ALL || c->axis < 0 || c->axis >= rank->n_axes) {
        prt_fail(rank, "unknown collective (kind %d, axis %d)", c->kind, c->axis);
    }
    bool words =
        c->dtype == 0 || c->dtype == 4 || (c->dtype == 5 && (c->reduce == 0 || c->reduce == 3)); /* f32, i32, u32 */
    if (!words) prt_fail(rank, "%s: collectives of this dtype (%d) are not built", c->where, c->dtype);
    Meeting m = {.rank = rank, .what = c, .group = prt_group(rank, c->axis)};
    if (m.group.size == 1 || !rank->job) {
        alone(c, in, out);
        return;
    }
    static void (*const moves[])(const Meeting *) = {all_reduce, all_gather, reduce_scatter, all_to_all};
    double start = prt_trace_start(rank->trace);
    check_address(rank, c, in);
    check_address(rank, c, out);
    m.slots = &rank->job->slots[m.group.slot * rank->n_ranks];
    PrtSlot *mine = &m.slots[rank->number];
    mine->in = in;
    mine->out = out;
    mine->what[++rank->sequence[m.group.slot] & 1] = c;
    if (c->kind == PRT_ALL_REDUCE && c->elements <= PRT_INLINE) {
        by_value(&m, in, out);
    } else {
        prt_barrier(rank, c->axis, c->where);
        check_same(&m);
        moves[c->kind](&m);
        prt_barrier(rank, c->axis, c->where);
    }
    prt_trace_end(rank->trace, c->where, start);
}

void prt_collective(PrtRank *rank, const PrtCollective *c, const void *in, void *out) {
    if (rank->n_flights) prt_collective_finish(rank, c->axis);
    prt_collective_now(rank, c, in, out);
}
