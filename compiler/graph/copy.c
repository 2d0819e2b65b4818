/* Copies a graph, rewriting as it goes (see copy.h).
 *
 * Composite operators are expanded, constants folded, equal nodes of one region shared. Whatever a rule or an expansion
 * builds is taken off the list again and goes the same way, so expansions may use composites. */
#include "graph/copy.h"

typedef struct SharedNode {
    Node *node;  /* with the target's inputs */
    Node *value; /* itself, or what a composite was expanded to */
    struct SharedNode *next;
} SharedNode;

typedef struct Stacked {
    Tensor *tensor;
    Node *value;
} Stacked;

struct CopyLevel {
    CopyLevel *up;
    Region *region;
    Map shared; /* hash -> SharedNode */
    Map values; /* Tensor -> its value (captured, or this layer's slice) in this region */
    NodeList slices, slice_inputs, captures, capture_inputs; /* added by rules */
    VEC(Stacked) stacked;
};

static Node *copy_node(Copy *copy, const Node *node, Node *const *in);

static CopyLevel *level_push(Copy *copy, Region *region) {
    CopyLevel *level = NEW(copy->to->arena, CopyLevel);
    level->up = copy->level;
    level->region = region;
    copy->level = level;
    return level;
}

void copy_begin(Copy *copy, Graph *to) {
    *copy = (Copy){.to = to, .b = {.graph = to, .region = &to->top}};
    level_push(copy, &to->top);
}

/* ---- names of source and target ---------------------------------------------------------------------------------- */

Node *copy_value(const Copy *copy, const Node *node) {
    Node *value = map_get(&copy->nodes, node);
    return value ? value : (Node *)node; /* built in the target already */
}

Dim *copy_dim(const Copy *copy, Dim *dim) {
    Dim *replaced = map_get(&copy->dims, dim);
    return replaced ? replaced : dim;
}

/* A dimension that becomes groups has the layers of a group behind it. */
Shape copy_shape(const Copy *copy, const Shape *shape) {
    Shape result = {0};
    for (int i = 0; i < shape->n; i++) {
        Dim *each = map_get(&copy->groups, shape->dims[i]);
        CHECK(result.n + 1 + (each != NULL) <= MAX_RANK);
        result.dims[result.n++] = copy_dim(copy, shape->dims[i]);
        if (each) result.dims[result.n++] = each;
    }
    return result;
}

/* A tensor with a replaced dimension is another tensor of the same name; others are shared between graphs. */
Tensor *copy_tensor(Copy *copy, Tensor *tensor) {
    Tensor *known = map_get(&copy->tensors, tensor);
    Graph *to = copy->to;
    if (!known) {
        Shape shape = copy_shape(copy, &tensor->shape);
        known = tensor;
        if (!shape_equal(&shape, &tensor->shape)) {
            known = NEW(to->arena, Tensor);
            *known = *tensor;
            known->shape = shape;
        }
        map_put(to->arena, &copy->tensors, tensor, known);
    }
    for (int i = 0; i < to->tensors.n; i++)
        if (to->tensors.at[i] == known) return known;
    vec_push(to->arena, &to->tensors, known);
    if (known->of) known->of = copy_tensor(copy, known->of);
    return known;
}

static AttrValue *copy_attrs(const Copy *copy, const Node *node) {
    int n = op_n_attrs(op_info(node));
    AttrValue *attrs = NEW_N(copy->to->arena, AttrValue, n);
    for (int i = 0; i < n; i++) {
        attrs[i] = node->attrs[i];
        attrs[i].dims = copy_shape(copy, &attrs[i].dims);
    }
    return attrs;
}

