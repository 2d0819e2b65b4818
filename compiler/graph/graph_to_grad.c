/* Reverse mode over a graph: adds the backward half.
 *
 * In: a graph of primitives and a scalar. Out: nodes marked `backward`, and one gradient for each weight. Each
 * operator's rule builds its part in terms of forward values; those are then replaced by what the backward half may
 * read:
 *   - cheap nodes (elementwise, views, ramps, random numbers), and those that the plan recomputes, are made again in
 *     the backward half, recursively;
 *   - everything else is read where it is, at the top;
 *   - in a repeat, parameters come again (slice, capture), other values are stacked by the forward repeat.
 * The gradient of a repeat is a second repeat, index reversed: it carries the gradients of the carries and one
 * accumulator for each captured value, and stacks the gradients of the slices. */
#include "graph/copy.h"

typedef struct Level Level;
struct Level {
    Level *up;
    Region *forward, *backward;                              /* the same at the top */
    Node *repeat;                                            /* whose body `forward` is; NULL at the top */
    Map copies;                                              /* forward node -> what the backward half reads for it */
    Map grads;                                               /* forward node -> Node *[results]: its gradients so far */
    NodeList slices, slice_inputs, captures, capture_inputs; /* of the backward repeat */
    Map kept; /* node -> itself: what a named call hands out, which is kept; filled by find_kept */
    bool kept_known;
};

typedef struct Grad {
    Graph *graph;
    Arena *arena;
    bool *active; /* by id of a forward node: depends on a weight, through floats */
    int n_forward;
    Builder b;
    const Recompute *again; /* or NULL */
    Map origins;            /* of the forward nodes that are made again to be differentiated there: what they copy */
} Grad;

static Node *resolve(Grad *grad, Level *level, Node *node);
static void differentiate(Grad *grad, Level *level);

/* ---- which values depend on a weight ----------------------------------------------------------------------------- */

static bool is_active(const Grad *grad, const Node *node) {
    if (node->id >= grad->n_forward && grad->origins.n) node = map_get(&grad->origins, node);
    return node && node->id < grad->n_forward && grad->active[node->id];
}

static bool wants(Tensor *const *weights, int n, const Tensor *tensor) {
    for (int i = 0; i < n; i++)
        if (weights[i] == tensor) return true;
    return false;
}

static void mark_active(Grad *grad, const Region *region, Tensor *const *weights, int n);

/* A carry depends on a weight when its start or any layer's value does: until nothing changes. */
static void mark_repeat(Grad *grad, const Node *repeat, Tensor *const *weights, int n) {
    const Region *region = repeat->region;
    for (int i = 0; i < region->params.n; i++)
        if (is_active(grad, repeat->in[i])) grad->active[region->params.at[i]->id] = true;
    bool changed = true;
    while (changed) {
        changed = false;
        mark_active(grad, region, weights, n);
        for (int i = 0; i < region->n_carries; i++) {
            bool *carry = &grad->active[region->params.at[i]->id];
            if (!is_active(grad, region->results.at[i]) || *carry) continue;
            *carry = changed = true;
        }
    }
}

static bool node_is_active(const Grad *grad, const Node *node, Tensor *const *weights, int n) {
    if (!dtype_is_float(node->dtype)) return false;
    if (node->op == OP_INPUT) return wants(weights, n, node->tensor);
    if (node->op == OP_RESULT) {
        const Node *tuple = node->in[0];
        int64_t index = node_attr(node, "index")->integer;
        if (tuple->op != OP_REPEAT) return is_active(grad, tuple);
        bool carried = index < tuple->region->n_carries && is_active(grad, tuple->region->params.at[index]);
        return carried || is_active(grad, tuple->region->results.at[index]);
    }
    if (op_info(node)->no_grad) return false;
    for (int i = 0; i < node->n_in; i++)
        if (is_active(grad, node->in[i])) return true;
    return false;
}

