/* Divisibility: every dimension against every axis that cuts it.
 *
 * In: the rules and the sizes. Out: for each axis one message that holds everything wrong on it and the sizes that
 * satisfy all its rules together, since a size that mends one rule and breaks the next helps nobody. A dimension on
 * several axes is cut in mesh order, outermost first (by a ring before all others), so what it must be a multiple of
 * follows from all of them. */
#include "model/plan_check.h"

/* One dimension with the rules that name it, in the order in which they cut it. */
typedef struct DimUse {
    const Dim *dim;
    const Rule *rules[MAX_MESH];
    int n;
    const Stmt *in;     /* where it is divided so; NULL: everywhere */
    bool repeated_over; /* a repeat runs over it: its axis is a pipeline */
    bool free;          /* padded, uneven, repeated: rule 4's ways out were taken */
} DimUse;

typedef struct SizeCheck {
    const PlanCheck *c;
    VEC(DimUse) uses; /* in text order */
} SizeCheck;

static int64_t axis_size(const SizeCheck *k, int axis) { return k->c->plan->mesh.axes[axis].size; }

/* A ring hands around two pieces a rank, one from each end of the sequence, so that causal work is balanced. */
static bool is_balanced(const Rule *rule) { return rule->using_name != NULL && strcmp(rule->using_name, "ring") == 0; }

/* Balanced pieces are made first; else axes cut in the order of the mesh. */
static bool cuts_before(const Rule *a, const Rule *b) {
    return is_balanced(a) != is_balanced(b) ? is_balanced(a) : a->axis < b->axis;
}

static int64_t parts_of(const Rule *rule, int64_t size) {
    return rule->chunks > 0 ? size_times(size, rule->chunks) : size;
}

/* What the dimension must be a multiple of when `axis` has `size` ranks (axis -1: as the mesh says). */
static int64_t needed_multiple(const SizeCheck *k, const DimUse *use, int axis, int64_t size) {
    int64_t need = 1;
    for (int i = use->n - 1; i >= 0; i--) {
        const Rule *rule = use->rules[i];
        int64_t n = parts_of(rule, rule->axis == axis ? size : axis_size(k, rule->axis));
        need = size_times(n, is_balanced(rule) && n > 1 ? size_lcm(2, need) : need);
    }
    return need;
}

/* The leftmost factor is cut with its product, all the way down; NULL when a `repeated` rule takes care of it. */
static const Dim *cut_factor(const SizeCheck *k, const DimUse *use) {
    const Dim *dim = use->dim;
    while (dim->n_factors > 0) {
        dim = dim->factors[0];
        for (int i = 0; i < k->uses.n; i++)
            if (k->uses.at[i].dim == dim && k->uses.at[i].free) return NULL;
    }
    return dim == use->dim ? NULL : dim;
}

static bool use_fits(const SizeCheck *k, const DimUse *use, int axis, int64_t size) {
    if (use->free) return true;
    int64_t need = needed_multiple(k, use, axis, size);
    const Dim *factor = cut_factor(k, use);
    return use->dim->size % need == 0 && (factor == NULL || factor->size % need == 0);
}

static void add_use(SizeCheck *k, const Rule *rule, const Dim *dim, const Stmt *in) {
    DimUse *use = NULL;
    for (int i = 0; i < k->uses.n; i++)
        if (k->uses.at[i].dim == dim && k->uses.at[i].in == in) use = &k->uses.at[i];
    if (use == NULL) {
        vec_push(k->c->arena, &k->uses, (DimUse){.dim = dim, .in = in, .repeated_over = check_is_repeated(k->c, dim)});
        use = &vec_last(&k->uses);
    }
    if (rule->how != STORE_PLAIN) use->free = true;
    int at = use->n;
    for (int i = 0; i < use->n; i++)
        if (use->rules[i]->axis == rule->axis) return; /* in a block once more */
    while (at > 0 && cuts_before(rule, use->rules[at - 1])) {
        use->rules[at] = use->rules[at - 1];
        at--;
    }
    use->rules[at] = rule;
    use->n++;
}

/* ---- messages ----------------------------------------------------------------------------------- */

/* The sizes of `axis` that suit one use. */
static void legal_sizes(const SizeCheck *k, const DimUse *use, int axis, Sizes *out) {
    Sizes all = {0};
    const Dim *factor = cut_factor(k, use);
    sizes_divisors(k->c->arena, factor != NULL ? factor->size : use->dim->size, &all);
    for (int i = 0; i < all.n; i++)
        if (use_fits(k, use, axis, all.at[i])) vec_push(k->c->arena, out, all.at[i]);
}

