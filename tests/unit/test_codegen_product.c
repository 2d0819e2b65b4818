/* Generated inner kernels with the runtime's drivers: products and attention against references in double.
 *
 * For each processor level the kernels are emitted and linked with runtime/cpu into a library, which is loaded and run (if
 * this machine can). Operands end at a page that must not be touched, gaps between elements hold NaN in operands and a
 * mark in results; every result is computed with 1, 2 and 3 threads and must have the same bits. */
#include "cpu/threads.h"
#include "inner_library.h"

#include <math.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_THREADS = 3, PAGE = 4096 };
static const float mark = 1234.5f;

typedef struct Level {
    const char *name, *cpu;
    int bits;
} Level;
static const Level levels[] = {
    {"v2", "x86-64-v2", 128}, {"v3", "x86-64-v3", 256}, {"v4", "x86-64-v4", 512},
    {"wide", "x86-64-v3", 512}, /* the 512-bit kernels, split in halves: what v4 does, on any machine with AVX2 */
};

typedef struct Library {
    void *handle;
    const PrtInner *inner;
    PrtPool *(*pool_open)(int, const int *, int);
    void (*pool_close)(PrtPool *);
    double (*probe)(int);
    void (*product)(PrtRank *, const PrtProduct *, void *const *);
    void (*attend)(PrtRank *, const PrtAttend *, void *const *, int64_t, int64_t);
    void (*attend_grad)(PrtRank *, const PrtAttend *, void *const *, int64_t, int64_t);
    void (*scatter)(PrtRank *, const PrtScatter *, void *const *);
    void (*copy)(PrtRank *, void *, const void *, int64_t);
    void (*loop)(PrtRank *, PrtKernel *, void *const *, int64_t, int64_t);
    void (*tasks)(PrtRank *, PrtTask *, void *, int64_t);
    PrtRank ranks[MAX_THREADS + 1]; /* by number of threads */
} Library;

static char folder[] = "/tmp/plan_product_XXXXXX";
static uint64_t random_state = 1;

static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
static int64_t random_in(int64_t lo, int64_t hi) { return lo + random_u32() % (hi - lo + 1); }
static float random_float(void) { return (float)random_u32() / 2147483648.0f * 2 - 1; }

/* ---- memory that ends at a guard page ----------------------------------------------------------------------------- */

typedef struct Memory {
    char *map;
    size_t bytes;
    float *at;
    int64_t n;
} Memory;

static Memory memory_new(int64_t n, float fill) {
    size_t used = ((size_t)n * sizeof(float) + PAGE - 1) / PAGE * PAGE;
    Memory m = {.bytes = used + PAGE, .n = n};
    m.map = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m.map != MAP_FAILED);
    assert_int_equal(mprotect(m.map + used, PAGE, PROT_NONE), 0);
    m.at = (float *)(m.map + used) - n;
    for (int64_t i = 0; i < n; i++) m.at[i] = fill;
    return m;
}
static void memory_free(Memory *m) { munmap(m->map, m->bytes); }

/* ---- libraries ------------------------------------------------------------------------------------------------------ */

static bool machine_runs(const Level *level) {
    if (level->bits == 128) return __builtin_cpu_supports("sse4.2") != 0;
    if (strcmp(level->cpu, "x86-64-v3") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* False where this machine cannot run the code (it is emitted all the same). */
static bool library_open(const Level *level, Library *lib) {
    inner_emit(folder, level->name, level->cpu, level->bits);
    if (!machine_runs(level)) return false;
    *lib = (Library){.handle = inner_load(folder, level->name)};
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"plan_inner", &lib->inner},         {"prt_pool_open", &lib->pool_open}, {"prt_pool_close", &lib->pool_close},
                   {"prt_probe_flops", &lib->probe},    {"prt_product", &lib->product},     {"prt_attend", &lib->attend},
                   {"prt_attend_grad", &lib->attend_grad}, {"prt_scatter", &lib->scatter},  {"prt_copy", &lib->copy},
                   {"prt_loop", &lib->loop},            {"prt_tasks", &lib->tasks}};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) inner_symbol(lib->handle, symbols[i].name, symbols[i].to);
    for (int t = 1; t <= MAX_THREADS; t++) {
        PrtRank *rank = &lib->ranks[t];
        rank->threads = t;
        rank->scratch_bytes = PRT_SCRATCH_BYTES;
        rank->scratch = aligned_alloc(64, (size_t)(t * rank->scratch_bytes));
        rank->pool = lib->pool_open(t, NULL, 0);
        assert_true(t == 1 || rank->pool != NULL);
        rank->coords[1] = 2;
    }
    return true;
}

