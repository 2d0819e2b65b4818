/* Arenas: memory with one lifetime, handed out from chunks and freed all at once.
 *
 * Chunks double from 16 KiB to 1 MiB, so that a small session stays small and a large one makes few system calls; what
 * does not fit a fresh chunk gets one of its own. A session that has grown large takes its further chunks from the
 * system directly and asks for huge pages: else a third of its time would go to page faults. Memory is zero when it is
 * handed out, since no chunk is used twice. Growable arrays and text live here too, since they only ever grow within an
 * arena; the last thing handed out grows in place. */
#include "base/base.h"

#include <stdlib.h>
#include <sys/mman.h>

typedef struct Chunk {
    struct Chunk *next;
    size_t used, size;
    bool mapped;
    _Alignas(16) unsigned char bytes[];
} Chunk;

struct Arena {
    Chunk *chunks; /* the first one is being filled */
    size_t next_size, bytes, calls;
};

enum { FIRST_CHUNK = 16 * 1024, LARGEST_CHUNK = 1024 * 1024, LARGE_SESSION = 8 << 20, MAPPED_CHUNK = 8 << 20 };

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

static void chunk_free(Chunk *chunk) {
    if (chunk->mapped)
        munmap(chunk, sizeof *chunk + chunk->size);
    else
        free(chunk);
}

void arena_free(Arena *arena) {
    if (!arena) return;
    for (Chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        chunk_free(chunk);
    }
    free(arena);
}

static Chunk *chunk_new(size_t size) {
    Chunk *chunk = calloc(1, sizeof *chunk + size);
    if (!chunk) out_of_memory(size);
    chunk->size = size;
    return chunk;
}

/* A multiple of the huge page's size in all. */
static Chunk *chunk_map(void) {
    Chunk *chunk = mmap(NULL, MAPPED_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk == MAP_FAILED) out_of_memory(MAPPED_CHUNK);
    madvise(chunk, MAPPED_CHUNK, MADV_HUGEPAGE); /* small pages do as well */
    chunk->size = MAPPED_CHUNK - sizeof *chunk;
    chunk->mapped = true;
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
    size_t size = bytes > arena->next_size ? bytes : arena->next_size;
    Chunk *chunk = arena->bytes > LARGE_SESSION ? chunk_map() : chunk_new(size);
    chunk->next = first;
    arena->chunks = chunk;
    if (arena->next_size < LARGEST_CHUNK) arena->next_size *= 2;
    return chunk;
}

static size_t rounded_up(size_t bytes) { return bytes ? (bytes + 15) & ~(size_t)15 : 16; /* distinct pointers */ }

void *arena_alloc(Arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX / 2) out_of_memory(bytes);
    arena->calls++;
    arena->bytes += bytes;
    size_t rounded = rounded_up(bytes);
    Chunk *chunk = arena_chunk_for(arena, rounded);
    void *memory = chunk->bytes + chunk->used;
    chunk->used += rounded;
    return memory;
}

/* Memory with room for `bytes`, of which `before` are in use at `at`: longer in place, or moved. */
static void *arena_grow(Arena *arena, void *at, size_t before, size_t bytes) {
    Chunk *first = arena->chunks;
    size_t had = rounded_up(before), wanted = rounded_up(bytes);
    bool is_last = before && first && (unsigned char *)at + had == first->bytes + first->used;
    if (is_last && wanted - had <= first->size - first->used) {
        first->used += wanted - had;
        arena->bytes += bytes - before;
        return at;
    }
    void *moved = arena_alloc(arena, bytes);
    if (before) memcpy(moved, at, before);
    return moved;
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
    *at = arena_grow(arena, *at, (size_t)*cap * size, (size_t)new_cap * size);
    *cap = new_cap;
}

static void text_reserve(Text *text, size_t more) {
    size_t need = text->n + more + 1;
    if (need <= text->cap) return;
    size_t cap = text->cap ? text->cap * 2 : 64;
    while (cap < need) cap *= 2;
    text->at = arena_grow(text->arena, text->at, text->cap, cap);
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
