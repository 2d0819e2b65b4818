/* Schedules: every generator comes to its end under rendezvous for 1 to 16 stages and 1 to 64 micro-batches; bubbles and
 * live activations are those of the published formulas; hangs that others have had are found, with their cycle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "schedule/schedules.h"
#include "schedule/timeline.h"

static const ScheduleParts parts = {.begin = true};

static int least(int a, int b) { return a < b ? a : b; }

static int cost_of(PassTimes costs, ActionKind kind) {
    return kind == ACTION_F ? costs.f : kind == ACTION_B ? costs.b : kind == ACTION_BI ? costs.bi : kind == ACTION_BW ? costs.bw : 0;
}

/* The length of a step if transfers take no time: each pass begins when its stage and what it needs are ready. */
static int timeline(const Schedule *s, PassTimes costs) {
    int n = s->n_roles * s->n_chunks, *ends = calloc((size_t)(2 * n * s->n_micro + 1), sizeof *ends), *at = calloc((size_t)s->n_roles, sizeof *at);
    int *now = calloc((size_t)s->n_roles, sizeof *now), longest = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->n_roles; r++)
            while (at[r] < s->roles[r].actions.n) {
                const Action *a = &s->roles[r].actions.at[at[r]];
                bool forward = a->kind == ACTION_F, back = a->kind == ACTION_B || a->kind == ACTION_BI;
                if (forward || back) {
                    int chunk = a->chunk * s->n_roles + r, before = back ? chunk + 1 : chunk - 1, ready = 0;
                    if (back && chunk == n - 1) ready = ends[chunk * s->n_micro + a->micro];
                    else if (before >= 0) ready = ends[(back * n + before) * s->n_micro + a->micro];
                    if (!ready && (back || before >= 0)) break;
                    if (ready > now[r]) now[r] = ready;
                }
                now[r] += cost_of(costs, a->kind);
                if (forward || back) ends[(back * n + a->chunk * s->n_roles + r) * s->n_micro + a->micro] = now[r];
                at[r]++;
                moved = true;
            }
    }
    for (int r = 0; r < s->n_roles; r++) {
        assert_int_equal(at[r], s->roles[r].actions.n);
        if (now[r] > longest) longest = now[r];
    }
    free(ends), free(at), free(now);
    assert_int_equal(schedule_timeline(s, costs).length, longest); /* that of `plc explain` */
    return longest;
}

/* Chunks' activations that a stage holds at most, over all its chunks. */
static int most_live(const Schedule *s, int role) {
    int now = 0, most = 0;
    for (int i = 0; i < s->roles[role].actions.n; i++) {
        ActionKind kind = s->roles[role].actions.at[i].kind;
        now += (kind == ACTION_F) - (kind == ACTION_B || kind == ACTION_BW);
        if (now > most) most = now;
    }
    return most;
}

static void check(Session *s, Schedule *schedule) {
    bool good = schedule_verify(schedule, (Span){0});
    if (!good) diag_flush(s, stderr, false);
    assert_true(good);
}

/* As a model with a value that all later chunks need, gradients back, and a weight that the first and the last stage
 * share has them. */
static Schedule *with_skips(Schedule *s) {
    int n = s->n_roles * s->n_chunks, last = s->n_roles - 1;
    for (int k = 2; k < n; k++) {
        if (k % s->n_roles == 0) continue; /* on the first stage itself */
        vec_push(s->arena, &s->channels, (ScheduleChannel){.from = 0, .to = 2 * k, .depth = schedule_copies(s, 0, 0, PHASE_F, PHASE_B)});
        vec_push(s->arena, &s->channels, (ScheduleChannel){.from = 2 * k + 1, .to = 1, .depth = schedule_copies(s, 0, 0, PHASE_F, PHASE_B)});
    }
    vec_push(s->arena, &s->once, (OnceTransfer){.from = last, .to = 0});
    vec_push(s->arena, &s->once, (OnceTransfer){.from = 0, .to = last, .after_update = true});
    return s;
}

