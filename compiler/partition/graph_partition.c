/* Inserts every conversion that the choices of choose.c ask for: the only place where collectives come from.
 *
 * A conversion belongs to the use; equal conversions of one value in one region are shared. In which order
 * the axes of a value change their types is decided in conversion.c. */
#include "partition/choose.h"
#include "partition/conversion.h"

typedef struct Converted {
    Node *value, *result;
} Converted;

typedef struct Inserter {
    Choices *choices;
    Graph *graph;
    Region *region;
    NodeList out; /* the region's new list */
    VEC(Converted) done;
    Map expanded; /* tuple node -> Node **: its results, where other nodes make them */
} Inserter;

/* The source again, in the types that a use needs. Zeros that a partial sum starts from are partial themselves. */
static Node *clone_source(Inserter *in, const Node *node, const AxisType *need) {
    Node *clone = NEW(in->graph->arena, Node);
    *clone = *node;
    clone->id = in->graph->n_nodes++;
    memcpy(clone->type, need, sizeof clone->type);
    if (node->op == OP_BROADCAST) {
        AxisType inner[MAX_MESH] = {0};
        for (int a = 0; a < in->choices->layout->mesh.n; a++)
            if (need[a].kind == AXIS_PARTIAL) inner[a] = need[a];
        clone->in = NEW(in->graph->arena, Node *);
        clone->in[0] = clone_source(in, node->in[0], inner);
    }
    vec_push(in->graph->arena, &in->out, clone);
    return clone;
}

static bool is_remade_as(const Inserter *in, const Node *node, const AxisType *need) {
    for (int a = 0; a < in->choices->layout->mesh.n; a++)
        if (need[a].kind == AXIS_PARTIAL || type_is_flat(need[a])) return false;
    return node_is_remade(node);
}

/* The value again, from sources that have its types as far as they have its dimensions. */
static Node *remake(Inserter *in, const Node *node, const AxisType *need) {
    Node *made = NEW(in->graph->arena, Node);
    *made = *node;
    made->id = in->graph->n_nodes++;
    memcpy(made->type, need, sizeof made->type);
    made->in = NEW_N(in->graph->arena, Node *, node->n_in);
    for (int i = 0; i < node->n_in; i++) {
        AxisType type[MAX_MESH] = {0};
        for (int a = 0; a < in->choices->layout->mesh.n; a++)
            if (need[a].kind == AXIS_SHARDED && shape_find(&node->in[i]->shape, need[a].dim) >= 0) type[a] = need[a];
        made->in[i] = clone_source(in, node->in[i], type);
    }
    vec_push(in->graph->arena, &in->out, made);
    return made;
}

static bool types_equal(const Inserter *in, const AxisType *a, const AxisType *b) {
    for (int i = 0; i < in->choices->layout->mesh.n; i++)
        if (!axis_type_equal(a[i], b[i])) return false;
    return true;
}

/* Which collective leads from one type to another on one axis. */
static Op collective_for(AxisType from, AxisType to) {
    if (from.kind == AXIS_PARTIAL) return to.kind == AXIS_SHARDED ? OP_REDUCE_SCATTER : OP_ALL_REDUCE;
    if (from.kind == AXIS_SHARDED) return to.kind == AXIS_SHARDED ? OP_ALL_TO_ALL : OP_ALL_GATHER;
    return OP_SHARD;
}

static void set_attr(Node *node, const char *name, AttrValue value) {
    const OpInfo *info = op_info(node);
    for (int i = 0; i < 6 && info->attrs[i].name; i++)
        if (strcmp(info->attrs[i].name, name) == 0) node->attrs[i] = value;
}

