/* Streams of ids, and the first look at the files they come from. */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

bool prt_stream_add(PrtStream *stream, int file, int64_t first, int64_t count) {
    if (count <= 0) return true;
    if (stream->n == stream->room) {
        int room = stream->room ? 2 * stream->room : 16;
        PrtPiece *pieces = realloc(stream->pieces, (size_t)room * sizeof *pieces);
        if (!pieces) return false;
        stream->pieces = pieces;
        stream->room = room;
    }
    stream->pieces[stream->n++] = (PrtPiece){.file = file, .first = first, .count = count, .start = stream->total};
    stream->total += count;
    return true;
}

/* Widens n elements to i32; the index of the first that is not in [0, limit), or n. The bad value goes to *bad. */
static int64_t widen(PrtElement element, const void *data, int64_t n, int64_t limit, int32_t *out, int64_t *bad) {
    int64_t top = limit > 0 ? limit : INT64_C(1) << 31;
    for (int64_t i = 0; i < n; i++) {
        int64_t id = 0;
        switch (element) {
        case PRT_E_U8: id = ((const uint8_t *)data)[i]; break;
        case PRT_E_I8: id = ((const int8_t *)data)[i]; break;
        case PRT_E_U16: id = ((const uint16_t *)data)[i]; break;
        case PRT_E_I16: id = ((const int16_t *)data)[i]; break;
        case PRT_E_U32: id = ((const uint32_t *)data)[i]; break;
        case PRT_E_I32: id = ((const int32_t *)data)[i]; break;
        case PRT_E_I64: id = ((const int64_t *)data)[i]; break;
        default: break;
        }
        if (id < 0 || id >= top) {
            *bad = id;
            return i;
        }
        if (out) out[i] = (int32_t)id;
    }
    return n;
}

static bool bad_id(const PrtFile *file, int64_t position, int64_t id, int64_t limit, char *why, size_t size) {
    int64_t byte = file->start + position * prt_element_bytes(file->element);
    snprintf(why, size, "`%s` holds id %lld at position %lld (byte %lld), but ids must be below %lld", file->path,
             (long long)id, (long long)position, (long long)byte, (long long)(limit > 0 ? limit : INT64_C(1) << 31));
    return false;
}

static bool cannot_read(const PrtFile *file, int64_t position, int error, char *why, size_t size) {
    snprintf(why, size, "cannot read `%s` at position %lld: %s", file->path, (long long)position,
             error < 0 ? "it has become shorter since the start" : strerror(error));
    return false;
}

static bool read_piece(PrtFiles *files, int index, int64_t first, int64_t count, int64_t limit, int32_t *out, char *why,
                       size_t size) {
    _Alignas(8) char block[16384];
    const PrtFile *file = &files->items[index];
    int64_t room = (int64_t)sizeof block / prt_element_bytes(file->element), bad = 0;
    while (count > 0) {
        int64_t n = count < room ? count : room;
        int error = prt_files_read(files, index, first, n, block);
        if (error) return cannot_read(file, first, error, why, size);
        int64_t good = widen(file->element, block, n, limit, out, &bad);
        if (good < n) return bad_id(file, first + good, bad, limit, why, size);
        first += n;
        count -= n;
        out += n;
    }
    return true;
}

bool prt_stream_read(const PrtStream *stream, PrtFiles *files, int64_t position, int64_t count, int64_t limit,
                     int32_t *out, char *why, size_t size) {
    int low = 0, high = stream->n - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (stream->pieces[middle].start <= position)
            low = middle;
        else
            high = middle - 1;
    }
    for (; count > 0; low++) {
        const PrtPiece *piece = &stream->pieces[low];
        int64_t skip = position - piece->start, n = piece->count - skip;
        if (n > count) n = count;
        if (piece->file < 0)
            *out = '\n';
        else if (!read_piece(files, piece->file, piece->first + skip, n, limit, out, why, size))
            return false;
        position += n;
        count -= n;
        out += n;
    }
    return true;
}

