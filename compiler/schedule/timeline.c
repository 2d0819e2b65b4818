/* The timeline of a schedule: each pass begins when its stage is free and all that it needs is made. As numbers, and as
 * a picture:
 *
 *     stage 0  F0 F1 .. .. .. B0 -- .. B1 --
 *     stage 1  .. F0 B0 -- F1 B1 -- .. .. ..
 *
 * A backward pass counts twice a forward pass, its halves BI and BW once each. */
#include "schedule/timeline.h"

static int time_of(PassTimes times, ActionKind kind) {
    switch (kind) {
    case ACTION_F: return times.f;
    case ACTION_B: return times.b;
    case ACTION_BI: return times.bi;
    case ACTION_BW: return times.bw;
    default: return 0;
    }
}

static bool is_pass(ActionKind kind) { return kind == ACTION_F || kind == ACTION_B || kind == ACTION_BI; }

/* When all that the pass needs is there; -1: not known yet. */
static int ready_at(const Schedule *schedule, const int *ends, int pass, int micro) {
    int ready = 0, m = schedule->n_micro;
    if (pass % 2) ready = ends[(pass - 1) * m + micro];
    for (int i = 0; i < schedule->channels.n; i++) {
        const ScheduleChannel *c = &schedule->channels.at[i];
        if (c->to != pass) continue;
        int made = ends[c->from * m + micro];
        if (made < 0) return -1;
        if (made > ready) ready = made;
    }
    return ready;
}

Timeline schedule_timeline(const Schedule *schedule, PassTimes times) {
    Arena *arena = schedule->arena;
    int n = schedule->n_roles, passes = 2 * n * schedule->n_chunks;
    int *ends = NEW_N(arena, int, passes * schedule->n_micro), *at = NEW_N(arena, int, n), *now = NEW_N(arena, int, n);
    for (int i = 0; i < passes * schedule->n_micro; i++) ends[i] = -1;
    Timeline line = {.start = NEW_N(arena, int *, n), .busy = NEW_N(arena, int, n)};
    for (int r = 0; r < n; r++) line.start[r] = NEW_N(arena, int, schedule->roles[r].actions.n + 1);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < n; r++)
            for (; at[r] < schedule->roles[r].actions.n; at[r]++, moved = true) {
                const Action *a = &schedule->roles[r].actions.at[at[r]];
                int pass = 2 * (a->chunk * n + r) + (a->kind != ACTION_F), time = time_of(times, a->kind);
                int ready = is_pass(a->kind) ? ready_at(schedule, ends, pass, a->micro) : 0;
                if (ready < 0) break;
                if (ready > now[r]) now[r] = ready;
                line.start[r][at[r]] = now[r];
                now[r] += time;
                line.busy[r] += time;
                if (is_pass(a->kind)) ends[pass * schedule->n_micro + a->micro] = now[r];
            }
    }
    for (int r = 0; r < n; r++)
        if (now[r] > line.length) line.length = now[r];
    return line;
}

/* ---- the picture -------------------------------------------------------------------------------- */

enum { MOST_COLUMNS = 120 }; /* of a line, without the stage's name */

static const char *cell_text(const Schedule *schedule, const Action *a) {
    const char *kind = a->kind == ACTION_BI ? "I" : a->kind == ACTION_BW ? "W" : action_text(a->kind);
    const char *chunk = schedule->n_chunks == 1 ? "" : arena_printf(schedule->arena, "%c", 'a' + a->chunk % 26);
    return arena_printf(schedule->arena, "%s%d%s", kind, a->micro, chunk);
}

static void draw_role(const Schedule *schedule, const Timeline *line, PassTimes times, int role, int width, int shown,
                      Text *out) {
    const char **cells = NEW_N(schedule->arena, const char *, shown + 1);
    const char *dots = arena_printf(schedule->arena, "%.*s", width - 1, "................");
    const char *dashes = arena_printf(schedule->arena, "%.*s", width - 1, "----------------");
    for (int i = 0; i < schedule->roles[role].actions.n; i++) {
        const Action *a = &schedule->roles[role].actions.at[i];
        for (int k = 0, n = time_of(times, a->kind), at = line->start[role][i]; k < n && at + k < shown; k++)
            cells[at + k] = k ? dashes : cell_text(schedule, a);
    }
    text_printf(out, "    stage %-3d", role);
    for (int i = 0; i < shown; i++) text_printf(out, " %-*s", width - 1, cells[i] ? cells[i] : dots);
    while (out->n && out->at[out->n - 1] == ' ') out->at[--out->n] = 0;
    text_puts(out, shown < line->length ? " ...\n" : "\n");
}

void schedule_draw(const Schedule *schedule, Text *out) {
    static const PassTimes times = {.f = 1, .b = 2, .bi = 1, .bw = 1};
    Timeline line = schedule_timeline(schedule, times);
    int width = 3 + (schedule->n_micro > 10) + (schedule->n_micro > 100) + (schedule->n_chunks > 1), idle = 0;
    int shown = line.length * width > MOST_COLUMNS ? MOST_COLUMNS / width : line.length;
    text_printf(out, "schedule %s: %d stages", schedule->name, schedule->n_roles);
    if (schedule->n_chunks > 1) text_printf(out, " of %d chunks (a, b, ...)", schedule->n_chunks);
    text_printf(out, ", %d micro-batches; a backward pass taken as two forward passes%s\n", schedule->n_micro,
                schedule_splits_backward(schedule) ? ", its halves I and W as one each" : "");
    for (int r = 0; r < schedule->n_roles; r++) {
        draw_role(schedule, &line, times, r, width, shown, out);
        idle += line.length - line.busy[r];
    }
    text_printf(out, "    idle: %.1f %% of the step\n", 100.0 * idle / (schedule->n_roles * line.length));
}
