/* Interned names: one copy of each spelling, so that names are compared by pointer. */
#include "base/base.h"

struct Interner {
    Arena *arena;
    struct Slot {
        Name name; /* NULL: free */
        uint32_t length, hash;
    } * slots;
    size_t n, n_slots; /* n_slots is a power of two */
};

static uint32_t hash_bytes(const char *text, size_t length) { /* FNV-1a */
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash;
}

Interner *interner_new(Arena *arena) {
    Interner *interner = NEW(arena, Interner);
    interner->arena = arena;
    interner->n_slots = 256;
    interner->slots = NEW_N(arena, struct Slot, interner->n_slots);
    return interner;
}

static void interner_grow(Interner *interner) {
    size_t n_slots = interner->n_slots * 2;
    struct Slot *slots = NEW_N(interner->arena, struct Slot, n_slots);
    for (size_t i = 0; i < interner->n_slots; i++) {
        struct Slot slot = interner->slots[i];
        if (!slot.name) continue;
        size_t at = slot.hash & (n_slots - 1);
        while (slots[at].name) at = (at + 1) & (n_slots - 1);
        slots[at] = slot;
    }
    interner->slots = slots;
    interner->n_slots = n_slots;
}

Name intern_n(Interner *interner, const char *text, size_t length) {
    if (interner->n * 4 >= interner->n_slots * 3) interner_grow(interner);
    uint32_t hash = hash_bytes(text, length);
    size_t mask = interner->n_slots - 1, at = hash & mask;
    for (; interner->slots[at].name; at = (at + 1) & mask) {
        struct Slot *slot = &interner->slots[at];
        if (slot->hash == hash && slot->length == length && !memcmp(slot->name, text, length)) return slot->name;
    }
    Name name = arena_strndup(interner->arena, text, length);
    interner->slots[at] = (struct Slot){name, (uint32_t)length, hash};
    interner->n++;
    return name;
}

Name intern(Interner *interner, const char *text) { return intern_n(interner, text, strlen(text)); }
