/* Expressions: numbers are folded now, tensors become nodes.
 *
 * A dimension in arithmetic is its size. A number beside a tensor becomes a constant of the tensor's dtype. */
#include "graph/elaborate.h"

#include <math.h>

Value poison(void) { return (Value){.kind = VALUE_POISON}; }

Value number_value(double number, bool is_integer) {
    return (Value){.kind = VALUE_NUMBER, .number = number, .is_integer = is_integer};
}

static Value bool_value(bool truth) { return (Value){.kind = VALUE_BOOL, .number = truth, .is_integer = true}; }

Value tensor_value(Elaborator *e, Node *node) {
    if (!node || node->op == OP_POISON) return poison();
    return (Value){.kind = VALUE_TENSOR, .node = node, .frame = e->frame};
}

/* A dimension as a number. */
static Value as_number(Value v) { return v.kind == VALUE_DIM ? number_value((double)v.dim->size, true) : v; }

/* ---- nodes in the open region ------------------------------------------------------------------------------------ */

static Node *frame_capture(Elaborator *e, Frame *frame, Node *node, Frame *made_in) {
    if (frame == made_in) return node;
    CHECK(frame != NULL);
    Node *outer = frame_capture(e, frame->parent, node, made_in);
    Node *param = map_get(&frame->captured, outer);
    if (param) return param;
    param = region_add_param(&e->b, frame->region, outer->dtype, outer->shape);
    param->name = outer->name;
    param->span = outer->span;
    map_put(e->arena, &frame->captured, outer, param);
    vec_push(e->arena, &frame->capture_inputs, outer);
    vec_push(e->arena, &frame->capture_params, param);
    return param;
}

Node *node_here(Elaborator *e, Node *node, Frame *made_in) { return frame_capture(e, e->frame, node, made_in); }

/* The messages of the operators go to the user's place; the node keeps the place of its text. */
Node *elaborate_op(Elaborator *e, Span span, Op op, Node *const *in, int n_in, const AttrValue *attrs) {
    Span site = elaborate_site(e, span);
    int reported = e->s->diags.n;
    e->b.span = site;
    Node *node = build_op(&e->b, op, in, n_in, attrs);
    node->span = span;
    if (node->op != OP_POISON) return node;
    if (e->s->diags.n > reported && (site.file != span.file || site.lo != span.lo))
        diag_note(vec_last(&e->s->diags), span, "inside `%s` of the standard library", e->scope->decl->name);
    return NULL;
}

Node *value_node(Elaborator *e, const Value *value, DType dtype, Span span) {
    Value v = as_number(*value);
    if (v.kind == VALUE_POISON) return NULL;
    if (v.kind == VALUE_TENSOR) return node_here(e, v.node, v.frame);
    if (v.kind == VALUE_NUMBER || v.kind == VALUE_BOOL) {
        if (v.kind == VALUE_BOOL)
            dtype = DT_BOOL;
        else if (!v.is_integer || dtype == DT_BOOL)
            dtype = dtype_is_float(dtype) ? dtype : DT_F32;
        e->b.span = span;
        return build_const(&e->b, dtype, v.number);
    }
    Diag *d = elaborate_error(e, "P0250", span, "%s stands where a tensor belongs", value_text(e, value));
    if (v.kind == VALUE_NONE) diag_help(d, "ask first: `if x != none { ... }`");
    if (v.kind == VALUE_FUNCTION) diag_help(d, "call it: write its operands in parentheses");
    return NULL;
}

/* ---- numbers ------------------------------------------------------------------------------------ */

bool expr_number(Elaborator *e, const Expr *expr, const char *what, double *out, bool *is_integer) {
    Value v = as_number(expr_value(e, expr));
    if (v.kind == VALUE_POISON) return false;
    if (v.kind != VALUE_NUMBER) {
        Diag *d = elaborate_error(e, "P0255", expr->span, "%s must be a number known at compile time, not %s", what,
                                  value_text(e, &v));
        if (v.kind == VALUE_TENSOR)
            diag_help(d, "numbers, constants, dimensions and parameters are known; tensors are not");
        return false;
    }
    *out = v.number;
    *is_integer = v.is_integer;
    return true;
}

