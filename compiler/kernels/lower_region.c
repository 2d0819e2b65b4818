/* A region: its units in order, its results where they are wanted.
 *
 * Results are made in place wherever possible: the next value of a carry in the slot that the next layer reads, a
 * stacked value in its layer's slice, an output in its tensor. What cannot be made there (a parameter handed on, a
 * view, a value wanted twice) is copied at the end. */
#include "kernels/lower.h"

enum { FOREVER = 1 << 20 }; /* uses of a value that must keep its memory */

Value *value_new(Lowering *l, Node *node) {
    if (node->mark) return node->mark;
    Value *value = NEW(l->arena, Value);
    value->node = node;
    node->mark = value;
    if (node->n_outs) {
        value->outs = NEW_N(l->arena, Location, node->n_outs);
        value->has_outs = NEW_N(l->arena, bool, node->n_outs);
        value->outs_accumulate = NEW_N(l->arena, bool, node->n_outs);
        value->outs_copies = NEW_N(l->arena, int, node->n_outs);
    }
    return value;
}

/* ---- places given beforehand -------------------------------------------------------------------- */

/* A flat range without padding has the bytes of the tensor that it stands for: it is made where that is wanted. */
static bool give_flat(Lowering *l, Node *node, const Location *place) {
    Node *range = node->in[0];
    bool same = lower_bytes(l, node->dtype, &node->shape, node) == lower_bytes(l, range->dtype, &range->shape, range);
    if (!same || !range->mark || !place_is_row_major(l, node, place)) return false;
    Location flat = place_row_major(l, range, place->ref);
    return give_place(l, range, &flat, false);
}

bool give_place(Lowering *l, Node *node, const Location *place, bool accumulate) {
    if (!node->mark) return false;
    Value *value = value_of(node);
    if (node->op == OP_RESULT) {
        Node *tuple = node->in[0];
        Value *from = value_of(tuple);
        int64_t k = node_attr(node, "index")->integer;
        bool is_repeat = tuple->op == OP_REPEAT;
        if (from->has_outs[k] || (accumulate && !is_repeat) || (is_repeat && k < tuple->region->n_carries))
            return false;
        from->outs[k] = *place;
        from->has_outs[k] = true;
        from->outs_accumulate[k] = accumulate;
        value->fixed = true;
        return true;
    }
    if (node->op == OP_UNFLATTEN) return !accumulate && give_flat(l, node, place);
    LowerKind lower = op_info(node)->lower;
    bool can_add = lower == LOWER_PRODUCT || lower == LOWER_SCATTER || lower == LOWER_EXACT || node_in_loop(node);
    bool adds = node->dtype == DT_EXACT || (node->dtype == DT_F32 && lower != LOWER_EXACT);
    if (!value->unit || value->has_place || value->fixed || (accumulate && !can_add)) return false;
    if (lower == LOWER_VIEW || lower == LOWER_NONE || (accumulate && !adds)) return false;
    value->place = *place;
    value->has_place = value->fixed = value->stored = true;
    value->accumulate = accumulate;
    return true;
}

/* ---- uses --------------------------------------------------------------------------------------- */

typedef VEC(Value *) ValueList;

/* The stored values that a unit reads, through what is computed inside it. */
static void reads_of(Lowering *l, const Node *node, const Unit *unit, Map *seen, ValueList *reads) {
    for (int k = 0; k < node->n_in; k++) {
        Node *in = node->in[k];
        if (!in->mark || map_get(seen, in)) continue;
        map_put(l->arena, seen, in, in);
        Value *value = value_of(in);
        if (value->generator || value->inlined)
            reads_of(l, in, unit, seen, reads);
        else if (value->unit != unit)
            vec_push(l->arena, reads, value);
    }
}

static ValueList unit_reads(Lowering *l, const Unit *unit) {
    Map seen = {0};
    ValueList reads = {0};
    for (int i = 0; i < unit->nodes.n; i++) reads_of(l, unit->nodes.at[i], unit, &seen, &reads);
    return reads;
}

static bool unit_is_view(const Unit *unit) {
    return unit->kind == UNIT_NODE &&
           (op_info(unit->nodes.at[0])->lower == LOWER_VIEW || unit->nodes.at[0]->op == OP_RESULT);
}

static void count_uses(Lowering *l, const UnitList *units, ValueList *reads) {
    for (int u = 0; u < units->n; u++) {
        reads[u] = unit_reads(l, units->at[u]);
        for (int i = 0; i < reads[u].n; i++) reads[u].at[i]->uses_left += unit_is_view(units->at[u]) ? FOREVER : 1;
    }
}

