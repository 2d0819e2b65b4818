/* Rule 1: what the ordered list of an axis says about one tensor, and what a conversion between two types costs. */
#include "partition/partition.h"

#include <math.h>

/* The dimension of `shape` that carries `dim`: itself, or its leftmost factor. NULL when there is none. */
static Dim *carrier(const Shape *shape, Dim *dim) {
    for (Dim *d = dim; d; d = d->n_factors ? d->factors[0] : NULL)
        if (shape_find(shape, d) >= 0) return d;
    return NULL;
}

AxisType layout_cut(const Layout *layout, int axis, Dim *dim) {
    AxisType type = {.kind = AXIS_SHARDED, .layout = LAYOUT_BLOCK, .dim = dim};
    const AxisRules *rules = &layout->axes[axis];
    for (int i = 0; i < rules->balanced.n; i++)
        for (const Dim *d = dim; d; d = d->like)
            if (dim_is_cut_by(d, rules->balanced.at[i])) type.layout = LAYOUT_BALANCED;
    return type;
}

AxisType layout_type(const Layout *layout, int axis, const Shape *shape) {
    const AxisRules *rules = &layout->axes[axis];
    for (int i = 0; i < rules->names.n; i++) {
        Dim *dim = carrier(shape, rules->names.at[i]);
        if (dim) return layout_cut(layout, axis, dim);
    }
    return (AxisType){.kind = AXIS_REPLICATED};
}

/* Ring and pairwise algorithms: of S bytes over n ranks, a rank sends (n-1)/n S to gather or to reduce-scatter, twice
 * that to all-reduce, and (n-1)/n of what it holds to exchange (Thakur et al. 2005). `local_bytes` is what one rank
 * holds in the type that the conversion starts from. */
double conversion_bytes(const Mesh *mesh, int axis, double local_bytes, AxisType from, AxisType to) {
    double n = (double)mesh->axes[axis].size, share = (n - 1) / n;
    if (axis_type_equal(from, to)) return 0;
    if (from.kind == AXIS_REPLICATED && to.kind == AXIS_SHARDED) return 0;
    if (from.kind == AXIS_PARTIAL && to.kind == AXIS_REPLICATED) return 2 * share * local_bytes;
    if (from.kind == AXIS_PARTIAL && to.kind == AXIS_SHARDED) return share * local_bytes;
    if (from.kind == AXIS_SHARDED && to.kind == AXIS_REPLICATED) return share * n * local_bytes;
    if (from.kind == AXIS_SHARDED && to.kind == AXIS_SHARDED) return share * local_bytes;
    return INFINITY;
}
