/* A plan against the memory that a rank has.
 *
 * In: a plan, and a function that builds it to addresses, so every number here is that of a program, not an estimate.
 * Out: the built plan, with the largest micro-batch that fits where none is stated; or P0601, with what the memory is
 * for and what would save how much, found by building alternatives, at most MOST_TRIALS of them. What is only tried is
 * built in a session of its own, so that its memory is given back and its complaints are not the user's. A rank has the
 * usable memory of its GPU; on this machine, its share. */
#include "driver/fit_memory.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_WORDS = 3, MOST_WAYS = 5, MOST_TRIALS = 8 };

/* ---- what a rank has --------------------------------------------------------------------------------------------- */

/* "MemAvailable:   123 kB" in /proc/meminfo; 0 when the system does not tell. */
static double meminfo(const char *field) {
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return 0;
    char line[256];
    double kilobytes = 0;
    size_t n = strlen(field);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, field, n) == 0 && line[n] == ':') kilobytes = strtod(line + n + 1, NULL);
    fclose(file);
    return kilobytes * 1024;
}

/* The smallest of the plan's GPUs; NULL without a cluster. */
static const Gpu *smallest_gpu(const Plan *plan) {
    const Gpu *least = NULL;
    for (int i = 0; plan->cluster && i < plan->cluster->groups.n; i++) {
        const Gpu *gpu = plan->cluster->groups.at[i].gpu;
        if (gpu && (!least || gpu->usable < least->usable)) least = gpu;
    }
    return least;
}

/* Bytes for one rank. `ever`: not at this moment, but at all: what a stated micro-batch is refused for. NAN: unknown.
 */
static double limit_of(const Fit *fit, bool ever) {
    const Plan *plan = fit->plan;
    if (plan->cluster) {
        const Gpu *gpu = smallest_gpu(plan);
        if (!gpu) return NAN;
        return isnan(gpu->usable) ? gpu->memory : gpu->usable;
    }
    double bytes = fit->machine_bytes > 0 ? fit->machine_bytes : meminfo(ever ? "MemTotal" : "MemAvailable");
    return bytes > 0 ? bytes / (double)mesh_ranks(&plan->mesh) : NAN;
}

/* ---- what it needs ----------------------------------------------------------------------------------------------- */

static int threads_of(const Fit *fit) {
    if (fit->threads) return fit->threads;
    if (fit->plan->threads) return (int)fit->plan->threads;
    long cores = sysconf(_SC_NPROCESSORS_ONLN), ranks = (long)mesh_ranks(&fit->plan->mesh);
    return cores > ranks ? (int)(cores / ranks) : 1;
}

/* Packing panels are the host's; a GPU's libraries have theirs in the memory that is not usable. */
static double scratch_of(const Fit *fit, const RoleProgram *role) {
    return fit->plan->cluster ? 0 : (double)role->scratch_bytes * threads_of(fit);
}

static const RoleProgram *largest_role(const ProgramFacts *facts) {
    const RoleProgram *largest = facts->roles[0];
    for (int i = 1; i < facts->n_roles; i++)
        if (facts->roles[i]->arena_bytes > largest->arena_bytes) largest = facts->roles[i];
    return largest;
}

static double need_of(const Fit *fit, const ProgramFacts *facts) {
    const RoleProgram *role = largest_role(facts);
    return (double)role->arena_bytes + scratch_of(fit, role);
}

/* ---- the micro-batch --------------------------------------------------------------------------------------------- */

static int64_t batch_ranks(const Plan *plan) {
    int64_t ranks = 1;
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (rule->what && strcmp(rule->what, "batch") == 0) ranks *= plan->mesh.axes[rule->axis].size;
    }
    return ranks;
}

static const Plan *with_microbatch(const Fit *fit, const Plan *plan, int64_t microbatch) {
    Plan *sized = NEW(fit->s->arena, Plan);
    *sized = *plan;
    sized->microbatch = microbatch;
    return sized;
}