/* ---- sharing equal nodes ----------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x9e3779b97f4a7c15u; }

static uint64_t attr_hash(const AttrValue *attr) {
    uint64_t bits;
    memcpy(&bits, &attr->number, sizeof bits);
    uint64_t hash = mix(mix(mix(7, (uint64_t)attr->integer), bits), (uint64_t)(uintptr_t)attr->name);
    for (int i = 0; i < attr->dims.n; i++) hash = mix(hash, (uint64_t)(uintptr_t)attr->dims.dims[i]);
    return hash;
}

static bool attr_equal(const AttrValue *a, const AttrValue *b) {
    if (a->integer != b->integer || memcmp(&a->number, &b->number, sizeof a->number) != 0 || a->name != b->name)
        return false;
    if (!shape_equal(&a->dims, &b->dims) || !a->list != !b->list) return false;
    return !a->list || memcmp(a->list, b->list, sizeof(double) * (size_t)a->integer) == 0;
}

static uint64_t node_hash(Op op, Node *const *in, int n_in, const AttrValue *attrs, const Tensor *tensor,
                          bool backward) {
    uint64_t hash = mix(mix((uint64_t)op + 1, backward), (uint64_t)(uintptr_t)tensor);
    for (int i = 0; i < n_in; i++) hash = mix(hash, (uint64_t)in[i]->id);
    for (int i = 0, n = op_n_attrs(op_table[op]); i < n; i++) hash = mix(hash, attr_hash(&attrs[i]));
    return hash | 1;
}

static bool same_node(const Node *known, const Node *wanted, Node *const *in, const AttrValue *attrs,
                      const Tensor *tensor) {
    if (known->op != wanted->op || known->n_in != wanted->n_in || known->tensor != tensor) return false;
    if (known->backward != wanted->backward) return false;
    for (int i = 0; i < known->n_in; i++)
        if (known->in[i] != in[i]) return false;
    for (int i = 0, n = op_n_attrs(op_info(known)); i < n; i++)
        if (!attr_equal(&known->attrs[i], &attrs[i])) return false;
    return true;
}

/* An equal scalar composite of this region is expanded once; `*place` is where to note a new one. */
static Node *shared_composite(Copy *copy, const Node *node, Node *const *in, SharedNode **place) {
    if (node->shape.n || node->n_outs) return NULL;
    Arena *arena = copy->to->arena;
    AttrValue *attrs = copy_attrs(copy, node);
    const void *key = (const void *)(uintptr_t)node_hash(node->op, in, node->n_in, attrs, NULL, node->backward);
    SharedNode *chain = map_get(&copy->level->shared, key);
    for (SharedNode *at = chain; at; at = at->next)
        if (same_node(at->node, node, in, attrs, NULL)) return at->value;
    *place = NEW(arena, SharedNode);
    (*place)->node = NEW(arena, Node);
    *(*place)->node = *node;
    (*place)->node->in = (Node **)in, (*place)->node->attrs = attrs;
    (*place)->next = chain;
    map_put(arena, &copy->level->shared, key, *place);
    return NULL;
}

/* The node with new inputs: an equal one of this region, or a new one. */
static Node *share_or_build(Copy *copy, const Node *node, Node *const *in) {
    CopyLevel *level = copy->level;
    AttrValue *attrs = copy_attrs(copy, node);
    Tensor *tensor = node->op == OP_INPUT ? copy_tensor(copy, node->tensor) : NULL;
    const void *key = (const void *)(uintptr_t)node_hash(node->op, in, node->n_in, attrs, tensor, node->backward);
    SharedNode *chain = map_get(&level->shared, key);
    bool collective = op_info(node)->lower == LOWER_COLLECTIVE; /* all stages of a pipeline must have the same */
    for (SharedNode *at = collective ? NULL : chain; at; at = at->next)
        if (same_node(at->node, node, in, attrs, tensor)) return at->value;
    SharedNode *added = NEW(copy->to->arena, SharedNode);
    added->node = tensor ? build_input(&copy->b, tensor) : build_op(&copy->b, node->op, in, node->n_in, attrs);
    added->value = added->node;
    added->next = chain;
    map_put(copy->to->arena, &level->shared, key, added);
    return added->node;
}

/* ---- expansions -------------------------------------------------------------------------------------------------- */

