/* A plan against the model's dimensions: nothing idle, nothing that fits nothing.
 *
 * In: a resolved plan and the model's dimensions. Out: diagnostics: words that name no dimension, axes that no rule
 * uses or on which every rank would repeat the same work, schedules on dimensions that no repeat runs over, narrowed
 * blocks and recompute words that name nothing. Sizes are checked in plan_sizes.c and plan_batch.c. */
#include "model/plan_check.h"

Dim *check_find_dim(const PlanCheck *c, Name what) {
    for (int i = 0; i < c->n_dims; i++)
        if (c->dims[i]->name == what) return c->dims[i];
    return NULL;
}

bool check_is_batch(const PlanCheck *c, const Rule *rule) { return rule->what == c->batch; }

int64_t check_cluster_ranks(const PlanCheck *c) { return c->plan->cluster == NULL ? 0 : c->plan->cluster->ranks; }

/* ---- what the model's text holds ---------------------------------------------------------------- */

static bool repeats_over(const StmtList *body, Name name) {
    for (int i = 0; i < body->n; i++) {
        const Stmt *stmt = body->at[i];
        if (stmt->kind == STMT_REPEAT && stmt->name == name) return true;
        if (repeats_over(&stmt->body, name) || repeats_over(&stmt->otherwise, name)) return true;
    }
    return false;
}

bool check_is_repeated(const PlanCheck *c, const Dim *dim) {
    return c->train != NULL && c->train->model != NULL && repeats_over(&c->train->model->body, dim->name);
}

/* Names that a narrowing or a recomputation can mean: layers that are called and tensors that are assigned. */
typedef struct PartNames {
    Arena *arena;
    VEC(Name) names;
} PartNames;

static void add_calls(PartNames *parts, const Expr *e) {
    if (e == NULL) return;
    if (e->kind == EXPR_CALL) vec_push(parts->arena, &parts->names, e->args.at[0]->name);
    for (int i = 0; i < e->args.n; i++) add_calls(parts, e->args.at[i]);
    for (int i = 0; i < e->call.n; i++) add_calls(parts, e->call.at[i].value);
}

static void add_parts(PartNames *parts, const StmtList *body) {
    for (int i = 0; i < body->n; i++) {
        const Stmt *stmt = body->at[i];
        if (stmt->kind == STMT_ASSIGN || stmt->kind == STMT_REPEAT) vec_push(parts->arena, &parts->names, stmt->name);
        for (int k = 0; k < stmt->names.n; k++) vec_push(parts->arena, &parts->names, stmt->names.at[k]);
        add_calls(parts, stmt->value);
        add_parts(parts, &stmt->body);
        add_parts(parts, &stmt->otherwise);
    }
}

static bool has_name(const PartNames *parts, Name name) {
    for (int i = 0; i < parts->names.n; i++)
        if (parts->names.at[i] == name) return true;
    return false;
}

static void suggest(Diag *d, Name word, const Name *names, int n, Span fix) {
    Name near = nearest_name(word, names, n);
    if (near == NULL) return;
    diag_help(d, "did you mean `%s`?", near);
    diag_fix(d, fix, near);
}

/* ---- words that match nothing ------------------------------------------------------------------- */

/* `hidden` for `mlp.hidden`: the layer's name is missing. */
static Name with_layer(const PlanCheck *c, Name what) {
    for (int i = 0; i < c->n_dims; i++) {
        const char *dot = strrchr(c->dims[i]->name, '.');
        if (dot != NULL && strcmp(dot + 1, what) == 0) return c->dims[i]->name;
    }
    return NULL;
}

static void report_no_match(const PlanCheck *c, const Rule *rule) {
    Diag *d = diag_error(c->s, "P0412", rule->span, "rule `%s` matches nothing", rule_text(c->arena, c->plan, rule));
    diag_label(d, "the model has no dimension `%s`", rule->what);
    VEC(Name) names = {0};
    for (int i = 0; i < c->n_dims; i++) vec_push(c->arena, &names, c->dims[i]->name);
    static const char *const storage[] = {"weights", "gradients", "optimizer"};
    for (int i = 0; i < 3; i++) vec_push(c->arena, &names, storage[i]);
    Name near = with_layer(c, rule->what);
    if (near == NULL) near = nearest_name(rule->what, names.at, names.n);
    if (near != NULL) {
        diag_help(d, "did you mean `%s`?", near);
        diag_fix(d, rule->span, near);
    } else {
        diag_help(d, "its dimensions are %s", list_text(c->arena, names.at, c->n_dims, " and "));
    }
}

