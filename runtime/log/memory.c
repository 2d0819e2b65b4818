/* The process's high-water mark. Pages of other ranks' arenas that a collective has touched count as resident in this
 * process too, so they are taken off again: with them in it the ranks' sum would count them twice. */
#include "log/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Resident bytes of mappings that begin in the range, and the process's own. From /proc/self/smaps. */
static int64_t resident_of_others(const PrtRank *rank) {
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file) return 0;
    char line[512];
    bool other = false;
    int64_t total = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        char mode[8];
        long kilobytes;
        if (sscanf(line, "%lx-%lx %7s", &start, &end, mode) == 3) {
            bool own = start >= (uintptr_t)rank->arena && start < (uintptr_t)(rank->arena + rank->arena_bytes);
            bool job = start == (uintptr_t)rank->job;
            other = mode[3] == 's' && !own && !job && strstr(line, "/dev/zero");
        } else if (other && sscanf(line, "Rss: %ld kB", &kilobytes) == 1) {
            total += (int64_t)kilobytes * 1024;
        }
    }
    fclose(file);
    return total;
}

int64_t prt_peak_bytes(const PrtRank *rank) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage)) return 0;
    int64_t peak = (int64_t)usage.ru_maxrss * 1024;
    return rank->n_ranks > 1 && rank->job ? peak - resident_of_others(rank) : peak;
}
