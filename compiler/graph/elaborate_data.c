/* The data of the training run against the model's inputs: every input is filled by something, and everything that is
 * read fills an input. */
#include "graph/elaborate.h"

/* Filled from the data itself, not from another input. */
static bool is_source(const Tensor *tensor) { return tensor->class == CLASS_DATA && !tensor->of; }

static bool is_text(const Tensor *tensor) {
    const Shape *shape = &tensor->shape;
    return tensor->dtype == DT_I32 && shape->n >= 2 && !shape->dims[shape->n - 1]->is_batch;
}

static const Tensor *source_named(const Elaborator *e, Name name) {
    for (int i = 0; i < e->graph->tensors.n; i++)
        if (is_source(e->graph->tensors.at[i]) && e->graph->tensors.at[i]->name == name) return e->graph->tensors.at[i];
    return NULL;
}

/* ---- arrays: one for each input ----------------------------------------------------------------- */

static bool has_column(const Dataset *data, Name name) {
    for (int i = 0; i < data->columns.names.n; i++)
        if (data->columns.names.at[i] == name) return true;
    return false;
}

static void check_columns(Elaborator *e, const Dataset *data) {
    VEC(Name) names = {0};
    bool unknown = false;
    for (int i = 0; i < e->graph->tensors.n; i++)
        if (is_source(e->graph->tensors.at[i])) vec_push(e->arena, &names, e->graph->tensors.at[i]->name);
    for (int i = 0; i < data->columns.names.n; i++) {
        Name name = data->columns.names.at[i];
        if (source_named(e, name)) continue;
        Span span = i < data->columns.spans.n ? data->columns.spans.at[i] : data->span;
        Diag *d = diag_error(e->s, "P0520", span, "the model has no input `%s`", name);
        help_candidates(e, d, name, span, names.at, names.n);
        unknown = true;
    }
    for (int i = 0; i < names.n && !unknown; i++) {
        if (has_column(data, names.at[i])) continue;
        Diag *d = diag_error(e->s, "P0521", data->span, "no array fills input `%s`", names.at[i]);
        diag_note(d, source_named(e, names.at[i])->span, "declared here");
        diag_help(d, "add `%s = \"%s.npy\"`", names.at[i], names.at[i]);
    }
}

/* ---- text and tokens: one sequence of ids ------------------------------------------------------- */

static void check_text(Elaborator *e, const Dataset *data) {
    const char *kind = data->kind == DATA_TEXT ? "text" : "tokens";
    const Tensor *filled = NULL;
    for (int i = 0; i < e->graph->tensors.n; i++) {
        const Tensor *tensor = e->graph->tensors.at[i];
        if (!is_source(tensor)) continue;
        if (is_text(tensor) && !filled) {
            filled = tensor;
            continue;
        }
        Diag *d = diag_error(e->s, "P0521", data->span, "`%s` cannot fill input `%s`", kind, tensor->name);
        diag_note(d, tensor->span, "declared here");
        if (filled)
            diag_help(d, "it is one sequence, and fills `%s`; what follows from it is a target: `= next(%s)`",
                      filled->name, filled->name);
        else
            diag_help(d, "it is a sequence of ids, `int[batch, seq]`; other inputs come from `arrays(%s = \"%s.npy\")`",
                      tensor->name, tensor->name);
    }
}

/* ---- several data sets: `data task = [a, b]` ---------------------------------------------------- */

static void check_dimension(Elaborator *e) {
    const Train *train = e->train;
    Dim *dim = graph_find_dim(e->graph, train->data_dim);
    if (!dim) {
        VEC(Name) names = {0};
        for (int i = 0; i < e->graph->dims.n; i++) vec_push(e->arena, &names, e->graph->dims.at[i]->name);
        Diag *d = diag_error(e->s, "P0522", train->data_dim_span, "the model has no dimension `%s`", train->data_dim);
        help_candidates(e, d, train->data_dim, train->data_dim_span, names.at, names.n);
        return;
    }
    if (dim->size != train->data.n) {
        Diag *d = diag_error(e->s, "P0522", train->data_dim_span, "`%s` is %lld, but %d data sets are given", dim->name,
                             (long long)dim->size, train->data.n);
        diag_note(d, dim->span, "declared here");
        diag_help(d, "give one data set for each position of `%s`", dim->name);
        return;
    }
    for (int i = 0; i < e->graph->tensors.n; i++) {
        const Tensor *tensor = e->graph->tensors.at[i];
        if (tensor->class != CLASS_DATA) continue;
        const Shape *shape = &tensor->shape;
        if (shape->n > 1 && shape->dims[0] == dim && shape->dims[1]->is_batch) continue;
        bool has = shape_find(shape, dim) >= 0;
        Diag *d =
            has ? diag_error(e->s, "P0522", tensor->span, "`%s` is over %s", tensor->name, shape_text(e->arena, shape))
                : diag_error(e->s, "P0522", tensor->span, "input `%s` has no dimension `%s`", tensor->name, dim->name);
        diag_note(d, train->data_dim_span, "each position of `%s` has a data set of its own", dim->name);
        diag_help(d, "let it begin with `%s` and `batch`: `[%s, batch, ...]`", dim->name, dim->name);
    }
    if (train->validation.n) {
        Diag *d = diag_error(e->s, "P0522", train->validation.at[0].span,
                             "an evaluation set beside a data set for each `%s`", dim->name);
        diag_help(d, "leave it away: `split` keeps a share of each data set for evaluation");
    }
    dim->has_data = true;
}

void data_check(Elaborator *e) {
    const Train *train = e->train;
    if (train->data_dim && train->data.n > 0) check_dimension(e);
    for (int k = 0; k < 2; k++) {
        const Dataset *sets = k ? train->validation.at : train->data.at;
        int n = k ? train->validation.n : train->data.n;
        for (int i = 0; i < n; i++) {
            if (sets[i].kind == DATA_ARRAYS)
                check_columns(e, &sets[i]);
            else
                check_text(e, &sets[i]);
        }
    }
}