static void library_close(Library *lib) {
    for (int t = 1; t <= MAX_THREADS; t++) {
        lib->pool_close(lib->ranks[t].pool);
        free(lib->ranks[t].scratch);
    }
    dlclose(lib->handle);
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

typedef struct Extents {
    int64_t extent[4];
    int n;
} Extents;

/* A group of 1 to 3 dimensions of about `total` points (0: no dimensions). */
static Extents random_group(int64_t total) {
    Extents e = {.n = (int)random_in(1, 3)};
    for (int i = 0; i < e.n; i++) {
        e.extent[i] = i == e.n - 1 ? total : random_in(1, total < 5 ? total : 5);
        total = (total + e.extent[i] - 1) / e.extent[i];
    }
    return e;
}

/* Lays the dimensions of one operand out in memory in a random (or the given) order, with gaps. `fields`: where the
 * strides go. Returns the elements from the first to the last. */
static int64_t lay_out(int64_t *fields[], const int64_t *extents, int n, bool shuffle, bool gaps) {
    int order[16];
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; shuffle && i > 0; i--) {
        int j = (int)random_in(0, i), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    int64_t stride = gaps && random_in(0, 7) == 0 ? 2 : 1, last = 0;
    for (int i = n - 1; i >= 0; i--) {
        *fields[order[i]] = stride;
        last += (extents[order[i]] - 1) * stride;
        stride *= extents[order[i]];
        if (gaps) stride += random_in(0, 3);
    }
    return last + 1;
}

typedef struct Case {
    PrtProduct p;
    int64_t size_a, size_b, size_c;
} Case;

static void set_strides(Case *c, bool shuffle, bool gaps) {
    PrtProduct *p = &c->p;
    int64_t *a[16], *b[16], *to_c[16], ea[16], eb[16], ec[16];
    int na = 0, nb = 0, nc = 0;
    struct { PrtProductDim *dims; int n; bool a, b, c; } groups[] = {
        {p->batch, p->n_batch, true, true, true}, {p->m, p->n_m, true, false, true},
        {p->k, p->n_k, true, true, false},        {p->n, p->n_n, false, true, true}};
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < groups[g].n; i++) {
            PrtProductDim *d = &groups[g].dims[i];
            if (groups[g].a) a[na] = &d->a, ea[na++] = d->extent;
            if (groups[g].b) b[nb] = &d->b, eb[nb++] = d->extent;
            if (groups[g].c) to_c[nc] = &d->c, ec[nc++] = d->extent;
        }
    c->size_a = lay_out(a, ea, na, shuffle, gaps);
    c->size_b = lay_out(b, eb, nb, shuffle, gaps);
    c->size_c = lay_out(to_c, ec, nc, shuffle, gaps);
}

static int64_t total(const PrtProductDim *dims, int n) {
    int64_t points = 1;
    for (int i = 0; i < n; i++) points *= dims[i].extent;
    return points;
}
static PrtProductDim offset_of(const PrtProductDim *dims, int n, int64_t point) {
    PrtProductDim at = {0};
    for (int i = n - 1; i >= 0; i--) {
        int64_t index = point % dims[i].extent;
        point /= dims[i].extent;
        at.a += index * dims[i].a, at.b += index * dims[i].b, at.c += index * dims[i].c;
    }
    return at;
}

