/* The JSON text that the program carries: everything that the runtime has to know and that is not code.
 *
 * In: the facts of the training run, the plan, the schedule and the memory. Out: one text with a constant layout, whose
 * fields docs/program.md describes. Each role has its own tensors, entries and actions. */
#include "codegen/program_to_json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>

typedef struct Describe {
    const ProgramFacts *facts;
    const RoleProgram *role;
    Arena *arena;
} Describe;

static void add_number(cJSON *object, const char *name, double value) { cJSON_AddNumberToObject(object, name, value); }

static const Buffer *buffer_of(const RoleProgram *role, Name tensor) {
    for (int i = 0; i < role->buffers.n; i++)
        if (role->buffers.at[i]->tensor && role->buffers.at[i]->tensor->name == tensor) return role->buffers.at[i];
    return NULL;
}

/* ---- data --------------------------------------------------------------------------------------- */

static cJSON *data_json(const Describe *d, const Dataset *set) {
    static const char *const kinds[] = {[DATA_TEXT] = "text", [DATA_TOKENS] = "tokens", [DATA_ARRAYS] = "arrays"};
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "kind", kinds[set->kind]);
    if (set->kind == DATA_ARRAYS) {
        cJSON *columns = cJSON_AddObjectToObject(object, "columns");
        for (int i = 0; i < set->columns.names.n; i++)
            cJSON_AddStringToObject(columns, set->columns.names.at[i], set->columns.paths.at[i]);
    } else {
        cJSON *paths = cJSON_AddArrayToObject(object, "paths");
        for (int i = 0; i < set->paths.n; i++) cJSON_AddItemToArray(paths, cJSON_CreateString(set->paths.at[i]));
    }
    cJSON_AddStringToObject(object, "span", session_where(d->facts->step->session, set->span));
    return object;
}

/* How many ids an integer input may have: the size of what it indexes. 0: it indexes nothing. */
static int64_t index_limit(const Region *region, const Tensor *tensor) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->region) {
            int64_t inner = index_limit(node->region, tensor);
            if (inner) return inner;
        }
        if (node->op != OP_LOOKUP && node->op != OP_CROSS_ENTROPY) continue;
        const Node *ids = node->in[1];
        while (ids->op == OP_ADD) ids = ids->in[0]; /* the place of an id */
        if (ids->op != OP_INPUT || ids->tensor->name != tensor->name) continue;
        const Shape *over = &node_attr(node, "over")->dims;
        return dim_logical(over->n ? over->dims[0] : node->in[0]->shape.dims[0]);
    }
    return 0;
}

static cJSON *input_json(const Describe *d, const Buffer *buffer) {
    const Tensor *tensor = buffer->tensor;
    const Train *train = d->facts->train;
    bool arrays = train->data.n && train->data.at[0].kind == DATA_ARRAYS;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", tensor->name);
    const char *role = arrays ? "column" : !tensor->of ? "tokens" : tensor->dtype == DT_I32 ? "next" : "mask";
    cJSON_AddStringToObject(object, "role", role);
    if (arrays) cJSON_AddStringToObject(object, "column", tensor->name);
    if (tensor->of) cJSON_AddStringToObject(object, "of", tensor->of->name);
    cJSON_AddStringToObject(object, "dtype", dtype_name[tensor->dtype]);
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    for (int i = 0; i < tensor->shape.n; i++)
        cJSON_AddItemToArray(
            shape, cJSON_CreateNumber((double)local_extent(d->facts->mesh, tensor->type, tensor->shape.dims[i])));
    if (tensor->shape.dims[0]->has_data) { /* a data set for each position: which of them are this rank's */
        cJSON *axes = cJSON_AddArrayToObject(object, "set_axes");
        for (int a = 0; a < d->facts->mesh->n; a++)
            if (tensor->type[a].kind == AXIS_SHARDED && dim_is_cut_by(tensor->shape.dims[0], tensor->type[a].dim))
                cJSON_AddItemToArray(axes, cJSON_CreateNumber(a));
    }
    add_number(object, "bytes", (double)buffer->bytes);
    add_number(object, "offset", (double)buffer->address);
    add_number(object, "slots", buffer->flights);
    add_number(object, "slot_bytes", (double)buffer->bytes);
    int64_t limit = index_limit(&d->facts->step->model->graph->top, tensor);
    if (limit) add_number(object, "limit", (double)limit);
    return object;
}

