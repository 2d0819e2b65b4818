/* Plans: `plan NAME on CLUSTER { mesh ...; WHAT on AXIS using HOW; ... }`.
 *
 * In: the block. Out: a Plan: the mesh, one Rule for each word of each sentence, in text order, and the other
 * properties. Checked here is what needs no dimension of the model: axes, their product against the cluster's GPUs,
 * `using` words, rules stated twice. plan_check does the rest. */
#include "model/plan_check.h"

static const char *const plan_properties[] = {"microbatch", "recompute", "precision", "threads"};
enum { N_PROPERTIES = sizeof plan_properties / sizeof plan_properties[0], LARGEST_AXIS = 1 << 20 };

typedef enum UsingKind { USING_STORAGE, USING_SCHEDULE, USING_SEQUENCE } UsingKind;
static const struct {
    const char *name;
    UsingKind kind;
} usings[] = {{"free", USING_STORAGE},         {"keep", USING_STORAGE},         {"keep_for_backward", USING_STORAGE},
              {"gpipe", USING_SCHEDULE},       {"one_f_one_b", USING_SCHEDULE}, {"interleaved", USING_SCHEDULE},
              {"zero_bubble", USING_SCHEDULE}, {"table", USING_SCHEDULE},       {"ring", USING_SEQUENCE},
              {"gather", USING_SEQUENCE},      {"ulysses", USING_SEQUENCE}};
enum { N_USINGS = sizeof usings / sizeof usings[0] };

bool using_is_schedule(Name name) {
    for (int i = 0; i < N_USINGS; i++)
        if (strcmp(usings[i].name, name) == 0) return usings[i].kind == USING_SCHEDULE;
    return false;
}

typedef struct PlanReader {
    Resolver *r;
    FileScope *scope;
    Plan *plan;
    Map seen;
    const Stmt *mesh;
} PlanReader;

static Span head_of(const Stmt *stmt) { return stmt->head.file != 0 ? stmt->head : stmt->span; }

/* ---- mesh --------------------------------------------------------------------------------------- */

static bool axis_size(PlanReader *p, const Binding *binding, int64_t *size) {
    const char *setting = arena_printf(p->r->arena, "mesh.%s", binding->name);
    const Expr *given = setting_find(p->r, setting, "the mesh");
    const Expr *value = given != NULL ? given : binding->value;
    if (value == NULL || value->kind == EXPR_ERROR) return false;
    if (expr_is_word(value, "auto")) {
        p->plan->auto_span = value->span;
        return false;
    }
    if (!take_integer(p->r, p->scope, binding->name, value, 1, size)) return false;
    if (*size <= LARGEST_AXIS) return true;
    diag_error(p->r->s, "P0410", value->span, "axis `%s` has %lld ranks, and at most %d are possible", binding->name,
               (long long)*size, (int)LARGEST_AXIS);
    return false;
}

static void add_axis(PlanReader *p, const Binding *binding) {
    Mesh *mesh = &p->plan->mesh;
    for (int i = 0; i < mesh->n; i++) {
        if (mesh->axes[i].name != binding->name) continue;
        Diag *d = diag_error(p->r->s, "P0402", binding->name_span, "axis `%s` is declared twice", binding->name);
        diag_note(d, mesh->axes[i].span, "first here");
        p->plan->broken = true;
        return;
    }
    if (mesh->n == MAX_MESH) {
        diag_error(p->r->s, "P0405", binding->name_span, "a mesh has at most %d axes", (int)MAX_MESH);
        p->plan->broken = true;
        return;
    }
    int64_t size = 1;
    if (!axis_size(p, binding, &size)) {
        p->plan->broken = true;
        size = 1; /* unknown */
    }
    Span span = binding->value != NULL ? span_join(binding->name_span, binding->value->span) : binding->name_span;
    mesh->axes[mesh->n++] = (MeshAxis){binding->name, size, span};
}