/* Finds the elements of an operand that are elements of the product, and fills them. */
static void fill_operand(Memory *m, const PrtProduct *p, bool is_a) {
    const PrtProductDim *other = is_a ? p->m : p->n;
    int n_other = is_a ? p->n_m : p->n_n;
    for (int64_t x = 0; x < total(p->batch, p->n_batch); x++)
        for (int64_t y = 0; y < total(other, n_other); y++)
            for (int64_t z = 0; z < total(p->k, p->n_k); z++) {
                PrtProductDim d = offset_of(p->batch, p->n_batch, x), e = offset_of(other, n_other, y), f = offset_of(p->k, p->n_k, z);
                m->at[is_a ? d.a + e.a + f.a : d.b + e.b + f.b] = random_float();
            }
}

/* What the epilogue of a test knows: rows and columns of C as PrtProduct says, and how often each row was called. */
static struct {
    const PrtProduct *p;
    bool rows_are_m;
    _Atomic int *calls;
} epilogue;

static PrtProductDim epilogue_at(int64_t row, int64_t column) {
    const PrtProduct *p = epilogue.p;
    int64_t rows = epilogue.rows_are_m ? total(p->m, p->n_m) : total(p->n, p->n_n);
    PrtProductDim at = offset_of(p->batch, p->n_batch, row / rows);
    PrtProductDim m = offset_of(p->m, p->n_m, epilogue.rows_are_m ? row % rows : column);
    PrtProductDim n = offset_of(p->n, p->n_n, epilogue.rows_are_m ? column : row % rows);
    at.c += m.c + n.c;
    return at;
}

/* c = 2 * c + bias[row] */
static void test_epilogue(void *const *pointers, int64_t lo, int64_t hi) {
    float *c = pointers[0];
    const float *bias = pointers[1];
    int64_t columns = epilogue.rows_are_m ? total(epilogue.p->n, epilogue.p->n_n) : total(epilogue.p->m, epilogue.p->n_m);
    for (int64_t row = lo; row < hi; row++) {
        atomic_fetch_add(&epilogue.calls[row], 1);
        for (int64_t j = 0; j < columns; j++) {
            float *to = &c[epilogue_at(row, j).c];
            *to = 2 * *to + bias[row];
        }
    }
}

typedef struct Expected {
    double *value, *size; /* of each element of C's memory; size: sum of absolute terms, or -1 for a gap */
} Expected;

static Expected reference(const Case *c, const float *a, const float *b, const float *old) {
    const PrtProduct *p = &c->p;
    Expected e = {malloc((size_t)c->size_c * sizeof(double)), malloc((size_t)c->size_c * sizeof(double))};
    for (int64_t i = 0; i < c->size_c; i++) e.size[i] = -1;
    int64_t n_k = total(p->k, p->n_k);
    PrtProductDim *k = malloc((size_t)n_k * sizeof *k);
    for (int64_t i = 0; i < n_k; i++) k[i] = offset_of(p->k, p->n_k, i);
    for (int64_t x = 0; x < total(p->batch, p->n_batch); x++)
        for (int64_t y = 0; y < total(p->m, p->n_m); y++)
            for (int64_t z = 0; z < total(p->n, p->n_n); z++) {
                PrtProductDim d = offset_of(p->batch, p->n_batch, x), m = offset_of(p->m, p->n_m, y), n = offset_of(p->n, p->n_n, z);
                double sum = 0, size = 0;
                for (int64_t i = 0; i < n_k; i++) {
                    double term = (double)a[d.a + m.a + k[i].a] * b[d.b + n.b + k[i].b];
                    sum += term, size += fabs(term);
                }
                int64_t at = d.c + m.c + n.c;
                e.value[at] = (double)p->scale * sum + (p->accumulate ? (double)old[at] : 0);
                e.size[at] = fabs((double)p->scale) * size + 1;
            }
    free(k);
    return e;
}

