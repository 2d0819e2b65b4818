/* One group of points of a loop: instructions to LLVM IR (loop_emit.h).
 *
 * Simple instructions are in a table of emitters. Memory instructions look at their stride on the lane axis: 1 is a
 * vector access, 0 a scalar that is spread, anything else (and a gather with an index for each lane) is taken lane by
 * lane. Narrow memory is converted here. */
#include "codegen/loop_emit.h"

#include <math.h>

bool loop_emit_row_wise(const Loop *loop) { return !loop->lanes_outer && loop->n_axes > loop->n_outer; }

bool loop_access_of(LoopOp op) { return op == LOOP_LOAD || op == LOOP_GATHER || op == LOOP_STORE; }

CgReduce loop_reduction_kind(LoopOp op) {
    return op == LOOP_REDUCE_SUM ? CG_SUM : op == LOOP_REDUCE_MAX ? CG_MAX : CG_MIN;
}

T loop_memory_llvm(Codegen *g, LoopMemory memory) {
    int64_t bytes = loop_memory_bytes(memory);
    return memory == LOOP_MEM_F32 ? g->f32 : bytes == 4 ? g->i32 : bytes == 2 ? g->i16 : g->i8;
}

static Loop *collapsed(Arena *arena, const Loop *loop) {
    Loop *copy = NEW(arena, Loop);
    *copy = *loop;
    copy->code.at = NEW_N(arena, LoopInstr, loop->code.n + 1);
    memcpy(copy->code.at, loop->code.at, sizeof *loop->code.at * (size_t)loop->code.n);
    loop_collapse(copy);
    return copy;
}

const char *cg_loop_key(Arena *arena, const Loop *loop) {
    Loop *copy = collapsed(arena, loop);
    copy->name = "";
    /* The first axis is bounded by lo and hi alone, unless it decides how many columns are summed at once. */
    bool open = loop_emit_row_wise(copy) || copy->n_outer > 1 || copy->n_axes == copy->n_outer;
    if (copy->n_outer > 0 && open) copy->extent[0] = 0;
    Text text = {.arena = arena};
    loop_print(copy, &text);
    return text.at;
}

LoopEmit *loop_emit_new(Codegen *g, const Loop *loop) {
    Text why = {.arena = g->arena};
    if (!loop_verify(loop, &why)) BUG("%s", why.at);
    Loop *copy = collapsed(g->arena, loop);
    CHECK(copy->n_pointers <= LOOP_MAX_POINTERS);
    LoopEmit *e = NEW(g->arena, LoopEmit);
    int n = copy->code.n + 1;
    e->g = g;
    e->loop = copy;
    e->lane_axis = loop_emit_row_wise(copy) ? copy->n_axes - 1 : copy->n_outer - 1;
    e->row_pointer = NEW_N(g->arena, V, n);
    e->inner_pointer = NEW_N(g->arena, V, n);
    e->value = NEW_N(g->arena, V, n);
    e->accumulator = NEW_N(g->arena, V *, n);
    for (int i = 0; i < copy->code.n; i++)
        if (loop_is_reduction(copy->code.at[i].op)) e->accumulator[i] = NEW_N(g->arena, V, LOOP_MAX_PARTS);
    e->width = e->active = 1;
    return e;
}

/* ---- simple instructions ----------------------------------------------------------------------------------------- */

typedef V Emit(Codegen *g, V x, V y, V z);

#define EMIT(name, result)                                                                                             \
    static V name(Codegen *g, V x, V y, V z) {                                                                         \
        (void)x, (void)y, (void)z;                                                                                     \
        return result;                                                                                                 \
    }
