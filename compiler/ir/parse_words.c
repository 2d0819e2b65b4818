/* The words of graphs in text form: names, numbers, dimensions, meshes, types, tensors. The form is described in
 * parse.c. */
#include "ir/parse.h"

#include <math.h>
#include <stdlib.h>

/* ---- characters --------------------------------------------------------------------------------- */

Span gtext_span(const GraphText *p, int32_t lo) { return (Span){p->file, lo, p->at > lo ? p->at : lo + 1}; }

void gtext_fail(GraphText *p, int32_t lo, const char *expected) {
    if (p->failed) return;
    p->failed = true;
    const char *at = p->text + lo;
    int n = 0;
    while (at[n] && at[n] != '\n' && n < 24) n++;
    Diag *diag =
        diag_error(p->session, "P0090", (Span){p->file, lo, *at ? lo + 1 : lo}, "graph text: expected %s", expected);
    diag_label(diag, *at ? "here stands `%.*s`" : "the text ends here", n, at);
    diag_help(diag, "the form is described in compiler/ir/parse.c");
}

void gtext_skip(GraphText *p, bool lines) {
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

bool gtext_peek(GraphText *p, const char *token) {
    gtext_skip(p, false);
    return !p->failed && strncmp(p->text + p->at, token, strlen(token)) == 0;
}

bool gtext_accept(GraphText *p, const char *token) {
    if (!gtext_peek(p, token)) return false;
    p->at += (int32_t)strlen(token);
    return true;
}

void gtext_expect(GraphText *p, const char *token) {
    if (gtext_accept(p, token)) return;
    char quoted[24];
    snprintf(quoted, sizeof quoted, "`%s`", token);
    gtext_fail(p, p->at, quoted);
}

/* A separator inside parentheses or a list: newlines after it do not end the statement. */
bool gtext_accept_comma(GraphText *p) {
    if (!gtext_accept(p, ",")) return false;
    gtext_skip(p, true);
    return true;
}

bool gtext_is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '$';
}

bool gtext_word_follows(GraphText *p) {
    gtext_skip(p, false);
    char c = p->text[p->at];
    return !p->failed && (c == '"' || (gtext_is_word(c) && !(c >= '0' && c <= '9') && c != '.'));
}

Name gtext_read_word(GraphText *p, const char *expected) {
    gtext_skip(p, false);
    int32_t lo = p->at;
    const char *at = p->text + lo;
    if (*at == '"') {
        const char *end = strchr(at + 1, '"');
        if (end && !p->failed) {
            p->at += (int32_t)(end + 1 - at);
            return intern_n(p->session->names, at + 1, (size_t)(end - at - 1));
        }
    }
    while (!p->failed && gtext_is_word(p->text[p->at])) p->at++;
    if (p->at == lo) gtext_fail(p, lo, expected);
    return intern_n(p->session->names, at, (size_t)(p->at - lo));
}

/* A keyword: the whole word, not a prefix of another. */
bool gtext_accept_word(GraphText *p, const char *word) {
    size_t n = strlen(word);
    if (!gtext_peek(p, word) || gtext_is_word(p->text[p->at + (int32_t)n])) return false;
    p->at += (int32_t)n;
    return true;
}

double gtext_read_number(GraphText *p) {
    gtext_skip(p, false);
    char *end = NULL;
    double value = p->failed ? 0 : strtod(p->text + p->at, &end);
    if (p->failed) return 0;
    if (end == p->text + p->at)
        gtext_fail(p, p->at, "a number");
    else
        p->at = (int32_t)(end - p->text);
    return value;
}

/* Returns false, and fails, unless it is a whole number that a double holds exactly. */
int64_t gtext_read_integer(GraphText *p) {
    gtext_skip(p, false);
    int32_t lo = p->at;
    double value = gtext_read_number(p);
    if (p->failed) return 0;
    if (!(fabs(value) <= 9007199254740992.0) || value != floor(value)) {
        gtext_fail(p, lo, "a whole number");
        return 0;
    }
    return (int64_t)value;
}

/* ---- dimensions, meshes, types ----------------------------------------------------------------------------------- */

