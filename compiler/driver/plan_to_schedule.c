/* The schedule of a plan.
 *
 * In: the rule that orders the stages (its schedule's name, or the file of a table), the command line, and the step
 * (how many micro-batches, what runs once). Out: a schedule, generated or read, with everything but the program's
 * transfers. */
#include "driver/plan_to_schedule.h"

/* A path in a plan is seen from the folder of the plan's file. */
static const char *beside_file(Session *s, Span span, const char *path) {
    const SourceFile *file = session_file(s, span);
    const char *slash = file && path[0] != '/' ? strrchr(file->path, '/') : NULL;
    return slash ? arena_printf(s->arena, "%.*s/%s", (int)(slash - file->path), file->path, path) : path;
}

bool plan_read_table(Session *s, const Options *options, const Rule *rule, Schedule **table) {
    *table = NULL;
    bool named = !options->schedule && rule && rule->table;
    const char *path = named ? beside_file(s, rule->using_span, rule->table) : options->schedule, *why;
    if (!path) return true;
    int32_t file = session_read_file(s, path, false, &why);
    if (!file) {
        diag_error(s, "P0010", named ? rule->using_span : (Span){0}, "`%s` cannot be read: %s", path, why);
        return false;
    }
    *table = schedule_read(s, file);
    return *table != NULL;
}

bool table_fits(Session *s, const Schedule *table, const StageCut *cut, int stages, int64_t micros, int64_t layers) {
    Span span = table->roles[0].span;
    int parts = stages * table->n_chunks;
    if (table->n_roles != stages || table->n_micro != micros) {
        Diag *d =
            diag_error(s, "P0703", span, "the schedule is for %d stages and %d micro-batches, the plan has %d and %lld",
                       table->n_roles, table->n_micro, stages, (long long)micros);
        diag_help(d, "a `microbatch` that gives %d micro-batches, or a table for %lld", table->n_micro,
                  (long long)micros);
        return false;
    }
    if (stages == 1 || table->n_chunks * stages == cut->n_chunks || layers % parts == 0) return true;
    Diag *d = diag_error(s, "P0703", span,
                         "the schedule has %d chunks on each of %d stages, and they do not divide %lld `%s`",
                         table->n_chunks, stages, (long long)layers, cut->dim);
    diag_note(d, cut->span, "the layers are cut here");
    return false;
}

static bool legal_micros(Session *s, const Rule *rule, int stages, int micros) {
    if (!rule || rule->chunks <= 1 || micros % stages == 0) return true;
    Diag *d = diag_error(s, "P0706", rule->using_span,
                         "`interleaved` takes micro-batches in groups of %d, and there are %d", stages, micros);
    diag_help(d, "choose a batch or `microbatch` that gives a multiple of %d micro-batches, or `one_f_one_b`", stages);
    return false;
}

Schedule *plan_to_schedule(Session *s, const Rule *rule, Schedule *table, const Step *step, int stages) {
    ScheduleParts parts = {.begin = step->begin != NULL, .count = step->count != NULL, .total = step->total != NULL};
    if (table) {
        schedule_complete(table, parts);
        return table;
    }
    int chunks = rule && rule->chunks > 0 ? (int)rule->chunks : 1;
    if (!legal_micros(s, rule, stages, (int)step->micros)) return NULL;
    return schedule_generate(s, s->arena, rule ? rule->using_name : NULL, stages, chunks, (int)step->micros, parts);
}
