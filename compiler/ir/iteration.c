/* The iteration space of an operator, read from its dimension string (see op.h for the notation).
 *
 * In: a node with its operands and attributes. Out: its letters (op_iteration), its shape (op_infer_shapes), its
 * default cost, and whether types on a mesh axis fit it (op_types_fit). This is the only place that reads the strings.
 */
#include "ir/op.h"

enum { MAX_TERMS = 8, MAX_OPERANDS = 12 };

/* One word of an operand: a letter (index of the attribute with its dimensions) or the ellipsis (attr -1). */
typedef struct Term {
    int attr;
    LetterKind kind;
} Term;

typedef struct OperandSpec {
    Term terms[MAX_TERMS];
    int n;
    bool joint, single;
} OperandSpec;

typedef struct DimSpec {
    OperandSpec in[MAX_OPERANDS], out[MAX_OPERANDS];
    int n_in, n_out;
} DimSpec;

/* ---- reading the string -------------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *at) {
    while (*at == ' ') at++;
    return at;
}

static LetterKind letter_kind(const OpInfo *info, char mark) {
    static const char marks[] = {[LETTER_PARALLEL] = ' ', [LETTER_SUM] = '+',   [LETTER_MAX] = '^',
                                 [LETTER_MIN] = '_',      [LETTER_WHOLE] = '!', [LETTER_INDEXED] = '@'};
    for (int kind = 0; kind < (int)sizeof marks; kind++)
        if (marks[kind] == mark) return (LetterKind)kind;
    BUG("dimension string of %s: unknown mark '%c'", info->name, mark);
}

static const char *read_term(const OpInfo *info, const char *at, Term *term) {
    *term = (Term){.attr = -1};
    if (strncmp(at, "...", 3) == 0) return at + 3;
    char word[24];
    size_t n = 0;
    while (*at >= 'a' && *at <= 'z' && n + 1 < sizeof word) word[n++] = *at++;
    word[n] = 0;
    if (n == 0) BUG("dimension string of %s: unexpected '%s'", info->name, at);
    term->attr = op_attr_index(info, strcmp(word, "o") == 0 ? "over" : word);
    if (*at && strchr("+^_!@", *at)) term->kind = letter_kind(info, *at++);
    return at;
}

static const char *read_operand(const OpInfo *info, const char *at, OperandSpec *operand) {
    operand->n = 0, operand->joint = operand->single = false;
    for (at = skip_blanks(at); *at && *at != ',' && strncmp(at, "->", 2) != 0; at = skip_blanks(at)) {
        if (*at == '~')
            operand->joint = true, at++;
        else if (*at == '*')
            operand->single = true, at++;
        else {
            CHECK(operand->n < MAX_TERMS);
            at = read_term(info, at, &operand->terms[operand->n++]);
        }
    }
    return at;
}

static void read_dims(const OpInfo *info, DimSpec *spec) {
    spec->n_in = spec->n_out = 0; /* of the operands only those are set that there are */
    const char *at = skip_blanks(info->dims);
    while (strncmp(at, "->", 2) != 0) {
        CHECK(spec->n_in < MAX_OPERANDS && *at);
        at = read_operand(info, at, &spec->in[spec->n_in++]);
        if (*at == ',') at++;
    }
    at += 2;
    do {
        CHECK(spec->n_out < MAX_OPERANDS);
        at = read_operand(info, at, &spec->out[spec->n_out++]);
    } while (*at++ == ',');
}

/* The description of operand i: the last one stands for all that follow (variadic operators). */
static const OperandSpec *operand_spec(const DimSpec *spec, int i) {
    CHECK(spec->n_in > 0);
    return &spec->in[i < spec->n_in ? i : spec->n_in - 1];
}

static bool has_rest(const OperandSpec *operand) {
    for (int i = 0; i < operand->n; i++)
        if (operand->terms[i].attr < 0) return true;
    return false;
}

/* The dimensions that the letters of an operand name. */
static Shape lettered(const OperandSpec *operand, const Node *node) {
    Shape named = {.n = 0};
    for (int i = 0; i < operand->n; i++)
        if (operand->terms[i].attr >= 0) named = shape_union(&named, &node->attrs[operand->terms[i].attr].dims);
    return named;
}

static bool reduces(const DimSpec *spec) {
    for (int i = 0; i < spec->n_in; i++)
        for (int t = 0; t < spec->in[i].n; t++) {
            LetterKind kind = spec->in[i].terms[t].kind;
            if (kind == LETTER_SUM || kind == LETTER_MAX || kind == LETTER_MIN || kind == LETTER_INDEXED) return true;
        }
    return false;
}

