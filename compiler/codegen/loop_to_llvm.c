/* A loop description to a host function  void name(void *const *pointers, i64 lo, i64 hi)  over rows [lo, hi).
 *
 * Lanes over rows (elementwise loops, and lanes_outer): the last outer axis is walked in groups of a vector, each lane
 * a row of its own; the other outer axes are counted without divisions. What is left of [lo, hi) is a masked group, or
 * single points where masks would be costly. Row-wise: a row at a time, its inner axes in groups of LOOP_LANES points,
 * which are LOOP_LANES / width vectors, each with its own accumulators, so that the order of every reduction is that
 * of loop.h for any width. Extents are constants, so the last group of a row has a constant mask. */
#include "codegen/loop_emit.h"

/* How reductions start afresh every Loop.block inner points. */
typedef enum BlockMode {
    BLOCK_NONE,
    BLOCK_COUNTED, /* a countdown of points, or of whole runs of the last inner axis */
    BLOCK_NESTED,  /* one inner axis cut in blocks of whole groups */
    BLOCK_POINTS,  /* any size: point by point, accumulators in memory */
} BlockMode;

typedef struct Host {
    LoopEmit *e;
    Codegen *g;
    bool row_wise;
    BlockMode mode;
    int64_t units; /* BLOCK_COUNTED: of a block */
    int parts;     /* vectors of a group with reductions */
    V *total;      /* by instruction: the blocks before, when there are blocks */
    V left;        /* BLOCK_COUNTED: units until the block ends */
    V *slots;      /* BLOCK_POINTS, by instruction: memory of the accumulators, then the total */
} Host;

static int64_t inner_points(const Loop *loop) {
    int64_t points = 1;
    for (int a = loop->n_outer; a < loop->n_axes; a++) points *= loop->extent[a];
    return points;
}

static void choose_block_mode(Host *h) {
    const Loop *loop = h->e->loop;
    h->units = loop->block;
    if (loop->block == 0 || loop->block >= inner_points(loop))
        h->mode = BLOCK_NONE;
    else if (!h->row_wise)
        h->mode = BLOCK_COUNTED;
    else if (loop->block % loop->extent[loop->n_axes - 1] == 0) {
        h->mode = BLOCK_COUNTED;
        h->units = loop->block / loop->extent[loop->n_axes - 1];
    } else if (loop->n_axes - loop->n_outer == 1 && loop->block % LOOP_LANES == 0)
        h->mode = BLOCK_NESTED;
    else
        h->mode = BLOCK_POINTS;
}

/* ---- the state of a pass: accumulators, carried through its loops ------------------------------------------------ */

static bool pass_reduces(const Loop *loop, const LoopPass *pass) {
    for (int i = pass->first; i < pass->first + pass->n; i++)
        if (loop_is_reduction(loop->code.at[i].op)) return true;
    return false;
}

/* Calls `visit` for each carried value of the pass, in a fixed order. */
typedef void Visit(Host *h, V *value, void *context);
static void state_visit(Host *h, const LoopPass *pass, Visit *visit, void *context) {
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        if (!loop_is_reduction(h->e->loop->code.at[i].op)) continue;
        for (int part = 0; part < h->parts; part++) visit(h, &h->e->accumulator[i][part], context);
        if (h->mode != BLOCK_NONE) visit(h, &h->total[i], context);
    }
    if (h->mode == BLOCK_COUNTED && pass_reduces(h->e->loop, pass)) visit(h, &h->left, context);
}

static void visit_carry(Host *h, V *value, void *context) { *value = cg_for_carry(h->g, context, *value); }

typedef struct Values {
    V at[CG_MAX_CARRIED];
    int n;
} Values;

static void visit_take(Host *h, V *value, void *context) {
    (void)h;
    Values *values = context;
    values->at[values->n++] = *value;
}

static void visit_give(Host *h, V *value, void *context) {
    (void)h;
    Values *values = context;
    *value = values->at[values->n++];
}

static void state_begin(Host *h, const LoopPass *pass) {
    T type = cg_vector(h->g->f32, h->e->width);
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        LoopOp op = h->e->loop->code.at[i].op;
        if (!loop_is_reduction(op)) continue;
        V identity = cg_identity(loop_reduction_kind(op), type);
        for (int part = 0; part < h->parts; part++) h->e->accumulator[i][part] = identity;
        h->total[i] = h->row_wise ? cg_identity(loop_reduction_kind(op), h->g->f32) : identity;
    }
    h->left = cg_i64(h->g, h->units);
}

