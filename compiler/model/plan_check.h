/* Inside compiler/model only: what the files that check a plan against its model's dimensions share. */
#ifndef PLAN_PLAN_CHECK_H
#define PLAN_PLAN_CHECK_H

#include "model/resolve.h"

typedef struct PlanCheck {
    Session *s;
    Arena *arena;
    const Train *train; /* may be NULL */
    const Plan *plan;
    Dim *const *dims;
    int n_dims;
    Name batch; /* "batch" */
    bool whole; /* the model has no errors: what it lacks is the plan's mistake */
} PlanCheck;

/* The dimension that a word names, or NULL. */
Dim *check_find_dim(const PlanCheck *c, Name what);
bool check_is_batch(const PlanCheck *c, const Rule *rule);
/* Whether a repeat of the model runs over this dimension. */
bool check_is_repeated(const PlanCheck *c, const Dim *dim);
/* GPUs of the plan's cluster; 0 when there is none or its number is unknown. */
int64_t check_cluster_ranks(const PlanCheck *c);

/* ---- arithmetic (whole numbers, exact) --------------------------------------------------------------------------- */

int64_t size_gcd(int64_t a, int64_t b);
int64_t size_lcm(int64_t a, int64_t b);   /* saturates at 2^62 */
int64_t size_times(int64_t a, int64_t b); /* saturates at 2^62 */
typedef VEC(int64_t) Sizes;
/* The divisors of n in rising order. */
void sizes_divisors(Arena *arena, int64_t n, Sizes *out);
/* "2 x 4 x 8" of the axes of a set, with names: "`data` (2) x `ep` (4)" */
const char *axes_text(Arena *arena, const Mesh *mesh, const int *axes, int n);

/* ---- the checks --------------------------------------------------------------------------------- */

/* Divisibility of every dimension but the batch. */
void check_sizes(const PlanCheck *c);
/* The batch against mesh and micro-batch. */
void check_batch(const PlanCheck *c);
/* The precision against the cluster's GPUs. */
void check_precision(const PlanCheck *c);

/* Reads the value of `precision`. */
void plan_read_precision(Resolver *r, FileScope *scope, Plan *plan, const Expr *e);

#endif