/* Sends the nodes from `first` on through copy_node; afterwards copy_value gives what became of each. */
static void settle(Copy *copy, int first) {
    NodeList *nodes = &copy->level->region->nodes;
    Builder before = copy->b;
    int n = nodes->n - first;
    Node **raw = NEW_N(copy->to->arena, Node *, n);
    for (int i = 0; i < n; i++) raw[i] = nodes->at[first + i];
    nodes->n = first;
    for (int i = 0; i < n; i++) {
        Node **in = NEW_N(copy->to->arena, Node *, raw[i]->n_in);
        for (int k = 0; k < raw[i]->n_in; k++) in[k] = copy_value(copy, raw[i]->in[k]);
        Node *value = copy_node(copy, raw[i], in);
        if (value) map_put(copy->to->arena, &copy->nodes, raw[i], value);
    }
    copy->b.span = before.span;
    copy->b.name = before.name;
    copy->b.path = before.path;
    copy->b.backward = before.backward;
}

static Node *expand_one(Copy *copy, const Node *node, Node *const *in, CopyRule *rule) {
    const OpInfo *info = op_info(node);
    int first = copy->level->region->nodes.n;
    /* Expansions read attributes and dimensions: those of the target. */
    Node *here = NEW(copy->to->arena, Node);
    *here = *node;
    here->in = (Node **)in;
    here->attrs = copy_attrs(copy, node);
    here->shape = copy_shape(copy, &node->shape);
    if (rule) {
        Node *value = rule(copy, here, in);
        if (!value) return NULL;
        settle(copy, first);
        return copy_value(copy, value);
    }
    if (info->expand) {
        SharedNode *place = NULL;
        Node *value = shared_composite(copy, here, in, &place);
        if (value) return value;
        value = info->expand(&copy->b, here, in);
        settle(copy, first);
        value = copy_value(copy, value);
        if (place) place->value = value;
        return value;
    }
    Node **results = NEW_N(copy->to->arena, Node *, info->n_results);
    info->expand_results(&copy->b, here, in, results);
    settle(copy, first);
    for (int i = 0; i < info->n_results; i++) results[i] = copy_value(copy, results[i]);
    map_put(copy->to->arena, &copy->tuples, node, results);
    return NULL;
}

/* ---- repeats ----------------------------------------------------------------------------------------------------- */

static void push_all(Arena *arena, NodeList *to, Node *const *from, int n) {
    for (int i = 0; i < n; i++) vec_push(arena, to, from[i]);
}

/* Parameters and inputs in the order carries, slices, captures, with what rules have added. */
static Node *close_repeat(Copy *copy, const Node *node, const Region *from, Node *const *in) {
    Arena *arena = copy->to->arena;
    CopyLevel *level = copy->level;
    Region *region = level->region;
    int own = from->n_carries + from->n_slices;
    for (int i = 0; i < level->slice_inputs.n; i++)
        level->slice_inputs.at[i] = copy_value(copy, level->slice_inputs.at[i]);
    for (int i = 0; i < level->capture_inputs.n; i++)
        level->capture_inputs.at[i] = copy_value(copy, level->capture_inputs.at[i]);
    NodeList params = {0}, inputs = {0}, results = {0};
    push_all(arena, &params, region->params.at, own);
    push_all(arena, &params, level->slices.at, level->slices.n);
    push_all(arena, &params, region->params.at + own, from->n_captures);
    push_all(arena, &params, level->captures.at, level->captures.n);
    push_all(arena, &inputs, in, own);
    push_all(arena, &inputs, level->slice_inputs.at, level->slice_inputs.n);
    push_all(arena, &inputs, in + own, from->n_captures);
    push_all(arena, &inputs, level->capture_inputs.at, level->capture_inputs.n);
    if (copy->enter) copy->enter(copy, node);
    for (int i = 0; i < from->results.n; i++) {
        Node *result = copy_value(copy, from->results.at[i]);
        vec_push(arena, &results, copy->fit ? copy->fit(copy, from->results.at[i], result) : result);
    }
    for (int i = 0; i < level->stacked.n; i++) vec_push(arena, &results, copy_value(copy, level->stacked.at[i].value));
    region->params.n = 0;
    push_all(arena, &region->params, params.at, params.n);
    copy->level = level->up;
    return region_close(&copy->b, region, inputs.at, from->n_carries, from->n_slices + level->slices.n,
                        from->n_captures + level->captures.n, results.at, from->n_stacked + level->stacked.n);
}

