/* From the syntax tree to the typed model.
 *
 * In: the parsed file and the command line's settings. Out: a Program in which every name of a gpu, cluster, train and
 * plan block is resolved and every number is in base units. The order is that of need: files and names, constants,
 * GPUs, clusters (they count GPUs), the training run (it names the model), plans. Everything that can be reported is.
 */
#include "model/resolve.h"

static const char *main_path(const Session *s, const Ast *ast) {
    const SourceFile *file = session_file(s, (Span){ast->file, 0, 0});
    return file == NULL ? "" : file->path;
}

static void evaluate_constants(Resolver *r, FileScope *scope) {
    for (int i = 0; i < scope->constants.n; i++) {
        Constant *constant = scope->constants.entries[i].value;
        const Binding *binding = constant->binding;
        Expr name = {.kind = EXPR_NAME, .span = binding->name_span, .name = binding->name};
        const Stmt *stmt = map_get(&scope->names, binding->name);
        if (stmt == NULL || stmt->kind != STMT_CONST) continue; /* declared twice: reported */
        Quantity value = quantity_eval(r, scope, &name);
        if (!scope->is_main || !value.ok || value.text != NULL) continue;
        double *number = NEW(r->arena, double);
        *number = value.value;
        map_put(r->arena, &r->program->constants, binding->name, number);
    }
}

/* Imported files come first: a cluster's GPUs are found resolved. */
static void resolve_machines(Resolver *r) {
    Program *program = r->program;
    for (int i = program->files.n - 1; i >= 0; i--) {
        FileScope *scope = program->files.at[i];
        for (int k = 0; k < scope->names.n; k++) {
            const Stmt *stmt = scope->names.entries[k].value;
            if (stmt->kind != STMT_GPU) continue;
            Gpu *gpu = gpu_resolve(r, scope, stmt);
            map_put(r->arena, &scope->gpus, stmt->name, gpu);
            vec_push(r->arena, &program->gpus, gpu);
        }
    }
    for (int i = program->files.n - 1; i >= 0; i--) {
        FileScope *scope = program->files.at[i];
        for (int k = 0; k < scope->names.n; k++) {
            const Stmt *stmt = scope->names.entries[k].value;
            if (stmt->kind != STMT_CLUSTER) continue;
            Cluster *cluster = cluster_resolve(r, scope, stmt);
            map_put(r->arena, &scope->clusters, stmt->name, cluster);
            vec_push(r->arena, &program->clusters, cluster);
        }
    }
}

static void list_declarations(Resolver *r) {
    Program *program = r->program;
    for (int i = 0; i < r->main->names.n; i++) {
        const Stmt *stmt = r->main->names.entries[i].value;
        if (stmt->kind == STMT_LAYER) vec_push(r->arena, &program->layers, stmt);
        if (stmt->kind == STMT_MODEL) vec_push(r->arena, &program->models, stmt);
    }
    for (int i = 0; i < r->main->imports.n; i++) {
        const Import *import = r->main->imports.entries[i].value;
        if (import->file != NULL)
            map_put(r->arena, &program->imported, import->name, (void *)(uintptr_t)import->file->ast);
    }
    for (int i = 1; i < program->files.n; i++) vec_push(r->arena, &program->imports, program->files.at[i]->ast);
}

static void resolve_runs(Resolver *r) {
    const Ast *ast = r->main->ast;
    for (int i = 0; i < ast->statements.n; i++) {
        const Stmt *stmt = ast->statements.at[i];
        if (stmt->kind != STMT_TRAIN) continue;
        if (r->program->train == NULL) {
            train_resolve(r, r->main, stmt);
            continue;
        }
        Diag *d = diag_error(r->s, "P0507", stmt->head.file != 0 ? stmt->head : stmt->span, "a second `train` block");
        diag_note(d, r->program->train->span, "the first");
        diag_help(d, "a file describes one training run; put the other in a file of its own");
    }
    for (int i = 0; i < ast->statements.n; i++)
        if (ast->statements.at[i]->kind == STMT_PLAN && ast->statements.at[i]->name != NULL)
            plan_resolve(r, r->main, ast->statements.at[i]);
}

Program *ast_to_model(Session *s, const Ast *ast, Setting *settings, int n_settings) {
    if (ast == NULL) return NULL;
    Program *program = NEW(s->arena, Program);
    program->session = s;
    program->ast = ast;
    Resolver r = {.s = s, .arena = s->arena, .program = program, .settings = settings, .n_settings = n_settings};
    r.incomplete = program->incomplete = diag_count(s, SEV_ERROR) > 0;
    settings_parse(&r);
    r.main = scope_load(&r, ast, main_path(s, ast), true);
    for (int i = 0; i < program->files.n; i++) evaluate_constants(&r, program->files.at[i]);
    resolve_machines(&r);
    list_declarations(&r);
    resolve_runs(&r);
    models_check(&r);
    for (int i = 0; i < program->files.n; i++) scope_check_imports(&r, program->files.at[i]);
    settings_finish(&r);
    return program;
}
