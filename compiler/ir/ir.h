/* The graph: SSA over tensors with named dimensions and global sizes.
 *
 * A Graph is a list of nodes in topological order. `repeat` stays rolled: it is one node with a Region. Shapes always
 * name *global* dimensions; what one rank holds follows from the node's type on each mesh axis, so partitioning adds
 * types and conversions but never rewrites a shape.
 *
 * Invariants (ir_verify): inputs precede their uses and stand in the same region (or are given through region
 * parameters); no shape has a dimension twice; every attribute of the operator is set; dtypes and shapes are what the
 * operator infers; with a mesh, the types of the inputs are among those that the operator accepts for its output type.
 */
#ifndef PLAN_IR_H
#define PLAN_IR_H

#include "base/base.h"

enum { MAX_RANK = 8, MAX_MESH = 8 };

/* EXACT: a sum whose bits do not depend on the order of its terms, in two doubles (docs/decisions/reproducible.md). */
typedef enum DType { DT_F32, DT_F64, DT_BF16, DT_F16, DT_I32, DT_U32, DT_BOOL, DT_EXACT, DT_COUNT } DType;
extern const char *const dtype_name[DT_COUNT]; /* "f32", ... */
int64_t dtype_bytes(DType dtype);              /* BOOL is 1 */
bool dtype_is_float(DType dtype);

/* ---- dimensions --------------------------------------------------------------------------------------------- */

/* Dimensions are compared by identity. */
typedef struct Dim Dim;
struct Dim {
    Name name; /* unique within the graph; a layer's own dimension is `mlp.hidden` */
    int64_t size;
    int64_t unpadded;     /* the model's size where a plan made it longer; 0: it did not */
    const int64_t *parts; /* of a dimension cut in unequal parts: their sizes; each has room for the largest */
    int n_parts;
    Dim *like;     /* a second name for the positions of another dimension, or NULL */
    Dim **factors; /* declared factors, the left one major; n_factors 0: none */
    int n_factors;
    Dim *product;     /* the dimension that this one is a factor of, or NULL */
    bool is_batch;    /* sized by `train`; in a micro-batch body its logical index starts at micro * size */
    bool at_position; /* while sampling: of size 1, its logical index is the scalar `position` */
    bool has_data;    /* each position has a data set of its own: the loader fills what a rank holds of it */
    bool is_repeated; /* a repeat runs over it: it stacks what each layer has of its own */
    bool is_flat;     /* rule 3's flat range of elements: */
    int stored_axis;  /* the axis that stores it in parts cuts it last, whatever its place in the mesh */
    Dim *nested;      /* of layers in groups: the repeat inside each, over a group's layers; or NULL */
    Dim *part_of;     /* a pipeline stage's layers: the whole of them, or NULL */
    int64_t first;    /* of such a part: its first one's logical index */
    int id;           /* index in Graph.dims */
    Span span;
};

typedef struct Shape {
    Dim *dims[MAX_RANK]; /* row-major: the last one is contiguous */
    int n;
} Shape;

int shape_find(const Shape *shape, const Dim *dim); /* index, or -1 */
bool shape_equal(const Shape *a, const Shape *b);   /* same dimensions in the same order */
bool shape_contains(const Shape *all, const Shape *part);
Shape shape_of(Dim *const *dims, int n);
void shape_add(Shape *shape, Dim *dim); /* at the end, unless it is there already */
Shape shape_without(const Shape *shape, const Shape *removed);
Shape shape_union(const Shape *a, const Shape *b); /* a's order, then what only b has */
int64_t shape_elements(const Shape *shape);        /* global */
int64_t dim_logical(const Dim *dim);               /* its size in the model, without padding */
/* The logical index of what stands at `place`: that of the model's dimension, or its size or more for padding. */
int64_t dim_index(const Dim *dim, int64_t place);
int64_t shape_logical_elements(const Shape *shape);
const char *shape_text(Arena *arena, const Shape *shape); /* "[batch, seq]" */

/* ---- types on mesh axes ------------------------------------------------------------------------------------- */

typedef enum AxisKind { AXIS_REPLICATED, AXIS_SHARDED, AXIS_PARTIAL, AXIS_AT } AxisKind;
typedef enum ReduceKind { REDUCE_SUM, REDUCE_MAX, REDUCE_MIN, REDUCE_OR } ReduceKind;
typedef enum ShardLayout { LAYOUT_BLOCK, LAYOUT_BALANCED, LAYOUT_TABLE, LAYOUT_FLAT } ShardLayout;

