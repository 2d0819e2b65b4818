/* Calls of layers: arguments are evaluated where the call stands, then bound to the parameters in a new scope, in which
 * the body is elaborated.
 *
 * Dimensions that the call names (`embed -> ffn`, `kv_head`) are bound first, then the patterns of tensors, then
 * defaults from left to right, which may use the parameters before them. */
#include "graph/elaborate.h"

typedef struct Argument {
    const Arg *arg;     /* NULL: not given */
    Value value;        /* of all but arrows */
    Value to[MAX_RANK]; /* of arrows: the right side; `value` is the left one */
    int n_to;
} Argument;

typedef struct Binder {
    Elaborator *e;
    const Expr *call;
    const Stmt *layer;
    Argument *arguments; /* one for each parameter */
    bool ok;
} Binder;

/* ---- the header of a layer, for messages -------------------------------------------------------- */

static void type_text(const TypeExpr *type, Text *text) {
    text_printf(text, ": %s[%s", type->dtype ? type->dtype : "", type->has_dots ? "..." : "");
    for (int i = 0; i < type->dims.n; i++)
        text_printf(text, "%s%s", i || type->has_dots ? ", " : "", type->dims.at[i]->name);
    text_puts(text, "]");
}

static void arrow_text(const Param *param, Text *text) {
    const Expr *to = param->arrow_to;
    text_puts(text, " -> ");
    if (to->kind != EXPR_TUPLE) {
        text_puts(text, to->name ? to->name : "?");
        return;
    }
    for (int i = 0; i < to->args.n; i++)
        text_printf(text, "%s%s", i ? ", " : "(", to->args.at[i]->name ? to->args.at[i]->name : "?");
    text_puts(text, ")");
}

static const char *layer_header(Elaborator *e, const Stmt *layer) {
    Text text = {.arena = e->arena};
    text_printf(&text, "%s(", layer->name);
    for (int i = 0; i < layer->params.n; i++) {
        const Param *param = &layer->params.at[i];
        text_printf(&text, "%s%s", i ? ", " : "", param->name);
        if (param->type.present) type_text(&param->type, &text);
        if (param->arrow_to) arrow_text(param, &text);
        if (param->value) text_puts(&text, " = ...");
    }
    text_puts(&text, ")");
    return text.at;
}

/* ---- evaluating the arguments, in the caller's scope -------------------------------------------- */

static void argument_arrow(Binder *k, const Param *param, Argument *a) {
    Elaborator *e = k->e;
    const Expr *expr = a->arg->value;
    if (expr->kind != EXPR_ARROW) {
        Text text = {.arena = e->arena};
        text_printf(&text, "%s", param->name);
        arrow_text(param, &text);
        Diag *d = elaborate_error(e, "P0163", expr->span, "`%s` of `%s` is given as `%s`", param->name, k->layer->name,
                                  text.at);
        diag_help(d, "write the input dimension, an arrow and what it becomes, as in `embed -> ffn`");
        k->ok = false;
        return;
    }
    const Expr *to = expr->args.at[1];
    int wanted = param->arrow_to->kind == EXPR_TUPLE ? param->arrow_to->args.n : 1;
    a->n_to = to->kind == EXPR_TUPLE ? to->args.n : 1;
    if (a->n_to != wanted || wanted > MAX_RANK) {
        Diag *d = elaborate_error(e, "P0163", to->span, "`%s` takes %d dimension%s after the arrow, not %d",
                                  k->layer->name, wanted, wanted == 1 ? "" : "s", a->n_to);
        diag_note(d, param->span, "declared here");
        k->ok = false;
        return;
    }
    a->value = expr_value(e, expr->args.at[0]);
    k->ok = k->ok && a->value.kind != VALUE_POISON;
    for (int i = 0; i < a->n_to; i++) {
        a->to[i] = expr_value(e, to->kind == EXPR_TUPLE ? to->args.at[i] : to);
        k->ok = k->ok && a->to[i].kind != VALUE_POISON;
    }
}

static int param_named(const Stmt *layer, Name name) {
    for (int i = 0; i < layer->params.n; i++)
        if (layer->params.at[i].name == name) return i;
    return -1;
}

static void argument_unknown(Binder *k, const Arg *arg) {
    Elaborator *e = k->e;
    Name names[64];
    int n = 0;
    for (int i = 0; i < k->layer->params.n && n < 64; i++) names[n++] = k->layer->params.at[i].name;
    Diag *d = elaborate_error(e, "P0156", arg->name_span,
                              arg->is_over ? "layer `%s` takes no `over`" : "layer `%s` has no parameter `%s`",
                              k->layer->name, arg->name);
    if (!arg->is_over && nearest_name(arg->name, names, n))
        help_candidates(e, d, arg->name, arg->name_span, names, n);
    else
        diag_help(d, "it is declared as `%s`", layer_header(e, k->layer));
    k->ok = false;
}

