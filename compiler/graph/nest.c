/* `recompute every n`: a repeat in groups of n layers.
 *
 * In: a model. Out: the same model in which every outermost repeat runs over groups, with a repeat over the n layers of
 * a group in its body; what was stacked over the layers is stacked over both. The elements lie as before, so weights,
 * random numbers and checkpoints are those of the model. graph_to_grad keeps the carries of the outer repeat alone,
 * which are the inputs of every n-th layer, and runs a group's forward pass again before its backward pass. */
#include "graph/stages.h"
#include "graph/step.h"

/* ---- one repeat -------------------------------------------------------------------------------------------------- */

static Node *like_param(Arena *arena, const Node *param) {
    Node *node = NEW(arena, Node);
    *node = *param;
    node->op = OP_PARAM;
    return node;
}

static Node *result_of(Arena *arena, Node *repeat, int index) {
    Node *node = NEW(arena, Node);
    *node = *repeat;
    node->op = OP_RESULT;
    node->region = NULL, node->outs = NULL, node->n_outs = 0;
    node->in = NEW(arena, Node *);
    node->in[0] = repeat, node->n_in = 1;
    node->attrs = NEW(arena, AttrValue);
    node->attrs[0].integer = index;
    return node;
}

Node *repeat_in_groups(Arena *arena, const Node *repeat, Dim *each) {
    const Region *layer = repeat->region;
    Region *group = NEW(arena, Region), *inside = NEW(arena, Region);
    Node *outer = NEW(arena, Node), *inner = NEW(arena, Node);
    *outer = *inner = *repeat;
    *group = *inside = *layer;
    outer->region = group, inner->region = inside;
    inside->dim = each;
    group->params = group->nodes = group->results = (NodeList){0};
    group->index = NULL;
    inner->in = NEW_N(arena, Node *, repeat->n_in + 1);
    for (int i = 0; i < layer->params.n; i++) {
        inner->in[i] = like_param(arena, layer->params.at[i]);
        vec_push(arena, &group->params, inner->in[i]);
    }
    vec_push(arena, &group->nodes, inner);
    for (int i = 0; i < layer->results.n; i++) {
        Node *result = result_of(arena, inner, i);
        vec_push(arena, &group->nodes, result);
        vec_push(arena, &group->results, result);
    }
    return outer;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void put_in_groups(Session *s, Copy *copy, const Region *top, int64_t n) {
    for (int i = 0; i < top->nodes.n; i++) {
        const Node *node = top->nodes.at[i];
        Dim *dim = node->op == OP_REPEAT ? node->region->dim : NULL;
        if (!dim || map_get(&copy->groups, dim)) continue;
        Dim *each = NEW(s->arena, Dim), *groups = NEW(s->arena, Dim);
        *groups = *each = *dim;
        each->name = intern(s->names, arena_printf(s->arena, "%s.each", dim->name));
        each->size = n;
        groups->size = dim->size / n;
        groups->first = dim->first / n; /* of some layers of a repeat */
        each->first = 0, each->part_of = NULL;
        groups->nested = each;
        map_put(s->arena, &copy->dims, dim, groups);
        map_put(s->arena, &copy->groups, dim, each);
    }
}

const ModelGraph *model_nested(Session *s, const Plan *plan, const ModelGraph *model) {
    if (!plan || plan->recompute_every < 2) return model;
    Copy copy = {.keeps_composites = true};
    put_in_groups(s, &copy, &model->graph->top, plan->recompute_every);
    Dim **more = NEW_N(s->arena, Dim *, copy.groups.n + 1);
    for (int i = 0; i < copy.groups.n; i++) more[i] = copy.groups.entries[i].value;
    return model_rewritten(s, model, &copy, more, copy.groups.n);
}

/* ---- what it divides --------------------------------------------------------------------------------------------- */

static int64_t gcd_of(int64_t a, int64_t b) { return b ? gcd_of(b, a % b) : a; }

/* "1, 2 or 4": the divisors of n. */
static const char *divisors_text(Arena *arena, int64_t n) {
    Text text = {.arena = arena};
    for (int64_t i = 1; i <= n; i++) {
        if (n % i) continue;
        text_printf(&text, "%s%lld", i == 1 ? "" : i == n ? " or " : ", ", (long long)i);
    }
    return text.at;
}

static void refuse_groups(Session *s, const Plan *plan, const Dim *dim, int64_t layers, const Rule *stages) {
    Diag *d = diag_error(s, "P0470", plan->recompute_span, "`recompute every %lld` does not divide `%s` (%lld)",
                         (long long)plan->recompute_every, dim->part_of ? dim->part_of->name : dim->name,
                         (long long)(dim->part_of ? dim->part_of->size : dim->size));
    if (dim->part_of) {
        diag_label(d, "a rule for layers %lld to %lld cuts its groups", (long long)dim->first,
                   (long long)(dim->first + dim->size - 1));
    } else if (stages) {
        diag_label(d, "whole groups of %lld layers must stand in each %s", (long long)plan->recompute_every,
                   stages->chunks > 0 ? "chunk" : "stage");
        diag_note(d, stages->span, "which are divided here");
    }
    diag_help(d, "use `recompute every %s`", divisors_text(s->arena, layers));
}

void model_check_groups_of_layers(Session *s, const ModelGraph *model, const Plan *plan) {
    if (plan->recompute_every < 1 || plan->broken) return;
    StageCut cut = {0};
    if (!plan_stage_cut(s, plan, model, &cut)) cut.dim = NULL;
    const Region *top = &model->graph->top;
    Map told = {0};
    for (int i = 0; i < top->nodes.n; i++) {
        Dim *dim = top->nodes.at[i]->op == OP_REPEAT ? top->nodes.at[i]->region->dim : NULL;
        if (!dim || map_get(&told, dim)) continue;
        map_put(s->arena, &told, dim, dim);
        int64_t layers = dim->size, sum = 0;
        for (int k = 0; dim->name == cut.dim && k < cut.n_chunks; k++) sum += cut.count[k];
        if (dim->name == cut.dim && sum != dim->size) return; /* refused elsewhere */
        for (int k = 0; dim->name == cut.dim && k < cut.n_chunks; k++) layers = gcd_of(layers, cut.count[k]);
        const Rule *stages = NULL;
        for (int k = 0; dim->name == cut.dim && k < plan->rules.n; k++)
            if (plan->rules.at[k].what == cut.dim) stages = &plan->rules.at[k];
        if (dim->part_of) layers = gcd_of(layers, dim->first); /* a range of layers begins with a group */
        if (layers % plan->recompute_every) refuse_groups(s, plan, dim, layers, stages);
    }
}
