/* From the graphs of a role to kernels with addresses.
 *
 * schedule_to_kernels.c chooses what is one kernel (fusion) and the order; kernels_to_memory.c gives every buffer an
 * address in the rank's arena. A role's program is a list of entries; an entry is a list of statements; a statement is
 * a kernel or a repeat with a list of its own. */
#ifndef PLAN_KERNELS_H
#define PLAN_KERNELS_H

#include "ir/loop.h"
#include "ir/op.h"
#include "ir/product.h"
#include "schedule/schedule.h"

typedef enum MemoryKind {
    MEM_WEIGHT,
    MEM_GRADIENT,
    MEM_MOMENT,
    MEM_ACTIVATION,
    MEM_TEMPORARY,
    MEM_DATA,
    MEM_SCALAR,
    MEM_CACHE,
    MEM_SCRATCH,
    MEM_KINDS
} MemoryKind;
extern const char *const memory_kind_name[MEM_KINDS];

typedef struct Kernel Kernel;

typedef struct Buffer {
    int id;
    Name name;
    MemoryKind kind;
    DType dtype;
    int64_t bytes;  /* of one flight */
    int flights;    /* copies, one for each micro-batch between its forward and its backward pass; 1: shared */
    Tensor *tensor; /* persistent storage, or NULL */
    Span span;      /* the source line that made it */
    /* Lifetime in positions of the role's timeline, both ends included; persistent buffers live always. */
    bool persistent;
    int first, last; /* last < first: never used */
    Kernel *home;    /* the repeat whose body makes it anew for each layer, or NULL */
    int64_t address; /* bytes from the arena's start; a multiple of 64 */
} Buffer;

/* Bytes from the arena's start:
 *     buffer.address + (micro mod flights) * bytes + offset + ((scale * i + shift) mod modulus) * step
 * with i the index of the repeat that is `depth` repeats deep (1: the outermost one). modulus 0: no reduction. What is
 * sliced by several repeats has a step more for each further one. */
enum { MAX_OUTER_STEPS = 3 };
typedef struct RefStep {
    int64_t step, scale, shift, modulus;
    int depth;
} RefStep;

typedef struct BufferRef {
    Buffer *buffer;
    int64_t offset, step;
    int64_t scale, shift, modulus;
    int depth;
    int n_outer;
    RefStep outer[MAX_OUTER_STEPS];
} BufferRef;

enum { MAX_REPEATS = 16 }; /* inside each other */

typedef enum KernelKind {
    KERNEL_LOOP,
    KERNEL_PRODUCT,
    KERNEL_ATTEND,
    KERNEL_ATTEND_GRAD,
    KERNEL_SCATTER,
    KERNEL_EXACT,
    KERNEL_TOP_K,
    KERNEL_COLLECTIVE,
    KERNEL_FINISH,
    KERNEL_TRANSFER,
    KERNEL_REPEAT
} KernelKind;

typedef VEC(Kernel *) KernelList;

typedef struct Collective {
    Op op; /* OP_ALL_REDUCE ... */
    int axis;
    ReduceKind reduce;
    bool by_tree; /* of reproducible mode: ranks are joined in balanced pairs */
    DType dtype;
    int64_t elements; /* of the whole, over the axis */
    /* gather, scatter and exchange move blocks: `outer` blocks of `inner` elements for each rank of the axis */
    int64_t outer, inner;
    bool balanced;     /* the whole is 2n pieces, a rank's block the pieces j and 2n-1-j, one after the other */
    const char *why;   /* "x is partial(sum), its use needs replicated" */
    const char *where; /* "train.plan:41: all_reduce over data" */
} Collective;

/* From one stage of a pipeline to another, between ranks that differ on one axis alone. A send is posted and goes on; a
 * channel holds as many messages as the value that is sent has copies, and a copy may be overwritten after a wait. */
typedef enum HandoverKind { HANDOVER_SEND, HANDOVER_RECV, HANDOVER_WAIT } HandoverKind;

typedef struct Handover {
    HandoverKind kind;
    int axis, peer; /* the other's coordinate on the axis */
    int channel;
    int depth; /* a wait ends, and a send goes on, when fewer messages than this are not yet taken */
    int64_t bytes;
    Name value;        /* what is handed over, as the user knows it, or NULL */
    const char *where; /* "train.plan:41: send to stage 1" */
} Handover;

