/* Graphs from text: the form of goldens, of pass tests and of operator cases.
 *
 *     graph body micro {                          # micro: runs once for each micro-batch
 *         mesh data = 2, tensor = 2
 *         dim batch = 4 batch, seq = 8, key = 8 like seq
 *         dim head = 4 factors (kv_head, group), kv_head = 2, group = 2, layers = 3
 *         tensor x: data f32[batch, seq] {data: sharded(batch)}
 *         tensor w: weight f32[layers, seq] group norm gain
 *         tensor m: moment f32[layers, seq] of w frozen
 *         %0 = input x
 *         %1 = repeat layers descending (%2 = carry %0, %3 = slice @w, %4 = capture %0) {
 *             %5 = mul(%2, %3) : f32[batch, seq] {data: sharded(batch)} backward as product
 *             next %5                             # the carry's next value
 *             stack %5                            # kept for each layer
 *         }
 *         %6 = result(%1, index = 0)
 *         %7 = sum(%6, over = [seq])
 *         output y = %7                           # `+=`: accumulated
 *     }
 *
 * Attributes stand after operands; dimensions in brackets, numbers in brackets (vector), names, `true`, `none`.
 * Statements end with a newline or `;`. Names with unusual characters stand in quotes. What the printer writes is
 * complete; by hand, all of this may be left out: types after a `:` (inferred; checked when given), a tensor's class
 * (data), attributes with a standard value, the tensor of an output (`output %7` makes a result tensor out0, out1,
 * ...), and an input node (`@w` as an operand). Types of values made by hand on a mesh are replicated unless written.
 */
#include "ir/op.h"

#include <math.h>
#include <stdlib.h>

typedef struct ValueName {
    Name name;
    Node *node;
} ValueName;

typedef struct Parser {
    Session *session;
    int32_t file;
    const char *text;
    int32_t at;
    bool failed;
    Graph *graph;
    Builder b;
    Map values; /* Name -> Node * */
    struct {
        Tensor *tensor;
        Name of;
        Span span;
    } * ofs; /* `of` may name a later tensor */
    int n_ofs, cap_ofs;
    VEC(Node *) nexts;
    VEC(Node *) stacks;
} Parser;

/* ---- characters ----------------------------------------------------------------------------------------------------
 */

static Span span_from(const Parser *p, int32_t lo) { return (Span){p->file, lo, p->at > lo ? p->at : lo + 1}; }

static void fail(Parser *p, int32_t lo, const char *expected) {
    if (p->failed) return;
    p->failed = true;
    const char *at = p->text + lo;
    int n = 0;
    while (at[n] && at[n] != '\n' && n < 24) n++;
    Diag *diag = diag_error(p->session, "P0090", (Span){p->file, lo, lo + 1}, "graph text: expected %s", expected);
    diag_label(diag, *at ? "here stands `%.*s`" : "the text ends here", n, at);
    diag_help(diag, "the form is described in compiler/ir/parse.c");
}

static void skip(Parser *p, bool lines) {
    for (;; p->at++) {
        char c = p->text[p->at];
        if (c == '#') {
            while (p->text[p->at] && p->text[p->at] != '\n') p->at++;
            c = p->text[p->at];
        }
        if (c == ' ' || c == '\t' || c == '\r') continue;
        if (lines && (c == '\n' || c == ';')) continue;
        return;
    }
}

static bool peek(Parser *p, const char *token) {
    skip(p, false);
    return !p->failed && strncmp(p->text + p->at, token, strlen(token)) == 0;
}

static bool accept(Parser *p, const char *token) {
    if (!peek(p, token)) return false;
    p->at += (int32_t)strlen(token);
    return true;
}

static void expect(Parser *p, const char *token) {
    if (accept(p, token)) return;
    char quoted[24];
    snprintf(quoted, sizeof quoted, "`%s`", token);
    fail(p, p->at, quoted);
}

/* A separator inside parentheses or a list: newlines after it do not end the statement. */
static bool accept_comma(Parser *p) {
    if (!accept(p, ",")) return false;
    skip(p, true);
    return true;
}

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '$';
}

