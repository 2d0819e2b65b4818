/* Attention without a stored [seq, key]: blocks of queries meet blocks of keys (prt_attend).
 *
 * For a block of queries of one head, scores with the next keys are a small matrix product, a running softmax turns
 * them into weights (the sums so far are scaled down when the maximum grows), and a second product adds weights times
 * values. At the end the sums are divided. Tiles that causality hides are skipped. Memory is a few blocks for each
 * thread. */
#include "cpu/attend.h"

#include <math.h>
#include <string.h>

enum { QUERIES = 192, KEYS = 128 };
enum { FEW_QUERIES = 2, FEW_KEYS = 1024 }; /* sampling: dot products instead of packed tiles */

/* ---- shared with the gradient ---------------------------------------------------------------------------------- */

static void pack(PrtPackFunction *const functions[3], int64_t unit, int64_t panel, int element, const void *from,
                 int64_t lane_stride, int64_t lanes, int64_t depth_stride, int64_t depth, float *out) {
    PrtPackFunction *function = functions[lane_stride == 1 ? PRT_PACK_LANES : PRT_PACK_DEPTH];
    for (int64_t lane = 0; lane < lanes; lane += unit, out += depth * panel)
        prt_pack(function, element, lane_stride != 1, prt_element(from, element, lane * lane_stride), out, depth,
                 depth_stride, lane_stride, prt_min(unit, lanes - lane), panel);
}

void attend_pack_a(int element, const void *from, int64_t lane_stride, int64_t lanes, int64_t depth_stride,
                   int64_t depth, float *out) {
    pack(plan_inner.pack_a, plan_inner.tile_m, plan_inner.panel_m, element, from, lane_stride, lanes, depth_stride,
         depth, out);
}

void attend_pack_b(int element, const void *from, int64_t lane_stride, int64_t lanes, int64_t depth_stride,
                   int64_t depth, float *out) {
    pack(plan_inner.pack_b, plan_inner.tile_n, plan_inner.tile_n, element, from, lane_stride, lanes, depth_stride,
         depth, out);
}

static int64_t even_block(int64_t n, int64_t largest, int64_t unit) {
    return prt_round_up(prt_ceil_div(n, prt_ceil_div(n, largest)), unit);
}

void attend_choose_blocks(AttendJob *job, int64_t queries, int64_t keys, int64_t (*floats)(const AttendJob *job)) {
    const PrtAttend *s = job->shape;
    for (;;) {
        /* Blocks of keys must not depend on how many queries this rank has: sums over keys would. */
        job->block_q = prt_round_up(prt_max(queries, plan_inner.tile_m), plan_inner.tile_m);
        job->block_k = even_block(s->key, prt_max(keys, plan_inner.tile_n), plan_inner.tile_n);
        if (floats(job) * (int64_t)sizeof(float) <= job->rank->scratch_bytes) {
            job->block_q = even_block(job->leaf ? job->leaf : s->seq, job->block_q, plan_inner.tile_m);
            return;
        }
        if (queries <= plan_inner.tile_m && keys <= plan_inner.tile_n) break;
        queries /= 2;
        keys /= 2;
    }
    prt_fail(job->rank,
             "attention with a head of width %lld needs %lld bytes of scratch memory a thread, the plan has %lld",
             (long long)s->width, (long long)floats(job) * 4, (long long)job->rank->scratch_bytes);
}

/* ---- one block of queries -------------------------------------------------------------------------------------- */

typedef struct Buffers {
    float *q, *k, *v; /* packed: q rows, k and v columns of their products */
    float *s, *p;     /* scores [block_q][block_k], then weights; packed weights */
    float *sum;       /* [block_q][padded width]: weights times values so far */
    float *m, *l;     /* running maximum and sum of each query */
} Buffers;

static int64_t padded_width(const AttendJob *job) { return prt_round_up(job->shape->width, plan_inner.tile_n); }

static Buffers buffers_at(const AttendJob *job, AttendScratch *free) {
    int64_t w = job->shape->width, q = job->block_q, k = job->block_k;
    Buffers b;
    b.q = attend_take(free, attend_a_floats(q, w));
    b.k = attend_take(free, attend_b_floats(k, w));
    b.v = attend_take(free, attend_b_floats(w, k));
    b.s = attend_take(free, q * k);
    b.p = attend_take(free, attend_a_floats(q, k));
    b.sum = attend_take(free, q * padded_width(job));
    b.m = attend_take(free, q);
    b.l = attend_take(free, q);
    return b;
}