static void argument_take(Binder *k, int i, const Arg *arg) {
    Elaborator *e = k->e;
    const Param *param = &k->layer->params.at[i];
    Argument *a = &k->arguments[i];
    if (a->arg) {
        elaborate_error(e, "P0157", arg->name ? arg->name_span : arg->value->span, "`%s` of `%s` is given twice",
                        param->name, k->layer->name);
        k->ok = false;
        return;
    }
    a->arg = arg;
    if (param->arrow_to) {
        argument_arrow(k, param, a);
        return;
    }
    if (arg->value->kind == EXPR_ARROW) {
        Diag *d =
            elaborate_error(e, "P0163", arg->value->span, "`%s` of `%s` takes no arrow", param->name, k->layer->name);
        diag_note(d, param->span, "declared here");
        k->ok = false;
        return;
    }
    a->value = expr_value(e, arg->value);
    k->ok = k->ok && a->value.kind != VALUE_POISON;
}

static void arguments_sort(Binder *k) {
    Elaborator *e = k->e;
    int position = 0, too_many = 0;
    for (int i = 0; i < k->call->call.n; i++) {
        const Arg *arg = &k->call->call.at[i];
        int index = arg->is_over ? -1 : arg->name ? param_named(k->layer, arg->name) : position++;
        if (index >= 0 && index < k->layer->params.n) {
            argument_take(k, index, arg);
        } else if (arg->name) {
            argument_unknown(k, arg);
            if (!arg->is_over) expr_value(e, arg->value);
        } else if (too_many++ == 0) {
            Diag *d = elaborate_error(e, "P0159", arg->value->span, "layer `%s` takes %d argument%s", k->layer->name,
                                      k->layer->params.n, k->layer->params.n == 1 ? "" : "s");
            diag_help(d, "it is declared as `%s`", layer_header(e, k->layer));
            k->ok = false;
        }
    }
    for (int i = 0; i < k->layer->params.n; i++) {
        const Param *param = &k->layer->params.at[i];
        if (k->arguments[i].arg || param->value) continue;
        Diag *d =
            elaborate_error(e, "P0160", k->call->span, "`%s` lacks its argument `%s`", k->layer->name, param->name);
        diag_help(d, "it is declared as `%s`", layer_header(e, k->layer));
        k->ok = false;
        return;
    }
}

/* ---- binding the parameters, in the layer's scope ----------------------------------------------- */

/* Whether a pattern or an arrow of the layer uses the name: then it must be a dimension. */
static bool names_dimension(const Stmt *layer, Name name) {
    for (int i = 0; i < layer->params.n; i++) {
        const TypeExpr *type = &layer->params.at[i].type;
        for (int k = 0; k < type->dims.n; k++)
            if (type->dims.at[k]->name == name) return true;
    }
    return false;
}

static bool bind_dimension(Binder *k, Name name, Span declared, Value v, Span span) {
    Elaborator *e = k->e;
    if (v.kind == VALUE_NUMBER && v.is_integer && v.number >= 1)
        v = (Value){.kind = VALUE_DIM, .dim = dim_declare(e, name, (int64_t)v.number, NULL, span)};
    if (v.kind != VALUE_DIM) {
        Diag *d = elaborate_error(e, "P0164", span, "`%s` of `%s` is a dimension or a size, not %s", name,
                                  k->layer->name, value_text(e, &v));
        diag_note(d, declared, "declared here");
        return false;
    }
    return scope_declare(e, name, SYMBOL_PARAMETER, declared, v) != NULL;
}

static bool bind_arrow(Binder *k, const Param *param, const Argument *a) {
    const Expr *to = param->arrow_to;
    Span span = a->arg->value->span;
    bool ok = bind_dimension(k, param->name, param->span, a->value, span);
    for (int i = 0; i < a->n_to; i++) {
        const Expr *name = to->kind == EXPR_TUPLE ? to->args.at[i] : to;
        if (name->kind == EXPR_NAME) ok = bind_dimension(k, name->name, name->span, a->to[i], span) && ok;
    }
    return ok;
}

/* The element type that a parameter may state: `ids: int[...]`. */
static bool is_element_type(Elaborator *e, const Param *param) {
    static const char *const types[] = {"float", "int", "bool"};
    if (!param->type.dtype) return true;
    for (int i = 0; i < 3; i++)
        if (strcmp(param->type.dtype, types[i]) == 0) return true;
    Diag *d =
        elaborate_error(e, "P0261", param->type.span, "parameter `%s` of type `%s`", param->name, param->type.dtype);
    help_candidates(e, d, param->type.dtype, param->type.span, types, 3);
    return false;
}

