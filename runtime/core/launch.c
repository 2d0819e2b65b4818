/* The parent of the ranks: maps what they share, forks them, passes signals on, and ends the job with the first
 * failure. It waits in sigtimedwait with all its signals blocked, so it has no signal handlers and no races. */
#include "core/run.h"

#include "core/util.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE_PAGE (INT64_C(2) << 20)
#define GRACE 2.0 /* seconds that the other ranks have to leave after the first failure */

/* ---- memory and cores ---- */

static void *map_arena(int64_t bytes, bool shared) {
    int64_t room = bytes >= 2 * HUGE_PAGE ? bytes + HUGE_PAGE : bytes + 4096; /* addresses only: no memory */
    int flags = MAP_ANONYMOUS | MAP_NORESERVE | (shared ? MAP_SHARED : MAP_PRIVATE);
    char *p = mmap(NULL, (size_t)room, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (bytes < 2 * HUGE_PAGE) return p;
    char *aligned = (char *)(((uintptr_t)p + (uintptr_t)HUGE_PAGE - 1) & ~((uintptr_t)HUGE_PAGE - 1));
    madvise(aligned, (size_t)bytes, MADV_HUGEPAGE);
    return aligned;
}

bool prt_run_map(PrtRun *run, char *why, size_t size) {
    const PrtProgram *program = run->program;
    int64_t bytes = prt_job_bytes(program->n_ranks, program->n_axes);
    void *job = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run->arenas = calloc((size_t)program->n_ranks, sizeof *run->arenas);
    bool ok = job != MAP_FAILED && run->arenas;
    if (ok) {
        run->job = prt_job_init(job, program->n_ranks, program->n_axes);
        run->job->spin = run->spin;
        run->job->timeout = run->options->timeout;
    }
    if (ok && program->n_channels) {
        size_t room = (size_t)program->n_channels * (size_t)program->n_ranks * sizeof(PrtChannel);
        run->job->channels = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ok = run->job->channels != MAP_FAILED;
    }
    for (int i = 0; ok && i < program->n_ranks; i++) {
        /* A single rank shares with nobody: private memory gets huge pages everywhere. */
        run->arenas[i] = map_arena(program->roles[prt_program_role(program, i)].arena_bytes, program->n_ranks > 1);
        ok = run->arenas[i] != NULL;
    }
    if (!ok) {
        char need[32];
        snprintf(why, size, "cannot map %s for the ranks' memory: %s", prt_bytes((double)prt_run_bytes(run), need),
                 strerror(errno));
    }
    return ok;
}

int64_t prt_run_bytes(const PrtRun *run) {
    int64_t bytes = 0;
    for (int i = 0; i < run->program->n_ranks; i++) {
        const PrtRole *role = &run->program->roles[prt_program_role(run->program, i)];
        bytes += role->arena_bytes + run->threads * role->scratch_bytes;
    }
    return bytes;
}

static int64_t number_in(const char *path, const char *key) {
    FILE *file = fopen(path, "re");
    char line[256];
    long long value = 0;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        size_t n = strlen(key);
        if (!strncmp(line, key, n) && sscanf(line + n, "%lld", &value) == 1) break;
    }
    fclose(file);
    return value;
}

void prt_machine_memory(int64_t *total, int64_t *available) {
    *total = number_in("/proc/meminfo", "MemTotal:") * 1024;
    *available = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    int64_t limit = number_in("/sys/fs/cgroup/memory.max", ""); /* "max" is no number: 0 */
    if (limit > 0 && (!*total || limit < *total)) *total = limit;
    if (limit > 0 && (!*available || limit < *available)) *available = limit;
}

/* Cores by affinity, and by the container's quota. */
static int count_cpus(PrtRun *run) {
    cpu_set_t set;
    run->n_cpus = 0;
    if (!sched_getaffinity(0, sizeof set, &set)) {
        for (size_t i = 0; i < CPU_SETSIZE && run->n_cpus < 1024; i++) {
            if (CPU_ISSET(i, &set)) run->cpus[run->n_cpus++] = (int)i;
        }
    }
    int cores = run->n_cpus > 0 ? run->n_cpus : 1;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    long quota, period;
    if (file && fscanf(file, "%ld %ld", &quota, &period) == 2 && quota > 0 && period > 0) {
        int limit = (int)((quota + period - 1) / period);
        if (limit < cores) cores = limit;
    }
    if (file) fclose(file);
    return cores;
}

void prt_run_place(PrtRun *run) {
    int cores = count_cpus(run), ranks = run->program->n_ranks;
    run->threads = run->program->threads > 0 ? run->program->threads : cores / ranks > 0 ? cores / ranks : 1;
    /* Pinned only where the job has all cores: two small jobs would else share the first ones. */
    run->pinned = run->n_cpus > 1 && cores == run->n_cpus && ranks * run->threads == run->n_cpus;
    run->spin = prt_job_spin(ranks * run->threads, cores);
}

/* ---- children ---- */

static PrtJob *child_job; /* for the handler below, in a rank's process */

static void on_signal(int signal) { atomic_store(&child_job->stop, signal); }

static void become_rank(PrtRun *run, int number, pid_t parent, const sigset_t *before) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* of the thread that forked: the parent's only one */
    if (getppid() != parent) _exit(PRT_EXIT_ABORTED);
    child_job = run->job;
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGUSR1, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL); /* a reader that goes away does not end the training */
    sigaction(SIGXFSZ, &ignore, NULL); /* a file limit is an error of write */
    sigprocmask(SIG_SETMASK, before, NULL);
    atomic_store(&run->job->status[number].pid, getpid());
}

