/* Dimensions: declarations, sizes, factors, second names, shapes, and the patterns of a layer's parameters.
 *
 * A size is a whole number of at least 1; a quotient must be exact. A pattern `x: [..., seq, in]` gives the caller's
 * dimensions local names, from the right; names that the call has bound already (`embed -> ffn` binds `in`) must be
 * among the tensor's dimensions and stand aside first. */
#include "graph/elaborate.h"

/* ---- declaring and using ----------------------------------------------------------------------------------------- */

LocalDim *dim_declare(Elaborator *e, Name name, int64_t size, LocalDim *like, Span span) {
    LocalDim *dim = NEW(e->arena, LocalDim);
    *dim = (LocalDim){.name = name, .size = size, .like = like, .span = span};
    dim->path = path_join(e, e->scope->dim_path, name);
    dim->full_path = path_join(e, e->scope->path, name);
    return dim;
}

static bool path_taken(const Elaborator *e, Name path) {
    for (int i = 0; i < e->graph->dims.n; i++)
        if (e->graph->dims.at[i]->name == path) return true;
    return false;
}

Dim *dim_use(Elaborator *e, LocalDim *dim) {
    if (dim->dim) return dim->dim;
    Dim *like = dim->like ? dim_use(e, dim->like) : NULL;
    Name path = dim->path;
    if (path_taken(e, path)) path = dim->full_path;
    for (int count = 2; path_taken(e, path); count++)
        path = intern(e->s->names, arena_printf(e->arena, "%s_%d", dim->full_path, count));
    dim->dim = graph_add_dim(e->graph, path, dim->size, dim->span);
    dim->dim->like = like;
    return dim->dim;
}

static void not_a_dimension(Elaborator *e, const Expr *name, const Value *v) {
    Diag *d = elaborate_error(e, "P0155", name->span, "`%s` is %s, not a dimension", name->name, value_text(e, v));
    Symbol *symbol = scope_get(e, name->name);
    if (symbol) diag_note(d, symbol->span, "declared here");
    diag_help(d, "name a dimension, declared with `dim`");
    if (symbol) symbol->value = (Value){.kind = VALUE_POISON}; /* said once */
}

LocalDim *dim_named(Elaborator *e, const Expr *name) {
    if (name->kind == EXPR_ERROR) return NULL;
    if (name->kind != EXPR_NAME) {
        Diag *d = elaborate_error(e, "P0155", name->span, "a dimension's name belongs here");
        diag_help(d, "declare the size under a name: `dim width = ...`");
        return NULL;
    }
    Symbol *symbol = scope_get(e, name->name);
    if (!symbol && name->name == e->batch->name) return e->batch;
    if (!symbol) {
        Value v = name_value(e, name->name, name->span);
        if (v.kind != VALUE_POISON) not_a_dimension(e, name, &v);
        return NULL;
    }
    Value *v = &symbol->value;
    if (v->kind == VALUE_NUMBER && symbol->kind == SYMBOL_PARAMETER && v->is_integer && v->number >= 1)
        *v = (Value){.kind = VALUE_DIM, .dim = dim_declare(e, symbol->name, (int64_t)v->number, NULL, symbol->span)};
    if (v->kind == VALUE_DIM) return v->dim;
    if (v->kind != VALUE_POISON) not_a_dimension(e, name, v);
    return NULL;
}

bool dims_named(Elaborator *e, const Expr *names, Shape *out) {
    bool ok = true;
    int n = names->kind == EXPR_TUPLE ? names->args.n : 1;
    for (int i = 0; i < n; i++) {
        const Expr *name = names->kind == EXPR_TUPLE ? names->args.at[i] : names;
        LocalDim *local = dim_named(e, name);
        if (!local) {
            ok = false;
            continue;
        }
        Dim *dim = dim_use(e, local);
        if (shape_find(out, dim) >= 0) {
            elaborate_error(e, "P0251", name->span, "dimension `%s` stands twice", local->name);
            ok = false;
        } else if (out->n == MAX_RANK) {
            elaborate_error(e, "P0252", name->span, "more than %d dimensions", MAX_RANK);
            return false;
        } else {
            out->dims[out->n++] = dim;
        }
    }
    return ok;
}

