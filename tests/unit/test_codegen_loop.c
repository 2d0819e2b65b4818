/* Loops to machine code: bit for bit what the interpreter computes, at every vector width.
 *
 * Random loops (loop_random.h) go into one object for each target, which is linked to a shared object and loaded. The
 * 512-bit form of the code also runs on machines without AVX-512: LLVM splits its vectors. */
#include "codegen/llvm_util.h"
#include "ir/loop_math.h"
#include "loop_loading.h"
#include "loop_random.h"

#include <setjmp.h>

#include <cmocka.h>

enum { N_LOOPS = 80 };

static Name loop_name(Session *s, int seed) { return intern(s->names, arena_printf(s->arena, "loop.random_%d", seed)); }

/* Runs the rows in a few uneven pieces. */
static void run_in_pieces(LoopCase *c, HostKernel *kernel, void *const *pointers) {
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
    void *expected[CASE_MAX_BUFFERS], *found[CASE_MAX_BUFFERS];
    HostKernel *kernel = kernel_find(library, c->loop->name);
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

/* ---- every function on many arguments ---------------------------------------------------------------------------- */

enum { N_ARGUMENTS = 1 << 16 };

/* Floats of every size and sign, then special ones. */
static void fill_arguments(float *x, float *y) {
    for (uint32_t i = 0; i < N_ARGUMENTS; i++) {
        x[i] = i % 4 == 0 ? math_float(i << 16 | (i * 2654435761u >> 16))
                          : ((float)(i * 2654435761u >> 8) * 0x1p-24f - 0.5f) * 200.0f;
        y[i] = (float)((int32_t)(i * 40503u) >> 16) * 0x1p-11f;
    }
    static const float special[] = {0.0f,        -0.0f,        INFINITY, -INFINITY,  NAN,           1e-45f,
                                    1e-39f,      0x1p-126f,    3.4e38f,  1.0f,       -1.0f,         0.625f,
                                    88.7228394f, -87.3365479f, -103.97f, 4194304.0f, 2147483648.0f, -2147483648.0f};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) x[i] = special[i];
}

/* out[k] = op(x[k], y[k]) for every instruction on floats. */
static Loop *function_loop(Session *s, LoopOp op) {
    int64_t extent = N_ARGUMENTS;
    Loop *loop = loop_new(s->arena, intern(s->names, loop_op_table[op].name), &extent, 1, 1);
    LoopBuilder b = {.arena = s->arena, .loop = loop};
    loop_begin_pass(&b, true);
    LoopAccess access = {.pointer = 0, .stride = {1}};
    LoopValue x = loop_load(&b, access), y;
    access.pointer = 1;
    y = loop_load(&b, access);
    LoopValue z =
        loop_emit(&b, op, x, loop_op_table[op].operands > 1 ? y : -1, loop_op_table[op].operands > 2 ? x : -1);
    access.pointer = 2;
    access.memory = loop->code.at[z].type == LOOP_TYPE_F ? LOOP_MEM_F32 : LOOP_MEM_I32;
    if (loop->code.at[z].type == LOOP_TYPE_B) access.memory = LOOP_MEM_U8;
    loop_store(&b, access, z);
    return loop;
}

static bool on_floats(LoopOp op) { return loop_op_table[op].operand == LOOP_TYPE_F && !loop_is_reduction(op); }

static void compare_function(Session *s, void *library, LoopOp op, const char *what) {
    const Loop *loop = function_loop(s, op);
    static float x[N_ARGUMENTS], y[N_ARGUMENTS];
    static uint32_t expected[N_ARGUMENTS], found[N_ARGUMENTS];
    fill_arguments(x, y);
    HostKernel *kernel = kernel_find(library, loop->name);
    loop_interpret(loop, (void *[]){x, y, expected}, 0, N_ARGUMENTS);
    kernel((void *[]){x, y, found}, 0, 1001); /* through the tail too */
    kernel((void *[]){x, y, found}, 1001, N_ARGUMENTS);
    for (int i = 0; i < N_ARGUMENTS; i++)
        if (expected[i] != found[i] && !(case_is_nan(LOOP_MEM_F32, expected[i]) && case_is_nan(LOOP_MEM_F32, found[i])))
            fail_msg("%s: %s(%.9g, %.9g) is %08x, interpreted %08x", what, loop->name, (double)x[i], (double)y[i],
                     found[i], expected[i]);
}

