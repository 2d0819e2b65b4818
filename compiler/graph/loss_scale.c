/* The loss scale of fp16, as ordinary nodes.
 *
 * f16 ends at 65504 and is coarse below 6e-5, where most gradients lie; so the backward pass runs on the loss times a
 * power of two, and the update divides it out in f32. The norm of all gradients, which is a sum over every rank and
 * stage, is finite if and only if each of them is: so all ranks know alike, without a collective of its own, whether to
 * skip the step. A skipped step leaves weights, moments and the optimizer's count of steps as they were, and halves the
 * scale; `grow_every` good steps in a row double it. The state is three stored scalars, saved with the moments. */
#include "graph/step.h"

#include <float.h>

static const double largest_scale = 0x1p126;

static Tensor *state(Stepper *st, const char *name) {
    return step_tensor(st, step_name(st, "loss_scale.%s", name), CLASS_MOMENT, DT_F32, (Shape){0});
}

void scale_open(Stepper *st) {
    if (plan_dtype(st->plan) != DT_F16) return;
    st->scale.factor = state(st, "factor");
    st->scale.good = state(st, "good_steps");
    st->scale.skipped = state(st, "skipped");
}

Node *scale_loss(Stepper *st, Builder *b, Node *loss) {
    return st->scale.factor ? build_binary(b, OP_MUL, loss, step_input(b, st->scale.factor)) : loss;
}

void scale_init(Stepper *st, Builder *b) {
    if (!st->scale.factor) return;
    step_output(b->graph, st->scale.factor, build_const(b, DT_F32, st->plan->scale.start), false);
    step_output(b->graph, st->scale.good, build_const(b, DT_F32, 0), false);
    step_output(b->graph, st->scale.skipped, build_const(b, DT_F32, 0), false);
}

Node *scale_removed(Stepper *st, Builder *b, Node *gradient) {
    if (!st->scale.factor) return gradient;
    Node *inverse = build_binary(b, OP_DIV, build_const(b, DT_F32, 1), step_input(b, st->scale.factor));
    return build_binary(b, OP_MUL, gradient, inverse);
}

void scale_look(Stepper *st, Builder *b, Node *norm) {
    if (st->scale.factor) st->scale.finite = build_binary(b, OP_LE, norm, build_const(b, DT_F32, FLT_MAX));
}

Node *scale_keep(const Stepper *st, Builder *b, Node *updated, Node *old) {
    return st->scale.factor ? build_select(b, st->scale.finite, updated, old) : updated;
}

Node *scale_steps(Stepper *st, Builder *b) {
    Node *number = step_input(b, st->number);
    if (!st->scale.factor) return number;
    return build_binary(b, OP_SUB, number, build_cast(b, step_input(b, st->scale.skipped), DT_I32));
}

static void result(Stepper *st, Builder *b, const char *name, Node *value) {
    step_output(b->graph, step_tensor(st, step_name(st, "%s", name), CLASS_RESULT, DT_F32, (Shape){0}), value, false);
}

void scale_update(Stepper *st, Builder *b) {
    if (!st->scale.factor) return;
    Node *factor = step_input(b, st->scale.factor), *finite = st->scale.finite, *one = build_const(b, DT_F32, 1),
         *zero = build_const(b, DT_F32, 0);
    Node *good = build_binary(b, OP_ADD, step_input(b, st->scale.good), one);
    Node *grows = build_binary(b, OP_LE, build_const(b, DT_F32, (double)st->plan->scale.grow_every), good);
    Node *larger = build_binary(b, OP_MIN, build_scale(b, factor, 2), build_const(b, DT_F32, largest_scale));
    Node *skipped = build_binary(b, OP_ADD, step_input(b, st->scale.skipped), build_select(b, finite, zero, one));
    Node *next = build_select(b, finite, build_select(b, grows, larger, factor), build_scale(b, factor, 0.5));
    Node *row = build_select(b, finite, build_select(b, grows, zero, good), zero);
    step_output(b->graph, st->scale.factor, next, false);
    step_output(b->graph, st->scale.good, row, false);
    step_output(b->graph, st->scale.skipped, skipped, false);
    result(st, b, "loss_scale", next);
    result(st, b, "skipped_steps", skipped);
}
