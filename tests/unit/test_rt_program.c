/* The program's description: JSON, what is read from it, what is refused; learning rates; options. */
#include "core/json.h"
#include "core/options.h"
#include "core/util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const PrtInner plan_inner;
const PrtInner plan_inner = {.tile_m = 1};

static void test_json(void **state) {
    (void)state;
    PrtJson *root = prt_json_parse(
        " {\"a\": [1, -2.5e3, true, false, null, \"x\\n\\u00e9\\ud83d\\ude00\\/\"], \"b\": {}, \"c\": []} ");
    assert_non_null(root);
    const PrtJson *a = prt_json_get(root, "a");
    assert_int_equal(prt_json_size(a), 6);
    assert_true(prt_json_at(a, 1)->number == -2500);
    assert_true(prt_json_at(a, 2)->truth);
    assert_true(prt_json_is(prt_json_at(a, 4), PRT_JSON_NULL));
    assert_string_equal(prt_json_text(prt_json_at(a, 5)), "x\n\xc3\xa9\xf0\x9f\x98\x80/");
    assert_int_equal(prt_json_size(prt_json_get(root, "b")), 0);
    assert_null(prt_json_get(root, "d"));
    assert_null(prt_json_get(a, "a"));
    prt_json_free(root);
    static const char *const bad[] = {
        "",    "{",        "[1,]",      "{\"a\"}",     "{\"a\":1,}",  "{a:1}",    "01",  "1.",  ".5",    "1e",  "+1",
        "nul", "\"\\x\"",  "\"\\u12\"", "\"\\ud800\"", "\"\\u0000\"", "\"a\nb\"", "\"a", "1 2", "[1 2]", "'a'", "-",
        "tru", "{\"a\":}", "]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        PrtJson *value = prt_json_parse(bad[i]);
        if (value) fail_msg("`%s` was read", bad[i]);
    }
    char deep[300];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    assert_null(prt_json_parse(deep));
}

static const char base[] = "{\"abi\": 1, \"compiler\": \"0\", \"source\": \"t.plan\", \"plan\": \"p\", \"model\": "
                           "\"M\", \"hash\": \"0\", \"mesh\": [{\"name\": \"data\", \"size\": 2}],"
                           "\"seed\": 3, \"steps\": 50, \"batch\": 8, \"micro_batch\": 4, \"micros\": 2, "
                           "\"data_axes\": [0], \"vocab\": 256, \"seq\": 8,"
                           "\"data\": [{\"kind\": \"text\", \"paths\": [\"a.txt\"]}],"
                           "\"inputs\": [{\"name\": \"x\", \"role\": \"tokens\", \"dtype\": \"i32\", \"shape\": [2, "
                           "8], \"offset\": 0, \"limit\": 256}],"
                           "\"results\": [{\"name\": \"loss\", \"dtype\": \"f32\", \"offset\": 0}], \"optimizer\": "
                           "{\"kind\": \"sgd\", \"lr\": 0.1},"
                           "\"roles\": [{\"arena_bytes\": 4096, \"tensors\": [{\"name\": \"w\", \"class\": \"weight\", "
                           "\"dtype\": \"f32\", \"shape\": [4, 6], \"axes\": [1], \"offset\": 64,"
                           "\"bytes\": 48}], \"entries\": {\"begin\": 4, \"F\": 2, \"update\": 3}, \"actions\": "
                           "[{\"kind\": \"F\", \"micro\": 0}, {\"kind\": \"F\", \"micro\": 1}, {\"kind\": \"OPT\"}]}]}";

/* `base` with one text replaced. */
static char *replaced(const char *from, const char *to) {
    const char *at = strstr(base, from);
    assert_non_null(at);
    char *text = malloc(strlen(base) + strlen(to) + 1);
    sprintf(text, "%.*s%s%s", (int)(at - base), base, to, at + strlen(from));
    return text;
}