static bool using_is_sequence(const Rule *rule) {
    return rule->using_name != NULL && rule->storage == STORAGE_NONE && !using_is_schedule(rule->using_name);
}

static bool has_second_name(const PlanCheck *c, const Dim *dim) {
    for (int i = 0; i < c->n_dims; i++)
        if (c->dims[i]->like == dim) return true;
    return false;
}

static void check_words(const PlanCheck *c) {
    for (int i = 0; i < c->plan->rules.n; i++) {
        const Rule *rule = &c->plan->rules.at[i];
        if (rule->what == NULL) continue;
        const Dim *dim = check_find_dim(c, rule->what);
        if (dim == NULL)
            report_no_match(c, rule);
        else if (!c->whole)
            continue;
        else if (rule->using_name != NULL && using_is_schedule(rule->using_name) && c->train != NULL &&
                 c->train->model != NULL && !check_is_repeated(c, dim)) {
            Diag *d =
                diag_error(c->s, "P0407", rule->using_span, "`%s` does not fit `%s`", rule->using_name, rule->what);
            diag_label(d, "a schedule orders the layers of a repeat, and no repeat runs over `%s`", rule->what);
        } else if (using_is_sequence(rule) && !has_second_name(c, dim)) {
            Diag *d =
                diag_error(c->s, "P0407", rule->using_span, "`%s` does not fit `%s`", rule->using_name, rule->what);
            diag_label(d, "it is for positions that attention compares, and no dimension is `like %s`", rule->what);
        }
    }
}

/* ---- axes that do nothing ----------------------------------------------------------------------- */

static void check_axis(const PlanCheck *c, int axis) {
    const MeshAxis *a = &c->plan->mesh.axes[axis];
    if (a->size == 1) return;
    const Rule *storage = NULL;
    for (int i = 0; i < c->plan->rules.n; i++) {
        const Rule *rule = &c->plan->rules.at[i];
        if (rule->axis != axis) continue;
        if (rule->what != NULL) return;
        storage = rule;
    }
    double share = 100.0 * (double)(a->size - 1) / (double)a->size;
    if (storage != NULL) {
        Diag *d = diag_perf(c->s, "P0414", storage->span,
                            "axis `%s` (%lld) only stores: every rank on it repeats the same work", a->name,
                            (long long)a->size);
        diag_label(d, "%.4g %% of the work is repeated", share);
        diag_note(d, a->span, "axis declared here");
        diag_help(d, "divide the batch too: `batch on %s`", a->name);
        return;
    }
    Diag *d = diag_error(c->s, "P0413", a->span, "no rule uses axis `%s`: its %lld ranks would all do the same",
                         a->name, (long long)a->size);
    diag_label(d, "%.4g %% of the work is repeated", share);
    diag_help(d, "add a rule such as `batch on %s`, or remove the axis", a->name);
}

/* ---- `in` blocks and recomputation -------------------------------------------------------------- */

static void check_range(const PlanCheck *c, const Stmt *in) {
    const Dim *dim = in->value->kind == EXPR_NAME ? check_find_dim(c, in->value->name) : NULL;
    if (in->range->kind != EXPR_RANGE) return;
    if (dim == NULL || !check_is_repeated(c, dim)) {
        Diag *d = diag_error(c->s, "P0419", in->value->span, "`in %s` with a range narrows to no layers",
                             expr_dotted(c->arena, in->value));
        diag_label(d, "no repeat of the model runs over it");
        diag_help(d, "a range counts the rounds of a repeat: `in layers 0..3 { ... }`");
        return;
    }
    const Expr *low = in->range->args.at[0], *high = in->range->args.at[1];
    if (low->kind != EXPR_INT || high->kind != EXPR_INT) {
        Diag *d = diag_error(c->s, "P0419", in->range->span, "a range of layers is two whole numbers");
        diag_help(d, "write them out: `in %s 0..%lld { ... }`", dim->name, (long long)dim->size - 1);
        return;
    }
    if (low->integer >= 0 && low->integer <= high->integer && high->integer < dim->size) return;
    diag_error(c->s, "P0419", in->range->span, "`%lld..%lld` is not a range of `%s`: they are numbered 0 to %lld",
               (long long)low->integer, (long long)high->integer, dim->name, (long long)dim->size - 1);
}

