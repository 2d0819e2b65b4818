/* The optimizer: `adamw(lr = cosine(6e-4, warmup = 700, end = 6e-5), ...) { bias, norm: weight_decay = 0 }`.
 *
 * In: the property's call and its block of parameter groups. Out: an Optimizer. The learning rate is a function of the
 * step alone, in optimizer steps, whatever the number of ranks. */
#include <math.h>

#include "model/resolve.h"

typedef struct Parameter {
    const char *name;
    const Expr *value; /* filled; NULL when not given */
} Parameter;

/* Matches a call's arguments with parameters, positional ones first. Reports what fits none. */
static bool bind_call(Resolver *r, const char *what, const Expr *call, Parameter *params, int n) {
    bool ok = true;
    Name names[8];
    for (int i = 0; i < n; i++) names[i] = params[i].name;
    for (int i = 0; i < call->call.n; i++) {
        const Arg *arg = &call->call.at[i];
        int index = arg->name == NULL ? (i < n ? i : -1) : -1;
        for (int k = 0; arg->name != NULL && k < n; k++)
            if (strcmp(arg->name, params[k].name) == 0) index = k;
        if (index < 0) {
            Diag *d = arg->name == NULL
                          ? diag_error(r->s, "P0503", arg->value->span, "`%s` takes at most %d values", what, n)
                          : diag_error(r->s, "P0503", arg->name_span, "`%s` has no parameter `%s`", what, arg->name);
            if (arg->name != NULL) help_nearest(r, d, arg->name, names, n, arg->name_span);
            ok = false;
        } else if (params[index].value != NULL) {
            diag_error(r->s, "P0503", arg->value->span, "`%s` is given twice", params[index].name);
            ok = false;
        } else {
            params[index].value = arg->value;
        }
    }
    return ok;
}

/* A number that must not be negative. */
static bool take_positive(Resolver *r, FileScope *scope, const char *what, const Expr *e, double *out) {
    double value;
    if (!take_number(r, scope, what, e, &value)) return false;
    if (value < 0) {
        diag_error(r->s, "P0129", e->span, "`%s` is %g, and cannot be negative", what, value);
        return false;
    }
    *out = value;
    return true;
}

/* A setting's value instead of the text's. */
static const Expr *or_setting(Resolver *r, const char *name, const Expr *written) {
    const Expr *given = setting_find(r, name, "the training run");
    return given != NULL ? given : written;
}

static const char *const rate_names[] = {"constant", "linear", "cosine"};

static void read_schedule(Resolver *r, FileScope *scope, const Expr *call, Rate *rate) {
    const Expr *callee = call->args.at[0];
    int kind = 0;
    while (kind < 3 && !expr_is_word(callee, rate_names[kind])) kind++;
    if (kind == 3) {
        const char *dotted = expr_dotted(r->arena, callee);
        Diag *d =
            diag_error(r->s, "P0503", callee->span, "there is no learning-rate schedule `%s`", dotted ? dotted : "?");
        if (callee->kind == EXPR_NAME) help_nearest(r, d, callee->name, rate_names, 3, callee->span);
        return;
    }
    rate->kind = kind == 0 ? RATE_CONSTANT : kind == 1 ? RATE_LINEAR : RATE_COSINE;
    Parameter params[] = {{"peak", NULL}, {"warmup", NULL}, {"end", NULL}};
    if (!bind_call(r, rate_names[kind], call, params, kind == 0 ? 2 : 3)) return;
    const Expr *peak = or_setting(r, "lr", params[0].value), *warmup = or_setting(r, "warmup", params[1].value);
    if (peak == NULL) {
        Diag *d = diag_error(r->s, "P0503", call->span, "`%s` has no peak", rate_names[kind]);
        diag_help(d, "give the highest rate first: `%s(6e-4, warmup = 700)`", rate_names[kind]);
        return;
    }
    take_positive(r, scope, "peak", peak, &rate->peak);
    if (warmup != NULL) take_integer(r, scope, "warmup", warmup, 0, &rate->warmup);
    rate->end = kind == 0 ? rate->peak : 0;
    if (params[2].value != NULL) take_positive(r, scope, "end", params[2].value, &rate->end);
}

