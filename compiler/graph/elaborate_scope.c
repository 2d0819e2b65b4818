/* Names: scopes, what a name stands for, unique paths of weights and dimensions, and where messages belong.
 *
 * One namespace for each call: dimensions, inputs, weights, parameters and variables. Behind it stand the constants of
 * the file, then layers of the file, then the operators of the table. */
#include "graph/elaborate.h"

/* ---- messages ------------------------------------------------------------------------------------------------- */

static bool in_library(const Elaborator *e, Span span) {
    const SourceFile *file = session_file(e->s, span);
    return file && file->is_library;
}

Span elaborate_site(const Elaborator *e, Span span) {
    for (const Scope *scope = e->scope; scope && in_library(e, span) && scope->caller; scope = scope->caller)
        span = scope->call;
    return span;
}

Diag *elaborate_error(Elaborator *e, const char *code, Span span, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *message = arena_vprintf(e->arena, format, args);
    va_end(args);
    Span site = elaborate_site(e, span);
    Diag *d = diag_error(e->s, code, site, "%s", message);
    const Span whole = e->scope->decl->span;
    if (site.file != span.file || site.lo != span.lo)
        diag_note(d, span, "inside `%s` of the standard library", e->scope->decl->name);
    else if (e->scope->caller && span.file == whole.file && span.lo >= whole.lo && span.hi <= whole.hi)
        diag_note(d, e->scope->call, "in this call of `%s`", e->scope->decl->name);
    return d;
}

void help_candidates(Elaborator *e, Diag *d, Name word, Span span, const Name *candidates, int n) {
    Name nearest = nearest_name(word, candidates, n);
    if (nearest) {
        diag_help(d, "did you mean `%s`?", nearest);
        if (!in_library(e, span)) diag_fix(d, span, nearest);
        return;
    }
    if (n == 0 || n > 12) return;
    Text text = {.arena = e->arena};
    for (int i = 0; i < n; i++) text_printf(&text, "%s`%s`", i == 0 ? "" : i + 1 == n ? " and " : ", ", candidates[i]);
    diag_help(d, "there %s %s", n == 1 ? "is" : "are", text.at);
}

const char *value_text(Elaborator *e, const Value *v) {
    switch (v->kind) {
    case VALUE_POISON: return "a mistake";
    case VALUE_NONE: return "`none`";
    case VALUE_BOOL: return v->number != 0 ? "`true`" : "`false`";
    case VALUE_NUMBER: return arena_printf(e->arena, "the number %g", v->number);
    case VALUE_DIM: return arena_printf(e->arena, "dimension `%s`", v->dim->name);
    case VALUE_FUNCTION:
        return arena_printf(e->arena, v->layer ? "layer `%s`" : "operator `%s`",
                            v->layer ? v->layer->name : op_table[v->op]->name);
    case VALUE_TENSOR: return arena_printf(e->arena, "a tensor %s", shape_text(e->arena, &v->node->shape));
    case VALUE_TUPLE: return arena_printf(e->arena, "%d values", v->n_items);
    }
    BUG("value of kind %d", (int)v->kind);
}

/* ---- symbols -------------------------------------------------------------------------------------------------- */

const char *symbol_kind_text(SymbolKind kind) {
    static const char *const text[] = {"a dimension", "an input",   "a weight",
                                       "a parameter", "a variable", "a layer's index"};
    return text[kind];
}

Scope scope_new(Elaborator *e, const Ast *file, const Stmt *decl, Span call) {
    Scope scope = {.caller = e->scope, .file = file, .decl = decl, .call = call, .result = poison()};
    scope.broken = scope.poisoned = diag_any_error(e->s, "P00", decl->span);
    return scope;
}

static Symbol *scope_any(const Elaborator *e, Name name) { return e->scope ? map_get(&e->scope->symbols, name) : NULL; }

Symbol *scope_get(const Elaborator *e, Name name) {
    Symbol *symbol = scope_any(e, name);
    return symbol && !symbol->gone_from ? symbol : NULL;
}

