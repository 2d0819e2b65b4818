/* Attention whose keys and values go round: what one node becomes where an axis cuts queries and keys at once.
 *
 * In: an attend or attend_grad whose operands are cut along their positions. Out: for each turn, the same operator over
 * the keys that the rank holds then, and a `pass` of keys and values to the next rank. Forward, the turns' results are
 * merged by their sums of exponentials (Liu et al. 2023, Ring Attention). Backward, the sums of all keys are known, so
 * a turn's parts just add up: that of the queries stays, those of keys and values travel with their block and are home
 * after the last turn. On several axes the innermost turns fastest. Nothing else in the compiler knows of rings: turns
 * are types, passes are collectives, merging is arithmetic. */
#include "partition/choose.h"

typedef struct Ring {
    Builder b;
    const Node *node;
    const Mesh *mesh;
    unsigned axes;                /* a bit each */
    int turn[MAX_MESH];           /* along each of them */
    AttrValue *attrs;             /* of a turn's attention */
    Name names[2], grad_names[2]; /* of keys and values, for messages */
} Ring;

static Node *typed(Node *node, const AxisType *type) {
    memcpy(node->type, type, sizeof node->type);
    return node;
}

static int64_t turns_of(const Ring *ring) {
    int64_t n = 1;
    for (int a = 0; a < ring->mesh->n; a++)
        if (ring->axes >> a & 1) n *= ring->mesh->axes[a].size;
    return n;
}

/* The axis along which the values go on before turn t: the innermost one that has not come round. */
static int axis_before(const Ring *ring, int64_t t) {
    int64_t round = 1;
    for (int a = ring->mesh->n - 1; a >= 0; a--) {
        if (!(ring->axes >> a & 1)) continue;
        round *= ring->mesh->axes[a].size;
        if (t % round != 0) return a;
    }
    BUG("turn %lld of a ring", (long long)t);
}

/* Keys and values, or their gradients, to the next rank along the axis. */
static void pass(Ring *ring, int axis, Node **values, Name const names[2]) {
    ring->turn[axis] = (ring->turn[axis] + 1) % (int)ring->mesh->axes[axis].size;
    for (int i = 0; i < 2; i++) {
        Node *from = values[i];
        values[i] = typed(build_op(&ring->b, OP_PASS, &from, 1, &(AttrValue){.integer = axis}), from->type);
        values[i]->type[axis].turn = ring->turn[axis];
        values[i]->name = names[i];
    }
}

/* The operator over the keys of this turn; its results are those of the node, in f32. */
static void attend_turn(Ring *ring, Node *const *in, Node **results) {
    const Node *node = ring->node;
    Node *part = build_op(&ring->b, node->op, in, node->n_in, ring->attrs);
    for (int k = 0; k < node->n_outs; k++) {
        memcpy(part->outs[k].type, node->outs[k].type, sizeof part->outs[k].type);
        bool of_keys = node->n_outs == 3 && k > 0;
        for (int a = 0; of_keys && a < ring->mesh->n; a++)
            if (ring->axes >> a & 1) part->outs[k].type[a].turn = ring->turn[a];
    }
    typed(part, part->outs[0].type);
    for (int k = 0; k < node->n_outs; k++) {
        const AxisType *type = part->outs[k].type;
        results[k] = typed(build_result(&ring->b, part, k), type);
        if (results[k]->dtype != DT_F32) results[k] = typed(build_cast(&ring->b, results[k], DT_F32), type);
    }
}

static Node *binary(Ring *ring, Op op, Node *x, Node *y) { return typed(build_binary(&ring->b, op, x, y), x->type); }

static Node *unary(Ring *ring, Op op, Node *x) { return typed(build_unary(&ring->b, op, x), x->type); }

/* Two attentions over different keys as one: out and lse. A query that saw no keys has 0 and minus infinity: the bound
 * on the maximum and that on the sum let both through. */
