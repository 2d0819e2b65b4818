/* The header of NumPy's .npy files, versions 1 to 3: a magic, a length, and a Python dict such as
 * {'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }. */
#include "data/source.h"

#include "core/util.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *descr;
    PrtElement element;
} types[] = {{"|u1", PRT_E_U8},  {"|b1", PRT_E_U8},  {"|i1", PRT_E_I8},  {"<u2", PRT_E_U16}, {"<i2", PRT_E_I16},
             {"<u4", PRT_E_U32}, {"<i4", PRT_E_I32}, {"<i8", PRT_E_I64}, {"<f4", PRT_E_F32}, {"<f8", PRT_E_F64}};

/* The text after `'key':`, or NULL. */
static const char *after_key(const char *header, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *at = strstr(header, quoted);
    if (!at) return NULL;
    at += strlen(quoted);
    while (*at == ' ') at++;
    return at;
}

static bool read_shape(PrtFile *file, const char *at, char *why, size_t size) {
    if (!at || *at != '(') {
        snprintf(why, size, "`%s`: its .npy header has no shape", file->path);
        return false;
    }
    file->count = 1;
    for (at++; *at != ')';) {
        char *end;
        long long extent = strtoll(at, &end, 10);
        if (end == at || extent < 0 || file->n_dims == PRT_MAX_DIMS ||
            (extent && file->count > (INT64_MAX >> 8) / extent)) {
            snprintf(why, size, "`%s`: its .npy header has a shape that cannot be read", file->path);
            return false;
        }
        file->shape[file->n_dims++] = extent;
        file->count *= extent;
        at = end + (*end == 'L');
        while (*at == ' ' || *at == ',') at++;
    }
    file->rows = file->n_dims ? file->shape[0] : 1;
    return true;
}

static bool read_type(PrtFile *file, const char *at, char *why, size_t size) {
    char descr[16] = "";
    if (at && (*at == '\'' || *at == '"')) {
        size_t n = strcspn(at + 1, "'\"");
        if (n < sizeof descr) memcpy(descr, at + 1, n);
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(descr, types[i].descr)) continue;
        file->element = types[i].element;
        return true;
    }
    snprintf(why, size,
             "`%s`: elements of type `%s` are not read; save it as little-endian u1, u2, u4, i2, i4, i8, f4 or f8",
             file->path, descr);
    return false;
}

bool prt_npy_header(PrtFile *file, int fd, int64_t file_bytes, char *why, size_t size) {
    unsigned char head[12] = {0};
    char header[65536];
    if (prt_pread_all(fd, head, 10, 0)) {
        snprintf(why, size, "`%s`: %lld bytes are too few for an .npy file", file->path, (long long)file_bytes);
        return false;
    }
    int64_t length = head[8] | head[9] << 8, start = 10;
    if (head[6] >= 2 && !prt_pread_all(fd, head, 12, 0)) {
        length = (int64_t)head[8] | (int64_t)head[9] << 8 | (int64_t)head[10] << 16 | (int64_t)head[11] << 24;
        start = 12;
    }
    if (head[6] < 1 || head[6] > 3 || length >= (int64_t)sizeof header || prt_pread_all(fd, header, length, start)) {
        snprintf(why, size, "`%s`: its .npy header (version %d, %lld bytes) cannot be read", file->path, head[6],
                 (long long)length);
        return false;
    }
    header[length] = 0;
    file->start = start + length;
    const char *order = after_key(header, "fortran_order");
    if (!read_type(file, after_key(header, "descr"), why, size) ||
        !read_shape(file, after_key(header, "shape"), why, size))
        return false;
    if (!order || strncmp(order, "False", 5)) {
        snprintf(why, size, "`%s` is stored column by column; save it with numpy.ascontiguousarray", file->path);
        return false;
    }
    int64_t need = file->start + file->count * prt_element_bytes(file->element);
    if (file_bytes != need) {
        snprintf(why, size, "`%s` is %s: its header promises %lld bytes, it has %lld", file->path,
                 file_bytes < need ? "truncated" : "too long", (long long)need, (long long)file_bytes);
        return false;
    }
    return true;
}
