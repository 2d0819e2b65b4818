/* Checkpoints: folders PATH/step-00001000 with
 *   model.safetensors      the weights, whole tensors under their logical names and global shapes
 *   optimizer.safetensors  the moments, likewise
 *   state.json             step, position in the data, seed, what program wrote it
 *   COMPLETE               written last: sizes and checksums (XXH64, in chunks) of the other files
 * They are written under a temporary name, synced, and renamed, so that a folder is there complete or not at all. All
 * ranks write: each the blocks of which it holds the first copy, at their place in the file. Reading is the same in
 * reverse, so a checkpoint fits any number of ranks. */
#ifndef PRT_CHECKPOINT_H
#define PRT_CHECKPOINT_H

#include "core/program.h"

#define PRT_PATH 4096

typedef struct PrtState {
    int64_t step;    /* done */
    int64_t samples; /* taken from the training data's order */
    int64_t seed;
    int64_t batch;
    uint64_t run;     /* the same for all checkpoints of a run and of those resumed from it */
    int64_t saved_at; /* nanoseconds since 1970 */
    char hash[80], plan[80], source[256];
} PrtState;

/* Saves PATH/step-NNNNNNNN from all ranks and drops the run's oldest beyond `keep` (0: none). Ends the run when it
 * cannot, leaving the earlier ones as they were. */
void prt_checkpoint_save(PrtRank *rank, const char *path, const PrtState *state, int64_t keep);
/* Loads the rank's blocks; with `moments` all that the program saves, else the weights. `from` is a checkpoint, or a
 * .safetensors file (weights only). Ends the run when something is missing, damaged or of another shape. */
void prt_checkpoint_load(PrtRank *rank, const char *from, bool moments);

/* `from`: a checkpoint, or a folder of which the newest complete one is taken. Its path and state, or false with a
 * reason. */
bool prt_checkpoint_find(const char *from, char *path, PrtState *state, char *why, size_t size);
/* Complete checkpoints in a folder, and the newest one's state. */
int prt_checkpoint_count(const char *path, PrtState *newest);
/* Makes the folder and takes its lock, for as long as `*lock` stays open. */
bool prt_checkpoint_claim(const char *path, int *lock, char *why, size_t size);
/* Bytes of one checkpoint of this program. */
int64_t prt_checkpoint_bytes(const PrtProgram *program);

#endif
