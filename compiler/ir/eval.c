/* The evaluator: runs a graph on simulated ranks in lockstep, node by node, everything in double precision; a value of
 * a 16-bit type is rounded to it.
 *
 * A Machine holds the tensors of all ranks between runs. Every node has one array for each result and rank, as large as
 * what the rank holds of it by the node's types; the arrays of a repeat's body are used again for each layer. Since all
 * ranks have finished a node before the next one starts, collectives just read the other ranks' arrays (eval_peer). */
#include "ir/loop_math.h"
#include "ir/op.h"

#include <math.h>

struct Machine {
    Session *session;
    Arena *arena;
    const Mesh *mesh; /* NULL: one rank */
    int64_t n_ranks;
    Map tensors; /* Tensor * -> Array ** (one for each rank) */
    struct Run *run;
};

/* One run of one graph. */
typedef struct Run {
    Machine *machine;
    Arena *arena;
    Array ***values;       /* [node id]: for each rank, for each result: values[id][rank * n_outs + k] */
    EvalContext *contexts; /* for each rank */
} Run;

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

bool array_next(const Array *array, int64_t *index) {
    for (int d = array->shape.n - 1; d >= 0; d--) {
        if (++index[d] < array->extent[d]) return true;
        index[d] = 0;
    }
    return false;
}

int64_t array_offset(const Array *array, const Array *other, const int64_t *index) {
    int64_t offset = 0;
    for (int d = 0; d < array->shape.n; d++) {
        int at = shape_find(&other->shape, array->shape.dims[d]);
        offset = offset * array->extent[d] + (at < 0 ? 0 : index[at]);
    }
    return offset;
}

double array_at(const Array *array, const Array *other, const int64_t *index) {
    return array->at[array_offset(array, other, index)];
}

static Array *new_array(Arena *arena, const Mesh *mesh, DType dtype, const Shape *shape, const AxisType *type) {
    Array *array = NEW(arena, Array);
    array->dtype = dtype;
    array->shape = *shape;
    array->n = 1;
    for (int d = 0; d < shape->n; d++) {
        array->extent[d] = local_extent(mesh, type, shape->dims[d]);
        array->n *= array->extent[d];
    }
    array->at = NEW_N(arena, double, array->n);
    return array;
}

/* To the nearest number of a 16-bit type; other types stay in double precision. */
static void round_array(Array *array) {
    if (array->dtype != DT_BF16 && array->dtype != DT_F16) return;
    for (int64_t i = 0; i < array->n; i++) {
        float x = (float)array->at[i];
        array->at[i] =
            (double)(array->dtype == DT_BF16 ? loop_from_bf16(loop_to_bf16(x)) : loop_from_f16(loop_to_f16(x)));
    }
}

