/* The inner kernels of matrix products, generated once a program, and the constant `plan_inner` that lists them.
 *
 * In: the target's vector width W. Out: the micro-kernel (an outer-product tile of C kept in registers while k runs
 * over packed panels), the packing functions for the three ways memory can lie, and PrtInner
 * (runtime/include/plan_rt.h), through which the drivers in runtime/cpu call them. Strides and sizes are arguments: one
 * set serves all products.
 *
 * The tile is chosen so that accumulators + one row of B + one splat fit the registers: W = 16 has 32 of them, 8 and 4
 * have 16. A column of A is read one float at a time and splat once for all vectors of B's row. */
#include "codegen/product_inner.h"
#include "plan_rt.h"

typedef struct InnerShape {
    int tile_m, tile_n;
    int panel_m;
    int vectors; /* of a row of the tile */
    int block_k, block_m, block_n;
} InnerShape;

/* block_k: a panel of B (block_k * tile_n floats) stays in L1 or streams from L2; block_m * block_k stays in L2; the
 * block of B is the largest that leaves A its place in the scratch memory. */
static InnerShape inner_shape(const Codegen *g) {
    InnerShape s = {.tile_m = 4, .vectors = 2, .block_k = 384, .block_m = 168, .block_n = 2048};
    if (g->width == 8) s.tile_m = 6;
    if (g->width == 16) s.tile_m = 12;
    s.tile_n = s.vectors * g->width;
    s.panel_m = s.tile_m <= g->width ? g->width : 2 * g->width;
    CHECK((s.block_k * (s.block_n + s.tile_n) + s.block_k * (s.block_m / s.tile_m + 1) * s.panel_m) * 4 <=
          PRT_SCRATCH_BYTES);
    return s;
}

V inner_fma(Codegen *g, V x, V y, V z) { return g->has_fma ? cg_fma(g, x, y, z) : cg_fadd(g, cg_fmul(g, x, y), z); }

/* ---- the micro-kernel ---------------------------------------------------------------------------------------- */

enum { MAX_ACCUMULATORS = 32, UNROLL = 4, PREFETCH_STEPS = 8 };

typedef struct TileEmit {
    InnerShape shape;
    V a, b, c, k, ldc, rows, columns, alpha, accumulate;
    V acc[MAX_ACCUMULATORS];
    int n;
    T vector;
} TileEmit;

/* One step of k: acc[i][v] += a[i] * b[v]. */
static void tile_step(Codegen *g, const TileEmit *t, V step, V *acc) {
    V row[4];
    V b = cg_at(g, g->f32, t->b, cg_mul(g, step, cg_i64(g, t->shape.tile_n)));
    V a = cg_at(g, g->f32, t->a, cg_mul(g, step, cg_i64(g, t->shape.panel_m)));
    for (int v = 0; v < t->shape.vectors; v++)
        row[v] = cg_load(g, t->vector, cg_at(g, g->f32, b, cg_i64(g, v * g->width)), 4 * g->width);
    for (int at = 0; at < t->shape.tile_n; at += 16)
        cg_prefetch(g, cg_at(g, g->f32, b, cg_i64(g, PREFETCH_STEPS * t->shape.tile_n + at)), false);
    for (int i = 0; i < t->shape.tile_m; i++) {
        V x = cg_splat(g, cg_load(g, g->f32, cg_at(g, g->f32, a, cg_i64(g, i)), 4), g->width);
        for (int v = 0; v < t->shape.vectors; v++) {
            V *sum = &acc[i * t->shape.vectors + v];
            *sum = inner_fma(g, x, row[v], *sum);
        }
    }
}

static void tile_k_loop(Codegen *g, TileEmit *t, V from, V to, int unroll) {
    CgFor loop;
    V acc[MAX_ACCUMULATORS];
    cg_for_begin(g, &loop, from, to, cg_i64(g, unroll), false);
    for (int i = 0; i < t->n; i++) acc[i] = cg_for_carry(g, &loop, t->acc[i]);
    for (int u = 0; u < unroll; u++) tile_step(g, t, cg_add(g, loop.iv, cg_i64(g, u)), acc);
    cg_for_end(g, &loop, acc, t->acc);
}

