/* A schedule by its name in a plan. */
#include "schedule/schedules.h"

Schedule *schedule_generate(Session *s, Arena *arena, const char *name, int stages, int chunks, int micros,
                            ScheduleParts parts) {
    if (!name || strcmp(name, "one_f_one_b") == 0) return schedule_one_f_one_b(s, arena, stages, micros, parts);
    if (strcmp(name, "gpipe") == 0) return schedule_gpipe(s, arena, stages, micros, parts);
    if (strcmp(name, "interleaved") == 0) return schedule_interleaved(s, arena, stages, chunks, micros, parts);
    return NULL;
}