static void test_progress(void **state) {
    (void)state;
    for (int stages = 1; stages <= 16; stages++) {
        for (int micros = 1; micros <= 64; micros++) {
            Session *s = session_new();
            check(s, schedule_gpipe(s, s->arena, stages, micros, parts));
            check(s, with_skips(schedule_gpipe(s, s->arena, stages, micros, parts)));
            check(s, with_skips(schedule_one_f_one_b(s, s->arena, stages, micros, parts)));
            check(s, with_skips(schedule_zero_bubble(s, s->arena, stages, micros, parts)));
            for (int chunks = 2; chunks <= 4 && micros % stages == 0; chunks++) check(s, with_skips(schedule_interleaved(s, s->arena, stages, chunks, micros, parts)));
            session_free(s);
        }
    }
}

/* The share of time that a stage is idle: (p - 1) / (m + p - 1); with v chunks (p - 1) / (v m + p - 1). A backward pass
 * of twice the time changes nothing of that: all of F + B scales. ZB-H1: (p - 1)(F + BI - BW), with at least p
 * micro-batches. */
static void test_bubbles(void **state) {
    (void)state;
    static const PassTimes costs[] = {{1, 1, 0, 0}, {1, 2, 1, 1}, {2, 5, 3, 2}, {3, 6, 4, 2}};
    for (int p = 1; p <= 16; p++) {
        Session *s = session_new();
        for (int m = 1; m <= 64; m++)
            for (size_t k = 0; k < sizeof costs / sizeof *costs; k++) {
                PassTimes c = costs[k];
                int both = c.f + c.b;
                assert_int_equal(timeline(schedule_gpipe(s, s->arena, p, m, parts), c), both * (m + p - 1));
                assert_int_equal(timeline(schedule_one_f_one_b(s, s->arena, p, m, parts), c), both * (m + p - 1));
                if (c.bi && m >= p)
                    assert_int_equal(timeline(schedule_zero_bubble(s, s->arena, p, m, parts), c), m * (c.f + c.bi + c.bw) + (p - 1) * (c.f + c.bi - c.bw));
                for (int v = 2; v <= 4 && p > 1 && m % p == 0; v++)
                    assert_int_equal(timeline(schedule_interleaved(s, s->arena, p, v, m, parts), c), both * (v * m + p - 1));
            }
        session_free(s);
    }
}

/* Micro-batches that a stage holds: all (GPipe), p - i (1F1B). Interleaved with v chunks: 2(p - i - 1) + (v - 1)p + 1
 * chunks, at the first stage v p (1 + (p - 1)/(p v)). ZB-H1: p - i to BI as in 1F1B, and p at most to BW on every stage:
 * the peak of 1F1B. */
static void test_live(void **state) {
    (void)state;
    Session *s = session_new();
    for (int p = 1; p <= 16; p++)
        for (int m = 1; m <= 64; m++) {
            Schedule *all = schedule_gpipe(s, s->arena, p, m, parts), *few = schedule_one_f_one_b(s, s->arena, p, m, parts);
            Schedule *zero = schedule_zero_bubble(s, s->arena, p, m, parts);
            for (int i = 0; i < p; i++) {
                assert_int_equal(schedule_in_flight(all, i, 0), m);
                assert_int_equal(schedule_in_flight(few, i, 0), least(p - i, m));
                assert_int_equal(schedule_copies(few, i, 0, PHASE_F, PHASE_B), least(p - i, m));
                assert_int_equal(schedule_in_flight(zero, i, 0), least(p, m));
                assert_int_equal(schedule_copies(zero, i, 0, PHASE_F, PHASE_B), least(p - i, m));
                assert_int_equal(schedule_copies(zero, i, 0, PHASE_B, PHASE_W), least(i + 1, m));
            }
            for (int v = 2; v <= 4 && p > 1 && m % p == 0; v++) {
                Schedule *chunked = schedule_interleaved(s, s->arena, p, v, m, parts);
                for (int i = 0; i < p; i++) assert_int_equal(most_live(chunked, i), least(2 * (p - i - 1) + (v - 1) * p + 1, v * m));
            }
        }
    session_free(s);
}

