/* Constant expressions: the values of properties, constants and settings.
 *
 * In: an expression and the file it stands in. Out: a Quantity, a number with a unit or a piece of text. Integers stay
 * exact; + and - want equal units, * and / combine them. A mistake is reported where it is, once; the poisoned
 * Quantity (`ok` false) that comes back silences every use. */
#include <math.h>

#include "model/resolve.h"

static Quantity poison(void) { return (Quantity){.ok = false}; }

static Quantity of_number(double value, Unit unit) { return (Quantity){.ok = true, .value = value, .unit = unit}; }

static Quantity of_integer(int64_t value) {
    return (Quantity){.ok = true, .is_integer = true, .integer = value, .value = (double)value};
}

const char *quantity_type(Arena *arena, const Quantity *q) {
    if (q->text != NULL) return "text";
    if (!unit_equal(q->unit, UNIT_NONE)) return unit_text(arena, q->unit);
    return q->is_integer ? "a whole number" : "a number with a fraction";
}

/* `quiet`: nothing is reported (quantity_try). */
typedef struct Evaluation {
    Resolver *r;
    FileScope *scope;
    bool quiet;
} Evaluation;

static Quantity evaluate(Evaluation *ev, const Expr *e);

static Quantity evaluate_literal(Evaluation *ev, const Expr *e) {
    if (e->name == NULL) return e->kind == EXPR_INT ? of_integer(e->integer) : of_number(e->number, UNIT_NONE);
    Unit unit;
    double factor;
    if (unit_find(e->name, &unit, &factor)) return of_number(e->number * factor, unit);
    if (!ev->quiet) {
        Diag *d = diag_error(ev->r->s, "P0128", e->name_span, "unknown unit `%s`", e->name);
        VEC(Name) spellings = {0};
        for (int i = 0; unit_spelling(i) != NULL; i++) vec_push(ev->r->arena, &spellings, unit_spelling(i));
        help_nearest(ev->r, d, e->name, spellings.at, spellings.n, e->name_span);
    }
    return poison();
}

static Quantity evaluate_constant(Evaluation *ev, FileScope *home, Name name) {
    Constant *constant = map_get(&home->constants, name);
    if (constant->state == CONSTANT_BUSY) {
        if (!ev->quiet)
            diag_error(ev->r->s, "P0126", constant->binding->name_span, "constant `%s` is defined by itself", name);
        return poison();
    }
    if (constant->state == CONSTANT_NEW) {
        constant->state = CONSTANT_BUSY;
        const Expr *given = home->is_main ? setting_find(ev->r, name, "a constant") : NULL;
        const Expr *value = given != NULL ? given : constant->binding->value;
        constant->value = value == NULL ? poison() : quantity_eval(ev->r, home, value);
        constant->state = CONSTANT_DONE;
    }
    return constant->value;
}

static Quantity evaluate_name(Evaluation *ev, const Expr *e) {
    FileScope *found = NULL;
    const Stmt *stmt =
        ev->quiet ? scope_peek(ev->scope, e, &found) : scope_find(ev->r, ev->scope, e, STMT_CONST, &found);
    if (stmt == NULL || stmt->kind != STMT_CONST) return poison();
    return evaluate_constant(ev, found, e->name);
}

static const char *const op_symbol[] = {"+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=", "and", "or"};

static Quantity combine_integers(Evaluation *ev, const Expr *e, int64_t x, int64_t y) {
    int64_t z = 0;
    bool over = e->op == BIN_ADD   ? __builtin_add_overflow(x, y, &z)
                : e->op == BIN_SUB ? __builtin_sub_overflow(x, y, &z)
                                   : __builtin_mul_overflow(x, y, &z);
    if (!over) return of_integer(z);
    if (!ev->quiet)
        diag_error(ev->r->s, "P0129", e->span, "%lld %s %lld is too large for a 64-bit integer", (long long)x,
                   op_symbol[e->op], (long long)y);
    return poison();
}

static Quantity combine_quotient(Evaluation *ev, const Expr *e, const Quantity *x, const Quantity *y) {
    if (y->value == 0) {
        if (!ev->quiet) diag_error(ev->r->s, "P0129", e->args.at[1]->span, "division by zero");
        return poison();
    }
    bool whole = x->is_integer && y->is_integer && y->integer != -1 && x->integer % y->integer == 0;
    if (whole) return of_integer(x->integer / y->integer);
    Unit unit = {x->unit.bytes - y->unit.bytes, x->unit.seconds - y->unit.seconds, x->unit.watts - y->unit.watts,
                 x->unit.flops - y->unit.flops};
    return of_number(x->value / y->value, unit);
}

static Quantity evaluate_binary(Evaluation *ev, const Expr *e) {
    Quantity x = evaluate(ev, e->args.at[0]), y = evaluate(ev, e->args.at[1]);
    if (!x.ok || !y.ok) return poison();
    Arena *arena = ev->r->arena;
    bool sum = e->op == BIN_ADD || e->op == BIN_SUB;
    bool arithmetic = sum || e->op == BIN_MUL || e->op == BIN_DIV;
    if (!arithmetic || x.text != NULL || y.text != NULL || (sum && !unit_equal(x.unit, y.unit))) {
        if (!ev->quiet) {
            Diag *d = diag_error(ev->r->s, "P0128", e->span, "`%s` does not fit %s and %s", op_symbol[e->op],
                                 quantity_type(arena, &x), quantity_type(arena, &y));
            if (sum && x.text == NULL && y.text == NULL) diag_help(d, "give both sides the same kind of unit");
        }
        return poison();
    }
    if (e->op == BIN_DIV) return combine_quotient(ev, e, &x, &y);
    if (x.is_integer && y.is_integer) return combine_integers(ev, e, x.integer, y.integer);
    if (sum) return of_number(e->op == BIN_ADD ? x.value + y.value : x.value - y.value, x.unit);
    Unit unit = {x.unit.bytes + y.unit.bytes, x.unit.seconds + y.unit.seconds, x.unit.watts + y.unit.watts,
                 x.unit.flops + y.unit.flops};
    return of_number(x.value * y.value, unit);
}

