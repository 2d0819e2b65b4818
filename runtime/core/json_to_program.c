/* plan_program (JSON) to PrtProgram. Every field is checked for presence, type and range, and the numbers that the
 * runtime relies on for their agreement, so that a description from another version is refused, not misread. */
#include "core/json_read.h"
#include "core/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM (INT64_C(1) << 52) /* numbers above this are not exact in JSON */

static PrtDType read_dtype(PrtReader *r, const PrtJson *object) {
    const PrtJson *item = prt_read_field(object, "dtype");
    for (int i = 0; prt_json_is(item, PRT_JSON_TEXT) && i < PRT_DTYPES; i++) {
        if (!strcmp(item->text, prt_dtype_name[i])) return (PrtDType)i;
    }
    prt_read_fail(r, "`%sdtype` is not one that this runtime knows", r->at);
    return PRT_F32;
}

static int read_shape(PrtReader *r, const PrtJson *object, int64_t *shape) {
    const PrtJson *items = prt_read_list(r, object, "shape", true), *item;
    int n = 0;
    double elements = 1;
    PRT_JSON_EACH(item, items) {
        if (n == PRT_MAX_DIMS) {
            prt_read_fail(r, "`%sshape` has more than %d dimensions", r->at, PRT_MAX_DIMS);
            break;
        }
        shape[n] = prt_read_whole(r, item, "shape", 0, ROOM);
        elements *= (double)shape[n++];
    }
    if (elements > (double)ROOM) prt_read_fail(r, "`%sshape` is too large", r->at);
    return n;
}

static void read_mesh(PrtReader *r, const PrtJson *root) {
    PrtProgram *p = r->program;
    const PrtJson *mesh = prt_read_list(r, root, "mesh", true), *axes = prt_read_list(r, root, "data_axes", false),
                  *item;
    int64_t ranks = 1;
    PRT_JSON_EACH(item, mesh) {
        prt_read_at(r, "mesh[%d].", p->n_axes);
        if (p->n_axes == PRT_MAX_AXES) {
            prt_read_fail(r, "the mesh has more than %d axes", PRT_MAX_AXES);
            break;
        }
        PrtAxis *axis = &p->mesh[p->n_axes++];
        axis->name = prt_read_text(r, item, "name");
        axis->size = (int)prt_read_number(r, item, "size", 1, PRT_MAX_RANKS);
        ranks *= axis->size;
        if (ranks > PRT_MAX_RANKS) {
            prt_read_fail(r, "the mesh has %lld ranks; on one machine at most %d", (long long)ranks, PRT_MAX_RANKS);
            break;
        }
    }
    p->n_ranks = (int)ranks;
    prt_read_at(r, "%s", "");
    p->data_ranks = 1;
    PRT_JSON_EACH(item, axes) {
        if (p->n_data_axes == p->n_axes || r->failed) {
            prt_read_fail(r, "`data_axes` names more axes than the mesh has");
            break;
        }
        int axis = (int)prt_read_whole(r, item, "data_axes", 0, p->n_axes - 1);
        for (int i = 0; i < p->n_data_axes; i++) {
            if (p->data_axes[i] == axis) prt_read_fail(r, "`data_axes` names axis %d twice", axis);
        }
        p->data_axes[p->n_data_axes++] = axis;
        p->data_ranks *= p->mesh[axis].size;
    }
}

/* `machines`: how many ranks each machine of the plan's cluster has. */
static void read_machines(PrtReader *r, const PrtJson *root) {
    PrtProgram *p = r->program;
    const PrtJson *machines = prt_read_list(r, root, "machines", false), *item;
    if (!machines) return;
    p->machine = prt_read_alloc(r, p->n_ranks, sizeof *p->machine);
    int rank = 0, machine = 0;
    PRT_JSON_EACH(item, machines) {
        int64_t n = prt_read_whole(r, item, "machines", 1, p->n_ranks);
        for (int64_t i = 0; i < n && rank < p->n_ranks && p->machine; i++) p->machine[rank++] = machine;
        machine++;
    }
    if (rank != p->n_ranks) prt_read_fail(r, "`machines` has %d ranks, the mesh %d", rank, p->n_ranks);
}

