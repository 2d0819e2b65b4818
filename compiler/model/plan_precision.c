/* `precision` of a plan: `fp32`, `bf16`, or `fp16` with the loss scale that it starts with; and whether the plan's GPUs
 * have it. */
#include "model/plan_check.h"

#include <math.h>

static const char *const known[] = {"fp32", "bf16", "fp16"};
enum { N_KNOWN = sizeof known / sizeof known[0] };

/* The standard values are those of PyTorch's GradScaler. */
static const LossScale standard_scale = {.start = 65536, .grow_every = 2000};

/* A power of two, so that scaling is exact. */
static void read_scale(Resolver *r, FileScope *scope, LossScale *out, const Arg *arg) {
    double value = 0;
    if (!take_number(r, scope, "scale", arg->value, &value)) return;
    int exponent = 0;
    bool power = value > 0 && frexp(value, &exponent) == 0.5;
    if (power && value >= 1 && exponent <= 127) {
        out->start = value;
        return;
    }
    Diag *d = diag_error(r->s, "P0541", arg->value->span, "the loss cannot be scaled by %g", value);
    diag_help(d, "choose a power of two from 1 to 2^126, as 65536: then scaling does not round");
}

static void read_arguments(Resolver *r, FileScope *scope, Plan *plan, const Expr *e) {
    static const char *const words[] = {"scale", "grow_every"};
    for (int i = 0; i < e->call.n; i++) {
        const Arg *arg = &e->call.at[i];
        if (strcmp(plan->precision, "fp16") == 0 && arg->name && strcmp(arg->name, words[0]) == 0) {
            read_scale(r, scope, &plan->scale, arg);
        } else if (strcmp(plan->precision, "fp16") == 0 && arg->name && strcmp(arg->name, words[1]) == 0) {
            take_integer(r, scope, "grow_every", arg->value, 1, &plan->scale.grow_every);
        } else {
            Diag *d = diag_error(r->s, "P0540", arg->name ? arg->name_span : arg->value->span,
                                 "`precision %s` has no argument %s%s%s", plan->precision, arg->name ? "`" : "here",
                                 arg->name ? arg->name : "", arg->name ? "`" : "");
            if (strcmp(plan->precision, "fp16") == 0)
                diag_help(d, "write `fp16(scale = 65536, grow_every = 2000)`, or `fp16` for just that");
            else
                diag_help(d, "only `fp16` scales the loss: `fp16(scale = 65536, grow_every = 2000)`");
        }
    }
}

void plan_read_precision(Resolver *r, FileScope *scope, Plan *plan, const Expr *e) {
    const Expr *word = e->kind == EXPR_CALL ? e->args.at[0] : e;
    Name name = NULL;
    if (!take_name(r, "precision", word, &name)) return;
    for (int i = 0; i < N_KNOWN; i++) {
        if (strcmp(name, known[i]) != 0) continue;
        plan->precision = name;
        plan->precision_span = e->span;
        plan->scale = standard_scale;
        if (e->kind == EXPR_CALL) read_arguments(r, scope, plan, e);
        return;
    }
    Diag *d = diag_error(r->s, "P0417", word->span, "there is no precision `%s`", name);
    help_nearest(r, d, name, known, N_KNOWN, word->span);
}

/* A GPU whose description says that it computes nothing in this type. What is not stated proves nothing. */
void check_precision(const PlanCheck *c) {
    const Plan *plan = c->plan;
    bool bf16 = strcmp(plan->precision, "bf16") == 0, fp16 = strcmp(plan->precision, "fp16") == 0;
    for (int i = 0; plan->cluster && (bf16 || fp16) && i < plan->cluster->groups.n; i++) {
        const Gpu *gpu = plan->cluster->groups.at[i].gpu;
        if (!gpu || (bf16 ? gpu->bf16 : gpu->fp16) != 0) continue;
        bool other = (bf16 ? gpu->fp16 : gpu->bf16) > 0;
        Diag *d = diag_error(c->s, "P0542", plan->precision_span, "`%s` has no %s", gpu->name, plan->precision);
        diag_note(d, plan->cluster->span, "the cluster of plan `%s`", plan->name);
        if (!other)
            diag_help(d, "write `precision fp32`");
        else if (bf16)
            diag_help(d, "write `precision fp16`: it has %.3g TFLOP/s of that, and the loss is scaled",
                      gpu->fp16 / 1e12);
        else
            diag_help(d, "write `precision bf16`: it has %.3g TFLOP/s of that", gpu->bf16 / 1e12);
        return;
    }
}
