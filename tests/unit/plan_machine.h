/* A .plan text as kernels and as graphs, run on both machines in step: the evaluator on simulated ranks, and the kernels
 * without a code generator. Shared by the tests of kernels and of random plans. */
#ifndef PLAN_PLAN_MACHINE_H
#define PLAN_PLAN_MACHINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "graph/narrow.h"
#include "graph/reproducible.h"
#include "partition/step_partition.h"
#include "schedule/schedules.h"
#include "unit/kernel_machine.h"

typedef struct Built {
    Session *s;
    Step *step;
    const Plan *plan;
    const Train *train;
    Schedule *schedule;
    RoleProgram *program;
} Built;

/* What `build` builds: `--numerics reproducible`. */
static bool reproducible_builds;

static inline Built build(const char *model, const char *plan, const char *schedule) {
    Built b = {.s = session_new()};
    b.s->library_path = PLAN_SOURCE_DIR "/stdlib";
    char *text = arena_printf(b.s->arena, "%s%s", model, plan);
    Ast *ast = text_to_ast(b.s, session_add_text(b.s, "case.plan", text, strlen(text)));
    Program *program = ast_to_model(b.s, ast, NULL, 0);
    ModelGraph *graph = program && program->train ? model_to_graph(b.s, program, program->train) : NULL;
    if (diag_count(b.s, SEV_ERROR)) diag_flush(b.s, stderr, false);
    assert_non_null(graph);
    b.train = program->train;
    b.plan = plan_narrowed(b.s, program->plans.at[0], &graph);
    if (!b.plan) diag_flush(b.s, stderr, false);
    assert_non_null(b.plan);
    b.step = grad_to_step(b.s, b.train, b.plan, graph);
    assert_non_null(b.step);
    if (reproducible_builds && !step_make_reproducible(b.s, b.step)) {
        diag_flush(b.s, stderr, false);
        fail_msg("not reproducible");
    }
    Map flat_dims = {0};
    Graph *graphs[] = {b.step->body, b.step->update, b.step->begin, b.step->init, b.step->count, b.step->total, b.step->eval, b.step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        if (!graphs[i]) continue;
        Layout layout = graphs[i] == b.step->decode ? plan_sampling_layout(b.plan, graphs[i], &flat_dims) : plan_layout(b.plan, graphs[i], &flat_dims);
        graph_partition(graphs[i], &layout);
        Text why = {.arena = b.s->arena};
        if (!graph_verify(graphs[i], &why)) fail_msg("%s", why.at);
    }
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        Text why = {.arena = b.s->arena};
        if (graphs[i] && !graph_verify(graphs[i], &why)) fail_msg("once more: %s", why.at);
    }
    if (schedule) b.schedule = schedule_parse(b.s, session_add_text(b.s, "schedule", schedule, strlen(schedule)));
    else b.schedule = schedule_one_f_one_b(b.s, b.s->arena, 1, (int)b.step->micros, (ScheduleParts){.begin = b.step->begin, .count = b.step->count, .total = b.step->total});
    if (!b.schedule) diag_flush(b.s, stderr, false);
    assert_non_null(b.schedule);
    b.program = schedule_to_kernels(b.step, &b.plan->mesh, b.schedule, 0);
    kernels_to_memory(b.program);
    Text why = {.arena = b.s->arena};
    if (!memory_verify(b.program, &why)) fail_msg("%s", why.at);
    if (!overlap_verify(b.program, &why)) fail_msg("%s", why.at);
    if ((double)b.program->arena_bytes > 1.02 * (double)b.program->live_peak + 16384)
        fail_msg("arena %lld, live %lld", (long long)b.program->arena_bytes, (long long)b.program->live_peak);
    return b;
}

/* ---- moving tensors between the two machines -------------------------------------------------------------------------- */

static inline int64_t local_elements(const Array *a) { return a->n; }

static inline void copy_to_kernels(Built *b, Machine *m, KernelMachine *k) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        Tensor *tensor = b->program->buffers.at[i]->tensor;
        if (!tensor || (tensor->class != CLASS_WEIGHT && tensor->class != CLASS_MOMENT)) continue;
        for (int64_t r = 0; r < k->n_ranks; r++) {
            const Array *a = machine_array(m, tensor, r);
            float *to = km_tensor(k, r, tensor->name);
            for (int64_t e = 0; e < local_elements(a); e++) {
                to[e] = (float)a->at[e];
                a->at[e] = (double)to[e];
            }
        }
    }
}

