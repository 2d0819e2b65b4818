/* prt_collective: all-reduce, all-gather, reduce-scatter and all-to-all over shared memory.
 *
 * Every rank shows its addresses in its slot, meets the others, moves or sums its share straight from and to their
 * arenas, and meets them again. What is small goes by value through the slots: one meeting, after which each rank takes
 * what it needs; two sets of values in turn, since a rank can be at most one collective ahead. Sums are in the order of
 * the ranks. */
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

/* to = a + b, element by element; `to` may be `a`. */
CLONES static void combine_f32(float *to, const float *a, const float *b, int64_t n, int reduce) {
    if (reduce == 0) {
        for (int64_t i = 0; i < n; i++) to[i] = a[i] + b[i];
    } else if (reduce == 1) {
        for (int64_t i = 0; i < n; i++) to[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i];
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = b[i] < a[i] || b[i] != b[i] ? b[i] : a[i];
    }
}

CLONES static void combine_i32(int32_t *to, const int32_t *a, const int32_t *b, int64_t n, int reduce) {
    if (reduce == 0) {
        for (int64_t i = 0; i < n; i++) to[i] = (int32_t)((uint32_t)a[i] + (uint32_t)b[i]);
    } else if (reduce == 1) {
        for (int64_t i = 0; i < n; i++) to[i] = b[i] > a[i] ? b[i] : a[i];
    } else if (reduce == 2) {
        for (int64_t i = 0; i < n; i++) to[i] = b[i] < a[i] ? b[i] : a[i];
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = a[i] | b[i];
    }
}

static void combine(const PrtCollective *c, void *to, const void *a, const void *b, int64_t n) {
    if (c->dtype == 0)
        combine_f32(to, a, b, n, c->reduce);
    else
        combine_i32(to, a, b, n, c->reduce);
}

typedef struct Meeting {
    PrtRank *rank;
    const PrtCollective *what;
    PrtGroup group;
    PrtSlot *slots;  /* of the axis, by rank number; or */
    PrtPosts *posts; /* where what was started is announced, as `number` */
    unsigned number;
    int turn;
    bool by_value;
} Meeting;

static const PrtSlot *slot_of(const Meeting *m, int j) { return &m->slots[m->group.first + j * m->group.stride]; }

static const PrtFlight *flight_of(const Meeting *m, int j) {
    return &m->posts[m->group.first + j * m->group.stride].ring[m->number % PRT_FLIGHTS];
}

static const PrtCollective *what_of(const Meeting *m, int j) {
    return m->posts ? flight_of(m, j)->what : slot_of(m, j)->what[m->turn];
}

static uint32_t *output_of(const Meeting *m, int j) { return m->posts ? flight_of(m, j)->out : slot_of(m, j)->out; }

static const uint32_t *input_of(const Meeting *m, int j) {
    if (m->posts) return flight_of(m, j)->in;
    const PrtSlot *slot = slot_of(m, j);
    return m->by_value ? slot->values[m->turn] : slot->in;
}

