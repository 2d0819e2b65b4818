/* safetensors headers: u64 length, JSON, then the bytes of the tensors without gaps. */
#include "checkpoint/format.h"

#include "core/json.h"
#include "core/util.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const prt_file_name[PRT_FILE_KINDS] = {"model.safetensors", "optimizer.safetensors"};

PrtFileKind prt_file_of(const PrtTensor *tensor) {
    if (!tensor->saved) return PRT_FILE_NONE;
    return strcmp(tensor->kind, "weight") ? PRT_FILE_OPTIMIZER : PRT_FILE_MODEL;
}

static int64_t elements_of(const int64_t *shape, int n_dims) {
    int64_t elements = 1;
    for (int i = 0; i < n_dims; i++) elements *= shape[i];
    return elements;
}

static void describe(PrtText *json, const PrtEntry *entry) {
    prt_text_add(json, ",");
    prt_text_quote(json, entry->name);
    prt_text_add(json, ":{\"dtype\":\"%s\",\"shape\":[", prt_dtype_safetensors[entry->dtype]);
    for (int d = 0; d < entry->n_dims; d++) prt_text_add(json, "%s%lld", d ? "," : "", (long long)entry->shape[d]);
    prt_text_add(json, "],\"data_offsets\":[%lld,%lld]}", (long long)entry->begin, (long long)entry->end);
}

/* The length field and the text, padded with blanks to a multiple of 8. */
static char *frame(const char *json, int64_t *bytes) {
    uint64_t n = strlen(json), padded = (n + 7) / 8 * 8;
    char *header = malloc(8 + padded);
    if (!header) return NULL;
    memcpy(header, &padded, 8);
    memcpy(header + 8, json, n);
    memset(header + 8 + n, ' ', padded - n);
    *bytes = (int64_t)(8 + padded);
    return header;
}

char *prt_table_write(const PrtRole *role, PrtFileKind kind, PrtTable *table) {
    *table = (PrtTable){.entries = calloc((size_t)role->n_tensors + 1, sizeof *table->entries)};
    PrtText json = {0};
    prt_text_add(&json, "{\"__metadata__\":{\"format\":\"pt\"}"); /* what transformers asks for */
    int64_t at = 0;
    for (int i = 0; table->entries && i < role->n_tensors; i++) {
        const PrtTensor *tensor = &role->tensors[i];
        if (prt_file_of(tensor) != kind) continue;
        PrtEntry *entry = &table->entries[table->n++];
        *entry =
            (PrtEntry){.name = strdup(tensor->name), .dtype = tensor->dtype, .n_dims = tensor->n_dims, .begin = at};
        for (int d = 0; d < tensor->n_dims; d++) entry->shape[d] = prt_saved_extent(tensor, d);
        at = entry->end = at + elements_of(entry->shape, entry->n_dims) * prt_dtype_bytes(entry->dtype);
        if (!entry->name)
            json.failed = true;
        else
            describe(&json, entry);
    }
    prt_text_add(&json, "}");
    char *header = !json.failed && table->entries ? frame(json.data, &table->header_bytes) : NULL;
    free(json.data);
    if (!header) {
        prt_table_free(table);
        return NULL;
    }
    for (int i = 0; i < table->n; i++) {
        table->entries[i].begin += table->header_bytes;
        table->entries[i].end += table->header_bytes;
    }
    table->file_bytes = table->header_bytes + at;
    return header;
}

char *prt_table_write_all(const PrtProgram *program, PrtFileKind kind, PrtTable *table) {
    PrtRole all = {0};
    int most = 0;
    for (int r = 0; r < program->n_roles; r++) most += program->roles[r].n_tensors;
    all.tensors = calloc((size_t)most + 1, sizeof *all.tensors);
    for (int r = 0; all.tensors && r < program->n_roles; r++)
        for (int i = 0; i < program->roles[r].n_tensors; i++) {
            const PrtTensor *tensor = &program->roles[r].tensors[i];
            int k = 0;
            while (k < all.n_tensors && strcmp(all.tensors[k].name, tensor->name)) k++;
            if (k == all.n_tensors && prt_file_of(tensor) == kind) all.tensors[all.n_tensors++] = *tensor;
        }
    char *header = all.tensors ? prt_table_write(&all, kind, table) : NULL;
    free(all.tensors);
    return header;
}

