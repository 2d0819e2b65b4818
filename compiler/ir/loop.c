/* Building, printing and checking loop descriptions (loop.h).
 *
 * The builder appends to the current pass and infers the type of each value from the table of instructions; it checks
 * nothing else, loop_verify does. */
#include "ir/loop.h"

const LoopOpInfo loop_op_table[LOOP_OP_COUNT] = {
#define LOOP_OP(NAME, operands, result, operand)                                                                       \
    [LOOP_##NAME] = {#NAME, operands, LOOP_TYPE_##result, LOOP_TYPE_##operand},
#include "ir/loop_ops.def"
#undef LOOP_OP
};

static const char *const type_names[] = {"none", "f32", "i32", "bool", "any"};

typedef struct MemoryInfo {
    const char *name;
    int64_t bytes;
    LoopType type;
} MemoryInfo;

static const MemoryInfo memories[] = {
    [LOOP_MEM_F32] = {"f32", 4, LOOP_TYPE_F},   [LOOP_MEM_I32] = {"i32", 4, LOOP_TYPE_I},
    [LOOP_MEM_BF16] = {"bf16", 2, LOOP_TYPE_F}, [LOOP_MEM_F16] = {"f16", 2, LOOP_TYPE_F},
    [LOOP_MEM_U8] = {"u8", 1, LOOP_TYPE_B},     [LOOP_MEM_U16] = {"u16", 2, LOOP_TYPE_I},
};

LoopType loop_memory_type(LoopMemory memory) { return memories[memory].type; }
int64_t loop_memory_bytes(LoopMemory memory) { return memories[memory].bytes; }

/* ---- building ---------------------------------------------------------------------------------------------------- */

Loop *loop_new(Arena *arena, Name name, const int64_t *extent, int n_outer, int n_axes) {
    CHECK(0 <= n_outer && n_outer <= n_axes && n_axes <= LOOP_MAX_AXES);
    Loop *loop = NEW(arena, Loop);
    loop->name = name;
    for (int i = 0; i < n_axes; i++) loop->extent[i] = extent[i];
    loop->n_outer = n_outer;
    loop->n_axes = n_axes;
    loop->lanes = LOOP_LANES;
    return loop;
}

void loop_begin_pass(LoopBuilder *b, bool per_row) {
    vec_push(b->arena, &b->loop->passes, (LoopPass){.per_row = per_row, .first = b->loop->code.n});
}

static LoopValue append(LoopBuilder *b, LoopInstr instr) {
    Loop *loop = b->loop;
    CHECK(loop->passes.n > 0);
    instr.span = b->span;
    instr.pass = loop->passes.n - 1;
    vec_push(b->arena, &loop->code, instr);
    vec_last(&loop->passes).n++;
    return loop->code.n - 1;
}

LoopValue loop_emit(LoopBuilder *b, LoopOp op, LoopValue x, LoopValue y, LoopValue z) {
    LoopType type = loop_op_table[op].result;
    if (op == LOOP_SELECT) type = b->loop->code.at[y].type;
    return append(b, (LoopInstr){.op = op, .type = type, .in = {x, y, z}});
}

/* A constant is made once: it may be used in every later pass. */
static LoopValue constant(LoopBuilder *b, LoopInstr wanted) {
    const Loop *loop = b->loop;
    for (int i = 0; i < loop->code.n; i++) {
        const LoopInstr *instr = &loop->code.at[i];
        if (instr->op == wanted.op && instr->imm_i == wanted.imm_i &&
            memcmp(&instr->imm_f, &wanted.imm_f, sizeof wanted.imm_f) == 0)
            return i;
    }
    return append(b, wanted);
}

LoopValue loop_const_f(LoopBuilder *b, double value) {
    return constant(b, (LoopInstr){.op = LOOP_CONST_F, .type = LOOP_TYPE_F, .in = {-1, -1, -1}, .imm_f = value});
}

LoopValue loop_const_i(LoopBuilder *b, int64_t value) {
    return constant(b, (LoopInstr){.op = LOOP_CONST_I, .type = LOOP_TYPE_I, .in = {-1, -1, -1}, .imm_i = value});
}

LoopValue loop_index(LoopBuilder *b, int axis) {
    return append(b, (LoopInstr){.op = LOOP_INDEX, .type = LOOP_TYPE_I, .in = {-1, -1, -1}, .imm_i = axis});
}

static LoopValue memory_op(LoopBuilder *b, LoopOp op, LoopType type, LoopAccess access, LoopValue operand) {
    if (access.pointer >= b->loop->n_pointers) b->loop->n_pointers = access.pointer + 1;
    return append(b, (LoopInstr){.op = op, .type = type, .in = {operand, -1, -1}, .access = access});
}

LoopValue loop_load(LoopBuilder *b, LoopAccess access) {
    return memory_op(b, LOOP_LOAD, loop_memory_type(access.memory), access, -1);
}

LoopValue loop_gather(LoopBuilder *b, LoopAccess access, LoopValue index) {
    return memory_op(b, LOOP_GATHER, loop_memory_type(access.memory), access, index);
}

void loop_store(LoopBuilder *b, LoopAccess access, LoopValue value) {
    memory_op(b, LOOP_STORE, LOOP_TYPE_NONE, access, value);
}

/* Philox 2x32 with 7 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), counter (column,
 * row); the first of its two words. */
enum { PHILOX_ROUNDS = 7 };
static const uint32_t philox_multiplier = 0xD256D193u, philox_weyl = 0x9E3779B9u;

uint32_t random_bits(uint32_t key, uint32_t row, uint32_t column) {
    uint32_t x = column, y = row;
    for (int i = 0; i < PHILOX_ROUNDS; i++, key += philox_weyl) {
        uint64_t product = (uint64_t)philox_multiplier * x;
        x = (uint32_t)(product >> 32) ^ key ^ y;
        y = (uint32_t)product;
    }
    return x;
}

LoopValue loop_random_bits(LoopBuilder *b, LoopValue key, LoopValue row, LoopValue column) {
    LoopValue x = column, y = row;
    LoopValue multiplier = loop_const_i(b, (int32_t)philox_multiplier);
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        LoopValue step = loop_const_i(b, (int32_t)(philox_weyl * (uint32_t)i));
        LoopValue round_key = i == 0 ? key : loop_emit(b, LOOP_IADD, key, step, -1);
        LoopValue high = loop_emit(b, LOOP_IMULHI, x, multiplier, -1);
        LoopValue low = loop_emit(b, LOOP_IMUL, x, multiplier, -1);
        x = loop_emit(b, LOOP_IXOR, loop_emit(b, LOOP_IXOR, high, round_key, -1), y, -1);
        y = low;
    }
    return x;
}

