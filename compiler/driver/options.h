/* The command line: argv in, Options out. Both tables, options.def and commands.def, also make the help. */
#ifndef PLAN_OPTIONS_H
#define PLAN_OPTIONS_H

#include "model/model.h"

typedef struct Options Options;

typedef struct CommandInfo {
    const char *name, *arguments, *options, *help;
    int fewest, most;                               /* arguments; most 0 with fewest > 0: any number */
    int (*run)(Session *s, const Options *options); /* NULL: not built yet */
} CommandInfo;

typedef enum ColorWhen { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER } ColorWhen;
typedef enum TargetKind { TARGET_CPU, TARGET_CUDA } TargetKind;

enum { EXIT_DONE = 0, EXIT_ERRORS = 1, EXIT_USAGE = 2, EXIT_ENVIRONMENT = 3, EXIT_BUG = 70 };

struct Options {
    const CommandInfo *command;
    const char *file;       /* the first argument, or NULL */
    const char **arguments; /* all */
    int n_arguments;
    const char **program_arguments; /* behind `--` */
    int n_program_arguments;
    const char *plan, *emit, *schedule, *output, *gpu, *cpu; /* NULL when not given, `cpu` too */
    Setting *settings;
    int n_settings, cap_settings;
    TargetKind target;
    const char *plans; /* of compare */
    int steps;         /* of compare; 0: not given */
    int threads;       /* 0: not given */
    double memory;     /* bytes; 0: not given */
    ColorWhen color;
    bool json, check, help, version;
    bool reproducible; /* --numerics */
};

/* Returns false after a message on stderr: a usage error, exit code 2. */
bool options_parse(Session *s, int argc, char **argv, Options *options);
/* The help of one command, or of all when `command` is NULL. */
void options_help(const CommandInfo *command, FILE *out);
/* Whether diagnostics on `out` are coloured. */
bool options_color(const Options *options, FILE *out);

#define COMMAND(name, ...) int command_##name(Session *s, const Options *options);
#define COMMAND_LATER(name, ...)
#include "driver/commands.def"
#undef COMMAND
#undef COMMAND_LATER

#endif
