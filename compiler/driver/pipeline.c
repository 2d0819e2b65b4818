/* The whole compiler, from text to program, in the order of DESIGN: one function of named steps. */
#include "driver/pipeline.h"

#include "driver/explain_plan.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "codegen/api.h"
#include "driver/fit_memory.h"
#include "driver/plan_to_schedule.h"
#include "driver/stats.h"
#include "graph/narrow.h"
#include "graph/reproducible.h"
#include "graph/stages.h"
#include "kernels/kernels.h"
#include "model/resolve.h"
#include "partition/step_partition.h"
#include "syntax/ast.h"

/* ---- front end ---------------------------------------------------------------------------------- */

typedef struct Front {
    Ast *ast;
    Program *program;
    ModelGraph *model;
    bool whole; /* no errors in the text of the model */
} Front;

static int exit_code(Session *s) { return diag_count(s, SEV_ERROR) ? 1 : 0; }

/* Text to the forward graph, with every check that does not depend on one plan. False after errors. */
static bool front_end(Session *s, const Options *options, Front *front) {
    const char *why;
    int32_t file = session_read_file(s, options->file, false, &why);
    if (!file) {
        diag_help(diag_error(s, "P0010", (Span){0}, "`%s` cannot be read: %s", options->file, why),
                  "give the path of a .plan file");
        return false;
    }
    front->ast = text_to_ast(s, file);
    bool syntax_errors = diag_count(s, SEV_ERROR) > 0;
    front->program = ast_to_model(s, front->ast, options->settings, options->n_settings);
    if (!front->program || (syntax_errors && !front->program->train)) return false;
    if (!front->program->train || !front->program->train->model) return diag_count(s, SEV_ERROR) == 0;
    int errors = diag_count(s, SEV_ERROR);
    front->model = model_to_graph(s, front->program, front->program->train);
    front->whole = !syntax_errors && diag_count(s, SEV_ERROR) == errors;
    return diag_count(s, SEV_ERROR) == 0;
}

/* The plans' checks need the model's dimensions; a file with errors elsewhere still gets them when it has those. */
static void check_plans(Session *s, const Front *front) {
    if (!front->program || !front->model) return;
    for (int i = 0; i < front->program->plans.n; i++) {
        int errors = diag_count(s, SEV_ERROR);
        plan_check(s, front->program->train, front->program->plans.at[i], front->model->dims.at, front->model->dims.n,
                   front->whole);
        front->program->plans.at[i]->refused = diag_count(s, SEV_ERROR) > errors;
        model_check_groups_of_layers(s, front->model, front->program->plans.at[i]);
    }
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
    if (near)
        diag_help(d, "did you mean `%s`?", near);
    else
        diag_help(d, "its plans begin with `%s`", names[0]);
    return NULL;
}

/* ---- middle ------------------------------------------------------------------------------------- */

static bool verifies(void) {
#ifdef PLAN_VERIFY
    return true;
#else
    return false;
#endif
}

/* The rule that orders the stages of a pipeline, or NULL. */
static const Rule *stage_rule(const Plan *plan, const StageCut *cut) {
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].what == cut->dim) return &plan->rules.at[i];
    return NULL;
}

static const char *unbuilt(const Front *front, const Plan *plan, Span *where) {
    const char *what = plan_unbuilt(plan, where);
    if (!what && front->program->train) what = train_unbuilt(front->program->train, where);
    if (!what && front->model) what = padding_unbuilt(front->program->session->arena, front->model, plan, where);
    if (!what && front->model) what = repeating_unbuilt(front->model, plan, where);
    if (!what && front->model) what = narrowing_unbuilt(front->program->session, front->model, plan, where);
    StageCut cut = {0};
    if (!what && front->model) plan_stage_cut(front->program->session, plan, front->model, &cut);
    for (int i = 0; !what && i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (cut.dim && rule->what && rule->what != cut.dim && rule->using_name && using_is_schedule(rule->using_name)) {
            *where = rule->span;
            what = "a pipeline over several repeats";
        }
    }
    for (int i = 0; !what && i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        const Dim *dim = rule->what && front->model ? graph_find_dim(front->model->graph, rule->what) : NULL;
        if (rule->how != STORE_UNEVEN || rule->what == cut.dim || !dim || !dim->is_repeated) continue;
        *where = rule->span;
        what = "an uneven dimension of rounds";
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
    } else
        diag_note_alone(s, "P9000", where, "memory of plan `%s` unknown: %s is not built yet", plan->name, what);
    return true;
}

