/* Inside compiler/graph only: the elaboration of a model's statements into a forward graph.
 *
 * In: the syntax tree of a model and of the layers that it calls. Out: nodes of one Graph. Elaboration is evaluation
 * with two times: names, numbers, dimensions, functions and conditions are known now, tensors become nodes. Layers are
 * inlined, each call in a Scope of its own; `repeat` stays rolled: a Frame stands for an open region and turns values
 * from outside into its parameters on first use.
 *
 * One mistake, one message: whatever follows from a reported mistake is VALUE_POISON, which every rule passes on
 * without a word. Mistakes inside a layer of the standard library are reported at the user's call. */
#ifndef PLAN_ELABORATE_H
#define PLAN_ELABORATE_H

#include "graph/graph.h"

/* ---- values --------------------------------------------------------------------------------------------------- */

typedef enum ValueKind {
    VALUE_POISON, /* a mistake was reported */
    VALUE_NONE,
    VALUE_BOOL,     /* number: 0 or 1 */
    VALUE_NUMBER,   /* known now */
    VALUE_DIM,      /* as a number: its size */
    VALUE_FUNCTION, /* an operator or a layer, handed over by name */
    VALUE_TENSOR,
    VALUE_TUPLE, /* of a layer that returns several */
} ValueKind;

/* A dimension by name. The graph's Dim is made when the dimension is first used in a shape, so that a layer's
 * `dim group = head / kv_head` of one call leaves nothing behind when it is only a number. */
typedef struct LocalDim {
    Name name, path; /* "key", and what the graph calls it: "attention.key" */
    Name full_path;  /* with the repeats: when `path` is taken */
    int64_t size;
    struct LocalDim *like;
    Dim *dim; /* NULL until used */
    Span span;
} LocalDim;

typedef struct Frame Frame;
typedef struct Value Value;
struct Value {
    ValueKind kind;
    double number;
    bool is_integer;
    LocalDim *dim;
    Op op; /* of a function: OP_COUNT for a layer */
    const Stmt *layer;
    const Ast *file; /* where the layer stands */
    Node *node;      /* of a tensor, made in `frame` (NULL: outside every repeat) */
    Frame *frame;
    const Value *mask;  /* the weights of a weighted loss, or NULL */
    const Value *items; /* of a tuple */
    int n_items;
};

typedef enum SymbolKind {
    SYMBOL_DIM,
    SYMBOL_INPUT,
    SYMBOL_WEIGHT,
    SYMBOL_PARAMETER,
    SYMBOL_VARIABLE,
    SYMBOL_INDEX
} SymbolKind;

typedef struct Symbol {
    Name name;
    SymbolKind kind;
    Value value;
    Span span, assigned; /* declared; last assigned */
    Frame *frame;        /* the repeat whose body declares it */
    Tensor *tensor;      /* of an input */
    Name gone_from;      /* first defined inside this repeat, which has ended: not visible any more */
} Symbol;

/* One call of a layer, or the model itself. */
typedef struct Scope {
    struct Scope *caller;
    const Ast *file;
    const Stmt *decl;
    Span call;     /* where it is called */
    Name path;     /* of weights: "layers.attention"; NULL at the top */
    Name dim_path; /* of its own dimensions: "attention"; NULL in the model */
    Map symbols;   /* Name -> Symbol * */
    bool returned;
    bool poisoned; /* a mistake hides what the body says: nothing is called missing or unused */
    bool broken;   /* the parser left something out: a name may be unknown only for that */
    Map unknown;   /* Name -> anything: reported once */
    Value result;
} Scope;

/* A name that a repeat carries from round to round. */
typedef struct Carry {
    Symbol *symbol;
    Node *initial, *param;
} Carry;

/* What each round hands out: an auxiliary loss (log NULL) or a logged value. */
typedef struct HandedOut {
    Node *node;
    Name log;
    Span span;
    Node *initial, *param, *sum; /* of the carry that adds it up */
} HandedOut;

/* An open region. */
struct Frame {
    Frame *parent;
    Region *region;
    LocalDim *dim;
    Scope *scope; /* in which the repeat stands */
    Span head;    /* of the statement */
    Map captured; /* Node * of the parent -> Node * parameter */
    VEC(Node *) slice_inputs;
    VEC(Node *) slice_params;
    VEC(Node *) capture_inputs;
    VEC(Node *) capture_params;
    Carry *carries;
    int n_carries;
    VEC(HandedOut) handed_out;
};

typedef struct Elaborator {
    Session *s;
    Arena *arena;
    const Program *program;
    const Train *train;
    Graph *graph;
    ModelGraph *model;
    Builder b;
    Scope *scope;           /* innermost */
    Frame *frame;           /* innermost; NULL outside every repeat */
    Map paths;              /* Name -> anything: paths that are taken */
    Map overrides;          /* Name -> const Expr *: sizes and parameters that the model was given */
    VEC(Span) weight_sites; /* for each of model->inits: where messages about it belong */
    const Tensor *target;   /* the first one, or NULL */
    LocalDim *batch;
    int constant_depth; /* of constants that are being evaluated */
    int errors;         /* reported before */
    bool has_loss;
    Value loss;
    Span loss_span;
} Elaborator;

/* ---- names (elaborate_scope.c) ---------------------------------------------------------------------------------- */

