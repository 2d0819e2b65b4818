/* Interleaved 1F1B (Narayanan et al. 2021): a stage has several chunks of layers, and takes the micro-batches in groups
 * of as many as there are stages, each group through all its chunks. The bubble shrinks by the number of chunks. */
#include "schedule/schedules.h"

/* The k-th forward or backward pass of a stage. */
static void pass(Schedule *schedule, int role, bool backward, int k) {
    int stages = schedule->n_roles, chunks = schedule->n_chunks, group = k / (stages * chunks),
        in_group = k % (stages * chunks);
    int chunk = in_group / stages, micro = group * stages + in_group % stages;
    schedule_push(schedule, role, backward ? ACTION_B : ACTION_F, backward ? chunks - 1 - chunk : chunk, micro);
}

Schedule *schedule_interleaved(Session *s, Arena *arena, int stages, int chunks, int micros, ScheduleParts parts) {
    Schedule *schedule = schedule_new(s, arena, "interleaved", stages, chunks, micros);
    int all = micros * chunks;
    for (int r = 0; r < stages; r++) {
        int ahead = (stages - r - 1) * 2 + (chunks - 1) * stages;
        if (chunks == 1) ahead = stages - r - 1;
        if (ahead > all) ahead = all;
        schedule_open_role(schedule, r, parts);
        for (int k = 0; k < ahead; k++) pass(schedule, r, false, k);
        for (int k = 0; k < all; k++) {
            if (k + ahead < all) pass(schedule, r, false, k + ahead);
            pass(schedule, r, true, k);
        }
        schedule_push(schedule, r, ACTION_OPT, 0, -1);
    }
    schedule_add_transfers(schedule);
    return schedule;
}
