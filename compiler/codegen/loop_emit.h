/* What the host and the GPU share in emitting a loop: the instructions of a pass for one group of points.
 *
 * A group is `width` neighbouring points on the lane axis, `width` lanes of a vector; on a GPU it is one point. Values
 * that are the same for all lanes stay scalars ("uniform") and are spread where a vector needs them. The callers make
 * the control flow around groups and keep index, mask, pointers and accumulators up to date. */
#ifndef PLAN_LOOP_EMIT_H
#define PLAN_LOOP_EMIT_H

#include "codegen/llvm_util.h"

enum { LOOP_MAX_PARTS = LOOP_LANES, LOOP_MAX_POINTERS = 64 };

typedef struct LoopEmit {
    Codegen *g;
    const Loop *loop;
    int lane_axis;             /* -1: none */
    V base[LOOP_MAX_POINTERS]; /* by LoopAccess.pointer; NULL when not used */
    V *row_pointer;            /* by instruction: where the row starts (offset and outer axes but the lane axis) */
    V *inner_pointer;          /* plus the inner axes but the last one and the lane axis */
    V index[LOOP_MAX_AXES];    /* i64; of the lane axis: of the group's first point */
    V *value;                  /* by instruction, as emitted last */
    int width;                 /* of the group being emitted */
    int active;                /* lanes that are on, a compile-time number: width but in the last group of an axis */
    V mask;          /* <width x i1>, or NULL: all on. With active < width it is constant, with active == width it is
                        known at run time only */
    V store_if;      /* i1: stores happen only then; NULL: always (GPU) */
    V **accumulator; /* by instruction (reductions only): parts */
    int part;        /* that the group adds to */
} LoopEmit;

/* Copies and collapses the loop, finds the lane axis. `params` of the pointers are bound by the caller through base. */
LoopEmit *loop_emit_new(Codegen *g, const Loop *loop);
bool loop_emit_row_wise(const Loop *loop); /* lanes run over the last inner axis */
bool loop_access_of(LoopOp op);
CgReduce loop_reduction_kind(LoopOp op);
T loop_memory_llvm(Codegen *g, LoopMemory memory);

void loop_emit_row_pointers(LoopEmit *e);                         /* once index of the outer axes is set */
void loop_emit_inner_pointers(LoopEmit *e, const LoopPass *pass); /* once index of the inner axes but the last is set */
/* The instructions of a pass for the current group; reductions go to accumulator[instr][part]. */
void loop_emit_group(LoopEmit *e, const LoopPass *pass);
/* index of every outer axis from a flattened row number */
void loop_emit_split_row(LoopEmit *e, V row);

#endif
