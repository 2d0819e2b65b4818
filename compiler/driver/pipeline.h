/* The whole flow from text to program. */
#ifndef PLAN_PIPELINE_H
#define PLAN_PIPELINE_H

#include "driver/options.h"

/* `plc check`: every static check of every plan. Returns an exit code; diagnostics stay in the session. */
int pipeline_check(Session *s, const Options *options);
/* `plc build`: a program for one plan, or the text of a stage with --emit. Returns an exit code. */
int pipeline_build(Session *s, const Options *options);
/* `plc explain FILE`: what each plan (or the one of --plan) costs. Returns an exit code. */
int pipeline_explain(Session *s, const Options *options);
/* Where the program goes without -o: the file's name without `.plan`, in this folder. */
const char *pipeline_default_output(Session *s, const char *file);

#endif
