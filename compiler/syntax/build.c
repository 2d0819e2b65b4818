/* Node builders: the only functions that the grammar's actions call. Spans and children go in, a node comes out. */
#include "syntax/parse.h"

void report_too_deep(Parser *p, Span span) {
    if (p->too_deep) return;
    p->too_deep = true;
    Diag *d = diag_error(p->s, "P0009", span, "this is nested too deeply");
    diag_help(d, "give a part of it a name on a line of its own; the limit is %d levels", MOST_DEPTH);
}

static Expr *expr_new(Parser *p, ExprKind kind, Span span) {
    Expr *e = NEW(p->arena, Expr);
    e->kind = kind;
    e->span = span;
    e->depth = 1;
    return e;
}

/* Adds a child; an expression that would be too high to walk becomes an EXPR_ERROR without children. */
static void expr_adopt(Parser *p, Expr *e, Expr *child) {
    if (child->depth >= e->depth) e->depth = child->depth + 1;
    if (e->depth <= MOST_DEPTH) return;
    report_too_deep(p, e->span);
    *e = (Expr){.kind = EXPR_ERROR, .span = e->span, .depth = 1};
}

static Expr *expr_with(Parser *p, Expr *e, Expr *child) {
    vec_push(p->arena, &e->args, child);
    expr_adopt(p, e, child);
    return e;
}

Expr *expr_name(Parser *p, Span span, Name name) {
    Expr *e = expr_new(p, EXPR_NAME, span);
    e->name = name;
    e->name_span = span;
    return e;
}

Expr *expr_literal(Parser *p, ExprKind kind, Span span, const Token *token) {
    Expr *e = expr_new(p, kind, span);
    e->integer = token->integer;
    e->number = token->number;
    e->text = token->text;
    if (kind != EXPR_STRING && token->name) {
        e->name = token->name;
        e->name_span = parser_span(p, token->unit_lo, token->hi);
    }
    return e;
}

Expr *expr_member(Parser *p, Span span, Expr *of, Name name, Span name_span) {
    Expr *e = expr_new(p, EXPR_MEMBER, span);
    e->name = name;
    e->name_span = name_span;
    return expr_with(p, e, of);
}

Expr *expr_list(Parser *p, ExprKind kind, Span span, const ExprList *elements) {
    Expr *e = expr_new(p, kind, span);
    for (int i = 0; elements && i < elements->n; i++) expr_with(p, e, elements->at[i]);
    return e;
}

Expr *expr_group(Parser *p, Span span, const ExprList *elements) {
    return elements->n == 1 ? elements->at[0] : expr_list(p, EXPR_TUPLE, span, elements);
}

Expr *expr_pair(Parser *p, ExprKind kind, Span span, Expr *left, int op, Span op_span, Expr *right) {
    Expr *e = expr_new(p, kind, span);
    e->op = op;
    e->op_span = op_span;
    expr_with(p, e, left);
    return e->kind == EXPR_ERROR ? e : expr_with(p, e, right);
}

Expr *expr_unary(Parser *p, Span span, int op, Span op_span, Expr *operand) {
    Expr *e = expr_new(p, EXPR_UNARY, span);
    e->op = op;
    e->op_span = op_span;
    return expr_with(p, e, operand);
}

Expr *expr_call(Parser *p, Span span, Expr *callee, const Args *args) {
    Expr *e = expr_new(p, EXPR_CALL, span);
    if (args) {
        e->call.at = args->at.at;
        e->call.n = args->at.n;
        e->call.cap = args->at.cap;
        for (int i = 0; i < args->at.n && e->kind != EXPR_ERROR; i++) expr_adopt(p, e, args->at.at[i].value);
    }
    return e->kind == EXPR_ERROR ? e : expr_with(p, e, callee);
}

ExprList *exprs_add(Parser *p, ExprList *list, Expr *e) {
    if (!list) list = NEW(p->arena, ExprList);
    vec_push(p->arena, list, e);
    return list;
}

#define DEFINE_ADD(FUNCTION, LIST, ELEMENT)                                                                            \
    LIST *FUNCTION(Parser *p, LIST *list, ELEMENT element) {                                                           \
        if (!list) list = NEW(p->arena, LIST);                                                                         \
        vec_push(p->arena, &list->at, element);                                                                        \
        return list;                                                                                                   \
    }
DEFINE_ADD(args_add, Args, Arg)
DEFINE_ADD(bindings_add, Bindings, Binding)
DEFINE_ADD(params_add, Params, Param)
DEFINE_ADD(words_add, Words, RuleWord)

Axes *axes_add(Parser *p, Axes *axes, Name name, Span span) {
    if (!axes) axes = NEW(p->arena, Axes);
    vec_push(p->arena, &axes->at, (Binding){.name = name, .name_span = span});
    return axes;
}

Items *items_add(Parser *p, Items *items, Expr *value) {
    if (!items) items = NEW(p->arena, Items);
    vec_push(p->arena, &items->values, value);
    return items;
}

Items *items_bind(Parser *p, Items *items, Binding binding) {
    if (!items) items = NEW(p->arena, Items);
    vec_push(p->arena, &items->bindings, binding);
    return items;
}

/* ---- statements ---- */

/* The first line of a statement, without the brace that opens its block. */
static Span first_line(const Parser *p, Span span) {
    int32_t hi = span.lo;
    while (hi < span.hi && p->text[hi] != '\n' && p->text[hi] != '{' && p->text[hi] != '#') hi += 1;
    while (hi > span.lo && (p->text[hi - 1] == ' ' || p->text[hi - 1] == '\t' || p->text[hi - 1] == '\r')) hi--;
    return parser_span(p, span.lo, hi > span.lo ? hi : span.hi);
}

