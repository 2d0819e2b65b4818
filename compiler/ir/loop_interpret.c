/* loop_interpret: the meaning of a loop, point by point, for tests.
 *
 * Every value is computed in f32 (or i32) exactly as generated code does, and every reduction runs in the fixed order
 * of loop.h: `lanes` accumulators by the index on the last inner axis (one with lanes_outer), joined by a balanced
 * tree at the end of a block. Simple instructions are functions in two tables, by the type of their result. */
#include "ir/loop.h"
#include "ir/loop_math.h"

typedef union Cell {
    float f;
    uint32_t i;
    bool b;
} Cell;

typedef Cell Compute(Cell x, Cell y, Cell z);

static Cell of_f(float f) { return (Cell){.f = f}; }
static Cell of_i(uint32_t i) { return (Cell){.i = i}; }
static Cell of_b(bool b) { return (Cell){.b = b}; }

#define COMPUTE(name, result)                                                                                          \
    static Cell name(Cell x, Cell y, Cell z) {                                                                         \
        (void)x, (void)y, (void)z;                                                                                     \
        return result;                                                                                                 \
    }
COMPUTE(do_add, of_f(x.f + y.f))
COMPUTE(do_sub, of_f(x.f - y.f))
COMPUTE(do_mul, of_f(x.f *y.f))
COMPUTE(do_div, of_f(x.f / y.f))
COMPUTE(do_fma, of_f(fmaf(x.f, y.f, z.f)))
COMPUTE(do_min, of_f(loop_minf(x.f, y.f)))
COMPUTE(do_max, of_f(loop_maxf(x.f, y.f)))
COMPUTE(do_neg, of_f(-x.f))
COMPUTE(do_abs, of_f(fabsf(x.f)))
COMPUTE(do_exp, of_f(loop_expf(x.f)))
COMPUTE(do_log, of_f(loop_logf(x.f)))
COMPUTE(do_sqrt, of_f(sqrtf(x.f)))
COMPUTE(do_rsqrt, of_f(1.0f / sqrtf(x.f)))
COMPUTE(do_tanh, of_f(loop_tanhf(x.f)))
COMPUTE(do_sin, of_f(loop_sinf(x.f)))
COMPUTE(do_cos, of_f(loop_cosf(x.f)))
COMPUTE(do_pow, of_f(loop_powf(x.f, y.f)))
COMPUTE(do_iadd, of_i(x.i + y.i))
COMPUTE(do_isub, of_i(x.i - y.i))
COMPUTE(do_imul, of_i(x.i *y.i))
COMPUTE(do_imulhi, of_i((uint32_t)((uint64_t)x.i *y.i >> 32)))
COMPUTE(do_iand, of_i(x.i &y.i))
COMPUTE(do_ixor, of_i(x.i ^ y.i))
COMPUTE(do_ishr, of_i(y.i < 32 ? x.i >> y.i : 0))
COMPUTE(do_flt, of_b(x.f < y.f))
COMPUTE(do_fle, of_b(x.f <= y.f))
COMPUTE(do_feq, of_b(x.f == y.f))
COMPUTE(do_ilt, of_b((int32_t)x.i < (int32_t)y.i))
COMPUTE(do_ile, of_b((int32_t)x.i <= (int32_t)y.i))
COMPUTE(do_ieq, of_b(x.i == y.i))
COMPUTE(do_and, of_b(x.b &&y.b))
COMPUTE(do_or, of_b(x.b || y.b))
COMPUTE(do_not, of_b(!x.b))
COMPUTE(do_select, x.b ? y : z)
COMPUTE(do_i_to_f, of_f((float)(int32_t)x.i))
COMPUTE(do_f_to_i, of_i((uint32_t)loop_to_int(x.f)))
COMPUTE(do_u_to_unit, of_f((float)(x.i >> 8) * 0x1p-24f))
COMPUTE(do_b_to_f, of_f(x.b ? 1.0f : 0.0f))
COMPUTE(do_to_bf16, of_f(loop_from_bf16(loop_to_bf16(x.f))))
COMPUTE(do_to_f16, of_f(loop_from_f16(loop_to_f16(x.f))))
#undef COMPUTE

