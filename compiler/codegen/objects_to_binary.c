/* Links a program through the system's C compiler driver.
 *
 * In: the object file of the generated code. Out: an executable of it, the runtime, libm and threads; or the linker's
 * own words as a diagnostic. */
#include "codegen/codegen.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;

bool objects_to_binary(Session *s, const char *object, const char *runtime_library, const char *out) {
    const char *cc = getenv("CC") ? getenv("CC") : "cc";
    char *const arguments[] = {
        (char *)cc, "-o",        (char *)out,         (char *)object,       (char *)runtime_library,
        "-lm",      "-lpthread", "-Wl,--gc-sections", "-Wl,-z,noexecstack", NULL};
    pid_t child;
    int error = posix_spawnp(&child, cc, NULL, NULL, arguments, environ);
    if (error) {
        Diag *d = diag_error(s, "P0801", (Span){0}, "the linker `%s` cannot be started: %s", cc, strerror(error));
        diag_help(d, "install a C compiler, or name one in the environment variable CC");
        return false;
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    Diag *d = diag_error(s, "P0802", (Span){0}, "linking `%s` failed", out);
    diag_help(d, "the linker's own message stands above; is there room on the disk?");
    return false;
}