static void copy_array(Array *to, const Array *from) {
    CHECK(to->n == from->n);
    memcpy(to->at, from->at, sizeof(double) * (size_t)to->n);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

Machine *machine_new(Session *session, const Mesh *mesh) {
    Machine *machine = NEW(session->arena, Machine);
    machine->session = session;
    machine->arena = session->arena;
    machine->mesh = mesh;
    machine->n_ranks = mesh_ranks(mesh);
    return machine;
}

Array *machine_array(Machine *machine, const Tensor *tensor, int64_t rank) {
    Array **arrays = map_get(&machine->tensors, tensor);
    if (!arrays) {
        arrays = NEW_N(machine->arena, Array *, machine->n_ranks);
        for (int64_t r = 0; r < machine->n_ranks; r++)
            arrays[r] = new_array(machine->arena, machine->mesh, tensor->dtype, &tensor->shape, tensor->type);
        map_put(machine->arena, &machine->tensors, tensor, arrays);
    }
    return arrays[rank];
}

/* Offset in the global contents of the element at a local index. */
static int64_t global_offset(const Machine *machine, const Tensor *tensor, int64_t rank, const int64_t *index) {
    int64_t offset = 0;
    for (int d = 0; d < tensor->shape.n; d++) {
        Dim *dim = tensor->shape.dims[d];
        offset = offset * dim->size + local_to_logical(machine->mesh, tensor->type, dim, rank, index[d]);
    }
    return offset;
}

static double reduce_identity(ReduceKind reduce) {
    return reduce == REDUCE_MAX ? -INFINITY : reduce == REDUCE_MIN ? INFINITY : 0;
}

static double reduce_pair(ReduceKind reduce, double x, double y) {
    switch (reduce) {
    case REDUCE_SUM: return x + y;
    case REDUCE_MAX: return x > y ? x : y;
    case REDUCE_MIN: return x < y ? x : y;
    case REDUCE_OR: return x != 0 || y != 0;
    }
    return 0;
}

/* How a partial tensor is reduced (one kind on all axes), and whether this rank is the first along its partial axes. */
static bool partial_of(const Machine *machine, const Tensor *tensor, int64_t rank, ReduceKind *reduce, bool *first) {
    bool partial = false;
    *first = true;
    *reduce = REDUCE_SUM;
    for (int axis = 0; machine->mesh && axis < machine->mesh->n; axis++) {
        if (tensor->type[axis].kind != AXIS_PARTIAL) continue;
        partial = true;
        *reduce = tensor->type[axis].reduce;
        if (mesh_coordinate(machine->mesh, rank, axis) != 0) *first = false;
    }
    return partial;
}

void machine_set(Machine *machine, const Tensor *tensor, const double *global) {
    for (int64_t rank = 0; rank < machine->n_ranks; rank++) {
        Array *array = machine_array(machine, tensor, rank);
        ReduceKind reduce;
        bool first;
        bool partial = partial_of(machine, tensor, rank, &reduce, &first);
        int64_t index[MAX_RANK] = {0}, at = 0;
        do {
            double value = global[global_offset(machine, tensor, rank, index)];
            array->at[at++] = partial && !first ? reduce_identity(reduce) : value;
        } while (array_next(array, index));
        round_array(array);
    }
}

/* A replicated value is read from the last rank that holds it; the ranks along partial axes are joined. */
void machine_get(Machine *machine, const Tensor *tensor, double *global) {
    ReduceKind reduce;
    bool first;
    bool partial = partial_of(machine, tensor, 0, &reduce, &first);
    int64_t n = shape_elements(&tensor->shape);
    for (int64_t i = 0; i < n; i++) global[i] = partial ? reduce_identity(reduce) : NAN;
    for (int64_t rank = 0; rank < machine->n_ranks; rank++) {
        bool counts = true; /* along replicated axes one rank of each group counts */
        for (int axis = 0; machine->mesh && axis < machine->mesh->n; axis++) {
            AxisKind kind = tensor->type[axis].kind;
            if (partial && kind != AXIS_PARTIAL && kind != AXIS_SHARDED &&
                mesh_coordinate(machine->mesh, rank, axis) != 0)
                counts = false;
        }
        if (!counts) continue;
        const Array *array = machine_array(machine, tensor, rank);
        int64_t index[MAX_RANK] = {0}, at = 0;
        do {
            double *to = &global[global_offset(machine, tensor, rank, index)];
            *to = partial ? reduce_pair(reduce, *to, array->at[at]) : array->at[at];
            at++;
        } while (array_next(array, index));
    }
}

/* ---- values of nodes --------------------------------------------------------------------------------------------- */

static int n_results(const Node *node) { return node->n_outs ? node->n_outs : 1; }

static OutType result_type(const Node *node, int k) {
    if (node->n_outs) return node->outs[k];
    OutType type = {.dtype = node->dtype, .shape = node->shape};
    memcpy(type.type, node->type, sizeof type.type);
    return type;
}

/* The arrays of a node on one rank, made at first use. */
static Array **results_of(Run *run, const Node *node, int64_t rank) {
    int n = n_results(node);
    if (!run->values[node->id]) {
        Array **all = NEW_N(run->arena, Array *, run->machine->n_ranks * n);
        for (int64_t r = 0; r < run->machine->n_ranks; r++)
            for (int k = 0; k < n; k++) {
                OutType type = result_type(node, k);
                all[r * n + k] = new_array(run->arena, run->machine->mesh, type.dtype, &type.shape, type.type);
            }
        run->values[node->id] = all;
    }
    return run->values[node->id] + rank * n;
}

/* The value of a node that has one result. */
static Array *value_of(Run *run, const Node *node, int64_t rank) {
    if (node->op == OP_RESULT) return results_of(run, node->in[0], rank)[node_attr(node, "index")->integer];
    return results_of(run, node, rank)[0];
}

const Array *eval_peer(const EvalContext *context, const Node *node, int64_t rank) {
    return value_of(context->machine->run, node, rank);
}

int64_t eval_logical(const EvalContext *context, const Node *node, const Dim *dim, int64_t local) {
    const AxisType *type = node->n_outs ? node->outs[0].type : node->type;
    int64_t index = local_to_logical(context->mesh, type, dim, context->rank, local);
    return (dim->is_batch ? index + context->micro * dim->size : index) + dim->first;
}

int64_t eval_offset(const EvalContext *context, const Node *node, const Dim *dim) {
    return eval_logical(context, node, dim, 0);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void run_nodes(Run *run, const Region *region);

/* Numbers of the program are never stored in their type. */
static bool is_number(const Node *node) {
    if (node->op == OP_CAST || node->op == OP_BROADCAST) return is_number(node->in[0]);
    return node->op == OP_CONST || node->op == OP_VECTOR;
}

static void run_operator(Run *run, const Node *node) {
    const OpInfo *info = op_info(node);
    if (!info->eval) BUG("operator %s cannot be evaluated", info->name);
    const Array **in = NEW_N(run->arena, const Array *, node->n_in + 1);
    for (int64_t rank = 0; rank < run->machine->n_ranks; rank++) {
        for (int i = 0; i < node->n_in; i++) in[i] = value_of(run, node->in[i], rank);
        info->eval(&run->contexts[rank], node, in, results_of(run, node, rank));
        for (int k = 0; k < n_results(node) && !is_number(node); k++) round_array(results_of(run, node, rank)[k]);
    }
}

/* Copies one layer's part: layer `index` of `stacked`, whose first dimension is the repeat's. */
static void copy_layer(Array *stacked, Array *layer, int64_t index, bool into_stack) {
    double *at = stacked->at + index * layer->n;
    CHECK((index + 1) * layer->n <= stacked->n);
    if (into_stack)
        memcpy(at, layer->at, sizeof(double) * (size_t)layer->n);
    else
        memcpy(layer->at, at, sizeof(double) * (size_t)layer->n);
}

static void set_params(Run *run, const Node *node, int64_t rank, int64_t index, bool first) {
    const Region *region = node->region;
    for (int i = 0; i < region->params.n; i++) {
        Array *param = value_of(run, region->params.at[i], rank);
        Array *outer = value_of(run, node->in[i], rank);
        bool carry = i < region->n_carries, slice = !carry && i < region->n_carries + region->n_slices;
        if (slice)
            copy_layer(outer, param, index, false);
        else if (first)
            copy_array(param, outer);
    }
}

/* The next value of each carry, all at once: a result may be the parameter of another carry. */
static void advance_carries(Run *run, const Region *region, int64_t rank) {
    double **next = NEW_N(run->arena, double *, region->n_carries + 1);
    for (int i = 0; i < region->n_carries; i++) {
        const Array *result = value_of(run, region->results.at[i], rank);
        next[i] = NEW_N(run->arena, double, result->n);
        memcpy(next[i], result->at, sizeof(double) * (size_t)result->n);
    }
    for (int i = 0; i < region->n_carries; i++) {
        Array *param = value_of(run, region->params.at[i], rank);
        memcpy(param->at, next[i], sizeof(double) * (size_t)param->n);
    }
}

static void run_repeat(Run *run, const Node *node) {
    const Region *region = node->region;
    int64_t n = region->dim->size, n_ranks = run->machine->n_ranks, outer_layer = run->contexts[0].layer;
    for (int64_t step = 0; step < n; step++) {
        int64_t index = region->descending ? n - 1 - step : step;
        for (int64_t rank = 0; rank < n_ranks; rank++) {
            run->contexts[rank].layer = region->dim->first + index;
            set_params(run, node, rank, index, step == 0);
        }
        run_nodes(run, region);
        for (int64_t rank = 0; rank < n_ranks; rank++) {
            for (int k = 0; k < region->n_stacked; k++)
                copy_layer(results_of(run, node, rank)[region->n_carries + k],
                           value_of(run, region->results.at[region->n_carries + k], rank), index, true);
            advance_carries(run, region, rank);
        }
    }
    for (int64_t rank = 0; rank < n_ranks; rank++) {
        run->contexts[rank].layer = outer_layer;
        for (int i = 0; i < region->n_carries; i++)
            copy_array(results_of(run, node, rank)[i], value_of(run, region->params.at[i], rank));
    }
}

static void run_nodes(Run *run, const Region *region) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->op == OP_PARAM || node->op == OP_RESULT) continue;
        if (node->op == OP_INPUT) {
            for (int64_t rank = 0; rank < run->machine->n_ranks; rank++)
                copy_array(value_of(run, node, rank), machine_array(run->machine, node->tensor, rank));
        } else if (node->op == OP_REPEAT) {
            run_repeat(run, node);
        } else {
            run_operator(run, node);
        }
    }
}

