/* Declarations of tensors: inputs and targets, which the loader fills, and weights with their initial values. */
#include "graph/elaborate.h"

/* ---- inputs and targets ------------------------------------------------------------------------- */

static Tensor *data_tensor(Elaborator *e, const Stmt *stmt, const char *word) {
    Shape shape;
    const TypeExpr *type = &stmt->type;
    if (!type->present) {
        Diag *d = elaborate_error(e, "P0261", stmt->head, "%s `%s` has no type", word, stmt->name);
        diag_help(d, "write `%s %s: int[batch, seq]`", word, stmt->name);
        return NULL;
    }
    bool is_int = type->dtype && strcmp(type->dtype, "int") == 0,
         is_float = type->dtype && strcmp(type->dtype, "float") == 0;
    if (!is_int && !is_float) {
        Diag *d = elaborate_error(e, "P0261", type->span,
                                  type->dtype ? "%s `%s` of type `%s`" : "%s `%s` has no element type", word,
                                  stmt->name, type->dtype);
        Name types[] = {intern(e->s->names, "int"), intern(e->s->names, "float")};
        Name nearest = type->dtype ? nearest_name(type->dtype, types, 2) : NULL;
        if (nearest)
            diag_help(d, "did you mean `%s`?", nearest);
        else
            diag_help(d, "data is `int` or `float`: `%s %s: int[batch, seq]`", word, stmt->name);
        return NULL;
    }
    if (!type_shape(e, type, &shape)) return NULL;
    if (shape_find(&shape, e->batch->dim) < 0) {
        Diag *d = elaborate_error(e, "P0261", type->span, "%s `%s` has no dimension `batch`", word, stmt->name);
        diag_help(d, "each sample of a step has its own: `[batch, ...]`");
        return NULL;
    }
    Tensor *tensor =
        graph_add_tensor(e->graph, stmt->name, CLASS_DATA, is_int ? DT_I32 : DT_F32, shape, stmt->name_span);
    map_put(e->arena, &e->paths, stmt->name, tensor);
    return tensor;
}

static void declare_data(Elaborator *e, const Stmt *stmt, Tensor *tensor) {
    Value v = poison();
    if (tensor) {
        e->b.span = stmt->head;
        e->b.name = stmt->name;
        v = tensor_value(e, build_input(&e->b, tensor));
        e->b.name = NULL;
    }
    Symbol *symbol = scope_declare(e, stmt->name, SYMBOL_INPUT, stmt->name_span, v);
    if (symbol) symbol->tensor = tensor;
}

void input_statement(Elaborator *e, const Stmt *stmt) {
    if (stmt->value) {
        Diag *d = elaborate_error(e, "P0262", stmt->value->span, "an input has no value: it comes from the data");
        diag_help(d, "for values that follow from another input, write `target %s: ... = next(tokens)`", stmt->name);
    }
    declare_data(e, stmt, scope_get(e, stmt->name) ? NULL : data_tensor(e, stmt, "input"));
}

static bool is_call_of(const Expr *expr, const char *name) {
    return expr->kind == EXPR_CALL && expr->args.at[0]->kind == EXPR_NAME && strcmp(expr->args.at[0]->name, name) == 0;
}

