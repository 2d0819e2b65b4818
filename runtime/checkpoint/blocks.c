/* Where a rank's block of a tensor lies in the whole. */
#include "checkpoint/format.h"

#include <string.h>

bool prt_block_first(const PrtProgram *program, const PrtTensor *tensor, const int *coords) {
    for (int a = 0; a < program->n_axes; a++) {
        if (program->n_roles > 1 && a == program->role_axis) continue; /* another role has no copy that it saves */
        if (tensor->axes[a] < 0 && a != tensor->flat_axis && coords[a] != 0) return false;
    }
    return true;
}

int64_t prt_saved_extent(const PrtTensor *tensor, int dim) { return tensor->shape[dim] - tensor->padding[dim]; }

static int64_t inside(int64_t left, int64_t part) { return left < 0 ? 0 : left < part ? left : part; }

/* The size of a dimension in the role's part of the tensor. */
static int64_t held(const PrtTensor *tensor, int d) {
    return d == 0 && tensor->part_count ? tensor->part_count : tensor->shape[d];
}

/* The logical index of what stands at `place`; -1 for padding. */
static int64_t index_at(const PrtTensor *tensor, int d, int64_t place) {
    if (!tensor->n_uneven[d]) return place < prt_saved_extent(tensor, d) ? place : -1;
    int64_t room = tensor->shape[d] / tensor->n_uneven[d], block = place / room, before = 0;
    if (place % room >= tensor->uneven[d][block]) return -1;
    for (int64_t i = 0; i < block; i++) before += tensor->uneven[d][i];
    return before + place % room;
}

/* Runs of the block that the axes leave, local indices in row-major order. */
static bool block_runs(const PrtProgram *program, const PrtTensor *tensor, const int *coords, PrtRun1 *each,
                       void *context) {
    int64_t start[PRT_MAX_DIMS], part[PRT_MAX_DIMS], stride[PRT_MAX_DIMS], blocks[PRT_MAX_DIMS], block[PRT_MAX_DIMS];
    int n = tensor->n_dims;
    for (int d = 0; d < n; d++) {
        blocks[d] = 1;
        block[d] = 0;
    }
    for (int a = 0; a < program->n_axes; a++) { /* outermost first */
        int d = tensor->axes[a];
        if (d < 0) continue;
        block[d] = block[d] * program->mesh[a].size + coords[a];
        blocks[d] *= program->mesh[a].size;
    }
    int64_t step = 1, run = 1;
    for (int d = n - 1; d >= 0; d--) {
        stride[d] = step;
        step *= prt_saved_extent(tensor, d);
        part[d] = held(tensor, d) / blocks[d];
        start[d] = block[d] * part[d] + (d == 0 ? tensor->part_first : 0);
        if (part[d] == 0) return true;
    }
    int split = n;      /* dimensions from here on form one run */
    int64_t length = 1; /* of it, what is not padding */
    while (split > 0 && !tensor->n_uneven[split - 1]) {
        split--;
        int64_t saved = prt_saved_extent(tensor, split);
        length = run * inside(saved - start[split], part[split]);
        run *= part[split];
        if (part[split] != saved) break;
    }
    if (n == 0) return each(context, 0, 0, 1);
    int64_t at[PRT_MAX_DIMS] = {0}, local = 0;
    for (;;) {
        int64_t global = split < n ? start[split] * stride[split] : 0;
        bool there = length > 0;
        for (int d = 0; d < split; d++) {
            int64_t index = index_at(tensor, d, start[d] + at[d]);
            there = there && index >= 0;
            global += index * stride[d];
        }
        if (there && !each(context, local, global, length)) return false;
        local += run;
        int d = split - 1;
        while (d >= 0 && ++at[d] == part[d]) at[d--] = 0;
        if (d < 0) return true;
    }
}

/* ---- parts of the elements ---- */

typedef struct Part {
    int64_t block, part, first; /* elements of a layer; of its part; the part's first one in the layer */
    PrtRun1 *each;
    void *context;
} Part;

/* What a run of the block has in common with this rank's part of each layer. */
static bool part_of_run(void *context, int64_t local, int64_t global, int64_t n) {
    const Part *p = context;
    while (n > 0) {
        int64_t layer = local / p->block, at = local % p->block, length = p->block - at < n ? p->block - at : n;
        int64_t lo = at > p->first ? at : p->first, end = p->first + p->part;
        int64_t hi = at + length < end ? at + length : end;
        if (lo < hi && !p->each(p->context, layer * p->part + lo - p->first, global + lo - at, hi - lo)) return false;
        local += length, global += length, n -= length;
    }
    return true;
}

bool prt_block_runs(const PrtProgram *program, const PrtTensor *tensor, const int *coords, PrtRun1 *each,
                    void *context) {
    if (tensor->flat_axis < 0) return block_runs(program, tensor, coords, each, context);
    int64_t elements = 1;
    for (int d = 0; d < tensor->n_dims; d++) elements *= held(tensor, d);
    for (int a = 0; a < program->n_axes; a++)
        if (tensor->axes[a] >= 0) elements /= program->mesh[a].size;
    Part part = {.block = elements / tensor->flat_blocks, .part = tensor->flat_part, .each = each, .context = context};
    part.first = part.part * coords[tensor->flat_axis];
    return block_runs(program, tensor, coords, part_of_run, &part);
}
