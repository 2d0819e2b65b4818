/* Loop descriptions: printing, checking, collapsing, random bits, the order of reductions, the mathematical functions.
 */
#include "ir/loop_math.h"
#include "loop_random.h"

#include <setjmp.h>

#include <cmocka.h>

typedef struct Fixture {
    Arena *arena;
    Loop *loop;
    LoopBuilder b;
} Fixture;

static Fixture fixture(const int64_t *extent, int n_outer, int n_axes) {
    Fixture f = {.arena = arena_new()};
    f.loop = loop_new(f.arena, "test", extent, n_outer, n_axes);
    f.b = (LoopBuilder){.arena = f.arena, .loop = f.loop};
    return f;
}

static LoopAccess f32_at(int pointer, int64_t s0, int64_t s1) {
    LoopAccess access = {.pointer = pointer, .memory = LOOP_MEM_F32};
    access.stride[0] = s0;
    access.stride[1] = s1;
    return access;
}

/* out[row] = sum over x[row, :] */
static Fixture row_sum(int64_t rows, int64_t columns) {
    Fixture f = fixture((int64_t[]){rows, columns}, 1, 2);
    loop_begin_pass(&f.b, false);
    LoopValue x = loop_load(&f.b, f32_at(0, columns, 1));
    LoopValue sum = loop_emit(&f.b, LOOP_REDUCE_SUM, x, -1, -1);
    loop_begin_pass(&f.b, true);
    loop_store(&f.b, f32_at(1, 1, 0), sum);
    return f;
}

static void test_print(void **state) {
    (void)state;
    Fixture f = row_sum(3, 20);
    Text text = {.arena = f.arena};
    loop_print(f.loop, &text);
    assert_string_equal(text.at, "loop test rows [3] over [20]\n"
                                 "  inner\n"
                                 "    %0 = load f32 p0 + 0, strides [20, 1]\n"
                                 "    %1 = reduce_sum %0\n"
                                 "  row\n"
                                 "    store %1, f32 p1 + 0, strides [1, 0]\n");
    arena_free(f.arena);
}

static void refused(Fixture *f, const char *reason) {
    Text why = {.arena = f->arena};
    assert_false(loop_verify(f->loop, &why));
    if (strstr(why.at, reason) == NULL) fail_msg("`%s` does not say `%s`", why.at, reason);
    arena_free(f->arena);
}

static void test_verify(void **state) {
    (void)state;
    Fixture f = row_sum(3, 20);
    Text why = {.arena = f.arena};
    assert_true(loop_verify(f.loop, &why));
    f.loop->code.at[1].op = LOOP_NOT;
    refused(&f, "is f32, not bool");
    f = row_sum(3, 20);
    f.loop->code.at[1].type = LOOP_TYPE_I;
    refused(&f, "wrong result type");
    f = row_sum(3, 20);
    f.loop->code.at[1].in[0] = 1;
    refused(&f, "not an earlier value");
    f = row_sum(3, 20);
    f.loop->code.at[2].in[0] = 0;
    refused(&f, "another pass");
    f = row_sum(3, 20);
    f.loop->code.at[2].access.stride[1] = 1;
    refused(&f, "row pass walks an inner axis");
    f = row_sum(3, 20);
    f.loop->code.at[2].access.memory = LOOP_MEM_I32;
    refused(&f, "is f32, not i32");
    f = row_sum(3, 20);
    f.loop->code.at[0].access.pointer = 7;
    refused(&f, "no such pointer");
    f = row_sum(3, 20);
    f.loop->extent[1] = 0;
    refused(&f, "extent is below 1");
    f = row_sum(3, 20);
    f.loop->code.at[2].op = LOOP_REDUCE_SUM;
    f.loop->code.at[2].type = LOOP_TYPE_F;
    f.loop->code.at[2].in[0] = 1;
    refused(&f, "a reduction in a row pass");
    f = row_sum(3, 20);
    f.loop->passes.at[1].n = 0;
    refused(&f, "do not cover");
    f = row_sum(3, 20);
    f.loop->lanes = 8;
    refused(&f, "lanes");
}

