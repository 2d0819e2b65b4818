/* Sampling: one token after the other through the `decode` entry, which keeps keys and values in its caches. All ranks
 * run it (its collectives need them); the first rank of the last stage, which has the logits, chooses the token, and
 * rank 0 prints it. */
#include "core/run.h"

#include "comm/comm.h"
#include "core/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Sampler {
    PrtRun *run;
    PrtRank *rank;
    const PrtProgram *program;
    const PrtRole *role;
    const PrtScalar *logits;
    const PrtInput *input; /* of this rank's role; NULL where it does not read tokens */
    bool chooses;
    int64_t limit;    /* ids below it are tokens; further logits are padding */
    int32_t *history; /* prompt and what was sampled */
    int64_t n, position;
    uint64_t random;
    float *weights; /* of the tokens, then for top-k their order */
    bool bytes;
} Sampler;

static double uniform(Sampler *s) { /* splitmix64 */
    uint64_t x = s->random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (double)(x >> 11) / 9007199254740992.0;
}

static int compare_down(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static float kth_largest(Sampler *s, const float *logits, int64_t k) {
    memcpy(s->weights, logits, (size_t)s->limit * sizeof *logits);
    qsort(s->weights, (size_t)s->limit, sizeof *s->weights, compare_down);
    return s->weights[k - 1];
}

static int32_t choose(Sampler *s) {
    const float *logits = (const float *)(const void *)(s->rank->arena + s->logits->offset);
    const PrtOptions *o = s->run->options;
    int64_t best = 0;
    for (int64_t i = 0; i < s->limit; i++) {
        if (isnan(logits[i]))
            prt_fail(s->rank, "the logits are not numbers at position %lld", (long long)s->position - 1);
        if (logits[i] > logits[best]) best = i;
    }
    if (o->temperature <= 0) return (int32_t)best;
    float least = o->top_k > 0 && o->top_k < s->limit ? kth_largest(s, logits, o->top_k) : -INFINITY,
          top = logits[best];
    double total = 0;
    for (int64_t i = 0; i < s->limit; i++) {
        s->weights[i] = logits[i] < least ? 0 : (float)exp(((double)logits[i] - (double)top) / o->temperature);
        total += (double)s->weights[i];
    }
    double at = uniform(s) * total;
    for (int64_t i = 0; i < s->limit; i++) {
        at -= (double)s->weights[i];
        if (at < 0) return (int32_t)i;
    }
    return (int32_t)best;
}

/* Takes the token at the next position; its logits are there afterwards. */
static void feed(Sampler *s, int32_t token) {
    if (s->input) memcpy(s->rank->arena + s->input->decode_offset, &token, sizeof token);
    prt_scalar_write(s->rank, "position", (double)s->position);
    prt_entry_run(s->rank, s->role->decode, "decode", 0, 0);
    s->position++;
}

/* When the caches are full, the last half of the text is read again from position 0. */
static void feed_last(Sampler *s) {
    if (s->position == s->program->decode_length) {
        int64_t keep = s->program->decode_length / 2;
        s->position = 0;
        for (int64_t i = s->n - keep; i < s->n - 1; i++) feed(s, s->history[i]);
    }
    feed(s, s->history[s->n - 1]);
}

static void print_token(const Sampler *s, int32_t token, bool first) {
    if (s->rank->number) return;
    if (s->bytes)
        putchar(token);
    else
        printf(first ? "%d" : " %d", token);
    fflush(stdout);
}

static void read_prompt(Sampler *s, const char *prompt) {
    size_t room = strlen(prompt) + 1 + (size_t)s->run->options->tokens;
    s->history = prt_need(s->rank, calloc(room, sizeof *s->history));
    if (s->bytes) {
        for (const unsigned char *c = (const unsigned char *)prompt; *c; c++) s->history[s->n++] = *c;
    } else {
        for (char *end; *prompt; prompt = end) {
            long long id = strtoll(prompt, &end, 10);
            if (end == prompt)
                prt_fail(s->rank, "the prompt of this model is a list of token ids, as \"15496 11 995\"; `%s` is none",
                         prompt);
            s->history[s->n++] = id < 0 || id >= s->limit ? (int32_t)s->limit : (int32_t)id;
            while (*end == ' ' || *end == ',') end++;
        }
    }
    for (int64_t i = 0; i < s->n; i++) {
        if (s->history[i] >= s->limit)
            prt_fail(s->rank, "the prompt holds an id that is not below %lld", (long long)s->limit);
    }
    if (!s->n) prt_fail(s->rank, "the prompt is empty");
}

static const PrtInput *tokens_of(const PrtInput *inputs, int n) {
    for (int i = 0; i < n; i++)
        if (inputs[i].kind == PRT_INPUT_TOKENS) return &inputs[i];
    return NULL;
}

/* The first rank of the last stage. */
static bool has_logits(const PrtProgram *program, const PrtRank *rank) {
    for (int a = 0; a < rank->n_axes; a++) {
        bool stages = program->n_roles > 1 && a == program->role_axis;
        if (rank->coords[a] != (stages ? program->n_roles - 1 : 0)) return false;
    }
    return true;
}

static void open_sampler(Sampler *s, PrtRun *run, PrtRank *rank) {
    const PrtProgram *program = run->program;
    *s = (Sampler){.run = run, .rank = rank, .program = program, .role = &program->roles[rank->role]};
    s->logits = prt_role_result(&program->roles[program->n_roles - 1], "logits");
    s->input = tokens_of(s->role->inputs, s->role->n_inputs);
    s->chooses = has_logits(program, rank);
    const PrtInput *tokens = tokens_of(program->inputs, program->n_inputs);
    if (s->role->decode < 0 || !s->logits || !tokens || s->logits->dtype != PRT_F32) {
        prt_fail(rank, "this program cannot sample: it is no language model");
    }
    s->limit = tokens->limit > 0 && tokens->limit < s->logits->elements ? tokens->limit : s->logits->elements;
    s->weights = prt_need(rank, calloc((size_t)s->limit, sizeof *s->weights));
    s->bytes = s->program->data[0].kind == PRT_DATA_TEXT;
    int64_t seed = run->options->sample_seed >= 0 ? run->options->sample_seed : s->program->seed;
    s->random = (uint64_t)seed * UINT64_C(0xd1342543de82ef95) + 1;
    read_prompt(s, run->options->prompt);
}

void prt_sample(PrtRun *run, PrtRank *rank) {
    Sampler s;
    open_sampler(&s, run, rank);
    prt_rank_start(run, rank);
    int64_t first = s.n > s.program->decode_length ? s.n - s.program->decode_length : 0; /* of a long prompt the end */
    if (first && !rank->number) {
        fprintf(stderr, "note: the prompt has %lld tokens; the model sees the last %lld\n", (long long)s.n,
                (long long)(s.n - first));
    }
    for (int64_t i = 0; i < s.n; i++) {
        if (i >= first) feed(&s, s.history[i]);
        print_token(&s, s.history[i], i == 0);
    }
    for (int64_t i = 0; i < run->options->tokens; i++) {
        bool stop = prt_vote(rank, atomic_load(&rank->job->stop) != 0, "sampling") != 0;
        if (stop) break;
        if (i > 0) feed_last(&s);
        s.history[s.n++] = (int32_t)prt_vote(rank, s.chooses ? choose(&s) : -1, "sampling");
        print_token(&s, s.history[s.n - 1], false);
    }
    if (!rank->number) putchar('\n');
    prt_rank_close(rank);
    free(s.history);
    free(s.weights);
    prt_leave(rank, PRT_EXIT_DONE);
}
