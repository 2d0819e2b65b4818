/* Attention, its gradient, and the cache of keys and values while sampling.
 *
 * attend is one operator, since it never stores the [seq, key] matrix: result 0 is the attention, result 1 the log of
 * the sums of exponentials, which its gradient reads. q is over [.., seq, head, width], k and v over [.., key, kv_head,
 * width]; kv_head is head, or its left factor (grouped queries: head = (kv_head, group)); all other dimensions are a
 * batch. Causality compares logical positions of `seq` and `key`, never local ones. */
#include <math.h>

#include "ir/ops/space.h"

/* The dimension of `k` that stands for the heads of `q` in it: the same one, or its left factor. */
static Dim *kv_head_of(const Shape *k, Dim *head) {
    if (shape_find(k, head) >= 0) return head;
    for (int i = 0; i < k->n; i++)
        if (k->dims[i]->product == head && head->n_factors && head->factors[0] == k->dims[i]) return k->dims[i];
    return NULL;
}

AttendParts attend_parts(const Node *node) {
    const Shape *q = &node->in[0]->shape, *k = &node->in[1]->shape;
    AttendParts parts = {.key = node_attr(node, "over")->dims.dims[0],
                         .causal = node_attr(node, "causal")->integer != 0};
    const Shape *width = &node_attr(node, "width")->dims;
    parts.width = width->n ? width->dims[0] : q->n ? q->dims[q->n - 1] : NULL;
    for (int i = 0; i < q->n; i++) {
        Dim *dim = q->dims[i];
        if (dim == parts.width) continue;
        bool is_seq = parts.key->like ? parts.key->like == dim : !parts.seq && !kv_head_of(k, dim);
        if (is_seq)
            parts.seq = dim;
        else if (kv_head_of(k, dim))
            parts.head = dim; /* the last one that is not a position */
    }
    if (parts.head) parts.kv_head = kv_head_of(k, parts.head);
    for (int i = 0; i < q->n; i++)
        if (q->dims[i] != parts.width && q->dims[i] != parts.seq && q->dims[i] != parts.head)
            shape_add(&parts.batch, q->dims[i]);
    parts.scale = node_attr(node, "scale")->number;
    if (parts.scale == 0 && parts.width) parts.scale = 1 / sqrt((double)parts.width->size);
    return parts;
}

static bool attend_refuse(Graph *graph, const Node *node, const char *what, const Shape *shape) {
    Diag *d = diag_error(graph->session, "P0244", node->span, "%s of `attend` is over %s", what,
                         shape_text(graph->arena, shape));
    diag_help(d, "queries are over [.., seq, head, width], keys and values over [.., key, head, width] with `dim key = "
                 "like seq`");
    return false;
}

static void set_result(Graph *graph, Node *node, int n) {
    node->n_outs = n;
    node->outs = NEW_N(graph->arena, OutType, n);
}

static bool infer_attend(Graph *graph, Node *node) {
    const Node *q = node->in[0], *k = node->in[1], *v = node->in[2];
    const Shape *over = &node_attr(node, "over")->dims;
    if (q->dtype != k->dtype || q->dtype != v->dtype) {
        diag_error(graph->session, "P0242", node->span, "`attend` of %s, %s and %s", dtype_name[q->dtype],
                   dtype_name[k->dtype], dtype_name[v->dtype]);
        return false;
    }
    if (over->n != 1 || shape_find(&k->shape, over->dims[0]) < 0 || shape_find(&q->shape, over->dims[0]) >= 0) {
        Diag *d = diag_error(graph->session, "P0240", node->span,
                             "`attend` needs one dimension after `over`: that of the keys");
        diag_help(d, "rename the positions of keys and values: `rename(k, seq -> key)` with `dim key = like seq`");
        return false;
    }
    AttendParts parts = attend_parts(node);
    if (!parts.width || shape_find(&k->shape, parts.width) < 0)
        return attend_refuse(graph, node, "the query", &q->shape);
    node->attrs[op_attr_index(op_info(node), "width")].dims = shape_of(&parts.width, 1);
    Shape expected = parts.batch;
    shape_add(&expected, parts.key);
    if (parts.kv_head) shape_add(&expected, parts.kv_head);
    shape_add(&expected, parts.width);
    if (!parts.seq || !parts.head) return attend_refuse(graph, node, "the query", &q->shape);
    if (k->shape.n != expected.n || !shape_contains(&k->shape, &expected))
        return attend_refuse(graph, node, "the key", &k->shape);
    if (v->shape.n != expected.n || !shape_contains(&v->shape, &expected))
        return attend_refuse(graph, node, "the value", &v->shape);
    node->dtype = q->dtype;
    node->shape = q->shape;
    set_result(graph, node, 2);
    node->outs[0] = (OutType){.dtype = q->dtype, .shape = q->shape};
    Shape width = shape_of(&parts.width, 1);
    node->outs[1] = (OutType){.dtype = DT_F32, .shape = shape_without(&q->shape, &width)};
    return true;
}

