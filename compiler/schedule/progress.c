/* Whether a schedule comes to its end: all roles run at once, and a send waits for its receive.
 *
 * One rank stands for each role. Every chunk has a channel for what its forward pass hands on and one for its backward
 * pass; a channel holds one message. A send on a stream of its own (the usual) is posted and the role goes on, but the
 * next pass that makes the same value waits until the message is taken; a send on stream 0 waits at once. A receive
 * waits for the message of its micro-batch. The update waits for all that was sent, then for all roles. Roles are
 * looked at again only when what they wait for changes, so the run is linear in the number of actions. What is left
 * when nobody can go on is a cycle of roles, and is printed. */
#include "schedule/schedule.h"

typedef struct RoleRun {
    int at;       /* next action */
    bool sending; /* its blocking send is posted */
    bool queued;
    int waits_for; /* role, when it cannot go on */
} RoleRun;

typedef struct Run {
    const Schedule *schedule;
    RoleRun *roles;
    int *posted; /* by (chunk over all roles) * 2 + backward: 1 + micro-batch, or 0 */
    int *queue, head, n;
    int at_update;
} Run;

static bool is_backward(ActionKind kind) { return kind == ACTION_SEND_B || kind == ACTION_RECV_B; }

static int chunk_of(const Run *run, int role, const Action *a) { return a->chunk * run->schedule->n_roles + role; }

static void wake(Run *run, int role) {
    if (run->roles[role].queued) return;
    run->roles[role].queued = true;
    run->queue[(run->head + run->n++) % run->schedule->n_roles] = role;
}

/* The role at the other end of a transfer. */
static int other_end(const Run *run, int role, const Action *a) {
    bool sends = a->kind == ACTION_SEND_F || a->kind == ACTION_SEND_B;
    int step = sends == is_backward(a->kind) ? -1 : 1;
    return (chunk_of(run, role, a) + step + run->schedule->n_roles) % run->schedule->n_roles;
}

static bool send(Run *run, int role, const Action *a) {
    RoleRun *r = &run->roles[role];
    int *posted = &run->posted[chunk_of(run, role, a) * 2 + is_backward(a->kind)];
    r->waits_for = other_end(run, role, a);
    if (r->sending) {
        r->sending = *posted != 0;
        return !r->sending;
    }
    if (*posted) return false;
    *posted = 1 + a->micro;
    wake(run, r->waits_for);
    r->sending = a->stream == 0;
    return !r->sending;
}

static bool receive(Run *run, int role, const Action *a) {
    int from = chunk_of(run, role, a) + (a->kind == ACTION_RECV_F ? -1 : 1);
    int *posted = &run->posted[from * 2 + is_backward(a->kind)];
    run->roles[role].waits_for = other_end(run, role, a);
    if (*posted != 1 + a->micro) return false;
    *posted = 0;
    wake(run, run->roles[role].waits_for);
    return true;
}

/* What a pass makes may be written over once it is taken. */
static bool pass(Run *run, int role, const Action *a) {
    bool backward = a->kind != ACTION_F;
    int chunk = chunk_of(run, role, a), n = run->schedule->n_roles;
    run->roles[role].waits_for = (chunk + (backward ? -1 : 1) + n) % n;
    return !run->posted[chunk * 2 + backward];
}

static bool update(Run *run, int role) {
    const Schedule *schedule = run->schedule;
    for (int c = 0; c < schedule->n_chunks * 2; c++) {
        int chunk = c / 2 * schedule->n_roles + role;
        run->roles[role].waits_for = (chunk + (c % 2 ? -1 : 1) + schedule->n_roles) % schedule->n_roles;
        if (run->posted[chunk * 2 + c % 2]) return false;
    }
    run->at_update++;
    return true; /* that all come here is what is proved */
}

static bool step(Run *run, int role, const Action *a) {
    switch (a->kind) {
    case ACTION_SEND_F:
    case ACTION_SEND_B: return send(run, role, a);
    case ACTION_RECV_F:
    case ACTION_RECV_B: return receive(run, role, a);
    case ACTION_F:
    case ACTION_B:
    case ACTION_BI: return pass(run, role, a);
    case ACTION_OPT: return update(run, role);
    default: return true;
    }
}

static void report(const Run *run, Span span) {
    const Schedule *schedule = run->schedule;
    int role = 0;
    while (run->roles[role].at == schedule->roles[role].actions.n) role++;
    for (int i = 0; i < schedule->n_roles; i++) { /* into the cycle */
        int next = run->roles[role].waits_for;
        if (run->roles[next].at < schedule->roles[next].actions.n) role = next;
    }
    Text cycle = {.arena = schedule->arena};
    int at = role;
    do {
        const Action *a = &schedule->roles[at].actions.at[run->roles[at].at];
        text_printf(&cycle, "%srole %d waits in `", cycle.n ? ", " : "", at);
        action_print(a, &cycle);
        text_printf(&cycle, "` for role %d", run->roles[at].waits_for);
        at = run->roles[at].waits_for;
    } while (at != role && run->roles[at].at < schedule->roles[at].actions.n);
    Diag *d = diag_error(schedule->session, "P0707", span, "schedule `%s` hangs: %s", schedule->name, cycle.at);
    diag_help(d, at == role ? "let one of them receive before it sends, or send without waiting (no `!`)"
                            : "the other role ends without it: add the missing transfer");
}

bool schedule_progress(const Schedule *schedule, Span span) {
    int n = schedule->n_roles;
    Run run = {
        .schedule = schedule, .roles = NEW_N(schedule->arena, RoleRun, n), .queue = NEW_N(schedule->arena, int, n)};
    run.posted = NEW_N(schedule->arena, int, n * schedule->n_chunks * 2 + 4);
    for (int role = 0; role < n; role++) wake(&run, role);
    while (run.n) {
        int role = run.queue[run.head];
        run.head = (run.head + 1) % n;
        run.n--;
        RoleRun *r = &run.roles[role];
        r->queued = false;
        while (r->at < schedule->roles[role].actions.n && step(&run, role, &schedule->roles[role].actions.at[r->at]))
            r->at++;
    }
    for (int role = 0; role < n; role++) {
        if (run.roles[role].at == schedule->roles[role].actions.n) continue;
        report(&run, span);
        return false;
    }
    return true;
}
