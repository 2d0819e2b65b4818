/* Random loops for tests: a seed gives a loop, buffers for its pointers and their contents.
 *
 * Loops mix elementwise chains, row passes, reductions, gathers, narrow memory and random bits over axes of awkward
 * extents. Every store covers the axes of its pass without overlap, so that any order of rows gives the same bytes. */
#ifndef LOOP_RANDOM_H
#define LOOP_RANDOM_H

#include "ir/loop.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CASE_MAX_BUFFERS = 16, CASE_GATHER_ROWS = 23 };

typedef struct CaseBuffer {
    LoopMemory memory;
    int64_t bytes;
    bool output;
    bool indices; /* values in [0, CASE_GATHER_ROWS) */
} CaseBuffer;

typedef struct LoopCase {
    Arena *arena;
    uint32_t state;
    Loop *loop;
    LoopBuilder builder;
    CaseBuffer buffers[CASE_MAX_BUFFERS];
    int n_buffers;
    LoopValue values[512]; /* usable now */
    int n_values;
} LoopCase;

static inline uint32_t case_random(LoopCase *c) {
    c->state ^= c->state << 13;
    c->state ^= c->state >> 17;
    c->state ^= c->state << 5;
    return c->state;
}

static inline int case_below(LoopCase *c, int n) { return (int)(case_random(c) % (uint32_t)n); }
static inline bool case_chance(LoopCase *c, int percent) { return case_below(c, 100) < percent; }

static inline LoopValue case_keep(LoopCase *c, LoopValue value) {
    c->values[c->n_values++] = value;
    return value;
}

/* A value of the type that is usable now; a constant when there is none. */
static inline LoopValue case_pick(LoopCase *c, LoopType type) {
    for (int tries = 0; tries < 12 && c->n_values > 0; tries++) {
        /* recent ones are likelier, so that chains grow long */
        int from = case_chance(c, 60) && c->n_values > 6 ? c->n_values - 6 : 0;
        LoopValue value = c->values[from + case_below(c, c->n_values - from)];
        if (c->loop->code.at[value].type == type) return value;
    }
    if (type == LOOP_TYPE_F) return loop_const_f(&c->builder, (case_below(c, 4000) - 2000) * 0.001);
    if (type == LOOP_TYPE_I) return loop_const_i(&c->builder, case_below(c, 100) - 20);
    LoopValue x = case_pick(c, LOOP_TYPE_F), y = case_pick(c, LOOP_TYPE_F);
    return loop_emit(&c->builder, LOOP_FLT, x, y, -1);
}

/* A layout over axes [0, n): dense, some axes left out (unless `all`), possibly transposed or with gaps. */
static inline LoopAccess case_access(LoopCase *c, LoopMemory memory, int n, bool all, bool gathers, bool output) {
    LoopAccess access = {.pointer = c->n_buffers, .memory = memory, .offset = case_below(c, 3) * case_below(c, 9)};
    int order[LOOP_MAX_AXES];
    for (int i = 0; i < n; i++) order[i] = i;
    if (n > 1 && case_chance(c, 15)) {
        int i = case_below(c, n), j = case_below(c, n), t = order[i];
        order[i] = order[j], order[j] = t;
    }
    int64_t stride = case_chance(c, 10) ? 2 : 1;
    for (int i = n - 1; i >= 0; i--) {
        if (!all && case_chance(c, 25)) continue;
        access.stride[order[i]] = stride;
        stride *= c->loop->extent[order[i]];
        if (case_chance(c, 10)) stride += 3;
    }
    if (gathers) access.index_stride = case_chance(c, 30) ? 1 : stride;
    int64_t elements = 1 + access.offset + access.index_stride * (CASE_GATHER_ROWS - 1);
    for (int i = 0; i < n; i++) elements += (c->loop->extent[i] - 1) * access.stride[i];
    c->buffers[c->n_buffers++] =
        (CaseBuffer){.memory = memory, .bytes = elements * loop_memory_bytes(memory), .output = output};
    return access;
}

static inline void case_load(LoopCase *c, bool per_row) {
    static const LoopMemory kinds[] = {LOOP_MEM_F32, LOOP_MEM_F32,  LOOP_MEM_F32, LOOP_MEM_F32, LOOP_MEM_I32,
                                       LOOP_MEM_U8,  LOOP_MEM_BF16, LOOP_MEM_F16, LOOP_MEM_U16};
    if (c->n_buffers + 3 >= CASE_MAX_BUFFERS) return;
    int n = per_row ? c->loop->n_outer : c->loop->n_axes;
    if (case_chance(c, 20)) {
        LoopAccess indices = case_access(c, case_chance(c, 70) ? LOOP_MEM_I32 : LOOP_MEM_U16, n, false, false, false);
        c->buffers[c->n_buffers - 1].indices = true;
        LoopValue index = loop_load(&c->builder, indices);
        LoopAccess table = case_access(c, kinds[case_below(c, 9)], n, false, true, false);
        if (case_chance(c, 30)) { /* a table that starts in the middle, as on one rank of several */
            index = loop_emit(&c->builder, LOOP_IADD, index, loop_const_i(&c->builder, 1000), -1);
            table.offset -= 1000 * table.index_stride;
        }
        case_keep(c, loop_gather(&c->builder, table, index));
        return;
    }
    case_keep(c, loop_load(&c->builder, case_access(c, kinds[case_below(c, 9)], n, false, false, false)));
}

