/* What a run says: the progress line, plain lines, the metrics file; and what it looks at to say it: memory, values
 * that are not finite. All of it happens on rank 0, but for the looking. */
#ifndef PRT_LOG_H
#define PRT_LOG_H

#include "core/run.h"

typedef struct PrtLog {
    const PrtRun *run;
    FILE *metrics;      /* or NULL */
    bool bar;           /* one line rewritten on a terminal; else plain lines */
    bool open_line;     /* the bar's line has no line feed yet */
    int64_t first_step; /* of this run */
    double started;     /* when it began */
    double steady_ms;   /* smoothed time of a step */
    double last_shown;
    double val_loss; /* of the last evaluation, or NAN */
    double pause_s;  /* spent in evaluation and saving, for the estimate of the end */
    int64_t predicted_bytes;
} PrtLog;

#define PRT_MAX_LOGGED 16

/* One step's numbers; NAN: there is none. */
typedef struct PrtStepLog {
    int64_t step;
    int n_logged; /* what the model's `log` statements hand out, by name */
    struct {
        const char *name;
        double value;
    } logged[PRT_MAX_LOGGED];
    double loss, grad_norm, lr, step_ms, tokens_per_second, val_loss;
    double loss_scale, skipped_steps; /* of fp16: that of the next step; steps skipped since the first */
    int64_t peak_bytes;
} PrtStepLog;

/* Opens the metrics file; a resumed run drops the lines after its first step and goes on. False with a reason. */
bool prt_log_open(PrtLog *log, const PrtRun *run, char *why, size_t size);
void prt_log_step(PrtLog *log, const PrtStepLog *step);
/* A line of its own, above the progress line. */
void prt_log_line(PrtLog *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
void prt_log_close(PrtLog *log);

/* The most memory this process has held, without what it sees of other ranks' arenas; 0: unknown. */
int64_t prt_peak_bytes(const PrtRank *rank);

/* Finds the first tensor (gradients, then weights, then the rest) that holds a value that is not finite, on any rank,
 * and ends the job with it in the message. All ranks call it together. Does not return. */
_Noreturn void prt_stop_nonfinite(PrtRank *rank, int64_t step, const char *what, double value, const char *hint);

#endif