static void mark_active(Grad *grad, const Region *region, Tensor *const *weights, int n) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->op == OP_REPEAT) {
            mark_repeat(grad, node, weights, n);
            for (int k = 0; k < node->n_in; k++) grad->active[node->id] |= is_active(grad, node->in[k]);
        } else {
            grad->active[node->id] = node_is_active(grad, node, weights, n);
        }
    }
}

/* ---- what the backward half reads -------------------------------------------------------------------------------- */

static void build_in(Grad *grad, Level *level, const Node *node) {
    grad->b.region = level->backward;
    grad->b.span = node->span;
    grad->b.name = node->name;
    grad->b.path = node->path;
    grad->b.backward = true;
}

static void insert_after(Arena *arena, NodeList *nodes, const Node *after, Node *node) {
    vec_push(arena, nodes, node);
    int i = nodes->n - 1;
    for (; i > 0 && nodes->at[i - 1] != after; i--) nodes->at[i] = nodes->at[i - 1];
    nodes->at[i] = node;
}

/* The node that reads a result of a forward tuple, made where there is none yet. */
static Node *forward_result(Grad *grad, Region *region, Node *tuple, int index) {
    for (int i = 0; i < region->nodes.n; i++) {
        Node *node = region->nodes.at[i];
        if (node->op == OP_RESULT && node->in[0] == tuple && !node->backward && node->attrs[0].integer == index)
            return node;
    }
    Region scratch = {0};
    Builder b = {
        .graph = grad->graph, .region = &scratch, .span = tuple->span, .name = tuple->name, .path = tuple->path};
    Node *node = build_result(&b, tuple, index);
    insert_after(grad->graph->arena, &region->nodes, tuple, node);
    return node;
}

/* Stacks a value of the forward body; returns its number among the repeat's results. */
static int stack_value(Grad *grad, Node *repeat, Node *value) {
    Region *region = repeat->region;
    for (int i = region->n_carries; i < region->results.n; i++)
        if (region->results.at[i] == value) return i;
    OutType *outs = NEW_N(grad->graph->arena, OutType, repeat->n_outs + 1);
    for (int i = 0; i < repeat->n_outs; i++) outs[i] = repeat->outs[i];
    Shape front = shape_of(&region->dim, 1);
    outs[repeat->n_outs] = (OutType){.dtype = value->dtype, .shape = shape_union(&front, &value->shape)};
    vec_push(grad->graph->arena, &region->results, value);
    region->n_stacked++;
    repeat->outs = outs;
    return repeat->n_outs++;
}

static Node *add_slice(Grad *grad, Level *level, Node *stacked, const Node *like) {
    build_in(grad, level, like);
    Node *param = region_add_param(&grad->b, level->backward, stacked->dtype,
                                   shape_of(stacked->shape.dims + 1, stacked->shape.n - 1));
    vec_push(grad->graph->arena, &level->slices, param);
    vec_push(grad->graph->arena, &level->slice_inputs, stacked);
    return param;
}

static Node *add_capture(Grad *grad, Level *level, Node *outer, const Node *like) {
    build_in(grad, level, like);
    Node *param = region_add_param(&grad->b, level->backward, outer->dtype, outer->shape);
    vec_push(grad->graph->arena, &level->captures, param);
    vec_push(grad->graph->arena, &level->capture_inputs, outer);
    return param;
}

static Node *saved_value(Grad *grad, Level *level, Node *node) {
    int index = stack_value(grad, level->repeat, node);
    Node *result = forward_result(grad, level->up->forward, level->repeat, index);
    return add_slice(grad, level, resolve(grad, level->up, result), node);
}

static Node *resolve_param(Grad *grad, Level *level, Node *param) {
    const Region *region = level->forward;
    int index = 0;
    while (region->params.at[index] != param) index++;
    if (index < region->n_carries) return saved_value(grad, level, param);
    Node *outer = resolve(grad, level->up, level->repeat->in[index]);
    if (index < region->n_carries + region->n_slices) return add_slice(grad, level, outer, param);
    return add_capture(grad, level, outer, param);
}

/* ---- recomputation ------------------------------------------------------------------------------ */

