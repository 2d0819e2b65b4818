/* Makes the steps of a pipeline's stages (see stages.h) of the graphs that the cut makes (stages_cut.h).
 *
 * In: the whole step. Out: a step for each stage, with the transfers between them. A weight has one home, which updates
 * it; other stages that use it have copies. Gradients of a weight that several stages use are not added up on the way
 * but kept apart, and joined once a step at the weight's home. */
#include "graph/stages_cut.h"

/* ---- the steps of the stages -------------------------------------------------------------------- */

static void add_transfer(Cutter *c, Step *from, Step *to, Tensor *out, Tensor *in, Transfer what, int to_chunk,
                         TransferWhen to_when) {
    what.channel = c->n_channels++;
    what.span = out->span;
    Transfer sends = what, takes = what;
    sends.sends = true, sends.tensor = out, sends.peer = to->stage;
    takes.tensor = in, takes.peer = from->stage, takes.chunk = to_chunk, takes.when = to_when;
    vec_push(c->arena, &from->transfers, sends);
    vec_push(c->arena, &to->transfers, takes);
}

/* The variable that is handed over, or what it is computed from. */
static Name edge_name(const Edge *edge) {
    const Node *node = edge->value ? edge->value : edge->repeat->region->params.at[edge->carry];
    while (!node->name && node->n_in == 1) node = node->in[0];
    return node->name;
}

/* `alone`: what all of them are part of; NULL: of the forward pass or the backward pass, by position. */
static void add_edges(Cutter *c, Step **stages, const TransferWhen *alone) {
    for (int i = 0; i < c->edges.n; i++) {
        const Edge *edge = &c->edges.at[i];
        int from = chunk_at(c, edge->from), to = chunk_at(c, edge->to), n = c->cut->n_stages;
        if (edge->out == edge->in) continue;
        TransferWhen out = alone ? *alone : edge->from < c->n_chunks ? TRANSFER_F : TRANSFER_B;
        TransferWhen in = alone ? *alone : edge->to < c->n_chunks ? TRANSFER_F : TRANSFER_B;
        add_transfer(c, stages[from % n], stages[to % n], edge->out, edge->in,
                     (Transfer){.when = out, .chunk = from / n, .value = edge_name(edge)}, to / n, in);
    }
}

static bool graph_has_tensor(const Graph *graph, const Tensor *tensor) {
    for (int i = 0; graph && i < graph->tensors.n; i++)
        if (graph->tensors.at[i] == tensor) return true;
    return false;
}

static bool graph_writes(const Graph *graph, const Tensor *tensor) {
    for (int i = 0; graph && i < graph->outputs.n; i++)
        if (graph->outputs.at[i].tensor == tensor) return true;
    return false;
}

/* A graph without layers, as a stage's own. */
static Graph *copy_whole(Cutter *c, Graph *graph, int stage) {
    if (!graph) return NULL;
    Graph *before = c->graph;
    c->graph = graph;
    Graph *made = cutter_begin_graph(c, stage);
    copy_region(&c->copy, &graph->top);
    for (int i = 0; i < graph->outputs.n; i++) {
        const Output *output = &graph->outputs.at[i];
        step_output(made, cutter_tensor(c, stage, output->tensor), copy_value(&c->copy, output->value),
                    output->accumulate);
    }
    copy_finish(&c->copy);
    c->graph = before;
    return made;
}

typedef struct StageWeights {
    Stepper st;
    ModelGraph model;
    int n_home, n_all; /* trained weights: its own first, then copies */
} StageWeights;

/* Which chunks use the weight, and have a part of its gradient. */
static bool chunk_uses(const Cutter *c, const Graph *const *evals, int chunk, const Tensor *own) {
    return graph_has_tensor(c->chunks[chunk], own) || graph_has_tensor(evals[chunk], own);
}

static void add_weight(StageWeights *w, Arena *arena, const Init *init, Tensor *own, Tensor *gradient, bool home) {
    Init mine = *init;
    mine.weight = own;
    own->is_copy = !home;
    map_put(arena, &w->st.own_tensors, own, own); /* it is the stage's already */
    vec_push(arena, &w->model.inits, mine);
    if (!gradient) return;
    Stepper *st = &w->st;
    int at = w->n_all++;
    if (home) { /* before the copies */
        st->weights[at] = st->weights[w->n_home], st->gradients[at] = st->gradients[w->n_home];
        at = w->n_home++;
    }
    st->weights[at] = own, st->gradients[at] = gradient;
}

