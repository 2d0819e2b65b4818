/* The typed model: units, constants, the GPUs and clusters of the standard library, the training run, plans, and the
 * arithmetic behind their refusals. Messages themselves are tested in tests/errors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/plan_check.h"

static Session *new_session(void) {
    Session *s = session_new();
    s->library_path = PLAN_SOURCE_DIR "/stdlib";
    return s;
}

static Program *resolve_with(Session *s, const char *text, Setting *settings, int n) {
    int32_t file = session_add_text(s, "test.plan", text, strlen(text));
    return ast_to_model(s, text_to_ast(s, file), settings, n);
}

static Program *resolve(Session *s, const char *text) { return resolve_with(s, text, NULL, 0); }

static double constant(Session *s, const Program *program, const char *name) {
    const double *value = map_get(&program->constants, intern(s->names, name));
    return value == NULL ? NAN : *value;
}

static const Gpu *find_gpu(const Program *program, const char *name) {
    for (int i = 0; i < program->gpus.n; i++)
        if (strcmp(program->gpus.at[i]->name, name) == 0) return program->gpus.at[i];
    fail_msg("no GPU %s", name);
    return NULL;
}

static Plan *find_plan(const Program *program, const char *name) {
    for (int i = 0; i < program->plans.n; i++)
        if (strcmp(program->plans.at[i]->name, name) == 0) return program->plans.at[i];
    fail_msg("no plan %s", name);
    return NULL;
}

/* ---- units -------------------------------------------------------------------------------------- */

/* The lexer's closed list and the table of meanings are one list: neither knows a unit that the other lacks. */
static void test_every_unit_has_a_meaning(void **state) {
    (void)state;
    static const char *const lexer[] = {
#define UNIT(spelling) spelling,
#include "syntax/units.def"
#undef UNIT
    };
    int n = (int)(sizeof lexer / sizeof lexer[0]), known = 0;
    for (int i = 0; i < n; i++) {
        Unit unit;
        double factor;
        if (!unit_find(lexer[i], &unit, &factor)) fail_msg("unit %s has no meaning", lexer[i]);
    }
    while (unit_spelling(known) != NULL) {
        bool found = false;
        for (int i = 0; i < n; i++) found |= strcmp(unit_spelling(known), lexer[i]) == 0;
        if (!found) fail_msg("unit %s cannot be written", unit_spelling(known));
        known++;
    }
    assert_int_equal(known, n);
}

static void test_units_are_kept_apart(void **state) {
    (void)state;
    Session *s = new_session();
    Program *program =
        resolve(s, "const gb = 80 GB, gib = 80 GiB, bits = 200 Gb/s, bytes_rate = 25 GB/s, clock = 1.41 GHz\n"
                   "const time = 5 us, power = 6.5 kW, peak = 312 TFLOP/s, mix = 1 GB + 1 GiB\n"
                   "const seconds = 80 GB / 2 TB/s, ratio = 80 GiB / 1 GiB, energy = 400 W * 10 s\n");
    assert_int_equal(diag_count(s, SEV_ERROR), 0);
    assert_true(constant(s, program, "gb") == 80e9);
    assert_true(constant(s, program, "gib") == 80.0 * 1073741824.0);
    assert_true(constant(s, program, "bits") == constant(s, program, "bytes_rate"));
    assert_true(constant(s, program, "clock") == 1.41e9);
    assert_float_equal(constant(s, program, "time"), 5e-6, 1e-12);
    assert_true(constant(s, program, "power") == 6500);
    assert_true(constant(s, program, "peak") == 312e12);
    assert_true(constant(s, program, "mix") == 1e9 + 1073741824.0);
    assert_float_equal(constant(s, program, "seconds"), 0.04, 1e-12);
    assert_true(constant(s, program, "ratio") == 80);
    assert_true(constant(s, program, "energy") == 4000);
    session_free(s);
}

static void test_unit_names(void **state) {
    (void)state;
    Arena *arena = arena_new();
    assert_string_equal(unit_text(arena, (Unit){1, -1, 0, 0}), "a rate in bytes/s");
    assert_string_equal(unit_text(arena, (Unit){2, 0, -1, 0}), "a quantity in bytes^2 W^-1");
    arena_free(arena);
}