static bool is_exact(double x) { return isfinite(x) && fabs(x) < 9007199254740992.0 && x == floor(x); }

static Value fold_arithmetic(Elaborator *e, const Expr *expr, Value x, Value y) {
    double a = x.number, b = y.number, value = 0;
    bool whole = x.is_integer && y.is_integer;
    switch ((BinaryOp)expr->op) {
    case BIN_ADD: value = a + b; break;
    case BIN_SUB: value = a - b; break;
    case BIN_MUL: value = a * b; break;
    case BIN_DIV:
        if (b == 0) {
            elaborate_error(e, "P0353", expr->span, "division by zero");
            return poison();
        }
        value = a / b;
        break;
    default: BUG("arithmetic operator %d", expr->op);
    }
    return number_value(value, whole && is_exact(value));
}

/* Whether two values known now are equal; false with `*comparable` cleared for values of different kinds. */
static bool values_equal(const Value *x, const Value *y, bool *comparable) {
    *comparable = true;
    if (x->kind == VALUE_NONE || y->kind == VALUE_NONE) return x->kind == y->kind;
    *comparable = x->kind == y->kind && x->kind != VALUE_TUPLE;
    if (x->kind == VALUE_FUNCTION) return x->op == y->op && x->layer == y->layer;
    return *comparable && x->number == y->number;
}

static Value fold_comparison(Elaborator *e, const Expr *expr, const Value *x, const Value *y) {
    if (expr->op == BIN_EQ || expr->op == BIN_NE) {
        bool comparable = false, equal = values_equal(x, y, &comparable);
        if (comparable) return bool_value(equal == (expr->op == BIN_EQ));
    } else if (x->kind == VALUE_NUMBER && y->kind == VALUE_NUMBER) {
        double a = x->number, b = y->number;
        return bool_value(expr->op == BIN_LT   ? a < b
                          : expr->op == BIN_LE ? a <= b
                          : expr->op == BIN_GT ? a > b
                                               : a >= b);
    }
    Diag *d =
        elaborate_error(e, "P0256", expr->span, "%s and %s cannot be compared", value_text(e, x), value_text(e, y));
    help_operator(e, d, x);
    help_operator(e, d, y);
    return poison();
}

static Value fold_logic(Elaborator *e, const Expr *expr, const Value *x, const Value *y) {
    if (x->kind != VALUE_BOOL || y->kind != VALUE_BOOL) {
        const Value *wrong = x->kind != VALUE_BOOL ? x : y;
        elaborate_error(e, "P0256", expr->span, "`%s` joins conditions, not %s", expr->op == BIN_AND ? "and" : "or",
                        value_text(e, wrong));
        return poison();
    }
    return bool_value(expr->op == BIN_AND ? x->number != 0 && y->number != 0 : x->number != 0 || y->number != 0);
}

/* ---- operators of two operands ------------------------------------------------------------------ */

/* `swap`: x > y is y < x; `negate`: x != y is not (x == y). */
static const struct {
    Op op;
    bool swap, negate;
    const char *sign;
} binary_ops[] = {
    [BIN_ADD] = {OP_ADD, false, false, "+"},   [BIN_SUB] = {OP_SUB, false, false, "-"},
    [BIN_MUL] = {OP_MUL, false, false, "*"},   [BIN_DIV] = {OP_DIV, false, false, "/"},
    [BIN_EQ] = {OP_EQ, false, false, "=="},    [BIN_NE] = {OP_EQ, false, true, "!="},
    [BIN_LT] = {OP_LT, false, false, "<"},     [BIN_LE] = {OP_LE, false, false, "<="},
    [BIN_GT] = {OP_LT, true, false, ">"},      [BIN_GE] = {OP_LE, true, false, ">="},
    [BIN_AND] = {OP_AND, false, false, "and"}, [BIN_OR] = {OP_OR, false, false, "or"},
};