/* `next(tokens)`: the same shape, one position later along the last dimension. */
static bool target_next(Elaborator *e, const Stmt *stmt, Tensor *tensor) {
    const Expr *call = stmt->value;
    const Expr *name = call->call.n == 1 && !call->call.at[0].name ? call->call.at[0].value : NULL;
    if (!name || name->kind != EXPR_NAME) {
        Diag *d = elaborate_error(e, "P0162", call->span, "`next` takes the name of one input");
        diag_help(d, "write `next(tokens)`");
        return false;
    }
    const Symbol *symbol = scope_get(e, name->name);
    if (!symbol) {
        name_unknown(e, name->name, name->span);
        return false;
    }
    if (symbol->kind != SYMBOL_INPUT) {
        Diag *d = elaborate_error(e, "P0162", name->span, "`%s` is %s, not an input", name->name,
                                  symbol_kind_text(symbol->kind));
        diag_note(d, symbol->span, "declared here");
        return false;
    }
    if (!tensor || !symbol->tensor) return false;
    const Tensor *of = symbol->tensor;
    if (!shape_equal(&of->shape, &tensor->shape) || of->dtype != DT_I32 || tensor->dtype != DT_I32) {
        Diag *d = elaborate_error(e, "P0263", stmt->head, "`%s` is %s%s, but `%s`, of which it is the next, is %s%s",
                                  stmt->name, dtype_name[tensor->dtype], shape_text(e->arena, &tensor->shape), of->name,
                                  dtype_name[of->dtype], shape_text(e->arena, &of->shape));
        diag_help(d, "both are `int` with the same dimensions in the same order");
        return false;
    }
    Dim *last = of->shape.dims[of->shape.n - 1];
    if (last->is_batch) {
        Diag *d =
            elaborate_error(e, "P0263", stmt->head, "`next` shifts along the last dimension, and that is `batch`");
        diag_help(d, "give `%s` a sequence: `int[batch, seq]`", of->name);
        return false;
    }
    tensor->of = symbol->tensor;
    e->model->seq = last;
    return true;
}

/* `= 1`: a weight for each target, 0 where the loader has none. It goes with the input of the same dimensions. */
static void target_mask(Elaborator *e, const Stmt *stmt, Tensor *tensor) {
    double value = 0;
    bool whole = false;
    const Expr *callee = stmt->value->kind == EXPR_CALL ? stmt->value->args.at[0] : NULL;
    if (callee && callee->kind == EXPR_NAME && op_find(callee->name) == OP_COUNT) {
        Diag *d = elaborate_error(e, "P0162", callee->span, "a target cannot be made by `%s`", callee->name);
        diag_help(d, "targets are `next(tokens)` or the mask `1`: did you mean `next`?");
        diag_fix(d, callee->span, "next");
        return;
    }
    if (!expr_number(e, stmt->value, "the weight of a target", &value, &whole) || !tensor) return;
    if (value != 1 || tensor->dtype != DT_F32) {
        Diag *d = elaborate_error(e, "P0262", stmt->value->span, "a target that is a number is a mask: `float`, and 1");
        diag_help(d, "write `target %s: float[batch, seq] = 1`", stmt->name);
        return;
    }
    for (int i = 0; i < e->graph->tensors.n; i++) {
        Tensor *of = e->graph->tensors.at[i];
        if (of == tensor || of->class != CLASS_DATA || of->of) continue;
        if (!tensor->of || shape_equal(&of->shape, &tensor->shape)) tensor->of = of;
        if (shape_equal(&of->shape, &tensor->shape)) return;
    }
    if (tensor->of) return;
    Diag *d = elaborate_error(e, "P0262", stmt->head, "mask `%s` stands before every input", stmt->name);
    diag_help(d, "declare the input first");
}

void target_statement(Elaborator *e, const Stmt *stmt) {
    Tensor *tensor = scope_get(e, stmt->name) ? NULL : data_tensor(e, stmt, "target");
    if (stmt->value && is_call_of(stmt->value, "next")) {
        if (!target_next(e, stmt, tensor)) tensor = NULL;
    } else if (stmt->value) {
        target_mask(e, stmt, tensor);
    }
    if (tensor && !e->target) e->target = tensor;
    declare_data(e, stmt, tensor);
}

/* ---- weights ------------------------------------------------------------------------------------ */

/* The same under every plan: a hash (FNV-1a) of the logical name. */
static uint32_t name_key(Name name) {
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    return hash;
}

