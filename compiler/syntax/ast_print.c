/* The formatter: the canonical text of a file.
 *
 * It works on tokens, not on the tree, so that comments and line breaks stay: the user decides where lines end, the
 * formatter decides everything between. Blanks depend on neighbouring tokens alone; statements of one sort that follow
 * each other are aligned in columns; a line that goes on inside a bracket begins below the bracket's first element.
 * What it prints, it prints again unchanged. */
#include "syntax/print.h"

#include "plan_parser.h"

typedef struct Printer {
    Parser p;
    PrintLines lines;
    int i;     /* the raw token at hand */
    int line;  /* index of the line that tokens go to, or -1 */
    int depth; /* open blocks that are not written on one line */
    int next_comment;
    int32_t last_end;               /* in the source, of the last token or comment */
    int previous;                   /* raw index of the last token that was printed, or -1 */
    int cells[MOST_CELLS], n_cells; /* raw tokens where a cell of the current line begins */
    VEC(Anchor) brackets;
    int *partner; /* of each brace: the other one; -1 when the block is not written on one line */
} Printer;

static const Token *token_at(const Printer *q, int i) { return &q->p.raw.at[i < q->p.raw.n ? i : q->p.raw.n - 1]; }

/* ---- blanks between tokens ---- */

static bool ends_operand(int kind) {
    return kind == NAME || kind == INT || kind == FLOAT || kind == STRING || kind == ')' || kind == ']';
}

static bool is_unary_minus(const Printer *q, int i) {
    return token_at(q, i)->kind == '-' && (i == 0 || !ends_operand(token_at(q, i - 1)->kind));
}

static bool needs_blank(const Printer *q, int before, int i) {
    int left = token_at(q, before)->kind, right = token_at(q, i)->kind;
    if (left == '{' || right == '}' || right == '{') return true;
    if (right == ',' || right == ':' || right == ')' || right == ']' || right == '.' || right == RANGE) return false;
    if (left == '(' || left == '[' || left == '.' || left == RANGE) return false;
    if (right == '(') return left != NAME && left != UNEVEN;
    if (right == '[') return !(left == NAME && before > 0 && token_at(q, before - 1)->kind == ':');
    return !is_unary_minus(q, before);
}

/* ---- lines ---- */

static void end_line(Printer *q) { q->line = -1; }

static int newlines_between(const Printer *q, int32_t lo, int32_t hi) {
    int n = 0;
    for (int32_t at = lo; at < hi; at++) n += q->p.text[at] == '\n';
    return n;
}

static PrintLine *begin_line(Printer *q, LineSort sort, int32_t lo) {
    PrintLine line = {.sort = sort, .depth = q->depth};
    for (int i = 0; i < MOST_CELLS; i++) line.cells[i].arena = q->p.arena;
    int most = q->depth ? 1 : 2, blanks = newlines_between(q, q->last_end, lo) - 1;
    bool after_brace = q->previous >= 0 && token_at(q, q->previous)->kind == '{' && (q->line < 0) && q->lines.at.n &&
                       vec_last(&q->lines.at).sort != LINE_COMMENT;
    if (q->lines.at.n && sort != LINE_CLOSES && !after_brace && blanks > 0)
        line.blanks_before = blanks < most ? blanks : most;
    if (q->brackets.n) {
        line.has_anchor = true;
        line.anchor = vec_last(&q->brackets);
    }
    q->line = q->lines.at.n;
    vec_push(q->p.arena, &q->lines.at, line);
    return &q->lines.at.at[q->line];
}

static int characters(const Text *text) {
    int n = 0;
    uint32_t code;
    for (const char *at = text->at, *end = at + text->n; at < end; n++) at += utf8_decode(at, end, &code);
    return n;
}

static void add_token_text(const Printer *q, Text *out, const Token *token) {
    bool has_unit = (token->kind == INT || token->kind == FLOAT) && token->name;
    int32_t hi = has_unit ? token->unit_lo : token->hi;
    while (has_unit && (q->p.text[hi - 1] == ' ' || q->p.text[hi - 1] == '\t')) hi--;
    text_add(out, q->p.text + token->lo, (size_t)(hi - token->lo));
    if (has_unit) text_printf(out, " %s", token->name);
}