static void test_random_bits(void **state) {
    (void)state;
    /* the authors' known answers for philox2x32-7: counter (first, second), key */
    assert_int_equal(random_bits(0, 0, 0), 0x257a3673u);
    assert_int_equal(random_bits(0xffffffffu, 0xffffffffu, 0xffffffffu), 0xab302c4du);
    assert_int_equal(random_bits(0x13198a2eu, 0x85a308d3u, 0x243f6a88u), 0xbedbbe6bu);

    Fixture f = fixture((int64_t[]){3, 37}, 2, 2);
    loop_begin_pass(&f.b, true);
    LoopValue row = loop_index(&f.b, 0), column = loop_index(&f.b, 1);
    LoopValue bits = loop_random_bits(&f.b, loop_const_i(&f.b, 77), row, column);
    LoopAccess out = f32_at(0, 37, 1);
    out.memory = LOOP_MEM_I32;
    loop_store(&f.b, out, bits);
    uint32_t found[3 * 37];
    loop_interpret(f.loop, (void *[]){found}, 0, 3 * 37);
    for (uint32_t i = 0; i < 3 * 37; i++) assert_int_equal(found[i], random_bits(77, i / 37, i % 37));
    arena_free(f.arena);
}

/* The order of loop.h, written out. */
static void test_sum_order(void **state) {
    (void)state;
    enum { N = 75, BLOCK = 40 };
    float x[N], found;
    for (int i = 0; i < N; i++) x[i] = 1.0f / (float)(3 + i) * (float)(1 << (i % 20));
    for (int blocked = 0; blocked < 2; blocked++) {
        Fixture f = row_sum(1, N);
        f.loop->block = blocked ? BLOCK : 0;
        loop_interpret(f.loop, (void *[]){x, &found}, 0, 1);
        float total = 0;
        for (int from = 0; from < N; from += blocked ? BLOCK : N) {
            float lane[16] = {0};
            for (int i = from; i < N && i < from + (blocked ? BLOCK : N); i++) lane[i % 16] += x[i];
            for (int half = 8; half > 0; half /= 2)
                for (int i = 0; i < half; i++) lane[i] += lane[i + half];
            total += lane[0];
        }
        assert_memory_equal(&found, &total, sizeof found);
        arena_free(f.arena);
    }
}

static void test_lanes_outer_order(void **state) {
    (void)state;
    enum { ROWS = 5, N = 50 };
    float x[N * ROWS], found[ROWS];
    for (int i = 0; i < N * ROWS; i++) x[i] = 1.0f / (float)(3 + i) * (float)(1 << (i % 20));
    Fixture f = fixture((int64_t[]){ROWS, N}, 1, 2);
    f.loop->lanes_outer = true;
    loop_begin_pass(&f.b, false);
    LoopValue sum = loop_emit(&f.b, LOOP_REDUCE_SUM, loop_load(&f.b, f32_at(0, 1, ROWS)), -1, -1);
    loop_begin_pass(&f.b, true);
    loop_store(&f.b, f32_at(1, 1, 0), sum);
    loop_interpret(f.loop, (void *[]){x, found}, 0, ROWS);
    for (int row = 0; row < ROWS; row++) {
        float in_order = 0;
        for (int i = 0; i < N; i++) in_order += x[i * ROWS + row];
        assert_memory_equal(&found[row], &in_order, sizeof in_order);
    }
    arena_free(f.arena);
}

