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
    Span span;  /* in the file that it was read from */
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
void action_print(const Action *action, Text *out); /* "0F3", "0SEND_F3", "0SEND_F3!" for one that waits, "OPT" */
/* Whether backward passes are two actions, BI and BW. */
bool schedule_splits_backward(const Schedule *schedule);
/* The most micro-batches between their F and the end of their backward pass (B, or BW) at any time. */
int schedule_in_flight(const Schedule *schedule, int role, int chunk);
/* Copies of a value that is made at the start of one action and needed to the end of another, when micro-batch m has
 * copy m mod n: the least n with which no two micro-batches need the same one. At least 1. */
int schedule_copies(const Schedule *schedule, int role, int chunk, Phase from, Phase to);

#endif
