/* The order of the data and the filling of inputs. (Files and their refusals: tests/run/test_runtime.py.) */
#include "data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

extern const PrtInner plan_inner;
const PrtInner plan_inner = {.tile_m = 1};

static void test_permutation_is_a_bijection(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        char *seen = calloc((size_t)n, 1);
        for (int64_t i = 0; i < n; i++) {
            int64_t to = prt_permute(i, n, 42 + s);
            assert_in_range(to, 0, n - 1);
            assert_int_equal(seen[to], 0);
            seen[to] = 1;
        }
        free(seen);
    }
}

/* Neighbours do not stay neighbours, keys give other orders, and places are about equally likely. */
static void test_permutation_mixes(void **state) {
    (void)state;
    enum { N = 1000, KEYS = 2000 };
    int same = 0, neighbours = 0, tenths[10] = {0};
    for (int64_t i = 0; i + 1 < N; i++) {
        int64_t a = prt_permute(i, N, 1), b = prt_permute(i + 1, N, 1);
        neighbours += llabs(a - b) == 1;
        same += a == prt_permute(i, N, 2);
    }
    assert_in_range(neighbours, 0, 12); /* two expected */
    assert_in_range(same, 0, 10);       /* one expected */
    for (uint64_t key = 0; key < KEYS; key++) tenths[prt_permute(7, N, key) / (N / 10)]++;
    for (int i = 0; i < 10; i++) assert_in_range(tenths[i], 140, 260); /* 200 expected, deviation 13 */
}

static void test_large_counts(void **state) {
    (void)state;
    int64_t n = (INT64_C(1) << 40) + 12345;
    for (int64_t i = 0; i < 1000; i++) assert_in_range(prt_permute(i * 1000003, n, 9), 0, n - 1);
}

/* ---- a program with text of known content ---- */

static const char json[] =
    "{\"abi\": 1, \"compiler\": \"0\", \"source\": \"t.plan\", \"plan\": \"p\", \"model\": \"M\", \"hash\": \"0\", "
    "\"mesh\": [{\"name\": \"data\", \"size\": 2}],"
    "\"seed\": 3, \"steps\": 5, \"batch\": 4, \"micro_batch\": 4, \"micros\": 1, \"data_axes\": [0], \"vocab\": 256, "
    "\"seq\": 8, \"split\": 0.25,"
    "\"data\": [{\"kind\": \"text\", \"paths\": [\"a.txt\", \"b.txt\"], \"span\": \"t.plan:1\"}],"
    "\"inputs\": [{\"name\": \"x\", \"role\": \"tokens\", \"dtype\": \"i32\", \"shape\": [2, 8], \"offset\": 0, "
    "\"limit\": 256},"
    "{\"name\": \"y\", \"role\": \"next\", \"of\": \"x\", \"dtype\": \"i32\", \"shape\": [2, 8], \"offset\": 64},"
    "{\"name\": \"m\", \"role\": \"mask\", \"of\": \"x\", \"dtype\": \"f32\", \"shape\": [2, 8], \"offset\": 128}],"
    "\"results\": [{\"name\": \"loss\", \"dtype\": \"f32\", \"offset\": 0}], \"optimizer\": {\"kind\": \"sgd\", "
    "\"lr\": 0.1}, \"eval\": {\"every\": 1},"
    "\"roles\": [{\"arena_bytes\": 4096, \"tensors\": [], \"entries\": {\"F\": null, \"eval\": null}, \"actions\": "
    "[{\"kind\": \"F\", \"micro\": 0}]}]}";

typedef struct Fixture {
    char folder[64];
    PrtProgram *program;
    PrtData *data;
} Fixture;

static char text_of(int64_t i) { return (char)('!' + i % 90); }

static void write_file(const char *name, int64_t first, int64_t n) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    for (int64_t i = 0; i < n; i++) fputc(text_of(first + i), file);
    fclose(file);
}