static bool refuse_numerics(Session *s, const Options *options, const Front *front, const Plan *plan) {
    return options->reproducible && !plan_is_reproducible(s, plan, front->model ? front->model->graph : NULL);
}

/* Rules for parts of the model become rules for the whole of another one, in `*front`. NULL when it cannot be built,
 * which is an error or a note. */
static const Plan *prepare_plan(Session *s, const Options *options, Front *front, const Plan *plan, bool as_error) {
    if (!plan || refuse_numerics(s, options, front, plan) || refuse_unbuilt(s, front, plan, as_error)) return NULL;
    if (!front->model || !plan_is_narrowed(plan)) return plan;
    if (plan->refused || plan->broken) return NULL;
    const Plan *narrowed = plan_narrowed(s, plan, &front->model);
    if (!narrowed || refuse_unbuilt(s, front, narrowed, as_error)) return NULL;
    int errors = diag_count(s, SEV_ERROR);
    model_check_groups_of_layers(s, front->model, narrowed);
    return diag_count(s, SEV_ERROR) == errors ? narrowed : NULL;
}

/* ---- emitting stages ---------------------------------------------------------------------------- */

static bool emits(const Options *options, const char *stage) {
    return options->emit && strcmp(options->emit, stage) == 0;
}

static int put(const Text *text) {
    if (text->at) fwrite(text->at, 1, text->n, stdout);
    return 0;
}

static void print_step(const Step *step, Text *out) {
    const Graph *graphs[] = {step->init, step->begin,  step->count, step->total,
                             step->body, step->update, step->eval,  step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++)
        if (graphs[i]) graph_print(graphs[i], out);
    for (int i = 0; i < step->n_chunks; i++) {
        graph_print(step->bodies[i], out);
        graph_print(step->evals[i], out);
        if (step->decodes) graph_print(step->decodes[i], out);
    }
}

static bool known_stage(Session *s, const Options *options) {
    static const char *const stages[] = {"ast",     "model",  "graph", "step", "roles", "schedule", "schedule=pytorch",
                                         "kernels", "memory", "stats", "json", "llvm",  "asm",      "ptx"};
    if (!options->emit) return true;
    Name names[16];
    int n = 0;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        if (strcmp(stages[i], options->emit) == 0) return true;
        names[n++] = intern(s->names, stages[i]);
    }
    Diag *d = diag_error(s, "P0803", (Span){0}, "there is no stage `%s`", options->emit);
    Name near = nearest_name(intern(s->names, options->emit), names, n);
    if (near)
        diag_help(d, "did you mean `%s`?", near);
    else
        diag_help(
            d, "stages: ast model graph step roles schedule schedule=pytorch kernels memory stats json llvm asm ptx");
    return false;
}

/* ---- the code generator, loaded on demand ------------------------------------------------------- */

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
    if (options->target == TARGET_CUDA) {
        Diag *d = diag_error(s, "P9000", (Span){0}, "a program for GPUs is not built yet");
        diag_help(d, "`--emit ptx` prints its kernels; without `--target` the program runs on the CPU");
        return 1;
    }
    job.object = arena_printf(s->arena, "%s.%d.o", out, (int)getpid());
    job.binary = out;
    job.runtime_library = beside_executable(s->arena, "lib/plan/libplan_rt.a");
    bool good = api->run(s, &job);
    unlink(job.object);
    return good ? 0 : 1;
}

/* ---- commands ----------------------------------------------------------------------------------- */