/* Whether a part of the path is the word: "layers.attention_2.split" has `attention`, its calls being numbered. */
static bool path_has(const char *path, const char *word) {
    const char *dot = strrchr(word, '.');
    if (dot) word = dot + 1;
    size_t n = strlen(word);
    for (const char *at = path; at && *at; at = strchr(at, '.'), at += at != NULL) {
        if (strncmp(at, word, n) != 0) continue;
        const char *rest = at + n;
        if (*rest == '_' && rest[1] >= '0' && rest[1] <= '9') rest += 1 + strspn(rest + 1, "0123456789");
        if (*rest == 0 || *rest == '.') return true;
    }
    return false;
}

static bool is_named(const Recompute *again, const Node *node) {
    for (int i = 0; i < again->n; i++)
        if (path_has(node->path, again->names[i])) return true;
    return false;
}

static bool is_named_tensor(const Recompute *again, const Node *node) {
    for (int i = 0; node->name && i < again->n; i++)
        if (node->name == again->names[i]) return true;
    return false;
}

/* What a named call hands to others is its result: it is kept, or the whole call would be made again for it. */
static void find_kept(Grad *grad, Level *level) {
    level->kept_known = true;
    for (int i = 0; i < level->forward->nodes.n; i++) {
        const Node *node = level->forward->nodes.at[i];
        if (node->backward || is_named(grad->again, node)) continue;
        for (int k = 0; k < node->n_in; k++) map_put(grad->arena, &level->kept, node->in[k], node->in[k]);
    }
    for (int i = 0; level->repeat && i < level->forward->results.n; i++) {
        Node *result = level->forward->results.at[i];
        map_put(grad->arena, &level->kept, result, result);
    }
}

static bool is_recomputed(Grad *grad, Level *level, const Node *node) {
    const Recompute *again = grad->again;
    if (!again || node->op == OP_REPEAT || (node->op == OP_RESULT && node->in[0]->op == OP_REPEAT)) return false;
    if (again->full) return level->repeat != NULL;
    if (is_named_tensor(again, node)) return true;
    if (!is_named(again, node)) return false;
    if (!level->kept_known) find_kept(grad, level);
    return !map_get(&level->kept, node);
}

static Node *clone_node(Grad *grad, Level *level, Node *node) {
    Node **in = NEW_N(grad->arena, Node *, node->n_in);
    for (int i = 0; i < node->n_in; i++) {
        Node *x = node->in[i];
        if (x->n_outs && !map_get(&level->copies, x))
            map_put(grad->arena, &level->copies, x, clone_node(grad, level, x));
        in[i] = resolve(grad, level, x);
    }
    build_in(grad, level, node);
    if (node->op == OP_INPUT) return build_input(&grad->b, node->tensor);
    if (node->op == OP_LAYER_INDEX) return build_layer_index(&grad->b);
    return build_op(&grad->b, node->op, in, node->n_in, node->attrs);
}

/* What the backward half at `level` reads for a forward value of that level. */
static Node *resolve(Grad *grad, Level *level, Node *node) {
    if (node->backward) return node;
    Node *known = map_get(&level->copies, node);
    if (known) return known;
    Node *copy = node;
    if (node->op == OP_PARAM)
        copy = resolve_param(grad, level, node);
    else if (op_info(node)->cheap || node->op == OP_INPUT || is_recomputed(grad, level, node))
        copy = clone_node(grad, level, node);
    else if (level->repeat)
        copy = saved_value(grad, level, node);
    map_put(grad->arena, &level->copies, node, copy);
    return copy;
}

/* ---- gradients of nodes ------------------------------------------------------------------------------------------ */

static int result_count(const Node *node) { return node->n_outs > 0 ? node->n_outs : 1; }

static Node **grads_of(Grad *grad, Level *level, const Node *node) {
    Node **grads = map_get(&level->grads, node);
    if (grads) return grads;
    grads = NEW_N(grad->arena, Node *, result_count(node) + 1);
    map_put(grad->arena, &level->grads, node, grads);
    return grads;
}