static bool word_follows(Parser *p) {
    skip(p, false);
    char c = p->text[p->at];
    return !p->failed && (c == '"' || (is_word(c) && !(c >= '0' && c <= '9') && c != '.'));
}

static Name read_word(Parser *p, const char *expected) {
    skip(p, false);
    int32_t lo = p->at;
    const char *at = p->text + lo;
    if (*at == '"') {
        const char *end = strchr(at + 1, '"');
        if (end && !p->failed) {
            p->at += (int32_t)(end + 1 - at);
            return intern_n(p->session->names, at + 1, (size_t)(end - at - 1));
        }
    }
    while (!p->failed && is_word(p->text[p->at])) p->at++;
    if (p->at == lo) fail(p, lo, expected);
    return intern_n(p->session->names, at, (size_t)(p->at - lo));
}

/* A keyword: the whole word, not a prefix of another. */
static bool accept_word(Parser *p, const char *word) {
    size_t n = strlen(word);
    if (!peek(p, word) || is_word(p->text[p->at + (int32_t)n])) return false;
    p->at += (int32_t)n;
    return true;
}

static double read_number(Parser *p) {
    skip(p, false);
    char *end = NULL;
    double value = p->failed ? 0 : strtod(p->text + p->at, &end);
    if (p->failed) return 0;
    if (end == p->text + p->at)
        fail(p, p->at, "a number");
    else
        p->at = (int32_t)(end - p->text);
    return value;
}

/* Returns false, and fails, unless it is a whole number that a double holds exactly. */
static int64_t read_integer(Parser *p) {
    skip(p, false);
    int32_t lo = p->at;
    double value = read_number(p);
    if (p->failed) return 0;
    if (!(fabs(value) <= 9007199254740992.0) || value != floor(value)) {
        fail(p, lo, "a whole number");
        return 0;
    }
    return (int64_t)value;
}

/* ---- dimensions, meshes, types
 * --------------------------------------------------------------------------------------- */

/* Dimensions may be named before they are declared (factors); such a one has size 0 until then. */
static Dim *dim_named(Parser *p, Name name, int32_t lo) {
    Dim *dim = graph_find_dim(p->graph, name);
    return dim ? dim : graph_add_dim(p->graph, name, 0, span_from(p, lo));
}

static Dim *read_dim(Parser *p) {
    skip(p, false);
    int32_t lo = p->at;
    Name name = read_word(p, "a dimension");
    Dim *dim = p->failed ? NULL : graph_find_dim(p->graph, name);
    if (!dim && !p->failed) fail(p, lo, "a dimension declared above");
    return dim;
}

static Shape read_dims(Parser *p, const char *open, const char *close) {
    Shape shape = {.n = 0};
    expect(p, open);
    if (accept(p, close)) return shape;
    do {
        int32_t lo = p->at;
        Dim *dim = read_dim(p);
        if (p->failed) return shape;
        if (shape.n == MAX_RANK || shape_find(&shape, dim) >= 0)
            fail(p, lo, "at most 8 dimensions, each once");
        else
            shape_add(&shape, dim);
    } while (accept_comma(p));
    expect(p, close);
    return shape;
}

static void parse_factors(Parser *p, Dim *dim) {
    Dim *factors[MAX_RANK];
    int n = 0;
    expect(p, "(");
    do {
        skip(p, false);
        int32_t lo = p->at;
        Name name = read_word(p, "a factor");
        if (p->failed) return;
        if (n == MAX_RANK) {
            fail(p, lo, "fewer factors");
            return;
        }
        factors[n++] = dim_named(p, name, lo);
    } while (accept_comma(p));
    expect(p, ")");
    dim_set_factors(p->graph->arena, dim, factors, n);
}

/* A dimension that was named before stands where it is declared, so that printing gives the same text again. */
static void move_to_end(Graph *graph, Dim *dim) {
    for (int i = dim->id; i + 1 < graph->dims.n; i++) {
        graph->dims.at[i] = graph->dims.at[i + 1];
        graph->dims.at[i]->id = i;
    }
    dim->id = graph->dims.n - 1;
    graph->dims.at[dim->id] = dim;
}