static void read_dataset(PrtReader *r, const PrtJson *object, PrtDataset *set) {
    set->span = prt_read_text_or(r, object, "span", "");
    if (prt_read_is(object, "kind", "arrays")) {
        set->kind = PRT_DATA_ARRAYS;
        const PrtJson *columns = prt_read_field(object, "columns"), *item;
        if (!prt_json_is(columns, PRT_JSON_OBJECT)) prt_read_fail(r, "`%scolumns` is missing", r->at);
        int n = prt_json_size(columns);
        set->paths = prt_read_alloc(r, n, sizeof *set->paths);
        set->columns = prt_read_alloc(r, n, sizeof *set->columns);
        if (r->failed) return;
        PRT_JSON_EACH(item, columns) {
            if (!prt_json_is(item, PRT_JSON_TEXT))
                prt_read_fail(r, "`%scolumns` holds something that is no path", r->at);
            set->columns[set->n_paths] = prt_read_copy(r, item->name);
            set->paths[set->n_paths++] = prt_read_copy(r, prt_json_is(item, PRT_JSON_TEXT) ? item->text : "");
        }
    } else {
        if (prt_read_is(object, "kind", "tokens"))
            set->kind = PRT_DATA_TOKENS;
        else if (prt_read_is(object, "kind", "text"))
            set->kind = PRT_DATA_TEXT;
        else
            prt_read_fail(r, "`%skind` is none of `text`, `tokens` and `arrays`", r->at);
        const PrtJson *paths = prt_read_list(r, object, "paths", true), *item;
        set->paths = prt_read_alloc(r, prt_json_size(paths), sizeof *set->paths);
        if (r->failed) return;
        PRT_JSON_EACH(item, paths) {
            if (!prt_json_is(item, PRT_JSON_TEXT)) prt_read_fail(r, "`%spaths` holds something that is no path", r->at);
            set->paths[set->n_paths++] = prt_read_copy(r, prt_json_is(item, PRT_JSON_TEXT) ? item->text : "");
        }
    }
    if (!set->n_paths) prt_read_fail(r, "`%s` names no file", r->at);
}

static PrtDataset *read_datasets(PrtReader *r, const PrtJson *root, const char *name, int *n) {
    const PrtJson *items = prt_read_list(r, root, name, false), *item;
    PrtDataset *sets = prt_read_alloc(r, prt_json_size(items), sizeof *sets);
    *n = 0;
    PRT_JSON_EACH(item, items) {
        if (r->failed) break;
        prt_read_at(r, "%s[%d].", name, *n);
        read_dataset(r, item, &sets[(*n)++]);
    }
    prt_read_at(r, "%s", "");
    return sets;
}

/* `set_axes`: the first dimension counts data sets, divided over these axes. It is taken off the shape. */
static void read_sets(PrtReader *r, const PrtJson *item, PrtInput *input) {
    const PrtProgram *p = r->program;
    const PrtJson *axes = prt_read_field(item, "set_axes"), *axis;
    input->sets = 1;
    if (!axes) {
        if (p->n_data > 1) prt_read_fail(r, "`%sset_axes` is missing, but there are %d data sets", r->at, p->n_data);
        return;
    }
    int64_t parts = 1;
    PRT_JSON_EACH(axis, axes) {
        int a = (int)prt_read_whole(r, axis, "set_axes", 0, p->n_axes - 1);
        if (r->failed || input->n_set_axes == p->n_axes) return;
        input->set_axes[input->n_set_axes++] = a;
        parts *= p->mesh[a].size;
    }
    if (input->n_dims < 2 || input->shape[0] * parts != p->n_data) {
        prt_read_fail(r, "`%sshape` does not begin with a rank's part of the %d data sets", r->at, p->n_data);
        return;
    }
    input->sets = input->shape[0];
    memmove(input->shape, input->shape + 1, sizeof *input->shape * (size_t)--input->n_dims);
}

