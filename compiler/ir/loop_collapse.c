/* loop_collapse: fewer, longer axes.
 *
 * Two neighbouring axes (a, a+1) become one when every access steps over a as extent[a+1] steps of a+1 and no index of
 * either is asked for. Merging outer axes keeps the flattened order of rows. Merging inner axes keeps the bits when no
 * reduction sees a difference: element j of the last inner axis goes to accumulator j mod lanes, so the last two axes
 * merge only if the last is a multiple of lanes, or the lanes run over rows, or nothing is reduced. */
#include "ir/loop.h"

static bool is_memory(LoopOp op) { return op == LOOP_LOAD || op == LOOP_GATHER || op == LOOP_STORE; }

static bool reduces(const Loop *loop) {
    for (int i = 0; i < loop->code.n; i++)
        if (loop_is_reduction(loop->code.at[i].op)) return true;
    return false;
}

static bool indexed(const Loop *loop, int axis) {
    for (int i = 0; i < loop->code.n; i++)
        if (loop->code.at[i].op == LOOP_INDEX && loop->code.at[i].imm_i == axis) return true;
    return false;
}

static bool order_kept(const Loop *loop, int axis) {
    if (axis + 1 < loop->n_outer) return true;
    if (axis < loop->n_outer) return false; /* an outer and an inner axis */
    if (axis + 2 < loop->n_axes || loop->lanes_outer || loop->extent[axis] == 1 || !reduces(loop)) return true;
    return loop->extent[axis + 1] % loop->lanes == 0;
}

static bool mergeable(const Loop *loop, int axis) {
    if (!order_kept(loop, axis) || indexed(loop, axis) || indexed(loop, axis + 1)) return false;
    if (loop->extent[axis] == 1 || loop->extent[axis + 1] == 1) return true;
    for (int i = 0; i < loop->code.n; i++) {
        const LoopInstr *instr = &loop->code.at[i];
        if (!is_memory(instr->op)) continue;
        if (instr->access.stride[axis] != instr->access.stride[axis + 1] * loop->extent[axis + 1]) return false;
    }
    return true;
}

/* The merged axis stands at axis + 1; axis disappears. */
static void merge(Loop *loop, int axis) {
    bool keep_outer_stride = loop->extent[axis + 1] == 1;
    int64_t extent = loop->extent[axis] * loop->extent[axis + 1];
    for (int i = 0; i < loop->code.n; i++) {
        LoopInstr *instr = &loop->code.at[i];
        int64_t *stride = instr->access.stride;
        if (is_memory(instr->op)) {
            if (keep_outer_stride) stride[axis + 1] = stride[axis];
            for (int a = axis; a + 1 < loop->n_axes; a++) stride[a] = stride[a + 1];
            stride[loop->n_axes - 1] = 0;
        }
        if (instr->op == LOOP_INDEX && instr->imm_i > axis) instr->imm_i--;
    }
    loop->extent[axis + 1] = extent;
    for (int a = axis; a + 1 < loop->n_axes; a++) loop->extent[a] = loop->extent[a + 1];
    loop->extent[loop->n_axes - 1] = 0;
    loop->n_axes--;
    if (axis < loop->n_outer) loop->n_outer--;
}

void loop_collapse(Loop *loop) {
    for (int axis = loop->n_axes - 2; axis >= 0; axis--)
        if (axis + 1 < loop->n_axes && mergeable(loop, axis)) merge(loop, axis);
}
