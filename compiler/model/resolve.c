/* Names: what a (possibly dotted) name stands for, and the messages when it stands for nothing.
 *
 * In: a name and the file it is used in. Out: its declaration and the file that holds it. `a.b` is the name `b` of the
 * import `a`. An unknown name is reported with the nearest one that would have fitted there. */
#include "model/resolve.h"

/* ---- expressions ------------------------------------------------------------------------------------------------ */

static bool add_dotted(Text *text, const Expr *e) {
    if (e->kind == EXPR_NAME) {
        text_puts(text, e->name);
        return true;
    }
    if (e->kind != EXPR_MEMBER || !add_dotted(text, e->args.at[0])) return false;
    text_printf(text, ".%s", e->name);
    return true;
}

const char *expr_dotted(Arena *arena, const Expr *e) {
    Text text = {.arena = arena};
    return e != NULL && add_dotted(&text, e) ? text.at : NULL;
}

bool expr_is_word(const Expr *e, const char *word) { return e->kind == EXPR_NAME && strcmp(e->name, word) == 0; }

/* ---- messages ---------------------------------------------------------------------------------------------------- */

const char *list_text(Arena *arena, const char *const *words, int n, const char *last) {
    Text text = {.arena = arena};
    text_puts(&text, "");
    for (int i = 0; i < n; i++) text_printf(&text, "%s`%s`", i == 0 ? "" : i == n - 1 ? last : ", ", words[i]);
    return text.at;
}

const char *numbers_text(Arena *arena, const int64_t *numbers, int n, const char *last) {
    Text text = {.arena = arena};
    text_puts(&text, "");
    for (int i = 0; i < n; i++)
        text_printf(&text, "%s%lld", i == 0 ? "" : i == n - 1 ? last : ", ", (long long)numbers[i]);
    return text.at;
}

enum { LONGEST_LIST = 12 };

void help_nearest(Resolver *r, Diag *d, Name word, const Name *candidates, int n, Span fix) {
    Name near = nearest_name(word, candidates, n);
    if (near != NULL) {
        diag_help(d, "did you mean `%s`?", near);
        diag_fix(d, fix, near);
    } else if (n > 0 && n <= LONGEST_LIST) {
        diag_help(d, n == 1 ? "there is %s" : "there are %s", list_text(r->arena, candidates, n, " and "));
    }
}

/* ---- looking names up --------------------------------------------------------------------------- */

static const char *kind_text(StmtKind kind) {
    static const struct {
        StmtKind kind;
        const char *text;
    } texts[] = {{STMT_CONST, "constant"}, {STMT_GPU, "GPU"},     {STMT_CLUSTER, "cluster"},
                 {STMT_LAYER, "layer"},    {STMT_MODEL, "model"}, {STMT_IMPORT, "import"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].kind == kind) return texts[i].text;
    return "name";
}

const Stmt *scope_peek(const FileScope *scope, const Expr *name, FileScope **found) {
    if (name->kind == EXPR_NAME) {
        if (found != NULL) *found = (FileScope *)(uintptr_t)scope;
        return map_get(&scope->names, name->name);
    }
    if (name->kind != EXPR_MEMBER || name->args.n < 1 || name->args.at[0]->kind != EXPR_NAME) return NULL;
    const Import *import = map_get(&scope->imports, name->args.at[0]->name);
    if (import == NULL || import->file == NULL) return NULL;
    if (found != NULL) *found = import->file;
    return map_get(&import->file->names, name->name);
}

/* Names of one kind in a file, with `prefix` in front. */
static void collect(Resolver *r, const FileScope *scope, const char *prefix, StmtKind kind, Name **names, int *n,
                    int *cap) {
    for (int i = 0; i < scope->names.n; i++) {
        const Stmt *stmt = scope->names.entries[i].value;
        if (stmt->kind != kind) continue;
        const char *name = arena_printf(r->arena, "%s%s", prefix, (Name)scope->names.entries[i].key);
        vec_reserve_(r->arena, (void **)names, cap, *n + 1, sizeof **names);
        (*names)[(*n)++] = intern(r->s->names, name);
    }
}

