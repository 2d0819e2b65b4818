/* Blocks of tensors, safetensors headers, XXH64. (Whole checkpoints: tests/run/test_runtime.py.) */
#include "checkpoint/format.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

extern const PrtInner plan_inner;
const PrtInner plan_inner = {.tile_m = 1};

/* Values of the reference implementation. */
static void test_xxh64(void **state) {
    (void)state;
    assert_true(prt_xxh64("", 0, 0) == UINT64_C(0xEF46DB3751D8E999));
    assert_true(prt_xxh64("a", 1, 0) == UINT64_C(0xD24EC4F1A98C6E5B));
    assert_true(prt_xxh64("abc", 3, 0) == UINT64_C(0x44BC2CF5AD770999));
    const char *long_text = "Nobody inspects the spammish repetition";
    assert_true(prt_xxh64(long_text, strlen(long_text), 0) == UINT64_C(0xFBCEA83C8A378BF1));
}

static void test_xxh64_of_files(void **state) {
    (void)state;
    char path[] = "/tmp/test_rt_checkpoint.XXXXXX";
    int fd = mkstemp(path);
    static const size_t sizes[] = {0, 1, 31, 32, 33, 262143, 262144, 262145, 262144 * 3 + 77};
    size_t most = 262144 * 3 + 77;
    unsigned char *data = malloc(most);
    for (size_t i = 0; i < most; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    assert_int_equal(write(fd, data, most), (ssize_t)most);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t sum = 0;
        assert_int_equal(prt_xxh64_file(fd, 0, (int64_t)sizes[s], &sum), 0);
        assert_true(sum == prt_xxh64(data, sizes[s], 0));
    }
    uint64_t sum;
    assert_int_equal(prt_xxh64_file(fd, 0, (int64_t)most + 1, &sum), -1);
    free(data);
    close(fd);
    unlink(path);
}

typedef struct Copy {
    const float *whole;
    float *block;
    int64_t runs, next;
} Copy;

static bool copy_run(void *context, int64_t local, int64_t global, int64_t n) {
    Copy *copy = context;
    assert_int_equal(local, copy->next); /* the block is visited in order, without gaps */
    memcpy(copy->block + local, copy->whole + global, (size_t)n * 4);
    copy->next = local + n;
    copy->runs++;
    return true;
}

static bool copy_scattered(void *context, int64_t local, int64_t global, int64_t n) {
    Copy *copy = context;
    memcpy(copy->block + local, copy->whole + global, (size_t)n * sizeof *copy->block);
    return true;
}

/* Every way to cut a [4, 6, 8] over a 2 x 2 mesh, against indices computed one by one. */
static void test_blocks(void **state) {
    (void)state;
    enum { A = 4, B = 6, C = 8, N = A * B * C };
    float whole[N], block[N];
    for (int i = 0; i < N; i++) whole[i] = (float)i;
    PrtProgram program = {.n_axes = 2, .mesh = {{"x", 2}, {"y", 2}}, .n_ranks = 4};
    for (int x = -1; x < 3; x++) {
        for (int y = -1; y < 3; y++) {
            PrtTensor tensor = {.flat_axis = -1, .n_dims = 3, .shape = {A, B, C}, .axes = {x, y, -1, -1, -1, -1, -1, -1}};
            if (x == 1 && y == 1) continue; /* 6 is no multiple of 4 */
            for (int rank = 0; rank < 4; rank++) {
                int coords[PRT_MAX_AXES];
                prt_program_coords(&program, rank, coords);
                int64_t part[3] = {A, B, C}, start[3] = {0};
                for (int a = 0; a < 2; a++) {
                    int d = tensor.axes[a];
                    if (d < 0) continue;
                    part[d] /= 2;
                    start[d] += coords[a] * part[d];
                }
                Copy copy = {whole, block, 0, 0};
                assert_true(prt_block_runs(&program, &tensor, coords, copy_run, &copy));
                assert_int_equal(copy.next, part[0] * part[1] * part[2]);
                int64_t i = 0;
                for (int64_t a = 0; a < part[0]; a++) {
                    for (int64_t b = 0; b < part[1]; b++) {
                        for (int64_t c = 0; c < part[2]; c++) {
                            assert_true(block[i++] == (float)(((start[0] + a) * B + start[1] + b) * C + start[2] + c));
                        }
                    }
                }
                bool first = (x >= 0 || coords[0] == 0) && (y >= 0 || coords[1] == 0);
                assert_int_equal(prt_block_first(&program, &tensor, coords), first);
                if (x <= 0 && y <= 0) assert_int_equal(copy.runs, 1);
            }
        }
    }
}