static V tile_result(Codegen *g, const TileEmit *t, V sum, V old) {
    V alpha = cg_splat(g, t->alpha, g->width);
    return old ? inner_fma(g, alpha, sum, old) : cg_fmul(g, alpha, sum);
}

/* All of the tile, without masks. */
static void tile_store_full(Codegen *g, const TileEmit *t, bool add) {
    for (int i = 0; i < t->shape.tile_m; i++) {
        V row = cg_at(g, g->f32, t->c, cg_mul(g, t->ldc, cg_i64(g, i)));
        for (int v = 0; v < t->shape.vectors; v++) {
            V at = cg_at(g, g->f32, row, cg_i64(g, v * g->width));
            cg_store(g, tile_result(g, t, t->acc[i * t->shape.vectors + v], add ? cg_load(g, t->vector, at, 4) : NULL),
                     at, 4);
        }
    }
    LLVMBuildRetVoid(g->builder);
}

/* Fewer rows or columns: the sums go through memory, so that a loop can count the rows. */
static void tile_store_edge(Codegen *g, const TileEmit *t, V buffer) {
    for (int i = 0; i < t->n; i++)
        cg_store(g, t->acc[i], cg_at(g, g->f32, buffer, cg_i64(g, i * g->width)), 4 * g->width);
    V adds = cg_icmp(g, LLVMIntNE, t->accumulate, cg_i64(g, 0));
    V mask[4];
    for (int v = 0; v < t->shape.vectors; v++)
        mask[v] = cg_mask_below(g, g->width, cg_sub(g, t->columns, cg_i64(g, v * g->width)));
    CgFor row;
    cg_for_begin(g, &row, cg_i64(g, 0), t->rows, cg_i64(g, 1), false);
    V c = cg_at(g, g->f32, t->c, cg_mul(g, row.iv, t->ldc));
    V from = cg_at(g, g->f32, buffer, cg_mul(g, row.iv, cg_i64(g, t->shape.tile_n)));
    for (int v = 0; v < t->shape.vectors; v++) {
        V at = cg_at(g, g->f32, c, cg_i64(g, v * g->width));
        V sum = cg_load(g, t->vector, cg_at(g, g->f32, from, cg_i64(g, v * g->width)), 4 * g->width);
        V added = tile_result(g, t, sum, cg_masked_load(g, t->vector, at, 4, mask[v]));
        cg_masked_store(g, cg_select(g, adds, added, tile_result(g, t, sum, NULL)), at, 4, mask[v]);
    }
    cg_for_end(g, &row, NULL, NULL);
    LLVMBuildRetVoid(g->builder);
}

static V emit_tile(Codegen *g, InnerShape shape) {
    T params[] = {g->ptr, g->ptr, g->ptr, g->i64, g->i64, g->i64, g->i64, g->f32, g->i64};
    V f = cg_function(g, "plan_inner.tile", g->nothing, params, 9, true);
    for (int i = 0; i < 3; i++) cg_param_attribute(g, f, i, "noalias");
    TileEmit t = {.shape = shape, .n = shape.tile_m * shape.vectors, .vector = cg_vector(g->f32, g->width)};
    V *fields[] = {&t.a, &t.b, &t.c, &t.k, &t.ldc, &t.rows, &t.columns, &t.alpha, &t.accumulate};
    for (int i = 0; i < 9; i++) *fields[i] = LLVMGetParam(f, (unsigned)i);
    CHECK(t.n <= MAX_ACCUMULATORS);
    V buffer = LLVMBuildAlloca(g->builder, LLVMArrayType2(t.vector, (uint64_t)t.n), "edge");
    LLVMSetAlignment(buffer, 64);
    for (int i = 0; i < shape.tile_m; i++) cg_prefetch(g, cg_at(g, g->f32, t.c, cg_mul(g, t.ldc, cg_i64(g, i))), true);
    for (int i = 0; i < t.n; i++) t.acc[i] = cg_const_f(t.vector, 0);
    V whole = LLVMBuildAnd(g->builder, t.k, cg_i64(g, -UNROLL), "");
    tile_k_loop(g, &t, cg_i64(g, 0), whole, UNROLL);
    tile_k_loop(g, &t, whole, t.k, 1);

    Block full = cg_block(g, "full"), add = cg_block(g, "add"), set = cg_block(g, "set"), edge = cg_block(g, "edge");
    V is_full = LLVMBuildAnd(g->builder, cg_icmp(g, LLVMIntEQ, t.rows, cg_i64(g, shape.tile_m)),
                             cg_icmp(g, LLVMIntEQ, t.columns, cg_i64(g, shape.tile_n)), "");
    cg_branch_if(g, is_full, full, edge);
    cg_position(g, full);
    cg_branch_if(g, cg_icmp(g, LLVMIntNE, t.accumulate, cg_i64(g, 0)), add, set);
    cg_position(g, add);
    tile_store_full(g, &t, true);
    cg_position(g, set);
    tile_store_full(g, &t, false);
    cg_position(g, edge);
    tile_store_edge(g, &t, buffer);
    return f;
}

