/* Collectives that are started and finished later. A rank announces what it starts and goes on; at a finish of the axis
 * the ranks of the group meet and do all that was started, in order. */
#include "comm/comm.h"

void prt_collective_start(PrtRank *rank, const PrtCollective *c, const void *in, void *out) {
    if (rank->n_flights == PRT_FLIGHTS) prt_collective_finish(rank, rank->flights[0].what->axis);
    rank->flights[rank->n_flights++] = (PrtFlight){c, in, out};
}

void prt_collective_finish(PrtRank *rank, int64_t axis) {
    int left = 0, n = rank->n_flights;
    for (int i = 0; i < n; i++) {
        PrtFlight flight = rank->flights[i];
        if (flight.what->axis == axis)
            prt_collective_now(rank, flight.what, flight.in, flight.out);
        else
            rank->flights[left++] = flight;
    }
    rank->n_flights = left;
}
