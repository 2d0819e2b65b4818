/* Points of several arrays at once, for naive evaluations: an index for each of a list of dimensions, and the offset
 * that this index has in an array (dimensions that the array lacks count 0, as in a broadcast). */
#ifndef PLAN_OPS_SPACE_H
#define PLAN_OPS_SPACE_H

#include "ir/op.h"

enum { SPACE_MAX = 3 * MAX_RANK };

typedef struct Space {
    const Dim *dims[SPACE_MAX];
    int64_t extent[SPACE_MAX], index[SPACE_MAX];
    int n;
} Space;

static inline int space_find(const Space *space, const Dim *dim) {
    for (int i = 0; i < space->n; i++)
        if (space->dims[i] == dim) return i;
    return -1;
}

/* Adds the array's dimensions that are not there yet; with `only`, those among them. */
static inline void space_add(Space *space, const Array *array, const Shape *only) {
    for (int i = 0; i < array->shape.n; i++) {
        Dim *dim = array->shape.dims[i];
        if ((only && shape_find(only, dim) < 0) || space_find(space, dim) >= 0) continue;
        space->dims[space->n] = dim;
        space->extent[space->n++] = array->extent[i];
    }
}

static inline int64_t space_points(const Space *space) {
    int64_t n = 1;
    for (int i = 0; i < space->n; i++) n *= space->extent[i];
    return n;
}

/* The next point, the last dimension fastest; after the last point the first one. */
static inline void space_next(Space *space) {
    for (int i = space->n - 1; i >= 0; i--) {
        if (++space->index[i] < space->extent[i]) return;
        space->index[i] = 0;
    }
}

static inline int64_t space_offset(const Space *space, const Array *array) {
    int64_t offset = 0;
    for (int i = 0; i < array->shape.n; i++) {
        int at = space_find(space, array->shape.dims[i]);
        offset = offset * array->extent[i] + (at < 0 ? 0 : space->index[at]);
    }
    return offset;
}

/* Elements between neighbours along `dim`; 0 when the array lacks it. */
static inline int64_t array_stride(const Array *array, const Dim *dim) {
    int64_t stride = 1;
    for (int i = array->shape.n - 1; i >= 0; i--) {
        if (array->shape.dims[i] == dim) return stride;
        stride *= array->extent[i];
    }
    return 0;
}

static inline int64_t array_extent(const Array *array, const Dim *dim) {
    int at = shape_find(&array->shape, dim);
    return at < 0 ? 1 : array->extent[at];
}

#endif
