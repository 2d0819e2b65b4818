/* Which axes of a plan go from machine to machine, for plc explain. */
#ifndef PLAN_EXPLAIN_MACHINES_H
#define PLAN_EXPLAIN_MACHINES_H

#include "codegen/api.h"

void explain_machines(const ProgramFacts *facts, Text *out);

#endif
