/* prt_exact: exact numbers made, added, moved and rounded (exact.h says what they are).
 *
 * Axes of the result are walked from outside; the last one runs in a row function of its own. Sums may run in any
 * order, so the work is cut wherever it is easy: by rows of the result, or, where that is a single number, by its
 * terms. */
#include "cpu/exact.h"

#include <string.h>

#include "cpu/threads.h"

#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#undef CLONES
#define CLONES
#endif

enum { GRAIN = 16384 /* elements that a task has at least */, MAX_PARTS = 64 };

/* ---- rows ------------------------------------------------------------------------------------------------------ */

CLONES void prt_exact_add_terms(double *restrict high, double *restrict low, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double value = (double)x[i], part = prt_exact_cut(value, PRT_EXACT_HIGH);
        high[i] += part;
        low[i] += prt_exact_cut(value - part, PRT_EXACT_LOW);
    }
}

CLONES void prt_exact_add_row(PrtExactNumber *sum, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) prt_exact_add(&sum[i], x[i]);
}

CLONES void prt_exact_add_exact_row(PrtExactNumber *sum, const PrtExactNumber *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) prt_exact_add_number(&sum[i], x[i].high, x[i].low);
}

/* The sum of n floats. Lanes hide the latency of the additions. */
CLONES static void add_floats(PrtExactNumber *sum, const float *x, int64_t n, int64_t stride) {
    enum { LANES = 16 };
    double high[LANES] = {0}, low[LANES] = {0};
    int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int64_t k = 0; k < LANES; k++) {
            double value = (double)x[(i + k) * stride], part = prt_exact_cut(value, PRT_EXACT_HIGH);
            double both = low[k] + prt_exact_cut(value - part, PRT_EXACT_LOW);
            double carry = prt_exact_cut(both, PRT_EXACT_HIGH);
            low[k] = both - carry;
            high[k] += part + carry;
        }
    for (int64_t k = 0; k < LANES; k++) prt_exact_add_number(sum, high[k], low[k]);
    for (int64_t i = whole; i < n; i++) prt_exact_add(sum, x[i * stride]);
}

CLONES static void round_row(float *restrict out, const PrtExactNumber *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = prt_exact_round(in[i]);
}

/* ---- the last axis --------------------------------------------------------------------------------------------- */

typedef struct Operands {
    char *out;
    const char *in, *in2;
} Operands;

typedef struct ExactJob {
    const PrtExact *exact;
    Operands at;
    int64_t out_bytes, in_bytes;
    int64_t first; /* rows: the first index of this rank */
    int split;     /* the axis that is cut in parts for threads */
    int64_t parts;
    PrtExactNumber *part_sums; /* NULL: parts write to places of their own */
} ExactJob;

typedef struct Part {
    int64_t lo, hi; /* of the axis that is cut */
} Part;

static void sum_row(const PrtExact *e, PrtExactNumber *out, const float *in, int64_t n, int axis) {
    int64_t to = e->out[axis], from = e->in[axis];
    if (to == 0)
        add_floats(out, in, n, from);
    else if (to == 1 && from == 1)
        prt_exact_add_row(out, in, n);
    else
        for (int64_t i = 0; i < n; i++) prt_exact_add(&out[i * to], in[i * from]);
}

static void add_row(const PrtExact *e, PrtExactNumber *out, const PrtExactNumber *in, int64_t n, int axis,
                    int64_t from) {
    int64_t to = e->out[axis];
    if (to == 1 && from == 1)
        prt_exact_add_exact_row(out, in, n);
    else
        for (int64_t i = 0; i < n; i++) prt_exact_add_number(&out[i * to], in[i * from].high, in[i * from].low);
}

static void copy_row(const PrtExact *e, PrtExactNumber *out, const PrtExactNumber *in, int64_t n, int axis) {
    for (int64_t i = 0; i < n; i++) out[i * e->out[axis]] = in[i * e->in[axis]];
}

static void last_axis(const PrtExact *e, Operands at, int64_t n, int axis) {
    int64_t to = e->out[axis], from = e->in[axis];
    switch (e->kind) {
    case PRT_EXACT_ZERO:
        for (int64_t i = 0; i < n; i++) ((PrtExactNumber *)at.out)[i * to] = (PrtExactNumber){0, 0};
        break;
    case PRT_EXACT_SUM: sum_row(e, (PrtExactNumber *)at.out, (const float *)at.in, n, axis); break;
    case PRT_EXACT_ADD:
    case PRT_EXACT_COPY: {
        PrtExactNumber *out = (PrtExactNumber *)at.out;
        if (e->accumulate)
            add_row(e, out, (const PrtExactNumber *)at.in, n, axis, from);
        else
            copy_row(e, out, (const PrtExactNumber *)at.in, n, axis);
        if (e->kind == PRT_EXACT_ADD) add_row(e, out, (const PrtExactNumber *)at.in2, n, axis, e->in2[axis]);
        break;
    }
    default:
        if (to == 1 && from == 1)
            round_row((float *)at.out, (const PrtExactNumber *)at.in, n);
        else
            for (int64_t i = 0; i < n; i++)
                ((float *)at.out)[i * to] = prt_exact_round(((const PrtExactNumber *)at.in)[i * from]);
    }
}

