/* The GPU's form of loops, without a GPU.
 *
 * The kernels are emitted for the host with emulated threads: each thread of a warp is a coroutine that runs until it
 * exchanges a value. Results equal the interpreter's bit for bit. The PTX text is assembled where ptxas is found. */
#include "codegen/llvm_util.h"
#include "loop_loading.h"
#include "loop_random.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cmocka.h>

enum { N_LOOPS = 100, WARP = 32, HALF = 16, STACK = 1 << 16, BLOCK_THREADS = 64, BLOCKS = 3 };

/* ---- one warp at a time ------------------------------------------------------------------------------------------ */

static struct {
    ucontext_t scheduler, threads[WARP];
    char stacks[WARP][STACK];
    bool finished[WARP];
    float posted[WARP][2]; /* by the parity of the exchange */
    uint32_t exchanges[WARP];
    int current, warp, block;
    HostKernel *kernel;
    void *const *pointers;
    int64_t lo, hi;
} machine;

static uint32_t thread_index(void) { return (uint32_t)(machine.warp * WARP + machine.current); }
static uint32_t block_index(void) { return (uint32_t)machine.block; }
static uint32_t block_size(void) { return BLOCK_THREADS; }
static uint32_t grid_size(void) { return BLOCKS; }

/* Waits for the threads of `member`, whose values of this exchange can then be read. */
static uint32_t exchange(uint32_t member, float x) {
    int self = machine.current;
    assert_true(member == (self < HALF ? 0xFFFFu : 0xFFFF0000u));
    uint32_t number = ++machine.exchanges[self];
    machine.posted[self][number & 1] = x;
    for (bool all = false; !all;) {
        all = true;
        for (int i = 0; i < WARP; i++) {
            if ((member >> i & 1) == 0 || machine.exchanges[i] >= number) continue;
            assert_false(machine.finished[i]); /* a thread that never comes: a hang on a GPU */
            all = false;
        }
        if (!all) swapcontext(&machine.threads[self], &machine.scheduler);
    }
    return number & 1;
}

static float shuffle_down(uint32_t member, float x, uint32_t by, uint32_t segment) {
    assert_int_equal(segment, 0x101F);
    uint32_t parity = exchange(member, x), lane = (uint32_t)machine.current % HALF;
    return lane + by < HALF ? machine.posted[machine.current + (int)by][parity] : x;
}

static float shuffle_index(uint32_t member, float x, uint32_t index, uint32_t segment) {
    assert_int_equal(segment, 0x101F);
    uint32_t parity = exchange(member, x);
    return machine.posted[machine.current / HALF * HALF + (int)index][parity];
}

static void warp_barrier(uint32_t member) { exchange(member, 0); }

static void thread_main(void) {
    machine.kernel(machine.pointers, machine.lo, machine.hi);
    machine.finished[machine.current] = true;
    swapcontext(&machine.threads[machine.current], &machine.scheduler);
}

static void thread_start(ucontext_t *thread, char *stack) {
    getcontext(thread);
    thread->uc_stack.ss_sp = stack;
    thread->uc_stack.ss_size = STACK;
    thread->uc_link = NULL;
    makecontext(thread, thread_main, 0);
}

static void run_warp(void) {
    memset(machine.finished, 0, sizeof machine.finished);
    memset(machine.exchanges, 0, sizeof machine.exchanges);
    for (int i = 0; i < WARP; i++) thread_start(&machine.threads[i], machine.stacks[i]);
    for (int running = WARP; running > 0;) {
        running = 0;
        for (int i = 0; i < WARP; i++) {
            if (machine.finished[i]) continue;
            machine.current = i;
            swapcontext(&machine.scheduler, &machine.threads[i]);
            if (!machine.finished[i]) running++;
        }
    }
}

static void launch(HostKernel *kernel, void *const *pointers, int64_t lo, int64_t hi) {
    machine.kernel = kernel;
    machine.pointers = pointers;
    machine.lo = lo;
    machine.hi = hi;
    for (machine.block = 0; machine.block < BLOCKS; machine.block++)
        for (machine.warp = 0; machine.warp < BLOCK_THREADS / WARP; machine.warp++) run_warp();
}

/* The kernels reach the functions above through a table, so that this program need not export symbols. */
static const char stub[] =
    "#include <stdint.h>\n"
    "struct { uint32_t (*thread)(void), (*block)(void), (*block_size)(void), (*grid_size)(void);\n"
    "    float (*down)(uint32_t, float, uint32_t, uint32_t), (*index)(uint32_t, float, uint32_t, uint32_t);\n"
    "    void (*barrier)(uint32_t); } plan_emulated;\n"
    "uint32_t plan_emulated_thread(void) { return plan_emulated.thread(); }\n"
    "uint32_t plan_emulated_block(void) { return plan_emulated.block(); }\n"
    "uint32_t plan_emulated_block_size(void) { return plan_emulated.block_size(); }\n"
    "uint32_t plan_emulated_grid_size(void) { return plan_emulated.grid_size(); }\n"
    "float plan_emulated_shuffle_down(uint32_t m, float x, uint32_t k, uint32_t s) { return plan_emulated.down(m, x, "
    "k, s); }\n"
    "float plan_emulated_shuffle_index(uint32_t m, float x, uint32_t k, uint32_t s) { return plan_emulated.index(m, x, "
    "k, s); }\n"
    "void plan_emulated_warp_barrier(uint32_t m) { plan_emulated.barrier(m); }\n";