/* ---- outputs ------------------------------------------------------------------------------------ */

static int unit_index(const UnitList *units, const Unit *unit) {
    for (int i = 0; i < units->n; i++)
        if (units->at[i] == unit) return i;
    return -1;
}

/* Whether the loop runs over its elements once: no value of the whole domain waits for a reduction. */
static bool unit_is_single_pass(const Unit *unit) {
    if (!unit->reduced.n) return true;
    for (int i = 0; i < unit->nodes.n; i++) {
        const Node *node = unit->nodes.at[i];
        if (node->shape.n != unit->domain.n) continue;
        for (int k = 0; k < node->n_in; k++) {
            const Node *in = node->in[k];
            if (in->mark && in->shape.n < unit->domain.n && (value_of(in)->unit == unit || value_of(in)->inlined))
                return false;
        }
    }
    return true;
}

/* Whether the tensor's old contents are read by nothing that runs after the value is written over them. */
static bool old_value_is_done(const Lowering *l, const UnitList *units, const ValueList *reads, const Tensor *tensor,
                              const Node *value) {
    const Node *made = value->op == OP_UNFLATTEN ? value->in[0] : value;
    const Node *maker = made->op == OP_RESULT ? made->in[0] : made;
    int writer = unit_index(units, value_of(maker)->unit);
    if (writer < 0) return false;
    for (int u = writer; u < units->n; u++)
        for (int i = 0; i < reads[u].n; i++) {
            const Node *read = reads[u].at[i]->node;
            while (op_info(read)->lower == LOWER_VIEW) read = read->in[0];
            if (read->op != OP_INPUT || read->tensor != tensor) continue;
            if (u > writer || (units->at[u]->kind == UNIT_LOOP && !unit_is_single_pass(units->at[u]))) return false;
            if (units->at[u]->kind != UNIT_LOOP && maker->op != OP_REPEAT) return false;
        }
    return l != NULL;
}

static bool read_elsewhere(const UnitList *units, const ValueList *reads, const Node *node) {
    for (int u = 0; u < units->n; u++)
        for (int i = 0; i < reads[u].n; i++)
            if (reads[u].at[i]->node == node) return true;
    return false;
}

typedef struct Copy {
    Node *node;
    Location to;
    bool accumulate;
} Copy;
typedef VEC(Copy) CopyList;

/* Makes the value in its place if that can be, else notes a copy for the end. */
static void want(Lowering *l, CopyList *copies, Node *node, const Location *to, bool accumulate, bool may_give) {
    if (may_give && give_place(l, node, to, accumulate)) return;
    value_new(l, node)->uses_left += FOREVER;
    vec_push(l->arena, copies, (Copy){node, *to, accumulate});
}

static void place_outputs(Lowering *l, const UnitList *units, const ValueList *reads, Phase phase, CopyList *copies) {
    Graph *graph = l->graph;
    for (int i = 0; i < graph->outputs.n; i++) {
        Output *output = &graph->outputs.at[i];
        if (node_phase(output->value) != phase) continue;
        Node *node = output->value;
        Location to = place_row_major(l, node, (BufferRef){.buffer = lower_tensor(l, output->tensor)});
        bool give = old_value_is_done(l, units, reads, output->tensor, node);
        if (output->accumulate && read_elsewhere(units, reads, node)) give = false;
        /* What is sent has one copy; what is saved has one for each micro-batch in flight. */
        if (output->tensor->class == CLASS_STAGE && node->mark && value_of(node)->saved) give = false;
        want(l, copies, node, &to, output->accumulate, give);
    }
}

/* ---- repeats ------------------------------------------------------------------------------------ */

/* What prepare_repeat decided, kept in the repeat node's value through `carries`. */
typedef struct Carry {
    Buffer *buffer;
    int64_t slot; /* bytes */
    int stacked;  /* which stacked result is this carry itself, or -1: then every layer's value has a slot of its own */
    bool in_place; /* the first value is made in slot 0 */
} Carry;

static Map *carries_of(Lowering *l) { return &l->carries; }

/* Slot of the round: rounds count from 0 whatever the direction of the index. */
static BufferRef carry_ref(const Region *region, const Carry *carry, int ahead, int depth) {
    int64_t last = region->dim->size - 1;
    return (BufferRef){.buffer = carry->buffer,
                       .step = carry->slot,
                       .scale = region->descending ? -1 : 1,
                       .shift = (region->descending ? last : 0) + ahead,
                       .modulus = carry->stacked >= 0 ? 0 : 2,
                       .depth = depth};
}

