/* When the passes of a schedule run, if transfers take no time. */
#ifndef PLAN_TIMELINE_H
#define PLAN_TIMELINE_H

#include "schedule/schedule.h"

/* Times of the kinds of pass, in any unit. */
typedef struct PassTimes {
    int f, b, bi, bw;
} PassTimes;

typedef struct Timeline {
    int length;  /* of the step */
    int **start; /* of each role's actions */
    int *busy;   /* of each role */
} Timeline;

/* For a schedule that schedule_progress accepts. */
Timeline schedule_timeline(const Schedule *schedule, PassTimes times);
/* A line for each stage, a cell for each unit of time, dots where it is idle. */
void schedule_draw(const Schedule *schedule, Text *out);

#endif
