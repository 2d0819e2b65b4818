/* What the stages of a program hand to each other, as channels of its schedule: also values that skip chunks, those
 * that stay on a stage, and what goes from stage to stage once a step. */
#include "graph/graph.h"
#include "schedule/schedule.h"

/* The other end of a transfer. */
static const Transfer *find_receiver(const Step *step, int channel) {
    for (int i = 0; i < step->transfers.n; i++)
        if (step->transfers.at[i].channel == channel && !step->transfers.at[i].sends) return &step->transfers.at[i];
    BUG("nobody receives from channel %d", channel);
}

static int pass_of(const Schedule *schedule, int role, const Transfer *t) {
    return 2 * (t->chunk * schedule->n_roles + role) + (t->when == TRANSFER_B);
}

static void add_transfer(Schedule *schedule, Step *const *steps, int role, const Transfer *t) {
    if (t->when == TRANSFER_GRADIENT || t->when == TRANSFER_WEIGHT) {
        OnceTransfer once = {.from = role, .to = t->peer, .after_update = t->when == TRANSFER_WEIGHT};
        vec_push(schedule->arena, &schedule->once, once);
        return;
    }
    const Transfer *other = find_receiver(steps[t->peer], t->channel);
    ScheduleChannel channel = {.from = pass_of(schedule, role, t), .to = pass_of(schedule, t->peer, other), .depth = 1};
    if (t->tensor->flights > 1) {
        int early = channel.from < channel.to ? channel.from / 2 : channel.to / 2;
        int copies = schedule_copies(schedule, early % schedule->n_roles, early / schedule->n_roles, PHASE_F, PHASE_B);
        if (copies > MAX_CHANNEL_DEPTH) copies = MAX_CHANNEL_DEPTH;
        t->tensor->flights = channel.depth = copies < t->tensor->flights ? copies : t->tensor->flights;
    }
    vec_push(schedule->arena, &schedule->channels, channel);
}

void schedule_set_transfers(Schedule *schedule, Step *const *steps) {
    int kept = 0;
    for (int i = 0; i < schedule->channels.n; i++) { /* those within a role stay */
        const ScheduleChannel *c = &schedule->channels.at[i];
        if ((c->from / 2 - c->to / 2) % schedule->n_roles == 0) schedule->channels.at[kept++] = *c;
    }
    schedule->channels.n = kept;
    for (int role = 0; role < schedule->n_roles; role++)
        for (int i = 0; i < steps[role]->transfers.n; i++) {
            const Transfer *t = &steps[role]->transfers.at[i];
            if (t->sends && t->when != TRANSFER_EVAL) add_transfer(schedule, steps, role, t);
        }
}
