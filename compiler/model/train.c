/* The training run: `train { ... }`.
 *
 * In: the block's properties, and --set. Out: a Train with every number in range. What must be said (model, data,
 * batch, steps, optimizer) is asked for; what may be left out has the default written at train_defaults. Numbers that a
 * mistake made unknown stay 0, and later checks pass over them. */
#include <math.h>

#include "model/resolve.h"

static const char *const train_properties[] = {"model",     "data", "validation", "split", "batch", "steps",
                                               "optimizer", "clip", "eval",       "save",  "seed",  "freeze"};
enum { N_PROPERTIES = sizeof train_properties / sizeof train_properties[0] };

typedef struct TrainReader {
    Resolver *r;
    FileScope *scope;
    Train *train;
    Map seen; /* Name -> Stmt */
} TrainReader;

static bool stated(const TrainReader *t, const char *property) {
    return map_get(&t->seen, intern(t->r->s->names, property)) != NULL;
}

static const Expr *set_value(TrainReader *t, const char *name) { return setting_find(t->r, name, "the training run"); }

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* `arrays(image = "x.npy", label = "y.npy")` */
static bool read_columns(Resolver *r, FileScope *scope, const Expr *call, Dataset *out) {
    bool ok = true;
    for (int i = 0; i < call->call.n; i++) {
        const Arg *arg = &call->call.at[i];
        const char *path = NULL;
        if (arg->name == NULL) {
            Diag *d = diag_error(r->s, "P0502", arg->value->span, "an array has no name");
            diag_help(d, "name the input that it fills: `arrays(image = \"images.npy\", label = \"labels.npy\")`");
            ok = false;
        } else if (take_text(r, scope, arg->name, arg->value, &path)) {
            vec_push(r->arena, &out->columns.names, arg->name);
            vec_push(r->arena, &out->columns.paths, path);
            vec_push(r->arena, &out->columns.spans, arg->name_span);
        } else {
            ok = false;
        }
    }
    return ok;
}

bool dataset_resolve(Resolver *r, FileScope *scope, const Expr *e, Dataset *out) {
    static const char *const kinds[] = {"text", "tokens", "arrays"};
    *out = (Dataset){.span = e->span};
    if (e->kind == EXPR_ERROR) return false;
    if (e->kind != EXPR_CALL || e->args.at[0]->kind != EXPR_NAME) {
        Diag *d = diag_error(r->s, "P0502", e->span, "this is not a data set");
        if (e->kind == EXPR_STRING)
            diag_help(d, "say what the file holds: `text(\"%s\")` or `tokens(\"%s\")`", e->text, e->text);
        else
            diag_help(d,
                      "write `text(\"corpus/*.txt\")`, `tokens(\"corpus/*.bin\")` or `arrays(image = \"images.npy\")`");
        return false;
    }
    const Expr *kind = e->args.at[0];
    int index = 0;
    while (index < 3 && strcmp(kind->name, kinds[index]) != 0) index++;
    if (index == 3) {
        Diag *d = diag_error(r->s, "P0502", kind->span, "there is no kind of data `%s`", kind->name);
        help_nearest(r, d, kind->name, kinds, 3, kind->span);
        return false;
    }
    out->kind = index == 0 ? DATA_TEXT : index == 1 ? DATA_TOKENS : DATA_ARRAYS;
    if (e->call.n == 0) {
        diag_error(r->s, "P0502", e->span, "`%s` names no file", kind->name);
        return false;
    }
    if (out->kind == DATA_ARRAYS) return read_columns(r, scope, e, out);
    bool ok = true;
    for (int i = 0; i < e->call.n; i++) {
        const char *path = NULL;
        if (e->call.at[i].name != NULL) {
            diag_error(r->s, "P0502", e->call.at[i].name_span, "`%s` takes paths, and no `%s`", kind->name,
                       e->call.at[i].name);
            ok = false;
        } else if (take_text(r, scope, kind->name, e->call.at[i].value, &path)) {
            vec_push(r->arena, &out->paths, path);
        } else {
            ok = false;
        }
    }
    return ok;
}

