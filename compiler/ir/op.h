/* One operator = one line of ops.def + one OpInfo in ir/ops/<family>.c. Everything else iterates over the table:
 * the language's builtins, `plc ops`, the docs, shape inference, sharding, cost, gradients, lowering, the tests.
 *
 * Three sorts of operators:
 *   primitive   has eval, grad (or OP_NO_GRAD) and a lowering;
 *   composite   has `expand`, which rewrites it into primitives before gradients are taken (so it needs neither a
 *               gradient nor a lowering of its own), and an eval that the expansion is tested against;
 *   structural  input, param, repeat, result: handled by the passes.
 *
 * The dimension string is the operator's iteration space, operands separated by commas, then "->" and the results:
 *   ...   every further dimension, matched by name; an operand may lack some (it is broadcast)
 *   o     the dimensions of the attribute `over`; any other word of letters names the attribute that holds them
 *   o+ o^ o_   reduced by sum, max, min: the result on a sharded o is partial
 *   o!    whole on every rank
 *   o@    indexed by data: a sharded o gives partial(sum), each rank contributing what it holds
 *   ~     before an operand: jointly linear (partial operands together give a partial result: add, neg, cast)
 *   *     before an operand: linear in this one while the others are whole (mul, dot, div's first)
 * A variadic operator's last operand stands for all that follow. Results are matched to dimensions as a set; their
 * order is that of the operand that holds them all, else of the operands one after the other (only where a letter is
 * reduced or indexed: elsewhere the operands' dimensions must be equal, or one operand's must contain the others'). Of
 * several results, one that lacks a parallel dimension is a sum over it (partial where it is cut). Examples: add "~...,
 * ~... -> ...", mul "*..., *... -> ...", exp "... -> ...", sum "~... o+ -> ...", max_over "... o^ -> ...", dot "*...
 * o+, *... o+ -> ...", lookup "*o@ ..., ... -> ... ..." */
#ifndef PLAN_OP_H
#define PLAN_OP_H

#include "ir/ir.h"
#include "ir/loop.h"

typedef enum AttrKind {
    ATTR_NONE,
    ATTR_INT,
    ATTR_FLOAT,
    ATTR_BOOL,
    ATTR_NAME,
    ATTR_DTYPE,
    ATTR_DIM,
    ATTR_DIMS,
    ATTR_LIST
} AttrKind;

typedef struct AttrInfo {
    const char *name;
    AttrKind kind;
    double standard; /* default in the language; NAN: must be given */
} AttrInfo;

typedef enum LowerKind {
    LOWER_NONE,       /* structural */
    LOWER_EXPAND,     /* composite */
    LOWER_MAP,        /* one element from one element: `emit` */
    LOWER_REDUCE,     /* row reduction */
    LOWER_VIEW,       /* same bytes, other strides */
    LOWER_PRODUCT,    /* dot */
    LOWER_ATTEND,     /* attention kernels */
    LOWER_GATHER,     /* lookup: a loop with an indexed load */
    LOWER_SCATTER,    /* lookup_grad: rows added at indexed places, in order */
    LOWER_TOP_K,      /* the route of tokens to experts */
    LOWER_TO_SLOTS,   /* a loop that gathers tokens' rows into experts' slots */
    LOWER_FROM_SLOTS, /* and back */
    LOWER_COLLECTIVE, /* communication */
    LOWER_CACHE,      /* writes at the position that is sampled */
} LowerKind;

typedef struct Array Array;
typedef struct EvalContext EvalContext;
typedef struct OpCase OpCase;

/* dtype, shape (and outs) of `node`, whose op, inputs and attributes are set. False after a diagnostic at node->span.
 */
typedef bool OpInfer(Graph *graph, Node *node);
/* Adds the nodes of the gradient: given d(loss)/d(result k) in grad_out[k] (NULL: zero), fill grad_in[i] for each
 * input that has one (leave NULL otherwise). */
typedef void OpGrad(Builder *b, Node *node, Node *const *grad_out, Node **grad_in);
/* The node in terms of simpler operators; `in` are the (already rewritten) inputs. */
typedef Node *OpExpand(Builder *b, const Node *node, Node *const *in);
/* The same for a composite with several results: fills results[0 .. n_results). */
typedef void OpExpandResults(Builder *b, const Node *node, Node *const *in, Node **results);
/* Naive reference on one rank, in double precision. `out` arrays are allocated. */
typedef void OpEval(EvalContext *context, const Node *node, const Array *const *in, Array *const *out);
/* One element of LOWER_MAP, in terms of loop instructions. `in` holds the operands' elements, then (from in[n_in] on)
 * the logical index of the result along each of its dimensions: offsets of rank and micro-batch are included (what
 * ramp, vector and the random operators read; -1 is allowed where the operator does not set `reads_index`). */
typedef LoopValue OpEmit(LoopBuilder *loop, const Node *node, const LoopValue *in);

typedef struct OpInfo {
    Op op;
    const char *name, *doc; /* doc: one line, a formula where there is one */
    const char *family;     /* file name in ir/ops, for the docs */
    const char *in[6];      /* operand names, NULL-ended */
    const char *variadic;   /* name of a last operand that may be repeated, or NULL */
    AttrInfo attrs[6];
    const char *dims;
    bool language;  /* callable from .plan text under its name */
    bool cheap;     /* elementwise and cloned into the backward pass instead of being saved */
    int n_results;  /* 0: one result; otherwise a tuple of that many */
    OpInfer *infer; /* NULL: from `dims` */
    OpGrad *grad;   /* NULL: expand has it, or OP_NO_GRAD */
    bool no_grad;   /* explicitly without a gradient */
    OpExpand *expand;
    OpExpandResults *expand_results; /* instead of expand, with n_results > 0 */
    LowerKind lower;
    OpEmit *emit;     /* LOWER_MAP */
    bool reads_index; /* emit reads logical indices */
    OpEval *eval;
    double flops;        /* per point of the iteration space; 0: 1 */
    const OpCase *cases; /* ends with a zeroed one; see tests/ops */
} OpInfo;

