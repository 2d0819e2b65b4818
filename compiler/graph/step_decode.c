/* Sampling: the model on one token of one sequence, at a position that is known at run time.
 *
 * `seq` becomes a dimension of size 1 whose logical index is the scalar `position`; every second name of it (`dim key =
 * like seq`) keeps its size. So where keys and values are renamed to it, a cache stands instead: the token's part is
 * written at `position`, and all of it is read; causality hides what is not written yet. That is the model's meaning
 * only if nothing else mixes positions, which is checked; other models have no decode graph. */
#include "graph/step.h"

typedef struct Decode {
    Stepper *st;
    Dim *seq; /* of size 1 */
    int caches;
    bool impossible;
} Decode;

static bool is_rename(const Node *node, const Dim *seq) {
    return node->op == OP_RENAME && node_attr(node, "from")->dims.dims[0] == seq &&
           node_attr(node, "to")->dims.dims[0]->like == seq;
}

/* ---- is it the model's meaning? ---------------------------------------------------------------------------------- */

/* Keys and values may go nowhere but to causal attention. */
static bool read_by_attention(const Region *region, const Node *node) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *user = region->nodes.at[i];
        for (int k = 0; k < user->n_in; k++) {
            if (user->in[k] != node) continue;
            if (user->op != OP_ATTEND || k == 0 || !node_attr(user, "causal")->integer) return false;
        }
    }
    for (int i = 0; i < region->results.n; i++)
        if (region->results.at[i] == node) return false;
    return true;
}

/* A token's place in its expert's queue depends on those before it, but only where experts are full. In a sample
 * nothing is dropped, so each token goes its way by itself. */
static bool queues(const Node *node) {
    return op_info(node)->lower == LOWER_TOP_K || op_info(node)->lower == LOWER_TO_SLOTS;
}

static bool mixes_positions(const Node *node, const Dim *seq) {
    if (queues(node)) return false;
    Iteration iteration = op_iteration(node);
    for (int i = 0; i < iteration.n; i++)
        if (iteration.letters[i].dim == seq && iteration.letters[i].kind != LETTER_PARALLEL) return true;
    if (node->op == OP_INPUT) return node->tensor->class != CLASS_DATA && shape_find(&node->shape, seq) >= 0;
    return op_info(node)->lower == LOWER_VIEW && node->op != OP_RENAME && op_n_attrs(op_info(node)) > 0 &&
           shape_find(&node->attrs[0].dims, seq) >= 0;
}

static bool can_decode(const Region *region, const Dim *seq) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (is_rename(node, seq)) {
            if (!read_by_attention(region, node)) return false;
        } else if (mixes_positions(node, seq) || (node->op == OP_RENAME && node->attrs[0].dims.dims[0] == seq)) {
            return false;
        }
        if (node->region && !can_decode(node->region, seq)) return false;
    }
    return true;
}

/* ---- rewriting ---------------------------------------------------------------------------------- */

static Node *cached(Copy *copy, Decode *decode, const Node *node, Node *x) {
    Stepper *st = decode->st;
    Dim *key = node_attr(node, "to")->dims.dims[0];
    Shape shape = copy_layers(copy);
    if (shape.n + x->shape.n > MAX_RANK) {
        decode->impossible = true;
        return NULL;
    }
    for (int i = 0; i < x->shape.n; i++)
        shape.dims[shape.n++] = x->shape.dims[i] == decode->seq ? key : x->shape.dims[i];
    Tensor *tensor = step_tensor(st, step_name(st, "cache.%d", decode->caches++), CLASS_CACHE, x->dtype, shape);
    tensor->span = node->span;
    AttrValue attrs[2] = {{.dims = shape_of(&decode->seq, 1)}, {.dims = shape_of(&key, 1)}};
    Node *in[3] = {x, copy_slice(copy, tensor), copy_capture(copy, st->position)};
    Node *value = build_op(&copy->b, OP_CACHE, in, 3, attrs);
    copy_stack(copy, tensor, value);
    return value;
}

