/* The whole compiler, from text to program, in the order of DESIGN: one function of named steps. */
#include "driver/pipeline.h"

#include "driver/explain_plan.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "codegen/api.h"
#include "driver/fit_memory.h"
#include "graph/graph.h"
#include "kernels/kernels.h"
#include "partition/partition.h"
#include "schedule/schedules.h"
#include "syntax/ast.h"

/* ---- front end ---------------------------------------------------------------------------------------------------------- */

typedef struct Front {
    Ast *ast;
    Program *program;
    ModelGraph *model;
} Front;

static int exit_code(Session *s) { return diag_count(s, SEV_ERROR) ? 1 : 0; }

/* Text to the forward graph, with every check that does not depend on one plan. False after errors. */
static bool front_end(Session *s, const Options *options, Front *front) {
    const char *why;
    int32_t file = session_read_file(s, options->file, false, &why);
    if (!file) {
        diag_help(diag_error(s, "P0010", (Span){0}, "`%s` cannot be read: %s", options->file, why), "give the path of a .plan file");
        return false;
    }
    front->ast = text_to_ast(s, file);
    bool syntax_errors = diag_count(s, SEV_ERROR) > 0;
    front->program = ast_to_model(s, front->ast, options->settings, options->n_settings);
    if (!front->program || (syntax_errors && !front->program->train)) return false;
    if (!front->program->train || !front->program->train->model) return diag_count(s, SEV_ERROR) == 0;
    front->model = model_to_graph(s, front->program, front->program->train);
    return diag_count(s, SEV_ERROR) == 0;
}

/* The plans' checks need the model's dimensions; a file with errors elsewhere still gets them when it has those. */
static void check_plans(Session *s, const Front *front) {
    if (!front->program || !front->model) return;
    for (int i = 0; i < front->program->plans.n; i++)
        plan_check(s, front->program, front->program->train, front->program->plans.at[i], front->model->dims.at, front->model->dims.n);
}

static const Plan *choose_plan(Session *s, const Front *front, const Options *options) {
    if (!front->program->plans.n) {
        diag_help(diag_error(s, "P0420", (Span){0}, "`%s` has no plan", options->file), "add one: `plan single { }`");
        return NULL;
    }
    if (!options->plan) return front->program->plans.at[0];
    Name names[64];
    int n = 0;
    for (int i = 0; i < front->program->plans.n; i++) {
        const Plan *plan = front->program->plans.at[i];
        if (strcmp(plan->name, options->plan) == 0) return plan;
        if (n < 64) names[n++] = plan->name;
    }
    Diag *d = diag_error(s, "P0421", (Span){0}, "`%s` has no plan `%s`", options->file, options->plan);
    Name near = nearest_name(intern(s->names, options->plan), names, n);
    if (near) diag_help(d, "did you mean `%s`?", near);
    else diag_help(d, "its plans begin with `%s`", names[0]);
    return NULL;
}

/* ---- middle --------------------------------------------------------------------------------------------------------------- */

/* The names of each axis's list, as dimensions of this graph. */
static Layout layout_of(const Plan *plan, const Graph *graph, Map *flat_dims) {
    Layout layout = {.mesh = plan->mesh, .flat_dims = flat_dims};
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        static const StoredParts stored[] = {[STORAGE_OPTIMIZER] = STORED_OPTIMIZER, [STORAGE_GRADIENTS] = STORED_GRADIENTS,
                                             [STORAGE_WEIGHTS] = STORED_WEIGHTS};
        if (rule->storage && stored[rule->storage] > layout.axes[rule->axis].stored)
            layout.axes[rule->axis].stored = stored[rule->storage];
        if (!rule->what) continue;
        if (rule->using_name) { /* plan_unbuilt has refused every other word */
            bool ulysses = strcmp(rule->using_name, "ulysses") == 0;
            layout.axes[rule->axis].attention = ulysses ? ATTENTION_ULYSSES : ATTENTION_GATHER;
            layout.axes[rule->axis].attention_span = rule->span;
        }
        Dim *dim = rule->how == STORE_REPEATED ? NULL : graph_find_dim(graph, rule->what); /* it is cut through its product */
        if (dim) vec_push(graph->arena, &layout.axes[rule->axis].names, dim);
    }
    return layout;
}

static void verify(const Graph *graph, const char *pass) {
#ifdef PLAN_VERIFY
    Text why = {.arena = graph->arena};
    if (!graph_verify(graph, &why)) BUG("after %s, graph %s: %s", pass, graph->name, why.at);
#else
    (void)graph, (void)pass;
#endif
}

