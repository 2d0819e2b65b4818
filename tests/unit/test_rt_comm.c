/* The collectives with ranks as threads of one process, so that the thread sanitizer can look at them: every kind, both
 * axes of a mesh, sizes around the limits, sums in the order of the ranks, and ranks that fail or do not come. */
#include "comm/comm.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    int n, n_channels;
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
    size_t channels = sizeof(PrtChannel) * (size_t)(world->n_channels * world->n);
    if (channels) {
        assert_int_equal(posix_memalign(&memory, 4096, channels), 0);
        world->job->channels = memset(memory, 0, channels);
    }
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
    World world = {0};
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
    static const PrtCollective join = {PRT_ALL_REDUCE, 1, 3, 4, 200, 1, 200, "or", 0},
                               least = {PRT_ALL_REDUCE, 1, 2, 4, 200, 1, 200, "min", 0},
                               sum = {PRT_ALL_REDUCE, 1, 0, 4, 200, 1, 200, "sum", 0};
    prt_collective(&m->rank, &join, x, x);
    prt_collective(&m->rank, &least, y, y);
    prt_collective(&m->rank, &sum, z, z);
    for (int i = 0; i < 200; i++) {
        CHECK(x[i] == 7 << i % 8);
        CHECK(y[i] == 1 << i % 8);
        CHECK(z[i] == 7 << i % 8);
    }
}

static void test_integers(void **state) {
    (void)state;
    World world = {0};
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
    World world = {0};
    run_world(&world, ROWS, COLUMNS, 60, order_body);
    expect_all_well(&world);
}

/* Ranks of one machine are joined first: 1 + (1e8 - 1e8) is 1, where the order of the ranks would give 0. */
static void machines_body(Member *m) {
    enum { N = 5000 };
    static const int machine[RANKS] = {0, 1, 1, 2, 3, 3};
    static const float parts[COLUMNS] = {1.0f, 1e8f, -1e8f};
    static float x[RANKS][N], y[RANKS][N], rows[RANKS][N];
    float *mine = x[m->rank.number], *part = y[m->rank.number], small = parts[m->rank.coords[1]];
    m->rank.machine = machine;
    for (int i = 0; i < N; i++) mine[i] = parts[m->rank.coords[1]];
    static const PrtCollective all = {PRT_ALL_REDUCE, 1, 0, 0, N, 1, N, "machines", 0},
                               one = {PRT_ALL_REDUCE, 1, 0, 0, 1, 1, 1, "machines, one", 0},
                               scatter = {PRT_REDUCE_SCATTER, 1, 0, 0, N / COLUMNS * COLUMNS, 1, N / COLUMNS, "machines, parts", 0},
                               apart = {PRT_ALL_REDUCE, 0, 0, 0, N, 1, N, "a rank of each machine", 0};
    prt_collective(&m->rank, &scatter, mine, part);
    for (int i = 0; i < N; i++) rows[m->rank.number][i] = (float)m->rank.number;
    prt_collective(&m->rank, &apart, rows[m->rank.number], rows[m->rank.number]);
    prt_collective(&m->rank, &all, mine, mine);
    prt_collective(&m->rank, &one, &small, &small);
    for (int i = 0; i < N; i++) CHECK(mine[i] == 1.0f && rows[m->rank.number][i] == (float)(2 * m->rank.coords[1] + COLUMNS));
    for (int i = 0; i < N / COLUMNS; i++) CHECK(part[i] == 1.0f);
    CHECK(small == 1.0f);
}

static void test_machines(void **state) {
    (void)state;
    World world = {0};
    run_world(&world, ROWS, COLUMNS, 60, machines_body);
    expect_all_well(&world);
}

/* Small ones go by value, large ones from arena to arena. */
enum { OUTER = 3, SMALL = 41, LARGE = 1000 };
static PrtCollective moves[2][2][3]; /* by axis, size, kind */

