/* prt_collective: all-reduce, all-gather, reduce-scatter, all-to-all and a ring's step over shared memory.
 *
 * Every rank shows its addresses in its slot, meets the others, moves or sums its share straight from and to their
 * arenas, and meets them again. What is small goes by value through the slots: one meeting, after which each rank takes
 * what it needs; two sets of values in turn, since a rank can be at most one collective ahead. Sums are in the order of
 * the ranks. */
#include "comm/comm.h"
#include "cpu/narrow.h"

#include "cpu/exact.h"
#include "log/trace.h"

#include <string.h>

#define CHUNK 2048 /* elements summed at a time: stays in the first-level cache */
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#undef CLONES
#define CLONES
#endif

static const char *const kind_name[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "pass"};

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

/* Elements of 16 bits: moved as they are, summed in f32. */
static bool is_narrow(const PrtCollective *c) { return c->dtype == PRT_ELEMENT_BF16 || c->dtype == PRT_ELEMENT_F16; }
static int64_t bytes_of(const PrtCollective *c, int64_t n) { return n * (is_narrow(c) ? 2 : 4); }
static const void *at(const PrtCollective *c, const void *base, int64_t i) {
    return (const char *)base + bytes_of(c, i);
}
static void *at_output(const PrtCollective *c, void *base, int64_t i) { return (char *)base + bytes_of(c, i); }

static void combine_exact(PrtExactNumber *to, const PrtExactNumber *a, const PrtExactNumber *b, int64_t n) {
    if (to != a) memcpy(to, a, (size_t)n * sizeof *to);
    prt_exact_add_exact_row(to, b, n);
}

/* to = a and b; n words of 4 bytes. */
static void combine(const PrtCollective *c, void *to, const void *a, const void *b, int64_t n) {
    if (c->dtype == 0 || is_narrow(c))
        combine_f32(to, a, b, n, c->reduce == PRT_SUM_BY_TREE ? 0 : c->reduce);
    else if (c->dtype == PRT_DTYPE_EXACT)
        combine_exact(to, a, b, n * 4 / (int64_t)sizeof(PrtExactNumber));
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

static void *output_of(const Meeting *m, int j) { return m->posts ? flight_of(m, j)->out : slot_of(m, j)->out; }

static const void *input_of(const Meeting *m, int j) {
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
            a->dtype == b->dtype && a->reduce == b->reduce && a->balanced == b->balanced) {
            continue;
        }
        prt_fail(
            m->rank,
            "collective %llu does not match: rank %d is in %s (%s, %lld elements), rank %d in %s (%s, %lld elements)",
            (unsigned long long)sequence, m->rank->number, a->where, kind_name[a->kind], (long long)a->elements,
            m->group.first + j * m->group.stride, b->where, kind_name[b->kind], (long long)b->elements);
    }
}

/* Ranks [first, first + ranks) of the group joined by a balanced tree: what the tree over the leaves of an ordered sum
 * goes on with. Gives where the sum is: one of the inputs, or `sum`. */
static const void *reduce_tree(const Meeting *m, int first, int ranks, int64_t offset, int64_t n, void *sum) {
    if (ranks == 1) return at(m->what, input_of(m, first), offset);
    _Alignas(16) uint32_t later[CHUNK];
    const void *a = reduce_tree(m, first, ranks / 2, offset, n, sum);
    const void *b = reduce_tree(m, first + ranks / 2, ranks - ranks / 2, offset, n, later);
    combine(m->what, sum, a, b, n);
    return sum;
}

static int machine_of(const Meeting *m, int j) { return m->rank->machine[m->group.first + j * m->group.stride]; }

/* Ranks of one machine are joined first, then the machines: as the links between machines want it. Their ranks lie side
 * by side in a group. */
static void reduce_by_machine(const Meeting *m, int64_t offset, int64_t n, void *sum) {
    _Alignas(16) uint32_t inside[CHUNK];
    for (int j = 0, end = 0; j < m->group.size; j = end) {
        void *into = j == 0 ? sum : inside;
        const void *part = at(m->what, input_of(m, j), offset);
        for (end = j + 1; end < m->group.size && machine_of(m, end) == machine_of(m, j); end++, part = into)
            combine(m->what, into, part, at(m->what, input_of(m, end), offset), n);
        if (j == 0 && part != sum)
            memcpy(sum, part, (size_t)n * 4);
        else if (j)
            combine(m->what, sum, sum, part, n);
    }
}