static void expect_close(const Case *c, const Expected *e, const float *got, const float *bias, const char *what) {
    for (int64_t i = 0; i < c->size_c; i++) {
        if (e->size[i] < 0) {
            if (got[i] != mark) fail_msg("%s: element %lld is not of C and was written", what, (long long)i);
        } else if (bias == NULL && !(fabs((double)got[i] - e->value[i]) <= 2e-6 * e->size[i])) {
            fail_msg("%s: element %lld is %g, not %g", what, (long long)i, (double)got[i], e->value[i]);
        }
    }
    if (bias == NULL) return;
    int64_t rows = total(c->p.batch, c->p.n_batch) * (epilogue.rows_are_m ? total(c->p.m, c->p.n_m) : total(c->p.n, c->p.n_n));
    int64_t columns = epilogue.rows_are_m ? total(c->p.n, c->p.n_n) : total(c->p.m, c->p.n_m);
    for (int64_t row = 0; row < rows; row++) {
        if (epilogue.calls[row] != 1) fail_msg("%s: the epilogue saw row %lld %d times", what, (long long)row, epilogue.calls[row]);
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = epilogue_at(row, j).c;
            double want = 2 * e->value[at] + (double)bias[row];
            if (!(fabs((double)got[at] - want) <= 4e-6 * e->size[at])) fail_msg("%s: row %lld is %g, not %g", what, (long long)row, (double)got[at], want);
        }
    }
}

static void describe_case(const Case *c, char *out, size_t size) {
    const PrtProduct *p = &c->p;
    int n = snprintf(out, size, "accumulate %d scale %g epilogue %d;", p->accumulate, (double)p->scale, p->has_epilogue);
    const PrtProductDim *dims[] = {p->batch, p->m, p->n, p->k};
    int counts[] = {p->n_batch, p->n_m, p->n_n, p->n_k};
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < counts[g] && n < (int)size; i++)
            n += snprintf(out + n, size - (size_t)n, " %c%lld(%lld %lld %lld)", "bmnk"[g], (long long)dims[g][i].extent,
                          (long long)dims[g][i].a, (long long)dims[g][i].b, (long long)dims[g][i].c);
}

static void check_case(Library *lib, Case *c) {
    PrtProduct *p = &c->p;
    char what[512];
    p->has_epilogue = p->epilogue != NULL;
    describe_case(c, what, sizeof what);
    Memory a = memory_new(c->size_a, NAN), b = memory_new(c->size_b, NAN), first = memory_new(c->size_c, mark);
    fill_operand(&a, p, true);
    fill_operand(&b, p, false);
    Expected e = reference(c, a.at, b.at, first.at);
    for (int64_t i = 0; i < c->size_c; i++)
        if (e.size[i] >= 0) first.at[i] = p->accumulate ? random_float() : NAN;
    free(e.value), free(e.size);
    Memory old = memory_new(c->size_c, 0);
    memcpy(old.at, first.at, (size_t)c->size_c * sizeof(float));
    e = reference(c, a.at, b.at, old.at);
    bool rows_are_m = p->n_n == 0 || p->n[p->n_n - 1].c == 1;
    int64_t rows = total(p->batch, p->n_batch) * (rows_are_m ? total(p->m, p->n_m) : total(p->n, p->n_n));
    Memory bias = memory_new(rows, 0), again = memory_new(c->size_c, 0);
    for (int64_t i = 0; i < rows; i++) bias.at[i] = random_float();
    epilogue.p = p, epilogue.rows_are_m = rows_are_m;
    for (int t = 1; t <= MAX_THREADS; t++) {
        float *to = t == 1 ? first.at : again.at;
        memcpy(to, old.at, (size_t)c->size_c * sizeof(float));
        epilogue.calls = calloc((size_t)rows, sizeof(int));
        lib->product(&lib->ranks[t], p, (void *[]){a.at, b.at, to, bias.at});
        expect_close(c, &e, to, p->epilogue ? bias.at : NULL, what);
        free(epilogue.calls);
        if (t > 1 && memcmp(first.at, again.at, (size_t)c->size_c * sizeof(float)) != 0) fail_msg("%d threads differ: %s", t, what);
    }
    free(e.value), free(e.size);
    Memory *all[] = {&a, &b, &first, &old, &bias, &again};
    for (int i = 0; i < 6; i++) memory_free(all[i]);
}