static Quantity evaluate_unary(Evaluation *ev, const Expr *e) {
    Quantity x = evaluate(ev, e->args.at[0]);
    if (!x.ok) return x;
    if (e->op != '-' || x.text != NULL) {
        if (!ev->quiet)
            diag_error(ev->r->s, "P0128", e->span, "`%s` does not fit %s", e->op == '-' ? "-" : "not",
                       quantity_type(ev->r->arena, &x));
        return poison();
    }
    x.value = -x.value;
    x.integer = -x.integer; /* a literal is never the most negative integer */
    return x;
}

static Quantity evaluate(Evaluation *ev, const Expr *e) {
    switch (e->kind) {
    case EXPR_ERROR: return poison();
    case EXPR_INT:
    case EXPR_FLOAT: return evaluate_literal(ev, e);
    case EXPR_STRING: return (Quantity){.ok = true, .text = e->text};
    case EXPR_NAME:
    case EXPR_MEMBER: return evaluate_name(ev, e);
    case EXPR_UNARY: return evaluate_unary(ev, e);
    case EXPR_BINARY: return evaluate_binary(ev, e);
    default: break;
    }
    if (!ev->quiet) diag_error(ev->r->s, "P0127", e->span, "a constant value is needed here, and this is not one");
    return poison();
}

Quantity quantity_eval(Resolver *r, FileScope *scope, const Expr *e) {
    Evaluation ev = {r, scope, false};
    return evaluate(&ev, e);
}

bool quantity_try(Resolver *r, FileScope *scope, const Expr *e, Quantity *out) {
    Evaluation ev = {r, scope, true};
    *out = evaluate(&ev, e);
    return out->ok;
}

/* ---- values of a given type ---------------------------------------------------------------------------------- */

/* "`batch` needs a whole number, and `"8"` is text": both types, and the way out where it is plain. */
static void report_type(Resolver *r, const char *what, const char *needs, const Expr *e, const Quantity *q) {
    const char *shown = q->text != NULL ? arena_printf(r->arena, "`\"%s\"` is text", q->text)
                                        : arena_printf(r->arena, "this is %s", quantity_type(r->arena, q));
    Diag *d = diag_error(r->s, "P0127", e->span, "`%s` needs %s, and %s", what, needs, shown);
    if (q->text != NULL && q->text[0] != '\0' && strspn(q->text, "0123456789.eE+-") == strlen(q->text)) {
        diag_help(d, "write it without the quotation marks: `%s`", q->text);
        diag_fix(d, e->span, q->text);
    }
}

bool take_integer(Resolver *r, FileScope *scope, const char *what, const Expr *e, int64_t least, int64_t *out) {
    Quantity q = quantity_eval(r, scope, e);
    if (!q.ok) return false;
    bool plain = q.text == NULL && unit_equal(q.unit, UNIT_NONE);
    if (plain && !q.is_integer && q.value == floor(q.value) && fabs(q.value) < 9e15) { /* 1e6 */
        q.is_integer = true;
        q.integer = (int64_t)q.value;
    }
    if (!plain || !q.is_integer) {
        report_type(r, what, "a whole number", e, &q);
        return false;
    }
    if (q.integer < least) {
        diag_error(r->s, "P0129", e->span, "`%s` is %lld, and must be at least %lld", what, (long long)q.integer,
                   (long long)least);
        return false;
    }
    *out = q.integer;
    return true;
}

bool take_unit(Resolver *r, FileScope *scope, const char *what, const Expr *e, Unit unit, double *out) {
    Quantity q = quantity_eval(r, scope, e);
    if (!q.ok) return false;
    if (q.text != NULL || !unit_equal(q.unit, unit)) {
        report_type(r, what, unit_equal(unit, UNIT_NONE) ? "a number" : unit_text(r->arena, unit), e, &q);
        return false;
    }
    *out = q.value;
    return true;
}

bool take_number(Resolver *r, FileScope *scope, const char *what, const Expr *e, double *out) {
    return take_unit(r, scope, what, e, UNIT_NONE, out);
}

bool take_text(Resolver *r, FileScope *scope, const char *what, const Expr *e, const char **out) {
    if (e->kind == EXPR_NAME) { /* a word without quotation marks: no constant holds a path, so say it plainly */
        Diag *d = diag_error(r->s, "P0127", e->span, "`%s` needs text, and `%s` is a name", what, e->name);
        diag_help(d, "put it in quotation marks: `\"%s\"`", e->name);
        return false;
    }
    Quantity q = quantity_eval(r, scope, e);
    if (!q.ok) return false;
    if (q.text == NULL) {
        report_type(r, what, "text", e, &q);
        return false;
    }
    *out = q.text;
    return true;
}

bool take_name(Resolver *r, const char *what, const Expr *e, Name *out) {
    if (e->kind == EXPR_ERROR) return false;
    if (e->kind == EXPR_NAME) {
        *out = e->name;
        return true;
    }
    Diag *d = diag_error(r->s, "P0127", e->span, "`%s` needs a name", what);
    if (e->kind == EXPR_STRING) {
        diag_help(d, "write it without the quotation marks: `%s`", e->text);
        diag_fix(d, e->span, e->text);
    }
    return false;
}
