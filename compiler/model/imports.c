/* Files: `import nn` to a parsed file with its names.
 *
 * In: a tree. Out: a FileScope with the file's declarations and, through its imports, those of other files. A file is
 * looked for beside the importing file, then in the standard library, and read once however often it is imported.
 * Layers cannot call each other in a circle across files, so a circle of imports is refused here. */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/resolve.h"

/* The folder of a path, with its slash; "" for a bare file name. */
static const char *folder_of(Arena *arena, const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? "" : arena_strndup(arena, path, (size_t)(slash - path) + 1);
}

static Name stem_of(Resolver *r, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *base = slash == NULL ? path : slash + 1;
    const char *dot = strrchr(base, '.');
    return intern_n(r->s->names, base, dot == NULL ? strlen(base) : (size_t)(dot - base));
}

static const char *canonical(Arena *arena, const char *path) {
    char *real = realpath(path, NULL);
    if (real == NULL) return path;
    const char *copy = arena_strndup(arena, real, strlen(real));
    free(real);
    return copy;
}

/* "models/gpt2.plan" of `import models.gpt2`. */
static const char *relative_path(Arena *arena, const Expr *name) {
    const char *dotted = expr_dotted(arena, name);
    if (dotted == NULL) return NULL;
    char *path = arena_printf(arena, "%s.plan", dotted);
    for (char *c = path; c < path + strlen(dotted); c++)
        if (*c == '.') *c = '/';
    return path;
}

/* Stems of the .plan files of a folder. */
static void list_folder(Resolver *r, const char *folder, const char *prefix, Name **names, int *n, int *cap) {
    DIR *dir = opendir(folder[0] == '\0' ? "." : folder);
    if (dir == NULL) return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length <= 5 || strcmp(entry->d_name + length - 5, ".plan") != 0) continue;
        const char *stem = arena_printf(r->arena, "%s%.*s", prefix, (int)(length - 5), entry->d_name);
        vec_reserve_(r->arena, (void **)names, cap, *n + 1, sizeof **names);
        (*names)[(*n)++] = intern(r->s->names, stem);
    }
    closedir(dir);
}

/* The files of every folder in the standard library: for a folder that is misspelt. */
static void list_library_folders(Resolver *r, Name **names, int *n, int *cap) {
    DIR *dir = r->s->library_path == NULL ? NULL : opendir(r->s->library_path);
    if (dir == NULL) return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (entry->d_name[0] != '.')
            list_folder(r, arena_printf(r->arena, "%s/%s", r->s->library_path, entry->d_name),
                        arena_printf(r->arena, "%s.", entry->d_name), names, n, cap);
    closedir(dir);
}

static void report_missing(Resolver *r, const FileScope *from, const Stmt *stmt, const char *relative) {
    Arena *arena = r->arena;
    const char *beside = from->folder;
    const char *dotted = expr_dotted(arena, stmt->value);
    Diag *d = diag_error(r->s, "P0120", stmt->value->span, "no file `%s` for `import %s`", relative, dotted);
    Name *names = NULL;
    int n = 0, cap = 0;
    const char *prefix = "", *last = strrchr(relative, '/');
    const char *sub = last == NULL ? "" : arena_strndup(arena, relative, (size_t)(last - relative) + 1);
    if (last != NULL) prefix = arena_strndup(arena, dotted, (size_t)(last - relative) + 1);
    list_folder(r, arena_printf(arena, "%s%s", beside, sub), prefix, &names, &n, &cap);
    if (r->s->library_path != NULL)
        list_folder(r, arena_printf(arena, "%s/%s", r->s->library_path, sub), prefix, &names, &n, &cap);
    list_library_folders(r, &names, &n, &cap);
    Name near = nearest_name(intern(r->s->names, dotted), names, n);
    diag_note(d, (Span){0}, "looked beside this file and in the standard library");
    if (near != NULL) {
        diag_help(d, "did you mean `%s`?", near);
        diag_fix(d, stmt->value->span, near);
    }
}

static FileScope *already_loaded(const Program *program, const char *path) {
    for (int i = 0; i < program->files.n; i++)
        if (strcmp(program->files.at[i]->path, path) == 0) return program->files.at[i];
    return NULL;
}

static FileScope *load_path(Resolver *r, const Stmt *stmt, const char *path, bool is_library) {
    const char *real = canonical(r->arena, path);
    FileScope *known = already_loaded(r->program, real);
    if (known != NULL && known->loading) {
        Diag *d =
            diag_error(r->s, "P0121", stmt->value->span, "`%s` imports itself", expr_dotted(r->arena, stmt->value));
        diag_note(d, (Span){0}, "the circle closes at `%s`", path);
        diag_help(d, "move what both files need into a third one");
        return NULL;
    }
    if (known != NULL) return known;
    const char *why = NULL;
    int32_t file = session_read_file(r->s, path, is_library, &why);
    if (file == 0) {
        diag_error(r->s, "P0120", stmt->value->span, "`%s` cannot be read: %s", path, why);
        return NULL;
    }
    return scope_load(r, text_to_ast(r->s, file), path, false);
}

