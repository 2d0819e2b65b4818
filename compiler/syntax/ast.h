/* The syntax tree of a .plan file: what the parser builds and nothing more.
 *
 * Every node has a span. No node is NULL inside a list; an unparsable piece becomes an EXPR_ERROR or is left out after
 * a diagnostic. The tree is never changed after parsing. */
#ifndef PLAN_AST_H
#define PLAN_AST_H

#include "base/base.h"

typedef struct Expr Expr;
typedef struct Stmt Stmt;
typedef struct Item Item;
typedef VEC(Expr *) ExprList;
typedef VEC(Stmt *) StmtList;

typedef enum ExprKind {
    EXPR_ERROR,
    EXPR_NAME,   /* name; `a.b` is one EXPR_NAME-like member chain: EXPR_MEMBER */
    EXPR_MEMBER, /* args[0] . name */
    EXPR_INT,    /* integer; name = unit or NULL */
    EXPR_FLOAT,  /* number; name = unit or NULL */
    EXPR_STRING, /* text (decoded) */
    EXPR_TUPLE,  /* (a, b): args, two or more, or none */
    EXPR_LIST,   /* [a, b]: args */
    EXPR_RANGE,  /* a..b, both ends counted: args[0..1] */
    EXPR_UNARY,  /* op = '-' or '!' ("not") : args[0] */
    EXPR_BINARY, /* op: args[0..1] */
    EXPR_CALL,   /* args[0] = callee; call = arguments */
    EXPR_ARROW,  /* a -> b: args[0..1] */
    EXPR_ALONG,  /* LIST along DIM: args[0..1] (a constant vector with a dimension) */
} ExprKind;

typedef enum BinaryOp {
    BIN_ADD,
    BIN_SUB,
    BIN_MUL,
    BIN_DIV,
    BIN_EQ,
    BIN_NE,
    BIN_LT,
    BIN_LE,
    BIN_GT,
    BIN_GE,
    BIN_AND,
    BIN_OR
} BinaryOp;

/* One argument of a call: `value`, `name = value`, or `over dims` (name = "over", is_over). */
typedef struct Arg {
    Name name; /* NULL when positional */
    Span name_span;
    bool is_over;
    Expr *value; /* for `over`: a name or a tuple of names */
} Arg;

struct Expr {
    ExprKind kind;
    Span span;
    Name name;
    Span name_span; /* of `name` alone: the member, the unit */
    int64_t integer;
    double number; /* also set for EXPR_INT */
    const char *text;
    int op; /* BinaryOp, or the character of the unary operator */
    Span op_span;
    ExprList args;
    VEC(Arg) call;
    int depth; /* height of the tree: the parser keeps it below MOST_DEPTH, so that walks may recurse */
};

enum { MOST_DEPTH = 500 };

/* The type of an input, a target or a parameter: `int[batch, seq]`, `[..., seq, in]`, `float[]`. */
typedef struct TypeExpr {
    Span span;
    Name dtype;    /* "int", "float", "bool", ... ; NULL when left out */
    bool has_dots; /* begins with `...` */
    ExprList dims; /* names */
    bool present;
} TypeExpr;

/* `dim a = expr, b = like seq` : one for each. In `mesh`, `const` and `dim`. */
typedef struct Binding {
    Name name;
    Span name_span;
    bool is_like;
    Expr *value; /* NULL in `dim a` without a size; for `like` the other dimension's name */
} Binding;

typedef struct Param {
    Name name;
    Span span;
    TypeExpr type;  /* present for tensors */
    Expr *arrow_to; /* `in -> hidden`, `in -> (head, head_dim)`: name is the left side */
    Expr *value;    /* default, or NULL */
} Param;

/* One word of a rule: `vocab padded`, `layers uneven(8, 8, 7, 7)`, `kv_head repeated`, `mlp.hidden`, `batch`. */
typedef struct RuleWord {
    Expr *what; /* EXPR_NAME or EXPR_MEMBER */
    enum { STORE_PLAIN, STORE_PADDED, STORE_UNEVEN, STORE_REPEATED } how;
    Span how_span;
    ExprList sizes; /* of uneven */
} RuleWord;

