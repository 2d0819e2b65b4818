/* Syntax errors: what the parser met and what it could have taken, in words, and where it goes on. */
#include "syntax/parse.h"

#include "plan_parser.h"

enum { LONGEST_QUOTE = 40 };

/* The token as the user wrote it. */
static const char *token_text(const Parser *p, const Token *token) {
    switch (token->kind) {
    case NEWLINE: return "end of the line";
    case END: return "end of the file";
    default: break;
    }
    int length = token->hi - token->lo;
    if (length <= LONGEST_QUOTE) return arena_printf(p->arena, "`%.*s`", length, p->text + token->lo);
    while (length > LONGEST_QUOTE || ((unsigned char)p->text[token->lo + length] & 0xc0) == 0x80) length--;
    return arena_printf(p->arena, "`%.*s...`", length, p->text + token->lo);
}

static bool expects(const Expected *expected, const char *what) {
    for (int i = 0; i < expected->n && i <= MOST_EXPECTED; i++)
        if (!strcmp(expected->what[i], what)) return true;
    return false;
}

static bool is_infix(int kind) {
    static const int kinds[] = {'+', '-', '*', '/', EQ, NE, LE, GE, LT, GT, AND, OR, ARROW, RANGE, '=', ',', '.'};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i] == kind) return true;
    return false;
}

/* First token of the statement that the parser is in. */
static const Token *statement_head(const Parser *p) {
    int at = p->last;
    while (at > 0 && p->tokens.at[at - 1].kind != NEWLINE && p->tokens.at[at - 1].kind != '{' &&
           p->tokens.at[at - 1].kind != '}')
        at--;
    return &p->tokens.at[at];
}

/* A word that only makes sense inside a statement, misspelt: `oevr embed`, `vocab pdaded`. The mistake shows at the
 * word or at the name behind it, since two names in a row are no expression. Short words resemble too much. */
static const Token *misspelt_word(const Parser *p, const Token *token, Name *meant) {
    static const char *const words[] = {"over",  "on", "using", "padded", "uneven", "repeated",
                                        "along", "as", "like",  "and",    "or",     "else"};
    enum { N_WORDS = sizeof words / sizeof *words, SHORTEST = 3 };
    for (int back = 0; back < 2 && back <= p->last; back++) {
        const Token *at = token - back;
        bool is_name = (at->kind == NAME || at->kind == WORD) && at->hi - at->lo >= SHORTEST;
        *meant = is_name ? nearest_name(at->name, words, N_WORDS) : NULL;
        if (*meant && strcmp(*meant, at->name)) return at;
        if (token->kind != NAME) break;
    }
    return NULL;
}

static void add_help(const Parser *p, Diag *d, const Token *token, const Expected *expected) {
    int kind = token->kind;
    Name meant;
    const Token *misspelt = misspelt_word(p, token, &meant);
    if (misspelt) {
        diag_help(d, "did you mean `%s`?", meant);
        diag_fix(d, parser_span(p, misspelt->lo, misspelt->hi), meant);
        return;
    }
    if (token->stray)
        diag_help(d, "it closes nothing");
    else if (kind >= OVER && kind <= ALONG && (expects(expected, "a name") || expects(expected, "a value")))
        diag_help(d, "`%s` is a reserved word: choose another name", token->name);
    else if (token->column >= 0 && is_infix(kind))
        diag_help(d, "the end of the line ended the statement: put %s at the end of the line before",
                  token_text(p, token));
    else if (kind == '=' && statement_head(p)->kind == KW_IF)
        diag_help(d, "`==` compares");
    else if (kind == '=' && expects(expected, "`:`"))
        diag_help(d, "the type comes first: `weight w: [in, out] = normal(0.02)`");
    else if (kind == ':' && expects(expected, "`=`"))
        diag_help(d, "a value follows `=`");
    else if (kind == DOTS)
        diag_help(d, "`...` stands for further dimensions, first in the type of a layer's parameter");
    else if (kind == EQ && expects(expected, "`=`"))
        diag_help(d, "`=` gives a value, `==` compares");
}

void report_syntax_error(Parser *p, Span span, const Expected *expected) {
    const Token *token = &p->tokens.at[p->last];
    p->skipping = token->kind != NEWLINE && token->kind != END && token->kind != '{';
    if (token->reported) return;
    Text message = {.arena = p->arena};
    text_printf(&message, "unexpected %s", token_text(p, token));
    if (expected->n <= MOST_EXPECTED)
        for (int i = 0; i < expected->n; i++)
            text_printf(&message, "%s%s", !i ? ", expected " : i == expected->n - 1 ? " or " : ", ", expected->what[i]);
    Diag *d = diag_error(p->s, "P0001", span, "%s", message.at);
    add_help(p, d, token, expected);
}

void parser_skip(Parser *p) {
    for (;; p->next++) {
        int kind = p->tokens.at[p->next].kind;
        if (kind == NEWLINE || kind == '{' || kind == END) break;
    }
    p->skipping = false;
}