static int64_t buffer_floats(const AttendJob *job) {
    AttendScratch count = {0};
    buffers_at(job, &count);
    return count.used;
}

typedef struct Block {
    int64_t first, n;   /* queries of the task */
    const float *k, *v; /* of its head */
} Block;

/* The last query of the panel of rows that starts at row i sees so many of the keys [first, first + n). */
static int64_t panel_seen(const AttendJob *job, const Block *b, int64_t i, int64_t first, int64_t n) {
    return attend_seen(job, b->first + prt_min(i + plan_inner.tile_m, b->n) - 1, first, n);
}

static void scores(const AttendJob *job, const Buffers *to, const Block *b, int64_t first, int64_t n) {
    const PrtInner *inner = &plan_inner;
    int64_t w = job->shape->width, ld = job->block_k;
    for (int64_t i = 0; i < b->n; i += inner->tile_m) {
        int64_t seen = panel_seen(job, b, i, first, n);
        const float *q = to->q + i / inner->tile_m * inner->panel_m * w;
        for (int64_t j = 0; j < seen; j += inner->tile_n)
            inner->tile(q, to->k + j * w, to->s + i * ld + j, w, ld, inner->tile_m, inner->tile_n, 1.0f, 0);
    }
}

static void weights(const AttendJob *job, const Buffers *to, const Block *b, int64_t first, int64_t n) {
    for (int64_t i = 0; i < b->n; i++) {
        float *row = to->s + i * job->block_k;
        int64_t seen = attend_seen(job, b->first + i, first, n);
        memset(row + seen, 0, (size_t)(n - seen) * sizeof(float));
        if (seen == 0) continue;
        float factor = plan_inner.softmax_row(row, seen, job->shape->scale, &to->m[i], &to->l[i]);
        if (factor != 1.0f) plan_inner.scale_row(to->sum + i * padded_width(job), job->shape->width, factor);
    }
}

static void add_values(const AttendJob *job, const Buffers *to, const Block *b, int64_t first, int64_t n) {
    const PrtInner *inner = &plan_inner;
    int64_t ld = padded_width(job);
    attend_pack_a(PRT_ELEMENT_F32, to->s, job->block_k, b->n, 1, n, to->p);
    for (int64_t i = 0; i < b->n; i += inner->tile_m) {
        int64_t seen = panel_seen(job, b, i, first, n);
        const float *p = to->p + i / inner->tile_m * inner->panel_m * n;
        for (int64_t j = 0; seen > 0 && j < job->shape->width; j += inner->tile_n)
            inner->tile(p, to->v + j * n, to->sum + i * ld + j, seen, ld, inner->tile_m, inner->tile_n, 1.0f, 1);
    }
}

/* out = sum / l; lse = m + log l. A query that sees no key gives 0 and minus infinity. */
static void finish_row(const AttendJob *job, float *sum, float m, float l, void *out, float *lse) {
    int64_t w = job->shape->width;
    if (l != 0) plan_inner.scale_row(sum, w, 1.0f / l);
    prt_narrow(job->shape->element, sum, out, w);
    *lse = m + logf(l);
}

typedef struct Head {
    const void *q, *k, *v;
    void *out;
    float *lse;
} Head;

static Head head_of(const AttendJob *job, int64_t batch, int64_t head) {
    const PrtAttend *s = job->shape;
    int64_t kv = head / s->group;
    return (Head){prt_element(job->pointers[0], s->element, batch * s->q_batch + head * s->q_head),
                  prt_element(job->pointers[1], s->element, batch * s->k_batch + kv * s->k_head),
                  prt_element(job->pointers[2], s->element, batch * s->v_batch + kv * s->v_head),
                  prt_element_to(job->pointers[3], s->element, batch * s->o_batch + head * s->o_head),
                  (float *)job->pointers[4] + batch * s->l_batch + head * s->l_head};
}