/* ---- the letters of a node ------------------------------------------------------------------------------------ */

static void add_letter(Iteration *iteration, Dim *dim, LetterKind kind) {
    for (int i = 0; i < iteration->n; i++) {
        Letter *letter = &iteration->letters[i];
        if (letter->dim != dim) continue;
        if (letter->kind == LETTER_PARALLEL) letter->kind = kind;
        return;
    }
    if (iteration->n == (int)(sizeof iteration->letters / sizeof iteration->letters[0])) BUG("too many dimensions");
    iteration->letters[iteration->n++] = (Letter){dim, kind};
}

static void add_operand_letters(Iteration *iteration, const OperandSpec *operand, const Node *node,
                                const Shape *shape) {
    for (int i = 0; i < shape->n; i++) {
        LetterKind kind = LETTER_PARALLEL;
        for (int t = 0; t < operand->n; t++)
            if (operand->terms[t].attr >= 0 &&
                shape_find(&node->attrs[operand->terms[t].attr].dims, shape->dims[i]) >= 0)
                kind = operand->terms[t].kind;
        add_letter(iteration, shape->dims[i], kind);
    }
}

Iteration op_iteration(const Node *node) {
    Iteration iteration = {.n = 0};
    const OpInfo *info = op_info(node);
    if (!info->dims) return iteration;
    DimSpec spec;
    read_dims(info, &spec);
    for (int i = 0; i < node->n_in; i++) {
        const OperandSpec *operand = operand_spec(&spec, i);
        if (i < 32 && operand->joint) iteration.joint |= 1u << i;
        if (i < 32 && operand->single) iteration.single |= 1u << i;
        add_operand_letters(&iteration, operand, node, &node->in[i]->shape);
    }
    if (info->lower == LOWER_VIEW) return iteration; /* the result has the same positions under other names */
    for (int i = 0; i < (node->n_outs ? node->n_outs : 1); i++)
        add_operand_letters(&iteration, &spec.out[i < spec.n_out ? i : spec.n_out - 1], node,
                            node->n_outs ? &node->outs[i].shape : &node->shape);
    return iteration;
}

/* ---- shape inference -------------------------------------------------------------------------------------------- */

static const char *operand_name(const OpInfo *info, int i) {
    for (int k = 0; k <= i && k < (int)(sizeof info->in / sizeof info->in[0]) && info->in[k]; k++)
        if (k == i) return info->in[k];
    return info->variadic ? info->variadic : "operand";
}

/* Each operand has the dimensions that its letters name, and no others unless it has an ellipsis. */
static bool check_letters(Graph *graph, const Node *node, const DimSpec *spec) {
    const OpInfo *info = op_info(node);
    for (int i = 0; i < node->n_in; i++) {
        const OperandSpec *operand = operand_spec(spec, i);
        const Shape *shape = &node->in[i]->shape;
        Shape named = lettered(operand, node);
        for (int k = 0; k < named.n; k++) {
            if (shape_find(shape, named.dims[k]) >= 0) continue;
            Diag *diag =
                diag_error(graph->session, "P0203", node->span, "`%s` needs dimension `%s`, which `%s` %s lacks",
                           info->name, named.dims[k]->name, operand_name(info, i), shape_text(graph->arena, shape));
            diag_help(diag, "name one of its dimensions, or `rename` the dimension that is meant");
            return false;
        }
        if (has_rest(operand) || named.n == shape->n) continue;
        Diag *diag =
            diag_error(graph->session, "P0203", node->span, "`%s` takes `%s` with dimensions %s, not %s", info->name,
                       operand_name(info, i), shape_text(graph->arena, &named), shape_text(graph->arena, shape));
        diag_help(diag, "sum or index the other dimensions away first");
        return false;
    }
    return true;
}

/* Operands' further dimensions must be equal, or one operand's contain all others'. */
static bool check_containment(Graph *graph, const Node *node, const DimSpec *spec) {
    int largest = -1;
    Shape rest[MAX_OPERANDS];
    CHECK(node->n_in <= MAX_OPERANDS);
    for (int i = 0; i < node->n_in; i++) {
        Shape named = lettered(operand_spec(spec, i), node);
        rest[i] = shape_without(&node->in[i]->shape, &named);
        if (has_rest(operand_spec(spec, i)) && (largest < 0 || rest[i].n > rest[largest].n)) largest = i;
    }
    for (int i = 0; i < node->n_in; i++) {
        if (!has_rest(operand_spec(spec, i)) || shape_contains(&rest[largest], &rest[i])) continue;
        Shape missing = shape_without(&rest[i], &rest[largest]);
        Diag *diag = diag_error(graph->session, "P0201", node->span,
                                "operands of `%s` have dimensions %s and %s: neither contains the other",
                                op_info(node)->name, shape_text(graph->arena, &node->in[largest]->shape),
                                shape_text(graph->arena, &node->in[i]->shape));
        diag_label(diag, "`%s` is not a dimension of the larger operand", missing.dims[0]->name);
        diag_help(diag, "`rename` one of them so that the names agree, or `broadcast` the larger one to `%s` too",
                  missing.dims[0]->name);
        return false;
    }
    return true;
}

