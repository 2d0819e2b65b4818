/* Calls of operators and layers: which argument goes where, defaults, and what is missing, unknown or too much.
 *
 * An operator takes its operands first, then its attributes in the order of the table; both may be given by name, its
 * dimensions after `over`. A layer's body is elaborated anew for each call, in a scope of its own. */
#include "graph/elaborate.h"

#include <math.h>

enum { MAX_ARGUMENTS = 16 };

/* ---- numbers ------------------------------------------------------------------------------------ */

/* sqrt(2 * layers) and the like, of numbers known now. */
static const struct {
    const char *name;
    double (*of)(double);
} number_functions[] = {{"abs", fabs}, {"exp", exp}, {"log", log}, {"sqrt", sqrt}};

static void weights_lost(Elaborator *e, const Expr *call, const char *name) {
    Diag *d = elaborate_error(e, "P0257", call->span, "`%s` of a weighted loss: its weights would be lost", name);
    diag_help(d, "weigh by hand, `cross_entropy(...) * mask`, and divide by the sum of the mask where you need a mean");
}

static bool fold_call(Elaborator *e, const Expr *call, Op op, Value *out) {
    if (call->call.n != 1 || call->call.at[0].name) return false;
    for (size_t i = 0; i < sizeof number_functions / sizeof number_functions[0]; i++) {
        if (strcmp(op_table[op]->name, number_functions[i].name) != 0) continue;
        const Expr *arg = call->call.at[0].value;
        Value v = expr_value(e, arg);
        if (v.kind == VALUE_DIM) v = number_value((double)v.dim->size, true);
        if (v.kind == VALUE_NUMBER) {
            double result = number_functions[i].of(v.number);
            if (!isfinite(result)) {
                elaborate_error(e, "P0353", call->span, "`%s` of %g is not a number", op_table[op]->name, v.number);
                *out = poison();
            } else {
                *out = number_value(result, result == floor(result) && fabs(result) < 9e15);
            }
            return true;
        }
        if (v.mask) weights_lost(e, call, op_table[op]->name);
        Node *node = v.mask ? NULL : value_node(e, &v, DT_F32, arg->span);
        *out = node ? tensor_value(e, elaborate_op(e, call->span, op, &node, 1, NULL)) : poison();
        return true;
    }
    return false;
}

/* ---- operators ---------------------------------------------------------------------------------- */

typedef struct OperatorArguments {
    Node *in[MAX_ARGUMENTS];
    int n_in;
    const Value *masked; /* an operand that carries the weights of a loss */
    AttrValue attrs[6];
    bool attr_given[6];
    bool ok;
} OperatorArguments;

static int operand_count(const OpInfo *info) {
    int n = 0;
    while (n < 6 && info->in[n]) n++;
    return n;
}

/* The operand that may be repeated. The counters of dropout's random stream are no business of the language's. */
static const char *variadic_of(const OpInfo *info) { return info->op == OP_DROPOUT ? NULL : info->variadic; }

static bool is_internal(const OpInfo *info, int attr) {
    return info->attrs[attr].hidden || (info->op == OP_DROPOUT && strcmp(info->attrs[attr].name, "key") == 0);
}

static int operand_index(const OpInfo *info, Name name) {
    int n = operand_count(info);
    for (int i = 0; i < n; i++)
        if (strcmp(info->in[i], name) == 0) return i;
    return -1;
}

static int attr_index(const OpInfo *info, Name name) {
    int n = op_n_attrs(info);
    for (int i = 0; i < n; i++)
        if (strcmp(info->attrs[i].name, name) == 0 && !is_internal(info, i)) return i;
    return -1;
}

/* The attribute that the k-th positional value after the operands means: those that hold dimensions come by `over`. */
static int attr_position(const OpInfo *info, int k) {
    int n = op_n_attrs(info);
    for (int i = 0; i < n; i++) {
        AttrKind kind = info->attrs[i].kind;
        bool placed = kind != ATTR_DIM && kind != ATTR_DIMS && kind != ATTR_LIST && !is_internal(info, i);
        if (placed && k-- == 0) return i;
    }
    return -1;
}