static void test_program(void **state) {
    (void)state;
    char why[512];
    PrtProgram *p = prt_program_parse(base, NULL, why, sizeof why);
    if (!p) print_message("%s\n", why);
    assert_non_null(p);
    assert_int_equal(p->n_ranks, 2);
    assert_int_equal(p->tokens_per_step, 64);
    assert_int_equal(p->roles[0].begin, 4);
    assert_int_equal(p->roles[0].actions[2].entry, 3);
    assert_int_equal(p->roles[0].actions[2].micro, -1);
    assert_int_equal(p->roles[0].decode, -1);
    assert_int_equal(p->roles[0].tensors[0].axes[0], 1);
    assert_true(p->roles[0].tensors[0].saved);
    assert_true(p->rate.peak == 0.1);
    assert_null(p->save_path);
    prt_program_free(p);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *why;
    } cases[] = {
        {"\"abi\": 1", "\"abi\": 2", "version 2"},
        {"\"abi\": 1,", "", "`abi` is missing"},
        {"\"seed\": 3", "\"seed\": 3.5", "`seed` is not a whole number"},
        {"\"seed\": 3", "\"seed\": \"3\"", "`seed` is not a whole number"},
        {"\"size\": 2", "\"size\": 0", "`mesh[0].size` is 0"},
        {"\"data_axes\": [0]", "\"data_axes\": [1]", "`data_axes` is 1"},
        {"\"data_axes\": [0]", "\"data_axes\": [0, 0]", "more axes than the mesh"},
        {"\"micro_batch\": 4", "\"micro_batch\": 3", "not a multiple of the 2 ranks"},
        {"\"micros\": 2", "\"micros\": 3", "`batch` is not `micro_batch` times `micros`"},
        {"\"kind\": \"text\"", "\"kind\": \"parquet\"", "`data[0].kind` is none of"},
        {"[\"a.txt\"]", "[]", "names no file"},
        {"\"shape\": [2, 8]", "\"shape\": [4, 8]", "does not begin with 2"},
        {"\"shape\": [2, 8]", "\"shape\": [2, 9]", "is not [2, 8]"},
        {"\"role\": \"tokens\"", "\"role\": \"token\"", "`inputs[0].role` is none of"},
        {"\"dtype\": \"i32\"", "\"dtype\": \"i31\"", "`inputs[0].dtype`"},
        {"\"offset\": 0, \"limit\"", "\"offset\": 4090, \"limit\"", "outside of the arena"},
        {"\"name\": \"loss\"", "\"name\": \"lost\"", "no `loss`"},
        {"\"axes\": [1]", "\"axes\": [2]", "axes"},
        {"\"shape\": [4, 6]", "\"shape\": [4, 7]", "not cut in equal blocks"},
        {"\"bytes\": 48", "\"bytes\": 40", "less than its block, 48"},
        {"\"offset\": 64", "\"offset\": 4095", "outside of the arena"},
        {"\"F\": 2", "\"G\": 2", "action 0, `F`, has no entry"},
        {"\"micro\": 1}", "\"micro\": 2}", "`roles[0].micro` is 2"},
        {"\"optimizer\": {", "\"optimize\": {", "`optimizer` is missing"},
        {"\"roles\": [", "\"roles\": [{}, ", "2 roles"},
        {"{\"abi\"", "[\"abi\"", "not a JSON object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char why[512] = "", *text = replaced(cases[i].from, cases[i].to);
        PrtProgram *p = prt_program_parse(text, NULL, why, sizeof why);
        if (p || !strstr(why, cases[i].why)) fail_msg("case %zu: %s", i, p ? "was read" : why);
        free(text);
    }
}

/* A text that ends anywhere is refused, never read in part, and nothing is lost or read out of bounds. */
static void test_every_prefix(void **state) {
    (void)state;
    char text[sizeof base], why[512];
    for (size_t n = 0; n + 1 < sizeof base; n++) {
        memcpy(text, base, n);
        text[n] = 0;
        assert_null(prt_program_parse(text, NULL, why, sizeof why));
    }
}

static void test_rates(void **state) {
    (void)state;
    PrtRate cosine = {PRT_RATE_COSINE, 1.0, 0.1, 10, 110}, linear = cosine,
            constant = {PRT_RATE_CONSTANT, 2.0, 2.0, 4, 100}, plain = {.peak = 3};
    linear.kind = PRT_RATE_LINEAR;
    assert_true(fabs(prt_rate_at(&cosine, 1) - 0.1) < 1e-12);
    assert_true(fabs(prt_rate_at(&cosine, 10) - 1.0) < 1e-12);
    assert_true(fabs(prt_rate_at(&cosine, 60) - 0.55) < 1e-12);
    assert_true(fabs(prt_rate_at(&cosine, 110) - 0.1) < 1e-12);
    assert_true(fabs(prt_rate_at(&cosine, 500) - 0.1) < 1e-12);
    assert_true(fabs(prt_rate_at(&linear, 35) - 0.775) < 1e-12);
    assert_true(prt_rate_at(&constant, 2) == 1.0);
    assert_true(prt_rate_at(&constant, 4) == 2.0);
    assert_true(prt_rate_at(&constant, 1000) == 2.0);
    assert_true(prt_rate_at(&plain, 1) == 3);
}

static void test_for_people(void **state) {
    (void)state;
    char b[32];
    assert_string_equal(prt_commas(1234567, b), "1,234,567");
    assert_string_equal(prt_commas(-123, b), "-123");
    assert_string_equal(prt_commas(-1234, b), "-1,234");
    assert_string_equal(prt_bytes(1536, b), "1.50 KiB");
    assert_string_equal(prt_bytes(12e9, b), "11.2 GiB"); /* 2^30, not 10^9 */
    assert_string_equal(prt_duration(3723, b), "1h02m");
    assert_string_equal(prt_duration(63, b), "1m03s");
    static const char *const names[] = {"steps", "seed", "lr", NULL};
    assert_string_equal(prt_nearest("stepz", names), "steps");
    assert_null(prt_nearest("banana", names));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),         cmocka_unit_test(test_program), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_every_prefix), cmocka_unit_test(test_rates),   cmocka_unit_test(test_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
