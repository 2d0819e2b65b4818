/* Entries: the functions that the runtime calls, `void entry(PrtRank *rank, char *arena, i64 micro)`.
 *
 * A kernel becomes the stores of its pointers (arena + constants, plus the layer's and micro-batch's share) and one
 * call into the runtime. A repeat becomes a loop whose index is a run-time value: the code of a layer exists once,
 * whatever the depth. Descriptors of products, attention and collectives are constants. */
#include "codegen/llvm_util.h"
#include "plan_rt.h"

typedef struct Emitter {
    Codegen *g;
    const RoleProgram *program;
    V rank, arena, micro;
    V index[MAX_REPEATS + 1]; /* of the open repeats, i64, from 1 */
    int depth;
    V round, last_round; /* of the innermost repeat: how many were done, and that of the last */
    V pointers;          /* room for the longest list of pointers of the entry */
    Map *functions;      /* Loop -> function */
} Emitter;

/* ---- the runtime's functions, from the ABI list ------------------------------------------------- */

/* Every parameter of that list is a pointer or an i64. */
static V runtime_function(Codegen *g, const char *name) {
    V known = LLVMGetNamedFunction(g->module, name);
    if (known) return known;
    static const struct {
        const char *name, *parameters;
    } abi[] = {
#define RT(function, result, ...) {#function, #__VA_ARGS__},
#include "plan_rt_abi.def"
#undef RT
    };
    for (size_t i = 0; i < sizeof abi / sizeof *abi; i++) {
        if (strcmp(abi[i].name, name) != 0) continue;
        T params[16];
        unsigned n = 0;
        for (const char *at = abi[i].parameters; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
            const char *end = strchr(at, ',');
            size_t length = end ? (size_t)(end - at) : strlen(at);
            params[n++] = memchr(at, '*', length) ? g->ptr : g->i64;
        }
        return LLVMAddFunction(g->module, name, LLVMFunctionType(g->nothing, params, n, false));
    }
    BUG("`%s` is not in plan_rt_abi.def", name);
}

/* ---- constants ---------------------------------------------------------------------------------- */

static V constant_global(Codegen *g, V value, const char *name) {
    V global = LLVMAddGlobal(g->module, LLVMTypeOf(value), name);
    LLVMSetInitializer(global, value);
    LLVMSetGlobalConstant(global, true);
    LLVMSetLinkage(global, LLVMInternalLinkage);
    return global;
}

static V string_global(Codegen *g, const char *text, const char *name) {
    V value = LLVMConstStringInContext2(g->context, text, strlen(text), false);
    return constant_global(g, value, name);
}

static V const_struct(Codegen *g, V *fields, unsigned n) {
    return LLVMConstStructInContext(g->context, fields, n, false);
}

static V product_dims(Codegen *g, const ProductDim *dims, int n) {
    V items[PRODUCT_MAX_DIMS];
    T type = NULL;
    for (int i = 0; i < PRODUCT_MAX_DIMS; i++) {
        ProductDim d = i < n ? dims[i] : (ProductDim){0};
        V fields[] = {cg_i64(g, d.extent), cg_i64(g, d.a), cg_i64(g, d.b), cg_i64(g, d.c)};
        items[i] = const_struct(g, fields, 4);
        type = LLVMTypeOf(items[i]);
    }
    return LLVMConstArray2(type, items, PRODUCT_MAX_DIMS);
}

/* Those of A, B and C, a byte each. */
static V element_types(Codegen *g, const Product *p) {
    V types[] = {LLVMConstInt(g->i8, p->a, false), LLVMConstInt(g->i8, p->b, false), LLVMConstInt(g->i8, p->c, false),
                 LLVMConstInt(g->i8, 0, false)};
    return LLVMConstArray2(g->i8, types, 4);
}

