/* What kernels touch, and so which of them may run while a collective is in flight. */
#include "kernels/overlap.h"

bool kernel_writes(const Kernel *kernel, int ref) {
    switch (kernel->kind) {
    case KERNEL_LOOP:
        for (int i = 0; i < kernel->loop->code.n; i++) {
            const LoopInstr *instr = &kernel->loop->code.at[i];
            if (instr->op == LOOP_STORE && instr->access.pointer == ref) return true;
        }
        return false;
    case KERNEL_PRODUCT: return ref >= 2; /* the epilogue's may be read only: that is never wrong */
    case KERNEL_ATTEND: return ref == 3 || ref == 4;
    case KERNEL_ATTEND_GRAD: return ref >= 6;
    case KERNEL_SCATTER:
    case KERNEL_EXACT: return ref == 0;
    case KERNEL_TOP_K: return ref >= 1;
    case KERNEL_COLLECTIVE: return ref == 1;
    case KERNEL_TRANSFER: return kernel->handover->kind == HANDOVER_RECV;
    case KERNEL_FINISH:
    case KERNEL_REPEAT: return false;
    }
    return false;
}

double kernel_runs(const Kernel *kernel, double times, int64_t rounds, int64_t micros) {
    if (kernel->rounds != ROUNDS_ALL) times *= (double)(rounds - 1) / (double)rounds;
    return kernel->micro ? times / (double)micros : times;
}

/* Two slots, or two layers' parts, of one buffer. */
static bool apart(const BufferRef *a, const BufferRef *b) {
    if (!a->step || a->step != b->step || a->scale != b->scale || a->modulus != b->modulus) return false;
    if (a->depth != b->depth || a->n_outer || b->n_outer) return false; /* of one repeat */
    int64_t by = a->shift - b->shift;
    return a->modulus ? by % a->modulus != 0 : by != 0;
}

static bool refs_meet(const BufferRef *a, const BufferRef *b) { return a->buffer == b->buffer && !apart(a, b); }

bool kernel_conflicts(const Kernel *kernel, const Kernel *started) {
    for (int i = 0; i < kernel->body.n; i++)
        if (kernel_conflicts(kernel->body.at[i], started)) return true;
    for (int i = 0; i < kernel->n_refs; i++) {
        if (refs_meet(&kernel->refs[i], &started->refs[1])) return true;
        if (kernel_writes(kernel, i) && refs_meet(&kernel->refs[i], &started->refs[0])) return true;
    }
    return false;
}

/* ---- copies for another round --------------------------------------------------------------------- */

Kernel *kernel_copy(Arena *arena, const Kernel *from) {
    Kernel *kernel = NEW(arena, Kernel);
    *kernel = *from;
    kernel->refs = NEW_N(arena, BufferRef, from->n_refs + 1);
    if (from->n_refs) memcpy(kernel->refs, from->refs, sizeof *kernel->refs * (size_t)from->n_refs);
    return kernel;
}

Kernel *kernel_shifted(Arena *arena, const Kernel *from, int64_t by, Rounds rounds) {
    Kernel *kernel = kernel_copy(arena, from);
    kernel->rounds = rounds;
    for (int i = 0; i < kernel->n_refs; i++) {
        BufferRef *ref = &kernel->refs[i];
        if (!ref->step) continue;
        ref->shift += ref->scale * by;
        if (ref->modulus && ref->scale > 0) ref->shift = (ref->shift % ref->modulus + ref->modulus) % ref->modulus;
    }
    return kernel;
}

static bool finishes(const Kernel *kernel, int axis) { return kernel->kind == KERNEL_FINISH && kernel->axis == axis; }

bool kernel_ends(const Kernel *kernel, int axis) {
    for (int k = 0; k < kernel->body.n && kernel->body.at[k]->kind == KERNEL_FINISH; k++)
        if (finishes(kernel->body.at[k], axis)) return true;
    return finishes(kernel, axis);
}

void flights_end(Flights *flights, const Kernel *kernel) {
    int left = 0;
    for (int i = 0; i < flights->n; i++)
        if (!kernel_ends(kernel, flights->at[i].kernel->collective->axis)) flights->at[left++] = flights->at[i];
    flights->n = left;
}