static void read_input(PrtReader *r, const PrtJson *item, PrtInput *input, int64_t arena_bytes) {
    static const char *const kinds[] = {"tokens", "next", "mask", "column"};
    PrtProgram *p = r->program;
    input->name = prt_read_text(r, item, "name");
    int kind = 0;
    while (kind < 4 && !prt_read_is(item, "role", kinds[kind])) kind++;
    if (kind == 4) prt_read_fail(r, "`%srole` is none of `tokens`, `next`, `mask` and `column`", r->at);
    input->kind = (PrtInputKind)(kind & 3);
    input->dtype = read_dtype(r, item);
    if (input->dtype != PRT_F32 && input->dtype != PRT_I32) prt_read_fail(r, "`%sdtype` is neither f32 nor i32", r->at);
    if (input->dtype != PRT_I32 && input->kind <= PRT_INPUT_NEXT)
        prt_read_fail(r, "`%sdtype` of tokens is not i32", r->at);
    input->n_dims = read_shape(r, item, input->shape);
    read_sets(r, item, input);
    input->row = 1;
    for (int i = 1; i < input->n_dims; i++) input->row *= input->shape[i];
    int64_t sequences = p->micro_batch / p->data_ranks;
    if (input->n_dims < 1 || input->shape[0] != sequences) {
        prt_read_fail(r, "`%sshape` does not begin with %lld, the sequences of a rank", r->at, (long long)sequences);
    }
    if (input->kind != PRT_INPUT_COLUMN && (input->n_dims != 2 || input->shape[1] != p->seq)) {
        prt_read_fail(r, "`%sshape` is not [%lld, %lld]", r->at, (long long)sequences, (long long)p->seq);
    }
    int64_t bytes = input->sets * sequences * input->row * prt_dtype_bytes(input->dtype);
    input->offset = prt_read_number(r, item, "offset", 0, ROOM);
    input->slots = prt_read_number_or(r, item, "slots", 1, 1 << 20, 1);
    input->slot_bytes = prt_read_number_or(r, item, "slot_bytes", 0, ROOM, bytes);
    if (input->slots > 1 && input->slot_bytes < bytes)
        prt_read_fail(r, "`%sslot_bytes` is less than %lld", r->at, (long long)bytes);
    input->decode_offset = prt_read_number_or(r, item, "decode_offset", 0, ROOM, input->offset);
    input->limit = prt_read_number_or(r, item, "limit", 0, INT32_MAX, 0);
    if (input->kind == PRT_INPUT_COLUMN) input->column = prt_read_text_or(r, item, "column", input->name);
    int64_t end = input->offset + (input->slots - 1) * input->slot_bytes + bytes;
    if (end > arena_bytes) prt_read_fail(r, "`%soffset` lies outside of the arena", r->at);
}

static PrtInput *read_inputs(PrtReader *r, const PrtJson *object, int *n, int64_t arena_bytes) {
    const PrtJson *items = prt_read_list(r, object, "inputs", true), *item;
    PrtInput *inputs = prt_read_alloc(r, prt_json_size(items), sizeof *inputs);
    PRT_JSON_EACH(item, items) {
        if (r->failed) return inputs;
        prt_read_at(r, "inputs[%d].", *n);
        read_input(r, item, &inputs[(*n)++], arena_bytes);
    }
    prt_read_at(r, "%s", "");
    return inputs;
}

