/* A schedule as text (table.c reads it), its checks, and how many values it keeps. */
#include "schedule/schedule.h"

static const char *const texts[] = {
#define ACTION(NAME, text, doc) text,
#include "schedule/actions.def"
#undef ACTION
};

const char *action_text(ActionKind kind) { return texts[kind]; }

static bool action_sends(const Action *a) { return a->kind == ACTION_SEND_F || a->kind == ACTION_SEND_B; }

void action_print(const Action *action, Text *out) {
    if (action->micro < 0)
        text_puts(out, texts[action->kind]);
    else
        text_printf(out, "%d%s%d%s", action->chunk, texts[action->kind], action->micro,
                    action_sends(action) && !action->stream ? "!" : "");
}

void schedule_print(const Schedule *schedule, Text *out) {
    text_printf(out, "schedule %s roles %d chunks %d micros %d\n", schedule->name, schedule->n_roles,
                schedule->n_chunks, schedule->n_micro);
    for (int r = 0; r < schedule->n_roles; r++) {
        text_printf(out, "role %d:", r);
        for (int i = 0; i < schedule->roles[r].actions.n; i++) {
            const Action *action = &schedule->roles[r].actions.at[i];
            text_puts(out, " ");
            action_print(action, out);
        }
        text_puts(out, "\n");
    }
}

/* PyTorch's form: a line for each rank, stages counted over the whole model. */
void schedule_print_torch(const Schedule *schedule, Text *out) {
    static const char *const kinds[ACTION_COUNT_] = {
        [ACTION_F] = "F", [ACTION_B] = "B", [ACTION_BI] = "I", [ACTION_BW] = "W"};
    for (int r = 0; r < schedule->n_roles; r++) {
        const char *between = "";
        for (int i = 0; i < schedule->roles[r].actions.n; i++) {
            const Action *a = &schedule->roles[r].actions.at[i];
            if (!kinds[a->kind]) continue;
            text_printf(out, "%s%d%s%d", between, a->chunk * schedule->n_roles + r, kinds[a->kind], a->micro);
            between = ",";
        }
        text_puts(out, "\n");
    }
}

/* ---- checks ---------------------------------------------------------------------------------------------------- */

/* Which passes of a micro-batch through a chunk have been seen. */
enum { SEEN_F = 1, SEEN_B = 2, SEEN_W = 4 };

typedef struct PassRule {
    ActionKind kind;
    int is, after; /* SEEN_ */
    const char *needs;
} PassRule;

static const PassRule pass_rules[] = {{ACTION_F, SEEN_F, 0, NULL},
                                      {ACTION_B, SEEN_B | SEEN_W, SEEN_F, "forward pass"},
                                      {ACTION_BI, SEEN_B, SEEN_F, "forward pass"},
                                      {ACTION_BW, SEEN_W, SEEN_B, "backward pass"}};

static const PassRule *rule_of(ActionKind kind) {
    for (size_t i = 0; i < sizeof pass_rules / sizeof *pass_rules; i++)
        if (pass_rules[i].kind == kind) return &pass_rules[i];
    return NULL;
}

/* Where an action stands in its file; the rule's place for one that a generator has made. */
static Span action_span(const Action *a, Span span) { return a->span.file ? a->span : span; }

static const char *action_name(const Schedule *schedule, const Action *a) {
    Text text = {.arena = schedule->arena};
    action_print(a, &text);
    return text.at;
}

/* A pass: once, after what it needs, before the update. */
static bool verify_pass(const Schedule *schedule, int role, const Action *a, int *seen, bool updated, Span span) {
    const PassRule *rule = rule_of(a->kind);
    if (!rule) return true;
    const char *wrong = NULL;
    if (*seen & rule->is)
        wrong = "stands twice";
    else if ((*seen & rule->after) != rule->after)
        wrong = arena_printf(schedule->arena, "stands before its %s `%d%s%d`", rule->needs, a->chunk,
                             texts[rule->after == SEEN_F ? ACTION_F : ACTION_BI], a->micro);
    else if (updated)
        wrong = "stands after the update `OPT`";
    *seen |= rule->is;
    if (wrong)
        diag_error(schedule->session, "P0704", action_span(a, span), "role %d: `%s` %s", role, action_name(schedule, a),
                   wrong);
    return !wrong;
}

