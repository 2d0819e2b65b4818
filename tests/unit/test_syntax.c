/* Lexer, parser and formatter: golden trees, exact messages, and mutations of whole programs.
 *
 * The programs are tests/golden/syntax/NAME.plan, in canonical form; NAME.ast beside one is its tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/diag_list.h"
#include "plan_parser.h"
#include "syntax/parse.h"

static const char *const programs[] = {"gpt2", "attention", "forms", "everything"};
enum { N_PROGRAMS = sizeof programs / sizeof *programs };

static const char *golden(Session *s, const char *name, const char *suffix) {
    const char *why = NULL;
    const char *path = arena_printf(s->arena, "%s/tests/golden/syntax/%s.%s", PLAN_SOURCE_DIR, name, suffix);
    int32_t file = session_read_file(s, path, false, &why);
    return file ? session_file(s, (Span){file, 0, 0})->text : NULL;
}

static char *messages(Session *s) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    diag_flush(s, out, false);
    fclose(out);
    return text;
}

static const char *format(Session *s, const char *text) {
    return ast_print(s, session_add_text(s, "t.plan", text, strlen(text)));
}

static void test_trees(void **state) {
    (void)state;
    int compared = 0;
    for (int i = 0; i < N_PROGRAMS; i++) {
        Session *s = session_new();
        const char *text = golden(s, programs[i], "plan"), *expected = golden(s, programs[i], "ast");
        assert_non_null(text);
        Ast *ast = text_to_ast(s, session_add_text(s, "t.plan", text, strlen(text)));
        char *problems = messages(s);
        assert_string_equal(problems, "");
        free(problems);
        Text dump = {.arena = s->arena};
        ast_dump(ast, &dump);
        if (expected) {
            assert_string_equal(dump.at, expected);
            compared++;
        }
        session_free(s);
    }
    assert_int_equal(compared, 2);
}

/* ---- messages ---- */

static const struct {
    const char *text, *expected;
} mistakes[] = {
    {"model A {\n    x = f(a b)\n}\n", "error[P0001]: unexpected `b`, expected `,` or `)`\n --> t.plan:2:13\n  |\n2 |  "
                                       "   x = f(a b)\n  |             ^\n"},
    {"model A {\n    x = (a\n    y = 2\n}\n",
     "error[P0005]: `(` is never closed\n --> t.plan:2:11\n  |\n2 |     x = (a\n  |           ^ expected `)`\n"
     "note: opened here\n --> t.plan:2:9\n  |\n2 |     x = (a\n  |         ^\n"},
    {"model A {\n    repeat layers {\n        x = 1\n}\n\ntrain {\n    batch 1\n}\n",
     "error[P0006]: `train` stands here, where a block is still open: a `}` is missing before it\n --> t.plan:6:1\n  "
     "|\n6 | train {\n  | ^^^^^\n"
     "note: the block was opened here\n --> t.plan:2:19\n  |\n2 |     repeat layers {\n  |                   ^\n"},
    {"train {\n    batch 1\n", "error[P0006]: the file ends, where a block is still open: a `}` is missing before it\n "
                               "--> t.plan:3:1\n  |\n3 |\n  | ^\n"
                               "note: the block was opened here\n --> t.plan:1:7\n  |\n1 | train {\n  |       ^\n"},
    {"train\n    batch 1\n}\n", "error[P0006]: the block of this statement has no opening brace\n --> t.plan:1:6\n  "
                                "|\n1 | train\n  |      ^ expected `{`\n"},
    {"train {\n    data text(\"a.txt)\n    batch 1\n}\n",
     "error[P0003]: the text has no closing quote\n --> t.plan:2:15\n  |\n2 |     data text(\"a.txt)\n  |              "
     " ^^^^^^^\n"
     "help: a text ends with `\"` on its own line\n"},
    {"modle A {\n    dim a = 1\n}\n", "error[P0007]: unknown statement `modle`\n --> t.plan:1:1\n  |\n1 | modle A {\n  "
                                      "| ^^^^^\nhelp: did you mean `model`?\n"},
    {"model A {\n    wieght w: [a] = 1\n}\n", "error[P0007]: unknown statement `wieght`\n --> t.plan:2:5\n  |\n2 |     "
                                              "wieght w: [a] = 1\n  |     ^^^^^^\nhelp: did you mean `weight`?\n"},
    {"model A {\n    mesh data = 2\n}\n", "error[P0008]: `mesh` cannot stand in this block\n --> t.plan:2:5\n  |\n2 |  "
                                          "   mesh data = 2\n  |     ^^^^\nhelp: it belongs in a plan\n"},
    {"gpu A {\n    memory 80 GX\n    clock 1. GHz\n    tdp 80GX\n}\n",
     "error[P0004]: a number needs digits on both sides of its point\n --> t.plan:3:11\n  |\n3 |     clock 1. GHz\n  | "
     "          ^^\nhelp: write `1.0`\n\n"
     "error[P0004]: `GX` is not a unit\n --> t.plan:4:11\n  |\n4 |     tdp 80GX\n  |           ^^\nhelp: did you mean "
     "`GB`?\n"},
    {"model A {\n    x = a\n        + b\n}\n",
     "error[P0001]: unexpected `+`\n --> t.plan:3:9\n  |\n3 |         + b\n  |         ^\n"
     "help: the end of the line ended the statement: put `+` at the end of the line before\n"},
    {"model A {\n    f(x)\n}\n", "error[P0008]: the result of this call is not used\n --> t.plan:2:5\n  |\n2 |     "
                                 "f(x)\n  |     ^^^^\nhelp: give it a name: `y = ...`\n"},
    {"model A {\n    x\n    weight w = [a]\n}\n",
     "error[P0001]: unexpected end of the line, expected `=` or `on`\n --> t.plan:2:6\n  |\n2 |     x\n  |      ^\n\n"
     "error[P0001]: unexpected `=`, expected `:`\n --> t.plan:3:14\n  |\n3 |     weight w = [a]\n  |              ^\n"
     "help: the type comes first: `weight w: [in, out] = normal(0.02)`\n"},
    {"plan a {\n    on = 3\n    x; y\n}\n", "error[P0001]: unexpected `on`\n --> t.plan:2:5\n  |\n2 |     on = 3\n  |  "
                                            "   ^^\nhelp: `on` is a reserved word: choose another name\n\n"
                                            "error[P0002]: unexpected character `;`\n --> t.plan:3:6\n  |\n3 |     x; "
                                            "y\n  |      ^\nhelp: the end of the line ends a statement\n"},
};