/* Reports at `span`, or, inside the standard library, at the user's call with a note. */
Diag *elaborate_error(Elaborator *e, const char *code, Span span, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Where a message about `span` belongs: the innermost call outside the standard library. */
Span elaborate_site(const Elaborator *e, Span span);

/* A scope for the body of a model or a layer. */
Scope scope_new(Elaborator *e, const Ast *file, const Stmt *decl, Span call);
Symbol *scope_get(const Elaborator *e, Name name); /* NULL when absent or no longer visible */
/* NULL after a diagnostic: the name is taken. */
Symbol *scope_declare(Elaborator *e, Name name, SymbolKind kind, Span span, Value value);
const char *symbol_kind_text(SymbolKind kind);
/* A constant of the file in which the body stands; of kind NONE when it has none of this name. */
Value constant_value(Elaborator *e, Name name);
/* What a name stands for: a symbol, a constant, an operator or a layer; reports unknown names. */
Value name_value(Elaborator *e, Name name, Span span);
/* The function that a call names; poison after a diagnostic. */
Value callee_value(Elaborator *e, const Expr *callee);
void name_unknown(Elaborator *e, Name name, Span span);
/* "prefix.name", "prefix.name_2" ...: unique in the whole graph. */
Name path_unique(Elaborator *e, Name prefix, Name name);
Name path_join(Elaborator *e, Name prefix, Name name);
const char *value_text(Elaborator *e, const Value *v); /* "a tensor [batch, seq]", "the number 4": for messages */
/* An operator stood where a value was needed: the nearest declared name, here or where the layers around were called.
 */
void help_operator(Elaborator *e, Diag *d, const Value *v);
void help_candidates(Elaborator *e, Diag *d, Name word, Span span, const Name *candidates, int n);

/* ---- dimensions (elaborate_dims.c) -------------------------------------------------------------- */

LocalDim *dim_declare(Elaborator *e, Name name, int64_t size, LocalDim *like, Span span);
Dim *dim_use(Elaborator *e, LocalDim *dim);
/* The dimension that a name stands for; a whole number that a layer was given becomes a dimension of its own. */
LocalDim *dim_named(Elaborator *e, const Expr *name);
bool dims_named(Elaborator *e, const Expr *names, Shape *out); /* one name or a tuple */
bool type_shape(Elaborator *e, const TypeExpr *type, Shape *out);
/* A size: positive and whole, or a diagnostic that names both numbers of a division. */
bool size_value(Elaborator *e, const Expr *expr, const char *what, int64_t *out);
void dim_statement(Elaborator *e, const Stmt *stmt);
/* What `train`, a derived model or --set gives for a name of the model, or NULL. */
const Expr *override_take(Elaborator *e, Name name);
void factors_statement(Elaborator *e, const Stmt *stmt);
/* Binds the names of a parameter's type to the dimensions of what it was given. */
bool pattern_bind(Elaborator *e, const Param *param, const Value *given, Span span);
/* Whether the dimension holds logical positions: the last one of integer inputs, or `like` one. */
bool dim_is_position(const Elaborator *e, const Dim *dim);

/* ---- expressions (elaborate_expr.c, elaborate_call.c) ------------------------------------------- */

Value poison(void);
Value number_value(double number, bool is_integer);
Value tensor_value(Elaborator *e, Node *node); /* poison for a poisoned node */
Value expr_value(Elaborator *e, const Expr *expr);
/* A number known now; reports anything else. `what`: "`rate`". */
bool expr_number(Elaborator *e, const Expr *expr, const char *what, double *out, bool *is_integer);
/* The value as a node of the current region: numbers become constants of `dtype`. NULL after a diagnostic, for poison.
 */
Node *value_node(Elaborator *e, const Value *v, DType dtype, Span span);
Node *node_here(Elaborator *e, Node *node, Frame *made_in);
/* Builds with messages at the user's place; NULL for poison. */
Node *elaborate_op(Elaborator *e, Span span, Op op, Node *const *in, int n_in, const AttrValue *attrs);
Value call_value(Elaborator *e, const Expr *call);
Value layer_call(Elaborator *e, const Expr *call, const Value *callee);
Value operator_call(Elaborator *e, const Expr *call, Op op);
/* Joins the weights of two values of a weighted loss; false after a diagnostic. */
bool masks_join(Elaborator *e, const Value *x, const Value *y, Span span, const Value **out);

/* ---- statements (elaborate_stmt.c, elaborate_repeat.c, elaborate_inputs.c) ---------------------- */

void statements(Elaborator *e, const StmtList *list);
/* What statements that are not elaborated would have defined is unknown: its use is no second mistake. */
void poison_defined(Elaborator *e, const StmtList *body);
void repeat_statement(Elaborator *e, const Stmt *stmt);
void input_statement(Elaborator *e, const Stmt *stmt);
void target_statement(Elaborator *e, const Stmt *stmt);
void weight_statement(Elaborator *e, const Stmt *stmt);
void result_add(Elaborator *e, const char *name, Node *node, Span span);
/* A value that `auxiliary` or `log` (with the name of it) hands out of the model; sums or means over repeats. */
void result_hand_out(Elaborator *e, Node *node, Name log, Span span);

/* ---- checks of the finished graph, and counts (elaborate_check.c) ------------------------------- */

/* Names that a body declares and never uses. */
void unused_names(Elaborator *e, const Stmt *decl);
/* Weights that the loss does not depend on; layers of the main file that nothing calls. */
void unused_weights(Elaborator *e);
void unused_layers(Elaborator *e);
void freeze_weights(Elaborator *e);
void model_count(Elaborator *e); /* parameters, FLOPs */
/* The data sets of the run against the inputs of the model (elaborate_data.c). */
void data_check(Elaborator *e);

#endif