/* Sum over the group of `n` elements at `offset` of each rank's input, into `sum` (the first n of it). */
static void reduce_chunk(const Meeting *m, int64_t offset, int64_t n, void *sum) {
    const PrtCollective *c = m->what;
    if (is_narrow(c)) {
        float total[CHUNK], x[CHUNK];
        prt_widen(c->dtype, at(c, input_of(m, 0), offset), total, n);
        for (int j = 1; j < m->group.size; j++) {
            prt_widen(c->dtype, at(c, input_of(m, j), offset), x, n);
            combine(c, total, total, x, n);
        }
        prt_narrow(c->dtype, total, sum, n);
        return;
    }
    if (c->reduce == PRT_SUM_BY_TREE) {
        reduce_tree(m, 0, m->group.size, offset, n, sum);
        return;
    }
    if (m->rank->machine) {
        reduce_by_machine(m, offset, n, sum);
        return;
    }
    const void *so_far = at(c, input_of(m, 0), offset);
    for (int j = 1; j < m->group.size; j++, so_far = sum) combine(c, sum, so_far, at(c, input_of(m, j), offset), n);
}

/* A kernel for prt_loop: rows are chunks of this rank's share [*pointers[1], *pointers[2]). */
static void all_reduce_rows(void *const *pointers, int64_t first, int64_t last) {
    const Meeting *m = pointers[0];
    int64_t start = *(const int64_t *)pointers[1], end = *(const int64_t *)pointers[2];
    _Alignas(16) uint32_t sum[CHUNK];
    for (int64_t chunk = first; chunk < last; chunk++) {
        int64_t lo = start + chunk * CHUNK, n = end - lo < CHUNK ? end - lo : CHUNK;
        reduce_chunk(m, lo, n, sum);
        for (int j = 0; j < m->group.size; j++)
            memcpy(at_output(m->what, output_of(m, j), lo), sum, (size_t)bytes_of(m->what, n));
    }
}

static void all_reduce(const Meeting *m) {
    if (m->by_value) { /* each rank makes the whole sum for itself */
        reduce_chunk(m, 0, m->what->elements, output_of(m, m->group.me));
        return;
    }
    int64_t n = m->what->elements, line = 64 / bytes_of(m->what, 1), lines = (n + line - 1) / line;
    /* lines of the cache: no two ranks write the same */
    int64_t lo = lines * m->group.me / m->group.size * line, hi = lines * (m->group.me + 1) / m->group.size * line;
    if (hi > n) hi = n;
    void *pointers[] = {(void *)(uintptr_t)m, &lo, &hi};
    int64_t chunks = (hi - lo + CHUNK - 1) / CHUNK;
    if (m->rank->pool)
        prt_loop(m->rank, all_reduce_rows, pointers, chunks, 16);
    else
        all_reduce_rows(pointers, 0, chunks);
}

/* The whole of each outer index is `n` pieces, of which rank j holds this one as its k-th. */
typedef struct Pieces {
    int held;      /* by a rank: 1, or 2 where the layout is balanced */
    int64_t inner; /* elements of one */
} Pieces;

static Pieces pieces_of(const PrtCollective *c) {
    return c->balanced ? (Pieces){2, c->inner / 2} : (Pieces){1, c->inner};
}

static int64_t piece_at(const Meeting *m, Pieces p, int64_t outer, int j, int k) {
    int64_t n = (int64_t)m->group.size * p.held;
    return (outer * n + (k ? n - 1 - j : j)) * p.inner;
}

static void reduce_scatter(const Meeting *m) {
    const PrtCollective *c = m->what;
    const Pieces p = pieces_of(c);
    void *out = output_of(m, m->group.me);
    for (int64_t o = 0; o < c->outer * p.held; o++) {
        int64_t from = piece_at(m, p, o / p.held, m->group.me, (int)(o % p.held));
        for (int64_t i = 0; i < p.inner; i += CHUNK) {
            int64_t n = p.inner - i < CHUNK ? p.inner - i : CHUNK;
            reduce_chunk(m, from + i, n, at_output(c, out, o * p.inner + i));
        }
    }
}