static void attend_block(const AttendJob *job, const Head *h, const Buffers *to, const Block *b) {
    const PrtAttend *s = job->shape;
    int64_t rows = prt_round_up(b->n, plan_inner.tile_m), end = attend_limit(job, b->first + b->n - 1);
    memset(to->sum, 0, (size_t)(rows * padded_width(job)) * sizeof(float));
    for (int64_t i = 0; i < b->n; i++) to->m[i] = -INFINITY, to->l[i] = 0;
    attend_pack_a(s->element, prt_element(h->q, s->element, b->first * s->q_seq), s->q_seq, b->n, 1, s->width, to->q);
    for (int64_t first = 0; first < end; first += job->block_k) {
        int64_t n = prt_min(job->block_k, end - first);
        attend_pack_b(s->element, prt_element(h->k, s->element, first * s->k_key), s->k_key, n, 1, s->width, to->k);
        attend_pack_b(s->element, prt_element(h->v, s->element, first * s->v_key), 1, s->width, s->v_key, n, to->v);
        scores(job, to, b, first, n);
        weights(job, to, b, first, n);
        add_values(job, to, b, first, n);
    }
    for (int64_t i = 0; i < b->n; i++)
        finish_row(job, to->sum + i * padded_width(job), to->m[i], to->l[i],
                   prt_element_to(h->out, s->element, (b->first + i) * s->o_seq), h->lse + (b->first + i) * s->l_seq);
}

/* Tasks are blocks of queries of all heads; those that see the most keys come first. */
static void attend_task(void *context, int thread, int64_t task) {
    const AttendJob *job = context;
    const PrtAttend *s = job->shape;
    int64_t heads = s->kv_head * s->group, blocks = prt_ceil_div(s->seq, job->block_q);
    int64_t first = (blocks - 1 - task / (s->batch * heads)) * job->block_q, point = task % (s->batch * heads);
    Head h = head_of(job, point / heads, point % heads);
    AttendScratch free = {.base = (float *)prt_scratch(job->rank, thread)};
    Buffers to = buffers_at(job, &free);
    Block b = {.first = first, .n = prt_min(job->block_q, s->seq - first)};
    attend_block(job, &h, &to, &b);
}

/* ---- few queries ----------------------------------------------------------------------------------------------- */

static void attend_few_task(void *context, int thread, int64_t task) {
    const AttendJob *job = context;
    const PrtAttend *s = job->shape;
    int64_t heads = s->kv_head * s->group;
    Head h = head_of(job, task / heads, task % heads);
    const float *q = h.q, *k = h.k, *v = h.v; /* narrow ones go through packing */
    float *row = (float *)prt_scratch(job->rank, thread), *sum = row + FEW_KEYS;
    for (int64_t i = 0; i < s->seq; i++) {
        float m = -INFINITY, l = 0;
        int64_t end = attend_limit(job, i);
        memset(sum, 0, (size_t)s->width * sizeof(float));
        for (int64_t first = 0; first < end; first += FEW_KEYS) {
            int64_t n = prt_min(FEW_KEYS, end - first);
            for (int64_t j = 0; j < n; j++)
                row[j] = plan_inner.dot_row(q + i * s->q_seq, k + (first + j) * s->k_key, s->width);
            plan_inner.scale_row(sum, s->width, plan_inner.softmax_row(row, n, s->scale, &m, &l));
            for (int64_t j = 0; j < n; j++) plan_inner.axpy_row(sum, v + (first + j) * s->v_key, s->width, row[j]);
        }
        finish_row(job, sum, m, l, (float *)h.out + i * s->o_seq, h.lse + i * s->l_seq);
    }
}

static int64_t few_floats(const AttendJob *job) { return FEW_KEYS + job->shape->width; }

void prt_attend(PrtRank *rank, const PrtAttend *shape, void *const *pointers, int64_t q_start, int64_t k_start) {
    AttendJob job = {.shape = shape, .pointers = pointers, .offset = q_start - k_start, .rank = rank};
    int64_t heads = shape->batch * shape->kv_head * shape->group;
    if (shape->seq <= FEW_QUERIES && shape->element == PRT_ELEMENT_F32) {
        attend_choose_blocks(&job, QUERIES, KEYS, few_floats);
        prt_tasks(rank, attend_few_task, &job, heads);
        return;
    }
    attend_choose_blocks(&job, QUERIES, KEYS, buffer_floats);
    prt_tasks(rank, attend_task, &job, heads * prt_ceil_div(shape->seq, job.block_q));
}