static PrtScalar *read_scalars(PrtReader *r, const PrtJson *root, const char *name, int *n, int64_t arena_bytes) {
    const PrtJson *items = prt_read_list(r, root, name, false), *item;
    PrtScalar *scalars = prt_read_alloc(r, prt_json_size(items), sizeof *scalars);
    *n = 0;
    PRT_JSON_EACH(item, items) {
        if (r->failed) break;
        prt_read_at(r, "%s[%d].", name, *n);
        PrtScalar *scalar = &scalars[(*n)++];
        scalar->name = prt_read_text(r, item, "name");
        scalar->dtype = read_dtype(r, item);
        if (scalar->dtype != PRT_F32 && scalar->dtype != PRT_I32 && scalar->dtype != PRT_U32 &&
            scalar->dtype != PRT_F64) {
            prt_read_fail(r, "`%sdtype` is none of f32, f64, i32, u32", r->at);
        }
        scalar->offset = prt_read_number(r, item, "offset", 0, ROOM);
        scalar->elements = 1;
        if (prt_read_field(item, "shape")) {
            int64_t shape[PRT_MAX_DIMS];
            int n_dims = read_shape(r, item, shape);
            for (int i = 0; i < n_dims; i++) scalar->elements *= shape[i];
        }
        int64_t end = scalar->offset + scalar->elements * prt_dtype_bytes(scalar->dtype);
        if (end > arena_bytes) prt_read_fail(r, "`%soffset` lies outside of the arena", r->at);
    }
    prt_read_at(r, "%s", "");
    return scalars;
}

/* `balanced`: the axes that leave two pieces of their dimension to a rank. */
static void read_balanced(PrtReader *r, const PrtJson *item, PrtTensor *tensor, const int64_t *part) {
    const PrtJson *axes = prt_read_list(r, item, "balanced", false), *axis;
    PRT_JSON_EACH(axis, axes) {
        int a = (int)prt_read_whole(r, axis, "balanced", 0, r->program->n_axes - 1);
        if (r->failed) return;
        int d = tensor->axes[a];
        tensor->balanced[a] = true;
        if (d < 0 || (part[d] % 2 && r->program->mesh[a].size > 1))
            prt_read_fail(r, "`%sbalanced` of `%s` names axis %d, which leaves no two equal pieces", r->at,
                          tensor->name, a);
    }
}

/* `flat`: what the other axes leave is one range of elements for each layer, cut in equal parts along one axis. */
static void read_flat(PrtReader *r, const PrtJson *item, PrtTensor *tensor, int64_t elements) {
    const PrtJson *flat = prt_read_field(item, "flat");
    tensor->flat_axis = -1;
    if (!flat) return;
    tensor->flat_axis = (int)prt_read_number(r, flat, "axis", 0, r->program->n_axes - 1);
    tensor->flat_blocks = prt_read_number(r, flat, "blocks", 1, ROOM);
    tensor->flat_part = prt_read_number(r, flat, "part", 1, ROOM);
    if (r->failed) return;
    int64_t parts = r->program->mesh[tensor->flat_axis].size;
    bool fits = elements % tensor->flat_blocks == 0 &&
                tensor->flat_part == (elements / tensor->flat_blocks + parts - 1) / parts;
    if (!fits || tensor->axes[tensor->flat_axis] >= 0)
        prt_read_fail(r, "`%sflat` of `%s` does not match its shape", r->at, tensor->name);
}

/* `padding`: for each dimension, elements of `shape` behind the end. */
static void read_padding(PrtReader *r, const PrtJson *item, PrtTensor *tensor) {
    const PrtJson *padding = prt_read_list(r, item, "padding", false), *each;
    int n = 0;
    PRT_JSON_EACH(each, padding) {
        if (n == tensor->n_dims) {
            prt_read_fail(r, "`%spadding` has more entries than `shape`", r->at);
            return;
        }
        tensor->padding[n] = prt_read_whole(r, each, "padding", 0, tensor->shape[n]);
        n++;
    }
}

/* `uneven`: for each dimension the sizes of its parts, or null. Their padding stands behind each of them. */
static void read_uneven(PrtReader *r, const PrtJson *item, PrtTensor *tensor) {
    const PrtJson *dims = prt_read_list(r, item, "uneven", false), *sizes, *size;
    int d = 0;
    PRT_JSON_EACH(sizes, dims) {
        if (d == tensor->n_dims) {
            prt_read_fail(r, "`%suneven` has more entries than `shape`", r->at);
            return;
        }
        int n = 0, at = 0;
        int64_t sum = 0;
        PRT_JSON_EACH(size, sizes) n++;
        if (n) tensor->uneven[d] = prt_read_alloc(r, n, sizeof(int64_t));
        PRT_JSON_EACH(size, sizes) {
            if (!tensor->uneven[d]) return;
            sum += tensor->uneven[d][at++] = prt_read_whole(r, size, "uneven", 0, tensor->shape[d] / n);
        }
        tensor->n_uneven[d] = n;
        if (n && (tensor->shape[d] % n || sum != tensor->shape[d] - tensor->padding[d]))
            prt_read_fail(r, "`%suneven` of `%s` does not match its shape", r->at, tensor->name);
        d++;
    }
}