bool masks_join(Elaborator *e, const Value *x, const Value *y, Span span, const Value **out) {
    *out = x->mask ? x->mask : y->mask;
    if (!x->mask || !y->mask || x->mask->node == y->mask->node) return true;
    Diag *d = elaborate_error(e, "P0257", span, "two losses with different weights meet here");
    diag_help(d, "weigh one of them by hand: `a * mask` is a plain tensor");
    return false;
}

static bool shapes_fit(Elaborator *e, const Expr *expr, const Node *x, const Node *y) {
    if (shape_contains(&x->shape, &y->shape) || shape_contains(&y->shape, &x->shape)) return true;
    Shape missing = shape_without(&y->shape, &x->shape);
    Diag *d =
        elaborate_error(e, "P0201", expr->op_span.file ? expr->op_span : expr->span,
                        "operands of `%s` have dimensions %s and %s: neither contains the other",
                        binary_ops[expr->op].sign, shape_text(e->arena, &x->shape), shape_text(e->arena, &y->shape));
    diag_label(d, "`%s` is only in the right one", missing.dims[0]->name);
    diag_help(d, "bring both to the same dimensions: `rename` one, or sum what the other lacks away");
    return false;
}

static Value tensor_binary(Elaborator *e, const Expr *expr, const Value *x, const Value *y) {
    DType dtype = x->kind == VALUE_TENSOR ? x->node->dtype : y->node->dtype;
    Node *in[2] = {value_node(e, x, dtype, expr->args.at[0]->span), value_node(e, y, dtype, expr->args.at[1]->span)};
    const Value *mask = NULL;
    if (!in[0] || !in[1] || !masks_join(e, x, y, expr->span, &mask) || !shapes_fit(e, expr, in[0], in[1]))
        return poison();
    if (binary_ops[expr->op].swap) {
        Node *first = in[0];
        in[0] = in[1];
        in[1] = first;
    }
    Node *node = elaborate_op(e, expr->span, binary_ops[expr->op].op, in, 2, NULL);
    if (node && binary_ops[expr->op].negate) node = elaborate_op(e, expr->span, OP_NOT, &node, 1, NULL);
    Value v = tensor_value(e, node);
    v.mask = mask;
    return v;
}

static Value binary_value(Elaborator *e, const Expr *expr) {
    Value x = expr_value(e, expr->args.at[0]);
    Value y = expr_value(e, expr->args.at[1]);
    if (x.kind == VALUE_POISON || y.kind == VALUE_POISON) return poison();
    if ((x.kind == VALUE_TENSOR || y.kind == VALUE_TENSOR) && x.kind != VALUE_NONE && y.kind != VALUE_NONE)
        return tensor_binary(e, expr, &x, &y);
    x = as_number(x);
    y = as_number(y);
    if (expr->op >= BIN_EQ && expr->op <= BIN_GE) return fold_comparison(e, expr, &x, &y);
    if (expr->op == BIN_AND || expr->op == BIN_OR) return fold_logic(e, expr, &x, &y);
    if (x.kind == VALUE_NUMBER && y.kind == VALUE_NUMBER) return fold_arithmetic(e, expr, x, y);
    const Value *wrong = x.kind != VALUE_NUMBER && x.kind != VALUE_TENSOR ? &x : &y;
    Diag *d =
        elaborate_error(e, "P0255", expr->span, "`%s` cannot take %s", binary_ops[expr->op].sign, value_text(e, wrong));
    if (wrong->kind == VALUE_TUPLE) diag_help(d, "give each a name first: `a, b = ...`");
    return poison();
}

