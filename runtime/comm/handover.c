/* prt_handover: a value goes from one rank to another that differs on one axis alone.
 *
 * The sender posts its address and goes on; the receiver copies straight from the sender's arena and marks the message
 * as taken; before the sender overwrites what it has posted, it waits for that. */
#include "comm/comm.h"

#include "log/trace.h"

#include <string.h>

static int peer_of(const PrtRank *rank, const PrtHandover *h) {
    PrtGroup group = prt_group(rank, h->axis);
    return group.first + h->peer * group.stride;
}

static void wait_change(PrtRank *rank, atomic_uint *word, atomic_uint *waiting, unsigned value, const PrtHandover *h) {
    PrtStatus *status = &rank->job->status[rank->number];
    const char *outer = atomic_exchange(&status->where, h->where);
    if (!prt_wait_change(rank, word, waiting, value)) {
        const PrtStatus *other = &rank->job->status[peer_of(rank, h)];
        const char *doing = atomic_load(&other->doing), *where = atomic_load(&other->where);
        prt_fail(rank, "waited %.0f s in %s: rank %d is at step %lld, %s%s%s", rank->job->timeout, h->where,
                 peer_of(rank, h), (long long)atomic_load(&other->step), doing ? doing : "starting",
                 where ? ", in " : "", where ? where : "");
    }
    atomic_store(&status->where, outer);
}

static void receive(PrtRank *rank, PrtChannel *channel, const PrtHandover *h, void *data) {
    unsigned taken = atomic_load(&channel->taken);
    wait_change(rank, &channel->posted, &channel->posted_waiting, taken, h);
    int64_t sent = channel->messages[taken % PRT_CHANNEL_DEPTH].bytes;
    if (sent != h->bytes)
        prt_fail(rank, "%s: rank %d sent %lld bytes, %lld are expected", h->where, peer_of(rank, h), (long long)sent,
                 (long long)h->bytes);
    memcpy(data, channel->messages[taken % PRT_CHANNEL_DEPTH].data, (size_t)h->bytes);
    prt_change(&channel->taken, &channel->taken_waiting, taken + 1);
}

/* Until fewer than `depth` messages are not yet taken. */
static unsigned wait_room(PrtRank *rank, PrtChannel *channel, const PrtHandover *h) {
    unsigned posted = atomic_load(&channel->posted), taken;
    while (posted - (taken = atomic_load(&channel->taken)) >= (unsigned)h->depth)
        wait_change(rank, &channel->taken, &channel->taken_waiting, taken, h);
    return posted;
}

void prt_handover(PrtRank *rank, const PrtHandover *h, void *data) {
    if (h->axis < 0 || h->axis >= rank->n_axes || h->peer < 0 || h->peer >= rank->sizes[h->axis] ||
        h->peer == rank->coords[h->axis])
        prt_fail(rank, "%s: no other rank has coordinate %d on axis %d", h->where, h->peer, h->axis);
    if (!rank->job || !rank->job->channels) prt_fail(rank, "%s: the program's ranks have no channels", h->where);
    if (h->depth < 1 || h->depth > PRT_CHANNEL_DEPTH)
        prt_fail(rank, "%s: a channel of %d messages", h->where, h->depth);
    int sender = h->kind == PRT_RECEIVE ? peer_of(rank, h) : rank->number;
    PrtChannel *channel = &rank->job->channels[h->channel * rank->n_ranks + sender];
    double start = prt_trace_start(rank->trace);
    if (h->kind == PRT_RECEIVE) {
        receive(rank, channel, h, data);
        prt_trace_end(rank->trace, h->where, start);
        return;
    }
    unsigned posted = wait_room(rank, channel, h);
    if (h->kind == PRT_WAIT) return;
    channel->messages[posted % PRT_CHANNEL_DEPTH].data = data;
    channel->messages[posted % PRT_CHANNEL_DEPTH].bytes = h->bytes;
    prt_change(&channel->posted, &channel->posted_waiting, posted + 1);
}
