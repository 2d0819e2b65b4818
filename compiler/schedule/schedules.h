/* Generators of schedules. */
#ifndef PLAN_SCHEDULES_H
#define PLAN_SCHEDULES_H

#include "schedule/schedule.h"

/* Which once-a-step actions the step has. */
typedef struct ScheduleParts {
    bool begin, count, total;
} ScheduleParts;

Schedule *schedule_one_f_one_b(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts);

#endif