/* ---- the look at the start ---- */

#define LOOK_BLOCK (1 << 18)
#define LOOK_BYTES (INT64_C(1) << 27) /* of all files together; more is looked at in evenly spread blocks */

typedef struct Utf8 {
    int seen, left;     /* bytes of the character so far, and to come */
    unsigned low, high; /* bounds of the next one */
    bool after_cr;
} Utf8;

static void not_utf8(PrtLook *look, int64_t bytes, const char *path, int64_t offset) {
    if (!look->invalid) {
        look->invalid_path = path;
        look->invalid_offset = offset;
    }
    look->invalid += bytes;
}

/* Eight bytes of ASCII without a carriage return: nearly all of most texts. */
static bool plain(const unsigned char *data) {
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones * 0x80;
    uint64_t word, turned;
    memcpy(&word, data, 8);
    turned = word ^ ones * '\r'; /* has a zero byte where there is a carriage return */
    return !((word | ((turned - ones) & ~turned)) & tops);
}

static void look_at_text(Utf8 *state, const unsigned char *data, int64_t n, const char *path, int64_t offset,
                         PrtLook *look) {
    for (int64_t i = 0; i < n; i++) {
        if (!state->left && !state->after_cr && i + 8 <= n && plain(data + i)) {
            i += 7;
            continue;
        }
        unsigned c = data[i];
        if (state->after_cr && c == '\n') look->carriage_returns++;
        state->after_cr = c == '\r';
        if (state->left && c >= state->low && c <= state->high) {
            state->seen++;
            state->left--;
            state->low = 0x80;
            state->high = 0xbf;
            continue;
        }
        if (state->left) not_utf8(look, state->seen, path, offset + i - state->seen); /* it broke off; c begins anew */
        state->left = 0;
        if (c < 0x80) continue;
        if (c < 0xc2 || c > 0xf4) {
            not_utf8(look, 1, path, offset + i);
            continue;
        }
        state->seen = 1;
        state->left = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
        state->low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80; /* no overlong forms, no surrogates */
        state->high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    }
}

static bool look_at_file(PrtFiles *files, int index, bool text, int64_t limit, int64_t stride, char *block,
                         PrtLook *look, char *why, size_t size) {
    const PrtFile *file = &files->items[index];
    int64_t width = prt_element_bytes(file->element), step = LOOK_BLOCK / width, bad = 0;
    Utf8 state = {0};
    for (int64_t first = 0; first < file->count; first += step * stride) {
        int64_t n = file->count - first < step ? file->count - first : step;
        int error = prt_files_read(files, index, first, n, block);
        if (error) return cannot_read(file, first, error, why, size);
        if (!text || limit < 256) {
            int64_t good = widen(file->element, block, n, limit, NULL, &bad);
            if (good < n) return bad_id(file, first + good, bad, limit, why, size);
        }
        if (text && first == 0 && n >= 3 && !memcmp(block, "\xef\xbb\xbf", 3)) look->marks++;
        if (stride > 1) state = (Utf8){0};
        if (text && stride == 1) look_at_text(&state, (unsigned char *)block, n, file->path, first, look);
        look->looked += n * width;
    }
    if (state.left) not_utf8(look, state.seen, file->path, file->count - state.seen);
    return true;
}

bool prt_files_look(PrtFiles *files, bool text, int64_t limit, PrtLook *look, char *why, size_t size) {
    int64_t bytes = 0;
    for (int i = 0; i < files->n; i++) bytes += files->items[i].count * prt_element_bytes(files->items[i].element);
    look->total = bytes;
    char *block = malloc(LOOK_BLOCK);
    bool ok = block != NULL;
    if (!ok) snprintf(why, size, "out of memory");
    for (int i = 0; ok && i < files->n; i++) {
        ok = look_at_file(files, i, text, limit, 1 + bytes / LOOK_BYTES, block, look, why, size);
    }
    free(block);
    return ok;
}
