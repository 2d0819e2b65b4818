/* Statements of models and layers, but for `repeat` (elaborate_repeat.c) and the declarations of tensors
 * (elaborate_inputs.c). */
#include "graph/elaborate.h"

/* ---- assignments -------------------------------------------------------------------------------- */

static void assign(Elaborator *e, Name name, Span span, Value v) {
    if (v.kind == VALUE_TENSOR && !v.node->name && v.node->op != OP_PARAM) v.node->name = name;
    Symbol *symbol = scope_get(e, name);
    if (!symbol) {
        scope_declare(e, name, SYMBOL_VARIABLE, span, v);
        return;
    }
    bool is_variable =
        symbol->kind == SYMBOL_VARIABLE || (symbol->kind == SYMBOL_PARAMETER && symbol->value.kind != VALUE_DIM);
    if (!is_variable) {
        Diag *d = elaborate_error(e, "P0161", span, "`%s` is %s: nothing can be assigned to it", name,
                                  symbol_kind_text(symbol->kind));
        diag_note(d, symbol->span, "declared here");
        diag_help(d, "use another name for the new value");
        return;
    }
    symbol->value = v;
    symbol->assigned = span;
}

static void assign_several(Elaborator *e, const Stmt *stmt, Value v) {
    bool fits = v.kind == VALUE_TUPLE && v.n_items == stmt->names.n;
    if (!fits && v.kind != VALUE_POISON) {
        const char *got = v.kind == VALUE_TUPLE ? arena_printf(e->arena, "%d are given", v.n_items) : "one is given";
        elaborate_error(e, "P0167", stmt->head, "%d names take %d values, but %s", stmt->names.n, stmt->names.n, got);
    }
    for (int i = 0; i < stmt->names.n; i++) assign(e, stmt->names.at[i], stmt->name_span, fits ? v.items[i] : poison());
}

static bool is_model(const Elaborator *e) { return e->scope->decl->kind == STMT_MODEL; }

static void assign_loss(Elaborator *e, const Stmt *stmt, const Value *v) {
    e->has_loss = true;
    e->loss = *v;
    e->loss_span = stmt->head;
    if (v->kind == VALUE_POISON) return;
    if (e->frame) {
        Diag *d = elaborate_error(e, "P0168", stmt->head, "`loss` is assigned inside a repeat");
        diag_note(d, e->frame->head, "the repeat begins here");
        diag_help(d, "assign it once, after the repeat; inside, `auxiliary x` adds x to the loss in each round");
        e->loss = poison();
    } else if (v->kind != VALUE_TENSOR || !dtype_is_float(v->node->dtype)) {
        elaborate_error(e, "P0168", stmt->head, "`loss` must be a tensor of floats, not %s", value_text(e, v));
        e->loss = poison();
    }
}

static void assign_statement(Elaborator *e, const Stmt *stmt) {
    /* What the parser made of a broken line is not what was meant. */
    Value v = diag_any_error(e->s, "P00", stmt->span) ? poison() : expr_value(e, stmt->value);
    if (stmt->names.n > 1) {
        assign_several(e, stmt, v);
        return;
    }
    if (v.kind == VALUE_TUPLE) {
        Diag *d = elaborate_error(e, "P0167", stmt->head, "`%s` is one name for %d values", stmt->name, v.n_items);
        diag_help(d, "give each its name: `a, b = ...`");
        v = poison();
    }
    if (is_model(e) && strcmp(stmt->name, "loss") == 0) assign_loss(e, stmt, &v);
    if (strcmp(stmt->name, "dim") == 0 && v.kind == VALUE_NUMBER) {
        Diag *d =
            elaborate_error(e, "P0161", stmt->name_span, "`dim` declares nothing here: a name is missing after it");
        diag_help(d, "write `dim width = %g`", v.number);
        e->scope->broken = e->scope->poisoned = true;
        return;
    }
    assign(e, stmt->name, stmt->name_span, v);
}

/* ---- the others --------------------------------------------------------------------------------- */

/* The condition is not known: neither is what the branches would have defined. */
static void skip_branches(Elaborator *e, const Stmt *stmt) {
    e->scope->poisoned = true;
    poison_defined(e, &stmt->body);
    poison_defined(e, &stmt->otherwise);
}

static void if_statement(Elaborator *e, const Stmt *stmt) {
    Value v = expr_value(e, stmt->value);
    if (v.kind == VALUE_POISON) {
        skip_branches(e, stmt);
        return;
    }
    if (v.kind != VALUE_BOOL) {
        Diag *d = elaborate_error(e, "P0169", stmt->value->span,
                                  "a condition must be known at compile time, but this is %s", value_text(e, &v));
        if (v.kind == VALUE_TENSOR)
            diag_help(d, "choose between the elements of two tensors with `select(condition, x, y)`");
        else
            diag_help(d, "compare it: `x != none`, `rate > 0`");
        skip_branches(e, stmt);
        return;
    }
    statements(e, v.number != 0 ? &stmt->body : &stmt->otherwise);
}

