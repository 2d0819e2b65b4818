/* One forward, one backward (Narayanan et al. 2019): stage i of p runs p - i - 1 forward passes ahead, then alternates,
 * so it holds the activations of p - i micro-batches at most. With one stage: F B F B. */
#include "schedule/schedules.h"

static void push(Schedule *schedule, int role, ActionKind kind, int micro) {
    vec_push(schedule->arena, &schedule->roles[role].actions, (Action){.kind = kind, .micro = micro, .peer = -1});
}

Schedule *schedule_one_f_one_b(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts) {
    Schedule *schedule = NEW(arena, Schedule);
    *schedule = (Schedule){.session = s, .arena = arena, .name = intern(s->names, "one_f_one_b"), .n_roles = stages, .n_chunks = 1,
                           .n_micro = micros};
    schedule->roles = NEW_N(arena, RoleSchedule, stages);
    for (int r = 0; r < stages; r++) {
        int ahead = stages - r - 1 < micros ? stages - r - 1 : micros;
        if (parts.begin) push(schedule, r, ACTION_BEGIN, -1);
        for (int m = 0; m < micros && parts.count; m++) push(schedule, r, ACTION_COUNT, m);
        if (parts.total) push(schedule, r, ACTION_TOTAL, -1);
        for (int m = 0; m < ahead; m++) push(schedule, r, ACTION_F, m);
        for (int m = 0; m < micros; m++) {
            if (m + ahead < micros) push(schedule, r, ACTION_F, m + ahead);
            push(schedule, r, ACTION_B, m);
        }
        push(schedule, r, ACTION_OPT, -1);
    }
    return schedule;
}