static void all_gather(const Meeting *m) {
    const PrtCollective *c = m->what;
    const Pieces p = pieces_of(c);
    void *out = output_of(m, m->group.me);
    for (int64_t o = 0; o < c->outer * p.held; o++) {
        for (int j = 0; j < m->group.size; j++) {
            memcpy(at_output(c, out, piece_at(m, p, o / p.held, j, (int)(o % p.held))),
                   at(c, input_of(m, j), o * p.inner), (size_t)bytes_of(c, p.inner));
        }
    }
}

/* From the rank before, straight out of its arena. */
static void pass(const Meeting *m) {
    int before = (m->group.me + m->group.size - 1) % m->group.size;
    memcpy(output_of(m, m->group.me), input_of(m, before), (size_t)bytes_of(m->what, m->what->elements));
}

static void all_to_all(const Meeting *m) {
    const PrtCollective *c = m->what;
    void *out = output_of(m, m->group.me);
    for (int64_t o = 0; o < c->outer; o++) {
        for (int j = 0; j < m->group.size; j++) {
            memcpy(at_output(c, out, (o * m->group.size + j) * c->inner),
                   at(c, input_of(m, j), (o * m->group.size + m->group.me) * c->inner), (size_t)bytes_of(c, c->inner));
        }
    }
}

/* Elements of a rank's input. */
static int64_t input_elements(const PrtCollective *c, int size) {
    bool part = c->kind == PRT_ALL_GATHER || c->kind == PRT_PASS;
    return c->kind == PRT_ALL_REDUCE ? c->elements : c->outer * c->inner * (part ? 1 : size);
}

/* A sum that every rank makes for itself is work for each, and saves one meeting. */
static bool goes_by_value(const PrtCollective *c, int size) {
    int64_t n = input_elements(c, size);
    return n <= PRT_INLINE && (c->kind != PRT_ALL_REDUCE || n <= 64 || n * size <= 4 * PRT_INLINE);
}

static void alone(const PrtCollective *c, const void *in, void *out) {
    int64_t elements = c->kind == PRT_ALL_REDUCE ? c->elements : c->outer * c->inner;
    if (in != out) memcpy(out, in, (size_t)bytes_of(c, elements));
}

static void check_address(PrtRank *rank, const PrtCollective *c, const void *p) {
    const char *at = p;
    if (rank->arena && (at < rank->arena || at >= rank->arena + rank->arena_bytes)) {
        prt_fail(rank, "%s: its buffer lies outside of the rank's arena", c->where);
    }
}

static void (*const moves[])(const Meeting *) = {all_reduce, all_gather, reduce_scatter, all_to_all, pass};

void prt_flight_move(PrtRank *rank, const PrtGroup *group, PrtPosts *posts, unsigned number) {
    Meeting m = {.rank = rank, .group = *group, .posts = posts, .number = number};
    m.what = what_of(&m, group->me);
    check_same(&m);
    double start = prt_trace_start(rank->trace);
    moves[m.what->kind](&m);
    prt_trace_end(rank->trace, m.what->where, start);
}

static PrtGroup axis_group(PrtRank *rank, const PrtCollective *c) {
    if (c->kind < 0 || c->kind > PRT_PASS || c->axis < 0 || c->axis >= rank->n_axes)
        prt_fail(rank, "unknown collective (kind %d, axis %d)", c->kind, c->axis);
    return prt_group(rank, c->axis);
}

/* A group of one rank does it alone: true. */
static bool checked(PrtRank *rank, const PrtCollective *c, const PrtGroup *group, const void *in, void *out) {
    bool built = c->dtype == 0 || c->dtype == 4 || c->dtype == PRT_DTYPE_EXACT || is_narrow(c) ||
                 (c->dtype == 5 && (c->reduce == 0 || c->reduce == 3)); /* f32, i32, exact, bf16, f16, u32 */
    if (!built) prt_fail(rank, "%s: collectives of this dtype (%d) are not built", c->where, c->dtype);
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
    if (m.by_value) memcpy(mine->values[m.turn], in, (size_t)bytes_of(c, input_elements(c, m.group.size)));
    prt_barrier(rank, c->axis, c->where);
    check_same(&m);
    moves[c->kind](&m);
    if (!m.by_value) prt_barrier(rank, c->axis, c->where); /* others read this rank's memory until then */
    prt_trace_end(rank->trace, c->where, start);
}