static void check_moves(Member *m, int axis, const PrtCollective *c) {
    int ranks[RANKS], n = group_of(m, axis, ranks);
    int me = m->rank.coords[axis];
    int64_t inner = c->inner, whole = c->elements;
    float *in = malloc((size_t)whole * 4), *out = malloc((size_t)whole * 4);
    for (int64_t i = 0; i < whole; i++) in[i] = value_of(m->rank.number, i);
    prt_collective(&m->rank, &c[0], in, out);
    for (int64_t o = 0; o < OUTER; o++) {
        for (int j = 0; j < n; j++) {
            for (int64_t i = 0; i < inner; i++)
                CHECK(out[(o * n + j) * inner + i] == value_of(ranks[j], o * inner + i));
        }
    }
    prt_collective(&m->rank, &c[1], in, out);
    for (int64_t o = 0; o < OUTER; o++) {
        for (int64_t i = 0; i < inner; i++) {
            float expected = 0;
            for (int j = 0; j < n; j++) expected += value_of(ranks[j], (o * n + me) * inner + i);
            CHECK(out[o * inner + i] == expected);
        }
    }
    prt_collective(&m->rank, &c[2], in, out);
    for (int64_t o = 0; o < OUTER; o++) {
        for (int j = 0; j < n; j++) {
            for (int64_t i = 0; i < inner; i++)
                CHECK(out[(o * n + j) * inner + i] == value_of(ranks[j], (o * n + me) * inner + i));
        }
    }
    free(in);
    free(out);
}

static void moves_body(Member *m) {
    for (int axis = 0; axis < 2; axis++) {
        for (int size = 0; size < 2; size++) check_moves(m, axis, moves[axis][size]);
    }
}

/* Block j of n is the pieces j and 2n-1-j of 2n; and a step of a ring. */
static PrtCollective pieces[2][2][3];

static void check_pieces(Member *m, int axis, const PrtCollective *c) {
    int ranks[RANKS], n = group_of(m, axis, ranks);
    int me = m->rank.coords[axis];
    int64_t inner = c->inner, part = OUTER * inner, whole = part * n, half = inner / 2;
    float *in = malloc((size_t)whole * 4), *out = malloc((size_t)whole * 4);
    for (int64_t i = 0; i < whole; i++) in[i] = value_of(m->rank.number, i);
    prt_collective(&m->rank, &c[0], in, out);
    for (int64_t i = 0; i < whole; i++) {
        int64_t o = i / (n * inner), piece = i / half % (2 * n), j = piece < n ? piece : 2 * n - 1 - piece;
        CHECK(out[i] == value_of(ranks[j], o * inner + (piece < n ? 0 : half) + i % half));
    }
    prt_collective(&m->rank, &c[1], in, out);
    for (int64_t i = 0; i < part; i++) {
        int64_t o = i / inner, piece = i % inner < half ? me : 2 * n - 1 - me;
        float expected = 0;
        for (int j = 0; j < n; j++) expected += value_of(ranks[j], (o * 2 * n + piece) * half + i % half);
        CHECK(out[i] == expected);
    }
    prt_collective(&m->rank, &c[2], in, out);
    for (int64_t i = 0; i < part; i++) CHECK(out[i] == value_of(ranks[(me + n - 1) % n], i));
    free(in);
    free(out);
}

static void pieces_body(Member *m) {
    for (int axis = 0; axis < 2; axis++)
        for (int size = 0; size < 2; size++) check_pieces(m, axis, pieces[axis][size]);
}

static void test_balanced(void **state) {
    (void)state;
    World world = {0};
    static const PrtCollectiveKind kinds[] = {PRT_ALL_GATHER, PRT_REDUCE_SCATTER, PRT_PASS};
    for (int axis = 0; axis < 2; axis++)
        for (int size = 0; size < 2; size++)
            for (int k = 0; k < 3; k++) {
                int64_t inner = size ? LARGE : SMALL + 1, part = OUTER * inner;
                bool is_pass = kinds[k] == PRT_PASS;
                pieces[axis][size][k] = (PrtCollective){(int32_t)kinds[k], axis, 0, 0, is_pass ? part : part * (axis ? COLUMNS : ROWS), OUTER, inner, "pieces", !is_pass};
            }
    run_world(&world, ROWS, COLUMNS, 60, pieces_body);
    expect_all_well(&world);
}

