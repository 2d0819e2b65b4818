/* The batch against mesh and micro-batch.
 *
 * One step's batch is `ranks that divide it` x `sequences per rank and micro-batch` x `micro-batches`, all whole.
 * Nothing is ever rounded: a batch that does not multiply out is refused with the nearest ones that do, with each
 * factor. */
#include "model/plan_check.h"

typedef struct BatchFactors {
    int axes[MAX_MESH], n;
    int64_t ranks;    /* product of the axes */
    int64_t micro;    /* 1 when not stated */
    const Rule *rule; /* the first on batch, or NULL */
} BatchFactors;

static BatchFactors find_factors(const PlanCheck *c) {
    BatchFactors f = {.ranks = 1, .micro = c->plan->microbatch > 0 ? c->plan->microbatch : 1};
    for (int axis = 0; axis < c->plan->mesh.n; axis++) {
        for (int i = 0; i < c->plan->rules.n; i++) {
            const Rule *rule = &c->plan->rules.at[i];
            if (rule->axis != axis || !check_is_batch(c, rule) || rule->in != NULL) continue;
            if (f.rule == NULL || rule->span.lo < f.rule->span.lo) f.rule = rule;
            f.axes[f.n++] = axis;
            f.ranks = size_times(f.ranks, c->plan->mesh.axes[axis].size);
            break;
        }
    }
    return f;
}

/* "`data` (7) x micro-batch (2)" */
static const char *factors_text(const PlanCheck *c, const BatchFactors *f) {
    const char *axes = axes_text(c->arena, &c->plan->mesh, f->axes, f->n);
    if (c->plan->microbatch == 0) return axes;
    return arena_printf(c->arena, "%s%smicro-batch (%lld)", axes, f->n > 0 ? " x " : "", (long long)f->micro);
}

static void add_notes(const PlanCheck *c, const BatchFactors *f, Diag *d) {
    diag_note(d, c->train->batch_span, "the batch is stated here: %lld sequences in one step, over all ranks",
              (long long)c->train->batch);
    for (int i = 0; i < f->n; i++) diag_note(d, c->plan->mesh.axes[f->axes[i]].span, "axis declared here");
    if (f->rule != NULL && c->plan->microbatch > 0)
        diag_note(d, c->plan->microbatch_span, "the micro-batch is stated here");
}

/* Sizes of the single data axis, or of the micro-batch, that would do. */
static void help_other_factors(const PlanCheck *c, const BatchFactors *f, Diag *d) {
    Sizes sizes = {0};
    int64_t batch = c->train->batch;
    if (c->plan->microbatch > 0 && batch % f->ranks == 0) {
        sizes_divisors(c->arena, batch / f->ranks, &sizes);
        diag_help(d, "or `microbatch %s`", numbers_text(c->arena, sizes.at, sizes.n, " or "));
    } else if (f->n == 1 && batch % f->micro == 0) {
        int64_t ranks = check_cluster_ranks(c);
        Sizes all = {0};
        sizes_divisors(c->arena, batch / f->micro, &all);
        for (int i = 0; i < all.n; i++)
            if (ranks == 0 || ranks % all.at[i] == 0) vec_push(c->arena, &sizes, all.at[i]);
        if (sizes.n < 2) return; /* one rank is no advice */
        diag_help(d, "or `%s = %s`%s", c->plan->mesh.axes[f->axes[0]].name,
                  numbers_text(c->arena, sizes.at, sizes.n, " or "),
                  ranks > 0 ? arena_printf(c->arena, ", which also divide the %lld GPUs of `%s`", (long long)ranks,
                                           c->plan->cluster->name)
                            : "");
    }
}

/* Dimensions that could take the ranks of the batch's axes when there are too few sequences. */
static void help_other_dims(const PlanCheck *c, const BatchFactors *f, Diag *d) {
    VEC(Name) names = {0};
    for (int i = 0; i < c->n_dims && names.n < 4; i++) {
        const Dim *dim = c->dims[i];
        bool usable = !dim->is_batch && dim->like == NULL && dim->name != c->batch && !check_is_repeated(c, dim) &&
                      strchr(dim->name, '.') == NULL;
        if (usable && dim->size >= f->ranks && dim->size % f->ranks == 0) vec_push(c->arena, &names, dim->name);
    }
    if (names.n > 0)
        diag_help(d, "a single sequence can be divided otherwise: %s %s %lld parts",
                  list_text(c->arena, names.at, names.n, " and "), names.n == 1 ? "divides into" : "divide into",
                  (long long)f->ranks);
}

static void report_batch(const PlanCheck *c, const BatchFactors *f, int64_t unit) {
    int64_t batch = c->train->batch;
    Span span = f->rule != NULL ? f->rule->span : c->plan->microbatch_span;
    if (batch < unit) {
        Diag *d = diag_error(c->s, "P0311", span, "`batch` (%lld) is smaller than %s = %lld", (long long)batch,
                             factors_text(c, f), (long long)unit);
        diag_label(d, "some ranks would have no sequence");
        add_notes(c, f, d);
        diag_help(d, "the smallest batch is %lld", (long long)unit);
        if (f->n > 0 && batch < f->ranks) help_other_dims(c, f, d);
        return;
    }
    Diag *d =
        diag_error(c->s, "P0310", span, "`batch` (%lld) does not divide over %s", (long long)batch, factors_text(c, f));
    double share = (double)batch / (double)unit;
    if (c->plan->microbatch > 0)
        diag_label(d, "%lld / %lld is %.6g micro-batches, not a whole number", (long long)batch, (long long)unit,
                   share);
    else
        diag_label(d, "each rank would get %.6g sequences", share);
    add_notes(c, f, d);
    int64_t below = batch / unit * unit;
    diag_help(d, "the nearest batches are %lld and %lld", (long long)below, (long long)(below + unit));
    help_other_factors(c, f, d);
}

void check_batch(const PlanCheck *c) {
    for (int i = 0; i < c->plan->rules.n; i++) {
        const Rule *rule = &c->plan->rules.at[i];
        if (!check_is_batch(c, rule) || rule->how == STORE_PLAIN) continue;
        Diag *d = diag_error(c->s, "P0308", rule->span, "`batch` can only be divided into equal parts");
        diag_help(d, "choose a batch that divides");
    }
    if (c->train == NULL || c->train->batch <= 0) return;
    BatchFactors f = find_factors(c);
    for (int i = 0; i < f.n; i++)
        if (c->plan->broken && c->plan->mesh.axes[f.axes[i]].size == 1) return; /* a size that a mistake left open */
    int64_t unit = size_times(f.ranks, f.micro);
    if (c->train->batch % unit != 0) report_batch(c, &f, unit);
}
