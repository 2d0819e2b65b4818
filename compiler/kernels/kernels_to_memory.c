/* An address for every buffer in the rank's arena.
 *
 * Persistent buffers come first, one after the other: what the runtime writes, then weights, moments, gradients. The
 * others are intervals in time; each takes the lowest gap that is free through its life. Placing them well is bin
 * packing in two dimensions, so several orders are tried and the lowest arena is kept. */
#include "kernels/kernels.h"

#include <stdlib.h>

const char *const memory_kind_name[MEM_KINDS] = {"weight", "gradient", "moment", "activation", "temporary",
                                                 "data",   "scalar",   "cache",  "scratch"};

static int64_t buffer_bytes(const Buffer *buffer) { return (buffer->bytes * buffer->flights + 63) / 64 * 64; }

static bool buffer_used(const Buffer *buffer) { return buffer->persistent || buffer->last >= buffer->first; }

static int64_t place_persistent(RoleProgram *program) {
    static const MemoryKind order[] = {MEM_SCALAR, MEM_DATA, MEM_WEIGHT, MEM_MOMENT, MEM_GRADIENT, MEM_CACHE};
    int64_t top = 0;
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (int i = 0; i < program->buffers.n; i++) {
            Buffer *buffer = program->buffers.at[i];
            if (!buffer->persistent || buffer->kind != order[k]) continue;
            buffer->address = top;
            top += buffer_bytes(buffer);
        }
    return top;
}

/* ---- intervals ---------------------------------------------------------------------------------- */

static bool overlap_in_time(const Buffer *a, const Buffer *b) { return a->first <= b->last && b->first <= a->last; }

static int by_address(const void *x, const void *y) {
    const Buffer *a = *(Buffer *const *)x, *b = *(Buffer *const *)y;
    return a->address < b->address ? -1 : a->address > b->address;
}

/* Puts the buffers, in the order given, each into the lowest gap; returns the top. */
static int64_t place_in_order(Arena *arena, Buffer **buffers, int n, int64_t base) {
    Buffer **alive = NEW_N(arena, Buffer *, n + 1);
    int64_t top = base;
    for (int i = 0; i < n; i++) {
        int m = 0;
        for (int j = 0; j < i; j++)
            if (overlap_in_time(buffers[i], buffers[j])) alive[m++] = buffers[j];
        qsort(alive, (size_t)m, sizeof *alive, by_address);
        int64_t at = base, need = buffer_bytes(buffers[i]);
        for (int j = 0; j < m && alive[j]->address < at + need; j++) {
            int64_t end = alive[j]->address + buffer_bytes(alive[j]);
            if (end > at) at = end;
        }
        buffers[i]->address = at;
        if (at + need > top) top = at + need;
    }
    return top;
}

static int by_size(const void *x, const void *y) {
    const Buffer *a = *(Buffer *const *)x, *b = *(Buffer *const *)y;
    int64_t sa = buffer_bytes(a), sb = buffer_bytes(b);
    return sa != sb ? (sa > sb ? -1 : 1) : a->id - b->id;
}

static int by_life(const void *x, const void *y) {
    const Buffer *a = *(Buffer *const *)x, *b = *(Buffer *const *)y;
    int la = a->last - a->first, lb = b->last - b->first;
    return la != lb ? lb - la : by_size(x, y);
}

static int by_first(const void *x, const void *y) {
    const Buffer *a = *(Buffer *const *)x, *b = *(Buffer *const *)y;
    return a->first != b->first ? a->first - b->first : by_size(x, y);
}

static int by_area(const void *x, const void *y) {
    const Buffer *a = *(Buffer *const *)x, *b = *(Buffer *const *)y;
    double aa = (double)buffer_bytes(a) * (a->last - a->first + 1),
           ab = (double)buffer_bytes(b) * (b->last - b->first + 1);
    return aa != ab ? (aa > ab ? -1 : 1) : a->id - b->id;
}

/* ---- what is live ------------------------------------------------------------------------------- */

static void measure(RoleProgram *program) {
    int positions = program->entries.n ? vec_last(&program->entries).last + 2 : 1;
    int64_t *change = NEW_N(program->arena, int64_t, positions + 1), persistent = 0;
    for (int i = 0; i < program->buffers.n; i++) {
        const Buffer *buffer = program->buffers.at[i];
        if (buffer->persistent)
            persistent += buffer_bytes(buffer);
        else if (buffer_used(buffer))
            change[buffer->first] += buffer_bytes(buffer), change[buffer->last + 1] -= buffer_bytes(buffer);
    }
    int64_t live = persistent;
    int peak = 0;
    program->live_peak = persistent;
    for (int p = 0, e = 0; p < positions; p++) {
        live += change[p];
        if (live > program->live_peak) program->live_peak = live, peak = p;
        while (e < program->entries.n && program->entries.at[e].last < p) e++;
        if (e < program->entries.n && live > program->entries.at[e].peak) program->entries.at[e].peak = live;
    }
    for (int i = 0; i < program->buffers.n; i++) {
        const Buffer *buffer = program->buffers.at[i];
        if (buffer->persistent || (buffer_used(buffer) && buffer->first <= peak && peak <= buffer->last))
            program->by_kind[buffer->kind] += buffer_bytes(buffer);
    }
}

void kernels_to_memory(RoleProgram *program) {
    measure(program);
    int64_t base = place_persistent(program), best_top = INT64_MAX;
    int n = 0;
    Buffer **buffers = NEW_N(program->arena, Buffer *, program->buffers.n + 1);
    for (int i = 0; i < program->buffers.n; i++)
        if (!program->buffers.at[i]->persistent && buffer_used(program->buffers.at[i]))
            buffers[n++] = program->buffers.at[i];
    int (*const orders[])(const void *, const void *) = {by_size, by_area, by_life, by_first};
    int64_t *best = NEW_N(program->arena, int64_t, program->buffers.n + 1); /* by Buffer.id */
    for (size_t k = 0; k < sizeof orders / sizeof *orders && best_top > program->live_peak; k++) {
        qsort(buffers, (size_t)n, sizeof *buffers, orders[k]);
        int64_t top = place_in_order(program->arena, buffers, n, base);
        if (top >= best_top) continue;
        best_top = top;
        for (int i = 0; i < n; i++) best[buffers[i]->id] = buffers[i]->address;
    }
    for (int i = 0; i < n; i++) buffers[i]->address = best[buffers[i]->id];
    program->arena_bytes = best_top == INT64_MAX ? base : best_top;
}

bool memory_verify(const RoleProgram *program, Text *why) {
    for (int i = 0; i < program->buffers.n; i++) {
        const Buffer *a = program->buffers.at[i];
        if (!buffer_used(a)) continue;
        if (a->address < 0 || a->address % 64 || a->address + buffer_bytes(a) > program->arena_bytes) {
            text_printf(why, "buffer %d (%s) at %lld lies outside the arena", a->id, a->name, (long long)a->address);
            return false;
        }
        for (int j = 0; j < i; j++) {
            const Buffer *b = program->buffers.at[j];
            if (!buffer_used(b) || !(a->persistent || b->persistent || overlap_in_time(a, b))) continue;
            if (a->address >= b->address + buffer_bytes(b) || b->address >= a->address + buffer_bytes(a)) continue;
            text_printf(why, "buffers %d (%s) and %d (%s) overlap", b->id, b->name, a->id, a->name);
            return false;
        }
    }
    return true;
}