/* What is missing of the passes. */
static bool verify_complete(const Schedule *schedule, int role, const int *seen, Span span) {
    static const char *const names[] = {"forward pass", "backward pass", "pass for gradients of weights `BW`"};
    bool good = true;
    for (int k = 0; k < schedule->n_chunks * schedule->n_micro; k++)
        for (int i = 0; i < 3; i++) {
            if (seen[k] & 1 << i) continue;
            diag_error(schedule->session, "P0705", span, "role %d: micro-batch %d of chunk %d has no %s", role,
                       k % schedule->n_micro, k / schedule->n_micro, names[i]);
            good = false;
            break;
        }
    return good;
}

static bool verify_role(const Schedule *schedule, int role, Span span) {
    const RoleSchedule *list = &schedule->roles[role];
    Span row = list->span.file ? list->span : span;
    int *seen = NEW_N(schedule->arena, int, schedule->n_chunks * schedule->n_micro), updates = 0;
    bool good = true;
    for (int i = 0; i < list->actions.n; i++) {
        const Action *a = &list->actions.at[i];
        if (a->chunk >= schedule->n_chunks || a->micro >= schedule->n_micro) {
            diag_error(schedule->session, "P0703", action_span(a, span),
                       "role %d: `%s` is outside %d chunks and %d micro-batches", role, action_name(schedule, a),
                       schedule->n_chunks, schedule->n_micro);
            return false;
        }
        updates += a->kind == ACTION_OPT;
        if (a->micro < 0) continue;
        good = verify_pass(schedule, role, a, &seen[a->chunk * schedule->n_micro + a->micro], updates, span) && good;
    }
    good = good && verify_complete(schedule, role, seen, row);
    if (good && updates != 1) {
        diag_error(schedule->session, "P0705", row, "role %d: the update `OPT` stands %d times, not once", role,
                   updates);
        good = false;
    }
    return good;
}

bool schedule_verify(const Schedule *schedule, Span span) {
    bool good = true;
    for (int r = 0; r < schedule->n_roles; r++) good = verify_role(schedule, r, span) && good;
    return good && schedule_progress(schedule, span);
}

/* ---- what is live ---------------------------------------------------------------------------------------------- */

bool schedule_splits_backward(const Schedule *schedule) {
    for (int r = 0; r < schedule->n_roles; r++)
        for (int i = 0; i < schedule->roles[r].actions.n; i++)
            if (schedule->roles[r].actions.at[i].kind == ACTION_BW) return true;
    return false;
}

int schedule_in_flight(const Schedule *schedule, int role, int chunk) {
    bool split = schedule_splits_backward(schedule);
    int now = 0, most = 0;
    const RoleSchedule *list = &schedule->roles[role];
    for (int i = 0; i < list->actions.n; i++) {
        const Action *a = &list->actions.at[i];
        if (a->micro < 0 || a->chunk != chunk) continue;
        if (a->kind == ACTION_F && ++now > most) most = now;
        if (a->kind == (split ? ACTION_BW : ACTION_B)) now--;
    }
    return most;
}

/* What a value waits for: the first of the two kinds of action; received values are there earlier. */
static bool opens(const Action *a, Phase phase) {
    if (phase == PHASE_F) return a->kind == ACTION_F || a->kind == ACTION_RECV_F;
    if (phase == PHASE_B) return a->kind == ACTION_B || a->kind == ACTION_BI || a->kind == ACTION_RECV_B;
    return a->kind == ACTION_BW;
}

static bool closes(const Action *a, Phase phase, bool split) {
    if (phase == PHASE_F) return a->kind == ACTION_F;
    return a->kind == (!split ? ACTION_B : phase == PHASE_B ? ACTION_BI : ACTION_BW);
}

/* Whether n copies are enough. holder: of each copy, 1 + micro-batch, or 0. */
static bool copies_do(const RoleSchedule *list, int chunk, Phase from, Phase to, bool split, int n, int *holder) {
    memset(holder, 0, sizeof *holder * (size_t)n);
    for (int i = 0; i < list->actions.n; i++) {
        const Action *a = &list->actions.at[i];
        if (a->micro < 0 || a->chunk != chunk) continue;
        int *held = &holder[a->micro % n];
        if (opens(a, from)) {
            if (*held && *held != 1 + a->micro) return false;
            *held = 1 + a->micro;
        }
        if (closes(a, to, split) && *held == 1 + a->micro) *held = 0;
    }
    return true;
}

int schedule_copies(const Schedule *schedule, int role, int chunk, Phase from, Phase to) {
    int n = 1, *holder = NEW_N(schedule->arena, int, schedule->n_micro + 1);
    bool split = schedule_splits_backward(schedule);
    while (n < schedule->n_micro && !copies_do(&schedule->roles[role], chunk, from, to, split, n, holder)) n++;
    return n;
}