/* What a rank holds of a value, as seen along one mesh axis. A block layout gives rank r of n part r of n; a balanced
 * one gives it the parts r and 2n-1-r of 2n, one after the other, so that causal work is equal. */
typedef struct AxisType {
    AxisKind kind : 8;
    ReduceKind reduce : 8;  /* of AXIS_PARTIAL */
    ShardLayout layout : 8; /* of AXIS_SHARDED */
    int32_t turn;           /* of AXIS_SHARDED: each rank holds the part of the one that stands so many before it */
    union {
        Dim *dim;        /* of AXIS_SHARDED; NULL for LAYOUT_FLAT: the flat range of the elements */
        uint64_t stages; /* of AXIS_AT: a bit for each stage */
    };
} AxisType; /* small: every node has MAX_MESH of them */

bool axis_type_equal(AxisType a, AxisType b);
const char *axis_type_text(Arena *arena, AxisType type); /* "replicated", "sharded(head)", "partial(sum)" */

typedef struct MeshAxis {
    Name name;
    int64_t size;
    Span span;
} MeshAxis;

/* Outermost axis first; the rank number counts the last axis fastest. */
typedef struct Mesh {
    MeshAxis axes[MAX_MESH];
    int n;
} Mesh;
int64_t mesh_ranks(const Mesh *mesh);
int64_t mesh_coordinate(const Mesh *mesh, int64_t rank, int axis);

/* ---- nodes -------------------------------------------------------------------------------------------------- */

/* Every operator of ops.def, sorted by name. */
typedef enum Op {
#define OP(name, NAME) OP_##NAME,
#include "ir/ops.def"
#undef OP
    OP_COUNT
} Op;

typedef struct Node Node;
typedef struct Region Region;
typedef struct Graph Graph;
typedef VEC(Node *) NodeList;

typedef struct AttrValue {
    int64_t integer;
    double number;
    Name name;
    Shape dims;         /* one dimension or several */
    const double *list; /* `integer` numbers: the constants of OP_VECTOR */
} AttrValue;

typedef struct OutType {
    DType dtype;
    Shape shape;
    AxisType type[MAX_MESH];
} OutType;

/* What a stored tensor is for: decides its place in the memory report and in checkpoints. */
typedef enum TensorClass {
    CLASS_WEIGHT,   /* trained or frozen parameters */
    CLASS_MOMENT,   /* optimizer state */
    CLASS_GRADIENT, /* accumulators of a step */
    CLASS_DATA,     /* filled by the loader for each micro-batch */
    CLASS_SCALAR,   /* filled by the runtime: lr, step, seed, micro, targets (the count of targets in the step) ... */
    CLASS_RESULT,   /* read by the runtime: loss, grad_norm, logits */
    CLASS_CACHE,    /* keys and values while sampling */
    CLASS_STAGE,    /* handed from one pipeline stage to another */
    CLASS_COUNT
} TensorClass;
extern const char *const tensor_class_name[CLASS_COUNT];

enum { FLIGHTS_SAVED = -1, FLIGHTS_DEFERRED = -2 };

/* A tensor that outlives one action. `input` nodes read it, graph outputs write it. */
typedef struct Tensor {
    Name name; /* logical: "layers.attention.wq", "adam.m.layers.attention.wq", "tokens", "lr" */
    TensorClass class;
    DType dtype;
    Shape shape; /* a stacked weight has its repeat's dimension first */
    AxisType type[MAX_MESH];
    Shape logical; /* before rule 3 made the shape a flat range; n 0: it did not */
    AxisType logical_type[MAX_MESH];
    Name group; /* the parameter group's word it matches ("bias", "norm"), or NULL */
    bool frozen;
    bool is_gain;    /* one-dimensional: bias or norm weight */
    bool typed;      /* `type` has been decided */
    uint64_t blocks; /* of a weight: a bit for each block of the plan (`in layers 0..3 { ... }`) that holds for it */
    bool is_copy;    /* of a weight whose home is another stage: no state of its own, not saved */
    int flights;     /* of CLASS_STAGE: copies; FLIGHTS_SAVED: one for each micro-batch in flight, FLIGHTS_DEFERRED:
                       of which BW is still to come; 0: one */
    Span span;
    struct Tensor *of; /* the weight whose moment or gradient this is; the tokens that `next` shifts */
    int id;
} Tensor;

