/* plc gpus: the GPUs of the standard library, with the numbers that people compare. What is not known is a dash. */
#include "driver/options.h"

#include <cjson/cJSON.h>
#include <math.h>

typedef struct Column {
    const char *title, *unit, *key;
    size_t field;
    double scale;
    int decimals;
} Column;

static const Column columns[] = {
    {"memory", "GiB", "memory_bytes", offsetof(Gpu, memory), 1024.0 * 1024 * 1024, 0},
    {"bandwidth", "GB/s", "bandwidth_bytes_per_s", offsetof(Gpu, bandwidth), 1e9, 0},
    {"CUDA cores", "", "cuda_cores", offsetof(Gpu, cuda_cores), 1, 0},
    {"tensor", "cores", "tensor_cores", offsetof(Gpu, tensor_cores), 1, 0},
    {"boost", "MHz", "clock_hz", offsetof(Gpu, clock), 1e6, 0},
    {"FP32", "TFLOPS", "fp32_flops", offsetof(Gpu, fp32), 1e12, 1},
    {"BF16", "TFLOPS", "bf16_flops", offsetof(Gpu, bf16), 1e12, 1},
    {"NVLink", "GB/s", "nvlink_bytes_per_s", offsetof(Gpu, nvlink), 1e9, 0},
    {"TDP", "W", "tdp_w", offsetof(Gpu, tdp), 1, 0},
    {"slots", "", "slots", offsetof(Gpu, slots), 1, 0},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static double field(const Gpu *gpu, const Column *column) {
    double value;
    memcpy(&value, (const char *)gpu + column->field, sizeof value);
    return value;
}

/* "A40" of "gpus.A40" */
static const char *short_name(const Gpu *gpu) {
    const char *dot = strrchr(gpu->name, '.');
    return dot ? dot + 1 : gpu->name;
}

static void print_json(const Gpu *gpu) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", short_name(gpu));
    for (int i = 0; i < N_COLUMNS; i++) {
        double value = field(gpu, &columns[i]);
        if (isnan(value))
            cJSON_AddNullToObject(object, columns[i].key);
        else
            cJSON_AddNumberToObject(object, columns[i].key, value);
    }
    char *line = cJSON_PrintUnformatted(object);
    CHECK(line);
    puts(line);
    cJSON_free(line);
    cJSON_Delete(object);
}

static void print_table(Session *s, const Program *program) {
    int width = 0;
    for (int i = 0; i < program->gpus.n; i++) {
        int length = (int)strlen(short_name(program->gpus.at[i]));
        if (length > width) width = length;
    }
    printf("%-*s", width, "");
    for (int i = 0; i < N_COLUMNS; i++) printf("  %10s", columns[i].title);
    printf("\n%-*s", width, "");
    for (int i = 0; i < N_COLUMNS; i++) printf("  %10s", columns[i].unit);
    puts("");
    for (int i = 0; i < program->gpus.n; i++) {
        const Gpu *gpu = program->gpus.at[i];
        printf("%-*s", width, short_name(gpu));
        for (int c = 0; c < N_COLUMNS; c++) {
            double value = field(gpu, &columns[c]);
            printf("  %10s",
                   isnan(value) ? "-" : arena_printf(s->arena, "%.*f", columns[c].decimals, value / columns[c].scale));
        }
        puts("");
    }
    puts("\nbandwidth and NVLink are for each direction; FP32 is cores x boost clock x 2 unless the file states it");
}

int command_gpus(Session *s, const Options *options) {
    const char *why = "there is no standard library";
    int32_t file =
        s->library_path ? session_read_file(s, arena_printf(s->arena, "%s/gpus.plan", s->library_path), true, &why) : 0;
    if (!file) {
        Diag *d = diag_error(s, "P0822", (Span){0, 0, 0}, "the standard library's `gpus.plan` cannot be read: %s", why);
        diag_help(d, "it is installed in share/plan/stdlib beside bin/plc");
        return EXIT_ENVIRONMENT;
    }
    Program *program = ast_to_model(s, text_to_ast(s, file), NULL, 0);
    if (!program || diag_count(s, SEV_ERROR)) return EXIT_ERRORS;
    if (!options->json) print_table(s, program);
    for (int i = 0; options->json && i < program->gpus.n; i++) print_json(program->gpus.at[i]);
    return EXIT_DONE;
}
