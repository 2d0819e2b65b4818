/* What is left over, and what it amounts to: names that nothing uses, weights that the loss does not depend on, frozen
 * weights, the counts of parameters and FLOPs.
 *
 * Whether a name is used is asked of the text, not of one elaboration: a name that only the other branch of an `if`
 * reads is in use. */
#include "graph/elaborate.h"

#include "graph/narrow.h"

/* ---- names that are used ------------------------------------------------------------------------ */

typedef struct Uses {
    Arena *arena;
    Map names; /* Name -> anything */
} Uses;

static void use_name(Uses *uses, Name name) {
    if (name) map_put(uses->arena, &uses->names, name, uses);
}

static void use_expr(Uses *uses, const Expr *expr) {
    if (!expr) return;
    if (expr->kind == EXPR_NAME) use_name(uses, expr->name);
    for (int i = 0; i < expr->args.n; i++) use_expr(uses, expr->args.at[i]);
    for (int i = 0; i < expr->call.n; i++) use_expr(uses, expr->call.at[i].value);
}

static void use_body(Uses *uses, const StmtList *body) {
    for (int i = 0; i < body->n; i++) {
        const Stmt *stmt = body->at[i];
        use_expr(uses, stmt->value);
        for (int k = 0; k < stmt->type.dims.n; k++) use_expr(uses, stmt->type.dims.at[k]);
        for (int k = 0; k < stmt->bindings.n; k++) use_expr(uses, stmt->bindings.at[k].value);
        if (stmt->kind == STMT_REPEAT || stmt->kind == STMT_FACTORS) use_name(uses, stmt->name);
        use_body(uses, &stmt->body);
        use_body(uses, &stmt->otherwise);
    }
}

static void use_declaration(Uses *uses, const Stmt *decl) {
    for (int i = 0; i < decl->params.n; i++) {
        use_expr(uses, decl->params.at[i].value);
        for (int k = 0; k < decl->params.at[i].type.dims.n; k++) use_expr(uses, decl->params.at[i].type.dims.at[k]);
    }
    use_body(uses, &decl->body);
}

/* ---- names that are not ------------------------------------------------------------------------- */

static void unused(Elaborator *e, const Uses *uses, Name name, Span span, const char *what, bool is_error) {
    if (!name || map_get(&uses->names, name) || name[0] == '_') return;
    Diag *d = is_error ? diag_error(e->s, "P0180", span, "%s `%s` is never used", what, name)
                       : diag_warning(e->s, "P0181", span, "%s `%s` is never used", what, name);
    diag_help(d, "use it, or remove it");
}

static void unused_in_body(Elaborator *e, const Uses *uses, const Stmt *decl, const StmtList *body) {
    for (int i = 0; i < body->n; i++) {
        const Stmt *stmt = body->at[i];
        for (int k = 0; stmt->kind == STMT_DIM && k < stmt->bindings.n; k++)
            unused(e, uses, stmt->bindings.at[k].name, stmt->bindings.at[k].name_span, "dimension", false);
        bool is_loss = decl->kind == STMT_MODEL && stmt->name && strcmp(stmt->name, "loss") == 0;
        if (stmt->kind == STMT_WEIGHT) unused(e, uses, stmt->name, stmt->name_span, "weight", true);
        if (stmt->kind == STMT_INPUT) unused(e, uses, stmt->name, stmt->name_span, "input", true);
        if (stmt->kind == STMT_TARGET) unused(e, uses, stmt->name, stmt->name_span, "target", true);
        if (stmt->kind == STMT_REPEAT) unused(e, uses, stmt->alias, stmt->alias_span, "index", false);
        if (stmt->kind == STMT_ASSIGN && stmt->names.n > 1)
            for (int k = 0; k < stmt->names.n; k++)
                unused(e, uses, stmt->names.at[k], stmt->name_span, "variable", false);
        else if (stmt->kind == STMT_ASSIGN && !is_loss)
            unused(e, uses, stmt->name, stmt->name_span, "variable", false);
        unused_in_body(e, uses, decl, &stmt->body);
        unused_in_body(e, uses, decl, &stmt->otherwise);
    }
}

void unused_names(Elaborator *e, const Stmt *decl) {
    const SourceFile *file = session_file(e->s, decl->span);
    if (file && file->is_library) return;
    Span whole = {decl->span.file, 0, INT32_MAX};
    if (diag_count(e->s, SEV_ERROR) > e->errors || diag_any_error(e->s, "P00", whole)) return; /* often a consequence */
    Uses uses = {.arena = e->arena};
    use_declaration(&uses, decl);
    for (int i = 0; i < decl->params.n; i++) {
        const Param *param = &decl->params.at[i];
        if (!param->arrow_to) unused(e, &uses, param->name, param->span, "parameter", false);
    }
    unused_in_body(e, &uses, decl, &decl->body);
}

/* Layers are in use from models on: two layers that only call one another are not. */
void unused_layers(Elaborator *e) {
    const StmtList *list = &e->program->ast->statements;
    Uses uses = {.arena = e->arena};
    bool *reached = NEW_N(e->arena, bool, list->n + 1);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < list->n; i++) {
            const Stmt *stmt = list->at[i];
            bool used = stmt->kind == STMT_MODEL ||
                        (stmt->kind == STMT_LAYER && stmt->name && map_get(&uses.names, stmt->name));
            if (!used || reached[i]) continue;
            reached[i] = more = true;
            use_declaration(&uses, stmt);
        }
    }
    for (int i = 0; i < list->n; i++) {
        const Stmt *stmt = list->at[i];
        if (stmt->kind != STMT_LAYER || !stmt->name || reached[i]) continue;
        Diag *d = diag_warning(e->s, "P0182", stmt->name_span, "layer `%s` is never called, so its body is not checked",
                               stmt->name);
        diag_help(d, "call it from a model, or remove it");
    }
}