/* Whether the value is a stored weight, or a layer's slice of one. */
static bool is_weight(const Level *level, const Node *node) {
    if (node->op == OP_INPUT) return node->tensor->class == CLASS_WEIGHT;
    if (op_info(node)->lower == LOWER_VIEW) return is_weight(level, node->in[0]);
    if (node->op != OP_PARAM) return false;
    const Region *region = level->forward;
    int i = region->n_carries;
    while (i < region->params.n && region->params.at[i] != node) i++;
    return i < region->params.n && is_weight(level->up, level->repeat->in[i]);
}

/* The value in f32, without having been rounded before: sums and products give what they add up. */
static Node *widened(Builder *b, Node *value) {
    if (value->dtype == DT_F32) return value;
    if (value->op == OP_SUM)
        return build_reduce(b, OP_SUM, build_cast(b, value->in[0], DT_F32), &node_attr(value, "over")->dims);
    if (value->op == OP_BROADCAST) return build_broadcast(b, widened(b, value->in[0]), &value->shape);
    if (value->op != OP_DOT) return build_cast(b, value, DT_F32);
    AttrValue attrs[] = {value->attrs[0], value->attrs[1], {.integer = true}};
    return build_op(b, OP_DOT, value->in, value->n_in, attrs);
}

/* What a narrowed weight's gradients add up to is f32: they go past the cast. So do sums for rows of a table. */
static void add_grad(Grad *grad, Level *level, Node *node, int result, Node *value) {
    if (!value || !is_active(grad, node)) return;
    build_in(grad, level, node);
    if (!shape_equal(&value->shape, &node->shape) && !node->n_outs) value = build_fit(&grad->b, value, &node->shape);
    bool summed = value->op == OP_SUM || (value->op == OP_BROADCAST && value->in[0]->op == OP_SUM);
    bool wide = summed && op_info(node)->lower == LOWER_GATHER;
    if (node->op == OP_CAST && node->in[0]->dtype == DT_F32 && is_weight(level, node->in[0]))
        node = node->in[0], wide = true;
    value = wide ? widened(&grad->b, value)
                 : build_cast(&grad->b, value, node->n_outs ? node->outs[result].dtype : node->dtype);
    Node **sum = &grads_of(grad, level, node)[result];
    if (*sum && (*sum)->dtype != value->dtype) {
        *sum = build_cast(&grad->b, *sum, DT_F32);
        value = build_cast(&grad->b, value, DT_F32);
    }
    *sum = *sum ? build_binary(&grad->b, OP_ADD, *sum, value) : value;
}

static void mark_needed(Map *made, Arena *arena, Node *node) {
    if (map_get(made, node) != (void *)made) return;
    map_put(arena, made, node, node);
    for (int i = 0; i < node->n_in; i++) mark_needed(made, arena, node->in[i]);
}

/* Puts what a rule has built into the backward half: only what an active input's gradient needs, with forward values
 * replaced. `made` maps each to itself; its value becomes what stands for it. */
static void place_nodes(Grad *grad, Level *level, Node *const *nodes, int n, Map *made) {
    for (int i = 0; i < n; i++) {
        Node *node = nodes[i];
        if (map_get(made, node) == (void *)made) continue; /* not needed */
        if (node->op == OP_RESULT && !node->in[0]->backward) {
            Node *result = forward_result(grad, level->forward, node->in[0], (int)node->attrs[0].integer);
            map_put(grad->arena, made, node, resolve(grad, level, result));
            continue;
        }
        for (int k = 0; k < node->n_in; k++) {
            Node *replaced = map_get(made, node->in[k]);
            node->in[k] = replaced ? replaced : resolve(grad, level, node->in[k]);
        }
        vec_push(grad->graph->arena, &level->backward->nodes, node);
    }
}

