/* The command line, driven by options.def and commands.def: parsing, nearest names, help. */
#include "driver/options.h"

#include <stdlib.h>
#include <unistd.h>

typedef enum ValueKind {
    VALUE_FLAG,
    VALUE_TEXT,
    VALUE_COUNT,
    VALUE_SETTING,
    VALUE_COLOR,
    VALUE_TARGET,
    VALUE_NUMERICS,
    VALUE_BYTES
} ValueKind;

typedef struct OptionInfo {
    const char *name;
    char letter;
    const char *value;
    ValueKind kind;
    size_t field;
    const char *help;
} OptionInfo;

static const OptionInfo option_table[] = {
#define OPTION(name, letter, value, kind, field, help) {name, letter, value, kind, offsetof(Options, field), help},
#include "driver/options.def"
#undef OPTION
};
enum { N_OPTIONS = sizeof option_table / sizeof *option_table };

static const CommandInfo commands[] = {
#define COMMAND(name, arguments, options, fewest, most, help)                                                          \
    {#name, arguments, options, help, fewest, most, command_##name},
#define COMMAND_LATER(name, arguments, options, fewest, most, help)                                                    \
    {#name, arguments, options, help, fewest, most, NULL},
#include "driver/commands.def"
#undef COMMAND
#undef COMMAND_LATER
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static bool usage(const char *problem, const char *subject, const char *what, const char *near) {
    fprintf(stderr, "plc: %s", problem);
    if (subject) fprintf(stderr, " `%s`", subject);
    fputs("\n", stderr);
    if (near) fprintf(stderr, "help: did you mean `%s`?\n", near);
    if (!near && what) fprintf(stderr, "help: %s\n", what);
    return false;
}

/* ---- which options a command takes ---- */

static bool is_general(const OptionInfo *option) {
    return !strcmp(option->name, "color") || !strcmp(option->name, "help") || !strcmp(option->name, "version");
}

static bool list_has(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

static bool command_takes(const CommandInfo *command, const OptionInfo *option) {
    return is_general(option) || (command && list_has(command->options, option->name));
}

static const OptionInfo *option_find(const char *name, size_t length) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (strlen(option_table[i].name) == length && !strncmp(option_table[i].name, name, length))
            return &option_table[i];
    return NULL;
}

static const char *option_near(Session *s, const CommandInfo *command, const char *name) {
    Name candidates[N_OPTIONS];
    int n = 0;
    for (int i = 0; i < N_OPTIONS; i++)
        if (command_takes(command, &option_table[i])) candidates[n++] = intern(s->names, option_table[i].name);
    Name near = nearest_name(intern(s->names, name), candidates, n);
    return near ? arena_printf(s->arena, "--%s", near) : NULL;
}

static const CommandInfo *command_find(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

static bool unknown_command(Session *s, const char *name) {
    Name candidates[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) candidates[i] = intern(s->names, commands[i].name);
    const char *near = nearest_name(intern(s->names, name), candidates, N_COMMANDS);
    size_t length = strlen(name);
    if (!near && length > 5 && !strcmp(name + length - 5, ".plan")) near = arena_printf(s->arena, "plc check %s", name);
    return usage("unknown command", name, "`plc --help` lists the commands", near);
}

/* ---- values ---- */

static bool take_setting(Session *s, Options *options, const char *text) {
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || !equals[1])
        return usage("--set needs NAME=VALUE, not", text, "like `--set batch=64`", NULL);
    Name name = intern_n(s->names, text, (size_t)(equals - text));
    vec_reserve_(s->arena, (void **)&options->settings, &options->cap_settings, options->n_settings + 1,
                 sizeof(Setting));
    options->settings[options->n_settings++] = (Setting){.name = name, .value = equals + 1};
    return true;
}

/* "16GB", "900 MiB": decimal and binary units, as in a plan. */
static bool take_bytes(const char *text, double *bytes) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
    char *end;
    double number = strtod(text, &end);
    if (end == text || !(number > 0)) return false;
    while (*end == ' ') end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].name) == 0) return *bytes = number * units[i].bytes, true;
    return false;
}

static bool take_value(Session *s, Options *options, const OptionInfo *option, const char *value) {
    void *field = (char *)options + option->field;
    switch (option->kind) {
    case VALUE_FLAG: *(bool *)field = true; return true;
    case VALUE_TEXT:
        if (!*value) return usage("empty value of", arena_printf(s->arena, "--%s", option->name), NULL, NULL);
        *(const char **)field = value;
        return true;
    case VALUE_SETTING: return take_setting(s, options, value);
    case VALUE_COUNT: {
        char *end;
        long count = strtol(value, &end, 10);
        if (end == value || *end || count < 1 || count > 4096)
            return usage("--threads needs a number from 1 to 4096, not", value, NULL, NULL);
        *(int *)field = (int)count;
        return true;
    }
    case VALUE_BYTES:
        if (take_bytes(value, (double *)field)) return true;
        return usage("--memory needs a size like 16GB or 16GiB, not", value, NULL, NULL);
    case VALUE_COLOR:
        if (strcmp(value, "auto") && strcmp(value, "always") && strcmp(value, "never"))
            return usage("--color needs auto, always or never, not", value, NULL, NULL);
        *(ColorWhen *)field = value[1] == 'u' ? COLOR_AUTO : value[1] == 'l' ? COLOR_ALWAYS : COLOR_NEVER;
        return true;
    case VALUE_NUMERICS:
        if (strcmp(value, "fast") && strcmp(value, "reproducible"))
            return usage("--numerics needs fast or reproducible, not", value, NULL, NULL);
        *(bool *)field = value[0] == 'r';
        return true;
    case VALUE_TARGET:
        if (strcmp(value, "cpu") && strcmp(value, "cuda"))
            return usage("--target needs cpu or cuda, not", value, NULL, NULL);
        *(TargetKind *)field = value[1] == 'p' ? TARGET_CPU : TARGET_CUDA;
        return true;
    }
    return true;
}