/* ---- packing --------------------------------------------------------------------------------------------------- */

typedef struct PackArgs {
    V src, dst, k, k_stride, lane_stride, lanes;
} PackArgs;

static V pack_function(Codegen *g, const char *name, PackArgs *p) {
    T params[] = {g->ptr, g->ptr, g->i64, g->i64, g->i64, g->i64};
    V f = cg_function(g, name, g->nothing, params, 6, true);
    cg_param_attribute(g, f, 0, "noalias");
    cg_param_attribute(g, f, 1, "noalias");
    V *fields[] = {&p->src, &p->dst, &p->k, &p->k_stride, &p->lane_stride, &p->lanes};
    for (int i = 0; i < 6; i++) *fields[i] = LLVMGetParam(f, (unsigned)i);
    return f;
}

/* dst[k][lane] = src[k * k_stride + lane * lane_stride] for lane < lanes, else 0: one float at a time. */
static void pack_scalars(Codegen *g, const PackArgs *p, V from, int panel) {
    CgFor k, lane, rest;
    cg_for_begin(g, &k, from, p->k, cg_i64(g, 1), false);
    V src = cg_at(g, g->f32, p->src, cg_mul(g, k.iv, p->k_stride));
    V dst = cg_at(g, g->f32, p->dst, cg_mul(g, k.iv, cg_i64(g, panel)));
    cg_for_begin(g, &lane, cg_i64(g, 0), p->lanes, cg_i64(g, 1), false);
    V value = cg_load(g, g->f32, cg_at(g, g->f32, src, cg_mul(g, lane.iv, p->lane_stride)), 4);
    cg_store(g, value, cg_at(g, g->f32, dst, lane.iv), 4);
    cg_for_end(g, &lane, NULL, NULL);
    cg_for_begin(g, &rest, p->lanes, cg_i64(g, panel), cg_i64(g, 1), false);
    cg_store(g, cg_f32(g, 0), cg_at(g, g->f32, dst, rest.iv), 4);
    cg_for_end(g, &rest, NULL, NULL);
    cg_for_end(g, &k, NULL, NULL);
}

static V emit_pack_any(Codegen *g, const char *name, int panel) {
    PackArgs p;
    V f = pack_function(g, name, &p);
    pack_scalars(g, &p, cg_i64(g, 0), panel);
    LLVMBuildRetVoid(g->builder);
    return f;
}