const char *pipeline_default_output(Session *s, const char *file) {
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    size_t n = strlen(base);
    if (n > 5 && strcmp(base + n - 5, ".plan") == 0) n -= 5;
    return arena_printf(s->arena, "%.*s", (int)n, base);
}

typedef struct Build {
    const Options *options;
    const Front *front;
} Build;

/* The axes that divide the samples, from the inputs' types: a name before `batch` in an axis's list may have cut them.
 */
static void note_batch_axes(ProgramFacts *facts, const RoleProgram *role) {
    for (int i = 0; i < role->buffers.n; i++) {
        const Tensor *tensor = role->buffers.at[i]->tensor;
        for (int a = 0; tensor && tensor->class == CLASS_DATA && a < facts->mesh->n; a++)
            if (tensor->type[a].kind == AXIS_SHARDED && tensor->type[a].dim->is_batch) facts->batch_on_axis[a] = true;
    }
}

/* The table says how many chunks a stage has, and whether backward passes are split. */
static bool fit_cut_to_table(Session *s, const Front *front, const Plan *plan, const Schedule *table, StageCut *cut) {
    bool staged = cut->n_stages > 1;
    int64_t layers = staged ? graph_find_dim(front->model->graph, cut->dim)->size : 1;
    if (!table_fits(s, table, cut, staged ? cut->n_stages : 1, plan_micros(plan, front->model), layers)) return false;
    if (staged && table->n_chunks * cut->n_stages != cut->n_chunks) stage_cut_evenly(s, cut, table->n_chunks, layers);
    cut->splits_backward = schedule_splits_backward(table);
    return true;
}

/* Role programs with addresses, for one plan. NULL after diagnostics. */
static ProgramFacts *build_plan(void *context, Session *s, const Plan *plan) {
    const Build *build = context;
    const Options *options = build->options;
    const Front *front = build->front;
    ProgramFacts *facts = NEW(s->arena, ProgramFacts);
    int errors = diag_count(s, SEV_ERROR);
    StageCut cut = {0};
    bool staged = plan_stage_cut(s, plan, front->model, &cut) && cut.n_stages > 1;
    const Rule *rule = staged ? stage_rule(plan, &cut) : NULL;
    cut.splits_backward = rule && schedule_name_splits_backward(rule->using_name);
    Schedule *table = NULL;
    if (!plan_read_table(s, options, rule, &table) || (table && !fit_cut_to_table(s, front, plan, table, &cut)))
        return NULL;
    const Train *train = front->program->train;
    Step *whole, **steps = NEW(s->arena, Step *);
    if (staged)
        steps = grad_to_stages(s, train, plan, front->model, &cut, &whole);
    else
        whole = steps[0] = grad_to_step(s, train, plan, front->model);
    if (!steps || !whole || diag_count(s, SEV_ERROR) > errors) return NULL;
    int n = staged ? cut.n_stages : 1;
    for (int i = 0; options->reproducible && i < n; i++)
        if (!step_make_reproducible(s, steps[i])) return NULL;
    steps_partition(steps, n, plan, verifies());
    *facts = (ProgramFacts){.train = train,
                            .plan = plan,
                            .step = whole,
                            .mesh = &plan->mesh,
                            .n_roles = n,
                            .steps = steps,
                            .step_axis = cut.axis};
    Schedule *schedule = plan_to_schedule(s, rule, table, steps[0], n);
    if (!schedule) return NULL;
    facts->schedule = schedule;
    if (staged) schedule_set_transfers(schedule, steps);
    if (!schedule_verify(schedule, rule ? rule->span : (Span){0})) return NULL;
    facts->roles = NEW_N(s->arena, RoleProgram *, n);
    for (int i = 0; i < n; i++) {
        facts->roles[i] = schedule_to_kernels(steps[i], facts->mesh, facts->schedule, i);
        for (int k = 0; k < steps[i]->transfers.n; k++)
            if (steps[i]->transfers.at[k].channel >= facts->n_channels)
                facts->n_channels = steps[i]->transfers.at[k].channel + 1;
        kernels_to_memory(facts->roles[i]);
        note_batch_axes(facts, facts->roles[i]);
#ifdef PLAN_VERIFY
        Text why = {.arena = s->arena};
        if (!memory_verify(facts->roles[i], &why)) BUG("memory: %s", why.at);
        if (!overlap_verify(facts->roles[i], &why)) BUG("overlap: %s", why.at);
#endif
    }
    return facts;
}

