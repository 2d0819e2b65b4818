/* LD_PRELOAD: the FAIL_AT-th call in each process fails, of allocations (FAIL_KIND=memory) or of file operations
 * (file). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static atomic_int calls;
static pid_t owner; /* a forked process counts anew */

static int fails(const char *kind) {
    const char *wanted = getenv("FAIL_KIND"), *at = getenv("FAIL_AT");
    if (!wanted || !at || strcmp(wanted, kind)) return 0;
    if (owner != getpid()) {
        owner = getpid();
        atomic_store(&calls, 0);
    }
    if (atomic_fetch_add(&calls, 1) + 1 != atoi(at)) return 0;
    static const char note[] = "injected\n";
    if (write(2, note, sizeof note - 1) < 0) _exit(99);
    return 1;
}

static int memory_fails(void) {
    if (!fails("memory")) return 0;
    errno = ENOMEM;
    return 1;
}

static int file_fails(void) {
    if (!fails("file")) return 0;
    errno = EIO;
    return 1;
}

void *malloc(size_t n) { return memory_fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return memory_fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return memory_fails() ? NULL : __libc_realloc(p, n); }

#define NEXT(name, result, ...) ((result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

int open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    int mode = va_arg(list, int);
    va_end(list);
    return file_fails() ? -1 : NEXT("open", int, const char *, int, ...)(path, flags, mode);
}
ssize_t pread(int fd, void *data, size_t n, off_t at) {
    return file_fails() ? -1 : NEXT("pread", ssize_t, int, void *, size_t, off_t)(fd, data, n, at);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    return file_fails() ? -1 : NEXT("pwrite", ssize_t, int, const void *, size_t, off_t)(fd, data, n, at);
}
int fsync(int fd) { return file_fails() ? -1 : NEXT("fsync", int, int)(fd); }
int mkdir(const char *path, mode_t mode) {
    return file_fails() ? -1 : NEXT("mkdir", int, const char *, mode_t)(path, mode);
}
int rename(const char *from, const char *to) {
    return file_fails() ? -1 : NEXT("rename", int, const char *, const char *)(from, to);
}
int posix_fallocate(int fd, off_t at, off_t n) {
    return file_fails() ? EIO : NEXT("posix_fallocate", int, int, off_t, off_t)(fd, at, n);
}
