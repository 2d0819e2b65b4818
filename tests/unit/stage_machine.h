/* Whole plans without processes, pipelines included: one thread runs the kernels of each stage in the order of its
 * schedule, on all simulated ranks of that stage, and hands over to the others as the runtime does (a post, a take, a
 * wait). In: texts of a model and a plan. Out: whether the compiler takes it, and two steps' losses. */
#ifndef PLAN_STAGE_MACHINE_H
#define PLAN_STAGE_MACHINE_H

#include "unit/plan_machine.h"

#include <pthread.h>
#include <time.h>

#include "graph/stages.h"
#include "partition/step_partition.h"

enum { MAX_STAGES = 8, MAX_CHANNELS = 256, MAX_LOCAL = 32 };

typedef struct Channel {
    char *data[MAX_CHANNEL_DEPTH];
    int posted, taken; /* how many, ever */
} Channel;

/* What the stages share. */
typedef struct Hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Channel channels[MAX_CHANNELS][MAX_LOCAL]; /* by rank within the stage */
    int n_stages, arrived, generation;
    float sums[2][MAX_LOCAL][4];
    const char *stuck;
} Hub;

typedef struct Role {
    KernelMachine k; /* first: `between` gets it */
    Hub *hub;
    Step *step;
    const Schedule *schedule;
    Mesh mesh;
    double losses[2], norms[2], eval;
} Role;

static inline bool hub_wait(Hub *hub, const char *where) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 300; /* only what is really stuck meets it */
    if (!hub->stuck && pthread_cond_timedwait(&hub->changed, &hub->lock, &until)) hub->stuck = where;
    return !hub->stuck;
}

static inline void hub_sum(Role *role, const Kernel *kernel) {
    Hub *hub = role->hub;
    int64_t n = kernel->collective->elements;
    int turn = hub->generation % 2, generation = hub->generation;
    if (n > 4) fail_msg("a sum over stages of %lld elements", (long long)n);
    for (int64_t r = 0; r < role->k.n_ranks; r++)
        for (int64_t i = 0; i < n; i++) {
            float x = ((float *)km_address(&role->k, r, &kernel->refs[0]))[i];
            hub->sums[turn][r][i] = hub->arrived ? hub->sums[turn][r][i] + x : x;
        }
    if (++hub->arrived == hub->n_stages) {
        hub->arrived = 0;
        hub->generation++;
        pthread_cond_broadcast(&hub->changed);
    }
    while (hub->generation == generation && hub_wait(hub, "a sum over stages")) {}
    for (int64_t r = 0; r < role->k.n_ranks; r++)
        memcpy(km_address(&role->k, r, &kernel->refs[1]), hub->sums[turn][r], sizeof(float) * (size_t)n);
}

static inline void hub_handover(Role *role, const Handover *h, const Kernel *kernel) {
    Hub *hub = role->hub;
    for (int64_t r = 0; r < role->k.n_ranks; r++) {
        Channel *channel = &hub->channels[h->channel][r];
        while ((h->kind == HANDOVER_RECV ? channel->posted == channel->taken
                                         : channel->posted - channel->taken >= h->depth) &&
               hub_wait(hub, h->where)) {}
        if (h->kind == HANDOVER_WAIT || hub->stuck) continue;
        char *at = km_address(&role->k, r, &kernel->refs[0]);
        if (h->kind == HANDOVER_SEND)
            channel->data[channel->posted++ % MAX_CHANNEL_DEPTH] = at; /* not copied: it must stay */
        else
            memcpy(at, channel->data[channel->taken++ % MAX_CHANNEL_DEPTH], (size_t)h->bytes);
        pthread_cond_broadcast(&hub->changed);
    }
}

static inline void between(KernelMachine *k, const Kernel *kernel) {
    Role *role = (Role *)k;
    pthread_mutex_lock(&role->hub->lock);
    if (role->hub->stuck) {
    } else if (kernel->kind == KERNEL_TRANSFER)
        hub_handover(role, kernel->handover, kernel);
    else
        hub_sum(role, kernel);
    pthread_mutex_unlock(&role->hub->lock);
}

static inline void write_scalar(Role *role, const char *name, double value) {
    for (int64_t r = 0; r < role->k.n_ranks; r++) {
        void *at = km_tensor(&role->k, r, name);
        if (at && strcmp(name, "lr") == 0)
            *(float *)at = (float)value;
        else if (at)
            *(int32_t *)at = (int32_t)value;
    }
}

/* The sequence with logical index i of the step has the same tokens whoever holds it; a data set for each position of
 * the first dimension, where the model says so. */
