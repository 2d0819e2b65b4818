/* Runs a RoleProgram without a code generator: loops through loop_interpret, everything else naively. All ranks in lockstep,
 * so collectives are plain sums over arenas. What fusion, places and addresses get wrong shows here. */
#ifndef PLAN_KERNEL_MACHINE_H
#define PLAN_KERNEL_MACHINE_H

#include <math.h>
#include <stdlib.h>

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

static inline void km_product(const Product *p, const float *a, const float *b, float *c) {
    for (int64_t ib = 0; ib < km_points(p->batch, p->n_batch); ib++)
        for (int64_t im = 0; im < km_points(p->m, p->n_m); im++)
            for (int64_t in = 0; in < km_points(p->n, p->n_n); in++) {
                ProductDim x = km_point(p->batch, p->n_batch, ib), y = km_point(p->m, p->n_m, im), z = km_point(p->n, p->n_n, in);
                double sum = 0;
                for (int64_t ik = 0; ik < km_points(p->k, p->n_k); ik++) {
                    ProductDim w = km_point(p->k, p->n_k, ik);
                    sum += (double)a[x.a + y.a + w.a] * (double)b[x.b + z.b + w.b];
                }
                float *out = &c[x.c + y.c + z.c];
                *out = (float)(sum * p->scale) + (p->accumulate ? *out : 0);
            }
}

typedef struct KmHead {
    const float *q, *k, *v;
    int64_t o, l;
} KmHead;

static inline KmHead km_head(const Attend *a, const float *q, const float *k, const float *v, int64_t b, int64_t h) {
    int64_t kv = h / a->group;
    return (KmHead){q + b * a->q_batch + h * a->q_head, k + b * a->k_batch + kv * a->k_head, v + b * a->v_batch + kv * a->v_head,
                    b * a->o_batch + h * a->o_head, b * a->l_batch + h * a->l_head};
}

static inline double km_score(const Attend *a, const KmHead *h, int64_t i, int64_t j, int64_t start) {
    if (a->causal && j > i + start) return -INFINITY;
    double s = 0;
    for (int64_t d = 0; d < a->width; d++) s += (double)h->q[i * a->q_seq + d] * (double)h->k[j * a->k_key + d];
    return s * a->scale;
}

static inline void km_attend(const Attend *a, float *const *p, int64_t start) {
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->kv_head * a->group; h++) {
            KmHead head = km_head(a, p[0], p[1], p[2], b, h);
            for (int64_t i = 0; i < a->seq; i++) {
                double most = -INFINITY, sum = 0;
                for (int64_t j = 0; j < a->key; j++) most = fmax(most, km_score(a, &head, i, j, start));
                for (int64_t j = 0; j < a->key; j++) sum += exp(km_score(a, &head, i, j, start) - most);
                p[4][head.l + i * a->l_seq] = (float)(most + log(sum));
                for (int64_t d = 0; d < a->width; d++) {
                    double out = 0;
                    for (int64_t j = 0; j < a->key; j++)
                        out += exp(km_score(a, &head, i, j, start) - most) / sum * (double)head.v[j * a->v_key + d];
                    p[3][head.o + i * a->o_seq + d] = (float)out;
                }
            }
        }
}

/* q k v out lse d_out dq dk dv */
static inline void km_attend_grad(const Attend *a, float *const *p, int64_t start) {
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->kv_head * a->group; h++) {
            KmHead head = km_head(a, p[0], p[1], p[2], b, h);
            float *dq = p[6] + (head.q - p[0]), *dk = p[7] + (head.k - p[1]), *dv = p[8] + (head.v - p[2]);
            if (h % a->group == 0)
                for (int64_t j = 0; j < a->key; j++)
                    for (int64_t d = 0; d < a->width; d++) dk[j * a->k_key + d] = dv[j * a->v_key + d] = 0;
            for (int64_t i = 0; i < a->seq; i++) {
                const float *out = p[3] + head.o + i * a->o_seq, *g = p[5] + head.o + i * a->o_seq;
                double delta = 0, lse = (double)p[4][head.l + i * a->l_seq];
                for (int64_t d = 0; d < a->width; d++) delta += (double)out[d] * (double)g[d], dq[i * a->q_seq + d] = 0;
                for (int64_t j = 0; j < a->key; j++) {
                    double prob = exp(km_score(a, &head, i, j, start) - lse), dp = 0;
                    for (int64_t d = 0; d < a->width; d++) dp += (double)g[d] * (double)head.v[j * a->v_key + d];
                    double ds = prob * (dp - delta) * a->scale;
                    for (int64_t d = 0; d < a->width; d++) {
                        dq[i * a->q_seq + d] += (float)(ds * (double)head.k[j * a->k_key + d]);
                        dk[j * a->k_key + d] += (float)(ds * (double)head.q[i * a->q_seq + d]);
                        dv[j * a->v_key + d] += (float)(prob * (double)g[d]);
                    }
                }
            }
        }
}

