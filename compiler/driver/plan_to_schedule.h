/* The schedule that a plan asks for: from a generator, or from a file. */
#ifndef PLAN_PLAN_TO_SCHEDULE_H
#define PLAN_PLAN_TO_SCHEDULE_H

#include "driver/options.h"
#include "graph/stages.h"
#include "schedule/schedules.h"

/* The table that `--schedule` or the rule's `table("file")` names; `*table` is NULL when there is none. False after
 * diagnostics. It may still lack transfers and what runs once a step. */
bool plan_read_table(Session *s, const Options *options, const Rule *rule, Schedule **table);
/* Whether the table fits what it is to run; reported when not. */
bool table_fits(Session *s, const Schedule *table, const StageCut *cut, int stages, int64_t micros, int64_t layers);
/* NULL after diagnostics. Not yet verified: the program's transfers are still to be set. */
Schedule *plan_to_schedule(Session *s, const Rule *rule, Schedule *table, const Step *step, int stages);

#endif
