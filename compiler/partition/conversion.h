/* A conversion of a value from one distribution type to another, as steps that change one axis each. Out: the steps in
 * an order in which each of them is one collective (graph_partition.c inserts them). Flat ranges are left to the
 * caller: the axis that stores in parts is whole, or not yet flat, after the steps. */
#ifndef PLAN_PARTITION_CONVERSION_H
#define PLAN_PARTITION_CONVERSION_H

#include "partition/choose.h"

/* One axis each, to a type; or an exchange along further axes outside of it too. */
typedef struct ConversionSteps {
    int axis[6 * MAX_MESH];
    uint32_t outer[6 * MAX_MESH];
    AxisType to[6 * MAX_MESH];
    int n;
    AxisType types[MAX_MESH]; /* after them */
} ConversionSteps;

ConversionSteps conversion_steps(const Mesh *mesh, const Shape *shape, const AxisType *from, const AxisType *need);

#endif