static bool parse_option(Session *s, Options *options, char **argv, int *at) {
    const char *word = argv[*at], *name = word, *value = NULL;
    const OptionInfo *option = NULL;
    if (word[1] == '-') {
        name = word + 2;
        size_t length = strcspn(name, "=");
        option = option_find(name, length);
        if (name[length]) value = name + length + 1;
        name = arena_strndup(s->arena, name, length);
    } else {
        for (int i = 0; i < N_OPTIONS; i++)
            if (option_table[i].letter && option_table[i].letter == word[1]) option = &option_table[i];
        if (word[1] && word[2]) value = word + 2;
    }
    const char *shown = arena_printf(s->arena, "%s%s", word[1] == '-' ? "--" : "", name);
    if (!option)
        return usage("unknown option", shown, "`plc COMMAND --help` lists the options",
                     option_near(s, options->command, name));
    if (!command_takes(options->command, option)) {
        const char *of = options->command ? arena_printf(s->arena, "`plc %s` has no option", options->command->name)
                                          : "no command was given before";
        return usage(of, shown, "`plc COMMAND --help` lists the options", NULL);
    }
    if (option->kind == VALUE_FLAG && value) return usage("no value can follow", shown, NULL, NULL);
    if (option->kind != VALUE_FLAG && !value) {
        value = argv[*at + 1];
        if (!value) return usage(arena_printf(s->arena, "%s is missing after", option->value), shown, NULL, NULL);
        ++*at;
    }
    return take_value(s, options, option, value);
}

bool options_parse(Session *s, int argc, char **argv, Options *options) {
    *options = (Options){.arguments = NEW_N(s->arena, const char *, argc + 1)};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--")) {
            options->program_arguments = (const char **)(argv + i + 1);
            options->n_program_arguments = argc - i - 1;
            break;
        }
        if (argv[i][0] == '-' && argv[i][1]) {
            if (!parse_option(s, options, argv, &i)) return false;
        } else if (!options->command) {
            if (!strcmp(argv[i], "help")) {
                options->help = true;
                continue;
            }
            options->command = command_find(argv[i]);
            if (!options->command) return unknown_command(s, argv[i]);
        } else {
            options->arguments[options->n_arguments++] = argv[i];
        }
    }
    options->file = options->arguments[0];
    const CommandInfo *command = options->command;
    if (options->help || options->version) return true;
    if (!command) {
        options_help(NULL, stderr);
        return false;
    }
    const char *how = arena_printf(s->arena, "usage: plc %s %s", command->name, command->arguments);
    if (options->n_arguments < command->fewest)
        return usage(arena_printf(s->arena, "`plc %s` needs %s", command->name, command->arguments), NULL, how, NULL);
    bool any_number = command->fewest && !command->most;
    if (!any_number && options->n_arguments > command->most)
        return usage("unexpected argument", options->arguments[command->most], how, NULL);
    if (options->n_program_arguments && strcmp(command->name, "run"))
        return usage("nothing can follow `--` here, but there is", options->program_arguments[0], how, NULL);
    return true;
}

/* ---- help ---- */

static void help_option(const OptionInfo *option, FILE *out) {
    char left[64];
    int n = snprintf(left, sizeof left, "--%s%s%s", option->name, option->value ? " " : "",
                     option->value ? option->value : "");
    if (option->letter) snprintf(left + n, sizeof left - (size_t)n, ", -%c", option->letter);
    fprintf(out, "  %-22s  %s\n", left, option->help);
}

void options_help(const CommandInfo *command, FILE *out) {
    if (command) {
        fprintf(out, "plc %s%s%s: %s\n\noptions:\n", command->name, *command->arguments ? " " : "", command->arguments,
                command->help);
        if (!command->run) fputs("  (not built yet)\n", out);
        for (int i = 0; i < N_OPTIONS; i++)
            if (command_takes(command, &option_table[i]) && strcmp(option_table[i].name, "version"))
                help_option(&option_table[i], out);
        return;
    }
    fputs("plc " PLAN_VERSION
          ": compiles .plan files to programs for distributed training\n\nusage: plc COMMAND [OPTIONS]\n\n",
          out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-9s  %-14s  %s%s\n", commands[i].name, commands[i].arguments, commands[i].help,
                commands[i].run ? "" : " (not built yet)");
    fputs("\n", out);
    for (int i = 0; i < N_OPTIONS; i++)
        if (is_general(&option_table[i])) help_option(&option_table[i], out);
    fputs("\nexit codes: 0 done, 1 the plan has errors, 2 wrong usage, 3 the environment lacks something, 70 a fault "
          "of plc\n"
          "`plc COMMAND --help` says more about each\n",
          out);
}

bool options_color(const Options *options, FILE *out) {
    if (options->color != COLOR_AUTO) return options->color == COLOR_ALWAYS;
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if ((no_color && *no_color) || !term || !strcmp(term, "dumb")) return false;
    return isatty(fileno(out));
}