static V product_constant(Emitter *e, const Kernel *kernel) {
    Codegen *g = e->g;
    const Product *p = kernel->product;
    V epilogue = kernel->loop ? map_get(e->functions, kernel->loop) : LLVMConstNull(g->ptr);
    V fields[] = {product_dims(g, p->batch, p->n_batch),
                  product_dims(g, p->m, p->n_m),
                  product_dims(g, p->n, p->n_n),
                  product_dims(g, p->k, p->n_k),
                  cg_i32(g, p->n_batch),
                  cg_i32(g, p->n_m),
                  cg_i32(g, p->n_n),
                  cg_i32(g, p->n_k),
                  cg_i32(g, p->accumulate),
                  cg_i32(g, kernel->loop != NULL),
                  cg_f32(g, p->scale),
                  element_types(g, p),
                  epilogue};
    return constant_global(g, const_struct(g, fields, sizeof fields / sizeof *fields),
                           arena_printf(g->arena, "%s.product", kernel->name));
}

static V position_cuts(Codegen *g, const PositionCut *cuts) {
    V items[POSITION_MAX_CUTS];
    for (int i = 0; i < POSITION_MAX_CUTS; i++) {
        V fields[] = {cg_i32(g, cuts[i].axis), cg_i32(g, cuts[i].parts), cg_i32(g, cuts[i].balanced),
                      cg_i32(g, cuts[i].turn)};
        items[i] = const_struct(g, fields, 4);
    }
    return LLVMConstArray2(LLVMTypeOf(items[0]), items, POSITION_MAX_CUTS);
}

static V attend_constant(Codegen *g, const Kernel *kernel) {
    const Attend *a = kernel->attend;
    int64_t numbers[] = {a->batch,  a->seq,     a->key,     a->kv_head, a->group,   a->width,   a->q_batch,
                         a->q_seq,  a->q_head,  a->k_batch, a->k_key,   a->k_head,  a->v_batch, a->v_key,
                         a->v_head, a->o_batch, a->o_seq,   a->o_head,  a->l_batch, a->l_seq,   a->l_head};
    enum { N = sizeof numbers / sizeof *numbers };
    V fields[N + 8];
    for (int i = 0; i < N; i++) fields[i] = cg_i64(g, numbers[i]);
    fields[N] = cg_f32(g, a->scale);
    fields[N + 1] = cg_i32(g, a->causal);
    fields[N + 2] = cg_i32(g, (int32_t)a->element);
    fields[N + 3] = cg_i32(g, 0);
    fields[N + 4] = cg_i32(g, a->n_q_cuts);
    fields[N + 5] = cg_i32(g, a->n_k_cuts);
    fields[N + 6] = position_cuts(g, a->q_cuts);
    fields[N + 7] = position_cuts(g, a->k_cuts);
    return constant_global(g, const_struct(g, fields, N + 8), arena_printf(g->arena, "%s.attend", kernel->name));
}

static V scatter_constant(Codegen *g, const Kernel *kernel) {
    const Scatter *s = kernel->scatter;
    V fields[] = {cg_i64(g, s->n_rows),
                  cg_i64(g, s->n_out),
                  cg_i64(g, s->width),
                  cg_i64(g, s->row_stride),
                  cg_i64(g, s->out_stride),
                  cg_i32(g, s->coordinate_axis),
                  cg_i32(g, s->accumulate),
                  cg_i32(g, (int32_t)s->element),
                  cg_i32(g, 0)};
    return constant_global(g, const_struct(g, fields, 9), arena_printf(g->arena, "%s.scatter", kernel->name));
}

