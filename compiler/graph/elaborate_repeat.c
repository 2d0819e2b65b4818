/* `repeat dim { ... }`: a region whose body is elaborated once.
 *
 * Names that the body assigns and that stand before it are carried from round to round; all others that it defines end
 * with it. Weights declared in it are stacked, its own dimension first, and come in as slices; whatever else the body
 * reads from outside becomes a capture on first use. */
#include "graph/elaborate.h"

/* ---- what is carried ---------------------------------------------------------------------------- */

typedef VEC(Name) NameList;

static void add_name(Elaborator *e, NameList *list, Name name) {
    for (int i = 0; i < list->n; i++)
        if (list->at[i] == name) return;
    vec_push(e->arena, list, name);
}

static void assigned_names(Elaborator *e, const StmtList *body, NameList *list) {
    for (int i = 0; i < body->n; i++) {
        const Stmt *stmt = body->at[i];
        if (stmt->kind == STMT_ASSIGN && stmt->names.n > 1)
            for (int k = 0; k < stmt->names.n; k++) add_name(e, list, stmt->names.at[k]);
        else if (stmt->kind == STMT_ASSIGN && stmt->name)
            add_name(e, list, stmt->name);
        assigned_names(e, &stmt->body, list);
        assigned_names(e, &stmt->otherwise, list);
    }
}

void poison_defined(Elaborator *e, const StmtList *body) {
    for (int i = 0; i < body->n; i++) {
        const Stmt *stmt = body->at[i];
        if (stmt->kind == STMT_WEIGHT && stmt->name && !scope_get(e, stmt->name))
            scope_declare(e, stmt->name, SYMBOL_WEIGHT, stmt->name_span, poison());
        poison_defined(e, &stmt->body);
        poison_defined(e, &stmt->otherwise);
    }
    NameList names = {0};
    assigned_names(e, body, &names);
    for (int i = 0; i < names.n; i++) {
        Symbol *symbol = scope_get(e, names.at[i]);
        if (!symbol) symbol = scope_declare(e, names.at[i], SYMBOL_VARIABLE, e->scope->decl->head, poison());
        if (symbol && symbol->kind != SYMBOL_DIM) symbol->value = poison();
    }
}

/* The value that a name has before the repeat, as a node of the parent region; NULL when it is not carried. */
static Node *initial_value(Elaborator *e, Symbol *symbol) {
    Value *v = &symbol->value;
    if (symbol->kind != SYMBOL_VARIABLE && symbol->kind != SYMBOL_PARAMETER)
        return NULL; /* reported where it is assigned */
    if (v->kind == VALUE_POISON || v->kind == VALUE_DIM) return NULL;
    if (v->mask) {
        Diag *d = elaborate_error(e, "P0257", symbol->assigned, "a weighted loss cannot be carried through a repeat");
        diag_help(d, "weigh by hand: `cross_entropy(...) * mask` is a plain tensor");
        *v = poison();
        return NULL;
    }
    return value_node(e, v, DT_F32, symbol->assigned);
}

static void open_carries(Elaborator *e, Frame *frame, const NameList *names, Node **initial) {
    frame->carries = NEW_N(e->arena, Carry, names->n + 1);
    for (int i = 0; i < names->n; i++) {
        if (!initial[i]) continue;
        Symbol *symbol = scope_get(e, names->at[i]);
        e->b.name = symbol->name;
        e->b.span = symbol->assigned;
        Node *param = region_add_param(&e->b, frame->region, initial[i]->dtype, initial[i]->shape);
        e->b.name = NULL;
        frame->carries[frame->n_carries++] = (Carry){symbol, initial[i], param};
        symbol->value = tensor_value(e, param);
    }
}

static bool carry_fits(Elaborator *e, const Carry *carry, const Node *next) {
    const Node *param = carry->param;
    bool same = shape_contains(&param->shape, &next->shape) && param->shape.n == next->shape.n;
    if (same && param->dtype == next->dtype) return true;
    Diag *d = elaborate_error(e, "P0260", carry->symbol->assigned,
                              "`%s` is carried from round to round as %s%s, but a round makes it %s%s",
                              carry->symbol->name, dtype_name[param->dtype], shape_text(e->arena, &param->shape),
                              dtype_name[next->dtype], shape_text(e->arena, &next->shape));
    diag_note(d, carry->symbol->span, "first defined here");
    diag_help(d, "end each round with the dimensions it began with, or use another name inside the repeat");
    return false;
}

/* ---- closing ------------------------------------------------------------------------------------ */

/* What each round hands out is added up in a carry of its own, from zero: a sum that any cut of the layers can hand on.
 */