static void for_begin(Host *h, const LoopPass *pass, CgFor *loop, V from, V to, int64_t step) {
    cg_for_begin(h->g, loop, from, to, cg_i64(h->g, step), true);
    state_visit(h, pass, visit_carry, loop);
}

static void for_end(Host *h, const LoopPass *pass, CgFor *loop) {
    Values next = {.n = 0}, results = {.n = 0};
    state_visit(h, pass, visit_take, &next);
    cg_for_end(h->g, loop, next.at, results.at);
    state_visit(h, pass, visit_give, &results);
}

/* What the accumulators of one block come to. */
static V joined(Host *h, int i) {
    if (!h->row_wise) return h->e->accumulator[i][0];
    V parts[LOOP_MAX_PARTS];
    for (int part = 0; part < h->parts; part++) parts[part] = h->e->accumulator[i][part];
    return cg_reduce_tree(h->g, loop_reduction_kind(h->e->loop->code.at[i].op), parts, h->parts);
}

/* Ends a block of the pass where `done` holds (NULL: always). */
static void end_block(Host *h, const LoopPass *pass, V done) {
    Codegen *g = h->g;
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        LoopOp op = h->e->loop->code.at[i].op;
        if (!loop_is_reduction(op)) continue;
        CgReduce kind = loop_reduction_kind(op);
        V total = cg_combine(g, kind, h->total[i], joined(h, i));
        h->total[i] = done == NULL ? total : cg_select(g, done, total, h->total[i]);
        for (int part = 0; part < h->parts; part++) {
            V *sum = &h->e->accumulator[i][part], identity = cg_identity(kind, LLVMTypeOf(*sum));
            *sum = done == NULL ? identity : cg_select(g, done, identity, *sum);
        }
    }
}

static void count_unit(Host *h, const LoopPass *pass) {
    if (h->mode != BLOCK_COUNTED || !pass_reduces(h->e->loop, pass)) return;
    Codegen *g = h->g;
    V left = cg_sub(g, h->left, cg_i64(g, 1)), done = cg_icmp(g, LLVMIntEQ, left, cg_i64(g, 0));
    end_block(h, pass, done);
    h->left = cg_select(g, done, cg_i64(g, h->units), left);
}

static void state_end(Host *h, const LoopPass *pass) {
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        LoopOp op = h->e->loop->code.at[i].op;
        if (!loop_is_reduction(op)) continue;
        V sum = joined(h, i);
        h->e->value[i] = h->mode == BLOCK_NONE ? sum : cg_combine(h->g, loop_reduction_kind(op), h->total[i], sum);
    }
}

/* ---- inner passes: lanes over rows ------------------------------------------------------------------------------- */

static void sequential_axes(Host *h, const LoopPass *pass, int axis) {
    const Loop *loop = h->e->loop;
    if (axis == loop->n_axes - 1) loop_emit_inner_pointers(h->e, pass);
    if (axis == loop->n_axes) {
        loop_emit_group(h->e, pass);
        count_unit(h, pass);
        return;
    }
    CgFor points;
    for_begin(h, pass, &points, cg_i64(h->g, 0), cg_i64(h->g, loop->extent[axis]), 1);
    h->e->index[axis] = points.iv;
    sequential_axes(h, pass, axis + 1);
    for_end(h, pass, &points);
}

/* ---- inner passes: row-wise -------------------------------------------------------------------------------------- */

/* A group of `n` points (at most a group's) at `first` of the last inner axis. */
static void lane_group(Host *h, const LoopPass *pass, V first, int64_t n) {
    LoopEmit *e = h->e;
    int width = e->width;
    for (int part = 0; n > 0; part++, n -= width) {
        e->part = part;
        e->index[e->lane_axis] = part == 0 ? first : cg_add(h->g, first, cg_i64(h->g, part * width));
        e->active = n < width ? (int)n : width;
        e->mask = e->active < width ? cg_mask_const(h->g, width, e->active) : NULL;
        loop_emit_group(e, pass);
    }
    e->active = width;
    e->mask = NULL;
    e->part = 0;
}

