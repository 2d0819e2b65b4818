/* --emit kernels and --emit memory. */
#include "kernels/kernels.h"

/* "[i+0]" of the outermost repeat, "[j+0]" of one inside it. */
static void print_step(const RefStep *step, Text *out) {
    char index = (char)('i' + (step->depth > 1 ? step->depth - 1 : 0));
    text_printf(out, "[%s%c+%lld", step->scale < 0 ? "-" : "", index, (long long)step->shift);
    if (step->modulus) text_printf(out, " mod %lld", (long long)step->modulus);
    text_puts(out, "]");
}

static void print_ref(const BufferRef *ref, Text *out) {
    text_printf(out, " %s.%d", ref->buffer->name, ref->buffer->id);
    for (int k = 0; k < ref->n_outer; k++) print_step(&ref->outer[k], out);
    if (ref->step) print_step(&(RefStep){ref->step, ref->scale, ref->shift, ref->modulus, ref->depth}, out);
    if (ref->offset) text_printf(out, "+%lld", (long long)ref->offset);
}

static void print_dims(const char *name, const ProductDim *dims, int n, Text *out) {
    text_printf(out, " %s", name);
    for (int i = 0; i < n; i++) text_printf(out, "%s%lld", i ? "x" : "", (long long)dims[i].extent);
    if (n == 0) text_puts(out, "1");
}

static void print_kernel(const RoleProgram *program, const Kernel *kernel, int depth, Text *out) {
    static const char *const kinds[] = {[KERNEL_LOOP] = "loop",
                                        [KERNEL_PRODUCT] = "product",
                                        [KERNEL_ATTEND] = "attend",
                                        [KERNEL_TOP_K] = "top_k",
                                        [KERNEL_ATTEND_GRAD] = "attend_grad",
                                        [KERNEL_SCATTER] = "scatter",
                                        [KERNEL_EXACT] = "exact",
                                        [KERNEL_REPEAT] = "repeat",
                                        [KERNEL_COLLECTIVE] = "collective",
                                        [KERNEL_TRANSFER] = "transfer",
                                        [KERNEL_FINISH] = "finish"};
    static const char *const rounds[] = {"", ", but not in the first round", ", but not in the last round"};
    text_printf(out, "%*s%4d %s %s", depth * 4, "", kernel->first, kinds[kernel->kind], kernel->name);
    const Product *p = kernel->product;
    if (p) {
        print_dims("batch", p->batch, p->n_batch, out);
        print_dims("m", p->m, p->n_m, out);
        print_dims("n", p->n, p->n_n, out);
        print_dims("k", p->k, p->n_k, out);
        if (p->accumulate) text_puts(out, " +=");
        if (kernel->leaf) text_printf(out, " in leaves of %lld", (long long)kernel->leaf);
    }
    if (kernel->loop) {
        text_puts(out, " [");
        for (int i = 0; i < kernel->loop->n_axes; i++)
            text_printf(out, "%s%lld",
                        i == 0                       ? ""
                        : i == kernel->loop->n_outer ? " | "
                                                     : ", ",
                        (long long)kernel->loop->extent[i]);
        text_puts(out, "]");
    }
    if (kernel->collective)
        text_printf(out, " %lld elements, %s", (long long)kernel->collective->elements, kernel->collective->where);
    for (int i = 0; i < kernel->n_refs; i++) print_ref(&kernel->refs[i], out);
    if (kernel->begins) text_puts(out, ", starts");
    if (kernel->kind == KERNEL_FINISH) text_printf(out, " %s", program->mesh->axes[kernel->axis].name);
    text_puts(out, rounds[kernel->rounds]);
    if (kernel->micro) text_printf(out, ", in micro-batch %lld", (long long)kernel->micro - 1);
    text_printf(out, "    # %s\n", session_where(program->session, kernel->span));
    if (kernel->kind == KERNEL_REPEAT) {
        text_printf(out, "%*s     over %s, %lld rounds%s\n", depth * 4, "", kernel->dim->name, (long long)kernel->count,
                    kernel->descending ? ", last first" : "");
        for (int i = 0; i < kernel->body.n; i++) print_kernel(program, kernel->body.at[i], depth + 1, out);
    }
}

void kernels_print(const RoleProgram *program, Text *out) {
    for (int e = 0; e < program->entries.n; e++) {
        text_printf(out, "entry %s\n", program->entries.at[e].name);
        for (int i = 0; i < program->entries.at[e].body.n; i++)
            print_kernel(program, program->entries.at[e].body.at[i], 1, out);
    }
}

void memory_print(const RoleProgram *program, Text *out) {
    text_printf(out, "role %d: arena %lld bytes, largest sum of live bytes %lld\n", program->role,
                (long long)program->arena_bytes, (long long)program->live_peak);
    for (int k = 0; k < MEM_KINDS; k++)
        if (program->by_kind[k])
            text_printf(out, "  %-10s %14lld\n", memory_kind_name[k], (long long)program->by_kind[k]);
    for (int i = 0; i < program->entries.n; i++)
        text_printf(out, "  peak of %-6s %14lld\n", program->entries.at[i].name,
                    (long long)program->entries.at[i].peak);
    for (int i = 0; i < program->buffers.n; i++) {
        const Buffer *b = program->buffers.at[i];
        if (!b->persistent && b->last < b->first) continue;
        text_printf(out, "%12lld %12lld %s %-10s ", (long long)b->address, (long long)(b->bytes * b->flights),
                    dtype_name[b->dtype], memory_kind_name[b->kind]);
        if (b->persistent)
            text_puts(out, "always   ");
        else
            text_printf(out, "%d..%d ", b->first, b->last);
        text_printf(out, "%s.%d    # %s\n", b->name, b->id, session_where(program->session, b->span));
    }
}