static void read_mesh(PlanReader *p, const Stmt *stmt) {
    if (p->mesh != NULL) {
        Diag *d = diag_error(p->r->s, "P0401", head_of(stmt), "`mesh` is stated twice");
        diag_note(d, head_of(p->mesh), "first here");
        diag_help(d, "join them: `mesh data = 2, tensor = 4`");
        return;
    }
    p->mesh = stmt;
    for (int i = 0; i < stmt->bindings.n; i++) add_axis(p, &stmt->bindings.at[i]);
}

/* "`data` (2) x `tensor` (4)" */
static const char *mesh_text(Arena *arena, const Mesh *mesh) {
    Text text = {.arena = arena};
    text_puts(&text, mesh->n == 0 ? "no mesh" : "");
    for (int i = 0; i < mesh->n; i++)
        text_printf(&text, "%s`%s` (%lld)", i > 0 ? " x " : "", mesh->axes[i].name, (long long)mesh->axes[i].size);
    return text.at;
}

/* Which single axis could be changed so that the product becomes `ranks`. */
static void help_product(PlanReader *p, Diag *d, int64_t ranks) {
    const Mesh *mesh = &p->plan->mesh;
    Arena *arena = p->r->arena;
    Text text = {.arena = arena};
    int64_t product = mesh_ranks(mesh);
    for (int i = 0; i < mesh->n; i++) {
        int64_t others = product / mesh->axes[i].size;
        if (ranks % others == 0)
            text_printf(&text, "%s`%s = %lld`", text.n > 0 ? " or " : "", mesh->axes[i].name,
                        (long long)(ranks / others));
    }
    if (text.n > 0) {
        diag_help(d, "use %s", text.at);
        return;
    }
    if (mesh->n == 0) {
        diag_help(d, "state one: `mesh data = %lld`", (long long)ranks);
        return;
    }
    Sizes sizes = {0};
    sizes_divisors(arena, ranks, &sizes);
    diag_help(d, "each axis must divide %lld: %s", (long long)ranks, numbers_text(arena, sizes.at, sizes.n, " or "));
}

static void check_product(PlanReader *p, const Stmt *stmt) {
    const Plan *plan = p->plan;
    if (plan->broken || plan->cluster == NULL || plan->cluster->ranks == 0) return;
    double product = 1;
    for (int i = 0; i < plan->mesh.n; i++) product *= (double)plan->mesh.axes[i].size;
    if (product == (double)plan->cluster->ranks) return;
    Span span = p->mesh != NULL ? head_of(p->mesh) : stmt->name_span;
    Diag *d = diag_error(p->r->s, "P0403", span, "%s gives %.0f rank%s, and `%s` has %lld GPUs",
                         mesh_text(p->r->arena, &plan->mesh), product, product == 1 ? "" : "s", plan->cluster->name,
                         (long long)plan->cluster->ranks);
    diag_note(d, plan->cluster->span, "the cluster");
    if (product < 1e15) help_product(p, d, plan->cluster->ranks);
}

/* ---- using -------------------------------------------------------------------------------------- */

typedef struct Using {
    const Expr *expr;
    Name name;
    Span span;
    UsingKind kind;
    int64_t chunks;
    const char *table;
} Using;

static bool read_chunks(PlanReader *p, const Expr *how, Using *out) {
    const Arg *arg = how->kind == EXPR_CALL && how->call.n == 1 ? &how->call.at[0] : NULL;
    bool good = arg != NULL && (arg->name == NULL || strcmp(arg->name, "chunks") == 0);
    if (!good) {
        Diag *d = diag_error(p->r->s, "P0408", how->span, "`interleaved` needs the number of chunks on each stage");
        diag_help(d, arg != NULL && arg->name != NULL ? "did you mean `chunks`? write `interleaved(chunks = 2)`"
                                                      : "write `interleaved(chunks = 2)`");
        return false;
    }
    return take_integer(p->r, p->scope, "chunks", arg->value, 1, &out->chunks);
}

