/* Rule 4's `repeated`: a factor with fewer elements than its axis has ranks, as key and value heads are.
 *
 * In: a model with `head = (kv_head, group)`, and a plan that cuts `head` in more parts than `kv_head` has. Out: the
 * same model with `head = (copies, rest)`, where `copies` stands for each element of `kv_head` several times, side by
 * side. Weights keep `kv_head`; wherever one is used, a product with a matrix of zeros and ones makes the copies, so
 * that each rank makes and uses those of its own heads, and the product's gradient adds up what the copies get. Both
 * are exact. */
#include "graph/step.h"

typedef struct Repeating {
    Dim *dim, *copies;
    int64_t times;
} Repeating;

/* ---- what can be repeated ---------------------------------------------------------------------------------------- */

static const Rule *repeated_rule(const Plan *plan) {
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].how == STORE_REPEATED && plan->rules.at[i].what && !plan->rules.at[i].in)
            return &plan->rules.at[i];
    return NULL;
}

static int64_t parts_of(const Plan *plan, Name what) {
    int64_t parts = 1;
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].what == what && plan->rules.at[i].how != STORE_REPEATED)
            parts *= plan->mesh.axes[plan->rules.at[i].axis].size;
    return parts;
}

/* Whether some operator joins the elements of the dimension, so that copies would count several times. */
static bool is_joined(const Region *region, const Dim *dim) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->region && (node->region->dim == dim || is_joined(node->region, dim))) return true;
        if (node->region || !op_info(node)->dims) continue;
        if (op_info(node)->lower == LOWER_VIEW &&
            (shape_find(&node->shape, dim) < 0) != (shape_find(&node->in[0]->shape, dim) < 0))
            return true;
        Iteration space = op_iteration(node);
        for (int k = 0; k < space.n; k++)
            if (space.letters[k].dim == dim && space.letters[k].kind != LETTER_PARALLEL) return true;
    }
    return false;
}

static bool occurs(const Region *region, const Dim *dim) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (shape_find(&node->shape, dim) >= 0 || (node->region && occurs(node->region, dim))) return true;
    }
    return false;
}

