/* plc explain FILE: what a plan costs: the memory of each stage's ranks by kind, the schedule of a pipeline as a
 * picture, and by source line each collective and each transfer between stages with its bytes, times a step, and why it
 * is there. What several stages do alike stands there once. */
#include "driver/explain_plan.h"

#include "schedule/timeline.h"

#include <stdlib.h>

#include "driver/explain_machines.h"

typedef struct Line {
    const Kernel *kernel;
    const char *entry;
    int first, last; /* stages that have it */
    double times;
    double bytes; /* what a rank holds of the whole, once */
} Line;

typedef struct Explanation {
    Session *s;
    const ProgramFacts *facts;
    VEC(Line) lines; /* of all stages */
    VEC(Line) stage; /* of the one that is looked at */
    double *sent;    /* by stage: what a rank sends in a step */
} Explanation;

/* ---- what is sent ------------------------------------------------------------------------------- */

/* Bytes that a rank sends: of S bytes over n ranks (n-1)/n S to gather or scatter, twice that to all-reduce. */
static double bytes_sent(const Explanation *e, const Line *line) {
    const Collective *c = line->kernel->collective;
    if (!c || c->op == OP_PASS) return line->bytes; /* all that it holds */
    double n = (double)e->facts->mesh->axes[c->axis].size;
    return (n - 1) / n * line->bytes * (c->op == OP_ALL_REDUCE ? 2 : 1);
}

/* Whether the two stand for the same thing in one place of the text, on one stage or on two. */
static bool alike(const Line *a, const Line *b) {
    const Kernel *x = a->kernel, *y = b->kernel;
    bool same = x->kind == y->kind && x->span.file == y->span.file && x->span.lo == y->span.lo &&
                a->bytes == b->bytes && strcmp(a->entry, b->entry) == 0;
    if (!same) return false;
    if (x->handover)
        return x->handover->value == y->handover->value && x->handover->peer - a->last == y->handover->peer - b->first;
    return x->collective->op == y->collective->op && x->collective->axis == y->collective->axis &&
           strcmp(x->collective->why, y->collective->why) == 0;
}

/* A layer's gather that starts before the repeat is the same as those inside. */
static void add_line(Explanation *e, Line line) {
    e->sent[line.first] += bytes_sent(e, &line) * line.times;
    for (int i = 0; i < e->stage.n; i++) {
        if (!alike(&e->stage.at[i], &line)) continue;
        e->stage.at[i].times += line.times;
        return;
    }
    vec_push(e->s->arena, &e->stage, line);
}

/* Stages that do the same have one line. */
static void join_stage(Explanation *e) {
    for (int k = 0; k < e->stage.n; k++) {
        const Line *line = &e->stage.at[k];
        int i = 0;
        while (i < e->lines.n && !(alike(&e->lines.at[i], line) && e->lines.at[i].times == line->times &&
                                   line->first == e->lines.at[i].last + 1))
            i++;
        if (i < e->lines.n)
            e->lines.at[i].last = line->first;
        else
            vec_push(e->s->arena, &e->lines, *line);
    }
    e->stage.n = 0;
}

/* `rounds`: of the repeat that the list is the body of; else 1. */
static void collect(Explanation *e, int role, const char *entry, const KernelList *list, double times, int64_t rounds) {
    for (int i = 0; i < list->n; i++) {
        const Kernel *kernel = list->at[i];
        const Collective *c = kernel->collective;
        Line line = {.kernel = kernel, .entry = entry, .first = role, .last = role};
        line.times = kernel_runs(kernel, times, rounds, e->facts->schedule->n_micro);
        if (kernel->kind == KERNEL_REPEAT)
            collect(e, role, entry, &kernel->body, times * (double)kernel->count, kernel->count);
        if (kernel->kind == KERNEL_COLLECTIVE) {
            line.bytes = (double)c->elements * (double)dtype_bytes(c->dtype);
            add_line(e, line);
        } else if (kernel->kind == KERNEL_TRANSFER && kernel->handover->kind == HANDOVER_SEND) {
            line.bytes = (double)kernel->handover->bytes;
            add_line(e, line);
        }
    }
}

