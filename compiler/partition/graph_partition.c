/* Inserts every conversion that the choices of choose.c ask for: the only place where collectives come from.
 *
 * A conversion belongs to the use; equal conversions of one value in one region are shared. On several axes the parts
 * are joined from the innermost axis outwards and cut from the outermost inwards, as blocks of a dimension are nested. */
#include "partition/choose.h"

typedef struct Converted {
    Node *value, *result;
} Converted;

typedef struct Inserter {
    Choices *choices;
    Graph *graph;
    Region *region;
    NodeList out; /* the region's new list */
    VEC(Converted) done;
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

static Node *convert_axis(Inserter *in, Node *value, int axis, AxisType to) {
    AxisType from = value->type[axis];
    Node *node = NEW(in->graph->arena, Node);
    node->op = collective_for(from, to);
    node->id = in->graph->n_nodes++;
    node->dtype = value->dtype, node->shape = value->shape, node->span = value->span, node->name = value->name;
    node->backward = value->backward;
    node->in = NEW(in->graph->arena, Node *);
    node->in[0] = value, node->n_in = 1;
    node->attrs = NEW_N(in->graph->arena, AttrValue, 6);
    set_attr(node, "axis", (AttrValue){.integer = axis});
    Dim *dim = to.kind == AXIS_SHARDED ? to.dim : from.dim;
    if (dim) set_attr(node, "dim", (AttrValue){.dims = {.dims = {dim}, .n = 1}});
    if (from.kind == AXIS_SHARDED) set_attr(node, "from", (AttrValue){.dims = {.dims = {from.dim}, .n = 1}});
    if (to.kind == AXIS_SHARDED) set_attr(node, "to", (AttrValue){.dims = {.dims = {to.dim}, .n = 1}});
    static const char *const reduce_names[] = {"sum", "max", "min", "or"};
    set_attr(node, "reduce", (AttrValue){.integer = from.reduce, .name = intern(in->graph->session->names, reduce_names[from.reduce])});
    memcpy(node->type, value->type, sizeof node->type);
    node->type[axis] = to;
    vec_push(in->graph->arena, &in->out, node);
    return node;
}

/* The value in the types that a use needs. */
static Node *convert(Inserter *in, Node *value, const AxisType *need, bool backward) {
    int n = in->choices->layout->mesh.n;
    if (types_equal(in, value->type, need)) return value;
    for (int i = 0; i < in->done.n; i++)
        if (in->done.at[i].value == value && types_equal(in, in->done.at[i].result->type, need)) return in->done.at[i].result;
    Node *result = value;
    if (node_is_source(value) || (value->op == OP_BROADCAST && node_is_source(value->in[0]))) {
        result = clone_source(in, value, need);
    } else {
        for (int a = n - 1; a >= 0; a--)
            if (!axis_type_equal(result->type[a], need[a]) && need[a].kind == AXIS_REPLICATED)
                result = convert_axis(in, result, a, need[a]), result->backward |= backward;
        for (int a = 0; a < n; a++)
            if (!axis_type_equal(result->type[a], need[a]))
                result = convert_axis(in, result, a, need[a]), result->backward |= backward;
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
                if (node->op != OP_RESULT) node->in[k] = convert(&in, node->in[k], &need[k * MAX_MESH], node->backward);
        }
        if (node->op == OP_REPEAT) insert_region(choices, graph, node->region);
        vec_push(graph->arena, &in.out, node);
    }
    for (int i = 0; i < region->n_carries; i++)
        region->results.at[i] = convert(&in, region->results.at[i], region->params.at[i]->type, false);
    if (!region->parent)
        for (int i = 0; i < graph->outputs.n; i++) {
            Output *output = &graph->outputs.at[i];
            if (!output->tensor->typed) {
                memcpy(output->tensor->type, output->value->type, sizeof output->tensor->type);
                output->tensor->typed = true;
            }
            output->value = convert(&in, output->value, output->tensor->type, false);
        }
    region->nodes = in.out;
}

/* What the loader fills is divided by samples alone; each use cuts the part of a sample that it needs. */
static AxisType stored_type(const Layout *layout, int axis, const Tensor *tensor) {
    AxisType type = layout_type(layout, axis, &tensor->shape);
    bool whole = tensor->class == CLASS_DATA && type.kind == AXIS_SHARDED && !type.dim->is_batch;
    return whole ? (AxisType){.kind = AXIS_REPLICATED} : type;
}

/* Storage follows rule 1; accumulators take the type of what is first written to them, so a partial gradient stays
 * partial until its first use; what the runtime reads or writes is the same on every rank. */
static void type_tensors(Graph *graph, const Layout *layout) {
    for (int i = 0; i < graph->tensors.n; i++) {
        Tensor *tensor = graph->tensors.at[i];
        if (tensor->typed || tensor->class == CLASS_GRADIENT) continue;
        for (int a = 0; a < layout->mesh.n; a++)
            if (tensor->class != CLASS_SCALAR && tensor->class != CLASS_RESULT) tensor->type[a] = stored_type(layout, a, tensor);
        tensor->typed = true;
    }
}

void graph_partition(Graph *graph, const Layout *layout) {
    Mesh *mesh = NEW(graph->arena, Mesh);
    *mesh = layout->mesh;
    type_tensors(graph, layout);
    Choices choices = {.arena = graph->arena, .layout = layout};
    choose_region(&choices, &graph->top);
    insert_region(&choices, graph, &graph->top);
    graph->mesh = mesh;
}