/* Two pieces a rank, on one axis or on two that cut the same dimension: the positions that are left when a list is cut. */
static void test_balanced_blocks(void **state) {
    (void)state;
    enum { A = 3, B = 16, C = 2, N = A * B * C };
    float whole[N], block[N];
    for (int i = 0; i < N; i++) whole[i] = (float)i;
    PrtProgram program = {.n_axes = 2, .mesh = {{"x", 2}, {"y", 2}}, .n_ranks = 4};
    for (int which = 0; which < 8; which++) {
        PrtTensor tensor = {.flat_axis = -1, .n_dims = 3, .shape = {A, B, C}, .axes = {1, which & 4 ? 1 : -1, -1, -1, -1, -1, -1, -1}, .balanced = {which & 1, which & 2}};
        for (int rank = 0; rank < 4; rank++) {
            int coords[PRT_MAX_AXES];
            prt_program_coords(&program, rank, coords);
            int64_t at[B], n = B;
            for (int64_t i = 0; i < n; i++) at[i] = i;
            for (int k = 0; k < 4; k++) { /* what is balanced cuts first */
                int a = k % 2;
                if (tensor.axes[a] < 0 || tensor.balanced[a] != (k < 2)) continue;
                int64_t pieces = tensor.balanced[a] ? 4 : 2, unit = n / pieces, kept = 0;
                for (int64_t i = 0; i < n; i++)
                    if (i / unit == coords[a] || (tensor.balanced[a] && i / unit == 3 - coords[a])) at[kept++] = at[i];
                n = kept;
            }
            Copy copy = {whole, block, 0, 0};
            assert_true(prt_block_runs(&program, &tensor, coords, copy_run, &copy));
            assert_int_equal(copy.next, A * n * C);
            for (int64_t i = 0; i < A * n * C; i++)
                assert_true(block[i] == (float)((i / (n * C) * B + at[i / C % n]) * C + i % C));
        }
    }
}

/* Parts of each layer's elements, the last padded, under another axis that cuts a dimension: all ranks together hold every
 * element once. */
static void test_flat_parts(void **state) {
    (void)state;
    enum { LAYERS = 3, A = 5, B = 4, N = LAYERS * A * B };
    float whole[N];
    for (int i = 0; i < N; i++) whole[i] = (float)i;
    PrtProgram program = {.n_axes = 2, .mesh = {{"data", 3}, {"tensor", 2}}, .n_ranks = 6};
    PrtTensor tensor = {.n_dims = 3, .shape = {LAYERS, A, B}, .axes = {-1, 2, -1, -1, -1, -1, -1, -1}, .flat_axis = 0,
                        .flat_blocks = LAYERS, .flat_part = (A * B / 2 + 2) / 3};
    int seen[N] = {0};
    for (int rank = 0; rank < 6; rank++) {
        int coords[PRT_MAX_AXES];
        float block[LAYERS * 4];
        for (size_t i = 0; i < sizeof block / sizeof *block; i++) block[i] = -1;
        prt_program_coords(&program, rank, coords);
        Copy copy = {whole, block, 0, -1};
        assert_true(prt_block_first(&program, &tensor, coords));
        assert_true(prt_block_runs(&program, &tensor, coords, copy_scattered, &copy));
        for (int layer = 0; layer < LAYERS; layer++)
            for (int i = 0; i < 4; i++) {
                int at = coords[0] * 4 + i; /* in the half of the layer that this rank's tensor coordinate leaves */
                if (at >= A * B / 2) continue;
                int global = layer * A * B + at / 2 * B + coords[1] * 2 + at % 2;
                assert_true(block[layer * 4 + i] == (float)global);
                seen[global]++;
            }
    }
    for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
}

