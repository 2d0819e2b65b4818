/* A loop description to PTX text: one kernel
 *     .entry name(pointer 0, pointer 1, ..., i64 lo, i64 hi)
 * over rows [lo, hi), for any grid and any block size that is a multiple of 32.
 *
 * Lanes over rows: a thread for each row, in a grid-stride loop. Row-wise: 16 threads (half a warp) for each row, one
 * for each of the 16 accumulators of loop.h, joined by shuffles in the order of the balanced tree; so the bits are
 * those of the host. Row passes run in all 16 threads alike, and the first one stores. Dots in the name become `$`.
 *
 * The same kernel can be emitted for the host, for tests without a GPU: what threads know and exchange then comes from
 * functions that the test brings (plan_emulated_...), and the signature is that of a host kernel. */
#include "codegen/loop_emit.h"

enum { PTX_KERNEL = 71, GLOBAL_SPACE = 1, SHUFFLE_SEGMENT = 0x101F /* 16 lanes */ };

typedef struct Gpu {
    LoopEmit *e;
    Codegen *g;
    V lane;   /* i64: in the half warp; NULL when a row is a thread */
    V member; /* i32: the threads of this half warp, a bit each */
    V *total; /* by instruction, when there are blocks */
    V left;   /* points of the flattened inner space until the block ends */
    bool blocked;
} Gpu;

/* An intrinsic of the GPU, or on the host the function that emulates it. */
typedef struct GpuFunction {
    const char *intrinsic, *emulation;
} GpuFunction;

static const GpuFunction thread_index = {"llvm.nvvm.read.ptx.sreg.tid.x", "plan_emulated_thread"};
static const GpuFunction block_index = {"llvm.nvvm.read.ptx.sreg.ctaid.x", "plan_emulated_block"};
static const GpuFunction block_size = {"llvm.nvvm.read.ptx.sreg.ntid.x", "plan_emulated_block_size"};
static const GpuFunction grid_size = {"llvm.nvvm.read.ptx.sreg.nctaid.x", "plan_emulated_grid_size"};
static const GpuFunction shuffle_down = {"llvm.nvvm.shfl.sync.down.f32", "plan_emulated_shuffle_down"};
static const GpuFunction shuffle_index = {"llvm.nvvm.shfl.sync.idx.f32", "plan_emulated_shuffle_index"};
static const GpuFunction warp_barrier = {"llvm.nvvm.bar.warp.sync", "plan_emulated_warp_barrier"};

static V call(Codegen *g, GpuFunction function, T result, V *args, int n) {
    if (g->is_gpu) return cg_intrinsic(g, function.intrinsic, NULL, 0, args, n);
    V emulation = LLVMGetNamedFunction(g->module, function.emulation);
    T types[4];
    for (int i = 0; i < n; i++) types[i] = LLVMTypeOf(args[i]);
    if (emulation == NULL)
        emulation = LLVMAddFunction(g->module, function.emulation, LLVMFunctionType(result, types, (unsigned)n, false));
    return cg_call(g, emulation, args, n);
}

static V special_register(Codegen *g, GpuFunction function) {
    return LLVMBuildZExt(g->builder, call(g, function, g->i32, NULL, 0), g->i64, "");
}

static V shuffle(Gpu *k, GpuFunction function, V x, int by) {
    Codegen *g = k->g;
    V args[4] = {k->member, x, cg_i32(g, by), cg_i32(g, SHUFFLE_SEGMENT)};
    return call(g, function, g->f32, args, 4);
}

/* What the accumulators come to, in every thread. */
static V joined(Gpu *k, CgReduce kind, V sum) {
    if (k->lane == NULL) return sum;
    for (int half = LOOP_LANES / 2; half > 0; half /= 2)
        sum = cg_combine(k->g, kind, sum, shuffle(k, shuffle_down, sum, half));
    return shuffle(k, shuffle_index, sum, 0);
}

/* Makes what other threads of the row have stored visible. */
static void row_barrier(Gpu *k) {
    if (k->lane != NULL) call(k->g, warp_barrier, k->g->nothing, &k->member, 1);
}

/* ---- inner passes ------------------------------------------------------------------------------------------------ */

static CgReduce kind_of(const Gpu *k, int i) { return loop_reduction_kind(k->e->loop->code.at[i].op); }

/* Lists what is carried through loops: accumulators, totals, `left`. */
static int carried(Gpu *k, const LoopPass *pass, V **slots) {
    int n = 0;
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        if (!loop_is_reduction(k->e->loop->code.at[i].op)) continue;
        CHECK(n + 3 < CG_MAX_CARRIED);
        slots[n++] = &k->e->accumulator[i][0];
        if (k->blocked) slots[n++] = &k->total[i];
    }
    if (k->blocked) slots[n++] = &k->left;
    return n;
}

