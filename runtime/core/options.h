/* The command line of a compiled program. */
#ifndef PRT_OPTIONS_H
#define PRT_OPTIONS_H

#include "core/program.h"

#define PRT_PATH 4096

typedef struct PrtOptions {
    const char *self; /* argv[0] */
    bool sample, dry_run, describe, help, version;
    bool resume;
    const char *resume_from; /* a checkpoint or a folder of them; NULL: where the program saves */
    const char *metrics, *trace;
    int64_t stop_at; /* --steps; -1: the program's steps */
    int64_t log_every;
    double timeout;
    /* sample */
    const char *prompt, *from;
    int64_t tokens, top_k, sample_seed;
    double temperature;
    int n_sets;
    const char *sets[64]; /* NAME=VALUE */
} PrtOptions;

/* False with a message in `why` for a usage error (exit status 2). */
bool prt_options_parse(PrtOptions *options, int argc, char **argv, char *why, size_t size);
/* Applies --set to the program. */
bool prt_options_apply(PrtOptions *options, PrtProgram *program, char *why, size_t size);
void prt_options_help(const char *self);

#endif