/* Collapsing changes no bit, and does merge what it can. */
static void test_collapse(void **state) {
    (void)state;
    int merged = 0;
    for (uint32_t seed = 1; seed <= 400; seed++) {
        Arena *arena = arena_new();
        LoopCase *c = loop_case(arena, "loop", seed);
        void *before[CASE_MAX_BUFFERS], *after[CASE_MAX_BUFFERS];
        case_fill(c, before);
        case_fill(c, after);
        int64_t rows = loop_rows(c->loop);
        loop_interpret(c->loop, before, 0, rows);
        int axes = c->loop->n_axes;
        loop_collapse(c->loop);
        if (c->loop->n_axes < axes) merged++;
        Text why = {.arena = arena};
        if (!loop_verify(c->loop, &why)) fail_msg("seed %u: %s", seed, why.at);
        assert_int_equal(loop_rows(c->loop), rows);
        loop_interpret(c->loop, after, 0, rows);
        int buffer;
        int64_t element;
        if (case_differs(c, before, after, &buffer, &element)) fail_msg("seed %u differs", seed);
        case_release(c, before);
        case_release(c, after);
        arena_free(arena);
    }
    assert_true(merged > 40);

    Fixture f = fixture((int64_t[]){4, 1, 6, 5}, 4, 4);
    loop_begin_pass(&f.b, true);
    LoopAccess access = {.pointer = 0, .stride = {30, 0, 5, 1}};
    loop_store(&f.b, access, loop_load(&f.b, access));
    loop_collapse(f.loop);
    assert_int_equal(f.loop->n_axes, 1);
    assert_int_equal(f.loop->extent[0], 120);
    assert_int_equal(f.loop->code.at[0].access.stride[0], 1);
    arena_free(f.arena);
}

/* ---- mathematical functions against libm in double --------------------------------------------------------------- */

/* Error of `found` in units of the last place of the true value (of the smallest normal below it). */
static double ulps(float found, double truth) {
    if (isnan(truth)) return isnan(found) ? 0 : INFINITY;
    float rounded = (float)truth;
    if (isinf(rounded) || isinf(found))
        return found == rounded ? 0 : fabs(truth) > 3.4028e38 || isinf(truth) ? 1 : INFINITY;
    int exponent;
    frexp(truth, &exponent);
    if (truth == 0 || exponent < -125) exponent = -125;
    return fabs((double)found - truth) / ldexp(1, exponent - 24);
}

typedef struct Checked {
    const char *name;
    float (*found)(float);
    double (*truth)(double);
    double low, high, limit;
} Checked;

static void test_math(void **state) {
    (void)state;
    static const Checked functions[] = {
        {"exp", loop_expf, exp, -104, 89, 2},     {"exp", loop_expf, exp, -1e-3, 1e-3, 1},
        {"log", loop_logf, log, 1e-38, 1e-30, 2}, {"log", loop_logf, log, 0.3, 3, 2},
        {"log", loop_logf, log, 1e-3, 1e9, 2},    {"tanh", loop_tanhf, tanh, -11, 11, 2.5},
        {"tanh", loop_tanhf, tanh, -1, 1, 2.5},
    };
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
        const Checked *c = &functions[k];
        double worst = 0, at = 0;
        for (int i = 0; i <= 200000; i++) {
            float x = (float)(c->low + (c->high - c->low) * i / 200000.0);
            double error = ulps(c->found(x), c->truth((double)x));
            if (error > worst) worst = error, at = (double)x;
        }
        if (worst > c->limit) fail_msg("%s(%.9g) is off by %.2f ulp", c->name, at, worst);
    }
}

static void test_trig(void **state) {
    (void)state;
    static const double ranges[] = {1, 10, 1000, 1e5};
    for (int k = 0; k < 4; k++)
        for (int i = -100000; i <= 100000; i++) {
            float x = (float)(ranges[k] * i / 100000.0 * 1.00000001);
            double s = fabs((double)loop_sinf(x) - sin((double)x)), c = fabs((double)loop_cosf(x) - cos((double)x));
            if (s > 2e-7 || c > 2e-7) fail_msg("sin or cos of %.9g is off by %g, %g", (double)x, s, c);
        }
}

static void test_pow(void **state) {
    (void)state;
    double worst = 0;
    for (int i = 1; i <= 400; i++)
        for (int j = -300; j <= 300; j++) {
            float x = i <= 200 ? (float)i * 0.011f : (float)i * 37.3f, y = (float)j * 0.13f;
            double truth = pow((double)x, (double)y);
            if (truth > 1e-44 && ulps(loop_powf(x, y), truth) > worst) worst = ulps(loop_powf(x, y), truth);
        }
    assert_true(worst <= 2);
    for (int step = 1; step < 20000; step++) /* Adam's bias corrections */
        assert_true(ulps(loop_powf(0.999f, (float)step), pow((double)0.999f, step)) <= 2);
}

