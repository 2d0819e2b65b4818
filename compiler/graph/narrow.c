/* Rules for a part of the model: `in layers 0..3 { ... }` and `in attention { ... }`.
 *
 * In: a model and a plan with such blocks. Out: the same model, in which every dimension that a block names is another
 * dimension inside that part, its twin, and a plan without blocks of dimensions: what a block says of `ffn` is said of
 * the twin, and what stands outside of blocks is said of both. So every later pass sees one list of names for each
 * axis, as if the part had been written with names of its own. Values that cross the border are renamed, which costs
 * nothing where both sides are cut alike. A repeat is split in ranges of layers, one after the other, each with its own
 * part of the weights (Dim.part_of, as a pipeline's stage has). Names, random numbers and checkpoints are those of the
 * model. Storage rules keep their block, and the weights of a part say which blocks hold for them (Tensor.blocks). */
#include "graph/narrow.h"

#include "graph/stages.h"
#include "model/resolve.h"

enum { MAX_BLOCKS = 64 };

typedef struct Block {
    const Stmt *in;
    const char *word; /* "attention", "layers_2.mlp" */
    Dim *over;        /* of a range; NULL: a call */
    int64_t low, high;
    bool met; /* some node is in it */
} Block;

typedef struct Twin {
    Dim *dim, *twin;
    int block;
    bool met;     /* a value of the block has it */
    bool crosses; /* values are renamed to it or from it */
} Twin;

typedef struct Segment {
    int64_t low, high;
    uint64_t blocks;
    Dim *part;
} Segment;

typedef struct Narrow {
    Session *s;
    Arena *arena;
    const Plan *plan;
    const ModelGraph *model;
    Block blocks[MAX_BLOCKS];
    int n_blocks;
    VEC(Twin) twins;
    Map dims_of[1];    /* set of blocks (as a number) -> Map *: dimensions that are twins there */
    Copy copy;         /* its context is this */
    const Node *split; /* the repeat whose ranges are copied */
    uint64_t segment;  /* the blocks that hold for the one that is copied */
    Map dropouts;      /* source node -> its number among all, from 1 */
    Map parts;         /* Tensor -> Tensor *[segments]: of a split repeat's weights */
    Map n_parts;       /* the same -> number of segments */
    bool refused;
} Narrow;

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

bool path_has_part(const char *path, const char *word) {
    size_t n = strlen(word);
    for (const char *at = path; at && *at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == 0 || at[n] == '.')) return true;
    return false;
}

static int block_of(const Narrow *n, const Stmt *in) {
    for (int i = 0; i < n->n_blocks; i++)
        if (n->blocks[i].in == in) return i;
    return -1;
}

static void find_blocks(Narrow *n) {
    for (int i = 0; i < n->plan->rules.n; i++) {
        const Stmt *in = n->plan->rules.at[i].in;
        if (!in || block_of(n, in) >= 0 || n->n_blocks == MAX_BLOCKS) continue;
        Block *block = &n->blocks[n->n_blocks++];
        *block = (Block){.in = in, .word = expr_dotted(n->arena, in->value)};
        if (!in->range) continue;
        block->over = graph_find_dim(n->model->graph, in->value->name);
        block->low = in->range->args.at[0]->integer, block->high = in->range->args.at[1]->integer;
    }
}

static const char *block_text(const Narrow *n, const Block *block) {
    if (!block->in->range) return block->word;
    return arena_printf(n->arena, "%s %lld..%lld", block->word, (long long)block->low, (long long)block->high);
}

static bool is_weight(const Node *node) { return node->op == OP_INPUT && node->tensor->class == CLASS_WEIGHT; }

/* The calls that a node was written in; a weight belongs to the call that declares it. */
static uint64_t call_blocks(Narrow *n, const Node *node) {
    uint64_t mask = 0;
    if (node->op == OP_RESULT) node = node->in[0];
    if (node->op == OP_INPUT && !is_weight(node)) return 0;
    for (int i = 0; i < n->n_blocks; i++) {
        Block *block = &n->blocks[i];
        if (block->in->range) continue;
        const char *path = is_weight(node) ? node->tensor->name : node->path;
        bool here = path_has_part(path, block->word) || (node->name && strcmp(node->name, block->word) == 0);
        if (!here) continue;
        mask |= (uint64_t)1 << i;
        block->met = true;
    }
    return mask;
}