static bool initial_arguments(Elaborator *e, const Expr *call, int wanted, double *out) {
    const char *name = call->args.at[0]->name;
    if (call->call.n != wanted) {
        Diag *d = elaborate_error(e, "P0264", call->span, "`%s` takes %d number%s, not %d", name, wanted,
                                  wanted == 1 ? "" : "s", call->call.n);
        diag_help(d, wanted == 1 ? "`normal(0.02)`: the standard deviation" : "`uniform(-0.1, 0.1)`: the bounds");
        return false;
    }
    bool ok = true;
    for (int i = 0; i < wanted; i++) {
        bool whole = false;
        ok = expr_number(e, call->call.at[i].value, arena_printf(e->arena, "an argument of `%s`", name), &out[i],
                         &whole) &&
             ok;
    }
    return ok;
}

static bool initial_value(Elaborator *e, const Expr *expr, Init *init) {
    static const char *const words[] = {"normal", "uniform", "zeros", "ones"};
    if (expr->kind == EXPR_ERROR) return false;
    const Expr *name = expr->kind == EXPR_CALL ? expr->args.at[0] : expr;
    int word = 0;
    if (name->kind == EXPR_NAME && !scope_get(e, name->name)) {
        while (word < 4 && strcmp(words[word], name->name) != 0) word++;
        if (word < 2 && expr->kind == EXPR_CALL) {
            double numbers[2] = {0, 0};
            if (!initial_arguments(e, expr, word == 0 ? 1 : 2, numbers)) return false;
            init->kind = word == 0 ? INIT_NORMAL : INIT_UNIFORM;
            init->a = numbers[0];
            init->b = numbers[1];
            if (init->kind == INIT_NORMAL ? init->a >= 0 : init->a < init->b) return true;
            elaborate_error(e, "P0264", expr->span,
                            word == 0 ? "a standard deviation of %g" : "bounds %g and %g: the lower one comes first",
                            init->a, init->b);
            return false;
        }
        if (word >= 2 && word < 4 && expr->kind == EXPR_NAME) {
            init->kind = INIT_CONST;
            init->a = word == 3;
            return true;
        }
        bool known = constant_value(e, name->name).kind != VALUE_NONE ||
                     (expr->kind == EXPR_CALL && op_find(name->name) < OP_COUNT);
        if (!known) {
            Name candidates[4];
            for (int i = 0; i < 4; i++) candidates[i] = intern(e->s->names, words[i]);
            Diag *d =
                elaborate_error(e, "P0264", expr->span,
                                word < 4 ? "`%s` is used another way" : "there is no initial value `%s`", name->name);
            if (word < 4 || !nearest_name(name->name, candidates, 4))
                diag_help(d, "weights start as `normal(0.02)`, `uniform(-0.1, 0.1)`, `zeros`, `ones` or a number");
            else
                help_candidates(e, d, name->name, name->span, candidates, 4);
            return false;
        }
    }
    bool whole = false;
    init->kind = INIT_CONST;
    return expr_number(e, expr, "an initial value", &init->a, &whole);
}

/* Decides which parameter groups of the optimizer mean the weight; its own name goes first, then that of its layer. */
static Name weight_group(Elaborator *e, Name name) {
    size_t n = strlen(name), n_layer = strlen(e->scope->decl->name);
    bool bias = strcmp(name, "bias") == 0 || strcmp(name, "b") == 0 || strncmp(name, "b_", 2) == 0 ||
                (n == 2 && name[0] == 'b') || (n > 5 && strcmp(name + n - 5, "_bias") == 0);
    if (bias) return intern(e->s->names, "bias");
    bool norm =
        e->scope->decl->kind == STMT_LAYER && n_layer >= 4 && strcmp(e->scope->decl->name + n_layer - 4, "norm") == 0;
    return norm ? intern(e->s->names, "norm") : NULL;
}

static void add_frame_dims(Shape *shape, const Frame *frame) {
    if (!frame) return;
    add_frame_dims(shape, frame->parent);
    shape->dims[shape->n++] = frame->region->dim;
}