Symbol *scope_declare(Elaborator *e, Name name, SymbolKind kind, Span span, Value value) {
    Symbol *old = scope_get(e, name);
    if (old) {
        Diag *d = elaborate_error(e, "P0151", span, "`%s` is declared twice", name);
        diag_note(d, old->span, "%s of this name stands here", symbol_kind_text(old->kind));
        diag_help(d, "give one of them another name");
        return NULL;
    }
    if (name == e->batch->name) {
        Diag *d = elaborate_error(e, "P0151", span, "`batch` is declared already: its size comes from `train`");
        diag_help(d, "leave this declaration out, or use another name");
        return NULL;
    }
    Symbol *symbol = NEW(e->arena, Symbol);
    *symbol = (Symbol){.name = name, .kind = kind, .value = value, .span = span, .assigned = span, .frame = e->frame};
    map_put(e->arena, &e->scope->symbols, name, symbol);
    return symbol;
}

typedef VEC(Name) NameList;

/* A name of another kind is no suggestion for itself. */
static void add_candidate(Elaborator *e, NameList *list, Name word, Name name) {
    if (name != word) vec_push(e->arena, list, name);
}

static void add_scope_names(Elaborator *e, NameList *list, Name word) {
    for (int i = 0; i < e->scope->symbols.n; i++) {
        const Symbol *symbol = e->scope->symbols.entries[i].value;
        if (!symbol->gone_from) add_candidate(e, list, word, symbol->name);
    }
    add_candidate(e, list, word, e->batch->name);
    for (int i = 0; i < e->program->constants.n && e->scope->file == e->program->ast; i++)
        add_candidate(e, list, word, e->program->constants.entries[i].key);
    static const char *const words[] = {"true", "false", "none"};
    for (int i = 0; i < 3; i++) add_candidate(e, list, word, intern(e->s->names, words[i]));
}

static void add_function_names(Elaborator *e, NameList *list, Name word) {
    for (int i = 0; i < e->scope->file->statements.n; i++) {
        const Stmt *stmt = e->scope->file->statements.at[i];
        if (stmt->kind == STMT_LAYER && stmt->name) add_candidate(e, list, word, stmt->name);
    }
    for (int i = 0; i < OP_COUNT; i++)
        if (op_table[i]->language) add_candidate(e, list, word, intern(e->s->names, op_table[i]->name));
    add_candidate(e, list, word, intern(e->s->names, "position"));
}

/* Whether nothing need be said about an unknown name: it was said, or its declaration may have been left out. */
static bool unknown_silent(Elaborator *e, Name name) {
    e->scope->poisoned = true;
    if (e->scope->broken || map_get(&e->scope->unknown, name)) return true;
    map_put(e->arena, &e->scope->unknown, name, e);
    return false;
}

void name_unknown(Elaborator *e, Name name, Span span) {
    if (unknown_silent(e, name)) return;
    const Symbol *gone = scope_any(e, name);
    if (gone) {
        Diag *d = elaborate_error(e, "P0152", span, "`%s` is not visible here: it is first defined inside `repeat %s`",
                                  name, gone->gone_from);
        diag_note(d, gone->span, "defined here, anew in each round");
        diag_help(d, "define `%s` before the repeat: then it is carried from round to round and visible after it",
                  name);
        return;
    }
    NameList names = {0};
    add_scope_names(e, &names, name);
    Diag *d = elaborate_error(e, "P0150", span, "`%s` is unknown", name);
    if (!nearest_name(name, names.at, names.n)) add_function_names(e, &names, name);
    if (nearest_name(name, names.at, names.n))
        help_candidates(e, d, name, span, names.at, names.n);
    else
        diag_help(d, "declare it before this line: `dim %s = ...`, `weight %s: [...] = ...` or `%s = ...`", name, name,
                  name);
}

void help_operator(Elaborator *e, Diag *d, const Value *v) {
    if (v->kind != VALUE_FUNCTION || v->layer) return;
    Name word = intern(e->s->names, op_table[v->op]->name);
    NameList names = {0};
    for (const Scope *scope = e->scope; scope; scope = scope->caller)
        for (int i = 0; i < scope->symbols.n; i++) add_candidate(e, &names, word, scope->symbols.entries[i].key);
    Name near = nearest_name(word, names.at, names.n);
    if (near) diag_help(d, "did you mean `%s`?", near);
}

/* ---- functions -------------------------------------------------------------------------------------------------- */

