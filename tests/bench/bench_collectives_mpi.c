/* The same orders as bench_collectives.c for an MPI library: all-reduce in place, the others from buffer to buffer.
 * Ranks that wait for an order sleep, so that they do not disturb the others of a comparison. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_ROUNDS = 4096 };

static int by_value(const void *x, const void *y) {
    return (*(const double *)x > *(const double *)y) - (*(const double *)x < *(const double *)y);
}

static void next_order(int rank, long long *order) {
    char line[128];
    order[2] = 0;
    if (rank == 0 &&
        !(fgets(line, sizeof line, stdin) && sscanf(line, "%lld %lld %lld", &order[0], &order[1], &order[2]) == 3))
        order[2] = 0;
    MPI_Request request;
    int done = 0;
    MPI_Ibcast(order, 3, MPI_LONG_LONG, 0, MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done)
        nanosleep(&(struct timespec){.tv_nsec = 500 * 1000}, NULL);
}

static void collective(int kind, float *in, float *out, int whole, int part) {
    switch (kind) {
    case 0: MPI_Allreduce(MPI_IN_PLACE, in, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case 1: MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case 2: MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    default: MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    static double seconds[MOST_ROUNDS];
    int rank, n;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    size_t most = argc > 1 ? (size_t)atoll(argv[1]) : 0;
    float *in = aligned_alloc(64, most + 64), *out = aligned_alloc(64, most + 64);
    memset(in, 0, most), memset(out, 0, most);
    for (long long order[3]; next_order(rank, order), order[2] > 0 && order[2] <= MOST_ROUNDS;) {
        int part = (int)(order[1] / 4 / n), whole = part * n, rounds = (int)order[2];
        for (int i = -2; i < rounds; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            collective((int)order[0], in, out, whole, part);
            double mine = MPI_Wtime() - start, slowest;
            MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
            if (rank == 0 && i >= 0) seconds[i] = slowest;
        }
        if (rank) continue;
        qsort(seconds, (size_t)rounds, sizeof *seconds, by_value);
        printf("%.9f\n", seconds[rounds / 2]);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