/* ---- twins ------------------------------------------------------------------------------------------------------- */

static Twin *find_twin(Narrow *n, const Dim *dim, int block) {
    for (int i = 0; i < n->twins.n; i++)
        if (n->twins.at[i].dim == dim && n->twins.at[i].block == block) return &n->twins.at[i];
    return NULL;
}

static Dim *twin_of(Narrow *n, Dim *dim, int block) {
    Twin *known = find_twin(n, dim, block);
    if (known) return known->twin;
    Dim *twin = NEW(n->arena, Dim);
    *twin = *dim;
    twin->name = intern(n->s->names, arena_printf(n->arena, "%s.in.%d", dim->name, block));
    twin->product = NULL, twin->factors = NULL, twin->n_factors = 0;
    vec_push(n->arena, &n->twins, (Twin){.dim = dim, .twin = twin, .block = block});
    if (dim->n_factors) {
        Dim **factors = NEW_N(n->arena, Dim *, dim->n_factors);
        for (int i = 0; i < dim->n_factors; i++) factors[i] = twin_of(n, dim->factors[i], block);
        dim_set_factors(n->arena, twin, factors, dim->n_factors);
    }
    for (int i = 0; i < n->model->graph->dims.n; i++) { /* second names of it */
        Dim *second = n->model->graph->dims.at[i];
        if (second->like == dim) twin_of(n, second, block)->like = twin;
    }
    return twin;
}

/* A dimension with all that it is a factor of, or that are factors of it. */
static void add_twins(Narrow *n, Dim *dim, int block) {
    while (dim->product) dim = dim->product;
    twin_of(n, dim, block);
}

static void make_twins(Narrow *n) {
    for (int i = 0; i < n->plan->rules.n; i++) {
        const Rule *rule = &n->plan->rules.at[i];
        Dim *dim = rule->in && rule->what ? graph_find_dim(n->model->graph, rule->what) : NULL;
        if (dim) add_twins(n, dim, block_of(n, rule->in));
    }
}

static void refuse_two(Narrow *n, const Twin *a, const Twin *b) {
    if (n->refused) return;
    n->refused = true;
    Diag *d = diag_error(n->s, "P0472", n->blocks[b->block].in->value->span,
                         "`%s` is divided by two blocks that overlap", a->dim->name);
    diag_note(d, n->blocks[a->block].in->value->span, "the other one");
    diag_help(d, "join what they say of `%s` in blocks for parts without a common layer or call", a->dim->name);
}

/* The dimensions of values where these blocks hold. */
static Map *dims_of(Narrow *n, uint64_t mask) {
    const void *key = (const void *)(uintptr_t)(mask + 1);
    Map *dims = map_get(n->dims_of, key);
    if (dims) return dims;
    dims = NEW(n->arena, Map);
    map_put(n->arena, n->dims_of, key, dims);
    for (int i = 0; i < n->twins.n; i++) {
        const Twin *twin = &n->twins.at[i];
        if (!(mask >> twin->block & 1)) continue;
        if (map_get(dims, twin->dim))
            for (int k = 0; k < i; k++)
                if (n->twins.at[k].dim == twin->dim && mask >> n->twins.at[k].block & 1)
                    refuse_two(n, &n->twins.at[k], twin);
        map_put(n->arena, dims, twin->dim, twin->twin);
    }
    return dims;
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

static void meet(Narrow *n, const Shape *shape, uint64_t mask) {
    for (int i = 0; i < n->twins.n; i++) {
        Twin *twin = &n->twins.at[i];
        if (mask >> twin->block & 1 && shape_find(shape, twin->dim) >= 0) twin->met = true;
    }
}

/* Called before each node of the source is copied: the dimensions that hold for it. */
static void enter(Copy *copy, const Node *node) {
    Narrow *n = copy->context;
    const Node *owner = node->op == OP_RESULT ? node->in[0] : node;
    uint64_t mask = call_blocks(n, node) | (n->split && owner != n->split ? n->segment : 0);
    copy->dims = *dims_of(n, mask);
    meet(n, &node->shape, mask);
    for (int i = 0; i < node->n_in; i++) meet(n, &node->in[i]->shape, mask);
}

/* The value with the dimensions that its reader expects. */
static Node *fit(Copy *copy, const Node *source, Node *value) {
    Narrow *n = copy->context;
    Shape expected = copy_shape(copy, &source->shape);
    if (source->n_outs || expected.n != value->shape.n) return value;
    for (int i = 0; i < expected.n; i++) {
        Dim *from = value->shape.dims[i], *to = expected.dims[i];
        if (from == to) continue;
        for (int k = 0; k < n->twins.n; k++)
            if (n->twins.at[k].twin == from || n->twins.at[k].twin == to) n->twins.at[k].crosses = true;
        Span span = copy->b.span;
        copy->b.span = source->span;
        value = build_rename(&copy->b, value, from, to);
        copy->b.span = span;
    }
    return value;
}

static void number_dropouts(Narrow *n, const Region *region) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->region) number_dropouts(n, node->region);
        if (node->op == OP_DROPOUT)
            map_put(n->arena, &n->dropouts, node->attrs, (void *)(uintptr_t)(n->dropouts.n + 1));
    }
}