static Operands moved(const ExactJob *job, Operands at, int axis, int64_t i) {
    const PrtExact *e = job->exact;
    at.out += i * e->out[axis] * job->out_bytes;
    at.in += i * e->in[axis] * job->in_bytes;
    if (at.in2) at.in2 += i * e->in2[axis] * (int64_t)sizeof(PrtExactNumber);
    return at;
}

static void walk(const ExactJob *job, Operands at, int axis, Part part) {
    const PrtExact *e = job->exact;
    Part here = axis == job->split ? part : (Part){0, e->extent[axis]};
    if (axis == e->n_axes - 1) {
        last_axis(e, moved(job, at, axis, here.lo), here.hi - here.lo, axis);
        return;
    }
    for (int64_t i = here.lo; i < here.hi; i++) walk(job, moved(job, at, axis, i), axis + 1, part);
}

/* ---- tasks ----------------------------------------------------------------------------------------------------- */

static Part part_of(int64_t n, int64_t part, int64_t parts) { return (Part){n * part / parts, n * (part + 1) / parts}; }

static void part_task(void *context, int thread, int64_t task) {
    (void)thread;
    const ExactJob *job = context;
    Operands at = job->at;
    if (job->part_sums) at.out = (char *)&job->part_sums[task];
    walk(job, at, 0, part_of(job->exact->extent[job->split], task, job->parts));
}

static void rows_task(void *context, int thread, int64_t task) {
    (void)thread;
    const ExactJob *job = context;
    const PrtExact *e = job->exact;
    PrtExactNumber *out = (PrtExactNumber *)job->at.out;
    const int32_t *index = (const int32_t *)job->at.in2;
    Part part = part_of(e->extent[2], task, job->parts);
    int64_t lo = part.lo, n = part.hi - part.lo;
    for (int64_t i = 0; i < e->extent[0] && !e->accumulate; i++)
        memset(out + i * e->out[0] + lo, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < e->extent[1]; i++) {
        int64_t to = index[i] - job->first;
        if (to >= 0 && to < e->extent[0])
            prt_exact_add_row(out + to * e->out[0] + lo, (const float *)job->at.in + i * e->in[1] + lo, n);
    }
}

/* A sum starts from zero, at every number of the result. */
static void clear(const ExactJob *job) {
    PrtExact zero = *job->exact;
    zero.kind = PRT_EXACT_ZERO;
    for (int a = 0; a < zero.n_axes; a++)
        if (zero.out[a] == 0) zero.extent[a] = 1;
    ExactJob fill = *job;
    fill.exact = &zero;
    walk(&fill, fill.at, 0, (Part){0, zero.extent[fill.split]});
}

/* The first axis, or the last, whichever the result has; a single number is added up in parts. */
static void choose_parts(ExactJob *job, int threads, PrtExactNumber *sums) {
    const PrtExact *e = job->exact;
    int64_t elements = 1;
    bool one = true;
    for (int a = 0; a < e->n_axes; a++) {
        elements *= e->extent[a];
        one &= e->out[a] == 0 || e->extent[a] == 1;
    }
    int last = e->n_axes - 1;
    job->split = e->out[0] == 0 && e->out[last] != 0 ? last : 0;
    if (e->kind == PRT_EXACT_ROWS) job->split = 2;
    job->parts = prt_max(1, prt_min(prt_min(threads, MAX_PARTS), elements / GRAIN));
    job->parts = prt_min(job->parts, e->extent[job->split]);
    if (e->kind == PRT_EXACT_SUM && e->out[job->split] == 0) {
        if (one)
            job->part_sums = sums;
        else
            job->parts = 1;
    }
}

void prt_exact(PrtRank *rank, const PrtExact *exact, void *const *pointers) {
    ExactJob job = {.exact = exact, .at = {.out = pointers[0], .in = pointers[1], .in2 = pointers[2]}};
    PrtExactNumber sums[MAX_PARTS] = {{0, 0}}, *total = pointers[0];
    int64_t coordinate = exact->axis < 0 ? 0 : rank->coords[exact->axis];
    job.out_bytes = exact->kind == PRT_EXACT_ROUND ? 4 : sizeof(PrtExactNumber);
    job.in_bytes = exact->kind == PRT_EXACT_SUM ? 4 : sizeof(PrtExactNumber);
    choose_parts(&job, rank->threads, sums);
    if (exact->kind == PRT_EXACT_ROWS) {
        job.first = coordinate * exact->extent[0];
        prt_tasks(rank, rows_task, &job, job.parts);
        return;
    }
    if (exact->kind != PRT_EXACT_ADD) job.at.in2 = NULL;
    job.at.in += coordinate * exact->shift * job.in_bytes;
    if (exact->kind == PRT_EXACT_SUM && !exact->accumulate) clear(&job);
    prt_tasks(rank, part_task, &job, job.parts);
    for (int64_t i = 0; job.part_sums && i < job.parts; i++) prt_exact_add_number(total, sums[i].high, sums[i].low);
}