/* Dimensions may be named before they are declared (factors); such a one has size 0 until then. */
static Dim *dim_named(GraphText *p, Name name, int32_t lo) {
    Dim *dim = graph_find_dim(p->graph, name);
    return dim ? dim : graph_add_dim(p->graph, name, 0, gtext_span(p, lo));
}

Dim *gtext_read_dim(GraphText *p) {
    gtext_skip(p, false);
    int32_t lo = p->at;
    Name name = gtext_read_word(p, "a dimension");
    Dim *dim = p->failed ? NULL : graph_find_dim(p->graph, name);
    if (!dim && !p->failed) gtext_fail(p, lo, "a dimension declared above");
    return dim;
}

Shape gtext_read_dims(GraphText *p, const char *open, const char *close) {
    Shape shape = {.n = 0};
    gtext_expect(p, open);
    if (gtext_accept(p, close)) return shape;
    do {
        int32_t lo = p->at;
        Dim *dim = gtext_read_dim(p);
        if (p->failed) return shape;
        if (shape.n == MAX_RANK || shape_find(&shape, dim) >= 0)
            gtext_fail(p, lo, "at most 8 dimensions, each once");
        else
            shape_add(&shape, dim);
    } while (gtext_accept_comma(p));
    gtext_expect(p, close);
    return shape;
}

