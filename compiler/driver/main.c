/* plc: reads the command line, runs one command, prints the diagnostics, and says by its exit code how it went. */
#include "driver/library.h"
#include "driver/options.h"

static int run_command(Session *s, const Options *options) {
    const CommandInfo *command = options->command;
    if (options->version) {
        puts("plc " PLAN_VERSION);
        return EXIT_DONE;
    }
    if (options->help) {
        options_help(command, stdout);
        return EXIT_DONE;
    }
    if (!command->run) {
        diag_error(s, "P9000", (Span){0, 0, 0}, "`plc %s` is not built yet", command->name);
        return EXIT_ERRORS;
    }
    return command->run(s, options);
}

int main(int argc, char **argv) {
    Session *s = session_new();
    Options options;
    if (!options_parse(s, argc, argv, &options)) {
        session_free(s);
        return EXIT_USAGE;
    }
    library_find(s);
    int status = run_command(s, &options);
    if (status == EXIT_DONE && diag_count(s, SEV_ERROR)) status = EXIT_ERRORS;
    if (options.json)
        diag_flush_json(s, stdout);
    else
        diag_flush(s, stderr, options_color(&options, stderr));
    session_free(s);
    if (fflush(stdout) || ferror(stdout)) {
        fputs("plc: standard output cannot be written\n", stderr);
        if (status == EXIT_DONE) status = EXIT_ENVIRONMENT;
    }
    return status;
}
