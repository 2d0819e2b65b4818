/* A compiled program written by hand, for tests of the runtime: a bigram model of bytes trained by SGD with momentum,
 * and a weight `cut` that the ranks divide. FAKE_RANKS (1, 2, 4) ranks on one mesh axis `data`.
 *
 * Environment variables make it fail, at a step given as RANK:STEP: FAKE_KILL (SIGKILL), FAKE_EXIT, FAKE_HANG, FAKE_NAN
 * (a gradient), FAKE_MISMATCH (another collective than the others). FAKE_SLEEP: milliseconds that every F takes. */
#include "plan_rt.h"

#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_RANKS
#define FAKE_RANKS 1
#endif
#ifndef FAKE_KIND
#define FAKE_KIND "text" /* or "tokens" */
#endif
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

enum {
    RANKS = FAKE_RANKS,
    SEQ = 16,
    BATCH = 16,
    MICROS = 2,
    MICRO_BATCH = 8,
    ROWS = MICRO_BATCH / RANKS,
    VOCAB = 256,
    CUT_ROWS = 3,
    CUT_COLUMNS = 8,
    CUT_PART = CUT_COLUMNS / RANKS,
};

/* The arena. Offsets are written out in the JSON below; a check in `init` compares them. */
typedef struct Arena {
    int32_t micro, step;
    uint32_t seed;
    float lr;
    int32_t position, coord;
    char pad0[40];
    float loss, grad_norm, eval_loss, eval_count; /* 64 */
    float loss_sum;                               /* 80 */
    char pad1[44];
    int32_t tokens[512], labels[512];                                   /* 128, 2176 */
    float logits[VOCAB];                                                /* 4224 */
    float cut[CUT_ROWS * CUT_COLUMNS], cut_all[CUT_ROWS * CUT_COLUMNS]; /* 5248, 5344 */
    char pad2[192];                                                     /* to 5632 */
    float table[VOCAB * VOCAB];                                         /* 5632 */
    float gradient[VOCAB * VOCAB];                                      /* 267776 */
    float momentum[VOCAB * VOCAB];                                      /* 529920 */
} Arena;                                                                /* 792064 */

/* clang-format off */
#if FAKE_RANKS == 1
#define SHAPE "[8, 16]"
#elif FAKE_RANKS == 2
#define SHAPE "[4, 16]"
#else
#define SHAPE "[2, 16]"
#endif
#ifdef FAKE_BIG /* 64 MiB more, which every update reduces over the ranks */
#define ARENA_BYTES "67900928"
#else
#define ARENA_BYTES "792064"
#endif
#ifdef FAKE_FROM
#define FROM "\"from\": \"" FAKE_FROM "\", "
#else
#define FROM ""
#endif

const char plan_program[] =
    "{\"abi\": 1, \"compiler\": \"0.1.0\", \"source\": \"fake.plan\", \"plan\": \"ranks" TEXT(FAKE_RANKS) "\", \"model\": \"Bigram\", "
    "\"hash\": \"fa4e" TEXT(FAKE_RANKS) "\", \"mesh\": [{\"name\": \"data\", \"size\": " TEXT(FAKE_RANKS) "}], \"threads\": 1, \"seed\": 7, "
    "\"steps\": 40, \"batch\": 16, \"micro_batch\": 8, \"micros\": 2, \"flops_per_token\": 1536, \"parameters\": 65560, \"data_axes\": [0], " FROM
    "\"data\": [{\"kind\": \"" FAKE_KIND "\", \"paths\": [\"corpus*.txt\"], \"span\": \"fake.plan:3\"}], \"validation\": [], \"split\": 0.1, "
    "\"vocab\": 256, \"seq\": 16, \"tokens_per_step\": 256, "
    "\"inputs\": ["
    "{\"name\": \"tokens\", \"role\": \"tokens\", \"dtype\": \"i32\", \"shape\": " SHAPE ", \"offset\": 128, \"limit\": 256}, "
    "{\"name\": \"labels\", \"role\": \"next\", \"of\": \"tokens\", \"dtype\": \"i32\", \"shape\": " SHAPE ", \"offset\": 2176, \"limit\": 256}], "
    "\"scalars\": ["
    "{\"name\": \"micro\", \"dtype\": \"i32\", \"offset\": 0}, {\"name\": \"step\", \"dtype\": \"i32\", \"offset\": 4}, "
    "{\"name\": \"seed\", \"dtype\": \"u32\", \"offset\": 8}, {\"name\": \"lr\", \"dtype\": \"f32\", \"offset\": 12}, "
    "{\"name\": \"position\", \"dtype\": \"i32\", \"offset\": 16}, {\"name\": \"coord.data\", \"dtype\": \"i32\", \"offset\": 20}], "
    "\"results\": ["
    "{\"name\": \"loss\", \"dtype\": \"f32\", \"offset\": 64}, {\"name\": \"grad_norm\", \"dtype\": \"f32\", \"offset\": 68}, "
    "{\"name\": \"eval_loss\", \"dtype\": \"f32\", \"offset\": 72}, {\"name\": \"eval_count\", \"dtype\": \"f32\", \"offset\": 76}, "
    "{\"name\": \"logits\", \"dtype\": \"f32\", \"shape\": [256], \"offset\": 4224}], "
    "\"optimizer\": {\"kind\": \"sgd\", \"lr\": {\"kind\": \"cosine\", \"peak\": 4, \"warmup\": 4, \"end\": 0.4, \"steps\": 40}}, "
    "\"eval\": {\"every\": 10, \"batches\": 2}, \"save\": {\"every\": 10, \"path\": \"checkpoints\", \"keep\": 2}, "
    "\"roles\": [{\"arena_bytes\": " ARENA_BYTES ", \"scratch_bytes\": 0, \"memory\": {\"weight\": 262240, \"gradient\": 262144}, "
    "\"tensors\": ["
    "{\"name\": \"table\", \"class\": \"weight\", \"dtype\": \"f32\", \"shape\": [256, 256], \"axes\": [null], \"offset\": 5632, \"bytes\": 262144}, "
    "{\"name\": \"cut\", \"class\": \"weight\", \"dtype\": \"f32\", \"shape\": [3, 8], \"axes\": [1], \"offset\": 5248, \"bytes\": 96}, "
    "{\"name\": \"grad.table\", \"class\": \"gradient\", \"dtype\": \"f32\", \"shape\": [256, 256], \"axes\": [null], \"offset\": 267776, \"bytes\": 262144}, "
    "{\"name\": \"momentum.table\", \"class\": \"moment\", \"dtype\": \"f32\", \"shape\": [256, 256], \"axes\": [null], \"offset\": 529920, \"bytes\": 262144}], "
    "\"entries\": {\"init\": 0, \"begin\": 1, \"F\": 2, \"B\": 3, \"OPT\": 4, \"eval\": 5, \"decode\": 6}, "
    "\"actions\": ["
    "{\"kind\": \"F\", \"chunk\": 0, \"micro\": 0}, {\"kind\": \"F\", \"chunk\": 0, \"micro\": 1}, "
    "{\"kind\": \"B\", \"chunk\": 0, \"micro\": 0}, {\"kind\": \"B\", \"chunk\": 0, \"micro\": 1}, {\"kind\": \"OPT\"}]}]}";