static void open_sums(Elaborator *e, Frame *frame) {
    for (int i = 0; i < frame->handed_out.n; i++) {
        HandedOut *out = &frame->handed_out.at[i];
        e->b.span = out->span;
        out->param = region_add_param(&e->b, frame->region, out->node->dtype, out->node->shape);
        out->sum = build_binary(&e->b, OP_ADD, out->param, out->node);
        e->b.region = frame->region->parent;
        out->initial = build_broadcast(&e->b, build_const(&e->b, out->node->dtype, 0), &out->node->shape);
        e->b.region = frame->region;
    }
}

/* Parameters came in the order of their first use; the region wants carries, slices, captures. */
static Node **order_params(Elaborator *e, Frame *frame) {
    Region *region = frame->region;
    int n = frame->n_carries + frame->handed_out.n + frame->slice_params.n + frame->capture_params.n, k = 0;
    Node **inputs = NEW_N(e->arena, Node *, n + 1);
    region->params.n = 0;
    for (int i = 0; i < frame->n_carries; i++) {
        vec_push(e->arena, &region->params, frame->carries[i].param);
        inputs[k++] = frame->carries[i].initial;
    }
    for (int i = 0; i < frame->handed_out.n; i++) {
        vec_push(e->arena, &region->params, frame->handed_out.at[i].param);
        inputs[k++] = frame->handed_out.at[i].initial;
    }
    for (int i = 0; i < frame->slice_params.n; i++) {
        vec_push(e->arena, &region->params, frame->slice_params.at[i]);
        inputs[k++] = frame->slice_inputs.at[i];
    }
    for (int i = 0; i < frame->capture_params.n; i++) {
        vec_push(e->arena, &region->params, frame->capture_params.at[i]);
        inputs[k++] = frame->capture_inputs.at[i];
    }
    return inputs;
}

/* The results of the region, or NULL when one is poison. */
static Node **close_results(Elaborator *e, Frame *frame) {
    Node **results = NEW_N(e->arena, Node *, frame->n_carries + frame->handed_out.n + 1);
    bool ok = true;
    for (int i = 0; i < frame->n_carries; i++) {
        const Carry *carry = &frame->carries[i];
        results[i] = value_node(e, &carry->symbol->value, carry->param->dtype, carry->symbol->assigned);
        if (results[i] && carry->symbol->value.mask) {
            elaborate_error(e, "P0257", carry->symbol->assigned, "a weighted loss cannot be carried through a repeat");
            ok = false;
        }
        ok = results[i] && carry_fits(e, carry, results[i]) && ok;
    }
    for (int i = 0; i < frame->handed_out.n; i++) results[frame->n_carries + i] = frame->handed_out.at[i].sum;
    return ok ? results : NULL;
}

/* The sums of what was handed out: as they are for the loss, the mean for the log. */
static void hand_out_sums(Elaborator *e, Frame *frame, Node *node) {
    for (int i = 0; i < frame->handed_out.n; i++) {
        const HandedOut *out = &frame->handed_out.at[i];
        e->b.span = out->span;
        Node *value = build_result(&e->b, node, frame->n_carries + i);
        if (out->log) value = build_scale(&e->b, value, 1 / (double)frame->region->dim->size);
        result_hand_out(e, value, out->log, out->span);
    }
}

static void forget_names(Elaborator *e, const Frame *frame) {
    for (int i = 0; i < e->scope->symbols.n; i++) {
        Symbol *symbol = e->scope->symbols.entries[i].value;
        if (symbol->frame == frame && !symbol->gone_from) symbol->gone_from = frame->dim->name;
    }
}

static void close_repeat(Elaborator *e, Frame *frame, const Stmt *stmt) {
    open_sums(e, frame);
    Node **results = close_results(e, frame);
    e->frame = frame->parent;
    forget_names(e, frame);
    Node *node = NULL;
    if (results && frame->n_carries + frame->handed_out.n > 0) {
        Node **inputs = order_params(e, frame);
        e->b.span = stmt->head;
        node = region_close(&e->b, frame->region, inputs, frame->n_carries + frame->handed_out.n, frame->slice_params.n,
                            frame->capture_params.n, results, 0);
        if (node->op == OP_POISON) node = NULL;
    }
    e->b.region = frame->region->parent;
    for (int i = 0; i < frame->n_carries; i++) {
        const Carry *carry = &frame->carries[i];
        e->b.span = stmt->head;
        e->b.name = carry->symbol->name;
        carry->symbol->value = node ? tensor_value(e, build_result(&e->b, node, i)) : poison();
        e->b.name = NULL;
    }
    if (node) hand_out_sums(e, frame, node);
}