extern const OpInfo *const op_table[OP_COUNT];
static inline const OpInfo *op_info(const Node *node) { return op_table[node->op]; }
#define OP(name, NAME) extern const OpInfo op_info_##name;
#include "ir/ops.def"
#undef OP
int op_n_attrs(const OpInfo *info);
int op_attr_index(const OpInfo *info, const char *name); /* BUG when absent */
const AttrValue *node_attr(const Node *node, const char *name);
Op op_find(const char *name); /* OP_COUNT when unknown */

/* A test case: a graph in text form whose inputs are filled from `fill`, tried for shape, gradient, lowering and
 * sharding. */
struct OpCase {
    const char *what;  /* "odd sizes" */
    const char *graph; /* text of graph_parse */
    double low, high;  /* range of random float inputs; integers are drawn below the size named by their use */
    double tolerance;  /* 0: the standard one */
};

/* ---- the iteration space of a node, from its dimension string -------------------------------------------------- */

typedef enum LetterKind {
    LETTER_PARALLEL,
    LETTER_SUM,
    LETTER_MAX,
    LETTER_MIN,
    LETTER_WHOLE,
    LETTER_INDEXED
} LetterKind;

typedef struct Letter {
    Dim *dim;
    LetterKind kind;
} Letter;

typedef struct Iteration {
    Letter letters[2 * MAX_RANK];
    int n;
    uint32_t joint, single; /* operands marked ~ and *, a bit each */
} Iteration;

Iteration op_iteration(const Node *node);
/* The default inference: checks the letters, sets shape (and outs); every result has the dtype of operand 0. */
/* Whether operand 0 is read at places of its own, given by data, and the operator is part of a loop. */
static inline bool lower_is_gather(LowerKind lower) {
    return lower == LOWER_GATHER || lower == LOWER_TO_SLOTS || lower == LOWER_FROM_SLOTS;
}
bool op_infer_shapes(Graph *graph, Node *node);
/* Where the dimension `in` of a view's operand is in its result (NULL: nowhere as a cut one): views keep their
 * operand's type under the new name. */
Dim *view_result_dim(const Node *view, Dim *in);
/* Whether the operator accepts its inputs' types on this mesh axis for the type that the node has. */
bool op_types_fit(const Node *node, int axis);
double op_flops(const Node *node);                                  /* global */
double op_flops_over(const Node *node, const Iteration *iteration); /* of no repeat */
double op_bytes(const Node *node);                                  /* read and written, global, without fusion */

/* Which dimensions of an attend or attend_grad node play which part (ir/ops/attend.c). `batch`: all others. */
typedef struct AttendParts {
    Dim *seq, *key, *head, *kv_head, *width; /* seq: NULL in attention without query positions */
    Shape batch;
    double scale; /* 1 / sqrt(width) already put in for 0 */
    bool causal;
} AttendParts;
AttendParts attend_parts(const Node *node);
/* The second name of `width` under which rotate sees it as (side, pair); made in the graph where there is none yet. */
Dim *rotate_pairs(Graph *graph, Dim *width);

/* ---- the evaluator (ir/eval.c): the oracle ----------------------------------------------------------------------- */

/* A tensor of one rank, everything as double, row-major over the node's local extents. */
struct Array {
    DType dtype;
    Shape shape;
    int64_t extent[MAX_RANK];
    int64_t n; /* elements */
    double *at;
};

/* Holds the value of every Tensor on every simulated rank between runs of graphs. */
typedef struct Machine Machine;

struct EvalContext {
    Arena *arena;
    const Mesh *mesh; /* NULL: one rank */
    int64_t rank;
    int64_t layer; /* index of the innermost repeat */
    int64_t micro;
    uint32_t seed;
    int64_t step;
    int64_t position; /* the scalar `position`, while sampling; graphs read it as an input, ramps do not include it */
    Machine *machine;
};

Machine *machine_new(Session *session, const Mesh *mesh);
/* Sets (or reads) a tensor by its global contents, scattering to ranks by the tensor's types. */
void machine_set(Machine *machine, const Tensor *tensor, const double *global);
void machine_get(Machine *machine, const Tensor *tensor, double *global);
Array *machine_array(Machine *machine, const Tensor *tensor, int64_t rank);
/* Runs a graph on all ranks, in lockstep; collectives exchange between them. micro, step, seed as given. */
void machine_run(Machine *machine, const Graph *graph, int64_t micro, int64_t step, uint32_t seed);

/* The value of a node on another rank: what collectives read. The machine runs all ranks node by node. */
const Array *eval_peer(const EvalContext *context, const Node *node, int64_t rank);
/* Row-major iteration over an array: `index` starts zeroed; false after the last element. */
bool array_next(const Array *array, int64_t *index);
/* The element of `array` at the place where `other` has `index`: dimensions are matched by identity, those that `other`
 * lacks stand at 0. */
double array_at(const Array *array, const Array *other, const int64_t *index);
int64_t array_offset(const Array *array, const Array *other, const int64_t *index);

/* Logical start of `dim` in a value of this node on the context's rank, micro-batch included. */
int64_t eval_offset(const EvalContext *context, const Node *node, const Dim *dim);

#endif