/* What a rank would need under this plan; NAN when it cannot be built. */
static double need_when(const Fit *fit, const Plan *plan) {
    Session trial = *fit->s; /* with its names and files */
    trial.arena = arena_new();
    trial.diags.at = NULL, trial.diags.n = trial.diags.cap = 0;
    trial.reported = (Map){0};
    memset(trial.counts, 0, sizeof trial.counts);
    const ProgramFacts *facts = fit->build(fit->context, &trial, plan);
    double need = facts ? need_of(fit, facts) : NAN;
    arena_free(trial.arena);
    return need;
}

/* The next smaller divisor; 0 when there is none. */
static int64_t next_divisor(int64_t n, int64_t below) {
    for (int64_t d = below - 1; d > 0; d--)
        if (n % d == 0) return d;
    return 0;
}

/* Sequences of one rank in a step. */
static int64_t rank_batch(const Fit *fit) { return fit->model->batch->size / batch_ranks(fit->plan); }

/* A schedule of several chunks takes micro-batches in groups as large as it has stages. */
static int64_t micros_in_group(const Plan *plan) {
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].chunks > 1) return plan->mesh.axes[plan->rules.at[i].axis].size;
    return 1;
}

/* Memory grows with the micro-batch, so the largest divisor that fits is found by halving the list of divisors. */
static ProgramFacts *largest_that_fits(const Fit *fit, double limit) {
    int64_t batch = rank_batch(fit), group = micros_in_group(fit->plan);
    VEC(int64_t) divisors = {0}; /* falling */
    for (int64_t d = batch; d > 0; d = next_divisor(batch, d))
        if (batch / d % group == 0) vec_push(fit->s->arena, &divisors, d);
    if (!divisors.n) vec_push(fit->s->arena, &divisors, batch); /* which the schedule refuses */
    ProgramFacts *best = fit->build(fit->context, fit->s, with_microbatch(fit, fit->plan, divisors.at[0]));
    if (!best || isnan(limit) || need_of(fit, best) <= limit) return best;
    if (divisors.n == 1) return best;
    int low = 1, high = divisors.n - 1; /* the answer is in [low, high], or is the last, which may not fit either */
    while (low < high) {
        int middle = (low + high) / 2;
        if (need_when(fit, with_microbatch(fit, fit->plan, divisors.at[middle])) <= limit)
            high = middle;
        else
            low = middle + 1;
    }
    return fit->build(fit->context, fit->s, with_microbatch(fit, fit->plan, divisors.at[high]));
}

static void report_choice(const Fit *fit, const ProgramFacts *facts) {
    long long micros = facts->step->micros;
    diag_note_alone(fit->s, "P0608", fit->plan->span,
                    "plan `%s` takes `microbatch %lld`, %lld micro-batch%s in a step: %s for each rank",
                    fit->plan->name, (long long)facts->plan->microbatch, micros, micros == 1 ? "" : "es",
                    format_bytes(fit->s->arena, need_of(fit, facts)));
}

/* ---- the refusal ------------------------------------------------------------------------------------------------- */

typedef struct WayOut {
    const char *text;
    double saves;
} WayOut;

typedef struct Refusal {
    const Fit *fit;
    const Plan *plan; /* with its micro-batch */
    double need;
    int trials;
    VEC(WayOut) ways;
} Refusal;

static void try_plan(Refusal *r, const Plan *plan, const char *text) {
    if (r->trials++ >= MOST_TRIALS) return;
    double saves = r->need - need_when(r->fit, plan);
    if (saves > 0.02 * r->need) vec_push(r->fit->s->arena, &r->ways, (WayOut){text, saves});
}

