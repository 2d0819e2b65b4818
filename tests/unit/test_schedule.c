/* Schedules: every generator comes to its end under rendezvous for 1 to 16 stages and 1 to 64 micro-batches; bubbles and
 * live activations are those of the published formulas; hangs that others have had are found, with their cycle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "schedule/schedules.h"

static const ScheduleParts parts = {.begin = true};

static int least(int a, int b) { return a < b ? a : b; }

/* When each pass ends, if forward and backward passes take 1 and transfers nothing; the length of the whole. */
static int timeline(const Schedule *s) {
    int n = s->n_roles * s->n_chunks, *ends = calloc((size_t)(2 * n * s->n_micro + 1), sizeof *ends), *at = calloc((size_t)s->n_roles, sizeof *at);
    int *now = calloc((size_t)s->n_roles, sizeof *now), longest = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->n_roles; r++)
            while (at[r] < s->roles[r].actions.n) {
                const Action *a = &s->roles[r].actions.at[at[r]];
                if (a->kind == ACTION_F || a->kind == ACTION_B) {
                    bool back = a->kind == ACTION_B;
                    int chunk = a->chunk * s->n_roles + r, before = back ? chunk + 1 : chunk - 1, ready = 0;
                    if (back && chunk == n - 1) ready = ends[chunk * s->n_micro + a->micro];
                    else if (before >= 0) ready = ends[(back * n + before) * s->n_micro + a->micro];
                    if (!ready && (back || before >= 0)) break;
                    if (ready > now[r]) now[r] = ready;
                    ends[(back * n + chunk) * s->n_micro + a->micro] = ++now[r];
                }
                at[r]++;
                moved = true;
            }
    }
    for (int r = 0; r < s->n_roles; r++) {
        assert_int_equal(at[r], s->roles[r].actions.n);
        if (now[r] > longest) longest = now[r];
    }
    free(ends), free(at), free(now);
    return longest;
}

static void check(Session *s, Schedule *schedule) {
    bool good = schedule_verify(schedule, (Span){0});
    if (!good) diag_flush(s, stderr, false);
    assert_true(good);
}

static void test_progress(void **state) {
    (void)state;
    for (int stages = 1; stages <= 16; stages++) {
        Session *s = session_new();
        for (int micros = 1; micros <= 64; micros++) {
            check(s, schedule_gpipe(s, s->arena, stages, micros, parts));
            check(s, schedule_one_f_one_b(s, s->arena, stages, micros, parts));
            for (int chunks = 2; chunks <= 4 && micros % stages == 0; chunks++) check(s, schedule_interleaved(s, s->arena, stages, chunks, micros, parts));
        }
        session_free(s);
    }
}

/* The share of time that a stage is idle: (p - 1) / (m + p - 1); with v chunks (p - 1) / (v m + p - 1). */
static void test_bubbles(void **state) {
    (void)state;
    Session *s = session_new();
    for (int p = 1; p <= 16; p++)
        for (int m = 1; m <= 64; m++) {
            assert_int_equal(timeline(schedule_gpipe(s, s->arena, p, m, parts)), 2 * (m + p - 1));
            assert_int_equal(timeline(schedule_one_f_one_b(s, s->arena, p, m, parts)), 2 * (m + p - 1));
            if (m % p) continue;
            for (int v = 2; v <= 4 && p > 1; v++) assert_int_equal(timeline(schedule_interleaved(s, s->arena, p, v, m, parts)), 2 * (v * m + p - 1));
        }
    session_free(s);
}

static void test_live(void **state) {
    (void)state;
    Session *s = session_new();
    for (int p = 1; p <= 16; p++)
        for (int m = 1; m <= 64; m++) {
            Schedule *all = schedule_gpipe(s, s->arena, p, m, parts), *few = schedule_one_f_one_b(s, s->arena, p, m, parts);
            for (int i = 0; i < p; i++) {
                assert_int_equal(schedule_in_flight(all, i, 0), m);
                assert_int_equal(schedule_in_flight(few, i, 0), least(p - i, m));
            }
        }
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_progress), cmocka_unit_test(test_bubbles), cmocka_unit_test(test_live),
                                       cmocka_unit_test(test_hangs), cmocka_unit_test(test_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