#define SAME(x, value) cg_const_f(LLVMTypeOf(x), value)
EMIT(emit_add, cg_fadd(g, x, y))
EMIT(emit_sub, cg_fsub(g, x, y))
EMIT(emit_mul, cg_fmul(g, x, y))
EMIT(emit_div, cg_fdiv(g, x, y))
EMIT(emit_fma, cg_fma(g, x, y, z))
EMIT(emit_min, cg_fmin(g, x, y))
EMIT(emit_max, cg_fmax(g, x, y))
EMIT(emit_neg, LLVMBuildFNeg(g->builder, x, ""))
EMIT(emit_abs, cg_unary_intrinsic(g, "llvm.fabs", x))
EMIT(emit_exp, cg_exp(g, x))
EMIT(emit_log, cg_log(g, x))
EMIT(emit_sqrt, cg_unary_intrinsic(g, "llvm.sqrt", x))
EMIT(emit_rsqrt, cg_fdiv(g, SAME(x, 1), cg_unary_intrinsic(g, "llvm.sqrt", x)))
EMIT(emit_tanh, cg_tanh(g, x))
EMIT(emit_sin, cg_sin(g, x))
EMIT(emit_cos, cg_cos(g, x))
EMIT(emit_pow, cg_pow(g, x, y))
EMIT(emit_iadd, cg_add(g, x, y))
EMIT(emit_isub, cg_sub(g, x, y))
EMIT(emit_imul, cg_mul(g, x, y))
EMIT(emit_and, LLVMBuildAnd(g->builder, x, y, ""))
EMIT(emit_or, LLVMBuildOr(g->builder, x, y, ""))
EMIT(emit_xor, LLVMBuildXor(g->builder, x, y, ""))
EMIT(emit_not, LLVMBuildNot(g->builder, x, ""))
EMIT(emit_flt, cg_fcmp(g, LLVMRealOLT, x, y))
EMIT(emit_fle, cg_fcmp(g, LLVMRealOLE, x, y))
EMIT(emit_feq, cg_fcmp(g, LLVMRealOEQ, x, y))
EMIT(emit_ilt, cg_icmp(g, LLVMIntSLT, x, y))
EMIT(emit_ile, cg_icmp(g, LLVMIntSLE, x, y))
EMIT(emit_ieq, cg_icmp(g, LLVMIntEQ, x, y))
EMIT(emit_select, cg_select(g, x, y, z))
EMIT(emit_i_to_f, LLVMBuildSIToFP(g->builder, x, cg_like(g->f32, LLVMTypeOf(x)), ""))
EMIT(emit_f_to_i, cg_f_to_i(g, x))
EMIT(emit_to_bf16, cg_bf16_to_f32(g, cg_f32_to_bf16(g, x)))
EMIT(emit_to_f16, cg_f16_to_f32(g, cg_f32_to_f16(g, x)))
EMIT(emit_b_to_f, LLVMBuildUIToFP(g->builder, x, cg_like(g->f32, LLVMTypeOf(x)), ""))

static V emit_imulhi(Codegen *g, V x, V y, V z) {
    (void)z;
    T type = LLVMTypeOf(x), wide = cg_like(g->i64, type);
    V product = cg_mul(g, LLVMBuildZExt(g->builder, x, wide, ""), LLVMBuildZExt(g->builder, y, wide, ""));
    return LLVMBuildTrunc(g->builder, LLVMBuildLShr(g->builder, product, cg_const_i(wide, 32), ""), type, "");
}

/* LLVM leaves shifts by 32 and more undefined; here they give 0. */
static V emit_ishr(Codegen *g, V x, V y, V z) {
    (void)z;
    T type = LLVMTypeOf(x);
    V small = LLVMBuildAnd(g->builder, y, cg_const_i(type, 31), "");
    V inside = cg_icmp(g, LLVMIntULT, y, cg_const_i(type, 32));
    return cg_select(g, inside, LLVMBuildLShr(g->builder, x, small, ""), LLVMConstNull(type));
}

static V emit_u_to_unit(Codegen *g, V x, V y, V z) {
    (void)y, (void)z;
    V top = LLVMBuildLShr(g->builder, x, cg_const_i(LLVMTypeOf(x), 8), "");
    V number = LLVMBuildSIToFP(g->builder, top, cg_like(g->f32, LLVMTypeOf(x)), "");
    return cg_fmul(g, number, SAME(number, 0x1p-24));
}
#undef EMIT
#undef SAME

/* Instructions without an entry are those that read the state of the loop. */
static Emit *const emitters[LOOP_OP_COUNT] = {
    [LOOP_ADD] = emit_add,
    [LOOP_SUB] = emit_sub,
    [LOOP_MUL] = emit_mul,
    [LOOP_DIV] = emit_div,
    [LOOP_FMA] = emit_fma,
    [LOOP_MIN] = emit_min,
    [LOOP_MAX] = emit_max,
    [LOOP_NEG] = emit_neg,
    [LOOP_ABS] = emit_abs,
    [LOOP_EXP] = emit_exp,
    [LOOP_LOG] = emit_log,
    [LOOP_SQRT] = emit_sqrt,
    [LOOP_RSQRT] = emit_rsqrt,
    [LOOP_TANH] = emit_tanh,
    [LOOP_SIN] = emit_sin,
    [LOOP_COS] = emit_cos,
    [LOOP_POW] = emit_pow,
    [LOOP_IADD] = emit_iadd,
    [LOOP_ISUB] = emit_isub,
    [LOOP_IMUL] = emit_imul,
    [LOOP_IMULHI] = emit_imulhi,
    [LOOP_IAND] = emit_and,
    [LOOP_IXOR] = emit_xor,
    [LOOP_ISHR] = emit_ishr,
    [LOOP_FLT] = emit_flt,
    [LOOP_FLE] = emit_fle,
    [LOOP_FEQ] = emit_feq,
    [LOOP_ILT] = emit_ilt,
    [LOOP_ILE] = emit_ile,
    [LOOP_IEQ] = emit_ieq,
    [LOOP_AND] = emit_and,
    [LOOP_OR] = emit_or,
    [LOOP_NOT] = emit_not,
    [LOOP_SELECT] = emit_select,
    [LOOP_I_TO_F] = emit_i_to_f,
    [LOOP_F_TO_I] = emit_f_to_i,
    [LOOP_U_TO_UNIT] = emit_u_to_unit,
    [LOOP_B_TO_F] = emit_b_to_f,
    [LOOP_TO_BF16] = emit_to_bf16,
    [LOOP_TO_F16] = emit_to_f16,
};

