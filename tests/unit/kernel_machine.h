/* Runs a RoleProgram without a code generator: loops through loop_interpret, everything else naively. All ranks in lockstep,
 * so collectives are plain sums over arenas. What fusion, places and addresses get wrong shows here. */
#ifndef PLAN_KERNEL_MACHINE_H
#define PLAN_KERNEL_MACHINE_H

#include <math.h>
#include <stdlib.h>

#include "ir/loop_math.h"
#include "kernels/kernels.h"

enum { KM_FLIGHTS = 1024 };
typedef struct KmFlight {
    const Kernel *kernel;
    int64_t micro, index[MAX_REPEATS + 1];
    int depth;
} KmFlight;

typedef struct KernelMachine KernelMachine;
struct KernelMachine {
    /* Of a pipeline's stage: runs what goes from stage to stage (transfers, sums over stages); NULL: there is one role. The
     * mesh is then that of one stage: its stages' axis has size 1. */
    void (*between)(KernelMachine *k, const Kernel *kernel);
    int stage_axis;
    const RoleProgram *program;
    const Mesh *mesh;
    int64_t n_ranks;
    char **arenas;
    int64_t micro, index[MAX_REPEATS + 1];
    int depth;
    int64_t round, last_round; /* of the innermost repeat */
    bool early;                /* collectives that start run at once; else when they are finished: both must do */
    KmFlight flights[KM_FLIGHTS];
    int n_flights;
};

/* Where the machine stands, for a kernel that runs later. */
static inline KmFlight km_flight(const KernelMachine *k, const Kernel *kernel) {
    KmFlight flight = {.kernel = kernel, .micro = k->micro, .depth = k->depth};
    memcpy(flight.index, k->index, sizeof flight.index);
    return flight;
}

static inline void km_at(KernelMachine *k, const KmFlight *flight) {
    k->micro = flight->micro, k->depth = flight->depth;
    memcpy(k->index, flight->index, sizeof flight->index);
}

static inline void *km_address(const KernelMachine *k, int64_t rank, const BufferRef *ref) {
    int64_t at = ref->buffer->address + ref->offset + (k->micro % ref->buffer->flights) * ref->buffer->bytes;
    RefStep own = {ref->step, ref->scale, ref->shift, ref->modulus, ref->depth};
    for (int i = -1; i < ref->n_outer; i++) {
        const RefStep *step = i < 0 ? &own : &ref->outer[i];
        if (!step->step) continue;
        assert_true(step->depth > 0 && step->depth <= k->depth);
        int64_t slot = step->scale * k->index[step->depth] + step->shift;
        if (step->modulus) slot %= step->modulus;
        at += slot * step->step;
    }
    return k->arenas[rank] + at;
}

static inline void *km_tensor(const KernelMachine *k, int64_t rank, const char *name) {
    for (int i = 0; i < k->program->buffers.n; i++) {
        const Buffer *b = k->program->buffers.at[i];
        if (b->tensor && strcmp(b->tensor->name, name) == 0) return k->arenas[rank] + b->address;
    }
    return NULL;
}

/* Calls f for every point of a group of dimensions with its offsets in a, b, c. */
static inline int64_t km_points(const ProductDim *d, int n) {
    int64_t points = 1;
    for (int i = 0; i < n; i++) points *= d[i].extent;
    return points;
}

static inline ProductDim km_point(const ProductDim *d, int n, int64_t i) {
    ProductDim at = {0};
    for (int k = n - 1; k >= 0; k--) {
        int64_t x = i % d[k].extent;
        i /= d[k].extent;
        at.a += x * d[k].a, at.b += x * d[k].b, at.c += x * d[k].c;
    }
    return at;
}

/* An element of this type, as a number. */
static inline double km_get(const void *base, int element, int64_t i) {
    if (element == ELEMENT_F32) return (double)((const float *)base)[i];
    uint16_t half = ((const uint16_t *)base)[i];
    return (double)(element == ELEMENT_BF16 ? loop_from_bf16(half) : loop_from_f16(half));
}

static inline void km_put(void *base, int element, int64_t i, double x) {
    if (element == ELEMENT_F32) ((float *)base)[i] = (float)x;
    else ((uint16_t *)base)[i] = element == ELEMENT_BF16 ? loop_to_bf16((float)x) : loop_to_f16((float)x);
}