int64_t loop_rows(const Loop *loop) {
    int64_t rows = 1;
    for (int i = 0; i < loop->n_outer; i++) rows *= loop->extent[i];
    return rows;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_extents(Text *out, const int64_t *at, int n) {
    text_puts(out, "[");
    for (int i = 0; i < n; i++) text_printf(out, "%s%lld", i > 0 ? ", " : "", (long long)at[i]);
    text_puts(out, "]");
}

static void print_lower(Text *out, const char *name) {
    for (; *name != 0; name++) text_printf(out, "%c", *name >= 'A' && *name <= 'Z' ? *name + 32 : *name);
}

static void print_instr(const Loop *loop, int index, Text *out) {
    const LoopInstr *instr = &loop->code.at[index];
    const LoopOpInfo *info = &loop_op_table[instr->op];
    text_puts(out, "    ");
    if (instr->type != LOOP_TYPE_NONE) text_printf(out, "%%%d = ", index);
    print_lower(out, info->name);
    for (int i = 0; i < info->operands; i++) text_printf(out, "%s %%%d", i > 0 ? "," : "", instr->in[i]);
    if (instr->op == LOOP_CONST_F) text_printf(out, " %.9g", instr->imm_f);
    if (instr->op == LOOP_CONST_I) text_printf(out, " %lld", (long long)instr->imm_i);
    if (instr->op == LOOP_INDEX) text_printf(out, " axis %lld", (long long)instr->imm_i);
    if (instr->op == LOOP_LOAD || instr->op == LOOP_GATHER || instr->op == LOOP_STORE) {
        const LoopAccess *access = &instr->access;
        text_printf(out, "%s %s p%d + %lld, strides ", info->operands > 0 ? "," : "", memories[access->memory].name,
                    access->pointer, (long long)access->offset);
        print_extents(out, access->stride, loop->n_axes);
        if (instr->op == LOOP_GATHER) text_printf(out, ", index * %lld", (long long)access->index_stride);
    }
    text_puts(out, "\n");
}

void loop_print(const Loop *loop, Text *out) {
    text_printf(out, "loop %s rows ", loop->name);
    print_extents(out, loop->extent, loop->n_outer);
    if (loop->n_axes > loop->n_outer) {
        text_puts(out, " over ");
        print_extents(out, loop->extent + loop->n_outer, loop->n_axes - loop->n_outer);
    }
    if (loop->lanes_outer) text_puts(out, " lanes outer");
    if (loop->block > 0) text_printf(out, " block %lld", (long long)loop->block);
    text_puts(out, "\n");
    for (int p = 0; p < loop->passes.n; p++) {
        const LoopPass *pass = &loop->passes.at[p];
        text_printf(out, "  %s\n", pass->per_row ? "row" : "inner");
        for (int i = 0; i < pass->n; i++) print_instr(loop, pass->first + i, out);
    }
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

static bool wrong(Text *why, const Loop *loop, int index, const char *what) {
    text_printf(why, "loop %s: %%%d (", loop->name, index);
    print_lower(why, loop_op_table[loop->code.at[index].op].name);
    text_printf(why, "): %s", what);
    return false;
}

static bool verify_operand(const Loop *loop, int index, int k, Text *why) {
    const LoopInstr *instr = &loop->code.at[index];
    LoopValue in = instr->in[k];
    if (in < 0 || in >= index) return wrong(why, loop, index, "operand is not an earlier value");
    const LoopInstr *def = &loop->code.at[in];
    bool row_value = loop->passes.at[def->pass].per_row || loop_is_reduction(def->op) || def->op == LOOP_CONST_F ||
                     def->op == LOOP_CONST_I;
    if (def->pass != instr->pass && !row_value)
        return wrong(why, loop, index, "operand belongs to another pass and is no row value");
    if (def->pass == instr->pass && loop_is_reduction(def->op))
        return wrong(why, loop, index, "a reduction is used in its own pass");
    LoopType want = loop_op_table[instr->op].operand;
    if (instr->op == LOOP_SELECT) want = k == 0 ? LOOP_TYPE_B : instr->type;
    if (instr->op == LOOP_STORE) want = loop_memory_type(instr->access.memory);
    if (def->type == want) return true;
    text_printf(why, "loop %s: %%%d: operand %d is %s, not %s", loop->name, index, k, type_names[def->type],
                type_names[want]);
    return false;
}

static bool verify_access(const Loop *loop, int index, Text *why) {
    const LoopInstr *instr = &loop->code.at[index];
    const LoopAccess *access = &instr->access;
    if (access->pointer < 0 || access->pointer >= loop->n_pointers) return wrong(why, loop, index, "no such pointer");
    if (access->memory < LOOP_MEM_F32 || access->memory > LOOP_MEM_U16)
        return wrong(why, loop, index, "no such memory type");
    if (instr->op != LOOP_STORE && instr->type != loop_memory_type(access->memory))
        return wrong(why, loop, index, "type is not that of the memory");
    if (!loop->passes.at[instr->pass].per_row) return true;
    for (int i = loop->n_outer; i < loop->n_axes; i++)
        if (access->stride[i] != 0) return wrong(why, loop, index, "a row pass walks an inner axis");
    return true;
}

static bool verify_instr(const Loop *loop, int index, Text *why) {
    const LoopInstr *instr = &loop->code.at[index];
    if ((int)instr->op < 0 || instr->op >= LOOP_OP_COUNT) return wrong(why, loop, 0, "no such instruction");
    const LoopOpInfo *info = &loop_op_table[instr->op];
    for (int k = 0; k < info->operands; k++)
        if (!verify_operand(loop, index, k, why)) return false;
    bool per_row = loop->passes.at[instr->pass].per_row;
    if (info->result != LOOP_TYPE_ANY && instr->type != info->result)
        return wrong(why, loop, index, "wrong result type");
    if (instr->op == LOOP_INDEX) {
        int64_t axis = instr->imm_i;
        if (axis < 0 || axis >= loop->n_axes || (per_row && axis >= loop->n_outer))
            return wrong(why, loop, index, "no such axis here");
        if (loop->extent[axis] > INT32_MAX) return wrong(why, loop, index, "the axis is too long for an i32 index");
    }
    if (loop_is_reduction(instr->op) && per_row) return wrong(why, loop, index, "a reduction in a row pass");
    if (instr->op == LOOP_LOAD || instr->op == LOOP_GATHER || instr->op == LOOP_STORE)
        return verify_access(loop, index, why);
    return true;
}

static bool wrong_loop(Text *why, const Loop *loop, const char *what) {
    text_printf(why, "loop %s: %s", loop->name, what);
    return false;
}

bool loop_verify(const Loop *loop, Text *why) {
    if (loop->n_outer < 0 || loop->n_outer > loop->n_axes || loop->n_axes > LOOP_MAX_AXES)
        return wrong_loop(why, loop, "number of axes out of range");
    for (int i = 0; i < loop->n_axes; i++)
        if (loop->extent[i] < 1) return wrong_loop(why, loop, "an extent is below 1");
    if (loop->lanes != LOOP_LANES) return wrong_loop(why, loop, "lanes is not LOOP_LANES");
    if (loop->block < 0) return wrong_loop(why, loop, "negative block");
    if (loop->lanes_outer && loop->n_outer == 0) return wrong_loop(why, loop, "lanes_outer without an outer axis");
    int next = 0;
    for (int p = 0; p < loop->passes.n; p++) {
        const LoopPass *pass = &loop->passes.at[p];
        if (pass->first != next || pass->n < 0) return wrong_loop(why, loop, "passes do not follow each other");
        next += pass->n;
        for (int i = pass->first; i < next && i < loop->code.n; i++)
            if (loop->code.at[i].pass != p) return wrong_loop(why, loop, "an instruction names another pass");
    }
    if (next != loop->code.n) return wrong_loop(why, loop, "passes do not cover the code");
    for (int i = 0; i < loop->code.n; i++)
        if (!verify_instr(loop, i, why)) return false;
    return true;
}