/* One data set, or `task = [a, b]`: one for each task. */
static void read_data(TrainReader *t, const Property *p) {
    Resolver *r = t->r;
    if (p->stmt->bindings.n == 0) {
        Dataset one;
        if (property_single(r, p) && dataset_resolve(r, t->scope, p->items[0], &one))
            vec_push(r->arena, &t->train->data, one);
        return;
    }
    if (p->n > 0 || p->stmt->bindings.n > 1) {
        Diag *d = diag_error(r->s, "P0132", p->n > 0 ? p->items[0]->span : p->stmt->bindings.at[1].name_span,
                             "`data` takes one value, or one list with a dimension");
        diag_help(d, "write `data task = [text(\"a/*\"), text(\"b/*\")]`");
        return;
    }
    const Binding *binding = &p->stmt->bindings.at[0];
    t->train->data_dim = binding->name;
    t->train->data_dim_span = binding->name_span;
    const Expr *list = binding->value;
    if (list->kind != EXPR_LIST) {
        Diag *d = diag_error(r->s, "P0502", list->span, "`%s` needs a list of data sets", binding->name);
        diag_help(d, "write one for each: `data %s = [text(\"a/*\"), text(\"b/*\")]`", binding->name);
        return;
    }
    for (int i = 0; i < list->args.n; i++) {
        Dataset one;
        if (dataset_resolve(r, t->scope, list->args.at[i], &one)) vec_push(r->arena, &t->train->data, one);
    }
}

/* One data set, or several with names: `validation code = text("a.txt"), prose = text("b.txt")`. */
static void read_validation(TrainReader *t, const Property *p) {
    Resolver *r = t->r;
    Dataset one;
    for (int i = 0; i < p->stmt->bindings.n; i++) {
        const Binding *binding = &p->stmt->bindings.at[i];
        if (!dataset_resolve(r, t->scope, binding->value, &one)) continue;
        one.name = binding->name;
        vec_push(r->arena, &t->train->validation, one);
    }
    if (p->stmt->bindings.n == 0 && property_single(r, p) && dataset_resolve(r, t->scope, p->items[0], &one))
        vec_push(r->arena, &t->train->validation, one);
}

/* ---- `eval every 250 on 20 batches`, `save every 1000 to "checkpoints" keep 3` ------------------ */

typedef struct Clause {
    const char *word, *unit; /* `unit`: a word that may follow the value */
    const char *setting;
    int64_t *number; /* one of the two */
    const char **text;
    const Expr *value;
} Clause;

static Clause *find_clause(Clause *clauses, int n, const Expr *word) {
    for (int i = 0; i < n; i++)
        if (expr_is_word(word, clauses[i].word)) return &clauses[i];
    return NULL;
}

static bool split_clauses(TrainReader *t, const Property *p, const char *form, Clause *clauses, int n) {
    for (int i = 0; i < p->n;) {
        Clause *clause = find_clause(clauses, n, p->items[i]);
        if (clause == NULL || clause->value != NULL || i + 1 >= p->n) {
            if (p->items[i]->kind == EXPR_ERROR) return false;
            Diag *d = diag_error(t->r->s, "P0132", p->items[i]->span,
                                 clause == NULL          ? "`%s` does not understand this"
                                 : clause->value != NULL ? "`%s` says this twice"
                                                         : "in `%s`, the value after this word is missing",
                                 p->name);
            Name words[8];
            int known = 0;
            for (int k = 0; k < n; k++) {
                words[known++] = clauses[k].word;
                if (clauses[k].unit != NULL) words[known++] = clauses[k].unit;
            }
            Name near =
                p->items[i]->kind == EXPR_NAME && clause == NULL ? nearest_name(p->items[i]->name, words, known) : NULL;
            if (near != NULL) {
                diag_help(d, "did you mean `%s`?", near);
                diag_fix(d, p->items[i]->span, near);
            } else {
                diag_help(d, "write `%s`", form);
            }
            return false;
        }
        clause->value = p->items[i + 1];
        i += 2;
        if (i < p->n && clause->unit != NULL && expr_is_word(p->items[i], clause->unit)) i++;
    }
    return true;
}