/* The gradients are sums over positions: f32, whatever the type of the operands. */
static bool infer_attend_grad(Graph *graph, Node *node) {
    node->dtype = node->in[0]->dtype == DT_F64 ? DT_F64 : DT_F32;
    node->shape = node->in[0]->shape;
    set_result(graph, node, 3);
    for (int i = 0; i < 3; i++) node->outs[i] = (OutType){.dtype = node->dtype, .shape = node->in[i]->shape};
    return true;
}

static void grad_attend(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    if (!grad_out[0]) return;
    Node *in[] = {node->in[0], node->in[1], node->in[2], build_result(b, node, 0), build_result(b, node, 1),
                  grad_out[0]};
    Node *grads = build_op(b, OP_ATTEND_GRAD, in, 6, node->attrs);
    for (int i = 0; i < 3; i++) grad_in[i] = build_result(b, grads, i);
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

/* Strides of one operand. */
typedef struct Strides {
    int64_t seq, head, width;
} Strides;

typedef struct Geometry {
    AttendParts parts;
    int64_t seq, key, head, width, group;
    const int64_t *q_at, *k_at; /* logical positions */
    Strides q, k, v, lse;
    Space batch;
} Geometry;

static Strides strides_of(const Array *array, const Dim *seq, const Dim *head, const Dim *width) {
    return (Strides){array_stride(array, seq), array_stride(array, head), array_stride(array, width)};
}

static const int64_t *logical_positions(const EvalContext *context, const Node *node, const Dim *dim, int64_t n) {
    int64_t *at = NEW_N(context->arena, int64_t, n + 1);
    for (int64_t i = 0; i < n; i++)
        at[i] = eval_logical(context, node, dim, i) + (dim->at_position ? context->position : 0);
    return at;
}

static Geometry geometry_of(const EvalContext *context, const Node *node, const Array *const *in, const Array *lse) {
    Geometry g = {.parts = attend_parts(node)};
    const AttendParts *p = &g.parts;
    g.seq = array_extent(in[0], p->seq);
    g.head = array_extent(in[0], p->head);
    g.width = array_extent(in[0], p->width);
    g.key = array_extent(in[1], p->key);
    g.group = g.head / array_extent(in[1], p->kv_head);
    g.q = strides_of(in[0], p->seq, p->head, p->width);
    g.k = strides_of(in[1], p->key, p->kv_head, p->width);
    g.v = strides_of(in[2], p->key, p->kv_head, p->width);
    g.lse = strides_of(lse, p->seq, p->head, NULL);
    g.q_at = logical_positions(context, node->in[0], p->seq, g.seq);
    g.k_at = logical_positions(context, node->in[1], p->key, g.key);
    space_add(&g.batch, in[0], &p->batch);
    return g;
}

static double dot_row(const double *x, int64_t x_stride, const double *y, int64_t y_stride, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i * x_stride] * y[i * y_stride];
    return sum;
}

static bool sees(const Geometry *g, int64_t i, int64_t j) { return !g->parts.causal || g->k_at[j] <= g->q_at[i]; }

/* One query row: scores of all keys in `s` (-inf where masked); returns the log of the sum of exponentials. */
static double scores_of_row(const Geometry *g, int64_t i, const double *q, const double *k, double *s) {
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < g->key; j++) {
        s[j] =
            sees(g, i, j) ? g->parts.scale * dot_row(q, g->q.width, k + j * g->k.seq, g->k.width, g->width) : -INFINITY;
        top = fmax(top, s[j]);
    }
    if (top == -INFINITY) return -INFINITY;
    for (int64_t j = 0; j < g->key; j++) sum += exp(s[j] - top);
    return top + log(sum);
}

static void eval_attend(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    Geometry g = geometry_of(context, node, in, out[1]);
    double *s = NEW_N(context->arena, double, g.key + 1);
    for (int64_t b = 0, n = space_points(&g.batch); b < n; b++, space_next(&g.batch))
        for (int64_t h = 0; h < g.head; h++)
            for (int64_t i = 0; i < g.seq; i++) {
                const double *q = in[0]->at + space_offset(&g.batch, in[0]) + h * g.q.head + i * g.q.seq;
                const double *k = in[1]->at + space_offset(&g.batch, in[1]) + h / g.group * g.k.head;
                const double *v = in[2]->at + space_offset(&g.batch, in[2]) + h / g.group * g.v.head;
                double *o = out[0]->at + (q - in[0]->at), lse = scores_of_row(&g, i, q, k, s);
                out[1]->at[space_offset(&g.batch, out[1]) + h * g.lse.head + i * g.lse.seq] = lse;
                for (int64_t d = 0; d < g.width; d++) o[d * g.q.width] = 0;
                for (int64_t j = 0; j < g.key; j++)
                    for (int64_t d = 0; d < g.width && s[j] != -INFINITY; d++)
                        o[d * g.q.width] += exp(s[j] - lse) * v[j * g.v.seq + d * g.v.width];
            }
}

