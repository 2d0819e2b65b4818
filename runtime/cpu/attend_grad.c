/* The gradient of attention (prt_attend_grad): weights are computed again from q, k and the stored lse.
 *
 * With p = exp(scale * q k^T - lse), dp = d_out v^T, delta = the row sums of d_out * out and ds = scale * p (dp -
 * delta): dv = p^T d_out, dk = ds^T q, dq = ds k. One task does all of one key head of one sequence: for each block of
 * keys, in order, over the heads of its group and their blocks of queries. So every sum has one order, whatever the
 * threads. dk and dv grow in scratch memory, dq in place; all three are f32, whatever the operands are. Tiles that
 * causality hides are skipped. */
#include "cpu/attend.h"

#include <string.h>

enum { QUERIES = 128, KEYS = 128, LEVELS = 3 /* of the tree over 8 leaves */ };
enum { WIDE = 256 }; /* narrow elements that are converted at a time */

/* Packed operands are named after the product's side (rows `_a`, columns `_b`). */
typedef struct Buffers {
    float *q_a, *d_out_a;      /* lanes queries, depth width */
    float *q_b, *d_out_b;      /* lanes width, depth queries */
    float *k_b, *v_b;          /* lanes keys, depth width */
    float *k_wide_b;           /* lanes width, depth keys */
    float *s, *dp, *p;         /* [block_q][block_k]; s becomes ds */
    float *rows_a;             /* ds: lanes queries, depth keys */
    float *keys_a;             /* p, then ds, transposed: lanes keys, depth queries */
    float *dk, *dv;            /* [block_k][padded width] */
    float *waiting[LEVELS][2]; /* sums of leaves that are not joined yet: dk, dv */
} Buffers;

typedef struct Head {
    const void *q, *out, *d_out;
    const float *lse;
    float *dq;
} Head;
typedef struct KeyHead {
    const void *k, *v;
    float *dk, *dv;
} KeyHead;
typedef struct Block {
    int64_t first, n;
} Block;

static int64_t padded_width(const AttendJob *job) { return prt_round_up(job->shape->width, plan_inner.tile_n); }

static Buffers buffers_at(const AttendJob *job, AttendScratch *free) {
    int64_t w = job->shape->width, q = job->block_q, k = job->block_k, keys = prt_round_up(k, plan_inner.tile_m);
    Buffers b;
    b.q_a = attend_take(free, attend_a_floats(q, w));
    b.d_out_a = attend_take(free, attend_a_floats(q, w));
    b.q_b = attend_take(free, attend_b_floats(w, q));
    b.d_out_b = attend_take(free, attend_b_floats(w, q));
    b.k_b = attend_take(free, attend_b_floats(k, w));
    b.v_b = attend_take(free, attend_b_floats(k, w));
    b.k_wide_b = attend_take(free, attend_b_floats(w, k));
    b.s = attend_take(free, q * k);
    b.dp = attend_take(free, q * k);
    b.p = attend_take(free, q * k);
    b.rows_a = attend_take(free, attend_a_floats(q, k));
    b.keys_a = attend_take(free, attend_a_floats(k, q));
    b.dk = attend_take(free, keys * padded_width(job));
    b.dv = attend_take(free, keys * padded_width(job));
    for (int i = 0; i < 2 * LEVELS && job->leaf; i++)
        b.waiting[i / 2][i % 2] = attend_take(free, keys * padded_width(job));
    return b;
}

static int64_t buffer_floats(const AttendJob *job) {
    AttendScratch count = {0};
    buffers_at(job, &count);
    return count.used;
}

/* ---- one block of queries with one block of keys --------------------------------------------------------------- */

/* The last query of the panel of rows that starts at row i sees so many of the block's keys. */
static int64_t panel_seen(const AttendJob *job, Block q, Block k, int64_t i) {
    return attend_seen(job, q.first + prt_min(i + plan_inner.tile_m, q.n) - 1, k.first, k.n);
}

