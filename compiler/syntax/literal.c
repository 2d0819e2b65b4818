/* Literals: the text of a number or a string to its value. The lexer has found where they begin; this reads on to the
 * unit of a number, and reports what is wrong with a literal where it is wrong. */
#include "syntax/parse.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "plan_parser.h"

Span parser_span(const Parser *p, int32_t lo, int32_t hi) { return (Span){p->file, lo, hi}; }

static Span span_of(const Parser *p, const char *lo, const char *hi) {
    return parser_span(p, (int32_t)(lo - p->text), (int32_t)(hi - p->text));
}

static bool is_word_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static const char *const units[] = {
#define UNIT(spelling) spelling,
#include "syntax/units.def"
#undef UNIT
};
enum { N_UNITS = sizeof units / sizeof *units };

/* The longest unit that stands at `at` as a whole word, or NULL. */
static const char *unit_at(const char *at) {
    const char *longest = NULL;
    for (int i = 0; i < N_UNITS; i++) {
        size_t length = strlen(units[i]);
        if (strncmp(at, units[i], length) || is_word_character(at[length])) continue;
        if (!longest || length > strlen(longest)) longest = units[i];
    }
    return longest;
}

/* A word glued to a number is meant as a unit: `80GX`. */
static void report_unknown_unit(Parser *p, const char *lo, const char *hi) {
    Name word = intern_n(p->s->names, lo, (size_t)(hi - lo));
    Diag *d = diag_error(p->s, "P0004", span_of(p, lo, hi), "`%s` is not a unit", word);
    Name candidates[N_UNITS];
    for (int i = 0; i < N_UNITS; i++) candidates[i] = intern(p->s->names, units[i]);
    Name near = nearest_name(word, candidates, N_UNITS);
    if (near) {
        diag_help(d, "did you mean `%s`?", near);
        diag_fix(d, span_of(p, lo, hi), near);
    } else {
        diag_help(d, "a number times a name is written with `*`");
    }
}

/* Reads the number in [lo, hi) and, behind it, its unit. */
Token token_number(Parser *p, const char *lo, const char *hi, const char **end) {
    Token token = {.kind = INT, .lo = (int32_t)(lo - p->text), .column = -1};
    size_t length = (size_t)(hi - lo);
    bool is_whole = !memchr(lo, '.', length) && !memchr(lo, 'e', length) && !memchr(lo, 'E', length);
    const char *digits = arena_strndup(p->arena, lo, length);
    errno = 0;
    token.number = strtod(digits, NULL);
    if (is_whole) token.integer = strtoll(digits, NULL, 10);
    if (!is_whole) token.kind = FLOAT;
    if ((is_whole && errno == ERANGE) || isinf(token.number)) {
        Diag *d = diag_error(p->s, "P0004", span_of(p, lo, hi), "the number `%s` is too large", digits);
        diag_help(d, is_whole ? "whole numbers go up to 9223372036854775807" : "numbers go up to 1.8e308");
    }
    if (*lo == '.') {
        Diag *d = diag_error(p->s, "P0004", span_of(p, lo, hi), "a number needs digits on both sides of its point");
        diag_help(d, "write `0%s`", digits);
    } else if (*hi == '.' && hi[1] != '.' && is_whole && !is_word_character(hi[1])) {
        hi++;
        Diag *d = diag_error(p->s, "P0004", span_of(p, lo, hi), "a number needs digits on both sides of its point");
        diag_help(d, "write `%s.0`", digits);
    }
    const char *at = hi;
    while (*at == ' ' || *at == '\t') at++;
    const char *unit = unit_at(at);
    if (unit) {
        token.name = intern(p->s->names, unit);
        token.unit_lo = (int32_t)(at - p->text);
        hi = at + strlen(unit);
    } else if (is_word_character(*hi)) {
        at = hi;
        while (is_word_character(*hi)) hi++;
        report_unknown_unit(p, at, hi);
    }
    *end = hi;
    token.hi = (int32_t)(hi - p->text);
    return token;
}

