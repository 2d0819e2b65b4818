/* Graphs from text: the form of goldens, of pass tests and of operator cases.
 *
 *     graph body micro {                          # micro: runs once for each micro-batch
 *         mesh data = 2, tensor = 2
 *         dim batch = 4 batch, seq = 8, key = 8 like seq, now = 1 position
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
#include "ir/parse.h"

#include <math.h>

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static void parse_body(GraphText *p);

static Name read_value_name(GraphText *p) {
    gtext_expect(p, "%");
    return gtext_read_word(p, "a value");
}

static Node *read_value(GraphText *p) {
    gtext_skip(p, false);
    int32_t lo = p->at;
    if (gtext_accept(p, "@")) {
        Tensor *tensor = gtext_read_tensor(p);
        return p->failed ? NULL : build_input(&p->b, tensor);
    }
    Name name = read_value_name(p);
    Node *node = p->failed ? NULL : map_get(&p->values, name);
    if (!node) gtext_fail(p, lo, "a value defined above");
    return node;
}

static void define(GraphText *p, Name name, Node *node, int32_t lo) {
    if (p->failed) return;
    if (map_get(&p->values, name))
        gtext_fail(p, lo, "a value that is not defined yet");
    else
        map_put(p->graph->arena, &p->values, name, node);
}

static AttrValue read_list(GraphText *p) {
    VEC(double) list = {0};
    gtext_expect(p, "[");
    do vec_push(p->graph->arena, &list, gtext_read_number(p));
    while (gtext_accept_comma(p));
    gtext_expect(p, "]");
    return (AttrValue){.list = list.at, .integer = list.n};
}

static AttrValue read_attr(GraphText *p, AttrKind kind) {
    AttrValue value = {.integer = 0};
    switch (kind) {
    case ATTR_NONE: break;
    case ATTR_INT:
        value.integer = gtext_read_integer(p);
        value.number = (double)value.integer;
        break;
    case ATTR_FLOAT: value.number = gtext_read_number(p); break;
    case ATTR_BOOL:
        value.integer = gtext_accept_word(p, "true");
        if (!value.integer && !gtext_accept_word(p, "false")) gtext_fail(p, p->at, "true or false");
        break;
    case ATTR_NAME:
        if (!gtext_accept_word(p, "none")) value.name = gtext_read_word(p, "a name");
        break;
    case ATTR_DTYPE: value.integer = (int64_t)gtext_read_dtype(p); break;
    case ATTR_DIM: {
        if (gtext_accept_word(p, "none")) break;
        Dim *dim = gtext_read_dim(p);
        if (dim) value.dims = shape_of(&dim, 1);
        break;
    }
    case ATTR_DIMS: value.dims = gtext_read_dims(p, "[", "]"); break;
    case ATTR_LIST: value = read_list(p); break;
    }
    return value;
}

static bool attr_follows(GraphText *p) {
    if (!gtext_word_follows(p)) return false;
    int32_t at = p->at;
    while (gtext_is_word(p->text[p->at])) p->at++;
    bool is_attr = gtext_peek(p, "=");
    p->at = at;
    return is_attr;
}

/* `name = value, ...` up to the closing parenthesis; attributes that are not written have their standard value. */
static void read_attrs(GraphText *p, const OpInfo *info, AttrValue *attrs) {
    bool given[sizeof info->attrs / sizeof info->attrs[0]] = {false};
    int n = op_n_attrs(info);
    int32_t lo = p->at;
    while (attr_follows(p)) {
        lo = p->at;
        Name name = gtext_read_word(p, "an attribute");
        int i = 0;
        while (i < n && strcmp(info->attrs[i].name, name) != 0) i++;
        if (i == n || given[i]) {
            gtext_fail(p, lo, i == n ? "an attribute of this operator" : "each attribute once");
            return;
        }
        gtext_expect(p, "=");
        int32_t at = p->at;
        attrs[i] = read_attr(p, info->attrs[i].kind);
        if (info->attrs[i].kind == ATTR_DIM && attrs[i].dims.n == 0 && isnan(info->attrs[i].standard))
            gtext_fail(p, at, "a dimension");
        given[i] = true;
        if (!gtext_accept_comma(p)) break;
    }
    for (int i = 0; i < n && !p->failed; i++) {
        if (given[i]) continue;
        if (isnan(info->attrs[i].standard)) {
            char expected[64];
            snprintf(expected, sizeof expected, "attribute `%s`", info->attrs[i].name);
            gtext_fail(p, lo, expected);
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

static Node *parse_op(GraphText *p, int32_t lo) {
    Name name = gtext_read_word(p, "an operator");
    Op op = p->failed ? OP_COUNT : op_find(name);
    if (op == OP_COUNT || op == OP_REPEAT || op == OP_INPUT || op == OP_PARAM) {
        gtext_fail(p, lo, "an operator of ops.def");
        return NULL;
    }
    gtext_expect(p, "(");
    VEC(Node *) in = {0};
    while (gtext_peek(p, "%") || gtext_peek(p, "@")) {
        Node *node = read_value(p);
        if (p->failed) return NULL;
        vec_push(p->graph->arena, &in, node);
        if (!gtext_accept_comma(p)) break;
    }
    AttrValue attrs[sizeof op_table[0]->attrs / sizeof op_table[0]->attrs[0]] = {{.integer = 0}};
    read_attrs(p, op_table[op], attrs);
    gtext_expect(p, ")");
    if (p->failed) return NULL;
    int wanted = count_operands(op_table[op]);
    bool fewer_only = op_table[op]->variadic != NULL; /* the last operand may be repeated */
    if (fewer_only ? in.n < wanted : in.n != wanted) {
        char expected[64];
        snprintf(expected, sizeof expected, "%d operands%s, not %d", wanted, fewer_only ? " at least" : "", in.n);
        gtext_fail(p, lo, expected);
        return NULL;
    }
    if (op == OP_RESULT && (attrs[0].integer < 0 || attrs[0].integer >= in.at[0]->n_outs)) {
        gtext_fail(p, lo, "the index of a result");
        return NULL;
    }
    if (op == OP_LAYER_INDEX) {
        if (p->b.region->parent) return build_layer_index(&p->b);
        gtext_fail(p, lo, "layer_index inside a repeat");
        return NULL;
    }
    p->b.span = gtext_span(p, lo);
    return build_op(&p->b, op, in.at, in.n, attrs);
}

typedef struct RepeatInputs {
    NodeList in;
    int n[3]; /* carries, slices, captures */
} RepeatInputs;

/* The type of the parameter: as written, else what the value in the outer region gives. */
static OutType param_type(GraphText *p, const Node *value, bool slice, const Dim *dim) {
    OutType type = {.dtype = value->dtype, .shape = value->shape};
    memcpy(type.type, value->type, sizeof type.type);
    if (slice) {
        if (type.shape.n == 0 || type.shape.dims[0] != dim) {
            gtext_fail(p, p->at, "a slice of a value whose first dimension is repeated over, before this");
            return type;
        }
        type.shape = shape_of(type.shape.dims + 1, type.shape.n - 1);
    }
    if (!gtext_accept(p, ":")) return type;
    int32_t lo = p->at;
    OutType written = gtext_read_type(p);
    if (!p->failed && (written.dtype != type.dtype || !shape_equal(&written.shape, &type.shape)))
        gtext_fail(p, lo, "the type of the value outside");
    return written;
}

static void parse_param(GraphText *p, Region *region, RepeatInputs *inputs, Region *outer) {
    static const char *const roles[] = {"carry", "slice", "capture"};
    gtext_skip(p, true);
    int32_t lo = p->at;
    Name name = read_value_name(p);
    gtext_expect(p, "=");
    int role = gtext_read_keyword(p, roles, 3, "carry, slice or capture");
    for (int later = role + 1; later < 3; later++)
        if (inputs->n[later]) gtext_fail(p, lo, "carries first, then slices, then captures");
    p->b.region = outer; /* `@tensor` is read outside */
    Node *value = read_value(p);
    p->b.region = region;
    if (p->failed) return;
    OutType type = param_type(p, value, role == 1, region->dim);
    if (p->failed) return;
    Node *param = region_add_param(&p->b, region, type.dtype, type.shape);
    memcpy(param->type, type.type, sizeof param->type);
    if (gtext_accept_word(p, "as")) param->name = gtext_read_word(p, "a name");
    define(p, name, param, lo);
    vec_push(p->graph->arena, &inputs->in, value);
    inputs->n[role]++;
}

static Node *parse_repeat(GraphText *p, int32_t lo) {
    Dim *dim = gtext_read_dim(p);
    bool descending = gtext_accept_word(p, "descending");
    gtext_expect(p, "(");
    if (p->failed) return NULL;
    Region *outer = p->b.region, *region = region_open(&p->b, dim, descending);
    RepeatInputs inputs = {.n = {0}};
    gtext_skip(p, true);
    if (!gtext_accept(p, ")")) {
        do parse_param(p, region, &inputs, outer);
        while (gtext_accept_comma(p));
        gtext_expect(p, ")");
    }
    gtext_expect(p, "{");
    GraphText saved = *p;
    memset(&p->nexts, 0, sizeof p->nexts);
    memset(&p->stacks, 0, sizeof p->stacks);
    parse_body(p);
    if (!p->failed && p->nexts.n != inputs.n[0]) gtext_fail(p, lo, "one `next` for each carry");
    Node *node = NULL;
    if (!p->failed) {
        NodeList results = {0};
        for (int i = 0; i < p->nexts.n; i++) vec_push(p->graph->arena, &results, p->nexts.at[i]);
        for (int i = 0; i < p->stacks.n; i++) vec_push(p->graph->arena, &results, p->stacks.at[i]);
        p->b.span = gtext_span(p, lo);
        node =
            region_close(&p->b, region, inputs.in.at, inputs.n[0], inputs.n[1], inputs.n[2], results.at, p->stacks.n);
    }
    memcpy(&p->nexts, &saved.nexts, sizeof p->nexts);
    memcpy(&p->stacks, &saved.stacks, sizeof p->stacks);
    return node;
}

/* `: f32[a] {...}, f32[b] backward as x`. Shapes are inferred; written ones must agree. */
static void parse_results(GraphText *p, Node *node) {
    if (gtext_accept(p, ":")) {
        int n = node->n_outs ? node->n_outs : 1;
        for (int i = 0; i < n; i++) {
            if (i && !gtext_accept_comma(p)) gtext_fail(p, p->at, "a type for each result");
            gtext_skip(p, false);
            int32_t lo = p->at;
            OutType type = gtext_read_type(p);
            if (p->failed) return;
            DType dtype = node->n_outs ? node->outs[i].dtype : node->dtype;
            const Shape *shape = node->n_outs ? &node->outs[i].shape : &node->shape;
            if (type.dtype != dtype || !shape_equal(&type.shape, shape)) {
                char expected[160];
                snprintf(expected, sizeof expected, "the type that the operator gives, %s%s", dtype_name[dtype],
                         shape_text(p->graph->arena, shape));
                gtext_fail(p, lo, expected);
                return;
            }
            if (node->n_outs) memcpy(node->outs[i].type, type.type, sizeof type.type);
            if (i == 0) memcpy(node->type, type.type, sizeof type.type);
        }
    }
    node->backward = gtext_accept_word(p, "backward");
    node->deferred = node->backward && gtext_accept_word(p, "deferred");
    if (gtext_accept_word(p, "as")) node->name = gtext_read_word(p, "a name");
}

static void parse_node(GraphText *p) {
    int32_t lo = p->at;
    Name name = read_value_name(p);
    gtext_expect(p, "=");
    gtext_skip(p, false);
    int32_t at = p->at;
    Node *node = NULL;
    if (gtext_accept_word(p, "input")) {
        Tensor *tensor = gtext_read_tensor(p);
        if (tensor) {
            node = build_input(&p->b, tensor);
            memcpy(node->type, tensor->type, sizeof node->type);
        }
    } else if (gtext_accept_word(p, "repeat")) {
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

static void parse_output(GraphText *p) {
    Tensor *tensor = NULL;
    bool accumulate = false;
    if (!gtext_peek(p, "%")) {
        tensor = gtext_read_tensor(p);
        accumulate = gtext_accept(p, "+=");
        if (!accumulate) gtext_expect(p, "=");
    }
    gtext_skip(p, false);
    int32_t lo = p->at;
    Node *value = read_value(p);
    if (p->failed) return;
    if (!tensor) {
        Name name = intern(p->session->names, arena_printf(p->graph->arena, "out%d", p->graph->outputs.n));
        tensor = graph_add_tensor(p->graph, name, CLASS_RESULT, value->dtype, value->shape, gtext_span(p, lo));
        memcpy(tensor->type, value->type, sizeof tensor->type);
    }
    graph_add_output(p->graph, tensor, value, accumulate);
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static void check_dims(GraphText *p) {
    for (int i = 0; i < p->graph->dims.n; i++)
        if (p->graph->dims.at[i]->size == 0)
            gtext_fail(p, p->graph->dims.at[i]->span.lo, "a dimension that is declared");
}

static void parse_top_statement(GraphText *p) {
    if (gtext_accept_word(p, "dim"))
        gtext_declare_dims(p);
    else if (gtext_accept_word(p, "mesh"))
        gtext_declare_mesh(p);
    else if (gtext_accept_word(p, "tensor"))
        gtext_declare_tensor(p);
    else if (gtext_accept_word(p, "output"))
        parse_output(p);
    else
        gtext_fail(p, p->at, "mesh, dim, tensor, output or a value");
}

static void parse_region_result(GraphText *p) {
    bool next = gtext_accept_word(p, "next");
    if (!next && !gtext_accept_word(p, "stack")) {
        gtext_fail(p, p->at, "a value, next or stack");
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
static void parse_body(GraphText *p) {
    bool top = p->b.region->parent == NULL;
    for (;;) {
        gtext_skip(p, true);
        if (p->failed || gtext_accept(p, "}")) return;
        if (gtext_peek(p, "%"))
            parse_node(p);
        else if (top)
            parse_top_statement(p);
        else
            parse_region_result(p);
        gtext_skip(p, false);
        char c = p->text[p->at];
        if (!p->failed && c != '\n' && c != ';' && c != '}') gtext_fail(p, p->at, "the end of the statement");
    }
}

static void resolve_ofs(GraphText *p) {
    for (int i = 0; i < p->n_ofs && !p->failed; i++) {
        p->ofs[i].tensor->of = graph_find_tensor(p->graph, p->ofs[i].of);
        if (!p->ofs[i].tensor->of) gtext_fail(p, p->ofs[i].span.lo, "a tensor of this graph");
    }
}

Graph *graph_parse(Session *session, int32_t file) {
    const SourceFile *source = &session->files.at[file - 1];
    GraphText p = {.session = session, .file = file, .text = source->text};
    p.graph = graph_new(session, session->arena, "graph");
    p.b = (Builder){.graph = p.graph, .region = &p.graph->top};
    gtext_skip(&p, true);
    gtext_expect(&p, "graph");
    Name name = gtext_read_word(&p, "the graph's name");
    if (!p.failed) p.graph->name = name;
    p.graph->micro = gtext_accept_word(&p, "micro");
    gtext_expect(&p, "{");
    parse_body(&p);
    gtext_skip(&p, true);
    if (!p.failed && p.text[p.at]) gtext_fail(&p, p.at, "the end of the text");
    if (!p.failed) check_dims(&p);
    if (!p.failed) resolve_ofs(&p);
    return p.failed ? NULL : p.graph;
}
