/* Checks the invariants of ir.h on a whole graph. Run after every pass in test builds: a failure is a fault of ours, so
 * the answer is one sentence, not a diagnostic. */
#include "ir/op.h"

typedef struct Verifier {
    const Graph *graph;
    Graph scratch; /* a copy whose session collects the diagnostics of inference, to be forgotten */
    Session quiet;
    Text *why;
    bool ok;
    const Region **where; /* the region in which each node stands (by id); NULL: not seen yet */
} Verifier;

static void fault(Verifier *v, const Node *node, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void fault(Verifier *v, const Node *node, const char *format, ...) {
    if (!v->ok) return;
    v->ok = false;
    text_printf(v->why, "graph %s", v->graph->name);
    if (node) {
        text_printf(v->why, ", node %d (%s%s%s)", node->id, op_table[node->op]->name, node->name ? " of " : "",
                    node->name ? node->name : "");
        if (node->span.file) text_printf(v->why, " at %s", session_where(v->graph->session, node->span));
    }
    va_list args;
    va_start(args, format);
    text_printf(v->why, ": %s", arena_vprintf(v->graph->arena, format, args));
    va_end(args);
}

static const char *shown(Verifier *v, DType dtype, const Shape *shape) {
    return arena_printf(v->graph->arena, "%s%s", dtype_name[dtype], shape_text(v->graph->arena, shape));
}

/* ---- shapes, types, attributes ----------------------------------------------------------------------------------- */

static bool owns_dim(const Verifier *v, const Dim *dim) {
    if (dim->is_flat || dim->part_of)
        return graph_find_dim(v->graph, dim->name) == dim; /* shared by the graphs of a step */
    return dim->id >= 0 && dim->id < v->graph->dims.n && v->graph->dims.at[dim->id] == dim;
}

static void check_shape(Verifier *v, const Node *node, const Shape *shape) {
    if (shape->n < 0 || shape->n > MAX_RANK) {
        fault(v, node, "a shape with %d dimensions", shape->n);
        return;
    }
    for (int i = 0; i < shape->n && v->ok; i++) {
        if (!owns_dim(v, shape->dims[i]))
            fault(v, node, "dimension %s is not one of the graph's", shape->dims[i]->name);
        for (int k = 0; k < i; k++)
            if (shape->dims[k] == shape->dims[i])
                fault(v, node, "dimension %s stands twice in %s", shape->dims[i]->name,
                      shape_text(v->graph->arena, shape));
    }
}

/* What is cut is divided exactly, by a dimension that the value has. */
static void check_types(Verifier *v, const Node *node, const Shape *shape, const AxisType *type, const char *what) {
    const Mesh *mesh = v->graph->mesh;
    for (int axis = 0; mesh && axis < mesh->n && v->ok; axis++) {
        if (type[axis].kind != AXIS_SHARDED) continue;
        Dim *cut = NULL;
        for (int i = 0; i < shape->n; i++)
            if (type[axis].dim && dim_is_cut_by(shape->dims[i], type[axis].dim)) cut = shape->dims[i];
        if (!cut) {
            fault(v, node, "%s is sharded on %s by a dimension that it lacks", what, mesh->axes[axis].name);
            return;
        }
        DimCut cuts[MAX_MESH];
        int64_t parts = cuts_multiple(cuts, dim_cuts(mesh, type, cut, cuts));
        if (cut->size % parts)
            fault(v, node, "%s: %lld parts do not divide %s (%lld)", what, (long long)parts, cut->name,
                  (long long)cut->size);
    }
}

static void check_attrs(Verifier *v, const Node *node) {
    const OpInfo *info = op_info(node);
    for (int i = 0; i < op_n_attrs(info) && v->ok; i++) {
        const AttrValue *value = &node->attrs[i];
        check_shape(v, node, &value->dims);
        if (info->attrs[i].kind == ATTR_DIM && value->dims.n > 1)
            fault(v, node, "attribute %s holds %d dimensions", info->attrs[i].name, value->dims.n);
        if (info->attrs[i].kind == ATTR_DIM && value->dims.n == 0 && info->attrs[i].standard != info->attrs[i].standard)
            fault(v, node, "attribute %s is not set", info->attrs[i].name);
        if (info->attrs[i].kind == ATTR_DTYPE && (value->integer < 0 || value->integer >= DT_COUNT))
            fault(v, node, "attribute %s is no type", info->attrs[i].name);
        if (info->attrs[i].kind == ATTR_LIST && value->integer && !value->list)
            fault(v, node, "attribute %s has no values", info->attrs[i].name);
        if (v->graph->mesh && info->lower == LOWER_COLLECTIVE && strcmp(info->attrs[i].name, "axis") == 0 &&
            (value->integer < 0 || value->integer >= v->graph->mesh->n))
            fault(v, node, "there is no axis %lld", (long long)value->integer);
        if (v->graph->mesh && info->op == OP_ALL_TO_ALL && strcmp(info->attrs[i].name, "outer") == 0 &&
            value->integer >> node_attr(node, "axis")->integer)
            fault(v, node, "axes %llx are not outside of its axis", (unsigned long long)value->integer);
    }
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static void check_inference(Verifier *v, const Node *node) {
    const OpInfo *info = op_info(node);
    Node again = *node;
    again.outs = NULL;
    again.n_outs = 0;
    again.shape = (Shape){.n = 0};
    again.dtype = DT_F32;
    bool inferred = info->infer ? info->infer(&v->scratch, &again) : op_infer_shapes(&v->scratch, &again);
    if (!inferred) {
        fault(v, node, "the operator refuses its operands");
        return;
    }
    if (again.n_outs != node->n_outs) fault(v, node, "%d results, not %d", again.n_outs, node->n_outs);
    for (int k = 0; k < node->n_outs && v->ok; k++)
        if (again.outs[k].dtype != node->outs[k].dtype || !shape_equal(&again.outs[k].shape, &node->outs[k].shape))
            fault(v, node, "result %d is %s, but the operator gives %s", k,
                  shown(v, node->outs[k].dtype, &node->outs[k].shape),
                  shown(v, again.outs[k].dtype, &again.outs[k].shape));
    if (v->ok && (again.dtype != node->dtype || !shape_equal(&again.shape, &node->shape)))
        fault(v, node, "is %s, but the operator gives %s", shown(v, node->dtype, &node->shape),
              shown(v, again.dtype, &again.shape));
}

static void expect_same_types(Verifier *v, const Node *node, const AxisType *a, const AxisType *b, const char *what) {
    for (int axis = 0; axis < v->graph->mesh->n && v->ok; axis++)
        if (!axis_type_equal(a[axis], b[axis]))
            fault(v, node, "%s: %s and %s on axis %s", what, axis_type_text(v->graph->arena, a[axis]),
                  axis_type_text(v->graph->arena, b[axis]), v->graph->mesh->axes[axis].name);
}

static void check_mesh_types(Verifier *v, const Node *node) {
    const Mesh *mesh = v->graph->mesh;
    if (!mesh) return;
    if (node->n_outs == 0) check_types(v, node, &node->shape, node->type, "the value");
    for (int k = 0; k < node->n_outs; k++) check_types(v, node, &node->outs[k].shape, node->outs[k].type, "a result");
    if (!v->ok) return;
    if (node->op == OP_INPUT) expect_same_types(v, node, node->type, node->tensor->type, "input and tensor");
    if (node->op == OP_RESULT) {
        const Node *tuple = node->in[0];
        expect_same_types(v, node, node->type, tuple->outs[node_attr(node, "index")->integer].type, "result and tuple");
    }
    for (int axis = 0; axis < mesh->n && v->ok; axis++) {
        if (op_types_fit(node, axis)) continue;
        Text in = {.arena = v->graph->arena};
        for (int i = 0; i < node->n_in; i++)
            text_printf(&in, "%s%s", i ? ", " : "", axis_type_text(v->graph->arena, node->in[i]->type[axis]));
        fault(v, node, "on axis %s the operator does not make %s from (%s)", mesh->axes[axis].name,
              axis_type_text(v->graph->arena, node->type[axis]), in.at ? in.at : "");
    }
}

/* Of reproducible graphs: (a + b) + (c + d) is not (a + c) + (b + d), so no partial sum of f32 goes through an
 * operator. */
static void check_order(Verifier *v, const Node *node) {
    const Mesh *mesh = v->graph->mesh;
    bool zero = node->op == OP_CONST || node->op == OP_BROADCAST;
    if (!mesh || !v->graph->reproducible || node->dtype == DT_EXACT || op_info(node)->lower != LOWER_MAP || zero)
        return;
    for (int axis = 0; axis < mesh->n; axis++)
        if (node->type[axis].kind == AXIS_PARTIAL && node->type[axis].reduce == REDUCE_SUM)
            fault(v, node,
                  "a partial sum of f32 on axis %s goes through an operator, in another order than on one rank",
                  mesh->axes[axis].name);
}

static void check_operands(Verifier *v, const Node *node, const Region *region) {
    const OpInfo *info = op_info(node);
    int named = 0;
    while (named < (int)(sizeof info->in / sizeof info->in[0]) && info->in[named]) named++;
    if (!info->variadic && node->n_in != named) fault(v, node, "%d operands, not %d", node->n_in, named);
    for (int i = 0; i < node->n_in && v->ok; i++) {
        const Node *in = node->in[i];
        if (in->id < 0 || in->id >= v->graph->n_nodes || !v->where[in->id])
            fault(v, node, "operand %d (node %d) is not defined before it", i, in->id);
        else if (v->where[in->id] != region)
            fault(v, node, "operand %d (node %d) stands in another region", i, in->id);
        else if (in->n_outs && node->op != OP_RESULT)
            fault(v, node, "operand %d is a tuple", i);
    }
    if (v->ok && node->op == OP_RESULT) {
        int64_t index = node_attr(node, "index")->integer;
        if (index < 0 || index >= node->in[0]->n_outs) fault(v, node, "there is no result %lld", (long long)index);
    }
}

static void place(Verifier *v, const Node *node, const Region *region) {
    if (node->id < 0 || node->id >= v->graph->n_nodes)
        fault(v, node, "the id is not below %d", v->graph->n_nodes);
    else if (v->where[node->id])
        fault(v, node, "the id is used twice");
    else
        v->where[node->id] = region;
}

static void check_region(Verifier *v, const Region *region);

static void check_repeat(Verifier *v, const Node *node, const Region *outer) {
    const Region *region = node->region;
    if (!region || region->owner != node || region->parent != outer) {
        fault(v, node, "the region is not its own");
        return;
    }
    int n = region->n_carries + region->n_slices + region->n_captures;
    if (region->params.n != n || node->n_in != n || region->results.n != region->n_carries + region->n_stacked) {
        fault(v, node,
              "%d parameters, %d operands and %d results for %d carries, %d slices, %d captures and %d stacked",
              region->params.n, node->n_in, region->results.n, region->n_carries, region->n_slices, region->n_captures,
              region->n_stacked);
        return;
    }
    for (int i = 0; i < n && v->ok; i++) {
        const Node *param = region->params.at[i], *in = node->in[i];
        place(v, param, region);
        bool slice = i >= region->n_carries && i < region->n_carries + region->n_slices;
        Shape expected = in->shape;
        if (slice && (in->shape.n == 0 || in->shape.dims[0] != region->dim))
            fault(v, node, "operand %d is not stacked over %s", i, region->dim->name);
        else if (slice)
            expected = shape_of(in->shape.dims + 1, in->shape.n - 1);
        if (v->ok && (param->op != OP_PARAM || param->dtype != in->dtype || !shape_equal(&param->shape, &expected)))
            fault(v, param, "is %s for an operand %s", shown(v, param->dtype, &param->shape),
                  shown(v, in->dtype, &in->shape));
        if (v->ok && v->graph->mesh) expect_same_types(v, param, param->type, in->type, "parameter and operand");
    }
    if (v->ok) check_region(v, region);
    for (int i = 0; i < region->results.n && v->ok; i++) {
        const Node *result = region->results.at[i];
        if (result->id < 0 || result->id >= v->graph->n_nodes || v->where[result->id] != region)
            fault(v, node, "result %d of the body (node %d) does not stand in it", i, result->id);
        else if (v->graph->mesh)
            expect_same_types(v, node, result->type, node->outs[i].type, "the body's result and the repeat's");
        if (v->ok && v->graph->mesh && i < region->n_carries)
            expect_same_types(v, node, result->type, region->params.at[i]->type,
                              "a carry's next value and its parameter");
    }
}

static void check_node(Verifier *v, const Node *node, const Region *region) {
    if ((unsigned)node->op >= OP_COUNT) {
        fault(v, NULL, "node %d has no operator", node->id);
        return;
    }
    if (node->op == OP_PARAM) fault(v, node, "a parameter among the nodes");
    if (node->op == OP_POISON) fault(v, node, "poison is left");
    if (node->op == OP_INPUT && !node->tensor) fault(v, node, "an input without a tensor");
    if (node->op == OP_LAYER_INDEX && region->index != node) fault(v, node, "is not the index of its region");
    if (v->ok) check_operands(v, node, region);
    if (v->ok) check_shape(v, node, &node->shape);
    for (int k = 0; k < node->n_outs && v->ok; k++) check_shape(v, node, &node->outs[k].shape);
    if (v->ok) check_attrs(v, node);
    if (v->ok && node->op == OP_REPEAT) check_repeat(v, node, region);
    if (v->ok) check_inference(v, node);
    if (v->ok) check_mesh_types(v, node);
    if (v->ok) check_order(v, node);
    if (v->ok) place(v, node, region);
}

static void check_region(Verifier *v, const Region *region) {
    for (int i = 0; i < region->nodes.n && v->ok; i++) check_node(v, region->nodes.at[i], region);
}

/* ---- the graph --------------------------------------------------------------------------------------------------- */

static void check_dims(Verifier *v) {
    const Graph *graph = v->graph;
    Map names = {0};
    for (int i = 0; i < graph->dims.n && v->ok; i++) {
        const Dim *dim = graph->dims.at[i];
        if (dim->id != i && !dim->is_flat && !dim->part_of)
            fault(v, NULL, "dimension %s has the number %d, not %d", dim->name, dim->id, i);
        else if (dim->size < 1)
            fault(v, NULL, "dimension %s has size %lld", dim->name, (long long)dim->size);
        else if (map_get(&names, dim->name))
            fault(v, NULL, "dimension %s stands twice", dim->name);
        if (dim->like && !dim->like->at_position && dim->like->size != dim->size)
            fault(v, NULL, "dimension %s (%lld) is like %s (%lld)", dim->name, (long long)dim->size, dim->like->name,
                  (long long)dim->like->size);
        int64_t product = 1;
        for (int k = 0; k < dim->n_factors; k++) {
            product *= dim->factors[k]->size;
            if (dim->factors[k]->product != dim)
                fault(v, NULL, "%s is not the product of its factor %s", dim->name, dim->factors[k]->name);
        }
        if (dim->n_factors && product != dim->size)
            fault(v, NULL, "the factors of %s (%lld) make %lld", dim->name, (long long)dim->size, (long long)product);
        map_put(graph->arena, &names, dim->name, graph->dims.at[i]);
    }
}

static void check_tensors(Verifier *v) {
    const Graph *graph = v->graph;
    Map names = {0};
    for (int i = 0; i < graph->tensors.n && v->ok; i++) {
        Tensor *tensor = graph->tensors.at[i];
        check_shape(v, NULL, &tensor->shape);
        if (v->ok && map_get(&names, tensor->name)) fault(v, NULL, "tensor %s stands twice", tensor->name);
        map_put(graph->arena, &names, tensor->name, tensor);
        if (v->ok && graph->mesh)
            check_types(v, NULL, &tensor->shape, tensor->type, arena_printf(graph->arena, "tensor %s", tensor->name));
    }
}

static void check_outputs(Verifier *v) {
    const Graph *graph = v->graph;
    for (int i = 0; i < graph->outputs.n && v->ok; i++) {
        const Output *output = &graph->outputs.at[i];
        const Node *value = output->value;
        const char *name = output->tensor->name;
        if (value->id < 0 || value->id >= graph->n_nodes || v->where[value->id] != &graph->top)
            fault(v, value, "the value of output %s is not one of the graph's", name);
        else if (value->n_outs)
            fault(v, value, "the value of output %s is a tuple", name);
        else if (value->dtype != output->tensor->dtype || !shape_equal(&value->shape, &output->tensor->shape))
            fault(v, value, "output %s is %s, its value %s", name,
                  shown(v, output->tensor->dtype, &output->tensor->shape), shown(v, value->dtype, &value->shape));
        else if (graph->mesh)
            expect_same_types(v, value, value->type, output->tensor->type,
                              arena_printf(graph->arena, "output %s and its value", name));
    }
}

bool graph_verify(const Graph *graph, Text *why) {
    Verifier v = {.graph = graph, .scratch = *graph, .quiet = *graph->session, .why = why, .ok = true};
    memset(&v.quiet.diags, 0, sizeof v.quiet.diags);
    v.scratch.session = &v.quiet;
    v.where = NEW_N(graph->arena, const Region *, graph->n_nodes);
    check_dims(&v);
    if (v.ok) check_tensors(&v);
    if (v.ok) check_region(&v, &graph->top);
    if (v.ok) check_outputs(&v);
    return v.ok;
}
