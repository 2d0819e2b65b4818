/* The data of a run: which samples there are, their order, and filling a rank's inputs with them.
 *
 * Text and token files form one stream; a sample is a window of seq + 1 ids, windows stand seq ids apart. Arrays have a
 * sample in each row. The global order is a pure function of (seed, epoch, index), so the position in the data is one
 * number, the samples consumed, under any number of ranks. Files are read with pread, not mapped: a file that shrinks
 * is a message and not a bus error, and the process stays small. */
#ifndef PRT_DATA_H
#define PRT_DATA_H

#include "core/program.h"

#include <stdio.h>

typedef enum PrtSet { PRT_TRAINING, PRT_VALIDATION } PrtSet;
typedef struct PrtData PrtData;

/* Finds, opens and checks all files; NULL with a reason in `why`. `evaluates`: a validation set is needed. */
PrtData *prt_data_open(const PrtProgram *program, int64_t seed, bool evaluates, char *why, size_t size);
/* The program's k-th data set, where each position of a dimension has its own. Each has an order and epochs of its own;
 * the position in all of them is the same number. Set 0 is `data` itself. */
PrtData *prt_data_set(PrtData *data, int k);
void prt_data_free(PrtData *data);
/* What was read, in a few lines for people, with everything unusual. */
void prt_data_report(const PrtData *data, FILE *out);
int64_t prt_data_samples(const PrtData *data, PrtSet set); /* in one epoch; of several data sets the smallest */
/* The sample (window or row) that stands at `index` of the global order; index counts on through the epochs. */
int64_t prt_data_sample(const PrtData *data, PrtSet set, int64_t index);
/* Fills `input` at `to` with samples first, first + 1, ... of the order, one for each of its sequences. Checks every id
 * against the limit; ends the run (prt_fail) for a bad id or a file that cannot be read any more. */
void prt_data_fill(PrtRank *rank, PrtData *data, PrtSet set, const PrtInput *input, int64_t first, char *to);

/* A bijection of [0, n) chosen by the key: where `index` goes. */
int64_t prt_permute(int64_t index, int64_t n, uint64_t key);

#endif