static void test_integers_stay_exact(void **state) {
    (void)state;
    Session *s = new_session();
    Program *program =
        resolve(s, "const large = 9007199254740993, quarter = large / 3, half = 7 / 2, sum = (3 + 4) * 2 - 1\n");
    assert_int_equal(diag_count(s, SEV_ERROR), 0);
    FileScope *scope = program->files.at[0];
    const Constant *quarter = map_get(&scope->constants, intern(s->names, "quarter"));
    assert_true(quarter->value.is_integer && quarter->value.integer == 3002399751580331);
    assert_true(constant(s, program, "half") == 3.5);
    assert_true(constant(s, program, "sum") == 13);
    session_free(s);
}

/* ---- GPUs --------------------------------------------------------------------------------------- */

/* Every GPU of the library: the peak that follows from cores and clock agrees with the stated one, but where the file
 * says that it does not; numbers that exist are plausible. */
static void test_library_gpus(void **state) {
    (void)state;
    Session *s = new_session();
    const char *why = NULL;
    int32_t file = session_read_file(s, PLAN_SOURCE_DIR "/stdlib/gpus.plan", true, &why);
    assert_int_not_equal(file, 0);
    Program *program = ast_to_model(s, text_to_ast(s, file), NULL, 0);
    assert_int_equal(diag_count(s, SEV_ERROR), 0);
    assert_int_equal(program->gpus.n, 32);
    int compared = 0;
    for (int i = 0; i < program->gpus.n; i++) {
        const Gpu *gpu = program->gpus.at[i];
        if (gpu->usable > gpu->memory) fail_msg("%s: more usable than there is", gpu->name);
        if (gpu->sms > 0 && gpu->cuda_cores > 0 && fmod(gpu->cuda_cores, gpu->sms) != 0)
            fail_msg("%s: cores are not a multiple of SMs", gpu->name);
        if (gpu->bf16 > 0 && gpu->bf16 != gpu->fp16) fail_msg("%s: BF16 and FP16 peaks differ", gpu->name);
        if (isnan(gpu->fp32_derived)) continue;
        double tolerance = strcmp(gpu->name, "L4") == 0 ? 0.04 : 0.02;
        if (fabs(gpu->fp32_derived / gpu->fp32 - 1) > tolerance)
            fail_msg("%s: %g derived, %g stated", gpu->name, gpu->fp32_derived, gpu->fp32);
        compared++;
    }
    assert_true(compared >= 24);
    session_free(s);
}

static void test_what_is_unknown_stays_unknown(void **state) {
    (void)state;
    Session *s = new_session();
    Program *program = resolve(s, "import gpus\ngpu mine {\n    cuda_cores 1000\n    boost_clock 2 GHz\n}\n"
                                  "gpu half { cuda_cores 1000 }\ncluster c { nodes 1 of 1 * gpus.T4 }\n");
    assert_int_equal(diag_count(s, SEV_ERROR), 0);
    const Gpu *mine = find_gpu(program, "mine"), *half = find_gpu(program, "half"), *t4 = find_gpu(program, "gpus.T4");
    assert_true(mine->fp32 == 4e12);
    assert_true(isnan(mine->memory) && isnan(mine->tdp) && isnan(mine->bf16));
    assert_true(isnan(half->fp32));
    assert_true(t4->nvlink == 0 && t4->bf16 == 0 && isnan(t4->tf32));
    assert_true(find_gpu(program, "gpus.H100_SXM_80GB")->nvlink == 450e9);
    assert_true(isnan(find_gpu(program, "gpus.B200")->clock));
    session_free(s);
}

static void test_library_clusters(void **state) {
    (void)state;
    Session *s = new_session();
    Program *program =
        resolve(s, "import clusters\nplan a on clusters.DGX_A100 {\n    mesh data = 8\n    batch on data\n}\n"
                   "plan b on clusters.workshop {\n    mesh data = 16\n    batch on data\n}\n");
    assert_int_equal(diag_count(s, SEV_ERROR), 0);
    assert_int_equal(diag_count(s, SEV_NOTE), 0);
    const Cluster *dgx = find_plan(program, "a")->cluster, *mixed = find_plan(program, "b")->cluster;
    assert_int_equal(dgx->ranks, 8);
    assert_true(dgx->links.at[1].rate == 25e9);
    assert_int_equal(mixed->groups.n, 2);
    assert_int_equal(mixed->groups.at[0].gpus, 8);
    assert_int_equal(mixed->groups.at[1].gpus, 4);
    assert_int_equal(mixed->ranks, 16);
    for (int i = 0; i < program->clusters.n; i++) assert_true(program->clusters.at[i]->ranks > 0);
    session_free(s);
}