/* The flat range of what a rank holds of one layer, over all axes that cut it: `sharded` on each of them. */
static Dim *flat_dim(Graph *graph, const Layout *layout, const Shape *shape, const AxisType *type, int stored_axis) {
    const Mesh *mesh = &layout->mesh;
    int64_t elements = 1, others = 1, n = mesh->axes[stored_axis].size;
    for (int i = shape_layers(shape); i < shape->n; i++) elements *= shape->dims[i]->size;
    for (int a = 0; a < mesh->n; a++)
        if (a != stored_axis && type[a].kind == AXIS_SHARDED) others *= mesh->axes[a].size;
    elements = (elements / others + n - 1) / n * n * others;
    Name name = intern(graph->session->names,
                       arena_printf(graph->arena, "flat.%s.%lld", mesh->axes[stored_axis].name, (long long)elements));
    Dim *dim = map_get(layout->flat_dims, name);
    if (!dim) {
        dim = graph_add_dim(graph, name, elements, (Span){0});
        dim->is_flat = true;
        dim->stored_axis = stored_axis;
        map_put(graph->arena, layout->flat_dims, name, dim);
    } else if (!graph_find_dim(graph, name))
        vec_push(graph->arena, &graph->dims, dim);
    return dim;
}

static Shape flat_shape(const Shape *shape, Dim *dim) {
    Shape flat = {0};
    for (int i = 0; i < shape_layers(shape); i++) shape_add(&flat, shape->dims[i]);
    shape_add(&flat, dim);
    return flat;
}

static int flat_axis(const Mesh *mesh, const AxisType *type) {
    for (int a = 0; a < mesh->n; a++)
        if (type_is_flat(type[a])) return a;
    return -1;
}

static Node *view_node(Inserter *in, Op op, Node *x) {
    Node *node = NEW(in->graph->arena, Node);
    node->op = op;
    node->id = in->graph->n_nodes++;
    node->dtype = x->dtype, node->span = x->span, node->name = x->name, node->path = x->path,
    node->backward = x->backward, node->deferred = x->deferred;
    node->in = NEW(in->graph->arena, Node *);
    node->in[0] = x, node->n_in = 1;
    node->attrs = NEW_N(in->graph->arena, AttrValue, 6);
    return node;
}

/* The value as a flat range; what cut its dimensions cuts the range. */
static Node *flatten(Inserter *in, Node *value, int axis) {
    const Mesh *mesh = &in->choices->layout->mesh;
    Dim *dim = flat_dim(in->graph, in->choices->layout, &value->shape, value->type, axis);
    Node *node = view_node(in, OP_FLATTEN, value);
    node->shape = flat_shape(&value->shape, dim);
    for (int a = 0; a < mesh->n; a++) {
        node->type[a] = value->type[a];
        if (value->type[a].kind == AXIS_SHARDED) node->type[a] = (AxisType){.kind = AXIS_SHARDED, .dim = dim};
    }
    set_attr(node, "flat", (AttrValue){.dims = {.dims = {dim}, .n = 1}});
    set_attr(node, "lead", (AttrValue){.dims = shape_of(value->shape.dims, shape_layers(&value->shape))});
    vec_push(in->graph->arena, &in->out, node);
    return node;
}

/* A gathered flat range as the tensor that `value` is a part of. */
static Node *unflatten(Inserter *in, Node *gathered, const Node *value, int axis) {
    Node *node = view_node(in, OP_UNFLATTEN, gathered);
    node->shape = value->shape;
    memcpy(node->type, value->type, sizeof node->type);
    node->type[axis] = (AxisType){.kind = AXIS_REPLICATED};
    set_attr(node, "shape", (AttrValue){.dims = value->shape});
    vec_push(in->graph->arena, &in->out, node);
    return node;
}

static Node *convert_axis(Inserter *in, Node *value, int axis, AxisType to);

/* Out of storage: gathered, then seen as the tensor again. */
static Node *convert_from_flat(Inserter *in, Node *value, int axis) {
    Dim *dim = flat_dim(in->graph, in->choices->layout, &value->shape, value->type, axis);
    Node shaped = *value;
    shaped.shape = flat_shape(&value->shape, dim);
    for (int a = 0; a < in->choices->layout->mesh.n; a++)
        if (value->type[a].kind == AXIS_SHARDED) shaped.type[a] = (AxisType){.kind = AXIS_SHARDED, .dim = dim};
    Node *kept = NEW(in->graph->arena, Node);
    *kept = shaped; /* what the gathering sees; the operand itself is made flat at the end */
    Node *gathered = convert_axis(in, kept, axis, (AxisType){.kind = AXIS_REPLICATED});
    gathered->in[0] = value;
    return unflatten(in, gathered, value, axis);
}

