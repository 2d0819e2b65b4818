/* Rule 4's `padded` and `uneven`: a dimension that its axes do not divide is made longer.
 *
 * `padded` puts the padding behind the end. `uneven(3, 1)` gives each rank room for the largest part, so that the
 * padding stands behind each part: then places are not logical indices (Dim.parts), and ids become places where they
 * are looked up.
 *
 * In: a model and the dimensions that a plan pads. Out: the same model over longer dimensions, in which what stands
 * behind the end never counts: it is masked wherever an operator joins the elements of the dimension (0 in sums, minus
 * infinity in maxima, softmax and losses). So nothing comes from there in the forward pass, no gradient goes there, and
 * weights and moments, which begin there at zero, stay zero. Random numbers follow logical indices, so all else is the
 * same as without padding. */
#include "graph/step.h"

static const char place_name[] = "place.of";

/* Far below any logit, and harmless where infinity times zero would not be. */
static const double minus_infinity = -1e30;

/* ---- what can be padded ------------------------------------------------------------------------------------------ */

static int64_t parts_of(const Plan *plan, Name what) {
    int64_t parts = 1;
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].what == what) parts *= plan->mesh.axes[plan->rules.at[i].axis].size;
    return parts;
}

static int64_t padded_size(const Plan *plan, const Dim *dim) {
    int64_t parts = parts_of(plan, dim->name) * (dim->n_factors ? dim->size / dim->factors[0]->size : 1);
    return (dim->size + parts - 1) / parts * parts;
}

static const Rule *uneven_rule(const Plan *plan, const Dim *dim) {
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        if (rule->how == STORE_UNEVEN && !rule->in && rule->what == dim->name && !dim->is_repeated) return rule;
    }
    return NULL;
}

static bool is_padded_by(const Plan *plan, const Dim *dim) {
    if (uneven_rule(plan, dim)) return true;
    for (int i = 0; i < plan->rules.n; i++)
        if (plan->rules.at[i].how == STORE_PADDED && plan->rules.at[i].what == dim->name)
            return padded_size(plan, dim) != dim->size;
    return false;
}

static bool softens(const Node *node) {
    return node->op == OP_SOFTMAX || node->op == OP_LOG_SOFTMAX || node->op == OP_CROSS_ENTROPY;
}

static bool has_relations(const Graph *graph, const Dim *dim) {
    if (dim->product || dim->like || dim->is_repeated || dim->is_batch) return true;
    if (dim->n_factors && dim->factors[0]->n_factors) return true;
    for (int i = 0; i < graph->dims.n; i++)
        if (graph->dims.at[i]->like == dim) return true;
    return false;
}

/* The operator that wants the dimension whole, has no meaning for padding and so cannot have it; or NULL. */
static const char *needs_all(const Region *region, const Dim *dim) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->region) {
            const char *inner = node->region->dim == dim ? "repeat" : needs_all(node->region, dim);
            if (inner) return inner;
            continue;
        }
        if (!op_info(node)->dims || softens(node)) continue;
        Iteration space = op_iteration(node);
        for (int k = 0; k < space.n; k++)
            if (space.letters[k].dim == dim && space.letters[k].kind == LETTER_WHOLE) return op_info(node)->name;
    }
    return NULL;
}

static bool in_data(const Graph *graph, const Dim *dim) {
    for (int i = 0; i < graph->tensors.n; i++)
        if (graph->tensors.at[i]->class == CLASS_DATA && shape_find(&graph->tensors.at[i]->shape, dim) >= 0)
            return true;
    return false;
}

static bool has_vector(const Region *region, const Dim *dim) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if ((node->op == OP_VECTOR || node->op == OP_FLIP) && shape_find(&node->shape, dim) >= 0) return true;
        if (node->region && has_vector(node->region, dim)) return true;
    }
    return false;
}

/* Elements that a factor's index has for each of the leftmost factor's. */
static int64_t other_factors(const Dim *dim) { return dim->n_factors ? dim->size / dim->factors[0]->size : 1; }

static const char *uneven_unbuilt(const Graph *graph, const Plan *plan, const Rule *rule, const Dim *dim) {
    if (parts_of(plan, dim->name) != plan->mesh.axes[rule->axis].size) return "an uneven dimension on several axes";
    if (has_vector(&graph->top, dim)) return "an uneven dimension of constants";
    for (int i = 0; i < rule->uneven.n; i++)
        if (rule->uneven.at[i] % other_factors(dim)) return "uneven parts that cut a factor";
    return NULL;
}