static int compare_entries(const void *a, const void *b) {
    const PrtEntry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

typedef struct Complaint {
    const char *path;
    char *why;
    size_t size;
} Complaint;

__attribute__((format(printf, 2, 3))) static bool damaged(const Complaint *c, const char *format, ...) {
    char what[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    snprintf(c->why, c->size, "`%s` is damaged: %s", c->path, what);
    return false;
}

static bool whole_at(const PrtJson *list, int index, int64_t *value) {
    const PrtJson *item = prt_json_at(list, index);
    if (!prt_json_is(item, PRT_JSON_NUMBER) || item->number < 0 || item->number > 9e15 ||
        item->number != floor(item->number))
        return false;
    *value = (int64_t)item->number;
    return true;
}

static bool read_entry(const PrtJson *item, PrtEntry *entry, const Complaint *c) {
    const PrtJson *dtype = prt_json_get(item, "dtype"), *shape = prt_json_get(item, "shape");
    const PrtJson *offsets = prt_json_get(item, "data_offsets");
    entry->name = strdup(item->name);
    if (!entry->name) return damaged(c, "out of memory");
    if (!prt_json_is(dtype, PRT_JSON_TEXT) || !prt_json_is(shape, PRT_JSON_LIST) || prt_json_size(offsets) != 2) {
        return damaged(c, "the header's entry `%s` is incomplete", item->name);
    }
    int d = 0;
    while (d < PRT_DTYPES && strcmp(dtype->text, prt_dtype_safetensors[d])) d++;
    if (d == PRT_DTYPES) {
        snprintf(c->why, c->size, "`%s`: tensor `%s` has dtype %s, which is not read", c->path, item->name,
                 dtype->text);
        return false;
    }
    entry->dtype = (PrtDType)d;
    entry->n_dims = prt_json_size(shape);
    if (entry->n_dims > PRT_MAX_DIMS) return damaged(c, "`%s` has %d dimensions", item->name, entry->n_dims);
    double elements = 1;
    for (int i = 0; i < entry->n_dims; i++) {
        if (!whole_at(shape, i, &entry->shape[i])) return damaged(c, "the shape of `%s` cannot be read", item->name);
        elements *= (double)entry->shape[i];
    }
    if (!whole_at(offsets, 0, &entry->begin) || !whole_at(offsets, 1, &entry->end) || entry->end < entry->begin ||
        elements * (double)prt_dtype_bytes(entry->dtype) != (double)(entry->end - entry->begin)) {
        return damaged(c, "the offsets of `%s` do not fit its shape", item->name);
    }
    return true;
}

/* No holes, no overlaps, no name twice, and the end of the last tensor is the end of the file. */
static bool check_table(PrtTable *table, const Complaint *c) {
    qsort(table->entries, (size_t)table->n, sizeof *table->entries, compare_entries);
    int64_t at = 0;
    for (int i = 0; i < table->n; i++) {
        PrtEntry *entry = &table->entries[i];
        if (entry->begin != at)
            return damaged(c, "`%s` begins at byte %lld of the data, not %lld", entry->name, (long long)entry->begin,
                           (long long)at);
        at = entry->end;
        for (int k = 0; k < i; k++) {
            if (!strcmp(table->entries[k].name, entry->name)) return damaged(c, "`%s` is there twice", entry->name);
        }
        entry->begin += table->header_bytes;
        entry->end += table->header_bytes;
    }
    if (at + table->header_bytes != table->file_bytes) {
        return damaged(c, "it has %lld bytes, its header promises %lld", (long long)table->file_bytes,
                       (long long)(at + table->header_bytes));
    }
    return true;
}

static bool read_entries(const char *json, PrtTable *table, const Complaint *c) {
    PrtJson *root = prt_json_parse(json), *item;
    bool ok = prt_json_is(root, PRT_JSON_OBJECT) || damaged(c, "its header is no JSON");
    table->entries = ok ? calloc((size_t)prt_json_size(root) + 1, sizeof *table->entries) : NULL;
    if (ok && !table->entries) ok = damaged(c, "out of memory");
    if (ok) {
        PRT_JSON_EACH(item, root) {
            if (!strcmp(item->name, "__metadata__")) continue;
            ok = read_entry(item, &table->entries[table->n++], c);
            if (!ok) break;
        }
    }
    prt_json_free(root);
    return ok && check_table(table, c);
}

bool prt_table_read(const char *path, int fd, PrtTable *table, char *why, size_t size) {
    Complaint c = {path, why, size};
    struct stat about;
    uint64_t n = 0;
    *table = (PrtTable){0};
    if (fstat(fd, &about) || prt_pread_all(fd, &n, 8, 0)) return damaged(&c, "it has fewer than 8 bytes");
    table->file_bytes = about.st_size;
    if (n > 100000000 || (int64_t)n + 8 > about.st_size) {
        return damaged(&c, "its header would have %llu bytes, the file has %lld", (unsigned long long)n,
                       (long long)about.st_size);
    }
    char *json = malloc(n + 1);
    if (!json) return damaged(&c, "out of memory");
    bool ok = !prt_pread_all(fd, json, (int64_t)n, 8);
    json[ok ? n : 0] = 0;
    table->header_bytes = (int64_t)n + 8;
    ok = (ok && json[0] == '{') || damaged(&c, "its header is no JSON object");
    ok = ok && read_entries(json, table, &c);
    free(json);
    if (!ok) prt_table_free(table);
    return ok;
}

const PrtEntry *prt_table_find(const PrtTable *table, const char *name) {
    for (int i = 0; i < table->n; i++) {
        if (!strcmp(table->entries[i].name, name)) return &table->entries[i];
    }
    return NULL;
}

void prt_table_free(PrtTable *table) {
    for (int i = 0; i < table->n; i++) free(table->entries[i].name);
    free(table->entries);
    *table = (PrtTable){0};
}