/* Names that stood before the repeat without a value that could be carried: what the body gave them ends with it. */
static void leave_uncarried(Elaborator *e, const NameList *names, Symbol *const *before, Node *const *initial) {
    for (int i = 0; i < names->n; i++) {
        Symbol *symbol = before[i];
        if (!symbol || initial[i] || (symbol->value.kind != VALUE_TENSOR && symbol->value.kind != VALUE_TUPLE))
            continue;
        if (symbol->kind != SYMBOL_VARIABLE && symbol->kind != SYMBOL_PARAMETER)
            continue; /* assigning it was reported */
        if (!e->scope->poisoned && diag_count(e->s, SEV_ERROR) == e->errors) {
            Diag *d = elaborate_error(e, "P0260", symbol->assigned,
                                      "`%s` is no tensor before the repeat, and one in it", symbol->name);
            diag_note(d, symbol->span, "first defined here");
            diag_help(d, "use another name inside the repeat");
        }
        symbol->value = poison();
    }
}

/* ---- the statement ------------------------------------------------------------------------------ */

/* The dimension is unknown: what the body would have changed is unknown too. */
static void skip_repeat(Elaborator *e, const NameList *names) {
    e->scope->poisoned = true;
    for (int i = 0; i < names->n; i++) {
        Symbol *symbol = scope_get(e, names->at[i]);
        if (symbol && symbol->kind != SYMBOL_DIM) symbol->value = poison();
    }
}

static bool repeats_already(Elaborator *e, const Stmt *stmt, const Dim *dim) {
    for (const Frame *frame = e->frame; frame; frame = frame->parent) {
        if (frame->region->dim != dim) continue;
        Diag *d = elaborate_error(e, "P0173", stmt->head, "`%s` is repeated over inside its own repeat", dim->name);
        diag_help(d, "declare another dimension for the inner repeat");
        return true;
    }
    return false;
}

void repeat_statement(Elaborator *e, const Stmt *stmt) {
    NameList names = {0};
    assigned_names(e, &stmt->body, &names);
    Expr name = {.kind = EXPR_NAME, .span = stmt->name_span, .name = stmt->name, .name_span = stmt->name_span};
    LocalDim *local = dim_named(e, &name);
    if (!local || repeats_already(e, stmt, dim_use(e, local))) {
        skip_repeat(e, &names);
        return;
    }
    Node **initial = NEW_N(e->arena, Node *, names.n + 1);
    Symbol **before = NEW_N(e->arena, Symbol *, names.n + 1);
    bool carries = false; /* or would, but for a mistake */
    for (int i = 0; i < names.n; i++) {
        Symbol *symbol = before[i] = scope_get(e, names.at[i]);
        carries = carries || symbol;
        initial[i] = symbol ? initial_value(e, symbol) : NULL;
    }
    Frame *frame = NEW(e->arena, Frame);
    *frame = (Frame){.parent = e->frame, .dim = local, .scope = e->scope, .head = stmt->head};
    frame->region = region_open(&e->b, dim_use(e, local), false);
    e->frame = frame;
    open_carries(e, frame, &names, initial);
    Name path = e->scope->path;
    e->scope->path = e->b.path = path_unique(e, path, local->name);
    if (stmt->alias) {
        e->b.span = stmt->alias_span;
        scope_declare(e, stmt->alias, SYMBOL_INDEX, stmt->alias_span, tensor_value(e, build_layer_index(&e->b)));
    }
    statements(e, &stmt->body);
    e->scope->path = e->b.path = path;
    if (!carries && frame->handed_out.n == 0 && !e->scope->poisoned) {
        Diag *d = elaborate_error(e, "P0173", stmt->head,
                                  "`repeat %s` changes nothing: no name from before it is assigned in it", local->name);
        diag_help(d, "define what it builds up before it: `x = ...`, then `x = x + ...` inside");
    }
    close_repeat(e, frame, stmt);
    leave_uncarried(e, &names, before, initial);
}

/* ---- results of the model ----------------------------------------------------------------------- */

void result_add(Elaborator *e, const char *name, Node *node, Span span) {
    Name logical = intern(e->s->names, name);
    Tensor *tensor = graph_add_tensor(e->graph, logical, CLASS_RESULT, node->dtype, node->shape, span);
    graph_add_output(e->graph, tensor, node, false);
}

void result_hand_out(Elaborator *e, Node *node, Name log, Span span) {
    if (e->frame) {
        vec_push(e->arena, &e->frame->handed_out, (HandedOut){.node = node, .log = log, .span = span});
        return;
    }
    if (log) {
        result_add(e, path_unique(e, intern(e->s->names, "log"), log), node, span);
        return;
    }
    result_add(e, arena_printf(e->arena, "auxiliary.%d", e->model->auxiliary.n), node, span);
    vec_push(e->arena, &e->model->auxiliary, node);
}
