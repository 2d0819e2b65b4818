/* Inside checkpoint/: safetensors headers, blocks of tensors, checksums. */
#ifndef PRT_FORMAT_H
#define PRT_FORMAT_H

#include "checkpoint/checkpoint.h"

typedef struct PrtEntry { /* one tensor of a file */
    char *name;
    PrtDType dtype;
    int n_dims;
    int64_t shape[PRT_MAX_DIMS];
    int64_t begin, end; /* from the start of the file */
} PrtEntry;

typedef struct PrtTable {
    int n;
    PrtEntry *entries;
    int64_t header_bytes; /* with the length field */
    int64_t file_bytes;
} PrtTable;

/* Which file of a checkpoint holds a tensor; PRT_FILE_NONE: it is not saved. */
typedef enum PrtFileKind {
    PRT_FILE_MODEL,
    PRT_FILE_OPTIMIZER,
    PRT_FILE_KINDS,
    PRT_FILE_NONE = PRT_FILE_KINDS
} PrtFileKind;
extern const char *const prt_file_name[PRT_FILE_KINDS];
PrtFileKind prt_file_of(const PrtTensor *tensor);

/* The header of a file that holds all tensors of `kind`, and their places; NULL when out of memory. */
char *prt_table_write(const PrtRole *role, PrtFileKind kind, PrtTable *table);
/* The same for the tensors of all roles, each name once. */
char *prt_table_write_all(const PrtProgram *program, PrtFileKind kind, PrtTable *table);
/* Reads and checks a header; false with a reason that names the file. */
bool prt_table_read(const char *path, int fd, PrtTable *table, char *why, size_t size);
const PrtEntry *prt_table_find(const PrtTable *table, const char *name); /* NULL: not there */
void prt_table_free(PrtTable *table);

/* Calls `each` for every run of elements that is contiguous both in the rank's block and in the global tensor: `n`
 * elements at `local` of the one and `global` of the other. Stops when it returns false. */
typedef bool PrtRun1(void *context, int64_t local, int64_t global, int64_t n);
/* Of a dimension, what checkpoints hold: without padding. */
int64_t prt_saved_extent(const PrtTensor *tensor, int dim);
bool prt_block_runs(const PrtProgram *program, const PrtTensor *tensor, const int *coords, PrtRun1 *each,
                    void *context);
/* This rank holds the first copy of its block. */
bool prt_block_first(const PrtProgram *program, const PrtTensor *tensor, const int *coords);

uint64_t prt_xxh64(const void *data, size_t bytes, uint64_t seed);
/* Checksum of a part of a file; 0 or an errno (-1: the file ends early). */
int prt_xxh64_file(int fd, int64_t offset, int64_t bytes, uint64_t *sum);
/* Files are summed in chunks of this size: at most 4096 of them. */
int64_t prt_chunk_bytes(int64_t file_bytes);

#endif