const char *padding_unbuilt(Arena *arena, const ModelGraph *model, const Plan *plan, Span *where) {
    for (int i = 0; i < plan->rules.n; i++) {
        const Rule *rule = &plan->rules.at[i];
        bool longer = rule->what && !rule->in && (rule->how == STORE_PADDED || rule->how == STORE_UNEVEN);
        const Dim *dim = longer ? graph_find_dim(model->graph, rule->what) : NULL;
        if (!dim || !is_padded_by(plan, dim)) continue;
        const char *op = needs_all(&model->graph->top, dim);
        *where = rule->span;
        if (op) return arena_printf(arena, "padding a dimension that `%s` runs over", op);
        if (in_data(model->graph, dim)) return "padding a dimension of the data";
        const char *why = rule->how == STORE_UNEVEN ? uneven_unbuilt(model->graph, plan, rule, dim) : NULL;
        if (why) return why;
        if (has_relations(model->graph, dim)) return "padding a dimension that has factors or other names";
    }
    return NULL;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* [dim]: whether the index is one of the model's. */
static Node *inside(Builder *b, Dim *dim) {
    return build_binary(b, OP_LT, build_ramp(b, dim), build_const(b, DT_I32, (double)dim->unpadded));
}

static bool is_mask(const Node *node, const Dim *dim) {
    if (node->op != OP_SELECT) return false;
    const Node *condition = node->in[0]->op == OP_BROADCAST ? node->in[0]->in[0] : node->in[0];
    if (condition->op != OP_LT || condition->in[0]->op != OP_RAMP) return false;
    return condition->shape.n == 1 && condition->shape.dims[0] == dim;
}

Node *build_masked(Builder *b, Node *x, Dim *dim, double outside) {
    Node *other = build_broadcast(b, build_const(b, x->dtype, outside), &x->shape);
    return build_select(b, build_broadcast(b, inside(b, dim), &x->shape), x, other);
}

/* What the operator must see behind the end of a dimension that it joins; false when it does not join it. */
static bool outside_of(const Node *node, const Letter *letter, double *value) {
    if (!letter->dim->unpadded || node->op == OP_LOOKUP) return false; /* no index is behind the end */
    *value = 0;
    if (letter->kind == LETTER_SUM) return true;
    *value = letter->kind == LETTER_MIN ? -minus_infinity : minus_infinity;
    return letter->kind == LETTER_MAX || letter->kind == LETTER_MIN || (letter->kind == LETTER_WHOLE && softens(node));
}

/* Where the element with this id stands. Its name tells that it has been made. */
static Node *place_of(Builder *b, Node *id, const Dim *dim) {
    int64_t room = dim->size / dim->n_parts, before = 0;
    Node *place = id;
    for (int i = 0; i + 1 < dim->n_parts; i++) {
        before += dim->parts[i];
        Node *first = build_binary(b, OP_LT, id, build_const(b, DT_I32, (double)before));
        Node *none = build_broadcast(b, build_const(b, DT_I32, 0), &id->shape),
             *more = build_broadcast(b, build_const(b, DT_I32, (double)(room - dim->parts[i])), &id->shape);
        b->name = intern(b->graph->session->names, place_name);
        place = build_binary(b, OP_ADD, place, build_select(b, first, none, more));
        b->name = NULL;
    }
    return place;
}

static Node *look_up_places(Copy *copy, const Node *node, Node *const *in) {
    const Shape *over = &node_attr(node, "over")->dims;
    const Dim *dim = over->n ? over->dims[0] : in[0]->shape.dims[0];
    if (dim->n_parts < 2 || (in[1]->name && strcmp(in[1]->name, place_name) == 0)) return NULL;
    Name name = copy->b.name;
    Node *operands[2] = {in[0], place_of(&copy->b, in[1], dim)};
    copy->b.name = name;
    return build_op(&copy->b, OP_LOOKUP, operands, 2, node->attrs);
}

static Node *rule_padding(Copy *copy, const Node *node, Node *const *in) {
    if (node->op == OP_LOOKUP) return look_up_places(copy, node, in);
    if (node->n_outs || !node->n_in || !op_info(node)->dims || op_info(node)->lower == LOWER_VIEW) return NULL;
    Node here = *node;
    here.in = (Node **)in;
    Iteration space = op_iteration(&here);
    for (int i = 0; i < space.n; i++) {
        double outside;
        Dim *dim = space.letters[i].dim;
        if (!outside_of(&here, &space.letters[i], &outside) || shape_find(&in[0]->shape, dim) < 0) continue;
        if (is_mask(in[0], dim)) continue;
        Node *operands[8];
        CHECK(node->n_in <= 8);
        for (int k = 0; k < node->n_in; k++) operands[k] = in[k];
        operands[0] = build_masked(&copy->b, in[0], dim, outside);
        return build_op(&copy->b, node->op, operands, node->n_in, node->attrs);
    }
    return NULL;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void cut_unevenly(Arena *arena, Dim *longer, const Rule *rule, int64_t others) {
    int64_t *parts = NEW_N(arena, int64_t, rule->uneven.n), most = 1;
    for (int i = 0; i < rule->uneven.n; i++) {
        parts[i] = rule->uneven.at[i] / others;
        if (parts[i] > most) most = parts[i];
    }
    longer->parts = parts, longer->n_parts = rule->uneven.n;
    longer->size = most * rule->uneven.n;
}

static Dim *longer_dim(Arena *arena, const Plan *plan, const Dim *whole, Dim *dim, Map *dims) {
    Dim *longer = NEW(arena, Dim);
    const Rule *uneven = uneven_rule(plan, whole);
    int64_t others = whole->size / dim->size; /* of its leftmost factor: the others' size */
    *longer = *dim;
    longer->unpadded = dim->size;
    longer->size = padded_size(plan, whole) / others;
    if (uneven) cut_unevenly(arena, longer, uneven, others);
    map_put(arena, dims, dim, longer);
    return longer;
}

static bool longer_dims(Arena *arena, const Plan *plan, const ModelGraph *model, Map *dims) {
    for (int i = 0; i < model->graph->dims.n; i++) {
        Dim *dim = model->graph->dims.at[i];
        if (!is_padded_by(plan, dim)) continue;
        Dim *longer = longer_dim(arena, plan, dim, dim, dims);
        if (!dim->n_factors) continue;
        Dim **factors = NEW_N(arena, Dim *, dim->n_factors);
        factors[0] = longer_dim(arena, plan, dim, dim->factors[0], dims);
        for (int k = 1; k < dim->n_factors; k++) {
            factors[k] = NEW(arena, Dim);
            *factors[k] = *dim->factors[k];
            map_put(arena, dims, dim->factors[k], factors[k]);
        }
        dim_set_factors(arena, longer, factors, dim->n_factors);
    }
    return dims->n > 0;
}

static Node *result_of(Copy *copy, const Node *node) {
    Node *value = copy_value(copy, node);
    return copy->fit ? copy->fit(copy, node, value) : value;
}

void model_copy_results(ModelGraph *made, const ModelGraph *model, Copy *copy) {
    Arena *arena = made->graph->arena;
    made->auxiliary.at = NULL, made->auxiliary.n = made->auxiliary.cap = 0;
    for (int i = 0; i < model->auxiliary.n; i++)
        vec_push(arena, &made->auxiliary, result_of(copy, model->auxiliary.at[i]));
    made->loss = result_of(copy, model->loss);
    made->mask = model->mask ? result_of(copy, model->mask) : NULL;
    made->logits = model->logits ? result_of(copy, model->logits) : NULL;
    for (int i = 0; i < model->graph->outputs.n; i++) {
        const Output *output = &model->graph->outputs.at[i];
        graph_add_output(made->graph, copy_tensor(copy, output->tensor), result_of(copy, output->value), false);
    }
}

ModelGraph *model_rewritten(Session *s, const ModelGraph *model, Copy *setup, Dim *const *more, int n_more) {
    ModelGraph *made = NEW(s->arena, ModelGraph);
    *made = *model;
    made->graph = graph_new(s, s->arena, model->graph->name);
    made->graph->micro = model->graph->micro;
    Copy copy;
    copy_begin(&copy, made->graph);
    copy.dims = setup->dims, copy.groups = setup->groups, copy.tensors = setup->tensors;
    copy.rule = setup->rule, copy.context = setup->context;
    copy.keeps_composites = setup->keeps_composites;
    for (int i = 0; i < model->graph->dims.n; i++)
        vec_push(s->arena, &made->graph->dims, copy_dim(&copy, model->graph->dims.at[i]));
    for (int i = 0; i < n_more; i++) vec_push(s->arena, &made->graph->dims, more[i]);
    for (int i = 0; i < made->graph->dims.n; i++) made->graph->dims.at[i]->id = i;
    copy_region(&copy, &model->graph->top);
    made->inits.at = NULL, made->inits.n = made->inits.cap = 0;
    for (int i = 0; i < model->inits.n; i++) {
        Init init = model->inits.at[i];
        init.weight = copy_tensor(&copy, init.weight);
        vec_push(s->arena, &made->inits, init);
    }
    model_copy_results(made, model, &copy);
    return made;
}

/* What sampling draws from. */
static void mask_logits(ModelGraph *model) {
    Node *logits = model->logits;
    Builder b = step_builder(model->graph);
    for (int i = 0; logits && i < logits->shape.n; i++)
        if (logits->shape.dims[i]->unpadded)
            model->logits = build_masked(&b, model->logits, logits->shape.dims[i], minus_infinity);
    for (int i = 0; i < model->graph->outputs.n; i++)
        if (model->graph->outputs.at[i].value == logits) model->graph->outputs.at[i].value = model->logits;
}

const ModelGraph *model_padded(Session *s, const Plan *plan, const ModelGraph *model) {
    Copy copy = {.rule = rule_padding, .keeps_composites = true};
    if (!plan || !longer_dims(s->arena, plan, model, &copy.dims)) return model;
    ModelGraph *padded = model_rewritten(s, model, &copy, NULL, 0);
    mask_logits(padded);
    return padded;
}