static Node *rule_decode(Copy *copy, const Node *node, Node *const *in) {
    Decode *decode = copy->context;
    if (is_rename(node, decode->seq)) return cached(copy, decode, node, in[0]);
    if (node->op != OP_RAMP || node_attr(node, "dim")->dims.dims[0] != decode->seq) return NULL;
    Shape one = shape_of(&decode->seq, 1);
    return build_broadcast(&copy->b, copy_capture(copy, decode->st->position), &one);
}

static Dim *replaced(Stepper *st, Map *dims, Dim *dim, int64_t size) {
    Dim *copy = NEW(st->arena, Dim);
    *copy = *dim;
    copy->size = size;
    map_put(st->arena, dims, dim, copy);
    return copy;
}

/* A token has at most one place at an expert. */
static void replace_slots(Stepper *st, Map *dims, const Region *region) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->region) replace_slots(st, dims, node->region);
        if (node->op != OP_TOP_K) continue;
        Dim *slot = node_attr(node, "slot")->dims.dims[0];
        if (!map_get(dims, slot)) replaced(st, dims, slot, 1);
    }
}

/* batch and seq of size 1, with their second names. */
static Dim *replace_dims(Stepper *st, Map *dims) {
    const ModelGraph *model = st->whole;
    Dim *seq = replaced(st, dims, model->seq, 1), *batch = replaced(st, dims, model->batch, 1);
    seq->at_position = true;
    batch->is_batch = false; /* there are no micro-batches here */
    for (int i = 0; i < model->graph->dims.n; i++) {
        Dim *dim = model->graph->dims.at[i];
        if (dim->like == model->seq) replaced(st, dims, dim, dim->size)->like = seq;
        if (dim->like == model->batch) replaced(st, dims, dim, 1)->like = batch;
    }
    return seq;
}

/* The model as far as logits need it, without dropout. */
static Graph *logits_alone(Stepper *st, Tensor **logits) {
    Graph *graph = step_graph(st, "logits", NULL);
    Copy copy;
    copy_begin(&copy, graph);
    copy.rule = rule_without_dropout;
    for (int i = 0; i < st->own_tensors.n; i++)
        map_put(st->arena, &copy.tensors, st->own_tensors.entries[i].key, st->own_tensors.entries[i].value);
    copy_region(&copy, &st->whole->graph->top);
    Node *value = copy_value(&copy, st->whole->logits);
    *logits = step_tensor(st, step_name(st, "logits"), CLASS_RESULT, value->dtype, value->shape);
    step_output(graph, *logits, value, false);
    copy_finish(&copy);
    return graph;
}

static int count_data(const Graph *graph) {
    int n = 0;
    for (int i = 0; i < graph->tensors.n; i++) n += graph->tensors.at[i]->class == CLASS_DATA;
    return n;
}

Graph *step_decode(Stepper *st) {
    const ModelGraph *model = st->whole;
    if (!model->logits || !model->seq || !model->batch || model->logits->shape.n != 3) return NULL;
    if (shape_find(&model->logits->shape, model->seq) < 0) return NULL;
    for (int i = 0; i < model->logits->shape.n; i++)
        if (model->logits->shape.dims[i]->n_parts) return NULL; /* a token's number would not be its place */
    Tensor *logits;
    Graph *alone = logits_alone(st, &logits);
    if (count_data(alone) != 1 || !can_decode(&alone->top, model->seq)) return NULL;
    Decode decode = {.st = st};
    Map dims = {0};
    decode.seq = replace_dims(st, &dims);
    replace_slots(st, &dims, &alone->top);
    Graph *graph = step_graph(st, "decode", &dims);
    Copy copy;
    copy_begin(&copy, graph);
    copy.dims = dims;
    copy.rule = rule_decode;
    copy.context = &decode;
    copy_region(&copy, &alone->top);
    step_output(graph, copy_tensor(&copy, logits), copy_value(&copy, alone->outputs.at[0].value), false);
    copy_finish(&copy);
    if (decode.impossible) return NULL;
    graph_rewrite(graph, NULL, NULL);
    return graph;
}