static Case plain_case(int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool tc) {
    Case c = {.p = {.n_m = 1, .n_n = 1, .n_k = 1, .scale = 1}, .size_a = m * k, .size_b = k * n, .size_c = m * n};
    c.p.m[0] = (PrtProductDim){m, ta ? 1 : k, 0, tc ? 1 : n};
    c.p.n[0] = (PrtProductDim){n, 0, tb ? k : 1, tc ? m : 1};
    c.p.k[0] = (PrtProductDim){k, ta ? m : 1, tb ? 1 : n, 0};
    return c;
}

static void check_products(Library *lib) {
    for (int64_t size = 1; size <= 67; size++)
        for (int form = 0; form < 8; form++) {
            Case c = plain_case(size, random_in(1, 67), random_in(1, 67), form & 1, form & 2, form & 4);
            c.p.accumulate = random_in(0, 1) == 1;
            c.p.scale = random_in(0, 1) ? 1 : 0.37f;
            check_case(lib, &c);
        }
    for (int i = 0; i < 400; i++) {
        Case c = {.p = {.scale = 1}};
        Extents batch = random_group(random_in(1, 4)), m = random_group(random_in(1, 40)), n = random_group(random_in(1, 70)),
                k = random_group(random_in(1, 40));
        c.p.n_batch = random_in(0, 1) ? batch.n : 0, c.p.n_m = m.n, c.p.n_n = n.n, c.p.n_k = k.n;
        for (int d = 0; d < 3; d++)
            c.p.batch[d].extent = batch.extent[d], c.p.m[d].extent = m.extent[d], c.p.n[d].extent = n.extent[d], c.p.k[d].extent = k.extent[d];
        set_strides(&c, random_in(0, 3) > 0, random_in(0, 1) == 1);
        c.p.accumulate = random_in(0, 1) == 1;
        c.p.epilogue = random_in(0, 1) ? test_epilogue : NULL;
        check_case(lib, &c);
    }
}