/* Adam moves every weight by about the learning rate; at a tenth it moves further than the weights are large. */
static const double HIGH_ADAM_RATE = 0.1;

static void read_rate(Resolver *r, FileScope *scope, const Expr *e, Optimizer *out) {
    if (e->kind == EXPR_CALL) {
        read_schedule(r, scope, e, &out->rate);
    } else {
        const Expr *given = or_setting(r, "lr", e), *warmup = or_setting(r, "warmup", NULL);
        out->rate.kind = RATE_CONSTANT;
        take_positive(r, scope, "lr", given, &out->rate.peak);
        if (warmup != NULL) take_integer(r, scope, "warmup", warmup, 0, &out->rate.warmup);
        out->rate.end = out->rate.peak;
    }
    if (out->kind == OPT_ADAMW && out->rate.peak >= HIGH_ADAM_RATE) {
        Diag *d =
            diag_warning(r->s, "P0506", e->span, "a learning rate of %g is far too high for `adamw`", out->rate.peak);
        diag_label(d, "each step moves every weight by about %g", out->rate.peak);
        diag_help(d, "usual rates are 1e-5 to 1e-2");
    }
}

static void read_betas(Resolver *r, FileScope *scope, const Expr *e, Optimizer *out) {
    if (e->kind != EXPR_TUPLE || e->args.n != 2) {
        if (e->kind == EXPR_ERROR) return;
        Diag *d = diag_error(r->s, "P0503", e->span, "`betas` needs two numbers");
        diag_help(d, "write `betas = (0.9, 0.95)`");
        return;
    }
    double *const betas[] = {&out->beta1, &out->beta2};
    for (int i = 0; i < 2; i++) {
        double value;
        if (!take_number(r, scope, "betas", e->args.at[i], &value)) continue;
        if (value >= 0 && value < 1)
            *betas[i] = value;
        else
            diag_error(r->s, "P0129", e->args.at[i]->span, "a beta is %g, and must be at least 0 and less than 1",
                       value);
    }
}

/* ---- parameter groups --------------------------------------------------------------------------- */

static Span word_span(const Stmt *stmt, int i) { return i < stmt->words.n ? stmt->words.at[i].what->span : stmt->head; }

static void read_group(Resolver *r, FileScope *scope, const Stmt *stmt, Optimizer *out) {
    static const char *const known[] = {"weight_decay", "lr_scale"};
    ParameterGroup group = {
        .weight_decay = NAN, .lr_scale = NAN, .span = stmt->head.file != 0 ? stmt->head : stmt->span};
    for (int i = 0; i < stmt->names.n; i++) {
        for (int g = 0; g < out->groups.n; g++)
            for (int k = 0; k < out->groups.at[g].words.n; k++)
                if (out->groups.at[g].words.at[k] == stmt->names.at[i]) {
                    Diag *d = diag_error(r->s, "P0509", word_span(stmt, i), "`%s` is in two groups", stmt->names.at[i]);
                    diag_note(d, out->groups.at[g].span, "first here");
                }
        vec_push(r->arena, &group.words, stmt->names.at[i]);
    }
    for (int i = 0; i < stmt->bindings.n; i++) {
        const Binding *binding = &stmt->bindings.at[i];
        if (binding->value == NULL) continue;
        if (strcmp(binding->name, "weight_decay") == 0)
            take_positive(r, scope, "weight_decay", binding->value, &group.weight_decay);
        else if (strcmp(binding->name, "lr_scale") == 0)
            take_positive(r, scope, "lr_scale", binding->value, &group.lr_scale);
        else {
            Diag *d = diag_error(r->s, "P0509", binding->name_span, "a parameter group has no `%s`", binding->name);
            help_nearest(r, d, binding->name, known, 2, binding->name_span);
        }
    }
    vec_push(r->arena, &out->groups, group);
}

