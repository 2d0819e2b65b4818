/* The lexer of .plan files: characters in, raw tokens and comments out.
 *
 * Newlines are tokens here; which of them end a statement, and which names are keywords where they stand, is decided by
 * compiler/syntax/lines.c. The text ends with a NUL, which is also how its end is found; a NUL inside is a mistake like
 * any other stray character. */
#include "syntax/parse.h"

#include "plan_parser.h"

static void push_token(Parser *p, Token token) { vec_push(p->arena, &p->raw, token); }

static void push(Parser *p, int kind, const char *lo, const char *hi) {
    Token token = {.kind = kind, .lo = (int32_t)(lo - p->text), .hi = (int32_t)(hi - p->text), .column = -1};
    if (kind == NAME || (kind >= OVER && kind <= ALONG)) token.name = intern_n(p->s->names, lo, (size_t)(hi - lo));
    push_token(p, token);
}

/* A character that no token has: the parser keeps silent about it. */
static void push_bad(Parser *p, const char *lo, const char *hi) {
    report_bad_character(p, lo, hi);
    push(p, BAD, lo, hi);
    vec_last(&p->raw).reported = true;
}

static void push_comment(Parser *p, const char *lo, const char *hi) {
    if (hi > lo && hi[-1] == '\r') hi--;
    bool alone = !p->raw.n || vec_last(&p->raw).kind == NEWLINE;
    vec_push(p->arena, &p->comments, (Comment){(int32_t)(lo - p->text), (int32_t)(hi - p->text), alone});
}

/* Marks the tokens that begin a line with their distance from its start. */
static void mark_columns(Parser *p) {
    int32_t line_start = 0;
    bool first = true;
    for (int i = 0; i < p->raw.n; i++) {
        Token *token = &p->raw.at[i];
        if (token->kind == NEWLINE) {
            line_start = token->hi;
            first = true;
        } else if (first) {
            token->column = token->lo - line_start;
            first = false;
        }
    }
}

void lex_file(Parser *p) {
    const char *at = p->text, *limit = p->text + p->size, *marker, *lo, *end;
    if (p->size >= 3 && !memcmp(at, "\xef\xbb\xbf", 3)) at += 3;
    for (;;) {
        lo = at;
        /*!re2c
            re2c:define:YYCTYPE  = "unsigned char";
            re2c:define:YYCURSOR = at;
            re2c:define:YYLIMIT  = limit;
            re2c:define:YYMARKER = marker;
            re2c:yyfill:enable   = 0;
            re2c:eof             = 0;

            digit   = [0-9];
            letter  = [a-zA-Z_];
            exp     = [eE] [+-]? digit+;
            number  = digit+ ("." digit+)? exp?;
            inside  = [^"\\\n] | "\\" [^\n];
            odd     = [\x80-\xff];

            $                     { push(p, END, lo, lo); break; }
            *                     { push_bad(p, lo, at); continue; }
            odd+                  { push_bad(p, lo, at); continue; }
            "&&" | "||"           { push_bad(p, lo, at); continue; }
            [ \t\r]+              { continue; }
            "#" [^\n]*            { push_comment(p, lo, at); continue; }
            "\n"                  { push(p, NEWLINE, lo, at); continue; }

            "over"                { push(p, OVER, lo, at); continue; }
            "on"                  { push(p, ON, lo, at); continue; }
            "using"               { push(p, USING, lo, at); continue; }
            "padded"              { push(p, PADDED, lo, at); continue; }
            "uneven"              { push(p, UNEVEN, lo, at); continue; }
            "repeated"            { push(p, REPEATED, lo, at); continue; }
            "along"               { push(p, ALONG, lo, at); continue; }
            letter (letter | digit)* { push(p, NAME, lo, at); continue; }

            number                { push_token(p, token_number(p, lo, at, &end)); at = end; continue; }
            "." digit+            { push_token(p, token_number(p, lo, at, &end)); at = end; continue; }
            ["] inside* ["]       { push_token(p, token_string(p, lo, at, true)); continue; }
            ["] inside* "\\"?     { push_token(p, token_string(p, lo, at, false)); continue; }

            "..."                 { push(p, DOTS, lo, at); continue; }
            ".."                  { push(p, RANGE, lo, at); continue; }
            "->"                  { push(p, ARROW, lo, at); continue; }
            "=="                  { push(p, EQ, lo, at); continue; }
            "!="                  { push(p, NE, lo, at); continue; }
            "<="                  { push(p, LE, lo, at); continue; }
            ">="                  { push(p, GE, lo, at); continue; }
            "<"                   { push(p, LT, lo, at); continue; }
            ">"                   { push(p, GT, lo, at); continue; }
            [-+*/=.,:()[\]{}]     { push(p, (unsigned char)*lo, lo, at); continue; }
        */
    }
    mark_columns(p);
}