static void pack_copy_loop(Codegen *g, const PackArgs *p, int panel, bool masked) {
    T vector = cg_vector(g->f32, g->width);
    V mask[4] = {0};
    for (int v = 0; masked && v < panel / g->width; v++)
        mask[v] = cg_mask_below(g, g->width, cg_sub(g, p->lanes, cg_i64(g, v * g->width)));
    CgFor k;
    cg_for_begin(g, &k, cg_i64(g, 0), p->k, cg_i64(g, 1), false);
    V src = cg_at(g, g->f32, p->src, cg_mul(g, k.iv, p->k_stride));
    V dst = cg_at(g, g->f32, p->dst, cg_mul(g, k.iv, cg_i64(g, panel)));
    for (int v = 0; v < panel / g->width; v++) {
        V at = cg_i64(g, v * g->width);
        cg_store(g, cg_masked_load(g, vector, cg_at(g, g->f32, src, at), 4, mask[v]), cg_at(g, g->f32, dst, at),
                 4 * g->width);
    }
    cg_for_end(g, &k, NULL, NULL);
    LLVMBuildRetVoid(g->builder);
}

/* Lanes lie side by side: rows are copied. */
static V emit_pack_lanes(Codegen *g, const char *name, int panel) {
    PackArgs p;
    V f = pack_function(g, name, &p);
    Block full = cg_block(g, "full"), part = cg_block(g, "part");
    cg_branch_if(g, cg_icmp(g, LLVMIntEQ, p.lanes, cg_i64(g, panel)), full, part);
    cg_position(g, full);
    pack_copy_loop(g, &p, panel, false);
    cg_position(g, part);
    pack_copy_loop(g, &p, panel, true);
    return f;
}

/* W vectors of W lanes, transposed by exchanging blocks of half the size each time. */
static void transpose(Codegen *g, V *rows) {
    int w = g->width;
    for (int half = w / 2; half >= 1; half /= 2)
        for (int i = 0; i < w; i++) {
            if (i & half) continue;
            int low[16], high[16];
            for (int j = 0; j < w; j++) {
                low[j] = j & half ? w + j - half : j;
                high[j] = j & half ? w + j : j + half;
            }
            V x = rows[i], y = rows[i + half];
            rows[i] = cg_shuffle(g, x, y, low, w);
            rows[i + half] = cg_shuffle(g, x, y, high, w);
        }
}

/* Lanes are rows of memory: up to W of them, W steps of k at a time, `panel` floats between steps in dst. A missing
 * lane repeats the last one (with none left, lane 0), so that nothing else is read, and is masked out after the
 * transpose. Emitted once for all. */
static V emit_transpose_lanes(Codegen *g) {
    enum { SRC, DST, K, LANE_STRIDE, LANES, PANEL, N };
    T params[N] = {g->ptr, g->ptr, g->i64, g->i64, g->i64, g->i64};
    V f = cg_function(g, "plan_inner.transpose", g->nothing, params, N, true), arg[N];
    cg_param_attribute(g, f, SRC, "noalias");
    cg_param_attribute(g, f, DST, "noalias");
    for (int i = 0; i < N; i++) arg[i] = LLVMGetParam(f, (unsigned)i);
    T vector = cg_vector(g->f32, g->width);
    V row[16], value[16], zero = cg_const_f(vector, 0), last = cg_sub(g, arg[LANES], cg_i64(g, 1));
    last = cg_select(g, cg_icmp(g, LLVMIntSLT, last, cg_i64(g, 0)), cg_i64(g, 0), last);
    for (int i = 0; i < g->width; i++)
        row[i] = cg_at(g, g->f32, arg[SRC], cg_mul(g, cg_imin(g, cg_i64(g, i), last), arg[LANE_STRIDE]));
    V mask = cg_mask_below(g, g->width, arg[LANES]);
    CgFor k;
    cg_for_begin(g, &k, cg_i64(g, 0), arg[K], cg_i64(g, g->width), false);
    for (int i = 0; i < g->width; i++) value[i] = cg_load(g, vector, cg_at(g, g->f32, row[i], k.iv), 4);
    transpose(g, value);
    for (int i = 0; i < g->width; i++) {
        V at = cg_at(g, g->f32, arg[DST], cg_mul(g, cg_add(g, k.iv, cg_i64(g, i)), arg[PANEL]));
        cg_store(g, cg_select(g, mask, value[i], zero), at, 4 * g->width);
    }
    cg_for_end(g, &k, NULL, NULL);
    LLVMBuildRetVoid(g->builder);
    return f;
}