static FileScope *load_import(Resolver *r, const FileScope *from, const Stmt *stmt) {
    const char *relative = relative_path(r->arena, stmt->value);
    if (relative == NULL) return NULL; /* the parser has reported it */
    const char *path = arena_printf(r->arena, "%s%s", from->folder, relative);
    if (access(path, F_OK) == 0) {
        const SourceFile *importing = session_file(r->s, (Span){from->ast->file, 0, 0});
        return load_path(r, stmt, path, importing != NULL && importing->is_library);
    }
    if (r->s->library_path != NULL) {
        path = arena_printf(r->arena, "%s/%s", r->s->library_path, relative);
        if (access(path, F_OK) == 0) return load_path(r, stmt, path, true);
    }
    report_missing(r, from, stmt, relative);
    return NULL;
}

static void add_import(Resolver *r, FileScope *scope, const Stmt *stmt) {
    if (stmt->value == NULL || (stmt->value->kind != EXPR_NAME && stmt->value->kind != EXPR_MEMBER)) return;
    Import *import = NEW(r->arena, Import);
    import->name = stmt->alias != NULL ? stmt->alias : stmt->value->name;
    import->span = stmt->alias != NULL ? stmt->alias_span : stmt->value->span;
    Import *before = map_get(&scope->imports, import->name);
    if (before != NULL) {
        Diag *d = diag_error(r->s, "P0123", import->span, "`%s` is imported twice", import->name);
        diag_note(d, before->span, "first here");
        return;
    }
    import->file = load_import(r, scope, stmt);
    if (import->file == NULL && scope->is_main) r->program->incomplete = true;
    map_put(r->arena, &scope->imports, import->name, import);
}

/* ---- declarations ---------------------------------------------------------------------------------------------- */

static void declare(Resolver *r, FileScope *scope, Name name, Span span, const Stmt *stmt) {
    const Stmt *before = map_get(&scope->names, name);
    const Import *import = map_get(&scope->imports, name);
    if (before == NULL && import == NULL) {
        map_put(r->arena, &scope->names, name, (void *)(uintptr_t)stmt);
        return;
    }
    Diag *d = diag_error(r->s, "P0123", span, "`%s` is declared twice", name);
    Span first = import != NULL ? import->span : before->name_span;
    if (before != NULL && before->kind == STMT_CONST)
        first = ((Constant *)map_get(&scope->constants, name))->binding->name_span;
    diag_note(d, first, import != NULL ? "first as the name of an import" : "first here");
    diag_help(d, "give one of them another name");
}

static void declare_constants(Resolver *r, FileScope *scope, const Stmt *stmt) {
    for (int i = 0; i < stmt->bindings.n; i++) {
        const Binding *binding = &stmt->bindings.at[i];
        declare(r, scope, binding->name, binding->name_span, stmt);
        if (map_get(&scope->constants, binding->name) != NULL) continue;
        Constant *constant = NEW(r->arena, Constant);
        constant->binding = binding;
        map_put(r->arena, &scope->constants, binding->name, constant);
    }
}

static void declare_statement(Resolver *r, FileScope *scope, const Stmt *stmt) {
    switch (stmt->kind) {
    case STMT_CONST: declare_constants(r, scope, stmt); break;
    case STMT_GPU:
    case STMT_CLUSTER:
    case STMT_LAYER:
    case STMT_MODEL:
        if (stmt->name != NULL) declare(r, scope, stmt->name, stmt->name_span, stmt);
        break;
    default: break;
    }
}

FileScope *scope_load(Resolver *r, const Ast *ast, const char *path, bool is_main) {
    FileScope *scope = NEW(r->arena, FileScope);
    scope->ast = ast;
    scope->path = canonical(r->arena, path);
    scope->folder = folder_of(r->arena, path);
    scope->stem = stem_of(r, path);
    scope->is_main = is_main;
    scope->loading = true;
    vec_push(r->arena, &r->program->files, scope);
    for (int i = 0; i < ast->statements.n; i++)
        if (ast->statements.at[i]->kind == STMT_IMPORT) add_import(r, scope, ast->statements.at[i]);
    scope->loading = false;
    for (int i = 0; i < ast->statements.n; i++) declare_statement(r, scope, ast->statements.at[i]);
    return scope;
}

FileScope *scope_of(const Program *program, const Ast *ast) {
    for (int i = 0; i < program->files.n; i++)
        if (program->files.at[i]->ast == ast) return program->files.at[i];
    return NULL;
}
