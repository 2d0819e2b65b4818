/* Attention and its gradient, from generated kernels and the runtime's drivers, against a naive form in double.
 *
 * Layouts with gaps, grouped heads, odd lengths, logical offsets for causality, sampling; gaps hold NaN in operands and
 * a mark in results, and 1, 2 and 3 threads must give the same bits. */
#include "inner_test.h"

/* ---- attention ------------------------------------------------------------------------------------------------- */

enum { Q, K, VALUE, OUT, LSE, D_OUT, DQ, DK, DV, N_TENSORS };

typedef struct AttendCase {
    PrtAttend s;
    int64_t q_start, k_start, size[N_TENSORS];
    int coords[PRT_MAX_AXES]; /* of the rank, where positions are cut */
    int64_t *q_at, *k_at;     /* logical positions */
} AttendCase;

/* The `n` positions that the cuts leave: a list, cut as they say. */
static int64_t *positions(const int *coords, const PrtPositionCut *cuts, int n_cuts, int64_t n, int64_t start) {
    for (int i = 0; i < n_cuts; i++) n *= cuts[i].parts;
    int64_t *at = malloc(sizeof *at * (size_t)n), *kept = malloc(sizeof *at * (size_t)n);
    for (int64_t i = 0; i < n; i++) at[i] = start + i;
    for (const PrtPositionCut *cut = cuts; cut < cuts + n_cuts; cut++) {
        int64_t parts = cut->parts, pieces = cut->balanced ? 2 * parts : parts, unit = n / pieces, m = 0;
        int64_t me = (coords[cut->axis] + parts - cut->turn) % parts;
        for (int64_t i = 0; i < n; i++)
            if (i / unit == me || (cut->balanced && i / unit == pieces - 1 - me)) kept[m++] = at[i];
        n = m;
        memcpy(at, kept, sizeof *at * (size_t)n);
    }
    free(kept);
    return at;
}

static AttendCase attend_case(int64_t batch, int64_t seq, int64_t key, int64_t kv, int64_t group, int64_t width,
                              bool causal, int layout) {
    int64_t heads = kv * group, gap = layout == 2 ? 3 : 0;
    AttendCase c = {.s = {.batch = batch,
                          .seq = seq,
                          .key = key,
                          .kv_head = kv,
                          .group = group,
                          .width = width,
                          .scale = (float)(1 / sqrt((double)width)),
                          .causal = causal}};
    PrtAttend *s = &c.s;
    int64_t w = width + gap;
    if (layout == 1) { /* [batch, head, seq, width] */
        s->q_seq = s->o_seq = w, s->q_head = s->o_head = seq * w, s->k_key = s->v_key = w,
        s->k_head = s->v_head = key * w;
    } else { /* [batch, seq, head, width] */
        s->q_seq = s->o_seq = heads * w, s->q_head = s->o_head = w, s->k_key = s->v_key = kv * w,
        s->k_head = s->v_head = w;
    }
    s->q_batch = s->o_batch = seq * heads * w, s->k_batch = s->v_batch = key * kv * w;
    s->l_head = layout == 1 ? seq : 1, s->l_seq = layout == 1 ? 1 : heads, s->l_batch = seq * heads;
    int64_t q = batch * seq * heads * w - gap, k = batch * key * kv * w - gap;
    int64_t sizes[N_TENSORS] = {q, k, k, q, batch * seq * heads, q, q, k, k};
    memcpy(c.size, sizes, sizeof sizes);
    return c;
}

typedef struct AttendAt {
    int64_t q, k, v, o, l;
} AttendAt;
static AttendAt attend_at(const PrtAttend *s, int64_t b, int64_t head, int64_t i, int64_t j) {
    int64_t kv = head / s->group;
    return (AttendAt){b * s->q_batch + i * s->q_seq + head * s->q_head, b * s->k_batch + j * s->k_key + kv * s->k_head,
                      b * s->v_batch + j * s->v_key + kv * s->v_head, b * s->o_batch + i * s->o_seq + head * s->o_head,
                      b * s->l_batch + i * s->l_seq + head * s->l_head};
}