/* More than one block in each direction, and enough work for several threads. */
static void check_large_products(Library *lib) {
    static const int64_t sizes[][3] = {{200, 130, 900}, {131, 2100, 60}, {5, 700, 400}, {1, 3000, 500}, {3, 1000, 800}, {400, 1, 1500}, {640, 48, 385}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int form = 0; form < 8; form++) {
            if (form >= 4 && i >= 2 && i != 4) continue;
            Case c = plain_case(sizes[i][0], sizes[i][1], sizes[i][2], form & 1, form & 2, form & 4);
            c.p.accumulate = form == 1 || form == 6;
            c.p.epilogue = form == 0 || form == 5 ? test_epilogue : NULL;
            check_case(lib, &c);
        }
    Case heads = {.p = {.n_batch = 1, .n_m = 2, .n_n = 2, .n_k = 2, .scale = 1}}; /* as projections to heads and from them */
    int64_t extents[4][2] = {{3, 0}, {9, 20}, {5, 24}, {6, 33}};
    PrtProductDim *dims[4] = {heads.p.batch, heads.p.m, heads.p.n, heads.p.k};
    for (int g = 0; g < 4; g++)
        for (int d = 0; d < 2; d++) dims[g][d].extent = extents[g][d];
    for (int i = 0; i < 12; i++) {
        set_strides(&heads, i > 0, i & 1);
        heads.p.epilogue = i % 3 == 0 ? test_epilogue : NULL;
        check_case(lib, &heads);
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------------- */

enum { Q, K, VALUE, OUT, LSE, D_OUT, DQ, DK, DV, N_TENSORS };

typedef struct AttendCase {
    PrtAttend s;
    int64_t q_start, k_start, size[N_TENSORS];
} AttendCase;

static AttendCase attend_case(int64_t batch, int64_t seq, int64_t key, int64_t kv, int64_t group, int64_t width, bool causal, int layout) {
    int64_t heads = kv * group, gap = layout == 2 ? 3 : 0;
    AttendCase c = {.s = {.batch = batch, .seq = seq, .key = key, .kv_head = kv, .group = group, .width = width,
                          .scale = (float)(1 / sqrt((double)width)), .causal = causal}};
    PrtAttend *s = &c.s;
    int64_t w = width + gap;
    if (layout == 1) { /* [batch, head, seq, width] */
        s->q_seq = s->o_seq = w, s->q_head = s->o_head = seq * w, s->k_key = s->v_key = w, s->k_head = s->v_head = key * w;
    } else { /* [batch, seq, head, width] */
        s->q_seq = s->o_seq = heads * w, s->q_head = s->o_head = w, s->k_key = s->v_key = kv * w, s->k_head = s->v_head = w;
    }
    s->q_batch = s->o_batch = seq * heads * w, s->k_batch = s->v_batch = key * kv * w;
    s->l_head = layout == 1 ? seq : 1, s->l_seq = layout == 1 ? 1 : heads, s->l_batch = seq * heads;
    int64_t q = batch * seq * heads * w - gap, k = batch * key * kv * w - gap;
    int64_t sizes[N_TENSORS] = {q, k, k, q, batch * seq * heads, q, q, k, k};
    memcpy(c.size, sizes, sizeof sizes);
    return c;
}

typedef struct AttendAt { int64_t q, k, v, o, l; } AttendAt;
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
    int64_t n = s->causal ? c->q_start + i - c->k_start + 1 : s->key;
    n = n < 0 ? 0 : n > s->key ? s->key : n;
    for (int64_t j = 0; j < n; j++) {
        AttendAt at = attend_at(s, b, head, i, j);
        for (int64_t d = 0; d < s->width; d++) p[j] += (double)s->scale * x[Q][at.q + d] * x[K][at.k + d];
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - top);
    AttendAt me = attend_at(s, b, head, i, 0);
    for (int64_t d = 0; d < s->width; d++) x[OUT][me.o + d] = 0;
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < s->width; d++) x[OUT][me.o + d] += (p[j] /= d == 0 ? sum : 1) * x[VALUE][attend_at(s, b, head, i, j).v + d];
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
    if (s->seq == 1 || s->kv_head * s->group == 1) w = c->size[Q] == s->batch * s->seq * s->kv_head * s->group * s->width ? s->width : s->width + 3;
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
        } else if (isinf(want[i]) ? (double)got[i] != want[i] : !(fabs((double)got[i] - want[i]) <= 3e-6 * (size + 1))) {
            fail_msg("%s: %s[%lld] is %g, not %g", what, names[t], (long long)i, (double)got[i], want[i]);
        }
    }
}