static void parse_dim_line(Parser *p) {
    do {
        skip(p, false);
        int32_t lo = p->at;
        Name name = read_word(p, "a dimension");
        if (p->failed) return;
        Dim *dim = dim_named(p, name, lo);
        if (dim->size) {
            fail(p, lo, "a dimension that is not declared yet");
            return;
        }
        move_to_end(p->graph, dim);
        dim->span = span_from(p, lo);
        expect(p, "=");
        dim->size = read_integer(p);
        if (!p->failed && dim->size < 1) fail(p, p->at, "a size of at least 1 before this");
        if (accept_word(p, "like")) {
            int32_t at = p->at;
            Name like = read_word(p, "a dimension");
            if (!p->failed) dim->like = dim_named(p, like, at);
        }
        if (accept_word(p, "factors")) parse_factors(p, dim);
        dim->is_batch = accept_word(p, "batch");
    } while (accept_comma(p));
}

static void parse_mesh(Parser *p) {
    Mesh *mesh = NEW(p->graph->arena, Mesh);
    do {
        skip(p, false);
        int32_t lo = p->at;
        if (mesh->n == MAX_MESH) fail(p, lo, "at most 8 mesh axes");
        Name name = read_word(p, "a mesh axis");
        expect(p, "=");
        int64_t size = read_integer(p);
        if (!p->failed && size < 1) fail(p, lo, "an axis of at least one rank");
        if (p->failed) return;
        mesh->axes[mesh->n++] = (MeshAxis){name, size, span_from(p, lo)};
    } while (accept_comma(p));
    p->graph->mesh = mesh;
}

static DType read_dtype(Parser *p) {
    skip(p, false);
    int32_t lo = p->at;
    Name name = read_word(p, "a type such as f32");
    for (int i = 0; i < DT_COUNT && !p->failed; i++)
        if (strcmp(name, dtype_name[i]) == 0) return (DType)i;
    fail(p, lo, "a type: f32, f64, bf16, f16, i32, u32 or bool");
    return DT_F32;
}

static int read_keyword(Parser *p, const char *const *words, int n, const char *expected) {
    skip(p, false);
    for (int i = 0; i < n; i++)
        if (accept_word(p, words[i])) return i;
    fail(p, p->at, expected);
    return 0;
}

static AxisType read_axis_type(Parser *p) {
    AxisType type = {.kind = AXIS_REPLICATED};
    if (accept_word(p, "replicated")) return type;
    if (accept_word(p, "sharded")) {
        type.kind = AXIS_SHARDED;
        expect(p, "(");
        type.dim = read_dim(p);
        if (accept_comma(p)) type.layout = (ShardLayout)read_keyword(p, layout_name, 3, "block, balanced or table");
    } else if (accept_word(p, "partial")) {
        type.kind = AXIS_PARTIAL;
        expect(p, "(");
        type.reduce = (ReduceKind)read_keyword(p, reduce_name, 4, "sum, max, min or or");
    } else if (accept_word(p, "at")) {
        type.kind = AXIS_AT;
        expect(p, "(");
        type.stages = (uint64_t)read_integer(p);
    } else {
        fail(p, p->at, "replicated, sharded(DIM), partial(REDUCTION) or at(STAGES)");
    }
    expect(p, ")");
    return type;
}

/* `f32[a, b] {axis: type, ...}` */
static OutType read_type(Parser *p) {
    OutType out = {.dtype = read_dtype(p)};
    out.shape = read_dims(p, "[", "]");
    if (!p->graph->mesh || !accept(p, "{")) return out;
    do {
        skip(p, false);
        int32_t lo = p->at;
        Name name = read_word(p, "a mesh axis");
        int axis = 0;
        while (axis < p->graph->mesh->n && p->graph->mesh->axes[axis].name != name) axis++;
        if (axis == p->graph->mesh->n) fail(p, lo, "an axis of the mesh");
        expect(p, ":");
        AxisType type = read_axis_type(p);
        if (p->failed) return out;
        out.type[axis] = type;
    } while (accept_comma(p));
    expect(p, "}");
    return out;
}

/* ---- tensors
 * ----------------------------------------------------------------------------------------------------------- */