/* Storage in parts on axes that divide the batch and do not store as much yet. */
static void try_storage(Refusal *r) {
    static const struct {
        Storage storage;
        const char *word;
    } words[] = {{STORAGE_OPTIMIZER, "optimizer"}, {STORAGE_GRADIENTS, "gradients"}, {STORAGE_WEIGHTS, "weights"}};
    Arena *arena = r->fit->s->arena;
    for (int i = 0; i < r->plan->rules.n; i++) {
        const Rule *batch = &r->plan->rules.at[i];
        if (!batch->what || strcmp(batch->what, "batch") != 0 || r->plan->mesh.axes[batch->axis].size == 1) continue;
        bool stores = false;
        for (int k = 0; k < r->plan->rules.n; k++)
            stores |= r->plan->rules.at[k].axis == batch->axis && r->plan->rules.at[k].storage != STORAGE_NONE;
        for (size_t k = 0; !stores && k < sizeof words / sizeof *words; k++) {
            Plan *other = NEW(arena, Plan);
            *other = *r->plan;
            other->rules.cap = other->rules.n; /* the next one gets a list of its own */
            Rule rule = {
                .storage = words[k].storage, .axis = batch->axis, .span = batch->span, .statement = batch->statement};
            vec_push(arena, &other->rules, rule);
            try_plan(r, other, arena_printf(arena, "`%s on %s`", words[k].word, r->plan->mesh.axes[batch->axis].name));
        }
    }
}

static void try_recompute(Refusal *r, Name word) {
    Plan *other = NEW(r->fit->s->arena, Plan);
    *other = *r->plan;
    other->recompute.cap = other->recompute.n;
    vec_push(r->fit->s->arena, &other->recompute, word);
    try_plan(r, other, arena_printf(r->fit->s->arena, "`recompute %s`", word));
}

/* The layers that a repeat's body calls and that hold a product or attention. */
static void try_calls(Refusal *r) {
    Session *s = r->fit->s;
    Name tried[MOST_WORDS];
    int n = 0;
    if (r->plan->recompute.n) return;
    const Region *top = &r->fit->model->graph->top;
    for (int i = 0; i < top->nodes.n; i++) {
        const Region *body = top->nodes.at[i]->region;
        for (int k = 0; body && k < body->nodes.n && n < MOST_WORDS; k++) {
            const Node *node = body->nodes.at[k];
            const char *dot = node->path ? strchr(node->path, '.') : NULL;
            if (!dot || (op_info(node)->lower != LOWER_PRODUCT && op_info(node)->lower != LOWER_ATTEND)) continue;
            Name word = intern_n(s->names, dot + 1, strcspn(dot + 1, "."));
            bool known = false;
            for (int t = 0; t < n; t++) known |= tried[t] == word;
            if (known) continue;
            tried[n++] = word;
            try_recompute(r, word);
        }
    }
}

static void try_microbatch(Refusal *r) {
    const Fit *fit = r->fit;
    int64_t batch = rank_batch(fit), less = next_divisor(batch, r->plan->microbatch ? r->plan->microbatch : batch);
    if (!less) return;
    try_plan(r, with_microbatch(fit, r->plan, less), arena_printf(fit->s->arena, "`microbatch %lld`", (long long)less));
}

static void add_part(Text *text, const char *what, double bytes, double unit) {
    if (bytes < 0.05 * unit) return;
    text_printf(text, "%s%s %.1f", text->n ? ", " : "", what, bytes / unit);
}

/* "weights 10.4, gradients 10.4, ... GiB": at the moment of the peak. */
static const char *breakdown(const Fit *fit, const RoleProgram *role) {
    Text text = {.arena = fit->s->arena};
    double gib = 1024.0 * 1024 * 1024, mib = 1024.0 * 1024, kib = 1024, bytes = (double)role->arena_bytes;
    double unit = bytes >= gib ? gib : bytes >= mib ? mib : kib;
    const int64_t *kind = role->by_kind;
    add_part(&text, "weights", (double)kind[MEM_WEIGHT], unit);
    add_part(&text, "gradients", (double)kind[MEM_GRADIENT], unit);
    add_part(&text, "optimizer", (double)kind[MEM_MOMENT], unit);
    add_part(&text, "activations", (double)kind[MEM_ACTIVATION], unit);
    add_part(&text, "temporaries", (double)kind[MEM_TEMPORARY], unit);
    add_part(&text, "data", (double)(kind[MEM_DATA] + kind[MEM_SCALAR] + kind[MEM_CACHE]), unit);
    add_part(&text, "workspace", scratch_of(fit, role), unit);
    text_printf(&text, " %s", unit == gib ? "GiB" : unit == mib ? "MiB" : "KiB");
    return text.at;
}

