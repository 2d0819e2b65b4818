/* Communication between ranks that share memory.
 *
 * A group is the ranks that differ in one mesh coordinate only; the world is all ranks. Waits never outlast the job:
 * they end when a rank has failed (prt_leave) and after job->timeout seconds (prt_fail, naming the missing ranks).
 *
 * Layout of the moving collectives, n ranks in the group, elements of 4 bytes:
 *   all_gather      in [outer][inner]       out [outer][n][inner]: block j is rank j's in
 *   reduce_scatter  in [outer][n][inner]    out [outer][inner]:    block `me` of the sum
 *   all_to_all      in [outer][n][inner]    out [outer][n][inner]: block j is block `me` of rank j's in
 *   all_reduce      in [elements]           out [elements]         (out may equal in)
 * A PrtCollective is a constant: others read it while its rank has gone on.
 * Sums are taken in the order of the ranks, by one rank for all, so that every rank reads the same bits. */
#ifndef PRT_COMM_H
#define PRT_COMM_H

#include "core/job.h"

#define PRT_WORLD (-1)

typedef struct PrtGroup {
    int slot;          /* axis, or n_axes for the world */
    int first, stride; /* rank j of the group is first + j * stride */
    int size, me;
} PrtGroup;

/* Waits until `*word` is no longer `value`: true; false after the job's timeout. Sets it and wakes who waits. */
bool prt_wait_change(PrtRank *rank, atomic_uint *word, atomic_uint *waiting, unsigned value);
void prt_change(atomic_uint *word, atomic_uint *waiting, unsigned value);

PrtGroup prt_group(const PrtRank *rank, int axis);
/* Returns when all ranks of the group have called it. `where` is for messages. */
void prt_barrier(PrtRank *rank, int axis, const char *where);
/* Shows `number` to all ranks and meets them; then prt_shown(rank, turn, i) is what rank i showed, until the next but
 * one call. All ranks then know the same numbers, so they decide alike. */
int prt_show(PrtRank *rank, int64_t number, const char *where);
int64_t prt_shown(const PrtRank *rank, int turn, int from);
int64_t prt_vote(PrtRank *rank, int64_t number, const char *where);   /* the largest of the ranks' numbers */
int64_t prt_decide(PrtRank *rank, int64_t number, const char *where); /* that of rank 0 */

/* Checks the collective; true: the group is this rank alone, and it is done. */
bool prt_collective_alone(PrtRank *rank, const PrtCollective *c, const void *in, void *out);
/* This rank's share of what all ranks of the group have announced under the number. `posts`: of the axis, by rank. */
void prt_flight_move(PrtRank *rank, const PrtGroup *group, PrtPosts *posts, unsigned number);
/* "rank 1 (step 7, F, in ...)", for messages; returns the characters. */
int prt_describe_rank(const PrtJob *job, int number, char *text, size_t size);

#endif