static inline void set_scalar(Built *b, Machine *m, KernelMachine *k, const char *name, double value) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        Tensor *tensor = b->program->buffers.at[i]->tensor;
        if (!tensor || strcmp(tensor->name, name) != 0) continue;
        for (int64_t r = 0; r < k->n_ranks; r++) {
            if (tensor->dtype == DT_F32) *(float *)km_tensor(k, r, name) = (float)value;
            else *(int32_t *)km_tensor(k, r, name) = (int32_t)value;
            if (strcmp(name, "micro") != 0) machine_array(m, tensor, r)->at[0] = value;
        }
    }
}

/* The sequence with logical index i of the step has the same tokens whoever holds it. */
static inline void fill_tensor(Machine *m, const Tensor *tensor, int64_t micro) {
    int first = tensor->shape.dims[0]->has_data; /* a data set for each position */
    int64_t sets = first ? tensor->shape.dims[0]->size : 1, n = tensor->shape.dims[first]->size;
    int64_t seq = tensor->shape.n > first + 1 ? tensor->shape.dims[first + 1]->size : 1;
    if (!tensor->shape.dims[first]->is_batch || !shape_elements(&tensor->shape)) return;
    double *all = malloc(sizeof *all * (size_t)(sets * n * seq));
    for (int64_t e = 0; e < sets * n * seq; e++) {
        int64_t set = e / (n * seq), sample = micro * n + e / seq % n, at = e % seq + (tensor->of ? 1 : 0);
        all[e] = (double)((sample * 31 + at * 7 + at * at * 3 + set * 5) % 8);
    }
    machine_set(m, tensor, all);
    free(all);
}

static inline void fill_data(Built *b, Machine *m, KernelMachine *k, int64_t micro) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        const Buffer *buffer = b->program->buffers.at[i];
        Tensor *tensor = buffer->tensor;
        if (!tensor || tensor->class != CLASS_DATA || !shape_elements(&tensor->shape)) continue;
        if (!tensor->shape.dims[tensor->shape.dims[0]->has_data]->is_batch) continue;
        fill_tensor(m, tensor, micro);
        for (int64_t r = 0; r < k->n_ranks; r++) {
            const Array *a = machine_array(m, tensor, r);
            int32_t *to = (int32_t *)((char *)km_tensor(k, r, tensor->name) + (micro % buffer->flights) * buffer->bytes);
            for (int64_t e = 0; e < a->n; e++) to[e] = (int32_t)a->at[e];
        }
    }
}

/* The axis over which a backward pass joins the accumulator, or -1. */
static inline int joined_axis(const KernelList *list, const Buffer *buffer) {
    int axis = -1;
    for (int i = 0; i < list->n && axis < 0; i++) {
        const Kernel *kernel = list->at[i];
        if (kernel->kind == KERNEL_REPEAT) axis = joined_axis(&kernel->body, buffer);
        else if (kernel->micro && kernel->refs[0].buffer == buffer) axis = kernel->collective->axis;
    }
    return axis;
}

/* Element e of what rank r holds: joined already where the kernels have done so. */
static inline double expected_at(Machine *m, const KernelMachine *k, Tensor *tensor, int64_t r, int64_t e, int axis) {
    if (axis < 0) return machine_array(m, tensor, r)->at[e];
    double sum = 0;
    for (int64_t j = 0; j < k->mesh->axes[axis].size; j++) sum += machine_array(m, tensor, km_peer(k, r, axis, j))->at[e];
    return sum;
}

static inline int joined_by_kernels(const Built *b, const Buffer *buffer) {
    int axis = -1;
    for (int e = 0; e < b->program->entries.n && axis < 0; e++) axis = joined_axis(&b->program->entries.at[e].body, buffer);
    return axis;
}

static inline void compare(Built *b, Machine *m, KernelMachine *k, TensorClass class, double tolerance, const char *when) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        Tensor *tensor = b->program->buffers.at[i]->tensor;
        if (!tensor || tensor->class != class) continue;
        if (tensor->dtype != DT_F32 && tensor->dtype != DT_EXACT) continue;
        if (class == CLASS_RESULT && strcmp(tensor->name, "loss") != 0 && strcmp(tensor->name, "grad_norm") != 0) continue;
        int axis = class == CLASS_GRADIENT ? joined_by_kernels(b, b->program->buffers.at[i]) : -1;
        for (int64_t r = 0; r < k->n_ranks; r++) {
            const float *x = km_tensor(k, r, tensor->name);
            const KmExact *exact = (const KmExact *)(const void *)x;
            double error = 0, size = 0;
            for (int64_t e = 0, n = machine_array(m, tensor, r)->n; e < n; e++) {
                double want = expected_at(m, k, tensor, r, e, axis);
                double is = tensor->dtype == DT_EXACT ? exact[e].value : (double)x[e];
                error += pow(is - want, 2), size += want * want;
            }
            if (!(sqrt(error) <= tolerance * (sqrt(size) + 1e-2))) fail_msg("%s: %s on rank %lld: off by %g of %g", when, tensor->name, (long long)r, sqrt(error), sqrt(size));
        }
    }
}

