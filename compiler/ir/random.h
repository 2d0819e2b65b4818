/* Where random numbers come from: the key of a stream, mixed the same way by the evaluator, by loops and by the host.
 *
 * A random operator has an attribute `key` (from the tensor's or the statement's logical name) and integer scalars as
 * operands (seed, step, layer index, ...). They are mixed one after the other into one key; an element's bits are then
 * random_bits(key, row, column), where column is its logical index in the last dimension and row that in all others,
 * flattened with global sizes and modulo 2^32. The batch comes first in the row wherever it stands in the shape, so
 * that the size of a micro-batch does not show in it. So bits depend on logical positions alone: every plan draws the
 * same. */
#ifndef PLAN_RANDOM_H
#define PLAN_RANDOM_H

#include "ir/op.h"

static const uint32_t RANDOM_MIX = 0x9e3779b9u;    /* the row of a mixing step; the column is the operand's number */
static const uint32_t RANDOM_SECOND = 0x85ebca6bu; /* xor'ed to the key for the second uniform of a normal */

static inline uint32_t random_mix(uint32_t key, uint32_t value, int operand) {
    return random_bits(key ^ value, RANDOM_MIX, (uint32_t)operand);
}

/* In [0, 1), from the top 24 bits. */
static inline double random_unit(uint32_t bits) { return (double)(bits >> 8) / 16777216.0; }

#endif
