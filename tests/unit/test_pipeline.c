/* Pipelines without processes: one thread runs the kernels of each stage in the order of its schedule, and hands over to
 * the others as the runtime does (a post, a take, a wait). Losses, gradient norm and the losses of evaluation equal those
 * of one rank, for every schedule, alone and with everything else. */
#include "unit/plan_machine.h"

#include <pthread.h>
#include <time.h>

#include "graph/stages.h"
#include "partition/step_partition.h"

#define TRAIN "train {\n model M\n data text(\"x\")\n batch 4\n steps 10\n optimizer adamw(lr = constant(1e-2), weight_decay = 0.1)\n clip 1.0\n seed 3\n}\n"

/* Tied weights, an embedding of positions, dropout, a skip from the embedding to the end. */
#define GPT                                                                                                                               \
    "import nn\nmodel M {\n dim layers = 4, embed = 8, head = 2, vocab = 16, seq = 6, positions = 6\n dim head_dim = embed / head\n dim ffn = 2 * embed\n" \
    " input tokens: int[batch, seq]\n target labels: int[batch, seq] = next(tokens)\n"                                                    \
    " weight table: [vocab, embed] = normal(0.2)\n weight places: [positions, embed] = normal(0.2)\n"                                     \
    " x = dropout(lookup(table, tokens) + lookup(places, position(tokens)), rate = 0.1)\n y = x\n"                                        \
    " repeat layers {\n"                                                                                                                  \
    "  x = x + nn.attention(nn.layer_norm(x, embed), embed -> (head, head_dim), causal = true)\n"                                         \
    "  x = x + dropout(nn.mlp(nn.layer_norm(x, embed), embed -> ffn, gelu), rate = 0.1)\n }\n"                                            \
    " loss = cross_entropy(dot(nn.layer_norm(x + SKIP, embed), table, over embed), labels, over vocab)\n}\n" TRAIN

/* A weight that every layer uses: each stage holds a copy. */
#define SHARED                                                                                                                            \
    "model M {\n dim layers = 4, embed = 8, vocab = 16, seq = 4\n input tokens: int[batch, seq]\n"                                        \
    " target labels: int[batch, seq] = next(tokens)\n weight table: [vocab, embed] = normal(0.2)\n weight shift: [embed] = normal(0.2)\n" \
    " x = lookup(table, tokens)\n"                                                              \
    " repeat layers {\n  weight w: [embed] = normal(0.3)\n  x = x + gelu(x * shift) * w\n }\n"                                                                               \
    " loss = cross_entropy(dot(x, table, over embed), labels, over vocab)\n}\n" TRAIN

enum { MAX_STAGES = 8, MAX_CHANNELS = 256, MAX_LOCAL = 8 };

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

static bool hub_wait(Hub *hub, const char *where) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (!hub->stuck && pthread_cond_timedwait(&hub->changed, &hub->lock, &until)) hub->stuck = where;
    return !hub->stuck;
}

static void hub_sum(Role *role, const Kernel *kernel) {
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
    for (int64_t r = 0; r < role->k.n_ranks; r++) memcpy(km_address(&role->k, r, &kernel->refs[1]), hub->sums[turn][r], sizeof(float) * (size_t)n);
}

static void hub_handover(Role *role, const Handover *h, const Kernel *kernel) {
    Hub *hub = role->hub;
    for (int64_t r = 0; r < role->k.n_ranks; r++) {
        Channel *channel = &hub->channels[h->channel][r];
        while ((h->kind == HANDOVER_RECV ? channel->posted == channel->taken : channel->posted - channel->taken >= h->depth) && hub_wait(hub, h->where)) {}
        if (h->kind == HANDOVER_WAIT || hub->stuck) continue;
        char *at = km_address(&role->k, r, &kernel->refs[0]);
        if (h->kind == HANDOVER_SEND) channel->data[channel->posted++ % MAX_CHANNEL_DEPTH] = at; /* not copied: it must stay */
        else memcpy(at, channel->data[channel->taken++ % MAX_CHANNEL_DEPTH], (size_t)h->bytes);
        pthread_cond_broadcast(&hub->changed);
    }
}

