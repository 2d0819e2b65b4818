/* The program's whole life: options, description, data, checkpoint, memory; then the ranks. What can be wrong is found
 * here, before anything is forked, and said once. */
#include "core/run.h"

#include "core/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static int fail(const char *why) {
    fflush(stdout);
    fprintf(stderr, "error: %s\n", why);
    return PRT_EXIT_FAILED;
}

static int usage(const char *why) {
    fflush(stdout);
    fprintf(stderr, "error: %s\n", why);
    return PRT_EXIT_USAGE;
}

static uint64_t new_run(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000007) ^ (uint64_t)now.tv_nsec << 20 ^ (uint64_t)getpid();
}

/* ---- what the run starts from ---- */

static bool start_from(PrtRun *run, const char *from, char *why, size_t size) {
    const PrtProgram *p = run->program;
    if (!prt_checkpoint_find(from, run->from, &run->state, why, size)) return false;
    const PrtState *s = &run->state;
    run->loads = true;
    printf("from `%s`: step %lld, %lld samples of the data\n", run->from, (long long)s->step, (long long)s->samples);
    if (strcmp(s->hash, p->hash)) {
        printf("note: it was saved by another program: plan `%s` of %s, not plan `%s` of %s\n", s->plan, s->source,
               p->plan, p->source);
    }
    return true;
}

static bool resume(PrtRun *run, char *why, size_t size) {
    const PrtProgram *p = run->program;
    const char *from = run->options->resume_from ? run->options->resume_from : p->save_path;
    if (!from) {
        snprintf(why, size, "nothing to resume from: the program has no `save`; name a checkpoint with `--resume DIR`");
        return false;
    }
    if (!start_from(run, from, why, size)) {
        size_t n = strlen(why);
        snprintf(why + n, size - n, "; without `--resume` the run starts at step 1");
        return false;
    }
    run->loads_moments = true;
    if (run->state.seed != p->seed) {
        snprintf(why, size,
                 "`%.1500s` was made with seed %lld, the program has %lld: the order of the data would change; use "
                 "`--set seed=%lld`",
                 run->from, (long long)run->state.seed, (long long)p->seed, (long long)run->state.seed);
        return false;
    }
    if (run->state.batch != p->batch) {
        printf("note: the batch changes from %lld to %lld sequences; the data goes on at the same sample\n",
               (long long)run->state.batch, (long long)p->batch);
    }
    return true;
}

static bool weights_from(PrtRun *run, const char *from, char *why, size_t size) {
    struct stat about;
    PrtState start = run->state;
    if (!stat(from, &about) && S_ISREG(about.st_mode)) {
        snprintf(run->from, sizeof run->from, "%s", from);
        run->loads = true;
    } else if (!start_from(run, from, why, size)) {
        return false;
    }
    run->state = start;
    return true;
}

static bool choose_start(PrtRun *run, char *why, size_t size) {
    const PrtProgram *p = run->program;
    const PrtOptions *o = run->options;
    run->state = (PrtState){.run = new_run(), .seed = p->seed, .batch = p->batch};
    if (o->resume && !resume(run, why, size)) return false;
    if (!o->resume && p->from && !weights_from(run, p->from, why, size)) return false;
    PrtState newest;
    int n = p->save_path && !o->resume ? prt_checkpoint_count(p->save_path, &newest) : 0;
    if (n > 0) {
        printf("note: `%s` holds %d checkpoints of an earlier run, the newest of step %lld; this run starts at step 1 "
               "(`--resume` continues that one)\n",
               p->save_path, n, (long long)newest.step);
    }
    run->first_step = run->state.step + 1;
    run->last_step = o->stop_at >= 0 ? o->stop_at : p->steps;
    return true;
}

/* ---- reports and checks ---- */

