/* plc run FILE -- ARGS: build, then become the program. */
#include <errno.h>
#include <unistd.h>

#include "driver/pipeline.h"

int command_run(Session *s, const Options *options) {
    Options build = *options;
    if (!build.output) build.output = pipeline_default_output(s, options->arguments[0]);
    int code = pipeline_build(s, &build);
    if (code) return code;
    const char *path = strchr(build.output, '/') ? build.output : arena_printf(s->arena, "./%s", build.output);
    char **argv = NEW_N(s->arena, char *, options->n_program_arguments + 2);
    argv[0] = arena_strndup(s->arena, path, strlen(path));
    for (int i = 0; i < options->n_program_arguments; i++)
        argv[i + 1] = arena_strndup(s->arena, options->program_arguments[i], strlen(options->program_arguments[i]));
    execv(path, argv);
    diag_error(s, "P0805", (Span){0}, "`%s` cannot be started: %s", path, strerror(errno));
    return EXIT_ENVIRONMENT;
}