static const char *operator_usage(Elaborator *e, const OpInfo *info) {
    Text text = {.arena = e->arena};
    text_printf(&text, "%s(", info->name);
    int n = operand_count(info), n_attrs = op_n_attrs(info), shown = 0;
    for (int i = 0; i < n; i++) text_printf(&text, "%s%s", shown++ ? ", " : "", info->in[i]);
    if (variadic_of(info)) text_printf(&text, "%s%s ...", shown++ ? ", " : "", variadic_of(info));
    for (int i = 0; i < n_attrs; i++) {
        const AttrInfo *attr = &info->attrs[i];
        if (is_internal(info, i)) continue;
        if (strcmp(attr->name, "over") == 0)
            text_printf(&text, "%sover dims", shown++ ? ", " : "");
        else if (attr->kind == ATTR_BOOL)
            text_printf(&text, "%s%s = %s", shown++ ? ", " : "", attr->name, attr->standard != 0 ? "true" : "false");
        else if (attr->kind == ATTR_INT || attr->kind == ATTR_FLOAT) {
            if (isnan(attr->standard))
                text_printf(&text, "%s%s", shown++ ? ", " : "", attr->name);
            else
                text_printf(&text, "%s%s = %g", shown++ ? ", " : "", attr->name, attr->standard);
        }
    }
    text_puts(&text, ")");
    return text.at;
}