static void read_tensor(PrtReader *r, const PrtJson *item, const PrtRole *role, PrtTensor *tensor) {
    PrtProgram *p = r->program;
    tensor->name = prt_read_text(r, item, "name");
    tensor->kind = prt_read_text(r, item, "class");
    tensor->dtype = read_dtype(r, item);
    tensor->n_dims = read_shape(r, item, tensor->shape);
    read_padding(r, item, tensor);
    read_uneven(r, item, tensor);
    for (int a = 0; a < PRT_MAX_AXES; a++) tensor->axes[a] = -1;
    int64_t part[PRT_MAX_DIMS];
    memcpy(part, tensor->shape, sizeof part);
    const PrtJson *layers = prt_read_field(item, "part");
    if (layers && tensor->n_dims) {
        tensor->part_first = prt_read_number(r, layers, "first", 0, tensor->shape[0] - 1);
        tensor->part_count = prt_read_number(r, layers, "count", 1, tensor->shape[0] - tensor->part_first);
        part[0] = tensor->part_count;
    }
    const PrtJson *axes = prt_read_list(r, item, "axes", false), *axis;
    int n = 0;
    PRT_JSON_EACH(axis, axes) {
        if (n == p->n_axes) {
            prt_read_fail(r, "`%saxes` has more entries than the mesh", r->at);
            break;
        }
        if (!prt_json_is(axis, PRT_JSON_NULL)) {
            int dim = (int)prt_read_whole(r, axis, "axes", 0, tensor->n_dims - 1);
            if (r->failed) return;
            tensor->axes[n] = dim;
            if (part[dim] % p->mesh[n].size)
                prt_read_fail(r, "`%s` (%s) is not cut in equal blocks", r->at, tensor->name);
            part[dim] /= p->mesh[n].size;
        }
        n++;
    }
    read_balanced(r, item, tensor, part);
    tensor->offset = prt_read_number(r, item, "offset", 0, ROOM);
    tensor->bytes = prt_read_number(r, item, "bytes", 0, ROOM);
    int64_t elements = 1;
    for (int i = 0; i < tensor->n_dims; i++) elements *= part[i];
    read_flat(r, item, tensor, elements);
    if (r->failed) return;
    int64_t need =
        prt_dtype_bytes(tensor->dtype) * (tensor->flat_axis < 0 ? elements : tensor->flat_blocks * tensor->flat_part);
    if (tensor->bytes < need)
        prt_read_fail(r, "`%sbytes` of `%s` is less than its block, %lld", r->at, tensor->name, (long long)need);
    if (tensor->offset + need > role->arena_bytes)
        prt_read_fail(r, "`%s` (%s) lies outside of the arena", r->at, tensor->name);
    tensor->bytes = need;
    const PrtJson *save = prt_read_field(item, "save"), *copy = prt_read_field(item, "copy");
    tensor->copied = copy && prt_json_is(copy, PRT_JSON_BOOL) && copy->truth;
    tensor->saved = tensor->copied ? false
                    : save         ? prt_json_is(save, PRT_JSON_BOOL) && save->truth
                                   : !strcmp(tensor->kind, "weight") || !strcmp(tensor->kind, "moment");
}

/* -2: no such entry. */
static int find_entry(PrtReader *r, const PrtJson *entries, const char *kind) {
    const PrtJson *item = prt_json_get(entries, kind);
    if (!item) {
        char lower[32];
        snprintf(lower, sizeof lower, "%s", kind);
        for (char *c = lower; *c; c++) *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
        item = prt_json_get(entries, lower);
    }
    if (!item && !strcmp(kind, "OPT")) item = prt_json_get(entries, "update");
    if (!item) return -2;
    return prt_json_is(item, PRT_JSON_NULL) ? -1 : (int)prt_read_whole(r, item, kind, 0, 1 << 20);
}