/* ---- pointers ---------------------------------------------------------------------------------------------------- */

/* Not `inbounds`: a gather's base may lie outside of its array until the index is added. */
static V step(LoopEmit *e, const LoopInstr *instr, V pointer, V elements) {
    T element = loop_memory_llvm(e->g, instr->access.memory);
    return LLVMBuildGEP2(e->g->builder, element, pointer, &elements, 1, "");
}

static V times(Codegen *g, V index, int64_t stride) {
    return stride == 1 ? index : cg_mul(g, index, cg_i64(g, stride));
}

/* pointer + sum of index * stride over axes [from, to) but the lane axis */
static V step_axes(LoopEmit *e, const LoopInstr *instr, V pointer, int from, int to, int64_t offset) {
    Codegen *g = e->g;
    V sum = offset != 0 ? cg_i64(g, offset) : NULL;
    for (int a = from; a < to; a++) {
        int64_t stride = instr->access.stride[a];
        if (a == e->lane_axis || stride == 0) continue;
        V term = times(g, e->index[a], stride);
        sum = sum == NULL ? term : cg_add(g, sum, term);
    }
    return sum == NULL ? pointer : step(e, instr, pointer, sum);
}

/* Whether two accesses have the same bytes at the start of a row (or of the last inner axis): one pointer for both. */
static bool same_start(const LoopEmit *e, const LoopAccess *a, const LoopAccess *b, int to) {
    if (a->pointer != b->pointer || a->offset != b->offset) return false;
    if (loop_memory_bytes(a->memory) != loop_memory_bytes(b->memory)) return false;
    for (int i = 0; i < to; i++)
        if (i != e->lane_axis && a->stride[i] != b->stride[i]) return false;
    return true;
}

/* Pointers of instructions [first, first + n), from `start` stepped by axes [from, to). */
static void start_pointers(LoopEmit *e, V *out, int first, int n, int from, int to) {
    for (int i = first; i < first + n; i++) {
        const LoopInstr *instr = &e->loop->code.at[i];
        if (!loop_access_of(instr->op)) continue;
        out[i] = NULL;
        for (int k = first; k < i && out[i] == NULL; k++) {
            const LoopInstr *other = &e->loop->code.at[k];
            if (loop_access_of(other->op) && same_start(e, &instr->access, &other->access, to)) out[i] = out[k];
        }
        if (out[i] != NULL) continue;
        if (from == 0)
            out[i] = step_axes(e, instr, e->base[instr->access.pointer], 0, to, instr->access.offset);
        else
            out[i] = step_axes(e, instr, e->row_pointer[i], from, to, 0);
    }
}

void loop_emit_row_pointers(LoopEmit *e) {
    start_pointers(e, e->row_pointer, 0, e->loop->code.n, 0, e->loop->n_outer);
    memcpy(e->inner_pointer, e->row_pointer, sizeof(V) * (size_t)e->loop->code.n);
}

void loop_emit_inner_pointers(LoopEmit *e, const LoopPass *pass) {
    const Loop *loop = e->loop;
    if (loop->n_axes - 1 <= loop->n_outer) return;
    start_pointers(e, e->inner_pointer, pass->first, pass->n, loop->n_outer, loop->n_axes - 1);
}