/* dv += p d_out;  ds = p (d_out v - d_out out) scale;  dq += ds k;  dk += ds q */
static void grad_row(const Geometry *g, int64_t i, const double *const at[6], double lse, double *const grad[3]) {
    const double *q = at[0], *k = at[1], *v = at[2], *out = at[3], *d_out = at[5];
    double delta = dot_row(d_out, g->q.width, out, g->q.width, g->width);
    for (int64_t j = 0; j < g->key; j++) {
        if (!sees(g, i, j)) continue;
        const double *kj = k + j * g->k.seq, *vj = v + j * g->v.seq;
        double p = exp(g->parts.scale * dot_row(q, g->q.width, kj, g->k.width, g->width) - lse);
        double ds = p * (dot_row(d_out, g->q.width, vj, g->v.width, g->width) - delta) * g->parts.scale;
        for (int64_t d = 0; d < g->width; d++) {
            grad[0][d * g->q.width] += ds * kj[d * g->k.width];
            grad[1][j * g->k.seq + d * g->k.width] += ds * q[d * g->q.width];
            grad[2][j * g->v.seq + d * g->v.width] += p * d_out[d * g->q.width];
        }
    }
}

static void eval_attend_grad(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    Geometry g = geometry_of(context, node, in, in[4]);
    for (int i = 0; i < 3; i++) memset(out[i]->at, 0, sizeof(double) * (size_t)out[i]->n);
    for (int64_t b = 0, n = space_points(&g.batch); b < n; b++, space_next(&g.batch))
        for (int64_t h = 0; h < g.head; h++)
            for (int64_t i = 0; i < g.seq; i++) {
                int64_t q = space_offset(&g.batch, in[0]) + h * g.q.head + i * g.q.seq;
                int64_t k = space_offset(&g.batch, in[1]) + h / g.group * g.k.head;
                int64_t v = space_offset(&g.batch, in[2]) + h / g.group * g.v.head;
                double lse = in[4]->at[space_offset(&g.batch, in[4]) + h * g.lse.head + i * g.lse.seq];
                if (lse == -INFINITY) continue;
                const double *at[6] = {in[0]->at + q, in[1]->at + k, in[2]->at + v, in[3]->at + q, NULL, in[5]->at + q};
                grad_row(&g, i, at, lse, (double *[]){out[0]->at + q, out[1]->at + k, out[2]->at + v});
            }
}

/* ---- cache -------------------------------------------------------------------------------------- */

/* cache(x, old, position): x has `seq` (of size 1) where old has `key`. */
static bool infer_cache(Graph *graph, Node *node) {
    (void)graph;
    node->dtype = node->in[1]->dtype;
    node->shape = node->in[1]->shape;
    return true;
}

static void eval_cache(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    const Dim *seq = node_attr(node, "seq")->dims.dims[0], *key = node_attr(node, "key")->dims.dims[0];
    memcpy(out[0]->at, in[1]->at, sizeof(double) * (size_t)out[0]->n);
    Space points = {0};
    space_add(&points, in[0], NULL);
    int64_t position = (int64_t)in[2]->at[0], stride = array_stride(out[0], key);
    if (position < 0 || position >= array_extent(out[0], key)) return;
    for (int64_t i = 0; i < in[0]->n; i++, space_next(&points)) {
        int at = space_find(&points, seq);
        if (at >= 0 && points.index[at] != 0) continue;
        out[0]->at[space_offset(&points, out[0]) + position * stride] = in[0]->at[space_offset(&points, in[0])];
    }
}

#define DIMS                                                                                                           \
    "graph case { dim batch = 4, seq = 6, key = 6 like seq, width = 4, head = 4 factors (kv, group), kv = 2, group = " \
    "2\n"
#define INPUTS                                                                                                         \
    "tensor q: f32[batch, seq, head, width]; tensor k: f32[batch, key, head, width]; tensor v: f32[batch, key, head, " \
    "width]\n"
#define GROUPED                                                                                                        \
    "tensor q: f32[batch, seq, head, width]; tensor k: f32[batch, key, kv, width]; tensor v: f32[batch, key, kv, "     \
    "width]\n"