/* One query of the naive attention and its gradient, in double. */
static void naive_query(const AttendCase *c, double *const *x, int64_t b, int64_t head, int64_t i, bool grad) {
    const PrtAttend *s = &c->s;
    double *p = calloc((size_t)s->key, sizeof *p), top = -INFINITY, sum = 0, delta = 0;
    int64_t n = 0;
    while (n < s->key && (!s->causal || c->k_at[n] <= c->q_at[i])) n++;
    for (int64_t j = 0; j < n; j++) {
        AttendAt at = attend_at(s, b, head, i, j);
        for (int64_t d = 0; d < s->width; d++) p[j] += (double)s->scale * x[Q][at.q + d] * x[K][at.k + d];
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - top);
    AttendAt me = attend_at(s, b, head, i, 0);
    for (int64_t d = 0; d < s->width; d++) x[OUT][me.o + d] = 0;
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < s->width; d++)
            x[OUT][me.o + d] += (p[j] /= d == 0 ? sum : 1) * x[VALUE][attend_at(s, b, head, i, j).v + d];
    x[LSE][me.l] = top + log(sum);
    for (int64_t d = 0; d < s->width; d++) delta += x[OUT][me.o + d] * x[D_OUT][me.o + d];
    for (int64_t j = 0; grad && j < n; j++) {
        AttendAt at = attend_at(s, b, head, i, j);
        double dp = 0;
        for (int64_t d = 0; d < s->width; d++) dp += x[D_OUT][at.o + d] * x[VALUE][at.v + d];
        double ds = p[j] * (dp - delta) * (double)s->scale;
        for (int64_t d = 0; d < s->width; d++) {
            x[DV][at.v + d] += p[j] * x[D_OUT][at.o + d];
            x[DK][at.k + d] += ds * x[Q][at.q + d];
            x[DQ][at.q + d] += ds * x[K][at.k + d];
        }
    }
    free(p);
}

/* The elements of tensor `t`, without gaps, are visited: fill or compare. */
static bool is_element(const AttendCase *c, int t, int64_t i) {
    const PrtAttend *s = &c->s;
    if (t == LSE) return true;
    int64_t w = s->q_seq < s->q_head ? s->q_seq : s->q_head; /* width with its gap */
    if (s->seq == 1 || s->kv_head * s->group == 1)
        w = c->size[Q] == s->batch * s->seq * s->kv_head * s->group * s->width ? s->width : s->width + 3;
    return i % w < s->width;
}

static void expect_tensor(const AttendCase *c, int t, const float *got, const double *want, const char *what) {
    static const char *const names[] = {"q", "k", "v", "out", "lse", "d_out", "dq", "dk", "dv"};
    double size = 0;
    for (int64_t i = 0; i < c->size[t]; i++)
        if (is_element(c, t, i) && isfinite(want[i])) size = fmax(size, fabs(want[i]));
    for (int64_t i = 0; i < c->size[t]; i++) {
        if (!is_element(c, t, i)) {
            if (got[i] != mark) fail_msg("%s: gap %lld of %s was written", what, (long long)i, names[t]);
        } else if (isinf(want[i]) ? (double)got[i] != want[i]
                                  : !(fabs((double)got[i] - want[i]) <= 3e-6 * (size + 1))) {
            fail_msg("%s: %s[%lld] is %g, not %g", what, names[t], (long long)i, (double)got[i], want[i]);
        }
    }
}

