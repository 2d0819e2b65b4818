/* argv to PrtOptions, and `--set NAME=VALUE` to the program. Everything unknown is refused with the nearest name. */
#include "core/options.h"

#include "core/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum Kind { FLAG, WHOLE, REAL, TEXT, MAYBE_TEXT, SET } Kind;

typedef struct Option {
    const char *name;
    Kind kind;
    size_t offset, seen; /* in PrtOptions; seen: of the flag that MAYBE_TEXT sets */
    double low, high;
    int where; /* 1: training, 2: sampling, 3: both */
} Option;

#define AT(field) offsetof(PrtOptions, field)
static const Option table[] = {
    {"--steps", WHOLE, AT(stop_at), 0, 0, 1e15, 1},
    {"--resume", MAYBE_TEXT, AT(resume_from), AT(resume), 0, 0, 1},
    {"--metrics", TEXT, AT(metrics), 0, 0, 0, 1},
    {"--log-every", WHOLE, AT(log_every), 0, 1, 1e15, 1},
    {"--set", SET, 0, 0, 0, 0, 3},
    {"--threads", SET, 0, 0, 0, 0, 3},
    {"--dry-run", FLAG, AT(dry_run), 0, 0, 0, 1},
    {"--trace", TEXT, AT(trace), 0, 0, 0, 1},
    {"--describe", FLAG, AT(describe), 0, 0, 0, 3},
    {"--help", FLAG, AT(help), 0, 0, 0, 3},
    {"-h", FLAG, AT(help), 0, 0, 0, 3},
    {"--version", FLAG, AT(version), 0, 0, 0, 3},
    {"--prompt", TEXT, AT(prompt), 0, 0, 0, 2},
    {"--tokens", WHOLE, AT(tokens), 0, 1, 1e9, 2},
    {"--temperature", REAL, AT(temperature), 0, 0, 1e6, 2},
    {"--top-k", WHOLE, AT(top_k), 0, 0, 1e9, 2},
    {"--seed", WHOLE, AT(sample_seed), 0, 0, 4294967295.0, 2},
    {"--from", TEXT, AT(from), 0, 0, 0, 2},
};
enum { N_OPTIONS = sizeof table / sizeof *table };

static bool unknown(const char *what, const char *given, const char *const *names, char *why, size_t size) {
    const char *near = prt_nearest(given, names);
    if (near)
        snprintf(why, size, "unknown %s `%s`; did you mean `%s`?", what, given, near);
    else
        snprintf(why, size, "unknown %s `%s`; `--help` lists them", what, given);
    return false;
}

static bool take_value(PrtOptions *o, const Option *option, const char *value, char *why, size_t size) {
    char *field = (char *)o + option->offset;
    double real = 0;
    int64_t whole = 0;
    switch (option->kind) {
    case WHOLE:
        if (!prt_parse_whole(value, &whole) || (double)whole < option->low || (double)whole > option->high) {
            snprintf(why, size, "`%s` takes a whole number of at least %.0f, not `%s`", option->name, option->low,
                     value);
            return false;
        }
        memcpy(field, &whole, sizeof whole);
        return true;
    case REAL:
        if (!prt_parse_real(value, &real) || real < option->low || real > option->high) {
            snprintf(why, size, "`%s` takes a number of at least %g, not `%s`", option->name, option->low, value);
            return false;
        }
        memcpy(field, &real, sizeof real);
        return true;
    case SET:
        if (o->n_sets == (int)(sizeof o->sets / sizeof *o->sets)) {
            snprintf(why, size, "too many `--set`");
            return false;
        }
        o->sets[o->n_sets++] = value;
        return true;
    default: memcpy(field, &value, sizeof value); return true;
    }
}

static const Option *find_option(const char *name, bool sample, char *why, size_t size) {
    const char *names[N_OPTIONS + 1];
    int n = 0;
    for (int i = 0; i < N_OPTIONS; i++) {
        if (!strcmp(table[i].name, name)) {
            if (table[i].where & (sample ? 2 : 1)) return &table[i];
            snprintf(why, size, "`%s` belongs to %s", name, sample ? "training" : "`sample`");
            return NULL;
        }
        if (table[i].where & (sample ? 2 : 1)) names[n++] = table[i].name;
    }
    names[n] = NULL;
    unknown("option", name, names, why, size);
    return NULL;
}

