/* A schedule by its name in a plan. */
#include "schedule/schedules.h"

typedef struct Generator {
    const char *name;
    Schedule *(*make)(Session *s, Arena *arena, int stages, int micros, ScheduleParts parts);
    bool splits_backward;
} Generator;

/* Those for one chunk on each stage; the first is the usual. */
static const Generator generators[] = {{"one_f_one_b", schedule_one_f_one_b, false},
                                       {"gpipe", schedule_gpipe, false},
                                       {"zero_bubble", schedule_zero_bubble, true}};
enum { N_GENERATORS = sizeof generators / sizeof *generators };

static const Generator *find(const char *name) {
    for (int i = 0; i < N_GENERATORS; i++)
        if (!name || strcmp(name, generators[i].name) == 0) return &generators[i];
    return NULL;
}

bool schedule_name_splits_backward(const char *name) {
    const Generator *generator = find(name);
    return generator && generator->splits_backward;
}

Schedule *schedule_generate(Session *s, Arena *arena, const char *name, int stages, int chunks, int micros,
                            ScheduleParts parts) {
    const Generator *generator = find(name);
    if (generator) return generator->make(s, arena, stages, micros, parts);
    if (strcmp(name, "interleaved") == 0) return schedule_interleaved(s, arena, stages, chunks, micros, parts);
    return NULL;
}