/* Reads the clauses; --set wins over the text. Returns false when the first one is missing or something is wrong. */
static bool read_clauses(TrainReader *t, const Property *p, const char *form, Clause *clauses, int n) {
    if (p != NULL && !split_clauses(t, p, form, clauses, n)) return false;
    bool ok = true;
    for (int i = 0; i < n; i++) {
        const Expr *given = set_value(t, clauses[i].setting);
        const Expr *value = given != NULL ? given : clauses[i].value;
        if (value == NULL) continue;
        if (clauses[i].number != NULL)
            ok &= take_integer(t->r, t->scope, clauses[i].setting, value, 1, clauses[i].number);
        else
            ok &= take_text(t->r, t->scope, clauses[i].setting, value, clauses[i].text);
        clauses[i].value = value;
    }
    return ok;
}

static void read_eval(TrainReader *t, const Property *p) {
    Clause clauses[] = {{"every", "steps", "eval.every", &t->train->eval_every, NULL, NULL},
                        {"on", "batches", "eval.batches", &t->train->eval_batches, NULL, NULL}};
    const char *form = "eval every 250 on 20 batches";
    if (!read_clauses(t, p, form, clauses, 2)) return;
    if (clauses[0].value != NULL && clauses[1].value != NULL) return;
    if (p == NULL && clauses[0].value == NULL && clauses[1].value == NULL) return;
    Diag *d = diag_error(t->r->s, "P0132", p != NULL ? p->name_span : t->train->span, "`eval` does not say %s",
                         clauses[0].value == NULL ? "how often" : "on how many batches");
    diag_help(d, "write `%s`", form);
}

static void read_save(TrainReader *t, const Property *p) {
    Clause clauses[] = {{"every", "steps", "save.every", &t->train->save_every, NULL, NULL},
                        {"to", NULL, "save.to", NULL, &t->train->save_to, NULL},
                        {"keep", NULL, "save.keep", &t->train->save_keep, NULL, NULL}};
    const char *form = "save every 1000 to \"checkpoints\" keep 3";
    if (!read_clauses(t, p, form, clauses, 3)) return;
    bool any = clauses[0].value != NULL || clauses[1].value != NULL || clauses[2].value != NULL;
    if ((p == NULL && !any) || (clauses[0].value != NULL && clauses[1].value != NULL)) return;
    Diag *d = diag_error(t->r->s, "P0132", p != NULL ? p->name_span : t->train->span, "`save` does not say %s",
                         clauses[0].value == NULL ? "how often" : "where to");
    diag_help(d, "write `%s`", form);
}

/* ---- the other properties ----------------------------------------------------------------------- */

static void read_integer(TrainReader *t, const Property *p, const char *name, int64_t least, int64_t *out) {
    const Expr *given = set_value(t, name);
    if (given == NULL && (p == NULL || !property_single(t->r, p))) return;
    int64_t value;
    if (take_integer(t->r, t->scope, name, given != NULL ? given : p->items[0], least, &value)) *out = value;
}

static void read_number(TrainReader *t, const Property *p, const char *name, double low, double high, double *out) {
    const Expr *given = set_value(t, name);
    if (given == NULL && (p == NULL || !property_single(t->r, p))) return;
    const Expr *e = given != NULL ? given : p->items[0];
    double value;
    if (!take_number(t->r, t->scope, name, e, &value)) return;
    if (value > low && value < high) {
        *out = value;
        return;
    }
    if (isinf(high))
        diag_error(t->r->s, "P0129", e->span, "`%s` is %g, and must be more than %g", name, value, low);
    else
        diag_error(t->r->s, "P0129", e->span, "`%s` is %g, and must be at least 0 and less than %g", name, value, high);
}