static inline void fill(Role *role, int64_t micro) {
    for (int i = 0; i < role->k.program->buffers.n; i++) {
        const Buffer *buffer = role->k.program->buffers.at[i];
        const Tensor *tensor = buffer->tensor;
        if (!tensor || tensor->class != CLASS_DATA) continue;
        int sets = tensor->shape.dims[0]->has_data;
        const Dim *set = sets ? tensor->shape.dims[0] : NULL, *batch = tensor->shape.dims[sets];
        int64_t n_sets = set ? local_extent(&role->mesh, tensor->type, set) : 1;
        int64_t n = local_extent(&role->mesh, tensor->type, batch);
        int64_t seq = tensor->shape.n > sets + 1 ? tensor->shape.dims[sets + 1]->size : 1;
        for (int64_t r = 0; r < role->k.n_ranks; r++) {
            int32_t *to =
                (int32_t *)((char *)km_tensor(&role->k, r, tensor->name) + (micro % buffer->flights) * buffer->bytes);
            int64_t first = micro * batch->size + local_offset(&role->mesh, tensor->type, batch, r);
            int64_t first_set = set ? local_offset(&role->mesh, tensor->type, set, r) : 0;
            for (int64_t e = 0; e < n_sets * n * seq; e++) {
                int64_t data = first_set + e / (n * seq), sample = first + e / seq % n;
                int64_t at = e % seq + (tensor->of ? 1 : 0);
                to[e] = (int32_t)((sample * 31 + at * 7 + at * at * 3 + data * 5) % 8);
            }
        }
    }
}

static inline void run_action(Role *role, const Action *action) {
    static const struct {
        ActionKind kind;
        const char *entry;
    } entries[] = {{ACTION_BEGIN, "begin"},   {ACTION_COUNT, "count"},   {ACTION_TOTAL, "total"},
                   {ACTION_F, "F"},           {ACTION_B, "B"},           {ACTION_BI, "BI"},
                   {ACTION_BW, "BW"},         {ACTION_SEND_F, "SEND_F"}, {ACTION_RECV_F, "RECV_F"},
                   {ACTION_SEND_B, "SEND_B"}, {ACTION_RECV_B, "RECV_B"}, {ACTION_OPT, "update"}};
    if (action->micro >= 0) fill(role, action->micro);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (entries[i].kind != action->kind) continue;
        char name[64];
        snprintf(name, sizeof name, action->chunk ? "%s.%d" : "%s", entries[i].entry, action->chunk);
        km_run(&role->k, name, action->micro < 0 ? 0 : action->micro);
    }
}

static inline double result(Role *role, const char *name) {
    const float *at = km_tensor(&role->k, 0, name);
    return at ? (double)*at : NAN;
}

static inline void *run_role(void *context) {
    Role *role = context;
    write_scalar(role, "seed", 3);
    write_scalar(role, "lr", 1e-2);
    write_scalar(role, "step", 1);
    km_run(&role->k, "init", 0);
    for (int step = 1; step <= 2; step++) {
        write_scalar(role, "step", step);
        const RoleSchedule *list = &role->schedule->roles[role->k.program->role];
        for (int i = 0; i < list->actions.n && !role->hub->stuck; i++) run_action(role, &list->actions.at[i]);
        role->losses[step - 1] = result(role, "loss");
        role->norms[step - 1] = result(role, "grad_norm");
    }
    fill(role, 0);
    for (int64_t r = 0; r < role->k.n_ranks; r++)
        for (int i = 0; i < 2; i++) {
            float *at = km_tensor(&role->k, r, i ? "eval_count" : "eval_loss");
            if (at) *at = 0;
        }
    km_run(&role->k, "eval", 0);
    role->eval = result(role, "eval_loss") / result(role, "eval_count");
    return NULL;
}

/* ---- from text to programs --------------------------------------------------------------------------------------- */

typedef struct Staged {
    Session *s;
    const Plan *plan;
    Step *whole, **steps; /* one for each stage */
    int n;
    StageCut cut; /* of a pipeline */
    bool is_pipeline;
    Schedule *schedule;
} Staged;

static inline const Rule *rule_of(const Plan *plan, Name dim) {
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].what == dim) return &plan->rules.at[i];
    return NULL;
}

/* What is checked and not built is refused too. */
static inline bool staged_unbuilt(Staged *b, const Program *program, const ModelGraph *graph) {
    Span where;
    const char *what = plan_unbuilt(b->plan, &where);
    if (!what) what = train_unbuilt(program->train, &where);
    if (!what) what = padding_unbuilt(b->s->arena, graph, b->plan, &where);
    if (!what) what = repeating_unbuilt(graph, b->plan, &where);
    if (what) diag_error(b->s, "P9000", where, "%s is not built yet", what);
    return what != NULL;
}

static inline bool staged_schedule(Staged *b) {
    const Rule *rule = b->is_pipeline ? rule_of(b->plan, b->cut.dim) : NULL;
    int micros = (int)b->whole->micros, chunks = b->is_pipeline ? b->cut.n_chunks / b->n : 1;
    ScheduleParts parts = {.begin = b->steps[0]->begin, .count = b->steps[0]->count, .total = b->steps[0]->total};
    if (chunks > 1 && micros % b->n) {
        diag_error(b->s, "P0706", rule->using_span, "%d micro-batches in groups of %d", micros, b->n);
        return false;
    }
    b->schedule = schedule_generate(b->s, b->s->arena, rule ? rule->using_name : NULL, b->n, chunks, micros, parts);
    if (b->schedule && b->is_pipeline) schedule_set_transfers(b->schedule, b->steps);
    return b->schedule && schedule_verify(b->schedule, (Span){0});
}