static inline void case_store(LoopCase *c, bool per_row, LoopType type) {
    static const LoopMemory floats[] = {LOOP_MEM_F32, LOOP_MEM_F32, LOOP_MEM_F32, LOOP_MEM_BF16, LOOP_MEM_F16};
    static const LoopMemory ints[] = {LOOP_MEM_I32, LOOP_MEM_I32, LOOP_MEM_U16};
    if (c->n_buffers >= CASE_MAX_BUFFERS) return;
    LoopMemory memory = type == LOOP_TYPE_F   ? floats[case_below(c, 5)]
                        : type == LOOP_TYPE_I ? ints[case_below(c, 3)]
                                              : LOOP_MEM_U8;
    LoopValue value = case_pick(c, type);
    int n = per_row ? c->loop->n_outer : c->loop->n_axes;
    loop_store(&c->builder, case_access(c, memory, n, true, false, true), value);
}

static inline void case_op(LoopCase *c, bool per_row) {
    LoopBuilder *b = &c->builder;
    if (case_chance(c, 3)) {
        case_keep(c,
                  loop_random_bits(b, case_pick(c, LOOP_TYPE_I), case_pick(c, LOOP_TYPE_I), case_pick(c, LOOP_TYPE_I)));
        return;
    }
    int n_axes = per_row ? c->loop->n_outer : c->loop->n_axes;
    if (n_axes > 0 && case_chance(c, 8)) {
        case_keep(c, loop_index(b, case_below(c, n_axes)));
        return;
    }
    LoopOp op = (LoopOp)(LOOP_ADD + case_below(c, LOOP_REDUCE_SUM - LOOP_ADD));
    if (case_chance(c, 30)) op = (LoopOp)(LOOP_ADD + case_below(c, LOOP_POW - LOOP_ADD)); /* more floats */
    const LoopOpInfo *info = &loop_op_table[op];
    LoopValue in[3] = {-1, -1, -1};
    LoopType any = case_chance(c, 60) ? LOOP_TYPE_F : LOOP_TYPE_I;
    for (int k = 0; k < info->operands; k++)
        in[k] = case_pick(c, op == LOOP_SELECT ? (k == 0 ? LOOP_TYPE_B : any) : info->operand);
    case_keep(c, loop_emit(b, op, in[0], in[1], in[2]));
}

/* An inner pass reduces one to three values, stores, or both. */
static inline void case_pass(LoopCase *c, bool per_row, bool last) {
    LoopValue rows[512];
    int n_rows = c->n_values;
    memcpy(rows, c->values, sizeof *rows * (size_t)n_rows);
    loop_begin_pass(&c->builder, per_row);
    for (int i = 1 + case_below(c, 3); i > 0; i--) case_load(c, per_row);
    for (int i = 2 + case_below(c, 14); i > 0; i--) case_op(c, per_row);
    if (last || per_row || case_chance(c, 40)) case_store(c, per_row, LOOP_TYPE_F);
    if (case_chance(c, 30)) case_store(c, per_row, case_chance(c, 50) ? LOOP_TYPE_I : LOOP_TYPE_B);
    if (per_row) return; /* row values stay usable */
    LoopValue sums[3];
    int n_sums = 0;
    for (int i = last ? case_below(c, 2) : 1 + case_below(c, 3); i > 0; i--)
        sums[n_sums++] =
            loop_emit(&c->builder, (LoopOp)(LOOP_REDUCE_SUM + case_below(c, 3)), case_pick(c, LOOP_TYPE_F), -1, -1);
    memcpy(c->values, rows, sizeof *rows * (size_t)n_rows);
    c->n_values = n_rows;
    for (int i = 0; i < n_sums; i++) case_keep(c, sums[i]);
}

