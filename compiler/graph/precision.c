/* 16-bit precision: which values of the model are bf16 or f16.
 *
 * In: the model in f32, composite operators kept. Out: the model with casts, by the operators' `precision` (ir/op.h).
 * Weights stay f32 where they are stored and are cast where they are used, so their gradients come back through the
 * cast and are f32; a layer's slice is cast inside the repeat, so no second copy of all weights ever exists. Everything
 * after this pass (gradients, partitioning, kernels) only follows the types. */
#include "graph/step.h"

typedef struct Narrowing {
    Graph *graph;
    Arena *arena;
    DType narrow;
    Map weights;   /* nodes that are weights, or a layer's slice of one */
    Map constants; /* nodes that are one number everywhere */
    Map stands;    /* node -> its narrow form, what others read */
} Narrowing;

typedef struct Cast {
    Node *value, *result;
} Cast;

/* A region whose nodes are listed anew. */
typedef struct Narrowed {
    Narrowing *n;
    Region *region;
    VEC(Cast) casts; /* each value is cast once */
} Narrowed;

static Node *as_type(Narrowed *r, Node *value, DType dtype, const Node *user) {
    if (!dtype_is_float(value->dtype) || value->dtype == dtype) return value;
    for (int i = 0; i < r->casts.n; i++)
        if (r->casts.at[i].value == value && r->casts.at[i].result->dtype == dtype) return r->casts.at[i].result;
    Builder b = {
        .graph = r->n->graph, .region = r->region, .span = user->span, .name = value->name, .path = user->path};
    Node *cast = build_cast(&b, value, dtype);
    vec_push(r->n->arena, &r->casts, (Cast){value, cast});
    return cast;
}

static Node *standing_for(const Narrowing *n, Node *node) {
    Node *other = map_get(&n->stands, node);
    return other ? other : node;
}

static bool is_in(const Map *set, const Node *node) { return map_get(set, node) != NULL; }

/* What the operator would have from its operands alone. */
static DType widest_operand(const Narrowing *n, const Node *node) {
    bool wide = false, narrow = false;
    for (int i = 0; i < node->n_in; i++) {
        const Node *in = node->in[i];
        if (!dtype_is_float(in->dtype) || is_in(&n->constants, in)) continue;
        bool is_narrow = in->dtype == n->narrow || is_in(&n->weights, in);
        narrow |= is_narrow;
        wide |= !is_narrow;
    }
    return narrow && !wide ? n->narrow : DT_F32;
}

static bool is_constant(const Narrowing *n, const Node *node) {
    if (node->op == OP_CONST || node->op == OP_VECTOR) return true;
    return node->op == OP_BROADCAST && is_in(&n->constants, node->in[0]);
}

static void infer_again(Narrowing *n, Node *node) {
    const OpInfo *info = op_info(node);
    bool good = info->infer ? info->infer(n->graph, node) : op_infer_shapes(n->graph, node);
    if (!good) BUG("`%s` does not take %s operands", info->name, dtype_name[n->narrow]);
}

static void narrow_operator(Narrowed *r, Node *node) {
    Narrowing *n = r->n;
    OpPrecision precision = op_info(node)->precision;
    DType widest = widest_operand(n, node);
    DType inside = precision == PRECISION_WIDEST ? widest : precision == PRECISION_NARROW ? n->narrow : DT_F32;
    bool explicit = node->op == OP_CAST || node->op == OP_RESULT || node->n_in == 0;
    for (int i = 0; i < node->n_in && !explicit; i++) node->in[i] = as_type(r, node->in[i], inside, node);
    if (is_constant(n, node)) map_put(n->arena, &n->constants, node, node);
    if (node->op == OP_INPUT && node->tensor->class == CLASS_WEIGHT) map_put(n->arena, &n->weights, node, node);
    infer_again(n, node);
    vec_push(n->graph->arena, &r->region->nodes, node);
    if (precision == PRECISION_INSIDE && widest != DT_F32)
        map_put(n->arena, &n->stands, node, as_type(r, node, widest, node));
}

static void narrow_region(Narrowing *n, Region *region);

/* A carry has the type that it starts with; a weight starts narrow. Layers' slices of weights are weights. */
static void narrow_repeat(Narrowed *r, Node *node) {
    Narrowing *n = r->n;
    Region *region = node->region;
    for (int i = 0; i < node->n_in; i++) {
        Node *param = region->params.at[i];
        bool carry = i < region->n_carries, weight = is_in(&n->weights, node->in[i]);
        if (carry && weight) node->in[i] = as_type(r, node->in[i], n->narrow, node);
        param->dtype = node->in[i]->dtype;
        if (weight && !carry) map_put(n->arena, &n->weights, param, param);
    }
    narrow_region(n, region);
    infer_again(n, node);
    vec_push(n->graph->arena, &r->region->nodes, node);
}

static void narrow_region(Narrowing *n, Region *region) {
    Narrowed r = {.n = n, .region = region};
    NodeList old = region->nodes;
    region->nodes = (NodeList){0};
    for (int i = 0; i < old.n; i++) {
        Node *node = old.at[i];
        for (int k = 0; k < node->n_in; k++) node->in[k] = standing_for(n, node->in[k]);
        if (node->op == OP_REPEAT)
            narrow_repeat(&r, node);
        else
            narrow_operator(&r, node);
    }
    for (int i = 0; i < region->results.n; i++) {
        Node *result = standing_for(n, region->results.at[i]);
        if (i < region->n_carries) result = as_type(&r, result, region->params.at[i]->dtype, result);
        region->results.at[i] = result;
    }
}

/* What leaves the model (losses, logits, logged values) is f32. */
static Node *in_full(Narrowing *n, Node *value) {
    if (!value) return NULL;
    Builder b = {.graph = n->graph, .region = &n->graph->top, .span = value->span, .name = value->name};
    value = standing_for(n, value);
    return dtype_is_float(value->dtype) ? build_cast(&b, value, DT_F32) : value;
}

static void narrow_results(Narrowing *n, ModelGraph *model) {
    for (int i = 0; i < model->graph->outputs.n; i++) {
        Output *output = &model->graph->outputs.at[i];
        output->value = in_full(n, output->value);
    }
    model->loss = in_full(n, model->loss);
    model->mask = in_full(n, model->mask);
    model->logits = in_full(n, model->logits);
    for (int i = 0; i < model->auxiliary.n; i++) model->auxiliary.at[i] = in_full(n, model->auxiliary.at[i]);
}

DType plan_dtype(const Plan *plan) {
    if (!plan || !plan->precision) return DT_F32; /* a plan of a test may say nothing */
    return strcmp(plan->precision, "bf16") == 0 ? DT_BF16 : strcmp(plan->precision, "fp16") == 0 ? DT_F16 : DT_F32;
}

const ModelGraph *model_narrowed(Session *s, const Plan *plan, const ModelGraph *model) {
    if (plan_dtype(plan) == DT_F32) return model;
    Copy setup = {.keeps_composites = true};
    ModelGraph *narrowed = model_rewritten(s, model, &setup, NULL, 0);
    Narrowing n = {.graph = narrowed->graph, .arena = arena_new(), .narrow = plan_dtype(plan)};
    narrow_region(&n, &narrowed->graph->top);
    narrow_results(&n, narrowed);
    arena_free(n.arena);
    return narrowed;
}