/* s = q k^T and dp = d_out v^T. */
static void scores(const AttendJob *job, const Buffers *b, Block q, Block k) {
    const PrtInner *inner = &plan_inner;
    int64_t w = job->shape->width, ld = job->block_k;
    for (int64_t i = 0; i < q.n; i += inner->tile_m) {
        int64_t seen = panel_seen(job, q, k, i), panel = i / inner->tile_m * inner->panel_m * w;
        for (int64_t j = 0; j < seen; j += inner->tile_n) {
            inner->tile(b->q_a + panel, b->k_b + j * w, b->s + i * ld + j, w, ld, inner->tile_m, inner->tile_n, 1.0f,
                        0);
            inner->tile(b->d_out_a + panel, b->v_b + j * w, b->dp + i * ld + j, w, ld, inner->tile_m, inner->tile_n,
                        1.0f, 0);
        }
    }
}

static float dot_rows(int element, const void *x, const void *y, int64_t n) {
    if (element == PRT_ELEMENT_F32) return plan_inner.dot_row(x, y, n);
    float wide_x[WIDE], wide_y[WIDE], sum = 0;
    for (int64_t i = 0; i < n; i += WIDE) {
        int64_t part = prt_min(WIDE, n - i);
        prt_widen(element, prt_element(x, element, i), wide_x, part);
        prt_widen(element, prt_element(y, element, i), wide_y, part);
        sum += plan_inner.dot_row(wide_x, wide_y, part);
    }
    return sum;
}

/* p and ds, row by row; hidden keys get 0. */
static void weights(const AttendJob *job, const Buffers *b, const Head *h, Block q, Block k) {
    const PrtAttend *s = job->shape;
    for (int64_t i = 0; i < q.n; i++) {
        float *row = b->s + i * job->block_k, *dp = b->dp + i * job->block_k, *p = b->p + i * job->block_k;
        int64_t query = q.first + i, seen = attend_seen(job, query, k.first, k.n);
        memset(row + seen, 0, (size_t)(k.n - seen) * sizeof(float));
        memset(p + seen, 0, (size_t)(k.n - seen) * sizeof(float));
        if (seen == 0) continue;
        float delta = dot_rows(s->element, prt_element(h->d_out, s->element, query * s->o_seq),
                               prt_element(h->out, s->element, query * s->o_seq), s->width);
        plan_inner.softmax_grad_row(row, dp, p, seen, s->scale, h->lse[query * s->l_seq], delta);
    }
}

/* to[keys][width] += x^T y, where x [queries][keys] is p or ds and y the packed queries or d_out. A panel of keys
 * starts at the first query that sees its first key. */
static void add_to_keys(const AttendJob *job, const Buffers *b, const float *x, const float *y, float *to, Block q,
                        Block k) {
    const PrtInner *inner = &plan_inner;
    int64_t ld = padded_width(job);
    attend_pack_a(PRT_ELEMENT_F32, x, 1, k.n, job->block_k, q.n, b->keys_a);
    for (int64_t i = 0; i < k.n; i += inner->tile_m) {
        int64_t from = prt_max(0, attend_first(job, k.first + i) - q.first);
        if (from >= q.n) break;
        const float *panel = b->keys_a + i / inner->tile_m * inner->panel_m * q.n + from * inner->panel_m;
        for (int64_t j = 0; j < job->shape->width; j += inner->tile_n)
            inner->tile(panel, y + j * q.n + from * inner->tile_n, to + i * ld + j, q.n - from, ld, inner->tile_m,
                        inner->tile_n, 1.0f, 1);
    }
}

