/* Fields of the program's description, read with checks: presence, type, range. The first complaint is kept, and what
 * is read after it has no meaning; so a caller may read on and ask `failed` where it would go by what was read. */
#ifndef PRT_JSON_READ_H
#define PRT_JSON_READ_H

#include "core/json.h"
#include "core/program.h"

/* Where we are, for messages, and the first complaint. */
typedef struct PrtReader {
    char *why;
    size_t size;
    bool failed;
    char at[160]; /* "tensors[3]." */
    PrtProgram *program;
} PrtReader;

/* Complains, with `format`; only the first time. */
void prt_read_fail(PrtReader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Where the fields stand that are read next. */
void prt_read_at(PrtReader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed memory, and a copy of a text; both belong to the program. */
void *prt_read_alloc(PrtReader *r, int64_t count, size_t size);
const char *prt_read_copy(PrtReader *r, const char *text);

/* NULL where it is missing or null. */
const PrtJson *prt_read_field(const PrtJson *object, const char *name);
/* A whole number between `low` and `high`, else `low` after a complaint. */
int64_t prt_read_whole(PrtReader *r, const PrtJson *item, const char *name, int64_t low, int64_t high);
int64_t prt_read_number(PrtReader *r, const PrtJson *object, const char *name, int64_t low, int64_t high);
int64_t prt_read_number_or(PrtReader *r, const PrtJson *object, const char *name, int64_t low, int64_t high,
                           int64_t otherwise);
double prt_read_real_or(PrtReader *r, const PrtJson *object, const char *name, double otherwise);
const char *prt_read_text_or(PrtReader *r, const PrtJson *object, const char *name, const char *otherwise);
const char *prt_read_text(PrtReader *r, const PrtJson *object, const char *name);
/* NULL where there is none; a complaint if it is needed. */
const PrtJson *prt_read_list(PrtReader *r, const PrtJson *object, const char *name, bool needed);
/* Whether the field is this text. */
bool prt_read_is(const PrtJson *object, const char *name, const char *value);

#endif