/* ---- the training run --------------------------------------------------------------------------- */

static const char run_text[] =
    "model M {\n    dim layers = 4, embed = 8\n}\n"
    "model Small = M(layers = 2)\n"
    "const rate = 6e-4\n"
    "train {\n"
    "    model Small(embed = 16)\n"
    "    data tokens(\"a/*.bin\", \"b.bin\")\n"
    "    validation code = text(\"c\"), prose = text(\"d\")\n"
    "    batch 512\n"
    "    steps 2e4\n"
    "    optimizer adamw(lr = cosine(rate, warmup = 700, end = rate / 10), betas = (0.9, 0.95)) {\n"
    "        bias, norm: weight_decay = 0, lr_scale = 0.5\n"
    "    }\n"
    "    clip 1.0\n"
    "    eval every 250 on 20 batches\n"
    "    save every 1000 to \"checkpoints\" keep 3\n"
    "    freeze all but lora, head\n"
    "}\n"
    "plan p {\n    mesh data = 2, tensor = 2\n    batch on data\n    embed on tensor\n}\n";

static int64_t argument(const Session *s, const Train *train, const char *name) {
    for (int i = 0; i < train->model_arguments.n; i++)
        if (train->model_arguments.at[i].name == intern(s->names, name))
            return train->model_arguments.at[i].value->integer;
    return -1;
}

static void test_train_block(void **state) {
    (void)state;
    Session *s = new_session();
    const Train *train = resolve(s, run_text)->train;
    assert_int_equal(diag_count(s, SEV_ERROR), 0);
    assert_string_equal(train->model->name, "M");
    assert_int_equal(argument(s, train, "layers"), 2);
    assert_int_equal(argument(s, train, "embed"), 16);
    assert_int_equal(train->data.n, 1);
    assert_int_equal(train->data.at[0].paths.n, 2);
    assert_int_equal(train->validation.n, 2);
    assert_string_equal(train->validation.at[1].name, "prose");
    assert_int_equal(train->steps, 20000);
    assert_int_equal(train->optimizer.rate.kind, RATE_COSINE);
    assert_float_equal(train->optimizer.rate.end, 6e-5, 1e-12);
    assert_float_equal(train->optimizer.groups.at[0].lr_scale, 0.5, 0);
    assert_float_equal(train->optimizer.weight_decay, 0, 0);
    assert_int_equal(train->eval_batches, 20);
    assert_int_equal(train->save_keep, 3);
    assert_string_equal(train->save_to, "checkpoints");
    assert_true(train->freeze_all_but && train->freeze.n == 2);
    session_free(s);
}

static void test_settings_win(void **state) {
    (void)state;
    Session *s = new_session();
    Setting settings[] = {{intern(s->names, "steps"), "5", false},      {intern(s->names, "layers"), "3", false},
                          {intern(s->names, "mesh.data"), "4", false},  {intern(s->names, "rate"), "1e-3", false},
                          {intern(s->names, "microbatch"), "2", false}, {intern(s->names, "save.keep"), "7", false}};
    int n = (int)(sizeof settings / sizeof settings[0]);
    Program *program = resolve_with(s, run_text, settings, n);
    /* a warm-up of 700 steps is longer than 5: the one mistake that this makes */
    assert_int_equal(diag_count(s, SEV_ERROR), 1);
    assert_int_equal(program->train->steps, 5);
    assert_int_equal(argument(s, program->train, "layers"), 3);
    assert_int_equal(argument(s, program->train, "embed"), 16);
    assert_int_equal(program->plans.at[0]->mesh.axes[0].size, 4);
    assert_int_equal(program->plans.at[0]->microbatch, 2);
    assert_int_equal(program->train->save_keep, 7);
    assert_float_equal(program->train->optimizer.rate.peak, 1e-3, 0);
    for (int i = 0; i < n; i++) assert_true(settings[i].used);
    session_free(s);
}

/* ---- plans -------------------------------------------------------------------------------------- */