/* False when the compiler refuses the plan; the session then has the reasons. Ends with staged_free. */
static inline bool staged_build(Staged *b, const char *model, const char *plan) {
    *b = (Staged){.s = session_new()};
    Session *s = b->s;
    s->library_path = PLAN_SOURCE_DIR "/stdlib";
    char *text = arena_printf(s->arena, "%s%s", model, plan);
    Program *program = ast_to_model(s, text_to_ast(s, session_add_text(s, "case.plan", text, strlen(text))), NULL, 0);
    ModelGraph *graph = program && program->train ? model_to_graph(s, program, program->train) : NULL;
    if (!graph || diag_count(s, SEV_ERROR)) return false;
    b->plan = program->plans.at[0];
    plan_check(s, program->train, b->plan, graph->dims.at, graph->dims.n, true);
    if (diag_count(s, SEV_ERROR) || staged_unbuilt(b, program, graph)) return false;
    b->is_pipeline = plan_stage_cut(s, b->plan, graph, &b->cut) && b->cut.n_stages > 1;
    if (b->is_pipeline)
        b->cut.splits_backward = schedule_name_splits_backward(rule_of(b->plan, b->cut.dim)->using_name);
    b->n = b->is_pipeline ? b->cut.n_stages : 1;
    b->steps = &b->whole;
    if (b->is_pipeline)
        b->steps = grad_to_stages(s, program->train, b->plan, graph, &b->cut, &b->whole);
    else
        b->whole = grad_to_step(s, program->train, b->plan, graph);
    if (!b->steps || !b->whole || diag_count(s, SEV_ERROR)) return false;
    steps_partition(b->steps, b->n, b->plan, true);
    return !diag_count(s, SEV_ERROR) && staged_schedule(b) && !diag_count(s, SEV_ERROR);
}

static inline void staged_free(Staged *b) { session_free(b->s); }

/* ---- two steps --------------------------------------------------------------------------------------------------- */

typedef struct Losses {
    double loss[2], norm[2], eval;
    int64_t micro_batch;
} Losses;

static inline void staged_open(Staged *b, int stage, Hub *hub, Role *role) {
    RoleProgram *kernels = schedule_to_kernels(b->steps[stage], &b->plan->mesh, b->schedule, stage);
    kernels_to_memory(kernels);
    Text why = {.arena = b->s->arena};
    if (!memory_verify(kernels, &why)) fail_msg("stage %d: %s", stage, why.at);
    if (!overlap_verify(kernels, &why)) fail_msg("stage %d: %s", stage, why.at);
    *role = (Role){.hub = hub, .step = b->steps[stage], .schedule = b->schedule, .mesh = b->plan->mesh};
    if (b->is_pipeline) role->mesh.axes[b->cut.axis].size = 1;
    role->k = km_open(kernels, &role->mesh);
    role->k.between = b->is_pipeline ? between : NULL;
    role->k.stage_axis = b->cut.axis;
    if (role->k.n_ranks > MAX_LOCAL) fail_msg("%lld ranks in a stage", (long long)role->k.n_ranks);
}

static inline Losses staged_run(Staged *b, const char *plan) {
    Hub *hub = calloc(1, sizeof *hub);
    hub->n_stages = b->n;
    pthread_mutex_init(&hub->lock, NULL);
    pthread_cond_init(&hub->changed, NULL);
    Role *roles = calloc((size_t)b->n, sizeof *roles);
    pthread_t threads[MAX_STAGES];
    for (int i = 0; i < b->n; i++) staged_open(b, i, hub, &roles[i]);
    for (int i = 1; i < b->n; i++) pthread_create(&threads[i], NULL, run_role, &roles[i]);
    run_role(&roles[0]);
    for (int i = 1; i < b->n; i++) pthread_join(threads[i], NULL);
    if (hub->stuck) fail_msg("stuck in %s with %s", hub->stuck, plan);
    Losses losses = {.eval = roles[b->n - 1].eval, .micro_batch = b->whole->micro_batch};
    for (int k = 0; k < 2; k++) {
        losses.loss[k] = roles[0].losses[k], losses.norm[k] = roles[0].norms[k];
        for (int i = 1; i < b->n; i++)
            assert_true(roles[i].losses[k] == losses.loss[k] && roles[i].norms[k] == losses.norm[k]);
    }
    for (int i = 0; i < b->n; i++) km_close(&roles[i].k);
    free(roles);
    free(hub);
    return losses;
}

/* A plan that has to be taken. */
static inline Losses run_stages(const char *model, const char *plan) {
    Staged b;
    bool taken = staged_build(&b, model, plan);
    if (!taken) {
        diag_flush(b.s, stderr, false);
        fail_msg("refused: %s%s", model, plan);
    }
    Losses losses = staged_run(&b, plan);
    staged_free(&b);
    return losses;
}

#endif
