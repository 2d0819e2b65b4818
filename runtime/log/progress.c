/* The progress line, plain lines and the metrics file. */
#include "log/log.h"

#include "core/util.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Cuts the file before its first line whose step is after `step`, so that no step is in it twice. */
static bool trim_metrics(FILE *file, int64_t step) {
    char line[4096];
    long keep = 0;
    while (fgets(line, sizeof line, file)) {
        const char *at = strstr(line, "\"step\":");
        size_t n = strlen(line);
        if (!at || strtoll(at + 7, NULL, 10) > step || line[n - 1] != '\n') break;
        keep = ftell(file);
    }
    return !ftruncate(fileno(file), keep) && !fseek(file, 0, SEEK_END);
}

bool prt_log_open(PrtLog *log, const PrtRun *run, char *why, size_t size) {
    const char *path = run->options->metrics;
    *log = (PrtLog){.run = run, .val_loss = NAN, .first_step = run->first_step, .started = prt_now()};
    log->bar = isatty(STDOUT_FILENO) && isatty(STDERR_FILENO);
    log->predicted_bytes = run->program->roles[0].arena_bytes + run->threads * run->program->roles[0].scratch_bytes;
    if (!path) return true;
    bool again = run->options->resume && !access(path, F_OK);
    log->metrics = fopen(path, again ? "r+e" : "we");
    if (log->metrics && (!again || trim_metrics(log->metrics, run->first_step - 1))) return true;
    snprintf(why, size, "cannot write the metrics file `%s`: %s", path, strerror(errno));
    return false;
}

static void put_number(FILE *file, const char *name, double value) {
    if (isfinite(value))
        fprintf(file, ", \"%s\": %.9g", name, value);
    else
        fprintf(file, ", \"%s\": null", name);
}

static void write_metrics(PrtLog *log, const PrtStepLog *s) {
    FILE *file = log->metrics;
    if (!file) return;
    fprintf(file, "{\"step\": %lld", (long long)s->step);
    put_number(file, "loss", s->loss);
    put_number(file, "grad_norm", s->grad_norm);
    put_number(file, "lr", s->lr);
    put_number(file, "tokens_per_second", s->tokens_per_second);
    put_number(file, "step_ms", s->step_ms);
    fprintf(file, ", \"peak_bytes\": %lld", (long long)s->peak_bytes);
    if (!isnan(s->val_loss)) put_number(file, "val_loss", s->val_loss);
    if (!isnan(s->loss_scale)) put_number(file, "loss_scale", s->loss_scale);
    if (!isnan(s->skipped_steps)) put_number(file, "skipped_steps", s->skipped_steps);
    for (int i = 0; i < s->n_logged; i++) put_number(file, s->logged[i].name, s->logged[i].value);
    fputs("}\n", file);
    if (!fflush(file) && !ferror(file)) return;
    fprintf(stderr, "warning: the metrics file cannot be written any more: %s\n", strerror(errno));
    fclose(file);
    log->metrics = NULL;
}

static double mfu_of(const PrtLog *log, const PrtStepLog *s) {
    const PrtRun *run = log->run;
    return run->peak_flops > 0 && run->program->flops_per_token > 0
               ? 100 * run->program->flops_per_token * s->tokens_per_second / run->peak_flops
               : NAN;
}

static double seconds_left(const PrtLog *log, const PrtStepLog *s) {
    int64_t done = s->step - log->first_step + 1, left = log->run->last_step - s->step;
    return (double)left * (log->steady_ms / 1000 + log->pause_s / (double)done);
}

/* "loss 3.1415  val_loss 3.2000  grad_norm 1.200  lr 6.00e-04  123.0 ms  4,567 tok/s  mfu 41.0%  memory 1.2 GiB,
 * planned 1.1 GiB" */
