/* In which order the axes of a value change their types (see conversion.h).
 *
 * Cuts of one dimension by several axes are nested, so the parts are joined from the innermost axis outwards and cut
 * from the outermost inwards. Where the order of the wanted type will not do, that of the present one may; else several
 * axes exchange in one step, or what stands in the way is joined first and cut again. */
#include "partition/conversion.h"

static bool same_cut(AxisType type, const Dim *dim) {
    return type.kind == AXIS_SHARDED && type.dim && dim &&
           (dim_is_cut_by(type.dim, dim) || dim_is_cut_by(dim, type.dim));
}

/* Whether `type`'s dimension is cut again inside this axis: then the parts of the ranks along the axis do not lie side
 * by side, and the inner cut has to go first. */
static bool cut_inside(const Mesh *mesh, const AxisType *types, int axis, AxisType type) {
    for (int a = 0; a < mesh->n && type.kind == AXIS_SHARDED; a++)
        if (a != axis && same_cut(types[a], type.dim) && cut_is_inside(types[a], a, type, axis)) return true;
    return false;
}

static bool step_is_valid(const Mesh *mesh, const AxisType *types, int axis, AxisType to) {
    return !cut_inside(mesh, types, axis, types[axis]) && !cut_inside(mesh, types, axis, to);
}

static void add_step(ConversionSteps *steps, int axis, AxisType to) {
    if (axis_type_equal(steps->types[axis], to)) return;
    CHECK(steps->n < (int)(sizeof steps->axis / sizeof steps->axis[0]));
    steps->axis[steps->n] = axis;
    steps->to[steps->n++] = steps->types[axis] = to;
}

/* The axes from the outermost inwards, as they cut values of these types. */
static void axes_inwards(const Mesh *mesh, const AxisType *types, int order[MAX_MESH]) {
    int n = 0;
    for (int place = 0; place < 2; place++)
        for (int a = 0; a < mesh->n; a++)
            if ((types[a].layout != LAYOUT_BALANCED) == (place == 1)) order[n++] = a;
}

/* Whether this axis changes a cut of `old` into one of `new`, whole dimensions both. */
static bool exchanges(const ConversionSteps *steps, const AxisType *need, int axis, const Dim *old, const Dim *new) {
    AxisType from = steps->types[axis], to = need[axis];
    return from.kind == AXIS_SHARDED && to.kind == AXIS_SHARDED && from.layout == LAYOUT_BLOCK &&
           to.layout == LAYOUT_BLOCK && from.dim == old && to.dim == new &&old != new;
}

/* Where several axes change one cut dimension into another: one exchange among all their ranks, which keeps the parts
 * in mesh order. Axis by axis, the parts of a rank would not lie side by side. */
static void add_joint_exchanges(const Mesh *mesh, const AxisType *need, const Shape *shape, ConversionSteps *steps) {
    for (int a = mesh->n - 1; a >= 0; a--) {
        const Dim *old = steps->types[a].dim, *new = need[a].dim;
        uint32_t outer = 0;
        int axes = 1;
        bool others = !exchanges(steps, need, a, old, new);
        for (int b = 0; b < mesh->n && !others; b++) {
            bool joins = b != a && exchanges(steps, need, b, old, new);
            others |= b != a && !joins && (same_cut(steps->types[b], old) || same_cut(steps->types[b], new));
            if (joins) outer |= 1u << b, axes++;
        }
        if (others || !outer || shape->n + axes > LOOP_MAX_AXES) continue;
        for (int b = 0; b < a; b++)
            if (outer >> b & 1) steps->types[b] = need[b];
        steps->outer[steps->n] = outer;
        add_step(steps, a, need[a]);
    }
}

/* One step for each axis, in an order. False where one would not be valid. */
static bool steps_in_order(const Mesh *mesh, const AxisType *need, const int *order, int step, ConversionSteps *steps) {
    for (int i = 0; i < mesh->n; i++) {
        int a = order[i * step];
        if (type_is_flat(need[a]) || axis_type_equal(steps->types[a], need[a])) continue;
        if (!step_is_valid(mesh, steps->types, a, need[a])) return false;
        add_step(steps, a, need[a]);
    }
    return true;
}

static bool is_in_the_way(const ConversionSteps *steps, int axis, int other, AxisType to) {
    AxisType type = steps->types[axis], cut = steps->types[other];
    return axis != other &&
           ((type.kind == AXIS_SHARDED && same_cut(cut, type.dim) && cut_is_inside(cut, other, type, axis)) ||
            (to.kind == AXIS_SHARDED && same_cut(cut, to.dim) && cut_is_inside(cut, other, to, axis)));
}

/* Where no order will do (a dimension cut by two axes becomes another one on both), cuts that stand in the way are
 * joined, from the innermost outwards, and made anew: in the next round where their turn is over. */
static void steps_by_joining(const Mesh *mesh, const AxisType *need, ConversionSteps *steps) {
    int inwards[MAX_MESH], of_need[MAX_MESH];
    axes_inwards(mesh, steps->types, inwards);
    axes_inwards(mesh, need, of_need);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < mesh->n; i++) {
            int a = of_need[i];
            if (type_is_flat(need[a]) || axis_type_equal(steps->types[a], need[a])) continue;
            for (int k = mesh->n - 1; k >= 0; k--)
                if (is_in_the_way(steps, a, inwards[k], need[a]))
                    add_step(steps, inwards[k], (AxisType){.kind = AXIS_REPLICATED});
            add_step(steps, a, need[a]);
        }
}

ConversionSteps conversion_steps(const Mesh *mesh, const Shape *shape, const AxisType *from, const AxisType *need) {
    ConversionSteps start = {.n = 0}, steps;
    int inwards[MAX_MESH], of_need[MAX_MESH];
    axes_inwards(mesh, from, inwards);
    axes_inwards(mesh, need, of_need);
    memcpy(start.types, from, sizeof start.types);
    for (int i = mesh->n - 1; i >= 0; i--) { /* what has to be whole */
        int a = inwards[i];
        bool whole = need[a].kind == AXIS_REPLICATED ||
                     (type_is_flat(need[a]) && from[a].kind == AXIS_SHARDED && !type_is_flat(from[a]));
        if (whole && step_is_valid(mesh, start.types, a, (AxisType){.kind = AXIS_REPLICATED}))
            add_step(&start, a, (AxisType){.kind = AXIS_REPLICATED});
    }
    steps = start;
    if (steps_in_order(mesh, need, of_need, 1, &steps)) return steps;
    steps = start;
    if (steps_in_order(mesh, need, inwards + mesh->n - 1, -1, &steps)) return steps;
    add_joint_exchanges(mesh, need, shape, &start);
    steps = start;
    if (steps_in_order(mesh, need, of_need, 1, &steps)) return steps;
    steps_by_joining(mesh, need, &start);
    return start;
}