/* Homes and copies of one weight that is not stacked. */
static void share_weight(Cutter *c, StageWeights *stages, Step **steps, const Graph *const *evals, const Init *init,
                         Tensor *gradient) {
    int n = c->cut->n_stages, home = -1;
    for (int pass = 0; pass < 2 && home < 0; pass++)
        for (int chunk = 0; chunk < c->n_chunks && home < 0; chunk++) {
            bool writes = gradient && graph_writes(c->chunks[chunk], cutter_tensor(c, chunk, gradient));
            if (pass == 0 ? writes : chunk_uses(c, evals, chunk, cutter_tensor(c, chunk, init->weight)))
                home = stage_of(c, chunk);
        }
    if (home < 0) home = 0;
    bool *uses = NEW_N(c->arena, bool, n), *writes = NEW_N(c->arena, bool, n);
    for (int chunk = 0; chunk < c->n_chunks; chunk++) {
        uses[stage_of(c, chunk)] |= chunk_uses(c, evals, chunk, cutter_tensor(c, chunk, init->weight));
        writes[stage_of(c, chunk)] |= gradient && graph_writes(c->chunks[chunk], cutter_tensor(c, chunk, gradient));
    }
    for (int s = 0; s < n; s++) {
        if (s != home && !uses[s]) continue;
        Tensor *own = cutter_tensor(c, s, init->weight),
               *sum = gradient && (writes[s] || s == home) ? cutter_tensor(c, s, gradient) : NULL;
        add_weight(&stages[s], c->arena, init, own, sum, s == home);
        if (s == home || !gradient) continue;
        Tensor *at_home = cutter_tensor(c, home, init->weight);
        add_transfer(c, steps[home], steps[s], at_home, own,
                     (Transfer){.when = TRANSFER_WEIGHT, .value = init->weight->name}, 0, TRANSFER_WEIGHT);
        if (!sum) continue;
        Tensor *received = step_tensor(c->st, step_name(c->st, "%s.from.%d", gradient->name, s), CLASS_GRADIENT,
                                       sum->dtype, sum->shape);
        received->of = at_home;
        add_transfer(c, steps[s], steps[home], sum, received,
                     (Transfer){.when = TRANSFER_GRADIENT, .value = gradient->name}, 0, TRANSFER_GRADIENT);
        vec_push(c->arena, &steps[home]->sent, sum);
        vec_push(c->arena, &steps[home]->received, received);
    }
}

static void share_weights(Cutter *c, StageWeights *stages, Step **steps, const Graph *const *evals) {
    const ModelGraph *model = c->st->model;
    for (int i = 0; i < model->inits.n; i++) {
        Init *init = NEW(c->arena, Init);
        *init = model->inits.at[i];
        init->weight = step_weight(c->st, init->weight);
        Tensor *gradient = NULL;
        for (int k = 0; k < c->st->n_weights; k++)
            if (c->st->weights[k] == init->weight) gradient = c->st->gradients[k];
        if (!is_stacked(c, &init->weight->shape)) {
            share_weight(c, stages, steps, evals, init, gradient);
            continue;
        }
        for (int chunk = 0; chunk < c->n_chunks; chunk++)
            if (c->cut->count[chunk])
                add_weight(&stages[stage_of(c, chunk)], c->arena, init, cutter_tensor(c, chunk, init->weight),
                           gradient ? cutter_tensor(c, chunk, gradient) : NULL, true);
    }
}

/* Dimensions of the graphs that run once: the parts of all its chunks. */
static Graph *stage_dims(Cutter *c, int stage) {
    const Graph *model = c->st->model->graph;
    Graph *graph = graph_new(c->s, c->arena, "stage");
    for (int i = 0; i < model->dims.n; i++)
        vec_push(c->arena, &graph->dims, model->dims.at[i] == c->dim ? c->parts[stage] : model->dims.at[i]);
    for (int chunk = stage + c->cut->n_stages; chunk < c->n_chunks; chunk += c->cut->n_stages)
        vec_push(c->arena, &graph->dims, c->parts[chunk]);
    return graph;
}