static Node *convert_to_flat(Inserter *in, Node *value, int axis, AxisType to) {
    Node *range = flatten(in, value, axis);
    AxisType part = {.kind = AXIS_SHARDED, .dim = range->shape.dims[range->shape.n - 1]};
    Node *node = convert_axis(in, range, axis, part);
    node->shape = value->shape; /* its types say that it is flat, as for all stored values until the end */
    memcpy(node->type, value->type, sizeof node->type);
    node->type[axis] = to;
    return node;
}

/* The line to blame: where the value was made, or where the weight stands whose gradient it is. */
static Span conversion_span(const Node *value) {
    const Tensor *tensor = value->tensor;
    if (value->op == OP_INPUT && tensor) return tensor->of && !tensor->span.file ? tensor->of->span : tensor->span;
    return value->span.file || !value->n_in ? value->span : conversion_span(value->in[0]);
}

static Node *convert_axis(Inserter *in, Node *value, int axis, AxisType to) {
    AxisType from = value->type[axis];
    Node *node = NEW(in->graph->arena, Node);
    node->op = collective_for(from, to);
    node->id = in->graph->n_nodes++;
    node->dtype = value->dtype, node->shape = value->shape, node->span = conversion_span(value),
    node->name = value->name, node->path = value->path;
    node->backward = value->backward, node->deferred = value->deferred;
    node->in = NEW(in->graph->arena, Node *);
    node->in[0] = value, node->n_in = 1;
    node->attrs = NEW_N(in->graph->arena, AttrValue, 6);
    set_attr(node, "axis", (AttrValue){.integer = axis});
    Dim *dim = to.kind == AXIS_SHARDED ? to.dim : from.dim;
    if (dim) set_attr(node, "dim", (AttrValue){.dims = {.dims = {dim}, .n = 1}});
    if (from.kind == AXIS_SHARDED) set_attr(node, "from", (AttrValue){.dims = {.dims = {from.dim}, .n = 1}});
    if (to.kind == AXIS_SHARDED) set_attr(node, "to", (AttrValue){.dims = {.dims = {to.dim}, .n = 1}});
    static const char *const reduce_names[] = {"sum", "max", "min", "or"};
    set_attr(node, "reduce",
             (AttrValue){.integer = from.reduce, .name = intern(in->graph->session->names, reduce_names[from.reduce])});
    memcpy(node->type, value->type, sizeof node->type);
    node->type[axis] = to;
    vec_push(in->graph->arena, &in->out, node);
    return node;
}

/* Makes an exchange along one axis one along further axes. */
static void exchange_along(Node *node, uint32_t outer) {
    int axis = (int)node_attr(node, "axis")->integer;
    set_attr(node, "outer", (AttrValue){.integer = outer});
    for (int a = 0; a < axis; a++)
        if (outer >> a & 1) node->type[a] = node->type[axis];
}

/* Whether a constant would stand in the padding of a flat range, where there have to be zeros. */
static bool would_pad(const Inserter *in, const Node *value, const AxisType *need) {
    int axis = flat_axis(&in->choices->layout->mesh, need);
    if (axis < 0 || value->op != OP_BROADCAST) return false;
    Node shaped = *value;
    memcpy(shaped.type, need, sizeof shaped.type);
    return flat_is_padded(in->choices->layout, &shaped, axis) && flat_padding(value->in[0], axis) != PADDING_ZERO;
}

/* A value whose padding is not known to be zero is gathered and cut again, which puts zeros there. */
static Node *with_zero_padding(Inserter *in, Node *value) {
    int axis = flat_axis(&in->choices->layout->mesh, value->type);
    if (axis < 0 || !flat_is_padded(in->choices->layout, value, axis) || flat_padding(value, axis) == PADDING_ZERO)
        return value;
    return convert_to_flat(in, convert_from_flat(in, value, axis), axis, value->type[axis]);
}

/* Whether a dimension that is cut becomes another one or whole: then a flat range of the parts is no range of the
 * whole.
 */
static bool cuts_change(const Mesh *mesh, const AxisType *from, const AxisType *need) {
    for (int a = 0; a < mesh->n; a++)
        if (!axis_type_equal(from[a], need[a]) && !type_is_flat(from[a]) && !type_is_flat(need[a]) &&
            (from[a].kind == AXIS_SHARDED || need[a].kind == AXIS_SHARDED))
            return true;
    return false;
}

