/* The collectives with ranks as threads of one process, so that the thread sanitizer can look at them: every kind, both
 * axes of a mesh, sizes around the limits, sums in the order of the ranks, and ranks that fail or do not come. */
#include "comm/comm.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The drivers in runtime/cpu call generated kernels; nothing here does. */
extern const PrtInner plan_inner;
const PrtInner plan_inner = {.tile_m = 1};

enum { ROWS = 2, COLUMNS = 3, RANKS = ROWS * COLUMNS };

typedef struct World World;
typedef struct Member {
    PrtRank rank;
    World *world;
    pthread_t thread;
    jmp_buf out;
    int left; /* status of prt_leave, or -1 */
    int64_t result;
} Member;
struct World {
    PrtJob *job;
    Member members[RANKS];
    int n;
    void (*body)(Member *);
};

static void leave_thread(PrtRank *rank, int status) {
    Member *member = (Member *)(void *)rank; /* its first field */
    member->left = status;
    longjmp(member->out, 1);
}

static void *member_main(void *context) {
    Member *member = context;
    if (!setjmp(member->out)) member->world->body(member);
    return NULL;
}

static void run_world(World *world, int rows, int columns, double timeout, void (*body)(Member *)) {
    world->n = rows * columns;
    void *memory = NULL;
    size_t bytes = (size_t)prt_job_bytes(world->n, 2);
    assert_int_equal(posix_memalign(&memory, 4096, bytes), 0);
    memset(memory, 0, bytes);
    world->job = prt_job_init(memory, world->n, 2);
    world->job->leave = leave_thread;
    world->job->timeout = timeout;
    world->job->spin = 20;
    world->body = body;
    for (int i = 0; i < world->n; i++) {
        Member *m = &world->members[i];
        *m = (Member){.world = world, .left = -1};
        m->rank = (PrtRank){.number = i,
                            .n_ranks = world->n,
                            .n_axes = 2,
                            .sizes = {rows, columns},
                            .coords = {i / columns, i % columns},
                            .threads = 1,
                            .job = world->job};
    }
    for (int i = 0; i < world->n; i++)
        assert_int_equal(pthread_create(&world->members[i].thread, NULL, member_main, &world->members[i]), 0);
    for (int i = 0; i < world->n; i++) pthread_join(world->members[i].thread, NULL);
}

static void expect_all_well(World *world) {
    for (int i = 0; i < world->n; i++) assert_int_equal(world->members[i].left, -1);
    free(world->job);
}

static float value_of(int rank, int64_t i) { return (float)((rank + 1) * 1000 + i % 97); }

/* Members of the group of `m` on `axis`, in order. */
static int group_of(const Member *m, int axis, int *ranks) {
    PrtGroup group = prt_group(&m->rank, axis);
    for (int j = 0; j < group.size; j++) ranks[j] = group.first + j * group.stride;
    return group.size;
}

static void test_groups(void **state) {
    (void)state;
    PrtRank rank = {.number = 4, .n_ranks = 6, .n_axes = 2, .sizes = {2, 3}, .coords = {1, 1}};
    PrtGroup rows = prt_group(&rank, 0), columns = prt_group(&rank, 1), world = prt_group(&rank, PRT_WORLD);
    assert_int_equal(rows.first, 1);
    assert_int_equal(rows.stride, 3);
    assert_int_equal(rows.size, 2);
    assert_int_equal(rows.me, 1);
    assert_int_equal(columns.first, 3);
    assert_int_equal(columns.stride, 1);
    assert_int_equal(columns.me, 1);
    assert_int_equal(world.size, 6);
    assert_int_equal(world.me, 4);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) prt_fail(&m->rank, "line %d", __LINE__);                                                     \
    } while (0)

static const int64_t sizes[] = {1, 3, 63, 64, 65, 127, 128, 1000, 2048, 2049, 40001};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* As in a program: descriptions are constants, that others may look at while their owner has gone on. */
static PrtCollective sums[SIZES][2], maxima[SIZES][2];

static void reduce_body(Member *m) {
    for (int round = 0; round < 3; round++) {
        for (int s = 0; s < SIZES; s++) {
            for (int axis = 0; axis < 2; axis++) {
                int64_t n = sizes[s];
                int ranks[RANKS], size = group_of(m, axis, ranks);
                float *x = malloc((size_t)n * 4), *y = malloc((size_t)n * 4);
                for (int64_t i = 0; i < n; i++) x[i] = value_of(m->rank.number, i);
                prt_collective(&m->rank, &maxima[s][axis], x, y);
                prt_collective(&m->rank, &sums[s][axis], x, x);
                for (int64_t i = 0; i < n; i++) {
                    float expected = 0;
                    for (int j = 0; j < size; j++) expected += value_of(ranks[j], i);
                    CHECK(x[i] == expected);
                    CHECK(y[i] == value_of(ranks[size - 1], i));
                }
                free(x);
                free(y);
            }
        }
    }
}

