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

typedef struct Block {
    const PrtProgram *program;
    const PrtTensor *tensor;
    const int *coords;
    int64_t part[PRT_MAX_DIMS], stride[PRT_MAX_DIMS]; /* held by the rank; of the whole, as it is saved */
    bool in_pieces[PRT_MAX_DIMS];                     /* not one block of the whole */
    PrtRun1 *each;
    void *context;
} Block;

/* The place of the rank's i-th one along a dimension: each axis takes its part of what the ones outside leave.
 */
static int64_t place_in_whole(const Block *b, int d, int64_t i) {
    int64_t extent = b->part[d];
    for (int k = 2 * b->program->n_axes - 1; k >= 0; k--) { /* inside are blocks, around them what is balanced */
        int a = k % b->program->n_axes;
        if (b->tensor->axes[a] != d || b->tensor->balanced[a] != (k < b->program->n_axes)) continue;
        int64_t n = b->program->mesh[a].size, c = b->coords[a], half = extent / 2;
        i += !b->tensor->balanced[a] ? c * extent : i < half ? c * half : (2 * n - 2 - c) * half;
        extent *= n;
    }
    return i + (d == 0 ? b->tensor->part_first : 0);
}

static int64_t index_in_whole(const Block *b, int d, int64_t i) {
    return index_at(b->tensor, d, place_in_whole(b, d, i));
}

/* Of a dimension whose inner ones are whole: each run of neighbours, without padding. */
static bool runs_along(const Block *b, int d, int64_t inner, int64_t local, int64_t global) {
    for (int64_t i = 0, n; i < b->part[d]; i += n) {
        int64_t first = index_in_whole(b, d, i);
        n = b->in_pieces[d] ? 1 : b->part[d];
        while (first >= 0 && i + n < b->part[d] && index_in_whole(b, d, i + n) == first + n) n++;
        int64_t length = first < 0 ? 0 : inner * inside(prt_saved_extent(b->tensor, d) - first, n);
        if (length > 0 && !b->each(b->context, local + i * inner, global + first * b->stride[d], length)) return false;
    }
    return true;
}

/* Runs of the block that the axes leave, local indices in row-major order. */
static bool block_runs(const PrtProgram *program, const PrtTensor *tensor, const int *coords, PrtRun1 *each,
                       void *context) {
    Block b = {.program = program, .tensor = tensor, .coords = coords, .each = each, .context = context};
    int n = tensor->n_dims, split = n - 1; /* dimensions behind it are whole */
    if (n == 0) return each(context, 0, 0, 1);
    int64_t step = 1, inner = 1;
    for (int d = n - 1; d >= 0; d--) {
        b.stride[d] = step;
        step *= prt_saved_extent(tensor, d);
        b.part[d] = held(tensor, d);
        for (int a = 0; a < program->n_axes; a++)
            if (tensor->axes[a] == d) {
                b.part[d] /= program->mesh[a].size;
                b.in_pieces[d] = b.in_pieces[d] || tensor->balanced[a];
            }
        b.in_pieces[d] = b.in_pieces[d] || tensor->n_uneven[d];
        if (b.part[d] == 0) return true;
    }
    for (; split > 0 && !b.in_pieces[split] && b.part[split] == prt_saved_extent(tensor, split); split--)
        inner *= b.part[split];
    int64_t at[PRT_MAX_DIMS] = {0}, local = 0;
    for (;; local += inner * b.part[split]) {
        int64_t global = 0;
        bool there = true;
        for (int d = 0; d < split; d++) {
            int64_t index = index_in_whole(&b, d, at[d]);
            global += index * b.stride[d];
            there = there && index >= 0;
        }
        if (there && !runs_along(&b, split, inner, local, global)) return false;
        int d = split - 1;
        while (d >= 0 && ++at[d] == b.part[d]) at[d--] = 0;
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