/* An exact number here is its value, and a zero for what the runtime keeps of smaller steps. */
typedef struct KmExact {
    double value, rest;
} KmExact;

static inline void km_product(const Product *p, const void *a, const void *b, void *c, bool exact) {
    for (int64_t ib = 0; ib < km_points(p->batch, p->n_batch); ib++)
        for (int64_t im = 0; im < km_points(p->m, p->n_m); im++)
            for (int64_t in = 0; in < km_points(p->n, p->n_n); in++) {
                ProductDim x = km_point(p->batch, p->n_batch, ib), y = km_point(p->m, p->n_m, im), z = km_point(p->n, p->n_n, in);
                double sum = 0;
                for (int64_t ik = 0; ik < km_points(p->k, p->n_k); ik++) {
                    ProductDim w = km_point(p->k, p->n_k, ik);
                    sum += km_get(a, p->a, x.a + y.a + w.a) * km_get(b, p->b, x.b + z.b + w.b);
                }
                int64_t out = x.c + y.c + z.c;
                if (exact) {
                    KmExact *number = (KmExact *)c + out;
                    *number = (KmExact){sum * p->scale + (p->accumulate ? number->value : 0), 0};
                    continue;
                }
                km_put(c, p->c, out, sum * p->scale + (p->accumulate ? km_get(c, p->c, out) : 0));
            }
}

/* Where a head begins in each operand; km_q and its like read elements from there. */
typedef struct KmHead {
    void *const *p;
    int element;
    int64_t q, k, v, o, l;
} KmHead;

static inline KmHead km_head(const Attend *a, void *const *p, int64_t b, int64_t h) {
    int64_t kv = h / a->group;
    return (KmHead){p, a->element, b * a->q_batch + h * a->q_head, b * a->k_batch + kv * a->k_head, b * a->v_batch + kv * a->v_head,
                    b * a->o_batch + h * a->o_head, b * a->l_batch + h * a->l_head};
}

static inline double km_q(const KmHead *h, int64_t i) { return km_get(h->p[0], h->element, h->q + i); }
static inline double km_k(const KmHead *h, int64_t i) { return km_get(h->p[1], h->element, h->k + i); }
static inline double km_v(const KmHead *h, int64_t i) { return km_get(h->p[2], h->element, h->v + i); }

/* Logical positions of what a rank holds: queries, keys. */
typedef struct KmPositions {
    int64_t *q, *k;
} KmPositions;

/* All positions, cut axis by axis as a list is. */
static inline int64_t *km_positions(const KernelMachine *k, int64_t rank, const PositionCut *cuts, int n_cuts, int64_t n, int64_t start) {
    int64_t size = n;
    for (int i = 0; i < n_cuts; i++) size *= cuts[i].parts;
    int64_t *at = malloc(sizeof *at * (size_t)(size + 1)), *part = malloc(sizeof *at * (size_t)(size + 1));
    for (int64_t i = 0; i < size; i++) at[i] = i + start;
    for (int i = 0; i < n_cuts; i++) {
        const PositionCut *c = &cuts[i];
        int64_t me = (mesh_coordinate(k->mesh, rank, c->axis) + c->parts - c->turn) % c->parts, blocks = c->parts * (c->balanced ? 2 : 1), unit = size / blocks;
        int64_t kept = 0;
        for (int64_t block = 0; block < blocks; block++)
            for (int64_t j = 0; j < unit && (block == me || (c->balanced && block == blocks - 1 - me)); j++) part[kept++] = at[block * unit + j];
        memcpy(at, part, sizeof *at * (size_t)kept);
        size = kept;
    }
    free(part);
    return at;
}

static inline double km_score(const Attend *a, const KmHead *h, int64_t i, int64_t j, const KmPositions *at) {
    if (a->causal && at->k[j] > at->q[i]) return -INFINITY;
    double s = 0;
    for (int64_t d = 0; d < a->width; d++) s += km_q(h, i * a->q_seq + d) * km_k(h, j * a->k_key + d);
    return s * a->scale;
}