Stmt *stmt_new(Parser *p, StmtKind kind, Span span, Name name, Span name_span) {
    Stmt *stmt = NEW(p->arena, Stmt);
    stmt->kind = kind;
    stmt->span = span;
    stmt->head = first_line(p, span);
    stmt->name = name;
    stmt->name_span = name_span;
    return stmt;
}

Stmt *stmt_valued(Parser *p, StmtKind kind, Span span, Expr *value) {
    Stmt *stmt = stmt_new(p, kind, span, NULL, (Span){0, 0, 0});
    stmt->value = value;
    return stmt;
}

Stmt *stmt_bindings(Parser *p, StmtKind kind, Span span, const Bindings *bindings) {
    Stmt *stmt = stmt_new(p, kind, span, NULL, (Span){0, 0, 0});
    for (int i = 0; i < bindings->at.n; i++) vec_push(p->arena, &stmt->bindings, bindings->at.at[i]);
    return stmt;
}

Stmt *stmt_import(Parser *p, Span span, Expr *path) {
    Stmt *stmt = stmt_new(p, STMT_IMPORT, span, path->name, path->name_span);
    stmt->value = path;
    return stmt;
}

/* "layers.attention.wq" of a member chain. */
static Name dotted_name(Parser *p, const Expr *e) {
    if (e->kind != EXPR_MEMBER) return e->name ? e->name : intern(p->s->names, "?");
    return intern(p->s->names, arena_printf(p->arena, "%s.%s", dotted_name(p, e->args.at[0]), e->name));
}

/* Storage words belong to rules; elsewhere they are mistakes. */
static void refuse_storage(Parser *p, const RuleWord *word, const char *where) {
    if (word->how == STORE_PLAIN) return;
    Diag *d = diag_error(p->s, "P0001", word->how_span, "a storage word cannot stand %s", where);
    diag_help(d, "`padded`, `uneven(...)` and `repeated` follow a dimension in a rule: `vocab padded on tensor`");
}

static void stmt_take_words(Parser *p, Stmt *stmt, const Words *words) {
    for (int i = 0; i < words->at.n; i++) vec_push(p->arena, &stmt->words, words->at.at[i]);
}

Stmt *stmt_assign(Parser *p, Span span, const Words *targets, Expr *value) {
    const Expr *first = targets->at.at[0].what;
    Stmt *stmt = stmt_new(p, STMT_ASSIGN, span, dotted_name(p, first), first->span);
    stmt->value = value;
    stmt_take_words(p, stmt, targets);
    for (int i = 0; i < targets->at.n; i++) {
        refuse_storage(p, &targets->at.at[i], "before `=`");
        if (targets->at.n > 1) vec_push(p->arena, &stmt->names, dotted_name(p, targets->at.at[i].what));
    }
    return stmt;
}

Stmt *stmt_group(Parser *p, Span span, const Words *words, const Bindings *bindings) {
    Stmt *stmt = stmt_bindings(p, STMT_GROUP, span, bindings);
    stmt->name = dotted_name(p, words->at.at[0].what);
    stmt->name_span = words->at.at[0].what->span;
    stmt_take_words(p, stmt, words);
    for (int i = 0; i < words->at.n; i++) {
        refuse_storage(p, &words->at.at[i], "before `:`");
        vec_push(p->arena, &stmt->names, dotted_name(p, words->at.at[i].what));
    }
    return stmt;
}

/* The axes after the first stay in `bindings` until stmts_add has made a rule of each. */
Stmt *stmt_rule(Parser *p, Span span, const Words *words, const Axes *axes, Expr *how) {
    Stmt *stmt = stmt_new(p, STMT_RULE, span, NULL, (Span){0, 0, 0});
    stmt_take_words(p, stmt, words);
    stmt->axis = axes->at.at[0].name;
    stmt->axis_span = axes->at.at[0].name_span;
    stmt->how = how;
    for (int i = 1; i < axes->at.n; i++) vec_push(p->arena, &stmt->bindings, axes->at.at[i]);
    return stmt;
}

Stmt *stmt_property(Parser *p, Span span, Name name, Span name_span, const Items *items) {
    Stmt *stmt = stmt_new(p, STMT_PROPERTY, span, name, name_span);
    stmt->items = items->values;
    for (int i = 0; i < items->bindings.n; i++) vec_push(p->arena, &stmt->bindings, items->bindings.at[i]);
    return stmt;
}

void stmt_body(Stmt *stmt, const StmtList *body) {
    stmt->has_body = true;
    stmt->body = *body;
}

void stmt_params(Stmt *stmt, const Params *params) {
    stmt->params.at = params->at.at;
    stmt->params.n = params->at.n;
    stmt->params.cap = params->at.cap;
}

void stmt_alias(Stmt *stmt, const Token *name, Span span) {
    stmt->alias = name->name;
    stmt->alias_span = span;
}

StmtList *stmts_add(Parser *p, StmtList *list, Stmt *stmt) {
    if (!list) list = NEW(p->arena, StmtList);
    vec_push(p->arena, list, stmt);
    if (stmt->kind != STMT_RULE) return list;
    int n_more = stmt->bindings.n;
    stmt->bindings.n = 0;
    for (int i = 0; i < n_more; i++) {
        Stmt *more = NEW(p->arena, Stmt);
        *more = *stmt;
        more->axis = stmt->bindings.at[i].name;
        more->axis_span = stmt->bindings.at[i].name_span;
        vec_push(p->arena, list, more);
    }
    return list;
}