/* What a path ends with, without the number of the call: "mlp" of "layers_2.mlp_3". */
static Name call_name(const PlanCheck *c, const char *path) {
    const char *dot = strrchr(path, '.'), *last = dot != NULL ? dot + 1 : path;
    size_t n = strlen(last), end = n;
    while (end > 0 && last[end - 1] >= '0' && last[end - 1] <= '9') end--;
    if (end > 1 && end < n && last[end - 1] == '_') n = end - 1;
    return intern_n(c->s->names, last, n);
}

/* What belongs to the whole model: samples, data sets, the layers themselves. */
static void check_narrowed(const PlanCheck *c, const Rule *rule) {
    const Dim *dim = rule->what != NULL ? check_find_dim(c, rule->what) : NULL;
    bool batch = rule->what != NULL && check_is_batch(c, rule);
    if (!batch && (dim == NULL || (!dim->has_data && !check_is_repeated(c, dim)))) return;
    Diag *d = diag_error(c->s, "P0474", rule->span, "`%s` cannot be divided in a part of the model", rule->what);
    diag_label(d, "%s",
               batch           ? "every part computes the same samples"
               : dim->has_data ? "every part computes the same data sets"
                               : "a pipeline divides the whole model");
    diag_help(d, "state it outside of the block");
}

static void check_narrowing(const PlanCheck *c, const PartNames *parts, const Stmt *in) {
    const char *dotted = expr_dotted(c->arena, in->value);
    if (dotted == NULL) return;
    if (in->range != NULL) {
        check_range(c, in);
        return;
    }
    Name name = call_name(c, dotted);
    if (check_find_dim(c, name) != NULL || has_name(parts, name)) return;
    Diag *d = diag_error(c->s, "P0419", in->value->span, "`in %s` narrows to nothing", dotted);
    diag_label(d, "the model has no such layer, call or tensor");
    suggest(d, name, parts->names.at, parts->names.n, in->value->span);
}

/* `nn.attention` means what `attention` does. */
static void check_recompute(const PlanCheck *c, const PartNames *parts, Name word) {
    const char *dot = strrchr(word, '.');
    Name last = dot != NULL ? intern(c->s->names, dot + 1) : word;
    if (strcmp(word, "full") == 0 || has_name(parts, last) || !c->whole) return;
    Diag *d = diag_error(c->s, "P0416", c->plan->recompute_span, "`recompute %s` matches nothing", word);
    diag_label(d, "the model calls no such layer");
    if (c->plan->recompute.n == 1) suggest(d, word, parts->names.at, parts->names.n, c->plan->recompute_span);
    diag_help(d, "name a layer that the model calls, a repeat, or `full`");
}

static void check_parts(const PlanCheck *c) {
    if (c->train == NULL || c->train->model == NULL) return;
    PartNames parts = {.arena = c->arena};
    add_parts(&parts, &c->train->model->body);
    for (int i = 0; i < c->plan->rules.n; i++)
        if (c->plan->rules.at[i].in != NULL) {
            const Stmt *in = c->plan->rules.at[i].in;
            check_narrowed(c, &c->plan->rules.at[i]);
            if (i == 0 || c->plan->rules.at[i - 1].in != in) check_narrowing(c, &parts, in);
        }
    for (int i = 0; i < c->plan->recompute.n; i++) check_recompute(c, &parts, c->plan->recompute.at[i]);
}

/* ---- all of it ---------------------------------------------------------------------------------- */

void plan_check(Session *s, const Train *train, const Plan *plan, Dim *const *dims, int n_dims, bool whole) {
    PlanCheck c = {s, s->arena, train, plan, dims, n_dims, intern(s->names, "batch"), whole};
    check_words(&c);
    if (!plan->broken)
        for (int i = 0; i < plan->mesh.n; i++) check_axis(&c, i);
    check_parts(&c);
    check_sizes(&c);
    check_batch(&c);
    check_precision(&c);
}

/* ---- what is not built yet ---------------------------------------------------------------------- */

const char *plan_unbuilt(const Plan *plan, Span *where) {
    if (plan->auto_span.file != 0) {
        *where = plan->auto_span;
        return "a choice left to the planner";
    }
    return NULL;
}

const char *train_unbuilt(const Train *train, Span *where) {
    if (train->validation.n > 1) {
        *where = train->validation.at[1].span;
        return "more than one evaluation set";
    }
    return NULL;
}
