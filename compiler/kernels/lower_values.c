/* Where values lie: buffers, places, and the lifetimes that follow from their use. */
#include "kernels/lower.h"

Value *value_of(const Node *node) {
    if (!node->mark) BUG("node %%%d (%s) has no value yet", node->id, op_info(node)->name);
    return node->mark;
}

bool value_is_kept(const Lowering *l, const Value *value) { return value->saved && l->phase < value->until; }

int64_t lower_extent(const Lowering *l, const Node *node, const Dim *dim) {
    return l->graph->mesh ? local_extent(l->graph->mesh, node->type, dim) : dim->size;
}

int64_t lower_bytes(const Lowering *l, DType dtype, const Shape *shape, const Node *like) {
    int64_t bytes = dtype_bytes(dtype);
    for (int i = 0; i < shape->n; i++) bytes *= lower_extent(l, like, shape->dims[i]);
    return bytes;
}

Location place_row_major(const Lowering *l, const Node *node, BufferRef ref) {
    Location place = {.ref = ref};
    int64_t stride = 1;
    for (int i = node->shape.n - 1; i >= 0; i--) {
        place.stride[i] = stride;
        stride *= lower_extent(l, node, node->shape.dims[i]);
    }
    return place;
}

bool place_is_row_major(const Lowering *l, const Node *node, const Location *place) {
    int64_t stride = 1;
    for (int i = node->shape.n - 1; i >= 0; i--) {
        int64_t extent = lower_extent(l, node, node->shape.dims[i]);
        if (extent != 1 && place->stride[i] != stride) return false;
        stride *= extent;
    }
    return true;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

Buffer *lower_buffer(Lowering *l, Name name, MemoryKind kind, DType dtype, int64_t bytes, Span span) {
    Buffer *buffer = NEW(l->arena, Buffer);
    *buffer = (Buffer){.id = l->program->buffers.n,
                       .name = name,
                       .kind = kind,
                       .dtype = dtype,
                       .bytes = bytes,
                       .flights = 1,
                       .span = span,
                       .first = 1,
                       .last = 0,
                       .home = l->home};
    vec_push(l->arena, &l->program->buffers, buffer);
    return buffer;
}

static MemoryKind kind_of_class(TensorClass class) {
    static const MemoryKind kinds[CLASS_COUNT] = {
        [CLASS_WEIGHT] = MEM_WEIGHT, [CLASS_MOMENT] = MEM_MOMENT,   [CLASS_GRADIENT] = MEM_GRADIENT,
        [CLASS_DATA] = MEM_DATA,     [CLASS_SCALAR] = MEM_SCALAR,   [CLASS_RESULT] = MEM_SCALAR,
        [CLASS_CACHE] = MEM_CACHE,   [CLASS_STAGE] = MEM_ACTIVATION};
    return kinds[class];
}

Buffer *lower_tensor(Lowering *l, Tensor *tensor) {
    Buffer *buffer = map_get(l->tensors, tensor->name);
    if (buffer) return buffer;
    int64_t bytes = dtype_bytes(tensor->dtype);
    for (int i = 0; i < tensor->shape.n; i++)
        bytes *= l->graph->mesh ? local_extent(l->graph->mesh, tensor->type, tensor->shape.dims[i])
                                : tensor->shape.dims[i]->size;
    buffer = lower_buffer(l, tensor->name, kind_of_class(tensor->class), tensor->dtype, bytes, tensor->span);
    if (tensor->class == CLASS_STAGE && tensor->of) buffer->kind = kind_of_class(tensor->of->class); /* a copy of it */
    buffer->tensor = tensor;
    buffer->persistent =
        tensor->class != CLASS_CACHE && tensor->class != CLASS_STAGE; /* caches live while sampling alone */
    buffer->home = NULL;
    if (tensor->class == CLASS_DATA || tensor->flights == FLIGHTS_SAVED)
        buffer->flights = l->flights;
    else if (tensor->flights == FLIGHTS_DEFERRED)
        buffer->flights = l->copies[PHASE_B][PHASE_W];
    else if (tensor->flights > 0)
        buffer->flights = tensor->flights;
    map_put(l->arena, l->tensors, tensor->name, buffer);
    return buffer;
}

/* A number that the runtime writes: `micro`, `coord.data`. */
Buffer *lower_scalar(Lowering *l, const char *name, DType dtype) {
    Name key = intern(l->graph->session->names, name);
    Buffer *buffer = map_get(l->tensors, key);
    if (buffer) return buffer;
    Tensor *tensor = NEW(l->arena, Tensor);
    *tensor = (Tensor){.name = key, .class = CLASS_SCALAR, .dtype = dtype, .typed = true};
    return lower_tensor(l, tensor);
}

Buffer *lower_coordinate(Lowering *l, int axis) {
    return lower_scalar(l, arena_printf(l->arena, "coord.%s", l->graph->mesh->axes[axis].name), DT_I32);
}

/* A use at `position` inside the open repeats: a buffer that the innermost ones do not make themselves has to live as
 * long as the outermost of those. */
void lower_touch(Lowering *l, Buffer *buffer, int position) {
    if (buffer->last < buffer->first) buffer->first = buffer->last = position;
    if (position < buffer->first) buffer->first = position;
    if (position > buffer->last) buffer->last = position;
    int i = 0;
    if (buffer->home)
        while (i < l->open.n && l->open.at[i] != buffer->home) i++;
    if (buffer->home && i < l->open.n) i++; /* repeats inside the one that makes it */
    if (i < l->open.n) vec_push(l->arena, &l->open.at[i]->through, buffer);
}

Kernel *lower_kernel(Lowering *l, KernelKind kind, const char *what, Span span) {
    Kernel *kernel = NEW(l->arena, Kernel);
    kernel->kind = kind;
    kernel->span = span;
    const char *role = l->program->role ? arena_printf(l->arena, "r%d.", l->program->role) : "";
    kernel->name =
        intern(l->graph->session->names, arena_printf(l->arena, "%s%s.%s.%d", role, l->entry->name, what, l->names++));
    kernel->first = kernel->last = (*l->position)++;
    vec_push(l->arena, l->out, kernel);
    return kernel;
}

void kernel_add_ref(Lowering *l, Kernel *kernel, BufferRef ref) {
    BufferRef *refs = NEW_N(l->arena, BufferRef, kernel->n_refs + 1);
    if (kernel->n_refs) memcpy(refs, kernel->refs, sizeof *refs * (size_t)kernel->n_refs);
    refs[kernel->n_refs++] = ref;
    kernel->refs = refs;
    lower_touch(l, ref.buffer, kernel->first);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

static Location tensor_place(Lowering *l, const Node *node) {
    return place_row_major(l, node, (BufferRef){.buffer = lower_tensor(l, node->tensor)});
}

Location value_place(Lowering *l, Node *node) {
    Value *value = value_of(node);
    if (!value->has_place) {
        value->has_place = true;
        if (node->op == OP_INPUT)
            value->place = tensor_place(l, node);
        else {
            const char *name = node->name ? node->name : op_info(node)->name;
            Buffer *buffer =
                lower_buffer(l, intern(l->graph->session->names, name), value->saved ? MEM_ACTIVATION : MEM_TEMPORARY,
                             node->dtype, lower_bytes(l, node->dtype, &node->shape, node), node->span);
            if (value->saved) buffer->flights = value->copies;
            value->place = place_row_major(l, node, (BufferRef){.buffer = buffer});
        }
    }
    return value->place;
}