static void parse_tensor(Parser *p) {
    skip(p, false);
    int32_t lo = p->at;
    Name name = read_word(p, "a tensor");
    if (!p->failed && graph_find_tensor(p->graph, name)) fail(p, lo, "a tensor that is not declared yet");
    expect(p, ":");
    TensorClass class = CLASS_DATA;
    for (int i = 0; i < CLASS_COUNT; i++)
        if (accept_word(p, tensor_class_name[i])) class = (TensorClass)i;
    OutType type = read_type(p);
    if (p->failed) return;
    Tensor *tensor = graph_add_tensor(p->graph, name, class, type.dtype, type.shape, span_from(p, lo));
    memcpy(tensor->type, type.type, sizeof tensor->type);
    if (accept_word(p, "of")) {
        skip(p, false);
        int32_t at = p->at;
        Name of = read_word(p, "a tensor");
        vec_reserve_(p->graph->arena, (void **)&p->ofs, &p->cap_ofs, p->n_ofs + 1, sizeof *p->ofs);
        p->ofs[p->n_ofs].tensor = tensor;
        p->ofs[p->n_ofs].of = of;
        p->ofs[p->n_ofs++].span = span_from(p, at);
    }
    if (accept_word(p, "group")) tensor->group = read_word(p, "a parameter group");
    tensor->frozen = accept_word(p, "frozen");
    tensor->is_gain = accept_word(p, "gain");
}

static Tensor *read_tensor(Parser *p) {
    skip(p, false);
    int32_t lo = p->at;
    Name name = read_word(p, "a tensor");
    Tensor *tensor = p->failed ? NULL : graph_find_tensor(p->graph, name);
    if (!tensor) fail(p, lo, "a tensor declared above");
    return tensor;
}

/* ---- nodes
 * ----------------------------------------------------------------------------------------------------------- */

static void parse_body(Parser *p);

static Name read_value_name(Parser *p) {
    expect(p, "%");
    return read_word(p, "a value");
}

static Node *read_value(Parser *p) {
    skip(p, false);
    int32_t lo = p->at;
    if (accept(p, "@")) {
        Tensor *tensor = read_tensor(p);
        return p->failed ? NULL : build_input(&p->b, tensor);
    }
    Name name = read_value_name(p);
    Node *node = p->failed ? NULL : map_get(&p->values, name);
    if (!node) fail(p, lo, "a value defined above");
    return node;
}

static void define(Parser *p, Name name, Node *node, int32_t lo) {
    if (p->failed) return;
    if (map_get(&p->values, name))
        fail(p, lo, "a value that is not defined yet");
    else
        map_put(p->graph->arena, &p->values, name, node);
}

static AttrValue read_list(Parser *p) {
    VEC(double) list = {0};
    expect(p, "[");
    do vec_push(p->graph->arena, &list, read_number(p));
    while (accept_comma(p));
    expect(p, "]");
    return (AttrValue){.list = list.at, .integer = list.n};
}

static AttrValue read_attr(Parser *p, AttrKind kind) {
    AttrValue value = {.integer = 0};
    switch (kind) {
    case ATTR_NONE: break;
    case ATTR_INT:
        value.integer = read_integer(p);
        value.number = (double)value.integer;
        break;
    case ATTR_FLOAT: value.number = read_number(p); break;
    case ATTR_BOOL:
        value.integer = accept_word(p, "true");
        if (!value.integer && !accept_word(p, "false")) fail(p, p->at, "true or false");
        break;
    case ATTR_NAME:
        if (!accept_word(p, "none")) value.name = read_word(p, "a name");
        break;
    case ATTR_DTYPE: value.integer = (int64_t)read_dtype(p); break;
    case ATTR_DIM: {
        if (accept_word(p, "none")) break;
        Dim *dim = read_dim(p);
        if (dim) value.dims = shape_of(&dim, 1);
        break;
    }
    case ATTR_DIMS: value.dims = read_dims(p, "[", "]"); break;
    case ATTR_LIST: value = read_list(p); break;
    }
    return value;
}

static bool attr_follows(Parser *p) {
    if (!word_follows(p)) return false;
    int32_t at = p->at;
    while (is_word(p->text[p->at])) p->at++;
    bool is_attr = peek(p, "=");
    p->at = at;
    return is_attr;
}

