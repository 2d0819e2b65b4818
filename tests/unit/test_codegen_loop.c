/* Loops to machine code: bit for bit what the interpreter computes, at every vector width.
 *
 * Random loops (loop_random.h) go into one object for each target, which is linked to a shared object and loaded. The
 * 512-bit form of the code also runs on machines without AVX-512: LLVM splits its vectors. */
#include "codegen/codegen.h"
#include "ir/loop_math.h"
#include "loop_random.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_LOOPS = 150 };

static Name loop_name(Session *s, int seed) { return intern(s->names, arena_printf(s->arena, "loop.random_%d", seed)); }

/* A folder of our own, removed by the caller. */
static const char *folder_new(Arena *arena) {
    const char *base = getenv("TMPDIR");
    char *path = arena_printf(arena, "%s/plan_loops_XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

/* Object and shared object of the module; NULL-free. The files are removed once loaded. */
static void *load_module(Arena *arena, Codegen *g) {
    const char *folder = folder_new(arena);
    const char *object = arena_printf(arena, "%s/loops.o", folder), *shared = arena_printf(arena, "%s/loops.so", folder);
    assert_true(codegen_object(g, object));
    assert_int_equal(system(arena_printf(arena, "cc -shared -o %s %s -lm", shared, object)), 0);
    void *library = dlopen(shared, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail_msg("%s", dlerror());
    unlink(object);
    unlink(shared);
    rmdir(folder);
    return library;
}

typedef void Kernel_(void *const *pointers, int64_t lo, int64_t hi);

/* Runs the rows in a few uneven pieces. */
static void run_in_pieces(LoopCase *c, Kernel_ *kernel, void *const *pointers) {
    int64_t rows = loop_rows(c->loop), lo = 0;
    while (lo < rows) {
        int64_t hi = lo + 1 + case_below(c, (int)rows);
        if (c->loop->lanes_outer) hi = (hi + LOOP_LANES - 1) / LOOP_LANES * LOOP_LANES;
        if (hi > rows) hi = rows;
        kernel(pointers, lo, hi);
        lo = hi;
    }
}

static void compare(LoopCase *c, void *library, int seed, const char *what) {
    void *expected[CASE_MAX_BUFFERS], *found[CASE_MAX_BUFFERS], *symbol = dlsym(library, c->loop->name);
    assert_non_null(symbol);
    Kernel_ *kernel;
    memcpy(&kernel, &symbol, sizeof kernel);
    case_fill(c, expected);
    case_fill(c, found);
    loop_interpret(c->loop, expected, 0, loop_rows(c->loop));
    run_in_pieces(c, kernel, found);
    int buffer;
    int64_t element;
    if (case_differs(c, expected, found, &buffer, &element)) {
        Text text = {.arena = c->arena};
        loop_print(c->loop, &text);
        uint32_t x = 0, y = 0;
        int64_t size = loop_memory_bytes(c->buffers[buffer].memory);
        memcpy(&x, (char *)expected[buffer] + element * size, (size_t)size);
        memcpy(&y, (char *)found[buffer] + element * size, (size_t)size);
        fail_msg("%s, seed %d: buffer %d element %lld is %08x, interpreted %08x\n%s", what, seed, buffer,
                 (long long)element, y, x, text.at);
    }
    case_release(c, expected);
    case_release(c, found);
}

static void random_loops(const char *cpu, int vector_bits, int first) {
    Session *s = session_new();
    Target target;
    assert_true(target_find(s, cpu, &target));
    if (vector_bits > 0) target.vector_bits = vector_bits;
    Codegen *g = codegen_new(s, &target, "loops");
    LoopCase *cases[N_LOOPS];
    for (int i = 0; i < N_LOOPS; i++) {
        cases[i] = loop_case(s->arena, loop_name(s, first + i), (uint32_t)(first + i));
        Text why = {.arena = s->arena};
        if (!loop_verify(cases[i]->loop, &why)) fail_msg("seed %d: %s", first + i, why.at);
        codegen_loop(g, cases[i]->loop);
    }
    void *library = load_module(s->arena, g);
    const char *what = arena_printf(s->arena, "%s at %d bits", cpu, target.vector_bits);
    for (int i = 0; i < N_LOOPS; i++) compare(cases[i], library, first + i, what);
    dlclose(library);
    codegen_free(g);
    session_free(s);
}

static bool cpu_has(const char *cpu) {
#if defined(__x86_64__)
    if (strcmp(cpu, "x86-64-v3") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(cpu, "x86-64-v4") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return true;
#else
    (void)cpu;
    return false;
#endif
}

static void run_on(const char *cpu, int vector_bits, int first) {
    if (!cpu_has(cpu)) {
        print_message("skipped: this machine is not %s\n", cpu);
        skip();
    }
    random_loops(cpu, vector_bits, first);
}

static void test_128_bits(void **state) { (void)state; run_on("x86-64-v2", 0, 1); }
static void test_256_bits(void **state) { (void)state; run_on("x86-64-v3", 0, 1); }
static void test_512_bits(void **state) { (void)state; run_on("x86-64-v4", 0, 1); }
static void test_512_bits_split(void **state) { (void)state; run_on("x86-64-v3", 512, 1001); }
static void test_native(void **state) { (void)state; random_loops("native", 0, 2001); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_128_bits),       cmocka_unit_test(test_256_bits), cmocka_unit_test(test_512_bits),
        cmocka_unit_test(test_512_bits_split), cmocka_unit_test(test_native),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