static V exact_constant(Codegen *g, const Kernel *kernel) {
    const Exact *x = kernel->exact;
    const int64_t *lists[] = {x->extent, x->out, x->in, x->in2};
    V fields[9];
    for (int i = 0; i < 4; i++) {
        V items[EXACT_MAX_AXES];
        for (int a = 0; a < EXACT_MAX_AXES; a++) items[a] = cg_i64(g, a < x->n_axes ? lists[i][a] : 0);
        fields[i] = LLVMConstArray2(g->i64, items, EXACT_MAX_AXES);
    }
    int n = 4;
    fields[n++] = cg_i64(g, x->shift);
    fields[n++] = cg_i32(g, (int32_t)x->kind);
    fields[n++] = cg_i32(g, x->n_axes);
    fields[n++] = cg_i32(g, x->accumulate);
    fields[n++] = cg_i32(g, x->axis);
    return constant_global(g, const_struct(g, fields, (unsigned)n), arena_printf(g->arena, "%s.exact", kernel->name));
}

static V top_k_constant(Codegen *g, const Kernel *kernel) {
    const TopK *t = kernel->top_k;
    V fields[] = {cg_i64(g, t->sequences), cg_i64(g, t->seq), cg_i64(g, t->experts), cg_i64(g, t->picks),
                  cg_i64(g, t->slots)};
    return constant_global(g, const_struct(g, fields, 5), arena_printf(g->arena, "%s.top_k", kernel->name));
}

static V collective_constant(Codegen *g, const Kernel *kernel) {
    const Collective *c = kernel->collective;
    static const struct {
        Op op;
        int kind;
    } kinds[] = {{OP_ALL_REDUCE, 0}, {OP_ALL_GATHER, 1}, {OP_REDUCE_SCATTER, 2}, {OP_ALL_TO_ALL, 3}, {OP_PASS, 4}};
    int kind = -1;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].op == c->op) kind = kinds[i].kind;
    CHECK(kind >= 0);
    int64_t words = c->dtype == DT_EXACT ? dtype_bytes(DT_EXACT) / 4 : 1;
    V fields[] = {cg_i32(g, kind),
                  cg_i32(g, c->axis),
                  cg_i32(g, c->by_tree ? PRT_SUM_BY_TREE : (int32_t)c->reduce),
                  cg_i32(g, c->dtype == DT_EXACT ? PRT_DTYPE_EXACT : (int32_t)c->dtype),
                  cg_i64(g, c->elements * words),
                  cg_i64(g, c->outer),
                  cg_i64(g, c->inner * words),
                  string_global(g, c->where, arena_printf(g->arena, "%s.where", kernel->name)),
                  cg_i64(g, c->balanced)};
    return constant_global(g, const_struct(g, fields, 9), arena_printf(g->arena, "%s.collective", kernel->name));
}

static V handover_constant(Codegen *g, const Kernel *kernel) {
    const Handover *h = kernel->handover;
    V fields[] = {
        cg_i32(g, (int32_t)h->kind), cg_i32(g, h->axis),
        cg_i32(g, h->peer),          cg_i32(g, h->channel),
        cg_i32(g, h->depth),         cg_i32(g, 0),
        cg_i64(g, h->bytes),         string_global(g, h->where, arena_printf(g->arena, "%s.where", kernel->name))};
    return constant_global(g, const_struct(g, fields, 8), arena_printf(g->arena, "%s.handover", kernel->name));
}

/* ---- addresses ---------------------------------------------------------------------------------- */

static V step_of(Emitter *e, const RefStep *step) {
    Codegen *g = e->g;
    CHECK(step->depth > 0 && step->depth <= e->depth);
    V slot = cg_add(g, cg_mul(g, e->index[step->depth], cg_i64(g, step->scale)), cg_i64(g, step->shift));
    if (step->modulus) slot = LLVMBuildURem(g->builder, slot, cg_i64(g, step->modulus), "");
    return cg_mul(g, slot, cg_i64(g, step->step));
}

