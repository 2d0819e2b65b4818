/* Inside the layout: the state that lines.c (lines and brackets) and words.c (keywords) share. */
#ifndef PLAN_LINES_H
#define PLAN_LINES_H

#include "syntax/parse.h"

typedef struct Open {
    Token token;    /* the opening bracket */
    BlockKind kind; /* of a brace */
    int32_t indent; /* of its line */
} Open;

typedef struct Lines {
    Parser *p;
    int i; /* the raw token at hand */
    VEC(Open) open;
    bool in_statement;   /* something of the current statement was passed on */
    int head;            /* kind of its first token */
    BlockKind opens;     /* what its block holds */
    bool needs_block;    /* it must have one, which has not come yet */
    bool lost;           /* junk at the top level was reported: silent until the next declaration */
    int32_t indent;      /* of the line at hand */
    int32_t head_indent; /* of the line that the current statement began on: that of its block */
    int32_t open_text;   /* where the last text without a closing quote begins */
    const Token *wrong;  /* the first brace that was closed by one of another indentation */
    Token wrong_token;
} Lines;

typedef enum StatementPlace { PLACE_TOP, PLACE_TENSORS, PLACE_PLAN } StatementPlace;

typedef struct Keyword {
    const char *spelling;
    int token;
    StatementPlace place;
    BlockKind block;
} Keyword;

/* words.c: what the name at the beginning of a statement is. Changes the kind of the raw token, fills head, opens and
 * needs_block. May find that blocks before it were never closed. */
void lines_begin_statement(Lines *l);
/* The words that are keywords inside a statement: as, like, and, or, not. */
void lines_inner_word(Lines *l);
bool lines_takes_else(Lines *l, int at);

/* lines.c */
BlockKind lines_block(const Lines *l);
const Token *lines_raw(const Lines *l, int ahead);
void lines_close_blocks(Lines *l, Span where, const char *what);
Diag *lines_report(Lines *l, const char *code, const Token *token, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