struct Node {
    Op op;
    int id;      /* dense within the graph, not an order */
    DType dtype; /* of a tuple operator: of result 0 */
    Shape shape;
    Node **in;
    int n_in;
    AttrValue *attrs; /* as OpInfo.attrs */
    Tensor *tensor;   /* OP_INPUT */
    Region *region;   /* OP_REPEAT */
    OutType *outs;    /* tuple operators (repeat, attend, ...): `n_outs` results, read through OP_RESULT nodes */
    int n_outs;
    AxisType type[MAX_MESH]; /* once graph->mesh is set */
    bool backward;           /* belongs to the backward half of a micro-batch body */
    bool deferred;           /* and no other stage waits for it: it may run later, in BW (graph/split_backward.c) */
    Name name;               /* the variable of the source, for messages; or NULL */
    Name path; /* the repeats and layer calls that it was written in: "layers.attention"; NULL at the top */
    Span span;
    void *mark; /* scratch of the pass that runs */
};

/* The body of a repeat. `nodes` holds everything but the parameters, which stand in `params` alone. Inputs of the
 * repeat node, in order: the initial value of each carry, each per-layer operand (its first dimension is the repeat's),
 * each capture. Parameters (OP_PARAM nodes) stand in the same order: the carry, the slice for this layer, the capture.
 * Results: the next value of each carry, then what is stacked. The repeat's results: the last carries, then the stacked
 * values with the repeat's dimension in front. */
struct Region {
    Region *parent; /* NULL: the graph itself */
    Node *owner;    /* the repeat node */
    NodeList nodes; /* topological */
    NodeList params;
    NodeList results;
    int n_carries, n_slices, n_captures, n_stacked;
    Dim *dim;        /* what is repeated over */
    bool descending; /* index runs from the last layer to the first */
    Node *index;     /* OP_LAYER_INDEX, or NULL when unused */
};

typedef struct Output {
    Tensor *tensor; /* where the value is written; accumulated when `accumulate` */
    Node *value;
    bool accumulate;
} Output;

struct Graph {
    Arena *arena;
    Session *session;
    Name name; /* "init", "prologue", "body", "update", "eval", "decode" */
    VEC(Dim *) dims;
    VEC(Tensor *) tensors; /* those used here; shared between the graphs of a step */
    Region top;
    VEC(Output) outputs;
    const Mesh *mesh;  /* NULL before partitioning */
    int n_nodes;       /* the next Node.id */
    bool micro;        /* runs once for each micro-batch */
    bool reproducible; /* no sum may depend on the plan: graph/reproducible.c has been here */
};

/* ---- building (ir/build.c) ----------------------------------------------------------------------------------- */

/* Builders append to `b->region`, infer dtype and shape through the operator's table entry, and fold nothing. A shape
 * error of the user's is reported as a diagnostic at b->span and gives a poison node (OP_POISON), which silences what
 * follows. */
typedef struct Builder {
    Graph *graph;
    Region *region;
    Span span;
    Name name, path; /* of the nodes that are built, as in Node */
    bool backward, deferred;
} Builder;

Graph *graph_new(Session *session, Arena *arena, const char *name);
Dim *graph_add_dim(Graph *graph, Name name, int64_t size, Span span);
Dim *graph_find_dim(const Graph *graph, Name name);       /* NULL when there is none */
Tensor *graph_find_tensor(const Graph *graph, Name name); /* NULL when there is none */
/* Declares that the positions of `dim` are pairs (triples, ...) of positions of the factors, the left one major. */
void dim_set_factors(Arena *arena, Dim *dim, Dim *const *factors, int n);
Tensor *graph_add_tensor(Graph *graph, Name name, TensorClass class, DType dtype, Shape shape, Span span);
void graph_add_output(Graph *graph, Tensor *tensor, Node *value, bool accumulate);

