/* From a schedule of passes to one with transfers: what a pass makes is sent right after it, what it needs is received
 * right before. Sends are on a stream of their own: they are posted, and the passes go on. */
#include "schedule/schedules.h"

Schedule *schedule_new(Session *s, Arena *arena, const char *name, int stages, int chunks, int micros) {
    Schedule *schedule = NEW(arena, Schedule);
    *schedule = (Schedule){.session = s,
                           .arena = arena,
                           .name = intern(s->names, name),
                           .n_roles = stages,
                           .n_chunks = chunks,
                           .n_micro = micros};
    schedule->roles = NEW_N(arena, RoleSchedule, stages);
    for (int k = 0; k + 1 < stages * chunks; k++) {
        vec_push(arena, &schedule->channels, (ScheduleChannel){.from = 2 * k, .to = 2 * k + 2, .depth = 1});
        vec_push(arena, &schedule->channels, (ScheduleChannel){.from = 2 * k + 3, .to = 2 * k + 1, .depth = 1});
    }
    return schedule;
}

void schedule_push(Schedule *schedule, int role, ActionKind kind, int chunk, int micro) {
    vec_push(schedule->arena, &schedule->roles[role].actions,
             (Action){.kind = kind, .chunk = chunk, .micro = micro, .peer = -1});
}

void schedule_open_role(Schedule *schedule, int role, ScheduleParts parts) {
    if (parts.begin) schedule_push(schedule, role, ACTION_BEGIN, 0, -1);
    for (int m = 0; m < schedule->n_micro && parts.count; m++) schedule_push(schedule, role, ACTION_COUNT, 0, m);
    if (parts.total) schedule_push(schedule, role, ACTION_TOTAL, 0, -1);
}

/* A transfer with the chunk before or after, when that is another stage's. */
static void add(Schedule *schedule, RoleSchedule *to, ActionKind kind, const Action *pass, int role, int step) {
    int all = schedule->n_roles * schedule->n_chunks, chunk = pass->chunk * schedule->n_roles + role + step;
    if (chunk < 0 || chunk >= all || schedule->n_roles == 1) return;
    bool sends = kind == ACTION_SEND_F || kind == ACTION_SEND_B;
    Action action = {.kind = kind,
                     .chunk = pass->chunk,
                     .micro = pass->micro,
                     .stream = sends,
                     .peer = chunk % schedule->n_roles,
                     .span = pass->span};
    vec_push(schedule->arena, &to->actions, action);
}

void schedule_add_transfers(Schedule *schedule) {
    for (int role = 0; role < schedule->n_roles; role++) {
        RoleSchedule with = {.span = schedule->roles[role].span};
        for (int i = 0; i < schedule->roles[role].actions.n; i++) {
            const Action *a = &schedule->roles[role].actions.at[i];
            bool forward = a->kind == ACTION_F, backward = a->kind == ACTION_B || a->kind == ACTION_BI;
            if (forward) add(schedule, &with, ACTION_RECV_F, a, role, -1);
            if (backward) add(schedule, &with, ACTION_RECV_B, a, role, 1);
            vec_push(schedule->arena, &with.actions, *a);
            if (forward) add(schedule, &with, ACTION_SEND_F, a, role, 1);
            if (backward) add(schedule, &with, ACTION_SEND_B, a, role, -1);
        }
        schedule->roles[role] = with;
    }
}