static bool all_fit(const SizeCheck *k, int axis, int64_t size) {
    for (int i = 0; i < k->uses.n; i++)
        for (int r = 0; r < k->uses.at[i].n; r++)
            if (k->uses.at[i].rules[r]->axis == axis && !use_fits(k, &k->uses.at[i], axis, size)) return false;
    return true;
}

/* "; tensor = 5 also needs `vocab padded` (to 50260)" for what else must give way. */
static void add_other_needs(const SizeCheck *k, const DimUse *main, int axis, int64_t size, Text *text) {
    const char *name = k->c->plan->mesh.axes[axis].name;
    bool first = true;
    for (int i = 0; i < k->uses.n; i++) {
        const DimUse *use = &k->uses.at[i];
        bool here = false;
        for (int r = 0; r < use->n; r++) here |= use->rules[r]->axis == axis;
        if (use == main || !here || use_fits(k, use, axis, size)) continue;
        int64_t need = needed_multiple(k, use, axis, size);
        int64_t padded = size_times((use->dim->size + need - 1) / need, need);
        if (first) text_printf(text, "; %s = %lld also needs ", name, (long long)size);
        text_printf(text, "%s`%s padded` (to %lld)", first ? "" : " and ", use->dim->name, (long long)padded);
        first = false;
    }
}

static void help_axis_sizes(const SizeCheck *k, const DimUse *use, int axis, const Sizes *legal, Diag *d) {
    const char *name = k->c->plan->mesh.axes[axis].name;
    Text text = {.arena = k->c->arena};
    text_printf(&text, "use %s = %s", name, numbers_text(k->c->arena, legal->at, legal->n, " or "));
    int told = 0;
    for (int i = 0; i < legal->n && told < 3; i++) {
        if (all_fit(k, axis, legal->at[i])) continue;
        add_other_needs(k, use, axis, legal->at[i], &text);
        told++;
    }
    diag_help(d, "%s", text.at);
}

/* The first axis that the batch is on: it takes the ranks that another axis gives up. */
static int batch_axis(const SizeCheck *k, int but) {
    for (int axis = 0; axis < k->c->plan->mesh.n; axis++)
        for (int i = 0; i < k->c->plan->rules.n; i++) {
            const Rule *rule = &k->c->plan->rules.at[i];
            if (axis != but && rule->axis == axis && check_is_batch(k->c, rule)) return axis;
        }
    return -1;
}

/* The mesh with `axis` = `size` and the batch's axis made to fit the cluster; NULL when that does not come out. */
static const char *mesh_with(const SizeCheck *k, int axis, int64_t size) {
    const Mesh *mesh = &k->c->plan->mesh;
    int64_t ranks = check_cluster_ranks(k->c), others = size;
    int data = batch_axis(k, axis);
    if (ranks == 0 || data < 0 || !all_fit(k, axis, size)) return NULL;
    for (int i = 0; i < mesh->n; i++)
        if (i != axis && i != data) others = size_times(others, mesh->axes[i].size);
    if (ranks % others != 0 || !all_fit(k, data, ranks / others)) return NULL;
    int64_t unit = size_times(ranks / others, k->c->plan->microbatch > 0 ? k->c->plan->microbatch : 1);
    if (k->c->train != NULL && k->c->train->batch > 0 && k->c->train->batch % unit != 0) return NULL;
    Text text = {.arena = k->c->arena};
    for (int i = 0; i < mesh->n; i++) {
        int64_t n = i == axis ? size : i == data ? ranks / others : mesh->axes[i].size;
        text_printf(&text, "%s%s = %lld", i == 0 ? "mesh " : ", ", mesh->axes[i].name, (long long)n);
    }
    return text.at;
}

/* What of `legal` the cluster allows, and a whole mesh to copy: the largest size up to the one that was asked for. */
static void help_cluster(const SizeCheck *k, int axis, const Sizes *legal, Diag *d) {
    int64_t ranks = check_cluster_ranks(k->c);
    if (ranks == 0) return;
    Sizes fitting = {0};
    const char *example = NULL;
    for (int i = 0; i < legal->n; i++) {
        if (ranks % legal->at[i] != 0 || !all_fit(k, axis, legal->at[i])) continue;
        vec_push(k->c->arena, &fitting, legal->at[i]);
        const char *mesh = legal->at[i] <= axis_size(k, axis) ? mesh_with(k, axis, legal->at[i]) : NULL;
        if (mesh != NULL) example = mesh;
    }
    diag_help(d, "all rules and the %lld GPUs of `%s` together leave %s = %s%s", (long long)ranks,
              k->c->plan->cluster->name, k->c->plan->mesh.axes[axis].name,
              numbers_text(k->c->arena, fitting.at, fitting.n, " or "),
              example != NULL ? arena_printf(k->c->arena, ": `%s`", example) : "");
}