static void test_rules_keep_their_order(void **state) {
    (void)state;
    Session *s = new_session();
    Program *program = resolve(s, "plan p {\n"
                                  "    expert, batch on data, ep\n"
                                  "    weights on data using keep\n"
                                  "    layers uneven(3, 1) on pipe using one_f_one_b\n"
                                  "    vocab padded, kv_head repeated, mlp.hidden on tensor\n"
                                  "    mesh data = 2, ep = 2, pipe = 2, tensor = 2\n"
                                  "}\n");
    assert_int_equal(diag_count(s, SEV_ERROR), 0);
    const Plan *plan = program->plans.at[0];
    assert_int_equal(mesh_ranks(&plan->mesh), 16);
    static const struct {
        const char *what;
        int axis, how;
    } expected[] = {{"expert", 0, STORE_PLAIN}, {"batch", 0, STORE_PLAIN},      {"expert", 1, STORE_PLAIN},
                    {"batch", 1, STORE_PLAIN},  {NULL, 0, STORE_PLAIN},         {"layers", 2, STORE_UNEVEN},
                    {"vocab", 3, STORE_PADDED}, {"kv_head", 3, STORE_REPEATED}, {"mlp.hidden", 3, STORE_PLAIN}};
    assert_int_equal(plan->rules.n, sizeof expected / sizeof expected[0]);
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (expected[i].what != NULL)
            assert_string_equal(rule->what, expected[i].what);
        else
            assert_int_equal(rule->storage, STORAGE_WEIGHTS);
        assert_int_equal(rule->axis, expected[i].axis);
        assert_int_equal(rule->how, expected[i].how);
    }
    assert_string_equal(plan->rules.at[4].using_name, "keep");
    assert_int_equal(plan->rules.at[5].uneven.n, 2);
    session_free(s);
}