static int optional_entry(PrtReader *r, const PrtJson *entries, const char *kind) {
    int entry = find_entry(r, entries, kind);
    return entry < 0 ? -1 : entry;
}

static void read_actions(PrtReader *r, const PrtJson *object, PrtRole *role) {
    const PrtJson *entries = prt_read_field(object, "entries"), *item;
    if (!prt_json_is(entries, PRT_JSON_OBJECT)) {
        prt_read_fail(r, "`%sentries` is missing", r->at);
        return;
    }
    role->init = optional_entry(r, entries, "init");
    role->begin = optional_entry(r, entries, "begin");
    role->eval = optional_entry(r, entries, "eval");
    role->decode = optional_entry(r, entries, "decode");
    const PrtJson *actions = prt_read_list(r, object, "actions", true);
    role->actions = prt_read_alloc(r, prt_json_size(actions), sizeof *role->actions);
    PRT_JSON_EACH(item, actions) {
        if (r->failed) return;
        PrtActionRow *action = &role->actions[role->n_actions];
        action->kind = prt_read_text(r, item, "kind");
        action->chunk = (int)prt_read_number_or(r, item, "chunk", -1, 1 << 20, 0);
        action->micro = (int)prt_read_number_or(r, item, "micro", -1, r->program->micros - 1, -1);
        const PrtJson *named = prt_json_get(item, "entry"); /* null: nothing to do */
        action->entry = !named                 ? find_entry(r, entries, action->kind)
                        : prt_json_text(named) ? find_entry(r, entries, prt_json_text(named))
                                               : -1;
        if (action->entry == -2) prt_read_fail(r, "action %d, `%s`, has no entry", role->n_actions, action->kind);
        if (!strcmp(action->kind, "BEGIN")) role->begin = -1;
        role->n_actions++;
    }
    if (!role->n_actions) prt_read_fail(r, "`%sactions` is empty", r->at);
}

static void read_role(PrtReader *r, const PrtJson *object, int index, PrtRole *role) {
    const PrtJson *item, *tensors = prt_read_list(r, object, "tensors", true),
                         *memory = prt_read_field(object, "memory");
    role->arena_bytes = prt_read_number(r, object, "arena_bytes", 0, ROOM);
    role->scratch_bytes = prt_read_number_or(r, object, "scratch_bytes", 0, ROOM, 0);
    PRT_JSON_EACH(item, memory) {
        if (role->n_memory == 16) break;
        role->memory[role->n_memory].kind = prt_read_copy(r, item->name);
        role->memory[role->n_memory++].bytes = prt_read_whole(r, item, "memory", 0, ROOM);
    }
    role->tensors = prt_read_alloc(r, prt_json_size(tensors), sizeof *role->tensors);
    PRT_JSON_EACH(item, tensors) {
        if (r->failed) return;
        prt_read_at(r, "roles[%d].tensors[%d].", index, role->n_tensors);
        read_tensor(r, item, role, &role->tensors[role->n_tensors++]);
    }
    prt_read_at(r, "roles[%d].", index);
    if (!r->failed) read_actions(r, object, role);
    role->own_lists = prt_read_field(object, "inputs") != NULL;
    if (r->failed || !role->own_lists) return;
    role->inputs = read_inputs(r, object, &role->n_inputs, role->arena_bytes);
    if (!r->failed) role->scalars = read_scalars(r, object, "scalars", &role->n_scalars, role->arena_bytes);
    if (!r->failed) role->results = read_scalars(r, object, "results", &role->n_results, role->arena_bytes);
}