/* A dimension of 7 made 8 (and one of 3 made 4), cut in 4: checkpoints hold 7 x 3, whichever way it is kept. */
static void test_padding(void **state) {
    (void)state;
    enum { A = 7, B = 3, PA = 8, PB = 4 };
    float whole[A * B];
    for (int i = 0; i < A * B; i++) whole[i] = (float)(i + 1);
    PrtProgram program = {.n_axes = 2, .mesh = {{"x", 4}, {"y", 2}}, .n_ranks = 8};
    for (int flat = 0; flat < 2; flat++) {
        PrtTensor tensor = {.n_dims = 2, .shape = {PA, PB}, .padding = {PA - A, PB - B}, .axes = {0, flat ? -1 : 1, -1, -1, -1, -1, -1, -1},
                            .flat_axis = flat ? 1 : -1, .flat_blocks = 1, .flat_part = 4};
        int seen[A * B] = {0};
        for (int rank = 0; rank < 8; rank++) {
            int coords[PRT_MAX_AXES];
            float block[8] = {0};
            prt_program_coords(&program, rank, coords);
            Copy copy = {whole, block, 0, -1};
            assert_true(prt_block_runs(&program, &tensor, coords, copy_scattered, &copy));
            for (int i = 0; i < 4; i++) {
                int a = 2 * coords[0] + (flat ? coords[1] : i / 2), b = flat ? i : 2 * coords[1] + i % 2;
                float value = a < A && b < B ? whole[a * B + b] : 0;
                assert_true(block[i] == value);
                if (value > 0) seen[(int)value - 1]++;
            }
        }
        for (int i = 0; i < A * B; i++) assert_int_equal(seen[i], 1);
    }
}

static void test_block_of_scalar_and_nothing(void **state) {
    (void)state;
    float whole[1] = {7}, block[1] = {0};
    int coords[PRT_MAX_AXES] = {0};
    PrtProgram program = {.n_axes = 0, .n_ranks = 1};
    PrtTensor scalar = {.flat_axis = -1, .n_dims = 0}, empty = {.flat_axis = -1, .n_dims = 2, .shape = {3, 0}};
    Copy copy = {whole, block, 0, 0};
    assert_true(prt_block_runs(&program, &scalar, coords, copy_run, &copy));
    assert_true(block[0] == 7);
    copy = (Copy){whole, block, 0, 0};
    assert_true(prt_block_runs(&program, &empty, coords, copy_run, &copy));
    assert_int_equal(copy.runs, 0);
}

static void test_header_round_trip(void **state) {
    (void)state;
    PrtTensor tensors[] = {
        {.name = "a \"quoted\" name", .kind = "weight", .dtype = PRT_F32, .n_dims = 2, .shape = {2, 3}, .saved = true},
        {.name = "scalar", .kind = "weight", .dtype = PRT_I32, .n_dims = 0, .saved = true},
        {.name = "m", .kind = "moment", .dtype = PRT_F32, .n_dims = 1, .shape = {5}, .saved = true},
        {.name = "g", .kind = "gradient", .dtype = PRT_F32, .n_dims = 1, .shape = {5}},
    };
    PrtRole role = {.n_tensors = 4, .tensors = tensors};
    PrtTable table, read;
    char *header = prt_table_write(&role, PRT_FILE_MODEL, &table), path[] = "/tmp/test_rt_checkpoint.XXXXXX", why[512];
    assert_non_null(header);
    assert_int_equal(table.n, 2);
    assert_int_equal(table.header_bytes % 8, 0);
    assert_int_equal(table.file_bytes, table.header_bytes + 24 + 4);
    int fd = mkstemp(path);
    assert_int_equal(write(fd, header, (size_t)table.header_bytes), table.header_bytes);
    assert_int_equal(ftruncate(fd, table.file_bytes), 0);
    assert_true(prt_table_read(path, fd, &read, why, sizeof why));
    const PrtEntry *entry = prt_table_find(&read, "a \"quoted\" name");
    assert_non_null(entry);
    assert_int_equal(entry->begin, table.header_bytes);
    assert_int_equal(entry->shape[1], 3);
    assert_int_equal(prt_table_find(&read, "scalar")->n_dims, 0);
    assert_null(prt_table_find(&read, "m"));
    prt_table_free(&read);
    assert_int_equal(ftruncate(fd, table.file_bytes - 1), 0);
    assert_false(prt_table_read(path, fd, &read, why, sizeof why));
    assert_non_null(strstr(why, "its header promises"));
    prt_table_free(&table);
    free(header);
    close(fd);
    unlink(path);
}