static void say_program(const PrtRun *run) {
    const PrtProgram *p = run->program;
    char parameters[32], tokens[32], mesh[256] = "";
    size_t at = 0;
    for (int a = 0; a < p->n_axes && at < sizeof mesh; a++) {
        at += (size_t)snprintf(mesh + at, sizeof mesh - at, "%s%s = %d", a ? ", " : " (", p->mesh[a].name,
                               p->mesh[a].size);
    }
    printf("%s, plan `%s` of %s: %s parameters, %d %s%s%s of %d %s\n", p->model, p->plan, p->source,
           prt_commas(p->parameters, parameters), p->n_ranks, p->n_ranks == 1 ? "rank" : "ranks", mesh,
           p->n_axes ? ")" : "", run->threads, run->threads == 1 ? "thread" : "threads");
    if (prt_program_has_tokens(p)) {
        printf("a step: %s tokens = %lld sequences x %lld micro-batches x %lld tokens; steps %lld to %lld\n",
               prt_commas(p->tokens_per_step, tokens), (long long)p->micro_batch, (long long)p->micros,
               (long long)p->seq, (long long)run->first_step, (long long)run->last_step);
    } else {
        printf("a step: %s samples = %lld x %lld micro-batches; steps %lld to %lld\n", prt_commas(p->batch, tokens),
               (long long)p->micro_batch, (long long)p->micros, (long long)run->first_step, (long long)run->last_step);
    }
}

static bool check_memory(const PrtRun *run, char *why, size_t size) {
    const PrtRole *role = &run->program->roles[0];
    char need[32], have[32], arena[32], scratch[32];
    int64_t total, available, bytes = prt_run_bytes(run);
    prt_machine_memory(&total, &available);
    prt_bytes((double)bytes, need);
    printf("memory: %s = %d x (%s arena + %d x %s scratch)\n", need, run->program->n_ranks,
           prt_bytes((double)role->arena_bytes, arena), run->threads, prt_bytes((double)role->scratch_bytes, scratch));
    if (total > 0 && bytes > total) {
        snprintf(why, size, "the program needs %s of memory, this machine has %s", need,
                 prt_bytes((double)total, have));
        return false;
    }
    if (available > 0 && bytes > available) printf("note: only %s are free now\n", prt_bytes((double)available, have));
    return true;
}

/* Places that the run will write to. */
static bool check_places(const PrtRun *run, int *lock, char *why, size_t size) {
    const PrtProgram *p = run->program;
    struct statvfs disk;
    char need[32], have[32];
    if (p->save_path) {
        if (!prt_checkpoint_claim(p->save_path, lock, why, size)) return false;
        int64_t bytes = prt_checkpoint_bytes(p);
        if (!statvfs(p->save_path, &disk)) {
            double available = (double)disk.f_bavail * (double)disk.f_frsize;
            if (available < (double)bytes) {
                printf("note: a checkpoint takes %s, but `%s` has %s free\n", prt_bytes((double)bytes, need),
                       p->save_path, prt_bytes(available, have));
            }
        }
    }
    const char *trace = run->options->trace;
    if (trace && mkdir(trace, 0777) && errno != EEXIST) {
        snprintf(why, size, "cannot make the folder `%s` for traces: %s", trace, strerror(errno));
        return false;
    }
    return true;
}

static void say_evaluation(const PrtRun *run) {
    const PrtProgram *p = run->program;
    int64_t asked = p->eval_batches * p->batch,
            there = prt_data_samples(run->data, PRT_VALIDATION) / p->micro_batch * p->micro_batch;
    if (p->eval_every > 0 && there < asked) {
        printf("note: evaluation asks for %lld batches, %lld samples; the validation data gives %lld\n",
               (long long)p->eval_batches, (long long)asked, (long long)there);
    }
}

/* ---- the two commands ---- */

/* How many copies of the program a launcher has started; 1 when there is none, or it started one. */
static long launched(const char **variable) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        bool torchrun = i < 3 || getenv("TORCHELASTIC_RUN_ID"); /* others set WORLD_SIZE too */
        long n = value && torchrun ? strtol(value, NULL, 10) : 1;
        *variable = variables[i];
        if (n > 1) return n;
    }
    return 1;
}