static void put_token(Printer *q) {
    const Token *token = token_at(q, q->i);
    PrintLine *line = &q->lines.at.at[q->line];
    bool first = !line->n_cells;
    bool new_cell = first || (line->n_cells < q->n_cells && q->cells[line->n_cells] == q->i);
    if (new_cell) line->n_cells++;
    Text *cell = &line->cells[line->n_cells - 1];
    if (!new_cell && needs_blank(q, q->previous, q->i)) text_puts(cell, " ");
    if (q->brackets.n) vec_last(&q->brackets).ends_line &= vec_last(&q->brackets).line != q->line;
    if (token->kind == '(' || token->kind == '[')
        vec_push(q->p.arena, &q->brackets, (Anchor){q->line, line->n_cells - 1, cell->at ? characters(cell) : 0, true});
    if ((token->kind == ')' || token->kind == ']') && q->brackets.n) q->brackets.n--;
    add_token_text(q, cell, token);
    q->previous = q->i;
    q->last_end = token->hi;
}

/* ---- cells ---- */

static void add_cell(Printer *q, int i) {
    if (q->n_cells < MOST_CELLS) q->cells[q->n_cells++] = i;
}

/* First token of `kind` outside brackets from `i` to the end of the statement's first line, or -1. */
static int find_outside(const Printer *q, int i, int kind) {
    int depth = 0;
    for (;; i++) {
        int at = token_at(q, i)->kind;
        if (at == NEWLINE || at == END || at == '{' || at == '}') return -1;
        if (at == kind && !depth) return i;
        depth += (at == '(' || at == '[') - (at == ')' || at == ']');
    }
}

static LineClass find_cells(Printer *q) {
    int i = q->i, equals = find_outside(q, i, '='), on = find_outside(q, i, ON), colon = find_outside(q, i, ':');
    q->n_cells = 0;
    add_cell(q, i);
    switch (token_at(q, i)->kind) {
    case KW_DIM:
    case KW_MODEL:
        if (equals < 0 || find_outside(q, i, ',') >= 0) return LINE_OTHER;
        add_cell(q, equals);
        return token_at(q, i)->kind == KW_DIM ? LINE_DIM : LINE_ALIAS;
    case KW_INPUT:
    case KW_TARGET:
    case KW_WEIGHT:
        add_cell(q, i + 1);
        if (colon >= 0) add_cell(q, colon + 1);
        if (equals >= 0) add_cell(q, equals);
        return LINE_TENSOR;
    case WORD: {
        int next = token_at(q, i + 1)->kind;
        if (next == NEWLINE || next == '{' || next == '}' || next == END) return LINE_OTHER;
        add_cell(q, i + 1);
        return LINE_PROPERTY;
    }
    case NAME:
        if (on >= 0 && (equals < 0 || on < equals)) return add_cell(q, on), LINE_RULE;
        if (equals >= 0 && (colon < 0 || equals < colon)) return add_cell(q, equals), LINE_ASSIGN;
        return LINE_OTHER;
    default: return LINE_OTHER;
    }
}

/* ---- comments ---- */

static const char *comment_text(const Printer *q, const Comment *comment) {
    int32_t hi = comment->hi;
    while (hi > comment->lo && (q->p.text[hi - 1] == ' ' || q->p.text[hi - 1] == '\t')) hi--;
    return arena_strndup(q->p.arena, q->p.text + comment->lo, (size_t)(hi - comment->lo));
}

/* Whether the last printed token leaves the statement unfinished, so that the next line goes on. */
static bool goes_on(const Printer *q) {
    static const int kinds[] = {'+', '-', '*', '/', '=', ',', EQ, NE, LE, GE, LT, GT, AND, OR, NOT, ARROW, RANGE};
    if (q->brackets.n) return true;
    for (size_t i = 0; q->previous >= 0 && i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i] == token_at(q, q->previous)->kind) return true;
    return false;
}