static bool parse_one(PrtOptions *o, char **argv, int *i, int argc, char *why, size_t size) {
    static char threads[64];
    char name[64];
    const char *equals = strchr(argv[*i], '='), *value = NULL;
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - argv[*i]) : 60, argv[*i]);
    if (equals) value = equals + 1;
    const Option *option = find_option(name, o->sample, why, size);
    if (!option) return false;
    bool yes = true;
    if (option->kind == FLAG) {
        if (!value)
            memcpy((char *)o + option->offset, &yes, sizeof yes);
        else
            snprintf(why, size, "`%s` takes no value", name);
        return !value;
    }
    if (option->kind == MAYBE_TEXT) {
        memcpy((char *)o + option->seen, &yes, sizeof yes);
        if (!value && *i + 1 < argc && argv[*i + 1][0] != '-') value = argv[++*i];
        return !value || take_value(o, option, value, why, size);
    }
    if (!value && *i + 1 < argc) value = argv[++*i];
    if (!value) {
        snprintf(why, size, "`%s` needs a value", name);
        return false;
    }
    if (!strcmp(name, "--threads")) {
        snprintf(threads, sizeof threads, "threads=%s", value);
        value = threads;
    }
    return take_value(o, option, value, why, size);
}

bool prt_options_parse(PrtOptions *o, int argc, char **argv, char *why, size_t size) {
    *o = (PrtOptions){.self = argc ? argv[0] : "train",
                      .stop_at = -1,
                      .log_every = 10,
                      .timeout = 600,
                      .tokens = 256,
                      .temperature = 0.8,
                      .sample_seed = -1};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            if (!parse_one(o, argv, &i, argc, why, size)) return false;
        } else if (i == 1 && !strcmp(argv[i], "sample")) {
            o->sample = true;
        } else {
            static const char *const commands[] = {"sample", NULL};
            return unknown("argument", argv[i], commands, why, size);
        }
    }
    return true;
}

/* ---- --set ---- */

static const char *const set_names[] = {"steps",        "seed",      "lr",         "lr.warmup", "lr.end",
                                        "threads",      "save.path", "save.every", "save.keep", "eval.every",
                                        "eval.batches", "log.every", "timeout",    "data",      NULL};

typedef struct Target {
    int64_t *whole;
    double *real;
    const char **text;
    double low, high;
} Target;

static Target find_target(PrtOptions *o, PrtProgram *p, const char *name) {
    const struct {
        const char *name;
        Target target;
    } targets[] = {
        {"steps", {&p->steps, NULL, NULL, 0, 1e15}},
        {"seed", {&p->seed, NULL, NULL, 0, 4294967295.0}},
        {"lr", {NULL, &p->rate.peak, NULL, 0, 1e9}},
        {"lr.warmup", {&p->rate.warmup, NULL, NULL, 0, 1e15}},
        {"lr.end", {NULL, &p->rate.end, NULL, 0, 1e9}},
        {"save.path", {NULL, NULL, &p->save_path, 0, 0}},
        {"save.every", {&p->save_every, NULL, NULL, 0, 1e15}},
        {"save.keep", {&p->save_keep, NULL, NULL, 0, 1e9}},
        {"eval.every", {&p->eval_every, NULL, NULL, 0, 1e15}},
        {"eval.batches", {&p->eval_batches, NULL, NULL, 1, 1e15}},
        {"log.every", {&o->log_every, NULL, NULL, 1, 1e15}},
        {"timeout", {NULL, &o->timeout, NULL, 0.1, 1e9}},
    };
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        if (!strcmp(targets[i].name, name)) return targets[i].target;
    }
    return (Target){0};
}

static bool set_data(PrtProgram *p, const char *value, char *why, size_t size) {
    if (p->n_data != 1 || p->data[0].kind == PRT_DATA_ARRAYS) {
        snprintf(why, size, "`data` can be set for text and token files alone");
        return false;
    }
    for (int i = 0; i < p->data[0].n_paths; i++) free((char *)(uintptr_t)p->data[0].paths[i]);
    p->data[0].paths[0] = strdup(value);
    p->data[0].n_paths = 1;
    return p->data[0].paths[0] != NULL;
}

