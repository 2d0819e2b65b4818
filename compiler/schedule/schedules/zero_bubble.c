/* ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"): the backward pass is two actions, and only BI is on the
 * way of the gradients through the stages. Forward passes and BI alternate as in 1F1B; stage i runs BW of a micro-batch
 * i micro-batches later, in the time that would be idle. With equal times for F, BI and BW the bubble is a third of
 * that of 1F1B, (p - 1)(F + BI - BW), and no stage has more than p micro-batches between F and BW, what 1F1B has at its
 * first. */
#include "schedule/schedules.h"

Schedule *schedule_zero_bubble(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts) {
    Schedule *schedule = schedule_new(s, arena, "zero_bubble", stages, 1, micros);
    for (int r = 0; r < stages; r++) {
        int ahead = stages - r - 1 < micros ? stages - r - 1 : micros;
        schedule_open_role(schedule, r, parts);
        for (int m = 0; m < ahead; m++) schedule_push(schedule, r, ACTION_F, 0, m);
        for (int m = 0; m < micros; m++) {
            if (m + ahead < micros) schedule_push(schedule, r, ACTION_F, 0, m + ahead);
            schedule_push(schedule, r, ACTION_BI, 0, m);
            if (m >= r) schedule_push(schedule, r, ACTION_BW, 0, m - r);
        }
        for (int m = micros > r ? micros - r : 0; m < micros; m++) schedule_push(schedule, r, ACTION_BW, 0, m);
        schedule_push(schedule, r, ACTION_OPT, 0, -1);
    }
    schedule_add_transfers(schedule);
    return schedule;
}