static void for_begin(Gpu *k, const LoopPass *pass, CgFor *loop, V from, V to, int64_t step, bool at_least_once) {
    V *slots[CG_MAX_CARRIED];
    int n = carried(k, pass, slots);
    cg_for_begin(k->g, loop, from, to, cg_i64(k->g, step), at_least_once);
    for (int i = 0; i < n; i++) *slots[i] = cg_for_carry(k->g, loop, *slots[i]);
}

static void for_end(Gpu *k, const LoopPass *pass, CgFor *loop) {
    V *slots[CG_MAX_CARRIED], next[CG_MAX_CARRIED] = {NULL}, results[CG_MAX_CARRIED] = {NULL};
    int n = carried(k, pass, slots);
    for (int i = 0; i < n; i++) next[i] = *slots[i];
    cg_for_end(k->g, loop, next, results);
    for (int i = 0; i < n; i++) *slots[i] = results[i];
}

/* `points` of the flattened inner space are done; at the end of a block its accumulators join the total. */
static void advance(Gpu *k, const LoopPass *pass, V points) {
    Codegen *g = k->g;
    V left = cg_sub(g, k->left, points), done = cg_icmp(g, LLVMIntEQ, left, cg_i64(g, 0));
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        if (!loop_is_reduction(k->e->loop->code.at[i].op)) continue;
        V *sum = &k->e->accumulator[i][0];
        V total = cg_combine(g, kind_of(k, i), k->total[i], joined(k, kind_of(k, i), *sum));
        k->total[i] = cg_select(g, done, total, k->total[i]);
        *sum = cg_select(g, done, cg_identity(kind_of(k, i), g->f32), *sum);
    }
    k->left = cg_select(g, done, cg_i64(g, k->e->loop->block), left);
}

/* This thread's points of [from, to) on the last inner axis. */
static void lane_points(Gpu *k, const LoopPass *pass, V from, V to) {
    Codegen *g = k->g;
    int axis = k->e->loop->n_axes - 1;
    CgFor points;
    if (k->lane == NULL) {
        for_begin(k, pass, &points, from, to, 1, false);
    } else {
        V ahead = LLVMBuildAnd(g->builder, cg_sub(g, k->lane, from), cg_i64(g, LOOP_LANES - 1), "");
        for_begin(k, pass, &points, cg_add(g, from, ahead), to, LOOP_LANES, false);
    }
    k->e->index[axis] = points.iv;
    loop_emit_group(k->e, pass);
    for_end(k, pass, &points);
}

/* The last inner axis in segments that end where a block ends; there may be empty ones. */
static void segments(Gpu *k, const LoopPass *pass, int64_t n) {
    Codegen *g = k->g;
    CgFor loop;
    V *slots[CG_MAX_CARRIED], next[CG_MAX_CARRIED] = {NULL}, results[CG_MAX_CARRIED] = {NULL};
    int n_slots = carried(k, pass, slots);
    V end = cg_i64(g, n);
    cg_for_begin(g, &loop, cg_i64(g, 0), cg_i64(g, n / k->e->loop->block + 2), cg_i64(g, 1), true);
    V from = cg_for_carry(g, &loop, cg_i64(g, 0));
    for (int i = 0; i < n_slots; i++) *slots[i] = cg_for_carry(g, &loop, *slots[i]);
    V to = cg_imin(g, end, cg_add(g, from, k->left));
    lane_points(k, pass, from, to);
    advance(k, pass, cg_sub(g, to, from));
    next[0] = to;
    for (int i = 0; i < n_slots; i++) next[i + 1] = *slots[i];
    cg_for_end(g, &loop, next, results);
    for (int i = 0; i < n_slots; i++) *slots[i] = results[i + 1];
}

static void inner_axes(Gpu *k, const LoopPass *pass, int axis) {
    const Loop *loop = k->e->loop;
    V zero = cg_i64(k->g, 0), extent = cg_i64(k->g, loop->extent[axis]);
    if (axis == loop->n_axes) {
        loop_emit_group(k->e, pass);
        return;
    }
    if (axis == loop->n_axes - 1) {
        loop_emit_inner_pointers(k->e, pass);
        if (k->blocked)
            segments(k, pass, loop->extent[axis]);
        else
            lane_points(k, pass, zero, extent);
        return;
    }
    CgFor points;
    for_begin(k, pass, &points, zero, extent, 1, true);
    k->e->index[axis] = points.iv;
    inner_axes(k, pass, axis + 1);
    for_end(k, pass, &points);
}

