/* A seeded bijection of [0, n) in constant memory: a balanced Feistel network on the smallest even number of bits that
 * holds n, walked along its cycle until it lands below n (at most 4 turns on average). */
#include "data/data.h"

#define ROUNDS 6

static uint64_t mix(uint64_t x) { /* the finaliser of splitmix64 */
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

int64_t prt_permute(int64_t index, int64_t n, uint64_t key) {
    if (n <= 1) return index;
    int half = 1;
    while ((UINT64_C(1) << (2 * half)) < (uint64_t)n) half++;
    uint64_t mask = (UINT64_C(1) << half) - 1, x = (uint64_t)index;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (mix(right + mix(key + round * UINT64_C(0x9e3779b97f4a7c15))) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