static void test_moves(void **state) {
    (void)state;
    static const int kinds[] = {PRT_ALL_GATHER, PRT_REDUCE_SCATTER, PRT_ALL_TO_ALL};
    World world = {0};
    for (int axis = 0; axis < 2; axis++) {
        for (int i = 0; i < 6; i++) {
            int64_t inner = i < 3 ? SMALL : LARGE, whole = OUTER * inner * (axis ? COLUMNS : ROWS);
            moves[axis][i / 3][i % 3] = (PrtCollective){kinds[i % 3], axis, 0, 0, whole, OUTER, inner, "move", 0};
        }
    }
    run_world(&world, ROWS, COLUMNS, 60, moves_body);
    expect_all_well(&world);
}

/* ---- many in a row, with ranks that are late in turn: places that are used again too early give wrong values ---- */

enum { ROUNDS = 400, STRESSED = 5000 };
static const int64_t stressed[] = {1, 64, 65, 700, 1366, 2048, 2049, STRESSED};
enum { STRESSES = sizeof stressed / sizeof *stressed };
static PrtCollective stress[2][STRESSES];

static void describe_stress(void) {
    for (int axis = 0; axis < 2; axis++)
        for (int s = 0; s < STRESSES; s++)
            stress[axis][s] = (PrtCollective){PRT_ALL_REDUCE, axis, 0, 0, stressed[s], 1, stressed[s], "stress", 0};
}

/* Now and then, differently for each rank. */
static void dawdle(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    switch (*random >> 60) {
    case 0: nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL); break;
    case 1:
    case 2:
    case 3: sched_yield(); break;
    default: break;
    }
}

static void stress_body(Member *m) {
    static float memory[RANKS][2][STRESSED];
    uint64_t random = (uint64_t)m->rank.number + 1;
    for (int round = 0; round < ROUNDS; round++) {
        int axis = round % 3 == 1, s = round * 5 % 7 * (round % 3 + 1) % STRESSES;
        int ranks[RANKS], size = group_of(m, axis, ranks);
        float *x = memory[m->rank.number][round % 2], expected = 0;
        for (int j = 0; j < size; j++) expected += (float)(ranks[j] + round);
        for (int64_t i = 0; i < stressed[s]; i++) x[i] = (float)(m->rank.number + round);
        dawdle(&random);
        prt_collective(&m->rank, &stress[axis][s], x, x);
        dawdle(&random);
        for (int64_t i = 0; i < stressed[s]; i++) CHECK(x[i] == expected);
    }
}

static void test_many_in_a_row(void **state) {
    (void)state;
    World world = {0};
    describe_stress();
    run_world(&world, ROWS, COLUMNS, 60, stress_body);
    expect_all_well(&world);
}

/* ---- started and finished later: several at a time, on both axes, some meeting at once in between ---- */

enum { FLIGHTS = 6 };

static void flight_body(Member *m) {
    static float memory[RANKS][FLIGHTS][STRESSED];
    uint64_t random = (uint64_t)m->rank.number + 7;
    for (int round = 0; round < ROUNDS; round++) {
        int n = round % FLIGHTS + 1, axes[FLIGHTS], of[FLIGHTS];
        float expected[FLIGHTS];
        for (int f = 0; f < n; f++) {
            axes[f] = (round / 3 + f) % 2, of[f] = (round * 5 + f * 3) % STRESSES;
            int ranks[RANKS], size = group_of(m, axes[f], ranks);
            float *x = memory[m->rank.number][f];
            expected[f] = 0;
            for (int j = 0; j < size; j++) expected[f] += (float)(ranks[j] + round + f);
            for (int64_t i = 0; i < stressed[of[f]]; i++) x[i] = (float)(m->rank.number + round + f);
            dawdle(&random);
            if (f == 3)
                prt_collective(&m->rank, &stress[axes[f]][of[f]], x, x);
            else
                prt_collective_start(&m->rank, &stress[axes[f]][of[f]], x, x);
        }
        for (int axis = 0; axis < 2; axis++) {
            dawdle(&random);
            prt_collective_finish(&m->rank, axis);
            for (int f = 0; f < n; f++)
                for (int64_t i = 0; i < stressed[of[f]] && axes[f] == axis; i++)
                    CHECK(memory[m->rank.number][f][i] == expected[f]);
        }
    }
}

