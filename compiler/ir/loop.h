/* The loop description: one fused kernel of elementwise chains and reductions.
 *
 * A loop has outer axes, whose points ("rows") are independent, and inner axes, which a row runs over. A row is a list
 * of passes: an inner pass runs its instructions once for each inner point, a row pass once for the row. A reduction in
 * an inner pass yields a row value for the passes after it. So an elementwise chain is outer axes and one row pass;
 * a layer norm is rows of `embed` with passes sum, row, sum of squares, row, map.
 *
 * One axis is the vector axis: the last inner one ("row-wise"), or, with `lanes_outer`, the last outer one
 * ("column-wise": each lane is its own row; this is how a sum over the leading dimensions of a matrix runs).
 *
 * Reductions have a fixed order, independent of vector width, threads and target, so all three consumers give the same
 * bits. Row-wise: `lanes` accumulators, point j of the last inner axis going to accumulator j mod lanes, starting
 * afresh every `block` points of the flattened inner space (0: never) and then joined by a balanced tree over the
 * accumulators; block results are added in order. Column-wise: one accumulator for a row, in order, afresh every
 * `block` inner points.
 *
 * Consumers: loop_interpret (tests), codegen/loop_to_llvm.c (host, any vector width), codegen/nvptx.c.
 * A kernel has the signature  void k(void *const *pointers, int64_t lo, int64_t hi)  and computes rows [lo, hi) of the
 * flattened outer space; pointers are indexed by LoopAccess.pointer. With lanes_outer, lo is a multiple of `lanes`. */
#ifndef PLAN_LOOP_H
#define PLAN_LOOP_H

#include "base/base.h"

enum { LOOP_MAX_AXES = 10, LOOP_LANES = 16 };

typedef enum LoopOp {
#define LOOP_OP(NAME, operands, result, operand) LOOP_##NAME,
#include "ir/loop_ops.def"
#undef LOOP_OP
    LOOP_OP_COUNT
} LoopOp;

/* ANY stands only in the table of instructions. */
typedef enum LoopType { LOOP_TYPE_NONE, LOOP_TYPE_F, LOOP_TYPE_I, LOOP_TYPE_B, LOOP_TYPE_ANY } LoopType;
typedef enum LoopMemory {
    LOOP_MEM_F32,
    LOOP_MEM_I32,
    LOOP_MEM_BF16,
    LOOP_MEM_F16,
    LOOP_MEM_U8,
    LOOP_MEM_U16
} LoopMemory;

/* What loop_ops.def says of an instruction. */
typedef struct LoopOpInfo {
    const char *name;
    int operands;
    LoopType result, operand; /* SELECT: of operands 1 and 2; operand 0 is B. GATHER: I */
} LoopOpInfo;
extern const LoopOpInfo loop_op_table[LOOP_OP_COUNT];
static inline bool loop_is_reduction(LoopOp op) {
    return op == LOOP_REDUCE_SUM || op == LOOP_REDUCE_MAX || op == LOOP_REDUCE_MIN;
}

/* The element at pointers[pointer] + (offset + sum of index[axis] * stride[axis]) elements. */
typedef struct LoopAccess {
    int pointer;
    LoopMemory memory; /* BF16 and F16 convert to and from f32; U8 is truth; narrow integers widen */
    int64_t offset;
    int64_t stride[LOOP_MAX_AXES];
    int64_t index_stride; /* LOOP_GATHER */
} LoopAccess;

typedef int LoopValue; /* index of an instruction in Loop.code; -1: none */

typedef struct LoopInstr {
    LoopOp op;
    LoopType type;
    LoopValue in[3];
    double imm_f;
    int64_t imm_i;
    LoopAccess access;
    Span span;
    int pass;
} LoopInstr;

typedef struct LoopPass {
    bool per_row;
    int first, n; /* instructions code[first .. first+n) */
} LoopPass;

typedef struct Loop {
    Name name; /* "layer_norm.fused_3": the symbol in the program */
    int64_t extent[LOOP_MAX_AXES];
    int n_outer, n_axes; /* axes [0, n_outer) are outer, [n_outer, n_axes) inner */
    bool lanes_outer;
    int lanes;     /* LOOP_LANES */
    int64_t block; /* reductions start afresh every so many inner points; 0: never */
    VEC(LoopInstr) code;
    VEC(LoopPass) passes;
    int n_pointers;
    Span span;
} Loop;

/* Values may be used in their own pass; row values (of row passes and reductions) and constants in any later pass. */
typedef struct LoopBuilder {
    Arena *arena;
    Loop *loop;
    Span span;
} LoopBuilder;

Loop *loop_new(Arena *arena, Name name, const int64_t *extent, int n_outer, int n_axes);
void loop_begin_pass(LoopBuilder *b, bool per_row);
LoopValue loop_emit(LoopBuilder *b, LoopOp op, LoopValue x, LoopValue y, LoopValue z);
LoopValue loop_const_f(LoopBuilder *b, double value);
LoopValue loop_const_i(LoopBuilder *b, int64_t value);
LoopValue loop_index(LoopBuilder *b, int axis);
LoopValue loop_load(LoopBuilder *b, LoopAccess access);
LoopValue loop_gather(LoopBuilder *b, LoopAccess access, LoopValue index);
void loop_store(LoopBuilder *b, LoopAccess access, LoopValue value);
/* 32 random bits of (key0, key1; row, column): Philox 2x32, 7 rounds, as loop instructions; `key` values are I. */
LoopValue loop_random_bits(LoopBuilder *b, LoopValue key, LoopValue row, LoopValue column);
uint32_t random_bits(uint32_t key, uint32_t row, uint32_t column); /* the same, for the evaluator */

int64_t loop_rows(const Loop *loop);
LoopType loop_memory_type(LoopMemory memory); /* of a value in a register */
int64_t loop_memory_bytes(LoopMemory memory);
/* Merges neighbouring axes that every access walks as one, and drops outer axes of extent 1, so that the vector axis is
 * long. Rows, their order and all bits stay the same (inner axes are merged only where the order of reductions does).
 */
void loop_collapse(Loop *loop);
void loop_print(const Loop *loop, Text *out);
bool loop_verify(const Loop *loop, Text *why);
/* Rows [lo, hi), in f32 with the order above. */
void loop_interpret(const Loop *loop, void *const *pointers, int64_t lo, int64_t hi);

#endif