static V address_of(Emitter *e, const BufferRef *ref) {
    Codegen *g = e->g;
    V offset = cg_i64(g, ref->buffer->address + ref->offset);
    if (ref->buffer->flights > 1) {
        V flight = LLVMBuildURem(g->builder, e->micro, cg_i64(g, ref->buffer->flights), "");
        offset = cg_add(g, offset, cg_mul(g, flight, cg_i64(g, ref->buffer->bytes)));
    }
    RefStep own = {ref->step, ref->scale, ref->shift, ref->modulus, ref->depth};
    if (ref->step) offset = cg_add(g, offset, step_of(e, &own));
    for (int i = 0; i < ref->n_outer; i++) offset = cg_add(g, offset, step_of(e, &ref->outer[i]));
    return cg_at(g, g->i8, e->arena, offset);
}

static void store_pointers(Emitter *e, const Kernel *kernel) {
    for (int i = 0; i < kernel->n_refs; i++)
        cg_store(e->g, address_of(e, &kernel->refs[i]), cg_at(e->g, e->g->ptr, e->pointers, cg_i64(e->g, i)), 8);
}

/* ---- kernels ------------------------------------------------------------------------------------ */

/* Rows that a thread takes at least, so that starting it pays: some 16 thousand elements. */
static int64_t loop_grain(const Loop *loop) {
    int64_t inner = 1;
    for (int a = loop->n_outer; a < loop->n_axes; a++) inner *= loop->extent[a];
    int64_t grain = 16384 / (inner > 0 ? inner : 1);
    return grain > 0 ? grain : 1;
}

static V read_scalar(Emitter *e, const Buffer *buffer) {
    Codegen *g = e->g;
    V value = cg_load(g, g->i32, cg_at(g, g->i8, e->arena, cg_i64(g, buffer->address)), 4);
    return LLVMBuildSExt(g->builder, value, g->i64, "");
}

static void emit_kernels(Emitter *e, const KernelList *list);

static void emit_repeat(Emitter *e, const Kernel *kernel) {
    Codegen *g = e->g;
    CgFor rounds;
    V outer_round = e->round, outer_last = e->last_round;
    CHECK(e->depth < MAX_REPEATS);
    cg_for_begin(g, &rounds, cg_i64(g, 0), cg_i64(g, kernel->count), cg_i64(g, 1), true);
    V i = kernel->descending ? cg_sub(g, cg_i64(g, kernel->count - 1), rounds.iv) : rounds.iv;
    e->index[++e->depth] = i;
    e->round = rounds.iv;
    e->last_round = cg_i64(g, kernel->count - 1);
    BufferRef index = {.buffer = kernel->index};
    V layer = cg_add(g, i, cg_i64(g, kernel->index_first));
    cg_store(g, LLVMBuildTrunc(g->builder, layer, g->i32, ""), address_of(e, &index), 4);
    emit_kernels(e, &kernel->body);
    cg_for_end(g, &rounds, NULL, NULL);
    e->depth--;
    e->round = outer_round, e->last_round = outer_last;
}

/* Whether this round and micro-batch run the kernel; NULL: all do. */
static V emit_condition(Emitter *e, const Kernel *kernel) {
    Codegen *g = e->g;
    V rounds = NULL, micro = NULL;
    if (kernel->rounds != ROUNDS_ALL)
        rounds = cg_icmp(g, LLVMIntNE, e->round, kernel->rounds == ROUNDS_BUT_FIRST ? cg_i64(g, 0) : e->last_round);
    if (kernel->micro) micro = cg_icmp(g, LLVMIntEQ, e->micro, cg_i64(g, kernel->micro - 1));
    return rounds && micro ? LLVMBuildAnd(g->builder, rounds, micro, "") : rounds ? rounds : micro;
}

static void emit_call(Emitter *e, const Kernel *kernel);

static void emit_kernel(Emitter *e, const Kernel *kernel) {
    if (kernel->kind == KERNEL_REPEAT) {
        emit_repeat(e, kernel);
        return;
    }
    V condition = emit_condition(e, kernel);
    Block join = condition ? cg_if_begin(e->g, condition) : NULL;
    emit_call(e, kernel);
    if (condition) cg_if_end(e->g, join);
}