static bool check_arguments(PlanReader *p, const Expr *how, Using *using) {
    if (strcmp(using->name, "table") == 0) {
        if (how->kind == EXPR_CALL && how->call.n == 1 && how->call.at[0].name == NULL)
            return take_text(p->r, p->scope, "table", how->call.at[0].value, &using->table);
        Diag *d = diag_error(p->r->s, "P0408", how->span, "`table` needs the file that holds the schedule");
        diag_help(d, "write `table(\"schedule.txt\")`");
        return false;
    }
    if (how->kind != EXPR_CALL) return true;
    Diag *d = diag_error(p->r->s, "P0408", how->span, "`%s` takes no arguments", using->name);
    diag_help(d, "write `using %s`", using->name);
    return false;
}

/* False when nothing usable stands after `using`: reported. */
static bool read_using(PlanReader *p, const Expr *how, Using *out) {
    const Expr *callee = how->kind == EXPR_CALL ? how->args.at[0] : how;
    *out = (Using){.expr = how, .span = how->span};
    if (how->kind == EXPR_ERROR) return false;
    Name names[N_USINGS];
    for (int i = 0; i < N_USINGS; i++) {
        names[i] = usings[i].name;
        if (!expr_is_word(callee, usings[i].name)) continue;
        out->name = callee->name;
        out->kind = usings[i].kind;
    }
    if (out->name == NULL) {
        const char *dotted = expr_dotted(p->r->arena, callee);
        Diag *d =
            diag_error(p->r->s, "P0406", callee->span, "there is no way `%s` to use an axis", dotted ? dotted : "?");
        Name near = callee->kind == EXPR_NAME ? nearest_name(callee->name, names, N_USINGS) : NULL;
        if (near != NULL) {
            diag_help(d, "did you mean `%s`?", near);
            diag_fix(d, callee->span, near);
        } else {
            diag_help(d, "there are %s", list_text(p->r->arena, names, N_USINGS, " and "));
        }
        return false;
    }
    return strcmp(out->name, "interleaved") == 0 ? read_chunks(p, how, out) : check_arguments(p, how, out);
}

/* ---- rules -------------------------------------------------------------------------------------- */

static Storage storage_of(const Expr *what) {
    if (expr_is_word(what, "weights")) return STORAGE_WEIGHTS;
    if (expr_is_word(what, "gradients")) return STORAGE_GRADIENTS;
    if (expr_is_word(what, "optimizer")) return STORAGE_OPTIMIZER;
    return STORAGE_NONE;
}

const char *rule_text(Arena *arena, const Plan *plan, const Rule *rule) {
    static const char *const storages[] = {"", "weights", "gradients", "optimizer"};
    return arena_printf(arena, "%s on %s", rule->storage != STORAGE_NONE ? storages[rule->storage] : rule->what,
                        plan->mesh.axes[rule->axis].name);
}

static int find_axis(PlanReader *p, const Stmt *stmt) {
    const Mesh *mesh = &p->plan->mesh;
    Name names[MAX_MESH];
    for (int i = 0; i < mesh->n; i++) {
        if (mesh->axes[i].name == stmt->axis) return i;
        names[i] = mesh->axes[i].name;
    }
    if (stmt->axis == NULL) return -1;
    Span span = stmt->axis_span;
    if (p->mesh == NULL && p->plan->broken) return -1;
    if (p->mesh == NULL) {
        Diag *d = diag_error(p->r->s, "P0404", span, "there is no axis `%s`: the plan has no mesh", stmt->axis);
        diag_help(d, "state one first: `mesh %s = 2`", stmt->axis);
        return -1;
    }
    Diag *d = diag_error(p->r->s, "P0404", span, "the mesh has no axis `%s`", stmt->axis);
    diag_note(d, head_of(p->mesh), "the mesh is declared here");
    help_nearest(p->r, d, stmt->axis, names, mesh->n, span);
    return -1;
}

static bool same_target(const Rule *a, const Rule *b) { return a->axis == b->axis && a->in == b->in; }

