/* Matrix products, loops, scattered rows and the worker threads: generated kernels and the runtime's drivers.
 *
 * Products of all layouts, groups and sizes are compared with a reference in double; gaps between elements hold NaN in
 * operands and a mark in results, and 1, 2 and 3 threads must give the same bits. */
#include "inner_test.h"

/* ---- products -------------------------------------------------------------------------------------------------- */

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
    struct {
        PrtProductDim *dims;
        int n;
        bool a, b, c;
    } groups[] = {{p->batch, p->n_batch, true, true, true},
                  {p->m, p->n_m, true, false, true},
                  {p->k, p->n_k, true, true, false},
                  {p->n, p->n_n, false, true, true}};
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
                PrtProductDim d = offset_of(p->batch, p->n_batch, x), e = offset_of(other, n_other, y),
                              f = offset_of(p->k, p->n_k, z);
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
    int64_t columns =
        epilogue.rows_are_m ? total(epilogue.p->n, epilogue.p->n_n) : total(epilogue.p->m, epilogue.p->n_m);
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
                PrtProductDim d = offset_of(p->batch, p->n_batch, x), m = offset_of(p->m, p->n_m, y),
                              n = offset_of(p->n, p->n_n, z);
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
    int64_t rows =
        total(c->p.batch, c->p.n_batch) * (epilogue.rows_are_m ? total(c->p.m, c->p.n_m) : total(c->p.n, c->p.n_n));
    int64_t columns = epilogue.rows_are_m ? total(c->p.n, c->p.n_n) : total(c->p.m, c->p.n_m);
    for (int64_t row = 0; row < rows; row++) {
        if (epilogue.calls[row] != 1)
            fail_msg("%s: the epilogue saw row %lld %d times", what, (long long)row, epilogue.calls[row]);
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = epilogue_at(row, j).c;
            double want = 2 * e->value[at] + (double)bias[row];
            if (!(fabs((double)got[at] - want) <= 4e-6 * e->size[at]))
                fail_msg("%s: row %lld is %g, not %g", what, (long long)row, (double)got[at], want);
        }
    }
}

static void describe_case(const Case *c, char *out, size_t size) {
    const PrtProduct *p = &c->p;
    int n =
        snprintf(out, size, "accumulate %d scale %g epilogue %d;", p->accumulate, (double)p->scale, p->has_epilogue);
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
        if (t > 1 && memcmp(first.at, again.at, (size_t)c->size_c * sizeof(float)) != 0)
            fail_msg("%d threads differ: %s", t, what);
    }
    free(e.value), free(e.size);
    Memory *all[] = {&a, &b, &first, &old, &bias, &again};
    for (int i = 0; i < 6; i++) memory_free(all[i]);
}

/* The same by leaves and a tree: close to the reference, whatever the strides, with equal bits for 1, 2 and 3 threads. */
static void check_ordered_case(Library *lib, const Case *c) {
    const PrtProduct *p = &c->p;
    char what[512];
    describe_case(c, what, sizeof what);
    Memory a = memory_new(c->size_a, NAN), b = memory_new(c->size_b, NAN), old = memory_new(c->size_c, mark),
           first = memory_new(c->size_c, 0), again = memory_new(c->size_c, 0);
    fill_operand(&a, p, true);
    fill_operand(&b, p, false);
    Expected e = reference(c, a.at, b.at, old.at);
    int64_t k = total(p->k, p->n_k), leaf = (k + 7) / 8;
    for (int t = 1; t <= MAX_THREADS; t++) {
        float *to = t == 1 ? first.at : again.at;
        memcpy(to, old.at, (size_t)c->size_c * sizeof(float));
        lib->product_ordered(&lib->ranks[t], p, (void *[]){a.at, b.at, to}, leaf, 0);
        expect_close(c, &e, to, NULL, what);
        if (t > 1 && memcmp(first.at, again.at, (size_t)c->size_c * sizeof(float)) != 0)
            fail_msg("ordered, %d threads differ: %s", t, what);
    }
    free(e.value), free(e.size);
    Memory *all[] = {&a, &b, &old, &first, &again};
    for (int i = 0; i < 5; i++) memory_free(all[i]);
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
        Extents batch = random_group(random_in(1, 4)), m = random_group(random_in(1, 40)),
                n = random_group(random_in(1, 70)), k = random_group(random_in(1, 40));
        c.p.n_batch = random_in(0, 1) ? batch.n : 0, c.p.n_m = m.n, c.p.n_n = n.n, c.p.n_k = k.n;
        for (int d = 0; d < 3; d++)
            c.p.batch[d].extent = batch.extent[d], c.p.m[d].extent = m.extent[d], c.p.n[d].extent = n.extent[d],
            c.p.k[d].extent = k.extent[d];
        set_strides(&c, random_in(0, 3) > 0, random_in(0, 1) == 1);
        c.p.accumulate = random_in(0, 1) == 1;
        if (!c.p.accumulate) check_ordered_case(lib, &c);
        c.p.epilogue = random_in(0, 1) ? test_epilogue : NULL;
        check_case(lib, &c);
    }
}