/* How often a step runs an entry: as often as the schedule has its action. Sampling, evaluation and the start are not
 * part of a step. */
static double runs_a_step(const Explanation *e, int role, const char *entry) {
    static const struct {
        const char *entry, *action;
    } words[] = {{"begin", "BEGIN"}, {"count", "COUNT"}, {"total", "TOTAL"}, {"update", "OPT"}};
    size_t length = strcspn(entry, ".");
    int chunk = entry[length] ? atoi(entry + length + 1) : 0, n = 0;
    const RoleSchedule *list = &e->facts->schedule->roles[role];
    for (int i = 0; i < list->actions.n; i++) {
        const char *text = action_text(list->actions.at[i].kind);
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            if (strcmp(text, words[k].action) == 0) text = words[k].entry;
        n += strlen(text) == length && memcmp(text, entry, length) == 0 && list->actions.at[i].chunk == chunk;
    }
    return n;
}

static void collect_all(Explanation *e) {
    for (int r = 0; r < e->facts->n_roles; r++) {
        const RoleProgram *role = e->facts->roles[r];
        for (int i = 0; i < role->entries.n; i++) {
            const Entry *entry = &role->entries.at[i];
            double times = runs_a_step(e, r, entry->name);
            if (times > 0) collect(e, r, entry->name, &entry->body, times, 1);
        }
        join_stage(e);
    }
}

/* ---- the report --------------------------------------------------------------------------------- */

static int by_place(const void *x, const void *y) {
    const Line *p = x, *q = y;
    const Kernel *a = p->kernel, *b = q->kernel;
    if (a->span.file != b->span.file) return a->span.file - b->span.file;
    if (a->span.lo != b->span.lo) return a->span.lo - b->span.lo;
    return p->first != q->first ? p->first - q->first : a->first - b->first;
}

static const char *source_line(Session *s, Span span) {
    const SourceFile *file = session_file(s, span);
    if (!file) return "";
    int32_t lo = span.lo, hi = span.lo;
    while (lo > 0 && file->text[lo - 1] != '\n') lo--;
    while (file->text[lo] == ' ') lo++;
    while (file->text[hi] && file->text[hi] != '\n') hi++;
    return arena_strndup(s->arena, file->text + lo, (size_t)(hi - lo));
}

/* The turns of a ring move the same value time and again: one line for all of them. */
static bool is_same(const Line *a, const Line *b) {
    const Collective *x = a->kernel->collective, *y = b->kernel->collective;
    return x && y && a->first == b->first && a->last == b->last && x->op == OP_PASS && y->op == OP_PASS &&
           x->axis == y->axis && a->bytes == b->bytes && a->entry == b->entry &&
           a->kernel->span.lo == b->kernel->span.lo && a->kernel->span.file == b->kernel->span.file &&
           strcmp(x->why, y->why) == 0;
}

static void join_turns(Explanation *e) {
    int n = 0;
    for (int i = 0; i < e->lines.n; i++) {
        int k = 0;
        while (k < n && !is_same(&e->lines.at[k], &e->lines.at[i])) k++;
        if (k < n)
            e->lines.at[k].times += e->lines.at[i].times;
        else
            e->lines.at[n++] = e->lines.at[i];
    }
    e->lines.n = n;
}

static void explain_kinds(const Explanation *e, const RoleProgram *role, Text *out) {
    for (int k = 0; k < MEM_KINDS; k++)
        if (role->by_kind[k])
            text_printf(out, "    %-12s %s\n", memory_kind_name[k],
                        format_bytes(e->s->arena, (double)role->by_kind[k]));
}