static bool bind_tensor(Binder *k, const Param *param, const Argument *a) {
    Elaborator *e = k->e;
    Span span = a->arg->value->span;
    if (!is_element_type(e, param)) return false;
    Value v = a->value;
    if (v.kind == VALUE_NONE && param->value)
        return scope_declare(e, param->name, SYMBOL_PARAMETER, param->span, v) != NULL;
    if (v.kind != VALUE_TENSOR) {
        Diag *d = elaborate_error(e, "P0164", span, "`%s` of `%s` is a tensor, not %s", param->name, k->layer->name,
                                  value_text(e, &v));
        diag_note(d, param->span, "declared here");
        return false;
    }
    bool wants_int = param->type.dtype && strcmp(param->type.dtype, "int") == 0;
    bool wants_bool = param->type.dtype && strcmp(param->type.dtype, "bool") == 0;
    bool fits = wants_int    ? v.node->dtype == DT_I32
                : wants_bool ? v.node->dtype == DT_BOOL
                             : dtype_is_float(v.node->dtype);
    if (!fits && (param->type.dtype || v.node->dtype != DT_I32)) {
        Diag *d =
            elaborate_error(e, "P0164", span, "`%s` of `%s` is a tensor of %s, not of %s", param->name, k->layer->name,
                            param->type.dtype ? param->type.dtype : "float", dtype_name[v.node->dtype]);
        diag_note(d, param->span, "declared here");
        return false;
    }
    return pattern_bind(e, param, &v, span) && scope_declare(e, param->name, SYMBOL_PARAMETER, param->span, v);
}

static bool bind_given(Binder *k) {
    Elaborator *e = k->e;
    bool ok = true;
    for (int i = 0; i < k->layer->params.n; i++) { /* dimensions that the call names */
        const Param *param = &k->layer->params.at[i];
        const Argument *a = &k->arguments[i];
        if (!a->arg || param->type.present) continue;
        if (param->arrow_to)
            ok = bind_arrow(k, param, a) && ok;
        else if (names_dimension(k->layer, param->name))
            ok = bind_dimension(k, param->name, param->span, a->value, a->arg->value->span) && ok;
        else
            ok = scope_declare(e, param->name, SYMBOL_PARAMETER, param->span, a->value) && ok;
    }
    for (int i = 0; ok && i < k->layer->params.n; i++) {
        const Param *param = &k->layer->params.at[i];
        if (k->arguments[i].arg && param->type.present) ok = bind_tensor(k, param, &k->arguments[i]);
    }
    for (int i = 0; ok && i < k->layer->params.n; i++) {
        const Param *param = &k->layer->params.at[i];
        if (k->arguments[i].arg) continue;
        Value v = expr_value(e, param->value);
        ok = v.kind != VALUE_POISON && scope_declare(e, param->name, SYMBOL_PARAMETER, param->span, v);
    }
    return ok;
}

/* ---- the call ----------------------------------------------------------------------------------- */

static bool is_recursive(Elaborator *e, const Expr *call, const Stmt *layer) {
    for (const Scope *scope = e->scope; scope; scope = scope->caller) {
        if (scope->decl != layer) continue;
        Diag *d = elaborate_error(e, "P0165", call->args.at[0]->span, "layer `%s` calls itself: it would never end",
                                  layer->name);
        diag_help(d, "`repeat` over a dimension runs a body several times");
        return true;
    }
    return false;
}

static Value layer_result(Elaborator *e, const Expr *call, const Scope *scope) {
    if (scope->returned) return scope->result;
    bool half_read = diag_any_error(e->s, "P00", (Span){scope->decl->span.file, 0, INT32_MAX});
    if (!scope->poisoned && !half_read) {
        Diag *d = elaborate_error(e, "P0166", call->span, "`%s` returns nothing", scope->decl->name);
        diag_note(d, scope->decl->head, "this layer has no `return`%s", scope->decl->body.n ? " that is reached" : "");
        diag_help(d, "end its body with `return y`");
    }
    return poison();
}

Value layer_call(Elaborator *e, const Expr *call, const Value *callee) {
    const Stmt *layer = callee->layer;
    Binder k = {
        .e = e, .call = call, .layer = layer, .arguments = NEW_N(e->arena, Argument, layer->params.n + 1), .ok = true};
    arguments_sort(&k);
    if (!k.ok || is_recursive(e, call, layer)) return poison();
    Scope scope = scope_new(e, callee->file, layer, call->span);
    scope.path = path_unique(e, e->scope->path, layer->name);
    const char *last = strrchr(scope.path, '.');
    scope.dim_path = path_join(e, e->scope->dim_path, last ? intern(e->s->names, last + 1) : scope.path);
    e->scope = &scope;
    e->b.path = scope.path;
    Value result = poison();
    if (bind_given(&k)) {
        statements(e, &layer->body);
        result = layer_result(e, call, &scope);
        if (!scope.poisoned) unused_names(e, layer);
    }
    e->scope = scope.caller;
    e->b.path = e->scope->path;
    return result;
}