static inline void km_attend(const Attend *a, void *const *p, const KmPositions *at) {
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->kv_head * a->group; h++) {
            KmHead head = km_head(a, p, b, h);
            for (int64_t i = 0; i < a->seq; i++) {
                double most = -INFINITY, sum = 0;
                for (int64_t j = 0; j < a->key; j++) most = fmax(most, km_score(a, &head, i, j, at));
                if (most == -INFINITY) most = 0; /* no keys: 0 and minus infinity */
                for (int64_t j = 0; j < a->key; j++) sum += exp(km_score(a, &head, i, j, at) - most);
                ((float *)p[4])[head.l + i * a->l_seq] = (float)(most + log(sum));
                for (int64_t d = 0; d < a->width; d++) {
                    double out = 0;
                    for (int64_t j = 0; j < a->key; j++)
                        out += sum == 0 ? 0 : exp(km_score(a, &head, i, j, at) - most) / sum * km_v(&head, j * a->v_key + d);
                    km_put(p[3], a->element, head.o + i * a->o_seq + d, out);
                }
            }
        }
}

/* q k v out lse d_out dq dk dv: the gradients are f32 */
static inline void km_attend_grad(const Attend *a, void *const *p, const KmPositions *at) {
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->kv_head * a->group; h++) {
            KmHead head = km_head(a, p, b, h);
            float *dq = (float *)p[6] + head.q, *dk = (float *)p[7] + head.k, *dv = (float *)p[8] + head.v;
            if (h % a->group == 0)
                for (int64_t j = 0; j < a->key; j++)
                    for (int64_t d = 0; d < a->width; d++) dk[j * a->k_key + d] = dv[j * a->v_key + d] = 0;
            for (int64_t i = 0; i < a->seq; i++) {
                double delta = 0, lse = (double)((float *)p[4])[head.l + i * a->l_seq], g[64];
                for (int64_t d = 0; d < a->width; d++) {
                    g[d] = km_get(p[5], a->element, head.o + i * a->o_seq + d);
                    delta += km_get(p[3], a->element, head.o + i * a->o_seq + d) * g[d], dq[i * a->q_seq + d] = 0;
                }
                for (int64_t j = 0; j < a->key; j++) {
                    double prob = exp(km_score(a, &head, i, j, at) - lse), dp = 0;
                    for (int64_t d = 0; d < a->width; d++) dp += g[d] * km_v(&head, j * a->v_key + d);
                    double ds = prob * (dp - delta) * a->scale;
                    for (int64_t d = 0; d < a->width; d++) {
                        dq[i * a->q_seq + d] += (float)(ds * km_k(&head, j * a->k_key + d));
                        dk[j * a->k_key + d] += (float)(ds * km_q(&head, i * a->q_seq + d));
                        dv[j * a->v_key + d] += (float)(prob * g[d]);
                    }
                }
            }
        }
}

static inline void km_scatter(const KernelMachine *k, int64_t rank, const Scatter *s, float *out, const int32_t *index, const void *rows) {
    int64_t first = s->coordinate_axis < 0 ? 0 : mesh_coordinate(k->mesh, rank, s->coordinate_axis) * s->n_out;
    if (!s->accumulate)
        for (int64_t i = 0; i < s->n_out; i++) memset(out + i * s->out_stride, 0, sizeof(float) * (size_t)s->width);
    for (int64_t i = 0; i < s->n_rows; i++) {
        int64_t at = index[i] - first;
        if (at < 0 || at >= s->n_out) continue;
        for (int64_t d = 0; d < s->width; d++) out[at * s->out_stride + d] += (float)km_get(rows, s->element, i * s->row_stride + d);
    }
}

static inline void km_rows(const Exact *e, int64_t first, KmExact *out, const float *in, const int32_t *index) {
    for (int64_t i = 0; i < e->extent[0] && !e->accumulate; i++) memset(out + i * e->out[0], 0, sizeof *out * (size_t)e->extent[2]);
    for (int64_t i = 0; i < e->extent[1]; i++)
        for (int64_t j = 0; j < e->extent[2]; j++)
            if (index[i] >= first && index[i] < first + e->extent[0])
                out[(index[i] - first) * e->out[0] + j].value += (double)in[i * e->in[1] + j];
}