static int open_fixture(void **state) {
    char why[512];
    Fixture *f = calloc(1, sizeof *f);
    strcpy(f->folder, "/tmp/test_rt_data.XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    assert_int_equal(chdir(f->folder), 0);
    write_file("a.txt", 0, 400);
    write_file("b.txt", 1000, 200);
    f->program = prt_program_parse(json, NULL, why, sizeof why);
    if (!f->program) print_message("%s\n", why);
    assert_non_null(f->program);
    f->data = prt_data_open(f->program, f->program->seed, true, why, sizeof why);
    if (!f->data) print_message("%s\n", why);
    assert_non_null(f->data);
    *state = f;
    return 0;
}

static int close_fixture(void **state) {
    Fixture *f = *state;
    prt_data_free(f->data);
    prt_program_free(f->program);
    unlink("a.txt");
    unlink("b.txt");
    assert_int_equal(chdir("/"), 0);
    rmdir(f->folder);
    free(f);
    return 0;
}

/* Id at a position of the stream: the first three quarters of each file for training, the last for validation, files
 * joined with a line feed. */
static int32_t expected_id(PrtSet set, int64_t at) {
    int64_t first = set == PRT_TRAINING ? 300 : 100;
    if (at == first) return '\n';
    if (at < first) return text_of(set == PRT_TRAINING ? at : 300 + at);
    return text_of(1000 + (set == PRT_TRAINING ? 0 : 150) + at - first - 1);
}

static void test_windows(void **state) {
    Fixture *f = *state;
    assert_int_equal(prt_data_samples(f->data, PRT_TRAINING), 450 / 8);   /* 451 ids */
    assert_int_equal(prt_data_samples(f->data, PRT_VALIDATION), 150 / 8); /* 151 */
    PrtRank rank = {.program = f->program};
    for (int set = 0; set < 2; set++) {
        for (int64_t index = 0; index < 100; index += 2) {
            int32_t x[16], y[16];
            float mask[16];
            prt_data_fill(&rank, f->data, (PrtSet)set, &f->program->inputs[0], index, (char *)x);
            prt_data_fill(&rank, f->data, (PrtSet)set, &f->program->inputs[1], index, (char *)y);
            prt_data_fill(&rank, f->data, (PrtSet)set, &f->program->inputs[2], index, (char *)mask);
            for (int i = 0; i < 16; i++) {
                int64_t at = prt_data_sample(f->data, (PrtSet)set, index + i / 8) * 8 + i % 8;
                assert_int_equal(x[i], expected_id((PrtSet)set, at));
                assert_int_equal(y[i], expected_id((PrtSet)set, at + 1));
                assert_true(mask[i] == 1);
            }
        }
    }
}

/* Every window once an epoch, in another order each epoch, the same for the same seed. */
static void test_epochs(void **state) {
    Fixture *f = *state;
    int64_t n = prt_data_samples(f->data, PRT_TRAINING), moved = 0;
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        char seen[64] = {0};
        for (int64_t i = 0; i < n; i++) {
            int64_t sample = prt_data_sample(f->data, PRT_TRAINING, epoch * n + i);
            assert_in_range(sample, 0, n - 1);
            assert_int_equal(seen[sample]++, 0);
            moved += sample != prt_data_sample(f->data, PRT_TRAINING, i);
        }
    }
    assert_true(moved > 3 * n / 2);
    char why[256];
    PrtData *again = prt_data_open(f->program, f->program->seed, true, why, sizeof why);
    PrtData *other = prt_data_open(f->program, f->program->seed + 1, true, why, sizeof why);
    int64_t differ = 0;
    for (int64_t i = 0; i < 2 * n; i++) {
        assert_int_equal(prt_data_sample(again, PRT_TRAINING, i), prt_data_sample(f->data, PRT_TRAINING, i));
        differ += prt_data_sample(other, PRT_TRAINING, i) != prt_data_sample(f->data, PRT_TRAINING, i);
    }
    assert_true(differ > n);
    prt_data_free(again);
    prt_data_free(other);
}

