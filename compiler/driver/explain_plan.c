/* plc explain FILE: what a plan costs, by source line: the memory of a rank by kind, and each collective with its axis,
 * bytes, times a step, and why it is there. */
#include "driver/explain_plan.h"

#include <stdlib.h>

#include "driver/explain_machines.h"

typedef struct Line {
    const Kernel *kernel;
    const char *entry;
    double times;
    double bytes; /* what a rank holds of the whole, once */
} Line;

typedef struct Explanation {
    Session *s;
    const RoleProgram *role;
    int64_t micros;
    VEC(Line) lines;
} Explanation;

/* `rounds`: of the repeat that the list is the body of; else 1. */
static void collect(Explanation *e, const Entry *entry, const KernelList *list, double times, int64_t rounds) {
    for (int i = 0; i < list->n; i++) {
        const Kernel *kernel = list->at[i];
        if (kernel->kind == KERNEL_REPEAT)
            collect(e, entry, &kernel->body, times * (double)kernel->count, kernel->count);
        if (kernel->kind != KERNEL_COLLECTIVE) continue;
        double bytes = (double)kernel->collective->elements * (double)dtype_bytes(kernel->collective->dtype);
        vec_push(e->s->arena, &e->lines,
                 (Line){kernel, entry->name, kernel_runs(kernel, times, rounds, e->micros), bytes});
    }
}

/* How often an entry runs in a step; sampling, evaluation and the start are not part of one. */
static double runs_a_step(const Explanation *e, const Entry *entry) {
    static const char *const micro[] = {"F", "B", "count"}, *const once[] = {"begin", "total", "update"};
    for (size_t i = 0; i < sizeof micro / sizeof *micro; i++)
        if (strcmp(entry->name, micro[i]) == 0) return (double)e->micros;
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        if (strcmp(entry->name, once[i]) == 0) return 1;
    return 0;
}

static int by_place(const void *x, const void *y) {
    const Kernel *a = ((const Line *)x)->kernel, *b = ((const Line *)y)->kernel;
    if (a->span.file != b->span.file) return a->span.file - b->span.file;
    if (a->span.lo != b->span.lo) return a->span.lo - b->span.lo;
    return a->first - b->first;
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

/* Bytes that a rank sends: of S bytes over n ranks (n-1)/n S to gather or scatter, twice that to all-reduce. */
static double sent(const Explanation *e, const Line *line) {
    double n = (double)e->role->mesh->axes[line->kernel->collective->axis].size;
    return (n - 1) / n * line->bytes * (line->kernel->collective->op == OP_ALL_REDUCE ? 2 : 1);
}

static void explain_memory(const Explanation *e, Text *out) {
    const RoleProgram *role = e->role;
    text_printf(out, "memory of a rank: %s (%lld bytes), besides %s of scratch for each thread\n",
                format_bytes(e->s->arena, (double)role->arena_bytes), (long long)role->arena_bytes,
                format_bytes(e->s->arena, (double)role->scratch_bytes));
    for (int k = 0; k < MEM_KINDS; k++)
        if (role->by_kind[k])
            text_printf(out, "    %-12s %s\n", memory_kind_name[k],
                        format_bytes(e->s->arena, (double)role->by_kind[k]));
}

static void explain_collectives(Explanation *e, Text *out) {
    double total = 0;
    if (!e->lines.n) text_puts(out, "no communication\n");
    Span last = {-1, 0, 0};
    for (int i = 0; i < e->lines.n; i++) {
        const Line *line = &e->lines.at[i];
        const Collective *c = line->kernel->collective;
        Span span = line->kernel->span;
        if (i == 0 || span.file != last.file || session_place(e->s, span).line != session_place(e->s, last).line)
            text_printf(out, "%s    %s\n", session_where(e->s, span), source_line(e->s, span));
        last = span;
        total += sent(e, line) * line->times;
        text_printf(out, "    %-14s over %-8s %10s x %-5.0f in %-6s %s\n", op_table[c->op]->name,
                    e->role->mesh->axes[c->axis].name, format_bytes(e->s->arena, line->bytes), line->times, line->entry,
                    c->why ? c->why : "");
    }
    if (e->lines.n) text_printf(out, "a rank sends %s a step\n", format_bytes(e->s->arena, total));
}

void explain_plan(Session *s, const ProgramFacts *facts, Text *out) {
    Explanation e = {.s = s, .role = facts->roles[0], .micros = facts->step->micros};
    for (int i = 0; i < e.role->entries.n; i++) {
        double times = runs_a_step(&e, &e.role->entries.at[i]);
        if (times > 0) collect(&e, &e.role->entries.at[i], &e.role->entries.at[i].body, times, 1);
    }
    if (e.lines.n) qsort(e.lines.at, (size_t)e.lines.n, sizeof *e.lines.at, by_place);
    text_printf(out, "plan %s: %lld ranks", facts->plan->name, (long long)mesh_ranks(facts->mesh));
    for (int a = 0; a < facts->mesh->n; a++)
        text_printf(out, "%s%s = %lld", a ? ", " : " (", facts->mesh->axes[a].name,
                    (long long)facts->mesh->axes[a].size);
    text_printf(out, "%s\n", facts->mesh->n ? ")" : "");
    explain_machines(facts, out);
    text_printf(out, "a step: %lld sequences = %lld in a micro-batch of all ranks x %lld micro-batches\n",
                (long long)facts->train->batch, (long long)facts->step->micro_batch, (long long)facts->step->micros);
    explain_memory(&e, out);
    explain_collectives(&e, out);
}