/* Copies follow the order of the table: micro-batches 0 and 2 together need two places that differ. */
static void test_copies(void **state) {
    (void)state;
    const char *text = "schedule mine roles 1 chunks 1 micros 4\nrole 0: 0F0 0F1 0B1 0F2 0B0 0B2 0F3 0B3 OPT\n";
    Session *s = session_new();
    Schedule *schedule = schedule_parse(s, session_add_text(s, "schedule", text, strlen(text)));
    assert_non_null(schedule);
    assert_int_equal(schedule_in_flight(schedule, 0, 0), 2);
    assert_int_equal(schedule_copies(schedule, 0, 0, PHASE_F, PHASE_B), 3);
    session_free(s);
}

/* Parses; the first error's code and whether it names the text. */
static void expect_hang(const char *text, const char *cycle) {
    Session *s = session_new();
    assert_null(schedule_parse(s, session_add_text(s, "schedule", text, strlen(text))));
    assert_int_equal(diag_count(s, SEV_ERROR), 1);
    char *shown = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&shown, &n);
    diag_flush(s, out, false);
    fclose(out);
    if (!strstr(shown, "P0707") || !strstr(shown, cycle)) fail_msg("%s", shown);
    free(shown);
    session_free(s);
}

static void test_hangs(void **state) {
    (void)state;
    /* pytorch #172668: sends that wait for their receive. */
    expect_hang("schedule mine roles 2 chunks 1 micros 2\n"
                "role 0: 0F0 0SEND_F0! 0F1 0SEND_F1! 0RECV_B0 0B0 0RECV_B1 0B1 OPT\n"
                "role 1: 0RECV_F0 0F0 0B0 0SEND_B0! 0RECV_F1 0F1 0B1 0SEND_B1! OPT\n",
                "role 0 waits in `0SEND_F1!` for role 1, role 1 waits in `0SEND_B0!` for role 0");
    /* Megatron-LM #5100: with shapes sent first, each stage of four or more sends on before it receives. */
    expect_hang("schedule mine roles 4 chunks 1 micros 2\n"
                "role 0: 0F0 0SEND_F0! 0F1 0SEND_F1! 0RECV_B0 0B0 0RECV_B1 0B1 OPT\n"
                "role 1: 0RECV_F0 0F0 0SEND_F0! 0RECV_B0 0B0 0SEND_B0! 0RECV_F1 0F1 0SEND_F1! 0RECV_B1 0B1 0SEND_B1! OPT\n"
                "role 2: 0RECV_F0 0F0 0SEND_F0! 0RECV_B0 0B0 0SEND_B0! 0RECV_F1 0F1 0SEND_F1! 0RECV_B1 0B1 0SEND_B1! OPT\n"
                "role 3: 0RECV_F0 0F0 0B0 0SEND_B0! 0RECV_F1 0F1 0B1 0SEND_B1! OPT\n",
                "role 0 waits in `0SEND_F1!` for role 1, role 1 waits in `0SEND_B0!` for role 0");
    /* A receive that nobody sends. */
    expect_hang("schedule mine roles 2 chunks 1 micros 1\nrole 0: 0F0 0RECV_B0 0B0 OPT\nrole 1: 0RECV_F0 0F0 0B0 0SEND_B0 OPT\n", "role 1 waits in `0RECV_F0` for role 0");
}

