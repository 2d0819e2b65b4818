/* The resolved model as text, for --emit model: every number in base units, every name as it was found. */
#include <math.h>

#include "model/resolve.h"

static void print_number(Text *out, const char *name, double value) {
    if (!isnan(value)) text_printf(out, "    %s = %.10g\n", name, value);
}

static void print_gpu(Text *out, const Gpu *gpu) {
    text_printf(out, "gpu %s\n", gpu->name);
    for (int i = 0; i < gpu_field_count(); i++) print_number(out, gpu_field_name(i), gpu_field_value(gpu, i));
}

static void print_cluster(Text *out, const Cluster *cluster) {
    text_printf(out, "cluster %s: %lld ranks\n", cluster->name, (long long)cluster->ranks);
    for (int i = 0; i < cluster->groups.n; i++) {
        const NodeGroup *group = &cluster->groups.at[i];
        text_printf(out, "    nodes = %lld of %lld * %s\n", (long long)group->nodes, (long long)group->gpus,
                    group->gpu->name);
    }
    for (int i = 0; i < cluster->links.n; i++) {
        const Link *link = &cluster->links.at[i];
        text_printf(out, "    link %s %s = %.10g bytes/s", link->where, link->kind, link->rate);
        if (!isnan(link->latency)) text_printf(out, ", %.10g s", link->latency);
        text_puts(out, "\n");
    }
    print_number(out, "chassis", cluster->chassis_slots);
    print_number(out, "power", cluster->node_power);
}

static void print_dataset(Text *out, const char *what, const Dataset *data) {
    static const char *const kinds[] = {"text", "tokens", "arrays"};
    text_printf(out, "    %s%s%s = %s(", what, data->name != NULL ? " " : "", data->name != NULL ? data->name : "",
                kinds[data->kind]);
    for (int i = 0; i < data->paths.n; i++) text_printf(out, "%s\"%s\"", i > 0 ? ", " : "", data->paths.at[i]);
    for (int i = 0; i < data->columns.names.n; i++)
        text_printf(out, "%s%s = \"%s\"", i > 0 ? ", " : "", data->columns.names.at[i], data->columns.paths.at[i]);
    text_puts(out, ")\n");
}

static void print_optimizer(Text *out, const Optimizer *o) {
    static const char *const rates[] = {"constant", "linear", "cosine"};
    text_printf(out, "    optimizer = %s\n", o->kind == OPT_ADAMW ? "adamw" : "sgd");
    text_printf(out, "        lr = %s(peak = %.10g, warmup = %lld, end = %.10g)\n", rates[o->rate.kind], o->rate.peak,
                (long long)o->rate.warmup, o->rate.end);
    if (o->kind == OPT_ADAMW)
        text_printf(out, "        betas = (%.10g, %.10g), epsilon = %.10g\n", o->beta1, o->beta2, o->epsilon);
    else
        text_printf(out, "        momentum = %.10g\n", o->momentum);
    text_printf(out, "        weight_decay = %.10g\n", o->weight_decay);
    for (int i = 0; i < o->groups.n; i++) {
        const ParameterGroup *group = &o->groups.at[i];
        text_puts(out, "        group");
        for (int k = 0; k < group->words.n; k++) text_printf(out, "%s %s", k > 0 ? "," : "", group->words.at[k]);
        if (!isnan(group->weight_decay)) text_printf(out, ": weight_decay = %.10g", group->weight_decay);
        if (!isnan(group->lr_scale)) text_printf(out, ": lr_scale = %.10g", group->lr_scale);
        text_puts(out, "\n");
    }
}

static void print_value(Arena *arena, Text *out, const Expr *e) {
    if (e->kind == EXPR_INT)
        text_printf(out, "%lld", (long long)e->integer);
    else if (e->kind == EXPR_FLOAT)
        text_printf(out, "%.10g", e->number);
    else
        text_puts(out, expr_dotted(arena, e) != NULL ? expr_dotted(arena, e) : "(of its own dimensions)");
}

static void print_train(Arena *arena, Text *out, const Train *train) {
    text_puts(out, "train\n");
    if (train->model != NULL) {
        text_printf(out, "    model = %s", train->model->name);
        for (int i = 0; i < train->model_arguments.n; i++) {
            text_printf(out, "%s%s = ", i == 0 ? "(" : ", ", train->model_arguments.at[i].name);
            print_value(arena, out, train->model_arguments.at[i].value);
        }
        text_puts(out, train->model_arguments.n > 0 ? ")\n" : "\n");
    }
    if (train->from != NULL) text_printf(out, "    from = \"%s\"\n", train->from);
    for (int i = 0; i < train->data.n; i++) print_dataset(out, "data", &train->data.at[i]);
    for (int i = 0; i < train->validation.n; i++) print_dataset(out, "validation", &train->validation.at[i]);
    if (train->validation.n == 0) print_number(out, "split", train->split);
    text_printf(out, "    batch = %lld\n    steps = %lld\n    seed = %lld\n", (long long)train->batch,
                (long long)train->steps, (long long)train->seed);
    print_optimizer(out, &train->optimizer);
    print_number(out, "clip", train->clip);
    if (train->eval_every > 0)
        text_printf(out, "    eval = every %lld on %lld batches\n", (long long)train->eval_every,
                    (long long)train->eval_batches);
    if (train->save_every > 0)
        text_printf(out, "    save = every %lld to \"%s\" keep %lld\n", (long long)train->save_every, train->save_to,
                    (long long)train->save_keep);
    if (train->freeze.n > 0) text_printf(out, "    freeze =%s", train->freeze_all_but ? " all but" : "");
    for (int i = 0; i < train->freeze.n; i++)
        text_printf(out, "%s %s%s", i > 0 ? "," : "", train->freeze.at[i], i == train->freeze.n - 1 ? "\n" : "");
}

