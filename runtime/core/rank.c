/* A rank's own set-up: coordinates, memory, threads; scalars, results and entries; init and the starting checkpoint. */
#include "core/run.h"

#include "comm/comm.h"
#include "log/trace.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static const PrtRole *role_of(const PrtRank *rank) { return &rank->program->roles[rank->role]; }

static void start_threads(PrtRank *rank, const PrtRun *run) {
    const int *cpus = NULL;
    int n_cpus = 0;
    if (run->pinned) {
        cpus = run->cpus + rank->number * run->threads;
        n_cpus = run->threads;
    }
    errno = 0;
    rank->pool = prt_pool_open(rank->threads, cpus, n_cpus);
    if (!rank->pool && errno) prt_fail(rank, "cannot start %d threads: %s", rank->threads, strerror(errno));
}

void prt_rank_open(PrtRank *rank, const PrtRun *run, int number) {
    const PrtProgram *program = run->program;
    *rank = (PrtRank){
        .number = number, .n_ranks = program->n_ranks, .n_axes = program->n_axes, .program = program, .job = run->job};
    rank->machine = program->machine;
    for (int a = 0; a < program->n_axes; a++) rank->sizes[a] = program->mesh[a].size;
    prt_program_coords(program, number, rank->coords);
    rank->arena = run->arenas[number];
    rank->role = prt_program_role(program, number);
    rank->arena_bytes = role_of(rank)->arena_bytes;
    rank->threads = run->threads;
    rank->scratch_bytes = (role_of(rank)->scratch_bytes + 63) / 64 * 64;
    if (rank->scratch_bytes > 0) {
        size_t bytes = (size_t)rank->scratch_bytes * (size_t)rank->threads;
        rank->scratch = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (rank->scratch == MAP_FAILED) prt_fail(rank, "out of memory: %zu bytes of scratch", bytes);
    }
    start_threads(rank, run);
    if (run->options && run->options->trace) {
        rank->trace = prt_trace_open(run->options->trace, number, program->plan);
        if (!rank->trace) prt_fail(rank, "cannot write a trace to `%s`: %s", run->options->trace, strerror(errno));
    }
}

void prt_rank_close(PrtRank *rank) {
    prt_pool_close(rank->pool);
    prt_trace_close(rank->trace);
    if (rank->scratch) munmap(rank->scratch, (size_t)rank->scratch_bytes * (size_t)rank->threads);
}

static void write_at(PrtRank *rank, const PrtScalar *scalar, double value) {
    char *at = rank->arena + scalar->offset;
    float f32 = (float)value;
    int64_t whole = (int64_t)value;
    uint32_t u32 = (uint32_t)whole; /* of a negative number: the same bits as i32 */
    switch (scalar->dtype) {
    case PRT_F32: memcpy(at, &f32, 4); break;
    case PRT_F64: memcpy(at, &value, 8); break;
    default: memcpy(at, &u32, 4); break;
    }
}

void prt_scalar_write(PrtRank *rank, const char *name, double value) {
    const PrtScalar *scalar = prt_role_scalar(role_of(rank), name);
    if (scalar) write_at(rank, scalar, value);
}

void prt_result_write(PrtRank *rank, const char *name, double value) {
    const PrtScalar *result = prt_role_result(role_of(rank), name);
    if (result) write_at(rank, result, value);
}

double prt_result_read(const PrtRank *rank, const char *name) {
    const PrtScalar *result = prt_role_result(role_of(rank), name);
    if (!result) return NAN;
    const char *at = rank->arena + result->offset;
    float f32;
    double f64;
    int32_t i32;
    uint32_t u32;
    switch (result->dtype) {
    case PRT_F32: memcpy(&f32, at, 4); return (double)f32;
    case PRT_F64: memcpy(&f64, at, 8); return f64;
    case PRT_U32: memcpy(&u32, at, 4); return u32;
    default: memcpy(&i32, at, 4); return i32;
    }
}

void prt_entry_run(PrtRank *rank, int entry, const char *name, int64_t micro, int64_t step) {
    if (entry < 0) return;
    PrtStatus *status = &rank->job->status[rank->number];
    atomic_store(&status->doing, name);
    atomic_store(&status->micro, (int)micro);
    prt_scalar_write(rank, "micro", (double)micro);
    prt_scalar_write(rank, "step", (double)step);
    double start = prt_trace_start(rank->trace);
    rank->program->entries[entry](rank, rank->arena, micro);
    prt_trace_end(rank->trace, name, start);
}

void prt_rank_start(PrtRun *run, PrtRank *rank) {
    const PrtProgram *program = run->program;
    char name[128];
    for (int a = 0; a < program->n_axes; a++) {
        snprintf(name, sizeof name, "coord.%s", program->mesh[a].name);
        prt_scalar_write(rank, name, rank->coords[a]);
    }
    prt_scalar_write(rank, "seed", (double)program->seed);
    /* A checkpoint replaces all that init makes, and fresh memory is zero: so sampling touches no moments. It may lack
     * the loss scale. */
    bool needs_init = !run->loads || !(run->loads_moments || run->options->sample) ||
                      (run->loads_moments && prt_program_result(program, "loss_scale"));
    if (needs_init) prt_entry_run(rank, role_of(rank)->init, "init", 0, 0);
    if (!run->loads) return;
    atomic_store(&rank->job->status[rank->number].doing, "loading a checkpoint");
    prt_checkpoint_load(rank, run->from, run->loads_moments);
}