/* Names near in the last part: `gpus.A100` for `A100`, for someone who forgot the import's name. */
static bool help_qualified(Resolver *r, Diag *d, const FileScope *scope, const Expr *name, StmtKind kind) {
    for (int i = 0; i < scope->imports.n; i++) {
        const Import *import = scope->imports.entries[i].value;
        const Stmt *stmt = import->file == NULL ? NULL : map_get(&import->file->names, name->name);
        if (stmt == NULL || stmt->kind != kind) continue;
        diag_help(d, "did you mean `%s.%s`?", import->name, name->name);
        diag_fix(d, name->span, arena_printf(r->arena, "%s.%s", import->name, name->name));
        return true;
    }
    return false;
}

/* Whether the name is met for the first time in its file: a second use of a misspelt declaration is no second mistake.
 */
static bool is_first_use(Resolver *r, const Expr *name, const char *text) {
    Name key = intern(r->s->names, arena_printf(r->arena, "%d %s", name->span.file, text));
    if (map_get(&r->unknown, key) != NULL) return false;
    map_put(r->arena, &r->unknown, key, (void *)(uintptr_t)name);
    return true;
}

/* Whether the parser could not read all of the file: what is missing from it proves nothing. */
static bool has_syntax_errors(const Resolver *r, const FileScope *scope) {
    return diag_any_error(r->s, "P00", (Span){scope->ast->file, 0, INT32_MAX});
}

static void report_unknown_import(Resolver *r, const FileScope *scope, const Expr *name) {
    const Expr *base = name->args.at[0];
    if (!is_first_use(r, name, arena_printf(r->arena, "%s.", base->name))) return;
    Diag *d = diag_error(r->s, "P0124", base->span, "unknown name `%s`", base->name);
    diag_label(d, "no import has this name");
    Name *names = NULL;
    int n = 0, cap = 0;
    for (int i = 0; i < scope->imports.n; i++) {
        vec_reserve_(r->arena, (void **)&names, &cap, n + 1, sizeof *names);
        names[n++] = scope->imports.entries[i].key;
    }
    Name near = nearest_name(base->name, names, n);
    if (near != NULL) {
        diag_help(d, "did you mean `%s`?", near);
        diag_fix(d, base->span, near);
    } else {
        diag_help(d, "write `import %s` at the top of the file", base->name);
    }
}

/* A name that is missing in its own file: the nearest there, else the nearest of an import. */
static void report_unknown_here(Resolver *r, const FileScope *scope, const Expr *name, StmtKind kind) {
    Name *names = NULL;
    int n = 0, cap = 0;
    collect(r, scope, "", kind, &names, &n, &cap);
    int own = n;
    for (int i = 0; i < scope->imports.n; i++) {
        const Import *import = scope->imports.entries[i].value;
        if (import->file != NULL)
            collect(r, import->file, arena_printf(r->arena, "%s.", import->name), kind, &names, &n, &cap);
    }
    Name near = nearest_name(name->name, names, own);
    for (int i = own; near == NULL && i < n; i++) { /* imported ones are compared without the import's name */
        Name bare = intern(r->s->names, strrchr(names[i], '.') + 1);
        if (nearest_name(name->name, &bare, 1) != NULL) near = names[i];
    }
    if (near == NULL && r->incomplete) return; /* its declaration may be what the parser could not read */
    Diag *d = diag_error(r->s, "P0124", name->span, "unknown %s `%s`", kind_text(kind), name->name);
    if (help_qualified(r, d, scope, name, kind)) return;
    if (near != NULL) {
        diag_help(d, "did you mean `%s`?", near);
        diag_fix(d, name->span, near);
    } else if (n > 0 && n <= LONGEST_LIST) {
        diag_help(d, n == 1 ? "there is %s" : "there are %s", list_text(r->arena, names, n, " and "));
    }
}

static void report_unknown(Resolver *r, const FileScope *scope, const FileScope *where, const Expr *name,
                           StmtKind kind) {
    const char *dotted = expr_dotted(r->arena, name);
    if (!is_first_use(r, name, dotted)) return;
    if (where == scope) {
        report_unknown_here(r, scope, name, kind);
        return;
    }
    Name *names = NULL;
    int n = 0, cap = 0;
    collect(r, where, "", kind, &names, &n, &cap);
    if (has_syntax_errors(r, where) && nearest_name(name->name, names, n) == NULL) return;
    Diag *d = diag_error(r->s, "P0124", name->span, "unknown %s `%s`", kind_text(kind), dotted);
    help_nearest(r, d, name->name, names, n, name->name_span.file != 0 ? name->name_span : name->span);
}