/* Every rank of the group must be in the same collective: else the program is wrong, and says so at once. */
static void check_same(const Meeting *m) {
    uint64_t sequence = m->posts ? m->number : m->rank->sequence[m->group.slot];
    for (int j = 0; j < m->group.size; j++) {
        const PrtCollective *a = m->what, *b = what_of(m, j);
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

static int machine_of(const Meeting *m, int j) { return m->rank->machine[m->group.first + j * m->group.stride]; }

/* Ranks of one machine are joined first, then the machines: as the links between machines want it. Their ranks lie side
 * by side in a group. */
static void reduce_by_machine(const Meeting *m, int64_t offset, int64_t n, uint32_t *sum) {
    uint32_t inside[CHUNK];
    for (int j = 0, end = 0; j < m->group.size; j = end) {
        uint32_t *into = j == 0 ? sum : inside;
        const uint32_t *part = input_of(m, j) + offset;
        for (end = j + 1; end < m->group.size && machine_of(m, end) == machine_of(m, j); end++, part = into)
            combine(m->what, into, part, input_of(m, end) + offset, n);
        if (j == 0 && part != sum)
            memcpy(sum, part, (size_t)n * 4);
        else if (j)
            combine(m->what, sum, sum, part, n);
    }
}

/* Sum over the group of `n` elements at `offset` of each rank's input, into `sum` (the first n of it). */
static void reduce_chunk(const Meeting *m, int64_t offset, int64_t n, uint32_t *sum) {
    if (m->rank->machine) {
        reduce_by_machine(m, offset, n, sum);
        return;
    }
    const uint32_t *so_far = input_of(m, 0) + offset;
    for (int j = 1; j < m->group.size; j++, so_far = sum) combine(m->what, sum, so_far, input_of(m, j) + offset, n);
}

/* A kernel for prt_loop: rows are chunks of this rank's share [*pointers[1], *pointers[2]). */
static void all_reduce_rows(void *const *pointers, int64_t first, int64_t last) {
    const Meeting *m = pointers[0];
    int64_t start = *(const int64_t *)pointers[1], end = *(const int64_t *)pointers[2];
    uint32_t sum[CHUNK];
    for (int64_t chunk = first; chunk < last; chunk++) {
        int64_t lo = start + chunk * CHUNK, n = end - lo < CHUNK ? end - lo : CHUNK;
        reduce_chunk(m, lo, n, sum);
        for (int j = 0; j < m->group.size; j++) memcpy(output_of(m, j) + lo, sum, (size_t)n * 4);
    }
}

static void all_reduce(const Meeting *m) {
    if (m->by_value) { /* each rank makes the whole sum for itself */
        reduce_chunk(m, 0, m->what->elements, output_of(m, m->group.me));
        return;
    }
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
    uint32_t *out = output_of(m, m->group.me);
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
    uint32_t *out = output_of(m, m->group.me);
    for (int64_t o = 0; o < c->outer; o++) {
        for (int j = 0; j < m->group.size; j++) {
            const uint32_t *in = input_of(m, j);
            memcpy(out + (o * m->group.size + j) * c->inner, in + o * c->inner, (size_t)c->inner * 4);
        }
    }
}

static void all_to_all(const Meeting *m) {
    const PrtCollective *c = m->what;
    uint32_t *out = output_of(m, m->group.me);
    for (int64_t o = 0; o < c->outer; o++) {
        for (int j = 0; j < m->group.size; j++) {
            const uint32_t *in = input_of(m, j);
            memcpy(out + (o * m->group.size + j) * c->inner, in + (o * m->group.size + m->group.me) * c->inner,
                   (size_t)c->inner * 4);
        }
    }
}

/* Elements of a rank's input. */
static int64_t input_elements(const PrtCollective *c, int size) {
    return c->kind == PRT_ALL_REDUCE ? c->elements : c->outer * c->inner * (c->kind == PRT_ALL_GATHER ? 1 : size);
}

/* A sum that every rank makes for itself is work for each, and saves one meeting. */
static bool goes_by_value(const PrtCollective *c, int size) {
    int64_t n = input_elements(c, size);
    return n <= PRT_INLINE && (c->kind != PRT_ALL_REDUCE || n <= 64 || n * size <= 4 * PRT_INLINE);
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

static void (*const moves[])(const Meeting *) = {all_reduce, all_gather, reduce_scatter, all_to_all};

void prt_flight_move(PrtRank *rank, const PrtGroup *group, PrtPosts *posts, unsigned number) {
    Meeting m = {.rank = rank, .group = *group, .posts = posts, .number = number};
    m.what = what_of(&m, group->me);
    check_same(&m);
    double start = prt_trace_start(rank->trace);
    moves[m.what->kind](&m);
    prt_trace_end(rank->trace, m.what->where, start);
}

static PrtGroup axis_group(PrtRank *rank, const PrtCollective *c) {
    if (c->kind < 0 || c->kind > PRT_ALL_TO_ALL || c->axis < 0 || c->axis >= rank->n_axes)
        prt_fail(rank, "unknown collective (kind %d, axis %d)", c->kind, c->axis);
    return prt_group(rank, c->axis);
}

/* A group of one rank does it alone: true. */
static bool checked(PrtRank *rank, const PrtCollective *c, const PrtGroup *group, const void *in, void *out) {
    bool words =
        c->dtype == 0 || c->dtype == 4 || (c->dtype == 5 && (c->reduce == 0 || c->reduce == 3)); /* f32, i32, u32 */
    if (!words) prt_fail(rank, "%s: collectives of this dtype (%d) are not built", c->where, c->dtype);
    if (group->size == 1 || !rank->job) {
        alone(c, in, out);
        return true;
    }
    check_address(rank, c, in);
    check_address(rank, c, out);
    return false;
}

bool prt_collective_alone(PrtRank *rank, const PrtCollective *c, const void *in, void *out) {
    PrtGroup group = axis_group(rank, c);
    return checked(rank, c, &group, in, out);
}

void prt_collective(PrtRank *rank, const PrtCollective *c, const void *in, void *out) {
    Meeting m = {.rank = rank, .what = c, .group = axis_group(rank, c)};
    if (checked(rank, c, &m.group, in, out)) return;
    if (rank->flying[c->axis]) prt_collective_finish(rank, c->axis);
    double start = prt_trace_start(rank->trace);
    m.slots = &rank->job->slots[m.group.slot * rank->n_ranks];
    PrtSlot *mine = &m.slots[rank->number];
    m.turn = (int)(++rank->sequence[m.group.slot] & 1);
    m.by_value = goes_by_value(c, m.group.size);
    mine->in = in;
    mine->out = out;
    mine->what[m.turn] = c;
    if (m.by_value) memcpy(mine->values[m.turn], in, (size_t)input_elements(c, m.group.size) * 4);
    prt_barrier(rank, c->axis, c->where);
    check_same(&m);
    moves[c->kind](&m);
    if (!m.by_value) prt_barrier(rank, c->axis, c->where); /* others read this rank's memory until then */
    prt_trace_end(rank->trace, c->where, start);
}
