/* Generators of schedules. */
#ifndef PLAN_SCHEDULES_H
#define PLAN_SCHEDULES_H

#include "schedule/schedule.h"

/* Which once-a-step actions the step has. */
typedef struct ScheduleParts {
    bool begin, count, total;
} ScheduleParts;

/* One chunk of layers for each stage. */
Schedule *schedule_gpipe(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts);
/* `chunks` of layers for each stage; micros must be a multiple of stages. */
Schedule *schedule_interleaved(Session *s, Arena *arena, int stages, int chunks, int micros, ScheduleParts parts);
/* By the name that a plan uses; NULL: one_f_one_b. NULL for a name that is none. */
Schedule *schedule_generate(Session *s, Arena *arena, const char *name, int stages, int chunks, int micros,
                            ScheduleParts parts);
/* A table that was read gets what it leaves out: transfers, and what runs once a step. */
void schedule_complete(Schedule *schedule, ScheduleParts parts);
/* Whether the schedule of that name has BI and BW in place of B. */
bool schedule_name_splits_backward(const char *name);
/* What F and B actions of neighbouring chunks hand over, as SEND and RECV next to them. */
void schedule_add_transfers(Schedule *schedule);
/* For generators: an empty schedule, an action at its end; what comes before the first pass of a role, and the update.
 */
void schedule_push(Schedule *schedule, int role, ActionKind kind, int chunk, int micro);
void schedule_open_role(Schedule *schedule, int role, ScheduleParts parts);

Schedule *schedule_one_f_one_b(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts);
Schedule *schedule_zero_bubble(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts);

#endif