bool type_shape(Elaborator *e, const TypeExpr *type, Shape *out) {
    *out = (Shape){.n = 0};
    if (type->has_dots) {
        Diag *d = elaborate_error(e, "P0252", type->span,
                                  "`...` stands for a caller's dimensions: only a layer's parameter has any");
        diag_help(d, "name every dimension");
        return false;
    }
    bool ok = true;
    for (int i = 0; i < type->dims.n; i++) {
        const Expr *name = type->dims.at[i];
        Shape one = {.n = 0};
        if (!dims_named(e, name, &one)) {
            ok = false;
            continue;
        }
        if (shape_find(out, one.dims[0]) >= 0) {
            Diag *d =
                elaborate_error(e, "P0251", name->span, "dimension `%s` stands twice in one tensor", one.dims[0]->name);
            diag_help(d,
                      "declare a second name for the same size: `dim other = %s`, or `dim other = like %s` for the "
                      "same positions",
                      one.dims[0]->name, one.dims[0]->name);
            ok = false;
        } else if (out->n == MAX_RANK - 2) { /* room for the dimensions of repeats */
            elaborate_error(e, "P0252", name->span, "more than %d dimensions", MAX_RANK - 2);
            return false;
        } else {
            out->dims[out->n++] = one.dims[0];
        }
    }
    return ok;
}

/* ---- sizes ---------------------------------------------------------------------------------------------------- */

/* Divisors of `whole` that are nearest to `part`, on both sides. */
static const char *near_divisors(Elaborator *e, int64_t whole, int64_t part) {
    int64_t below = 1, above = whole;
    for (int64_t i = 1; i <= 1000000 && i * i <= whole; i++) {
        if (whole % i) continue;
        for (int k = 0; k < 2; k++) {
            int64_t divisor = k ? whole / i : i;
            if (divisor < part && divisor > below) below = divisor;
            if (divisor > part && divisor < above) above = divisor;
        }
    }
    if (below == above || part > whole) return arena_printf(e->arena, "%lld", (long long)whole);
    return arena_printf(e->arena, "%lld or %lld", (long long)below, (long long)above);
}

static void inexact(Elaborator *e, const Expr *quotient, const char *what, int64_t left, int64_t right) {
    const Expr *divisor = quotient->args.at[1];
    Diag *d = elaborate_error(e, "P0350", quotient->span, "%s is not a whole number: %lld / %lld leaves a rest of %lld",
                              what, (long long)left, (long long)right, (long long)(left % right));
    diag_help(d, "%s could be %s; or make the %lld a multiple of %lld",
              divisor->kind == EXPR_NAME ? arena_printf(e->arena, "`%s`", divisor->name) : "the divisor",
              near_divisors(e, left, right), (long long)left, (long long)right);
}

bool size_value(Elaborator *e, const Expr *expr, const char *what, int64_t *out) {
    double number = 0;
    bool is_integer = false;
    if (!expr_number(e, expr, what, &number, &is_integer)) return false;
    if (!is_integer && expr->kind == EXPR_BINARY && expr->op == BIN_DIV) {
        double left = 0, right = 0;
        bool left_whole = false, right_whole = false;
        if (expr_number(e, expr->args.at[0], what, &left, &left_whole) && left_whole &&
            expr_number(e, expr->args.at[1], what, &right, &right_whole) && right_whole) {
            inexact(e, expr, what, (int64_t)left, (int64_t)right);
            return false;
        }
    }
    if (!is_integer) {
        elaborate_error(e, "P0351", expr->span, "%s must be a whole number, not %g", what, number);
        return false;
    }
    if (number < 1 || number > 9e15) {
        elaborate_error(e, "P0351", expr->span, "%s must be at least 1, not %.0f", what, number);
        return false;
    }
    *out = (int64_t)number;
    return true;
}

static void like_declare(Elaborator *e, const Binding *binding) {
    LocalDim *like = binding->value ? dim_named(e, binding->value) : NULL;
    Value v = poison();
    if (like)
        v = (Value){.kind = VALUE_DIM, .dim = dim_declare(e, binding->name, like->size, like, binding->name_span)};
    if (like && e->scope->decl->kind == STMT_MODEL && !scope_get(e, binding->name)) dim_use(e, v.dim);
    scope_declare(e, binding->name, SYMBOL_DIM, binding->name_span, v);
}