/* The body is typed first: accumulators take the types of the gradients that it makes. */
static void step_to_roles(Step *step, const Plan *plan) {
    Map *flat_dims = NEW(step->session->arena, Map);
    Graph *graphs[] = {step->body, step->update, step->begin, step->init, step->count, step->total, step->eval, step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++)
        if (graphs[i]) verify(graphs[i], "grad_to_step");
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        if (!graphs[i]) continue;
        if (graphs[i] == step->decode) { /* sampling runs on one rank, with whole weights */
            Layout one = {.mesh = plan->mesh, .flat_dims = flat_dims};
            graph_partition(graphs[i], &one);
        } else {
            Layout layout = layout_of(plan, graphs[i], flat_dims);
            graph_partition(graphs[i], &layout);
        }
        verify(graphs[i], "partitioning");
    }
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) /* once more: a tensor has one type in all of them */
        if (graphs[i]) verify(graphs[i], "partitioning all graphs");
}

static Schedule *roles_to_schedule(Session *s, const Options *options, const Step *step) {
    ScheduleParts parts = {.begin = step->begin != NULL, .count = step->count != NULL, .total = step->total != NULL};
    if (!options->schedule) return schedule_one_f_one_b(s, s->arena, 1, (int)step->micros, parts);
    const char *why;
    int32_t file = session_read_file(s, options->schedule, false, &why);
    if (!file) {
        diag_error(s, "P0010", (Span){0}, "`%s` cannot be read: %s", options->schedule, why);
        return NULL;
    }
    Schedule *schedule = schedule_parse(s, file);
    if (schedule && (schedule->n_roles != 1 || schedule->n_micro != step->micros)) {
        diag_error(s, "P0703", (Span){file, 0, 0}, "the schedule is for %d roles and %d micro-batches, the plan has 1 and %lld",
                   schedule->n_roles, schedule->n_micro, (long long)step->micros);
        return NULL;
    }
    return schedule;
}

/* A rule on a dimension that a repeat runs over is pipeline parallelism. */
static bool is_repeated(const Region *region, Name dim) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Region *inner = region->nodes.at[i]->region;
        if (inner && (inner->dim->name == dim || is_repeated(inner, dim))) return true;
    }
    return false;
}

static const char *unbuilt(const Front *front, const Plan *plan, Span *where) {
    const char *what = plan_unbuilt(plan, where);
    if (!what && front->program->train) what = train_unbuilt(front->program->train, where);
    if (!what && front->model) what = padding_unbuilt(front->program->session->arena, front->model, plan, where);
    if (!what && front->model) what = repeating_unbuilt(front->model, plan, where);
    for (int i = 0; !what && front->model && i < plan->rules.n; i++) {
        if (!plan->rules.at[i].what || !is_repeated(&front->model->graph->top, plan->rules.at[i].what)) continue;
        *where = plan->rules.at[i].span;
        what = "pipeline parallelism";
    }
    return what;
}

static bool refuse_unbuilt(Session *s, const Front *front, const Plan *plan, bool as_error) {
    Span where;
    const char *what = unbuilt(front, plan, &where);
    if (!what) return false;
    if (as_error) {
        Diag *d = diag_error(s, "P9000", where, "%s is not built yet", what);
        diag_help(d, "choose another plan with `--plan`");
    } else diag_note_alone(s, "P9000", where, "memory of plan `%s` unknown: %s is not built yet", plan->name, what);
    return true;
}

/* ---- emitting stages --------------------------------------------------------------------------------------------------------- */

static bool emits(const Options *options, const char *stage) { return options->emit && strcmp(options->emit, stage) == 0; }

static int put(const Text *text) {
    if (text->at) fwrite(text->at, 1, text->n, stdout);
    return 0;
}

static void print_step(const Step *step, Text *out) {
    const Graph *graphs[] = {step->init, step->begin, step->count, step->total, step->body, step->update, step->eval, step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++)
        if (graphs[i]) graph_print(graphs[i], out);
}

static bool known_stage(Session *s, const Options *options) {
    static const char *const stages[] = {"ast", "model", "graph", "step", "roles", "schedule", "kernels", "memory", "json", "llvm",
                                         "asm", "ptx"};
    if (!options->emit) return true;
    Name names[16];
    int n = 0;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        if (strcmp(stages[i], options->emit) == 0) return true;
        names[n++] = intern(s->names, stages[i]);
    }
    Diag *d = diag_error(s, "P0803", (Span){0}, "there is no stage `%s`", options->emit);
    Name near = nearest_name(intern(s->names, options->emit), names, n);
    if (near) diag_help(d, "did you mean `%s`?", near);
    else diag_help(d, "stages: ast model graph step roles schedule kernels memory json llvm asm ptx");
    return false;
}