void prepare_repeat(Lowering *l, Node *node) {
    Region *region = node->region;
    Value *value = value_new(l, node);
    Carry *carries = NEW_N(l->arena, Carry, region->n_carries + 1);
    map_put(l->arena, carries_of(l), node, carries);
    for (int c = 0; c < region->n_carries; c++) {
        Node *param = region->params.at[c], *init = node->in[c];
        Carry *carry = &carries[c];
        carry->stacked = -1;
        for (int s = 0; s < region->n_stacked && !region->descending; s++)
            if (region->results.at[region->n_carries + s] == param && !value->has_outs[region->n_carries + s])
                carry->stacked = s;
        int out = region->n_carries + carry->stacked;
        int saved = value->outs_copies[c];
        if (carry->stacked >= 0 && value->outs_copies[out] > saved) saved = value->outs_copies[out];
        carry->slot = lower_bytes(l, param->dtype, &param->shape, param);
        int64_t slots = carry->stacked >= 0 ? region->dim->size + 1 : 2;
        const char *name = param->name ? param->name : init->name ? init->name : "carry";
        carry->buffer = lower_buffer(l, intern(l->graph->session->names, name), saved ? MEM_ACTIVATION : MEM_TEMPORARY,
                                     param->dtype, carry->slot * slots, node->span);
        if (saved) carry->buffer->flights = saved;
        Location first = place_row_major(l, param, (BufferRef){.buffer = carry->buffer});
        Value *from = init->mark;
        bool only = from && from->unit && !from->saved && shape_equal(&init->shape, &param->shape);
        if (only && carry->stacked < 0) only = from->uses_left == 1;
        carry->in_place = only && init->op != OP_RESULT && give_place(l, init, &first, false);
        if (carry->stacked >= 0) {
            Location *stack = &value->outs[out];
            *stack = (Location){.ref = {.buffer = carry->buffer}};
            stack->stride[0] = carry->slot / dtype_bytes(param->dtype);
            for (int i = 0; i < param->shape.n; i++) stack->stride[i + 1] = first.stride[i];
            value->has_outs[out] = true;
        }
        value->outs[c] = first;
        value->outs[c].ref.offset = carry->slot * (carry->stacked >= 0 ? region->dim->size : region->dim->size % 2);
        value->has_outs[c] = true;
    }
}

/* Memory of the stacked results that nobody placed. */
static void place_stacks(Lowering *l, Node *node) {
    Region *region = node->region;
    Value *value = value_of(node);
    for (int k = region->n_carries; k < node->n_outs; k++) {
        if (value->has_outs[k]) continue;
        Node *inner = region->results.at[k];
        int64_t slice = lower_bytes(l, inner->dtype, &inner->shape, inner);
        const char *name = inner->name ? inner->name : op_info(inner)->name;
        Buffer *buffer = lower_buffer(l, intern(l->graph->session->names, name),
                                      value->outs_copies[k] ? MEM_ACTIVATION : MEM_TEMPORARY, inner->dtype,
                                      slice * region->dim->size, inner->span);
        if (value->outs_copies[k]) buffer->flights = value->outs_copies[k];
        Location one = place_row_major(l, inner, (BufferRef){.buffer = buffer});
        value->outs[k] = (Location){.ref = one.ref};
        value->outs[k].stride[0] = slice / dtype_bytes(inner->dtype);
        for (int i = 0; i < inner->shape.n; i++) value->outs[k].stride[i + 1] = one.stride[i];
        value->has_outs[k] = true;
    }
}

/* One layer's part of a stacked value, for the repeat that is `depth` repeats deep. */
static Location slice_place(const Location *stack, DType dtype, int n, int depth) {
    const BufferRef *from = &stack->ref;
    Location slice = {.ref = *from};
    if (from->step) { /* itself a slice, of a repeat around this one */
        CHECK(from->n_outer < MAX_OUTER_STEPS);
        slice.ref.outer[slice.ref.n_outer++] =
            (RefStep){from->step, from->scale, from->shift, from->modulus, from->depth};
    }
    slice.ref.depth = depth;
    slice.ref.shift = slice.ref.modulus = 0;
    slice.ref.step = stack->stride[0] * dtype_bytes(dtype);
    slice.ref.scale = 1;
    for (int i = 0; i < n; i++) slice.stride[i] = stack->stride[i + 1];
    return slice;
}