/* The dimensions of one result, in order. False: too many. */
static bool result_shape(const Node *node, const DimSpec *spec, const OperandSpec *out, Shape *result) {
    Dim *wanted[MAX_OPERANDS * MAX_RANK];
    int n = 0;
    Shape named = lettered(out, node);
    for (int i = 0; i < node->n_in; i++) {
        Shape own = lettered(operand_spec(spec, i), node);
        for (int k = 0; k < node->in[i]->shape.n; k++) {
            Dim *dim = node->in[i]->shape.dims[k];
            bool in_rest = has_rest(out) && shape_find(&own, dim) < 0;
            if (in_rest || shape_find(&named, dim) >= 0) wanted[n++] = dim;
        }
    }
    *result = (Shape){.n = 0};
    for (int i = 0; i < n + named.n; i++) {
        Dim *dim = i < n ? wanted[i] : named.dims[i - n];
        if (shape_find(result, dim) >= 0) continue;
        if (result->n == MAX_RANK) return false;
        shape_add(result, dim);
    }
    for (int i = 0; i < node->n_in; i++) { /* the operand that holds them all gives the order */
        Shape others = shape_without(&node->in[i]->shape, result);
        Shape ordered = shape_without(&node->in[i]->shape, &others);
        if (ordered.n != result->n) continue;
        *result = ordered;
        break;
    }
    return true;
}

static bool check_floats(Graph *graph, const Node *node) {
    int first = -1;
    for (int i = 0; i < node->n_in; i++) {
        if (!dtype_is_float(node->in[i]->dtype)) continue;
        if (first >= 0 && node->in[first]->dtype != node->in[i]->dtype) {
            Diag *diag =
                diag_error(graph->session, "P0202", node->span, "operands of `%s` are %s and %s", op_info(node)->name,
                           dtype_name[node->in[first]->dtype], dtype_name[node->in[i]->dtype]);
            diag_help(diag, "convert one of them with `cast`");
            return false;
        }
        if (first < 0) first = i;
    }
    return true;
}