static Node *copy_repeat(Copy *copy, const Node *node, Node *const *in) {
    const Region *from = node->region;
    Dim *each = map_get(&copy->groups, from->dim);
    if (each) from = repeat_in_groups(copy->to->arena, node, each)->region;
    Builder outside = copy->b;
    Region *region = region_open(&copy->b, copy_dim(copy, from->dim), from->descending);
    CopyLevel *level = level_push(copy, region);
    for (int i = 0; i < from->params.n; i++) {
        const Node *param = from->params.at[i];
        copy->b.name = param->name;
        copy->b.path = param->path;
        copy->b.span = param->span;
        copy->b.backward = param->backward;
        Shape shape = copy_shape(copy, &param->shape);
        if (i >= from->n_carries) { /* what stands for the input in the target may have other dimensions */
            int stacked = i < from->n_carries + from->n_slices;
            shape = shape_of(in[i]->shape.dims + stacked, in[i]->shape.n - stacked);
        }
        Node *made = region_add_param(&copy->b, region, param->dtype, shape);
        /* A captured constant is made again inside: nothing to hand over. */
        bool constant = i >= from->n_carries + from->n_slices && in[i]->op == OP_CONST;
        map_put(copy->to->arena, &copy->nodes, param, constant ? share_or_build(copy, in[i], NULL) : made);
    }
    copy_region(copy, from);
    copy->b.span = outside.span;
    copy->b.name = outside.name;
    copy->b.path = outside.path;
    copy->b.backward = outside.backward;
    Node *repeat = close_repeat(copy, node, from, in);
    int first = from->n_carries + from->n_stacked;
    for (int i = 0; i < level->stacked.n; i++)
        copy_stack(copy, level->stacked.at[i].tensor, build_result(&copy->b, repeat, first + i));
    return repeat;
}

/* ---- nodes -------------------------------------------------------------------------------------- */

/* The index of the open region; one that a rule has made stands on no list yet. */
static Node *settle_index(Copy *copy, const Node *node) {
    Region *region = copy->level->region;
    if (region->index == node) vec_push(copy->to->arena, &region->nodes, region->index);
    return build_layer_index(&copy->b);
}

/* Whether the open repeat runs over the layers of a group, which the copy has made; groups are outermost. */
static bool in_group(const Copy *copy) {
    const CopyLevel *level = copy->level;
    return copy->groups.n && level->up && level->up->up && level->up->region->dim->nested == level->region->dim;
}

/* What stands for the node in the target; NULL for a tuple that was expanded. */
static Node *copy_node(Copy *copy, const Node *node, Node *const *in) {
    const OpInfo *info = op_info(node);
    copy->b.span = node->span;
    copy->b.name = node->name;
    copy->b.path = node->path;
    copy->b.backward = node->backward;
    if (node->op == OP_REPEAT) return copy_repeat(copy, node, in);
    if (node->op == OP_LAYER_INDEX) return in_group(copy) ? copy_layer_number(copy) : settle_index(copy, node);
    if (node->op == OP_RESULT) {
        Node **results = map_get(&copy->tuples, node->in[0]);
        if (results) return results[node_attr(node, "index")->integer];
    }
    if (copy->rule) {
        Node *value = expand_one(copy, node, in, copy->rule);
        if (value) return value;
    }
    if (!copy->keeps_composites && (info->expand || info->expand_results)) return expand_one(copy, node, in, NULL);
    Node *folded = fold_node(&copy->b, node, in);
    return folded ? folded : share_or_build(copy, node, in);
}