/* ---- the code generator, loaded on demand --------------------------------------------------------------------------------------- */

static char *beside_executable(Arena *arena, const char *path) {
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return NULL;
    self[n] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(self, '/');
        if (slash) *slash = 0;
    }
    return arena_printf(arena, "%s/%s", self, path);
}

static const CodegenApi *load_codegen(Session *s) {
    char *path = beside_executable(s->arena, "lib/plan/libplan_codegen.so");
    void *library = path ? dlopen(path, RTLD_LAZY | RTLD_LOCAL) : NULL;
    const CodegenApi *api = library ? dlsym(library, "plan_codegen_api") : NULL;
    if (!api) {
        Diag *d = diag_error(s, "P0804", (Span){0}, "the code generator cannot be loaded: %s", dlerror());
        diag_help(d, "install LLVM 19's shared library, or build again");
    }
    return api;
}

static int generate(Session *s, const Options *options, const ProgramFacts *facts) {
    const CodegenApi *api = load_codegen(s);
    if (!api) return 3;
    Text text = {.arena = s->arena};
    const char *out = options->output ? options->output : pipeline_default_output(s, options->file);
    CodegenJob job = {.facts = facts, .cpu = options->cpu ? options->cpu : "native"};
    if (emits(options, "ptx")) {
        job.text = &text;
        return api->ptx(s, &job, options->gpu ? atoi(options->gpu + 3) : 80) ? put(&text) : 1;
    }
    if (emits(options, "llvm")) {
        job.text = &text;
        return api->run(s, &job) ? put(&text) : 1;
    }
    if (emits(options, "asm")) {
        job.assembly = options->output ? options->output : "/dev/stdout";
        return api->run(s, &job) ? 0 : 1;
    }
    job.object = arena_printf(s->arena, "%s.%d.o", out, (int)getpid());
    job.binary = out;
    job.runtime_library = beside_executable(s->arena, "lib/plan/libplan_rt.a");
    bool good = api->run(s, &job);
    unlink(job.object);
    return good ? 0 : 1;
}

/* ---- commands ------------------------------------------------------------------------------------------------------------------ */

const char *pipeline_default_output(Session *s, const char *file) {
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    size_t n = strlen(base);
    if (n > 5 && strcmp(base + n - 5, ".plan") == 0) n -= 5;
    return arena_printf(s->arena, "%.*s", (int)n, base);
}

/* The plans of a file share the model's tensors: what the plan before made of them is forgotten. */
static void forget_types(const Graph *model) {
    for (int i = 0; i < model->tensors.n; i++) {
        Tensor *tensor = model->tensors.at[i];
        if (tensor->logical.n) tensor->shape = tensor->logical;
        tensor->logical = (Shape){0};
        memset(tensor->type, 0, sizeof tensor->type);
        memset(tensor->logical_type, 0, sizeof tensor->logical_type);
        tensor->typed = false;
    }
}

typedef struct Build {
    Session *s;
    const Options *options;
    const Front *front;
} Build;

/* Role programs with addresses, for one plan. NULL after diagnostics. */
static ProgramFacts *build_plan(void *context, const Plan *plan) {
    const Build *build = context;
    Session *s = build->s;
    const Options *options = build->options;
    const Front *front = build->front;
    ProgramFacts *facts = NEW(s->arena, ProgramFacts);
    forget_types(front->model->graph);
    int errors = diag_count(s, SEV_ERROR);
    Step *step = grad_to_step(s, front->program, front->program->train, plan, front->model);
    if (!step || diag_count(s, SEV_ERROR) > errors) return NULL;
    step_to_roles(step, plan);
    *facts = (ProgramFacts){.train = front->program->train, .plan = plan, .step = step, .mesh = &plan->mesh};
    for (int i = 0; i < step->body->tensors.n; i++) { /* a name before `batch` in an axis's list may have cut the inputs */
        const Tensor *tensor = step->body->tensors.at[i];
        for (int a = 0; tensor->class == CLASS_DATA && a < plan->mesh.n; a++)
            if (tensor->type[a].kind == AXIS_SHARDED && tensor->type[a].dim->is_batch) facts->batch_on_axis[a] = true;
    }
    facts->schedule = roles_to_schedule(s, options, step);
    if (!facts->schedule) return NULL;
    facts->n_roles = 1;
    facts->roles = NEW_N(s->arena, RoleProgram *, 1);
    facts->roles[0] = schedule_to_kernels(step, facts->mesh, facts->schedule, 0);
    kernels_to_memory(facts->roles[0]);
#ifdef PLAN_VERIFY
    Text why = {.arena = s->arena};
    if (!memory_verify(facts->roles[0], &why)) BUG("memory: %s", why.at);
#endif
    return facts;
}