const char *repeating_unbuilt(const ModelGraph *model, const Plan *plan, Span *where) {
    const Rule *rule = repeated_rule(plan);
    const Dim *dim = rule ? graph_find_dim(model->graph, rule->what) : NULL;
    if (!dim) return NULL;
    *where = rule->span;
    int rules = 0;
    for (int i = 0; i < plan->rules.n; i++) rules += plan->rules.at[i].how == STORE_REPEATED;
    if (rules > 1) return "repeating more than one dimension";
    const Dim *whole = dim->product;
    if (!whole || whole->factors[0] != dim || whole->n_factors != 2)
        return "repeating what is no leftmost factor of two";
    int64_t parts = parts_of(plan, whole->name);
    if (parts % dim->size != 0 || whole->size % parts != 0)
        return "repeating a factor whose product is not cut in a multiple of its parts";
    if (is_joined(&model->graph->top, dim)) return "repeating a dimension that an operator joins";
    return occurs(&model->graph->top, whole->factors[1]) ? "repeating a factor whose other factor is in use" : NULL;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* [dim, copies]: 1 where the copy is that element's. */
static Node *which_copies(Builder *b, const Repeating *r) {
    Shape both = shape_of((Dim *[]){r->dim, r->copies}, 2);
    Node *first = build_binary(b, OP_MUL, build_ramp(b, r->dim), build_const(b, DT_I32, (double)r->times));
    Node *place =
        build_binary(b, OP_SUB, build_broadcast(b, build_ramp(b, r->copies), &both), build_broadcast(b, first, &both));
    Node *before = build_binary(b, OP_LT, place, build_const(b, DT_I32, 0));
    Node *within = build_binary(b, OP_LT, place, build_const(b, DT_I32, (double)r->times));
    Node *zero = build_broadcast(b, build_const(b, DT_F32, 0), &both),
         *one = build_broadcast(b, build_const(b, DT_F32, 1), &both);
    return build_select(b, before, zero, build_select(b, within, one, zero));
}

/* The weight with copies in the place of the dimension, so that its elements lie as before. */
static Node *copies_of(Builder *b, const Repeating *r, Node *weight) {
    const OpInfo *info = op_table[OP_DOT];
    AttrValue attrs[6] = {{0}};
    Shape order = weight->shape;
    for (int i = 0; i < order.n; i++)
        if (order.dims[i] == r->dim) order.dims[i] = r->copies;
    attrs[op_attr_index(info, "over")].dims = shape_of((Dim *const[]){r->dim}, 1);
    attrs[op_attr_index(info, "order")].dims = order;
    return build_op(b, OP_DOT, (Node *[]){weight, which_copies(b, r)}, 2, attrs);
}

/* A weight with the dimension gives its copies to whatever reads it. */
static Node *rule_repeating(Copy *copy, const Node *node, Node *const *in) {
    const Repeating *r = copy->context;
    if (node->op == OP_DOT && shape_find(&node_attr(node, "over")->dims, r->dim) >= 0) return NULL; /* made below */
    Node *operands[16];
    bool any = false;
    for (int i = 0; i < node->n_in && i < 16; i++) {
        bool weight = (in[i]->op == OP_INPUT || in[i]->op == OP_PARAM) && shape_find(&in[i]->shape, r->dim) >= 0;
        operands[i] = weight ? copies_of(&copy->b, r, in[i]) : in[i];
        any |= weight;
    }
    return any ? build_op(&copy->b, node->op, operands, node->n_in, node->attrs) : NULL;
}

static Dim *new_dim(Arena *arena, const Dim *like, Name name, int64_t size) {
    Dim *dim = NEW(arena, Dim);
    *dim = *like;
    dim->name = name;
    dim->size = size;
    dim->product = NULL;
    dim->factors = NULL, dim->n_factors = 0;
    return dim;
}

const ModelGraph *model_repeated(Session *s, const Plan *plan, const ModelGraph *model) {
    const Rule *rule = plan ? repeated_rule(plan) : NULL;
    Span unused;
    Dim *dim = rule ? graph_find_dim(model->graph, rule->what) : NULL;
    if (!dim || repeating_unbuilt(model, plan, &unused)) return model;
    Dim *whole = dim->product, *group = whole->factors[1];
    int64_t times = parts_of(plan, whole->name) / dim->size;
    if (times == 1) return model;
    Repeating r = {.dim = dim, .times = times};
    r.copies =
        new_dim(s->arena, dim, intern(s->names, arena_printf(s->arena, "%s.copies", dim->name)), dim->size * times);
    Dim *rest = new_dim(s->arena, group, group->name, group->size / times),
        *head = new_dim(s->arena, whole, whole->name, whole->size);
    dim_set_factors(s->arena, head, (Dim *[]){r.copies, rest}, 2);
    Dim *plain = new_dim(s->arena, dim, dim->name, dim->size); /* no factor of anything any more */
    r.dim = plain;
    Copy copy = {.context = &r, .rule = rule_repeating, .keeps_composites = true};
    map_put(s->arena, &copy.dims, dim, r.copies);
    map_put(s->arena, &copy.dims, whole, head);
    map_put(s->arena, &copy.dims, group, rest);
    for (int i = 0; i < model->graph->tensors.n; i++) { /* stored without copies */
        Tensor *tensor = model->graph->tensors.at[i], *own = NEW(s->arena, Tensor);
        if (tensor->class != CLASS_WEIGHT || shape_find(&tensor->shape, dim) < 0) continue;
        *own = *tensor;
        for (int k = 0; k < own->shape.n; k++)
            own->shape.dims[k] = own->shape.dims[k] == dim ? plain : copy_dim(&copy, own->shape.dims[k]);
        map_put(s->arena, &copy.tensors, tensor, own);
    }
    return model_rewritten(s, model, &copy, (Dim *const[]){plain}, 1);
}