/* More than the ring holds. */
static void many_flights_body(Member *m) {
    static float memory[RANKS][3 * PRT_FLIGHTS];
    float *x = memory[m->rank.number];
    for (int f = 0; f < 3 * PRT_FLIGHTS; f++) x[f] = (float)f;
    for (int f = 0; f < 3 * PRT_FLIGHTS; f++) prt_collective_start(&m->rank, &stress[1][0], &x[f], &x[f]);
    prt_collective_finish(&m->rank, 1);
    for (int f = 0; f < 3 * PRT_FLIGHTS; f++) CHECK(x[f] == (float)(f * COLUMNS));
}

static void test_flights(void **state) {
    (void)state;
    World world = {0};
    describe_stress();
    run_world(&world, ROWS, COLUMNS, 60, flight_body);
    expect_all_well(&world);
    run_world(&world, ROWS, COLUMNS, 60, many_flights_body);
    expect_all_well(&world);
}

static void absent_body(Member *m) {
    static float memory[RANKS];
    if (m->rank.number == 1) return;
    prt_collective_start(&m->rank, &stress[1][0], &memory[m->rank.number], &memory[m->rank.number]);
    prt_collective_finish(&m->rank, 1);
}

static void test_flight_names_the_missing(void **state) {
    (void)state;
    World world = {0};
    describe_stress();
    run_world(&world, 1, 2, 0.2, absent_body);
    assert_int_equal(world.members[0].left, PRT_EXIT_FAILED);
    assert_non_null(strstr(world.job->message, "missing rank 1"));
    assert_non_null(strstr(world.job->message, "stress"));
    free(world.job);
}

/* Each rank of a row sends to the next, through channels of one to four messages. */
enum { WORDS = 300, DEPTHS = 4 };

static void channel_body(Member *m) {
    static int32_t sent[RANKS][DEPTHS][WORDS];
    int32_t taken[WORDS];
    int me = m->rank.coords[1], next = (me + 1) % COLUMNS, before = (me + COLUMNS - 1) % COLUMNS;
    uint64_t random = (uint64_t)m->rank.number + 99;
    for (int depth = 1; depth <= DEPTHS; depth++) {
        PrtHandover send = {PRT_SEND, 1, next, depth - 1, depth, 0, WORDS * 4, "send"}, room = send, drain = send,
                    receive = {PRT_RECEIVE, 1, before, depth - 1, 1, 0, WORDS * 4, "receive"};
        room.kind = drain.kind = PRT_WAIT;
        drain.depth = 1;
        for (int i = 0; i < ROUNDS; i++) {
            int32_t *mine = sent[m->rank.number][i % depth];
            prt_handover(&m->rank, &room, NULL);
            for (int k = 0; k < WORDS; k++) mine[k] = m->rank.number * 1000000 + i * 1000 + k;
            prt_handover(&m->rank, &send, mine);
            dawdle(&random);
            if (i + 1 < depth) continue; /* so many are on their way */
            prt_handover(&m->rank, &receive, taken);
            int from = m->rank.number - me + before, number = i + 1 - depth;
            for (int k = 0; k < WORDS; k++) CHECK(taken[k] == from * 1000000 + number * 1000 + k);
        }
        for (int i = 1; i < depth; i++) prt_handover(&m->rank, &receive, taken);
        prt_handover(&m->rank, &drain, NULL);
    }
}

static void test_channels(void **state) {
    (void)state;
    World world = {.n_channels = DEPTHS};
    run_world(&world, ROWS, COLUMNS, 60, channel_body);
    free(world.job->channels);
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
    World world = {0};
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
    World world = {0};
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
    World world = {0};
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
    World world = {0};
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
        cmocka_unit_test(test_machines),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_balanced),
        cmocka_unit_test(test_many_in_a_row),
        cmocka_unit_test(test_flights),
        cmocka_unit_test(test_flight_names_the_missing),
        cmocka_unit_test(test_channels),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_failure_frees_the_others),
        cmocka_unit_test(test_timeout_names_the_missing),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
