/* Speed of generated products and attention: GFLOP/s beside this machine's peak and, where it is installed, OpenBLAS.
 *
 *   bench_product [THREADS] [CPU] [PART OF A NAME]
 *
 * The two sides alternate, and the ratio is the median of paired ratios: neighbours on the machine disturb both alike.
 */
#include "core/rank.h"
#include "inner_library.h"

#include <math.h>
#include <time.h>

enum { PAIRS = 9 };

typedef void Sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                   int ldb, float beta, float *c, int ldc);
typedef void ProductDriver(PrtRank *, const PrtProduct *, void *const *);
typedef void AttendDriver(PrtRank *, const PrtAttend *, void *const *, int64_t, int64_t);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_value(const void *x, const void *y) {
    return (*(const double *)x > *(const double *)y) - (*(const double *)x < *(const double *)y);
}
static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}
static float *random_floats(int64_t n) {
    float *x = aligned_alloc(64, (size_t)(n + 16) * sizeof *x / 64 * 64 + 64);
    for (int64_t i = 0; i < n; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return x;
}

typedef struct Gemm {
    const char *name;
    int64_t m, n, k;
    bool ta, tb;
} Gemm;

static void bench_gemm(PrtRank *rank, ProductDriver *product, Sgemm *blas, const Gemm *g) {
    float *a = random_floats(g->m * g->k), *b = random_floats(g->k * g->n), *c = random_floats(g->m * g->n);
    PrtProduct p = {.n_m = 1, .n_n = 1, .n_k = 1, .scale = 1};
    p.m[0] = (PrtProductDim){g->m, g->ta ? 1 : g->k, 0, g->n};
    p.n[0] = (PrtProductDim){g->n, 0, g->tb ? g->k : 1, 1};
    p.k[0] = (PrtProductDim){g->k, g->ta ? g->m : 1, g->tb ? 1 : g->n, 0};
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k, ours[PAIRS], theirs[PAIRS], ratio[PAIRS];
    int repeat = (int)(1e9 / flops) + 1;
    for (int i = -1; i < PAIRS; i++) {
        double start = now();
        for (int r = 0; r < repeat; r++) product(rank, &p, (void *[]){a, b, c});
        double middle = now();
        for (int r = 0; blas && r < repeat; r++)
            blas(101, g->ta ? 112 : 111, g->tb ? 112 : 111, (int)g->m, (int)g->n, (int)g->k, 1, a,
                 (int)(g->ta ? g->m : g->k), b, (int)(g->tb ? g->k : g->n), 0, c, (int)g->n);
        double end = now();
        if (i < 0) continue;
        ours[i] = flops * repeat / (middle - start) * 1e-9, theirs[i] = flops * repeat / (end - middle) * 1e-9;
        ratio[i] = ours[i] / theirs[i];
    }
    printf("%-22s %6lld %6lld %6lld  %7.1f", g->name, (long long)g->m, (long long)g->n, (long long)g->k,
           median(ours, PAIRS));
    if (blas) printf("  %7.1f  %5.2f", median(theirs, PAIRS), median(ratio, PAIRS));
    printf("\n");
    free(a), free(b), free(c);
}

static void bench_attention(PrtRank *rank, AttendDriver *attend, AttendDriver *grad, int64_t batch, int64_t seq,
                            int64_t heads, int64_t width) {
    int64_t row = heads * width, n = batch * seq * row;
    PrtAttend s = {.batch = batch,
                   .seq = seq,
                   .key = seq,
                   .kv_head = heads,
                   .group = 1,
                   .width = width,
                   .q_batch = seq * row,
                   .q_seq = row,
                   .q_head = width,
                   .k_batch = seq * row,
                   .k_key = row,
                   .k_head = width,
                   .v_batch = seq * row,
                   .v_key = row,
                   .v_head = width,
                   .o_batch = seq * row,
                   .o_seq = row,
                   .o_head = width,
                   .l_batch = seq * heads,
                   .l_seq = heads,
                   .l_head = 1,
                   .scale = (float)(1 / sqrt((double)width)),
                   .causal = 1};
    void *pointers[9];
    for (int i = 0; i < 9; i++) pointers[i] = random_floats(n);
    double flops =
        2.0 * (double)(batch * heads * seq) * (double)(seq + 1) * (double)width; /* two products, half of each */
    double forward[PAIRS], backward[PAIRS];
    int repeat = (int)(5e8 / flops) + 1;
    for (int i = -1; i < PAIRS; i++) {
        double start = now();
        for (int r = 0; r < repeat; r++) attend(rank, &s, pointers, 0, 0);
        double middle = now();
        for (int r = 0; r < repeat; r++) grad(rank, &s, pointers, 0, 0);
        double end = now();
        if (i >= 0)
            forward[i] = flops * repeat / (middle - start) * 1e-9,
            backward[i] = 2.5 * flops * repeat / (end - middle) * 1e-9;
    }
    printf("attention %lldx%lld, %lld heads of %lld: forward %.1f, backward %.1f GFLOP/s (causal half counted)\n",
           (long long)batch, (long long)seq, (long long)heads, (long long)width, median(forward, PAIRS),
           median(backward, PAIRS));
    for (int i = 0; i < 9; i++) free(pointers[i]);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    const char *only = argc > 3 ? argv[3] : "";
    char folder[] = "/tmp/plan_bench_XXXXXX";
    if (threads < 1 || mkdtemp(folder) == NULL)
        return fprintf(stderr, "usage: bench_product [THREADS] [CPU] [NAME]\n"), 2;
    inner_build_runtime(folder);
    inner_emit(folder, "inner", argc > 2 ? argv[2] : "native", 0);
    void *library = inner_load(folder, "inner");
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    inner_command(command);
    if (__builtin_cpu_supports("avx512vl"))
        setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 0); /* old releases do not know new ones */
    char count[16];
    snprintf(count, sizeof count, "%d", threads);
    setenv("OPENBLAS_NUM_THREADS", count, 1);
    void *openblas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    ProductDriver *product;
    AttendDriver *attend, *grad;
    PrtPool *(*pool_open)(int, const int *, int);
    double (*probe)(int);
    Sgemm *blas = NULL;
    inner_symbol(library, "prt_product", &product);
    inner_symbol(library, "prt_attend", &attend);
    inner_symbol(library, "prt_attend_grad", &grad);
    inner_symbol(library, "prt_pool_open", &pool_open);
    inner_symbol(library, "prt_probe_flops", &probe);
    if (openblas != NULL) inner_symbol(openblas, "cblas_sgemm", &blas);
    PrtRank rank = {.threads = threads, .scratch_bytes = PRT_SCRATCH_BYTES};
    rank.scratch = aligned_alloc(64, (size_t)(threads * rank.scratch_bytes));
    rank.pool = pool_open(threads, NULL, 0);
    printf("peak of %d threads: %.1f GFLOP/s%s\n", threads, probe(threads) * 1e-9,
           blas ? "" : " (OpenBLAS is not installed)");
    printf("%-22s %6s %6s %6s  %7s%s\n", "product", "m", "n", "k", "GF/s", blas ? "     BLAS  ratio" : "");
    static const Gemm gemms[] = {
        {"proj NN", 256, 768, 768, 0, 0},      {"proj NT", 256, 768, 768, 0, 1},   {"proj TN", 768, 768, 256, 1, 0},
        {"qkv NN", 1024, 2304, 768, 0, 0},     {"fc NN", 1024, 3072, 768, 0, 0},   {"fc dX NT", 1024, 768, 3072, 0, 1},
        {"fc dW TN", 768, 3072, 1024, 1, 0},   {"head NT", 256, 50257, 768, 0, 1}, {"tiny NN", 3072, 384, 384, 0, 0},
        {"tiny fc NN", 3072, 1536, 384, 0, 0}, {"small NN", 512, 128, 128, 0, 0},  {"one row NT", 1, 3072, 768, 0, 1},
    };
    for (size_t i = 0; i < sizeof gemms / sizeof gemms[0]; i++)
        if (strstr(gemms[i].name, only) != NULL) bench_gemm(&rank, product, blas, &gemms[i]);
    if (strstr("attention", only) == NULL) return 0;
    bench_attention(&rank, attend, grad, 4, 256, 12, 64);
    bench_attention(&rank, attend, grad, 1, 1024, 12, 64);
    bench_attention(&rank, attend, grad, 8, 128, 4, 32);
    return 0;
}
