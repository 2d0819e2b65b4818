/* In: the graphs of a step, before partitioning. Out: the same graphs, in which what is summed over samples, or over
 * whole tensors once a step, is an exact number (DT_EXACT) from its terms to its only rounding.
 *
 * A sum over the batch is linear in everything that follows until it is finished (P0247 sees to that), so an exact
 * version of each such value can be made beside the f32 one: of sums, products and table gradients by their exact
 * operators, of additions, views and what a repeat collects from those of their operands. Accumulators and what stages
 * send home are exact; where an f32 value is needed, it is the exact one rounded. The f32 sums die. */
#include "graph/reproducible.h"

#include "graph/step.h"

/* Parts in which a plan may cut a dimension, and the samples of a step. */
enum { MOST_PARTS = 8, MOST_BATCH_PARTS = 64, LONGEST_LEAF = 256 };

typedef struct Exact {
    Session *s;
    Graph *graph;
    int64_t batch; /* samples of a step */
    Builder b;
    Map exact;   /* f32 node -> its exact version (itself: it has become one) */
    Map rounded; /* exact node -> that in f32, in micro-batch graphs; elsewhere each use has its own */
    Map sums;    /* f32 nodes that depend on a rounded sum */
    bool failed;
} Exact;

static Node *exact_of(const Exact *e, const Node *node) { return map_get(&e->exact, node); }

