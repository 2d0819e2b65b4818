/* The check of overlap.c: walks the finished lists, each repeat twice, with what is in flight. */
#include "kernels/overlap.h"

typedef struct Walk {
    Arena *arena;
    Flights flights;
    Text *why;
} Walk;

static bool walk_list(Walk *w, const KernelList *list);

/* Whether what is in flight has its memory while the kernel runs. */
static bool keeps_memory(const Kernel *flight, const Kernel *kernel) {
    for (int k = 0; k < 2; k++) {
        const Buffer *buffer = flight->refs[k].buffer;
        bool touches_memory = kernel->kind != KERNEL_FINISH && kernel->n_refs > 0;
        if (touches_memory && !buffer->persistent && (kernel->first < buffer->first || kernel->first > buffer->last))
            return false;
    }
    return true;
}

/* Two rounds: what the first leaves in flight is of the round before to the second. */
static bool walk_repeat(Walk *w, const Kernel *repeat) {
    for (int round = 0; round < 2; round++) {
        if (!walk_list(w, &repeat->body)) return false;
        for (int i = 0; i < w->flights.n; i++)
            w->flights.at[i].kernel = kernel_shifted(w->arena, w->flights.at[i].kernel, repeat->descending ? 1 : -1,
                                                     w->flights.at[i].kernel->rounds);
    }
    int left = 0; /* the last round has started none for a next one */
    for (int i = 0; i < w->flights.n; i++)
        if (w->flights.at[i].kernel->rounds != ROUNDS_BUT_LAST) w->flights.at[left++] = w->flights.at[i];
    w->flights.n = left;
    return true;
}

static bool walk_list(Walk *w, const KernelList *list) {
    for (int k = 0; k < list->n; k++) {
        Kernel *kernel = list->at[k];
        if (kernel->kind == KERNEL_REPEAT) {
            if (!walk_repeat(w, kernel)) return false;
            continue;
        }
        if (kernel->kind == KERNEL_FINISH || (kernel->kind == KERNEL_COLLECTIVE && !kernel->begins)) {
            Kernel end = {.kind = KERNEL_FINISH, .axis = kernel->collective ? kernel->collective->axis : kernel->axis};
            flights_end(&w->flights, &end);
        }
        for (int i = 0; i < w->flights.n; i++)
            if (!keeps_memory(w->flights.at[i].kernel, kernel)) {
                text_printf(w->why, "`%s` runs while `%s` is in flight, whose memory is free by then", kernel->name,
                            w->flights.at[i].kernel->name);
                return false;
            }
        for (int i = 0; i < w->flights.n; i++)
            if (kernel_conflicts(kernel, w->flights.at[i].kernel)) {
                text_printf(w->why, "`%s` touches what `%s` has in flight", kernel->name,
                            w->flights.at[i].kernel->name);
                return false;
            }
        if (kernel->begins) vec_push(w->arena, &w->flights, (Flight){kernel, true});
    }
    return true;
}

/* What backward passes start, the update finishes. */
bool overlap_verify(const RoleProgram *program, Text *why) {
    Flights joined = {0};
    for (int i = 0; i < program->entries.n; i++) {
        const Entry *entry = &program->entries.at[i];
        Walk w = {.arena = program->arena, .why = why};
        if (strcmp(entry->name, "update") == 0) w.flights = joined;
        if (!walk_list(&w, &entry->body)) return false;
        for (int k = 0; k < w.flights.n; k++) {
            const Kernel *kernel = w.flights.at[k].kernel;
            if (kernel->micro)
                vec_push(program->arena, &joined, w.flights.at[k]);
            else {
                text_printf(why, "`%s` of `%s` is never finished", kernel->name, entry->name);
                return false;
            }
        }
    }
    return true;
}