/* `freeze a, b` or `freeze all but a, b` */
static void read_freeze(TrainReader *t, const Property *p) {
    int first = 0;
    if (p->n >= 2 && expr_is_word(p->items[0], "all") && expr_is_word(p->items[1], "but")) {
        t->train->freeze_all_but = true;
        first = 2;
    }
    if (p->n == first) {
        Diag *d = diag_error(t->r->s, "P0508", p->name_span, "`freeze` names no weights");
        diag_help(d, "write `freeze token_table` or `freeze all but lora`");
    }
    for (int i = first; i < p->n; i++) {
        const char *dotted = expr_dotted(t->r->arena, p->items[i]);
        if (dotted != NULL)
            vec_push(t->r->arena, &t->train->freeze, intern(t->r->s->names, dotted));
        else if (p->items[i]->kind != EXPR_ERROR)
            diag_error(t->r->s, "P0508", p->items[i]->span, "`freeze` needs names of weights or layers");
    }
}

/* `model GPT2`, `model GPT2(layers = 2)`, `model Llama from "llama/"` */
static void read_model(TrainReader *t, const Property *p) {
    bool from = p->n == 3 && expr_is_word(p->items[1], "from");
    if (!from && !property_single(t->r, p)) return;
    if (from && !take_text(t->r, t->scope, "from", p->items[2], &t->train->from)) from = false;
    t->train->from_span = from ? p->items[2]->span : (Span){0};
    train_resolve_model(t->r, t->scope, p->items[0], t->train);
}

/* False when the property seems to hold what belongs outside it. */
static bool read_property(TrainReader *t, const Property *p) {
    Train *train = t->train;
    const char *name = p->name;
    if (strcmp(name, "model") == 0)
        read_model(t, p);
    else if (strcmp(name, "data") == 0)
        read_data(t, p);
    else if (strcmp(name, "validation") == 0)
        read_validation(t, p);
    else if (strcmp(name, "split") == 0)
        read_number(t, p, "split", -1e-300, 1, &train->split);
    else if (strcmp(name, "batch") == 0)
        read_integer(t, p, "batch", 1, &train->batch);
    else if (strcmp(name, "steps") == 0)
        read_integer(t, p, "steps", 1, &train->steps);
    else if (strcmp(name, "optimizer") == 0)
        return optimizer_resolve(t->r, t->scope, p->stmt, &train->optimizer);
    else if (strcmp(name, "clip") == 0)
        read_number(t, p, "clip", 0, INFINITY, &train->clip);
    else if (strcmp(name, "eval") == 0)
        read_eval(t, p);
    else if (strcmp(name, "save") == 0)
        read_save(t, p);
    else if (strcmp(name, "seed") == 0)
        read_integer(t, p, "seed", 0, &train->seed);
    else
        read_freeze(t, p);
    return true;
}

/* What --set gives although the text does not state it. */
static void read_settings_alone(TrainReader *t) {
    Train *train = t->train;
    if (!stated(t, "split")) read_number(t, NULL, "split", -1e-300, 1, &train->split);
    if (!stated(t, "batch")) read_integer(t, NULL, "batch", 1, &train->batch);
    if (!stated(t, "steps")) read_integer(t, NULL, "steps", 1, &train->steps);
    if (!stated(t, "clip")) read_number(t, NULL, "clip", 0, INFINITY, &train->clip);
    if (!stated(t, "seed")) read_integer(t, NULL, "seed", 0, &train->seed);
    if (!stated(t, "eval")) read_eval(t, NULL);
    if (!stated(t, "save")) read_save(t, NULL);
}

/* ---- what must be there, and what must fit together --------------------------------------------- */