static void between(KernelMachine *k, const Kernel *kernel) {
    Role *role = (Role *)k;
    pthread_mutex_lock(&role->hub->lock);
    if (role->hub->stuck) {}
    else if (kernel->kind == KERNEL_TRANSFER) hub_handover(role, kernel->handover, kernel);
    else hub_sum(role, kernel);
    pthread_mutex_unlock(&role->hub->lock);
}

static void write_scalar(Role *role, const char *name, double value) {
    for (int64_t r = 0; r < role->k.n_ranks; r++) {
        void *at = km_tensor(&role->k, r, name);
        if (at && strcmp(name, "lr") == 0) *(float *)at = (float)value;
        else if (at) *(int32_t *)at = (int32_t)value;
    }
}

static void fill(Role *role, int64_t micro) {
    for (int i = 0; i < role->k.program->buffers.n; i++) {
        const Buffer *buffer = role->k.program->buffers.at[i];
        const Tensor *tensor = buffer->tensor;
        if (!tensor || tensor->class != CLASS_DATA) continue;
        const Dim *batch = tensor->shape.dims[0];
        int64_t seq = tensor->shape.dims[1]->size, n = local_extent(&role->mesh, tensor->type, batch);
        for (int64_t r = 0; r < role->k.n_ranks; r++) {
            int32_t *to = (int32_t *)((char *)km_tensor(&role->k, r, tensor->name) + (micro % buffer->flights) * buffer->bytes);
            int64_t first = micro * batch->size + local_offset(&role->mesh, tensor->type, batch, r);
            for (int64_t e = 0; e < n * seq; e++) {
                int64_t sample = first + e / seq, at = e % seq + (tensor->of ? 1 : 0);
                to[e] = (int32_t)((sample * 31 + at * 7 + at * at * 3) % 8);
            }
        }
    }
}

static void run_action(Role *role, const Action *action) {
    static const struct {
        ActionKind kind;
        const char *entry;
    } entries[] = {{ACTION_BEGIN, "begin"}, {ACTION_COUNT, "count"},   {ACTION_TOTAL, "total"},   {ACTION_F, "F"},   {ACTION_B, "B"}, {ACTION_BI, "BI"}, {ACTION_BW, "BW"},
                   {ACTION_SEND_F, "SEND_F"}, {ACTION_RECV_F, "RECV_F"}, {ACTION_SEND_B, "SEND_B"}, {ACTION_RECV_B, "RECV_B"}, {ACTION_OPT, "update"}};
    if (action->micro >= 0) fill(role, action->micro);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (entries[i].kind != action->kind) continue;
        char name[64];
        snprintf(name, sizeof name, action->chunk ? "%s.%d" : "%s", entries[i].entry, action->chunk);
        km_run(&role->k, name, action->micro < 0 ? 0 : action->micro);
    }
}

static double result(Role *role, const char *name) {
    const float *at = km_tensor(&role->k, 0, name);
    return at ? (double)*at : NAN;
}

static void *run_role(void *context) {
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

typedef struct Losses {
    double loss[2], norm[2], eval;
    int64_t micro_batch;
} Losses;

static const Rule *rule_of(const Plan *plan, Name dim) {
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].what == dim) return &plan->rules.at[i];
    return NULL;
}