/* The general form; `attrs` has one value for each of the operator's attributes (may be NULL when it has none). */
Node *build_op(Builder *b, Op op, Node *const *in, int n_in, const AttrValue *attrs);
Node *build_result(Builder *b, Node *tuple, int index);
Node *build_input(Builder *b, Tensor *tensor);
Node *build_const(Builder *b, DType dtype, double value);
Node *build_unary(Builder *b, Op op, Node *x);
Node *build_binary(Builder *b, Op op, Node *x, Node *y);
Node *build_scale(Builder *b, Node *x, double factor);
Node *build_select(Builder *b, Node *condition, Node *x, Node *y);
Node *build_reduce(Builder *b, Op op, Node *x, const Shape *over); /* OP_SUM, OP_MAX_OVER */
Node *build_dot(Builder *b, Node *x, Node *y, const Shape *over);
Node *build_ramp(Builder *b, Dim *dim); /* logical index, i32 */
Node *build_rename(Builder *b, Node *x, Dim *from, Dim *to);
Node *build_cast(Builder *b, Node *x, DType dtype);
Node *build_broadcast(Builder *b, Node *x, const Shape *shape); /* to `shape`, which contains x's */
/* x in exactly this shape: summed over the dimensions that the shape lacks, then broadcast or transposed to it. What a
 * gradient rule returns for an operand that was broadcast. */
Node *build_fit(Builder *b, Node *x, const Shape *shape);
Node *build_layer_index(Builder *b); /* of the region that is open, made once */
Node *build_vector(Builder *b, const double *values, Dim *dim, DType dtype);

/* Opens a region for a repeat over `dim`; then add params, build into it, set results, and close. */
Region *region_open(Builder *b, Dim *dim, bool descending);
Node *region_add_param(Builder *b, Region *region, DType dtype, Shape shape); /* order: carries, slices, captures */
/* Appends the repeat node to the parent region. `inputs` in parameter order, `results` as Region says. */
Node *region_close(Builder *b, Region *region, Node *const *inputs, int n_carries, int n_slices, int n_captures,
                   Node *const *results, int n_stacked);

/* ---- printing, parsing, checking, evaluating ------------------------------------------------------------------ */

extern const char *const reduce_name[4];            /* "sum", ... */
extern const char *const layout_name[4];            /* "block", ... */
void graph_print(const Graph *graph, Text *out);    /* print -> parse -> print is identical */
Graph *graph_parse(Session *session, int32_t file); /* NULL after diagnostics */
bool graph_verify(const Graph *graph, Text *why);   /* false: `why` says what is wrong */

/* The action of a micro-batch that a node runs in. What one makes and a later one reads is kept for each micro-batch
 * in between. */
typedef enum Phase { PHASE_F, PHASE_B, PHASE_W, PHASE_COUNT } Phase;
static inline Phase node_phase(const Node *node) {
    return !node->backward ? PHASE_F : node->deferred ? PHASE_W : PHASE_B;
}

/* ---- extents on a rank ----------------------------------------------------------------------------------------- */

/* Whether cutting `cut` cuts `dim`: they are the same, or one is the leftmost factor of the other. */
bool dim_is_cut_by(const Dim *dim, const Dim *cut);
/* The size of `dim` in a value of these types: global, divided by every axis that shards it (or the dimension that it
 * is the leftmost factor of). Exact division is an invariant. */
int64_t local_extent(const Mesh *mesh, const AxisType *type, const Dim *dim);

/* The axes that cut a dimension, outermost first (balanced ones before blocks, else as in the mesh): each takes its
 * part of what the ones before it leave, as a sequence. So which logical index a local one has follows from the
 * innermost to the outermost. Local indices keep the order. */
typedef struct DimCut {
    int axis;
    int64_t parts;
    ShardLayout layout;
    int turn;
} DimCut;
/* Of two axes that cut the same dimension, whether one comes after the other. */
bool cut_is_inside(AxisType inner, int inner_axis, AxisType outer, int outer_axis);
int dim_cuts(const Mesh *mesh, const AxisType *type, const Dim *dim, DimCut cuts[MAX_MESH]);
/* What a dimension has to be a multiple of so that the cuts come out even. */
int64_t cuts_multiple(const DimCut *cuts, int n);
/* The part that a rank has in a cut: 0 .. parts-1. */
int64_t cut_part(const Mesh *mesh, const DimCut *cut, int64_t rank);
int64_t local_to_logical(const Mesh *mesh, const AxisType *type, const Dim *dim, int64_t rank, int64_t local);
int64_t logical_to_local(const Mesh *mesh, const AxisType *type, const Dim *dim, int64_t rank,
                         int64_t logical); /* -1: another rank's */
/* First logical index of `dim` on a rank. */
int64_t local_offset(const Mesh *mesh, const AxisType *type, const Dim *dim, int64_t rank);

#endif