static void test_messages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        Session *s = session_new();
        text_to_ast(s, session_add_text(s, "t.plan", mistakes[i].text, strlen(mistakes[i].text)));
        char *text = messages(s);
        assert_string_equal(text, mistakes[i].expected);
        free(text);
        session_free(s);
    }
}

/* Each line with a mistake is reported, once; the lines in between are not. */
static void test_all_mistakes_are_found(void **state) {
    (void)state;
    const char *text = "model A {\n"
                       "    x = f(1, , 2)\n"
                       "    y = 1\n"
                       "    weight w [a]\n"
                       "    if x = 3 {\n"
                       "        z = = 2\n"
                       "    }\n"
                       "}\n"
                       "plan b on {\n"
                       "    batch on\n"
                       "    mesh data = 2\n"
                       "    x on data using 3\n"
                       "}\n";
    Session *s = session_new();
    text_to_ast(s, session_add_text(s, "t.plan", text, strlen(text)));
    static const int lines[] = {2, 4, 5, 6, 9, 10, 12};
    enum { N = sizeof lines / sizeof *lines };
    assert_int_equal(diag_count(s, SEV_ERROR), N);
    char *shown = messages(s);
    for (int i = 0; i < N; i++) assert_non_null(strstr(shown, arena_printf(s->arena, "--> t.plan:%d:", lines[i])));
    free(shown);
    session_free(s);
}

/* ---- the formatter ---- */

static void test_canonical_files_stay(void **state) {
    (void)state;
    for (int i = 0; i < N_PROGRAMS; i++) {
        Session *s = session_new();
        const char *text = golden(s, programs[i], "plan");
        assert_string_equal(format(s, text), text);
        session_free(s);
    }
}

/* The text with the blanks between tokens replaced: `change` 0 leaves out what can be left out, 1 doubles, 2 makes
 * tabs. */
static const char *change_blanks(Session *s, const char *text, int change) {
    Parser p = {.s = s,
                .arena = s->arena,
                .file = session_add_text(s, "b.plan", text, strlen(text)),
                .text = text,
                .size = (int32_t)strlen(text)};
    lex_file(&p);
    Text out = {.arena = s->arena};
    int32_t end = 0;
    int comment = 0;
    for (int i = 0; i < p.raw.n; i++) {
        const Token *token = &p.raw.at[i];
        int32_t lo = token->lo;
        if (comment < p.comments.n && p.comments.at[comment].lo < lo) {
            lo = p.comments.at[comment].lo; /* blanks before a comment; the comment stays */
        }
        for (int32_t k = end; k < lo; k++) {
            bool glued = i > 0 && k == end && lo > end;
            int before = i > 0 ? p.raw.at[i - 1].kind : NEWLINE;
            bool word_before =
                before == NAME || before == INT || before == FLOAT || (before >= OVER && before <= ALONG);
            if (change == 0 && glued && word_before && token->lo == lo && token->kind != NEWLINE) text_puts(&out, " ");
            if (change == 1) text_puts(&out, "  ");
            if (change == 2) text_puts(&out, "\t");
        }
        if (lo != token->lo) {
            text_add(&out, text + lo, (size_t)(token->lo - lo));
            comment++;
        }
        text_add(&out, text + token->lo, (size_t)(token->hi - token->lo));
        end = token->hi;
    }
    return out.at;
}