/* The weight in the open region: read at the top, then cut slice by slice. */
static Node *weight_slice(Elaborator *e, Frame *frame, Tensor *tensor) {
    if (!frame) {
        Region *region = e->b.region;
        e->b.region = &e->graph->top;
        Node *node = build_input(&e->b, tensor);
        e->b.region = region;
        return node;
    }
    Node *outer = weight_slice(e, frame->parent, tensor);
    Shape dim = shape_of(&frame->region->dim, 1);
    Node *param = region_add_param(&e->b, frame->region, outer->dtype, shape_without(&outer->shape, &dim));
    vec_push(e->arena, &frame->slice_inputs, outer);
    vec_push(e->arena, &frame->slice_params, param);
    return param;
}

static bool weight_shape(Elaborator *e, const Stmt *stmt, Shape *own, Shape *whole) {
    if (!stmt->type.present) {
        Diag *d = elaborate_error(e, "P0261", stmt->head, "weight `%s` has no dimensions", stmt->name);
        diag_help(d, "write `weight %s: [in, out] = normal(0.02)`", stmt->name);
        return false;
    }
    if (stmt->type.dtype) {
        Diag *d = elaborate_error(e, "P0261", stmt->type.span,
                                  "a weight has no element type: `precision` in the plan decides it");
        diag_help(d, "leave `%s` out", stmt->type.dtype);
        return false;
    }
    if (!type_shape(e, &stmt->type, own)) return false;
    *whole = (Shape){.n = 0};
    int depth = 0;
    for (const Frame *frame = e->frame; frame; frame = frame->parent) depth++;
    if (depth + own->n > MAX_RANK) {
        elaborate_error(e, "P0252", stmt->head, "more than %d dimensions, with those of the repeats", MAX_RANK);
        return false;
    }
    add_frame_dims(whole, e->frame);
    for (int i = 0; i < own->n; i++) {
        if (own->dims[i]->is_batch || shape_find(whole, own->dims[i]) >= 0) {
            Diag *d = elaborate_error(e, "P0251", stmt->type.span,
                                      own->dims[i]->is_batch
                                          ? "a weight cannot have dimension `%s`"
                                          : "`%s` stands inside `repeat %s`: that dimension is its first already",
                                      own->dims[i]->is_batch ? "batch" : stmt->name, own->dims[i]->name);
            diag_help(d, "leave `%s` out", own->dims[i]->name);
            return false;
        }
        whole->dims[whole->n++] = own->dims[i];
    }
    return true;
}

void weight_statement(Elaborator *e, const Stmt *stmt) {
    Shape own, whole;
    Init init = {.weight = NULL};
    bool ok = weight_shape(e, stmt, &own, &whole);
    if (!stmt->value) {
        Diag *d = elaborate_error(e, "P0264", stmt->head, "weight `%s` has no initial value", stmt->name);
        diag_help(d, "write `= normal(0.02)`, `= zeros` or `= ones` after its dimensions");
        ok = false;
    } else {
        ok = initial_value(e, stmt->value, &init) && ok;
    }
    Symbol *symbol = scope_declare(e, stmt->name, SYMBOL_WEIGHT, stmt->name_span, poison());
    if (!ok || !symbol) return;
    Tensor *tensor = graph_add_tensor(e->graph, path_unique(e, e->scope->path, stmt->name), CLASS_WEIGHT, DT_F32, whole,
                                      stmt->name_span);
    tensor->group = weight_group(e, stmt->name);
    tensor->is_gain = own.n <= 1 || tensor->group != NULL;
    init.weight = tensor;
    init.key = name_key(tensor->name);
    vec_push(e->arena, &e->model->inits, init);
    vec_push(e->arena, &e->weight_sites, elaborate_site(e, stmt->name_span));
    e->b.span = stmt->head;
    e->b.name = stmt->name;
    symbol->value = tensor_value(e, weight_slice(e, e->frame, tensor));
    e->b.name = NULL;
}