static void check_attend(Library *lib, const AttendCase *c, bool grad) {
    Memory m[N_TENSORS], first[N_TENSORS];
    double *x[N_TENSORS];
    char what[256];
    const PrtAttend *s = &c->s;
    snprintf(what, sizeof what, "batch %lld seq %lld key %lld heads %lld x %lld width %lld causal %d from %lld, %lld", (long long)s->batch,
             (long long)s->seq, (long long)s->key, (long long)s->kv_head, (long long)s->group, (long long)s->width, s->causal,
             (long long)c->q_start, (long long)c->k_start);
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
    for (int64_t at = 0; at < s->batch * heads * s->seq; at++) naive_query(c, x, at / s->seq / heads, at / s->seq % heads, at % s->seq, grad);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        void *pointers[N_TENSORS];
        for (int t = 0; t < N_TENSORS; t++) pointers[t] = m[t].at;
        lib->attend(&lib->ranks[threads], s, pointers, c->q_start, c->k_start);
        if (grad) lib->attend_grad(&lib->ranks[threads], s, pointers, c->q_start, c->k_start);
        for (int t = OUT; t < N_TENSORS; t++) {
            if (t == D_OUT || (t > D_OUT && !grad)) continue;
            expect_tensor(c, t, m[t].at, x[t], what);
            if (threads == 1) memcpy(first[t].at, m[t].at, (size_t)c->size[t] * sizeof(float));
            else if (memcmp(first[t].at, m[t].at, (size_t)c->size[t] * sizeof(float)) != 0) fail_msg("%d threads differ: %s", threads, what);
            for (int64_t i = 0; i < c->size[t]; i++)
                if (is_element(c, t, i)) m[t].at[i] = NAN;
        }
    }
    for (int t = 0; t < N_TENSORS; t++) memory_free(&m[t]), memory_free(&first[t]), free(x[t]);
}

static void check_attention(Library *lib) {
    for (int i = 0; i < 60; i++) {
        static const int64_t widths[] = {1, 3, 8, 16, 33, 64};
        int64_t seq = i < 40 ? random_in(3, 70) : random_in(190, 300), key = i % 2 ? seq : random_in(1, i < 40 ? 90 : 300);
        AttendCase c = attend_case(random_in(1, 2), seq, key, random_in(1, 3), random_in(1, 3), widths[i % 6], i % 3 != 0, i % 3);
        if (i % 4 == 3) c.q_start = random_in(0, 40), c.k_start = random_in(0, 60);
        check_attend(lib, &c, true);
    }
    for (int i = 0; i < 10; i++) { /* sampling: one query, a cache of keys */
        AttendCase c = attend_case(1, random_in(1, 2), 1500, 2, random_in(1, 3), 16, true, i % 3);
        c.q_start = i == 0 ? 0 : random_in(0, 1499);
        check_attend(lib, &c, false);
    }
}

/* ---- the rest --------------------------------------------------------------------------------------------------------- */

static void check_scatter(Library *lib) {
    enum { ROWS = 50, OUT_ROWS = 7, WIDTH = 70, STRIDE = 75 };
    float rows[ROWS * STRIDE], want[OUT_ROWS * STRIDE], got[OUT_ROWS * STRIDE];
    int32_t index[ROWS];
    for (int pass = 0; pass < 2; pass++)
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            PrtScatter s = {.n_rows = ROWS, .n_out = OUT_ROWS, .width = WIDTH, .row_stride = STRIDE, .out_stride = STRIDE,
                            .coordinate_axis = pass ? 1 : -1, .accumulate = pass};
            for (int i = 0; i < ROWS * STRIDE; i++) rows[i] = random_float();
            for (int i = 0; i < ROWS; i++) index[i] = (int32_t)random_in(0, 30) - 3;
            for (int i = 0; i < OUT_ROWS * STRIDE; i++) {
                got[i] = random_float();
                want[i] = pass || i % STRIDE >= WIDTH ? got[i] : 0;
            }
            for (int i = 0; i < ROWS; i++) {
                int to = index[i] - (pass ? 2 * OUT_ROWS : 0);
                for (int j = 0; to >= 0 && to < OUT_ROWS && j < WIDTH; j++) want[to * STRIDE + j] += rows[i * STRIDE + j];
            }
            lib->scatter(&lib->ranks[threads], &s, (void *[]){got, index, rows});
            assert_memory_equal(got, want, sizeof want);
        }
}

static void count_rows(void *const *pointers, int64_t lo, int64_t hi) {
    _Atomic int *calls = pointers[0];
    if (lo % 16 != 0) atomic_fetch_add(&calls[0], 1000);
    for (int64_t i = lo; i < hi; i++) atomic_fetch_add(&calls[i], 1);
}

