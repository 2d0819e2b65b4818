/* How fast this machine multiplies and adds, for the model FLOPs utilisation that the progress line shows.
 *
 * Every thread runs the generated loop of independent multiply-adds at the same time; the best of several short bursts
 * counts, since other work on the machine only makes them slower. */
#include "cpu/threads.h"

#include <pthread.h>
#include <time.h>

enum { BURSTS = 8, MAX_THREADS = 256 };
static const double burst_seconds = 0.005;

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct Probe {
    double flops; /* a second */
    float sink;   /* keeps the result alive */
} Probe;

static void *probe_thread(void *argument) {
    Probe *probe = argument;
    int64_t steps = 1000;
    for (int burst = 0; burst < BURSTS; burst++) {
        double start = seconds_now();
        probe->sink += plan_inner.probe(steps);
        double seconds = seconds_now() - start + 1e-9;
        double flops = (double)steps * plan_inner.probe_flops / seconds;
        if (flops > probe->flops) probe->flops = flops;
        if (seconds < burst_seconds) steps = (int64_t)((double)steps * burst_seconds / seconds) + 1;
    }
    return NULL;
}

double prt_probe_flops(int threads) {
    Probe probes[MAX_THREADS] = {0};
    pthread_t handles[MAX_THREADS];
    int n = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads, started = 1;
    while (started < n && pthread_create(&handles[started], NULL, probe_thread, &probes[started]) == 0) started++;
    probe_thread(&probes[0]);
    double flops = probes[0].flops;
    for (int i = 1; i < started; i++) {
        pthread_join(handles[i], NULL);
        flops += probes[i].flops;
    }
    return flops * threads / started;
}