static void return_statement(Elaborator *e, const Stmt *stmt) {
    if (is_model(e)) {
        Diag *d = elaborate_error(e, "P0170", stmt->head, "a model returns nothing");
        diag_help(d, "assign the value to be made small to `loss`");
        return;
    }
    if (e->frame && e->frame->scope == e->scope) {
        Diag *d = elaborate_error(e, "P0170", stmt->head, "`return` stands inside a repeat");
        diag_help(d, "return after it: names that were defined before the repeat are carried out of it");
        return;
    }
    e->scope->result = expr_value(e, stmt->value);
    e->scope->returned = true;
}

static void hand_out(Elaborator *e, const Stmt *stmt, bool is_log) {
    Value v = expr_value(e, stmt->value);
    Node *node = value_node(e, &v, DT_F32, stmt->value->span);
    if (!node) return;
    if (!dtype_is_float(node->dtype)) {
        elaborate_error(e, "P0168", stmt->value->span, "`%s` takes a tensor of floats, not %s",
                        is_log ? "log" : "auxiliary", value_text(e, &v));
        return;
    }
    Name name = NULL;
    if (is_log) name = stmt->value->kind == EXPR_NAME ? stmt->value->name : intern(e->s->names, "value");
    result_hand_out(e, node, name, stmt->head);
}

static void misplaced(Elaborator *e, const Stmt *stmt) {
    elaborate_error(e, "P0171", stmt->head, "this statement cannot stand in a %s", is_model(e) ? "model" : "layer");
}

static void misplaced_data(Elaborator *e, const Stmt *stmt) {
    Diag *d = elaborate_error(e, "P0171", stmt->head, "`%s` stands in a model, outside every repeat",
                              stmt->kind == STMT_INPUT ? "input" : "target");
    if (e->frame && e->frame->scope == e->scope) diag_note(d, e->frame->head, "the repeat begins here");
}

static void statement(Elaborator *e, const Stmt *stmt) {
    bool outer = !e->frame || e->frame->scope != e->scope;
    switch (stmt->kind) {
    case STMT_DIM: dim_statement(e, stmt); break;
    case STMT_FACTORS: factors_statement(e, stmt); break;
    case STMT_INPUT:
    case STMT_TARGET:
        if (is_model(e) && outer) {
            if (stmt->kind == STMT_INPUT)
                input_statement(e, stmt);
            else
                target_statement(e, stmt);
            break;
        }
        misplaced_data(e, stmt);
        scope_declare(e, stmt->name, SYMBOL_INPUT, stmt->name_span, poison());
        break;
    case STMT_WEIGHT: weight_statement(e, stmt); break;
    case STMT_ASSIGN: assign_statement(e, stmt); break;
    case STMT_REPEAT: repeat_statement(e, stmt); break;
    case STMT_IF: if_statement(e, stmt); break;
    case STMT_RETURN: return_statement(e, stmt); break;
    case STMT_AUXILIARY: hand_out(e, stmt, false); break;
    case STMT_LOG: hand_out(e, stmt, true); break;
    case STMT_NAMES:
        diag_note_alone(e->s, "P9000", stmt->head,
                        "`names` is not built yet: weights are exchanged under their own names");
        break;
    case STMT_EXPR:
    case STMT_RULE:
    case STMT_GROUP: break; /* refused by the parser */
    default: misplaced(e, stmt);
    }
}

void statements(Elaborator *e, const StmtList *list) {
    const SourceFile *file = session_file(e->s, e->scope->decl->span);
    bool is_library = file && file->is_library && e->scope->caller;
    int errors = diag_count(e->s, SEV_ERROR);
    for (int i = 0; i < list->n; i++) {
        if (is_library &&
            diag_count(e->s, SEV_ERROR) > errors) { /* the call is at fault: the rest would follow from it */
            e->scope->poisoned = true;
            return;
        }
        if (e->scope->returned) {
            if (i == 0 || list->at[i - 1]->kind != STMT_RETURN)
                return; /* a condition returned: the rest is its other case */
            Diag *d =
                elaborate_error(e, "P0172", list->at[i]->head, "this is never reached: `return` stands before it");
            diag_help(d, "remove it, or move `return` to the end");
            return;
        }
        statement(e, list->at[i]);
    }
}