/* `name = value, ...` up to the closing parenthesis; attributes that are not written have their standard value. */
static void read_attrs(Parser *p, const OpInfo *info, AttrValue *attrs) {
    bool given[sizeof info->attrs / sizeof info->attrs[0]] = {false};
    int n = op_n_attrs(info);
    int32_t lo = p->at;
    while (attr_follows(p)) {
        lo = p->at;
        Name name = read_word(p, "an attribute");
        int i = 0;
        while (i < n && strcmp(info->attrs[i].name, name) != 0) i++;
        if (i == n || given[i]) {
            fail(p, lo, i == n ? "an attribute of this operator" : "each attribute once");
            return;
        }
        expect(p, "=");
        attrs[i] = read_attr(p, info->attrs[i].kind);
        given[i] = true;
        if (!accept_comma(p)) break;
    }
    for (int i = 0; i < n && !p->failed; i++) {
        if (given[i]) continue;
        if (isnan(info->attrs[i].standard)) {
            char expected[64];
            snprintf(expected, sizeof expected, "attribute `%s`", info->attrs[i].name);
            fail(p, lo, expected);
        } else {
            attrs[i] = (AttrValue){.integer = (int64_t)info->attrs[i].standard, .number = info->attrs[i].standard};
        }
    }
}

static int count_operands(const OpInfo *info) {
    int n = 0;
    while (n < (int)(sizeof info->in / sizeof info->in[0]) && info->in[n]) n++;
    return n;
}

static Node *parse_op(Parser *p, int32_t lo) {
    Name name = read_word(p, "an operator");
    Op op = p->failed ? OP_COUNT : op_find(name);
    if (op == OP_COUNT || op == OP_REPEAT || op == OP_INPUT || op == OP_PARAM) {
        fail(p, lo, "an operator of ops.def");
        return NULL;
    }
    expect(p, "(");
    VEC(Node *) in = {0};
    while (peek(p, "%") || peek(p, "@")) {
        Node *node = read_value(p);
        if (p->failed) return NULL;
        vec_push(p->graph->arena, &in, node);
        if (!accept_comma(p)) break;
    }
    AttrValue attrs[sizeof op_table[0]->attrs / sizeof op_table[0]->attrs[0]] = {{.integer = 0}};
    read_attrs(p, op_table[op], attrs);
    expect(p, ")");
    if (p->failed) return NULL;
    int wanted = count_operands(op_table[op]);
    if (!op_table[op]->variadic && in.n != wanted) {
        char expected[64];
        snprintf(expected, sizeof expected, "%d operands, not %d", wanted, in.n);
        fail(p, lo, expected);
        return NULL;
    }
    if (op == OP_RESULT && (attrs[0].integer < 0 || attrs[0].integer >= in.at[0]->n_outs)) {
        fail(p, lo, "the index of a result");
        return NULL;
    }
    if (op == OP_LAYER_INDEX) {
        if (p->b.region->parent) return build_layer_index(&p->b);
        fail(p, lo, "layer_index inside a repeat");
        return NULL;
    }
    p->b.span = span_from(p, lo);
    return build_op(&p->b, op, in.at, in.n, attrs);
}

typedef struct RepeatInputs {
    NodeList in;
    int n[3]; /* carries, slices, captures */
} RepeatInputs;

/* The type of the parameter: as written, else what the value in the outer region gives. */
static OutType param_type(Parser *p, const Node *value, bool slice, const Dim *dim) {
    OutType type = {.dtype = value->dtype, .shape = value->shape};
    memcpy(type.type, value->type, sizeof type.type);
    if (slice) {
        if (type.shape.n == 0 || type.shape.dims[0] != dim) {
            fail(p, p->at, "a slice of a value whose first dimension is repeated over, before this");
            return type;
        }
        type.shape = shape_of(type.shape.dims + 1, type.shape.n - 1);
    }
    if (!accept(p, ":")) return type;
    int32_t lo = p->at;
    OutType written = read_type(p);
    if (!p->failed && (written.dtype != type.dtype || !shape_equal(&written.shape, &type.shape)))
        fail(p, lo, "the type of the value outside");
    return written;
}

