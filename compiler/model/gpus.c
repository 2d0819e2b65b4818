/* GPUs: `gpu NAME { ... }` to numbers.
 *
 * In: the block's properties. Out: a Gpu; what is not stated is NAN, and zero means "has none". The FP32 peak is
 * derived as cores x boost clock x 2, since a fused multiply-add is two operations; where it is stated as well the two
 * must agree, which finds mistyped cores, clocks and peaks. */
#include <math.h>

#include "model/resolve.h"

typedef struct GpuField {
    const char *name;
    size_t offset;
    Unit unit;
} GpuField;

#define FIELD(NAME, MEMBER, ...)                                                                                       \
    {                                                                                                                  \
        NAME, offsetof(Gpu, MEMBER), { __VA_ARGS__ }                                                                   \
    }
static const GpuField gpu_fields[] = {
    FIELD("memory", memory, 1, 0, 0, 0),
    FIELD("usable", usable, 1, 0, 0, 0),
    FIELD("bandwidth", bandwidth, 1, -1, 0, 0),
    FIELD("cuda_cores", cuda_cores, 0, 0, 0, 0),
    FIELD("tensor_cores", tensor_cores, 0, 0, 0, 0),
    FIELD("rt_cores", rt_cores, 0, 0, 0, 0),
    FIELD("sms", sms, 0, 0, 0, 0),
    FIELD("boost_clock", clock, 0, -1, 0, 0),
    FIELD("flops_per_clock", flops_per_clock, 0, 0, 0, 0),
    FIELD("nvlink", nvlink, 1, -1, 0, 0),
    FIELD("pcie", pcie, 0, 0, 0, 0),
    FIELD("tdp", tdp, 0, 0, 1, 0),
    FIELD("slots", slots, 0, 0, 0, 0),
    FIELD("l2", l2, 1, 0, 0, 0),
    FIELD("fp32", fp32, 0, -1, 0, 1),
    FIELD("tf32", tf32, 0, -1, 0, 1),
    FIELD("fp16", fp16, 0, -1, 0, 1),
    FIELD("bf16", bf16, 0, -1, 0, 1),
    FIELD("fp8", fp8, 0, -1, 0, 1),
};
enum { N_FIELDS = sizeof gpu_fields / sizeof gpu_fields[0] };

int gpu_field_count(void) { return N_FIELDS; }

const char *gpu_field_name(int index) { return gpu_fields[index].name; }

double gpu_field_value(const Gpu *gpu, int index) {
    double value;
    memcpy(&value, (const char *)gpu + gpu_fields[index].offset, sizeof value);
    return value;
}

static double *gpu_field(Gpu *gpu, int index) { return (double *)(void *)((char *)gpu + gpu_fields[index].offset); }

static void read_property(Resolver *r, FileScope *scope, Gpu *gpu, Map *seen, Property *p, Span *fp32, bool *checked) {
    const char *known[N_FIELDS];
    int index = -1;
    for (int i = 0; i < N_FIELDS; i++) {
        known[i] = gpu_fields[i].name;
        if (strcmp(p->name, known[i]) == 0) index = i;
    }
    if (index < 0) {
        property_unknown(r, "gpu", p, known, N_FIELDS);
        return;
    }
    if (!property_once(r, seen, p)) return;
    if (strcmp(p->name, "fp32") == 0 && p->n == 2 && expr_is_word(p->items[1], "unchecked")) {
        *checked = false;
        p->n = 1;
    }
    double value;
    const char *word = strcmp(p->name, "fp32") == 0 ? "unchecked" : NULL;
    if (!property_single_and(r, p, word) || !take_unit(r, scope, p->name, p->items[0], gpu_fields[index].unit, &value))
        return;
    if (value < 0) {
        diag_error(r->s, "P0129", p->items[0]->span, "`%s` cannot be negative", p->name);
        return;
    }
    *gpu_field(gpu, index) = value;
    if (strcmp(p->name, "fp32") == 0) *fp32 = p->items[0]->span;
}

/* Vendors round peaks to three digits; 2 % is far above that and far below any wrong core count. */
static const double PEAK_TOLERANCE = 0.02;

static void check_peak(Resolver *r, Gpu *gpu, Span fp32, bool checked) {
    double per_clock = isnan(gpu->flops_per_clock) ? 2 : gpu->flops_per_clock;
    double derived = gpu->cuda_cores * gpu->clock * per_clock;
    gpu->fp32_derived = derived;
    if (isnan(gpu->fp32)) {
        gpu->fp32 = derived; /* NAN when cores or clock are unknown */
        return;
    }
    if (isnan(derived) || !checked || fabs(derived - gpu->fp32) <= PEAK_TOLERANCE * gpu->fp32) return;
    Diag *d =
        diag_error(r->s, "P0602", fp32, "`fp32` is stated as %.4g TFLOP/s, and %.0f cores x %.4g GHz x %g give %.4g",
                   gpu->fp32 / 1e12, gpu->cuda_cores, gpu->clock / 1e9, per_clock, derived / 1e12);
    diag_help(d,
              "correct one of them; for an architecture that does more operations in a clock state `flops_per_clock`; "
              "where the vendor's figure really differs write `fp32 %.4g TFLOP/s unchecked`",
              gpu->fp32 / 1e12);
}

Gpu *gpu_resolve(Resolver *r, FileScope *scope, const Stmt *stmt) {
    Gpu *gpu = NEW(r->arena, Gpu);
    gpu->name =
        scope->is_main ? stmt->name : intern(r->s->names, arena_printf(r->arena, "%s.%s", scope->stem, stmt->name));
    gpu->span = stmt->name_span;
    for (int i = 0; i < N_FIELDS; i++) *gpu_field(gpu, i) = NAN;
    Map seen = {0};
    Span fp32 = stmt->name_span;
    bool checked = true;
    for (int i = 0; i < stmt->body.n; i++) {
        Property p;
        if (property_read(r->arena, stmt->body.at[i], &p))
            read_property(r, scope, gpu, &seen, &p, &fp32, &checked);
        else
            block_refuse(r, "gpu", stmt->body.at[i]);
    }
    check_peak(r, gpu, fp32, checked);
    if (gpu->usable > gpu->memory) {
        const Stmt *usable = map_get(&seen, intern(r->s->names, "usable"));
        Diag *d = diag_error(r->s, "P0607", usable->head.file != 0 ? usable->head : usable->span,
                             "`usable` (%s) is more than `memory` (%s)", format_bytes(r->arena, gpu->usable),
                             format_bytes(r->arena, gpu->memory));
        diag_help(d, "memory is built in powers of two: what a vendor calls 80 GB is 80 GiB");
    }
    return gpu;
}
