/* Views: the same elements under other names or in another order. They define nothing: their result keeps the type of
 * the operand on every mesh axis, under the new name (view_result_dim). */
#include "ir/op.h"

#include <math.h>

static Dim *attr_dim(const Node *node, const char *name) { return node_attr(node, name)->dims.dims[0]; }

static bool has_dim(Graph *graph, const Node *node, const Dim *dim) {
    if (shape_find(&node->in[0]->shape, dim) >= 0) return true;
    Diag *diag = diag_error(graph->session, "P0203", node->span, "`%s` needs dimension `%s`, which %s lacks",
                            op_info(node)->name, dim->name, shape_text(graph->arena, &node->in[0]->shape));
    diag_help(diag, "name one of its dimensions");
    return false;
}

static bool infer_rename(Graph *graph, Node *node) {
    Dim *from = attr_dim(node, "from"), *to = attr_dim(node, "to");
    const Shape *shape = &node->in[0]->shape;
    if (!has_dim(graph, node, from)) return false;
    if (from->size != to->size) {
        Diag *diag = diag_error(graph->session, "P0205", node->span, "`%s` (%lld) cannot be renamed to `%s` (%lld)",
                                from->name, (long long)from->size, to->name, (long long)to->size);
        diag_help(diag, "declare the new name for the same positions: `dim %s = like %s`", to->name, from->name);
        return false;
    }
    if (shape_find(shape, to) >= 0) {
        Diag *diag = diag_error(graph->session, "P0205", node->span, "%s already has a dimension `%s`",
                                shape_text(graph->arena, shape), to->name);
        diag_help(diag, "a tensor never has one name twice: declare another one with `like`");
        return false;
    }
    node->dtype = node->in[0]->dtype;
    node->shape = *shape;
    node->shape.dims[shape_find(shape, from)] = to;
    return true;
}

static bool check_factors(Graph *graph, const Node *node, const Dim *dim) {
    if (dim->n_factors) return true;
    Diag *diag = diag_error(graph->session, "P0205", node->span, "`%s` has no declared factors", dim->name);
    diag_help(diag, "declare them where the dimension is declared: `factors %s = (major, minor)`", dim->name);
    return false;
}

static bool infer_split(Graph *graph, Node *node) {
    Dim *dim = attr_dim(node, "dim");
    const Shape *shape = &node->in[0]->shape;
    if (!has_dim(graph, node, dim) || !check_factors(graph, node, dim)) return false;
    if (shape->n - 1 + dim->n_factors > MAX_RANK) {
        Diag *diag = diag_error(graph->session, "P0206", node->span,
                                "the result of `split` has more than %d dimensions", MAX_RANK);
        diag_help(diag, "reduce or join some of them first");
        return false;
    }
    node->dtype = node->in[0]->dtype;
    node->shape = (Shape){.n = 0};
    for (int i = 0; i < shape->n; i++) {
        if (shape->dims[i] != dim) shape_add(&node->shape, shape->dims[i]);
        for (int k = 0; shape->dims[i] == dim && k < dim->n_factors; k++) shape_add(&node->shape, dim->factors[k]);
    }
    return true;
}

static bool infer_join(Graph *graph, Node *node) {
    Dim *dim = attr_dim(node, "dim");
    const Shape *shape = &node->in[0]->shape;
    if (!check_factors(graph, node, dim)) return false;
    int first = shape_find(shape, dim->factors[0]);
    for (int k = 0; k < dim->n_factors; k++) {
        if (first >= 0 && first + k < shape->n && shape->dims[first + k] == dim->factors[k]) continue;
        Diag *diag = diag_error(graph->session, "P0205", node->span,
                                "%s cannot be joined to `%s`: its factors do not stand in order",
                                shape_text(graph->arena, shape), dim->name);
        diag_help(diag, "`broadcast` puts dimensions in another order");
        return false;
    }
    node->dtype = node->in[0]->dtype;
    node->shape = (Shape){.n = 0};
    for (int i = 0; i < shape->n; i++) {
        if (i == first) shape_add(&node->shape, dim);
        if (i < first || i >= first + dim->n_factors) shape_add(&node->shape, shape->dims[i]);
    }
    return true;
}

static bool infer_flip(Graph *graph, Node *node) {
    node->dtype = node->in[0]->dtype;
    node->shape = node->in[0]->shape;
    return has_dim(graph, node, attr_dim(node, "dim"));
}

static void eval_same(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context, (void)node;
    for (int64_t i = 0; i < out[0]->n; i++) out[0]->at[i] = in[0]->at[i];
}

