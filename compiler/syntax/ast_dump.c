/* The syntax tree as indented text, for --emit ast and for tests: a statement a line, expressions in prefix form. */
#include "syntax/ast.h"

#include <stdlib.h>

static void dump_expr(const Expr *e, Text *out);

static void dump_exprs(const ExprList *list, Text *out) {
    for (int i = 0; i < list->n; i++) {
        text_puts(out, " ");
        dump_expr(list->at[i], out);
    }
}

static void dump_call(const Expr *e, Text *out) {
    text_puts(out, "(call ");
    dump_expr(e->args.at[0], out);
    for (int i = 0; i < e->call.n; i++) {
        const Arg *arg = &e->call.at[i];
        text_puts(out, " ");
        if (arg->name) text_printf(out, arg->is_over ? "%s:" : "%s=", arg->name);
        dump_expr(arg->value, out);
    }
    text_puts(out, ")");
}

static void dump_text(const char *text, Text *out) {
    text_puts(out, "\"");
    for (; *text; text++) {
        if (*text == '\n')
            text_puts(out, "\\n");
        else if (*text == '"' || *text == '\\')
            text_printf(out, "\\%c", *text);
        else
            text_add(out, text, 1);
    }
    text_puts(out, "\"");
}

/* The shortest digits that read back as the same number. */
static void dump_number(double number, Text *out) {
    char digits[40];
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, number);
        if (strtod(digits, NULL) == number) break;
    }
    text_puts(out, digits);
}

static void dump_expr(const Expr *e, Text *out) {
    static const char *const binary[] = {"+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=", "and", "or"};
    switch (e->kind) {
    case EXPR_ERROR: text_puts(out, "<error>"); return;
    case EXPR_NAME: text_puts(out, e->name); return;
    case EXPR_MEMBER:
        dump_expr(e->args.at[0], out);
        text_printf(out, ".%s", e->name);
        return;
    case EXPR_INT:
        text_printf(out, "%lld%s%s", (long long)e->integer, e->name ? " " : "", e->name ? e->name : "");
        return;
    case EXPR_FLOAT:
        dump_number(e->number, out);
        text_printf(out, "%s%s", e->name ? " " : "", e->name ? e->name : "");
        return;
    case EXPR_STRING: dump_text(e->text, out); return;
    case EXPR_CALL: dump_call(e, out); return;
    case EXPR_TUPLE: text_puts(out, "(tuple"); break;
    case EXPR_LIST: text_puts(out, "(list"); break;
    case EXPR_RANGE: text_puts(out, "(.."); break;
    case EXPR_UNARY: text_printf(out, "(%s", e->op == '-' ? "-" : "not"); break;
    case EXPR_BINARY: text_printf(out, "(%s", binary[e->op]); break;
    case EXPR_ARROW: text_puts(out, "(->"); break;
    case EXPR_ALONG: text_puts(out, "(along"); break;
    }
    dump_exprs(&e->args, out);
    text_puts(out, ")");
}

static void dump_type(const TypeExpr *type, Text *out) {
    if (!type->present) return;
    text_printf(out, ": %s[%s", type->dtype ? type->dtype : "", type->has_dots ? "..." : "");
    for (int i = 0; i < type->dims.n; i++) {
        if (i || type->has_dots) text_puts(out, ", ");
        dump_expr(type->dims.at[i], out);
    }
    text_puts(out, "]");
}

static void dump_value(const char *before, const Expr *value, Text *out) {
    if (!value) return;
    text_puts(out, before);
    dump_expr(value, out);
}

static void dump_params(const Stmt *stmt, Text *out) {
    if (!stmt->params.n) return;
    text_puts(out, " (");
    for (int i = 0; i < stmt->params.n; i++) {
        const Param *param = &stmt->params.at[i];
        text_printf(out, "%s%s", i ? ", " : "", param->name);
        dump_type(&param->type, out);
        dump_value(" -> ", param->arrow_to, out);
        dump_value(" = ", param->value, out);
    }
    text_puts(out, ")");
}

static void dump_words(const Stmt *stmt, Text *out) {
    static const char *const how[] = {"", " padded", " uneven", " repeated"};
    for (int i = 0; i < stmt->words.n; i++) {
        const RuleWord *word = &stmt->words.at[i];
        text_puts(out, i ? ", " : " ");
        dump_expr(word->what, out);
        text_puts(out, how[word->how]);
        if (word->how == STORE_UNEVEN) dump_exprs(&word->sizes, out);
    }
}

static void dump_bindings(const Stmt *stmt, Text *out) {
    for (int i = 0; i < stmt->bindings.n; i++) {
        const Binding *binding = &stmt->bindings.at[i];
        text_printf(out, "%s%s", i ? ", " : " ", binding->name);
        dump_value(binding->is_like ? " = like " : " = ", binding->value, out);
    }
}

static const char *const stmt_names[] = {
    "import",    "const", "gpu",    "cluster", "layer",  "model", "train",    "plan",  "dim",
    "factors",   "input", "target", "weight",  "assign", "expr",  "repeat",   "if",    "return",
    "auxiliary", "log",   "names",  "mesh",    "rule",   "in",    "property", "group",
};
_Static_assert(sizeof stmt_names / sizeof *stmt_names == STMT_GROUP + 1, "a name for each kind of statement");

static void dump_stmt(const Stmt *stmt, int depth, Text *out);

static void dump_body(const StmtList *body, int depth, Text *out) {
    for (int i = 0; i < body->n; i++) dump_stmt(body->at[i], depth, out);
}

static void dump_stmt(const Stmt *stmt, int depth, Text *out) {
    text_printf(out, "%*s%s", depth * 2, "", stmt_names[stmt->kind]);
    bool has_words = stmt->kind == STMT_GROUP || stmt->kind == STMT_RULE || stmt->names.n > 1;
    if (has_words)
        dump_words(stmt, out);
    else if (stmt->name)
        text_printf(out, " %s", stmt->name);
    if (stmt->alias) text_printf(out, " as %s", stmt->alias);
    dump_params(stmt, out);
    dump_type(&stmt->type, out);
    if (stmt->kind == STMT_GROUP) text_puts(out, ":");
    dump_bindings(stmt, out);
    dump_value(stmt->kind == STMT_PLAN ? " on " : stmt->name ? " = " : " ", stmt->value, out);
    dump_value(" ", stmt->range, out);
    if (stmt->axis) text_printf(out, " on %s", stmt->axis);
    dump_value(" using ", stmt->how, out);
    dump_exprs(&stmt->items, out);
    text_puts(out, "\n");
    dump_body(&stmt->body, depth + 1, out);
    if (!stmt->otherwise.n) return;
    text_printf(out, "%*selse\n", depth * 2, "");
    dump_body(&stmt->otherwise, depth + 1, out);
}

void ast_dump(const Ast *ast, Text *out) {
    text_puts(out, "");
    dump_body(&ast->statements, 0, out);
}