static bool read_groups(Resolver *r, FileScope *scope, const Stmt *stmt, Optimizer *out) {
    for (int i = 0; i < stmt->body.n; i++) {
        const Stmt *group = stmt->body.at[i];
        if (group->kind == STMT_GROUP) {
            read_group(r, scope, group, out);
            continue;
        }
        Diag *d = diag_error(r->s, "P0509", group->head.file != 0 ? group->head : group->span,
                             "this is not a parameter group");
        diag_note(d, stmt->head, "the block of the optimizer begins here: is its `}` missing?");
        diag_help(d, "write `bias, norm: weight_decay = 0`");
        return false; /* the rest is probably the training run's */
    }
    return true;
}

/* ---- the property ------------------------------------------------------------------------------- */

static void read_call(Resolver *r, FileScope *scope, const Expr *call, Optimizer *out) {
    bool adam = out->kind == OPT_ADAMW;
    Parameter adamw[] = {{"lr", NULL}, {"betas", NULL}, {"epsilon", NULL}, {"weight_decay", NULL}};
    Parameter sgd[] = {{"lr", NULL}, {"momentum", NULL}, {"weight_decay", NULL}};
    if (call->kind == EXPR_CALL && !bind_call(r, adam ? "adamw" : "sgd", call, adam ? adamw : sgd, adam ? 4 : 3))
        return;
    const Expr *rate = adam ? adamw[0].value : sgd[0].value;
    if (rate == NULL) rate = or_setting(r, "lr", NULL);
    if (rate == NULL) {
        Diag *d = diag_error(r->s, "P0503", call->span, "`%s` has no learning rate", adam ? "adamw" : "sgd");
        diag_help(d, "write `%s(lr = %s)`", adam ? "adamw" : "sgd", adam ? "3e-4" : "0.1");
    } else {
        read_rate(r, scope, rate, out);
    }
    const Expr *decay = or_setting(r, "weight_decay", adam ? adamw[3].value : sgd[2].value);
    if (decay != NULL) take_positive(r, scope, "weight_decay", decay, &out->weight_decay);
    if (adam && adamw[1].value != NULL) read_betas(r, scope, adamw[1].value, out);
    if (adam && adamw[2].value != NULL) take_positive(r, scope, "epsilon", adamw[2].value, &out->epsilon);
    if (!adam && sgd[1].value != NULL) {
        double momentum = 0;
        if (take_positive(r, scope, "momentum", sgd[1].value, &momentum)) {
            if (momentum < 1)
                out->momentum = momentum;
            else
                diag_error(r->s, "P0129", sgd[1].value->span, "`momentum` is %g, and must be less than 1", momentum);
        }
    }
}

bool optimizer_resolve(Resolver *r, FileScope *scope, const Stmt *stmt, Optimizer *out) {
    static const char *const kinds[] = {"adamw", "sgd"};
    *out = (Optimizer){.kind = OPT_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .span = stmt->name_span};
    Property p;
    if (!property_read(r->arena, stmt, &p) || !property_single(r, &p)) return true;
    const Expr *call = p.items[0], *callee = call->kind == EXPR_CALL ? call->args.at[0] : call;
    if (call->kind == EXPR_ERROR) return true;
    out->span = call->span;
    if (!expr_is_word(callee, "adamw") && !expr_is_word(callee, "sgd")) {
        const char *dotted = expr_dotted(r->arena, callee);
        Diag *d = diag_error(r->s, "P0503", callee->span, "there is no optimizer `%s`", dotted != NULL ? dotted : "?");
        if (callee->kind == EXPR_NAME) help_nearest(r, d, callee->name, kinds, 2, callee->span);
    } else {
        out->kind = expr_is_word(callee, "sgd") ? OPT_SGD : OPT_ADAMW;
        read_call(r, scope, call, out);
    }
    return read_groups(r, scope, stmt, out);
}