void copy_region(Copy *copy, const Region *from) {
    for (int i = 0; i < from->nodes.n; i++) {
        const Node *node = from->nodes.at[i];
        Node **in = NEW_N(copy->to->arena, Node *, node->n_in);
        if (copy->enter) copy->enter(copy, node);
        copy->source = node;
        for (int k = 0; k < node->n_in; k++) {
            in[k] = copy_value(copy, node->in[k]);
            /* what a repeat slices or captures comes in as it is */
            bool fits = copy->fit && node->op != OP_RESULT && (!node->region || k < node->region->n_carries);
            if (fits) in[k] = copy->fit(copy, node->in[k], in[k]);
        }
        Node *value = copy_node(copy, node, in);
        if (value) map_put(copy->to->arena, &copy->nodes, node, value);
    }
}

void copy_finish(Copy *copy) {
    for (int i = 0; i < copy->to->outputs.n; i++)
        copy->to->outputs.at[i].value = copy_value(copy, copy->to->outputs.at[i].value);
    graph_drop_dead(copy->to);
}

/* ---- for rules --------------------------------------------------------------------------------------------------- */

static int level_depth(const CopyLevel *level) { return level->up ? 1 + level_depth(level->up) : 0; }

/* The tensor's value in the region of `level`. `sliced`: the first `depth` dimensions are those of the repeats around.
 */
static Node *value_at(Copy *copy, CopyLevel *level, Tensor *tensor, bool sliced) {
    Node *known = map_get(&level->values, tensor);
    if (known) return known;
    Node *value;
    if (!level->up) {
        Builder b = copy->b;
        b.region = level->region;
        value = build_input(&b, tensor);
        bool listed = false;
        for (int i = 0; i < copy->to->tensors.n; i++) listed = listed || copy->to->tensors.at[i] == tensor;
        if (!listed) vec_push(copy->to->arena, &copy->to->tensors, tensor);
    } else {
        Node *outer = value_at(copy, level->up, tensor, sliced);
        Shape shape = outer->shape;
        if (sliced) shape = shape_of(outer->shape.dims + 1, outer->shape.n - 1);
        value = region_add_param(&copy->b, level->region, outer->dtype, shape);
        level->region->params.n--; /* placed by close_repeat */
        vec_push(copy->to->arena, sliced ? &level->slices : &level->captures, value);
        vec_push(copy->to->arena, sliced ? &level->slice_inputs : &level->capture_inputs, outer);
    }
    map_put(copy->to->arena, &level->values, tensor, value);
    return value;
}

Node *copy_capture(Copy *copy, Tensor *tensor) { return value_at(copy, copy->level, tensor, false); }
Node *copy_slice(Copy *copy, Tensor *tensor) { return value_at(copy, copy->level, tensor, true); }

/* In the region of `level`: outer number * size + index. */
static Node *number_at(Copy *copy, CopyLevel *level) {
    if (!level->up) return NULL;
    Builder b = copy->b;
    b.region = level->region;
    Node *index = build_layer_index(&b);
    if (!level->up->up) return index;
    Node *known = map_get(&level->values, level);
    if (known) return known;
    Node *outer = number_at(copy, level->up), *inner = region_add_param(&b, level->region, outer->dtype, outer->shape);
    level->region->params.n--;
    vec_push(copy->to->arena, &level->captures, inner);
    vec_push(copy->to->arena, &level->capture_inputs, outer);
    Node *first = build_binary(&b, OP_MUL, inner, build_const(&b, DT_I32, (double)level->region->dim->size));
    Node *number = build_binary(&b, OP_ADD, first, index);
    map_put(copy->to->arena, &level->values, level, number);
    return number;
}

Node *copy_layer_number(Copy *copy) { return number_at(copy, copy->level); }

Shape copy_layers(const Copy *copy) {
    Shape layers = {.n = level_depth(copy->level)};
    const CopyLevel *level = copy->level;
    for (int i = layers.n - 1; i >= 0; i--, level = level->up) layers.dims[i] = level->region->dim;
    return layers;
}

void copy_stack(Copy *copy, Tensor *tensor, Node *value) {
    if (!copy->level->up)
        graph_add_output(copy->to, tensor, value, false);
    else
        vec_push(copy->to->arena, &copy->level->stacked, (Stacked){tensor, value});
}
