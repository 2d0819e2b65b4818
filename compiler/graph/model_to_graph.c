/* From the typed model to its forward graph.
 *
 * In: the model that `train` names, as a syntax tree, and the sizes and parameters that it was given. Out: a
 * ModelGraph, or NULL once its mistakes are reported. The work is in the elaborate_*.c files: scope (names), dims,
 * expr, call, layer, stmt, repeat, inputs, check; see elaborate.h for the idea. */
#include "graph/elaborate.h"

/* ---- what the model was given ------------------------------------------------------------------- */

static void read_overrides(Elaborator *e) {
    for (int i = 0; i < e->train->model_arguments.n; i++) {
        const Binding *binding = &e->train->model_arguments.at[i];
        map_put(e->arena, &e->overrides, binding->name, binding->value);
    }
}

const Expr *override_take(Elaborator *e, Name name) { return map_get(&e->overrides, name); }

static void model_parameters(Elaborator *e) {
    const Stmt *decl = e->scope->decl;
    for (int i = 0; i < decl->params.n; i++) {
        const Param *param = &decl->params.at[i];
        if (param->type.present || param->arrow_to) {
            Diag *d = elaborate_error(e, "P0174", param->span, "parameter `%s` of a model is a tensor", param->name);
            diag_help(d, "a model's tensors are its inputs; parameters are numbers, as in `model %s(dropout = 0)`",
                      decl->name);
            scope_declare(e, param->name, SYMBOL_PARAMETER, param->span, poison());
            continue;
        }
        const Expr *expr = override_take(e, param->name);
        if (!expr) expr = param->value;
        Value v = poison();
        if (expr)
            v = expr_value(e, expr);
        else {
            Diag *d = elaborate_error(e, "P0174", e->train->model_span, "model `%s` lacks its parameter `%s`",
                                      decl->name, param->name);
            diag_help(d, "write `model %s(%s = ...)` in `train`", decl->name, param->name);
        }
        if (v.kind == VALUE_TENSOR || v.kind == VALUE_TUPLE) {
            elaborate_error(e, "P0174", expr->span, "parameter `%s` is known at compile time, not %s", param->name,
                            value_text(e, &v));
            v = poison();
        }
        scope_declare(e, param->name, SYMBOL_PARAMETER, param->span, v);
    }
}

/* ---- what comes out ----------------------------------------------------------------------------- */

static Node *find_cross_entropy(Node *node, int depth) {
    if (node->op == OP_CROSS_ENTROPY) return node;
    for (int i = 0; depth > 0 && i < node->n_in; i++) {
        Node *found = find_cross_entropy(node->in[i], depth - 1);
        if (found) return found;
    }
    return NULL;
}

static void add_results(Elaborator *e) {
    ModelGraph *model = e->model;
    model->loss = e->loss.node;
    result_add(e, "loss", model->loss, e->loss_span);
    if (e->loss.mask) {
        model->mask = e->loss.mask->node;
        result_add(e, "loss.mask", model->mask, e->loss_span);
    }
    Node *entropy = find_cross_entropy(model->loss, 8);
    if (entropy) {
        model->logits = entropy->in[0];
        result_add(e, "logits", model->logits, e->loss_span);
    }
    for (int i = 0; i < e->graph->dims.n; i++) vec_push(e->arena, &model->dims, e->graph->dims.at[i]);
    model->batch = e->batch->dim;
}

/* A misspelt `loss` is reported where it is assigned. */
static void missing_loss(Elaborator *e, const Stmt *decl) {
    Span whole = {decl->span.file, 0, INT32_MAX};
    if (e->has_loss || diag_any_error(e->s, "P00", whole)) return;
    VEC(Name) names = {0};
    for (int i = 0; i < e->scope->symbols.n; i++) {
        const Symbol *symbol = e->scope->symbols.entries[i].value;
        if (symbol->kind == SYMBOL_VARIABLE) vec_push(e->arena, &names, symbol->name);
    }
    Name nearest = nearest_name(intern(e->s->names, "loss"), names.at, names.n);
    const Symbol *near = nearest ? map_get(&e->scope->symbols, nearest) : NULL;
    Diag *d = diag_error(e->s, "P0175", near ? near->span : decl->head, "model `%s` has no `loss`", decl->name);
    if (near) {
        diag_help(d, "did you mean `loss` instead of `%s`?", nearest);
        diag_fix(d, near->span, "loss");
    } else {
        diag_help(d, "end it with `loss = cross_entropy(logits, labels, over vocab)`");
    }
}

ModelGraph *model_to_graph(Session *s, const Program *program, const Train *train) {
    if (!train || !train->model) return NULL;
    const Stmt *decl = train->model;
    Elaborator e = {.s = s, .arena = s->arena, .program = program, .train = train};
    e.errors = diag_count(s, SEV_ERROR);
    e.graph = graph_new(s, s->arena, "model");
    e.model = NEW(s->arena, ModelGraph);
    e.model->graph = e.graph;
    e.b = (Builder){.graph = e.graph, .region = &e.graph->top, .span = decl->head};
    Scope scope = scope_new(&e, train->model_scope, decl, train->model_span);
    e.scope = &scope;
    LocalDim batch = {
        .name = intern(s->names, "batch"), .size = train->batch > 0 ? train->batch : 1, .span = train->batch_span};
    batch.path = batch.full_path = batch.name;
    batch.dim = graph_add_dim(e.graph, batch.name, batch.size, batch.span);
    batch.dim->is_batch = true;
    e.batch = &batch;
    read_overrides(&e);
    model_parameters(&e);
    statements(&e, &decl->body);
    missing_loss(&e, decl);
    if (!scope.poisoned) unused_names(&e, decl);
    unused_layers(&e);
    if (diag_count(s, SEV_ERROR) > e.errors || e.loss.kind != VALUE_TENSOR) return NULL;
    add_results(&e);
    unused_weights(&e);
    freeze_weights(&e);
    model_check_groups(s, train, e.model);
    data_check(&e);
    model_count(&e);
    return diag_count(s, SEV_ERROR) > e.errors ? NULL : e.model;
}
