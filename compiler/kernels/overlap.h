/* Between the pass that overlaps communication with computation and its check. Private to this folder. */
#ifndef PLAN_OVERLAP_H
#define PLAN_OVERLAP_H

#include "kernels/kernels.h"

/* A collective that runs. */
typedef struct Flight {
    Kernel *kernel;
    bool ends_here; /* in the list that starts it; else steps 1 to 3 have placed its finish */
} Flight;
typedef VEC(Flight) Flights;

/* Whether the kernel, or one in its body, must not run while the collective does. */
bool kernel_conflicts(const Kernel *kernel, const Kernel *started);
/* Whether the kernel, or what a repeat begins with, finishes the axis. */
bool kernel_ends(const Kernel *kernel, int axis);
/* What the kernel itself finishes first of all is in flight no more. */
void flights_end(Flights *flights, const Kernel *kernel);
Kernel *kernel_copy(Arena *arena, const Kernel *from);
/* The kernel as a round `by` later does it. */
Kernel *kernel_shifted(Arena *arena, const Kernel *from, int64_t by, Rounds rounds);

#endif