bool op_infer_shapes(Graph *graph, Node *node) {
    const OpInfo *info = op_info(node);
    DimSpec spec;
    read_dims(info, &spec);
    if (!check_letters(graph, node, &spec) || !check_floats(graph, node)) return false;
    if (!reduces(&spec) && node->n_in > 1 && !check_containment(graph, node, &spec)) return false;
    DType dtype = node->n_in ? node->in[0]->dtype : DT_F32;
    if (info->n_results) {
        node->n_outs = info->n_results;
        node->outs = NEW_N(graph->arena, OutType, info->n_results);
    }
    for (int i = 0; i < (info->n_results ? info->n_results : 1); i++) {
        Shape shape;
        if (!result_shape(node, &spec, &spec.out[i < spec.n_out ? i : spec.n_out - 1], &shape)) {
            Diag *diag = diag_error(graph->session, "P0206", node->span,
                                    "the result of `%s` has more than %d dimensions", info->name, MAX_RANK);
            diag_help(diag, "reduce or join some of them first");
            return false;
        }
        if (i == 0) node->shape = shape, node->dtype = dtype;
        if (info->n_results) node->outs[i] = (OutType){.dtype = dtype, .shape = shape};
    }
    return true;
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

double op_flops_over(const Node *node, const Iteration *iteration) {
    const OpInfo *info = op_info(node);
    if (info->lower == LOWER_NONE || info->lower == LOWER_VIEW || info->lower == LOWER_COLLECTIVE) return 0;
    double points = info->flops != 0 ? info->flops : 1;
    for (int i = 0; i < iteration->n; i++) {
        /* One row of an indexed dimension is touched for each index, not all of them. */
        if (iteration->letters[i].kind != LETTER_INDEXED) points *= (double)iteration->letters[i].dim->size;
    }
    return points;
}

double op_flops(const Node *node) {
    if (node->op == OP_REPEAT) {
        double total = 0;
        for (int i = 0; i < node->region->nodes.n; i++) total += op_flops(node->region->nodes.at[i]);
        return total * (double)node->region->dim->size;
    }
    Iteration iteration = op_iteration(node);
    return op_flops_over(node, &iteration);
}

static double value_bytes(DType dtype, const Shape *shape) {
    return (double)shape_elements(shape) * (double)dtype_bytes(dtype);
}

double op_bytes(const Node *node) {
    const OpInfo *info = op_info(node);
    double total = 0;
    if (node->op == OP_REPEAT) {
        for (int i = 0; i < node->region->nodes.n; i++) total += op_bytes(node->region->nodes.at[i]);
        return total * (double)node->region->dim->size;
    }
    if (info->lower == LOWER_NONE || info->lower == LOWER_VIEW) return 0;
    for (int i = 0; i < node->n_in; i++) {
        /* A gather reads as many rows as it writes. */
        bool gathered = lower_is_gather(info->lower) && i == 0;
        total +=
            gathered ? value_bytes(node->dtype, &node->shape) : value_bytes(node->in[i]->dtype, &node->in[i]->shape);
    }
    if (node->n_outs == 0) return total + value_bytes(node->dtype, &node->shape);
    for (int i = 0; i < node->n_outs; i++) total += value_bytes(node->outs[i].dtype, &node->outs[i].shape);
    return total;
}

/* ---- types on a mesh axis ----------------------------------------------------------------------- */

Dim *view_result_dim(const Node *view, Dim *in) {
    const Shape *shape = &view->shape;
    if (view->op == OP_RENAME && dim_is_cut_by(node_attr(view, "from")->dims.dims[0], in))
        return node_attr(view, "to")->dims.dims[0]; /* a factor's own name is lost with the dimension it cuts */
    if (view->op == OP_FLIP && node_attr(view, "dim")->dims.dims[0] == in) return NULL;
    for (int i = 0; i < shape->n; i++)
        if (dim_is_cut_by(shape->dims[i], in)) return in == shape->dims[i] ? in : shape->dims[i];
    return NULL;
}

static bool shape_is_cut_by(const Shape *shape, const Dim *dim) {
    for (int i = 0; i < shape->n; i++)
        if (dim_is_cut_by(shape->dims[i], dim)) return true;
    return false;
}

/* Every operand that has `dim` is cut along it, every other one is replicated. */
static bool operands_cut_by(const Node *node, int axis, const Dim *dim) {
    for (int i = 0; i < node->n_in; i++) {
        AxisType type = node->in[i]->type[axis];
        bool has = shape_is_cut_by(&node->in[i]->shape, dim);
        if (has && (type.kind != AXIS_SHARDED || !dim_is_cut_by(type.dim, dim))) return false;
        if (!has && type.kind != AXIS_REPLICATED) return false;
    }
    return true;
}

static bool operands_linear(const Node *node, int axis, const Iteration *iteration) {
    int joint = 0, joint_partial = 0, single_partial = 0, other_partial = 0;
    for (int i = 0; i < node->n_in; i++) {
        AxisType type = node->in[i]->type[axis];
        bool partial = type.kind == AXIS_PARTIAL && type.reduce == REDUCE_SUM;
        if (!partial && type.kind != AXIS_REPLICATED) return false;
        if (iteration->joint >> i & 1)
            joint++, joint_partial += partial;
        else if (iteration->single >> i & 1)
            single_partial += partial;
        else
            other_partial += partial;
    }
    if (other_partial) return false;
    if (joint_partial) return joint_partial == joint && !single_partial;
    return single_partial == 1;
}

static bool fits_partial(const Node *node, int axis, ReduceKind reduce, const Iteration *iteration) {
    for (int i = 0; i < iteration->n; i++) {
        const Letter *letter = &iteration->letters[i];
        bool matches = (reduce == REDUCE_SUM && (letter->kind == LETTER_SUM || letter->kind == LETTER_INDEXED)) ||
                       (reduce == REDUCE_MAX && letter->kind == LETTER_MAX) ||
                       (reduce == REDUCE_MIN && letter->kind == LETTER_MIN);
        if (matches && operands_cut_by(node, axis, letter->dim)) return true;
    }
    return reduce == REDUCE_SUM && operands_linear(node, axis, iteration);
}

static bool fits_sharded(const Node *node, int axis, const Dim *dim, const Iteration *iteration) {
    for (int i = 0; i < iteration->n; i++)
        if (dim_is_cut_by(iteration->letters[i].dim, dim) && iteration->letters[i].kind == LETTER_PARALLEL)
            return operands_cut_by(node, axis, iteration->letters[i].dim);
    return false;
}

static bool collective_fits(const Node *node, int axis) {
    AxisType from = node->in[0]->type[axis], to = node->type[axis];
    if (node_attr(node, "axis")->integer != axis) return axis_type_equal(from, to);
    /* a scalar that each stage of a pipeline has a part of: no type of one stage's graph says so */
    bool stages =
        node->op == OP_ALL_REDUCE && node->shape.n == 0 && from.kind == AXIS_REPLICATED && to.kind == AXIS_REPLICATED;
    if (stages) return true;
    AxisKind wanted_from = node->op == OP_ALL_REDUCE || node->op == OP_REDUCE_SCATTER ? AXIS_PARTIAL
                           : node->op == OP_SHARD                                     ? AXIS_REPLICATED
                                                                                      : AXIS_SHARDED;
    AxisKind wanted_to = node->op == OP_ALL_REDUCE || node->op == OP_ALL_GATHER ? AXIS_REPLICATED : AXIS_SHARDED;
    if (from.kind != wanted_from || to.kind != wanted_to) return false;
    if (from.kind == AXIS_PARTIAL && (int64_t)from.reduce != node_attr(node, "reduce")->integer) return false;
    if (from.kind == AXIS_SHARDED && to.kind == AXIS_SHARDED)
        return from.dim == node_attr(node, "from")->dims.dims[0] && to.dim == node_attr(node, "to")->dims.dims[0];
    if (from.kind == AXIS_SHARDED) return from.dim == node_attr(node, "dim")->dims.dims[0];
    return to.kind != AXIS_SHARDED || to.dim == node_attr(node, "dim")->dims.dims[0];
}

static bool result_fits(const Node *node, int axis, AxisType type, const Iteration *iteration) {
    switch (type.kind) {
    case AXIS_REPLICATED:
        for (int i = 0; i < node->n_in; i++)
            if (node->in[i]->type[axis].kind != AXIS_REPLICATED) return false;
        return true;
    case AXIS_SHARDED: return fits_sharded(node, axis, type.dim, iteration);
    case AXIS_PARTIAL: return fits_partial(node, axis, type.reduce, iteration);
    case AXIS_AT:
        for (int i = 0; i < node->n_in; i++)
            if (!axis_type_equal(node->in[i]->type[axis], type)) return false;
        return true;
    }
    return false;
}

/* One of several results lacks a parallel dimension: it is a sum over it, partial where that is cut. */
static bool sums_rows(const Node *node, int axis, const OutType *out, const Iteration *iteration) {
    if (out->type[axis].kind != AXIS_PARTIAL || out->type[axis].reduce != REDUCE_SUM) return false;
    for (int i = 0; i < iteration->n; i++) {
        const Letter *letter = &iteration->letters[i];
        if (letter->kind == LETTER_PARALLEL && !shape_is_cut_by(&out->shape, letter->dim) &&
            operands_cut_by(node, axis, letter->dim))
            return true;
    }
    return false;
}

bool op_types_fit(const Node *node, int axis) {
    if (node->op == OP_FLATTEN || node->op == OP_UNFLATTEN) return true; /* partitioning answers for them */
    /* nothing on every rank adds up to nothing */
    if (node->op == OP_CONST && node_attr(node, "value")->number == 0 && node->type[axis].kind == AXIS_PARTIAL)
        return node->type[axis].reduce == REDUCE_SUM;
    const OpInfo *info = op_info(node);
    if (info->lower == LOWER_NONE && info->dims == NULL) return true; /* the verifier looks at regions and tensors */
    if (info->lower == LOWER_COLLECTIVE) return collective_fits(node, axis);
    if (info->lower == LOWER_VIEW) {
        AxisType from = node->in[0]->type[axis], to = node->type[axis];
        if (from.kind != AXIS_SHARDED || to.kind != AXIS_SHARDED) return axis_type_equal(from, to);
        Dim *dim = view_result_dim(node, from.dim);
        return dim && dim_is_cut_by(dim, to.dim) && from.layout == to.layout;
    }
    Iteration iteration = op_iteration(node);
    if (node->n_outs == 0) return result_fits(node, axis, node->type[axis], &iteration);
    for (int i = 0; i < node->n_outs; i++) {
        AxisType type = node->outs[i].type[axis];
        if (!result_fits(node, axis, type, &iteration) && !sums_rows(node, axis, &node->outs[i], &iteration))
            return false;
    }
    return true;
}