void loop_emit_split_row(LoopEmit *e, V row) {
    Codegen *g = e->g;
    for (int a = e->loop->n_outer - 1; a > 0; a--) {
        V extent = cg_i64(g, e->loop->extent[a]), quotient = LLVMBuildUDiv(g->builder, row, extent, "");
        e->index[a] = cg_sub(g, row, cg_mul(g, quotient, extent));
        row = quotient;
    }
    if (e->loop->n_outer > 0) e->index[0] = row;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static V from_memory(Codegen *g, V raw, LoopMemory memory) {
    switch (memory) {
    case LOOP_MEM_F32:
    case LOOP_MEM_I32: return raw;
    case LOOP_MEM_BF16: return cg_bf16_to_f32(g, raw);
    case LOOP_MEM_F16: return cg_f16_to_f32(g, raw);
    case LOOP_MEM_U8: return cg_icmp(g, LLVMIntNE, raw, LLVMConstNull(LLVMTypeOf(raw)));
    case LOOP_MEM_U16: return LLVMBuildZExt(g->builder, raw, cg_like(g->i32, LLVMTypeOf(raw)), "");
    }
    BUG("memory type %d", (int)memory);
}

static V to_memory(Codegen *g, V value, LoopMemory memory) {
    switch (memory) {
    case LOOP_MEM_F32:
    case LOOP_MEM_I32: return value;
    case LOOP_MEM_BF16: return cg_f32_to_bf16(g, value);
    case LOOP_MEM_F16: return cg_f32_to_f16(g, value);
    case LOOP_MEM_U8: return LLVMBuildZExt(g->builder, value, cg_like(g->i8, LLVMTypeOf(value)), "");
    case LOOP_MEM_U16: return LLVMBuildTrunc(g->builder, value, cg_like(g->i16, LLVMTypeOf(value)), "");
    }
    BUG("memory type %d", (int)memory);
}

static bool is_vector(V value) { return cg_lanes(LLVMTypeOf(value)) > 1; }

static V vector_of(LoopEmit *e, V value) { return is_vector(value) ? value : cg_splat(e->g, value, e->width); }

static V lane_of(LoopEmit *e, V value, int lane) {
    return is_vector(value) ? LLVMBuildExtractElement(e->g->builder, value, cg_i32(e->g, lane), "") : value;
}

/* The pointer of the group's first point; a uniform gather index is added. */
static V group_pointer(LoopEmit *e, int i, int64_t lane_stride) {
    Codegen *g = e->g;
    const LoopInstr *instr = &e->loop->code.at[i];
    const LoopPass *pass = &e->loop->passes.at[instr->pass];
    bool inner = !pass->per_row;
    V pointer = inner ? e->inner_pointer[i] : e->row_pointer[i], sum = NULL;
    int last = e->loop->n_axes - 1;
    if (inner && last >= e->loop->n_outer && last != e->lane_axis && instr->access.stride[last] != 0)
        sum = times(g, e->index[last], instr->access.stride[last]);
    if (lane_stride != 0) {
        V lane = times(g, e->index[e->lane_axis], lane_stride);
        sum = sum == NULL ? lane : cg_add(g, sum, lane);
    }
    if (instr->op == LOOP_GATHER && !is_vector(e->value[instr->in[0]])) {
        V index = LLVMBuildSExt(g->builder, e->value[instr->in[0]], g->i64, "");
        index = times(g, index, instr->access.index_stride);
        sum = sum == NULL ? index : cg_add(g, sum, index);
    }
    return sum == NULL ? pointer : step(e, instr, pointer, sum);
}

static int64_t lane_stride_of(const LoopEmit *e, const LoopInstr *instr) {
    return e->lane_axis < 0 ? 0 : instr->access.stride[e->lane_axis];
}

static V load_lanes(LoopEmit *e, const LoopInstr *instr, V pointer, int64_t lane_stride) {
    Codegen *g = e->g;
    T element = loop_memory_llvm(g, instr->access.memory);
    int align = (int)loop_memory_bytes(instr->access.memory);
    V all = LLVMConstNull(cg_vector(element, e->width));
    V index = instr->op == LOOP_GATHER ? e->value[instr->in[0]] : NULL;
    bool gathers = index != NULL && is_vector(index);
    for (int lane = 0; lane < e->active; lane++) {
        V offset = cg_i64(g, lane * lane_stride);
        if (gathers) {
            V at = LLVMBuildSExt(g->builder, lane_of(e, index, lane), g->i64, "");
            offset = cg_add(g, offset, times(g, at, instr->access.index_stride));
        }
        V one = cg_load(g, element, step(e, instr, pointer, offset), align);
        all = LLVMBuildInsertElement(g->builder, all, one, cg_i32(g, lane), "");
    }
    return all;
}

static V emit_load(LoopEmit *e, int i) {
    Codegen *g = e->g;
    const LoopInstr *instr = &e->loop->code.at[i];
    LoopMemory memory = instr->access.memory;
    T element = loop_memory_llvm(g, memory);
    int align = (int)loop_memory_bytes(memory);
    int64_t lane_stride = lane_stride_of(e, instr);
    V pointer = group_pointer(e, i, lane_stride), raw;
    bool index_varies = instr->op == LOOP_GATHER && is_vector(e->value[instr->in[0]]);
    if (e->width == 1 || (lane_stride == 0 && !index_varies))
        raw = cg_load(g, element, pointer, align);
    else if (lane_stride == 1 && !index_varies)
        raw = cg_masked_load(g, cg_vector(element, e->width), pointer, align, e->mask);
    else
        raw = load_lanes(e, instr, pointer, lane_stride);
    return from_memory(g, raw, memory);
}

static void emit_store(LoopEmit *e, int i) {
    Codegen *g = e->g;
    const LoopInstr *instr = &e->loop->code.at[i];
    LoopMemory memory = instr->access.memory;
    int align = (int)loop_memory_bytes(memory);
    int64_t lane_stride = lane_stride_of(e, instr);
    V pointer = group_pointer(e, i, lane_stride), value = e->value[instr->in[0]];
    Block join = e->store_if != NULL ? cg_if_begin(g, e->store_if) : NULL;
    if (e->width == 1) {
        cg_store(g, to_memory(g, value, memory), pointer, align);
    } else if (lane_stride == 0) { /* the last point wins */
        cg_store(g, to_memory(g, lane_of(e, value, e->active - 1), memory), pointer, align);
    } else if (lane_stride == 1) {
        cg_masked_store(g, to_memory(g, vector_of(e, value), memory), pointer, align, e->mask);
    } else {
        V raw = to_memory(g, value, memory);
        for (int lane = 0; lane < e->active; lane++)
            cg_store(g, lane_of(e, raw, lane), step(e, instr, pointer, cg_i64(g, lane * lane_stride)), align);
    }
    if (join != NULL) cg_if_end(g, join);
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

static V emit_index(LoopEmit *e, int axis) {
    Codegen *g = e->g;
    V first = LLVMBuildTrunc(g->builder, e->index[axis], g->i32, "");
    if (axis != e->lane_axis || e->width == 1) return first;
    return cg_add(g, cg_splat(g, first, e->width), cg_iota(g, e->width));
}

static void emit_reduction(LoopEmit *e, int i) {
    const LoopInstr *instr = &e->loop->code.at[i];
    CgReduce kind = loop_reduction_kind(instr->op);
    V x = e->value[instr->in[0]], *sum = &e->accumulator[i][e->part];
    if (e->width > 1) x = vector_of(e, x);
    if (e->mask != NULL) x = cg_select(e->g, e->mask, x, cg_identity(kind, LLVMTypeOf(x)));
    *sum = cg_combine(e->g, kind, *sum, x);
}

/* A scalar when all operands are, else a vector. */
static V emit_simple(LoopEmit *e, const LoopInstr *instr) {
    V in[3] = {NULL, NULL, NULL};
    int n = loop_op_table[instr->op].operands;
    bool vector = false;
    for (int k = 0; k < n; k++) {
        in[k] = e->value[instr->in[k]];
        if (is_vector(in[k])) vector = true;
    }
    for (int k = 0; k < n; k++)
        if (vector) in[k] = vector_of(e, in[k]);
    if (emitters[instr->op] == NULL) BUG("loop instruction %s is not emitted", loop_op_table[instr->op].name);
    return emitters[instr->op](e->g, in[0], in[1], in[2]);
}

static void emit_instr(LoopEmit *e, int i) {
    const LoopInstr *instr = &e->loop->code.at[i];
    cg_debug_at(e->g, instr->span);
    if (instr->op == LOOP_CONST_F)
        e->value[i] = cg_f32(e->g, (double)(float)instr->imm_f);
    else if (instr->op == LOOP_CONST_I)
        e->value[i] = cg_i32(e->g, (int32_t)instr->imm_i);
    else if (instr->op == LOOP_INDEX)
        e->value[i] = emit_index(e, (int)instr->imm_i);
    else if (instr->op == LOOP_LOAD || instr->op == LOOP_GATHER)
        e->value[i] = emit_load(e, i);
    else if (instr->op == LOOP_STORE)
        emit_store(e, i);
    else if (loop_is_reduction(instr->op))
        emit_reduction(e, i);
    else
        e->value[i] = emit_simple(e, instr);
}

void loop_emit_group(LoopEmit *e, const LoopPass *pass) {
    for (int i = pass->first; i < pass->first + pass->n; i++) emit_instr(e, i);
}