/* Only large dimensions are worth padding unasked: a padded head is a dead head. */
enum { WORTH_PADDING = 1024 };

static void help_size(const SizeCheck *k, const DimUse *use, Diag *d) {
    int64_t need = needed_multiple(k, use, -1, 0), below = use->dim->size / need * need,
            above = size_times(below / need + 1, need);
    const char *name = use->dim->name;
    if (use->dim->size < WORTH_PADDING && below > 0) return;
    if (below > 0)
        diag_help(d, "or make `%s` %lld or %lld; `%s padded` fills it up to %lld", name, (long long)below,
                  (long long)above, name, (long long)above);
    else
        diag_help(d, "the smallest `%s` is %lld", name, (long long)above);
}

static const Rule *rule_on(const DimUse *use, int axis) {
    for (int i = 0; i < use->n; i++)
        if (use->rules[i]->axis == axis) return use->rules[i];
    return use->rules[0];
}

/* ---- dimensions on one axis --------------------------------------------------------------------- */

static Diag *report_plain(const SizeCheck *k, const DimUse *use, int axis) {
    const MeshAxis *a = &k->c->plan->mesh.axes[axis];
    const Rule *rule = rule_on(use, axis);
    const Dim *factor = cut_factor(k, use);
    int64_t need = needed_multiple(k, use, -1, 0);
    Diag *d;
    if (use->dim->size % need == 0 && factor != NULL) { /* fewer key/value heads than ranks, and the like */
        d = diag_error(k->c->s, "P0312", rule->span, "`%s` (%lld) does not divide over axis `%s` (%lld)", factor->name,
                       (long long)factor->size, a->name, (long long)a->size);
        diag_label(d, "cutting `%s` cuts its factor `%s`: each rank would get %.6g of %lld", use->dim->name,
                   factor->name, (double)factor->size / (double)need, (long long)factor->size);
        diag_note(d, factor->span, "`%s` is declared here", factor->name);
        if (need % factor->size == 0)
            diag_help(d, "`%s repeated on %s` keeps each of them on %lld ranks and adds up their gradients",
                      factor->name, a->name, (long long)(need / factor->size));
        return d;
    }
    d = diag_error(k->c->s, "P0301", rule->span, "`%s` (%lld) does not divide over axis `%s` (%lld)", use->dim->name,
                   (long long)use->dim->size, a->name, (long long)a->size);
    if (is_balanced(rule) && use->dim->size % a->size == 0)
        diag_label(d, "`ring` needs two pieces on each rank: a multiple of %lld", (long long)need);
    else
        diag_label(d, "each rank would get %.6g", (double)use->dim->size / (double)a->size);
    return d;
}

static void check_axis(const SizeCheck *k, int axis) {
    const MeshAxis *a = &k->c->plan->mesh.axes[axis];
    const DimUse *first = NULL;
    Diag *d = NULL;
    for (int i = 0; i < k->uses.n; i++) {
        const DimUse *use = &k->uses.at[i];
        if (use->n != 1 || use->repeated_over || use->rules[0]->axis != axis || use_fits(k, use, -1, 0)) continue;
        if (first == NULL) {
            first = use;
            d = report_plain(k, use, axis);
            diag_note(d, a->span, "axis declared here");
            continue;
        }
        const Dim *factor = cut_factor(k, use);
        const Dim *bad = use->dim->size % needed_multiple(k, use, -1, 0) == 0 && factor != NULL ? factor : use->dim;
        diag_note(d, use->rules[0]->span, "`%s` (%lld) does not divide either", bad->name, (long long)bad->size);
    }
    if (first == NULL) return;
    Sizes legal = {0};
    legal_sizes(k, first, axis, &legal);
    help_axis_sizes(k, first, axis, &legal, d);
    help_cluster(k, axis, &legal, d);
    help_size(k, first, d);
}

/* ---- dimensions on several axes ----------------------------------------------------------------- */