static bool set_one(PrtOptions *o, PrtProgram *p, const char *text, char *why, size_t size) {
    char name[64];
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || equals - text >= 60) {
        snprintf(why, size, "`--set` takes NAME=VALUE, not `%s`", text);
        return false;
    }
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    for (char *c = name; *c; c++) {
        if (*c == ' ' || *c == '_' || *c == '-') *c = '.'; /* `save every`, save_every and save.every are the same */
    }
    const char *value = equals + 1;
    if (!strcmp(name, "data")) return set_data(p, value, why, size);
    int64_t whole = 0;
    double real = 0;
    if (!strcmp(name, "threads")) {
        if (!prt_parse_whole(value, &whole) || whole < 0 || whole > 4096) {
            snprintf(why, size, "`threads` takes a whole number from 0 (a share of the cores) to 4096, not `%s`",
                     value);
            return false;
        }
        p->threads = (int)whole;
        return true;
    }
    Target target = find_target(o, p, name);
    bool ok = target.text && *value;
    if (target.text) {
        free((char *)(uintptr_t)*target.text);
        *target.text = strdup(value);
    } else if (target.whole && prt_parse_whole(value, &whole))
        ok = (double)whole >= target.low && (double)whole <= target.high;
    else if (target.real && prt_parse_real(value, &real))
        ok = real >= target.low && real <= target.high;
    else if (!target.whole && !target.real)
        return unknown("name in `--set`,", name, set_names, why, size);
    if (!ok) {
        if (target.text)
            snprintf(why, size, "`%s` is empty", name);
        else
            snprintf(why, size, "`%s` takes a %snumber from %g to %g, not `%s`", name, target.whole ? "whole " : "",
                     target.low, target.high, value);
        return false;
    }
    if (target.whole) *target.whole = whole;
    if (target.real) *target.real = real;
    if (!strcmp(name, "steps")) p->rate.steps = whole;
    if (!strcmp(name, "lr") && p->rate.kind == PRT_RATE_CONSTANT) p->rate.end = real;
    return true;
}

bool prt_options_apply(PrtOptions *o, PrtProgram *p, char *why, size_t size) {
    for (int i = 0; i < o->n_sets; i++) {
        if (!set_one(o, p, o->sets[i], why, size)) return false;
    }
    if (p->rate.kind != PRT_RATE_CONSTANT && p->rate.end > p->rate.peak) {
        snprintf(why, size, "the learning rate ends at %g, above its peak %g; `--set lr.end=...` changes the end",
                 p->rate.end, p->rate.peak);
        return false;
    }
    return true;
}

void prt_options_help(const char *self) {
    printf("usage: %s [OPTIONS]                      train\n"
           "       %s sample --prompt TEXT [OPTIONS] continue a text with the newest checkpoint\n"
           "\n"
           "training:\n"
           "  --steps N         stop after step N (the learning rate keeps the program's schedule; `--set steps=N` "
           "changes both)\n"
           "  --resume [DIR]    continue from the newest complete checkpoint (of DIR, or where the program saves)\n"
           "  --metrics FILE    write one JSON object a step\n"
           "  --log-every N     a line every N steps, where the output is no terminal (10)\n"
           "  --set NAME=VALUE  change the program: steps, seed, lr, lr.warmup, lr.end, threads, save.path, "
           "save.every, save.keep,\n"
           "                    eval.every, eval.batches, log.every, timeout, data\n"
           "  --threads N       threads of each rank (0: a share of the cores)\n"
           "  --dry-run         check data, memory and places to write, then end\n"
           "  --trace DIR       write a timeline of the first 50 steps, a file a rank, for Perfetto\n"
           "  --describe        print the program's description (JSON)\n"
           "  --version, --help\n"
           "\n"
           "sampling:\n"
           "  --tokens N        how many (256)      --temperature T   0: always the likeliest (0.8)\n"
           "  --top-k K         of the K likeliest  --seed S          the program's unless given\n"
           "  --from DIR        a checkpoint, or a folder of them\n"
           "\n"
           "exit status: 0 done, 75 stopped by a signal after saving, 1 failed, 2 wrong usage\n",
           self, self);
}