static void test_all_reduce(void **state) {
    (void)state;
    World world;
    for (int s = 0; s < SIZES; s++) {
        for (int axis = 0; axis < 2; axis++) {
            sums[s][axis] = (PrtCollective){PRT_ALL_REDUCE, axis, 0, 0, sizes[s], 1, sizes[s], "sum", 0};
            maxima[s][axis] = (PrtCollective){PRT_ALL_REDUCE, axis, 1, 0, sizes[s], 1, sizes[s], "max", 0};
        }
    }
    run_world(&world, ROWS, COLUMNS, 60, reduce_body);
    expect_all_well(&world);
}

static void integer_body(Member *m) {
    int32_t x[200], y[200], z[200];
    for (int i = 0; i < 200; i++) x[i] = y[i] = z[i] = 1 << (m->rank.coords[1] + i % 8);
    PrtCollective c = {PRT_ALL_REDUCE, 1, 3, 4, 200, 1, 200, "or", 0};
    prt_collective(&m->rank, &c, x, x);
    c.reduce = 2;
    prt_collective(&m->rank, &c, y, y);
    c.reduce = 0;
    prt_collective(&m->rank, &c, z, z);
    for (int i = 0; i < 200; i++) {
        CHECK(x[i] == 7 << i % 8);
        CHECK(y[i] == 1 << i % 8);
        CHECK(z[i] == 7 << i % 8);
    }
}

static void test_integers(void **state) {
    (void)state;
    World world;
    run_world(&world, ROWS, COLUMNS, 60, integer_body);
    expect_all_well(&world);
}

/* Sums of floats depend on their order: it must be that of the ranks, on every rank. */
static void order_body(Member *m) {
    enum { N = 5000 };
    static const float parts[COLUMNS] = {1e8f, 1.0f, -1e8f};
    static float x[RANKS][N];
    float *mine = x[m->rank.number], small = parts[m->rank.coords[1]];
    for (int i = 0; i < N; i++) mine[i] = parts[m->rank.coords[1]];
    static const PrtCollective c = {PRT_ALL_REDUCE, 1, 0, 0, N, 1, N, "order", 0},
                               one = {PRT_ALL_REDUCE, 1, 0, 0, 1, 1, 1, "order of one", 0};
    prt_collective(&m->rank, &c, mine, mine);
    prt_collective(&m->rank, &one, &small, &small);
    volatile float expected = parts[0] + parts[1];
    expected = expected + parts[2];
    for (int i = 0; i < N; i++) CHECK(mine[i] == expected);
    CHECK(small == expected);
}

static void test_order_of_sums(void **state) {
    (void)state;
    World world;
    run_world(&world, ROWS, COLUMNS, 60, order_body);
    expect_all_well(&world);
}

static void moves_body(Member *m) {
    for (int axis = 0; axis < 2; axis++) {
        int ranks[RANKS], n = group_of(m, axis, ranks);
        int me = m->rank.coords[axis];
        int64_t outer = 3, inner = 41, part = outer * inner, whole = part * n;
        float *in = malloc((size_t)whole * 4), *out = malloc((size_t)whole * 4);
        for (int64_t i = 0; i < whole; i++) in[i] = value_of(m->rank.number, i);
        PrtCollective c = {PRT_ALL_GATHER, axis, 0, 0, whole, outer, inner, "gather", 0};
        prt_collective(&m->rank, &c, in, out);
        for (int64_t o = 0; o < outer; o++) {
            for (int j = 0; j < n; j++) {
                for (int64_t i = 0; i < inner; i++)
                    CHECK(out[(o * n + j) * inner + i] == value_of(ranks[j], o * inner + i));
            }
        }
        c.kind = PRT_REDUCE_SCATTER;
        prt_collective(&m->rank, &c, in, out);
        for (int64_t o = 0; o < outer; o++) {
            for (int64_t i = 0; i < inner; i++) {
                float expected = 0;
                for (int j = 0; j < n; j++) expected += value_of(ranks[j], (o * n + me) * inner + i);
                CHECK(out[o * inner + i] == expected);
            }
        }
        c.kind = PRT_ALL_TO_ALL;
        prt_collective(&m->rank, &c, in, out);
        for (int64_t o = 0; o < outer; o++) {
            for (int j = 0; j < n; j++) {
                for (int64_t i = 0; i < inner; i++)
                    CHECK(out[(o * n + j) * inner + i] == value_of(ranks[j], (o * n + me) * inner + i));
            }
        }
        c = (PrtCollective){PRT_PASS, axis, 0, 0, part, 1, part, "pass", 0};
        prt_collective(&m->rank, &c, in, out);
        for (int64_t i = 0; i < part; i++) CHECK(out[i] == value_of(ranks[(me + n - 1) % n], i));
        free(in);
        free(out);
    }
}