static void inner_pass(Gpu *k, const LoopPass *pass) {
    Codegen *g = k->g;
    const Loop *loop = k->e->loop;
    bool reduces = false;
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        if (!loop_is_reduction(loop->code.at[i].op)) continue;
        reduces = true;
        k->e->accumulator[i][0] = k->total[i] = cg_identity(kind_of(k, i), g->f32);
    }
    k->blocked = reduces && loop->block > 0 && loop->n_axes > loop->n_outer;
    k->left = cg_i64(g, loop->block);
    inner_axes(k, pass, loop->n_outer);
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        if (!loop_is_reduction(loop->code.at[i].op)) continue;
        V sum = joined(k, kind_of(k, i), k->e->accumulator[i][0]);
        k->e->value[i] = k->blocked ? cg_combine(g, kind_of(k, i), k->total[i], sum) : sum;
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static void emit_row(Gpu *k, V row) {
    loop_emit_split_row(k->e, row);
    loop_emit_row_pointers(k->e);
    V first = k->lane == NULL ? NULL : cg_icmp(k->g, LLVMIntEQ, k->lane, cg_i64(k->g, 0));
    for (int p = 0; p < k->e->loop->passes.n; p++) {
        const LoopPass *pass = &k->e->loop->passes.at[p];
        if (p > 0) row_barrier(k);
        k->e->store_if = pass->per_row ? first : NULL;
        if (pass->per_row)
            loop_emit_group(k->e, pass);
        else
            inner_pass(k, pass);
    }
}

static const char *kernel_name(Arena *arena, const char *name) {
    char *copy = arena_strndup(arena, name, strlen(name));
    for (char *at = copy; *at != 0; at++)
        if (*at == '.') *at = '$';
    return copy;
}

/* The kernel's function with its pointers in e->base; lo and hi. */
static LoopEmit *begin_kernel(Codegen *g, const Loop *loop, V *lo, V *hi) {
    enum { MAX_PARAMS = LOOP_MAX_POINTERS + 2 };
    T params[MAX_PARAMS];
    int n = g->is_gpu ? loop->n_pointers : 1;
    CHECK(n <= LOOP_MAX_POINTERS);
    for (int i = 0; i < n; i++) params[i] = LLVMPointerTypeInContext(g->context, g->is_gpu ? GLOBAL_SPACE : 0);
    params[n] = params[n + 1] = g->i64;
    V kernel = cg_function(g, kernel_name(g->arena, loop->name), g->nothing, params, n + 2, false);
    *lo = LLVMGetParam(kernel, (unsigned)n);
    *hi = LLVMGetParam(kernel, (unsigned)n + 1);
    LoopEmit *e = loop_emit_new(g, loop);
    if (g->is_gpu) LLVMSetFunctionCallConv(kernel, PTX_KERNEL);
    for (int i = 0; i < loop->n_pointers; i++) {
        V array = LLVMGetParam(kernel, 0);
        e->base[i] = g->is_gpu ? LLVMGetParam(kernel, (unsigned)i)
                               : cg_load(g, g->ptr, cg_at(g, g->ptr, array, cg_i64(g, i)), 8);
    }
    return e;
}

void cg_gpu_kernel(Codegen *g, const Loop *loop) {
    V lo, hi;
    LoopEmit *e = begin_kernel(g, loop, &lo, &hi);
    Gpu k = {.e = e, .g = g, .total = NEW_N(g->arena, V, e->loop->code.n + 1)};
    bool row_wise = loop_emit_row_wise(e->loop);
    e->lane_axis = -1; /* a group is one point */
    V thread = special_register(g, thread_index), threads = special_register(g, block_size);
    V first = cg_add(g, cg_mul(g, special_register(g, block_index), threads), thread);
    V step = cg_mul(g, special_register(g, grid_size), threads);
    if (row_wise) {
        k.lane = LLVMBuildAnd(g->builder, thread, cg_i64(g, LOOP_LANES - 1), "");
        V upper = LLVMBuildTrunc(g->builder, LLVMBuildAnd(g->builder, thread, cg_i64(g, LOOP_LANES), ""), g->i32, "");
        k.member = LLVMBuildShl(g->builder, cg_i32(g, (1 << LOOP_LANES) - 1), upper, "");
        first = LLVMBuildLShr(g->builder, first, cg_i64(g, 4), "");
        step = LLVMBuildLShr(g->builder, step, cg_i64(g, 4), "");
    }
    CgFor rows;
    cg_for_begin(g, &rows, cg_add(g, lo, first), hi, step, false);
    emit_row(&k, rows.iv);
    cg_for_end(g, &rows, NULL, NULL);
    LLVMBuildRetVoid(g->builder);
}

const char *loop_to_ptx(Session *s, const Loop *loop, int sm) {
    Codegen *g = cg_new_gpu(s, loop->name, sm);
    cg_gpu_kernel(g, loop);
    cg_verify(g);
    char *why = NULL;
    LLVMMemoryBufferRef buffer = NULL;
    const char *text = NULL;
    if (LLVMTargetMachineEmitToMemoryBuffer(g->machine, g->module, LLVMAssemblyFile, &why, &buffer)) {
        diag_error(s, "P0813", loop->span, "no PTX for `%s` on sm_%d: %s", loop->name, sm, why);
        LLVMDisposeMessage(why);
    } else {
        text = arena_strndup(s->arena, LLVMGetBufferStart(buffer), LLVMGetBufferSize(buffer));
        LLVMDisposeMemoryBuffer(buffer);
    }
    codegen_free(g);
    return text;
}
