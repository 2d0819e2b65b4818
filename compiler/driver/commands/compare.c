/* plc compare FILE --plans A,B [--steps N]: trains under both plans from the same start and sets the runs side by side:
 * loss and gradient norm of every step, and memory of a rank. Plans of one model differ by rounding alone; what is
 * beyond is a fault, ours or the machine's, and ends with 1. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/pipeline.h"

extern char **environ;

enum { MAX_STEPS = 100000 };
static const double expected_rounding = 1e-5; /* relative, in fp32; sums are taken in another order */

typedef struct Run {
    const char *plan, *folder;
    double *loss, *norm, peak;
    int n;
} Run;

static bool run_program(Session *s, const char *const *argv, const char *plan) {
    pid_t child;
    int error = posix_spawn(&child, argv[0], NULL, NULL, (char *const *)argv, environ), status = 0;
    if (!error)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (!error && WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    diag_error(s, "P0806", (Span){0}, "the run of plan `%s` failed%s%s", plan, error ? ": " : "",
               error ? strerror(error) : "");
    return false;
}

static bool read_metrics(Session *s, Run *run) {
    FILE *file = fopen(arena_printf(s->arena, "%s/%s.jsonl", run->folder, run->plan), "r");
    if (!file) return false;
    char *line = NULL;
    size_t room = 0;
    run->loss = NEW_N(s->arena, double, MAX_STEPS);
    run->norm = NEW_N(s->arena, double, MAX_STEPS);
    while (getline(&line, &room, file) >= 0 && run->n < MAX_STEPS) {
        cJSON *object = cJSON_Parse(line);
        const cJSON *loss = cJSON_GetObjectItem(object, "loss"), *norm = cJSON_GetObjectItem(object, "grad_norm");
        const cJSON *peak = cJSON_GetObjectItem(object, "peak_bytes");
        if (cJSON_IsNumber(loss) && cJSON_IsNumber(norm)) {
            run->loss[run->n] = loss->valuedouble;
            run->norm[run->n++] = norm->valuedouble;
            if (cJSON_IsNumber(peak)) run->peak = fmax(run->peak, peak->valuedouble);
        }
        cJSON_Delete(object);
    }
    free(line);
    fclose(file);
    return run->n > 0;
}

static bool train(Session *s, const Options *options, Run *run) {
    Options build = *options;
    build.plan = run->plan;
    build.output = arena_printf(s->arena, "%s/%s", run->folder, run->plan);
    if (pipeline_build(s, &build) || diag_count(s, SEV_ERROR)) return false;
    const char *argv[] = {build.output,
                          "--steps",
                          arena_printf(s->arena, "%d", options->steps ? options->steps : 20),
                          "--metrics",
                          arena_printf(s->arena, "%s.jsonl", build.output),
                          "--log-every",
                          "1000000",
                          "--set",
                          "eval.every=0",
                          "--set",
                          arena_printf(s->arena, "save.path=%s.save", build.output),
                          NULL};
    fprintf(stderr, "== %s\n", run->plan);
    return run_program(s, argv, run->plan) && read_metrics(s, run);
}

static double worst(const double *x, const double *y, int n, int *step) {
    double most = 0;
    for (int i = 0; i < n; i++) {
        double difference = fabs(x[i] - y[i]) / fmax(fabs(x[i]), 1e-30);
        if (!(difference <= most)) most = difference, *step = i + 1;
    }
    return most;
}

static int report(Session *s, const Run *a, const Run *b) {
    int n = a->n < b->n ? a->n : b->n, at_loss = 1, at_norm = 1;
    double loss = worst(a->loss, b->loss, n, &at_loss), norm = worst(a->norm, b->norm, n, &at_norm);
    printf("%d steps          %-16s %-16s\n", n, a->plan, b->plan);
    printf("last loss         %-16.9g %-16.9g\n", a->loss[n - 1], b->loss[n - 1]);
    printf("last grad_norm    %-16.9g %-16.9g\n", a->norm[n - 1], b->norm[n - 1]);
    printf("memory of a rank  %-16s %-16s\n", format_bytes(s->arena, a->peak), format_bytes(s->arena, b->peak));
    printf("largest relative difference: loss %.2g at step %d, grad_norm %.2g at step %d\n", loss, at_loss, norm,
           at_norm);
    bool same = loss <= expected_rounding;
    if (same)
        printf("the plans agree: rounding explains up to %.0e of the loss\n", expected_rounding);
    else
        printf("the plans differ by more than rounding, %.0e of the loss\n", expected_rounding);
    return same ? EXIT_DONE : EXIT_ERRORS;
}

static void remove_folder(Session *s, const char *folder) {
    const char *const argv[] = {"/bin/rm", "-rf", folder, NULL};
    pid_t child;
    int status;
    if (!posix_spawn(&child, argv[0], NULL, NULL, (char *const *)argv, environ)) waitpid(child, &status, 0);
    (void)s;
}

int command_compare(Session *s, const Options *options) {
    const char *comma = options->plans ? strchr(options->plans, ',') : NULL;
    if (!comma || strchr(comma + 1, ',')) {
        fputs("plc: compare needs two plans\nhelp: `plc compare FILE --plans single,replicas`\n", stderr);
        return EXIT_USAGE;
    }
    char folder[] = "/tmp/plc-compare.XXXXXX";
    if (!mkdtemp(folder)) {
        diag_error(s, "P0821", (Span){0}, "no folder can be made in /tmp: %s", strerror(errno));
        return EXIT_ENVIRONMENT;
    }
    Run a = {.plan = arena_strndup(s->arena, options->plans, (size_t)(comma - options->plans)), .folder = folder};
    Run b = {.plan = comma + 1, .folder = folder};
    bool good = train(s, options, &a) && train(s, options, &b);
    int code = good ? report(s, &a, &b) : EXIT_ERRORS;
    remove_folder(s, folder);
    return code;
}