static void apply_rule(Grad *grad, Level *level, Node *node, Node **grad_out) {
    const OpInfo *info = op_info(node);
    if (!info->grad) BUG("operator %s has no gradient", info->name);
    NodeList *list = &level->backward->nodes;
    int first = list->n;
    Node **grad_in = NEW_N(grad->arena, Node *, node->n_in);
    build_in(grad, level, node);
    info->grad(&grad->b, node, grad_out, grad_in);
    int n = list->n - first;
    Node **nodes = NEW_N(grad->arena, Node *, n);
    Map made = {0};
    for (int i = 0; i < n; i++) {
        nodes[i] = list->at[first + i];
        if (nodes[i]->op == OP_POISON) BUG("the gradient of %s is ill-formed", info->name);
        map_put(grad->arena, &made, nodes[i], &made);
    }
    list->n = first;
    for (int i = 0; i < node->n_in; i++)
        if (grad_in[i] && is_active(grad, node->in[i])) mark_needed(&made, grad->arena, grad_in[i]);
    place_nodes(grad, level, nodes, n, &made);
    for (int i = 0; i < node->n_in; i++) {
        if (!grad_in[i] || !is_active(grad, node->in[i])) continue;
        Node *value = map_get(&made, grad_in[i]);
        add_grad(grad, level, node->in[i], 0, value ? value : resolve(grad, level, grad_in[i]));
    }
}

/* ---- repeats ------------------------------------------------------------------------------------ */

static Node *zeros(Grad *grad, Level *level, const Node *like, DType dtype, const Shape *shape) {
    build_in(grad, level, like);
    return build_broadcast(&grad->b, build_const(&grad->b, dtype, 0), shape);
}

/* The backward repeat while it is built: carries first for the carries, then for the captures. */
typedef struct Backward {
    NodeList carries, inputs, results, stacked;
    int *carry_of, *slice_of, *capture_of; /* parameter -> number among the backward results, or -1 */
} Backward;

static void push_carry(Grad *grad, Backward *back, Node *param, Node *input) {
    vec_push(grad->arena, &back->carries, param);
    vec_push(grad->arena, &back->inputs, input);
}

/* Carries the gradients of the carries into the body. */
static void open_carries(Grad *grad, Level *level, Backward *back, Node *const *grad_out) {
    const Region *region = level->forward;
    for (int i = 0; i < region->results.n; i++) {
        Node *result = region->results.at[i], *param = i < region->n_carries ? region->params.at[i] : NULL, *seed;
        if (param ? !is_active(grad, param) : !grad_out[i]) continue;
        if (param) {
            Node *start = grad_out[i] ? grad_out[i] : zeros(grad, level->up, param, param->dtype, &param->shape);
            build_in(grad, level, param);
            seed = region_add_param(&grad->b, level->backward, param->dtype, param->shape);
            back->carry_of[i] = back->carries.n;
            push_carry(grad, back, seed, start);
        } else {
            seed = add_slice(grad, level, grad_out[i], result);
        }
        add_grad(grad, level, result, 0, seed);
    }
}

/* Next values: of the carries' gradients, of the accumulators; then the gradients of the slices. */
static void close_carries(Grad *grad, Level *level, Backward *back) {
    const Region *region = level->forward;
    for (int i = 0; i < region->params.n; i++) {
        Node *param = region->params.at[i], **found = map_get(&level->grads, param), *value = found ? found[0] : NULL;
        bool carry = i < region->n_carries, slice = !carry && i < region->n_carries + region->n_slices;
        if (carry && back->carry_of[i] >= 0) {
            vec_push(grad->arena, &back->results,
                     value ? value : zeros(grad, level, param, param->dtype, &param->shape));
        } else if (slice && value) {
            back->slice_of[i] = back->stacked.n;
            vec_push(grad->arena, &back->stacked, value);
        } else if (!carry && value) {
            Node *start = zeros(grad, level->up, param, param->dtype, &param->shape);
            build_in(grad, level, param);
            Node *sum = region_add_param(&grad->b, level->backward, param->dtype, param->shape);
            back->capture_of[i] = back->carries.n;
            push_carry(grad, back, sum, start);
            vec_push(grad->arena, &back->results, build_binary(&grad->b, OP_ADD, sum, value));
        }
    }
}

static void append(Arena *arena, NodeList *to, const NodeList *from) {
    for (int i = 0; i < from->n; i++) vec_push(arena, to, from->at[i]);
}