/* All outputs at once: inputs show what the tensors held before the run. */
static void write_outputs(Run *run, const Graph *graph) {
    for (int64_t rank = 0; rank < run->machine->n_ranks; rank++)
        for (int i = 0; i < graph->outputs.n; i++) {
            const Output *output = &graph->outputs.at[i];
            const Array *value = value_of(run, output->value, rank);
            Array *tensor = machine_array(run->machine, output->tensor, rank);
            CHECK(value->n == tensor->n);
            for (int64_t k = 0; k < value->n; k++)
                tensor->at[k] = output->accumulate ? tensor->at[k] + value->at[k] : value->at[k];
        }
}

/* Scalars that the runtime fills: what the contexts say. */
static void fill_scalars(Machine *machine, const Graph *graph, int64_t micro, int64_t step, uint32_t seed) {
    for (int i = 0; i < graph->tensors.n; i++) {
        const Tensor *tensor = graph->tensors.at[i];
        if (tensor->class != CLASS_SCALAR) continue;
        for (int64_t rank = 0; rank < machine->n_ranks; rank++) {
            double *at = machine_array(machine, tensor, rank)->at;
            if (strcmp(tensor->name, "micro") == 0) *at = (double)micro;
            if (strcmp(tensor->name, "step") == 0) *at = (double)step;
            if (strcmp(tensor->name, "seed") == 0) *at = (double)(int32_t)seed;
            for (int axis = 0; machine->mesh && axis < machine->mesh->n; axis++)
                if (strncmp(tensor->name, "coord.", 6) == 0 &&
                    strcmp(tensor->name + 6, machine->mesh->axes[axis].name) == 0)
                    *at = (double)mesh_coordinate(machine->mesh, rank, axis);
        }
    }
}

