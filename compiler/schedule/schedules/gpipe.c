/* GPipe (Huang et al. 2019): all forward passes, then all backward passes. Every stage holds all micro-batches. */
#include "schedule/schedules.h"

Schedule *schedule_gpipe(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts) {
    Schedule *schedule = schedule_new(s, arena, "gpipe", stages, 1, micros);
    for (int r = 0; r < stages; r++) {
        schedule_open_role(schedule, r, parts);
        for (int m = 0; m < micros; m++) schedule_push(schedule, r, ACTION_F, 0, m);
        for (int m = 0; m < micros; m++) schedule_push(schedule, r, ACTION_B, 0, m);
        schedule_push(schedule, r, ACTION_OPT, 0, -1);
    }
    schedule_add_transfers(schedule);
    return schedule;
}
