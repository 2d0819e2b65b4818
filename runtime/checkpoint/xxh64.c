/* XXH64 by Yann Collet (its published specification), streaming, for checksums of files. */
#include "checkpoint/format.h"

#include "core/util.h"

#include <stdlib.h>
#include <string.h>

#define P1 UINT64_C(0x9E3779B185EBCA87)
#define P2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define P3 UINT64_C(0x165667B19E3779F9)
#define P4 UINT64_C(0x85EBCA77C2B2AE63)
#define P5 UINT64_C(0x27D4EB2F165667C5)

static uint64_t rotate(uint64_t x, int r) { return x << r | x >> (64 - r); }

static uint64_t load64(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

static uint64_t turn(uint64_t sum, uint64_t x) { return rotate(sum + x * P2, 31) * P1; }

static void lanes_start(uint64_t lane[4], uint64_t seed) {
    lane[0] = seed + P1 + P2;
    lane[1] = seed + P2;
    lane[2] = seed;
    lane[3] = seed - P1;
}

/* `bytes` is a multiple of 32. */
static void lanes_add(uint64_t lane[4], const unsigned char *p, size_t bytes) {
    for (const unsigned char *end = p + bytes; p < end; p += 32) {
        for (int i = 0; i < 4; i++) lane[i] = turn(lane[i], load64(p + 8 * i));
    }
}

static uint64_t lanes_join(const uint64_t lane[4]) {
    uint64_t sum = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
    for (int i = 0; i < 4; i++) sum = (sum ^ turn(0, lane[i])) * P1 + P4;
    return sum;
}

/* The last bytes, fewer than 32. */
static uint64_t finish(uint64_t sum, const unsigned char *p, size_t bytes) {
    for (; bytes >= 8; bytes -= 8, p += 8) sum = rotate(sum ^ turn(0, load64(p)), 27) * P1 + P4;
    if (bytes >= 4) {
        uint32_t x;
        memcpy(&x, p, 4);
        sum = rotate(sum ^ (uint64_t)x * P1, 23) * P2 + P3;
        bytes -= 4;
        p += 4;
    }
    for (; bytes > 0; bytes--, p++) sum = rotate(sum ^ *p * P5, 11) * P1;
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}

uint64_t prt_xxh64(const void *data, size_t bytes, uint64_t seed) {
    const unsigned char *p = data;
    size_t whole = bytes / 32 * 32;
    uint64_t lane[4], sum = seed + P5;
    if (whole) {
        lanes_start(lane, seed);
        lanes_add(lane, p, whole);
        sum = lanes_join(lane);
    }
    return finish(sum + bytes, p + whole, bytes - whole);
}

int prt_xxh64_file(int fd, int64_t offset, int64_t bytes, uint64_t *result) {
    enum { BLOCK = 1 << 18 };
    unsigned char *block = malloc(BLOCK);
    if (!block) return 12; /* ENOMEM */
    uint64_t lane[4], sum = P5;
    lanes_start(lane, 0);
    int error = 0;
    int64_t left = bytes;
    size_t tail = 0;
    while (left > 0 && !error) {
        int64_t n = left < BLOCK ? left : BLOCK;
        error = prt_pread_all(fd, block, n, offset);
        tail = (size_t)n % 32; /* only the last block has one */
        if (!error) lanes_add(lane, block, (size_t)n - tail);
        offset += n;
        left -= n;
        if (left == 0 && !error) {
            if (bytes >= 32) sum = lanes_join(lane);
            *result = finish(sum + (uint64_t)bytes, block + n - (int64_t)tail, tail);
        }
    }
    if (bytes == 0) *result = prt_xxh64("", 0, 0);
    free(block);
    return error;
}

int64_t prt_chunk_bytes(int64_t file_bytes) {
    int64_t chunk = 64 << 20;
    while ((file_bytes + chunk - 1) / chunk > 4096) chunk *= 2;
    return chunk;
}