static inline LoopCase *loop_case(Arena *arena, Name name, uint32_t seed) {
    static const int64_t extents[] = {1, 2, 3, 5, 7, 8, 16, 17, 32, 33, 48, 100};
    LoopCase *c = NEW(arena, LoopCase);
    c->arena = arena;
    c->state = seed * 2654435761u + 12345u;
    int n_outer = case_below(c, 4), n_inner = case_chance(c, 35) ? 0 : 1 + case_below(c, 2);
    int64_t extent[LOOP_MAX_AXES], points = 1;
    for (int i = 0; i < n_outer + n_inner; i++) {
        do extent[i] = extents[case_below(c, 12)];
        while (points * extent[i] > 6000);
        points *= extent[i];
    }
    c->loop = loop_new(arena, name, extent, n_outer, n_outer + n_inner);
    c->loop->lanes_outer = n_outer > 0 && case_chance(c, 35);
    static const int64_t blocks[] = {16, 32, 7, 100, 64};
    if (n_inner > 0 && case_chance(c, 30))
        c->loop->block =
            case_chance(c, 40) ? extent[n_outer + n_inner - 1] * (1 + case_below(c, 3)) : blocks[case_below(c, 5)];
    c->builder = (LoopBuilder){.arena = arena, .loop = c->loop};
    int n_passes = n_inner == 0 ? 1 : 1 + case_below(c, 4);
    for (int p = 0; p < n_passes; p++)
        case_pass(c, n_inner == 0 || (p + 1 < n_passes && case_chance(c, 30)), p + 1 == n_passes);
    if (c->loop->n_pointers == 0) case_store(c, n_inner == 0, LOOP_TYPE_F);
    return c;
}

/* Memory that ends at a page without access: generated code that touches one byte more is caught. */
static inline size_t case_mapped(int64_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return ((size_t)bytes + page - 1) / page * page + page;
}

static inline char *case_map(int64_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = case_mapped(bytes);
    char *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + mapped - page, page, PROT_NONE) != 0) BUG("no memory for a test");
    return at + mapped - page - bytes;
}

static inline void case_unmap(char *at, int64_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = case_mapped(bytes);
    munmap(at + bytes + page - mapped, mapped);
}

/* Memory for the pointers, filled from the case's own random numbers: the same for the same seed. */
static inline void case_fill(const LoopCase *original, void **pointers) {
    LoopCase copy = *original, *c = &copy;
    for (int k = 0; k < c->n_buffers; k++) {
        const CaseBuffer *buffer = &c->buffers[k];
        char *at = case_map(buffer->bytes);
        int64_t size = loop_memory_bytes(buffer->memory), n = buffer->bytes / size;
        for (int64_t i = 0; i < n && !buffer->output; i++) {
            uint32_t bits = case_random(c);
            float x = ((float)(bits >> 8) * 0x1p-24f - 0.5f) * 8.0f;
            if (bits % 64 == 0) x = 0.0f;
            if (bits % 512 == 1) x *= 1e4f;
            uint16_t half = (uint16_t)(bits >> 3);
            int32_t integer = buffer->indices ? (int32_t)(bits % CASE_GATHER_ROWS) : (int32_t)(bits % 97) - 17;
            if (buffer->indices)
                half = (uint16_t)integer;
            else if (buffer->memory == LOOP_MEM_BF16)
                half = (uint16_t)((half & 0x80FF) | 0x3F00);
            else if (buffer->memory == LOOP_MEM_F16)
                half = (uint16_t)((half & 0x87FF) | 0x3800);
            if (buffer->memory == LOOP_MEM_F32)
                memcpy(at + i * size, &x, 4);
            else if (buffer->memory == LOOP_MEM_I32)
                memcpy(at + i * size, &integer, 4);
            else if (size == 2)
                memcpy(at + i * size, &half, 2);
            else
                at[i] = (char)(bits & 1);
        }
        pointers[k] = at;
    }
}

static inline void case_release(const LoopCase *c, void **pointers) {
    for (int k = 0; k < c->n_buffers; k++) case_unmap(pointers[k], c->buffers[k].bytes);
}

static inline bool case_is_nan(LoopMemory memory, uint32_t bits) {
    if (memory == LOOP_MEM_F32) return (bits & 0x7FFFFFFF) > 0x7F800000;
    if (memory == LOOP_MEM_BF16) return (bits & 0x7FFF) > 0x7F80;
    return memory == LOOP_MEM_F16 && (bits & 0x7FFF) > 0x7C00;
}

/* The first output element that differs (NaN equals NaN), or false. */
static inline bool case_differs(const LoopCase *c, void *const *x, void *const *y, int *buffer, int64_t *element) {
    for (int k = 0; k < c->n_buffers; k++) {
        LoopMemory memory = c->buffers[k].memory;
        int64_t size = loop_memory_bytes(memory);
        for (int64_t i = 0; i < c->buffers[k].bytes / size; i++) {
            uint32_t a = 0, b = 0;
            memcpy(&a, (const char *)x[k] + i * size, (size_t)size);
            memcpy(&b, (const char *)y[k] + i * size, (size_t)size);
            if (a == b || (case_is_nan(memory, a) && case_is_nan(memory, b))) continue;
            *buffer = k;
            *element = i;
            return true;
        }
    }
    return false;
}

#endif
