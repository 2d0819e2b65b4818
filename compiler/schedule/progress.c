/* Whether a schedule comes to its end: all roles run at once, and a send waits for its receive.
 *
 * One rank stands for each role. Values go through channels (schedule.h), as in the program: what a pass makes is
 * posted by its SEND and stays where it was made until the receiver has taken it, so the next pass that would write
 * over it waits. A send on a stream of its own (the usual) is posted and the role goes on; a send on stream 0 (`!`)
 * waits until it is taken. A receive takes the oldest message of each of its channels. The update waits for all that
 * was sent, then sends home the gradients of shared weights, meets all other roles (the norm and the loss are sums over
 * them), and hands out the new weights. Roles are looked at again only when what they wait for changes, so the run is
 * linear in the number of actions. What is left when nobody can go on is a cycle of roles, and is printed.
 *
 * On the way: nothing is used before it is made or received, sent before it is made, or written over before it is sent;
 * messages are taken in the order in which they are sent. */
#include "schedule/schedule.h"

enum { SLOT_FREE = 0, SLOT_POSTED = -1 }; /* or 1 + micro-batch: made, not yet sent */

typedef struct ChannelRun {
    int posted, taken;
    int *micros; /* by message: its micro-batch */
    int *slot;   /* by copy of the value */
} ChannelRun;

typedef struct RoleRun {
    int at;      /* next action */
    int part;    /* of it, while it runs */
    bool posted; /* a send that waits has posted this part */
    bool queued;
    int waits_for; /* role, when it cannot go on */
} RoleRun;

typedef struct Run {
    const Schedule *schedule;
    Span span;
    RoleRun *roles;
    ChannelRun *channels;
    bool *once;     /* by once-a-step transfer: posted */
    int *first_out; /* by pass: the first channel from it, in `next_out`; or -1. The same for channels to it */
    int *next_out, *first_in, *next_in;
    bool *made, *received; /* by pass and micro-batch */
    int *queue, head, n;
    int at_update;
    bool wrong; /* reported */
} Run;

typedef enum Outcome { WAITS, GOES_ON } Outcome;

/* ---- passes and channels ------------------------------------------------------------------------ */

static bool is_backward(ActionKind kind) { return kind != ACTION_F && kind != ACTION_SEND_F && kind != ACTION_RECV_F; }

/* Number of the forward (even) or backward (odd) pass of a chunk. */
static int pass_of(const Run *run, int role, const Action *a) {
    return 2 * (a->chunk * run->schedule->n_roles + role) + is_backward(a->kind);
}

static int role_of_pass(const Run *run, int pass) { return pass / 2 % run->schedule->n_roles; }
static size_t micro_of(const Run *run, int pass, int micro) {
    return (size_t)pass * (size_t)run->schedule->n_micro + (size_t)micro;
}

static void wake(Run *run, int role) {
    if (run->roles[role].queued) return;
    run->roles[role].queued = true;
    run->queue[(run->head + run->n++) % run->schedule->n_roles] = role;
}

static Outcome wait_for(Run *run, int role, int other) {
    run->roles[role].waits_for = other;
    return WAITS;
}

static const char *name_of(const Run *run, const Action *a) {
    Text text = {.arena = run->schedule->arena};
    action_print(a, &text);
    return text.at;
}

static Outcome refuse(Run *run, int role, const Action *a, const char *what) {
    Span span = a->span.file ? a->span : run->span;
    Diag *d = diag_error(run->schedule->session, "P0720", span, "role %d: `%s` %s", role, name_of(run, a), what);
    diag_help(d,
              "receive before the pass, send right after it, and keep one order of micro-batches from stage to stage");
    run->wrong = true;
    return WAITS;
}

static bool is_local(const ScheduleChannel *c, const Run *run) {
    return role_of_pass(run, c->from) == role_of_pass(run, c->to);
}

/* ---- actions ------------------------------------------------------------------------------------ */

/* Everything that it needs is there, and what it makes has room. */
static Outcome run_pass(Run *run, int role, const Action *a) {
    int pass = pass_of(run, role, a);
    const ScheduleChannel *channels = run->schedule->channels.at;
    for (int i = run->first_in[pass]; i >= 0; i = run->next_in[i]) {
        bool local = is_local(&channels[i], run);
        if (local ? run->made[micro_of(run, channels[i].from, a->micro)] : run->received[micro_of(run, pass, a->micro)])
            continue;
        return refuse(run, role, a,
                      local ? "stands before the pass that makes what it needs, on the same stage"
                            : "stands before it has received what it needs");
    }
    for (int i = run->first_out[pass]; i >= 0; i = run->next_out[i]) {
        ChannelRun *c = &run->channels[i];
        int *slot = &c->slot[a->micro % channels[i].depth];
        if (is_local(&channels[i], run)) continue;
        if (c->posted - c->taken >= channels[i].depth) return wait_for(run, role, role_of_pass(run, channels[i].to));
        if (*slot != SLOT_FREE) return refuse(run, role, a, "writes over a value that has not yet been sent");
    }
    for (int i = run->first_out[pass]; i >= 0; i = run->next_out[i])
        if (!is_local(&channels[i], run)) run->channels[i].slot[a->micro % channels[i].depth] = 1 + a->micro;
    run->made[micro_of(run, pass, a->micro)] = true;
    return GOES_ON;
}

