/* Inside compiler/syntax and grammar only: what lexer, layout and parser share.
 *
 *     text --plan.re--> raw tokens --layout--> tokens --plan.y--> tree --place--> checked tree
 *
 * The lexer knows characters. The layout knows lines: which newlines end statements, which words are keywords here,
 * which brackets were never closed (it reports and closes them, so that the parser sees balanced text). The parser
 * knows statements and expressions. Which statement may stand in which block is asked last. */
#ifndef PLAN_PARSE_H
#define PLAN_PARSE_H

#include "syntax/ast.h"

typedef struct Token {
    int kind; /* token kinds of plan_parser.h */
    int32_t lo, hi;
    Name name; /* of names and words; the unit of a number, or NULL */
    int64_t integer;
    double number;
    const char *text; /* of a string, decoded */
    int32_t unit_lo;  /* where the unit begins */
    int32_t column;   /* of the first token of a line: its distance from the line's start; otherwise -1 */
    bool reported;    /* the mistake here has been reported: the parser keeps silent */
    bool unclosed;    /* a string without its closing quote; an opening bracket without its closing one */
    bool stray;       /* a closing bracket that closes nothing */
} Token;

typedef struct Comment {
    int32_t lo, hi;
    bool alone; /* nothing but blanks before it on its line */
} Comment;

typedef enum BlockKind {
    BLOCK_NONE,
    BLOCK_TOP,
    BLOCK_TENSORS,
    BLOCK_PROPERTIES,
    BLOCK_GROUPS,
    BLOCK_PLAN,
    BLOCK_NAMES,
    BLOCK_UNKNOWN
} BlockKind;

typedef VEC(Token) TokenList;

/* A list of statements or the like while the parser builds it. */
typedef struct Words {
    VEC(RuleWord) at;
} Words;
typedef struct Bindings {
    VEC(Binding) at;
} Bindings;
typedef struct Params {
    VEC(Param) at;
} Params;
typedef struct Args {
    VEC(Arg) at;
} Args;
typedef struct Items {
    ExprList values;
    VEC(Binding) bindings;
} Items;
typedef struct Axes {
    VEC(Binding) at; /* name and name_span only */
} Axes;

typedef struct Parser {
    Session *s;
    Arena *arena;
    int32_t file;
    const char *text;
    int32_t size;
    TokenList raw, tokens;
    VEC(Comment) comments;
    int next;      /* index of the token that the parser reads next */
    int last;      /* of the one that it read last */
    bool skipping; /* after an error: until the end of the statement or its block */
    bool too_deep; /* reported */
    Ast *ast;
} Parser;

/* grammar/plan.re: fills `raw` (ends with END) and `comments`. */
void lex_file(Parser *p);
/* lines.c: fills `tokens` from `raw`. */
void lines_make(Parser *p);
/* grammar/plan.y */
int plan_parse(Parser *p);
/* recover.c: after a mistake, moves `next` to where the parser can go on. */
void parser_skip(Parser *p);
enum { MOST_EXPECTED = 4 };
typedef struct Expected {
    const char *what[MOST_EXPECTED + 1]; /* as people say it; more than MOST_EXPECTED: too many to list */
    int n;
} Expected;
void report_syntax_error(Parser *p, Span span, const Expected *expected);
void report_too_deep(Parser *p, Span span);
/* place.c: reports statements that may not stand where they do. */
void place_check(Parser *p);

/* ---- literals (literal.c): the text of a token to its value; each reports what is wrong with it ---------------- */

Token token_number(Parser *p, const char *lo, const char *hi, const char **end);
Token token_string(Parser *p, const char *lo, const char *hi, bool closed);
void report_bad_character(Parser *p, const char *lo, const char *hi);

/* ---- building (build.c): one function a sort of node; the grammar's actions call nothing else ------------------ */

Span parser_span(const Parser *p, int32_t lo, int32_t hi);
Expr *expr_name(Parser *p, Span span, Name name);
Expr *expr_literal(Parser *p, ExprKind kind, Span span, const Token *token);
Expr *expr_member(Parser *p, Span span, Expr *of, Name name, Span name_span);
Expr *expr_list(Parser *p, ExprKind kind, Span span, const ExprList *elements);
/* `(a)` is a itself, `(a, b)` a tuple. */
Expr *expr_group(Parser *p, Span span, const ExprList *elements);
Expr *expr_pair(Parser *p, ExprKind kind, Span span, Expr *left, int op, Span op_span, Expr *right);
Expr *expr_unary(Parser *p, Span span, int op, Span op_span, Expr *operand);
Expr *expr_call(Parser *p, Span span, Expr *callee, const Args *args);
ExprList *exprs_add(Parser *p, ExprList *list, Expr *e);

Args *args_add(Parser *p, Args *args, Arg arg);
Bindings *bindings_add(Parser *p, Bindings *bindings, Binding binding);
Params *params_add(Parser *p, Params *params, Param param);
Words *words_add(Parser *p, Words *words, RuleWord word);
Axes *axes_add(Parser *p, Axes *axes, Name name, Span span);
Items *items_add(Parser *p, Items *items, Expr *value);
Items *items_bind(Parser *p, Items *items, Binding binding);

Stmt *stmt_new(Parser *p, StmtKind kind, Span span, Name name, Span name_span);
Stmt *stmt_valued(Parser *p, StmtKind kind, Span span, Expr *value);
Stmt *stmt_bindings(Parser *p, StmtKind kind, Span span, const Bindings *bindings);
Stmt *stmt_import(Parser *p, Span span, Expr *path);
Stmt *stmt_assign(Parser *p, Span span, const Words *targets, Expr *value);
Stmt *stmt_group(Parser *p, Span span, const Words *words, const Bindings *bindings);
Stmt *stmt_rule(Parser *p, Span span, const Words *words, const Axes *axes, Expr *how);
Stmt *stmt_property(Parser *p, Span span, Name name, Span name_span, const Items *items);
void stmt_body(Stmt *stmt, const StmtList *body);
void stmt_params(Stmt *stmt, const Params *params);
void stmt_alias(Stmt *stmt, const Token *name, Span span);
/* Adds a statement to a block; a rule with several axes becomes one for each. */
StmtList *stmts_add(Parser *p, StmtList *list, Stmt *stmt);

#endif