static V emit_pack_depth(Codegen *g, const char *name, V transpose_lanes, int panel) {
    PackArgs p;
    V f = pack_function(g, name, &p);
    V whole = LLVMBuildAnd(g->builder, p.k, cg_i64(g, -g->width), "");
    for (int first = 0; first < panel; first += g->width) {
        V last = cg_sub(g, p.lanes, cg_i64(g, 1)), lane = cg_imin(g, cg_i64(g, first), last);
        V args[] = {cg_at(g, g->f32, p.src, cg_mul(g, lane, p.lane_stride)),
                    cg_at(g, g->f32, p.dst, cg_i64(g, first)),
                    whole,
                    p.lane_stride,
                    cg_sub(g, p.lanes, cg_i64(g, first)),
                    cg_i64(g, panel)};
        cg_call(g, transpose_lanes, args, 6);
    }
    pack_scalars(g, &p, whole, panel);
    LLVMBuildRetVoid(g->builder);
    return f;
}

/* ---- the machine's peak ---------------------------------------------------------------------------------------- */

static int probe_accumulators(const Codegen *g) { return g->width == 16 ? 24 : 12; }

/* Independent multiply-adds, enough of them to hide their latency. The factor keeps values near 1. */
static V emit_probe(Codegen *g) {
    T params[] = {g->i64}, vector = cg_vector(g->f32, g->width);
    V f = cg_function(g, "plan_inner.probe", g->f32, params, 1, true);
    int n = probe_accumulators(g);
    V acc[32], factor = cg_const_f(vector, 0.999), term = cg_const_f(vector, 0.001);
    CgFor loop;
    cg_for_begin(g, &loop, cg_i64(g, 0), LLVMGetParam(f, 0), cg_i64(g, 1), false);
    for (int i = 0; i < n; i++) acc[i] = cg_for_carry(g, &loop, cg_const_f(vector, 1 + i));
    for (int i = 0; i < n; i++) acc[i] = inner_fma(g, acc[i], factor, term);
    cg_for_end(g, &loop, acc, acc);
    for (int i = 1; i < n; i++) acc[0] = cg_fadd(g, acc[0], acc[i]);
    LLVMBuildRet(g->builder, cg_reduce_tree(g, CG_SUM, acc, 1));
    return f;
}

/* ---- the constant ---------------------------------------------------------------------------------------------- */

void codegen_inner(Codegen *g) {
    InnerShape s = inner_shape(g);
    int32_t numbers[] = {s.tile_m,  s.tile_n,  g->width,  s.panel_m,
                         s.block_k, s.block_m, s.block_n, 2 * g->width * probe_accumulators(g)};
    V fields[8 + 7 + INNER_ROWS + 1];
    int n = 0;
    for (int i = 0; i < 8; i++) fields[n++] = cg_i32(g, numbers[i]);
    fields[n++] = emit_tile(g, s);
    V transpose_lanes = emit_transpose_lanes(g);
    fields[n++] = emit_pack_lanes(g, "plan_inner.pack_a_lanes", s.panel_m);
    fields[n++] = emit_pack_depth(g, "plan_inner.pack_a_depth", transpose_lanes, s.panel_m);
    fields[n++] = emit_pack_any(g, "plan_inner.pack_a_any", s.panel_m);
    fields[n++] = emit_pack_lanes(g, "plan_inner.pack_b_lanes", s.tile_n);
    fields[n++] = emit_pack_depth(g, "plan_inner.pack_b_depth", transpose_lanes, s.tile_n);
    fields[n++] = emit_pack_any(g, "plan_inner.pack_b_any", s.tile_n);
    emit_row_kernels(g, fields + n);
    n += INNER_ROWS;
    fields[n++] = emit_probe(g);
    V value = LLVMConstStructInContext(g->context, fields, (unsigned)n, false);
    V constant = LLVMAddGlobal(g->module, LLVMTypeOf(value), "plan_inner");
    LLVMSetInitializer(constant, value);
    LLVMSetGlobalConstant(constant, true);
    LLVMSetAlignment(constant, 64);
}
