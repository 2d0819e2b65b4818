/* A map from pointers to pointers: entries in insertion order, and an open-addressed index of them. */
#include "base/base.h"

static size_t hash_pointer(const void *key) {
    uint64_t bits = (uint64_t)(uintptr_t)key >> 4; /* arena memory is aligned to 16 bytes */
    return (size_t)((bits * UINT64_C(0x9e3779b97f4a7c15)) >> 20);
}

/* The slot that holds `key`, or the free one where it belongs. Slots hold an entry's index plus 1. */
static int map_find_slot(const Map *map, const void *key) {
    size_t mask = (size_t)map->n_slots - 1, at = hash_pointer(key) & mask;
    while (map->slots[at] && map->entries[map->slots[at] - 1].key != key) at = (at + 1) & mask;
    return (int)at;
}

void *map_get(const Map *map, const void *key) {
    if (!map->n) return NULL;
    int32_t index = map->slots[map_find_slot(map, key)];
    return index ? map->entries[index - 1].value : NULL;
}

static void map_grow_index(Arena *arena, Map *map) {
    map->n_slots = map->n_slots ? map->n_slots * 2 : 16;
    map->slots = NEW_N(arena, int32_t, map->n_slots);
    for (int i = 0; i < map->n; i++) map->slots[map_find_slot(map, map->entries[i].key)] = i + 1;
}

void map_put(Arena *arena, Map *map, const void *key, void *value) {
    if (!map->arena) map->arena = arena;
    if ((map->n + 1) * 4 > map->n_slots * 3) map_grow_index(arena, map);
    int slot = map_find_slot(map, key);
    if (map->slots[slot]) {
        map->entries[map->slots[slot] - 1].value = value;
        return;
    }
    vec_reserve_(arena, (void **)&map->entries, &map->cap, map->n + 1, sizeof *map->entries);
    map->entries[map->n++] = (struct MapEntry){key, value};
    map->slots[slot] = map->n;
}