/* Whether a use in `phase` may read the conversion that another use has made. Within an action they share it; a later
 * one does when that saves a reduction, but a gathered copy is not kept from one action to another. */
static bool may_share(const Inserter *in, const Node *value, const Node *result, Phase phase) {
    if (node_phase(result) > phase) return false;
    if (node_phase(result) == phase || phase != PHASE_W) return true;
    for (int a = 0; a < in->choices->layout->mesh.n; a++)
        if (value->type[a].kind == AXIS_PARTIAL && result->type[a].kind != AXIS_PARTIAL) return true;
    return false;
}

/* The value in the types that a use needs. */
static Node *convert(Inserter *in, Node *value, const AxisType *need, Phase phase) {
    const Mesh *mesh = &in->choices->layout->mesh;
    Node **results = value->op == OP_RESULT ? map_get(&in->expanded, value->in[0]) : NULL;
    if (results) value = results[node_attr(value, "index")->integer];
    if (types_equal(in, value->type, need)) return value;
    for (int i = 0; i < in->done.n; i++)
        if (in->done.at[i].value == value && types_equal(in, in->done.at[i].result->type, need) &&
            may_share(in, value, in->done.at[i].result, phase))
            return in->done.at[i].result;
    Node *result = value;
    bool source = node_is_source(value) || (value->op == OP_BROADCAST && node_is_source(value->in[0]));
    if (source && !would_pad(in, value, need)) {
        result = clone_source(in, value, need);
    } else if (is_remade_as(in, value, need)) {
        result = remake(in, value, need);
    } else {
        int first = in->out.n;
        for (int a = 0; a < mesh->n; a++)
            if (type_is_flat(result->type[a]) && (!type_is_flat(need[a]) || cuts_change(mesh, value->type, need)))
                result = convert_from_flat(in, result, a);
        ConversionSteps steps = conversion_steps(mesh, &result->shape, result->type, need);
        for (int i = 0; i < steps.n; i++) {
            result = convert_axis(in, result, steps.axis[i], steps.to[i]);
            if (steps.outer[i]) exchange_along(result, steps.outer[i]);
        }
        for (int a = 0; a < mesh->n; a++)
            if (type_is_flat(need[a]) && !axis_type_equal(result->type[a], need[a]))
                result = convert_to_flat(in, result, a, need[a]);
        for (int i = first; i < in->out.n; i++) {
            in->out.at[i]->backward |= phase != PHASE_F;
            in->out.at[i]->deferred |= phase == PHASE_W;
        }
    }
    vec_push(in->graph->arena, &in->done, (Converted){value, result});
    return result;
}

static void insert_region(Choices *choices, Graph *graph, Region *region) {
    Inserter in = {.choices = choices, .graph = graph, .region = region};
    for (int i = 0; i < region->nodes.n; i++) {
        Node *node = region->nodes.at[i];
        if (node->op != OP_PARAM && node->op != OP_INPUT) {
            const AxisType *need = choice_of(choices, node)->need;
            for (int k = 0; k < node->n_in; k++)
                if (node->op != OP_RESULT)
                    node->in[k] = convert(&in, node->in[k], &need[k * MAX_MESH], node_phase(node));
        }
        if (node->op == OP_REPEAT) insert_region(choices, graph, node->region);
        if (node->op == OP_RESULT && map_get(&in.expanded, node->in[0])) continue;
        unsigned rings = node->n_outs && node->op != OP_REPEAT ? choice_of(choices, node)->rings : 0;
        if (rings) {
            Node **results = NEW_N(graph->arena, Node *, node->n_outs);
            ring_expand(graph, region, &choices->layout->mesh, node, rings, &in.out, results);
            map_put(graph->arena, &in.expanded, node, results);
            continue;
        }
        vec_push(graph->arena, &in.out, node);
    }
    for (int i = region->n_carries; region->owner && i < region->results.n; i++) {
        AxisType need[MAX_MESH];
        memcpy(need, region->results.at[i]->type, sizeof need);
        for (int a = 0; a < choices->layout->mesh.n; a++)
            if (region->owner->outs[i].type[a].kind == AXIS_SHARDED) need[a] = region->owner->outs[i].type[a];
        region->results.at[i] =
            convert(&in, region->results.at[i], need, region->results.at[i]->deferred ? PHASE_W : PHASE_B);
    }
    for (int i = 0; i < region->n_carries; i++)
        region->results.at[i] =
            convert(&in, region->results.at[i], region->params.at[i]->type, node_phase(region->results.at[i]));
    if (!region->parent)
        for (int i = 0; i < graph->outputs.n; i++) {
            Output *output = &graph->outputs.at[i];
            AxisType *type = output->tensor->type;
            for (int a = 0; !output->tensor->typed && a < choices->layout->mesh.n; a++) {
                AxisType made = output->value->type[a];
                if (type[a].kind == AXIS_SHARDED) continue;
                bool twice = type_is_flat(made) && flat_axis(&choices->layout->mesh, type) >= 0;
                type[a] = twice ? (AxisType){.kind = AXIS_REPLICATED} : made; /* one axis alone stores it in parts */
            }
            output->tensor->typed = true;
            output->value = with_zero_padding(
                &in, convert(&in, output->value, tensor_type(output->tensor), node_phase(output->value)));
        }
    region->nodes = in.out;
}