static void test_blanks_do_not_matter(void **state) {
    (void)state;
    for (int i = 0; i < N_PROGRAMS; i++)
        for (int change = 0; change < 3; change++) {
            Session *s = session_new();
            const char *text = golden(s, programs[i], "plan"), *changed = change_blanks(s, text, change);
            assert_string_not_equal(changed, text);
            const char *formatted = format(s, changed);
            char *problems = messages(s);
            assert_string_equal(problems, "");
            free(problems);
            assert_string_equal(formatted, text);
            session_free(s);
        }
}

static void test_format_keeps_comments(void **state) {
    (void)state;
    const char *text = "# one\r\nmodel   A # two\n{\n\n\n  # three\n x=f(a, # four\n# five\nb)\n\n\n\ny  =-1\n    # "
                       "six\n}# seven\n# eight";
    const char *expected = "# one\nmodel A  # two\n{\n    # three\n    x = f(a,  # four\n          # five\n          "
                           "b)\n\n    y = -1\n    # six\n}  # seven\n# eight\n";
    Session *s = session_new();
    const char *once = format(s, text);
    assert_string_equal(once, expected);
    assert_string_equal(format(s, once), expected);
    assert_null(format(s, "model {"));
    assert_string_equal(format(s, ""), "");
    session_free(s);
}

/* ---- mutations: one token deleted, doubled or misspelt ---- */

static int line_of(const char *text, int32_t at) {
    int line = 1;
    for (int32_t i = 0; i < at; i++) line += text[i] == '\n';
    return line;
}

static int next_line_with_text(const char *text, int line) {
    int at = 1;
    const char *p = text;
    for (; *p && at <= line; p++) at += *p == '\n';
    for (; *p; p++) {
        if (*p == '#')
            while (p[1] && p[1] != '\n') p++;
        else if (*p == '\n')
            at++;
        else if (*p != ' ')
            return at;
    }
    return line;
}

static const char *mutate(Session *s, const char *text, const Token *token, int how) {
    Text out = {.arena = s->arena};
    text_add(&out, text, (size_t)token->lo);
    if (how == 1) {
        text_add(&out, text + token->lo, (size_t)(token->hi - token->lo));
        text_puts(&out, " ");
        text_add(&out, text + token->lo, (size_t)(token->hi - token->lo));
    } else if (how == 2) { /* the last two letters change places, or one is doubled */
        size_t n = (size_t)(token->hi - token->lo);
        text_add(&out, text + token->lo, n - 2);
        text_add(&out, text + token->hi - 1, 1);
        text_add(&out, text + token->hi - 2, 1);
    }
    text_puts(&out, text + token->hi);
    return out.at;
}

/* Last line of the statement that token `t` belongs to: brackets may hold several lines. */
static int statement_end(const char *text, const Parser *p, int t) {
    int depth = 0;
    for (int i = 0; i < p->raw.n; i++) {
        int kind = p->raw.at[i].kind;
        depth += (kind == '(' || kind == '[') - (kind == ')' || kind == ']');
        if (i >= t && !depth && kind == NEWLINE) return line_of(text, p->raw.at[i].lo);
    }
    return line_of(text, p->raw.at[t].lo);
}

/* Reports 1 to 3 errors or none, the first on the line of the change or the next with text (for a statement of several
 * lines: up to its end). A missing brace is only found where a statement cannot stand, and says which block is open. */
static bool check_mutation(Session *outer, const char *name, const Parser *p, int t, int how) {
    const Token *token = &p->raw.at[t];
    const char *text = p->text, *changed = mutate(outer, text, token, how);
    Session *s = session_new();
    text_to_ast(s, session_add_text(s, "t.plan", changed, strlen(changed)));
    int errors = diag_count(s, SEV_ERROR), line = line_of(text, token->lo);
    if (errors) {
        diag_sort(s);
        const Diag *d = s->diags.at[0];
        int first = session_place(s, d->span).line, end = statement_end(text, p, t);
        int latest = end > line ? end : next_line_with_text(changed, line);
        bool is_missing_brace = !strcmp(d->code, "P0006") && d->notes.n && (token->kind == '{' || token->kind == '}');
        if (errors > 3 || first < line || (first > latest && !is_missing_brace))
            fail_msg("%s: line %d, `%.*s`, change %d: %d errors, the first on line %d", name, line,
                     token->hi - token->lo, text + token->lo, how, errors, first);
    }
    session_free(s);
    return errors;
}

