/* Generated kernels under test: processor levels, libraries loaded for each, and memory that ends at a guard page.
 *
 * For each level the inner kernels are emitted and linked with runtime/cpu into a library (inner_library.h), which is
 * loaded and run if this machine can. A test program defines check_library, then uses test_v2 ... test_wide. */
#ifndef PLAN_TEST_INNER_TEST_H
#define PLAN_TEST_INNER_TEST_H

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
    {"v2", "x86-64-v2", 128},
    {"v3", "x86-64-v3", 256},
    {"v4", "x86-64-v4", 512},
    {"wide", "x86-64-v3", 512}, /* the 512-bit kernels, split in halves: what v4 does, on any machine with AVX2 */
};

typedef struct Library {
    void *handle;
    const PrtInner *inner;
    PrtPool *(*pool_open)(int, const int *, int);
    void (*pool_close)(PrtPool *);
    double (*probe)(int);
    void (*product)(PrtRank *, const PrtProduct *, void *const *);
    void (*product_ordered)(PrtRank *, const PrtProduct *, void *const *, int64_t, int64_t);
    void (*attend)(PrtRank *, const PrtAttend *, void *const *, int64_t, int64_t);
    void (*attend_grad)(PrtRank *, const PrtAttend *, void *const *, int64_t, int64_t);
    void (*scatter)(PrtRank *, const PrtScatter *, void *const *);
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

/* ---- memory that ends at a guard page -------------------------------------------------------------------------- */

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

/* ---- libraries ------------------------------------------------------------------------------------------------- */

static bool machine_runs(const Level *level) {
    if (level->bits == 128) return __builtin_cpu_supports("sse4.2") != 0;
    if (strcmp(level->cpu, "x86-64-v3") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/* False where this machine cannot run the code (it is emitted all the same). */
static bool library_open(const Level *level, Library *lib) {
    inner_emit(folder, level->name, level->cpu, level->bits);
    if (!machine_runs(level)) return false;
    *lib = (Library){.handle = inner_load(folder, level->name)};
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"plan_inner", &lib->inner},
                   {"prt_pool_open", &lib->pool_open},
                   {"prt_pool_close", &lib->pool_close},
                   {"prt_probe_flops", &lib->probe},
                   {"prt_product", &lib->product},
                   {"prt_product_ordered", &lib->product_ordered},
                   {"prt_attend", &lib->attend},
                   {"prt_attend_grad", &lib->attend_grad},
                   {"prt_scatter", &lib->scatter},
                   {"prt_loop", &lib->loop},
                   {"prt_tasks", &lib->tasks}};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        inner_symbol(lib->handle, symbols[i].name, symbols[i].to);
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

/* ---- levels ---------------------------------------------------------------------------------------------------- */

/* What a test program checks in one library; defined by it. */
static void check_library(Library *lib);

static void run_level(const Level *level) {
    Library lib;
    if (!library_open(level, &lib)) skip();
    assert_int_equal(lib.inner->vector, level->bits / 32);
    assert_true(lib.probe(1) > 1e9);
    random_state = 1;
    check_library(&lib);
    library_close(&lib);
}
static void test_v2(void **state) { (void)state, run_level(&levels[0]); }
static void test_v3(void **state) { (void)state, run_level(&levels[1]); }
static void test_v4(void **state) { (void)state, run_level(&levels[2]); }
static void test_wide(void **state) { (void)state, run_level(&levels[3]); }

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

#endif
