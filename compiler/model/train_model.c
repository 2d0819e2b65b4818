/* Which model a run trains, and with which dimensions: `model GPT2_medium(seq = 512)`.
 *
 * In: the property's expression. Out: the model that has a body, after following `model A = B(layers = 24)`, and one
 * argument for each overridden dimension: --set wins over the run, the run over the aliases on the way. */
#include "model/resolve.h"

enum { LONGEST_CHAIN = 64 };

typedef struct ModelReader {
    Resolver *r;
    Train *train;
} ModelReader;

static bool already_given(const ModelReader *m, Name name) {
    for (int i = 0; i < m->train->model_arguments.n; i++)
        if (m->train->model_arguments.at[i].name == name) return true;
    return false;
}

/* A value that is constant where it is written becomes a literal; others are left to the model's own dimensions. */
static Expr *literal_or_same(ModelReader *m, FileScope *scope, Expr *e) {
    Quantity q;
    if (!quantity_try(m->r, scope, e, &q) || q.text != NULL || !unit_equal(q.unit, UNIT_NONE)) return e;
    Expr *literal = NEW(m->r->arena, Expr);
    literal->kind = q.is_integer ? EXPR_INT : EXPR_FLOAT;
    literal->span = e->span;
    literal->integer = q.integer;
    literal->number = q.value;
    return literal;
}

static void add_arguments(ModelReader *m, FileScope *scope, const Expr *call) {
    for (int i = 0; i < call->call.n; i++) {
        const Arg *arg = &call->call.at[i];
        if (arg->name == NULL) {
            Diag *d = diag_error(m->r->s, "P0135", arg->value->span, "a model's dimensions are given by name");
            diag_help(d, "write `%s(layers = 2)`", expr_dotted(m->r->arena, call->args.at[0]));
            continue;
        }
        for (int k = 0; k < i; k++)
            if (call->call.at[k].name == arg->name)
                diag_error(m->r->s, "P0135", arg->name_span, "`%s` is given twice", arg->name);
        if (already_given(m, arg->name)) continue;
        Binding binding = {
            .name = arg->name, .name_span = arg->name_span, .value = literal_or_same(m, scope, arg->value)};
        vec_push(m->r->arena, &m->train->model_arguments, binding);
    }
}

/* Follows aliases to the model with a body. */
static const Stmt *follow(ModelReader *m, FileScope *scope, const Expr *e, FileScope **home) {
    const Stmt *seen[LONGEST_CHAIN];
    for (int n = 0; n < LONGEST_CHAIN; n++) {
        if (e->kind == EXPR_ERROR) return NULL;
        const Expr *name = e->kind == EXPR_CALL ? e->args.at[0] : e;
        const Stmt *stmt = scope_find(m->r, scope, name, STMT_MODEL, home);
        if (stmt == NULL) return NULL;
        for (int k = 0; k < n; k++) {
            if (seen[k] != stmt) continue;
            diag_error(m->r->s, "P0136", stmt->name_span, "model `%s` is defined by itself", stmt->name);
            return NULL;
        }
        seen[n] = stmt;
        add_arguments(m, scope, e);
        if (stmt->value == NULL) return stmt;
        e = stmt->value;
        scope = *home;
    }
    diag_error(m->r->s, "P0136", e->span, "more than %d models are defined by one another", (int)LONGEST_CHAIN);
    return NULL;
}

/* The names that arguments may have: dimensions of the model's body and its parameters. */
static int own_names(Resolver *r, const Stmt *model, Name **out) {
    VEC(Name) names = {0};
    for (int i = 0; i < model->params.n; i++) vec_push(r->arena, &names, model->params.at[i].name);
    for (int i = 0; i < model->body.n; i++) {
        const Stmt *stmt = model->body.at[i];
        for (int k = 0; stmt->kind == STMT_DIM && k < stmt->bindings.n; k++)
            if (!stmt->bindings.at[k].is_like) vec_push(r->arena, &names, stmt->bindings.at[k].name);
    }
    *out = names.at;
    return names.n;
}

static void apply_settings(ModelReader *m, const Name *names, int n) {
    for (int i = 0; i < n; i++) {
        const Expr *value = setting_find(m->r, names[i], "a dimension of the model");
        if (value == NULL) continue;
        Binding binding = {.name = names[i], .name_span = value->span};
        binding.value = literal_or_same(m, m->r->main, (Expr *)(uintptr_t)value);
        vec_push(m->r->arena, &m->train->model_arguments, binding);
    }
}

static void check_arguments(ModelReader *m, const Stmt *model, const Name *names, int n) {
    for (int i = 0; i < m->train->model_arguments.n; i++) {
        const Binding *binding = &m->train->model_arguments.at[i];
        bool known = false;
        for (int k = 0; k < n; k++) known |= names[k] == binding->name;
        if (known) continue;
        Diag *d = diag_error(m->r->s, "P0135", binding->name_span, "model `%s` has no dimension `%s`", model->name,
                             binding->name);
        diag_note(d, model->name_span, "the model");
        help_nearest(m->r, d, binding->name, names, n, binding->name_span);
    }
}

void models_check(Resolver *r) {
    for (int i = 0; i < r->program->models.n; i++) {
        const Stmt *stmt = r->program->models.at[i];
        if (stmt->value == NULL) continue;
        Train unused = {0};
        ModelReader m = {.r = r, .train = &unused};
        FileScope *home = NULL;
        const Stmt *model = follow(&m, r->main, stmt->value, &home);
        Name *names;
        if (model == NULL) continue;
        int n = own_names(r, model, &names);
        check_arguments(&m, model, names, n);
    }
}

void train_resolve_model(Resolver *r, FileScope *scope, const Expr *e, Train *train) {
    ModelReader m = {.r = r, .train = train};
    FileScope *home = NULL;
    const Expr *name = e->kind == EXPR_CALL ? e->args.at[0] : e;
    train->model_span = name->span;
    train->model_name = name->name;
    /* The model is found first to know what --set may mean; the settings then come before every argument. */
    train->model = follow(&m, scope, e, &home);
    if (train->model == NULL) return;
    train->model_scope = home->ast;
    Name *names;
    int n = own_names(r, train->model, &names);
    check_arguments(&m, train->model, names, n);
    int before = train->model_arguments.n;
    apply_settings(&m, names, n);
    for (int i = before; i < train->model_arguments.n; i++) { /* a setting replaces the argument of its name */
        for (int k = 0; k < before; k++) {
            if (train->model_arguments.at[k].name != train->model_arguments.at[i].name) continue;
            train->model_arguments.at[k] = train->model_arguments.at[i];
            train->model_arguments.at[i] = train->model_arguments.at[--train->model_arguments.n];
            i--;
            break;
        }
    }
}