static bool fork_ranks(PrtRun *run, pid_t *pids, const sigset_t *before, void (*body)(PrtRun *, PrtRank *)) {
    pid_t parent = getpid();
    fflush(NULL);
    for (int i = 0; i < run->program->n_ranks; i++) {
        pids[i] = fork();
        if (pids[i] < 0) {
            char message[128];
            snprintf(message, sizeof message, "cannot start rank %d: %s", i, strerror(errno));
            prt_job_first(run->job, i, message);
            return false;
        }
        if (pids[i]) continue;
        become_rank(run, i, parent, before);
        PrtRank rank;
        prt_rank_open(&rank, run, i);
        body(run, &rank);
        prt_leave(&rank, PRT_EXIT_FAILED); /* body leaves by itself */
    }
    return true;
}

/* ---- supervision ---- */

typedef struct Watch {
    PrtRun *run;
    pid_t *pids; /* 0: gone */
    int alive;
    int stopped; /* ranks that left with PRT_EXIT_STOPPED */
    int signals; /* asked to stop, how often */
    int signal;
    double failed_at; /* 0: nothing failed */
} Watch;

static void rank_lost(Watch *w, int rank, int status) {
    char message[512], place[256];
    const PrtStatus *s = &w->run->job->status[rank];
    const char *doing = atomic_load(&s->doing), *where = atomic_load(&s->where);
    snprintf(place, sizeof place, "at step %lld, %s%s%s", (long long)atomic_load(&s->step), doing ? doing : "starting",
             where ? ", in " : "", where ? where : "");
    if (WIFSIGNALED(status)) {
        int signal = WTERMSIG(status);
        snprintf(message, sizeof message, "killed by signal %d (%s) %s%s", signal, strsignal(signal), place,
                 signal == SIGKILL ? "; when memory runs out the kernel does this: see `dmesg`" : "");
    } else {
        snprintf(message, sizeof message, "ended with status %d %s", WEXITSTATUS(status), place);
    }
    prt_job_first(w->run->job, rank, message);
}

static void reap(Watch *w) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        int rank = 0;
        while (rank < w->run->program->n_ranks && w->pids[rank] != pid) rank++;
        if (rank == w->run->program->n_ranks) continue;
        w->pids[rank] = 0;
        w->alive--;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (code == PRT_EXIT_STOPPED) w->stopped++;
        if (code == PRT_EXIT_DONE || code == PRT_EXIT_STOPPED) continue;
        if (code != PRT_EXIT_ABORTED) rank_lost(w, rank, status); /* no-op when the rank has left a message */
        if (w->failed_at == 0) w->failed_at = prt_now();
    }
}

static void kill_ranks(const Watch *w, int signal) {
    for (int i = 0; i < w->run->program->n_ranks; i++) {
        if (w->pids[i] > 0) kill(w->pids[i], signal);
    }
}

static const char *signal_name(int signal) {
    return signal == SIGINT ? "SIGINT" : signal == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
}

static void stop_asked(Watch *w, int signal) {
    w->signal = signal;
    if (++w->signals == 1) {
        atomic_store(&w->run->job->stop, signal);
        fprintf(stderr, "\n%s: stopping after this step; once more ends at once\n", signal_name(signal));
        return;
    }
    kill_ranks(w, SIGKILL);
}

static void watch(Watch *w, const sigset_t *signals) {
    while (w->alive > 0) {
        struct timespec wait = {.tv_nsec = 100 * 1000 * 1000};
        int signal = sigtimedwait(signals, NULL, &wait);
        reap(w);
        if (signal > 0 && signal != SIGCHLD) stop_asked(w, signal);
        if (w->failed_at == 0 && atomic_load(&w->run->job->first)) w->failed_at = prt_now();
        if (w->failed_at > 0 && prt_now() - w->failed_at > GRACE) kill_ranks(w, SIGKILL);
    }
}

static int verdict(const Watch *w) {
    const PrtJob *job = w->run->job;
    int first = atomic_load(&job->first);
    if (w->signals > 1) {
        fprintf(stderr, "%s twice: ended at once, nothing saved since the last checkpoint\n", signal_name(w->signal));
        return 128 + w->signal;
    }
    if (first) {
        fprintf(stderr, "error: rank %d of %d: %s\n", first - 1, w->run->program->n_ranks, job->message);
        return PRT_EXIT_FAILED;
    }
    return w->failed_at > 0 ? PRT_EXIT_FAILED : w->stopped ? PRT_EXIT_STOPPED : PRT_EXIT_DONE;
}

int prt_run_launch(PrtRun *run, void (*body)(PrtRun *, PrtRank *)) {
    sigset_t signals, before;
    sigemptyset(&signals);
    int watched[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1};
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) sigaddset(&signals, watched[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    Watch w = {.run = run, .pids = calloc((size_t)run->program->n_ranks, sizeof *w.pids)};
    if (!w.pids) {
        fprintf(stderr, "error: out of memory\n");
        return PRT_EXIT_FAILED;
    }
    bool ok = fork_ranks(run, w.pids, &before, body);
    for (int i = 0; i < run->program->n_ranks; i++) w.alive += w.pids[i] > 0;
    if (!ok) w.failed_at = prt_now();
    watch(&w, &signals);
    int status = verdict(&w);
    free(w.pids);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
