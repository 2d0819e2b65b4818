/* Between the files that lower graphs to kernels: where a value lies, and which kernel makes it. Private to this
 * folder. */
#ifndef PLAN_LOWER_H
#define PLAN_LOWER_H

#include "graph/graph.h"
#include "kernels/kernels.h"

/* Where the elements of a value lie: a reference to the first, and a stride for each dimension of its shape. */
typedef struct Location {
    BufferRef ref;
    int64_t stride[MAX_RANK]; /* elements */
} Location;

typedef enum UnitKind { UNIT_LOOP, UNIT_NODE } UnitKind;

/* What becomes one kernel: a set of loop nodes over one domain, or a single other node. */
typedef struct Unit Unit;
struct Unit {
    UnitKind kind;
    int id; /* number of its first node: the order among equals */
    NodeList nodes;
    Shape domain;     /* iteration space of a loop */
    const Node *like; /* whose types say what the rank holds of it */
    Shape reduced;    /* its inner dimensions; empty: elementwise */
    bool merged;      /* swallowed by another */
    bool done;
    int mark, seen; /* stamps of walks over units */
};

/* What the lowering knows of a node's value; Node.mark points to it. */
typedef struct Value {
    Node *node;
    Unit *unit;     /* in this region and phase; NULL for inputs, params and generators */
    bool generator; /* made anew in each loop that uses it: constants, ramps, random bits */
    bool inlined;   /* computed in every loop that uses it rather than stored */
    bool stored;    /* needs memory */
    bool has_place;
    bool accumulate; /* the store adds to what is there */
    bool saved;      /* made in one action of a micro-batch, used in a later one: */
    Phase until;     /* the last that uses it, */
    int copies;      /* and how many micro-batches are in between at most */
    bool fixed;      /* its place was given (an output, a carry, a stack): never reused in place */
    Location place;
    Location *outs; /* of tuple nodes: a place for each result; has_outs marks those given beforehand */
    bool *has_outs, *outs_accumulate;
    int *outs_copies; /* as `copies`; 0: not saved */
    int uses_left;    /* units that have still to read it */
    VEC(const Node *) readers; /* while units are made: nodes of its region's units that read it */
} Value;

typedef struct Lowering {
    Arena *arena;
    RoleProgram *program;
    const Mesh *mesh;
    Graph *graph;
    Entry *entry;
    KernelList *out;                      /* where kernels are appended */
    Kernel *home;                         /* innermost open repeat, or NULL */
    VEC(Kernel *) open;                   /* open repeats, outermost first */
    int *position;                        /* of the role's timeline */
    Phase phase;                          /* of the body: what was saved until then may die */
    int flights;                          /* micro-batches in flight: copies of inputs that are saved */
    int copies[PHASE_COUNT][PHASE_COUNT]; /* micro-batches between the start of one action and the end of another */
    bool entry_drains;                    /* waits are for all messages */
    int names;                            /* for symbol names */
    int stamp;                            /* of walks over units: see Unit.mark */
    Map *tensors;                         /* Tensor name -> Buffer */
    Map carries;                          /* repeat node -> memory of its carries */
} Lowering;

Value *value_of(const Node *node);                         /* BUG when it has none */
bool value_is_kept(const Lowering *l, const Value *value); /* a later action reads it */
int64_t lower_extent(const Lowering *l, const Node *node, const Dim *dim);
int64_t lower_bytes(const Lowering *l, DType dtype, const Shape *shape, const Node *like);
Location place_row_major(const Lowering *l, const Node *node, BufferRef ref);
bool place_is_row_major(const Lowering *l, const Node *node, const Location *place);

Buffer *lower_buffer(Lowering *l, Name name, MemoryKind kind, DType dtype, int64_t bytes, Span span);
Buffer *lower_tensor(Lowering *l, Tensor *tensor); /* persistent storage of a tensor */
Buffer *lower_scalar(Lowering *l, const char *name, DType dtype);
Buffer *lower_coordinate(Lowering *l, int axis); /* of this rank on a mesh axis: `coord.AXIS` */
void lower_touch(Lowering *l, Buffer *buffer, int position);
Kernel *lower_kernel(Lowering *l, KernelKind kind, const char *what, Span span);
void kernel_add_ref(Lowering *l, Kernel *kernel, BufferRef ref);

/* Groups the nodes of one region (and phase) into units, sets Value.unit, inlined and stored, and returns the units
 * in an order in which they can run. */
typedef VEC(Unit *) UnitList;
UnitList region_to_units(Lowering *l, Region *region, Phase phase);
bool node_in_loop(const Node *node); /* lowered as part of a loop */
bool node_is_generator(const Node *node);

void lower_loop_unit(Lowering *l, Unit *unit);
void lower_node_unit(Lowering *l, Node *node); /* products, attention, collectives, views, repeats */
/* out[i] = in[i] over up to LOOP_MAX_AXES axes; with a coordinate, `in` starts coordinate * coordinate_stride further.
 */
typedef struct CopySpace {
    int64_t extent[LOOP_MAX_AXES], from[LOOP_MAX_AXES], to[LOOP_MAX_AXES]; /* strides in elements */
    int n;
    Buffer *coordinate; /* or NULL */
    int64_t coordinate_stride;
} CopySpace;
void lower_strided_copy(Lowering *l, const CopySpace *space, DType dtype, BufferRef from, BufferRef to, bool accumulate,
                        Span span);
/* Zeros: n elements from `first` on, in each of `blocks` blocks. */
void lower_zero(Lowering *l, Buffer *buffer, int64_t first, int64_t n, int64_t blocks, int64_t stride, DType dtype,
                Span span);
/* out (+)= in, element by element; both have the shape of `like`. */
void lower_copy(Lowering *l, Node *like, const Location *from, const Location *to, bool accumulate);
void lower_region(Lowering *l, Region *region, Phase phase);
void lower_repeat(Lowering *l, Node *node);
/* Before the region that holds the repeat is lowered: memory of its carries, so that the first values are made there.
 */
void prepare_repeat(Lowering *l, Node *node);
/* Gives `node` (or, for a result, its tuple) a place to be made in. False when it has one already or cannot take one.
 */
bool give_place(Lowering *l, Node *node, const Location *place, bool accumulate);
Value *value_new(Lowering *l, Node *node);     /* the node's value, made on first call */
Location value_place(Lowering *l, Node *node); /* of a stored value; makes memory on first use */

#endif