static const char *plain_name(Name gpu) {
    const char *dot = strrchr(gpu, '.');
    return dot ? dot + 1 : gpu;
}

/* "an A100", "a T4", "a tiny": letters are spelled before a digit or another capital. */
static const char *article(const char *name) {
    bool spelled = name[0] >= 'A' && name[0] <= 'Z' && (name[1] < 'a' || name[1] > 'z');
    return strchr(spelled ? "AEFHILMNORSX" : "AEIOUaeiou", name[0]) ? "an" : "a";
}

static int by_saving(const void *x, const void *y) {
    double a = ((const WayOut *)x)->saves, b = ((const WayOut *)y)->saves;
    return a > b ? -1 : a < b;
}

static void refuse(const Fit *fit, const ProgramFacts *facts, double limit) {
    Session *s = fit->s;
    Refusal r = {.fit = fit, .plan = facts->plan, .need = need_of(fit, facts)};
    const RoleProgram *role = largest_role(facts);
    const char *who = facts->n_roles > 1 ? arena_printf(s->arena, "stage %d", role->role) : "a rank";
    const char *need = format_bytes(s->arena, r.need), *has = format_bytes(s->arena, limit);
    const Gpu *gpu = smallest_gpu(fit->plan);
    int64_t ranks = mesh_ranks(&fit->plan->mesh);
    const char *share = ranks == 1 ? has : arena_printf(s->arena, "%s for each of %lld ranks", has, (long long)ranks);
    try_microbatch(&r); /* first what usually saves most */
    if (!r.plan->recompute.n) try_recompute(&r, intern(s->names, "full"));
    try_storage(&r);
    try_calls(&r);
    if (r.ways.n) qsort(r.ways.at, (size_t)r.ways.n, sizeof *r.ways.at, by_saving);
    Diag *d = gpu ? diag_error(s, "P0601", fit->plan->span, "%s needs %s, and %s %s has %s usable", who, need,
                               article(plain_name(gpu->name)), plain_name(gpu->name), has)
                  : diag_error(s, "P0601", fit->plan->span, "%s needs %s, and this machine has %s", who, need, share);
    diag_label(d, "%s", breakdown(fit, role));
    Text text = {.arena = s->arena};
    for (int i = 0; i < r.ways.n && i < MOST_WAYS; i++)
        text_printf(&text, "%s%s saves %s", i ? "; " : "", r.ways.at[i].text,
                    format_bytes(s->arena, r.ways.at[i].saves));
    if (text.at)
        diag_help(d, "%s", text.at);
    else
        diag_help(d, "cut it over more ranks: a dimension `on` an axis of the mesh, or a larger axis");
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

ProgramFacts *fit_memory(const Fit *fit) {
    bool chosen = fit->plan->microbatch == 0;
    double limit = limit_of(fit, !chosen);
    ProgramFacts *facts = chosen ? largest_that_fits(fit, limit) : fit->build(fit->context, fit->s, fit->plan);
    if (!facts) return NULL;
    if (!isnan(limit) && need_of(fit, facts) > limit) {
        double ever = limit_of(fit, true); /* a busy machine is no reason to refuse */
        if (need_of(fit, facts) > ever) {
            refuse(fit, facts, ever);
            return NULL;
        }
    }
    if (chosen) report_choice(fit, facts);
    return facts;
}