/* The example of the format's documentation, byte by byte; then headers that readers must refuse. */
static void test_headers(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int data;
        const char *why; /* NULL: good */
    } cases[] = {
        {"{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}   ", 4,
         NULL},
        {"{}", 0, NULL},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"w\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[4,8]}}",
         8, "twice"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "begins at byte 4"},
        {"{\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"w\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[4,8]}}",
         8, "begins at byte 4"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "do not fit its shape"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "shape of `w`"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1e300,1e300],\"data_offsets\":[0,4]}}", 4, "shape of `w`"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "do not fit"},
        {"{\"w\":{\"dtype\":\"F8_E5M2\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "F8_E5M2"},
        {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "incomplete"},
        {"{\"w\":7}", 4, "incomplete"},
        {"[]", 0, "no JSON object"},
        {"{\"w\"", 0, "no JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[] = "/tmp/test_rt_checkpoint.XXXXXX", why[512] = "";
        int fd = mkstemp(path);
        uint64_t n = strlen(cases[i].json);
        assert_int_equal(write(fd, &n, 8), 8);
        assert_int_equal(write(fd, cases[i].json, n), (ssize_t)n);
        assert_int_equal(ftruncate(fd, (off_t)(8 + n) + cases[i].data), 0);
        PrtTable table;
        bool ok = prt_table_read(path, fd, &table, why, sizeof why);
        if (ok != !cases[i].why || (cases[i].why && !strstr(why, cases[i].why)))
            fail_msg("case %zu: %d %s", i, ok, why);
        if (ok) prt_table_free(&table);
        close(fd);
        unlink(path);
    }
}

/* Any damage to a header is refused or harmless: never a crash, never a place outside of the file. */
static void test_damaged_headers(void **state) {
    (void)state;
    static const char json[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"v\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"w\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]}}";
    uint64_t n = sizeof json - 1;
    char path[] = "/tmp/test_rt_checkpoint.XXXXXX", why[512], bytes[sizeof json + 32];
    int fd = mkstemp(path), refused = 0;
    uint32_t random = 1;
    for (int round = 0; round < 4000; round++) {
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, &n, 8);
        memcpy(bytes + 8, json, n);
        size_t size = 8 + n + 12;
        for (int k = 0; k < 1 + round % 3; k++) {
            random = random * 1664525 + 1013904223;
            size_t at = random % size;
            random = random * 1664525 + 1013904223;
            bytes[at] = (char)(random >> 24);
        }
        if (round % 5 == 0) size = random % size;
        assert_int_equal(pwrite(fd, bytes, size, 0), (ssize_t)size);
        assert_int_equal(ftruncate(fd, (off_t)size), 0);
        PrtTable table;
        if (!prt_table_read(path, fd, &table, why, sizeof why)) {
            refused++;
            continue;
        }
        for (int i = 0; i < table.n; i++) {
            assert_in_range(table.entries[i].begin, table.header_bytes, (int64_t)size);
            assert_in_range(table.entries[i].end, table.entries[i].begin, (int64_t)size);
        }
        prt_table_free(&table);
    }
    assert_in_range(refused, 2500, 3999);
    close(fd);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xxh64),
        cmocka_unit_test(test_xxh64_of_files),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_balanced_blocks), cmocka_unit_test(test_flat_parts), cmocka_unit_test(test_padding),
        cmocka_unit_test(test_block_of_scalar_and_nothing),
        cmocka_unit_test(test_header_round_trip),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_damaged_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