/* Rule 3: which classes of tensors an axis stores in parts. It leaves alone what it already cuts. */
static bool stores_in_parts(const Layout *layout, int axis, const Tensor *tensor) {
    StoredParts from = tensor->class == CLASS_WEIGHT                   ? STORED_WEIGHTS
                       : tensor->class == CLASS_GRADIENT && tensor->of ? STORED_GRADIENTS
                       : tensor->class == CLASS_MOMENT && tensor->of   ? STORED_OPTIMIZER
                                                                       : STORED_WHOLE;
    if (from == STORED_WHOLE) return false;
    const AxisRules *rules = &layout->axes[axis];
    StoredParts most = rules->stored_all;
    const Tensor *weight = tensor->class == CLASS_WEIGHT ? tensor : tensor->of;
    for (int i = 0; weight && i < rules->blocks.n; i++)
        if (weight->blocks >> (rules->blocks.at[i].block - 1) & 1 && rules->blocks.at[i].stored > most)
            most = rules->blocks.at[i].stored;
    return most >= from;
}

/* What the loader fills is divided by samples and by data sets alone; each use cuts the part of a sample that it needs.
 */
static AxisType stored_type(const Layout *layout, int axis, const Tensor *tensor) {
    AxisType type = layout_type(layout, axis, &tensor->shape);
    bool whole = tensor->class == CLASS_DATA && type.kind == AXIS_SHARDED && !type.dim->is_batch && !type.dim->has_data;
    return whole ? (AxisType){.kind = AXIS_REPLICATED} : type;
}

/* Storage follows rule 1. On the axes that do not cut them, accumulators take the type of what is first written to
 * them, so a partial gradient stays partial until its first use; what the runtime reads or writes is the same on every
 * rank. */
static void type_tensors(Graph *graph, const Layout *layout) {
    for (int i = 0; i < graph->tensors.n; i++) {
        Tensor *tensor = graph->tensors.at[i];
        if (tensor->typed) continue;
        bool parts = false;
        for (int a = 0; a < layout->mesh.n; a++) {
            if (tensor->class != CLASS_SCALAR && tensor->class != CLASS_RESULT)
                tensor->type[a] = stored_type(layout, a, tensor);
            if (parts || tensor->type[a].kind != AXIS_REPLICATED || !stores_in_parts(layout, a, tensor)) continue;
            tensor->type[a] = (AxisType){.kind = AXIS_SHARDED, .layout = LAYOUT_FLAT};
            parts = true;
        }
        tensor->typed = tensor->class != CLASS_GRADIENT;
    }
}

/* ---- storage ------------------------------------------------------------------------------------ */

/* Makes what is flat flat: its shape becomes the range, cut by every axis that cuts the value. */
static void make_flat(Graph *graph, const Layout *layout, Shape *shape, AxisType *type) {
    const Mesh *mesh = &layout->mesh;
    int axis = flat_axis(mesh, type);
    if (axis < 0) return;
    Dim *dim = flat_dim(graph, layout, shape, type, axis);
    *shape = flat_shape(shape, dim);
    for (int a = 0; a < mesh->n; a++)
        if (type[a].kind == AXIS_SHARDED)
            type[a] = (AxisType){.kind = AXIS_SHARDED, .layout = LAYOUT_BLOCK, .dim = dim};
}

