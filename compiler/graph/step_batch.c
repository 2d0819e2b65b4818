/* Which values of a micro-batch are finished sums over its samples, and whether they add up to those of the step.
 *
 * The loss of a step is the sum of what its micro-batches give. That holds for sums over the batch and whatever is
 * linear in them; a value that does not depend on samples (a penalty on weights) counts 1/micros each time. Anything
 * else, like the root of a mean over the batch, would change with the size of micro-batches: it is refused under every
 * plan. */
#include "graph/step.h"

typedef enum Kind {
    KIND_ZERO,    /* the constant 0 */
    KIND_FIXED,   /* does not depend on samples */
    KIND_SAMPLES, /* has the batch dimension */
    KIND_SUM,     /* linear in sums over the batch */
    KIND_MIXED,   /* a sum plus something fixed */
    KIND_REFUSED, /* reported */
} Kind;

typedef struct Kinds {
    Stepper *st;
    Kind *of;            /* by Node.id */
    const Node **origin; /* by Node.id: the reduction that finished the sum */
    bool *needed;        /* by Node.id: the value is made of it, so it can be at fault */
    int refused;
} Kinds;

static bool has_batch(const Node *node) {
    for (int i = 0; i < node->shape.n; i++)
        if (dim_is_batch(node->shape.dims[i])) return true;
    return false;
}

static void mark_needed(Kinds *kinds, const Node *node) {
    if (kinds->needed[node->id]) return;
    kinds->needed[node->id] = true;
    for (int i = 0; i < node->n_in; i++) mark_needed(kinds, node->in[i]);
    for (int i = 0; node->region && i < node->region->results.n; i++) mark_needed(kinds, node->region->results.at[i]);
}

static Kind refuse(Kinds *kinds, const Node *node, const Node *sum) {
    if (kinds->refused++) return KIND_REFUSED;
    const Node *origin = sum ? kinds->origin[sum->id] : NULL;
    Diag *d =
        diag_error(kinds->st->s, "P0247", node->span, "`%s` needs a finished sum over the batch", op_info(node)->name);
    diag_label(d, "its value would depend on the size of micro-batches");
    if (origin) diag_note(d, origin->span, "the sum is here");
    diag_help(d, "take it for each sample, and let the loss be the mean");
    return KIND_REFUSED;
}

/* The batch is summed away, or the result would not add up. */
static Kind reduction(Kinds *kinds, const Node *node) {
    Iteration iteration = op_iteration(node);
    for (int i = 0; i < iteration.n; i++)
        if (dim_is_batch(iteration.letters[i].dim) && iteration.letters[i].kind != LETTER_SUM)
            return refuse(kinds, node, node);
    kinds->origin[node->id] = node;
    return KIND_SUM;
}

static Kind joined(Kind a, Kind b) {
    if (a == KIND_ZERO) return b;
    if (b == KIND_ZERO || a == b) return a;
    return KIND_MIXED;
}

/* An operator without samples among its inputs, but with a sum. */
static Kind linear(Kinds *kinds, const Node *node) {
    Iteration iteration = op_iteration(node);
    Kind joint = KIND_ZERO, single = KIND_ZERO;
    int n_single = 0;
    const Node *sum = NULL;
    for (int i = 0; i < node->n_in; i++) {
        Kind kind = kinds->of[node->in[i]->id];
        bool summed = kind == KIND_SUM || kind == KIND_MIXED;
        if (summed) sum = node->in[i];
        if (iteration.joint >> i & 1)
            joint = joined(joint, kind);
        else if (summed && iteration.single >> i & 1)
            single = kind, n_single++;
        else if (summed)
            return refuse(kinds, node, sum);
    }
    if (sum) kinds->origin[node->id] = kinds->origin[sum->id];
    if (n_single == 0) return joint;
    return n_single == 1 && joint == KIND_ZERO ? single : refuse(kinds, node, sum);
}

