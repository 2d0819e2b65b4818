/* Exact numbers: any order, cut and number of threads gives the same bits, and these are the bits of the true sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/exact.h"
#include "cpu/threads.h"

extern const char plan_program[];
extern const PrtInner plan_inner;
const char plan_program[] = "{}";
const PrtInner plan_inner = {.tile_m = 1};
extern PrtAction *const plan_entries[];
PrtAction *const plan_entries[] = {NULL};

static uint64_t state = 88172645463325252u;
static uint64_t random_word(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
static int64_t random_below(int64_t n) { return (int64_t)(random_word() % (uint64_t)n); }

/* A float with 24 random bits and an exponent from `low` to `high`. */
static float random_float(int low, int high) {
    float x = (float)(random_below(1 << 24) - (1 << 23));
    int exponent = low + (int)random_below(high - low + 1);
    for (; exponent > 0; exponent--) x *= 2;
    for (; exponent < 0; exponent++) x /= 2;
    return x;
}

static PrtRank rank_with(int threads) {
    PrtRank rank = {.n_ranks = 1, .threads = threads};
    if (threads > 1) rank.pool = prt_pool_open(threads, NULL, 0);
    return rank;
}

enum { N = 40000 };

static void test_true_sum(void **unused) {
    (void)unused;
    static float x[N];
    for (int round = 0; round < 50; round++) {
        int64_t total = 0, n = 1 + random_below(N);
        PrtExactNumber sum = {0, 0};
        for (int64_t i = 0; i < n; i++) {
            int64_t steps = random_below(1 << 23) * (random_below(2) ? 1 : -4096); /* of 2^-50 */
            total += steps;
            x[i] = (float)((double)steps * 0x1p-50);
            prt_exact_add(&sum, x[i]);
        }
        float expected = (float)((double)total * 0x1p-50), is = prt_exact_round(sum);
        assert_memory_equal(&is, &expected, sizeof is);
    }
}

static void sum_of(PrtRank *rank, const float *x, int64_t rows, int64_t columns, bool keep, PrtExactNumber *out,
                   bool accumulate) {
    PrtExact exact = {.extent = {rows, columns}, .out = {0, keep}, .in = {columns, 1}, .kind = PRT_EXACT_SUM, .n_axes = 2};
    exact.accumulate = accumulate;
    exact.axis = -1;
    void *pointers[] = {out, (void *)(uintptr_t)x, out};
    prt_exact(rank, &exact, pointers);
}

/* Shuffled, cut in pieces that accumulate, and by several threads; magnitudes over 100 binary orders. */
static void test_any_order(void **unused) {
    (void)unused;
    enum { COLUMNS = 40, ROWS = N / COLUMNS };
    static float x[N];
    PrtRank one = rank_with(1), three = rank_with(3);
    for (int round = 0; round < 10; round++) {
        for (int64_t i = 0; i < N; i++) x[i] = random_float(-100, -14);
        for (int keep = 0; keep < 2; keep++) {
            PrtExactNumber first[COLUMNS], second[COLUMNS];
            int64_t n = keep ? COLUMNS : 1, cut = random_below(ROWS);
            sum_of(&one, x, ROWS, COLUMNS, keep, first, false);
            for (int64_t i = ROWS - 1; i > 0; i--) { /* rows change places */
                float row[COLUMNS];
                int64_t j = random_below(i + 1);
                memcpy(row, &x[i * COLUMNS], sizeof row);
                memmove(&x[i * COLUMNS], &x[j * COLUMNS], sizeof row);
                memcpy(&x[j * COLUMNS], row, sizeof row);
            }
            sum_of(&three, x, cut, COLUMNS, keep, second, false);
            if (cut == 0) memset(second, 0, sizeof second);
            sum_of(&three, x + cut * COLUMNS, ROWS - cut, COLUMNS, keep, second, true);
            for (int64_t i = 0; i < n; i++) {
                float a = prt_exact_round(first[i]), b = prt_exact_round(second[i]);
                assert_memory_equal(&a, &b, sizeof a);
            }
        }
    }
    prt_pool_close(three.pool);
}

/* The same terms in double precision do depend on their order: the test above can fail. */
static void test_doubles_would_differ(void **unused) {
    (void)unused;
    int differ = 0;
    for (int round = 0; round < 100; round++) {
        float x[64];
        double up = 0, down = 0;
        for (int i = 0; i < 64; i++) x[i] = random_float(-100, -14);
        for (int i = 0; i < 64; i++) up += (double)x[i], down += (double)x[63 - i];
        differ += up != down;
    }
    assert_true(differ > 10);
}

static void test_copies(void **unused) {
    (void)unused;
    PrtRank rank = rank_with(1);
    PrtExactNumber x[12], out[12];
    float rounded[12];
    for (int i = 0; i < 12; i++) {
        x[i] = (PrtExactNumber){0, 0};
        prt_exact_add(&x[i], (float)i + 0.25f);
    }
    /* [3, 4] read as its transpose, twice */
    PrtExact add = {.extent = {4, 3}, .out = {3, 1}, .in = {1, 4}, .in2 = {1, 4}, .kind = PRT_EXACT_ADD, .n_axes = 2};
    add.axis = -1;
    prt_exact(&rank, &add, (void *[]){out, x, x});
    PrtExact round = {.extent = {12}, .out = {1}, .in = {1}, .kind = PRT_EXACT_ROUND, .n_axes = 1, .axis = -1};
    prt_exact(&rank, &round, (void *[]){rounded, out, out});
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++) assert_true(rounded[i * 3 + j] == 2 * ((float)(j * 4 + i) + 0.25f));
    /* the second half, as a rank with coordinate 1 takes it */
    rank.coords[0] = 1;
    PrtExact half = {.extent = {6}, .out = {1}, .in = {1}, .shift = 6, .kind = PRT_EXACT_COPY, .n_axes = 1, .axis = 0};
    prt_exact(&rank, &half, (void *[]){out, x, x});
    prt_exact(&rank, &round, (void *[]){rounded, out, out});
    for (int i = 0; i < 6; i++) assert_true(rounded[i] == (float)(i + 6) + 0.25f);
}

static void test_rows(void **unused) {
    (void)unused;
    enum { OUT = 5, ROWS = 300, WIDTH = 200 };
    static float in[ROWS * WIDTH];
    static int32_t index[ROWS];
    static PrtExactNumber first[OUT * WIDTH], second[OUT * WIDTH];
    PrtRank one = rank_with(1), three = rank_with(3);
    for (int i = 0; i < ROWS * WIDTH; i++) in[i] = random_float(-60, -12);
    for (int i = 0; i < ROWS; i++) index[i] = (int32_t)random_below(OUT + 2); /* some belong to another rank */
    PrtExact rows = {.extent = {OUT, ROWS, WIDTH}, .out = {WIDTH, 0, 1}, .in = {0, WIDTH, 1}, .kind = PRT_EXACT_ROWS,
                     .n_axes = 3};
    rows.axis = -1;
    prt_exact(&one, &rows, (void *[]){first, in, index});
    memset(second, 0, sizeof second);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDTH && index[i] < OUT; j++) prt_exact_add(&second[index[i] * WIDTH + j], in[i * WIDTH + j]);
    assert_memory_equal(first, second, sizeof first);
    prt_exact(&three, &rows, (void *[]){second, in, index});
    assert_memory_equal(first, second, sizeof first);
    prt_pool_close(three.pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_true_sum), cmocka_unit_test(test_any_order),
                                       cmocka_unit_test(test_doubles_would_differ), cmocka_unit_test(test_copies),
                                       cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