/* A table says how many micro-batches there are: a plan that does not gets their size from it. */
static const Plan *sized_by_table(Session *s, const Options *options, const Front *front, const Plan *plan) {
    const Rule *rule = NULL;
    Schedule *table;
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].table) rule = &plan->rules.at[i];
    if (plan->microbatch || (!rule && !options->schedule)) return plan;
    if (!plan_read_table(s, options, rule, &table)) return NULL;
    Plan *sized = NEW(s->arena, Plan);
    *sized = *plan;
    sized->microbatch = 1;
    int64_t samples = plan_micros(sized, front->model); /* of a rank */
    sized->microbatch = samples % table->n_micro ? samples : samples / table->n_micro;
    return sized;
}

/* The same for a plan that fits its memory. */
static ProgramFacts *plan_to_memory(Session *s, const Options *options, const Front *front, const Plan *plan) {
    Build build = {options, front};
    plan = sized_by_table(s, options, front, plan);
    if (!plan) return NULL;
    Fit fit = {.s = s,
               .plan = plan,
               .model = front->model,
               .machine_bytes = options->memory,
               .threads = options->threads,
               .build = build_plan,
               .context = &build};
    return fit_memory(&fit);
}

static int emit_step(Session *s, const Front *front, const Plan *plan) {
    Text text = {.arena = s->arena};
    const Step *step = grad_to_step(s, front->program->train, plan, front->model);
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
            Front own = front;
            const Plan *plan = prepare_plan(s, options, &own, front.program->plans.at[i], false);
            if (plan && own.model && clean) plan_to_memory(s, options, &own, plan);
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
        diag_help(
            diag_error(s, "P0500", (Span){0}, "`%s` has no `train` block: there is nothing to build", options->file),
            "add one, or `plc check` the file");
        return 1;
    }
    if (emits(options, "graph")) {
        graph_print(front.model->graph, &text);
        return put(&text);
    }
    const Plan *plan = prepare_plan(s, options, &front, choose_plan(s, &front, options), true);
    if (!plan) return 1;
    ProgramFacts *facts = plan_to_memory(s, options, &front, plan);
    if (!facts) return exit_code(s);
    if (emits(options, "step")) return emit_step(s, &front, facts->plan);
    if (emits(options, "roles"))
        for (int i = 0; i < facts->n_roles; i++) print_step(facts->steps[i], &text);
    else if (emits(options, "schedule"))
        schedule_print(facts->schedule, &text);
    else if (emits(options, "schedule=pytorch"))
        schedule_print_torch(facts->schedule, &text);
    else if (emits(options, "kernels"))
        for (int i = 0; i < facts->n_roles; i++) kernels_print(facts->roles[i], &text);
    else if (emits(options, "memory"))
        for (int i = 0; i < facts->n_roles; i++) memory_print(facts->roles[i], &text);
    else if (emits(options, "stats"))
        stats_print(s, front.model, facts, &text);
    else if (emits(options, "json")) {
        const CodegenApi *api = load_codegen(s);
        if (!api) return 3;
        text_printf(&text, "%s\n", api->json(facts));
    } else
        return generate(s, options, facts);
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
        if (only && front.program->plans.at[i] != only) continue;
        Front own = front;
        const Plan *plan = prepare_plan(s, options, &own, front.program->plans.at[i], false);
        if (!plan) continue;
        ProgramFacts *facts = plan_to_memory(s, options, &own, plan);
        if (!facts) return exit_code(s);
        if (text.at) text_puts(&text, "\n");
        explain_plan(s, facts, &text);
    }
    return put(&text);
}