static void parse_param(Parser *p, Region *region, RepeatInputs *inputs, Region *outer) {
    static const char *const roles[] = {"carry", "slice", "capture"};
    skip(p, true);
    int32_t lo = p->at;
    Name name = read_value_name(p);
    expect(p, "=");
    int role = read_keyword(p, roles, 3, "carry, slice or capture");
    for (int later = role + 1; later < 3; later++)
        if (inputs->n[later]) fail(p, lo, "carries first, then slices, then captures");
    p->b.region = outer; /* `@tensor` is read outside */
    Node *value = read_value(p);
    p->b.region = region;
    if (p->failed) return;
    OutType type = param_type(p, value, role == 1, region->dim);
    if (p->failed) return;
    Node *param = region_add_param(&p->b, region, type.dtype, type.shape);
    memcpy(param->type, type.type, sizeof param->type);
    if (accept_word(p, "as")) param->name = read_word(p, "a name");
    define(p, name, param, lo);
    vec_push(p->graph->arena, &inputs->in, value);
    inputs->n[role]++;
}

static Node *parse_repeat(Parser *p, int32_t lo) {
    Dim *dim = read_dim(p);
    bool descending = accept_word(p, "descending");
    expect(p, "(");
    if (p->failed) return NULL;
    Region *outer = p->b.region, *region = region_open(&p->b, dim, descending);
    RepeatInputs inputs = {.n = {0}};
    skip(p, true);
    if (!accept(p, ")")) {
        do parse_param(p, region, &inputs, outer);
        while (accept_comma(p));
        expect(p, ")");
    }
    expect(p, "{");
    Parser saved = *p;
    memset(&p->nexts, 0, sizeof p->nexts);
    memset(&p->stacks, 0, sizeof p->stacks);
    parse_body(p);
    if (!p->failed && p->nexts.n != inputs.n[0]) fail(p, lo, "one `next` for each carry");
    Node *node = NULL;
    if (!p->failed) {
        NodeList results = {0};
        for (int i = 0; i < p->nexts.n; i++) vec_push(p->graph->arena, &results, p->nexts.at[i]);
        for (int i = 0; i < p->stacks.n; i++) vec_push(p->graph->arena, &results, p->stacks.at[i]);
        p->b.span = span_from(p, lo);
        node =
            region_close(&p->b, region, inputs.in.at, inputs.n[0], inputs.n[1], inputs.n[2], results.at, p->stacks.n);
    }
    memcpy(&p->nexts, &saved.nexts, sizeof p->nexts);
    memcpy(&p->stacks, &saved.stacks, sizeof p->stacks);
    return node;
}

/* `: f32[a] {...}, f32[b] backward as x`. Shapes are inferred; written ones must agree. */
static void parse_results(Parser *p, Node *node) {
    if (accept(p, ":")) {
        int n = node->n_outs ? node->n_outs : 1;
        for (int i = 0; i < n; i++) {
            if (i && !accept_comma(p)) fail(p, p->at, "a type for each result");
            skip(p, false);
            int32_t lo = p->at;
            OutType type = read_type(p);
            if (p->failed) return;
            DType dtype = node->n_outs ? node->outs[i].dtype : node->dtype;
            const Shape *shape = node->n_outs ? &node->outs[i].shape : &node->shape;
            if (type.dtype != dtype || !shape_equal(&type.shape, shape)) {
                char expected[160];
                snprintf(expected, sizeof expected, "the type that the operator gives, %s%s", dtype_name[dtype],
                         shape_text(p->graph->arena, shape));
                fail(p, lo, expected);
                return;
            }
            if (node->n_outs) memcpy(node->outs[i].type, type.type, sizeof type.type);
            if (i == 0) memcpy(node->type, type.type, sizeof type.type);
        }
    }
    node->backward = accept_word(p, "backward");
    if (accept_word(p, "as")) node->name = read_word(p, "a name");
}