/* ---- tensors ------------------------------------------------------------------------------------ */

/* Layers in groups are one dimension outside of the compiler. */
static int dim_outside(const Shape *shape, int i) {
    int at = i;
    for (int k = 1; k <= i; k++) at -= shape->dims[k - 1]->nested == shape->dims[k];
    return at;
}

static int64_t layers_of_group(const Dim *dim) { return dim->nested ? dim->nested->size : 1; }

/* `padding`: elements behind the end of each dimension. `uneven`: the sizes of its parts, or null. */
static void add_unequal_parts(cJSON *object, const Shape *logical) {
    bool padded = false;
    for (int i = 0; i < logical->n; i++) padded |= logical->dims[i]->unpadded != 0;
    cJSON *padding = padded ? cJSON_AddArrayToObject(object, "padding") : NULL;
    for (int i = 0; padded && i < logical->n; i++)
        if (i == 0 || logical->dims[i - 1]->nested != logical->dims[i])
            cJSON_AddItemToArray(padding,
                                 cJSON_CreateNumber((double)(logical->dims[i]->size - dim_logical(logical->dims[i]))));
    cJSON *uneven = NULL;
    for (int i = 0; i < logical->n; i++) uneven = logical->dims[i]->n_parts && !uneven ? cJSON_CreateArray() : uneven;
    for (int i = 0; uneven && i < logical->n; i++) {
        const Dim *dim = logical->dims[i];
        if (i && logical->dims[i - 1]->nested == dim) continue;
        cJSON *sizes = dim->n_parts ? cJSON_CreateArray() : cJSON_CreateNull();
        for (int k = 0; k < dim->n_parts; k++) cJSON_AddItemToArray(sizes, cJSON_CreateNumber((double)dim->parts[k]));
        cJSON_AddItemToArray(uneven, sizes);
    }
    if (uneven) cJSON_AddItemToObject(object, "uneven", uneven);
}

/* Rule 3: a part of the elements of each layer. */
static void add_flat(cJSON *object, const Mesh *mesh, const Tensor *tensor) {
    const Dim *range = tensor->shape.dims[tensor->shape.n - 1];
    cJSON *flat = cJSON_AddObjectToObject(object, "flat");
    add_number(flat, "axis", range->stored_axis);
    double blocks = 1;
    for (int i = 0; i + 1 < tensor->shape.n; i++) blocks *= (double)tensor->shape.dims[i]->size;
    add_number(flat, "blocks", blocks);
    add_number(flat, "part", (double)local_extent(mesh, tensor->type, range));
}

static cJSON *tensor_json(const Describe *d, const Buffer *buffer) {
    const Tensor *tensor = buffer->tensor;
    const Mesh *mesh = d->facts->mesh;
    cJSON *object = cJSON_CreateObject();
    size_t length =
        strcspn(tensor->name, "#"); /* further layers of the same weight: of a later chunk, of another range */
    cJSON_AddStringToObject(object, "name", arena_strndup(d->arena, tensor->name, length));
    cJSON_AddStringToObject(object, "class", tensor_class_name[tensor->class]);
    cJSON_AddStringToObject(object, "dtype", dtype_name[tensor->dtype]);
    cJSON *shape = cJSON_AddArrayToObject(object, "shape"), *axes = cJSON_AddArrayToObject(object, "axes");
    const Shape *logical = tensor->logical.n ? &tensor->logical : &tensor->shape;
    const AxisType *type = tensor->logical.n ? tensor->logical_type : tensor->type;
    for (int i = 0; i < logical->n; i++) {
        const Dim *dim = logical->dims[i];
        if (i == 0 || logical->dims[i - 1]->nested != dim)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)(dim->size * layers_of_group(dim))));
    }
    add_unequal_parts(object, logical);
    for (int a = 0; a < mesh->n; a++) {
        int at = type[a].kind == AXIS_SHARDED && type[a].dim ? shape_find(logical, type[a].dim) : -1;
        cJSON_AddItemToArray(axes, at < 0 ? cJSON_CreateNull() : cJSON_CreateNumber(dim_outside(logical, at)));
    }
    for (int a = 0; a < mesh->n; a++) {
        if (type[a].kind != AXIS_SHARDED || type[a].layout != LAYOUT_BALANCED) continue;
        cJSON *balanced = cJSON_GetObjectItem(object, "balanced");
        if (!balanced) balanced = cJSON_AddArrayToObject(object, "balanced");
        cJSON_AddItemToArray(balanced, cJSON_CreateNumber(a));
    }
    if (tensor->logical.n) add_flat(object, mesh, tensor);
    const Dim *lead = logical->n ? logical->dims[0] : NULL;
    if (lead && lead->part_of) { /* a stage's layers */
        int64_t each = layers_of_group(lead);
        cJSON_ReplaceItemInArray(shape, 0,
                                 cJSON_CreateNumber((double)(lead->part_of->size * layers_of_group(lead->part_of))));
        cJSON *part = cJSON_AddObjectToObject(object, "part");
        add_number(part, "first", (double)(lead->first * each));
        add_number(part, "count", (double)(lead->size * each));
    }
    if (tensor->is_copy) cJSON_AddBoolToObject(object, "copy", true);
    add_number(object, "offset", (double)buffer->address);
    add_number(object, "bytes", (double)buffer->bytes);
    return object;
}

