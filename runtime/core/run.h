/* One run of the program: what the parent prepares before it forks, and what a rank does with it. */
#ifndef PRT_RUN_H
#define PRT_RUN_H

#include "checkpoint/checkpoint.h"
#include "core/job.h"
#include "core/options.h"
#include "core/program.h"
#include "data/data.h"

typedef struct PrtRun {
    PrtProgram *program;
    const PrtOptions *options;
    PrtData *data; /* NULL while sampling */
    PrtJob *job;
    char **arenas; /* [n_ranks] */
    int threads;   /* of each rank */
    int n_cpus;    /* that this process may use */
    int cpus[1024];
    int spin;           /* PrtJob.spin: less when the ranks share cores */
    bool pinned;        /* the ranks use all of them: each its own */
    double peak_flops;  /* of the ranks' cores, by a probe; 0: unknown */
    int64_t first_step; /* the run does steps first_step .. last_step */
    int64_t last_step;
    bool loads; /* `from` is read after init */
    bool loads_moments;
    char from[PRT_PATH];
    PrtState state; /* at the start */
} PrtRun;

/* The program's whole life. */
int prt_main(int argc, char **argv, const char *json, PrtAction *const *entries);

/* core/launch.c: maps the job and the arenas (after prt_run_place); forks, supervises, returns the exit status. */
bool prt_run_map(PrtRun *run, char *why, size_t size);
int prt_run_launch(PrtRun *run, void (*body)(PrtRun *, PrtRank *));
/* Cores, threads of a rank, pinning. */
void prt_run_place(PrtRun *run);
/* Bytes that all ranks need, and that the machine has (in all, and free now; 0: unknown). */
int64_t prt_run_bytes(const PrtRun *run);
void prt_machine_memory(int64_t *total, int64_t *available);

/* core/step.c: what a rank does when training. */
void prt_train(PrtRun *run, PrtRank *rank);
/* core/sample.c */
void prt_sample(PrtRun *run, PrtRank *rank);

/* core/rank.c: fills in a rank, starts its threads. */
void prt_rank_open(PrtRank *rank, const PrtRun *run, int number);
void prt_rank_close(PrtRank *rank);
/* Writes a scalar, where the program has it; reads a result (NAN where it has none). */
void prt_scalar_write(PrtRank *rank, const char *name, double value);
void prt_result_write(PrtRank *rank, const char *name, double value);
double prt_result_read(const PrtRank *rank, const char *name);
/* Runs an entry (-1: nothing) with its scalars set. */
void prt_entry_run(PrtRank *rank, int entry, const char *name, int64_t micro, int64_t step);
/* init, and the checkpoint that the run starts from. */
void prt_rank_start(PrtRun *run, PrtRank *rank);

#endif