static const OpCase cases_attend[] = {
    {.what = "all keys",
     .low = -1,
     .high = 1,
     .graph = DIMS INPUTS "%0 = attend(@q, @k, @v, over = [key]); %1 = result(%0, index = 0); output %1 }"},
    {.what = "causal",
     .low = -1,
     .high = 1,
     .graph =
         DIMS INPUTS "%0 = attend(@q, @k, @v, over = [key], causal = true); %1 = result(%0, index = 0); output %1 }"},
    {.what = "grouped queries, causal, own scale",
     .low = -1,
     .high = 1,
     .graph = DIMS GROUPED "%0 = attend(@q, @k, @v, over = [key], causal = true, scale = 0.25)\n"
                           "%1 = result(%0, index = 0); output %1 }"},
    {.what = "queries elsewhere",
     .low = -1,
     .high = 1,
     .graph =
         "graph case { dim seq = 3, source = 5, head = 2, width = 4\n"
         "tensor q: f32[seq, head, width]; tensor k: f32[source, head, width]; tensor v: f32[source, head, width]\n"
         "%0 = attend(@q, @k, @v, over = [source]); %1 = result(%0, index = 0); output %1 }"},
    {0}};

static const OpCase cases_attend_grad[] = {
    {.what = "causal",
     .low = -1,
     .high = 1,
     .graph =
         DIMS INPUTS "tensor d: f32[batch, seq, head, width]\n"
                     "%0 = input q; %1 = input k; %2 = input v; %3 = attend(%0, %1, %2, over = [key], causal = true)\n"
                     "%4 = result(%3, index = 0); %5 = result(%3, index = 1)\n"
                     "%6 = attend_grad(%0, %1, %2, %4, %5, @d, over = [key], causal = true, width = width)\n"
                     "%7 = result(%6, index = 0); %8 = result(%6, index = 1); %9 = result(%6, index = 2)\n"
                     "output %7; output %8; output %9 }"},
    {0}};

static const OpCase cases_cache[] = {
    {.what = "one position",
     .low = -1,
     .high = 1,
     .graph = "graph case { dim batch = 2, seq = 1, key = 5, width = 3; tensor x: f32[batch, seq, width]\n"
              "tensor old: f32[batch, key, width]; %0 = const(value = 3, dtype = i32)\n"
              "%1 = cache(@x, @old, %0, seq = seq, key = key); output %1 }"},
    {0}};

/* `part`: over the keys that the rank holds at this turn of a ring, which may be cut: the results are to be merged. */
#define ATTEND_ATTRS                                                                                                   \
    {                                                                                                                  \
        {"over", ATTR_DIMS, NAN}, {"causal", ATTR_BOOL, 0}, {"scale", ATTR_FLOAT, 0}, {"width", ATTR_DIM, 0}, {        \
            "part", ATTR_BOOL, 0                                                                                       \
        }                                                                                                              \
    }
const OpInfo op_info_attend = {
    .op = OP_ATTEND,
    .name = "attend",
    .family = "attend",
    .doc = "softmax(scale * q k) v over `over`; scale 0 is 1 / sqrt(width), causal sees keys at or before the query",
    .in = {"q", "k", "v"},
    .attrs = ATTEND_ATTRS,
    .dims = "... width!, ... o! width!, ... o! width! -> ... width!, ...",
    .language = true,
    .n_results = 2,
    .flops = 4,
    .infer = infer_attend,
    .grad = grad_attend,
    .lower = LOWER_ATTEND,
    .precision = PRECISION_NARROW,
    .eval = eval_attend,
    .cases = cases_attend,
};

const OpInfo op_info_attend_grad = {
    .op = OP_ATTEND_GRAD,
    .name = "attend_grad",
    .family = "attend",
    .doc = "gradients of attend: dq, dk, dv",
    .in = {"q", "k", "v", "out", "lse", "d_out"},
    .attrs = ATTEND_ATTRS,
    .dims = "... width!, ... o! width!, ... o! width!, ... width!, ..., ... width! -> ... width!, ... o! width!, ... "
            "o! width!",
    .n_results = 3,
    .flops = 10,
    .no_grad = true,
    .infer = infer_attend_grad,
    .lower = LOWER_ATTEND,
    .eval = eval_attend_grad,
    .cases = cases_attend_grad,
};

const OpInfo op_info_cache = {
    .op = OP_CACHE,
    .name = "cache",
    .family = "attend",
    .doc = "old, with x (of size 1 along `seq`) at `position` of `key`",
    .in = {"x", "old", "position"},
    .attrs = {{"seq", ATTR_DIM, NAN}, {"key", ATTR_DIM, NAN}},
    .dims = "... seq!, ... key!, ... -> ... key!",
    .no_grad = true,
    .infer = infer_cache,
    .lower = LOWER_CACHE,
    .eval = eval_cache,
    .cases = cases_cache,
};