static Kind operator_kind(Kinds *kinds, const Node *node) {
    Kind most = KIND_ZERO;
    const Node *sum = NULL;
    bool samples = false;
    for (int i = 0; i < node->n_in; i++) {
        Kind kind = kinds->of[node->in[i]->id];
        if (kind == KIND_REFUSED) return kind;
        samples = samples || kind == KIND_SAMPLES;
        if (kind == KIND_SUM || kind == KIND_MIXED) sum = node->in[i];
        if (kind > most) most = kind;
    }
    if (has_batch(node)) return sum ? refuse(kinds, node, sum) : KIND_SAMPLES;
    if (samples) return sum ? refuse(kinds, node, sum) : reduction(kinds, node);
    if (sum) return linear(kinds, node);
    bool zero = node->op == OP_CONST && node_attr(node, "value")->number == 0;
    return zero || (node->op == OP_BROADCAST && most == KIND_ZERO) ? KIND_ZERO : KIND_FIXED;
}

static void classify_region(Kinds *kinds, const Region *region);

/* A carry is what its start and every layer's value are: until nothing changes (kinds only grow). */
static void classify_repeat(Kinds *kinds, const Node *repeat) {
    const Region *region = repeat->region;
    for (int i = 0; i < region->params.n; i++) {
        kinds->of[region->params.at[i]->id] = kinds->of[repeat->in[i]->id];
        kinds->origin[region->params.at[i]->id] = kinds->origin[repeat->in[i]->id];
    }
    for (int round = 0; round < 4; round++) {
        bool changed = false;
        classify_region(kinds, region);
        for (int i = 0; i < region->n_carries; i++) {
            int param = region->params.at[i]->id, next = region->results.at[i]->id;
            Kind kind = joined(kinds->of[param], kinds->of[next]);
            if (has_batch(region->params.at[i])) kind = kinds->of[param]; /* samples, or refused */
            if (kind == kinds->of[param]) continue;
            kinds->of[param] = kind;
            kinds->origin[param] = kinds->origin[next];
            changed = true;
        }
        if (!changed) break;
    }
}

static void classify_region(Kinds *kinds, const Region *region) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->op == OP_REPEAT) {
            classify_repeat(kinds, node);
        } else if (node->op == OP_RESULT && node->in[0]->op == OP_REPEAT) {
            const Node *result = node->in[0]->region->results.at[node->attrs[0].integer];
            kinds->of[node->id] = kinds->of[result->id];
            kinds->origin[node->id] = kinds->origin[result->id];
        } else if (kinds->needed[node->id]) {
            kinds->of[node->id] = operator_kind(kinds, node);
        }
    }
}

/* The value with what is fixed in it divided by the number of micro-batches. */
static Node *share_of(Kinds *kinds, Builder *b, Node *node) {
    Kind kind = kinds->of[node->id];
    if (kind == KIND_FIXED) return build_scale(b, node, 1 / (double)kinds->st->step->micros);
    if (kind != KIND_MIXED) return node;
    if (node->op == OP_RESULT || node->op == OP_PARAM) {
        refuse(kinds, node, node);
        return node;
    }
    Iteration iteration = op_iteration(node);
    Node **in = NEW_N(b->graph->arena, Node *, node->n_in);
    for (int i = 0; i < node->n_in; i++) {
        bool summed = kinds->of[node->in[i]->id] == KIND_MIXED || (iteration.joint >> i & 1);
        in[i] = summed ? share_of(kinds, b, node->in[i]) : node->in[i];
    }
    return build_op(b, node->op, in, node->n_in, node->attrs);
}

Node *step_share(Stepper *st, Graph *graph, Node *value) {
    int n = graph->n_nodes + 1;
    Kinds kinds = {.st = st,
                   .of = NEW_N(st->arena, Kind, n),
                   .origin = NEW_N(st->arena, const Node *, n),
                   .needed = NEW_N(st->arena, bool, n)};
    mark_needed(&kinds, value);
    classify_region(&kinds, &graph->top);
    Builder b = step_builder(graph);
    b.span = value->span;
    Node *share = kinds.refused ? value : share_of(&kinds, &b, value);
    return kinds.refused ? NULL : share;
}