static void open_stage(Cutter *c, StageWeights *w, Step *step) {
    Stepper *st = &w->st;
    *st = *c->st;
    st->step = step;
    st->own_tensors = (Map){0};
    w->model = *c->st->model;
    w->model.inits.n = w->model.inits.cap = 0;
    w->model.inits.at = NULL;
    w->model.graph = stage_dims(c, step->stage);
    st->model = &w->model;
    st->lr = cutter_tensor(c, step->stage, st->lr);
    st->number = cutter_tensor(c, step->stage, st->number);
    st->seed = cutter_tensor(c, step->stage, st->seed);
    Tensor **scale[] = {&st->scale.factor, &st->scale.good, &st->scale.skipped}; /* equal on all stages: one saves it */
    for (int i = 0; st->scale.factor && i < 3; i++) {
        *scale[i] = cutter_tensor(c, step->stage, *scale[i]);
        (*scale[i])->is_copy = step->stage > 0;
    }
    int most = c->st->n_weights * (c->n_chunks / c->cut->n_stages) + 1;
    st->weights = NEW_N(c->arena, Tensor *, most + 1);
    st->gradients = NEW_N(c->arena, Tensor *, most + 1);
    st->n_weights = 0;
    st->running.at = NULL, st->running.n = st->running.cap = 0;
    for (int i = 0; i < c->st->running.n; i++)
        vec_push(c->arena, &st->running,
                 (Running){c->st->running.at[i].name, cutter_tensor(c, step->stage, c->st->running.at[i].sum)});
    if (st->targets) st->targets = cutter_tensor(c, step->stage, st->targets);
    if (st->targets_partial) st->targets_partial = cutter_tensor(c, step->stage, st->targets_partial);
}

static void close_stage(Cutter *c, StageWeights *w) {
    Stepper *st = &w->st;
    Step *step = st->step;
    const Step *whole = c->st->step;
    st->n_others = c->cut->n_stages;
    st->others = NEW_N(c->arena, Tensor *, (w->n_home + 1) * st->n_others);
    for (int i = 0; i < step->received.n; i++)
        for (int k = 0, at = 0; k < w->n_home; k++, at = 0)
            if (st->weights[k] == step->received.at[i]->of) {
                while (st->others[k * st->n_others + at]) at++;
                st->others[k * st->n_others + at] = step->received.at[i];
            }
    st->n_weights = w->n_home; /* moments are those of the home */
    step->init = step_init(st);
    st->is_stage = true;
    st->has_loss = step->stage == stage_of(c, c->n_chunks - 1);
    step->update = step_update(st);
    st->n_weights = w->n_all;
    if (!st->has_loss) st->running.n = 0; /* they are made there alone */
    step->begin = step_begin(st);
    step->count = copy_whole(c, whole->count, step->stage);
    step->total = copy_whole(c, whole->total, step->stage);
}

static void make_parts(Cutter *c) {
    const StageCut *cut = c->cut;
    c->parts = NEW_N(c->arena, Dim *, cut->n_chunks);
    for (int i = 0; i < cut->n_chunks; i++) {
        Dim *part = c->parts[i] = NEW(c->arena, Dim);
        *part = *c->dim;
        part->name = step_name(c->st, "%s.%d", c->dim->name, i);
        part->part_of = c->dim;
        part->first = cut->first[i];
        part->size = cut->count[i] ? cut->count[i] : 1;
    }
}

/* The same cut, counted in groups of layers. */
static StageCut cut_of_groups(Arena *arena, const StageCut *cut, const Dim *each) {
    StageCut groups = *cut;
    if (!each) return groups;
    groups.first = NEW_N(arena, int64_t, cut->n_chunks);
    groups.count = NEW_N(arena, int64_t, cut->n_chunks);
    for (int i = 0; i < cut->n_chunks; i++)
        groups.first[i] = cut->first[i] / each->size, groups.count[i] = cut->count[i] / each->size;
    return groups;
}