/* How statements that are not plain `name = value` are laid out in Stmt:
 *
 *   import nn                     name = nn (how the file calls it), value = EXPR_NAME nn
 *   import models.gpt2 as g       name = gpt2, alias = g, value = the EXPR_MEMBER chain
 *   save every 1000 to "x" keep 3 PROPERTY save; items = every, 1000, to, "x", keep, 3 (commas are not kept; the words
 *                                 `on` and `using` among items are EXPR_NAMEs). Items are whole expressions: `2 of 8 *
 *                                 gpus.X` has the three items 2, of, 8 * gpus.X
 *   data task = [a, b]            PROPERTY data; bindings = {task, [a, b]}
 *   optimizer adamw(lr = 1) { }   PROPERTY optimizer; items = the call; has_body, body = GROUPs and PROPERTYs
 *   bias, norm: weight_decay = 0  GROUP; names = bias, norm; bindings = {weight_decay, 0}
 *   batch on data, ep             two RULEs, one for each axis, with the same span and words
 *   layers.attention.wq = "x"     ASSIGN (only in a `names` block); name = "layers.attention.wq", value = target
 *   a, b = f(x)                   ASSIGN; name = a; names = a, b; words.at[i].what has the span of each
 */
typedef enum StmtKind {
    /* top level */
    STMT_IMPORT,  /* name (dotted allowed in value); alias or NULL */
    STMT_CONST,   /* bindings */
    STMT_GPU,     /* name, body: properties */
    STMT_CLUSTER, /* name, body: properties */
    STMT_LAYER,   /* name, params, body */
    STMT_MODEL,   /* name, params (may be empty), body; `model A = B(layers = 24)` has value instead of a body */
    STMT_TRAIN,   /* name or NULL, body: properties */
    STMT_PLAN,    /* name, cluster (value, or NULL), body: mesh, rules, properties, in-blocks */
    /* in layers and models */
    STMT_DIM,       /* bindings */
    STMT_FACTORS,   /* name = (names in value) */
    STMT_INPUT,     /* name, type, value or NULL */
    STMT_TARGET,    /* name, type, value or NULL */
    STMT_WEIGHT,    /* name, type, value = initialiser */
    STMT_ASSIGN,    /* name (target), value. `a, b = f(x)` has names */
    STMT_EXPR,      /* value: a call for its effect is not allowed, kept for the message */
    STMT_REPEAT,    /* name = dimension, alias = index or NULL, body */
    STMT_IF,        /* value = condition, body, otherwise */
    STMT_RETURN,    /* value */
    STMT_AUXILIARY, /* value */
    STMT_LOG,       /* value */
    STMT_NAMES,     /* name = transformers..., body: mappings as STMT_PROPERTY/ASSIGN */
    /* in plans */
    STMT_MESH, /* bindings */
    STMT_RULE, /* words, axis, using */
    STMT_IN,   /* value = what is narrowed (a name, or `layers` with `range`); body */
    /* everywhere a block holds `word items...` */
    STMT_PROPERTY, /* name, items, bindings, body or empty */
    STMT_GROUP,    /* names (words has their spans), bindings: `bias, norm: weight_decay = 0` */
} StmtKind;

struct Stmt {
    StmtKind kind;
    Span span; /* the whole statement */
    Span head; /* its first line: what a message underlines when it speaks of the statement */
    Name name;
    Span name_span;
    Name alias;
    Span alias_span;
    VEC(Name) names; /* STMT_ASSIGN with several targets; STMT_GROUP */
    VEC(Binding) bindings;
    VEC(Param) params;
    TypeExpr type;
    Expr *value;
    Expr *range; /* STMT_IN: `layers 0..3` */
    StmtList body;
    StmtList otherwise;
    bool has_body;
    VEC(RuleWord) words;
    Name axis;
    Span axis_span;
    Expr *how;      /* after `using`: a name or a call */
    ExprList items; /* STMT_PROPERTY: the words and values after the name, in order */
};

typedef struct Ast {
    Session *session;
    int32_t file;
    StmtList statements;
} Ast;

/* Parses one file of the session. Reports every syntax error; always returns a tree of what could be read. */
Ast *text_to_ast(Session *s, int32_t file);

/* The formatter: canonical text of the file, comments kept. NULL when the file has syntax errors. */
const char *ast_print(Session *s, int32_t file);

/* Indented debug form, for --emit ast. */
void ast_dump(const Ast *ast, Text *out);

#endif