static bool check_twice(PlanReader *p, const Rule *rule) {
    for (int i = 0; i < p->plan->rules.n; i++) {
        const Rule *other = &p->plan->rules.at[i];
        if (!same_target(other, rule)) continue;
        const char *text = rule_text(p->r->arena, p->plan, rule);
        if (other->what == rule->what && other->storage == rule->storage) {
            Diag *d = diag_error(p->r->s, "P0411", rule->span, "rule `%s` is stated twice", text);
            diag_note(d, other->span, "first here");
            diag_help(d, "remove one of the two");
            return true;
        }
        if (rule->storage == STORAGE_NONE || other->storage == STORAGE_NONE) continue;
        const Rule *wide = other->storage < rule->storage ? other : rule, *narrow = wide == rule ? other : rule;
        Diag *d = diag_warning(p->r->s, "P0415", narrow->span, "rule `%s` adds nothing to `%s`",
                               rule_text(p->r->arena, p->plan, narrow), rule_text(p->r->arena, p->plan, wide));
        diag_note(d, wide->span, "`weights` implies `gradients`, and `gradients` implies `optimizer`");
    }
    return false;
}

static void read_sizes(PlanReader *p, const RuleWord *word, Rule *rule) {
    for (int i = 0; i < word->sizes.n; i++) {
        int64_t size = 0;
        if (take_integer(p->r, p->scope, "uneven", word->sizes.at[i], 0, &size))
            vec_push(p->r->arena, &rule->uneven, size);
        else
            p->plan->broken = true;
    }
}

static void add_rule(PlanReader *p, const Stmt *stmt, const RuleWord *word, int axis, const Using *using,
                     const Stmt *in) {
    const char *dotted = expr_dotted(p->r->arena, word->what);
    if (dotted == NULL) {
        p->plan->broken = true; /* the parser has reported it */
        return;
    }
    Rule rule = {.storage = storage_of(word->what), .axis = axis, .how = (int)word->how, .in = in};
    rule.what = rule.storage == STORAGE_NONE ? intern(p->r->s->names, dotted) : NULL;
    rule.span = word->what->span;
    rule.statement = head_of(stmt);
    rule.axis_span = stmt->axis_span;
    if (rule.storage != STORAGE_NONE && word->how != STORE_PLAIN) {
        Diag *d = diag_error(p->r->s, "P0409", word->how_span, "storage is cut into equal parts by itself");
        diag_label(d, "`padded`, `uneven` and `repeated` are for dimensions");
        diag_help(d, "remove it: the padding of `%s` is reported", dotted);
    }
    if (using != NULL && (using->kind == USING_STORAGE) == (rule.storage != STORAGE_NONE)) {
        rule.using = using->expr;
        rule.using_name = using->name;
        rule.using_span = using->span;
        rule.chunks = using->chunks;
        rule.table = using->table;
    }
    read_sizes(p, word, &rule);
    if (!check_twice(p, &rule)) vec_push(p->r->arena, &p->plan->rules, rule);
}

static void check_using(PlanReader *p, const Stmt *stmt, const Using *using) {
    for (int i = 0; i < stmt->words.n; i++) {
        Storage storage = storage_of(stmt->words.at[i].what);
        if (using->kind == USING_STORAGE ? storage == STORAGE_WEIGHTS : storage == STORAGE_NONE) return;
    }
    Diag *d = diag_error(p->r->s, "P0407", using->span, "`%s` does not fit this rule", using->name);
    if (using->kind == USING_STORAGE)
        diag_help(d, "`%s` says what becomes of gathered weights: `weights on %s using %s`", using->name, stmt->axis,
                  using->name);
    else
        diag_help(d, "%s",
                  using->kind == USING_SCHEDULE ? "a schedule is for a rule on the layers of a repeat"
                                                : "it is for a rule on a sequence dimension");
}

