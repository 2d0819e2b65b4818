/* Groups of dimensions as one operand sees them, and packing them into panels: for product.c.
 *
 * A point of a group is its flattened index, the last dimension fastest. In one operand most groups are a single stride
 * once neighbours are merged; where they are not, a range of points falls into runs along the last dimension. */
#ifndef PRT_STRIDED_H
#define PRT_STRIDED_H

#include "cpu/narrow.h"
#include "cpu/threads.h"

typedef struct Strided {
    int n; /* after merging; at least 1 */
    int64_t extent[4], stride[4];
} Strided;

typedef enum Operand { OPERAND_A, OPERAND_B, OPERAND_C } Operand;

Strided strided_of(const PrtProductDim *dims, int n, Operand operand);
int64_t strided_offset(const Strided *s, int64_t point);

static inline int64_t strided_last(const Strided *s) { return s->stride[s->n - 1]; }
/* Points from `point` on that lie one stride apart. */
static inline int64_t strided_run(const Strided *s, int64_t point) {
    int64_t extent = s->extent[s->n - 1];
    return s->n == 1 ? extent - point : extent - point % extent;
}

/* An operand of two groups: lanes (rows of A, columns of B) and depth (k), packed by `pack` where lanes form one run.
 */
typedef struct PackSource {
    Strided lane, depth;
    PrtPackFunction *pack;
    int64_t panel; /* width of a packed panel */
    int64_t lanes; /* of one panel: tile_m, tile_n */
    PrtPack kind;
    int element; /* type of the operand in memory */
} PackSource;

PackSource pack_source(Strided lane, Strided depth, PrtPackFunction *const pack[3], int64_t panel, int64_t lanes,
                       int element);
/* Packs lanes [lane, lane + n_lanes) by depth [k, k + n_k) of the operand at `base`, panel after panel, each n_k *
 * panel floats. `lane` is a multiple of source->lanes. */
void pack_block(const PackSource *source, const void *base, int64_t lane, int64_t n_lanes, int64_t k, int64_t n_k,
                float *out);

#endif