static bool dtype_named(Elaborator *e, const Expr *expr, int64_t *out) {
    static const struct {
        const char *word;
        DType dtype;
    } words[] = {{"float", DT_F32}, {"int", DT_I32}, {"bool", DT_BOOL}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (expr->kind == EXPR_NAME && strcmp(expr->name, words[i].word) == 0) {
            *out = (int64_t)words[i].dtype;
            return true;
        }
    Diag *d = elaborate_error(e, "P0158", expr->span, "a type belongs here");
    Name names[3];
    for (int i = 0; i < 3; i++) names[i] = intern(e->s->names, words[i].word);
    help_candidates(e, d, expr->kind == EXPR_NAME ? expr->name : names[0], expr->span, names, 3);
    return false;
}

static bool attr_value(Elaborator *e, const OpInfo *info, int i, const Expr *expr, AttrValue *out) {
    const AttrInfo *attr = &info->attrs[i];
    const char *what = arena_printf(e->arena, "`%s` of `%s`", attr->name, info->name);
    if (attr->kind == ATTR_DIM || attr->kind == ATTR_DIMS) {
        if (!dims_named(e, expr, &out->dims)) return false;
        if (attr->kind == ATTR_DIMS || out->dims.n == 1) return true;
        elaborate_error(e, "P0158", expr->span, "%s is one dimension, not %d", what, out->dims.n);
        return false;
    }
    if (attr->kind == ATTR_DTYPE) return dtype_named(e, expr, &out->integer);
    if (attr->kind == ATTR_BOOL) {
        Value v = expr_value(e, expr);
        if (v.kind == VALUE_BOOL)
            out->integer = v.number != 0, out->number = v.number;
        else if (v.kind != VALUE_POISON)
            elaborate_error(e, "P0158", expr->span, "%s is `true` or `false`, not %s", what, value_text(e, &v));
        return v.kind == VALUE_BOOL;
    }
    bool whole = false;
    if (!expr_number(e, expr, what, &out->number, &whole)) return false;
    if (attr->kind == ATTR_INT && !whole) {
        elaborate_error(e, "P0158", expr->span, "%s must be a whole number, not %g", what, out->number);
        return false;
    }
    out->integer = fabs(out->number) < 9e15 ? (int64_t)out->number : 0;
    return true;
}

static void take_attr(Elaborator *e, const OpInfo *info, int i, const Arg *arg, OperatorArguments *a) {
    if (a->attr_given[i]) {
        elaborate_error(e, "P0157", arg->name ? arg->name_span : arg->value->span, "`%s` of `%s` is given twice",
                        info->attrs[i].name, info->name);
        a->ok = false;
        return;
    }
    a->attr_given[i] = true;
    a->ok = attr_value(e, info, i, arg->value, &a->attrs[i]) && a->ok;
}

static void take_operand(Elaborator *e, const OpInfo *info, int i, const Arg *arg, OperatorArguments *a) {
    if (a->in[i]) {
        elaborate_error(e, "P0157", arg->name ? arg->name_span : arg->value->span, "`%s` of `%s` is given twice",
                        i < operand_count(info) ? info->in[i] : info->variadic, info->name);
        a->ok = false;
        return;
    }
    Value v = expr_value(e, arg->value);
    if (v.kind == VALUE_TENSOR && v.mask) {
        Value *masked = NEW(e->arena, Value);
        *masked = v;
        a->masked = masked;
    }
    a->in[i] = value_node(e, &v, DT_F32, arg->value->span);
    if (!a->in[i]) a->ok = false;
}

static void unknown_argument(Elaborator *e, const OpInfo *info, const Arg *arg) {
    Name names[16];
    int n = 0, n_operands = operand_count(info), n_attrs = op_n_attrs(info);
    if (info->op == OP_CROSS_ENTROPY) names[n++] = intern(e->s->names, "weight");
    for (int i = 0; i < n_operands; i++) names[n++] = intern(e->s->names, info->in[i]);
    for (int i = 0; i < n_attrs; i++)
        if (!info->attrs[i].hidden) names[n++] = intern(e->s->names, info->attrs[i].name);
    Diag *d = elaborate_error(e, "P0156", arg->name_span, "`%s` has no argument `%s`", info->name, arg->name);
    if (nearest_name(arg->name, names, n))
        help_candidates(e, d, arg->name, arg->name_span, names, n);
    else
        diag_help(d, "it is used as `%s`", operator_usage(e, info));
}

/* `rename(k, seq -> key)`: the two dimensions of an arrow are the first two dimension attributes. */
static void take_arrow(Elaborator *e, const OpInfo *info, const Arg *arg, OperatorArguments *a) {
    int slots[2], n = 0, n_attrs = op_n_attrs(info);
    for (int i = 0; i < n_attrs && n < 2; i++)
        if (info->attrs[i].kind == ATTR_DIM) slots[n++] = i;
    if (n < 2) {
        elaborate_error(e, "P0158", arg->value->span, "`%s` takes no arrow", info->name);
        a->ok = false;
        return;
    }
    for (int i = 0; i < 2; i++) {
        Arg side = {.value = arg->value->args.at[i]};
        take_attr(e, info, slots[i], &side, a);
    }
}

static void sort_argument(Elaborator *e, const OpInfo *info, const Arg *arg, int *position, OperatorArguments *a) {
    int n_operands = operand_count(info);
    if (arg->name) {
        int operand = arg->is_over ? -1 : operand_index(info, arg->name), attr = attr_index(info, arg->name);
        if (operand >= 0)
            take_operand(e, info, operand, arg, a);
        else if (attr >= 0)
            take_attr(e, info, attr, arg, a);
        else {
            unknown_argument(e, info, arg);
            if (!arg->is_over) expr_value(e, arg->value);
            a->ok = false;
        }
        return;
    }
    if (arg->value->kind == EXPR_ARROW) {
        take_arrow(e, info, arg, a);
        return;
    }
    int i = (*position)++;
    if (i < n_operands || (variadic_of(info) && i < MAX_ARGUMENTS)) {
        take_operand(e, info, i, arg, a);
        return;
    }
    int attr = attr_position(info, i - n_operands);
    if (attr >= 0) {
        take_attr(e, info, attr, arg, a);
        return;
    }
    Diag *d = elaborate_error(e, "P0159", arg->value->span, "`%s` takes no argument here", info->name);
    Name over = "over", called = arg->value->kind == EXPR_CALL ? arg->value->args.at[0]->name : NULL;
    if (called && nearest_name(called, &over, 1)) diag_help(d, "did you mean `over`?"); /* `oevr (head, head_dim)` */
    diag_help(d, "it is used as `%s`", operator_usage(e, info));
    a->ok = false;
}

static void check_complete(Elaborator *e, const Expr *call, const OpInfo *info, OperatorArguments *a) {
    int n_operands = operand_count(info), n_attrs = op_n_attrs(info);
    for (int i = 0; i < MAX_ARGUMENTS && a->in[i]; i++) a->n_in = i + 1;
    for (int i = 0; i < n_operands; i++) {
        if (a->in[i]) continue;
        Diag *d = elaborate_error(e, "P0160", call->span, "`%s` lacks its operand `%s`", info->name, info->in[i]);
        diag_help(d, "it is used as `%s`", operator_usage(e, info));
        a->ok = false;
        return;
    }
    for (int i = 0; i < n_attrs; i++) {
        if (a->attr_given[i]) continue;
        double standard = info->attrs[i].standard;
        if (isnan(standard)) {
            Diag *d = elaborate_error(e, "P0160", call->span, "`%s` lacks `%s`", info->name, info->attrs[i].name);
            diag_help(d, "it is used as `%s`", operator_usage(e, info));
            a->ok = false;
            return;
        }
        a->attrs[i].number = standard;
        a->attrs[i].integer = (int64_t)standard;
    }
}

/* `weight = mask` is no operand: a weighted loss keeps its weights beside it until the step's sum. */
static const Arg *loss_weight(const Expr *call, Op op) {
    if (op != OP_CROSS_ENTROPY) return NULL;
    for (int i = 0; i < call->call.n; i++)
        if (call->call.at[i].name && strcmp(call->call.at[i].name, "weight") == 0) return &call->call.at[i];
    return NULL;
}

static bool weigh(Elaborator *e, const Arg *weight, Value *loss) {
    Value v = expr_value(e, weight->value);
    if (v.kind == VALUE_POISON) return false;
    if (v.kind != VALUE_TENSOR || !dtype_is_float(v.node->dtype)) {
        Diag *d = elaborate_error(e, "P0257", weight->value->span,
                                  "`weight` is a tensor of floats, one for each target, not %s", value_text(e, &v));
        diag_help(d, "declare `target mask: float[batch, seq] = 1`");
        return false;
    }
    if (loss->kind == VALUE_TENSOR && !shape_contains(&loss->node->shape, &v.node->shape)) {
        elaborate_error(e, "P0257", weight->value->span, "`weight` has dimensions %s, but the loss has %s",
                        shape_text(e->arena, &v.node->shape), shape_text(e->arena, &loss->node->shape));
        return false;
    }
    Value *kept = NEW(e->arena, Value);
    *kept = v;
    loss->mask = kept;
    return true;
}

Value operator_call(Elaborator *e, const Expr *call, Op op) {
    const OpInfo *info = op_table[op];
    Value folded;
    if (fold_call(e, call, op, &folded)) return folded;
    OperatorArguments a = {.ok = true};
    int position = 0;
    const Arg *weight = loss_weight(call, op);
    for (int i = 0; i < call->call.n; i++)
        if (&call->call.at[i] != weight) sort_argument(e, info, &call->call.at[i], &position, &a);
    if (a.ok) check_complete(e, call, info, &a);
    if (a.ok && a.masked) {
        weights_lost(e, call, info->name);
        a.ok = false;
    }
    Node *node = a.ok ? elaborate_op(e, call->span, op, a.in, a.n_in, a.attrs) : NULL;
    if (node && info->n_results) {
        e->b.span = call->span;
        node = build_result(&e->b, node, 0); /* further results serve gradients only */
    }
    Value v = tensor_value(e, node);
    if (weight && !weigh(e, weight, &v)) return poison();
    return v;
}

/* ---- position ----------------------------------------------------------------------------------- */

/* position(x): the logical index along the one dimension of x that holds positions, or along `over`. */
static Value position_call(Elaborator *e, const Expr *call) {
    const Arg *over = NULL;
    Value x = {.kind = VALUE_NONE};
    bool ok = true;
    for (int i = 0; i < call->call.n; i++) {
        const Arg *arg = &call->call.at[i];
        if (arg->is_over)
            over = arg;
        else if (!arg->name && x.kind == VALUE_NONE)
            x = expr_value(e, arg->value);
        else {
            elaborate_error(e, "P0159", arg->value->span, "`position` takes one tensor, and `over`");
            ok = false;
        }
    }
    Shape dims = {.n = 0};
    if (over) ok = dims_named(e, over->value, &dims) && ok;
    if (!ok || x.kind == VALUE_POISON) return poison();
    if (x.kind != VALUE_TENSOR) {
        Diag *d = elaborate_error(e, "P0160", call->span, "`position` lacks its tensor");
        diag_help(d, "write `position(x)`");
        return poison();
    }
    if (!over)
        for (int i = 0; i < x.node->shape.n; i++)
            if (dim_is_position(e, x.node->shape.dims[i])) shape_add(&dims, x.node->shape.dims[i]);
    if (dims.n != 1 || shape_find(&x.node->shape, dims.dims[0]) < 0) {
        Diag *d = elaborate_error(e, "P0259", call->span,
                                  over ? "`position` over %s of a tensor %s" : "`position`: %s of %s hold positions",
                                  shape_text(e->arena, &dims), shape_text(e->arena, &x.node->shape));
        diag_help(d, "name one dimension of the tensor: `position(x, over seq)`");
        return poison();
    }
    return tensor_value(e, elaborate_op(e, call->span, OP_RAMP, NULL, 0, &(AttrValue){.dims = dims}));
}

Value call_value(Elaborator *e, const Expr *call) {
    const Expr *callee = call->args.at[0];
    if (callee->kind == EXPR_NAME && strcmp(callee->name, "position") == 0 && !scope_get(e, callee->name))
        return position_call(e, call);
    if (callee->kind == EXPR_NAME && strcmp(callee->name, "next") == 0) {
        Diag *d = elaborate_error(e, "P0162", call->span,
                                  "`next` belongs to a target: the loader shifts, the graph never does");
        diag_help(d, "write `target labels: int[batch, seq] = next(tokens)`");
        return poison();
    }
    Value function = callee_value(e, callee);
    if (function.kind == VALUE_FUNCTION)
        return function.layer ? layer_call(e, call, &function) : operator_call(e, call, function.op);
    for (int i = 0; i < call->call.n; i++) /* the mistakes of the arguments, all the same */
        if (!call->call.at[i].is_over && call->call.at[i].value->kind != EXPR_ARROW)
            expr_value(e, call->call.at[i].value);
    return poison();
}