static void parse_factors(GraphText *p, Dim *dim) {
    Dim *factors[MAX_RANK];
    int n = 0;
    gtext_expect(p, "(");
    do {
        gtext_skip(p, false);
        int32_t lo = p->at;
        Name name = gtext_read_word(p, "a factor");
        if (p->failed) return;
        if (n == MAX_RANK) {
            gtext_fail(p, lo, "fewer factors");
            return;
        }
        factors[n++] = dim_named(p, name, lo);
    } while (gtext_accept_comma(p));
    gtext_expect(p, ")");
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

void gtext_declare_dims(GraphText *p) {
    do {
        gtext_skip(p, false);
        int32_t lo = p->at;
        Name name = gtext_read_word(p, "a dimension");
        if (p->failed) return;
        Dim *dim = dim_named(p, name, lo);
        if (dim->size) {
            gtext_fail(p, lo, "a dimension that is not declared yet");
            return;
        }
        move_to_end(p->graph, dim);
        dim->span = gtext_span(p, lo);
        gtext_expect(p, "=");
        dim->size = gtext_read_integer(p);
        if (!p->failed && dim->size < 1) gtext_fail(p, p->at, "a size of at least 1 before this");
        if (gtext_accept_word(p, "like")) {
            int32_t at = p->at;
            Name like = gtext_read_word(p, "a dimension");
            if (!p->failed) dim->like = dim_named(p, like, at);
        }
        if (gtext_accept_word(p, "factors")) parse_factors(p, dim);
        if (gtext_accept_word(p, "unpadded")) dim->unpadded = gtext_read_integer(p);
        dim->is_batch = gtext_accept_word(p, "batch");
        dim->at_position = gtext_accept_word(p, "position");
    } while (gtext_accept_comma(p));
}

void gtext_declare_mesh(GraphText *p) {
    Mesh *mesh = NEW(p->graph->arena, Mesh);
    do {
        gtext_skip(p, false);
        int32_t lo = p->at;
        if (mesh->n == MAX_MESH) gtext_fail(p, lo, "at most 8 mesh axes");
        Name name = gtext_read_word(p, "a mesh axis");
        gtext_expect(p, "=");
        int64_t size = gtext_read_integer(p);
        if (!p->failed && size < 1) gtext_fail(p, lo, "an axis of at least one rank");
        if (p->failed) return;
        mesh->axes[mesh->n++] = (MeshAxis){name, size, gtext_span(p, lo)};
    } while (gtext_accept_comma(p));
    p->graph->mesh = mesh;
}

DType gtext_read_dtype(GraphText *p) {
    gtext_skip(p, false);
    int32_t lo = p->at;
    Name name = gtext_read_word(p, "a type such as f32");
    for (int i = 0; i < DT_COUNT && !p->failed; i++)
        if (strcmp(name, dtype_name[i]) == 0) return (DType)i;
    gtext_fail(p, lo, "a type: f32, f64, bf16, f16, i32, u32 or bool");
    return DT_F32;
}

int gtext_read_keyword(GraphText *p, const char *const *words, int n, const char *expected) {
    gtext_skip(p, false);
    for (int i = 0; i < n; i++)
        if (gtext_accept_word(p, words[i])) return i;
    gtext_fail(p, p->at, expected);
    return 0;
}

static AxisType read_axis_type(GraphText *p) {
    AxisType type = {.kind = AXIS_REPLICATED};
    if (gtext_accept_word(p, "replicated")) return type;
    if (gtext_accept_word(p, "sharded")) {
        type.kind = AXIS_SHARDED;
        gtext_expect(p, "(");
        type.dim = gtext_read_dim(p);
        while (gtext_accept_comma(p))
            if (gtext_accept_word(p, "turn"))
                type.turn = (int)gtext_read_integer(p);
            else
                type.layout = (ShardLayout)gtext_read_keyword(p, layout_name, 3, "block, balanced or table");
    } else if (gtext_accept_word(p, "partial")) {
        type.kind = AXIS_PARTIAL;
        gtext_expect(p, "(");
        type.reduce = (ReduceKind)gtext_read_keyword(p, reduce_name, 4, "sum, max, min or or");
    } else if (gtext_accept_word(p, "at")) {
        type.kind = AXIS_AT;
        gtext_expect(p, "(");
        type.stages = (uint64_t)gtext_read_integer(p);
    } else {
        gtext_fail(p, p->at, "replicated, sharded(DIM), partial(REDUCTION) or at(STAGES)");
    }
    gtext_expect(p, ")");
    return type;
}

/* `f32[a, b] {axis: type, ...}` */
OutType gtext_read_type(GraphText *p) {
    OutType out = {.dtype = gtext_read_dtype(p)};
    out.shape = gtext_read_dims(p, "[", "]");
    if (!p->graph->mesh || !gtext_accept(p, "{")) return out;
    do {
        gtext_skip(p, false);
        int32_t lo = p->at;
        Name name = gtext_read_word(p, "a mesh axis");
        int axis = 0;
        while (axis < p->graph->mesh->n && p->graph->mesh->axes[axis].name != name) axis++;
        if (axis == p->graph->mesh->n) gtext_fail(p, lo, "an axis of the mesh");
        gtext_expect(p, ":");
        AxisType type = read_axis_type(p);
        if (p->failed) return out;
        out.type[axis] = type;
    } while (gtext_accept_comma(p));
    gtext_expect(p, "}");
    return out;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

void gtext_declare_tensor(GraphText *p) {
    gtext_skip(p, false);
    int32_t lo = p->at;
    Name name = gtext_read_word(p, "a tensor");
    if (!p->failed && graph_find_tensor(p->graph, name)) gtext_fail(p, lo, "a tensor that is not declared yet");
    gtext_expect(p, ":");
    TensorClass class = CLASS_DATA;
    for (int i = 0; i < CLASS_COUNT; i++)
        if (gtext_accept_word(p, tensor_class_name[i])) class = (TensorClass)i;
    OutType type = gtext_read_type(p);
    if (p->failed) return;
    Tensor *tensor = graph_add_tensor(p->graph, name, class, type.dtype, type.shape, gtext_span(p, lo));
    memcpy(tensor->type, type.type, sizeof tensor->type);
    if (gtext_accept_word(p, "of")) {
        gtext_skip(p, false);
        int32_t at = p->at;
        Name of = gtext_read_word(p, "a tensor");
        vec_reserve_(p->graph->arena, (void **)&p->ofs, &p->cap_ofs, p->n_ofs + 1, sizeof *p->ofs);
        p->ofs[p->n_ofs].tensor = tensor;
        p->ofs[p->n_ofs].of = of;
        p->ofs[p->n_ofs++].span = gtext_span(p, at);
    }
    if (gtext_accept_word(p, "group")) tensor->group = gtext_read_word(p, "a parameter group");
    tensor->frozen = gtext_accept_word(p, "frozen");
    tensor->is_gain = gtext_accept_word(p, "gain");
}

Tensor *gtext_read_tensor(GraphText *p) {
    gtext_skip(p, false);
    int32_t lo = p->at;
    Name name = gtext_read_word(p, "a tensor");
    Tensor *tensor = p->failed ? NULL : graph_find_tensor(p->graph, name);
    if (!tensor) gtext_fail(p, lo, "a tensor declared above");
    return tensor;
}