static void explain_memory(const Explanation *e, Text *out) {
    for (int r = 0; r < e->facts->n_roles; r++) {
        const RoleProgram *role = e->facts->roles[r];
        const char *of = e->facts->n_roles > 1 ? arena_printf(e->s->arena, " of stage %d", r) : "";
        text_printf(out, "memory of a rank%s: %s (%lld bytes), besides %s of scratch for each thread\n", of,
                    format_bytes(e->s->arena, (double)role->arena_bytes), (long long)role->arena_bytes,
                    format_bytes(e->s->arena, (double)role->scratch_bytes));
        explain_kinds(e, role, out);
    }
}

/* "stages 1 to 3" */
static const char *stages_text(const Explanation *e, const Line *line) {
    if (line->first == line->last) return arena_printf(e->s->arena, "stage %d", line->first);
    return arena_printf(e->s->arena, "stages %d to %d", line->first, line->last);
}

static void explain_line(const Explanation *e, const Line *line, Text *out) {
    const Collective *c = line->kernel->collective;
    const Handover *h = line->kernel->handover;
    const char *what = c ? op_table[c->op]->name : "send";
    text_printf(out, "    %-14s over %-8s %10s x %-5.0f in %-6s ", what,
                e->facts->mesh->axes[c ? c->axis : h->axis].name, format_bytes(e->s->arena, line->bytes), line->times,
                line->entry);
    if (c) text_puts(out, c->why ? c->why : "");
    if (c && e->facts->n_roles > 1) text_printf(out, ", on %s", stages_text(e, line));
    if (h) text_printf(out, "`%s` from %s ", h->value ? h->value : "a value", stages_text(e, line));
    if (h && line->first == line->last)
        text_printf(out, "to stage %d", h->peer);
    else if (h)
        text_printf(out, "each to %d stage%s %s", abs(h->peer - line->first), abs(h->peer - line->first) > 1 ? "s" : "",
                    h->peer > line->first ? "on" : "back");
    text_puts(out, "\n");
}

static void explain_lines(Explanation *e, Text *out) {
    if (!e->lines.n) text_puts(out, "no communication\n");
    Span last = {-1, 0, 0};
    for (int i = 0; i < e->lines.n; i++) {
        Span span = e->lines.at[i].kernel->span;
        if (i == 0 || span.file != last.file || session_place(e->s, span).line != session_place(e->s, last).line)
            text_printf(out, "%s    %s\n", session_where(e->s, span), source_line(e->s, span));
        last = span;
        explain_line(e, &e->lines.at[i], out);
    }
    for (int r = 0; r < e->facts->n_roles && e->lines.n; r++)
        text_printf(out, "a rank%s sends %s a step\n",
                    e->facts->n_roles > 1 ? arena_printf(e->s->arena, " of stage %d", r) : "",
                    format_bytes(e->s->arena, e->sent[r]));
}

void explain_plan(Session *s, const ProgramFacts *facts, Text *out) {
    Explanation e = {.s = s, .facts = facts, .sent = NEW_N(s->arena, double, facts->n_roles)};
    collect_all(&e);
    if (e.lines.n) qsort(e.lines.at, (size_t)e.lines.n, sizeof *e.lines.at, by_place);
    join_turns(&e);
    int64_t ranks = mesh_ranks(facts->mesh);
    text_printf(out, "plan %s: %lld rank%s", facts->plan->name, (long long)ranks, ranks == 1 ? "" : "s");
    for (int a = 0; a < facts->mesh->n; a++)
        text_printf(out, "%s%s = %lld", a ? ", " : " (", facts->mesh->axes[a].name,
                    (long long)facts->mesh->axes[a].size);
    text_printf(out, "%s\n", facts->mesh->n ? ")" : "");
    explain_machines(facts, out);
    text_printf(out, "a step: %lld sequences = %lld in a micro-batch of all ranks x %lld micro-batches\n",
                (long long)facts->train->batch, (long long)facts->step->micro_batch, (long long)facts->step->micros);
    if (facts->n_roles > 1) schedule_draw(facts->schedule, out);
    explain_memory(&e, out);
    explain_lines(&e, out);
}