static cJSON *small_json(const Buffer *buffer) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", buffer->tensor->name);
    cJSON_AddStringToObject(object, "dtype", dtype_name[buffer->tensor->dtype]);
    add_number(object, "offset", (double)buffer->address);
    if (buffer->tensor->shape.n) {
        cJSON *shape = cJSON_AddArrayToObject(object, "shape");
        for (int i = 0; i < buffer->tensor->shape.n; i++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)buffer->tensor->shape.dims[i]->size));
    }
    return object;
}

/* ---- roles -------------------------------------------------------------------------------------- */

/* A pass, or what it hands over: an entry for each chunk of a stage. False for what runs once a step. */
static bool action_is_of_chunk(ActionKind kind) {
    return kind == ACTION_F || kind == ACTION_B || kind == ACTION_BI || kind == ACTION_BW ||
           (kind >= ACTION_SEND_F && kind <= ACTION_RECV_B);
}

/* The entry of a chunk's action: "F", "F.1"; null where it has nothing to do. */
static void add_action_entry(const Describe *d, cJSON *item, const RoleProgram *role, const Action *action) {
    const char *name = action_text(action->kind);
    if (action->chunk) name = arena_printf(d->arena, "%s.%d", name, action->chunk);
    for (int i = 0; i < role->entries.n; i++)
        if (strcmp(role->entries.at[i].name, name) == 0) {
            cJSON_AddStringToObject(item, "entry", name);
            return;
        }
    cJSON_AddNullToObject(item, "entry");
}

static void add_lists(cJSON *object, const Describe *d, const Buffer **tokens);

static cJSON *role_json(Describe *d, const RoleProgram *role, int first_entry) {
    cJSON *object = cJSON_CreateObject();
    d->role = role;
    if (d->facts->n_roles > 1) add_lists(object, d, NULL);
    add_number(object, "arena_bytes", (double)role->arena_bytes);
    cJSON *memory = cJSON_AddObjectToObject(object, "memory");
    for (int k = 0; k < MEM_KINDS; k++)
        if (k != MEM_SCRATCH) add_number(memory, memory_kind_name[k], (double)role->by_kind[k]);
    add_number(object, "scratch_bytes", (double)role->scratch_bytes);
    cJSON *tensors = cJSON_AddArrayToObject(object, "tensors");
    for (int i = 0; i < role->buffers.n; i++) {
        const Buffer *buffer = role->buffers.at[i];
        if (!buffer->tensor) continue;
        TensorClass class = buffer->tensor->class;
        if (class == CLASS_WEIGHT || class == CLASS_MOMENT || class == CLASS_GRADIENT || class == CLASS_CACHE)
            cJSON_AddItemToArray(tensors, tensor_json(d, buffer));
    }
    cJSON *entries = cJSON_AddObjectToObject(object, "entries");
    for (int i = 0; i < role->entries.n; i++) add_number(entries, role->entries.at[i].name, first_entry + i);
    cJSON *actions = cJSON_AddArrayToObject(object, "actions");
    const RoleSchedule *schedule = &d->facts->schedule->roles[role->role];
    for (int i = 0; i < schedule->actions.n; i++) {
        const Action *action = &schedule->actions.at[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "kind", action_text(action->kind));
        add_number(item, "chunk", action->chunk);
        add_number(item, "micro", action->micro);
        if (action_is_of_chunk(action->kind) && d->facts->n_roles > 1) add_action_entry(d, item, role, action);
        cJSON_AddItemToArray(actions, item);
    }
    return object;
}

