/* Small helpers of the runtime. */
#include "core/util.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double prt_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *prt_bytes(double bytes, char *buffer) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buffer, 32, unit == 0 ? "%.0f %s" : bytes < 10 ? "%.2f %s" : "%.1f %s", bytes, units[unit]);
    return buffer;
}

const char *prt_commas(int64_t value, char *buffer) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && digits[i - 1] != '-' && (n - i) % 3 == 0) buffer[at++] = ',';
        buffer[at++] = digits[i];
    }
    buffer[at] = 0;
    return buffer;
}

const char *prt_duration(double seconds, char *buffer) {
    if (!(seconds >= 0 && seconds < 1e9))
        snprintf(buffer, 32, "?");
    else if (seconds < 60)
        snprintf(buffer, 32, "%.0fs", seconds);
    else if (seconds < 3600)
        snprintf(buffer, 32, "%dm%02ds", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(buffer, 32, "%dh%02dm", (int)(seconds / 3600), (int)(seconds / 60) % 60);
    return buffer;
}

static size_t distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b), row[64];
    if (n > 40 || m > 40) return 99;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

const char *prt_nearest(const char *name, const char *const *names) {
    const char *best = NULL;
    size_t least = strlen(name) / 3 + 2;
    for (; *names; names++) {
        size_t d = distance(name, *names);
        if (d < least) {
            least = d;
            best = *names;
        }
    }
    return best;
}

bool prt_parse_whole(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno || end == text || *end) return false;
    *value = parsed;
    return true;
}

bool prt_parse_real(const char *text, double *value) {
    char *end;
    errno = 0;
    double parsed = strtod(text, &end);
    if (errno || end == text || *end || !isfinite(parsed)) return false;
    *value = parsed;
    return true;
}

int prt_pread_all(int fd, void *data, int64_t bytes, int64_t offset) {
    char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, (size_t)(bytes < (1 << 30) ? bytes : 1 << 30), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return -1;
        to += n;
        offset += n;
        bytes -= n;
    }
    return 0;
}

int prt_pwrite_all(int fd, const void *data, int64_t bytes, int64_t offset) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, (size_t)(bytes < (1 << 30) ? bytes : 1 << 30), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ENOSPC;
        from += n;
        offset += n;
        bytes -= n;
    }
    return 0;
}