/* The program of each stage; `n` roles. */
static Losses run_stages(const char *model, const char *plan_text) {
    Session *s = session_new();
    s->library_path = PLAN_SOURCE_DIR "/stdlib";
    char *text = arena_printf(s->arena, "%s%s", model, plan_text);
    Program *program = ast_to_model(s, text_to_ast(s, session_add_text(s, "case.plan", text, strlen(text))), NULL, 0);
    ModelGraph *graph = model_to_graph(s, program, program->train);
    if (diag_count(s, SEV_ERROR)) diag_flush(s, stderr, false);
    assert_non_null(graph);
    const Plan *plan = program->plans.at[0];
    StageCut cut = {0};
    Step *whole, **steps = &whole;
    bool staged = plan_stage_cut(s, plan, graph, &cut);
    if (staged) cut.splits_backward = schedule_name_splits_backward(rule_of(plan, cut.dim)->using_name);
    if (staged) steps = grad_to_stages(s, program, program->train, plan, graph, &cut, &whole);
    else whole = grad_to_step(s, program, program->train, plan, graph);
    if (diag_count(s, SEV_ERROR)) diag_flush(s, stderr, false);
    assert_non_null(steps);
    int n = staged ? cut.n_stages : 1;
    steps_partition(steps, n, plan, true);
    ScheduleParts parts = {.begin = steps[0]->begin, .count = steps[0]->count, .total = steps[0]->total};
    Schedule *schedule = staged ? schedule_generate(s, s->arena, rule_of(plan, cut.dim)->using_name, n, cut.n_chunks / n, (int)whole->micros, parts)
                                : schedule_one_f_one_b(s, s->arena, 1, (int)whole->micros, parts);
    assert_non_null(schedule);
    if (staged) schedule_set_transfers(schedule, steps);
    if (!schedule_verify(schedule, (Span){0})) diag_flush(s, stderr, false);
    assert_int_equal(diag_count(s, SEV_ERROR), 0);
    Hub hub = {.n_stages = n};
    pthread_mutex_init(&hub.lock, NULL);
    pthread_cond_init(&hub.changed, NULL);
    Role *roles = calloc((size_t)n, sizeof *roles);
    pthread_t threads[MAX_STAGES];
    for (int i = 0; i < n; i++) {
        RoleProgram *kernels = schedule_to_kernels(steps[i], &plan->mesh, schedule, i);
        kernels_to_memory(kernels);
        Text why = {.arena = s->arena};
        if (!memory_verify(kernels, &why)) fail_msg("stage %d: %s", i, why.at);
        if (!overlap_verify(kernels, &why)) fail_msg("stage %d: %s", i, why.at);
        roles[i] = (Role){.hub = &hub, .step = steps[i], .schedule = schedule, .mesh = plan->mesh};
        if (staged) roles[i].mesh.axes[cut.axis].size = 1;
        roles[i].k = km_open(kernels, &roles[i].mesh);
        roles[i].k.between = staged ? between : NULL;
        roles[i].k.stage_axis = cut.axis;
    }
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, run_role, &roles[i]);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    if (hub.stuck) fail_msg("stuck in %s with %s", hub.stuck, plan_text);
    Losses losses = {.eval = roles[n - 1].eval, .micro_batch = whole->micro_batch};
    for (int k = 0; k < 2; k++) {
        losses.loss[k] = roles[0].losses[k], losses.norm[k] = roles[0].norms[k];
        for (int i = 1; i < n; i++) assert_true(roles[i].losses[k] == losses.loss[k] && roles[i].norms[k] == losses.norm[k]);
    }
    for (int i = 0; i < n; i++) km_close(&roles[i].k);
    free(roles);
    session_free(s);
    return losses;
}

static void close_to(double got, double want, const char *what, const char *plan) {
    if (!(fabs(got - want) <= 1e-5 * fabs(want))) fail_msg("%s is %.9g, not %.9g, with %s", what, got, want, plan);
}

static void expect_equal(const char *model, Losses one, const char *plan) {
    Losses many = run_stages(model, plan);
    close_to(many.loss[0], one.loss[0], "the first loss", plan);
    close_to(many.loss[1], one.loss[1], "the second loss", plan);
    close_to(many.norm[0], one.norm[0], "the gradient's norm", plan);
    if (many.micro_batch == one.micro_batch) close_to(many.eval, one.eval, "the loss of evaluation", plan);
}

