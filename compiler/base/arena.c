/* Arenas: memory with one lifetime, handed out from chunks and freed all at once.
 *
 * Chunks double from 16 KiB to 1 MiB, so that a small session stays small and a large one makes few system calls; what
 * does not fit a fresh chunk gets one of its own. Memory is zeroed when it is handed out. Growable arrays and text
 * live here too, since they only ever grow within an arena. */
#include "base/base.h"

#include <stdlib.h>

typedef struct Chunk {
    struct Chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
} Chunk;

struct Arena {
    Chunk *chunks; /* the first one is being filled */
    size_t next_size, bytes, calls;
};

enum { FIRST_CHUNK = 16 * 1024, LARGEST_CHUNK = 1024 * 1024 };

static _Noreturn void out_of_memory(size_t bytes) {
    fprintf(stderr, "plc: out of memory (asked for %zu bytes)\n", bytes);
    exit(3);
}

Arena *arena_new(void) {
    Arena *arena = calloc(1, sizeof *arena);
    if (!arena) out_of_memory(sizeof *arena);
    arena->next_size = FIRST_CHUNK;
    return arena;
}

void arena_free(Arena *arena) {
    if (!arena) return;
    for (Chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(arena);
}

static Chunk *chunk_new(size_t size) {
    Chunk *chunk = malloc(sizeof *chunk + size);
    if (!chunk) out_of_memory(size);
    chunk->next = NULL;
    chunk->used = 0;
    chunk->size = size;
    return chunk;
}

static Chunk *arena_chunk_for(Arena *arena, size_t bytes) {
    Chunk *first = arena->chunks;
    if (first && first->size - first->used >= bytes) return first;
    if (first && bytes > arena->next_size / 4) { /* a chunk of its own, behind the one being filled */
        Chunk *own = chunk_new(bytes);
        own->next = first->next;
        first->next = own;
        return own;
    }
    Chunk *chunk = chunk_new(bytes > arena->next_size ? bytes : arena->next_size);
    chunk->next = first;
    arena->chunks = chunk;
    if (arena->next_size < LARGEST_CHUNK) arena->next_size *= 2;
    return chunk;
}

void *arena_alloc(Arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX / 2) out_of_memory(bytes);
    arena->calls++;
    arena->bytes += bytes;
    size_t rounded = (bytes + 15) & ~(size_t)15;
    if (!rounded) rounded = 16; /* distinct pointers for empty objects */
    Chunk *chunk = arena_chunk_for(arena, rounded);
    void *memory = chunk->bytes + chunk->used;
    chunk->used += rounded;
    return memset(memory, 0, rounded);
}

char *arena_strndup(Arena *arena, const char *text, size_t length) {
    char *copy = arena_alloc(arena, length + 1);
    if (length) memcpy(copy, text, length);
    return copy;
}

char *arena_vprintf(Arena *arena, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    CHECK(length >= 0);
    char *text = arena_alloc(arena, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, args);
    return text;
}

char *arena_printf(Arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = arena_vprintf(arena, format, args);
    va_end(args);
    return text;
}

size_t arena_bytes(const Arena *arena) { return arena->bytes; }
size_t arena_calls(const Arena *arena) { return arena->calls; }

void vec_reserve_(Arena *arena, void **at, int *cap, int need, size_t size) {
    if (need <= *cap) return;
    CHECK(*cap < INT32_MAX / 2);
    int new_cap = *cap < 4 ? 4 : *cap * 2;
    while (new_cap < need) new_cap *= 2;
    void *moved = arena_alloc(arena, (size_t)new_cap * size);
    if (*cap) memcpy(moved, *at, (size_t)*cap * size);
    *at = moved;
    *cap = new_cap;
}

static void text_reserve(Text *text, size_t more) {
    size_t need = text->n + more + 1;
    if (need <= text->cap) return;
    size_t cap = text->cap ? text->cap * 2 : 64;
    while (cap < need) cap *= 2;
    char *moved = arena_alloc(text->arena, cap);
    if (text->n) memcpy(moved, text->at, text->n);
    text->at = moved;
    text->cap = cap;
}

void text_add(Text *text, const char *bytes, size_t n) {
    text_reserve(text, n);
    if (n) memcpy(text->at + text->n, bytes, n);
    text->n += n;
    text->at[text->n] = 0;
}

void text_puts(Text *text, const char *string) { text_add(text, string, strlen(string)); }

void text_printf(Text *text, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    CHECK(length >= 0);
    text_reserve(text, (size_t)length);
    vsnprintf(text->at + text->n, (size_t)length + 1, format, args);
    text->n += (size_t)length;
    va_end(args);
}

_Noreturn void bug_(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "plc: internal error at %s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputs("\nthis is a fault of plc, not of your program: please report it, with the .plan file\n", stderr);
    va_end(args);
    exit(70);
}