/* The same for a plan that fits its memory. */
static ProgramFacts *plan_to_memory(Session *s, const Options *options, const Front *front, const Plan *plan) {
    Build build = {s, options, front};
    if (options->schedule && !plan->microbatch) return build_plan(&build, plan); /* it says how many micro-batches there are */
    Fit fit = {.s = s, .plan = plan, .model = front->model, .machine_bytes = options->memory, .threads = options->threads,
               .build = build_plan, .context = &build};
    return fit_memory(&fit);
}

static int emit_step(Session *s, const Front *front, const Plan *plan) {
    Text text = {.arena = s->arena};
    const Step *step = grad_to_step(s, front->program, front->program->train, plan, front->model);
    if (!step) return 1;
    print_step(step, &text);
    return put(&text);
}

int pipeline_check(Session *s, const Options *options) {
    Front front = {0};
    bool good = front_end(s, options, &front);
    check_plans(s, &front);
    bool clean = diag_count(s, SEV_ERROR) == 0;
    if (good && front.program)
        for (int i = 0; i < front.program->plans.n; i++) {
            const Plan *plan = front.program->plans.at[i];
            if (!refuse_unbuilt(s, &front, plan, false) && front.model && clean)
                plan_to_memory(s, options, &front, plan);
        }
    return exit_code(s);
}

int pipeline_build(Session *s, const Options *options) {
    Front front = {0};
    Text text = {.arena = s->arena};
    if (!known_stage(s, options)) return 2;
    bool good = front_end(s, options, &front);
    if (emits(options, "ast") && front.ast) {
        ast_dump(front.ast, &text);
        put(&text);
        return exit_code(s);
    }
    check_plans(s, &front);
    if (!good || diag_count(s, SEV_ERROR)) return 1;
    if (emits(options, "model")) {
        program_print(front.program, &text);
        return put(&text);
    }
    if (!front.model) {
        diag_help(diag_error(s, "P0500", (Span){0}, "`%s` has no `train` block: there is nothing to build", options->file),
                  "add one, or `plc check` the file");
        return 1;
    }
    if (emits(options, "graph")) {
        graph_print(front.model->graph, &text);
        return put(&text);
    }
    const Plan *plan = choose_plan(s, &front, options);
    if (!plan || refuse_unbuilt(s, &front, plan, true)) return 1;
    ProgramFacts *facts = plan_to_memory(s, options, &front, plan);
    if (!facts) return exit_code(s);
    if (emits(options, "step")) return emit_step(s, &front, facts->plan);
    if (emits(options, "roles")) print_step(facts->step, &text);
    else if (emits(options, "schedule")) schedule_print(facts->schedule, &text);
    else if (emits(options, "kernels")) kernels_print(facts->roles[0], &text);
    else if (emits(options, "memory")) memory_print(facts->roles[0], &text);
    else if (emits(options, "json")) {
        const CodegenApi *api = load_codegen(s);
        if (!api) return 3;
        text_printf(&text, "%s\n", api->json(facts));
    } else return generate(s, options, facts);
    return put(&text);
}

int pipeline_explain(Session *s, const Options *options) {
    Front front = {0};
    bool good = front_end(s, options, &front);
    check_plans(s, &front);
    if (!good || diag_count(s, SEV_ERROR)) return 1;
    if (!front.model) return 0;
    const Plan *only = options->plan ? choose_plan(s, &front, options) : NULL;
    if (options->plan && !only) return 1;
    Text text = {.arena = s->arena};
    for (int i = 0; i < front.program->plans.n; i++) {
        const Plan *plan = front.program->plans.at[i];
        if ((only && plan != only) || refuse_unbuilt(s, &front, plan, false)) continue;
        ProgramFacts *facts = plan_to_memory(s, options, &front, plan);
        if (!facts) return exit_code(s);
        if (text.at) text_puts(&text, "\n");
        explain_plan(s, facts, &text);
    }
    return put(&text);
}