static void print_rule(Arena *arena, Text *out, const Plan *plan, const Rule *rule) {
    static const char *const hows[] = {"", " padded", " uneven", " repeated"};
    text_printf(out, "    %s%s", rule_text(arena, plan, rule), hows[rule->how]);
    for (int i = 0; i < rule->uneven.n; i++)
        text_printf(out, "%s%lld%s", i == 0 ? "(" : ", ", (long long)rule->uneven.at[i],
                    i == rule->uneven.n - 1 ? ")" : "");
    if (rule->using_name != NULL) text_printf(out, " using %s", rule->using_name);
    if (rule->chunks > 0) text_printf(out, "(chunks = %lld)", (long long)rule->chunks);
    if (rule->in != NULL) text_printf(out, " in %s", expr_dotted(arena, rule->in->value));
    text_puts(out, "\n");
}

static void print_plan(Arena *arena, Text *out, const Plan *plan) {
    text_printf(out, "plan %s on %s\n    mesh =", plan->name,
                plan->cluster != NULL ? plan->cluster->name : "this machine");
    for (int i = 0; i < plan->mesh.n; i++)
        text_printf(out, "%s %s %lld", i > 0 ? "," : "", plan->mesh.axes[i].name, (long long)plan->mesh.axes[i].size);
    text_puts(out, plan->mesh.n == 0 ? " one rank\n" : "\n");
    for (int i = 0; i < plan->rules.n; i++) print_rule(arena, out, plan, &plan->rules.at[i]);
    if (plan->microbatch > 0) text_printf(out, "    microbatch = %lld\n", (long long)plan->microbatch);
    text_printf(out, "    precision = %s", plan->precision);
    if (strcmp(plan->precision, "fp16") == 0)
        text_printf(out, "(scale = %g, grow_every = %lld)", plan->scale.start, (long long)plan->scale.grow_every);
    text_puts(out, "\n");
    if (plan->recompute_every) text_printf(out, "    recompute = every %lld\n", (long long)plan->recompute_every);
    for (int i = 0; i < plan->recompute.n; i++)
        text_printf(out, "%s%s%s", i ? ", " : "    recompute = ", plan->recompute.at[i],
                    i + 1 == plan->recompute.n ? "\n" : "");
    if (plan->threads > 0) text_printf(out, "    threads = %lld\n", (long long)plan->threads);
}

/* GPUs and clusters of imported files are left out unless a cluster of this file or a plan uses them: the standard
 * library describes dozens. */
static bool uses_gpu(const Program *program, const Gpu *gpu) {
    if (gpu->span.file == program->ast->file) return true;
    for (int i = 0; i < program->plans.n; i++) {
        const Cluster *cluster = program->plans.at[i]->cluster;
        for (int k = 0; cluster != NULL && k < cluster->groups.n; k++)
            if (cluster->groups.at[k].gpu == gpu) return true;
    }
    return false;
}

static bool uses_cluster(const Program *program, const Cluster *cluster) {
    if (cluster->span.file == program->ast->file) return true;
    for (int i = 0; i < program->plans.n; i++)
        if (program->plans.at[i]->cluster == cluster) return true;
    return false;
}

void program_print(const Program *program, Text *out) {
    text_puts(out, ""); /* an empty file prints as nothing, not as NULL */
    Arena *arena = program->session->arena;
    for (int i = 0; i < program->constants.n; i++)
        text_printf(out, "const %s = %.10g\n", (Name)program->constants.entries[i].key,
                    *(const double *)program->constants.entries[i].value);
    for (int i = 0; i < program->gpus.n; i++)
        if (uses_gpu(program, program->gpus.at[i])) print_gpu(out, program->gpus.at[i]);
    for (int i = 0; i < program->clusters.n; i++)
        if (uses_cluster(program, program->clusters.at[i])) print_cluster(out, program->clusters.at[i]);
    for (int i = 0; i < program->models.n; i++) text_printf(out, "model %s\n", program->models.at[i]->name);
    for (int i = 0; i < program->layers.n; i++) text_printf(out, "layer %s\n", program->layers.at[i]->name);
    if (program->train != NULL) print_train(arena, out, program->train);
    for (int i = 0; i < program->plans.n; i++) print_plan(arena, out, program->plans.at[i]);
}