/* Instructions without an entry read the loop's state; eval does them. */
static Compute *const compute[LOOP_OP_COUNT] = {
    [LOOP_ADD] = do_add,
    [LOOP_SUB] = do_sub,
    [LOOP_MUL] = do_mul,
    [LOOP_DIV] = do_div,
    [LOOP_FMA] = do_fma,
    [LOOP_MIN] = do_min,
    [LOOP_MAX] = do_max,
    [LOOP_NEG] = do_neg,
    [LOOP_ABS] = do_abs,
    [LOOP_EXP] = do_exp,
    [LOOP_LOG] = do_log,
    [LOOP_SQRT] = do_sqrt,
    [LOOP_RSQRT] = do_rsqrt,
    [LOOP_TANH] = do_tanh,
    [LOOP_SIN] = do_sin,
    [LOOP_COS] = do_cos,
    [LOOP_POW] = do_pow,
    [LOOP_IADD] = do_iadd,
    [LOOP_ISUB] = do_isub,
    [LOOP_IMUL] = do_imul,
    [LOOP_IMULHI] = do_imulhi,
    [LOOP_IAND] = do_iand,
    [LOOP_IXOR] = do_ixor,
    [LOOP_ISHR] = do_ishr,
    [LOOP_FLT] = do_flt,
    [LOOP_FLE] = do_fle,
    [LOOP_FEQ] = do_feq,
    [LOOP_ILT] = do_ilt,
    [LOOP_ILE] = do_ile,
    [LOOP_IEQ] = do_ieq,
    [LOOP_AND] = do_and,
    [LOOP_OR] = do_or,
    [LOOP_NOT] = do_not,
    [LOOP_SELECT] = do_select,
    [LOOP_I_TO_F] = do_i_to_f,
    [LOOP_F_TO_I] = do_f_to_i,
    [LOOP_U_TO_UNIT] = do_u_to_unit,
    [LOOP_B_TO_F] = do_b_to_f,
    [LOOP_TO_BF16] = do_to_bf16,
    [LOOP_TO_F16] = do_to_f16,
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static Cell load(const char *at, LoopMemory memory) {
    uint16_t half;
    Cell cell;
    switch (memory) {
    case LOOP_MEM_BF16: memcpy(&half, at, 2); return of_f(loop_from_bf16(half));
    case LOOP_MEM_F16: memcpy(&half, at, 2); return of_f(loop_from_f16(half));
    case LOOP_MEM_U16: memcpy(&half, at, 2); return of_i(half);
    case LOOP_MEM_U8: return of_b(*at != 0);
    case LOOP_MEM_F32: memcpy(&cell.f, at, 4); return cell;
    case LOOP_MEM_I32: memcpy(&cell.i, at, 4); return cell;
    }
    BUG("memory type %d", (int)memory);
}

static void store(char *at, LoopMemory memory, Cell cell) {
    uint16_t half;
    switch (memory) {
    case LOOP_MEM_BF16:
        half = loop_to_bf16(cell.f);
        memcpy(at, &half, 2);
        return;
    case LOOP_MEM_F16:
        half = loop_to_f16(cell.f);
        memcpy(at, &half, 2);
        return;
    case LOOP_MEM_U16:
        half = (uint16_t)cell.i;
        memcpy(at, &half, 2);
        return;
    case LOOP_MEM_U8: *at = (char)cell.b; return;
    case LOOP_MEM_F32: memcpy(at, &cell.f, 4); return;
    case LOOP_MEM_I32: memcpy(at, &cell.i, 4); return;
    }
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

typedef struct Sum {
    float lane[LOOP_LANES];
    float total;
} Sum;

typedef struct Run {
    const Loop *loop;
    void *const *pointers;
    int64_t index[LOOP_MAX_AXES];
    Cell *cells; /* by instruction */
    Sum *sums;   /* by instruction */
    int lanes;
    int lane; /* of the current point */
} Run;

static float identity(LoopOp op) { return op == LOOP_REDUCE_SUM ? 0 : op == LOOP_REDUCE_MAX ? -INFINITY : INFINITY; }

static float combine(LoopOp op, float x, float y) {
    return op == LOOP_REDUCE_SUM ? x + y : op == LOOP_REDUCE_MAX ? loop_maxf(x, y) : loop_minf(x, y);
}

static void sum_clear(Sum *sum, LoopOp op, int lanes) {
    for (int i = 0; i < lanes; i++) sum->lane[i] = identity(op);
}

/* Ends a block: the tree over its accumulators, added to the blocks before. */
static void sum_join(Sum *sum, LoopOp op, int lanes) {
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sum->lane[i] = combine(op, sum->lane[i], sum->lane[i + half]);
    sum->total = combine(op, sum->total, sum->lane[0]);
    sum_clear(sum, op, lanes);
}

static void pass_reductions(Run *run, const LoopPass *pass, bool begin) {
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        LoopOp op = run->loop->code.at[i].op;
        if (!loop_is_reduction(op)) continue;
        if (begin) {
            run->sums[i].total = identity(op);
            sum_clear(&run->sums[i], op, run->lanes);
        } else {
            sum_join(&run->sums[i], op, run->lanes);
            run->cells[i].f = run->sums[i].total;
        }
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static char *address(const Run *run, const LoopInstr *instr) {
    const LoopAccess *access = &instr->access;
    int64_t at = access->offset;
    for (int a = 0; a < run->loop->n_axes; a++) at += run->index[a] * access->stride[a];
    if (instr->op == LOOP_GATHER) at += (int64_t)(int32_t)run->cells[instr->in[0]].i * access->index_stride;
    return (char *)run->pointers[access->pointer] + at * loop_memory_bytes(access->memory);
}

static void eval(Run *run, int index) {
    const LoopInstr *instr = &run->loop->code.at[index];
    Cell *cells = run->cells, *out = &cells[index];
    if (compute[instr->op] != NULL) {
        Cell none = {.i = 0};
        int n = loop_op_table[instr->op].operands;
        *out = compute[instr->op](cells[instr->in[0]], n > 1 ? cells[instr->in[1]] : none,
                                  n > 2 ? cells[instr->in[2]] : none);
    } else if (instr->op == LOOP_LOAD || instr->op == LOOP_GATHER) {
        *out = load(address(run, instr), instr->access.memory);
    } else if (instr->op == LOOP_STORE) {
        store(address(run, instr), instr->access.memory, cells[instr->in[0]]);
    } else if (instr->op == LOOP_CONST_F) {
        out->f = (float)instr->imm_f;
    } else if (instr->op == LOOP_CONST_I) {
        out->i = (uint32_t)instr->imm_i;
    } else if (instr->op == LOOP_INDEX) {
        out->i = (uint32_t)run->index[instr->imm_i];
    } else if (loop_is_reduction(instr->op)) {
        float *lane = &run->sums[index].lane[run->lane];
        *lane = combine(instr->op, *lane, cells[instr->in[0]].f);
    } else {
        BUG("loop instruction %d is not interpreted", (int)instr->op);
    }
}

static void eval_all(Run *run, const LoopPass *pass) {
    for (int i = pass->first; i < pass->first + pass->n; i++) eval(run, i);
}

static void join_block(Run *run, const LoopPass *pass) {
    for (int i = pass->first; i < pass->first + pass->n; i++)
        if (loop_is_reduction(run->loop->code.at[i].op)) sum_join(&run->sums[i], run->loop->code.at[i].op, run->lanes);
}

static void inner_pass(Run *run, const LoopPass *pass) {
    const Loop *loop = run->loop;
    int64_t points = 1;
    for (int a = loop->n_outer; a < loop->n_axes; a++) points *= loop->extent[a];
    pass_reductions(run, pass, true);
    for (int64_t p = 0; p < points; p++) {
        if (loop->block > 0 && p > 0 && p % loop->block == 0) join_block(run, pass);
        int64_t rest = p;
        for (int a = loop->n_axes - 1; a >= loop->n_outer; a--) {
            run->index[a] = rest % loop->extent[a];
            rest /= loop->extent[a];
        }
        run->lane = run->lanes > 1 ? (int)(run->index[loop->n_axes - 1] % run->lanes) : 0;
        eval_all(run, pass);
    }
    pass_reductions(run, pass, false);
}

void loop_interpret(const Loop *loop, void *const *pointers, int64_t lo, int64_t hi) {
    Arena *arena = arena_new();
    bool row_wise = !loop->lanes_outer && loop->n_axes > loop->n_outer;
    Run run = {.loop = loop, .pointers = pointers, .lanes = row_wise ? loop->lanes : 1};
    run.cells = NEW_N(arena, Cell, loop->code.n + 1);
    run.sums = NEW_N(arena, Sum, loop->code.n + 1);
    for (int64_t row = lo; row < hi; row++) {
        int64_t rest = row;
        for (int a = loop->n_outer - 1; a >= 0; a--) {
            run.index[a] = rest % loop->extent[a];
            rest /= loop->extent[a];
        }
        for (int p = 0; p < loop->passes.n; p++) {
            const LoopPass *pass = &loop->passes.at[p];
            for (int a = loop->n_outer; a < loop->n_axes; a++) run.index[a] = 0;
            if (pass->per_row)
                eval_all(&run, pass);
            else
                inner_pass(&run, pass);
        }
    }
    arena_free(arena);
}