static void read_rule(PlanReader *p, const Stmt *stmt, const Stmt *in) {
    int axis = find_axis(p, stmt);
    Using using;
    const Using *how = stmt->how != NULL && read_using(p, stmt->how, &using) ? &using : NULL;
    if (axis < 0 || (stmt->how != NULL && how == NULL)) p->plan->broken = true;
    if (axis < 0) return;
    if (how != NULL) check_using(p, stmt, how);
    for (int i = 0; i < stmt->words.n; i++) { /* how attention runs is said of the last name alone */
        bool has = how != NULL && (how->kind != USING_SEQUENCE || i == stmt->words.n - 1);
        add_rule(p, stmt, &stmt->words.at[i], axis, has ? how : NULL, in);
    }
}

/* ---- the other properties ----------------------------------------------------------------------- */

/* `none`, `full` (or `all`), `every 4`, or names: layers that are called, repeats, tensors. */
static void read_recompute(PlanReader *p, const Property *property) {
    Plan *plan = p->plan;
    plan->recompute_span = property->items[0]->span;
    plan->recompute_span.hi = property->items[property->n - 1]->span.hi;
    if (property->n == 2 && expr_is_word(property->items[0], "every")) {
        take_integer(p->r, p->scope, "recompute every", property->items[1], 1, &plan->recompute_every);
        return;
    }
    for (int i = 0; i < property->n; i++) {
        const Expr *e = property->items[i];
        const char *dotted = expr_dotted(p->r->arena, e);
        Name unused;
        if (dotted == NULL) {
            take_name(p->r, "recompute", e, &unused);
            return;
        }
        bool whole = strcmp(dotted, "none") == 0 || strcmp(dotted, "full") == 0 || strcmp(dotted, "all") == 0;
        if (whole && property->n > 1) {
            Diag *d = diag_error(p->r->s, "P0132", e->span, "`%s` stands among other words of `recompute`", dotted);
            diag_help(d, "write `recompute %s` alone, or names of layers", dotted);
            return;
        }
        if (strcmp(dotted, "none") == 0) return;
        Name word = intern(p->r->s->names, whole ? "full" : dotted);
        for (int k = 0; k < plan->recompute.n; k++)
            if (plan->recompute.at[k] == word) diag_error(p->r->s, "P0131", e->span, "`%s` is stated twice", dotted);
        vec_push(p->r->arena, &plan->recompute, word);
    }
}

/* The value of a property: --set's when there is one. */
static const Expr *value_of(PlanReader *p, const char *name, const Property *property) {
    const Expr *given = setting_find(p->r, name, "the plan");
    if (given != NULL) return given;
    return property != NULL && property_single(p->r, property) ? property->items[0] : NULL;
}

static void read_value(PlanReader *p, const char *name, const Property *property) {
    const Expr *e = value_of(p, name, property);
    Plan *plan = p->plan;
    if (e == NULL) {
        plan->broken |= property != NULL;
        return;
    }
    if (expr_is_word(e, "auto")) {
        plan->auto_span = e->span;
        return;
    }
    if (strcmp(name, "precision") == 0) {
        plan_read_precision(p->r, p->scope, plan, e);
    } else if (strcmp(name, "recompute") == 0) {
        Expr *one = (Expr *)(uintptr_t)e;
        read_recompute(p, &(Property){.items = &one, .n = 1, .name = name});
    } else if (strcmp(name, "threads") == 0) {
        take_integer(p->r, p->scope, name, e, 1, &plan->threads);
    } else {
        plan->microbatch_span = e->span;
        if (!take_integer(p->r, p->scope, name, e, 1, &plan->microbatch)) plan->broken = true;
    }
}