/* Inside a layer its own name means the operator: layers are never recursive, so nothing is lost. */
static Value find_function(Elaborator *e, const Expr *name) {
    Value none = {.kind = VALUE_NONE};
    bool own_name = name->kind == EXPR_NAME && e->scope->decl->kind == STMT_LAYER && name->name == e->scope->decl->name;
    Op op = name->kind == EXPR_NAME ? op_find(name->name) : OP_COUNT;
    if (op < OP_COUNT && !op_table[op]->language) op = OP_COUNT;
    if (!(own_name && op < OP_COUNT)) {
        const Ast *file = NULL;
        const Stmt *layer = program_find_layer(e->program, e->scope->file, name, &file);
        if (layer) return (Value){.kind = VALUE_FUNCTION, .op = OP_COUNT, .layer = layer, .file = file};
    }
    return op < OP_COUNT ? (Value){.kind = VALUE_FUNCTION, .op = op} : none;
}

/* Those of the main file are known; others are evaluated here, without the names of the body. */
Value constant_value(Elaborator *e, Name name) {
    const Ast *file = e->scope->file;
    if (file == e->program->ast) {
        const double *known = map_get(&e->program->constants, name);
        if (!known) return (Value){.kind = VALUE_NONE};
        return number_value(*known, *known > -9e15 && *known < 9e15 && *known == (double)(int64_t)*known);
    }
    enum { DEEPEST = 32 }; /* cycles are reported where constants are resolved */
    for (int i = 0; i < file->statements.n; i++) {
        const Stmt *stmt = file->statements.at[i];
        for (int k = 0; stmt->kind == STMT_CONST && k < stmt->bindings.n; k++) {
            if (stmt->bindings.at[k].name != name) continue;
            if (e->constant_depth >= DEEPEST || !stmt->bindings.at[k].value) return poison();
            Scope scope = scope_new(e, file, e->scope->decl, e->scope->call);
            e->scope = &scope;
            e->constant_depth++;
            Value v = expr_value(e, stmt->bindings.at[k].value);
            e->constant_depth--;
            e->scope = scope.caller;
            return v.kind == VALUE_NUMBER || v.kind == VALUE_BOOL ? v : poison();
        }
    }
    return (Value){.kind = VALUE_NONE};
}

Value name_value(Elaborator *e, Name name, Span span) {
    const Symbol *symbol = scope_get(e, name);
    if (symbol) return symbol->value;
    if (name == e->batch->name) return (Value){.kind = VALUE_DIM, .dim = e->batch};
    Value constant = constant_value(e, name);
    if (constant.kind != VALUE_NONE) return constant;
    Expr expr = {.kind = EXPR_NAME, .span = span, .name = name, .name_span = span};
    Value function = scope_any(e, name) ? (Value){.kind = VALUE_NONE} : find_function(e, &expr);
    if (function.kind == VALUE_FUNCTION) return function;
    name_unknown(e, name, span);
    return poison();
}

/* "nn.mlp" when an import has a layer of this name, else NULL. */
static const char *imported_layer(Elaborator *e, Name name) {
    Map imports = program_imports(e->program, e->scope->file);
    for (int i = 0; i < imports.n; i++) {
        const Ast *file = imports.entries[i].value;
        for (int k = 0; k < file->statements.n; k++) {
            const Stmt *stmt = file->statements.at[k];
            if (stmt->kind == STMT_LAYER && stmt->name == name)
                return arena_printf(e->arena, "%s.%s", (Name)imports.entries[i].key, name);
        }
    }
    return NULL;
}

/* An import was misspelt or left out: then nothing is said about names that it may have had. */
static bool imports_failed(const Elaborator *e) {
    int32_t file = e->scope->file->file;
    Span whole = {file, 0, INT32_MAX}, first = {file, 0, e->scope->decl->span.lo};
    return diag_any_error(e->s, "P012", whole) || diag_any_error(e->s, "P00", first);
}

