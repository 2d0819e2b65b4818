/* Which cuts reproducible mode allows: those after which every element is still the same sum of the same terms.
 *
 * A sum in f32 has one order, written down for the whole dimension: 8 leaves by logical index, joined by a balanced
 * tree (products), or one after the other (everything else). A rank may hold a branch of the tree: its partial sum goes
 * on up the tree as it is reduced. Any other cut is left out, so that its operands are gathered: slower, with the same
 * bits. Exact numbers, maxima, and sums of which all but one term are zero have no order. */
#include "partition/choose.h"

enum { LEAVES = 8, FEWEST_QUERIES = 3 /* attention of fewer is another algorithm */ };

static int64_t parts_of(const Choices *c, const AxisType *type, int axis, const Dim *dim) {
    int64_t parts = c->layout->mesh.axes[axis].size;
    for (int a = 0; a < c->layout->mesh.n; a++)
        if (a != axis && type[a].kind == AXIS_SHARDED && type[a].dim &&
            (dim_is_cut_by(dim, type[a].dim) || dim_is_cut_by(type[a].dim, dim)))
            parts *= c->layout->mesh.axes[a].size;
    return parts;
}

/* Parts that are branches of a balanced tree over 8 equal leaves. Leaves follow from the model's sizes, so padding must
 * not make more of them. */
static bool are_branches(int64_t points, int64_t logical, int64_t parts) {
    return LEAVES % parts == 0 && points % LEAVES == 0 && points / LEAVES == (logical + LEAVES - 1) / LEAVES;
}

/* Branches are joined along one axis; several would have to be joined in the order of the mesh. */
static bool is_partial_elsewhere(const Choices *c, const Node *node, int axis) {
    for (int a = 0; a < c->layout->mesh.n; a++) {
        if (a == axis) continue;
        if (node->n_outs == 0 && node->type[a].kind == AXIS_PARTIAL) return true;
        for (int k = 0; k < node->n_outs; k++)
            if (node->outs[k].type[a].kind == AXIS_PARTIAL) return true;
    }
    return false;
}

/* The outermost dimension of the sum, in leaves of equal length. */
static bool dot_keeps_order(const Choices *c, const Node *node, int axis, const Dim *dim) {
    const Shape *over = &node_attr(node, "over")->dims, *x = &node->in[0]->shape;
    const Dim *first = NULL;
    for (int i = x->n - 1; i >= 0; i--)
        if (shape_find(over, x->dims[i]) >= 0) first = x->dims[i];
    return first == dim && !is_partial_elsewhere(c, node, axis) &&
           are_branches(shape_elements(over), shape_logical_elements(over), parts_of(c, node->in[0]->type, axis, dim));
}

static bool exact_dot_keeps_leaves(const Choices *c, const Node *node, int axis, const Dim *dim) {
    const Shape *over = &node_attr(node, "over")->dims, *x = &node->in[0]->shape;
    const Dim *last = NULL;
    for (int i = 0; i < x->n; i++)
        if (shape_find(over, x->dims[i]) >= 0) last = x->dims[i];
    int64_t parts = parts_of(c, node->in[0]->type, axis, dim), leaf = node_attr(node, "leaf")->integer;
    return dim != last || (dim->size % parts == 0 && dim->size / parts % leaf == 0);
}

/* A gradient of attention sums over queries; its own order of keys is that of the whole. */
static bool attend_keeps_order(const Choices *c, const Node *node, int axis, const Dim *dim) {
    AttendParts parts = attend_parts(node);
    if (dim != parts.seq) return node->op == OP_ATTEND || dim != parts.head || parts.kv_head;
    int64_t n = parts_of(c, node->in[0]->type, axis, dim);
    if (dim->size / n < FEWEST_QUERIES) return false;
    return node->op == OP_ATTEND || (are_branches(dim->size, dim->size, n) && !is_partial_elsewhere(c, node, axis));
}

/* select(condition, x, 0) that compares an index along the dimension: one term at most is not zero. */
static bool is_sum_of_one(const Node *node, const Dim *dim) {
    const Node *x = node->in[0];
    if (x->op != OP_SELECT || x->in[0]->op != OP_EQ) return false;
    const Node *zero = x->in[2], *ramp = x->in[0]->in[1];
    while (zero->op == OP_BROADCAST) zero = zero->in[0];
    return zero->op == OP_CONST && node_attr(zero, "value")->number == 0 && ramp->op == OP_RAMP &&
           ramp->shape.dims[0] == dim && node_attr(node, "over")->dims.n == 1;
}

bool cut_keeps_order(const Choices *c, const Node *node, int axis, const Letter *letter) {
    if (node->op == OP_EXACT_DOT && letter->kind == LETTER_SUM)
        return exact_dot_keeps_leaves(c, node, axis, letter->dim);
    if (node->dtype == DT_EXACT) return true;
    if (op_info(node)->lower == LOWER_ATTEND) return attend_keeps_order(c, node, axis, letter->dim);
    if (letter->kind != LETTER_SUM) return true;
    if (node->op == OP_DOT) return dot_keeps_order(c, node, axis, letter->dim);
    return node->op == OP_SUM && is_sum_of_one(node, letter->dim);
}