static inline void km_scatter(const KernelMachine *k, int64_t rank, const Scatter *s, float *out, const int32_t *index, const float *rows) {
    int64_t first = s->coordinate_axis < 0 ? 0 : mesh_coordinate(k->mesh, rank, s->coordinate_axis) * s->n_out;
    if (!s->accumulate)
        for (int64_t i = 0; i < s->n_out; i++) memset(out + i * s->out_stride, 0, sizeof(float) * (size_t)s->width);
    for (int64_t i = 0; i < s->n_rows; i++) {
        int64_t at = index[i] - first;
        if (at < 0 || at >= s->n_out) continue;
        for (int64_t d = 0; d < s->width; d++) out[at * s->out_stride + d] += rows[i * s->row_stride + d];
    }
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

static inline float km_join(ReduceKind reduce, float x, float y) { return reduce == REDUCE_SUM ? x + y : reduce == REDUCE_MAX ? fmaxf(x, y) : fminf(x, y); }

/* What rank r gets of a collective: elements are 4 bytes wide, sums are of f32. */
static inline void km_collect(const KernelMachine *k, const Kernel *kernel, int64_t r, float *out) {
    const Collective *c = kernel->collective;
    int64_t n = k->mesh->axes[c->axis].size, me = mesh_coordinate(k->mesh, r, c->axis);
    for (int64_t j = 0; j < n; j++) {
        const float *in = km_address(k, km_peer(k, r, c->axis, j), &kernel->refs[0]);
        if (c->op == OP_ALL_REDUCE)
            for (int64_t i = 0; i < c->elements; i++) out[i] = j ? km_join(c->reduce, out[i], in[i]) : in[i];
        for (int64_t o = 0; o < c->outer && c->op != OP_ALL_REDUCE; o++)
            for (int64_t i = 0; i < c->inner; i++) {
                int64_t mine = (o * n + me) * c->inner + i, theirs = (o * n + j) * c->inner + i;
                if (c->op == OP_ALL_GATHER) memcpy(&out[theirs], &in[o * c->inner + i], 4);
                else if (c->op == OP_ALL_TO_ALL) memcpy(&out[theirs], &in[mine], 4);
                else out[o * c->inner + i] = j ? km_join(c->reduce, out[o * c->inner + i], in[mine]) : in[mine];
            }
    }
}

static inline void km_collective(KernelMachine *k, const Kernel *kernel) {
    const Collective *c = kernel->collective;
    int64_t n = c->op == OP_REDUCE_SCATTER ? c->elements / k->mesh->axes[c->axis].size : c->elements;
    float *all = calloc((size_t)(k->n_ranks * n), sizeof *all);
    for (int64_t r = 0; r < k->n_ranks; r++) km_collect(k, kernel, r, all + r * n);
    for (int64_t r = 0; r < k->n_ranks; r++) memcpy(km_address(k, r, &kernel->refs[1]), all + r * n, sizeof *all * (size_t)n);
    free(all);
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
        int64_t start = 0;
        for (int i = 0; i < kernel->n_starts; i++)
            start += *(int32_t *)(k->arenas[r] + kernel->starts[i]->address) * kernel->start_scales[i];
        switch (kernel->kind) {
        case KERNEL_LOOP: loop_interpret(kernel->loop, p, 0, loop_rows(kernel->loop)); break;
        case KERNEL_PRODUCT: km_product(kernel->product, p[0], p[1], p[2]); break;
        case KERNEL_ATTEND: km_attend(kernel->attend, (float *const *)p, start); break;
        case KERNEL_ATTEND_GRAD: km_attend_grad(kernel->attend, (float *const *)p, start); break;
        case KERNEL_SCATTER: km_scatter(k, r, kernel->scatter, p[0], p[1], p[2]); break;
        case KERNEL_TOP_K: km_top_k(kernel->top_k, p[0], p[1], p[2], p[3]); break;
        default: BUG("kernel kind %d", kernel->kind);
        }
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