/* Sums just beside the middle of two floats, which a product and a sum in double round the wrong way. */
static void fma_is_rounded_once(void *library) {
    enum { N = 256 };
    float x[N], y[N], out[N];
    for (int i = 0; i < N; i++) {
        float tiny = ldexpf(1.0f + 0x1p-20f, -24 - i % 7);
        x[i] = i % 2 ? tiny : -tiny;
        y[i] = 1.0f - 0x1p-20f;
    }
    HostKernel *kernel = kernel_find(library, "rounded_once");
    kernel((void *[]){x, y, out}, 0, N);
    int differ = 0;
    for (int i = 0; i < N; i++) {
        float z = 1.0f + 0x1p-23f, once = fmaf(x[i], y[i], z);
        assert_memory_equal(&out[i], &once, sizeof once);
        if ((float)((double)x[i] * (double)y[i] + (double)z) != once) differ++;
    }
    assert_true(differ > 0); /* the cases are hard indeed */
}

static Loop *rounded_once_loop(Session *s) {
    int64_t extent = 256;
    Loop *loop = loop_new(s->arena, intern(s->names, "rounded_once"), &extent, 1, 1);
    LoopBuilder b = {.arena = s->arena, .loop = loop};
    loop_begin_pass(&b, true);
    LoopValue x = loop_load(&b, (LoopAccess){.pointer = 0, .stride = {1}});
    LoopValue y = loop_load(&b, (LoopAccess){.pointer = 1, .stride = {1}});
    loop_store(&b, (LoopAccess){.pointer = 2, .stride = {1}},
               loop_emit(&b, LOOP_FMA, x, y, loop_const_f(&b, 1 + 0x1p-23)));
    return loop;
}

static void functions_at(const char *cpu, int vector_bits) {
    Session *s = session_new();
    Target target;
    assert_true(target_find(s, cpu, &target));
    if (vector_bits > 0) target.vector_bits = vector_bits;
    Codegen *g = codegen_new(s, &target, "functions");
    for (int op = 0; op < LOOP_OP_COUNT; op++)
        if (on_floats((LoopOp)op)) codegen_loop(g, function_loop(s, (LoopOp)op));
    codegen_loop(g, rounded_once_loop(s));
    void *library = load_module(s->arena, g, NULL);
    const char *what = arena_printf(s->arena, "%s at %d bits", cpu, target.vector_bits);
    for (int op = 0; op < LOOP_OP_COUNT; op++)
        if (on_floats((LoopOp)op)) compare_function(s, library, (LoopOp)op, what);
    fma_is_rounded_once(library);
    dlclose(library);
    codegen_free(g);
    session_free(s);
}

/* ---- random loops ------------------------------------------------------------------------------------------------ */

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
    void *library = load_module(s->arena, g, NULL);
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

/* ---- debug info -------------------------------------------------------------------------------------------------- */

static const char *output_of(Arena *arena, const char *command) {
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    Text text = {.arena = arena};
    char bytes[4096];
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, pipe)) > 0;) text_add(&text, bytes, n);
    assert_int_equal(pclose(pipe), 0);
    text_puts(&text, "");
    return text.at;
}

/* A loop whose function is on line 2 of main.plan, with an exponential from line 3 and a square root from line 2 of
 * another file. */
static Loop *placed_loop(Session *s, int32_t file, int32_t library) {
    int64_t extent = 1000;
    Loop *loop = loop_new(s->arena, intern(s->names, "placed"), &extent, 1, 1);
    loop->span = (Span){file, 4, 5};
    LoopBuilder b = {.arena = s->arena, .loop = loop, .span = loop->span};
    loop_begin_pass(&b, true);
    LoopAccess access = {.pointer = 0, .stride = {1}};
    LoopValue x = loop_load(&b, access);
    b.span = (Span){file, 8, 9};
    x = loop_emit(&b, LOOP_EXP, x, -1, -1);
    b.span = (Span){library, 4, 5};
    x = loop_emit(&b, LOOP_SQRT, x, -1, -1);
    b.span = (Span){0};
    loop_store(&b, access, x);
    return loop;
}