/* clang-format on */

static const PrtCollective reduce_gradient = {
    PRT_ALL_REDUCE, 0, 0, 0, VOCAB *VOCAB, 1, VOCAB *VOCAB, "fake.plan:9 all_reduce of grad.table over data", 0};
#ifdef FAKE_BIG
static const PrtCollective reduce_big = {PRT_ALL_REDUCE, 0, 0, 0, 1 << 24, 1, 1 << 24, "fake.plan:10 all_reduce of big", 0};
#endif
static const PrtCollective reduce_loss = {PRT_ALL_REDUCE, 0, 0, 0, 1, 1, 1, "fake.plan:8 all_reduce of loss over data", 0};
static const PrtCollective reduce_eval = {PRT_ALL_REDUCE, 0, 0, 0, 2, 1, 2, "fake.plan:8 all_reduce of eval over data", 0};
static const PrtCollective gather_cut = {
    PRT_ALL_GATHER, 0, 0, 0, CUT_ROWS *CUT_COLUMNS, CUT_ROWS, CUT_PART, "fake.plan:5 all_gather of cut over data", 0};

static bool now(const char *name, const Arena *a) {
    int rank, step;
    const char *text = getenv(name);
    return text && sscanf(text, "%d:%d", &rank, &step) == 2 && rank == a->coord && step == a->step;
}

static void fake_init(PrtRank *rank, char *arena, int64_t micro) {
    (void)rank, (void)micro;
    Arena *a = (Arena *)(void *)arena;
    if (offsetof(Arena, table) != 5632 || offsetof(Arena, momentum) != 529920 || sizeof(Arena) != 792064) abort();
    for (int i = 0; i < VOCAB * VOCAB; i++) {
        uint32_t x = ((uint32_t)i + 1) * 2654435761u ^ a->seed * 40503u;
        x ^= x >> 15;
        x *= 2246822519u;
        a->table[i] = ((float)(x >> 8) / 16777216.0f - 0.5f) * 0.1f;
    }
    for (int r = 0; r < CUT_ROWS; r++) {
        for (int c = 0; c < CUT_PART; c++) a->cut[r * CUT_PART + c] = (float)(100 * r + a->coord * CUT_PART + c);
    }
}

static void fake_begin(PrtRank *rank, char *arena, int64_t micro) {
    (void)rank, (void)micro;
    Arena *a = (Arena *)(void *)arena;
    memset(a->gradient, 0, sizeof a->gradient);
    a->loss_sum = 0;
}

/* Loss of one target; the probabilities to p. */
static double position_loss(const Arena *a, int i, double *p) {
    const float *row = &a->table[a->tokens[i] * VOCAB];
    double top = -INFINITY, sum = 0;
    for (int k = 0; k < VOCAB; k++) top = row[k] > top ? (double)row[k] : top;
    for (int k = 0; k < VOCAB; k++) sum += p[k] = exp((double)row[k] - top);
    for (int k = 0; k < VOCAB; k++) p[k] /= sum;
    return -log(p[a->labels[i]]);
}