static void merge(Ring *ring, Node **so_far, Node *const *turn) {
    Node *out = so_far[0], *lse = so_far[1];
    Node *low = build_const(&ring->b, DT_F32, -1e30), *one = build_const(&ring->b, DT_F32, 1);
    Node *top = binary(ring, OP_MAX, binary(ring, OP_MAX, lse, turn[1]), low);
    Node *x = unary(ring, OP_EXP, binary(ring, OP_SUB, lse, top));
    Node *y = unary(ring, OP_EXP, binary(ring, OP_SUB, turn[1], top));
    Node *sum = binary(ring, OP_ADD, x, y), *whole = binary(ring, OP_MAX, sum, one);
    Node *first = binary(ring, OP_MUL, out, binary(ring, OP_DIV, x, whole));
    Node *second = binary(ring, OP_MUL, turn[0], binary(ring, OP_DIV, y, whole));
    so_far[0] = binary(ring, OP_ADD, first, second);
    so_far[1] = binary(ring, OP_ADD, top, unary(ring, OP_LOG, sum));
}

static void forward(Ring *ring, Node **results) {
    Node *in[3] = {ring->node->in[0], ring->node->in[1], ring->node->in[2]}, *turn[2];
    for (int64_t t = 0, n = turns_of(ring); t < n; t++) {
        if (t > 0) pass(ring, axis_before(ring, t), &in[1], ring->names);
        attend_turn(ring, in, t > 0 ? turn : results);
        if (t > 0) merge(ring, results, turn);
    }
}

static void backward(Ring *ring, Node **results) {
    Node *in[6], *turn[3];
    memcpy(in, ring->node->in, sizeof in);
    for (int64_t t = 0, n = turns_of(ring); t < n; t++) {
        if (t > 0) {
            int axis = axis_before(ring, t);
            int before = ring->turn[axis];
            pass(ring, axis, &in[1], ring->names);
            ring->turn[axis] = before; /* the same turn for what travels along */
            pass(ring, axis, &results[1], ring->grad_names);
        }
        attend_turn(ring, in, t > 0 ? turn : results);
        for (int k = 0; t > 0 && k < 3; k++) results[k] = binary(ring, OP_ADD, results[k], turn[k]);
    }
    for (int a = 0; a < ring->mesh->n; a++)
        while (ring->turn[a]) pass(ring, a, &results[1], ring->grad_names);
}

/* The variable of the source that a value is a view or another type of. */
static Name source_name(const Node *node) {
    while (!node->name && node->n_in == 1) node = node->in[0];
    return node->name;
}

void ring_expand(Graph *graph, Region *region, const Mesh *mesh, const Node *node, unsigned rings, NodeList *out,
                 Node **results) {
    Region scratch = {.parent = region->parent, .owner = region->owner};
    Ring ring = {.node = node, .mesh = mesh, .axes = rings};
    ring.b = (Builder){.graph = graph,
                       .region = &scratch,
                       .span = node->span,
                       .name = node->name,
                       .path = node->path,
                       .backward = node->backward};
    int n = op_n_attrs(op_info(node));
    ring.attrs = NEW_N(graph->arena, AttrValue, n);
    memcpy(ring.attrs, node->attrs, sizeof *ring.attrs * (size_t)n);
    ring.attrs[op_attr_index(op_info(node), "part")] = (AttrValue){.integer = 1, .number = 1};
    for (int i = 0; i < 2; i++) {
        ring.names[i] = source_name(node->in[1 + i]);
        const char *of = ring.names[i] ? ring.names[i] : i == 0 ? "keys" : "values";
        ring.grad_names[i] = intern(graph->session->names, arena_printf(graph->arena, "grad.%s", of));
    }
    if (node->n_outs == 2)
        forward(&ring, results);
    else
        backward(&ring, results);
    for (int k = 0; k < node->n_outs; k++)
        if (results[k]->dtype != node->outs[k].dtype)
            results[k] = typed(build_cast(&ring.b, results[k], node->outs[k].dtype), results[k]->type);
    for (int i = 0; i < scratch.nodes.n; i++) {
        scratch.nodes.at[i]->deferred = node->deferred;
        vec_push(graph->arena, out, scratch.nodes.at[i]);
    }
}