/* The ranks' blocks together are the micro-batch, whatever their number: rank r of 2 takes the r-th half. */
static void test_blocks(void **state) {
    Fixture *f = *state;
    int coords[PRT_MAX_AXES];
    for (int r = 0; r < 2; r++) {
        prt_program_coords(f->program, r, coords);
        assert_int_equal(prt_program_data_block(f->program, coords), r);
    }
    PrtProgram mesh = {.n_axes = 3, .mesh = {{"a", 2}, {"t", 3}, {"b", 4}}, .n_data_axes = 2, .data_axes = {0, 2}};
    prt_program_coords(&mesh, 1 * 12 + 2 * 4 + 3, coords);
    assert_int_equal(coords[0], 1);
    assert_int_equal(coords[1], 2);
    assert_int_equal(coords[2], 3);
    assert_int_equal(prt_program_data_block(&mesh, coords), 7);
}

/* ---- arrays ---- */

static void write_npy(const char *name, const char *descr, const char *shape, const void *data, size_t bytes) {
    char header[128];
    FILE *file = fopen(name, "w");
    int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    int padded = (n + 11 + 63) / 64 * 64 - 10;
    fwrite("\x93NUMPY\x01\x00", 1, 8, file);
    fputc(padded & 255, file);
    fputc(padded >> 8, file);
    fprintf(file, "%-*s\n", padded - 1, header);
    fwrite(data, 1, bytes, file);
    fclose(file);
}

static const char arrays_json[] =
    "{\"abi\": 1, \"compiler\": \"0\", \"source\": \"t.plan\", \"plan\": \"p\", \"model\": \"M\", \"hash\": \"0\", "
    "\"mesh\": [],"
    "\"seed\": 3, \"steps\": 5, \"batch\": 2, \"micro_batch\": 2, \"micros\": 1, \"split\": 0.2,"
    "\"data\": [{\"kind\": \"arrays\", \"columns\": {\"image\": \"i.npy\", \"label\": \"l.npy\"}}],"
    "\"inputs\": [{\"name\": \"image\", \"role\": \"column\", \"dtype\": \"f32\", \"shape\": [2, 2, 3], \"offset\": 0},"
    "{\"name\": \"target\", \"role\": \"column\", \"column\": \"label\", \"dtype\": \"i32\", \"shape\": [2], "
    "\"offset\": 64, \"limit\": 7}],"
    "\"results\": [{\"name\": \"loss\", \"dtype\": \"f32\", \"offset\": 0}], \"optimizer\": {\"kind\": \"sgd\", "
    "\"lr\": 0.1}, \"eval\": {\"every\": 1},"
    "\"roles\": [{\"arena_bytes\": 4096, \"tensors\": [], \"entries\": {\"F\": null, \"eval\": null}, \"actions\": "
    "[{\"kind\": \"F\", \"micro\": 0}]}]}";

