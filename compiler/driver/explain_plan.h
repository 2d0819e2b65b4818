/* What a plan costs, as text. */
#ifndef PLAN_EXPLAIN_PLAN_H
#define PLAN_EXPLAIN_PLAN_H

#include "codegen/program_to_json.h"

/* What the plan costs: memory by kind, collectives by source line. */
void explain_plan(Session *s, const ProgramFacts *facts, Text *out);

#endif
