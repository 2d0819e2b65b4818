/* The route of tokens to experts: the best experts of each token, and its places in their queues.
 *
 * One sequence is one task: queues are filled in token order, whatever the threads. Integers but for the comparisons of
 * probabilities, so the route depends on nothing but p. */
#include "cpu/threads.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { QUEUES = 256 };

typedef struct TopKJob {
    const PrtTopK *top_k;
    const float *p;
    int32_t *chosen, *slot, *source;
} TopKJob;

/* Whether x comes before y: greater, or y is not a number. Equal ones keep their order. */
static inline bool comes_before(float x, float y) { return x > y || (isnan(y) && !isnan(x)); }

/* The picks best experts of one token, by falling probability. */
static void choose(const float *p, int64_t experts, int64_t picks, int32_t *chosen) {
    int64_t n = 0;
    for (int32_t e = 0; e < experts; e++) {
        int64_t at = n;
        while (at > 0 && comes_before(p[e], p[chosen[at - 1]])) at--;
        if (at == picks) continue;
        if (n < picks) n++;
        for (int64_t i = n - 1; i > at; i--) chosen[i] = chosen[i - 1];
        chosen[at] = e;
    }
}

static void top_k_task(void *context, int thread, int64_t task) {
    (void)thread;
    const TopKJob *job = context;
    const PrtTopK *t = job->top_k;
    const float *p = job->p + task * t->seq * t->experts;
    int32_t *chosen = job->chosen + task * t->seq * t->picks, *slot = job->slot + task * t->seq * t->picks;
    int32_t *source = job->source + task * t->experts * t->slots;
    memset(source, 0xff, sizeof *source * (size_t)(t->experts * t->slots)); /* -1 */
    for (int64_t i = 0; i < t->seq; i++) choose(p + i * t->experts, t->experts, t->picks, chosen + i * t->picks);
    for (int64_t first = 0; first < t->experts; first += QUEUES) { /* so many queues at a time */
        int32_t used[QUEUES] = {0};
        for (int64_t i = 0; i < t->seq * t->picks; i++) {
            int64_t e = chosen[i] - first;
            if (e < 0 || e >= QUEUES) continue;
            bool room = used[e] < t->slots;
            slot[i] = room ? used[e] : -1;
            if (room) source[chosen[i] * t->slots + used[e]++] = (int32_t)i;
        }
    }
}

void prt_top_k(PrtRank *rank, const PrtTopK *top_k, void *const *pointers) {
    TopKJob job = {top_k, pointers[0], pointers[1], pointers[2], pointers[3]};
    prt_tasks(rank, top_k_task, &job, top_k->sequences);
}