static void emit_call(Emitter *e, const Kernel *kernel) {
    Codegen *g = e->g;
    cg_debug_at(g, kernel->span);
    store_pointers(e, kernel);
    V first = e->rank, zero = cg_i64(g, 0);
    switch (kernel->kind) {
    case KERNEL_LOOP: {
        V args[] = {first, map_get(e->functions, kernel->loop), e->pointers, cg_i64(g, loop_rows(kernel->loop)),
                    cg_i64(g, loop_grain(kernel->loop))};
        cg_call(g, runtime_function(g, "prt_loop"), args, 5);
        break;
    }
    case KERNEL_PRODUCT: {
        V args[] = {first, product_constant(e, kernel), e->pointers, cg_i64(g, kernel->leaf),
                    cg_i64(g, kernel->makes_exact)};
        if (kernel->leaf)
            cg_call(g, runtime_function(g, "prt_product_ordered"), args, 5);
        else
            cg_call(g, runtime_function(g, "prt_product"), args, 3);
        break;
    }
    case KERNEL_ATTEND:
    case KERNEL_ATTEND_GRAD: {
        V start = kernel->start ? read_scalar(e, kernel->start) : zero;
        V args[] = {first, attend_constant(g, kernel), e->pointers, start, zero, cg_i64(g, kernel->leaf)};
        if (kernel->leaf)
            cg_call(g, runtime_function(g, "prt_attend_grad_ordered"), args, 6);
        else
            cg_call(g, runtime_function(g, kernel->kind == KERNEL_ATTEND ? "prt_attend" : "prt_attend_grad"), args, 5);
        break;
    }
    case KERNEL_SCATTER: {
        V args[] = {first, scatter_constant(g, kernel), e->pointers};
        cg_call(g, runtime_function(g, "prt_scatter"), args, 3);
        break;
    }
    case KERNEL_EXACT: {
        V args[] = {first, exact_constant(g, kernel), e->pointers};
        cg_call(g, runtime_function(g, "prt_exact"), args, 3);
        break;
    }
    case KERNEL_TOP_K: {
        V args[] = {first, top_k_constant(g, kernel), e->pointers};
        cg_call(g, runtime_function(g, "prt_top_k"), args, 3);
        break;
    }
    case KERNEL_COLLECTIVE: {
        V args[] = {first, collective_constant(g, kernel), address_of(e, &kernel->refs[0]),
                    address_of(e, &kernel->refs[1])};
        cg_call(g, runtime_function(g, kernel->begins ? "prt_collective_start" : "prt_collective"), args, 4);
        break;
    }
    case KERNEL_FINISH: {
        V args[] = {first, cg_i64(g, kernel->axis)};
        cg_call(g, runtime_function(g, "prt_collective_finish"), args, 2);
        break;
    }
    case KERNEL_TRANSFER: {
        V at = kernel->n_refs ? address_of(e, &kernel->refs[0]) : LLVMConstNull(g->ptr);
        V args[] = {first, handover_constant(g, kernel), at};
        cg_call(g, runtime_function(g, "prt_handover"), args, 3);
        break;
    }
    case KERNEL_REPEAT: break;
    }
}

static void emit_kernels(Emitter *e, const KernelList *list) {
    for (int i = 0; i < list->n; i++) emit_kernel(e, list->at[i]);
}

/* ---- loops: equal ones share a function --------------------------------------------------------- */

typedef struct Emitted {
    const char *text;
    V function;
} Emitted;
typedef VEC(Emitted) EmittedList;

/* Loops with equal keys share a function. Those of a step's middle keep one for each source line, so that a debugger
 * tells them apart; what makes, clears and updates the weights is the same few loops for every weight. */
