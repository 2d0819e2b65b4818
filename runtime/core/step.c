/* Training on one rank: the action table once a step, and between steps evaluation, saving, logging and the question
 * whether to stop. All ranks decide alike: what one of them sees (a signal, a loss that is not finite) is shown to all
 * at the end of the step. */
#include "core/run.h"

#include "comm/comm.h"
#include "core/util.h"
#include "log/log.h"
#include "log/trace.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct Trainer {
    PrtRun *run;
    PrtRank *rank;
    const PrtProgram *program;
    const PrtRole *role;
    int block;       /* of each micro-batch: this rank's part */
    int32_t **held;  /* [input][slot]: the micro-batch that lies there, or -1 */
    int64_t samples; /* taken when the step began */
    PrtState state;
    int64_t saved;     /* step of the newest checkpoint of this run, or -1 */
    PrtLog log;        /* rank 0 */
    int64_t peak_next; /* step at which memory is looked at again */
} Trainer;

/* ---- inputs ---- */

static void forget_inputs(Trainer *t) {
    for (int i = 0; i < t->role->n_inputs; i++) {
        for (int64_t k = 0; k < t->role->inputs[i].slots; k++) t->held[i][k] = -1;
    }
}

static void fill_input(Trainer *t, int index, PrtSet set, int64_t first, int64_t slot) {
    const PrtInput *input = &t->role->inputs[index];
    char *to = t->rank->arena + input->offset + slot * input->slot_bytes;
    int from = prt_input_first_set(t->program, input, t->rank->coords);
    for (int i = 0; i < input->sets; i++, to += input->shape[0] * input->row * 4)
        prt_data_fill(t->rank, prt_data_set(t->run->data, from + i), set, input, first + t->block * input->shape[0],
                      to);
}

/* Before an action of micro-batch `micro`: its inputs are in their slots. */
static void hold_micro(Trainer *t, int64_t micro) {
    double start = prt_trace_start(t->rank->trace);
    bool filled = false;
    for (int i = 0; i < t->role->n_inputs; i++) {
        int64_t slot = micro % t->role->inputs[i].slots;
        if (t->held[i][slot] == micro) continue;
        fill_input(t, i, PRT_TRAINING, t->samples + micro * t->program->micro_batch, slot);
        t->held[i][slot] = (int32_t)micro;
        filled = true;
    }
    if (filled) prt_trace_end(t->rank->trace, "data", start);
}

/* ---- a step ---- */

static void run_actions(Trainer *t, int64_t step) {
    prt_scalar_write(t->rank, "lr", prt_rate_at(&t->program->rate, step));
    forget_inputs(t);
    prt_entry_run(t->rank, t->role->begin, "BEGIN", 0, step);
    for (int i = 0; i < t->role->n_actions; i++) {
        const PrtActionRow *action = &t->role->actions[i];
        if (action->micro >= 0) hold_micro(t, action->micro);
        prt_entry_run(t->rank, action->entry, action->kind, action->micro >= 0 ? action->micro : 0, step);
    }
}

static int stop_signal(const Trainer *t) { return atomic_load(&t->rank->job->stop); }

/* What any rank has seen: bits of `seen`. */
static int64_t agree_on(Trainer *t, int64_t seen) {
    int turn = prt_show(t->rank, seen, "the end of a step");
    for (int i = 0; i < t->rank->n_ranks; i++) seen |= prt_shown(t->rank, turn, i);
    return seen;
}

enum { SEEN_STOP = 1, SEEN_NONFINITE = 2 };

static void look_at_memory(Trainer *t, int64_t step) {
    if (step < t->peak_next) return;
    atomic_store(&t->rank->job->status[t->rank->number].peak_bytes, prt_peak_bytes(t->rank));
    int64_t done = step - t->run->first_step + 1;
    t->peak_next = step + (done < 4 ? 1 : done < 100 ? 10 : 100);
}

static int64_t largest_peak(const Trainer *t) {
    int64_t peak = 0;
    for (int i = 0; i < t->rank->n_ranks; i++) {
        int64_t bytes = atomic_load(&t->rank->job->status[i].peak_bytes);
        if (bytes > peak) peak = bytes;
    }
    return peak;
}

/* ---- evaluation ---- */

