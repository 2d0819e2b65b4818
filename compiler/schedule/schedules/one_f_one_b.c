/* One forward, one backward (Narayanan et al. 2019): stage i of p runs p - i - 1 forward passes ahead, then alternates,
 * so it holds the activations of p - i micro-batches at most. With one stage: F B F B. */
#include "schedule/schedules.h"

Schedule *schedule_one_f_one_b(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts) {
    Schedule *schedule = schedule_new(s, arena, "one_f_one_b", stages, 1, micros);
    for (int r = 0; r < stages; r++) {
        int ahead = stages - r - 1 < micros ? stages - r - 1 : micros;
        schedule_open_role(schedule, r, parts);
        for (int m = 0; m < ahead; m++) schedule_push(schedule, r, ACTION_F, 0, m);
        for (int m = 0; m < micros; m++) {
            if (m + ahead < micros) schedule_push(schedule, r, ACTION_F, 0, m + ahead);
            schedule_push(schedule, r, ACTION_B, 0, m);
        }
        schedule_push(schedule, r, ACTION_OPT, 0, -1);
    }
    schedule_add_transfers(schedule);
    return schedule;
}