static Outcome post(Run *run, int role, const Action *a, int channel) {
    const ScheduleChannel *c = &run->schedule->channels.at[channel];
    ChannelRun *state = &run->channels[channel];
    RoleRun *r = &run->roles[role];
    int to = role_of_pass(run, c->to), *slot = &state->slot[a->micro % c->depth];
    if (r->posted) {
        if (state->taken < state->posted) return wait_for(run, role, to);
        r->posted = false;
        return GOES_ON;
    }
    if (*slot != 1 + a->micro) return refuse(run, role, a, "stands before the pass that makes what it sends, or twice");
    *slot = SLOT_POSTED;
    state->micros[state->posted++] = a->micro;
    wake(run, to);
    if (a->stream) return GOES_ON;
    r->posted = true;
    return wait_for(run, role, to);
}

static Outcome take(Run *run, int role, const Action *a, int channel) {
    const ScheduleChannel *c = &run->schedule->channels.at[channel];
    ChannelRun *state = &run->channels[channel];
    int from = role_of_pass(run, c->from);
    if (state->taken == state->posted) return wait_for(run, role, from);
    int micro = state->micros[state->taken];
    if (micro != a->micro)
        return refuse(
            run, role, a,
            arena_printf(run->schedule->arena, "would take micro-batch %d: role %d sends it first", micro, from));
    state->slot[micro % c->depth] = SLOT_FREE;
    state->taken++;
    wake(run, from);
    return GOES_ON;
}

/* A SEND or RECV: its channels one after the other. */
static Outcome run_transfer(Run *run, int role, const Action *a) {
    bool sends = a->kind == ACTION_SEND_F || a->kind == ACTION_SEND_B;
    int pass = pass_of(run, role, a), part = 0;
    for (int i = sends ? run->first_out[pass] : run->first_in[pass]; i >= 0;
         i = sends ? run->next_out[i] : run->next_in[i], part++) {
        if (part < run->roles[role].part || is_local(&run->schedule->channels.at[i], run)) continue;
        Outcome outcome = sends ? post(run, role, a, i) : take(run, role, a, i);
        if (outcome == WAITS) {
            run->roles[role].part = part;
            return WAITS;
        }
    }
    if (!sends) run->received[micro_of(run, pass, a->micro)] = true;
    return GOES_ON;
}

/* ---- the update --------------------------------------------------------------------------------- */

static Outcome drain(Run *run, int role) {
    for (int i = 0; i < run->schedule->channels.n; i++) {
        const ScheduleChannel *c = &run->schedule->channels.at[i];
        if (role_of_pass(run, c->from) == role && run->channels[i].taken < run->channels[i].posted)
            return wait_for(run, role, role_of_pass(run, c->to));
    }
    return GOES_ON;
}

static Outcome exchange_once(Run *run, int role, bool after) {
    const Schedule *schedule = run->schedule;
    for (int i = 0; i < schedule->once.n; i++) {
        const OnceTransfer *t = &schedule->once.at[i];
        if (t->after_update != after || t->from != role || run->once[i]) continue;
        run->once[i] = true;
        wake(run, t->to);
    }
    for (int i = 0; i < schedule->once.n; i++) {
        const OnceTransfer *t = &schedule->once.at[i];
        if (t->after_update == after && t->to == role && !run->once[i]) return wait_for(run, role, t->from);
    }
    return GOES_ON;
}

/* All roles come together. */
static Outcome meet(Run *run, int role) {
    int n = run->schedule->n_roles;
    if (run->roles[role].part == 2) {
        run->roles[role].part = 3;
        run->at_update++;
        for (int r = 0; r < n && run->at_update == n; r++) wake(run, r);
    }
    if (run->at_update == n) return GOES_ON;
    for (int r = 0; r < n; r++)
        if (run->roles[r].part < 3) return wait_for(run, role, r);
    return GOES_ON;
}