/* Every point of the axes from `axis` on; `clears`: only of the result, which is set to zero. */
static inline void km_exact_axis(const Exact *e, int axis, bool clears, char *out, const char *in, const KmExact *in2) {
    int64_t out_bytes = e->kind == EXACT_ROUND ? 4 : 16, in_bytes = e->kind == EXACT_SUM ? 4 : 16;
    for (int64_t i = 0; axis < e->n_axes && i < (clears && !e->out[axis] ? 1 : e->extent[axis]); i++)
        km_exact_axis(e, axis + 1, clears, out + i * e->out[axis] * out_bytes, in + i * e->in[axis] * in_bytes, in2 + i * e->in2[axis]);
    if (axis < e->n_axes) return;
    KmExact *number = (KmExact *)out;
    const KmExact *x = (const KmExact *)in;
    if (clears || e->kind == EXACT_ZERO) *number = (KmExact){0, 0};
    else if (e->kind == EXACT_SUM) number->value += (double)*(const float *)in;
    else if (e->kind == EXACT_ROUND) *(float *)out = (float)x->value;
    else number->value = (e->accumulate ? number->value : 0) + x->value + (e->kind == EXACT_ADD ? in2->value : 0), number->rest = 0;
}

static inline void km_exact(const KernelMachine *k, int64_t rank, const Exact *e, void *const *p) {
    int64_t coordinate = e->axis < 0 ? 0 : mesh_coordinate(k->mesh, rank, e->axis);
    if (e->kind == EXACT_ROWS) {
        km_rows(e, coordinate * e->extent[0], p[0], p[1], p[2]);
        return;
    }
    if (e->kind == EXACT_SUM && !e->accumulate) km_exact_axis(e, 0, true, p[0], p[1], p[2]);
    km_exact_axis(e, 0, false, p[0], (const char *)p[1] + coordinate * e->shift * (e->kind == EXACT_SUM ? 4 : 16), p[2]);
}

/* The places of tokens in experts' queues: see ir/ops/expert.c. */
static inline void km_top_k(const TopK *t, const float *p, int32_t *chosen, int32_t *slot, int32_t *source) {
    for (int64_t s = 0; s < t->sequences; s++, p += t->seq * t->experts, source += t->experts * t->slots) {
        for (int64_t i = 0; i < t->experts * t->slots; i++) source[i] = -1;
        for (int64_t i = 0; i < t->seq; i++)
            for (int64_t j = 0; j < t->picks; j++, chosen++, slot++) {
                int32_t best = -1;
                for (int32_t e = 0; e < t->experts; e++) {
                    bool taken = false;
                    for (int64_t k = 1; k <= j; k++) taken |= chosen[-k] == e;
                    if (!taken && (best < 0 || p[i * t->experts + e] > p[i * t->experts + best])) best = e;
                }
                *chosen = best;
                *slot = -1;
                for (int32_t at = 0; at < t->slots && *slot < 0; at++)
                    if (source[best * t->slots + at] < 0) source[best * t->slots + (*slot = at)] = (int32_t)(i * t->picks + j);
            }
    }
}

/* The j-th rank of r's group along an axis. */
static inline int64_t km_peer(const KernelMachine *k, int64_t r, int axis, int64_t j) {
    int64_t stride = 1;
    for (int a = axis + 1; a < k->mesh->n; a++) stride *= k->mesh->axes[a].size;
    return r + (j - mesh_coordinate(k->mesh, r, axis)) * stride;
}

static inline double km_join(ReduceKind reduce, double x, double y) { return reduce == REDUCE_SUM ? x + y : reduce == REDUCE_MAX ? fmax(x, y) : fmin(x, y); }

static inline int km_element(const Collective *c) { return c->dtype == DT_BF16 || c->dtype == DT_F16 ? (int)c->dtype : ELEMENT_F32; }

/* Where element i of rank j's block stands in the whole: blocks are two pieces each where the layout is balanced. */
static inline int64_t km_place(const Collective *c, int64_t n, int64_t o, int64_t j, int64_t i) {
    int64_t unit = c->balanced ? c->inner / 2 : c->inner, pieces = c->balanced ? 2 * n : n;
    return (o * pieces + (i < unit ? j : pieces - 1 - j)) * unit + i % unit;
}

