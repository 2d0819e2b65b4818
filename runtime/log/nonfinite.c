/* After a loss or a norm that is not finite: which tensor holds the first such value? */
#include "log/log.h"

#include "comm/comm.h"

#include <math.h>
#include <string.h>

typedef struct Found {
    int64_t order; /* in the search, over all ranks; INT64_MAX: none */
    const PrtTensor *tensor;
    int64_t first, count;
} Found;

static int class_order(const char *kind) {
    return !strcmp(kind, "gradient") ? 0 : !strcmp(kind, "weight") ? 1 : !strcmp(kind, "moment") ? 2 : 3;
}

static Found search(const PrtRank *rank) {
    const PrtRole *role = &rank->program->roles[rank->role];
    Found found = {.order = INT64_MAX};
    for (int i = 0; i < role->n_tensors; i++) {
        const PrtTensor *tensor = &role->tensors[i];
        int64_t order = (int64_t)class_order(tensor->kind) << 32 | i;
        if (tensor->dtype != PRT_F32 || order >= found.order || order >> 32 > 2) continue;
        const float *x = (const float *)(const void *)(rank->arena + tensor->offset);
        int64_t n = tensor->bytes / 4, count = 0, first = -1;
        for (int64_t k = 0; k < n; k++) {
            if (isfinite(x[k])) continue;
            if (first < 0) first = k;
            count++;
        }
        if (count) found = (Found){order, tensor, first, count};
    }
    return found;
}

/* "[3, 0, 17]" of an element of the block. */
static void index_text(const PrtRank *rank, const Found *found, char *text, size_t size) {
    int64_t part[PRT_MAX_DIMS], at[PRT_MAX_DIMS], rest = found->first;
    const PrtTensor *tensor = found->tensor;
    for (int d = 0; d < tensor->n_dims; d++) part[d] = tensor->shape[d];
    for (int a = 0; a < rank->n_axes; a++) {
        if (tensor->axes[a] >= 0) part[tensor->axes[a]] /= rank->sizes[a];
    }
    for (int d = tensor->n_dims - 1; d >= 0; d--) {
        at[d] = rest % part[d];
        rest /= part[d];
    }
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < tensor->n_dims && used < size; d++) {
        used += (size_t)snprintf(text + used, size - used, "%s%lld", d ? ", " : "", (long long)at[d]);
    }
    if (used < size) snprintf(text + used, size - used, "]");
}

_Noreturn void prt_stop_nonfinite(PrtRank *rank, int64_t step, const char *what, double value, const char *hint) {
    Found found = search(rank);
    int64_t key = found.order == INT64_MAX ? INT64_MAX
                                           : found.order << 12 | rank->number; /* the lowest rank of the first tensor */
    int64_t best = -prt_vote(rank, -key, "a search for values that are not finite");
    if (best == INT64_MAX && rank->number == 0) {
        prt_fail(rank, "step %lld: %s is %g; no gradient, weight or moment holds such a value; %s", (long long)step,
                 what, value, hint);
    }
    if (best == key && best != INT64_MAX) {
        char index[160];
        index_text(rank, &found, index, sizeof index);
        float held = ((const float *)(const void *)(rank->arena + found.tensor->offset))[found.first];
        prt_fail(rank,
                 "step %lld: %s is %g; the first tensor with such a value is the %s `%s`: %lld of its %lld values, the "
                 "first %g at %s; %s",
                 (long long)step, what, value, found.tensor->kind, found.tensor->name, (long long)found.count,
                 (long long)(found.tensor->bytes / 4), (double)held, index, hint);
    }
    for (;;) prt_barrier(rank, PRT_WORLD, "the end of the run"); /* until the rank that found it has given up */
}
