/* The part that fuzzing programs share: random numbers, batches of texts in child processes, and the report of what failed.
 *
 * A program that includes this defines make_text (text `number` of a seed, the same each time) and check_text (which
 * aborts when a promise is broken, and counts), and calls fuzz_main. */
#ifndef PLAN_FUZZ_RUNNER_H
#define PLAN_FUZZ_RUNNER_H

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "front.h"

enum { SECONDS_EACH = 20, BATCH = 200, LARGEST = 1 << 17 };

/* Counts in memory that parent and children share. */
typedef struct Shared {
    uint64_t at;                 /* the text in work */
    uint64_t checked, accepted;  /* without an error */
    uint64_t reread, errors;     /* printed and read again; diagnostics */
} Shared;

/* ---- random numbers: one generator a text, so that each can be made again alone ------------------------------------------ */

typedef struct Random {
    uint64_t state;
} Random;

static uint64_t next(Random *r) {
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static int below(Random *r, int n) { return n > 0 ? (int)(next(r) % (uint64_t)n) : 0; }
static bool chance(Random *r, int percent) { return below(r, 100) < percent; }
static const char *pick(Random *r, const char *const *words, int n) { return words[below(r, n)]; }
#define PICK(r, words) pick(r, words, (int)(sizeof(words) / sizeof *(words)))

/* ---- what a program defines ---------------------------------------------------------------------------------------------- */

typedef struct Corpus Corpus;
static void corpus_read(Corpus *corpus, const char *root);
static void make_text(Random *r, const Corpus *corpus, FILE *out);
static void check_text(Shared *shared, const char *root, const char *text, size_t size);

static inline _Noreturn void broken(const char *what) {
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

/* Every span lies in its file; what is printed is UTF-8 without control characters. */
static inline void check_diagnostics(Session *s) {
    for (int i = 0; i < s->diags.n; i++) {
        const Span span = s->diags.at[i]->span;
        const SourceFile *file = session_file(s, span);
        if (span.file && (!file || span.lo < 0 || span.hi < span.lo || span.hi > file->size)) broken("a span outside of its file");
    }
    char *shown = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&shown, &size);
    diag_flush(s, out, false);
    fclose(out);
    for (size_t i = 0; i < size;) {
        uint32_t code;
        int bytes = utf8_decode(shown + i, shown + size, &code);
        if (code == 0xfffd && bytes == 1) broken("a message that is not UTF-8");
        if (code < 0x20 && code != '\n' && code != '\t') broken("a control character in a message");
        i += (size_t)bytes;
    }
    free(shown);
}

/* ---- running --------------------------------------------------------------------------------------------------------------- */

static inline char *text_of(const Corpus *corpus, uint64_t seed, uint64_t number, size_t *size) {
    Random r = {seed * 0x9e3779b97f4a7c15u + number * 0xd1342543de82ef95u};
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    make_text(&r, corpus, out);
    fclose(out);
    if (*size > LARGEST) *size = LARGEST;
    return text;
}

static inline void check_within(Shared *shared, const char *root, const char *text, size_t size) {
    alarm(SECONDS_EACH);
    check_text(shared, root, text, size);
    alarm(0);
    shared->checked++;
}

static inline int report(const Corpus *corpus, const char *work, uint64_t seed, uint64_t number, int status) {
    char path[1024];
    size_t size;
    char *text = text_of(corpus, seed, number, &size);
    snprintf(path, sizeof path, "%s-%llu-%llu.plan", work, (unsigned long long)seed, (unsigned long long)number);
    FILE *out = fopen(path, "wb");
    if (out) fwrite(text, 1, size, out), fclose(out);
    const char *what = !WIFSIGNALED(status) ? "exit" : WTERMSIG(status) == SIGALRM ? "hang" : "signal";
    fprintf(stderr, "%s %d with text %llu of seed %llu: %s\n", what, WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), (unsigned long long)number,
            (unsigned long long)seed, path);
    free(text);
    return 1;
}

/* One child for a batch of texts; returns the number of failures. */
static inline int run_batch(const Corpus *corpus, Shared *shared, const char *root, const char *work, uint64_t seed, uint64_t first) {
    int status, failed = 0;
    for (uint64_t at = first; at < first + BATCH; at = shared->at + 1) {
        pid_t child = fork();
        if (child == 0) {
            for (shared->at = at; shared->at < first + BATCH; shared->at++) {
                size_t size;
                char *text = text_of(corpus, seed, shared->at, &size);
                check_within(shared, root, text, size);
                free(text);
            }
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) < 0) return perror("fork"), failed + 1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
        failed += report(corpus, work, seed, shared->at, status);
    }
    return failed;
}

/* NAME SOURCE_ROOT WORK_FOLDER [--seconds S] [--seed N] [--only N]; --only prints text N of the seed and checks it without a child. */
static inline int fuzz_main(int argc, char **argv, Corpus *corpus) {
    double seconds = 30;
    uint64_t seed = 1, only = 0;
    bool alone = false;
    for (int i = 3; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[i + 1]);
        if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--only")) alone = true, only = strtoull(argv[i + 1], NULL, 10);
    }
    if (argc < 3) return fputs("usage: NAME SOURCE_ROOT WORK_FOLDER [--seconds S] [--seed N] [--only N]\n", stderr), 2;
    Shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    corpus_read(corpus, argv[1]);
    if (alone) {
        size_t size;
        char *text = text_of(corpus, seed, only, &size);
        fwrite(text, 1, size, stdout);
        fflush(stdout);
        check_within(shared, argv[1], text, size);
        free(text);
        return 0;
    }
    int failed = 0;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (uint64_t first = 0; failed < 20; first += BATCH) {
        failed += run_batch(corpus, shared, argv[1], argv[2], seed, first);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((double)(now.tv_sec - start.tv_sec) > seconds) break;
    }
    printf("seed %llu: %llu texts, %llu without an error, %llu read again, %.1f errors each, %d failed\n", (unsigned long long)seed,
           (unsigned long long)shared->checked, (unsigned long long)shared->accepted, (unsigned long long)shared->reread,
           shared->checked ? (double)shared->errors / (double)shared->checked : 0, failed);
    /* texts that never get past the parser would prove little */
    if (shared->checked && shared->reread * 20 < shared->checked) return fputs("too few texts are read\n", stderr), 1;
    return failed ? 1 : 0;
}

#endif
