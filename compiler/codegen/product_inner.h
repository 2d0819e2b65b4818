/* The generated inner kernels: product_inner.c (tile, packing, the constant) and row_inner.c (rows of attention). */
#ifndef PLAN_PRODUCT_INNER_H
#define PLAN_PRODUCT_INNER_H

#include "codegen/llvm_util.h"

/* x * y + z for products: fused where the target can; else rounded twice (cg_fma's exact substitute would be slow). */
V inner_fma(Codegen *g, V x, V y, V z);

/* The row functions of PrtInner, in the order of its fields. */
enum { INNER_ROWS = 5 };
void emit_row_kernels(Codegen *g, V functions[INNER_ROWS]);

#endif