void dim_statement(Elaborator *e, const Stmt *stmt) {
    bool in_model = e->scope->decl->kind == STMT_MODEL;
    for (int i = 0; i < stmt->bindings.n; i++) {
        const Binding *binding = &stmt->bindings.at[i];
        if (binding->is_like) {
            like_declare(e, binding);
            continue;
        }
        const Expr *size = in_model ? override_take(e, binding->name) : NULL;
        if (!size) size = binding->value;
        int64_t n = 0;
        Value v = poison();
        if (!size) {
            Diag *d = elaborate_error(e, "P0351", binding->name_span, "`%s` has no size", binding->name);
            diag_help(d, "write `dim %s = 64`", binding->name);
        } else if (size_value(e, size, arena_printf(e->arena, "`%s`", binding->name), &n)) {
            LocalDim *dim = dim_declare(e, binding->name, n, NULL, binding->name_span);
            if (in_model && !scope_get(e, binding->name) && binding->name != e->batch->name) dim_use(e, dim);
            v = (Value){.kind = VALUE_DIM, .dim = dim};
        }
        scope_declare(e, binding->name, SYMBOL_DIM, binding->name_span, v);
    }
}

/* ---- factors ---------------------------------------------------------------------------------------------------- */

static int64_t product_of(LocalDim *const *dims, int n) {
    int64_t product = 1;
    for (int i = 0; i < n; i++) product *= dims[i]->size;
    return product;
}

/* The dimension already has the same factors, from another call: the local names join them. */
static bool factors_join(Elaborator *e, const Stmt *stmt, Dim *whole, LocalDim **factors, int n) {
    bool same = whole->n_factors == n;
    for (int i = 0; same && i < n; i++)
        same =
            whole->factors[i]->size == factors[i]->size && (!factors[i]->dim || factors[i]->dim == whole->factors[i]);
    if (!same) {
        Text text = {.arena = e->arena};
        for (int i = 0; i < whole->n_factors; i++)
            text_printf(&text, "%s`%s` (%lld)", i ? ", " : "", whole->factors[i]->name,
                        (long long)whole->factors[i]->size);
        Diag *d = elaborate_error(e, "P0253", stmt->head, "`%s` has other factors already: %s", whole->name, text.at);
        diag_help(d, "give this use a dimension of its own");
        return false;
    }
    for (int i = 0; i < n; i++) factors[i]->dim = whole->factors[i];
    return true;
}

void factors_statement(Elaborator *e, const Stmt *stmt) {
    Expr whole_name = {.kind = EXPR_NAME, .span = stmt->name_span, .name = stmt->name, .name_span = stmt->name_span};
    LocalDim *whole = dim_named(e, &whole_name);
    LocalDim *factors[MAX_RANK];
    bool tuple = stmt->value && stmt->value->kind == EXPR_TUPLE;
    int n = tuple ? stmt->value->args.n : 0;
    if (n < 2 || n > MAX_RANK) {
        if (!stmt->value || stmt->value->kind == EXPR_ERROR) return;
        Diag *d = elaborate_error(e, "P0253", stmt->head, "`factors` needs at least two dimensions");
        diag_help(d, "write `factors %s = (left, right)`", stmt->name);
        return;
    }
    bool ok = whole != NULL;
    for (int i = 0; i < n; i++) {
        factors[i] = dim_named(e, stmt->value->args.at[i]);
        ok = ok && factors[i];
    }
    if (!ok) return;
    int64_t product = product_of(factors, n);
    if (product != whole->size) {
        Text text = {.arena = e->arena};
        for (int i = 0; i < n; i++) text_printf(&text, "%s%lld", i ? " x " : "", (long long)factors[i]->size);
        Diag *d = elaborate_error(e, "P0352", stmt->head, "`%s` is %lld, but its factors make %s = %lld", whole->name,
                                  (long long)whole->size, text.at, (long long)product);
        diag_help(d, "change a size so that the product is exact");
        return;
    }
    for (int i = 0; i < n; i++)
        if (factors[i] == whole || (whole->dim && factors[i]->dim == whole->dim))
            return; /* head = (head, 1): nothing is cut */
    Dim *dim = dim_use(e, whole);
    if (dim->n_factors) {
        factors_join(e, stmt, dim, factors, n);
        return;
    }
    dim->factors = NEW_N(e->arena, Dim *, n);
    dim->n_factors = n;
    for (int i = 0; i < n; i++) {
        Dim *factor = dim_use(e, factors[i]);
        dim->factors[i] = factor;
        if (factor->product && factor->product != dim) {
            Diag *d = elaborate_error(e, "P0253", stmt->head, "`%s` is a factor of `%s` already", factor->name,
                                      factor->product->name);
            diag_help(d, "declare a dimension of its own for this use: `dim other = %s`", factors[i]->name);
            return;
        }
        factor->product = dim;
    }
}