static void read_property(PlanReader *p, const Stmt *stmt) {
    Property property;
    if (!property_read(p->r->arena, stmt, &property)) {
        block_refuse(p->r, "plan", stmt);
        return;
    }
    for (int i = 0; i < N_PROPERTIES; i++) {
        if (strcmp(property.name, plan_properties[i]) != 0) continue;
        if (!property_once(p->r, &p->seen, &property)) return;
        if (strcmp(property.name, "recompute") == 0 && property.n > 1 && !setting_find(p->r, property.name, "the plan"))
            read_recompute(p, &property);
        else
            read_value(p, property.name, &property);
        return;
    }
    p->plan->broken = true; /* perhaps a rule or the mesh */
    if (strcmp(property.name, "auto") == 0) {
        p->plan->auto_span = property.span;
        return;
    }
    if (property.n == 2 && property.items[0]->kind == EXPR_NAME &&
        property.items[1]->kind == EXPR_NAME) { /* `batch onn data` */
        Diag *d =
            diag_error(p->r->s, "P0130", property.items[0]->span, "this is neither a rule nor a property of a plan");
        diag_help(d, "a rule reads `%s on %s`: did you mean `on`?", property.name, property.items[1]->name);
        diag_fix(d, property.items[0]->span, "on");
        return;
    }
    if (stmt->kind == STMT_ASSIGN && stmt->value->kind == EXPR_INT && p->mesh == NULL) {
        Diag *d = diag_error(p->r->s, "P0130", stmt->name_span, "a plan has no property `%s`", stmt->name);
        diag_help(d, "an axis is declared after `mesh`: `mesh %s = %lld`", stmt->name, (long long)stmt->value->integer);
        return;
    }
    property_unknown(p->r, "plan", &property, plan_properties, N_PROPERTIES);
}

static void read_rules(PlanReader *p, const StmtList *body, const Stmt *in) {
    for (int i = 0; i < body->n; i++) {
        const Stmt *stmt = body->at[i];
        if (stmt->kind == STMT_RULE) {
            read_rule(p, stmt, in);
        } else if (stmt->kind == STMT_IN && in != NULL) {
            Diag *d = diag_error(p->r->s, "P0475", head_of(stmt), "an `in` block inside another");
            diag_note(d, head_of(in), "the outer one");
            diag_help(
                d,
                "two blocks side by side hold together where both do: `in layers 0..3 { ... }` and `in mlp { ... }`");
        } else if (stmt->kind == STMT_IN) {
            read_rules(p, &stmt->body, stmt);
        } else if (in != NULL) {
            Diag *d = diag_error(p->r->s, "P0132", head_of(stmt), "an `in` block holds rules only");
            diag_help(d, "move this out of the block");
        }
    }
}

/* Rules come last: they may stand before the mesh, and what they miss may have been lost in another mistake. */
static void read_body(PlanReader *p, const Stmt *plan) {
    for (int i = 0; i < plan->body.n; i++)
        if (plan->body.at[i]->kind == STMT_MESH) read_mesh(p, plan->body.at[i]);
    for (int i = 0; i < plan->body.n; i++) {
        const Stmt *stmt = plan->body.at[i];
        if (stmt->kind != STMT_MESH && stmt->kind != STMT_RULE && stmt->kind != STMT_IN) read_property(p, stmt);
    }
    check_product(p, plan);
    read_rules(p, &plan->body, NULL);
}

void plan_resolve(Resolver *r, FileScope *scope, const Stmt *stmt) {
    Plan *plan = NEW(r->arena, Plan);
    PlanReader p = {.r = r, .scope = scope, .plan = plan};
    plan->name = stmt->name;
    plan->span = stmt->name_span;
    plan->precision = intern(r->s->names, "fp32");
    for (int i = 0; i < r->program->plans.n; i++) {
        if (r->program->plans.at[i]->name != stmt->name) continue;
        Diag *d = diag_error(r->s, "P0123", stmt->name_span, "plan `%s` is declared twice", stmt->name);
        diag_note(d, r->program->plans.at[i]->span, "first here");
        diag_help(d, "give one of them another name");
    }
    if (stmt->value != NULL) {
        FileScope *found = NULL;
        const Stmt *cluster = scope_find(r, scope, stmt->value, STMT_CLUSTER, &found);
        plan->cluster = cluster == NULL ? NULL : map_get(&found->clusters, cluster->name);
    }
    plan->broken = r->incomplete;
    read_body(&p, stmt);
    for (int i = 0; i < N_PROPERTIES; i++)
        if (map_get(&p.seen, intern(r->s->names, plan_properties[i])) == NULL) read_value(&p, plan_properties[i], NULL);
    vec_push(r->arena, &r->program->plans, plan);
}