static bool shape_has_samples(const Shape *shape) {
    for (int i = 0; i < shape->n; i++)
        if (dim_is_batch(shape->dims[i])) return true;
    return false;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

static Node *in_f32(Exact *e, Node *node);

/* ---- exact versions ------------------------------------------------------------------------------------------------
 */

/* So many points of the last summed dimension are added in order. Plans cut a dimension in up to 8 parts, the samples
 * of a step in up to 64 (ranks and micro-batches together). */
static int64_t leaf_of(Exact *e, const Node *dot) {
    const Shape *over = &node_attr(dot, "over")->dims, *x = &dot->in[0]->shape;
    const Dim *last = NULL;
    for (int i = 0; i < x->n; i++)
        if (shape_find(over, x->dims[i]) >= 0) last = x->dims[i];
    int64_t whole = dim_is_batch(last) ? e->batch : last->size;
    int64_t leaf = whole / common_divisor(whole, dim_is_batch(last) ? MOST_BATCH_PARTS : MOST_PARTS);
    int64_t n = leaf < LONGEST_LEAF ? leaf : LONGEST_LEAF;
    while (leaf % n) n--;
    if (last->size % n == 0 || e->failed) return n;
    Diag *d =
        diag_error(e->s, "P0633", dot->span,
                   "`--numerics reproducible`: micro-batches of %lld samples cut groups of %lld, which are summed in "
                   "order under every plan",
                   (long long)last->size, (long long)n);
    diag_help(d, "let microbatch x ranks of `batch` be a multiple of %lld, or choose a batch that 64 divides",
              (long long)n);
    e->failed = true;
    return n;
}

static Node *exact_sum(Exact *e, Node *x, const Shape *over) {
    return build_op(&e->b, OP_EXACT_SUM, &x, 1, &(AttrValue){.dims = *over});
}

/* Rows are added at the same places for each of the terms. */
static Node *lookup_of_terms(Exact *e, const Node *node, Node *terms, const Shape *summed) {
    Node *index = node->in[0];
    Shape rows = {0}, over = shape_union(summed, &node_attr(node, "over")->dims);
    for (int i = 0; i < terms->shape.n; i++)
        if (shape_find(summed, terms->shape.dims[i]) >= 0 || shape_find(&index->shape, terms->shape.dims[i]) >= 0)
            shape_add(&rows, terms->shape.dims[i]);
    AttrValue attrs[] = {{.dims = over}, {.dims = node_attr(node, "rows")->dims}, {.dims = node->shape}};
    Node *in[] = {build_broadcast(&e->b, index, &rows), terms};
    return build_op(&e->b, OP_EXACT_LOOKUP_GRAD, in, 2, attrs);
}

/* A linear operator on a sum is the sum of the operator on its terms: NULL where these are not at hand, or the operator
 * is not linear in operand k. */
static Node *through(Exact *e, const Node *node, const Node *exact, int k) {
    if (exact->op == OP_EXACT_ADD) {
        Node *x = through(e, node, exact->in[0], k), *y = through(e, node, exact->in[1], k);
        return x && y ? build_binary(&e->b, OP_EXACT_ADD, x, y) : NULL;
    }
    if (exact->op != OP_EXACT_SUM) return NULL;
    Node *terms = exact->in[0], *other = node->n_in == 2 ? node->in[1 - k] : NULL;
    const Shape *summed = &node_attr(exact, "over")->dims;
    Shape all;
    if (node->op == OP_NEG) return exact_sum(e, build_unary(&e->b, OP_NEG, terms), summed);
    if (node->op == OP_MUL || (node->op == OP_DIV && k == 0)) {
        if (exact_of(e, other) || !shape_contains(&terms->shape, &other->shape)) return NULL;
        return exact_sum(e, build_binary(&e->b, node->op, k == 0 ? terms : other, k == 0 ? other : terms), summed);
    }
    if (node->op == OP_BROADCAST && node->shape.n == exact->shape.n) { /* other order; more dims would be more terms */
        all = shape_union(summed, &node->shape);
        return exact_sum(e, build_broadcast(&e->b, terms, &all), summed);
    }
    if (node->op == OP_SUM) {
        all = shape_union(summed, &node_attr(node, "over")->dims);
        return exact_sum(e, terms, &all);
    }
    return node->op == OP_LOOKUP_GRAD && k == 1 ? lookup_of_terms(e, node, terms, summed) : NULL;
}

static bool is_zero(const Node *node) {
    while (node->op == OP_BROADCAST) node = node->in[0];
    return node->op == OP_CONST && node_attr(node, "value")->number == 0;
}

/* An operand of an exact addition: exact already, or a value that is the same on every rank. */
static Node *as_exact(Exact *e, Node *node) {
    Node *known = exact_of(e, node);
    Shape none = {0};
    return known ? known : exact_sum(e, node, &none);
}

static Node *exact_addition(Exact *e, Node *node) {
    Node *x = node->in[0], *y = node->in[1];
    if (!exact_of(e, x) && !exact_of(e, y)) return NULL;
    if (!shape_equal(&x->shape, &y->shape)) return NULL;
    if (is_zero(x)) return exact_of(e, y);
    if (is_zero(y)) return exact_of(e, x);
    return build_binary(&e->b, OP_EXACT_ADD, as_exact(e, x), as_exact(e, y));
}

/* A sum over samples; where the graph runs once a step, any sum. */
static bool sums_up(const Exact *e, const Node *node) {
    const Shape *over = &node_attr(node, "over")->dims;
    return node->dtype == DT_F32 && (shape_has_samples(over) || !e->graph->micro);
}

static Node *exact_dot(Exact *e, Node *node) {
    AttrValue attrs[] = {{.dims = node_attr(node, "over")->dims},
                         {.dims = node_attr(node, "order")->dims},
                         {.integer = leaf_of(e, node)}};
    return build_op(&e->b, OP_EXACT_DOT, (Node *[]){in_f32(e, node->in[0]), in_f32(e, node->in[1])}, 2, attrs);
}

/* The exact version of a node whose operands have been seen; NULL where it is no sum. */
static Node *make_exact(Exact *e, Node *node) {
    for (int k = 0; k < node->n_in && e->graph->micro; k++) {
        Node *exact = exact_of(e, node->in[k]), *result = exact ? through(e, node, exact, k) : NULL;
        if (result) return result;
    }
    Node *x = node->n_in ? node->in[0] : NULL;
    bool sum = node->op == OP_SUM || node->op == OP_DOT || node->op == OP_LOOKUP_GRAD;
    if (sum && !sums_up(e, node)) return NULL;
    if (node->op == OP_SUM) return exact_sum(e, in_f32(e, x), &node_attr(node, "over")->dims);
    if (node->op == OP_DOT) return exact_dot(e, node);
    if (node->op == OP_LOOKUP_GRAD)
        return build_op(&e->b, OP_EXACT_LOOKUP_GRAD, (Node *[]){x, in_f32(e, node->in[1])}, 2, node->attrs);
    if (node->op == OP_ADD) return exact_addition(e, node);
    if (node->op == OP_ALL_REDUCE) /* a sum over stages, also where one of them adds nothing */
        x = as_exact(e, x);
    else
        x = x && op_info(node)->lower == LOWER_VIEW ? exact_of(e, x) : NULL;
    return x ? build_op(&e->b, node->op, &x, 1, node->attrs) : NULL;
}

/* ---- uses in f32 ---------------------------------------------------------------------------------------------------
 */

static Node *in_f32(Exact *e, Node *node) {
    Node *exact = exact_of(e, node);
    if (!exact) return node;
    Node *known = e->graph->micro ? map_get(&e->rounded, exact) : NULL;
    if (known) return known;
    Node *rounded = build_unary(&e->b, OP_EXACT_ROUND, exact);
    map_put(e->graph->arena, &e->sums, rounded, rounded);
    if (e->graph->micro) map_put(e->graph->arena, &e->rounded, exact, rounded);
    return rounded;
}

static void use_rounded(Exact *e, Node *node) {
    Node *before[2] = {0}, *after[2] = {0};
    Node **in = NEW_N(e->graph->arena, Node *, node->n_in + 1);
    for (int k = 0; k < node->n_in; k++) {
        in[k] = node->in[k];
        if (exact_of(e, in[k])) {
            int slot = before[0] == NULL || before[0] == in[k] ? 0 : 1;
            if (before[slot] != in[k]) before[slot] = in[k], after[slot] = in_f32(e, in[k]);
            in[k] = after[slot];
        }
        if (map_get(&e->sums, in[k]) && node->op != OP_REPEAT) map_put(e->graph->arena, &e->sums, node, node);
    }
    node->in = in;
}

/* ---- repeats -------------------------------------------------------------------------------------------------------
 */

/* What is added to a carry that collects a sum over layers. */
static bool collects(const Node *value, const Node *carry) {
    if (value == carry) return true;
    if (value->op != OP_ADD) return false;
    return collects(value->in[0], carry) || collects(value->in[1], carry);
}

static bool is_collector(const Exact *e, const Node *repeat, int i) {
    const Region *region = repeat->region;
    const Node *carry = region->params.at[i], *result = region->results.at[i];
    return e->graph->micro && carry->dtype == DT_F32 && !shape_has_samples(&carry->shape) && is_zero(repeat->in[i]) &&
           result != carry && collects(result, carry);
}

static void rewrite_region(Exact *e, Region *region);

static void open_repeat(Exact *e, Node *repeat) {
    Region *region = repeat->region;
    for (int i = 0; i < region->n_carries; i++) {
        if (!is_collector(e, repeat, i)) continue;
        Node *zero = build_const(&e->b, DT_EXACT, 0), *carry = region->params.at[i];
        repeat->in[i] = build_broadcast(&e->b, zero, &carry->shape);
        carry->dtype = DT_EXACT;
        map_put(e->graph->arena, &e->exact, carry, carry);
    }
}

static void rewrite_repeat(Exact *e, Node *repeat) {
    Region *region = repeat->region;
    open_repeat(e, repeat);
    Builder outside = e->b;
    rewrite_region(e, region);
    for (int i = 0; i < repeat->n_outs; i++) {
        Node *result = region->results.at[i], *exact = exact_of(e, result);
        bool carried = i < region->n_carries;
        if (carried ? region->params.at[i]->dtype == DT_EXACT : exact != NULL) {
            region->results.at[i] = as_exact(e, result);
            repeat->outs[i].dtype = DT_EXACT;
        } else if (exact)
            region->results.at[i] = in_f32(e, result);
    }
    repeat->dtype = repeat->outs[0].dtype;
    e->b = outside;
}

/* ---- regions -------------------------------------------------------------------------------------------------------
 */

static void rewrite_node(Exact *e, Node *node) {
    Region *region = e->b.region;
    Arena *arena = e->graph->arena;
    e->b.span = node->span, e->b.name = node->name, e->b.path = node->path, e->b.backward = node->backward;
    e->b.deferred = node->deferred;
    if (node->op == OP_INPUT && node->tensor->dtype == DT_EXACT) node->dtype = DT_EXACT;
    if (node->op == OP_RESULT && node->in[0]->op == OP_REPEAT)
        node->dtype = node->in[0]->outs[node_attr(node, "index")->integer].dtype;
    if (node->dtype == DT_EXACT && (node->op == OP_INPUT || node->op == OP_RESULT)) {
        vec_push(arena, &region->nodes, node);
        map_put(arena, &e->exact, node, node);
        return;
    }
    Node *exact = node->n_outs ? NULL : make_exact(e, node);
    if (exact) { /* the f32 node stays for who asks what it was, and has no uses */
        map_put(arena, &e->exact, node, exact);
        return;
    }
    use_rounded(e, node);
    if (node->op == OP_REPEAT) rewrite_repeat(e, node);
    vec_push(arena, &region->nodes, node);
}

static void rewrite_region(Exact *e, Region *region) {
    NodeList old = region->nodes;
    region->nodes = (NodeList){0};
    e->b.region = region;
    for (int i = 0; i < old.n; i++) rewrite_node(e, old.at[i]);
}

/* ---- graphs --------------------------------------------------------------------------------------------------------
 */

static bool fail_sum(Exact *e, const Output *output) {
    Diag *d = diag_error(e->s, "P0630", output->value->span,
                         "`--numerics reproducible`: `%s` is not a plain sum over the samples of a step",
                         output->tensor->name);
    diag_label(d, "it depends on a sum that was rounded");
    diag_help(d, "let the loss be a sum of values for each sample, or train with `--numerics fast`");
    return e->failed = true;
}

/* Accumulators become exact. */
static void rewrite_outputs(Exact *e) {
    for (int i = 0; i < e->graph->outputs.n; i++) {
        Output *output = &e->graph->outputs.at[i];
        bool sum = output->tensor->class == CLASS_GRADIENT && output->tensor->dtype != DT_EXACT && e->graph->micro;
        e->b.span = output->value->span, e->b.backward = output->value->backward;
        e->b.deferred = output->value->deferred;
        if (sum) output->tensor->dtype = DT_EXACT;
        if (output->tensor->dtype != DT_EXACT) {
            output->value = in_f32(e, output->value);
            continue;
        }
        if (map_get(&e->sums, output->value) && !exact_of(e, output->value) && fail_sum(e, output)) continue;
        if (is_zero(output->value) && !exact_of(e, output->value))
            output->value = build_broadcast(&e->b, build_const(&e->b, DT_EXACT, 0), &output->tensor->shape);
        else
            output->value = as_exact(e, output->value);
    }
}

static bool rewrite_graph(Session *s, const Step *step, Graph *graph) {
    if (!graph) return true;
    Exact e = {.s = s, .graph = graph, .batch = step->model->batch->size};
    e.b = (Builder){.graph = graph, .region = &graph->top};
    graph->reproducible = true;
    rewrite_region(&e, &graph->top);
    e.b.region = &graph->top;
    rewrite_outputs(&e);
    if (e.failed) return false;
    graph_drop_dead(graph);
    return true;
}

bool step_make_reproducible(Session *s, Step *step) {
    bool good = rewrite_graph(s, step, step->body) && rewrite_graph(s, step, step->count);
    for (int i = 0; i < step->n_chunks; i++)
        good = good && rewrite_graph(s, step, step->bodies[i]) && rewrite_graph(s, step, step->evals[i]);
    for (int i = 0; i < step->received.n; i++) step->received.at[i]->dtype = DT_EXACT; /* as those that are sent */
    Graph *once[] = {step->total, step->begin, step->update, step->eval};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) good = good && rewrite_graph(s, step, once[i]);
    if (step->init) step->init->reproducible = true;
    return good;
}