static void check_several(const SizeCheck *k, const DimUse *use) {
    if (use->n < 2 || use_fits(k, use, -1, 0)) return;
    int axes[MAX_MESH];
    for (int i = 0; i < use->n; i++) axes[i] = use->rules[i]->axis;
    int64_t need = needed_multiple(k, use, -1, 0);
    const Dim *factor = cut_factor(k, use), *bad = use->dim->size % need == 0 && factor != NULL ? factor : use->dim;
    Diag *d = diag_error(k->c->s, "P0302", use->rules[use->n - 1]->span, "`%s` (%lld) does not divide over %s",
                         bad->name, (long long)bad->size, axes_text(k->c->arena, &k->c->plan->mesh, axes, use->n));
    bool ring = false;
    for (int i = 0; i < use->n; i++) ring |= is_balanced(use->rules[i]);
    diag_label(d, "it must be a multiple of %lld%s", (long long)need,
               ring ? ", since `ring` needs two pieces on each rank" : "");
    for (int i = 0; i < use->n - 1; i++) diag_note(d, use->rules[i]->span, "it is cut here as well");
    int64_t below = bad->size / need * need;
    if (below > 0)
        diag_help(d, "the nearest sizes are %lld and %lld", (long long)below,
                  (long long)size_times(below / need + 1, need));
    else
        diag_help(d, "the smallest size is %lld", (long long)need);
    for (int i = 0; i < use->n; i++) {
        Sizes legal = {0};
        legal_sizes(k, use, axes[i], &legal);
        if (legal.n > 0)
            diag_help(d, "or, the other axes as they are, `%s = %s`", k->c->plan->mesh.axes[axes[i]].name,
                      numbers_text(k->c->arena, legal.at, legal.n, " or "));
    }
}

/* ---- layers over a pipeline --------------------------------------------------------------------- */

/* Repeats that one sentence joins are divided together. */
static int64_t joined_layers(const SizeCheck *k, const DimUse *use) {
    int64_t total = 0;
    for (int i = 0; i < k->uses.n; i++) {
        const DimUse *other = &k->uses.at[i];
        if (other->repeated_over && !other->free && other->rules[0]->statement.lo == use->rules[0]->statement.lo &&
            other->rules[0]->axis == use->rules[0]->axis)
            total += other->dim->size;
    }
    return total;
}

/* "8, 8, 7, 7" */
static const char *even_split(Arena *arena, int64_t layers, int64_t parts) {
    Text text = {.arena = arena};
    for (int64_t i = 0; i < parts; i++)
        text_printf(&text, "%s%lld", i > 0 ? ", " : "", (long long)(layers / parts + (i < layers % parts)));
    return text.at;
}

enum { LONGEST_SPLIT = 32 };

static void check_layers(const SizeCheck *k, const DimUse *use) {
    if (!use->repeated_over || use->free || use->n != 1) return;
    const Rule *rule = use->rules[0];
    const MeshAxis *a = &k->c->plan->mesh.axes[rule->axis];
    int64_t layers = joined_layers(k, use), parts = parts_of(rule, a->size);
    if (layers % parts == 0) return;
    Arena *arena = k->c->arena;
    Diag *d = diag_error(k->c->s, "P0304", rule->span, "`%s` (%lld) does not divide over axis `%s` (%lld)%s",
                         use->dim->name, (long long)layers, a->name, (long long)a->size,
                         rule->chunks > 0 ? arena_printf(arena, " x %lld chunks", (long long)rule->chunks) : "");
    diag_label(d, "%lld layers would give %.6g to each %s", (long long)layers, (double)layers / (double)parts,
               rule->chunks > 0 ? "chunk" : "stage");
    diag_note(d, a->span, "axis declared here");
    Sizes all = {0}, legal = {0};
    sizes_divisors(arena, layers, &all);
    for (int i = 0; i < all.n; i++)
        if (layers % parts_of(rule, all.at[i]) == 0) vec_push(arena, &legal, all.at[i]);
    const char *sizes =
        legal.n > 0 ? arena_printf(arena, "use %s = %s", a->name, numbers_text(arena, legal.at, legal.n, " or "))
                    : "use fewer chunks";
    if (parts <= LONGEST_SPLIT && layers == use->dim->size)
        diag_help(d, "say who gets how many: `%s uneven(%s) on %s`; or %s", use->dim->name,
                  even_split(arena, layers, parts), a->name, sizes);
    else
        diag_help(d, "%s", sizes);
    help_cluster(k, rule->axis, &legal, d);
}

