/* The one symbol that plc looks up in the code generator, which it loads only when code is asked for: `check` never
 * pays for LLVM. */
#include "codegen/api.h"

static bool run(Session *s, const CodegenJob *job) {
    Target target;
    if (!target_find(s, job->cpu, &target)) return false;
    Codegen *g = codegen_new(s, &target, job->facts->plan->name);
    codegen_inner(g);
    codegen_program(g, job->facts->roles, job->facts->n_roles, program_to_json(job->facts));
    bool good = true;
    if (job->text) text_puts(job->text, codegen_text(g));
    if (job->assembly) good = codegen_assembly(g, job->assembly);
    if (job->object) good = codegen_object(g, job->object);
    codegen_free(g);
    if (good && job->binary) good = objects_to_binary(s, job->object, job->runtime_library, job->binary);
    return good;
}

static bool ptx(Session *s, const CodegenJob *job, int sm) {
    for (int r = 0; r < job->facts->n_roles; r++)
        for (int e = 0; e < job->facts->roles[r]->entries.n; e++) {
            const KernelList *list = &job->facts->roles[r]->entries.at[e].body;
            for (int i = 0; i < list->n; i++) {
                if (list->at[i]->kind != KERNEL_LOOP) continue;
                const char *text = loop_to_ptx(s, list->at[i]->loop, sm);
                if (!text) return false;
                text_puts(job->text, text);
            }
        }
    return true;
}

const CodegenApi plan_codegen_api = {.run = run, .json = program_to_json, .ptx = ptx};