/* ---- weights that the loss depends on ----------------------------------------------------------- */

typedef struct Reach {
    Arena *arena;
    bool *nodes;  /* by Node.id */
    Map *tensors; /* Tensor * -> anything */
} Reach;

/* Depth first; the chain of a graph is long, so the stack is our own. Inside a region every result counts. */
static void reach_from(Reach *reach, Node *start) {
    VEC(Node *) stack = {0};
    vec_push(reach->arena, &stack, start);
    while (stack.n > 0) {
        Node *node = stack.at[--stack.n];
        if (reach->nodes[node->id]) continue;
        reach->nodes[node->id] = true;
        if (node->tensor) map_put(reach->arena, reach->tensors, node->tensor, reach);
        if (!node->region) {
            for (int i = 0; i < node->n_in; i++) vec_push(reach->arena, &stack, node->in[i]);
            continue;
        }
        for (int i = 0; i < node->region->results.n; i++) reach_from(reach, node->region->results.at[i]);
        for (int i = 0; i < node->n_in; i++)
            if (reach->nodes[node->region->params.at[i]->id]) vec_push(reach->arena, &stack, node->in[i]);
    }
}

void unused_weights(Elaborator *e) {
    const Span whole = {e->scope->decl->span.file, 0, INT32_MAX};
    if (diag_any_error(e->s, "P00", whole)) return;
    Map tensors = {0};
    Reach reach = {.arena = e->arena, .nodes = NEW_N(e->arena, bool, e->graph->n_nodes + 1), .tensors = &tensors};
    reach_from(&reach, e->model->loss);
    for (int i = 0; i < e->model->auxiliary.n; i++) reach_from(&reach, e->model->auxiliary.at[i]);
    for (int i = 0; i < e->model->inits.n; i++) {
        const Tensor *weight = e->model->inits.at[i].weight;
        /* what the parser could not read may have used it */
        if (map_get(&tensors, weight) || diag_any_error(e->s, "P00", (Span){weight->span.file, 0, INT32_MAX})) continue;
        Diag *d =
            diag_error(e->s, "P0183", e->weight_sites.at[i], "the loss does not depend on weight `%s`", weight->name);
        diag_help(d, "it would never be trained: use what is made of it, or remove it");
    }
}

/* ---- freezing ----------------------------------------------------------------------------------- */

static void freeze_unknown(Elaborator *e, Name word) {
    VEC(Name) parts = {0};
    for (int i = 0; i < e->model->inits.n; i++) {
        const char *path = e->model->inits.at[i].weight->name;
        vec_push(e->arena, &parts, path);
        for (const char *at = path; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
            vec_push(e->arena, &parts, intern_n(e->s->names, at, strcspn(at, ".")));
    }
    Diag *d = diag_error(e->s, "P0184", e->train->span, "`freeze %s` matches no weight", word);
    Name nearest = nearest_name(word, parts.at, parts.n);
    if (nearest)
        diag_help(d, "did you mean `%s`?", nearest);
    else
        diag_help(d, "name a weight, a layer or a repeat: `token_table`, `attention`, `layers`");
}

void freeze_weights(Elaborator *e) {
    const Train *train = e->train;
    for (int k = 0; k < train->freeze.n; k++) {
        bool found = false;
        for (int i = 0; i < e->model->inits.n; i++) {
            Tensor *weight = e->model->inits.at[i].weight;
            if (!path_has_part(weight->name, train->freeze.at[k])) continue;
            weight->frozen = true;
            found = true;
        }
        if (!found) freeze_unknown(e, train->freeze.at[k]);
    }
    if (!train->freeze_all_but) return;
    for (int i = 0; i < e->model->inits.n; i++)
        e->model->inits.at[i].weight->frozen = !e->model->inits.at[i].weight->frozen;
}

/* ---- counts ------------------------------------------------------------------------------------- */

static double node_flops(const Node *node) {
    if (node->op == OP_DOT) {
        Shape all = shape_union(&node->in[0]->shape, &node->in[1]->shape);
        return 2 * (double)shape_elements(&all);
    }
    if (node->op != OP_ATTEND) return 0;
    AttendParts parts = attend_parts(node); /* two products, scores and values; the whole square, causal or not */
    return 4 * (double)shape_elements(&node->in[0]->shape) * (double)parts.key->size;
}

static double region_flops(const Region *region) {
    double flops = 0;
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        flops += node->region ? (double)node->region->dim->size * region_flops(node->region) : node_flops(node);
    }
    return flops;
}

/* FLOPs as they are reported for language models: matrix products and attention, the backward pass counted as twice the
 * forward pass. */
void model_count(Elaborator *e) {
    ModelGraph *model = e->model;
    for (int i = 0; i < model->inits.n; i++) model->parameters += shape_elements(&model->inits.at[i].weight->shape);
    const Shape *targets = &model->loss->shape;
    if (targets->n == 0 && e->target) targets = &e->target->shape;
    double tokens = targets->n ? (double)shape_elements(targets) : (double)e->batch->size;
    model->flops_per_token = 3 * region_flops(&e->graph->top) / tokens;
}