static void fake_forward(PrtRank *rank, char *arena, int64_t micro) {
    (void)rank, (void)micro;
    Arena *a = (Arena *)(void *)arena;
    double p[VOCAB], loss = 0;
    const char *sleep_ms = getenv("FAKE_SLEEP");
    if (sleep_ms) usleep((useconds_t)atoi(sleep_ms) * 1000);
    if (now("FAKE_KILL", a)) raise(SIGKILL);
    if (now("FAKE_EXIT", a)) _exit(9);
    if (now("FAKE_HANG", a)) pause();
    for (int i = 0; i < ROWS * SEQ; i++) loss += position_loss(a, i, p);
    a->loss_sum += (float)loss;
}

static void fake_backward(PrtRank *rank, char *arena, int64_t micro) {
    (void)rank, (void)micro;
    Arena *a = (Arena *)(void *)arena;
    double p[VOCAB];
    for (int i = 0; i < ROWS * SEQ; i++) {
        position_loss(a, i, p);
        float *row = &a->gradient[a->tokens[i] * VOCAB];
        p[a->labels[i]] -= 1;
        for (int k = 0; k < VOCAB; k++) row[k] += (float)(p[k] / (BATCH * SEQ));
    }
    if (now("FAKE_NAN", a)) a->gradient[5 * VOCAB + 3] = NAN;
}

static void fake_update(PrtRank *rank, char *arena, int64_t micro) {
    (void)micro;
    Arena *a = (Arena *)(void *)arena;
    if (now("FAKE_MISMATCH", a)) prt_collective(rank, &gather_cut, a->cut, a->cut_all);
    prt_collective(rank, &reduce_gradient, a->gradient, a->gradient);
#ifdef FAKE_BIG
    float *big = (float *)(void *)(arena + sizeof(Arena));
    for (int64_t i = 0; i < reduce_big.elements; i++) big[i] = (float)(i % 1000 * a->step);
    prt_collective(rank, &reduce_big, big, big);
    for (int64_t i = 0; i < reduce_big.elements; i++) {
        if (big[i] != (float)(RANKS * (i % 1000) * a->step)) abort();
    }
#endif
    a->loss = a->loss_sum / (BATCH * SEQ);
    prt_collective(rank, &reduce_loss, &a->loss, &a->loss);
    double norm = 0;
    for (int i = 0; i < VOCAB * VOCAB; i++) norm += (double)a->gradient[i] * (double)a->gradient[i];
    a->grad_norm = (float)sqrt(norm);
    for (int i = 0; i < VOCAB * VOCAB; i++) {
        a->momentum[i] = 0.9f * a->momentum[i] + a->gradient[i];
        a->table[i] -= a->lr * a->momentum[i];
    }
    prt_collective(rank, &gather_cut, a->cut, a->cut_all);
    for (int r = 0; r < CUT_ROWS; r++) { /* each part learns from the whole: as sums of small whole numbers, exact */
        for (int c = 0; c < CUT_PART; c++) {
            int column = a->coord * CUT_PART + c;
            a->cut[r * CUT_PART + c] += a->cut_all[r * CUT_COLUMNS + (column + 1) % CUT_COLUMNS] > 50 ? 1 : 2;
        }
    }
}

static void fake_eval(PrtRank *rank, char *arena, int64_t micro) {
    (void)micro;
    Arena *a = (Arena *)(void *)arena;
    double p[VOCAB], loss = 0;
    for (int i = 0; i < ROWS * SEQ; i++) loss += position_loss(a, i, p);
    float sums[2] = {(float)loss, ROWS * SEQ};
    memcpy(a->logits, sums, sizeof sums);
    prt_collective(rank, &reduce_eval, a->logits, a->logits);
    a->eval_loss += a->logits[0];
    a->eval_count += a->logits[1];
}

static void fake_decode(PrtRank *rank, char *arena, int64_t micro) {
    (void)rank, (void)micro;
    Arena *a = (Arena *)(void *)arena;
    memcpy(a->logits, &a->table[a->tokens[0] * VOCAB], sizeof a->logits);
}

extern PrtAction *const plan_entries[];
PrtAction *const plan_entries[] = {fake_init,   fake_begin, fake_forward, fake_backward,
                                   fake_update, fake_eval,  fake_decode};

static float fake_probe(int64_t steps) {
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (int64_t i = 0; i < steps; i++) {
        for (int k = 0; k < 8; k++) x[k] = x[k] * 0.999f + 0.5f;
    }
    return x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7];
}

extern const PrtInner plan_inner;
const PrtInner plan_inner = {.tile_m = 1,
                             .tile_n = 1,
                             .vector = 1,
                             .panel_m = 1,
                             .block_k = 1,
                             .block_m = 1,
                             .block_n = 1,
                             .probe_flops = 16,
                             .probe = fake_probe};