/* ---- plans
 * ----------------------------------------------------------------------------------------------------------- */

bool plan_is_reproducible(Session *s, const Plan *plan, const Graph *model) {
    int errors = diag_count(s, SEV_ERROR);
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (rule->using_name && strcmp(rule->using_name, "ring") == 0) {
            Diag *d =
                diag_error(s, "P0634", rule->using_span, "`--numerics reproducible`: a ring has no order of its own");
            diag_label(d,
                       "each rank begins with its own keys and values, so the sums of attention run in another order");
            diag_help(d, "`using gather`, or build with `--numerics fast`");
        }
        const Dim *dim = rule->what && model ? graph_find_dim(model, rule->what) : NULL;
        if (rule->how == STORE_UNEVEN && dim && !dim->is_repeated) {
            Diag *d = diag_error(s, "P0635", rule->span,
                                 "`--numerics reproducible`: unequal parts of `%s` hold unequal sums", rule->what);
            diag_label(d, "sums are joined as a tree over equal parts");
            diag_help(d, "equal parts, or `%s padded`, or build with `--numerics fast`", rule->what);
        }
        if (rule->how != STORE_REPEATED) continue;
        Diag *d = diag_error(s, "P0631", rule->span,
                             "`--numerics reproducible`: copies of `%s` have no order of their own", rule->what);
        diag_label(d, "their gradients are added up copy by copy, in another order than without copies");
        diag_help(d, "cut `%s` in no more parts than it has elements, or build with `--numerics fast`", rule->what);
    }
    if (strcmp(plan->precision, "fp32") != 0) {
        Diag *d = diag_error(s, "P0632", plan->precision_span, "`--numerics reproducible` is for fp32, not `%s`",
                             plan->precision);
        diag_help(d, "leave `precision` out, or build with `--numerics fast`");
    }
    return diag_count(s, SEV_ERROR) == errors;
}