static void parse_node(Parser *p) {
    int32_t lo = p->at;
    Name name = read_value_name(p);
    expect(p, "=");
    skip(p, false);
    int32_t at = p->at;
    Node *node = NULL;
    if (accept_word(p, "input")) {
        Tensor *tensor = read_tensor(p);
        if (tensor) {
            node = build_input(&p->b, tensor);
            memcpy(node->type, tensor->type, sizeof node->type);
        }
    } else if (accept_word(p, "repeat")) {
        node = parse_repeat(p, at);
    } else {
        node = parse_op(p, at);
    }
    if (!node || p->failed) {
        p->failed = true;
        return;
    }
    if (node->op == OP_POISON && diag_count(p->session, SEV_ERROR)) {
        p->failed = true; /* reported by the operator's inference */
        return;
    }
    parse_results(p, node);
    define(p, name, node, lo);
}

static void parse_output(Parser *p) {
    Tensor *tensor = NULL;
    bool accumulate = false;
    if (!peek(p, "%")) {
        tensor = read_tensor(p);
        accumulate = accept(p, "+=");
        if (!accumulate) expect(p, "=");
    }
    skip(p, false);
    int32_t lo = p->at;
    Node *value = read_value(p);
    if (p->failed) return;
    if (!tensor) {
        Name name = intern(p->session->names, arena_printf(p->graph->arena, "out%d", p->graph->outputs.n));
        tensor = graph_add_tensor(p->graph, name, CLASS_RESULT, value->dtype, value->shape, span_from(p, lo));
        memcpy(tensor->type, value->type, sizeof tensor->type);
    }
    graph_add_output(p->graph, tensor, value, accumulate);
}

/* ---- statements
 * ------------------------------------------------------------------------------------------------------- */

static void check_dims(Parser *p) {
    for (int i = 0; i < p->graph->dims.n; i++)
        if (p->graph->dims.at[i]->size == 0) fail(p, p->graph->dims.at[i]->span.lo, "a dimension that is declared");
}

static void parse_top_statement(Parser *p) {
    if (accept_word(p, "dim"))
        parse_dim_line(p);
    else if (accept_word(p, "mesh"))
        parse_mesh(p);
    else if (accept_word(p, "tensor"))
        parse_tensor(p);
    else if (accept_word(p, "output"))
        parse_output(p);
    else
        fail(p, p->at, "mesh, dim, tensor, output or a value");
}

static void parse_region_result(Parser *p) {
    bool next = accept_word(p, "next");
    if (!next && !accept_word(p, "stack")) {
        fail(p, p->at, "a value, next or stack");
        return;
    }
    Node *node = read_value(p);
    if (p->failed) return;
    if (next)
        vec_push(p->graph->arena, &p->nexts, node);
    else
        vec_push(p->graph->arena, &p->stacks, node);
}

/* Statements up to the closing brace, which is taken. */
static void parse_body(Parser *p) {
    bool top = p->b.region->parent == NULL;
    for (;;) {
        skip(p, true);
        if (p->failed || accept(p, "}")) return;
        if (peek(p, "%"))
            parse_node(p);
        else if (top)
            parse_top_statement(p);
        else
            parse_region_result(p);
        skip(p, false);
        char c = p->text[p->at];
        if (!p->failed && c != '\n' && c != ';' && c != '}') fail(p, p->at, "the end of the statement");
    }
}

static void resolve_ofs(Parser *p) {
    for (int i = 0; i < p->n_ofs && !p->failed; i++) {
        p->ofs[i].tensor->of = graph_find_tensor(p->graph, p->ofs[i].of);
        if (!p->ofs[i].tensor->of) fail(p, p->ofs[i].span.lo, "a tensor of this graph");
    }
}

Graph *graph_parse(Session *session, int32_t file) {
    const SourceFile *source = &session->files.at[file - 1];
    Parser p = {.session = session, .file = file, .text = source->text};
    p.graph = graph_new(session, session->arena, "graph");
    p.b = (Builder){.graph = p.graph, .region = &p.graph->top};
    skip(&p, true);
    expect(&p, "graph");
    Name name = read_word(&p, "the graph's name");
    if (!p.failed) p.graph->name = name;
    p.graph->micro = accept_word(&p, "micro");
    expect(&p, "{");
    parse_body(&p);
    skip(&p, true);
    if (!p.failed && p.text[p.at]) fail(&p, p.at, "the end of the text");
    if (!p.failed) check_dims(&p);
    if (!p.failed) resolve_ofs(&p);
    return p.failed ? NULL : p.graph;
}