static void read_roles(PrtReader *r, const PrtJson *root) {
    PrtProgram *p = r->program;
    const PrtJson *roles = prt_read_list(r, root, "roles", true), *item;
    p->roles = prt_read_alloc(r, prt_json_size(roles), sizeof *p->roles);
    int n = prt_json_size(roles);
    p->role_axis = (int)prt_read_number_or(r, root, "role_axis", 0, p->n_axes - 1, -1);
    p->n_channels = (int)prt_read_number_or(r, root, "channels", 0, 1 << 20, 0);
    if (n < 1 || (n > 1 && (p->role_axis < 0 || p->mesh[p->role_axis].size != n)))
        prt_read_fail(r, "the program has %d roles, and no mesh axis of that size is their axis", n);
    PRT_JSON_EACH(item, roles) {
        if (r->failed) return;
        p->n_roles++; /* before it is read in full: a failed one is freed too */
        read_role(r, item, p->n_roles - 1, &p->roles[p->n_roles - 1]);
    }
    prt_read_at(r, "%s", "");
}

static void read_optimizer(PrtReader *r, const PrtJson *root) {
    PrtProgram *p = r->program;
    const PrtJson *optimizer = prt_read_field(root, "optimizer");
    if (!prt_json_is(optimizer, PRT_JSON_OBJECT)) {
        prt_read_fail(r, "`optimizer` is missing");
        return;
    }
    prt_read_at(r, "optimizer.");
    p->optimizer = prt_read_text(r, optimizer, "kind");
    const PrtJson *rate = prt_read_field(optimizer, "lr");
    p->rate = (PrtRate){.steps = p->steps};
    if (prt_json_is(rate, PRT_JSON_NUMBER)) {
        p->rate.peak = p->rate.end = rate->number;
        prt_read_at(r, "%s", "");
        return;
    }
    prt_read_at(r, "optimizer.lr.");
    if (prt_read_is(rate, "kind", "linear"))
        p->rate.kind = PRT_RATE_LINEAR;
    else if (prt_read_is(rate, "kind", "cosine"))
        p->rate.kind = PRT_RATE_COSINE;
    else if (!prt_read_is(rate, "kind", "constant"))
        prt_read_fail(r, "`optimizer.lr.kind` is none of `constant`, `linear` and `cosine`");
    p->rate.peak = prt_read_real_or(r, rate, "peak", -1);
    if (p->rate.peak < 0) prt_read_fail(r, "`optimizer.lr.peak` is missing or negative");
    p->rate.end = prt_read_real_or(r, rate, "end", p->rate.kind == PRT_RATE_CONSTANT ? p->rate.peak : 0);
    p->rate.warmup = prt_read_number_or(r, rate, "warmup", 0, ROOM, 0);
    p->rate.steps = prt_read_number_or(r, rate, "steps", 0, ROOM, p->steps);
    prt_read_at(r, "%s", "");
}

static void read_pauses(PrtReader *r, const PrtJson *root) {
    PrtProgram *p = r->program;
    const PrtJson *eval = prt_read_field(root, "eval"), *save = prt_read_field(root, "save");
    if (eval) {
        p->eval_every = prt_read_number_or(r, eval, "every", 0, ROOM, 0);
        p->eval_batches = prt_read_number_or(r, eval, "batches", 0, ROOM, 1);
    }
    if (save) {
        p->save_every = prt_read_number_or(r, save, "every", 0, ROOM, 0);
        p->save_keep = prt_read_number_or(r, save, "keep", 0, ROOM, 0);
        p->save_path = prt_read_text_or(r, save, "path", NULL);
        if (p->save_path && !*p->save_path) p->save_path = NULL;
    }
    p->from = prt_read_text_or(r, root, "from", NULL);
}