/* Bytes of the character that the escape at `at` (behind the backslash) stands for. */
static int decode_escape(Parser *p, const char *at, char *out) {
    static const char from[] = "ntr\"\\", to[] = "\n\t\r\"\\";
    const char *known = *at ? strchr(from, *at) : NULL;
    if (known) {
        *out = to[known - from];
    } else {
        Diag *d = diag_error(p->s, "P0003", span_of(p, at - 1, at + 1), "unknown escape in a text");
        diag_help(d, "there are \\n, \\t, \\r, \\\" and \\\\; a backslash itself is written \\\\");
        *out = *at;
    }
    return 1;
}

Token token_string(Parser *p, const char *lo, const char *hi, bool closed) {
    if (!closed)
        while (hi > lo + 1 && (hi[-1] == '\r' || hi[-1] == ' ' || hi[-1] == '\t')) hi--;
    Token token = {.kind = STRING, .lo = (int32_t)(lo - p->text), .hi = (int32_t)(hi - p->text), .column = -1};
    const char *end = closed ? hi - 1 : hi;
    char *decoded = arena_alloc(p->arena, (size_t)(hi - lo) + 1);
    int n = 0;
    for (const char *at = lo + 1; at < end;) {
        uint32_t code;
        int bytes = utf8_decode(at, end, &code);
        if (code == 0xfffd && bytes == 1) {
            Diag *d = diag_error(p->s, "P0003", span_of(p, at, at + 1), "the text is not UTF-8: byte 0x%02x",
                                 (unsigned char)*at);
            diag_help(d, "save the file as UTF-8");
        }
        if (!code) diag_error(p->s, "P0003", span_of(p, at, at + 1), "a text cannot hold the character NUL");
        if (*at == '\\' && at + 1 < end) {
            n += decode_escape(p, at + 1, decoded + n);
            at += 2;
            continue;
        }
        memcpy(decoded + n, at, (size_t)bytes);
        n += bytes;
        at += bytes;
    }
    token.text = decoded;
    if (!closed) {
        Diag *d = diag_error(p->s, "P0003", span_of(p, lo, hi), "the text has no closing quote");
        diag_help(d, "a text ends with `\"` on its own line");
        token.unclosed = true;
    }
    return token;
}

/* What a character that .plan files do not have was likely meant to be. */
static const char *meant_by(const char *lo, size_t length) {
    static const struct {
        const char *found, *help;
    } likely[] = {
        {"'", "a text stands between `\"`"},
        {"\xe2\x80\x9c", "a text stands between plain `\"`"},
        {"\xe2\x80\x9d", "a text stands between plain `\"`"},
        {";", "the end of the line ends a statement"},
        {"&&", "write `and`"},
        {"||", "write `or`"},
        {"&", "write `and`"},
        {"|", "write `or`"},
        {"!", "write `not`"},
        {"\xc3\x97", "write `*`"},
        {"\xc2\xb7", "write `*`"},
        {"\xe2\x86\x92", "write `->`"},
        {"\xe2\x80\x93", "write a plain `-`"},
        {"\xe2\x88\x92", "write a plain `-`"},
        {"\xe2\x80\xa6", "write `...`"},
        {"\xc2\xa0", "this is a no-break space: write a plain one"},
    };
    for (size_t i = 0; i < sizeof likely / sizeof *likely; i++)
        if (strlen(likely[i].found) == length && !memcmp(likely[i].found, lo, length)) return likely[i].help;
    return NULL;
}

void report_bad_character(Parser *p, const char *lo, const char *hi) {
    uint32_t code;
    int bytes = utf8_decode(lo, hi, &code);
    Diag *d;
    if (code == 0xfffd && bytes == 1)
        d = diag_error(p->s, "P0002", span_of(p, lo, hi), "unexpected byte 0x%02x, which is not UTF-8",
                       (unsigned char)*lo);
    else if (code < 0x20 || code == 0x7f)
        d = diag_error(p->s, "P0002", span_of(p, lo, hi), "unexpected control character U+%04X", code);
    else
        d = diag_error(p->s, "P0002", span_of(p, lo, hi), "unexpected character `%.*s`",
                       (int)(code < 0x80 ? hi - lo : bytes), lo);
    const char *help = meant_by(lo, code < 0x80 ? (size_t)(hi - lo) : (size_t)bytes);
    if (help) diag_help(d, "%s", help);
}