static Value unary_value(Elaborator *e, const Expr *expr) {
    Value x = as_number(expr_value(e, expr->args.at[0]));
    if (x.kind == VALUE_POISON) return x;
    bool minus = expr->op == '-';
    if (x.kind == VALUE_TENSOR) {
        Node *in = node_here(e, x.node, x.frame);
        Value v = tensor_value(e, elaborate_op(e, expr->span, minus ? OP_NEG : OP_NOT, &in, 1, NULL));
        v.mask = x.mask;
        return v;
    }
    if (minus && x.kind == VALUE_NUMBER) return number_value(-x.number, x.is_integer);
    if (!minus && x.kind == VALUE_BOOL) return bool_value(x.number == 0);
    elaborate_error(e, "P0255", expr->span, "`%s` cannot take %s", minus ? "-" : "not", value_text(e, &x));
    return poison();
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

/* `[0.7, 0.3] along task` */
static Value along_value(Elaborator *e, const Expr *expr) {
    const Expr *list = expr->args.at[0];
    LocalDim *local = dim_named(e, expr->args.at[1]);
    if (list->kind != EXPR_LIST) {
        if (list->kind != EXPR_ERROR) {
            Diag *d = elaborate_error(e, "P0258", list->span, "`along` stands after a list of numbers");
            diag_help(d, "write `[0.7, 0.3] along task`");
        }
        return poison();
    }
    double *values = NEW_N(e->arena, double, list->args.n + 1);
    bool ok = local != NULL, whole = false;
    for (int i = 0; i < list->args.n; i++)
        ok = expr_number(e, list->args.at[i], "an element of the list", &values[i], &whole) && ok;
    if (!ok) return poison();
    Dim *dim = dim_use(e, local);
    AttrValue attrs[] = {{.list = values, .integer = list->args.n}, {.dims = shape_of(&dim, 1)}, {.integer = DT_F32}};
    return tensor_value(e, elaborate_op(e, expr->span, OP_VECTOR, NULL, 0, attrs));
}

static Value named_value(Elaborator *e, const Expr *expr) {
    static const struct {
        const char *word;
        ValueKind kind;
        double number;
    } words[] = {{"true", VALUE_BOOL, 1}, {"false", VALUE_BOOL, 0}, {"none", VALUE_NONE, 0}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(expr->name, words[i].word) == 0)
            return (Value){.kind = words[i].kind, .number = words[i].number, .is_integer = true};
    return name_value(e, expr->name, expr->span);
}

static Value misplaced(Elaborator *e, const Expr *expr, const char *what) {
    elaborate_error(e, "P0258", expr->span, "%s cannot stand here", what);
    return poison();
}

static Value with_unit(Elaborator *e, const Expr *expr) {
    Diag *d = elaborate_error(e, "P0258", expr->span, "a tensor has no units");
    diag_help(d, "leave `%s` out", expr->name);
    return poison();
}

static Value tuple_value(Elaborator *e, const Expr *expr) {
    Value *items = NEW_N(e->arena, Value, expr->args.n + 1);
    bool ok = true;
    for (int i = 0; i < expr->args.n; i++) {
        items[i] = expr_value(e, expr->args.at[i]);
        ok = ok && items[i].kind != VALUE_POISON;
    }
    return ok ? (Value){.kind = VALUE_TUPLE, .items = items, .n_items = expr->args.n} : poison();
}

Value expr_value(Elaborator *e, const Expr *expr) {
    switch (expr->kind) {
    case EXPR_ERROR: return poison();
    case EXPR_NAME: return named_value(e, expr);
    case EXPR_MEMBER: return callee_value(e, expr);
    case EXPR_INT: return expr->name ? with_unit(e, expr) : number_value((double)expr->integer, true);
    case EXPR_FLOAT: return expr->name ? with_unit(e, expr) : number_value(expr->number, is_exact(expr->number));
    case EXPR_STRING: return misplaced(e, expr, "text");
    case EXPR_TUPLE: return tuple_value(e, expr);
    case EXPR_LIST: {
        Diag *d = elaborate_error(e, "P0258", expr->span, "a list needs the dimension along which it stands");
        diag_help(d, "write `[0.7, 0.3] along task`");
        return poison();
    }
    case EXPR_RANGE: return misplaced(e, expr, "a range");
    case EXPR_UNARY: return unary_value(e, expr);
    case EXPR_BINARY: return binary_value(e, expr);
    case EXPR_CALL: return call_value(e, expr);
    case EXPR_ARROW: return misplaced(e, expr, "an arrow, which names the dimensions that a layer or `rename` takes,");
    case EXPR_ALONG: return along_value(e, expr);
    }
    BUG("expression of kind %d", (int)expr->kind);
}
