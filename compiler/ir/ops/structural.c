/* Operators that the passes handle by name (input, param, repeat, result, poison), and sources: values that are made
 * from nothing or from logical indices (const, vector, ramp, layer_index). */
#include "ir/op.h"

#include <math.h>

static bool infer_input(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = node->tensor->dtype;
    node->shape = node->tensor->shape;
    return true;
}

/* Set by region_add_param; poison has none. */
static bool infer_nothing(Graph *graph, Node *node) {
    (void)graph;
    (void)node;
    return true;
}

static bool check_carry(Graph *graph, const Node *node, int i) {
    const Region *region = node->region;
    const Node *param = region->params.at[i], *next = region->results.at[i];
    Name name = next->name ? next->name : "a value";
    if (!shape_equal(&param->shape, &next->shape)) {
        Diag *diag = diag_error(graph->session, "P0207", next->span,
                                "`%s` is carried from layer to layer as %s, but a layer makes it %s", name,
                                shape_text(graph->arena, &param->shape), shape_text(graph->arena, &next->shape));
        diag_note(diag, node->span, "repeated over `%s` here", region->dim->name);
        diag_help(diag, "give the result of the layer another name, or the dimensions that it came with");
        return false;
    }
    if (param->dtype != next->dtype) {
        Diag *diag = diag_error(graph->session, "P0207", next->span,
                                "`%s` is carried from layer to layer as %s, but a layer makes it %s", name,
                                dtype_name[param->dtype], dtype_name[next->dtype]);
        diag_help(diag, "convert it with `cast`");
        return false;
    }
    return true;
}

/* The repeat's dimension in front of what each layer gives. */
static bool stacked_shape(Graph *graph, const Region *region, const Node *result, Shape *shape) {
    const char *what = shape_text(graph->arena, &result->shape);
    if (shape_find(&result->shape, region->dim) >= 0) {
        Diag *diag = diag_error(graph->session, "P0209", result->span, "a value over %s inside a repeat over `%s`",
                                what, region->dim->name);
        diag_help(diag, "declare another name for the positions: `dim other = like %s`", region->dim->name);
        return false;
    }
    if (result->shape.n == MAX_RANK) {
        Diag *diag =
            diag_error(graph->session, "P0206", result->span, "%s for each position of `%s` is more than %d dimensions",
                       what, region->dim->name, MAX_RANK);
        diag_help(diag, "reduce or join some of them first");
        return false;
    }
    *shape = shape_of(&region->dim, 1);
    *shape = shape_union(shape, &result->shape);
    return true;
}

static bool infer_repeat(Graph *graph, Node *node) {
    const Region *region = node->region;
    node->n_outs = region->n_carries + region->n_stacked;
    node->outs = NEW_N(graph->arena, OutType, node->n_outs);
    for (int i = 0; i < node->n_outs; i++) {
        const Node *result = region->results.at[i];
        if (i < region->n_carries && !check_carry(graph, node, i)) return false;
        Shape shape = result->shape;
        if (i >= region->n_carries && !stacked_shape(graph, region, result, &shape)) return false;
        node->outs[i] = (OutType){.dtype = result->dtype, .shape = shape};
    }
    if (node->n_outs) node->dtype = node->outs[0].dtype, node->shape = node->outs[0].shape;
    return true;
}

static bool infer_result(Graph *graph, Node *node) {
    (void)graph;
    int64_t index = node_attr(node, "index")->integer;
    CHECK(index >= 0 && index < node->in[0]->n_outs);
    node->dtype = node->in[0]->outs[index].dtype;
    node->shape = node->in[0]->outs[index].shape;
    return true;
}

static bool infer_const(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = (DType)node_attr(node, "dtype")->integer;
    return true;
}

static bool infer_vector(Graph *graph, Node *node) {
    const AttrValue *values = node_attr(node, "values"), *dim = node_attr(node, "dim");
    if (values->integer != dim->dims.dims[0]->size) {
        Diag *diag =
            diag_error(graph->session, "P0208", node->span, "%lld values stand along `%s`, which has size %lld",
                       (long long)values->integer, dim->dims.dims[0]->name, (long long)dim->dims.dims[0]->size);
        diag_help(diag, "give one value for each position of `%s`", dim->dims.dims[0]->name);
        return false;
    }
    node->dtype = (DType)node_attr(node, "dtype")->integer;
    node->shape = dim->dims;
    return true;
}

static bool infer_ramp(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = DT_I32;
    node->shape = node_attr(node, "dim")->dims;
    return true;
}

static bool infer_layer_index(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = DT_I32;
    return true;
}

/* ---- evaluation and lowering -------------------------------------------------------------------- */

static void eval_const(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context, (void)in;
    out[0]->at[0] = node_attr(node, "value")->number;
}

static void eval_vector(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)in;
    const double *values = node_attr(node, "values")->list;
    for (int64_t i = 0; i < out[0]->n; i++) out[0]->at[i] = values[eval_logical(context, node, node->shape.dims[0], i)];
}

static void eval_ramp(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)in;
    Dim *dim = node->shape.dims[0];
    for (int64_t i = 0; i < out[0]->n; i++) out[0]->at[i] = (double)dim_index(dim, eval_logical(context, node, dim, i));
}

static void eval_layer_index(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)node, (void)in;
    out[0]->at[0] = (double)context->layer;
}

static LoopValue emit_number(LoopBuilder *b, DType dtype, double value) {
    if (dtype_is_float(dtype)) return loop_const_f(b, value);
    if (dtype != DT_BOOL) return loop_const_i(b, (int64_t)value);
    LoopValue zero = loop_const_i(b, 0);
    return loop_emit(b, value != 0 ? LOOP_ILE : LOOP_ILT, zero, zero, -1);
}

