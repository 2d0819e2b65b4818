/* Foundations: arena, names, maps, text, places in sources, nearest names, and the exact look of diagnostics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <cjson/cJSON.h>

#include "base/base.h"

static void test_arena(void **state) {
    (void)state;
    Arena *arena = arena_new();
    size_t sizes[] = {0, 1, 15, 16, 17, 5000, 100000, 3, 2000000, 8};
    unsigned char *blocks[10];
    for (int i = 0; i < 10; i++) {
        blocks[i] = arena_alloc(arena, sizes[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(blocks[i][k], 0);
        if (sizes[i]) memset(blocks[i], i + 1, sizes[i]);
    }
    for (int i = 0; i < 10; i++)
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(blocks[i][k], i + 1);
    assert_int_equal(arena_calls(arena), 10);
    assert_int_equal(arena_bytes(arena), 0 + 1 + 15 + 16 + 17 + 5000 + 100000 + 3 + 2000000 + 8);
    assert_string_equal(arena_printf(arena, "%s-%d", "a", 7), "a-7");
    assert_string_equal(arena_strndup(arena, "abcdef", 3), "abc");
    arena_free(arena);
}

static void test_vec_and_text(void **state) {
    (void)state;
    Arena *arena = arena_new();
    VEC(int) numbers = {0};
    for (int i = 0; i < 1000; i++) vec_push(arena, &numbers, i * 3);
    assert_int_equal(numbers.n, 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(numbers.at[i], i * 3);
    assert_int_equal(vec_last(&numbers), 2997);
    Text text = {.arena = arena};
    for (int i = 0; i < 500; i++) text_printf(&text, "%d,", i);
    text_puts(&text, "end");
    assert_int_equal(text.n, 10 * 2 + 90 * 3 + 400 * 4 + 3);
    assert_int_equal(strlen(text.at), text.n);
    assert_string_equal(text.at + text.n - 7, "499,end");
    arena_free(arena);
}

static void test_names_and_maps(void **state) {
    (void)state;
    Arena *arena = arena_new();
    Interner *interner = interner_new(arena);
    Name head = intern(interner, "head");
    assert_ptr_equal(head, intern_n(interner, "heads", 4));
    assert_ptr_not_equal(head, intern(interner, "heads"));
    Map map = {0};
    assert_null(map_get(&map, head));
    Name names[2000];
    for (int i = 0; i < 2000; i++) {
        names[i] = intern(interner, arena_printf(arena, "name%d", i));
        map_put(arena, &map, names[i], &names[i]);
    }
    for (int i = 0; i < 2000; i++) {
        assert_ptr_equal(names[i], intern(interner, arena_printf(arena, "name%d", i)));
        assert_ptr_equal(map_get(&map, names[i]), &names[i]);
        assert_ptr_equal(map.entries[i].key, names[i]);
    }
    map_put(arena, &map, names[7], &map);
    assert_ptr_equal(map_get(&map, names[7]), &map);
    assert_int_equal(map.n, 2000);
    assert_null(map_get(&map, head));
    arena_free(arena);
}

static void test_nearest(void **state) {
    (void)state;
    const Name names[] = {"head", "kv_head", "layers", "vocab", "x"};
    assert_string_equal(nearest_name("heads", names, 5), "head");
    assert_string_equal(nearest_name("haed", names, 5), "head");
    assert_string_equal(nearest_name("layres", names, 5), "layers");
    assert_string_equal(nearest_name("laysrs", names, 5), "layers");
    assert_null(nearest_name("hxxd", names, 5));
    assert_null(nearest_name("embed", names, 5));
    assert_null(nearest_name("y", names, 5));
}

static void test_places(void **state) {
    (void)state;
    Session *s = session_new();
    const char *text = "ab\n\xc3\xa9\t\xe2\x82\xac"
                       "c\xff"
                       "d\n";
    int32_t file = session_add_text(s, "x.plan", text, strlen(text));
    assert_int_equal(file, 1);
    struct {
        int32_t at;
        int line, column;
    } cases[] = {{0, 1, 1}, {2, 1, 3},  {3, 2, 1},  {5, 2, 2},  {6, 2, 3},
                 {9, 2, 4}, {10, 2, 5}, {11, 2, 6}, {13, 3, 1}, {99, 3, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Place place = session_place(s, (Span){file, cases[i].at, cases[i].at});
        assert_int_equal(place.line, cases[i].line);
        assert_int_equal(place.column, cases[i].column);
    }
    assert_string_equal(session_where(s, (Span){file, 5, 6}), "x.plan:2");
    assert_string_equal(session_where(s, (Span){0, 0, 0}), "(compiler)");
    assert_null(session_file(s, (Span){0, 0, 0}));
    const char *why = NULL;
    assert_int_equal(session_read_file(s, "/nowhere/at/all.plan", false, &why), 0);
    assert_string_equal(why, "No such file or directory");
    assert_int_equal(session_read_file(s, "/", false, &why), 0);
    assert_string_equal(why, "it is a folder");
    session_free(s);
}

static char *flushed(Session *s, bool json) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (json)
        diag_flush_json(s, out);
    else
        diag_flush(s, out, false);
    fclose(out);
    return text;
}

static Span find(const char *text, int32_t file, const char *what) {
    int32_t lo = (int32_t)(strstr(text, what) - text);
    return (Span){file, lo, lo + (int32_t)strlen(what)};
}

static void assert_flushed(Session *s, const char *expected) {
    char *text = flushed(s, false);
    assert_string_equal(text, expected);
    free(text);
}

static void test_render(void **state) {
    (void)state;
    Session *s = session_new();
    const char *text = "plan big on pod {\n\n\n\n\n\n\n    mesh data = 2, pipe = 2, tensor = 4\n\n\n    head, ffn, "
                       "vocab, seq on tensor\n}\n";
    int32_t file = session_add_text(s, "gpt2-xl.plan", text, strlen(text));
    Diag *d = diag_error(s, "P0301", find(text, file, "head"), "`head` (25) does not divide over axis `tensor` (4)");
    diag_label(d, "each rank would get %.2f heads", 6.25);
    diag_note(d, find(text, file, "tensor = 4"), "axis declared here");
    diag_note(d, (Span){0, 0, 0}, "a rank is one process");
    diag_help(d, "use tensor = 1, 5 or 25; tensor = 5 also needs vocab padded to 50260: `vocab padded`");
    assert_int_equal(diag_count(s, SEV_ERROR), 1);
    assert_flushed(s, "error[P0301]: `head` (25) does not divide over axis `tensor` (4)\n"
                      "  --> gpt2-xl.plan:11:5\n"
                      "   |\n"
                      "11 |     head, ffn, vocab, seq on tensor\n"
                      "   |     ^^^^ each rank would get 6.25 heads\n"
                      "note: axis declared here\n"
                      "  --> gpt2-xl.plan:8:30\n"
                      "   |\n"
                      " 8 |     mesh data = 2, pipe = 2, tensor = 4\n"
                      "   |                              ^^^^^^^^^^\n"
                      "note: a rank is one process\n"
                      "help: use tensor = 1, 5 or 25; tensor = 5 also needs vocab padded to 50260: `vocab padded`\n");
    assert_flushed(s, "");
    assert_int_equal(diag_count(s, SEV_ERROR), 1);
    session_free(s);
}

static void test_render_odd_lines(void **state) {
    (void)state;
    Session *s = session_new();
    const char *text = "\tw\xc3\xa4hle \xe4\xb8\xad\xe6\x96\x87 \x01x\n\n";
    int32_t file = session_add_text(s, "odd.plan", text, strlen(text));
    diag_warning(s, "P0002", find(text, file, "x"), "after wide characters");
    diag_perf(s, "P0003", (Span){file, 1, (int32_t)strlen(text)}, "several lines");
    diag_note_alone(s, "P0004", (Span){file, (int32_t)strlen(text), (int32_t)strlen(text)}, "at the end");
    diag_error(s, "P0005", (Span){0, 0, 0}, "nowhere");
    assert_flushed(s, "performance[P0003]: several lines\n"
                      " --> odd.plan:1:2\n"
                      "  |\n"
                      "1 |     w\xc3\xa4hle \xe4\xb8\xad\xe6\x96\x87 \xef\xbf\xbdx\n"
                      "  |     ^^^^^^^^^^^^^\n"
                      "\n"
                      "warning[P0002]: after wide characters\n"
                      " --> odd.plan:1:12\n"
                      "  |\n"
                      "1 |     w\xc3\xa4hle \xe4\xb8\xad\xe6\x96\x87 \xef\xbf\xbdx\n"
                      "  |                 ^\n"
                      "\n"
                      "note[P0004]: at the end\n"
                      " --> odd.plan:3:1\n"
                      "  |\n"
                      "3 |\n"
                      "  | ^\n"
                      "\n"
                      "error[P0005]: nowhere\n");
    session_free(s);
}

static void test_order_limit_and_doubles(void **state) {
    (void)state;
    Session *s = session_new();
    const char *text = "abcdefghijklmnopqrstuvwxyz";
    int32_t file = session_add_text(s, "x.plan", text, 26);
    for (int32_t i = 25; i >= 0; i--)
        for (int twice = 0; twice < 2; twice++) {
            Diag *d = diag_error(s, "P0101", (Span){file, i, i + 1}, "at %c", text[i]);
            diag_label(d, "here");
        }
    diag_error(s, "P0102", (Span){file, 0, 1}, "another code at the same place");
    assert_int_equal(diag_count(s, SEV_ERROR), 27);
    char *out = flushed(s, false);
    assert_ptr_equal(strstr(out, "error[P0101]: at a\n --> x.plan:1:1\n"), out);
    assert_non_null(strstr(out, "error[P0102]: another"));
    assert_non_null(strstr(out, "at s"));
    assert_null(strstr(out, "]: at t"));
    assert_string_equal(out + strlen(out) - 18, "\nand 7 more errors\n" + 1);
    free(out);
    session_free(s);
}

static void test_json(void **state) {
    (void)state;
    Session *s = session_new();
    const char *text = "a\n  \xc3\xa9\xff heads on tensor\n";
    int32_t file = session_add_text(s, "x.plan", text, strlen(text));
    Diag *d = diag_error(s, "P0412", find(text, file, "heads"), "no dimension `heads`");
    diag_label(d, "here");
    diag_help(d, "did you mean `head`?");
    diag_fix(d, find(text, file, "heads"), "head");
    char *line = flushed(s, true);
    assert_int_equal(line[strlen(line) - 1], '\n');
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    cJSON *object = cJSON_Parse(line);
    assert_non_null(object);
    assert_string_equal(cJSON_GetObjectItem(object, "$message_type")->valuestring, "diagnostic");
    assert_string_equal(cJSON_GetObjectItem(object, "message")->valuestring, "no dimension `heads`");
    assert_string_equal(cJSON_GetObjectItem(object, "level")->valuestring, "error");
    assert_string_equal(cJSON_GetObjectItem(cJSON_GetObjectItem(object, "code"), "code")->valuestring, "P0412");
    cJSON *span = cJSON_GetArrayItem(cJSON_GetObjectItem(object, "spans"), 0);
    assert_string_equal(cJSON_GetObjectItem(span, "file_name")->valuestring, "x.plan");
    const struct {
        const char *key;
        int value;
    } numbers[] = {{"byte_start", 8}, {"byte_end", 13},    {"line_start", 2},
                   {"line_end", 2},   {"column_start", 6}, {"column_end", 11}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_int_equal(cJSON_GetObjectItem(span, numbers[i].key)->valueint, numbers[i].value);
    assert_string_equal(cJSON_GetObjectItem(span, "label")->valuestring, "here");
    cJSON *shown = cJSON_GetArrayItem(cJSON_GetObjectItem(span, "text"), 0);
    assert_string_equal(cJSON_GetObjectItem(shown, "text")->valuestring, "  \xc3\xa9\xef\xbf\xbd heads on tensor");
    assert_int_equal(cJSON_GetObjectItem(shown, "highlight_start")->valueint, 6);
    assert_int_equal(cJSON_GetObjectItem(shown, "highlight_end")->valueint, 11);
    cJSON *children = cJSON_GetObjectItem(object, "children");
    assert_int_equal(cJSON_GetArraySize(children), 2);
    cJSON *fix = cJSON_GetArrayItem(cJSON_GetObjectItem(cJSON_GetArrayItem(children, 1), "spans"), 0);
    assert_string_equal(cJSON_GetObjectItem(fix, "suggested_replacement")->valuestring, "head");
    assert_non_null(strstr(cJSON_GetObjectItem(object, "rendered")->valuestring, "--> x.plan:2:6"));
    cJSON_Delete(object);
    free(line);
    session_free(s);
}

static void test_bytes(void **state) {
    (void)state;
    Arena *arena = arena_new();
    const struct {
        double bytes;
        const char *text;
    } cases[] = {{0, "0 bytes"},        {1, "1 byte"},        {1023, "1023 bytes"},        {1024, "1.0 KiB"},
                 {1536, "1.5 KiB"},     {1048575, "1.0 MiB"}, {13421772800.0, "12.5 GiB"}, {-2048, "-2.0 KiB"},
                 {1.5e18, "1332.3 PiB"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(format_bytes(arena, cases[i].bytes), cases[i].text);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_vec_and_text),
        cmocka_unit_test(test_names_and_maps),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_render),
        cmocka_unit_test(test_render_odd_lines),
        cmocka_unit_test(test_order_limit_and_doubles),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