static Node *close_backward(Grad *grad, Level *level, Backward *back) {
    Arena *arena = grad->graph->arena;
    Region *region = level->backward;
    NodeList inputs = {0};
    region->params.n = 0;
    append(arena, &region->params, &back->carries);
    append(arena, &region->params, &level->slices);
    append(arena, &region->params, &level->captures);
    append(grad->arena, &inputs, &back->inputs);
    append(grad->arena, &inputs, &level->slice_inputs);
    append(grad->arena, &inputs, &level->capture_inputs);
    append(grad->arena, &back->results, &back->stacked);
    build_in(grad, level, level->repeat);
    Node *repeat = region_close(&grad->b, region, inputs.at, back->carries.n, level->slices.n, level->captures.n,
                                back->results.at, back->stacked.n);
    if (repeat->op == OP_POISON) BUG("the gradient of a repeat over %s is ill-formed", region->dim->name);
    return repeat;
}

/* ---- layers in groups --------------------------------------------------------------------------- */

static Node *clone_repeat(Grad *grad, const Node *repeat, Node *const *in);

static Node *clone_in_region(Grad *grad, Map *made, const Node *node) {
    Node **in = NEW_N(grad->arena, Node *, node->n_in + 1);
    for (int k = 0; k < node->n_in; k++) in[k] = map_get(made, node->in[k]);
    grad->b.span = node->span, grad->b.name = node->name, grad->b.path = node->path;
    if (node->op == OP_REPEAT) return clone_repeat(grad, node, in);
    if (node->op == OP_LAYER_INDEX) return build_layer_index(&grad->b);
    if (node->op == OP_INPUT) return build_input(&grad->b, node->tensor);
    return build_op(&grad->b, node->op, in, node->n_in, node->attrs);
}

/* A forward repeat once more, where the builder stands. */
static Node *clone_repeat(Grad *grad, const Node *repeat, Node *const *in) {
    const Region *from = repeat->region;
    Map made = {0};
    Region *region = region_open(&grad->b, from->dim, from->descending);
    for (int i = 0; i < from->params.n; i++) {
        const Node *param = from->params.at[i];
        grad->b.span = param->span, grad->b.name = param->name, grad->b.path = param->path;
        Node *clone = region_add_param(&grad->b, region, param->dtype, param->shape);
        map_put(grad->arena, &made, param, clone);
        map_put(grad->arena, &grad->origins, clone, (void *)(uintptr_t)param);
    }
    for (int i = 0; i < from->nodes.n; i++) {
        const Node *node = from->nodes.at[i];
        if (node->backward) continue;
        Node *clone = clone_in_region(grad, &made, node);
        map_put(grad->arena, &made, node, clone);
        map_put(grad->arena, &grad->origins, clone, (void *)(uintptr_t)node);
    }
    Node **results = NEW_N(grad->arena, Node *, from->results.n + 1);
    for (int i = 0; i < from->results.n; i++) results[i] = map_get(&made, from->results.at[i]);
    Node *clone =
        region_close(&grad->b, region, in, from->n_carries, from->n_slices, from->n_captures, results, from->n_stacked);
    map_put(grad->arena, &grad->origins, clone, (void *)(uintptr_t)repeat);
    return clone;
}

static void mark_backward(Node *node) {
    node->backward = true;
    for (int i = 0; node->region && i < node->region->params.n; i++) node->region->params.at[i]->backward = true;
    for (int i = 0; node->region && i < node->region->nodes.n; i++) mark_backward(node->region->nodes.at[i]);
}

/* Only the first input of a group is kept: the forward pass of its layers runs again in the backward half. */
static bool is_group(const Level *level, const Node *repeat) {
    return level->repeat && level->forward->dim->nested == repeat->region->dim;
}

static Node *run_group_again(Grad *grad, Level *level, const Node *repeat) {
    Node **in = NEW_N(grad->arena, Node *, repeat->n_in + 1);
    for (int i = 0; i < repeat->n_in; i++) in[i] = resolve(grad, level, repeat->in[i]);
    build_in(grad, level, repeat);
    grad->b.backward = false; /* until its own backward half stands */
    return clone_repeat(grad, repeat, in);
}