/* dq += ds k */
static void add_to_queries(const AttendJob *job, const Buffers *b, const Head *h, Block q, Block k) {
    const PrtInner *inner = &plan_inner;
    const PrtAttend *s = job->shape;
    attend_pack_a(PRT_ELEMENT_F32, b->s, job->block_k, q.n, 1, k.n, b->rows_a);
    for (int64_t i = 0; i < q.n; i += inner->tile_m) {
        int64_t seen = panel_seen(job, q, k, i);
        const float *ds = b->rows_a + i / inner->tile_m * inner->panel_m * k.n;
        for (int64_t j = 0; seen > 0 && j < s->width; j += inner->tile_n)
            inner->tile(ds, b->k_wide_b + j * k.n, h->dq + (q.first + i) * s->q_seq + j, seen, s->q_seq,
                        prt_min(inner->tile_m, q.n - i), prt_min(inner->tile_n, s->width - j), 1.0f, 1);
    }
}

static void grad_block(const AttendJob *job, const Buffers *b, const Head *h, Block q, Block k) {
    const PrtAttend *s = job->shape;
    int element = s->element;
    const void *queries = prt_element(h->q, element, q.first * s->q_seq);
    const void *d_out = prt_element(h->d_out, element, q.first * s->o_seq);
    attend_pack_a(element, queries, s->q_seq, q.n, 1, s->width, b->q_a);
    attend_pack_a(element, d_out, s->o_seq, q.n, 1, s->width, b->d_out_a);
    attend_pack_b(element, queries, 1, s->width, s->q_seq, q.n, b->q_b);
    attend_pack_b(element, d_out, 1, s->width, s->o_seq, q.n, b->d_out_b);
    scores(job, b, q, k);
    weights(job, b, h, q, k);
    add_to_keys(job, b, b->p, b->d_out_b, b->dv, q, k);
    add_to_keys(job, b, b->s, b->q_b, b->dk, q, k);
    add_to_queries(job, b, h, q, k);
}

/* ---- one key head ---------------------------------------------------------------------------------------------- */

static Head head_of(const AttendJob *job, int64_t batch, int64_t head) {
    const PrtAttend *s = job->shape;
    int64_t q = batch * s->q_batch + head * s->q_head, o = batch * s->o_batch + head * s->o_head;
    return (Head){.q = prt_element(job->pointers[0], s->element, q),
                  .out = prt_element(job->pointers[3], s->element, o),
                  .lse = (const float *)job->pointers[4] + batch * s->l_batch + head * s->l_head,
                  .d_out = prt_element(job->pointers[5], s->element, o),
                  .dq = (float *)job->pointers[6] + q};
}

static KeyHead key_head_of(const AttendJob *job, int64_t batch, int64_t head) {
    const PrtAttend *s = job->shape;
    int64_t k = batch * s->k_batch + head * s->k_head, v = batch * s->v_batch + head * s->v_head;
    return (KeyHead){prt_element(job->pointers[1], s->element, k), prt_element(job->pointers[2], s->element, v),
                     (float *)job->pointers[7] + k, (float *)job->pointers[8] + v};
}

static void store_keys(const AttendJob *job, const float *from, float *to, int64_t stride, Block k) {
    for (int64_t i = 0; i < k.n; i++)
        memcpy(to + (k.first + i) * stride, from + i * padded_width(job), (size_t)job->shape->width * sizeof(float));
}

/* dk and dv of a block of keys, from queries [lo, hi) of all heads of the group. */
static void grad_queries(const AttendJob *job, const Buffers *b, int64_t batch, int64_t kv, Block k, int64_t lo,
                         int64_t hi) {
    const PrtAttend *s = job->shape;
    size_t bytes = (size_t)(prt_round_up(k.n, plan_inner.tile_m) * padded_width(job)) * sizeof(float);
    memset(b->dk, 0, bytes);
    memset(b->dv, 0, bytes);
    for (int64_t g = 0; g < s->group; g++) {
        Head h = head_of(job, batch, kv * s->group + g);
        for (int64_t first = lo; first < hi; first += job->block_q) {
            Block q = {first, prt_min(job->block_q, hi - first)};
            if (attend_seen(job, q.first + q.n - 1, k.first, k.n) > 0) grad_block(job, b, &h, q, k);
        }
    }
}