static void test_what_is_built(void **state) {
    (void)state;
    static const struct {
        const char *body;
        bool built;
    } cases[] = {{"batch on data", true},
                 {"batch on data, more\n    microbatch 2\n    threads 3\n    precision fp32\n    recompute none", true},
                 {"batch on data\n    precision bf16", true},
                 {"batch on data\n    precision fp16(scale = 1024, grow_every = 9)", true},
                 {"batch on data\n    recompute attention", true},
                 {"batch on data\n    recompute every 2", true},
                 {"batch on data\n    weights on data", true},
                 {"batch on data\n    weights on data using keep", true},
                 {"batch, head on data", true},
                 {"batch on data\n    seq on more using gather", true},
                 {"batch on data\n    seq on more using ring", true},
                 {"batch on data\n    in mlp { head on more }", true},
                 {"batch on data\n    microbatch auto", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Session *s = new_session();
        const char *text = arena_printf(s->arena, "plan p {\n    mesh data = 2, more = 2\n    %s\n}\n", cases[i].body);
        Program *program = resolve(s, text);
        assert_int_equal(diag_count(s, SEV_ERROR), 0);
        Span where = {0};
        const char *what = plan_unbuilt(program->plans.at[0], &where);
        if ((what == NULL) != cases[i].built) fail_msg("%s: %s", cases[i].body, what != NULL ? what : "built");
        if (what != NULL) assert_int_not_equal(where.file, 0);
        session_free(s);
    }
}

/* How many errors a plan gets against dimensions of these sizes. */
typedef struct DimCase {
    const char *name;
    int64_t size;
} DimCase;

static int plan_errors(const char *body, int64_t batch, const DimCase *sizes, int n) {
    Session *s = new_session();
    const char *text = arena_printf(s->arena, "plan p {\n    %s\n}\n", body);
    Program *program = resolve(s, text);
    Dim *dims[8] = {NULL};
    for (int i = 0; i < n; i++) {
        dims[i] = NEW(s->arena, Dim);
        dims[i]->name = intern(s->names, sizes[i].name);
        dims[i]->size = sizes[i].size;
        dims[i]->is_batch = strcmp(sizes[i].name, "batch") == 0;
    }
    for (int i = 0; i + 1 < n; i++) { /* kv_head right after head: head = (kv_head, ...) */
        if (strcmp(sizes[i].name, "head") != 0 || strcmp(sizes[i + 1].name, "kv_head") != 0) continue;
        dims[i]->factors = &dims[i + 1];
        dims[i]->n_factors = 1;
    }
    for (int i = 0, all = n; i < all; i++) { /* attention compares positions of seq */
        if (strcmp(sizes[i].name, "seq") != 0) continue;
        dims[n] = NEW(s->arena, Dim);
        *dims[n] = (Dim){.name = intern(s->names, "key"), .size = sizes[i].size, .like = dims[i]};
        n++;
    }
    Train train = {.batch = batch};
    plan_check(s, &train, program->plans.at[0], dims, n, true);
    int errors = diag_count(s, SEV_ERROR);
    session_free(s);
    return errors;
}

static void test_batch_is_never_rounded(void **state) {
    (void)state;
    static const DimCase dims[] = {{"batch", 0}, {"seq", 64}};
    for (int64_t batch = 1; batch <= 64; batch++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int micro = 1; micro <= 4; micro++) {
                char body[128];
                snprintf(body, sizeof body, "mesh data = %d\n    batch on data\n    microbatch %d", ranks, micro);
                int wanted = batch % (ranks * micro) == 0 ? 0 : 1;
                if (plan_errors(body, batch, dims, 2) != wanted) fail_msg("batch %d, %s", (int)batch, body);
            }
}

/* S11: cp * lcm(2, tp) is the least multiple for a ring on the outer axis and a plain cut on the inner one. */
static void test_ring_multiple(void **state) {
    (void)state;
    static const struct { int cp, tp, least; } cases[] = {{4, 8, 32}, {2, 3, 12}, {2, 4, 8}, {3, 1, 6}, {1, 4, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int seq = 1; seq <= 100; seq++) {
            DimCase dims[] = {{"batch", 4}, {"seq", seq}};
            char body[128];
            snprintf(body, sizeof body,
                     "mesh context = %d, tensor = %d\n    seq on context using ring\n    seq on tensor", cases[i].cp,
                     cases[i].tp);
            int wanted = seq % cases[i].least == 0 ? 0 : 1;
            if (plan_errors(body, 4, dims, 2) != wanted) fail_msg("seq %d, %s", seq, body);
        }
}

/* S06, S08: cutting `head` cuts its leftmost factor; only sizes that divide both are legal. */
static void test_factor_is_cut_too(void **state) {
    (void)state;
    static const DimCase dims[] = {{"head", 40}, {"kv_head", 10}, {"batch", 4}};
    for (int tensor = 1; tensor <= 40; tensor++) {
        char body[128];
        snprintf(body, sizeof body, "mesh tensor = %d\n    head on tensor", tensor);
        assert_int_equal(plan_errors(body, 4, dims, 3), 10 % tensor == 0 ? 0 : 1);
    }
    assert_int_equal(plan_errors("mesh tensor = 20\n    head on tensor\n    kv_head repeated on tensor", 4, dims, 3),
                     0);
    assert_int_equal(plan_errors("mesh tensor = 15\n    kv_head repeated on tensor", 4, dims, 3), 1);
}

static void test_size_arithmetic(void **state) {
    (void)state;
    Arena *arena = arena_new();
    assert_int_equal(size_gcd(40, 10), 10);
    assert_int_equal(size_lcm(4, 6), 12);
    assert_true(size_times(INT64_MAX / 2, 3) > 0);
    for (int64_t n = 1; n <= 300; n++) {
        Sizes sizes = {0};
        sizes_divisors(arena, n, &sizes);
        int at = 0;
        for (int64_t d = 1; d <= n; d++)
            if (n % d == 0) assert_int_equal(sizes.at[at++], d);
        assert_int_equal(at, sizes.n);
    }
    arena_free(arena);
}

static void test_print(void **state) {
    (void)state;
    Session *s = new_session();
    Program *program = resolve(s, run_text);
    Text text = {.arena = s->arena};
    program_print(program, &text);
    assert_non_null(strstr(text.at, "const rate = 0.0006"));
    assert_non_null(strstr(text.at, "model = M(embed = 16, layers = 2)"));
    assert_non_null(strstr(text.at, "lr = cosine(peak = 0.0006, warmup = 700, end = 6e-05)"));
    assert_non_null(strstr(text.at, "mesh = data 2, tensor 2\n    batch on data\n    embed on tensor"));
    session_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_unit_has_a_meaning),
        cmocka_unit_test(test_units_are_kept_apart),
        cmocka_unit_test(test_unit_names),
        cmocka_unit_test(test_integers_stay_exact),
        cmocka_unit_test(test_library_gpus),
        cmocka_unit_test(test_what_is_unknown_stays_unknown),
        cmocka_unit_test(test_library_clusters),
        cmocka_unit_test(test_train_block),
        cmocka_unit_test(test_settings_win),
        cmocka_unit_test(test_rules_keep_their_order),
        cmocka_unit_test(test_what_is_built),
        cmocka_unit_test(test_batch_is_never_rounded),
        cmocka_unit_test(test_ring_multiple),
        cmocka_unit_test(test_factor_is_cut_too),
        cmocka_unit_test(test_size_arithmetic),
        cmocka_unit_test(test_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