static const char *gpt(bool skip) {
    static char text[2][4096];
    const char *model = GPT, *at = strstr(model, "SKIP");
    snprintf(text[skip], sizeof text[skip], "%.*s%s%s", (int)(at - model), model, skip ? "y" : "x", at + 4);
    return text[skip];
}

static void test_alone(void **state) {
    (void)state;
    const char *model = gpt(false);
    Losses one = run_stages(model, "plan p { microbatch 1 }\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2\n layers on pipe using gpipe\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 4\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 3\n layers uneven(2, 0, 2) on pipe using one_f_one_b\n microbatch 2\n}\n");
    expect_equal(model, run_stages(model, "plan p { }\n"), "plan p {\n mesh pipe = 2\n layers on pipe\n}\n");
}

static void test_shared(void **state) {
    (void)state;
    Losses one = run_stages(SHARED, "plan p { microbatch 1 }\n"), skip = run_stages(gpt(true), "plan p { microbatch 1 }\n");
    expect_equal(gpt(true), skip, "plan p {\n mesh pipe = 4\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(gpt(true), skip, "plan p {\n mesh pipe = 2, tensor = 2\n layers on pipe using interleaved(chunks = 2)\n head, ffn, seq on tensor\n microbatch 1\n}\n");
    expect_equal(SHARED, one, "plan p {\n mesh pipe = 2\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(SHARED, one, "plan p {\n mesh pipe = 4\n layers on pipe using gpipe\n microbatch 1\n}\n");
    expect_equal(SHARED, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n weights on data\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
}

static void test_combined(void **state) {
    (void)state;
    const char *model = gpt(false);
    Losses one = run_stages(model, "plan p { microbatch 1 }\n");
    expect_equal(model, one, "plan p {\n mesh data = 2, pipe = 2\n batch on data\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, tensor = 2\n layers on pipe using one_f_one_b\n head, ffn, vocab, seq on tensor\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n optimizer on data\n layers on pipe using one_f_one_b\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n gradients on data\n layers on pipe using gpipe\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2, tensor = 2\n batch on data\n weights on data\n layers uneven(3, 1) on pipe using one_f_one_b\n head, ffn on tensor\n microbatch 1\n}\n");
}

static void test_interleaved(void **state) {
    (void)state;
    const char *model = gpt(false);
    Losses one = run_stages(model, "plan p { microbatch 1 }\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2\n layers on pipe using interleaved(chunks = 2)\n microbatch 1\n}\n");
    expect_equal(SHARED, run_stages(SHARED, "plan p { microbatch 2 }\n"), "plan p {\n mesh pipe = 2\n layers on pipe using interleaved(chunks = 2)\n microbatch 2\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n weights on data\n layers uneven(1, 2, 1, 0) on pipe using interleaved(chunks = 2)\n microbatch 1\n}\n");
}

static void test_zero_bubble(void **state) {
    (void)state;
    const char *model = gpt(false);
    Losses one = run_stages(model, "plan p { microbatch 1 }\n"), skip = run_stages(gpt(true), "plan p { microbatch 1 }\n"), shared = run_stages(SHARED, "plan p { microbatch 1 }\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 4\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 3\n layers uneven(2, 0, 2) on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(gpt(true), skip, "plan p {\n mesh pipe = 4\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(SHARED, shared, "plan p {\n mesh pipe = 4\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(SHARED, shared, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n weights on data\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 4\n layers on pipe using zero_bubble\n recompute full\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, tensor = 2\n layers on pipe using zero_bubble\n head, ffn, vocab, seq on tensor\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2\n batch on data\n gradients on data\n layers on pipe using zero_bubble\n microbatch 1\n}\n");
    expect_equal(model, one, "plan p {\n mesh pipe = 2, data = 2, tensor = 2\n batch on data\n weights on data\n layers uneven(3, 1) on pipe using zero_bubble\n head, ffn on tensor\n microbatch 1\n}\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_zero_bubble), cmocka_unit_test(test_alone), cmocka_unit_test(test_shared), cmocka_unit_test(test_combined),
                                       cmocka_unit_test(test_interleaved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