static void describe(const PrtLog *log, const PrtStepLog *s, char *text, size_t size) {
    char rate[32], peak[32], predicted[32], val[40] = "", norm[40] = "", scale[64] = "", mfu[32] = "  mfu n/a";
    double utilisation = mfu_of(log, s);
    double val_loss = log->bar ? log->val_loss : s->val_loss; /* on the progress line the last one stays */
    if (!isnan(val_loss)) snprintf(val, sizeof val, "  val_loss %.4f", val_loss);
    if (!isnan(s->grad_norm)) snprintf(norm, sizeof norm, "  grad_norm %.3f", s->grad_norm);
    if (!isnan(s->loss_scale))
        snprintf(scale, sizeof scale, "  scale %.6g  skipped %.0f", s->loss_scale, s->skipped_steps);
    if (!isnan(utilisation)) snprintf(mfu, sizeof mfu, "  mfu %.1f%%", utilisation);
    snprintf(text, size, "loss %.4f%s%s%s  lr %.2e  %.1f ms  %s %s/s%s  memory %s, planned %s", s->loss, val, norm,
             scale, s->lr, s->step_ms, prt_commas((int64_t)(s->tokens_per_second + 0.5), rate),
             prt_program_has_tokens(log->run->program) ? "tok" : "samples", mfu, prt_bytes((double)s->peak_bytes, peak),
             prt_bytes((double)log->predicted_bytes, predicted));
}

/* "  dropped 0.01 ..." behind the rest of the line. */
static void describe_logged(const PrtStepLog *s, char *text, size_t size) {
    for (int i = 0; i < s->n_logged; i++) {
        size_t n = strlen(text);
        snprintf(text + n, size - n, "  %s %.4g", s->logged[i].name, s->logged[i].value);
    }
}

static void clear_bar(PrtLog *log) {
    if (log->open_line) fputs("\r\033[K", stderr);
    log->open_line = false;
}

static void draw_bar(PrtLog *log, const PrtStepLog *s) {
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    enum { CELLS = 12 };
    char text[1024], left[32], bar[CELLS * 3 + 8] = "", line[2048];
    struct winsize window = {.ws_col = 120};
    ioctl(STDERR_FILENO, TIOCGWINSZ, &window);
    int64_t total = log->run->last_step;
    int filled = total > 0 ? (int)(s->step * CELLS * 8 / total) : CELLS * 8, cells = filled / 8;
    for (int i = 0; i < cells; i++) strcat(bar, "█");
    strcat(bar, eighths[filled % 8]);
    describe(log, s, text, sizeof text);
    describe_logged(s, text, sizeof text);
    int blanks = CELLS - cells - (filled % 8 ? 1 : 0);
    int n = snprintf(line, sizeof line, "step %lld/%lld |%s%*s| ETA %s  %s", (long long)s->step, (long long)total, bar,
                     blanks, "", prt_duration(seconds_left(log, s), left), text);
    /* Cut to the terminal's width: bytes less the two extra ones of each block. */
    int extra = 2 * (cells + (filled % 8 ? 1 : 0)), room = (window.ws_col ? window.ws_col : 120) - 1 + extra;
    fprintf(stderr, "\r\033[K%.*s", n < room ? n : room, line);
    fflush(stderr);
    log->open_line = true;
    log->last_shown = prt_now();
}

void prt_log_step(PrtLog *log, const PrtStepLog *s) {
    write_metrics(log, s);
    if (!isnan(s->val_loss)) log->val_loss = s->val_loss;
    log->steady_ms = s->step <= log->first_step + 1 ? s->step_ms : 0.9 * log->steady_ms + 0.1 * s->step_ms;
    bool last = s->step == log->run->last_step, due = s->step % log->run->options->log_every == 0;
    if (log->bar) {
        if (last || prt_now() - log->last_shown > 0.1) draw_bar(log, s);
        if (last || !isnan(s->val_loss)) { /* stays on the screen */
            fputc('\n', stderr);
            log->open_line = false;
        }
    } else if (due || last || s->step == log->first_step || !isnan(s->val_loss)) {
        char text[1024], left[32];
        describe(log, s, text, sizeof text);
        describe_logged(s, text, sizeof text);
        printf("step %lld/%lld  %s  ETA %s\n", (long long)s->step, (long long)log->run->last_step, text,
               prt_duration(seconds_left(log, s), left));
        fflush(stdout);
    }
}

void prt_log_line(PrtLog *log, const char *format, ...) {
    va_list list;
    clear_bar(log);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

void prt_log_close(PrtLog *log) {
    if (log->open_line) fputc('\n', stderr);
    log->open_line = false;
    if (log->metrics) fclose(log->metrics);
    log->metrics = NULL;
}