typedef struct Emulated {
    uint32_t (*thread)(void), (*block)(void), (*block_size)(void), (*grid_size)(void);
    float (*down)(uint32_t, float, uint32_t, uint32_t), (*index)(uint32_t, float, uint32_t, uint32_t);
    void (*barrier)(uint32_t);
} Emulated;

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* `$` in symbols of C is not portable: the names have no dots here. */
static LoopCase *case_new(Session *s, int seed) {
    return loop_case(s->arena, intern(s->names, arena_printf(s->arena, "random_%d", seed)), (uint32_t)seed);
}

static void compare(LoopCase *c, HostKernel *kernel, int seed) {
    void *expected[CASE_MAX_BUFFERS], *found[CASE_MAX_BUFFERS];
    case_fill(c, expected);
    case_fill(c, found);
    int64_t rows = loop_rows(c->loop), middle = rows / 3;
    loop_interpret(c->loop, expected, 0, rows);
    launch(kernel, found, 0, middle);
    launch(kernel, found, middle, rows);
    int buffer;
    int64_t element;
    if (case_differs(c, expected, found, &buffer, &element)) {
        Text text = {.arena = c->arena};
        loop_print(c->loop, &text);
        fail_msg("seed %d: buffer %d element %lld differs\n%s", seed, buffer, (long long)element, text.at);
    }
    case_release(c, expected);
    case_release(c, found);
}

static void test_emulated(void **state) {
    (void)state;
    Session *s = session_new();
    Target target;
    assert_true(target_find(s, "native", &target));
    Codegen *g = codegen_new(s, &target, "gpu_loops");
    LoopCase *cases[N_LOOPS];
    for (int i = 0; i < N_LOOPS; i++) cg_gpu_kernel(g, (cases[i] = case_new(s, i + 1))->loop);
    void *library = load_module(s->arena, g, stub);
    Emulated *table = dlsym(library, "plan_emulated");
    assert_non_null(table);
    *table = (Emulated){thread_index, block_index, block_size, grid_size, shuffle_down, shuffle_index, warp_barrier};
    for (int i = 0; i < N_LOOPS; i++) compare(cases[i], kernel_find(library, cases[i]->loop->name), i + 1);
    dlclose(library);
    codegen_free(g);
    session_free(s);
}

static const char *find_ptxas(void) {
    if (system("ptxas --version > /dev/null 2>&1") == 0) return "ptxas";
    return access("/usr/local/cuda/bin/ptxas", X_OK) == 0 ? "/usr/local/cuda/bin/ptxas" : NULL;
}

static bool assembles(const char *ptxas, const char *path, int sm) {
    char command[512];
    snprintf(command, sizeof command, "%s -arch=sm_%d -o /dev/null %s", ptxas, sm, path);
    return system(command) == 0;
}

/* sm_100 takes the PTX of sm_90. */
static void test_assembled(void **state) {
    (void)state;
    static const struct { int ptx, target; } architectures[] = {{75, 75}, {80, 80}, {90, 90}, {90, 100}};
    const char *ptxas = find_ptxas();
    Session *s = session_new();
    const char *folder = folder_new(s->arena), *path = arena_printf(s->arena, "%s/loop.ptx", folder);
    for (int i = 0; i < 24; i++) {
        int sm = architectures[i % 4].ptx;
        const char *text = loop_to_ptx(s, case_new(s, i + 1)->loop, sm);
        assert_non_null(text);
        assert_non_null(strstr(text, arena_printf(s->arena, ".entry random_%d(", i + 1)));
        assert_non_null(strstr(text, arena_printf(s->arena, ".target sm_%d", sm)));
        assert_null(strstr(text, "add.f32")); /* without .rn the assembler may contract */
        assert_null(strstr(text, "mul.f32"));
        assert_null(strstr(text, ".approx"));
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(text, file);
        fclose(file);
        if (ptxas != NULL && !assembles(ptxas, path, architectures[i % 4].target))
            fail_msg("ptxas refuses seed %d", i + 1);
    }
    unlink(path);
    rmdir(folder);
    session_free(s);
    if (ptxas == NULL) print_message("not assembled: there is no ptxas here\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_emulated), cmocka_unit_test(test_assembled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