static int train(PrtRun *run) {
    PrtProgram *p = run->program;
    char why[2048];
    const char *variable;
    long copies = launched(&variable);
    if (copies > 1) {
        snprintf(
            why, sizeof why,
            "a launcher has started this program %ld times (%s): it starts the plan's %d %s itself, so each copy would "
            "train on its own; start it once, as `%s`",
            copies, variable, p->n_ranks, p->n_ranks == 1 ? "rank" : "ranks", run->options->self);
        return usage(why);
    }
    int lock = -1;
    bool evaluates = p->eval_every > 0 && p->roles[0].eval >= 0;
    if (p->eval_every > 0 && !evaluates) return fail("the program is to be evaluated, but has no entry for it");
    if (!choose_start(run, why, sizeof why)) return fail(why);
    prt_run_place(run);
    say_program(run);
    run->data = prt_data_open(p, p->seed, evaluates, why, sizeof why);
    if (!run->data) return fail(why);
    prt_data_report(run->data, stdout);
    say_evaluation(run);
    if (!check_memory(run, why, sizeof why) || !check_places(run, &lock, why, sizeof why)) return fail(why);
    if (run->first_step > run->last_step) {
        printf("step %lld of %lld is done: nothing left to train; `--steps N` goes further\n",
               (long long)run->state.step, (long long)run->last_step);
        return PRT_EXIT_DONE;
    }
    if (run->options->dry_run) {
        printf("dry run: all checks passed, nothing was trained\n");
        return PRT_EXIT_DONE;
    }
    if (!prt_run_map(run, why, sizeof why)) return fail(why);
    int busy = p->n_ranks * run->threads;
    run->peak_flops = prt_probe_flops(run->n_cpus > 0 && busy > run->n_cpus ? run->n_cpus : busy);
    int status = prt_run_launch(run, prt_train);
    if (lock >= 0) close(lock);
    return status;
}

static int sample(PrtRun *run) {
    const PrtProgram *p = run->program;
    char why[2048];
    const char *from = run->options->from ? run->options->from : p->save_path;
    if (!run->options->prompt) return usage("`sample` needs `--prompt TEXT`");
    if (!from)
        return fail("there is nothing to sample from: the program has no `save`; name a checkpoint with `--from DIR`");
    if (!prt_checkpoint_find(from, run->from, &run->state, why, sizeof why)) {
        size_t n = strlen(why);
        snprintf(why + n, sizeof why - n, "; train first, or name a checkpoint with `--from DIR`");
        return fail(why);
    }
    fprintf(stderr, "from `%s`, step %lld\n", run->from, (long long)run->state.step);
    run->loads = true;
    prt_run_place(run);
    if (!prt_run_map(run, why, sizeof why)) return fail(why);
    return prt_run_launch(run, prt_sample);
}

int prt_main(int argc, char **argv, const char *json, PrtAction *const *entries) {
    PrtOptions options;
    char why[2048];
    if (!prt_options_parse(&options, argc, argv, why, sizeof why)) return usage(why);
    if (options.help) {
        prt_options_help(options.self);
        return PRT_EXIT_DONE;
    }
    if (options.describe) {
        puts(json);
        return PRT_EXIT_DONE;
    }
    PrtProgram *program = prt_program_parse(json, entries, why, sizeof why);
    if (!program) {
        fprintf(stderr, "error: bad program description: %s\n", why);
        return PRT_EXIT_FAILED;
    }
    int status = PRT_EXIT_DONE;
    PrtRun run = {.program = program, .options = &options};
    if (options.version) {
        printf("%s: plan `%s` of %s, hash %s, compiled by plc %s (runtime interface %d)\n", options.self, program->plan,
               program->source, program->hash, program->compiler, PRT_ABI_VERSION);
    } else if (!prt_options_apply(&options, program, why, sizeof why)) {
        status = usage(why);
    } else {
        status = options.sample ? sample(&run) : train(&run);
    }
    prt_data_free(run.data);
    free(run.arenas);
    prt_program_free(program);
    fflush(stdout);
    return status;
}