/* Clones share their attributes: one that changes gets its own. */
static AttrValue *own_attr(Graph *graph, Node *node, const char *name) {
    int n = op_n_attrs(op_info(node));
    AttrValue *attrs = NEW_N(graph->arena, AttrValue, n);
    memcpy(attrs, node->attrs, sizeof *attrs * (size_t)n);
    node->attrs = attrs;
    return &attrs[op_attr_index(op_info(node), name)];
}

static void flatten_region(Graph *graph, const Layout *layout, Region *region) {
    for (int i = 0; i < region->nodes.n + region->params.n; i++) {
        Node *node = i < region->params.n ? region->params.at[i] : region->nodes.at[i - region->params.n];
        if (node->region) flatten_region(graph, layout, node->region);
        for (int k = 0; k < node->n_outs; k++) make_flat(graph, layout, &node->outs[k].shape, node->outs[k].type);
        if (node->n_outs) node->shape = node->outs[0].shape;
        const Node *x = node->n_in ? node->in[0] : NULL;
        if ((node->op == OP_SUM || node->op == OP_EXACT_SUM) && x->shape.n &&
            x->shape.dims[x->shape.n - 1]->is_flat) { /* in order: the operand is done */
            own_attr(graph, node, "over")->dims = shape_without(&x->shape, &node->shape);
        }
        if (flat_axis(&layout->mesh, node->type) < 0) continue;
        make_flat(graph, layout, &node->shape, node->type);
        if (node->op == OP_BROADCAST) own_attr(graph, node, "dims")->dims = node->shape;
    }
}

/* A tensor that another graph of the step made flat, along an axis that this graph may not store on itself. */
static void add_flat_dims(Graph *graph, const Shape *shape) {
    for (int i = 0; i < shape->n; i++)
        if (shape->dims[i]->is_flat && !graph_find_dim(graph, shape->dims[i]->name))
            vec_push(graph->arena, &graph->dims, shape->dims[i]);
}

static void flatten_tensors(Graph *graph, const Layout *layout) {
    for (int i = 0; i < graph->tensors.n; i++) {
        Tensor *tensor = graph->tensors.at[i];
        add_flat_dims(graph, &tensor->shape);
        if (flat_axis(&layout->mesh, tensor->type) < 0) continue;
        tensor->logical = tensor->shape;
        memcpy(tensor->logical_type, tensor->type, sizeof tensor->type);
        make_flat(graph, layout, &tensor->shape, tensor->type);
    }
}

/* Stacked results that go straight to a stored tensor are brought to its parts layer by layer. */
static void want_stacked(Choices *c, const Graph *graph) {
    for (int i = 0; i < graph->outputs.n; i++) {
        const Output *output = &graph->outputs.at[i];
        const Node *node = output->value;
        if (node->op != OP_RESULT || node->in[0]->op != OP_REPEAT) continue;
        const Node *repeat = node->in[0];
        int64_t k = node_attr(node, "index")->integer;
        AxisType *wanted = map_get(&c->stacked, repeat);
        if (!wanted) {
            wanted = NEW_N(c->arena, AxisType, repeat->n_outs * MAX_MESH);
            map_put(c->arena, &c->stacked, repeat, wanted);
        }
        if (k >= repeat->region->n_carries)
            memcpy(&wanted[k * MAX_MESH], tensor_type(output->tensor), sizeof output->tensor->type);
    }
}

void graph_partition(Graph *graph, const Layout *layout) {
    Mesh *mesh = NEW(graph->arena, Mesh);
    *mesh = layout->mesh;
    type_tensors(graph, layout);
    Choices choices = {.arena = graph->arena,
                       .session = graph->session,
                       .layout = layout,
                       .once = !graph->micro,
                       .reproducible = graph->reproducible};
    want_stacked(&choices, graph);
    choose_region(&choices, &graph->top);
    insert_region(&choices, graph, &graph->top);
    flatten_region(graph, layout, &graph->top);
    flatten_tensors(graph, layout);
    graph->mesh = mesh;
}