static void close_group(Level *level, Node *again) {
    mark_backward(again);
    for (int i = 0; i < level->backward->nodes.n; i++) {
        Node *node = level->backward->nodes.at[i];
        if (node->op == OP_RESULT && node->in[0] == again) node->backward = true;
    }
}

static int *no_results(Arena *arena, int n) {
    int *numbers = NEW_N(arena, int, n + 1);
    for (int i = 0; i < n; i++) numbers[i] = -1;
    return numbers;
}

static void differentiate_repeat(Grad *grad, Level *up, Node *repeat, Node *const *grad_out) {
    bool group = is_group(up, repeat);
    Level again = {.up = up->up, .forward = up->backward, .backward = up->backward}; /* there it is at hand */
    Node *run = group ? run_group_again(grad, up, repeat) : repeat;
    Region *forward = run->region;
    int n = forward->params.n;
    Level level = {.up = group ? &again : up, .forward = forward, .repeat = run};
    Backward back = {.carry_of = no_results(grad->arena, n),
                     .slice_of = no_results(grad->arena, n),
                     .capture_of = no_results(grad->arena, n)};
    build_in(grad, up, repeat);
    level.backward = region_open(&grad->b, forward->dim, !forward->descending);
    open_carries(grad, &level, &back, grad_out);
    differentiate(grad, &level);
    close_carries(grad, &level, &back);
    if (group) close_group(up, run);
    if (back.carries.n + back.stacked.n == 0) return;
    Node *made = close_backward(grad, &level, &back);
    for (int i = 0; i < n; i++) {
        int index = back.carry_of[i] >= 0 ? back.carry_of[i] : back.capture_of[i];
        if (back.slice_of[i] >= 0) index = back.carries.n + back.slice_of[i];
        if (index < 0 || !is_active(grad, repeat->in[i])) continue;
        build_in(grad, up, repeat);
        add_grad(grad, up, repeat->in[i], 0, build_result(&grad->b, made, index));
    }
}

/* ---- the sweep ---------------------------------------------------------------------------------- */

static void differentiate(Grad *grad, Level *level) {
    for (int i = level->forward->nodes.n - 1; i >= 0; i--) {
        Node *node = level->forward->nodes.at[i];
        if (node->backward || !is_active(grad, node)) continue;
        Node **grads = map_get(&level->grads, node);
        if (!grads || node->op == OP_INPUT) continue;
        if (node->op == OP_RESULT) {
            add_grad(grad, level, node->in[0], (int)node->attrs[0].integer, grads[0]);
        } else if (node->op == OP_REPEAT) {
            differentiate_repeat(grad, level, node, grads);
        } else {
            apply_rule(grad, level, node, grads);
        }
        while (level->forward->nodes.at[i] != node) i++; /* a result of an earlier tuple was put before it */
    }
}

void graph_to_grad(Graph *graph, Node *target, Tensor *const *weights, int n, const Recompute *again,
                   Node **gradients) {
    CHECK(target->shape.n == 0 && dtype_is_float(target->dtype));
    Grad grad = {
        .graph = graph, .arena = arena_new(), .n_forward = graph->n_nodes, .b = {.graph = graph}, .again = again};
    grad.active = NEW_N(grad.arena, bool, graph->n_nodes + 1);
    Level top = {.forward = &graph->top, .backward = &graph->top};
    mark_active(&grad, &graph->top, weights, n);
    build_in(&grad, &top, target);
    add_grad(&grad, &top, target, 0, build_const(&grad.b, target->dtype, 1));
    differentiate(&grad, &top);
    for (int k = 0; k < n; k++) {
        gradients[k] = NULL;
        for (int i = 0; i < top.grads.n; i++) {
            const Node *node = top.grads.entries[i].key;
            Node *value = ((Node **)top.grads.entries[i].value)[0];
            if (node->op != OP_INPUT || node->tensor != weights[k] || !value) continue;
            build_in(&grad, &top, node);
            gradients[k] = gradients[k] ? build_binary(&grad.b, OP_ADD, gradients[k], value) : value;
        }
    }
    arena_free(grad.arena);
}
