/* Which statement may stand in which block, for statements that no keyword begins. (The layout has placed keywords.) */
#include "syntax/parse.h"

static void refuse(Parser *p, Span span, const char *problem, const char *help) {
    Diag *d = diag_error(p->s, "P0008", span, "%s", problem);
    diag_help(d, "%s", help);
}

static void check_assign(Parser *p, const Stmt *stmt, BlockKind block) {
    for (int i = 0; i < stmt->words.n; i++)
        if (stmt->words.at[i].what->kind == EXPR_MEMBER && block != BLOCK_NAMES)
            refuse(p, stmt->words.at[i].what->span, "a member cannot be given a value", "assign to a plain name");
    if (stmt->names.n > 1 && block != BLOCK_TENSORS)
        refuse(p, stmt->head, "several names are given a value at once",
               "that is for layers and models: write one statement for each name");
}

static void check_statement(Parser *p, const Stmt *stmt, BlockKind block) {
    switch (stmt->kind) {
    case STMT_ASSIGN: check_assign(p, stmt, block); break;
    case STMT_EXPR:
        if (block == BLOCK_TENSORS)
            refuse(p, stmt->span, "the result of this call is not used", "give it a name: `y = ...`");
        else
            refuse(p, stmt->span, "a call cannot stand alone here",
                   "properties are written without brackets: `recompute attention`");
        break;
    case STMT_RULE:
        if (block != BLOCK_PLAN)
            refuse(p, stmt->head, "a rule cannot stand in this block", "`WHAT on AXIS` belongs in a plan");
        break;
    case STMT_GROUP:
        if (block != BLOCK_GROUPS)
            refuse(p, stmt->head, "parameter groups cannot stand in this block",
                   "they belong in the block of the optimizer: `optimizer adamw(...) { ... }`");
        break;
    default: break;
    }
}

static void check_block(Parser *p, const StmtList *body, BlockKind block);

static void check_body(Parser *p, const Stmt *stmt) {
    switch (stmt->kind) {
    case STMT_GPU:
    case STMT_CLUSTER:
    case STMT_TRAIN: check_block(p, &stmt->body, BLOCK_PROPERTIES); break;
    case STMT_PROPERTY: check_block(p, &stmt->body, BLOCK_GROUPS); break;
    case STMT_PLAN:
    case STMT_IN: check_block(p, &stmt->body, BLOCK_PLAN); break;
    case STMT_NAMES: check_block(p, &stmt->body, BLOCK_NAMES); break;
    default:
        check_block(p, &stmt->body, BLOCK_TENSORS);
        check_block(p, &stmt->otherwise, BLOCK_TENSORS);
        break;
    }
}

static void check_block(Parser *p, const StmtList *body, BlockKind block) {
    for (int i = 0; i < body->n; i++) {
        check_statement(p, body->at[i], block);
        check_body(p, body->at[i]);
    }
}

void place_check(Parser *p) { check_block(p, &p->ast->statements, BLOCK_TOP); }