static void test_debug_info(void **state) {
    (void)state;
    for (int without = 0; without < 2; without++) {
        Session *s = session_new();
        int32_t file = session_add_text(s, "main.plan", "one\ntwo\nthree\nfour\n", 19);
        int32_t library = session_add_text(s, "layers/nn.plan", "one\ntwo\n", 8);
        Target target;
        assert_true(target_find(s, "native", &target));
        target.no_debug_info = without;
        Codegen *g = codegen_new(s, &target, "placed");
        codegen_loop(g, placed_loop(s, file, library));
        const char *folder = folder_new(s->arena), *object = arena_printf(s->arena, "%s/placed.o", folder);
        assert_true(codegen_object(g, object));
        const char *lines = output_of(s->arena, arena_printf(s->arena, "objdump --dwarf=decodedline %s", object));
        if (without) {
            assert_null(strstr(lines, "main.plan"));
        } else {
            assert_non_null(strstr(lines, "main.plan"));
            assert_non_null(strstr(lines, "nn.plan"));
            const char *place = output_of(s->arena, arena_printf(s->arena, "addr2line -f -e %s 0x0", object));
            assert_string_equal(place, "placed\nmain.plan:2\n");
            assert_non_null(strstr(codegen_text(g), "!DILocation(line: 3, column: 1"));
            assert_non_null(strstr(codegen_text(g), "!DILocation(line: 2, column: 1"));
        }
        unlink(object);
        rmdir(folder);
        codegen_free(g);
        session_free(s);
    }
}

/* ---- targets ----------------------------------------------------------------------------------------------------- */

/* Each target uses its own registers, and no target calls a function for a fused multiply-add. */
static void test_vector_registers(void **state) {
    (void)state;
    static const struct {
        const char *cpu, *used, *unused;
    } targets[] = {{"x86-64-v2", "xmm", "ymm"}, {"x86-64-v3", "ymm", "zmm"}, {"x86-64-v4", "zmm", "call"}};
    for (size_t i = 0; i < sizeof targets / sizeof *targets && cpu_has("x86-64-v2"); i++) {
        Session *s = session_new();
        Target target;
        assert_true(target_find(s, targets[i].cpu, &target));
        Codegen *g = codegen_new(s, &target, "registers");
        codegen_loop(g, function_loop(s, LOOP_TANH));
        const char *folder = folder_new(s->arena), *path = arena_printf(s->arena, "%s/registers.s", folder);
        assert_true(codegen_assembly(g, path));
        const char *text = output_of(s->arena, arena_printf(s->arena, "cat %s", path));
        assert_non_null(strstr(text, targets[i].used));
        assert_null(strstr(text, targets[i].unused));
        assert_null(strstr(text, "fmaf"));
        unlink(path);
        rmdir(folder);
        codegen_free(g);
        session_free(s);
    }
}

/* Loops that differ in name, lines and number of rows have one key; others do not. */
static void test_loop_key(void **state) {
    (void)state;
    Session *s = session_new();
    Loop *x = function_loop(s, LOOP_EXP), *y = function_loop(s, LOOP_EXP), *z = function_loop(s, LOOP_EXP);
    y->name = intern(s->names, "other");
    y->extent[0] = 77;
    z->code.at[0].access.offset = 1;
    assert_string_equal(cg_loop_key(s->arena, x), cg_loop_key(s->arena, y));
    assert_string_not_equal(cg_loop_key(s->arena, x), cg_loop_key(s->arena, z));
    assert_string_not_equal(cg_loop_key(s->arena, x), cg_loop_key(s->arena, function_loop(s, LOOP_TANH)));
    session_free(s);
}

static void test_unknown_target(void **state) {
    (void)state;
    Session *s = session_new();
    Target target;
    assert_false(target_find(s, "x86-64-v5", &target));
    assert_int_equal(diag_count(s, SEV_ERROR), 1);
    session_free(s);
}

static void run_on(const char *cpu, int vector_bits, int first) {
    if (!cpu_has(cpu)) {
        print_message("skipped: this machine is not %s\n", cpu);
        skip();
    }
    random_loops(cpu, vector_bits, first);
    functions_at(cpu, vector_bits);
}

static void test_128_bits(void **state) {
    (void)state;
    run_on("x86-64-v2", 0, 1);
}
static void test_256_bits(void **state) {
    (void)state;
    run_on("x86-64-v3", 0, 1);
}
static void test_512_bits(void **state) {
    (void)state;
    run_on("x86-64-v4", 0, 1);
}
static void test_512_bits_split(void **state) {
    (void)state;
    run_on("x86-64-v3", 512, 1001);
}
static void test_native(void **state) {
    (void)state;
    random_loops("native", 0, 2001);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_128_bits),       cmocka_unit_test(test_256_bits),
        cmocka_unit_test(test_512_bits),       cmocka_unit_test(test_512_bits_split),
        cmocka_unit_test(test_native),         cmocka_unit_test(test_debug_info),
        cmocka_unit_test(test_unknown_target), cmocka_unit_test(test_vector_registers),
        cmocka_unit_test(test_loop_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
