/* Blocks of properties: what gpu, cluster, train and plan blocks have in common.
 *
 * In: a statement of such a block. Out: a Property, its name and values, whether it is written `memory 80 GB` or
 * `memory = 80 GB`. Unknown names, second statements and statements of another kind are reported here. */
#include "model/resolve.h"

bool property_read(Arena *arena, const Stmt *stmt, Property *out) {
    if (stmt->name == NULL || (stmt->kind != STMT_PROPERTY && stmt->kind != STMT_ASSIGN)) return false;
    *out = (Property){stmt->name,     stmt->name_span, stmt->head.file != 0 ? stmt->head : stmt->span,
                      stmt->items.at, stmt->items.n,   stmt};
    if (stmt->kind == STMT_ASSIGN && stmt->value != NULL) {
        Expr **one = NEW(arena, Expr *);
        *one = stmt->value;
        out->items = one;
        out->n = 1;
    }
    return true;
}

void help_word(Diag *d, const Expr *e, const char *word) {
    if (e->kind != EXPR_NAME || nearest_name(e->name, &word, 1) == NULL) return;
    diag_help(d, "did you mean `%s`?", word);
    diag_fix(d, e->span, word);
}

bool property_single_and(Resolver *r, const Property *p, const char *word) {
    if (p->n == 1) return true;
    if (p->n == 0) {
        Diag *d = diag_error(r->s, "P0132", p->name_span, "`%s` has no value", p->name);
        diag_help(d, "write its value after it on the same line");
    } else {
        Diag *d = diag_error(r->s, "P0132", p->items[1]->span, "`%s` takes one value", p->name);
        if (word != NULL) help_word(d, p->items[1], word);
    }
    return false;
}

bool property_single(Resolver *r, const Property *p) { return property_single_and(r, p, NULL); }

/* A rule whose words are misspelt looks like a property: `head onn tensor`, `layers unveen(3, 1) on pipe`. */
static bool help_rule_word(Diag *d, const Property *p) {
    static const char *const words[] = {"on", "padded", "uneven", "repeated"};
    const Expr *first = p->n > 1 ? p->items[0] : NULL;
    if (first != NULL && first->kind == EXPR_CALL) first = first->args.at[0];
    Name near = first != NULL && first->kind == EXPR_NAME ? nearest_name(first->name, words, 4) : NULL;
    if (near != NULL) help_word(d, first, near);
    return near != NULL;
}

void property_unknown(Resolver *r, const char *kind, const Property *p, const char *const *known, int n) {
    Diag *d = diag_error(r->s, "P0130", p->name_span, "a %s has no property `%s`", kind, p->name);
    Name near = nearest_name(p->name, known, n);
    if (near != NULL) {
        diag_help(d, "did you mean `%s`?", near);
        diag_fix(d, p->name_span, near);
    } else if (strcmp(kind, "plan") != 0 || !help_rule_word(d, p)) {
        diag_help(d, "it has %s", list_text(r->arena, known, n, " and "));
    }
}

bool property_once(Resolver *r, Map *seen, const Property *p) {
    const Stmt *before = map_get(seen, p->name);
    if (before == NULL) {
        map_put(r->arena, seen, p->name, (void *)(uintptr_t)p->stmt);
        return true;
    }
    Diag *d = diag_error(r->s, "P0131", p->name_span, "`%s` is stated twice", p->name);
    diag_note(d, before->name_span, "first here");
    diag_help(d, "remove one of the two");
    return false;
}

void block_refuse(Resolver *r, const char *kind, const Stmt *stmt) {
    if (r->incomplete) return; /* the parser has said that it cannot stand here */
    Span span = stmt->head.file != 0 ? stmt->head : stmt->span;
    diag_error(r->s, "P0132", span, "a %s block cannot hold this statement", kind);
}