static void read_all(PrtReader *r, const PrtJson *root) {
    PrtProgram *p = r->program;
    int64_t abi = prt_read_number(r, root, "abi", 0, 1 << 20);
    if (abi != PRT_ABI_VERSION && !r->failed) {
        prt_read_fail(r, "it has version %lld, this runtime reads version %d", (long long)abi, PRT_ABI_VERSION);
    }
    p->compiler = prt_read_text(r, root, "compiler");
    p->source = prt_read_text(r, root, "source");
    p->plan = prt_read_text(r, root, "plan");
    p->model = prt_read_text(r, root, "model");
    p->hash = prt_read_text(r, root, "hash");
    read_mesh(r, root);
    if (!r->failed) read_machines(r, root);
    p->threads = (int)prt_read_number_or(r, root, "threads", 0, 4096, 0);
    p->seed = prt_read_number(r, root, "seed", INT32_MIN, UINT32_MAX);
    p->steps = prt_read_number(r, root, "steps", 0, ROOM);
    p->batch = prt_read_number(r, root, "batch", 1, ROOM);
    p->micro_batch = prt_read_number(r, root, "micro_batch", 1, ROOM);
    p->micros = prt_read_number(r, root, "micros", 1, INT32_MAX);
    if (r->failed) return;
    if (p->micro_batch % p->data_ranks)
        prt_read_fail(r, "`micro_batch` is not a multiple of the %d ranks of the data", p->data_ranks);
    if (p->micro_batch * p->micros != p->batch) prt_read_fail(r, "`batch` is not `micro_batch` times `micros`");
    p->flops_per_token = prt_read_real_or(r, root, "flops_per_token", 0);
    p->parameters = prt_read_number_or(r, root, "parameters", 0, ROOM, 0);
    p->vocab = prt_read_number_or(r, root, "vocab", 0, INT32_MAX, 0);
    p->seq = prt_read_number_or(r, root, "seq", 0, INT32_MAX, 0);
    p->decode_length = prt_read_number_or(r, root, "decode_length", 1, INT32_MAX, p->seq);
    p->tokens_per_step = prt_read_number_or(r, root, "tokens_per_step", 0, ROOM, p->batch * (p->seq ? p->seq : 1));
    p->split = prt_read_real_or(r, root, "split", 0);
    if (!(p->split >= 0 && p->split < 1)) prt_read_fail(r, "`split` is %g, not in [0, 1)", p->split);
    if (!r->failed) p->data = read_datasets(r, root, "data", &p->n_data);
    if (!r->failed) read_roles(r, root); /* their inputs are of those data sets */
    /* Of several roles each has its own lists; these say what there is. */
    int64_t arena_bytes = r->failed || p->n_roles > 1 ? ROOM : p->roles[0].arena_bytes;
    if (!r->failed) p->inputs = read_inputs(r, root, &p->n_inputs, arena_bytes);
    if (!r->failed) p->scalars = read_scalars(r, root, "scalars", &p->n_scalars, arena_bytes);
    if (!r->failed) p->results = read_scalars(r, root, "results", &p->n_results, arena_bytes);
    if (!r->failed) p->validation = read_datasets(r, root, "validation", &p->n_validation);
    for (int i = 0; i < p->n_roles && !r->failed; i++) {
        PrtRole *role = &p->roles[i];
        if (role->own_lists) continue;
        role->inputs = p->inputs, role->scalars = p->scalars, role->results = p->results;
        role->n_inputs = p->n_inputs, role->n_scalars = p->n_scalars, role->n_results = p->n_results;
    }
    if (!r->failed && !prt_program_result(p, "loss")) prt_read_fail(r, "`results` has no `loss`");
    if (p->n_validation > 1 || (p->n_data > 1 && p->n_validation > 0))
        prt_read_fail(r, "it has several evaluation sets; this runtime reads one");
    if (!r->failed) read_optimizer(r, root);
    if (!r->failed) read_pauses(r, root);
}

PrtProgram *prt_program_parse(const char *json, PrtAction *const *entries, char *why, size_t size) {
    PrtProgram *program = calloc(1, sizeof *program);
    PrtJson *root = prt_json_parse(json);
    PrtReader reader = {.why = why, .size = size, .program = program};
    if (!program)
        prt_read_fail(&reader, "out of memory");
    else if (!prt_json_is(root, PRT_JSON_OBJECT))
        prt_read_fail(&reader, "it is not a JSON object");
    else {
        program->text = json;
        program->entries = entries;
        read_all(&reader, root);
    }
    prt_json_free(root);
    if (!reader.failed) return program;
    if (program) prt_program_free(program);
    return NULL;
}
