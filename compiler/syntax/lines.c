/* Lines and brackets: raw tokens in, tokens for the parser out.
 *
 * A newline ends a statement unless a bracket is open or an operator or a comma stands before it; every statement that
 * goes out ends with exactly one NEWLINE, also before `}`. Brackets that were never closed are found here, where
 * indentation still tells what was meant: each is reported once and closed, so one mistake does not hide the others. */
#include "syntax/lines.h"

#include "plan_parser.h"

enum { NOT_FOUND = -1 };

static bool is_opening(int kind) { return kind == '(' || kind == '['; }
static bool is_closing(int kind) { return kind == ')' || kind == ']'; }

const Token *lines_raw(const Lines *l, int ahead) {
    int at = l->i + ahead, last = l->p->raw.n - 1;
    return &l->p->raw.at[at < last ? at : last];
}

/* The raw token at hand, or the first behind it that is no newline. */
static const Token *text_from(const Lines *l) {
    int ahead = 0;
    while (lines_raw(l, ahead)->kind == NEWLINE) ahead++;
    return lines_raw(l, ahead);
}

static const Open *innermost(const Lines *l) { return l->open.n ? &l->open.at[l->open.n - 1] : NULL; }
static bool in_brackets(const Lines *l) { return l->open.n && is_opening(innermost(l)->token.kind); }

BlockKind lines_block(const Lines *l) {
    for (int i = l->open.n - 1; i >= 0; i--)
        if (l->open.at[i].token.kind == '{') return l->open.at[i].kind;
    return BLOCK_TOP;
}

Diag *lines_report(Lines *l, const char *code, const Token *token, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *message = arena_vprintf(l->p->arena, format, args);
    va_end(args);
    return diag_error(l->p->s, code, parser_span(l->p, token->lo, token->hi), "%s", message);
}

/* ---- passing tokens on ---- */

static void emit(Lines *l, const Token *token) {
    vec_push(l->p->arena, &l->p->tokens, *token);
    l->in_statement = true;
}

static int32_t last_end(const Lines *l) { return l->p->tokens.n ? vec_last(&l->p->tokens).hi : 0; }

/* A token that the text does not have, behind the last one. */
static void emit_made(Lines *l, int kind) {
    emit(l, &(Token){.kind = kind, .lo = last_end(l), .hi = last_end(l), .column = -1, .reported = true});
}

static void end_statement(Lines *l) {
    if (l->in_statement) {
        emit_made(l, NEWLINE);
        vec_last(&l->p->tokens).reported = false; /* it stands for a real one, or for the end */
    }
    l->in_statement = false;
    l->needs_block = false;
    l->opens = BLOCK_UNKNOWN;
    l->head = 0;
}

/* ---- brackets ---- */

static void open_bracket(Lines *l, const Token *token, BlockKind kind) {
    int32_t indent = token->kind == '{' ? l->head_indent : l->indent;
    vec_push(l->p->arena, &l->open, (Open){*token, kind, indent});
}

/* Marks the round and square brackets that nothing closes before the block around them changes. */
static void find_unclosed(Parser *p) {
    VEC(int) open = {0};
    for (int i = 0; i < p->raw.n; i++) {
        int kind = p->raw.at[i].kind;
        if (kind == '{' || kind == '}' || kind == END) {
            for (; open.n; open.n--) p->raw.at[vec_last(&open)].unclosed = true;
        } else if (is_opening(kind)) {
            vec_push(p->arena, &open, i);
        } else if (is_closing(kind)) {
            if (open.n)
                open.n--;
            else
                p->raw.at[i].stray = true;
        }
    }
}

/* The line behind the one at `at` when it is empty, which is where a closing bracket stood or should; else `at`. */
static int32_t behind_line(const Lines *l, int32_t at) {
    const char *text = l->p->text;
    int32_t next = at;
    while (next < l->p->size && text[next] != '\n') next++;
    if (next < l->p->size) next++;
    int32_t end = next;
    while (end < l->p->size && (text[end] == ' ' || text[end] == '\t' || text[end] == '\r')) end++;
    return end == l->p->size || text[end] == '\n' ? next : at;
}

/* Closes the innermost bracket, which the text leaves open. */
static void close_bracket(Lines *l) {
    const Token opening = innermost(l)->token;
    l->open.n--;
    int32_t at = last_end(l);
    bool swallowed = l->open_text > opening.lo; /* by a text without its closing quote */
    if (!swallowed) {
        const char *closing = opening.kind == '(' ? ")" : "]";
        bool one_line = !memchr(l->p->text + opening.lo, '\n', (size_t)(at - opening.lo));
        int32_t where = one_line ? at : behind_line(l, at);
        Diag *d = diag_error(l->p->s, "P0005", parser_span(l->p, where, where), "`%c` is never closed", opening.kind);
        diag_label(d, "expected `%s`", closing);
        diag_note(d, parser_span(l->p, opening.lo, opening.hi), "opened here");
        diag_fix(d, parser_span(l->p, at, at), closing);
    }
    emit_made(l, opening.kind == '(' ? ')' : ']');
}

static void close_brackets(Lines *l) {
    while (in_brackets(l)) close_bracket(l);
}

/* ---- blocks ---- */

static void emit_closing_brace(Lines *l) {
    end_statement(l);
    emit_made(l, '}');
}

