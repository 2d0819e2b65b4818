/* Inside the layout: the state that layout.c (lines and brackets) and words.c (keywords) share. */
#ifndef PLAN_LAYOUT_H
#define PLAN_LAYOUT_H

#include "syntax/parse.h"

typedef struct Open {
    Token token;    /* the opening bracket */
    BlockKind kind; /* of a brace */
    int32_t indent; /* of its line */
} Open;

typedef struct Layout {
    Parser *p;
    int i;              /* the raw token at hand */
    VEC(Open) open;
    bool in_statement;  /* something of the current statement was passed on */
    int head;           /* kind of its first token */
    BlockKind opens;    /* what its block holds */
    bool needs_block;   /* it must have one, which has not come yet */
    bool lost;          /* junk at the top level was reported: silent until the next declaration */
    const Token *wrong; /* the first brace that was closed by one of another indentation */
    Token wrong_token;
} Layout;

typedef enum Place_ { PLACE_TOP, PLACE_TENSORS, PLACE_PLAN } StatementPlace;

typedef struct Keyword {
    const char *spelling;
    int token;
    StatementPlace place;
    BlockKind block;
} Keyword;

/* words.c: what the name at the beginning of a statement is. Changes the kind of the raw token, fills head, opens and
 * needs_block. May find that blocks before it were never closed. */
void layout_begin_statement(Layout *l);
/* The words that are keywords inside a statement: as, like, and, or, not. */
void layout_inner_word(Layout *l);
bool layout_takes_else(Layout *l, int at);

/* layout.c */
BlockKind layout_block(const Layout *l);
const Token *layout_raw(const Layout *l, int ahead);
void layout_close_blocks(Layout *l, Span where, const char *what);
Diag *layout_report(Layout *l, const char *code, const Token *token, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
