/* The schedule: for each role, what it does in one step, in order, as data.
 *
 * Generators (schedules/) and the text form give the same table. The program's step is generated from it. */
#ifndef PLAN_SCHEDULE_H
#define PLAN_SCHEDULE_H

#include "ir/ir.h"

typedef enum ActionKind {
#define ACTION(NAME, text, doc) ACTION_##NAME,
#include "schedule/actions.def"
#undef ACTION
    ACTION_COUNT_
} ActionKind;

typedef struct Action {
    ActionKind kind;
    int chunk;  /* of layers; 0 with one stage */
    int micro;  /* micro-batch, or -1 for actions that run once a step */
    int stream; /* 0: compute */
    int peer;   /* role, for SEND and RECV; else -1 */
} Action;

typedef struct RoleSchedule {
    VEC(Action) actions;
} RoleSchedule;

typedef struct Schedule {
    Session *session;
    Arena *arena;
    Name name; /* "gpipe", "one_f_one_b", ... */
    int n_roles, n_chunks, n_micro;
    RoleSchedule *roles;
} Schedule;

void schedule_print(const Schedule *schedule, Text *out);
Schedule *schedule_parse(Session *s, int32_t file); /* NULL after diagnostics */
/* Every F before its B, every B before OPT, each exactly once for each micro-batch, in-range numbers. Reports
 * diagnostics at `span`. */
bool schedule_verify(const Schedule *schedule, Span span);
/* Runs all roles at once, a send waiting for its receive. False, with the cycle reported at `span`: they would hang. */
bool schedule_progress(const Schedule *schedule, Span span);
const char *action_name(ActionKind kind);           /* "F" */
void action_print(const Action *action, Text *out); /* "0F3", "0SEND_F3", "0SEND_F3!" for one that waits, "OPT" */
/* The most micro-batches between their F and their B at any time. */
int schedule_in_flight(const Schedule *schedule, int role, int chunk);

#endif