/* The rounds of the enclosing repeat in which a kernel runs: what is begun for the next layer has no next in the last
 * round, what ends that of the layer before has none in the first. */
typedef enum Rounds { ROUNDS_ALL, ROUNDS_BUT_FIRST, ROUNDS_BUT_LAST } Rounds;

struct Kernel {
    KernelKind kind;
    Name name;
    Span span;
    Rounds rounds;
    int64_t micro;   /* runs for this micro-batch alone, counted from 1; 0: for each */
    BufferRef *refs; /* in the order of the kernel's pointers; products: A, B, C, then the epilogue's */
    int n_refs;
    Loop *loop;             /* KERNEL_LOOP; a product's epilogue */
    Product *product;       /* KERNEL_PRODUCT */
    Buffer *start;          /* attention while sampling: a scalar, the query's logical position; or NULL */
    Attend *attend;         /* KERNEL_ATTEND: q k v out lse; KERNEL_ATTEND_GRAD: q k v out lse d_out dq dk dv */
    Scatter *scatter;       /* KERNEL_SCATTER: out, index, rows */
    Exact *exact;           /* KERNEL_EXACT: out, in, in2 */
    int64_t leaf;           /* of reproducible products and gradients of attention: points summed in order; 0: else */
    bool makes_exact;       /* of such a product: C is exact */
    TopK *top_k;            /* KERNEL_TOP_K: p, chosen, slot, source */
    Collective *collective; /* KERNEL_COLLECTIVE: in, out */
    bool begins;            /* a collective that others are joined with: see overlap.c */
    int axis;               /* KERNEL_FINISH: ends all that was started on it */
    Handover *handover;     /* KERNEL_TRANSFER: what is sent or received; a wait has none */
    /* KERNEL_REPEAT */
    Dim *dim;
    int64_t count;
    bool descending;
    Buffer *index;       /* i32: the layer index, written before each round */
    int64_t index_first; /* that of the part's first layer */
    KernelList body;
    VEC(Buffer *) through; /* buffers of outside that the body uses: they live as long as the repeat */
    int first, last;       /* positions in the timeline */
};

/* One entry point of the program: an action kind of the schedule, or init, eval, decode. */
typedef struct Entry {
    Name name; /* "init", "begin", "count", "F", "B", "update", "eval", "decode" */
    KernelList body;
    int first, last;
    int64_t peak; /* bytes live at most, with the persistent ones */
} Entry;

typedef struct RoleProgram {
    Arena *arena;
    Session *session;
    const Mesh *mesh;
    int role;
    VEC(Buffer *) buffers;
    VEC(Entry) entries;
    int64_t arena_bytes;        /* what the rank allocates */
    int64_t live_peak;          /* the largest sum of live bytes: a lower bound of arena_bytes */
    int64_t by_kind[MEM_KINDS]; /* at the peak */
    int64_t scratch_bytes;      /* packing panels of products, for each worker thread */
} RoleProgram;

void kernels_print(const RoleProgram *program, Text *out);
void memory_print(const RoleProgram *program, Text *out);
bool memory_verify(const RoleProgram *program, Text *why); /* no two live buffers overlap */

/* The role's graphs, fused and ordered; buffers without addresses. The graphs are partitioned for `mesh`. */
struct Step;
RoleProgram *schedule_to_kernels(const struct Step *step, const Mesh *mesh, const Schedule *schedule, int role);
void kernels_to_memory(RoleProgram *program);

/* Which of its refs a kernel writes. */
bool kernel_writes(const Kernel *kernel, int ref);
/* How often the kernel runs where its list runs `times` times, in repeats of `rounds` and `micros` micro-batches. */
double kernel_runs(const Kernel *kernel, double times, int64_t rounds, int64_t micros);
/* Splits collectives into start and finish, so that they run beside the computation (overlap.c). */
void kernels_overlap(RoleProgram *program, const Schedule *schedule, int stage_axis);
/* No kernel touches what a started collective writes, or writes what it reads, before it is finished. */
bool overlap_verify(const RoleProgram *program, Text *why);

#endif