/* The evaluator goes on from what the kernels have added up. */
static inline void take_gradients(Built *b, Machine *m, KernelMachine *k) {
    for (int i = 0; i < b->program->buffers.n; i++) {
        Tensor *tensor = b->program->buffers.at[i]->tensor;
        if (!tensor || tensor->class != CLASS_GRADIENT) continue;
        int axis = joined_by_kernels(b, b->program->buffers.at[i]);
        double parts = axis < 0 ? 1 : (double)k->mesh->axes[axis].size; /* a joined sum in equal parts */
        for (int64_t r = 0; r < k->n_ranks; r++) {
            const Array *a = machine_array(m, tensor, r);
            const float *x = km_tensor(k, r, tensor->name);
            for (int64_t e = 0; e < a->n; e++) a->at[e] = (double)x[e] / parts;
        }
    }
}

/* What the two machines may differ by, relative to f32: a sum in another order may round to the number beside. */
static inline double rounding(const Plan *plan) {
    return strcmp(plan->precision, "bf16") == 0 ? 2000 : strcmp(plan->precision, "fp16") == 0 ? 250 : 1;
}

/* Two steps; returns the second loss. */
static inline double run(const char *model, const char *plan, const char *schedule) {
    Built b = build(model, plan, schedule);
    KernelMachine k = km_open(b.program, &b.plan->mesh);
    k.early = b.program->buffers.n % 2; /* either must do */
    Machine *m = machine_new(b.s, &b.plan->mesh);
    set_scalar(&b, m, &k, "seed", 3);
    set_scalar(&b, m, &k, "lr", 1e-2);
    set_scalar(&b, m, &k, "step", 1);
    machine_run(m, b.step->init, 0, 0, 3);
    assert_true(km_run(&k, "init", 0));
    compare(&b, m, &k, CLASS_WEIGHT, 1e-5, "initial weights");
    for (int step = 1; step <= 2; step++) {
        copy_to_kernels(&b, m, &k);
        set_scalar(&b, m, &k, "step", step);
        if (b.step->begin) machine_run(m, b.step->begin, 0, step, 3);
        km_run(&k, "begin", 0);
        for (int64_t micro = 0; micro < b.step->micros; micro++) {
            fill_data(&b, m, &k, micro);
            machine_run(m, b.step->body, micro, step, 3);
        }
        for (int i = 0; i < b.schedule->roles[0].actions.n; i++) {
            const Action *action = &b.schedule->roles[0].actions.at[i];
            if (action->kind == ACTION_F) {
                fill_data(&b, m, &k, action->micro);
                assert_true(km_run(&k, "F", action->micro));
            } else if (action->kind == ACTION_B) assert_true(km_run(&k, "B", action->micro));
        }
        for (int axis = 0; axis < b.plan->mesh.n; axis++) km_finish(&k, axis);
        compare(&b, m, &k, CLASS_GRADIENT, 2e-5 * rounding(b.plan), "gradients");
        if (rounding(b.plan) > 1) take_gradients(&b, m, &k); /* or their roundings would become whole steps of Adam */
        machine_run(m, b.step->update, 0, step, 3);
        assert_true(km_run(&k, "update", 0));
        compare(&b, m, &k, CLASS_RESULT, 1e-5 * rounding(b.plan), "results");
        compare(&b, m, &k, CLASS_WEIGHT, 2e-3, "updated weights"); /* Adam turns the rounding of tiny gradients into steps */
    }
    double loss = (double)*(float *)km_tensor(&k, 0, "loss");
    km_close(&k);
    session_free(b.s);
    return loss;
}

/* The same losses as one rank has. */
static inline void equal(const char *model, const char *plan) {
    double one = run(model, "plan p { }\n", NULL), many = run(model, plan, NULL);
    if (fabs(one - many) > 1e-5 * fabs(one)) fail_msg("loss %.9g on one rank, %.9g with %s", one, many, plan);
}

#endif