static void check_attend(Library *lib, AttendCase *c, bool grad) {
    c->q_at = positions(c->coords, c->s.q_cuts, c->s.n_q_cuts, c->s.seq, c->q_start);
    c->k_at = positions(c->coords, c->s.k_cuts, c->s.n_k_cuts, c->s.key, c->k_start);
    Memory m[N_TENSORS], first[N_TENSORS];
    double *x[N_TENSORS];
    char what[256];
    const PrtAttend *s = &c->s;
    snprintf(what, sizeof what, "batch %lld seq %lld key %lld heads %lld x %lld width %lld causal %d from %lld, %lld",
             (long long)s->batch, (long long)s->seq, (long long)s->key, (long long)s->kv_head, (long long)s->group,
             (long long)s->width, s->causal, (long long)c->q_start, (long long)c->k_start);
    for (int t = 0; t < N_TENSORS; t++) {
        bool input = t < OUT || t == D_OUT;
        m[t] = memory_new(c->size[t], input ? NAN : mark);
        first[t] = memory_new(c->size[t], mark);
        x[t] = calloc((size_t)c->size[t], sizeof(double));
        for (int64_t i = 0; i < c->size[t]; i++) {
            if (!is_element(c, t, i)) continue;
            m[t].at[i] = input ? 2 * random_float() : NAN;
            if (input) x[t][i] = (double)m[t].at[i];
        }
    }
    int64_t heads = s->kv_head * s->group;
    for (int64_t at = 0; at < s->batch * heads * s->seq; at++)
        naive_query(c, x, at / s->seq / heads, at / s->seq % heads, at % s->seq, grad);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        void *pointers[N_TENSORS];
        for (int t = 0; t < N_TENSORS; t++) pointers[t] = m[t].at;
        memcpy(lib->ranks[threads].coords, c->coords, sizeof c->coords);
        lib->attend(&lib->ranks[threads], s, pointers, c->q_start, c->k_start);
        if (grad) lib->attend_grad(&lib->ranks[threads], s, pointers, c->q_start, c->k_start);
        for (int t = OUT; t < N_TENSORS; t++) {
            if (t == D_OUT || (t > D_OUT && !grad)) continue;
            expect_tensor(c, t, m[t].at, x[t], what);
            if (threads == 1)
                memcpy(first[t].at, m[t].at, (size_t)c->size[t] * sizeof(float));
            else if (memcmp(first[t].at, m[t].at, (size_t)c->size[t] * sizeof(float)) != 0)
                fail_msg("%d threads differ: %s", threads, what);
            for (int64_t i = 0; i < c->size[t]; i++)
                if (is_element(c, t, i)) m[t].at[i] = NAN;
        }
    }
    for (int t = 0; t < N_TENSORS; t++) memory_free(&m[t]), memory_free(&first[t]), free(x[t]);
    free(c->q_at);
    free(c->k_at);
}

/* Turns of a ring: what a rank holds of queries and keys are pieces of a longer sequence, some of which see nothing. */
static void check_turns(Library *lib) {
    for (int i = 0; i < 30; i++) {
        int64_t n = random_in(1, 4), key = 4 * random_in(1, i < 20 ? 20 : 75), seq = i % 3 == 1 ? key / 2 : key;
        AttendCase c = attend_case(1, seq, key, random_in(1, 2), random_in(1, 2), 16, true, i % 3);
        PrtPositionCut ring = {0, (int32_t)n, i % 4 != 0, 0}, block = {1, 2, 0, 0}, other = {2, 3, 1, 0};
        for (int a = 0; a < 3; a++) c.coords[a] = (int)random_in(0, a == 0 ? n - 1 : a);
        c.s.q_cuts[c.s.n_q_cuts++] = c.s.k_cuts[c.s.n_k_cuts++] = ring;
        c.s.k_cuts[0].turn = (int32_t)random_in(0, n - 1);
        if (i % 3 == 1) c.s.q_cuts[c.s.n_q_cuts++] = block; /* queries cut once more, keys gathered */
        if (i % 3 == 2) { /* a ring in a ring */
            c.s.q_cuts[c.s.n_q_cuts++] = c.s.k_cuts[c.s.n_k_cuts++] = other;
            c.s.k_cuts[1].turn = (int32_t)random_in(0, 2);
        }
        check_attend(lib, &c, true);
    }
}

static void check_attention(Library *lib) {
    for (int i = 0; i < 60; i++) {
        static const int64_t widths[] = {1, 3, 8, 16, 33, 64};
        int64_t seq = i < 40 ? random_in(3, 70) : random_in(190, 300),
                key = i % 2 ? seq : random_in(1, i < 40 ? 90 : 300);
        AttendCase c =
            attend_case(random_in(1, 2), seq, key, random_in(1, 3), random_in(1, 3), widths[i % 6], i % 3 != 0, i % 3);
        if (i % 4 == 3) c.q_start = random_in(0, 40), c.k_start = random_in(0, 60);
        check_attend(lib, &c, true);
    }
    for (int i = 0; i < 10; i++) { /* sampling: one query, a cache of keys */
        AttendCase c = attend_case(1, random_in(1, 2), 1500, 2, random_in(1, 3), 16, true, i % 3);
        c.q_start = i == 0 ? 0 : random_in(0, 1499);
        check_attend(lib, &c, false);
    }
}

static void check_library(Library *lib) {
    check_attention(lib);
    check_turns(lib);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_v2), cmocka_unit_test(test_v3), cmocka_unit_test(test_v4),
                                       cmocka_unit_test(test_wide)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