typedef struct Count { _Atomic int *calls; _Atomic int total; } Count;
static void count_task(void *context, int thread, int64_t task) {
    Count *count = context;
    assert_in_range(thread, 0, MAX_THREADS - 1);
    for (volatile int i = 0; i < 30; i++) continue; /* long enough for others to come */
    atomic_fetch_add(&count->calls[task], 1);
    atomic_fetch_add(&count->total, 1);
}

/* Many tiny tasks and jobs: threads wake late, race for tasks, and meet the next job. */
static void check_tasks(Library *lib) {
    enum { TASKS = 400, JOBS = 3000 };
    static _Atomic int calls[TASKS];
    for (int threads = 1; threads <= MAX_THREADS; threads++)
        for (int job = 0; job < JOBS; job++) {
            int64_t n = random_in(1, TASKS);
            Count count = {.calls = calls};
            lib->tasks(&lib->ranks[threads], count_task, &count, n);
            assert_int_equal(count.total, n);
            for (int64_t i = 0; i < n; i++) assert_int_equal(atomic_exchange(&calls[i], 0), 1);
        }
}

static void check_loops(Library *lib) {
    enum { ROWS = 5000 };
    static _Atomic int calls[ROWS];
    static const int64_t sizes[] = {1, 15, 16, 17, 100, 4999};
    for (int threads = 1; threads <= MAX_THREADS; threads++)
        for (int repeat = 0; repeat < 200; repeat++) {
            int64_t n = sizes[repeat % 6];
            memset((void *)calls, 0, sizeof calls);
            lib->loop(&lib->ranks[threads], count_rows, (void *[]){(void *)calls}, n, 1 + repeat % 40);
            for (int64_t i = 0; i < ROWS; i++) assert_int_equal(calls[i], i < n);
            if (repeat % 50 == 0) usleep(2000); /* long enough for the workers to fall asleep */
        }
    size_t bytes = 3 << 20;
    char *from = malloc(bytes), *to = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) from[i] = (char)random_u32();
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        memset(to, 0, bytes);
        lib->copy(&lib->ranks[threads], to, from, (int64_t)bytes - 5);
        assert_memory_equal(to, from, bytes - 5);
        assert_int_equal(to[bytes - 1], 0);
    }
    free(from), free(to);
}

static void run_level(const Level *level) {
    Library lib;
    if (!library_open(level, &lib)) skip();
    assert_int_equal(lib.inner->vector, level->bits / 32);
    assert_true(lib.probe(1) > 1e9);
    random_state = 1;
    check_products(&lib);
    check_large_products(&lib);
    check_attention(&lib);
    check_scatter(&lib);
    check_tasks(&lib);
    check_loops(&lib);
    library_close(&lib);
}
static void test_v2(void **state) { (void)state, run_level(&levels[0]); }
static void test_v3(void **state) { (void)state, run_level(&levels[1]); }
static void test_v4(void **state) { (void)state, run_level(&levels[2]); }
static void test_wide(void **state) { (void)state, run_level(&levels[3]); }

/* The descriptors of the compiler and those of the runtime have the same fields. */
static void test_contract(void **state) {
    (void)state;
    assert_int_equal(PRODUCT_SCRATCH_BYTES, PRT_SCRATCH_BYTES);
    assert_int_equal(sizeof(ProductDim), sizeof(PrtProductDim));
    assert_int_equal(offsetof(ProductDim, c), offsetof(PrtProductDim, c));
    assert_int_equal(offsetof(Product, n_batch), offsetof(PrtProduct, n_batch));
    assert_int_equal(offsetof(Attend, scale), offsetof(PrtAttend, scale));
    assert_int_equal(offsetof(Attend, l_head), offsetof(PrtAttend, l_head));
}

static int set_up(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    inner_build_runtime(folder);
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_contract), cmocka_unit_test(test_v2), cmocka_unit_test(test_v3),
                                       cmocka_unit_test(test_v4), cmocka_unit_test(test_wide)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