const Stmt *scope_find(Resolver *r, FileScope *scope, const Expr *name, StmtKind kind, FileScope **found) {
    if (name->kind == EXPR_ERROR) return NULL;
    if (expr_dotted(r->arena, name) == NULL) {
        diag_error(r->s, "P0125", name->span, "the name of a %s is needed here", kind_text(kind));
        return NULL;
    }
    FileScope *where = scope;
    if (name->kind == EXPR_MEMBER) {
        const Expr *base = name->args.at[0];
        const Import *import = base->kind == EXPR_NAME ? map_get(&scope->imports, base->name) : NULL;
        if (base->kind == EXPR_NAME && import == NULL) {
            report_unknown_import(r, scope, name);
            return NULL;
        }
        if (import != NULL && import->file == NULL) return NULL; /* the import has been reported */
        if (import != NULL) where = import->file;
    }
    const Stmt *stmt = scope_peek(scope, name, found);
    if (stmt == NULL) {
        report_unknown(r, scope, where, name, kind);
        return NULL;
    }
    if (stmt->kind != kind) {
        Diag *d = diag_error(r->s, "P0125", name->span, "`%s` is a %s, and a %s is needed here",
                             expr_dotted(r->arena, name), kind_text(stmt->kind), kind_text(kind));
        diag_note(d, stmt->name_span.file != 0 ? stmt->name_span : stmt->head, "declared here");
        return NULL;
    }
    return stmt;
}

const Stmt *program_find_layer(const Program *program, const Ast *scope, const Expr *name, const Ast **found_in) {
    FileScope *file = scope_of(program, scope), *found = NULL;
    const Stmt *stmt = file == NULL ? NULL : scope_peek(file, name, &found);
    if (stmt == NULL || stmt->kind != STMT_LAYER) return NULL;
    if (found_in != NULL) *found_in = found->ast;
    return stmt;
}

Map program_imports(const Program *program, const Ast *scope) {
    Map imports = {0};
    const FileScope *file = scope_of(program, scope);
    for (int i = 0; file != NULL && i < file->imports.n; i++) {
        const Import *import = file->imports.entries[i].value;
        if (import->file != NULL)
            map_put(program->session->arena, &imports, import->name, (void *)(uintptr_t)import->file->ast);
    }
    return imports;
}

/* ---- unused imports ----------------------------------------------------------------------------- */

static void use_in_statements(FileScope *scope, const StmtList *statements);

static void use_in_expression(FileScope *scope, const Expr *e) {
    if (e == NULL) return;
    if (e->kind == EXPR_MEMBER && e->args.n > 0 && e->args.at[0]->kind == EXPR_NAME) {
        Import *import = map_get(&scope->imports, e->args.at[0]->name);
        if (import != NULL) import->used = true;
    }
    for (int i = 0; i < e->args.n; i++) use_in_expression(scope, e->args.at[i]);
    for (int i = 0; i < e->call.n; i++) use_in_expression(scope, e->call.at[i].value);
}

static void use_in_statement(FileScope *scope, const Stmt *stmt) {
    use_in_expression(scope, stmt->value);
    use_in_expression(scope, stmt->how);
    for (int i = 0; i < stmt->items.n; i++) use_in_expression(scope, stmt->items.at[i]);
    for (int i = 0; i < stmt->bindings.n; i++) use_in_expression(scope, stmt->bindings.at[i].value);
    for (int i = 0; i < stmt->params.n; i++) use_in_expression(scope, stmt->params.at[i].value);
    use_in_statements(scope, &stmt->body);
    use_in_statements(scope, &stmt->otherwise);
}

static void use_in_statements(FileScope *scope, const StmtList *statements) {
    for (int i = 0; i < statements->n; i++)
        if (statements->at[i]->kind != STMT_IMPORT) use_in_statement(scope, statements->at[i]);
}

void scope_check_imports(Resolver *r, FileScope *scope) {
    use_in_statements(scope, &scope->ast->statements);
    for (int i = 0; i < scope->imports.n; i++) {
        const Import *import = scope->imports.entries[i].value;
        if (import->used || import->file == NULL) continue;
        Diag *d = diag_warning(r->s, "P0122", import->span, "import `%s` is not used", import->name);
        diag_help(d, "remove the line");
    }
}
