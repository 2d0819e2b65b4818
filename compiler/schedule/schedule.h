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
    Span span; /* its line in the file that it was read from */
} RoleSchedule;

/* The way of one value from pass to pass. Chunk c of role r is chunk c * n_roles + r of the model; pass 2k is the
 * forward pass of the model's chunk k, 2k + 1 its backward pass (BI, where it is split). */
typedef struct ScheduleChannel {
    int from, to; /* passes; on the same role: nothing is sent, but the order counts */
    int depth;    /* copies of the value, and messages that may be under way */
} ScheduleChannel;

/* A shared weight's gradient on its way home, before the update, or the weight itself, after it. */
typedef struct OnceTransfer {
    int from, to; /* roles */
    bool after_update;
} OnceTransfer;

typedef struct Schedule {
    Session *session;
    Arena *arena;
    Name name; /* "gpipe", "one_f_one_b", ... */
    int n_roles, n_chunks, n_micro;
    RoleSchedule *roles;
    VEC(ScheduleChannel) channels; /* from each chunk to the next and back, until the program's own are known */
    VEC(OnceTransfer) once;
} Schedule;

Schedule *schedule_new(Session *s, Arena *arena, const char *name, int stages, int chunks, int micros);

const char *action_text(ActionKind kind); /* "F" */
void schedule_print(const Schedule *schedule, Text *out);
/* The passes as a table of PyTorch's pipelining, for torch.distributed.pipelining's `_load_csv`. */
void schedule_print_torch(const Schedule *schedule, Text *out);
/* A table in either form, as it stands there; then schedule_complete and schedule_verify. NULL after diagnostics. */
Schedule *schedule_read(Session *s, int32_t file);
Schedule *schedule_parse(Session *s, int32_t file); /* all three, for a step without other parts */
/* Every F before its B, every B before OPT, each exactly once for each micro-batch, in-range numbers. Reports
 * diagnostics at `span`. */
bool schedule_verify(const Schedule *schedule, Span span);
/* The transfers of the program in place of the usual channels. */
struct Step;
void schedule_set_transfers(Schedule *schedule, struct Step *const *steps);
/* Runs all roles at once, a send waiting for its receive. False, reported at `span`: they would hang (with the cycle),
 * or an action uses what is not there. */
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
