/* Small helpers of the runtime: time, sizes for people, nearest names, whole reads and writes. */
#ifndef PRT_UTIL_H
#define PRT_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

double prt_now(void); /* seconds, monotonic */
/* "1.50 GiB", "12.0 MiB", "512 B"; returns buffer (of at least 32 bytes). */
const char *prt_bytes(double bytes, char *buffer);
/* "1,234,567". */
const char *prt_commas(int64_t value, char *buffer);
/* "1h05m", "2m03s", "12s". */
const char *prt_duration(double seconds, char *buffer);
/* The entry of `names` (NULL-ended) nearest to `name`, or NULL when none is near. */
const char *prt_nearest(const char *name, const char *const *names);
/* A whole number, whole text: false when it is none or does not fit. */
bool prt_parse_whole(const char *text, int64_t *value);
bool prt_parse_real(const char *text, double *value);
/* Read or write all bytes at `offset`; 0, or an errno (-1: end of file came first). */
int prt_pread_all(int fd, void *data, int64_t bytes, int64_t offset);
int prt_pwrite_all(int fd, const void *data, int64_t bytes, int64_t offset);

#endif