/* What rank r gets of a collective: words are moved as they are, sums are of floats. */
static inline void km_collect(const KernelMachine *k, const Kernel *kernel, int64_t r, char *out, double *sums) {
    const Collective *c = kernel->collective;
    int64_t n = k->mesh->axes[c->axis].size, me = mesh_coordinate(k->mesh, r, c->axis), bytes = dtype_bytes(c->dtype);
    if (c->op == OP_PASS) {
        memcpy(out, km_address(k, km_peer(k, r, c->axis, (me + n - 1) % n), &kernel->refs[0]), (size_t)(bytes * c->elements));
        return;
    }
    bool whole = c->op == OP_ALL_REDUCE, sum = whole || c->op == OP_REDUCE_SCATTER;
    int64_t outer = whole ? 1 : c->outer, inner = whole ? c->elements : c->inner;
    for (int64_t j = 0; j < n; j++) {
        const char *in = km_address(k, km_peer(k, r, c->axis, j), &kernel->refs[0]);
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) {
                int64_t at = o * inner + i, mine = whole ? at : km_place(c, n, o, me, i), theirs = whole ? at : km_place(c, n, o, j, i);
                if (c->op == OP_ALL_GATHER) memcpy(out + theirs * bytes, in + at * bytes, (size_t)bytes);
                else if (c->op == OP_ALL_TO_ALL) memcpy(out + theirs * bytes, in + mine * bytes, (size_t)bytes);
                else {
                    double x = c->dtype == DT_EXACT ? ((const KmExact *)in)[mine].value : km_get(in, km_element(c), mine);
                    sums[at] = j == 0 ? x : c->dtype == DT_EXACT ? sums[at] + x : (double)(float)km_join(c->reduce, sums[at], x);
                }
            }
    }
    for (int64_t i = 0; sum && i < outer * inner; i++) {
        if (c->dtype == DT_EXACT) ((KmExact *)out)[i] = (KmExact){sums[i], 0};
        else km_put(out, km_element(c), i, sums[i]);
    }
}

static inline void km_collective(KernelMachine *k, const Kernel *kernel) {
    const Collective *c = kernel->collective;
    int64_t n = c->op == OP_REDUCE_SCATTER ? c->elements / k->mesh->axes[c->axis].size : c->elements, bytes = n * dtype_bytes(c->dtype);
    char *all = calloc((size_t)k->n_ranks, (size_t)bytes);
    double *sums = calloc((size_t)n, sizeof *sums);
    for (int64_t r = 0; r < k->n_ranks; r++) km_collect(k, kernel, r, all + r * bytes, sums);
    for (int64_t r = 0; r < k->n_ranks; r++) memcpy(km_address(k, r, &kernel->refs[1]), all + r * bytes, (size_t)bytes);
    free(all);
    free(sums);
}

static inline void km_kernel(KernelMachine *k, const Kernel *kernel);

static inline void km_finish(KernelMachine *k, int axis) {
    KmFlight now = km_flight(k, NULL);
    int left = 0, n = k->n_flights;
    for (int i = 0; i < n; i++) {
        KmFlight flight = k->flights[i];
        if (flight.kernel->collective->axis != axis) {
            k->flights[left++] = flight;
            continue;
        }
        km_at(k, &flight);
        km_collective(k, flight.kernel);
    }
    k->n_flights = left;
    km_at(k, &now);
}

/* Whether this round and micro-batch run the kernel. */
static inline bool km_runs(const KernelMachine *k, const Kernel *kernel) {
    if (kernel->rounds == ROUNDS_BUT_FIRST && k->round == 0) return false;
    if (kernel->rounds == ROUNDS_BUT_LAST && k->round == k->last_round) return false;
    return !kernel->micro || kernel->micro - 1 == k->micro;
}

static inline void km_list(KernelMachine *k, const KernelList *list) {
    for (int i = 0; i < list->n; i++) km_kernel(k, list->at[i]);
}