static void test_arrays(void **state) {
    (void)state;
    char folder[] = "/tmp/test_rt_data.XXXXXX", why[512];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    unsigned char image[10 * 6];
    int64_t label[10];
    for (int i = 0; i < 60; i++) image[i] = (unsigned char)(4 * i);
    for (int i = 0; i < 10; i++) label[i] = i % 7;
    write_npy("i.npy", "|u1", "(10, 2, 3)", image, sizeof image);
    write_npy("l.npy", "<i8", "(10,)", label, sizeof label);
    PrtProgram *program = prt_program_parse(arrays_json, NULL, why, sizeof why);
    assert_non_null(program);
    PrtData *data = prt_data_open(program, 3, true, why, sizeof why);
    if (!data) print_message("%s\n", why);
    assert_non_null(data);
    assert_int_equal(prt_data_samples(data, PRT_TRAINING), 8);
    assert_int_equal(prt_data_samples(data, PRT_VALIDATION), 2);
    PrtRank rank = {.program = program};
    for (int set = 0; set < 2; set++) {
        float x[12];
        int32_t y[2];
        prt_data_fill(&rank, data, (PrtSet)set, &program->inputs[0], 0, (char *)x);
        prt_data_fill(&rank, data, (PrtSet)set, &program->inputs[1], 0, (char *)y);
        for (int i = 0; i < 12; i++) {
            int64_t row = prt_data_sample(data, (PrtSet)set, i / 6) + (set ? 8 : 0);
            assert_true(x[i] == (float)image[row * 6 + i % 6]);
            assert_int_equal(y[i / 6], label[row]);
        }
    }
    prt_data_free(data);
    write_npy("l.npy", "<i8", "(9,)", label, 72);
    assert_null(prt_data_open(program, 3, true, why, sizeof why));
    assert_non_null(strstr(why, "`i.npy` has 10 rows, `l.npy` has 9"));
    write_npy("l.npy", "<f8", "(10,)", label, sizeof label);
    assert_null(prt_data_open(program, 3, true, why, sizeof why));
    assert_non_null(strstr(why, "made of whole numbers"));
    write_npy("l.npy", "<i4", "(10, 2)", label, sizeof label);
    assert_null(prt_data_open(program, 3, true, why, sizeof why));
    assert_non_null(strstr(why, "a row of `l.npy` has 2 elements, but input `target` has 1"));
    prt_program_free(program);
    unlink("i.npy");
    unlink("l.npy");
    assert_int_equal(chdir("/"), 0);
    rmdir(folder);
}

/* ---- damaged files ---- */

static void test_damaged_files(void **state) {
    Fixture *f = *state;
    char bytes[1400], why[512];
    int32_t header[3] = {20240520, 1, 180};
    int64_t opened = 0;
    uint32_t random = 1;
    f->program->data[0].kind = PRT_DATA_TOKENS;
    for (int round = 0; round < 3000; round++) {
        memset(bytes, 1, sizeof bytes);
        size_t size = 1024 + 360;
        memcpy(bytes, header, sizeof header);
        if (round % 2) {
            static const char npy[] =
                "\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', 'fortran_order': False, 'shape': (10, 19), }";
            memset(bytes, ' ', 128);
            memcpy(bytes, npy, sizeof npy - 1);
            size = 128 + 380;
        }
        for (int k = 0; k < 1 + round % 4; k++) {
            random = random * 1664525 + 1013904223;
            size_t at = random % (round % 2 ? 80 : 16);
            random = random * 1664525 + 1013904223;
            bytes[at] = (char)(random >> 24);
        }
        if (round % 7 == 0) size = random % size;
        FILE *file = fopen("a.txt", "w");
        assert_int_equal(fwrite(bytes, 1, size, file), size);
        fclose(file);
        file = fopen("b.txt", "w");
        for (int i = 0; i < 100; i++) fputc(i % 2, file); /* headerless */
        fclose(file);
        f->program->vocab = f->program->inputs[0].limit = round % 3 ? 65536 : 600;
        PrtData *data = prt_data_open(f->program, 3, false, why, sizeof why);
        if (!data) continue;
        opened++;
        int32_t x[16];
        PrtRank rank = {.program = f->program};
        for (int64_t i = 0; i < prt_data_samples(data, PRT_TRAINING); i += 2) {
            prt_data_fill(&rank, data, PRT_TRAINING, &f->program->inputs[0], i, (char *)x);
            for (int k = 0; k < 16; k++) assert_in_range(x[k], 0, f->program->vocab - 1);
        }
        prt_data_free(data);
    }
    assert_in_range(opened, 50, 2500);
    f->program->data[0].kind = PRT_DATA_TEXT;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutation_is_a_bijection),
        cmocka_unit_test(test_permutation_mixes),
        cmocka_unit_test(test_large_counts),
        cmocka_unit_test_setup_teardown(test_windows, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_epochs, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_blocks, open_fixture, close_fixture),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test_setup_teardown(test_damaged_files, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