static LoopValue emit_const(LoopBuilder *b, const Node *node, const LoopValue *in) {
    (void)in;
    return emit_number(b, node->dtype, node_attr(node, "value")->number);
}

/* A short list: a chain of selections by the logical index. */
static LoopValue emit_vector(LoopBuilder *b, const Node *node, const LoopValue *in) {
    const AttrValue *values = node_attr(node, "values");
    LoopValue value = emit_number(b, node->dtype, values->list[0]);
    for (int64_t i = 1; i < values->integer; i++) {
        LoopValue here = loop_emit(b, LOOP_IEQ, in[0], loop_const_i(b, i), -1);
        value = loop_emit(b, LOOP_SELECT, here, emit_number(b, node->dtype, values->list[i]), value);
    }
    return value;
}

static LoopValue emit_ramp(LoopBuilder *b, const Node *node, const LoopValue *in) {
    (void)b, (void)node;
    return in[0];
}

static const OpCase cases_const[] = {
    {.what = "a number",
     .graph = "graph case { %0 = const(value = 2.5, dtype = f32); tensor y: result f32[]; output y = %0 }"},
    {.what = "a truth",
     .graph = "graph case { %0 = const(value = 1, dtype = bool); tensor y: result bool[]; output y = %0 }"},
    {0}};
static const OpCase cases_vector[] = {
    {.what = "weights of tasks",
     .graph = "graph case { dim task = 4; tensor y: result f32[task]\n"
              "%0 = vector(values = [0.5, 0.25, 3, -1], dim = task, dtype = f32); output y = %0 }"},
    {0}};
static const OpCase cases_ramp[] = {
    {.what = "positions",
     .graph = "graph case { dim seq = 12; tensor y: result i32[seq]; %0 = ramp(dim = seq); output y = %0 }"},
    {.what = "in a micro-batch",
     .graph = "graph case micro { dim batch = 4 batch; tensor y: result i32[batch]; %0 = ramp(dim = batch); output y = "
              "%0 }"},
    {0}};
static const OpCase cases_layer_index[] = {
    {.what = "stacked",
     .graph = "graph case { dim layers = 3; tensor y: result i32[layers]\n"
              "%0 = repeat layers () { %1 = layer_index(); stack %1 }; %2 = result(%0, index = 0); output y = %2 }"},
    {0}};

const OpInfo op_info_input = {.op = OP_INPUT,
                              .name = "input",
                              .doc = "the contents of a stored tensor",
                              .family = "structural",
                              .infer = infer_input,
                              .no_grad = true,
                              .lower = LOWER_NONE};

const OpInfo op_info_param = {.op = OP_PARAM,
                              .name = "param",
                              .doc = "a value that a repeat hands to its body",
                              .family = "structural",
                              .infer = infer_nothing,
                              .no_grad = true,
                              .lower = LOWER_NONE};

const OpInfo op_info_poison = {.op = OP_POISON,
                               .name = "poison",
                               .doc = "the result of a statement that had an error",
                               .family = "structural",
                               .infer = infer_nothing,
                               .no_grad = true,
                               .lower = LOWER_NONE};

const OpInfo op_info_repeat = {.op = OP_REPEAT,
                               .name = "repeat",
                               .doc = "a body run once for each position of a dimension",
                               .family = "structural",
                               .variadic = "input",
                               .infer = infer_repeat,
                               .no_grad = true,
                               .lower = LOWER_NONE};

const OpInfo op_info_result = {.op = OP_RESULT,
                               .name = "result",
                               .doc = "one of several results",
                               .family = "structural",
                               .in = {"tuple"},
                               .attrs = {{"index", ATTR_INT, NAN}},
                               .infer = infer_result,
                               .no_grad = true,
                               .lower = LOWER_NONE};

const OpInfo op_info_const = {.op = OP_CONST,
                              .name = "const",
                              .doc = "a number",
                              .family = "structural",
                              .attrs = {{"value", ATTR_FLOAT, NAN}, {"dtype", ATTR_DTYPE, DT_F32}},
                              .dims = "-> ...",
                              .cheap = true,
                              .infer = infer_const,
                              .no_grad = true,
                              .lower = LOWER_MAP,
                              .emit = emit_const,
                              .eval = eval_const,
                              .cases = cases_const};

const OpInfo op_info_vector = {
    .op = OP_VECTOR,
    .name = "vector",
    .doc = "constants along a dimension",
    .family = "structural",
    .attrs = {{"values", ATTR_LIST, NAN}, {"dim", ATTR_DIM, NAN}, {"dtype", ATTR_DTYPE, DT_F32}},
    .dims = "-> dim",
    .cheap = true,
    .infer = infer_vector,
    .no_grad = true,
    .lower = LOWER_MAP,
    .emit = emit_vector,
    .reads_index = true,
    .eval = eval_vector,
    .cases = cases_vector};

const OpInfo op_info_ramp = {.op = OP_RAMP,
                             .name = "ramp",
                             .doc = "0, 1, 2, ... along a dimension: its logical index",
                             .family = "structural",
                             .attrs = {{"dim", ATTR_DIM, NAN}},
                             .dims = "-> dim",
                             .cheap = true,
                             .infer = infer_ramp,
                             .no_grad = true,
                             .lower = LOWER_MAP,
                             .emit = emit_ramp,
                             .reads_index = true,
                             .eval = eval_ramp,
                             .cases = cases_ramp};

const OpInfo op_info_layer_index = {.op = OP_LAYER_INDEX,
                                    .name = "layer_index",
                                    .doc = "the position in the repeat that runs",
                                    .family = "structural",
                                    .cheap = true,
                                    .infer = infer_layer_index,
                                    .no_grad = true,
                                    .lower = LOWER_NONE,
                                    .eval = eval_layer_index,
                                    .cases = cases_layer_index};
