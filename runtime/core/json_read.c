/* Reading fields of JSON objects with checks (see json_read.h). Complaints name the field by where it stands. */
#include "core/json_read.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void prt_read_fail(PrtReader *r, const char *format, ...) {
    if (r->failed) return;
    r->failed = true;
    va_list list;
    va_start(list, format);
    vsnprintf(r->why, r->size, format, list);
    va_end(list);
}

void prt_read_at(PrtReader *r, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(r->at, sizeof r->at, format, list);
    va_end(list);
}

void *prt_read_alloc(PrtReader *r, int64_t count, size_t size) {
    void *p = calloc(count > 0 ? (size_t)count : 1, size);
    if (!p) prt_read_fail(r, "out of memory");
    return p;
}

const char *prt_read_copy(PrtReader *r, const char *text) {
    char *copy = strdup(text);
    if (!copy) prt_read_fail(r, "out of memory");
    return copy;
}

const PrtJson *prt_read_field(const PrtJson *object, const char *name) {
    const PrtJson *item = prt_json_get(object, name);
    return prt_json_is(item, PRT_JSON_NULL) ? NULL : item;
}

int64_t prt_read_whole(PrtReader *r, const PrtJson *item, const char *name, int64_t low, int64_t high) {
    if (!prt_json_is(item, PRT_JSON_NUMBER) || item->number != floor(item->number)) {
        prt_read_fail(r, "`%s%s` is not a whole number", r->at, name);
        return low;
    }
    double value = item->number;
    if (!(value >= (double)low && value <= (double)high)) {
        prt_read_fail(r, "`%s%s` is %.17g, not between %lld and %lld", r->at, name, value, (long long)low,
                      (long long)high);
        return low;
    }
    return (int64_t)value;
}

int64_t prt_read_number(PrtReader *r, const PrtJson *object, const char *name, int64_t low, int64_t high) {
    const PrtJson *item = prt_read_field(object, name);
    if (!item) {
        prt_read_fail(r, "`%s%s` is missing", r->at, name);
        return low;
    }
    return prt_read_whole(r, item, name, low, high);
}

int64_t prt_read_number_or(PrtReader *r, const PrtJson *object, const char *name, int64_t low, int64_t high,
                           int64_t otherwise) {
    const PrtJson *item = prt_read_field(object, name);
    return item ? prt_read_whole(r, item, name, low, high) : otherwise;
}

double prt_read_real_or(PrtReader *r, const PrtJson *object, const char *name, double otherwise) {
    const PrtJson *item = prt_read_field(object, name);
    if (!item) return otherwise;
    if (!prt_json_is(item, PRT_JSON_NUMBER) || !isfinite(item->number)) {
        prt_read_fail(r, "`%s%s` is not a number", r->at, name);
        return otherwise;
    }
    return item->number;
}

const char *prt_read_text_or(PrtReader *r, const PrtJson *object, const char *name, const char *otherwise) {
    const PrtJson *item = prt_read_field(object, name);
    if (!item) return otherwise ? prt_read_copy(r, otherwise) : NULL;
    if (!prt_json_is(item, PRT_JSON_TEXT)) {
        prt_read_fail(r, "`%s%s` is not a text", r->at, name);
        return NULL;
    }
    return prt_read_copy(r, item->text);
}

const char *prt_read_text(PrtReader *r, const PrtJson *object, const char *name) {
    const char *value = prt_read_text_or(r, object, name, NULL);
    if (!value) prt_read_fail(r, "`%s%s` is missing", r->at, name);
    return value ? value : prt_read_copy(r, "");
}

const PrtJson *prt_read_list(PrtReader *r, const PrtJson *object, const char *name, bool needed) {
    const PrtJson *item = prt_read_field(object, name);
    if (!item && !needed) return NULL;
    if (!prt_json_is(item, PRT_JSON_LIST)) prt_read_fail(r, "`%s%s` is not a list", r->at, name);
    return prt_json_is(item, PRT_JSON_LIST) ? item : NULL;
}

bool prt_read_is(const PrtJson *object, const char *name, const char *value) {
    const char *held = prt_json_text(prt_read_field(object, name));
    return held && !strcmp(held, value);
}