static void test_mutations(void **state) {
    (void)state;
    for (int i = 0; i < N_PROGRAMS; i++) {
        Session *s = session_new();
        const char *text = golden(s, programs[i], "plan");
        Parser p = {.s = s, .arena = s->arena, .file = 1, .text = text, .size = (int32_t)strlen(text)};
        lex_file(&p);
        int refused = 0, tried = 0;
        for (int t = 0; t < p.raw.n; t++) {
            const Token *token = &p.raw.at[t];
            if (token->kind == NEWLINE || token->kind == END) continue;
            for (int how = 0; how < 3; how++) {
                if (how == 2 && (token->kind != NAME || token->hi - token->lo < 3)) continue;
                refused += check_mutation(s, programs[i], &p, t, how);
                tried++;
            }
        }
        assert_true(refused * 2 > tried);
        session_free(s);
    }
}

/* A keyword with two letters swapped is told by its own name wherever its statement stands alone. */
static void test_misspelt_keywords(void **state) {
    (void)state;
    const struct {
        const char *text, *help;
    } cases[] = {
        {"modle A { }", "`model`"},
        {"clutser c { }", "`cluster`"},
        {"tarin { }", "`train`"},
        {"paln a { }", "`plan`"},
        {"lyaer f(x: [a]) { }", "`layer`"},
        {"imprt nn", "`import`"},
        {"cnost a = 1", "`const`"},
        {"model A { dmi a = 1\n }", "`dim`"},
        {"model A { fatcors a = (b, c)\n }", "`factors`"},
        {"model A { inptu x: int[a]\n }", "`input`"},
        {"model A { targte x: int[a]\n }", "`target`"},
        {"model A { reapet a { }\n }", "`repeat`"},
        {"model A { retrun x\n }", "`return`"},
        {"model A { auxilairy x\n }", "`auxiliary`"},
        {"plan a { msh data = 2\n }", "`mesh`"},
        {"model A { nmaes hf { }\n }", "`names`"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Session *s = session_new();
        text_to_ast(s, session_add_text(s, "t.plan", cases[i].text, strlen(cases[i].text)));
        assert_int_equal(diag_count(s, SEV_ERROR), 1);
        char *text = messages(s);
        if (!strstr(text, arena_printf(s->arena, "help: did you mean %s?", cases[i].help)))
            fail_msg("%s\n%s", cases[i].text, text);
        free(text);
        session_free(s);
    }
}

/* Whatever the bytes, the parser ends and says something; deep nesting is refused, not overrun. */
static void test_garbage(void **state) {
    (void)state;
    uint32_t seed = 12345;
    for (int round = 0; round < 3000; round++) {
        static const char *const pieces[] = {"model A {", "}",       "{",       "(",      ")",       "[",   "]",
                                             "\n",        "=",       " on ",    "x",      ",",       "..",  "...",
                                             "->",        "\"",      "\\",      "#",      "1.5 GB",  "7",   "if ",
                                             "else ",     "plan p ", "repeat ", ":",      "+",       "-",   "\x80",
                                             "\t",        "dim ",    " over ",  "uneven", "train {", "not "};
        Session *s = session_new();
        Text text = {.arena = s->arena};
        text_puts(&text, "");
        int n = (int)(round % 60);
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            text_puts(&text, pieces[(seed >> 16) % (sizeof pieces / sizeof *pieces)]);
        }
        int32_t file = session_add_text(s, "g.plan", text.at, text.n);
        const char *formatted = ast_print(s, file);
        assert_true(formatted || diag_count(s, SEV_ERROR));
        if (formatted) assert_string_equal(format(s, formatted), formatted);
        session_free(s);
    }
    const struct {
        const char *piece, *end;
    } deep[] = {{"(", ""},   {"[", ""},       {"-", "1"}, {"a + ", "a"},         {"f(", ""},
                {"a.", "a"}, {"if a { ", ""}, {"{", ""},  {"if a { } else ", ""}};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        Session *s = session_new();
        Text text = {.arena = s->arena};
        text_puts(&text, deep[i].piece[0] == 'i' ? "model A { " : "model A { x = ");
        for (int k = 0; k < 50000; k++) text_puts(&text, deep[i].piece);
        text_puts(&text, deep[i].end);
        text_to_ast(s, session_add_text(s, "d.plan", text.at, text.n));
        assert_true(diag_count(s, SEV_ERROR) > 0);
        session_free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_all_mistakes_are_found),
        cmocka_unit_test(test_canonical_files_stay),
        cmocka_unit_test(test_blanks_do_not_matter),
        cmocka_unit_test(test_format_keeps_comments),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_misspelt_keywords),
        cmocka_unit_test(test_garbage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
