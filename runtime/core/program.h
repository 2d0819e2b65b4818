/* The program description (docs/program.md) as structures. Parsed once, before the ranks are forked; read-only then.
 * All pointers live as long as the PrtProgram. */
#ifndef PRT_PROGRAM_H
#define PRT_PROGRAM_H

#include "core/rank.h"

#define PRT_MAX_DIMS 8

typedef enum PrtDType {
    PRT_F32,
    PRT_F64,
    PRT_BF16,
    PRT_F16,
    PRT_I32,
    PRT_U32,
    PRT_BOOL,
    PRT_U8,
    PRT_I64,
    PRT_EXACT, /* a sum in two doubles: PRT_DTYPE_EXACT; in no file */
    PRT_DTYPES
} PrtDType;
extern const char *const prt_dtype_name[PRT_DTYPES];        /* "f32" */
extern const char *const prt_dtype_safetensors[PRT_DTYPES]; /* "F32" */
int64_t prt_dtype_bytes(PrtDType dtype);

typedef struct PrtAxis {
    const char *name;
    int size;
} PrtAxis;

typedef struct PrtDataset {
    enum { PRT_DATA_TEXT, PRT_DATA_TOKENS, PRT_DATA_ARRAYS } kind;
    int n_paths;
    const char **paths; /* text and tokens: globs; arrays: one file a column */
    const char **columns;
    const char *span; /* "train.plan:31", or "" */
} PrtDataset;

typedef enum PrtInputKind { PRT_INPUT_TOKENS, PRT_INPUT_NEXT, PRT_INPUT_MASK, PRT_INPUT_COLUMN } PrtInputKind;

typedef struct PrtInput {
    const char *name;
    PrtInputKind kind;
    PrtDType dtype;
    int n_dims;
    int64_t shape[PRT_MAX_DIMS]; /* of one rank and micro-batch */
    int64_t row;                 /* elements of one sequence: the product of shape[1..] */
    int64_t sets;                /* data sets that a rank reads, one block of `shape` for each, in order; 1 as a rule */
    int n_set_axes, set_axes[PRT_MAX_AXES]; /* the mesh axes that divide the data sets, outermost first */
    int64_t offset, slots, slot_bytes, decode_offset;
    int64_t limit;      /* ids must be below; 0: any */
    const char *column; /* PRT_INPUT_COLUMN */
} PrtInput;

typedef struct PrtScalar {
    const char *name;
    PrtDType dtype;
    int64_t offset;
    int64_t elements;
} PrtScalar;

typedef struct PrtTensor {
    const char *name, *kind; /* kind: "weight", ... */
    PrtDType dtype;
    int n_dims;
    int64_t shape[PRT_MAX_DIMS];   /* global */
    int64_t *uneven[PRT_MAX_DIMS]; /* sizes of the parts of a dimension with padding behind each of them, or NULL */
    int n_uneven[PRT_MAX_DIMS];
    int64_t padding[PRT_MAX_DIMS];  /* of `shape`: what stands behind the end, zero and in no checkpoint */
    int axes[PRT_MAX_AXES];         /* for each mesh axis the dimension that it cuts, or -1 */
    bool balanced[PRT_MAX_AXES];    /* of those that cut: two pieces a rank, one from either end */
    int flat_axis;                  /* the axis that holds equal parts of the block's elements, or -1 */
    int64_t flat_blocks, flat_part; /* layers of a stack, each cut apart; elements of a part, the last ones padded */
    int64_t part_first, part_count; /* of the first dimension: what the role holds; part_count 0: all */
    int64_t offset, bytes;          /* of this rank's block */
    bool saved;
    bool copied; /* of what another role has: loaded, but not saved */
} PrtTensor;

typedef struct PrtActionRow {
    const char *kind;
    int entry; /* index in plan_entries, or -1: nothing to do */
    int chunk, micro;
} PrtActionRow;

typedef struct PrtRole {
    int64_t arena_bytes, scratch_bytes;
    int n_memory;
    struct {
        const char *kind;
        int64_t bytes;
    } memory[16];
    int n_tensors;
    PrtTensor *tensors;
    int n_actions;
    PrtActionRow *actions;
    int init, begin, eval, decode;      /* entries, or -1. begin: only when no action runs it */
    int n_inputs, n_scalars, n_results; /* where they lie in this role's arena */
    PrtInput *inputs;
    PrtScalar *scalars, *results;
    bool own_lists; /* else they are the program's */
} PrtRole;

typedef struct PrtRate {
    enum { PRT_RATE_CONSTANT, PRT_RATE_LINEAR, PRT_RATE_COSINE } kind;
    double peak, end;
    int64_t warmup, steps;
} PrtRate;

struct PrtProgram {
    const char *text; /* the JSON itself */
    PrtAction *const *entries;
    const char *compiler, *source, *plan, *model, *hash;
    int n_axes, n_ranks;
    PrtAxis mesh[PRT_MAX_AXES];
    int *machine; /* of each rank, where the plan's cluster has several; NULL: one */
    int threads;  /* of a rank; 0: its share of the cores */
    int64_t seed, steps, batch, micro_batch, micros, parameters, tokens_per_step;
    double flops_per_token;
    int n_data_axes, data_axes[PRT_MAX_AXES], data_ranks; /* data_ranks: the product of their sizes */
    int n_data, n_validation;
    PrtDataset *data, *validation;
    double split;
    int64_t vocab, seq, decode_length;
    int n_inputs, n_scalars, n_results;
    PrtInput *inputs;
    PrtScalar *scalars, *results;
    const char *optimizer;
    PrtRate rate;
    int64_t eval_every, eval_batches;
    int64_t save_every, save_keep;
    const char *save_path; /* NULL: the program does not save */
    const char *from;      /* NULL, or weights to start from */
    int n_roles;
    PrtRole *roles;
    int role_axis;  /* a rank's coordinate on it is its role; -1: one role */
    int n_channels; /* of prt_handover */
};

/* NULL with a reason in `why` when the text is no program description of this version. */
PrtProgram *prt_program_parse(const char *json, PrtAction *const *entries, char *why, size_t size);
void prt_program_free(PrtProgram *program);
/* By name; NULL: not there. */
const PrtScalar *prt_program_result(const PrtProgram *program, const char *name);
/* Whether the tensor is state of fp16's loss scale: three scalars that other programs do not have. */
bool prt_is_loss_scale(const char *tensor);
const PrtScalar *prt_role_scalar(const PrtRole *role, const char *name);
const PrtScalar *prt_role_result(const PrtRole *role, const char *name);
/* The role of rank `number`. */
int prt_program_role(const PrtProgram *program, int number);
/* The data is a stream of ids, cut in sequences; else it has samples. */
bool prt_program_has_tokens(const PrtProgram *program);
/* Rate of learning at `step`, from 1. */
double prt_rate_at(const PrtRate *rate, int64_t step);
/* Coordinates of rank `number`. */
void prt_program_coords(const PrtProgram *program, int number, int *coords);
/* Which of the data_ranks blocks of a micro-batch a rank with these coordinates holds. */
int prt_program_data_block(const PrtProgram *program, const int *coords);
/* The first of the data sets that such a rank reads for an input. */
int prt_input_first_set(const PrtProgram *program, const PrtInput *input, const int *coords);

#endif
