/* Exact numbers of reproducible mode: the kernels that make, add, move and round them (KERNEL_EXACT), and the leaves of
 * ordered products.
 *
 * An axis of the kernel is a run of dimensions that every operand walks in one stride, so that the last is long. */
#include "kernels/lower.h"

enum { LEAVES = 8 };

typedef struct Axis {
    int64_t extent, out, in, in2;
} Axis;

static void add_axis(Exact *exact, Axis axis) {
    if (axis.extent == 1) return;
    int last = exact->n_axes - 1;
    bool one = last >= 0 && exact->out[last] == axis.out * axis.extent && exact->in[last] == axis.in * axis.extent &&
               exact->in2[last] == axis.in2 * axis.extent;
    if (!one) {
        CHECK(exact->n_axes < EXACT_MAX_AXES);
        last = exact->n_axes++;
        exact->extent[last] = 1;
    }
    exact->extent[last] *= axis.extent;
    exact->out[last] = axis.out, exact->in[last] = axis.in, exact->in2[last] = axis.in2;
}

/* Operands that the kind does not have repeat the first. */
static void exact_kernel(Lowering *l, const Exact *exact, const char *name, const BufferRef *refs, int n, Span span) {
    Kernel *kernel = lower_kernel(l, KERNEL_EXACT, name, span);
    for (int i = 0; i < 3; i++) kernel_add_ref(l, kernel, refs[i < n ? i : 0]);
    kernel->exact = NEW(l->arena, Exact);
    *kernel->exact = *exact;
    if (exact->n_axes == 0) kernel->exact->extent[kernel->exact->n_axes++] = 1;
}

/* ---- moving --------------------------------------------------------------------------------------------------------
 */

void lower_exact_copy(Lowering *l, const CopySpace *space, BufferRef from, BufferRef to, bool accumulate, Span span) {
    Exact exact = {.kind = EXACT_COPY, .accumulate = accumulate, .axis = -1};
    for (int i = 0; i < space->n; i++) add_axis(&exact, (Axis){space->extent[i], space->to[i], space->from[i], 0});
    if (space->coordinate) {
        exact.axis = space->coordinate_axis;
        exact.shift = space->coordinate_stride;
    }
    exact_kernel(l, &exact, "exact_copy", (BufferRef[]){to, from}, 2, span);
}

void lower_exact_zero(Lowering *l, BufferRef at, int64_t n, int64_t blocks, int64_t stride, Span span) {
    Exact exact = {.kind = EXACT_ZERO, .axis = -1};
    add_axis(&exact, (Axis){.extent = blocks, .out = stride});
    add_axis(&exact, (Axis){.extent = n, .out = 1});
    exact_kernel(l, &exact, "exact_zero", &at, 1, span);
}

/* ---- operators -----------------------------------------------------------------------------------------------------
 */

static int64_t stride_of(const Location *place, const Shape *shape, const Dim *dim) {
    int i = shape_find(shape, dim);
    return i < 0 ? 0 : place->stride[i];
}

/* Over the dimensions of the operand: those that the result lacks are summed over. */
static void lower_elements(Lowering *l, Node *node, ExactKind kind) {
    Exact exact = {.kind = kind, .accumulate = value_of(node)->accumulate, .axis = -1};
    Node *x = node->in[0], *y = node->n_in > 1 ? node->in[1] : NULL;
    Location in = value_place(l, x), in2 = y ? value_place(l, y) : in, out = value_place(l, node);
    for (int i = 0; i < x->shape.n; i++) {
        const Dim *dim = x->shape.dims[i];
        add_axis(&exact, (Axis){lower_extent(l, x, dim), stride_of(&out, &node->shape, dim), in.stride[i],
                                y ? stride_of(&in2, &y->shape, dim) : 0});
    }
    exact_kernel(l, &exact, op_info(node)->name, (BufferRef[]){out.ref, in.ref, in2.ref}, 3, node->span);
}

static void lower_rows(Lowering *l, Node *node) {
    Node *index = node->in[0], *rows = node->in[1];
    Location at = value_contiguous(l, index), in = value_contiguous(l, rows), out = value_place(l, node);
    Dim *over = node_attr(node, "rows")->dims.dims[0];
    int64_t n = 1, width = 1;
    for (int i = 0; i < index->shape.n; i++) n *= lower_extent(l, index, index->shape.dims[i]);
    for (int i = 0; i < node->shape.n; i++)
        if (node->shape.dims[i] != over) width *= lower_extent(l, node, node->shape.dims[i]);
    Exact exact = {.kind = EXACT_ROWS, .n_axes = 3, .accumulate = value_of(node)->accumulate, .axis = -1};
    exact.extent[0] = lower_extent(l, node, over), exact.extent[1] = n, exact.extent[2] = width;
    exact.out[0] = out.stride[shape_find(&node->shape, over)], exact.out[2] = 1;
    exact.in[1] = width, exact.in[2] = 1;
    for (int a = 0; l->graph->mesh && a < l->graph->mesh->n; a++)
        if (node->type[a].kind == AXIS_SHARDED && dim_is_cut_by(over, node->type[a].dim)) exact.axis = a;
    exact_kernel(l, &exact, op_info(node)->name, (BufferRef[]){out.ref, in.ref, at.ref}, 3, node->span);
}

void lower_exact(Lowering *l, Node *node) {
    if (node->op == OP_EXACT_LOOKUP_GRAD)
        lower_rows(l, node);
    else
        lower_elements(l, node,
                       node->op == OP_EXACT_ADD     ? EXACT_ADD
                       : node->op == OP_EXACT_ROUND ? EXACT_ROUND
                                                    : EXACT_SUM);
}

/* ---- products ------------------------------------------------------------------------------------------------------
 */

/* Leaves follow from the model's sizes: what a plan pads comes last and adds zeros. */
int64_t lower_leaf(const Node *dot) {
    if (dot->dtype == DT_EXACT) return node_attr(dot, "leaf")->integer;
    return (shape_logical_elements(&node_attr(dot, "over")->dims) + LEAVES - 1) / LEAVES;
}