/* The layers of an imported file, for messages. */
static void layer_unknown(Elaborator *e, const Expr *callee) {
    const Expr *head = callee->args.n ? callee->args.at[0] : NULL;
    Map imports = program_imports(e->program, e->scope->file);
    const Ast *file = head && head->kind == EXPR_NAME ? map_get(&imports, head->name) : NULL;
    if (!file && imports_failed(e)) {
        e->scope->poisoned = true;
        return;
    }
    if (unknown_silent(e, file || !head || !head->name ? callee->name : head->name)) return;
    if (!file) {
        if (head && head->kind == EXPR_NAME) {
            NameList names = {0};
            for (int i = 0; i < imports.n; i++) vec_push(e->arena, &names, imports.entries[i].key);
            Diag *d = elaborate_error(e, "P0153", head->span, "`%s` is not imported", head->name);
            const char *meant = imported_layer(e, callee->name);
            if (meant)
                diag_help(d, "did you mean `%s`?", meant);
            else if (nearest_name(head->name, names.at, names.n))
                help_candidates(e, d, head->name, head->span, names.at, names.n);
            else
                diag_help(d, "add a line `import %s` at the top", head->name);
        } else {
            elaborate_error(e, "P0153", callee->span, "this is not the name of a layer or an operator");
        }
        return;
    }
    NameList names = {0};
    for (int i = 0; i < file->statements.n; i++)
        if (file->statements.at[i]->kind == STMT_LAYER) vec_push(e->arena, &names, file->statements.at[i]->name);
    bool half_read = diag_any_error(e->s, "P00", (Span){file->file, 0, INT32_MAX}); /* it may be what was not read */
    if (half_read && !nearest_name(callee->name, names.at, names.n)) return;
    Diag *d = elaborate_error(e, "P0153", callee->name_span, "`%s` has no layer `%s`", head->name, callee->name);
    help_candidates(e, d, callee->name, callee->name_span, names.at, names.n);
}

/* Words of the language that stand for what is not built. */
static bool refused_unbuilt(Elaborator *e, const Expr *callee) {
    if (strcmp(callee->name, "dropless") != 0) return false;
    Diag *d =
        elaborate_error(e, "P9000", callee->span, "`dropless`, in rounds of a smaller capacity, is not built yet");
    diag_help(d, "`capacity = none` drops no token: each expert has room for a whole sequence");
    return true;
}

Value callee_value(Elaborator *e, const Expr *callee) {
    if (callee->kind == EXPR_ERROR) return poison();
    if (callee->kind == EXPR_NAME) {
        const Symbol *symbol = scope_get(e, callee->name);
        if (symbol && (symbol->value.kind == VALUE_FUNCTION || symbol->value.kind == VALUE_POISON))
            return symbol->value;
        Value function = find_function(e, callee);
        if (function.kind == VALUE_FUNCTION) return function;
        if (symbol) {
            Diag *d = elaborate_error(e, "P0154", callee->span, "`%s` is %s, not a layer or an operator", callee->name,
                                      value_text(e, &symbol->value));
            diag_note(d, symbol->span, "declared here");
            return poison();
        }
        if (unknown_silent(e, callee->name)) return poison();
        NameList names = {0};
        add_function_names(e, &names, callee->name);
        for (int i = 0; i < e->scope->symbols.n; i++) {
            const Symbol *known = e->scope->symbols.entries[i].value;
            if (known->value.kind == VALUE_FUNCTION) vec_push(e->arena, &names, known->name);
        }
        if (refused_unbuilt(e, callee)) return poison();
        const char *meant = imported_layer(e, callee->name);
        Diag *d = elaborate_error(e, "P0153", callee->span, "there is no operator or layer `%s`", callee->name);
        if (meant)
            diag_help(d, "did you mean `%s`?", meant);
        else if (nearest_name(callee->name, names.at, names.n))
            help_candidates(e, d, callee->name, callee->span, names.at, names.n);
        else
            diag_help(d, "`plc ops` lists the operators; layers of the library are written `nn.%s`", callee->name);
        return poison();
    }
    Value function = find_function(e, callee);
    if (function.kind == VALUE_FUNCTION) return function;
    layer_unknown(e, callee);
    return poison();
}

/* ---- paths ------------------------------------------------------------------------------------------------------ */

Name path_join(Elaborator *e, Name prefix, Name name) {
    return prefix ? intern(e->s->names, arena_printf(e->arena, "%s.%s", prefix, name)) : name;
}

Name path_unique(Elaborator *e, Name prefix, Name name) {
    Name first = path_join(e, prefix, name), path = first;
    for (intptr_t count = 2; map_get(&e->paths, path); count++)
        path = intern(e->s->names, arena_printf(e->arena, "%s_%d", first, (int)count));
    map_put(e->arena, &e->paths, path, e);
    return path;
}