/* Closes every open block: something stands here that can only stand outside all. */
void lines_close_blocks(Lines *l, Span where, const char *what) {
    const Token *opening = l->wrong ? l->wrong : &innermost(l)->token;
    Diag *d = diag_error(l->p->s, "P0006", where, "%s, where a block is still open: a `}` is missing before it", what);
    diag_note(d, parser_span(l->p, opening->lo, opening->hi), "the block was opened here");
    for (; l->open.n; l->open.n--) emit_closing_brace(l);
    end_statement(l);
    l->wrong = NULL;
}

static void open_block(Lines *l, const Token *token) {
    close_brackets(l);
    if (!l->in_statement) {
        const Token *before = l->i ? lines_raw(l, -1) : NULL;
        l->head_indent = l->indent;
        lines_report(l, "P0001", token, "unexpected `{`");
        if (before && before->kind == '{') return; /* doubled: drop it */
        emit(l, &(Token){.kind = BAD, .lo = token->lo, .hi = token->lo, .column = -1, .reported = true});
        l->opens = BLOCK_UNKNOWN;
    }
    BlockKind kind = l->opens;
    emit(l, token);
    l->in_statement = false;
    l->needs_block = false;
    open_bracket(l, token, kind);
}

/* A head without its brace, before lines that stand further in. */
static void add_missing_brace(Lines *l, const Token *next) {
    int32_t at = last_end(l);
    if (next->kind != '}' && next->column <= l->head_indent) return;
    Diag *d =
        diag_error(l->p->s, "P0006", parser_span(l->p, at, at), "the block of this statement has no opening brace");
    diag_label(d, "expected `{`");
    diag_fix(d, parser_span(l->p, at, at), " {");
    Token brace = {.kind = '{', .lo = at, .hi = at, .column = -1, .reported = true};
    BlockKind kind = l->opens;
    emit(l, &brace);
    l->in_statement = false;
    l->needs_block = false;
    open_bracket(l, &brace, kind);
}

static void close_block(Lines *l, const Token *token) {
    close_brackets(l);
    const Open *open = innermost(l);
    if (!open) {
        if (!l->lost) lines_report(l, "P0006", token, "`}` closes nothing");
        return;
    }
    if (token->column >= 0 && token->column < open->indent && !l->wrong) {
        l->wrong_token = open->token;
        l->wrong = &l->wrong_token;
    }
    bool was_tensors = open->kind == BLOCK_TENSORS, was_lost = l->lost;
    end_statement(l);
    emit(l, token);
    l->head_indent = open->indent;
    l->open.n--;
    if (!l->open.n) l->wrong = NULL;
    int ahead = 1;
    while (lines_raw(l, ahead)->kind == NEWLINE) ahead++;
    if (was_tensors && lines_takes_else(l, l->i + ahead)) {
        l->i += ahead - 1; /* the newline between goes */
        l->opens = BLOCK_TENSORS;
        l->needs_block = true;
    } else if (was_lost) {
        l->p->raw.at[l->i + 1].reported = true; /* an `else` of junk is junk */
    }
}

/* ---- lines ---- */

static bool goes_on_after(int kind) {
    static const int kinds[] = {'+', '-', '*', '/', '=', ',', EQ, NE, LE, GE, LT, GT, AND, OR, NOT, ARROW, RANGE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i] == kind) return true;
    return false;
}

static void end_line(Lines *l) {
    const Token *next = text_from(l); /* the token at hand is the newline */
    if (in_brackets(l)) {
        const Open *open = innermost(l);
        bool further_in = next->column > open->indent;
        if (!open->token.unclosed || further_in || next->kind == END || next->kind == '{') return;
        while (in_brackets(l) && innermost(l)->token.unclosed) close_bracket(l);
        if (in_brackets(l)) return;
    }
    if (!l->in_statement || goes_on_after(vec_last(&l->p->tokens).kind)) return;
    if (l->needs_block) {
        if (next->kind == '{') return;
        add_missing_brace(l, next);
    }
    end_statement(l);
}

static void end_file(Lines *l, const Token *token) {
    close_brackets(l);
    if (l->open.n) {
        int32_t at = behind_line(l, last_end(l));
        lines_close_blocks(l, parser_span(l->p, at, at), "the file ends");
    }
    end_statement(l);
    emit(l, token);
}

static void lines_token(Lines *l) {
    const Token *token = lines_raw(l, 0);
    if (token->column >= 0) l->indent = token->column;
    if (token->unclosed && token->kind == STRING) l->open_text = token->lo;
    switch (token->kind) {
    case NEWLINE: end_line(l); return;
    case '{': open_block(l, token); return;
    case '}': close_block(l, token); return;
    case END: end_file(l, token); return;
    default: break;
    }
    if (!l->in_statement) {
        l->head_indent = l->indent;
        l->opens = BLOCK_UNKNOWN;
        l->head = token->kind;
        lines_begin_statement(l);
    } else if (token->kind == NAME) {
        lines_inner_word(l);
    }
    token = lines_raw(l, 0);
    if (is_opening(token->kind)) open_bracket(l, token, BLOCK_NONE);
    if (is_closing(token->kind) && in_brackets(l)) l->open.n--;
    if (token->kind == '=' && l->head == KW_MODEL && !in_brackets(l)) l->needs_block = false;
    emit(l, token);
}

void lines_make(Parser *p) {
    find_unclosed(p);
    Lines l = {.p = p, .opens = BLOCK_UNKNOWN};
    for (l.i = 0; l.i < p->raw.n; l.i++) lines_token(&l);
}