/* ---- patterns ----------------------------------------------------------------------------------- */

static LocalDim *local_of(Elaborator *e, Dim *dim) {
    LocalDim *local = NEW(e->arena, LocalDim);
    *local = (LocalDim){
        .name = dim->name, .path = dim->name, .full_path = dim->name, .size = dim->size, .dim = dim, .span = dim->span};
    return local;
}

static void pattern_error(Elaborator *e, const Param *param, const Value *given, Span span, const char *why) {
    Text text = {.arena = e->arena};
    text_printf(&text, "[%s", param->type.has_dots ? "..." : "");
    for (int i = 0; i < param->type.dims.n; i++)
        text_printf(&text, "%s%s", i || param->type.has_dots ? ", " : "", param->type.dims.at[i]->name);
    Diag *d = elaborate_error(e, "P0254", span, "`%s` of `%s` takes a tensor %s], not %s: %s", param->name,
                              e->scope->decl->name, text.at, shape_text(e->arena, &given->node->shape), why);
    diag_note(d, param->span, "declared here");
}

bool pattern_bind(Elaborator *e, const Param *param, const Value *given, Span span) {
    const TypeExpr *type = &param->type;
    Shape rest = given->node->shape;
    /* Names that are bound stand aside first, wherever they are. */
    for (int i = 0; i < type->dims.n; i++) {
        const Expr *name = type->dims.at[i];
        if (name->kind != EXPR_NAME || (!scope_get(e, name->name) && name->name != e->batch->name)) continue;
        LocalDim *bound = dim_named(e, name);
        if (!bound) return false;
        int at = bound->dim ? shape_find(&rest, bound->dim) : -1;
        if (at < 0) {
            pattern_error(e, param, given, span,
                          arena_printf(e->arena, "it has no dimension `%s`%s",
                                       bound->dim ? bound->dim->name : bound->name,
                                       bound->name != name->name || bound->dim
                                           ? arena_printf(e->arena, ", which the call gives as `%s`", name->name)
                                           : ""));
            return false;
        }
        for (rest.n--; at < rest.n; at++) rest.dims[at] = rest.dims[at + 1];
    }
    for (int i = type->dims.n - 1; i >= 0; i--) {
        const Expr *name = type->dims.at[i];
        if (name->kind != EXPR_NAME || scope_get(e, name->name) || name->name == e->batch->name) continue;
        if (rest.n == 0) {
            pattern_error(e, param, given, span, arena_printf(e->arena, "nothing is left for `%s`", name->name));
            return false;
        }
        Value v = {.kind = VALUE_DIM, .dim = local_of(e, rest.dims[--rest.n])};
        scope_declare(e, name->name, SYMBOL_DIM, name->span, v);
    }
    if (!type->has_dots && rest.n > 0) {
        pattern_error(e, param, given, span, arena_printf(e->arena, "`%s` is left over", rest.dims[rest.n - 1]->name));
        return false;
    }
    return true;
}

bool dim_is_position(const Elaborator *e, const Dim *dim) {
    for (; dim; dim = dim->like)
        for (int i = 0; i < e->graph->tensors.n; i++) {
            const Tensor *tensor = e->graph->tensors.at[i];
            if (tensor->class != CLASS_DATA || tensor->dtype != DT_I32 || tensor->shape.n == 0) continue;
            const Dim *last = tensor->shape.dims[tensor->shape.n - 1];
            if (last == dim && !last->is_batch) return true;
        }
    return false;
}