/* Block j of n is the pieces j and 2n-1-j of 2n. */
static void balanced_body(Member *m) {
    for (int axis = 0; axis < 2; axis++) {
        int ranks[RANKS], n = group_of(m, axis, ranks);
        int me = m->rank.coords[axis];
        int64_t outer = 3, inner = 34, part = outer * inner, whole = part * n, half = inner / 2;
        float *in = malloc((size_t)whole * 4), *out = malloc((size_t)whole * 4);
        for (int64_t i = 0; i < whole; i++) in[i] = value_of(m->rank.number, i);
        PrtCollective c = {PRT_ALL_GATHER, axis, 0, 0, whole, outer, inner, "gather", 1};
        prt_collective(&m->rank, &c, in, out);
        for (int64_t i = 0; i < whole; i++) {
            int64_t o = i / (n * inner), piece = i / half % (2 * n), j = piece < n ? piece : 2 * n - 1 - piece;
            CHECK(out[i] == value_of(ranks[j], o * inner + (piece < n ? 0 : half) + i % half));
        }
        c.kind = PRT_REDUCE_SCATTER;
        prt_collective(&m->rank, &c, in, out);
        for (int64_t i = 0; i < part; i++) {
            int64_t o = i / inner, piece = i % inner < half ? me : 2 * n - 1 - me;
            float expected = 0;
            for (int j = 0; j < n; j++) expected += value_of(ranks[j], (o * 2 * n + piece) * half + i % half);
            CHECK(out[i] == expected);
        }
        free(in);
        free(out);
    }
}

static void test_balanced(void **state) {
    (void)state;
    World world;
    run_world(&world, ROWS, COLUMNS, 60, balanced_body);
    expect_all_well(&world);
}

static void test_moves(void **state) {
    (void)state;
    World world;
    run_world(&world, ROWS, COLUMNS, 60, moves_body);
    expect_all_well(&world);
}

static void vote_body(Member *m) {
    for (int64_t i = 0; i < 200; i++) {
        CHECK(prt_vote(&m->rank, (m->rank.number * 7 + i) % RANKS, "vote") == RANKS - 1);
        CHECK(prt_decide(&m->rank, m->rank.number * 10 + i, "decide") == i);
    }
}

static void test_votes(void **state) {
    (void)state;
    World world;
    run_world(&world, ROWS, COLUMNS, 60, vote_body);
    expect_all_well(&world);
}

/* Of several ranks that fail, one message is kept; the others leave their waits. */
static void failing_body(Member *m) {
    float x[100] = {0};
    static const PrtCollective c = {PRT_ALL_REDUCE, 1, 0, 0, 100, 1, 100, "test.plan:3 all_reduce of x over columns", 0};
    prt_collective(&m->rank, &c, x, x);
    if (m->rank.number == 4) prt_fail(&m->rank, "disk on fire");
    for (;;) prt_collective(&m->rank, &c, x, x), prt_barrier(&m->rank, PRT_WORLD, "the end");
}

static void test_failure_frees_the_others(void **state) {
    (void)state;
    World world;
    run_world(&world, ROWS, COLUMNS, 60, failing_body);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(world.members[i].left, i == 4 ? PRT_EXIT_FAILED : PRT_EXIT_ABORTED);
    assert_int_equal(atomic_load(&world.job->first), 5);
    assert_string_equal(world.job->message, "disk on fire");
    free(world.job);
}

static void missing_body(Member *m) {
    float x[100] = {0};
    static const PrtCollective c = {PRT_ALL_REDUCE, 1, 0, 0, 100, 1, 100, "test.plan:3 all_reduce of x over columns", 0};
    atomic_store(&m->rank.job->status[m->rank.number].doing, "F");
    atomic_store(&m->rank.job->status[m->rank.number].step, 12);
    if (m->rank.number == 1) return;
    prt_collective(&m->rank, &c, x, x);
}

static void test_timeout_names_the_missing(void **state) {
    (void)state;
    World world;
    run_world(&world, 1, 3, 0.3, missing_body);
    assert_non_null(strstr(world.job->message, "missing rank 1 (step 12, F)"));
    assert_non_null(strstr(world.job->message, "test.plan:3 all_reduce of x over columns (number 1 of its group)"));
    free(world.job);
}

static void mismatch_body(Member *m) {
    float x[300] = {0};
    static const PrtCollective a = {PRT_ALL_REDUCE, 1, 0, 0, 100, 1, 100, "line 3", 0},
                               b = {PRT_ALL_REDUCE, 1, 0, 0, 90, 1, 90, "line 4", 0};
    prt_collective(&m->rank, m->rank.number == 2 ? &b : &a, x, x);
}

static void test_mismatch(void **state) {
    (void)state;
    World world;
    run_world(&world, 1, 3, 60, mismatch_body);
    assert_non_null(strstr(world.job->message, "does not match"));
    assert_non_null(strstr(world.job->message, "line 3"));
    assert_non_null(strstr(world.job->message, "line 4"));
    free(world.job);
}

static void test_alone(void **state) {
    (void)state;
    PrtRank rank = {.n_ranks = 1, .n_axes = 1, .sizes = {1}, .threads = 1};
    float x[3] = {1, 2, 3}, y[3] = {0};
    PrtCollective c = {PRT_ALL_REDUCE, 0, 0, 0, 3, 1, 3, "alone", 0};
    prt_collective(&rank, &c, x, y);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal(prt_vote(&rank, 9, "alone"), 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_all_reduce),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_order_of_sums),
        cmocka_unit_test(test_moves), cmocka_unit_test(test_balanced),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_failure_frees_the_others),
        cmocka_unit_test(test_timeout_names_the_missing),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