static void join_waiting(float *earlier, float *later, int64_t n) {
    for (int64_t i = 0; i < n; i++) later[i] = earlier[i] + later[i];
}

/* Leaves of queries, joined by a balanced tree: a rank that has a part of the queries has a whole branch of it. Leaf
 * number l completes as many branches as l + 1 can be halved, the last one all. */
static void grad_leaves(const AttendJob *job, const Buffers *b, int64_t batch, int64_t kv, Block k) {
    int64_t n = prt_round_up(k.n, plan_inner.tile_m) * padded_width(job), seq = job->shape->seq, waiting = 0;
    for (int64_t first = 0, leaf = 0; first < seq; first += job->leaf, leaf++) {
        int64_t end = prt_min(first + job->leaf, seq);
        grad_queries(job, b, batch, kv, k, first, end);
        for (int64_t l = leaf; waiting > 0 && ((l & 1) || end == seq); l >>= 1) {
            waiting--;
            join_waiting(b->waiting[waiting][0], b->dk, n);
            join_waiting(b->waiting[waiting][1], b->dv, n);
        }
        if (end == seq) return;
        memcpy(b->waiting[waiting][0], b->dk, (size_t)n * sizeof(float));
        memcpy(b->waiting[waiting++][1], b->dv, (size_t)n * sizeof(float));
    }
}

static void grad_keys(const AttendJob *job, const Buffers *b, int64_t batch, int64_t kv, Block k) {
    const PrtAttend *s = job->shape;
    KeyHead kh = key_head_of(job, batch, kv);
    int element = s->element;
    const void *keys = prt_element(kh.k, element, k.first * s->k_key);
    attend_pack_b(element, keys, s->k_key, k.n, 1, s->width, b->k_b);
    attend_pack_b(element, keys, 1, s->width, s->k_key, k.n, b->k_wide_b);
    attend_pack_b(element, prt_element(kh.v, element, k.first * s->v_key), s->v_key, k.n, 1, s->width, b->v_b);
    if (job->leaf)
        grad_leaves(job, b, batch, kv, k);
    else
        grad_queries(job, b, batch, kv, k, 0, s->seq);
    store_keys(job, b->dk, kh.dk, s->k_key, k);
    store_keys(job, b->dv, kh.dv, s->v_key, k);
}

static void grad_task(void *context, int thread, int64_t task) {
    const AttendJob *job = context;
    const PrtAttend *s = job->shape;
    int64_t batch = task / s->kv_head, kv = task % s->kv_head;
    AttendScratch free = {.base = (float *)prt_scratch(job->rank, thread)};
    Buffers b = buffers_at(job, &free);
    for (int64_t g = 0; g < s->group; g++) {
        Head h = head_of(job, batch, kv * s->group + g);
        for (int64_t i = 0; i < s->seq; i++) memset(h.dq + i * s->q_seq, 0, (size_t)s->width * sizeof(float));
    }
    for (int64_t first = 0; first < s->key; first += job->block_k)
        grad_keys(job, &b, batch, kv, (Block){first, prt_min(job->block_k, s->key - first)});
}

static void attend_grad(PrtRank *rank, AttendJob *job) {
    attend_choose_blocks(job, QUERIES, KEYS, buffer_floats);
    prt_tasks(rank, grad_task, job, job->shape->batch * job->shape->kv_head);
}

void prt_attend_grad(PrtRank *rank, const PrtAttend *shape, void *const *pointers, int64_t q_start, int64_t k_start) {
    AttendJob job = {.shape = shape, .pointers = pointers, .offset = q_start - k_start, .rank = rank};
    attend_grad(rank, &job);
}

void prt_attend_grad_ordered(PrtRank *rank, const PrtAttend *shape, void *const *pointers, int64_t q_start,
                             int64_t k_start, int64_t leaf) {
    AttendJob job = {.shape = shape, .pointers = pointers, .offset = q_start - k_start, .leaf = leaf, .rank = rank};
    attend_grad(rank, &job);
}
