/* All-to-all: from one cut dimension to another.
 *
 * In: a value cut along `old` on one axis or several; out: the same cut along `new`. The parts for each rank of the
 * group are made contiguous, exchanged, and put in their places. Along several axes the exchange goes axis by axis,
 * innermost first, so that what crosses machines has been sorted inside them: a part's way is the digits of its rank's
 * number in the group, and each axis settles one digit. The digits stand innermost first in both buffers, so nothing is
 * packed between. */
#include "kernels/lower.h"

typedef struct Exchange {
    int axes[MAX_MESH], n_axes; /* innermost first */
    int64_t sizes[MAX_MESH];
    int64_t part[MAX_RANK], block; /* of what one rank sends to one other: the size of each dimension, their product */
    int64_t ranks;
} Exchange;

static Exchange exchange_of(Lowering *l, Node *node) {
    const Mesh *mesh = l->graph->mesh;
    uint32_t axes = collective_axes(node);
    Exchange e = {.block = 1, .ranks = 1};
    for (int a = mesh->n - 1; a >= 0; a--) {
        if (!(axes >> a & 1)) continue;
        e.axes[e.n_axes] = a;
        e.ranks *= e.sizes[e.n_axes++] = mesh->axes[a].size;
    }
    const Dim *old = node->in[0]->type[e.axes[0]].dim;
    for (int i = 0; i < node->shape.n; i++) { /* both cuts at once */
        Dim *dim = node->shape.dims[i];
        e.part[i] = lower_extent(l, dim == old ? node->in[0] : node, dim);
        e.block *= e.part[i];
    }
    return e;
}

/* The parts of a rank's value, and where they stand in a buffer of one block for each rank of the group. Dimension `d`
 * is the one whose parts go to different ranks (or come from them); `piece` is what is copied of each part. */
static CopySpace parts_space(const Exchange *e, const Node *node, const Location *place, int d, const Piece *piece,
                             bool packs) {
    CopySpace space = {.n = e->n_axes + node->shape.n};
    int64_t *value = packs ? space.from : space.to, *buffer = packs ? space.to : space.from, stride = 1;
    for (int i = node->shape.n - 1; i >= 0; i--) {
        space.extent[e->n_axes + i] = i == d ? piece->unit : e->part[i];
        value[e->n_axes + i] = place->stride[i];
        buffer[e->n_axes + i] = stride;
        stride *= e->part[i];
    }
    int64_t digits = e->ranks, at = piece->step * piece->unit * place->stride[d];
    for (int k = 0; k < e->n_axes;
         k++) { /* in the buffer the outermost axis counts fastest, in the dimension slowest */
        digits /= e->sizes[k];
        space.extent[k] = e->sizes[k];
        buffer[k] = digits * e->block;
        value[k] = at;
        at *= e->sizes[k];
    }
    return space;
}

static void copy_parts(Lowering *l, const Exchange *e, const Node *node, const Location *place, AxisType cut,
                       BufferRef buffer, bool packs) {
    int d = shape_find(&node->shape, cut.dim);
    int64_t width = dtype_bytes(node->dtype), inner = 1;
    for (int i = d + 1; i < node->shape.n; i++) inner *= e->part[i];
    Piece pieces[2];
    int n = lower_pieces(cut, e->ranks, e->part[d], pieces);
    for (int k = 0; k < n; k++) {
        CopySpace space = parts_space(e, node, place, d, &pieces[k], packs);
        BufferRef value = place->ref, block = buffer;
        value.offset += pieces[k].first * pieces[k].unit * place->stride[d] * width;
        block.offset += k * pieces[k].unit * inner * width;
        lower_strided_copy(l, &space, node->dtype, packs ? value : block, packs ? block : value, false, node->span);
    }
}

void lower_exchange(Lowering *l, Node *node) {
    Node *x = node->in[0];
    Exchange e = exchange_of(l, node);
    CHECK(e.n_axes + node->shape.n <= LOOP_MAX_AXES);
    Location in = value_place(l, x), out = value_place(l, node);
    int64_t elements = e.ranks * e.block, bytes = elements * dtype_bytes(node->dtype), before = 1;
    Name name = intern(l->graph->session->names, "exchange");
    BufferRef buffers[2];
    for (int i = 0; i < 2; i++)
        buffers[i] = (BufferRef){.buffer = lower_buffer(l, name, MEM_TEMPORARY, node->dtype, bytes, node->span)};
    copy_parts(l, &e, node, &in, node->type[e.axes[0]], buffers[0], true);
    for (int k = 0; k < e.n_axes; k++) {
        Collective c = {.op = OP_ALL_TO_ALL,
                        .axis = e.axes[k],
                        .dtype = node->dtype,
                        .elements = elements,
                        .outer = before,
                        .inner = elements / before / e.sizes[k]};
        lower_collective_kernel(l, node, c, buffers[k % 2], buffers[(k + 1) % 2]);
        before *= e.sizes[k];
    }
    copy_parts(l, &e, node, &out, x->type[e.axes[0]], buffers[e.n_axes % 2], false);
}