/* Points [first, first + n) of the last inner axis; `first` begins a group. */
static void lane_run(Host *h, const LoopPass *pass, V first, int64_t n) {
    int64_t group = pass_reduces(h->e->loop, pass) ? LOOP_LANES : h->e->width, whole = n / group * group;
    V end = cg_add(h->g, first, cg_i64(h->g, whole));
    if (whole == group) {
        lane_group(h, pass, first, group);
    } else if (whole > 0) {
        CgFor groups;
        for_begin(h, pass, &groups, first, end, group);
        lane_group(h, pass, groups.iv, group);
        for_end(h, pass, &groups);
    }
    if (n > whole) lane_group(h, pass, end, n - whole);
}

static void nested_blocks(Host *h, const LoopPass *pass, int64_t n) {
    Codegen *g = h->g;
    int64_t block = h->e->loop->block, blocks = n / block;
    CgFor loop;
    for_begin(h, pass, &loop, cg_i64(g, 0), cg_i64(g, blocks * block), block);
    lane_run(h, pass, loop.iv, block);
    end_block(h, pass, NULL);
    for_end(h, pass, &loop);
    if (n > blocks * block) lane_run(h, pass, cg_i64(g, blocks * block), n - blocks * block);
}

static void row_axes(Host *h, const LoopPass *pass, int axis) {
    const Loop *loop = h->e->loop;
    if (axis == loop->n_axes - 1) {
        loop_emit_inner_pointers(h->e, pass);
        if (h->mode == BLOCK_NESTED && pass_reduces(loop, pass))
            nested_blocks(h, pass, loop->extent[axis]);
        else
            lane_run(h, pass, cg_i64(h->g, 0), loop->extent[axis]);
        count_unit(h, pass);
        return;
    }
    CgFor points;
    for_begin(h, pass, &points, cg_i64(h->g, 0), cg_i64(h->g, loop->extent[axis]), 1);
    h->e->index[axis] = points.iv;
    row_axes(h, pass, axis + 1);
    for_end(h, pass, &points);
}

/* ---- inner passes: blocks that cut groups ------------------------------------------------------------------------ */

static V slot(Host *h, int i, V lane) { return cg_at(h->g, h->g->f32, h->slots[i], lane); }

static void join_slots(Host *h, const LoopPass *pass) {
    Codegen *g = h->g;
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        LoopOp op = h->e->loop->code.at[i].op;
        if (!loop_is_reduction(op)) continue;
        CgReduce kind = loop_reduction_kind(op);
        V lanes[LOOP_LANES], total = slot(h, i, cg_i64(g, LOOP_LANES));
        for (int k = 0; k < LOOP_LANES; k++) {
            V at = slot(h, i, cg_i64(g, k));
            lanes[k] = cg_load(g, g->f32, at, 4);
            cg_store(g, cg_identity(kind, g->f32), at, 4);
        }
        V sum = cg_reduce_tree(g, kind, lanes, LOOP_LANES);
        cg_store(g, cg_combine(g, kind, cg_load(g, g->f32, total, 4), sum), total, 4);
    }
}

static void point_axes(Host *h, const LoopPass *pass, int axis, V before) {
    LoopEmit *e = h->e;
    Codegen *g = h->g;
    const Loop *loop = e->loop;
    if (axis == loop->n_axes) {
        V ends = cg_icmp(g, LLVMIntEQ, LLVMBuildURem(g->builder, before, cg_i64(g, loop->block), ""), cg_i64(g, 0));
        V first = cg_icmp(g, LLVMIntEQ, before, cg_i64(g, 0));
        Block join = cg_if_begin(g, LLVMBuildAnd(g->builder, ends, LLVMBuildNot(g->builder, first, ""), ""));
        join_slots(h, pass);
        cg_if_end(g, join);
        V lane = LLVMBuildAnd(g->builder, e->index[e->lane_axis], cg_i64(g, LOOP_LANES - 1), "");
        for (int i = pass->first; i < pass->first + pass->n; i++)
            if (h->slots[i] != NULL) e->accumulator[i][0] = cg_load(g, g->f32, slot(h, i, lane), 4);
        loop_emit_group(e, pass);
        for (int i = pass->first; i < pass->first + pass->n; i++)
            if (h->slots[i] != NULL) cg_store(g, e->accumulator[i][0], slot(h, i, lane), 4);
        return;
    }
    if (axis == loop->n_axes - 1) loop_emit_inner_pointers(e, pass);
    CgFor points;
    cg_for_begin(g, &points, cg_i64(g, 0), cg_i64(g, loop->extent[axis]), cg_i64(g, 1), true);
    e->index[axis] = points.iv;
    V extent = cg_i64(g, loop->extent[axis]);
    point_axes(h, pass, axis + 1, cg_add(g, cg_mul(g, before, extent), points.iv));
    cg_for_end(g, &points, NULL, NULL);
}