static void test_math_ends(void **state) {
    (void)state;
    float inf = INFINITY, nan = NAN;
    assert_true(loop_expf(-inf) == 0 && loop_expf(-200) == 0 && loop_expf(inf) == inf && loop_expf(100) == inf);
    assert_true(loop_expf(0) == 1 && isnan(loop_expf(nan)));
    assert_true(loop_expf(-95) > 0 && loop_expf(-95) < 1e-40f); /* below the normal range, not flushed */
    assert_true(loop_logf(0) == -inf && loop_logf(-0.0f) == -inf && loop_logf(inf) == inf && loop_logf(1) == 0);
    assert_true(isnan(loop_logf(-1)) && isnan(loop_logf(nan)) && fabsf(loop_logf(1e-44f) - logf(1e-44f)) < 1e-4f);
    assert_true(loop_tanhf(20) == 1 && loop_tanhf(-20) == -1 && loop_tanhf(inf) == 1 && loop_tanhf(-inf) == -1);
    assert_true(isnan(loop_tanhf(nan)) && loop_tanhf(0) == 0);
    assert_true(loop_sinf(0) == 0 && loop_cosf(0) == 1 && isnan(loop_sinf(inf)) && isnan(loop_cosf(nan)));
    assert_true(isnan(loop_sinf(1e9f)));
    assert_true(loop_powf(2, 10) == 1024 && loop_powf(0, 2) == 0 && loop_powf(0, -1) == inf && loop_powf(3, 0) == 1);
    assert_true(isnan(loop_powf(-1, 0.5f)) && isnan(loop_powf(nan, 2)) && loop_powf(10, 40) == inf &&
                loop_powf(10, -60) == 0);
    assert_true(loop_to_int(3.99f) == 3 && loop_to_int(-3.99f) == -3 && loop_to_int(nan) == 0);
    assert_true(loop_to_int(1e20f) == INT32_MAX && loop_to_int(-1e20f) == INT32_MIN);
    assert_true(isnan(loop_maxf(nan, 1)) && isnan(loop_maxf(1, nan)) && isnan(loop_minf(1, nan)));
}

/* Every f16 there and back; rounding to nearest even on both sides of the middle. */
static void test_narrow_floats(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = loop_from_f16((uint16_t)h);
        if (isnan(x))
            assert_int_equal(loop_to_f16(x) & 0x7E00, 0x7E00);
        else
            assert_int_equal(loop_to_f16(x), h);
        float y = loop_from_bf16((uint16_t)h);
        if (!isnan(y)) assert_int_equal(loop_to_bf16(y), h);
    }
    assert_true(loop_from_f16(0x3C00) == 1 && loop_from_f16(0x0001) == 0x1p-24f && loop_from_f16(0x7BFF) == 65504);
    assert_int_equal(loop_to_f16(65519.9f), 0x7BFF);
    assert_int_equal(loop_to_f16(65520.0f), 0x7C00);
    assert_int_equal(loop_to_f16(1.0f + 0x1p-11f), 0x3C00); /* the middle goes to even */
    assert_int_equal(loop_to_f16(1.0f + 0x1p-11f + 0x1p-20f), 0x3C01);
    assert_int_equal(loop_to_f16(0x1.8p-24f), 0x0002);
    assert_int_equal(loop_to_bf16(1.0f + 0x1p-8f), 0x3F80);
    assert_int_equal(loop_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3F81);
    assert_true(isnan(loop_from_bf16(loop_to_bf16(math_float(0x7F800001)))));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_random_bits),
        cmocka_unit_test(test_sum_order),
        cmocka_unit_test(test_lanes_outer_order),
        cmocka_unit_test(test_collapse),
        cmocka_unit_test(test_math),
        cmocka_unit_test(test_trig),
        cmocka_unit_test(test_pow),
        cmocka_unit_test(test_math_ends),
        cmocka_unit_test(test_narrow_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