/* The same without waiting sends comes to its end; a printed table is read as it was. */
static void test_text(void **state) {
    (void)state;
    Session *s = session_new();
    const char *good = "schedule mine roles 2 chunks 1 micros 2\n"
                       "role 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 OPT\n"
                       "role 1: 0RECV_F0 0F0 0B0 0SEND_B0 0RECV_F1 0F1 0B1 0SEND_B1 OPT\n";
    assert_non_null(schedule_parse(s, session_add_text(s, "schedule", good, strlen(good))));
    Text first = {.arena = s->arena}, again = {.arena = s->arena};
    schedule_print(schedule_interleaved(s, s->arena, 4, 2, 8, parts), &first);
    Schedule *read = schedule_parse(s, session_add_text(s, "printed", first.at, strlen(first.at)));
    if (!read) diag_flush(s, stderr, false);
    assert_non_null(read);
    schedule_print(read, &again);
    assert_string_equal(first.at, again.at);
    session_free(s);
}

/* Tables of PyTorch's pipelining: what is printed is read as it was, with either letters, and idle cells. */
static void test_torch(void **state) {
    (void)state;
    Session *s = session_new();
    Text table = {.arena = s->arena}, want = {.arena = s->arena}, got = {.arena = s->arena};
    Schedule *zero = schedule_zero_bubble(s, s->arena, 4, 8, parts);
    schedule_print_torch(zero, &table);
    assert_non_null(strstr(table.at, "3F0,3I0,3F1,3I1,3F2,3I2,3F3,3I3,3W0,"));
    Schedule *read = schedule_read(s, session_add_text(s, "zero.csv", table.at, strlen(table.at)));
    assert_non_null(read);
    schedule_complete(read, parts);
    read->name = zero->name;
    schedule_print(zero, &want);
    schedule_print(read, &got);
    assert_string_equal(got.at, want.at);
    /* as of an older version: B and W; the second micro-batch whole; data movement that the plan decides */
    const char *old = "0UNSHARD,0F0,0F1,,0B0,0W0,,0B1,0RESHARD\r\n1F0,1B0,1F1,1B1,1W0\r\n";
    read = schedule_read(s, session_add_text(s, "old.csv", old, strlen(old)));
    assert_non_null(read);
    schedule_complete(read, (ScheduleParts){0});
    got.n = 0;
    schedule_print(read, &got);
    assert_string_equal(got.at, "schedule table roles 2 chunks 1 micros 2\n"
                                "role 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BI0 0BW0 0RECV_B1 0BI1 0BW1 OPT\n"
                                "role 1: 0RECV_F0 0F0 0BI0 0SEND_B0 0RECV_F1 0F1 0BI1 0SEND_B1 0BW1 0BW0 OPT\n");
    check(s, read);
    session_free(s);
}

static void test_picture(void **state) {
    (void)state;
    Session *s = session_new();
    Text text = {.arena = s->arena};
    schedule_draw(schedule_one_f_one_b(s, s->arena, 2, 2, parts), &text);
    schedule_draw(schedule_zero_bubble(s, s->arena, 3, 3, parts), &text);
    assert_string_equal(text.at, "schedule one_f_one_b: 2 stages, 2 micro-batches; a backward pass taken as two forward passes\n"
                                 "    stage 0   F0 F1 .. .. B0 -- .. B1 --\n"
                                 "    stage 1   .. F0 B0 -- F1 B1 -- .. ..\n"
                                 "    idle: 33.3 % of the step\n"
                                 "schedule zero_bubble: 3 stages, 3 micro-batches; a backward pass taken as two forward passes, its halves I and W as one each\n"
                                 "    stage 0   F0 F1 F2 .. .. I0 W0 I1 W1 I2 W2\n"
                                 "    stage 1   .. F0 F1 .. I0 F2 I1 W0 I2 W1 W2\n"
                                 "    stage 2   .. .. F0 I0 F1 I1 F2 I2 W0 W1 W2\n"
                                 "    idle: 18.2 % of the step\n");
    session_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_progress), cmocka_unit_test(test_bubbles), cmocka_unit_test(test_live), cmocka_unit_test(test_copies),
                                       cmocka_unit_test(test_hangs), cmocka_unit_test(test_text), cmocka_unit_test(test_torch), cmocka_unit_test(test_picture)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