static const char *loop_key(Arena *arena, const Loop *loop, bool by_line) {
    const char *key = cg_loop_key(arena, loop);
    return by_line ? arena_printf(arena, "%s@%d:%d", key, loop->span.file, loop->span.lo) : key;
}

static bool tells_lines_apart(const Entry *entry) {
    static const char *const alike[] = {"init", "begin", "update"};
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++)
        if (strcmp(entry->name, alike[i]) == 0) return false;
    return true;
}

static void emit_loops(Codegen *g, const KernelList *list, bool by_line, Map *functions, EmittedList *done,
                       int *longest) {
    for (int i = 0; i < list->n; i++) {
        const Kernel *kernel = list->at[i];
        if (kernel->n_refs > *longest) *longest = kernel->n_refs;
        if (kernel->kind == KERNEL_REPEAT) emit_loops(g, &kernel->body, by_line, functions, done, longest);
        if (!kernel->loop) continue;
        const char *key = loop_key(g->arena, kernel->loop, by_line);
        V function = NULL;
        for (int k = 0; k < done->n; k++)
            if (strcmp(done->at[k].text, key) == 0) function = done->at[k].function;
        if (!function) {
            codegen_loop(g, kernel->loop);
            function = LLVMGetNamedFunction(g->module, kernel->loop->name);
            LLVMSetLinkage(function, LLVMInternalLinkage);
            vec_push(g->arena, done, (Emitted){key, function});
        }
        map_put(g->arena, functions, kernel->loop, function);
    }
}

static V emit_entry(Codegen *g, const RoleProgram *program, const Entry *entry, Map *functions, int longest) {
    T params[] = {g->ptr, g->ptr, g->i64};
    const char *name = arena_printf(g->arena, "plan_%d_%s", program->role, entry->name);
    V function = cg_function(g, name, g->nothing, params, 3, false);
    LLVMSetLinkage(function, LLVMInternalLinkage);
    Span span = {0};
    for (int i = 0; i < entry->body.n && !span.file; i++) span = entry->body.at[i]->span;
    cg_debug_function(g, function, name, span);
    Emitter e = {.g = g, .program = program, .functions = functions};
    e.rank = LLVMGetParam(function, 0), e.arena = LLVMGetParam(function, 1), e.micro = LLVMGetParam(function, 2);
    e.pointers = LLVMBuildArrayAlloca(g->builder, g->ptr, cg_i64(g, longest + 1), "pointers");
    emit_kernels(&e, &entry->body);
    LLVMBuildRetVoid(g->builder);
    cg_debug_leave(g);
    return function;
}

void codegen_program(Codegen *g, RoleProgram *const *roles, int n_roles, const char *json) {
    unsigned n = 0, n_entries = 0;
    for (int r = 0; r < n_roles; r++) n_entries += (unsigned)roles[r]->entries.n;
    V *entries = NEW_N(g->arena, V, n_entries + 1);
    EmittedList done = {0};
    for (int r = 0; r < n_roles; r++) {
        Map functions = {0};
        int longest = 1;
        for (int i = 0; i < roles[r]->entries.n; i++) {
            const Entry *entry = &roles[r]->entries.at[i];
            emit_loops(g, &entry->body, tells_lines_apart(entry), &functions, &done, &longest);
        }
        for (int i = 0; i < roles[r]->entries.n; i++) {
            entries[n++] = emit_entry(g, roles[r], &roles[r]->entries.at[i], &functions, longest);
        }
    }
    V table = LLVMConstArray2(g->ptr, entries, n);
    V global = LLVMAddGlobal(g->module, LLVMTypeOf(table), "plan_entries");
    LLVMSetInitializer(global, table);
    LLVMSetGlobalConstant(global, true);
    V text = LLVMConstStringInContext2(g->context, json, strlen(json), false);
    V program = LLVMAddGlobal(g->module, LLVMTypeOf(text), "plan_program");
    LLVMSetInitializer(program, text);
    LLVMSetGlobalConstant(program, true);
}