static void put_comments(Printer *q, int32_t before) {
    for (; q->next_comment < q->p.comments.n && q->p.comments.at[q->next_comment].lo < before; q->next_comment++) {
        const Comment *comment = &q->p.comments.at[q->next_comment];
        if (comment->alone || !q->lines.at.n) {
            end_line(q);
            PrintLine *line = begin_line(q, LINE_COMMENT, comment->lo);
            line->comment = comment_text(q, comment);
            if (goes_on(q) && !line->has_anchor) line->depth++;
        } else {
            vec_last(&q->lines.at).comment = comment_text(q, comment);
        }
        end_line(q);
        q->last_end = comment->hi;
    }
}

/* ---- tokens ---- */

static bool comment_between(const Printer *q, int32_t lo, int32_t hi) {
    for (int i = q->next_comment; i < q->p.comments.n && q->p.comments.at[i].lo < hi; i++)
        if (q->p.comments.at[i].lo >= lo) return true;
    return false;
}

/* Pairs the braces of blocks that stay on one line; the braces of others have no partner. */
static void find_partners(Printer *q) {
    int n = q->p.raw.n;
    q->partner = NEW_N(q->p.arena, int, n);
    VEC(int) open = {0};
    for (int i = 0; i < n; i++) {
        q->partner[i] = -1;
        if (token_at(q, i)->kind == '{') vec_push(q->p.arena, &open, i);
        if (token_at(q, i)->kind != '}' || !open.n) continue;
        int from = vec_last(&open), lines = 0, others = 0;
        open.n--;
        for (int k = from + 1; k < i; k++) {
            lines += token_at(q, k)->kind == NEWLINE;
            others += token_at(q, k)->kind != NEWLINE;
        }
        if ((lines && others) || comment_between(q, token_at(q, from)->lo, token_at(q, i)->lo)) continue;
        q->partner[from] = i;
        q->partner[i] = from;
    }
}

/* Whether the newline at hand is left out: before a brace that belongs to this line, before `else`, in `{ }`. */
static bool joins_lines(const Printer *q) {
    int next = q->i + 1;
    while (token_at(q, next)->kind == NEWLINE) next++;
    if (q->previous < 0 || comment_between(q, token_at(q, q->previous)->hi, token_at(q, next)->lo)) return false;
    int before = token_at(q, q->previous)->kind, after = token_at(q, next)->kind;
    if (before == '{' && after == '}') return true;
    return (after == '{' && before != '{' && before != '}') || (after == KW_ELSE && before == '}');
}

static void print_token(Printer *q) {
    const Token *token = token_at(q, q->i);
    bool on_one_line = q->partner[q->i] >= 0;
    bool closes = token->kind == '}' && !on_one_line;
    if (closes) {
        end_line(q);
        q->depth--;
    }
    if (q->line < 0) {
        LineSort sort = closes || token->kind == '{' || token->kind == KW_ELSE ? LINE_CLOSES
                        : goes_on(q)                                           ? LINE_GOES_ON
                                                                               : LINE_STATEMENT;
        PrintLine *line = begin_line(q, sort, token->lo);
        q->n_cells = 0;
        if (sort == LINE_STATEMENT) line->class = find_cells(q);
        line->closes_anchor = token->kind == ')' || token->kind == ']';
    }
    put_token(q);
    if (token->kind == '{' && !on_one_line) {
        q->depth++;
        end_line(q);
    }
}

const char *ast_print(Session *s, int32_t file) {
    int errors = diag_count(s, SEV_ERROR);
    text_to_ast(s, file);
    if (diag_count(s, SEV_ERROR) > errors) return NULL;
    const SourceFile *source = session_file(s, (Span){file, 0, 0});
    Printer q = {.p = {.s = s, .arena = s->arena, .file = file, .text = source->text, .size = source->size},
                 .line = -1,
                 .previous = -1};
    q.lines.arena = s->arena;
    lex_file(&q.p);
    lines_make(&q.p);
    find_partners(&q);
    for (q.i = 0; q.i < q.p.raw.n; q.i++) {
        const Token *token = token_at(&q, q.i);
        put_comments(&q, token->lo);
        if (token->kind == END) break;
        if (token->kind != NEWLINE)
            print_token(&q);
        else if (!joins_lines(&q))
            end_line(&q);
    }
    return lines_to_text(&q.lines);
}