static cJSON *optimizer_json(const Train *train) {
    static const char *const rates[] = {
        [RATE_CONSTANT] = "constant", [RATE_LINEAR] = "linear", [RATE_COSINE] = "cosine"};
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "kind", train->optimizer.kind == OPT_SGD ? "sgd" : "adamw");
    cJSON *lr = cJSON_AddObjectToObject(object, "lr");
    const Rate *rate = &train->optimizer.rate;
    cJSON_AddStringToObject(lr, "kind", rates[rate->kind]);
    add_number(lr, "peak", rate->peak);
    add_number(lr, "warmup", (double)rate->warmup);
    add_number(lr, "end", isnan(rate->end) ? 0 : rate->end);
    add_number(lr, "steps", (double)train->steps);
    return object;
}

static void add_run(cJSON *root, const Train *train) {
    cJSON_AddItemToObject(root, "optimizer", optimizer_json(train));
    if (train->eval_every > 0) {
        cJSON *eval = cJSON_AddObjectToObject(root, "eval");
        add_number(eval, "every", (double)train->eval_every);
        add_number(eval, "batches", (double)train->eval_batches);
    }
    if (train->save_every > 0 || train->save_to) {
        cJSON *save = cJSON_AddObjectToObject(root, "save");
        add_number(save, "every", (double)train->save_every);
        cJSON_AddStringToObject(save, "path", train->save_to ? train->save_to : "checkpoints");
        add_number(save, "keep", (double)train->save_keep);
    }
    if (train->from) cJSON_AddStringToObject(root, "from", train->from);
}

/* FNV-1a of the source and the plan's name. */
static const char *program_hash(const ProgramFacts *f, Arena *arena) {
    uint64_t hash = 14695981039346656037u;
    const SourceFile *file = session_file(f->step->session, f->plan->span);
    for (int32_t i = 0; file && i < file->size; i++) hash = (hash ^ (unsigned char)file->text[i]) * 1099511628211u;
    for (const char *at = f->plan->name; *at; at++) hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    return arena_printf(arena, "%016llx", (unsigned long long)hash);
}

/* Inputs that only later stages have. */
static void add_other_inputs(cJSON *root, Describe *d) {
    cJSON *inputs = cJSON_GetObjectItem(root, "inputs");
    for (int r = 1; r < d->facts->n_roles; r++)
        for (int i = 0; i < d->facts->roles[r]->buffers.n; i++) {
            const Buffer *buffer = d->facts->roles[r]->buffers.at[i];
            if (!buffer->tensor || buffer->tensor->class != CLASS_DATA) continue;
            bool known = false;
            for (const cJSON *item = inputs->child; item; item = item->next)
                known |= strcmp(cJSON_GetObjectItem(item, "name")->valuestring, buffer->tensor->name) == 0;
            if (!known) cJSON_AddItemToArray(inputs, input_json(d, buffer));
        }
}

static void add_lists(cJSON *root, const Describe *d, const Buffer **tokens) {
    cJSON *inputs = cJSON_AddArrayToObject(root, "inputs"), *scalars = cJSON_AddArrayToObject(root, "scalars"),
          *results = cJSON_AddArrayToObject(root, "results");
    const Buffer *token = buffer_of(d->role, intern(d->facts->step->session->names, "decode.token"));
    for (int i = 0; i < d->role->buffers.n; i++) {
        const Buffer *buffer = d->role->buffers.at[i];
        if (!buffer->tensor || buffer == token) continue;
        if (buffer->tensor->class == CLASS_DATA) {
            cJSON *input = input_json(d, buffer);
            if (token && !buffer->tensor->of) add_number(input, "decode_offset", (double)token->address);
            cJSON_AddItemToArray(inputs, input);
            if (tokens && !buffer->tensor->of) *tokens = buffer;
        } else if (buffer->tensor->class == CLASS_SCALAR)
            cJSON_AddItemToArray(scalars, small_json(buffer));
        else if (buffer->tensor->class == CLASS_RESULT)
            cJSON_AddItemToArray(results, small_json(buffer));
    }
}