static int64_t position_of(Machine *machine, const Graph *graph) {
    for (int i = 0; i < graph->tensors.n; i++)
        if (graph->tensors.at[i]->class == CLASS_SCALAR && strcmp(graph->tensors.at[i]->name, "position") == 0)
            return (int64_t)machine_array(machine, graph->tensors.at[i], 0)->at[0];
    return 0;
}

void machine_run(Machine *machine, const Graph *graph, int64_t micro, int64_t step, uint32_t seed) {
    fill_scalars(machine, graph, micro, step, seed);
    int64_t position = position_of(machine, graph);
    Run run = {.machine = machine, .arena = arena_new()};
    run.values = NEW_N(run.arena, Array **, graph->n_nodes);
    run.contexts = NEW_N(run.arena, EvalContext, machine->n_ranks);
    for (int64_t rank = 0; rank < machine->n_ranks; rank++)
        run.contexts[rank] = (EvalContext){.arena = run.arena,
                                           .mesh = machine->mesh,
                                           .rank = rank,
                                           .micro = micro,
                                           .seed = seed,
                                           .step = step,
                                           .position = position,
                                           .machine = machine};
    machine->run = &run;
    run_nodes(&run, &graph->top);
    write_outputs(&run, graph);
    machine->run = NULL;
    arena_free(run.arena);
}