/* Each dropout keeps the random stream that it has in the model, however often it is copied. */
static Node *keep_streams(Copy *copy, const Node *node, Node *const *in) {
    Narrow *n = copy->context;
    if (node->op != OP_DROPOUT || node->n_in != 1) return NULL;
    int at = op_attr_index(op_info(node), "key");
    uint32_t number = (uint32_t)(uintptr_t)map_get(&n->dropouts, copy->source->attrs);
    if (node->attrs[at].integer || !number) return NULL;
    AttrValue attrs[6];
    memcpy(attrs, node->attrs, sizeof *attrs * (size_t)op_n_attrs(op_info(node)));
    attrs[at].integer = dropout_key(number);
    return build_op(&copy->b, OP_DROPOUT, in, 1, attrs);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* A part's own tensor: of some layers (or NULL: all), and with twins. */
static Tensor *part_of_weight(Narrow *n, const Tensor *weight, uint64_t mask, const Segment *segment, int number) {
    Tensor *own = NEW(n->arena, Tensor);
    Map *dims = dims_of(n, mask);
    *own = *weight;
    own->blocks = mask;
    for (int i = 0; i < own->shape.n; i++) {
        Dim *twin = map_get(dims, own->shape.dims[i]);
        if (segment && i == 0)
            own->shape.dims[i] = segment->part;
        else if (twin)
            own->shape.dims[i] = twin;
    }
    if (number) own->name = intern(n->s->names, arena_printf(n->arena, "%s#%d", weight->name, number));
    return own;
}

static void own_weights(Narrow *n) {
    const Region *top = &n->model->graph->top;
    for (int i = 0; i < top->nodes.n; i++) {
        const Node *node = top->nodes.at[i];
        uint64_t mask = is_weight(node) ? call_blocks(n, node) : 0;
        if (!mask || map_get(&n->copy.tensors, node->tensor)) continue;
        meet(n, &node->tensor->shape, mask);
        map_put(n->arena, &n->copy.tensors, node->tensor, part_of_weight(n, node->tensor, mask, NULL, 0));
    }
}

/* ---- ranges of layers -------------------------------------------------------------------------------------------- */

/* The ranges that the blocks cut `dim` in; at most one: nothing to split. */
static int segments_of(const Narrow *n, Dim *dim, Segment *segments) {
    bool *starts = NEW_N(n->arena, bool, dim->size + 1);
    starts[0] = true;
    for (int i = 0; i < n->n_blocks; i++)
        if (n->blocks[i].over == dim) starts[n->blocks[i].low] = starts[n->blocks[i].high + 1] = true;
    int count = 0;
    for (int64_t at = 0; at < dim->size; at++) {
        if (starts[at]) segments[count++] = (Segment){.low = at};
        segments[count - 1].high = at;
    }
    for (int k = 0; k < count; k++) {
        Segment *segment = &segments[k];
        for (int i = 0; i < n->n_blocks; i++)
            if (n->blocks[i].over == dim && n->blocks[i].low <= segment->low && segment->high <= n->blocks[i].high)
                segment->blocks |= (uint64_t)1 << i;
    }
    return count;
}

static bool has_range(const Narrow *n, const Dim *dim) {
    for (int i = 0; i < n->n_blocks; i++)
        if (n->blocks[i].over == dim) return true;
    return false;
}

/* What stands for a value of the target in the source that is copied. */
static Node *stand_in(Narrow *n, const Node *like, Node *value) {
    Node *node = NEW(n->arena, Node);
    *node = *like;
    node->n_outs = 0, node->region = NULL;
    map_put(n->arena, &n->copy.nodes, node, value);
    return node;
}

static Node *part_input(Narrow *n, const Node *input, const Segment *segment, int number, int count) {
    Tensor **parts = map_get(&n->parts, input->tensor);
    if (!parts) {
        parts = NEW_N(n->arena, Tensor *, count);
        map_put(n->arena, &n->parts, input->tensor, parts);
        map_put(n->arena, &n->n_parts, input->tensor, (void *)(intptr_t)count);
    }
    uint64_t mask = call_blocks(n, input) | segment->blocks;
    meet(n, &input->tensor->shape, mask);
    if (!parts[number]) {
        parts[number] = part_of_weight(n, input->tensor, mask, segment, number);
        vec_push(n->arena, &n->copy.to->tensors, parts[number]);
    }
    n->copy.b.span = input->span, n->copy.b.name = input->name, n->copy.b.path = input->path;
    return build_input(&n->copy.b, parts[number]);
}

/* The repeat as one repeat for each range. Sums and means over what it stacks are joined. */
static void split_repeat(Narrow *n, const Node *repeat) {
    const Region *region = repeat->region;
    Segment *segments = NEW_N(n->arena, Segment, 2 * n->n_blocks + 1);
    int count = segments_of(n, region->dim, segments), n_outs = region->results.n;
    Node **last = NEW_N(n->arena, Node *, n_outs + 1), **sums = NEW_N(n->arena, Node *, n_outs + 1);
    for (int k = 0; k < count; k++) {
        Segment *segment = &segments[k];
        Dim *part = segment->part = NEW(n->arena, Dim);
        *part = *region->dim;
        part->name = intern(n->s->names, arena_printf(n->arena, "%s.part.%d", region->dim->name, k));
        part->part_of = region->dim, part->first = segment->low, part->size = segment->high - segment->low + 1;
        vec_push(n->arena, &n->copy.to->dims, part);
        Node *some = NEW(n->arena, Node);
        *some = *repeat;
        some->region = NEW(n->arena, Region);
        *some->region = *region;
        some->region->dim = part;
        some->in = NEW_N(n->arena, Node *, repeat->n_in + 1);
        for (int i = 0; i < repeat->n_in; i++) {
            some->in[i] = repeat->in[i];
            if (i < region->n_carries && k) some->in[i] = stand_in(n, region->params.at[i], last[i]);
            if (i >= region->n_carries && i < region->n_carries + region->n_slices)
                some->in[i] = stand_in(n, repeat->in[i], part_input(n, repeat->in[i], segment, k, count));
        }
        n->split = some, n->segment = segment->blocks;
        copy_region(&n->copy, &(Region){.nodes = {.at = &some, .n = 1}});
        n->split = NULL;
        Node *made = copy_value(&n->copy, some);
        for (int i = 0; i < n_outs; i++) {
            last[i] = build_result(&n->copy.b, made, i);
            if (i < region->n_carries) continue;
            Node *sum = build_reduce(&n->copy.b, OP_SUM, last[i], &(Shape){.dims = {part}, .n = 1});
            sums[i] = k ? build_binary(&n->copy.b, OP_ADD, sums[i], sum) : sum;
        }
        for (int i = 0; i < n->n_blocks; i++) n->blocks[i].met |= segment->blocks >> i & 1;
    }
    const Region *top = &n->model->graph->top;
    for (int i = 0; i < top->nodes.n; i++) {
        const Node *result = top->nodes.at[i];
        if (result->op != OP_RESULT || result->in[0] != repeat) continue;
        int64_t index = node_attr(result, "index")->integer;
        if (index < region->n_carries) map_put(n->arena, &n->copy.nodes, result, last[index]);
        for (int k = 0; index >= region->n_carries && k < top->nodes.n; k++) {
            const Node *user = top->nodes.at[k];
            if ((user->op != OP_SUM && user->op != OP_MEAN) || user->in[0] != result) continue;
            Node *sum = sums[index];
            if (user->op == OP_MEAN) sum = build_scale(&n->copy.b, sum, 1 / (double)region->dim->size);
            map_put(n->arena, &n->copy.nodes, user, sum);
        }
    }
}

static void copy_top(Narrow *n) {
    const Region *top = &n->model->graph->top;
    for (int i = 0; i < top->nodes.n; i++) {
        Node *node = top->nodes.at[i];
        if (map_get(&n->copy.nodes, node)) continue;
        if (node->op == OP_REPEAT && has_range(n, node->region->dim)) {
            split_repeat(n, node);
            continue;
        }
        if (node->op == OP_RESULT && node->in[0]->op == OP_REPEAT && has_range(n, node->in[0]->region->dim)) continue;
        bool sliced = is_weight(node) && node->tensor->shape.n && has_range(n, node->tensor->shape.dims[0]);
        if (!sliced) copy_region(&n->copy, &(Region){.nodes = {.at = &node, .n = 1}});
    }
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static void refuse_idle(Narrow *n, const Rule *rule, const char *what) {
    const Block *block = &n->blocks[block_of(n, rule->in)];
    n->refused = true;
    Diag *d = diag_error(n->s, "P0471", rule->span, "rule `%s` matches nothing in `%s`",
                         rule_text(n->arena, n->plan, rule), block_text(n, block));
    diag_label(d, "%s", what);
    VEC(Name) names = {0};
    const Region *top = &n->model->graph->top;
    for (int i = 0; i < top->nodes.n; i++) {
        const Node *node = top->nodes.at[i];
        bool inside = is_weight(node) && (block->over ? shape_find(&node->tensor->shape, block->over) == 0
                                                      : path_has_part(node->tensor->name, block->word));
        for (int k = 0; inside && k < node->tensor->shape.n; k++) {
            Name name = node->tensor->shape.dims[k]->name;
            bool known = node->tensor->shape.dims[k]->is_repeated;
            for (int j = 0; j < names.n; j++) known |= names.at[j] == name;
            if (!known) vec_push(n->arena, &names, name);
        }
    }
    Name near = rule->what ? nearest_name(rule->what, names.at, names.n) : NULL;
    if (near)
        diag_help(d, "did you mean `%s`?", near);
    else if (names.n)
        diag_help(d, "its weights have %s", list_text(n->arena, names.at, names.n, " and "));
    else
        diag_help(d, "state the rule outside of the block, or remove it");
}

static void refuse_border(Narrow *n, const Rule *rule) {
    n->refused = true;
    Diag *d = diag_error(n->s, "P0473", rule->span, "`%s` leaves the part that the block is for", rule->what);
    diag_label(d, "values with it are used on both sides, so it has one size");
    diag_help(d, "state `padded`, `uneven` or `repeated` outside of blocks");
}

static void check_rules(Narrow *n) {
    for (int i = 0; i < n->plan->rules.n && !n->refused; i++) {
        const Rule *rule = &n->plan->rules.at[i];
        if (!rule->in) continue;
        int block = block_of(n, rule->in);
        if (!rule->what) {
            bool any = false;
            for (int k = 0; k < n->copy.to->tensors.n; k++) any |= n->copy.to->tensors.at[k]->blocks >> block & 1;
            if (!any) refuse_idle(n, rule, "no weight is declared there");
            continue;
        }
        const Twin *twin = find_twin(n, graph_find_dim(n->model->graph, rule->what), block);
        bool met = false; /* itself, or its leftmost factor */
        for (const Dim *dim = twin->dim; dim; dim = dim->n_factors ? dim->factors[0] : NULL)
            met |= find_twin(n, dim, block)->met;
        if (!met)
            refuse_idle(n, rule, "no value there has this dimension");
        else if (twin->crosses && rule->how != STORE_PLAIN)
            refuse_border(n, rule);
    }
}

/* What a block says is said of its twins; what stands outside is said of the dimension and of all its twins. */
static const Plan *plain_plan(Narrow *n) {
    Plan *plan = NEW(n->arena, Plan);
    *plan = *n->plan;
    plan->rules.at = NULL, plan->rules.n = plan->rules.cap = 0;
    for (int i = 0; i < n->plan->rules.n; i++) {
        Rule rule = n->plan->rules.at[i];
        const Dim *dim = rule.what ? graph_find_dim(n->model->graph, rule.what) : NULL;
        rule.block = rule.in ? block_of(n, rule.in) + 1 : 0;
        if (!rule.in || !dim) vec_push(n->arena, &plan->rules, rule);
        for (int k = 0; dim && k < n->twins.n; k++) {
            const Twin *twin = &n->twins.at[k];
            if (twin->dim != dim || (rule.in && twin->block != rule.block - 1)) continue;
            Rule own = rule;
            own.what = twin->twin->name, own.in = NULL, own.block = 0;
            vec_push(n->arena, &plan->rules, own);
        }
    }
    return plan;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void split_inits(Narrow *n, ModelGraph *made) {
    made->inits.at = NULL, made->inits.n = made->inits.cap = 0;
    for (int i = 0; i < n->model->inits.n; i++) {
        Init init = n->model->inits.at[i];
        Tensor **parts = map_get(&n->parts, init.weight), *weight = init.weight;
        int count = parts ? (int)(intptr_t)map_get(&n->n_parts, weight) : 1;
        for (int k = 0; k < count; k++) {
            init.weight = parts ? parts[k] : copy_tensor(&n->copy, weight);
            vec_push(n->arena, &made->inits, init);
        }
    }
}

static ModelGraph *narrowed_model(Narrow *n) {
    ModelGraph *made = NEW(n->arena, ModelGraph);
    *made = *n->model;
    made->graph = graph_new(n->s, n->arena, n->model->graph->name);
    made->graph->micro = n->model->graph->micro;
    Map tensors = n->copy.tensors;
    copy_begin(&n->copy, made->graph);
    n->copy.tensors = tensors;
    n->copy.keeps_composites = true;
    n->copy.rule = keep_streams, n->copy.context = n;
    n->copy.enter = enter, n->copy.fit = fit;
    for (int i = 0; i < n->model->graph->dims.n; i++)
        vec_push(n->arena, &made->graph->dims, n->model->graph->dims.at[i]);
    for (int i = 0; i < n->twins.n; i++) vec_push(n->arena, &made->graph->dims, n->twins.at[i].twin);
    number_dropouts(n, &n->model->graph->top);
    own_weights(n);
    copy_top(n);
    for (int i = 0; i < made->graph->dims.n; i++) made->graph->dims.at[i]->id = i;
    n->copy.dims = (Map){0};
    split_inits(n, made);
    model_copy_results(made, n->model, &n->copy);
    return made;
}

bool plan_is_narrowed(const Plan *plan) {
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].in) return true;
    return false;
}

const Plan *plan_narrowed(Session *s, const Plan *plan, ModelGraph **model) {
    if (!plan_is_narrowed(plan)) return plan;
    Narrow n = {.s = s, .arena = s->arena, .plan = plan, .model = *model};
    find_blocks(&n);
    make_twins(&n);
    ModelGraph *made = narrowed_model(&n);
    for (int i = 0; i < n.n_blocks && !n.refused; i++) {
        if (n.blocks[i].met) continue;
        n.refused = true;
        Diag *d = diag_error(s, "P0419", n.blocks[i].in->value->span, "`in %s` narrows to nothing", n.blocks[i].word);
        diag_label(d, "no layer or call of the model has this path");
        diag_help(d, "name a call by its path, as weights are named: `attention`, `layers_2.mlp`");
    }
    if (!n.refused) check_rules(&n);
    if (n.refused) return NULL;
    *model = made;
    return plain_plan(&n);
}

/* ---- what has no meaning, or is not built ------------------------------------------------------------------------ */

static bool is_outermost(const Region *top, Name dim) {
    for (int i = 0; i < top->nodes.n; i++)
        if (top->nodes.at[i]->region && top->nodes.at[i]->region->dim->name == dim) return true;
    return false;
}

const char *narrowing_unbuilt(Session *s, const ModelGraph *model, const Plan *plan, Span *where) {
    StageCut cut = {0};
    bool staged = plan_stage_cut(s, plan, model, &cut);
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (!rule->in || rule->block) continue; /* or it is resolved already */
        *where = rule->span;
        if (rule->in->range && rule->in->value->kind == EXPR_NAME &&
            !is_outermost(&model->graph->top, rule->in->value->name))
            return "a rule for some rounds of a repeat inside another";
        if (staged && rule->in->range && rule->in->value->name == cut.dim)
            return "a rule for some layers of a pipeline";
        if (rule->what && rule->using_name) return "a way of attention for a part of the model";
    }
    return NULL;
}