/* The mesh, the axes that divide the data, and how many ranks each machine of the cluster has. */
static void add_mesh(cJSON *root, const ProgramFacts *f) {
    cJSON *mesh = cJSON_AddArrayToObject(root, "mesh"), *data_axes = cJSON_AddArrayToObject(root, "data_axes");
    for (int a = 0; a < f->mesh->n; a++) {
        cJSON *axis = cJSON_CreateObject();
        cJSON_AddStringToObject(axis, "name", f->mesh->axes[a].name);
        add_number(axis, "size", (double)f->mesh->axes[a].size);
        cJSON_AddItemToArray(mesh, axis);
        if (f->batch_on_axis[a]) cJSON_AddItemToArray(data_axes, cJSON_CreateNumber(a));
    }
    const Cluster *cluster = f->plan->cluster;
    int64_t n_machines = 0;
    for (int i = 0; cluster && i < cluster->groups.n; i++) n_machines += cluster->groups.at[i].nodes;
    cJSON *machines = n_machines > 1 ? cJSON_AddArrayToObject(root, "machines") : NULL;
    for (int i = 0; machines && i < cluster->groups.n; i++)
        for (int64_t k = 0; k < cluster->groups.at[i].nodes; k++)
            cJSON_AddItemToArray(machines, cJSON_CreateNumber((double)cluster->groups.at[i].gpus));
}

const char *program_to_json(const ProgramFacts *f) {
    Session *s = f->step->session;
    Describe d = {.facts = f, .arena = s->arena, .role = f->roles[0]};
    const Train *train = f->train;
    const ModelGraph *model = f->step->model;
    cJSON *root = cJSON_CreateObject();
    add_number(root, "abi", 1);
    cJSON_AddStringToObject(root, "compiler", PLAN_VERSION);
    const SourceFile *file = session_file(s, f->plan->span);
    cJSON_AddStringToObject(root, "source", file ? file->path : "");
    cJSON_AddStringToObject(root, "plan", f->plan->name);
    cJSON_AddStringToObject(root, "model", train->model_name);
    cJSON_AddStringToObject(root, "hash", program_hash(f, s->arena));
    add_mesh(root, f);
    add_number(root, "threads", (double)f->plan->threads);
    add_number(root, "seed", (double)train->seed);
    add_number(root, "steps", (double)train->steps);
    add_number(root, "batch", (double)train->batch);
    add_number(root, "micro_batch", (double)f->step->micro_batch);
    add_number(root, "micros", (double)f->step->micros);
    add_number(root, "flops_per_token", model->flops_per_token);
    add_number(root, "parameters", (double)model->parameters);
    cJSON *data = cJSON_AddArrayToObject(root, "data"), *validation = cJSON_AddArrayToObject(root, "validation");
    for (int i = 0; i < train->data.n; i++) cJSON_AddItemToArray(data, data_json(&d, &train->data.at[i]));
    for (int i = 0; i < train->validation.n; i++)
        cJSON_AddItemToArray(validation, data_json(&d, &train->validation.at[i]));
    add_number(root, "split", train->split);
    const Buffer *tokens = NULL;
    if (f->n_roles > 1) add_number(root, "role_axis", f->step_axis);
    add_number(root, "channels", f->n_channels);
    add_lists(root, &d, &tokens);
    add_other_inputs(root, &d);
    int64_t seq = model->seq ? model->seq->size : 1;
    add_number(root, "vocab", tokens ? (double)index_limit(&model->graph->top, tokens->tensor) : 0);
    add_number(root, "seq", (double)seq);
    int64_t sets = train->data_dim && train->data.n ? train->data.n : 1;
    add_number(root, "tokens_per_step", (double)(train->batch * seq * sets));
    add_run(root, train);
    cJSON *roles = cJSON_AddArrayToObject(root, "roles");
    int first = 0;
    for (int r = 0; r < f->n_roles; r++) {
        cJSON_AddItemToArray(roles, role_json(&d, f->roles[r], first));
        first += f->roles[r]->entries.n;
    }
    char *text = cJSON_PrintUnformatted(root);
    const char *kept = arena_strndup(s->arena, text, strlen(text));
    free(text);
    cJSON_Delete(root);
    return kept;
}