Step **grad_to_stages(Session *s, const Train *train, const Plan *plan, ModelGraph *model, const StageCut *cut,
                      Step **whole) {
    int errors = diag_count(s, SEV_ERROR);
    Stepper st;
    step_stepper(&st, s, train, plan, model);
    if (!step_micro(&st)) return NULL;
    *whole = st.step;
    Cutter c = {.s = s, .arena = s->arena, .cut = cut, .st = &st, .n_chunks = cut->n_chunks};
    c.dim = graph_find_dim(st.model->graph, cut->dim);
    StageCut groups = cut_of_groups(s->arena, cut, c.dim->nested);
    c.cut = cut = &groups;
    c.stage_tensors = NEW_N(s->arena, Map, cut->n_stages);
    c.chunk_tensors = NEW_N(s->arena, Map, cut->n_chunks);
    make_parts(&c);
    Graph *decode = step_decode(&st);
    Step **steps = NEW_N(s->arena, Step *, cut->n_stages);
    StageWeights *stages = NEW_N(s->arena, StageWeights, cut->n_stages);
    int local = cut->n_chunks / cut->n_stages;
    for (int i = 0; i < cut->n_stages; i++) {
        steps[i] = NEW(s->arena, Step);
        *steps[i] = (Step){.session = s,
                           .model = st.model,
                           .micros = st.step->micros,
                           .micro_batch = st.step->micro_batch,
                           .stage = i,
                           .n_stages = cut->n_stages,
                           .n_chunks = local,
                           .stage_axis = cut->axis};
        steps[i]->bodies = NEW_N(s->arena, Graph *, local);
        steps[i]->evals = NEW_N(s->arena, Graph *, local);
        if (decode) steps[i]->decodes = NEW_N(s->arena, Graph *, local);
        open_stage(&c, &stages[i], steps[i]);
    }
    static const TransferWhen sampling = TRANSFER_DECODE, evaluating = TRANSFER_EVAL;
    Graph **decodes = NULL;
    if (decode) {
        if (!cutter_cut_graph(&c, decode, "decode")) return NULL;
        add_edges(&c, steps, &sampling);
        decodes = c.chunks;
    }
    if (!cutter_cut_graph(&c, st.step->eval, "eval")) return NULL;
    add_edges(&c, steps, &evaluating);
    Graph **evals = c.chunks;
    if (!cutter_cut_graph(&c, st.step->body, "pipe")) return NULL;
    add_edges(&c, steps, NULL);
    for (int chunk = 0; chunk < cut->n_chunks; chunk++) {
        steps[stage_of(&c, chunk)]->bodies[chunk / cut->n_stages] = c.chunks[chunk];
        steps[stage_of(&c, chunk)]->evals[chunk / cut->n_stages] = evals[chunk];
        if (decode) steps[stage_of(&c, chunk)]->decodes[chunk / cut->n_stages] = decodes[chunk];
    }
    share_weights(&c, stages, steps, (const Graph *const *)evals);
    for (int i = 0; i < cut->n_stages; i++) {
        close_stage(&c, &stages[i]);
        step_keep_weights(steps[i], plan);
    }
    return diag_count(s, SEV_ERROR) > errors ? NULL : steps;
}

/* ---- what the plan asks for --------------------------------------------------------------------- */

static bool repeats(const Region *region, Name dim) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Region *inner = region->nodes.at[i]->region;
        if (inner && (inner->dim->name == dim || repeats(inner, dim))) return true;
    }
    return false;
}

void stage_cut_evenly(Session *s, StageCut *cut, int chunks, int64_t layers) {
    cut->n_chunks = cut->n_stages * chunks;
    cut->first = NEW_N(s->arena, int64_t, cut->n_chunks);
    cut->count = NEW_N(s->arena, int64_t, cut->n_chunks);
    for (int k = 0; k < cut->n_chunks; k++) {
        cut->count[k] = layers / cut->n_chunks;
        cut->first[k] = k * cut->count[k];
    }
}

bool plan_stage_cut(Session *s, const Plan *plan, const ModelGraph *model, StageCut *cut) {
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (!rule->what || !repeats(&model->graph->top, rule->what)) continue;
        int chunks = rule->chunks > 0 ? (int)rule->chunks : 1;
        *cut = (StageCut){.axis = rule->axis,
                          .dim = rule->what,
                          .n_stages = (int)plan->mesh.axes[rule->axis].size,
                          .span = rule->span};
        cut->n_chunks = cut->n_stages * chunks;
        cut->first = NEW_N(s->arena, int64_t, cut->n_chunks);
        cut->count = NEW_N(s->arena, int64_t, cut->n_chunks);
        int64_t at = 0, size = graph_find_dim(model->graph, rule->what)->size;
        for (int k = 0; k < cut->n_chunks; k++) {
            cut->first[k] = at;
            cut->count[k] = rule->uneven.n > k ? rule->uneven.at[k] : size / cut->n_chunks;
            at += cut->count[k];
        }
        return true;
    }
    return false;
}