static inline void km_kernel(KernelMachine *k, const Kernel *kernel) {
    if (kernel->kind == KERNEL_REPEAT) {
        int64_t round = k->round, last_round = k->last_round;
        k->depth++;
        for (int64_t j = 0; j < kernel->count; j++) {
            k->round = j, k->last_round = kernel->count - 1;
            int64_t i = k->index[k->depth] = kernel->descending ? kernel->count - 1 - j : j;
            BufferRef ref = {.buffer = kernel->index};
            for (int64_t r = 0; r < k->n_ranks; r++) *(int32_t *)km_address(k, r, &ref) = (int32_t)(i + kernel->index_first);
            km_list(k, &kernel->body);
        }
        k->depth--;
        k->round = round, k->last_round = last_round;
        return;
    }
    if (!km_runs(k, kernel)) return;
    if (kernel->kind == KERNEL_FINISH) {
        km_finish(k, kernel->axis);
        return;
    }
    if (kernel->kind == KERNEL_TRANSFER || (k->between && kernel->kind == KERNEL_COLLECTIVE && kernel->collective->axis == k->stage_axis)) {
        k->between(k, kernel);
        return;
    }
    if (kernel->kind == KERNEL_COLLECTIVE) {
        if (kernel->begins && !k->early && k->n_flights < KM_FLIGHTS) {
            k->flights[k->n_flights++] = km_flight(k, kernel);
            return;
        }
        km_finish(k, kernel->collective->axis);
        km_collective(k, kernel);
        return;
    }
    for (int64_t r = 0; r < k->n_ranks; r++) {
        void *p[64];
        for (int i = 0; i < kernel->n_refs; i++) p[i] = km_address(k, r, &kernel->refs[i]);
        KmPositions at = {NULL, NULL};
        const Attend *a = kernel->attend;
        if (a) {
            at.q = km_positions(k, r, a->q_cuts, a->n_q_cuts, a->seq, kernel->start ? *(int32_t *)(k->arenas[r] + kernel->start->address) : 0);
            at.k = km_positions(k, r, a->k_cuts, a->n_k_cuts, a->key, 0);
        }
        switch (kernel->kind) {
        case KERNEL_LOOP: loop_interpret(kernel->loop, p, 0, loop_rows(kernel->loop)); break;
        case KERNEL_PRODUCT: km_product(kernel->product, p[0], p[1], p[2], kernel->makes_exact); break;
        case KERNEL_ATTEND: km_attend(a, p, &at); break;
        case KERNEL_ATTEND_GRAD: km_attend_grad(a, p, &at); break;
        case KERNEL_SCATTER: km_scatter(k, r, kernel->scatter, p[0], p[1], p[2]); break;
        case KERNEL_EXACT: km_exact(k, r, kernel->exact, p); break;
        case KERNEL_TOP_K: km_top_k(kernel->top_k, p[0], p[1], p[2], p[3]); break;
        default: BUG("kernel kind %d", kernel->kind);
        }
        free(at.q);
        free(at.k);
    }
}

static inline KernelMachine km_open(const RoleProgram *program, const Mesh *mesh) {
    KernelMachine k = {.program = program, .mesh = mesh, .n_ranks = mesh_ranks(mesh)};
    k.arenas = calloc((size_t)k.n_ranks, sizeof *k.arenas);
    for (int64_t r = 0; r < k.n_ranks; r++) {
        k.arenas[r] = aligned_alloc(64, (size_t)(program->arena_bytes + 64) / 64 * 64 + 64);
        memset(k.arenas[r], 0x7f, (size_t)program->arena_bytes); /* what is read before it is written shows as huge */
        for (int a = 0; a < mesh->n; a++) {
            char name[128];
            snprintf(name, sizeof name, "coord.%s", mesh->axes[a].name);
            int32_t *coordinate = km_tensor(&k, r, name);
            if (coordinate) *coordinate = (int32_t)mesh_coordinate(mesh, r, a);
        }
    }
    return k;
}

static inline void km_close(KernelMachine *k) {
    for (int64_t r = 0; r < k->n_ranks; r++) free(k->arenas[r]);
    free(k->arenas);
}

static inline bool km_run(KernelMachine *k, const char *entry, int64_t micro) {
    k->micro = micro;
    for (int64_t r = 0; r < k->n_ranks; r++) {
        int32_t *at = km_tensor(k, r, "micro");
        if (at) *at = (int32_t)micro;
    }
    for (int i = 0; i < k->program->entries.n; i++)
        if (strcmp(k->program->entries.at[i].name, entry) == 0) {
            km_list(k, &k->program->entries.at[i].body);
            return true;
        }
    return false;
}

#endif