static void eval_flip(EvalContext *context, const Node *node, const Array *const *in, Array *const *out) {
    (void)context;
    int axis = shape_find(&node->shape, attr_dim(node, "dim"));
    int64_t index[MAX_RANK] = {0};
    int64_t at = 0;
    do {
        int64_t mirrored[MAX_RANK];
        memcpy(mirrored, index, sizeof mirrored);
        mirrored[axis] = out[0]->extent[axis] - 1 - index[axis];
        out[0]->at[at++] = array_at(in[0], out[0], mirrored);
    } while (array_next(out[0], index));
}

static void grad_rename(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    grad_in[0] = build_rename(b, grad_out[0], attr_dim(node, "to"), attr_dim(node, "from"));
}

static Node *view(Builder *b, Op op, Node *x, Dim *dim) {
    return build_op(b, op, &x, 1, &(AttrValue){.dims = shape_of(&dim, 1)});
}

static void grad_split(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    grad_in[0] = view(b, OP_JOIN, build_fit(b, grad_out[0], &node->shape), attr_dim(node, "dim"));
}

static void grad_join(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    grad_in[0] = view(b, OP_SPLIT, grad_out[0], attr_dim(node, "dim"));
}

static void grad_flip(Builder *b, Node *node, Node *const *grad_out, Node **grad_in) {
    grad_in[0] = view(b, OP_FLIP, grad_out[0], attr_dim(node, "dim"));
}

#define DIMS "dim a = 4, b = 6, c = 6 like b, h = 8 factors (k, g), k = 4, g = 2\n"
static const OpCase cases_rename[] = {
    {.what = "a second name",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[a, b]; %0 = rename(@x, from = b, to = c); output %0 }"},
    {.what = "two names of the same positions",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[a, b]; %0 = input x; %1 = rename(%0, from = b, to = c)\n"
              "%2 = broadcast(%0, dims = [a, b, c]); %3 = mul(%2, %1); output %3 }"},
    {0}};
static const OpCase cases_split[] = {
    {.what = "into factors",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[a, h, b]; %0 = split(@x, dim = h); output %0 }"},
    {0}};
static const OpCase cases_join[] = {
    {.what = "of factors",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[a, k, g, b]; %0 = join(@x, dim = h); output %0 }"},
    {0}};
static const OpCase cases_flip[] = {
    {.what = "last",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[a, b]; %0 = flip(@x, dim = b); output %0 }"},
    {.what = "middle",
     .low = -2,
     .high = 2,
     .graph = "graph case { " DIMS "tensor x: f32[a, g, b]; %0 = flip(@x, dim = g); output %0 }"},
    {0}};

const OpInfo op_info_rename = {.op = OP_RENAME,
                               .name = "rename",
                               .doc = "x with a dimension under another name",
                               .family = "movement",
                               .in = {"x"},
                               .attrs = {{"from", ATTR_DIM, NAN}, {"to", ATTR_DIM, NAN}},
                               .dims = "~... from -> ... to",
                               .language = true,
                               .cheap = true,
                               .infer = infer_rename,
                               .grad = grad_rename,
                               .lower = LOWER_VIEW,
                               .eval = eval_same,
                               .cases = cases_rename};

const OpInfo op_info_split = {.op = OP_SPLIT,
                              .name = "split",
                              .doc = "x with a dimension cut in its declared factors",
                              .family = "movement",
                              .in = {"x"},
                              .attrs = {{"dim", ATTR_DIM, NAN}},
                              .dims = "~... dim -> ...",
                              .language = true,
                              .cheap = true,
                              .infer = infer_split,
                              .grad = grad_split,
                              .lower = LOWER_VIEW,
                              .eval = eval_same,
                              .cases = cases_split};

const OpInfo op_info_join = {.op = OP_JOIN,
                             .name = "join",
                             .doc = "x with the factors of a dimension joined to it",
                             .family = "movement",
                             .in = {"x"},
                             .attrs = {{"dim", ATTR_DIM, NAN}},
                             .dims = "~... -> ... dim",
                             .language = true,
                             .cheap = true,
                             .infer = infer_join,
                             .grad = grad_join,
                             .lower = LOWER_VIEW,
                             .eval = eval_same,
                             .cases = cases_join};

const OpInfo op_info_flip = {.op = OP_FLIP,
                             .name = "flip",
                             .doc = "x in reverse order along a dimension",
                             .family = "movement",
                             .in = {"x"},
                             .attrs = {{"dim", ATTR_DIM, NAN}},
                             .dims = "~... dim! -> ... dim!",
                             .language = true,
                             .cheap = true,
                             .infer = infer_flip,
                             .grad = grad_flip,
                             .lower = LOWER_VIEW,
                             .eval = eval_flip,
                             .cases = cases_flip};
