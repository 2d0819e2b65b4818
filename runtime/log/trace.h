/* A trace of the run in Chrome's form, one file a rank: DIR/rank0_trace.json, for Perfetto or chrome://tracing.
 * Slices: actions, entries, collectives, checkpoints. */
#ifndef PRT_TRACE_H
#define PRT_TRACE_H

#include "core/rank.h"

#define PRT_TRACE_STEPS 50 /* traced steps, from the first of the run: files stay small enough to open */

/* NULL with errno when the file cannot be made. */
PrtTrace *prt_trace_open(const char *directory, int rank, const char *plan);
void prt_trace_close(PrtTrace *trace); /* NULL is fine, as below */
/* After the last traced step: later slices are dropped. */
void prt_trace_pause(PrtTrace *trace);
double prt_trace_start(const PrtTrace *trace);
void prt_trace_end(PrtTrace *trace, const char *name, double start);

#endif
