/* JSON, as much of it as the runtime reads and writes: the program's description, safetensors headers, checkpoints. The
 * runtime has its own so that a compiled program needs nothing but libc. All functions take NULL for "not there". */
#ifndef PRT_JSON_H
#define PRT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum PrtJsonKind {
    PRT_JSON_NULL,
    PRT_JSON_BOOL,
    PRT_JSON_NUMBER,
    PRT_JSON_TEXT,
    PRT_JSON_LIST,
    PRT_JSON_OBJECT
} PrtJsonKind;

typedef struct PrtJson PrtJson;
struct PrtJson {
    PrtJsonKind kind;
    bool truth;
    double number;
    char *text;     /* UTF-8, escapes resolved */
    char *name;     /* in an object */
    PrtJson *first; /* of a list or object */
    PrtJson *next;
};

/* NULL when the text is not one JSON value (or out of memory). Nesting up to 64. */
PrtJson *prt_json_parse(const char *text);
void prt_json_free(PrtJson *value);
bool prt_json_is(const PrtJson *value, PrtJsonKind kind);
const PrtJson *prt_json_get(const PrtJson *object, const char *name);
const PrtJson *prt_json_at(const PrtJson *list, int index);
int prt_json_size(const PrtJson *list);
const char *prt_json_text(const PrtJson *value); /* NULL when it is no text */

#define PRT_JSON_EACH(item, list) for (item = (list) ? (list)->first : NULL; item; item = item->next)

/* Text that grows. When memory runs out, `failed` is set and the rest is dropped. */
typedef struct PrtText {
    char *data; /* NUL-ended, or NULL */
    size_t n, room;
    bool failed;
} PrtText;
void prt_text_add(PrtText *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void prt_text_quote(PrtText *text, const char *string); /* with quotes and escapes */

#endif
