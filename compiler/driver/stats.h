/* What compiling a plan took, in counts that are the same on every machine. */
#ifndef PLAN_STATS_H
#define PLAN_STATS_H

#include "codegen/program_to_json.h"

/* One "NAME NUMBER" a line: `--emit stats`. */
void stats_print(const Session *s, const ModelGraph *model, const ProgramFacts *facts, Text *out);

#endif