static Outcome run_update(Run *run, int role) {
    RoleRun *r = &run->roles[role];
    if (r->part == 0) {
        if (drain(run, role) == WAITS) return WAITS;
        r->part = 1;
    }
    if (r->part == 1) {
        if (exchange_once(run, role, false) == WAITS) return WAITS;
        r->part = 2;
    }
    if (r->part < 4) {
        if (meet(run, role) == WAITS) return WAITS;
        r->part = 4;
    }
    return exchange_once(run, role, true);
}

static Outcome run_action(Run *run, int role, const Action *a) {
    switch (a->kind) {
    case ACTION_SEND_F:
    case ACTION_SEND_B:
    case ACTION_RECV_F:
    case ACTION_RECV_B: return run_transfer(run, role, a);
    case ACTION_F:
    case ACTION_B:
    case ACTION_BI: return run_pass(run, role, a);
    case ACTION_OPT: return run_update(run, role);
    default: return GOES_ON;
    }
}

/* ---- the run ------------------------------------------------------------------------------------ */

static bool has_ended(const Run *run, int role) { return run->roles[role].at == run->schedule->roles[role].actions.n; }

static void report(const Run *run) {
    const Schedule *schedule = run->schedule;
    int role = 0;
    while (has_ended(run, role)) role++;
    for (int i = 0; i < schedule->n_roles; i++) /* into the cycle */
        if (!has_ended(run, run->roles[role].waits_for)) role = run->roles[role].waits_for;
    Text cycle = {.arena = schedule->arena};
    int at = role;
    do {
        const Action *a = &schedule->roles[at].actions.at[run->roles[at].at];
        text_printf(&cycle, "%srole %d waits in `%s` for role %d", cycle.n ? ", " : "", at, name_of(run, a),
                    run->roles[at].waits_for);
        at = run->roles[at].waits_for;
    } while (at != role && !has_ended(run, at));
    const Action *first = &schedule->roles[role].actions.at[run->roles[role].at];
    Diag *d = diag_error(schedule->session, "P0707", first->span.file ? first->span : run->span,
                         "schedule `%s` hangs: %s", schedule->name, cycle.at);
    diag_help(d, at == role ? "let one of them receive before it sends, or send without waiting (no `!`)"
                            : "the other role ends without it: add the missing transfer");
}

static void index_channels(Run *run) {
    const Schedule *schedule = run->schedule;
    int passes = 2 * schedule->n_roles * schedule->n_chunks, n = schedule->channels.n;
    run->channels = NEW_N(schedule->arena, ChannelRun, n + 1);
    run->first_out = NEW_N(schedule->arena, int, passes);
    run->first_in = NEW_N(schedule->arena, int, passes);
    run->next_out = NEW_N(schedule->arena, int, n + 1);
    run->next_in = NEW_N(schedule->arena, int, n + 1);
    for (int i = 0; i < passes; i++) run->first_out[i] = run->first_in[i] = -1;
    for (int i = n - 1; i >= 0; i--) {
        const ScheduleChannel *c = &schedule->channels.at[i];
        run->next_out[i] = run->first_out[c->from], run->first_out[c->from] = i;
        run->next_in[i] = run->first_in[c->to], run->first_in[c->to] = i;
        run->channels[i].micros = NEW_N(schedule->arena, int, schedule->n_micro);
        run->channels[i].slot = NEW_N(schedule->arena, int, c->depth);
    }
}

bool schedule_progress(const Schedule *schedule, Span span) {
    int n = schedule->n_roles, passes = 2 * n * schedule->n_chunks;
    Run run = {.schedule = schedule,
               .span = span,
               .roles = NEW_N(schedule->arena, RoleRun, n),
               .once = NEW_N(schedule->arena, bool, schedule->once.n + 1),
               .made = NEW_N(schedule->arena, bool, passes * schedule->n_micro),
               .received = NEW_N(schedule->arena, bool, passes * schedule->n_micro),
               .queue = NEW_N(schedule->arena, int, n)};
    index_channels(&run);
    for (int role = 0; role < n; role++) wake(&run, role);
    while (run.n && !run.wrong) {
        int role = run.queue[run.head];
        run.head = (run.head + 1) % n;
        run.n--;
        RoleRun *r = &run.roles[role];
        r->queued = false;
        while (!has_ended(&run, role) && run_action(&run, role, &schedule->roles[role].actions.at[r->at]) == GOES_ON) {
            r->at++;
            if (!has_ended(&run, role)) r->part = 0;
        }
    }
    for (int role = 0; role < n && !run.wrong; role++) {
        if (has_ended(&run, role)) continue;
        report(&run);
        return false;
    }
    return !run.wrong;
}