/* Ranks that hold 4, 2 or 1 of 8 leaves, joined in pairs, have the bits of the whole; and exact products have them for
 * any parts of whole leaves, in any order. */
static void check_branches(Library *lib) {
    enum { M = 37, N = 45, K = 8 * 21 };
    static float a[M * K], b[K * N], parts[8][M * N], whole[M * N], unordered[M * N];
    static double exact[2 * M * N], other[2 * M * N];
    int differ = 0;
    for (int i = 0; i < M * K; i++) a[i] = random_float();
    for (int i = 0; i < K * N; i++) b[i] = random_float();
    Case all = plain_case(M, N, K, false, false, false);
    lib->product(&lib->ranks[1], &all.p, (void *[]){a, b, unordered});
    lib->product_ordered(&lib->ranks[1], &all.p, (void *[]){a, b, whole}, K / 8, 0);
    lib->product_ordered(&lib->ranks[1], &all.p, (void *[]){a, b, exact}, K / 8, 1);
    for (int i = 0; i < M * N; i++) differ += unordered[i] != whole[i];
    assert_true(differ > 0); /* the order can be seen */
    for (int n = 2; n <= 8; n *= 2) {
        PrtProduct part = all.p;
        part.k[0].extent = K / n;
        memset(other, 0, sizeof other);
        for (int r = n - 1; r >= 0; r--) {
            lib->product_ordered(&lib->ranks[1], &part, (void *[]){a + r * (K / n), b + r * (K / n) * N, parts[r]}, K / 8, 0);
            part.accumulate = 1;
            lib->product_ordered(&lib->ranks[2], &part, (void *[]){a + r * (K / n), b + r * (K / n) * N, other}, K / 8, 1);
            part.accumulate = 0;
        }
        for (int step = 1; step < n; step *= 2)
            for (int r = 0; r < n; r += 2 * step)
                for (int i = 0; i < M * N; i++) parts[r][i] += parts[r + step][i];
        assert_memory_equal(parts[0], whole, sizeof whole);
        for (int i = 0; i < M * N; i++)
            assert_true((float)(exact[2 * i] + exact[2 * i + 1]) == (float)(other[2 * i] + other[2 * i + 1]));
    }
}

/* More than one block in each direction, and enough work for several threads. */
static void check_large_products(Library *lib) {
    static const int64_t sizes[][3] = {{200, 130, 900}, {131, 2100, 60}, {5, 700, 400}, {1, 3000, 500},
                                       {3, 1000, 800},  {400, 1, 1500},  {640, 48, 385}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int form = 0; form < 8; form++) {
            if (form >= 4 && i >= 2 && i != 4) continue;
            Case c = plain_case(sizes[i][0], sizes[i][1], sizes[i][2], form & 1, form & 2, form & 4);
            c.p.accumulate = form == 1 || form == 6;
            c.p.epilogue = form == 0 || form == 5 ? test_epilogue : NULL;
            check_case(lib, &c);
        }
    Case heads = {
        .p = {.n_batch = 1, .n_m = 2, .n_n = 2, .n_k = 2, .scale = 1}}; /* as projections to heads and from them */
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

/* ---- the rest -------------------------------------------------------------------------------------------------- */

static void check_scatter(Library *lib) {
    enum { ROWS = 50, OUT_ROWS = 7, WIDTH = 70, STRIDE = 75 };
    float rows[ROWS * STRIDE], want[OUT_ROWS * STRIDE], got[OUT_ROWS * STRIDE];
    int32_t index[ROWS];
    for (int pass = 0; pass < 2; pass++)
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            PrtScatter s = {.n_rows = ROWS,
                            .n_out = OUT_ROWS,
                            .width = WIDTH,
                            .row_stride = STRIDE,
                            .out_stride = STRIDE,
                            .coordinate_axis = pass ? 1 : -1,
                            .accumulate = pass};
            for (int i = 0; i < ROWS * STRIDE; i++) rows[i] = random_float();
            for (int i = 0; i < ROWS; i++) index[i] = (int32_t)random_in(0, 30) - 3;
            for (int i = 0; i < OUT_ROWS * STRIDE; i++) {
                got[i] = random_float();
                want[i] = pass || i % STRIDE >= WIDTH ? got[i] : 0;
            }
            for (int i = 0; i < ROWS; i++) {
                int to = index[i] - (pass ? 2 * OUT_ROWS : 0);
                for (int j = 0; to >= 0 && to < OUT_ROWS && j < WIDTH; j++)
                    want[to * STRIDE + j] += rows[i * STRIDE + j];
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

typedef struct Count {
    _Atomic int *calls;
    _Atomic int total;
} Count;
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
}

static void check_library(Library *lib) {
    check_products(lib);
    check_large_products(lib);
    check_branches(lib);
    check_scatter(lib);
    check_tasks(lib);
    check_loops(lib);
}

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_contract), cmocka_unit_test(test_v2),
                                       cmocka_unit_test(test_v3), cmocka_unit_test(test_v4),
                                       cmocka_unit_test(test_wide)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
