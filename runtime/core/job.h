/* The control block that all ranks and their parent share: who failed first, who asked to stop, where each rank is,
 * and the meeting points of the collectives. One mapping, laid out by prt_job_init. */
#ifndef PRT_JOB_H
#define PRT_JOB_H

#include "core/rank.h"

#define PRT_EXIT_DONE 0
#define PRT_EXIT_FAILED 1
#define PRT_EXIT_USAGE 2
#define PRT_EXIT_ABORTED 3 /* a rank that left because another had failed; never the job's own status */
#define PRT_EXIT_STOPPED 75

#define PRT_INLINE 2048 /* 32-bit elements that a small collective passes by value */

typedef struct PrtBarrier {
    _Alignas(64) atomic_uint generation; /* futex word */
    atomic_uint arrived, waiting;
} PrtBarrier;

/* What a rank shows to the others of its group during a collective. */
typedef struct PrtSlot {
    _Alignas(64) atomic_ullong phase; /* barriers this rank has reached here */
    const void *in;
    void *out;
    const PrtCollective *what[2]; /* by the sequence number's last bit: a rank is at most one collective ahead */
    uint32_t values[2][PRT_INLINE];
} PrtSlot;

/* Where a rank is: for messages. */
typedef struct PrtStatus {
    _Alignas(64) atomic_int pid;
    atomic_int done; /* left on purpose */
    atomic_llong step;
    atomic_int micro;
    _Atomic(const char *) doing; /* an action's kind, or "saving a checkpoint" */
    _Atomic(const char *) where; /* of the collective it is in, or NULL */
    atomic_llong peak_bytes;
    int64_t shown[2]; /* see prt_show */
} PrtStatus;

#define PRT_FLIGHTS 256

/* A collective that was started and is not finished. */
typedef struct PrtFlight {
    const PrtCollective *what;
    const void *in;
    void *out;
} PrtFlight;

/* What a rank has started on an axis, and its shares of that it has done: two counters that only grow. A place of the
 * ring is used again when every rank of the group has done its share of what stood there. */
typedef struct PrtPosts {
    _Alignas(64) atomic_uint posted; /* a futex word, as `moved` */
    atomic_uint posted_waiting;
    _Alignas(64) atomic_uint moved;
    atomic_uint moved_waiting;
    PrtFlight ring[PRT_FLIGHTS]; /* flight f, counted from 1, is at f mod PRT_FLIGHTS */
} PrtPosts;

#define PRT_CHANNEL_DEPTH 64

/* From one rank to another: messages, which the receiver copies from where the sender made them. */
typedef struct PrtChannel {
    _Alignas(64) atomic_uint posted; /* how many, ever: a futex word, as the next */
    atomic_uint posted_waiting;
    _Alignas(64) atomic_uint taken;
    atomic_uint taken_waiting;
    struct {
        const void *data;
        int64_t bytes;
    } messages[PRT_CHANNEL_DEPTH]; /* by the message's number */
} PrtChannel;

struct PrtJob {
    int n_ranks, n_axes;
    double timeout;   /* seconds that a rank waits for others before it calls them lost */
    int spin;         /* pauses before a waiting rank yields its core */
    atomic_int first; /* 1 + number of the rank that failed first, 0: none */
    atomic_int message_ready;
    char message[2048];
    atomic_int abort;         /* set with `first`: everybody leaves */
    atomic_int stop;          /* signal that asks to stop, or 0 */
    atomic_llong last_step;   /* done, for the parent's last line */
    uint64_t checksums[4096]; /* of the chunks of a checkpoint's file */
    void (*leave)(PrtRank *rank,
                  int status); /* NULL: the process ends. For tests with ranks as threads. Does not return */
    PrtStatus *status;         /* [n_ranks] */
    PrtBarrier *barriers;      /* [n_axes + 1][n_ranks]: that of a group is its first rank's */
    PrtSlot *slots;            /* [n_axes + 1][n_ranks] */
    PrtPosts *posts;           /* [n_axes][n_ranks] */
    PrtChannel *channels;      /* [n_channels][n_ranks]: by the sender's number; NULL: none */
};

/* Bytes of the control block for this many ranks and axes, and its set-up in zeroed memory. */
int64_t prt_job_bytes(int n_ranks, int n_axes);
PrtJob *prt_job_init(void *memory, int n_ranks, int n_axes);
/* PrtJob.spin for this many threads of all ranks on these cores. */
int prt_job_spin(int threads, int cores);
/* Leaves the job without a message (another rank has one). */
_Noreturn void prt_leave(PrtRank *rank, int status);
/* Keeps a message as the job's first failure, unless there is one. False: there was one. */
bool prt_job_first(PrtJob *job, int rank, const char *message);

#endif