static void point_pass(Host *h, const LoopPass *pass) {
    Codegen *g = h->g;
    h->e->width = h->e->active = 1;
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        if (h->slots[i] == NULL) continue;
        V identity = cg_identity(loop_reduction_kind(h->e->loop->code.at[i].op), g->f32);
        for (int k = 0; k <= LOOP_LANES; k++) cg_store(g, identity, slot(h, i, cg_i64(g, k)), 4);
    }
    point_axes(h, pass, h->e->loop->n_outer, cg_i64(g, 0));
    join_slots(h, pass);
    for (int i = pass->first; i < pass->first + pass->n; i++)
        if (h->slots[i] != NULL) h->e->value[i] = cg_load(g, g->f32, slot(h, i, cg_i64(g, LOOP_LANES)), 4);
}

static void slots_new(Host *h) {
    const Loop *loop = h->e->loop;
    h->slots = NEW_N(h->g->arena, V, loop->code.n + 1);
    if (h->mode != BLOCK_POINTS) return;
    T type = LLVMArrayType2(h->g->f32, LOOP_LANES + 1);
    for (int i = 0; i < loop->code.n; i++)
        if (loop_is_reduction(loop->code.at[i].op)) h->slots[i] = LLVMBuildAlloca(h->g->builder, type, "");
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Row-wise, and a row pass: one point. */
static void row_wise_row(Host *h) {
    LoopEmit *e = h->e;
    for (int p = 0; p < e->loop->passes.n; p++) {
        const LoopPass *pass = &e->loop->passes.at[p];
        bool reduces = pass_reduces(e->loop, pass);
        e->width = e->active = pass->per_row ? 1 : h->g->width;
        if (pass->per_row) {
            loop_emit_group(e, pass);
        } else if (reduces && h->mode == BLOCK_POINTS) {
            point_pass(h, pass);
        } else {
            h->parts = reduces ? LOOP_LANES / e->width : 1;
            state_begin(h, pass);
            row_axes(h, pass, e->loop->n_outer);
            state_end(h, pass);
        }
    }
}

/* Lanes over rows: all passes for one group. */
static void lanes_group(Host *h, V first, int width, V mask) {
    LoopEmit *e = h->e;
    e->width = e->active = width;
    e->mask = mask;
    if (e->lane_axis >= 0) e->index[e->lane_axis] = first;
    for (int p = 0; p < e->loop->passes.n; p++) {
        const LoopPass *pass = &e->loop->passes.at[p];
        if (pass->per_row) {
            loop_emit_group(e, pass);
            continue;
        }
        state_begin(h, pass);
        sequential_axes(h, pass, e->loop->n_outer);
        state_end(h, pass);
    }
    e->mask = NULL;
}

/* Whether a run-time mask is cheap: 32-bit elements side by side (any with AVX-512), and a machine with masked moves.
 */
static bool masks_are_cheap(const Host *h) {
    const LoopEmit *e = h->e;
    if (h->g->width < 8) return false;
    bool varies[LOOP_MAX_POINTERS * 64]; /* by instruction: differs between lanes */
    if (e->loop->code.n > (int)(sizeof varies / sizeof *varies)) return false;
    for (int i = 0; i < e->loop->code.n; i++) {
        const LoopInstr *instr = &e->loop->code.at[i];
        varies[i] = instr->op == LOOP_INDEX && instr->imm_i == e->lane_axis;
        for (int k = 0; k < loop_op_table[instr->op].operands; k++)
            if (varies[instr->in[k]]) varies[i] = true;
        if (!loop_access_of(instr->op)) continue;
        int64_t stride = instr->access.stride[e->lane_axis];
        if (stride != 0) varies[i] = true;
        if (stride != 1 && (stride != 0 || instr->op == LOOP_STORE)) return false;
        if (instr->op == LOOP_GATHER && varies[instr->in[0]]) return false;
        if (stride == 1 && h->g->width < 16 && loop_memory_bytes(instr->access.memory) != 4) return false;
    }
    return true;
}

/* Groups of `width` rows from `from` on, as many as fit before `to`; gives where they end. */
static V lanes_groups(Host *h, V from, V to, int width) {
    Codegen *g = h->g;
    V whole = LLVMBuildAnd(g->builder, cg_sub(g, to, from), cg_i64(g, -width), "");
    V end = cg_add(g, from, whole);
    CgFor groups;
    cg_for_begin(g, &groups, from, end, cg_i64(g, width), false);
    lanes_group(h, groups.iv, width, NULL);
    cg_for_end(g, &groups, NULL, NULL);
    return end;
}

/* A sum down the columns of a matrix reads one vector of each of its lines: several vectors side by side use whole
 * cache lines and hide the latency of the additions. 1 when it does not pay. */
static int columns_at_once(const Host *h) {
    const Loop *loop = h->e->loop;
    enum { FEW_INSTRUCTIONS = 12 };
    int many = loop->code.n <= FEW_INSTRUCTIONS ? 4 : 2;
    if (loop->n_axes == loop->n_outer || inner_points(loop) < 4) return 1;
    return loop->extent[h->e->lane_axis] >= many * h->g->width ? many : 1;
}

/* About how many vector instructions a group takes. */
static int group_cost(const Loop *loop) {
    static const unsigned char costs[LOOP_OP_COUNT] = {
        [LOOP_EXP] = 18, [LOOP_LOG] = 25, [LOOP_TANH] = 35,  [LOOP_SIN] = 25,
        [LOOP_COS] = 25, [LOOP_POW] = 80, [LOOP_IMULHI] = 8,
    };
    int cost = 0;
    for (int i = 0; i < loop->code.n; i++) cost += 1 + costs[loop->code.at[i].op];
    return cost;
}

/* What is left of a run after its whole groups. */
static void lanes_rest(Host *h, V rest, V to) {
    Codegen *g = h->g;
    if (masks_are_cheap(h)) {
        Block join = cg_if_begin(g, cg_icmp(g, LLVMIntSLT, rest, to));
        lanes_group(h, rest, g->width, cg_mask_below(g, g->width, cg_sub(g, to, rest)));
        cg_if_end(g, join);
        return;
    }
    CgFor points;
    cg_for_begin(g, &points, rest, to, cg_i64(g, 1), false);
    lanes_group(h, points.iv, 1, NULL);
    cg_for_end(g, &points, NULL, NULL);
}

/* Rows with index [from, to) on the lane axis, the other outer axes given. */
static void lanes_run(Host *h, V from, V to) {
    Codegen *g = h->g;
    /* From here on a mask on every store costs little beside the rest, and a second copy of the code a lot. */
    enum { ONE_COPY = 120 };
    loop_emit_row_pointers(h->e);
    if (group_cost(h->e->loop) >= ONE_COPY && masks_are_cheap(h)) {
        CgFor groups;
        cg_for_begin(g, &groups, from, to, cg_i64(g, g->width), false);
        V left = cg_imin(g, cg_sub(g, to, groups.iv), cg_i64(g, g->width));
        lanes_group(h, groups.iv, g->width, cg_mask_below(g, g->width, left));
        cg_for_end(g, &groups, NULL, NULL);
        return;
    }
    int columns = columns_at_once(h);
    if (columns > 1) from = lanes_groups(h, from, to, columns * g->width);
    lanes_rest(h, lanes_groups(h, from, to, g->width), to);
}

/* Index of axes [0, n) for the next point, counting the last one fastest. */
static void count_up(LoopEmit *e, int n, V *next) {
    Codegen *g = e->g;
    V carry = cg_i64(g, 1);
    for (int a = n - 1; a >= 0; a--) {
        V sum = cg_add(g, e->index[a], carry);
        V wraps = a == 0 ? NULL : cg_icmp(g, LLVMIntEQ, sum, cg_i64(g, e->loop->extent[a]));
        next[a] = a == 0 ? sum : cg_select(g, wraps, cg_i64(g, 0), sum);
        if (a > 0) carry = LLVMBuildZExt(g->builder, wraps, g->i64, "");
    }
}

/* for each point of outer axes [0, n) whose flattened number is in [from, to): emit(h, number) */
static void for_outer(Host *h, int n, V from, V to, void emit(Host *h, V number, V *bounds), V *bounds) {
    LoopEmit *e = h->e;
    Codegen *g = h->g;
    V rest = from, first[LOOP_MAX_AXES], next[LOOP_MAX_AXES];
    for (int a = n - 1; a > 0; a--) {
        V extent = cg_i64(g, e->loop->extent[a]), quotient = LLVMBuildUDiv(g->builder, rest, extent, "");
        first[a] = cg_sub(g, rest, cg_mul(g, quotient, extent));
        rest = quotient;
    }
    first[0] = rest;
    CgFor loop;
    cg_for_begin(g, &loop, from, to, cg_i64(g, 1), true);
    if (n == 1) e->index[0] = loop.iv;
    for (int a = 0; n > 1 && a < n; a++) e->index[a] = cg_for_carry(g, &loop, first[a]);
    V here[LOOP_MAX_AXES];
    memcpy(here, e->index, sizeof here);
    emit(h, loop.iv, bounds);
    memcpy(e->index, here, sizeof here);
    if (n > 1) count_up(e, n, next);
    cg_for_end(g, &loop, next, NULL);
}

static void emit_row(Host *h, V number, V *bounds) {
    (void)number, (void)bounds;
    loop_emit_row_pointers(h->e);
    row_wise_row(h);
}

/* The part of run `number` of the last outer axis that lies in rows [bounds[0], bounds[1]). */
static void emit_run(Host *h, V number, V *bounds) {
    Codegen *g = h->g;
    V extent = cg_i64(g, h->e->loop->extent[h->e->lane_axis]), start = cg_mul(g, number, extent), zero = cg_i64(g, 0);
    V from = cg_sub(g, bounds[0], start), to = cg_imin(g, extent, cg_sub(g, bounds[1], start));
    from = cg_select(g, cg_icmp(g, LLVMIntSGT, from, zero), from, zero);
    lanes_run(h, from, to);
}

static void emit_rows(Host *h, V lo, V hi) {
    Codegen *g = h->g;
    int n_outer = h->e->loop->n_outer;
    V bounds[2] = {lo, hi};
    if (h->row_wise) {
        for_outer(h, n_outer, lo, hi, emit_row, bounds);
    } else if (n_outer == 0) {
        loop_emit_row_pointers(h->e);
        lanes_group(h, NULL, 1, NULL);
    } else if (n_outer == 1) {
        lanes_run(h, lo, hi);
    } else {
        V extent = cg_i64(g, h->e->loop->extent[n_outer - 1]);
        V last = LLVMBuildUDiv(g->builder, cg_sub(g, hi, cg_i64(g, 1)), extent, "");
        V first = LLVMBuildUDiv(g->builder, lo, extent, "");
        for_outer(h, n_outer - 1, first, cg_add(g, last, cg_i64(g, 1)), emit_run, bounds);
    }
}

static void load_bases(LoopEmit *e, V pointers) {
    Codegen *g = e->g;
    for (int i = 0; i < e->loop->code.n; i++) {
        const LoopInstr *instr = &e->loop->code.at[i];
        int k = instr->access.pointer;
        if (!loop_access_of(instr->op) || e->base[k] != NULL) continue;
        e->base[k] = cg_load(g, g->ptr, cg_at(g, g->ptr, pointers, cg_i64(g, k)), 8);
    }
}

void codegen_loop(Codegen *g, const Loop *loop) {
    T params[3] = {g->ptr, g->i64, g->i64};
    V function = cg_function(g, loop->name, g->nothing, params, 3, false);
    cg_debug_function(g, function, loop->name, loop->span);
    V lo = LLVMGetParam(function, 1), hi = LLVMGetParam(function, 2);
    LoopEmit *e = loop_emit_new(g, loop);
    Host h = {.e = e, .g = g, .row_wise = loop_emit_row_wise(e->loop), .parts = 1};
    choose_block_mode(&h);
    h.total = NEW_N(g->arena, V, e->loop->code.n + 1);
    slots_new(&h);
    load_bases(e, LLVMGetParam(function, 0));
    Block done = cg_if_begin(g, cg_icmp(g, LLVMIntSLT, lo, hi));
    emit_rows(&h, lo, hi);
    cg_if_end(g, done);
    LLVMBuildRetVoid(g->builder);
    cg_debug_leave(g);
}