/* ---- uneven and repeated ------------------------------------------------------------------------ */

static void check_uneven(const SizeCheck *k, const Rule *rule, const Dim *dim) {
    const MeshAxis *a = &k->c->plan->mesh.axes[rule->axis];
    int64_t parts = parts_of(rule, a->size), sum = 0;
    for (int i = 0; i < rule->uneven.n; i++) {
        if (__builtin_add_overflow(sum, rule->uneven.at[i], &sum)) sum = INT64_MAX;
    }
    if (rule->uneven.n != parts) {
        Diag *d =
            diag_error(k->c->s, "P0306", rule->span, "`uneven` gives %d sizes for %lld %s", rule->uneven.n,
                       (long long)parts, rule->chunks > 0 ? "chunks, those of all stages in model order" : "ranks");
        diag_note(d, a->span, "axis declared here");
        if (parts <= LONGEST_SPLIT)
            diag_help(d, "for example `uneven(%s)`; 0 is allowed", even_split(k->c->arena, dim->size, parts));
    } else if (sum != dim->size) {
        Diag *d = diag_error(k->c->s, "P0305", rule->span, "the sizes of `uneven` add up to %lld, and `%s` is %lld",
                             (long long)sum, dim->name, (long long)dim->size);
        diag_label(d, "%lld %s", (long long)(sum > dim->size ? sum - dim->size : dim->size - sum),
                   sum > dim->size ? "too many" : "missing");
        if (parts <= LONGEST_SPLIT) diag_help(d, "for example `uneven(%s)`", even_split(k->c->arena, dim->size, parts));
    }
}

static void check_repeated(const SizeCheck *k, const Rule *rule, const Dim *dim) {
    const MeshAxis *a = &k->c->plan->mesh.axes[rule->axis];
    if (dim->size < a->size && a->size % dim->size == 0) return;
    Diag *d = diag_error(k->c->s, "P0307", rule->span, "`%s` (%lld) cannot be repeated on axis `%s` (%lld)", dim->name,
                         (long long)dim->size, a->name, (long long)a->size);
    diag_note(d, a->span, "axis declared here");
    if (dim->size % a->size == 0)
        diag_help(d, "it divides: remove `repeated`");
    else
        diag_help(d, "the axis must be a multiple of %lld to repeat it, or divide it", (long long)dim->size);
}

static bool has_use(const SizeCheck *k, const Dim *dim, const Stmt *in) {
    for (int i = 0; i < k->uses.n; i++)
        if (k->uses.at[i].dim == dim && k->uses.at[i].in == in) return true;
    return false;
}

/* In a part of the model its block's rules hold together with those outside of blocks. */
static void add_blocks(SizeCheck *k) {
    const Plan *plan = k->c->plan;
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        const Dim *dim = rule->in && rule->what ? check_find_dim(k->c, rule->what) : NULL;
        if (dim == NULL || check_is_batch(k->c, rule) || has_use(k, dim, rule->in)) continue;
        for (int r = 0; r < plan->rules.n; r++) {
            const Rule *other = &plan->rules.at[r];
            if (other->what == rule->what && (!other->in || other->in == rule->in)) add_use(k, other, dim, rule->in);
        }
        for (int u = 0; u < k->uses.n; u++) /* told once */
            if (k->uses.at[u].dim == dim && !k->uses.at[u].in && !use_fits(k, &k->uses.at[u], -1, 0))
                vec_last(&k->uses).free = true;
    }
}

void check_sizes(const PlanCheck *c) {
    SizeCheck k = {.c = c};
    for (int i = 0; i < c->plan->rules.n; i++) {
        const Rule *rule = &c->plan->rules.at[i];
        const Dim *dim = rule->what != NULL && !check_is_batch(c, rule) ? check_find_dim(c, rule->what) : NULL;
        if (dim == NULL || dim->size <= 0) continue;
        if (!rule->in) add_use(&k, rule, dim, NULL);
        if (rule->how == STORE_UNEVEN && !c->plan->broken) check_uneven(&k, rule, dim);
        if (rule->how == STORE_REPEATED && !c->plan->broken) check_repeated(&k, rule, dim);
    }
    add_blocks(&k);
    for (int axis = 0; axis < c->plan->mesh.n; axis++) check_axis(&k, axis);
    for (int i = 0; i < k.uses.n; i++) {
        check_several(&k, &k.uses.at[i]);
        check_layers(&k, &k.uses.at[i]);
    }
}