static void give_params(Lowering *l, Node *node, const Carry *carries) {
    Region *region = node->region;
    int depth = l->open.n + 1; /* once it is open */
    CHECK(depth <= MAX_REPEATS);
    for (int i = 0; i < region->params.n; i++) {
        Node *param = region->params.at[i], *in = node->in[i];
        Value *value = value_new(l, param);
        value->has_place = value->fixed = value->stored = true;
        value->uses_left = FOREVER;
        if (i < region->n_carries)
            value->place = place_row_major(l, param, carry_ref(region, &carries[i], 0, depth));
        else if (i < region->n_carries + region->n_slices) {
            Location stack = value_place(l, in);
            value->place = slice_place(&stack, param->dtype, param->shape.n, depth);
        } else
            value->place = value_place(l, in);
    }
}

/* Where the body's results go. */
static void place_results(Lowering *l, Node *node, const Carry *carries, CopyList *copies) {
    Region *region = node->region;
    Value *value = value_of(node);
    for (int k = 0; k < region->results.n; k++) {
        Node *result = region->results.at[k];
        if (k < region->n_carries) {
            Location to = place_row_major(l, result, carry_ref(region, &carries[k], 1, l->open.n));
            want(l, copies, result, &to, false, true);
            continue;
        }
        bool is_carry = false;
        for (int c = 0; c < region->n_carries; c++)
            is_carry |= carries[c].stacked == k - region->n_carries && carries[c].stacked >= 0;
        if (is_carry) continue;
        Location to = slice_place(&value->outs[k], result->dtype, result->shape.n, l->open.n);
        want(l, copies, result, &to, value->outs_accumulate[k],
             !value->outs_accumulate[k] || value_new(l, result)->uses_left == 0);
    }
}

static void lower_units(Lowering *l, Region *region, Phase phase, Node *repeat, const Carry *carries) {
    UnitList units = region_to_units(l, region, phase);
    ValueList *reads = NEW_N(l->arena, ValueList, units.n + 1);
    count_uses(l, &units, reads);
    CopyList copies = {0};
    if (repeat)
        place_results(l, repeat, carries, &copies);
    else
        place_outputs(l, &units, reads, phase, &copies);
    for (int u = 0; u < units.n; u++)
        if (units.at[u]->nodes.at[0]->op == OP_REPEAT) prepare_repeat(l, units.at[u]->nodes.at[0]);
    for (int u = 0; u < units.n; u++) {
        if (units.at[u]->kind == UNIT_LOOP)
            lower_loop_unit(l, units.at[u]);
        else
            lower_node_unit(l, units.at[u]->nodes.at[0]);
        for (int i = 0; i < reads[u].n; i++) reads[u].at[i]->uses_left--;
    }
    for (int i = 0; i < copies.n; i++) {
        Location from = value_place(l, copies.at[i].node);
        lower_copy(l, copies.at[i].node, &from, &copies.at[i].to, copies.at[i].accumulate);
    }
    for (int i = 0; i < region->nodes.n; i++)
        if (region->nodes.at[i]->mark) value_of(region->nodes.at[i])->unit = NULL;
}

void lower_repeat(Lowering *l, Node *node) {
    Region *region = node->region;
    Carry *carries = map_get(carries_of(l), node);
    for (int c = 0; c < region->n_carries; c++) {
        if (carries[c].in_place) continue;
        Location from = value_place(l, node->in[c]);
        Location to = place_row_major(l, region->params.at[c], (BufferRef){.buffer = carries[c].buffer});
        lower_copy(l, node->in[c], &from, &to, false);
    }
    place_stacks(l, node);
    give_params(l, node, carries);
    Buffer *index = lower_buffer(l, intern(l->graph->session->names, "layer"), MEM_SCALAR, DT_I32, 4, node->span);
    Kernel *kernel = lower_kernel(l, KERNEL_REPEAT, "repeat", node->span);
    kernel->dim = region->dim;
    kernel->count = region->dim->size;
    kernel->descending = region->descending;
    kernel->index = index;
    kernel->index_first = region->dim->first;
    KernelList *out = l->out;
    Kernel *home = l->home;
    l->out = &kernel->body;
    l->home = kernel;
    vec_push(l->arena, &l->open, kernel);
    lower_touch(l, index, kernel->first);
    if (region->index) {
        Value *value = value_new(l, region->index);
        value->has_place = value->fixed = value->stored = true;
        value->uses_left = FOREVER;
        value->place = (Location){.ref = {.buffer = index}};
    }
    lower_units(l, region, PHASE_F, node, carries);
    l->open.n--;
    l->home = home;
    l->out = out;
    kernel->last = (*l->position)++;
    for (int i = 0; i < kernel->through.n; i++) {
        lower_touch(l, kernel->through.at[i], kernel->first);
        lower_touch(l, kernel->through.at[i], kernel->last);
    }
}

void lower_region(Lowering *l, Region *region, Phase phase) { lower_units(l, region, phase, NULL, NULL); }