static int64_t eval_micros(const Trainer *t) {
    int64_t asked = t->program->eval_batches * t->program->micros;
    int64_t there = prt_data_samples(t->run->data, PRT_VALIDATION) / t->program->micro_batch;
    return asked < there ? asked : there;
}

/* That of the last rank: in a pipeline the last stage alone makes it. */
static double last_rank_result(PrtRank *rank, const char *name) {
    double value = prt_result_read(rank, name);
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (!rank->job) return value;
    int turn = prt_show(rank, bits, "the end of an evaluation");
    bits = prt_shown(rank, turn, rank->n_ranks - 1);
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* The mean loss of the first samples of the validation set's order; NAN when it was stopped, or counted nothing. */
static double evaluate(Trainer *t, int64_t step) {
    PrtRank *rank = t->rank;
    prt_result_write(rank, "eval_loss", 0);
    prt_result_write(rank, "eval_count", 0);
    for (int64_t i = 0, n = eval_micros(t); i < n; i++) {
        if (agree_on(t, stop_signal(t) ? SEEN_STOP : 0)) return NAN;
        for (int k = 0; k < t->role->n_inputs; k++) fill_input(t, k, PRT_VALIDATION, i * t->program->micro_batch, 0);
        prt_entry_run(rank, t->role->eval, "eval", 0, step);
    }
    forget_inputs(t);
    double count = last_rank_result(rank, "eval_count"), loss = last_rank_result(rank, "eval_loss");
    return count > 0 ? loss / count : NAN;
}

/* ---- checkpoints ---- */

static void save(Trainer *t, int64_t step) {
    if (!t->program->save_path || t->saved == step) return;
    PrtRank *rank = t->rank;
    atomic_store(&rank->job->status[rank->number].doing, "saving a checkpoint");
    double start = prt_trace_start(rank->trace), began = prt_now();
    t->state.step = step;
    t->state.samples = t->samples;
    t->state.seed = t->program->seed;
    prt_checkpoint_save(rank, t->program->save_path, &t->state, t->program->save_keep);
    t->saved = step;
    prt_trace_end(rank->trace, "save", start);
    if (rank->number == 0) {
        prt_log_line(&t->log, "saved `%s/step-%08lld` in %.1f s", t->program->save_path, (long long)step,
                     prt_now() - began);
    }
}

/* ---- the run ---- */

static void stop_nonfinite(Trainer *t, const PrtStepLog *s) {
    char hint[256];
    bool loss = !isfinite(s->loss);
    snprintf(hint, sizeof hint,
             t->saved >= 0 ? "the newest checkpoint is of step %lld; try a lower learning rate or clipping"
                           : "no checkpoint of this run; try a lower learning rate or clipping",
             (long long)t->saved);
    if (t->rank->number == 0) {
        prt_log_step(&t->log, s);
        prt_log_close(&t->log);
    }
    prt_stop_nonfinite(t->rank, s->step, loss ? "the loss" : "the gradient's norm", loss ? s->loss : s->grad_norm,
                       hint);
}

/* Values that are not finite end the run; but with a loss scale they skip the step, while there is something to halve.
 */
static bool is_bad(const PrtProgram *p, const PrtStepLog *s) {
    if (s->loss_scale >= 1 && !isfinite(s->grad_norm)) return false;
    return !isfinite(s->loss) || (prt_program_result(p, "grad_norm") && !isfinite(s->grad_norm));
}

/* `log` statements: results called "log.NAME". */
static void read_logged(const Trainer *t, PrtStepLog *s) {
    for (int i = 0; i < t->role->n_results && s->n_logged < PRT_MAX_LOGGED; i++) {
        const char *name = t->role->results[i].name;
        if (strncmp(name, "log.", 4) != 0) continue;
        s->logged[s->n_logged].name = name + 4;
        s->logged[s->n_logged++].value = prt_result_read(t->rank, name);
    }
}

/* One step with all that follows it. True: stop. */
static bool train_step(Trainer *t, int64_t step, double *clock) {
    PrtRank *rank = t->rank;
    const PrtProgram *p = t->program;
    atomic_store(&rank->job->status[rank->number].step, step);
    run_actions(t, step);
    PrtStepLog s = {.step = step,
                    .loss = prt_result_read(rank, "loss"),
                    .grad_norm = prt_result_read(rank, "grad_norm"),
                    .loss_scale = prt_result_read(rank, "loss_scale"),
                    .skipped_steps = prt_result_read(rank, "skipped_steps"),
                    .val_loss = NAN};
    read_logged(t, &s);
    bool bad = is_bad(p, &s);
    look_at_memory(t, step);
    int64_t seen = agree_on(t, (stop_signal(t) ? SEEN_STOP : 0) | (bad ? SEEN_NONFINITE : 0));
    double seconds = prt_now() - *clock;
    s.step_ms = seconds * 1000;
    s.tokens_per_second = (double)p->tokens_per_step / seconds;
    s.lr = prt_rate_at(&p->rate, step);
    s.peak_bytes = largest_peak(t);
    if (seen & SEEN_NONFINITE) stop_nonfinite(t, &s);
    t->samples += p->batch;
    bool last = step == t->run->last_step, stop = seen & SEEN_STOP;
    double pause = prt_now();
    if (p->eval_every > 0 && !stop && (step % p->eval_every == 0 || last)) s.val_loss = evaluate(t, step);
    if (rank->number == 0) {
        prt_log_step(&t->log, &s);
        atomic_store(&rank->job->last_step, step);
    }
    if (p->save_every > 0 && step % p->save_every == 0) save(t, step);
    t->log.pause_s += prt_now() - pause;
    if (step - t->run->first_step + 1 == PRT_TRACE_STEPS) prt_trace_pause(rank->trace);
    *clock = prt_now();
    return stop;
}

static void open_trainer(Trainer *t, PrtRun *run, PrtRank *rank) {
    char why[1024];
    *t = (Trainer){
        .run = run, .rank = rank, .program = run->program, .role = &run->program->roles[rank->role], .saved = -1};
    t->block = prt_program_data_block(run->program, rank->coords);
    t->state = run->state;
    t->samples = run->state.samples;
    if (run->loads_moments) t->saved = run->state.step;
    int n = t->role->n_inputs;
    t->held = prt_need(rank, calloc((size_t)n + 1, sizeof *t->held));
    for (int i = 0; i < n; i++) t->held[i] = prt_need(rank, calloc((size_t)t->role->inputs[i].slots, sizeof **t->held));
    if (rank->number == 0 && !prt_log_open(&t->log, run, why, sizeof why)) prt_fail(rank, "%s", why);
}

static void say_end(Trainer *t, int64_t step, int signal) {
    const PrtProgram *p = t->program;
    char took[32], peak[32], arena[32];
    prt_duration(prt_now() - t->log.started, took);
    if (signal) {
        prt_log_line(
            &t->log, "stopped after step %lld of %lld by signal %d%s", (long long)step, (long long)t->run->last_step,
            signal, p->save_path ? "; `--resume` goes on from here" : "; nothing was saved: the program has no `save`");
    } else {
        prt_log_line(&t->log, "done: %lld steps in %s; memory of a rank at most %s, planned %s",
                     (long long)(step - t->run->first_step + 1), took, prt_bytes((double)largest_peak(t), peak),
                     prt_bytes((double)t->log.predicted_bytes, arena));
    }
}

void prt_train(PrtRun *run, PrtRank *rank) {
    Trainer t;
    open_trainer(&t, run, rank);
    prt_rank_start(run, rank);
    prt_barrier(rank, PRT_WORLD, "the start");
    bool stop = false;
    int64_t step = run->first_step - 1;
    double clock = prt_now();
    t.log.started = clock;
    while (!stop && step < run->last_step) stop = train_step(&t, ++step, &clock);
    /* A signal that comes after the last step changes nothing: the run is done. */
    bool early = stop && step < run->last_step;
    save(&t, step);
    atomic_store(&rank->job->status[rank->number].peak_bytes, prt_peak_bytes(rank));
    prt_barrier(rank, PRT_WORLD, "the end");
    if (rank->number == 0) {
        say_end(&t, step, early ? stop_signal(&t) : 0);
        prt_log_close(&t.log);
    }
    prt_rank_close(rank);
    for (int i = 0; i < t.role->n_inputs; i++) free(t.held[i]);
    free(t.held);
    if (early && !run->program->save_path)
        prt_fail(rank, "stopped by signal %d after step %lld, and the program saves nothing", stop_signal(&t),
                 (long long)step);
    prt_leave(rank, early ? PRT_EXIT_STOPPED : PRT_EXIT_DONE);
}