/* One message for everything that is missing: each with a line that would do. */
static void ask_for_missing(TrainReader *t) {
    const struct {
        const char *name, *example;
        bool given;
    } needed[] = {{"model", "model GPT2", false},
                  {"data", "data text(\"corpus/*.txt\")", false},
                  {"batch", "batch 32", t->train->batch > 0},
                  {"steps", "steps 1000", t->train->steps > 0},
                  {"optimizer", "optimizer adamw(lr = 3e-4)", false}};
    enum { N = sizeof needed / sizeof needed[0] };
    const char *missing[N], *examples[N];
    int n = 0;
    for (int i = 0; i < N; i++) {
        if (needed[i].given || stated(t, needed[i].name)) continue;
        missing[n] = needed[i].name;
        examples[n++] = needed[i].example;
    }
    if (n == 0) return;
    Diag *d = diag_error(t->r->s, "P0501", t->train->span, "`train` does not say %s",
                         list_text(t->r->arena, missing, n, " and "));
    diag_help(d, n == 1 ? "add a line like %s" : "add lines like %s", list_text(t->r->arena, examples, n, ", "));
}

static Span property_span(const TrainReader *t, const char *property) {
    const Stmt *stmt = map_get(&t->seen, intern(t->r->s->names, property));
    return stmt != NULL ? stmt->name_span : t->train->span;
}

static void check_together(TrainReader *t) {
    Train *train = t->train;
    Session *s = t->r->s;
    if (stated(t, "split") && stated(t, "validation")) {
        Diag *d =
            diag_error(s, "P0504", property_span(t, "split"), "`split` has no use: `validation` names its own data");
        diag_note(d, property_span(t, "validation"), "stated here");
    }
    if (train->eval_every > 0 && train->split == 0 && !stated(t, "validation")) {
        Diag *d = diag_error(s, "P0504", property_span(t, "eval"),
                             "`eval` has no data: `split` is 0 and there is no `validation`");
        diag_help(d, "keep a share with `split 0.1`, or name data with `validation`");
    }
    const Rate *rate = &train->optimizer.rate;
    if (train->steps > 0 && rate->warmup > train->steps) {
        Diag *d = diag_error(s, "P0505", train->optimizer.span, "`warmup` (%lld) is longer than the run (%lld steps)",
                             (long long)rate->warmup, (long long)train->steps);
        diag_note(d, property_span(t, "steps"), "the run's length is stated here");
    }
}

static void train_defaults(Train *train) {
    train->split = 0.1;
    train->clip = NAN;
    train->seed = 0;
}

void train_resolve(Resolver *r, FileScope *scope, const Stmt *stmt) {
    Train *train = NEW(r->arena, Train);
    train_defaults(train);
    train->name = stmt->name;
    train->span = stmt->head.file != 0 ? stmt->head : stmt->span;
    train->batch_span = train->span;
    train->scope = scope->ast;
    r->program->train = train;
    TrainReader t = {.r = r, .scope = scope, .train = train};
    bool misspelt = r->incomplete; /* then one of those that must be there may have been lost */
    for (int i = 0; i < stmt->body.n; i++) {
        Property p;
        if (!property_read(r->arena, stmt->body.at[i], &p)) {
            block_refuse(r, "train", stmt->body.at[i]);
            continue;
        }
        bool known = false;
        for (int k = 0; k < N_PROPERTIES; k++) known |= strcmp(p.name, train_properties[k]) == 0;
        if (!known) {
            property_unknown(r, "train", &p, train_properties, N_PROPERTIES);
            misspelt = true;
        } else if (property_once(r, &t.seen, &p)) {
            if (strcmp(p.name, "batch") == 0) train->batch_span = p.n > 0 ? p.items[0]->span : p.name_span;
            misspelt |= !read_property(&t, &p);
        }
    }
    read_settings_alone(&t);
    if (!misspelt) ask_for_missing(&t);
    check_together(&t);
}
