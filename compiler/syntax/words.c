/* Which names are keywords where they stand.
 *
 * In: the name that begins a statement, the block around it and the tokens behind it. A word is a keyword when its
 * statement may stand in the block and what follows is not an ordinary use of a name (`input = ...`, `model on data`).
 * A declaration of the top level inside a block means that a brace is missing before it. A misspelt keyword, where only
 * a keyword makes sense, is reported and taken for the one that it resembles, so its block is still read. */
#include "syntax/lines.h"

#include "plan_parser.h"

enum { N_NEAREST = 32 };

static const Keyword keywords[] = {
#define KEYWORD(spelling, token, place, block) {spelling, token, place, block},
#include "syntax/keywords.def"
#undef KEYWORD
};
enum { N_KEYWORDS = sizeof keywords / sizeof *keywords };

static const Keyword *keyword_find(Name name) {
    for (int i = 0; i < N_KEYWORDS; i++)
        if (!strcmp(keywords[i].spelling, name)) return &keywords[i];
    return NULL;
}

static const Keyword *keyword_near(Lines *l, Name name, StatementPlace place) {
    Name candidates[N_NEAREST];
    int n = 0;
    for (int i = 0; i < N_KEYWORDS; i++)
        if (keywords[i].place == place) candidates[n++] = intern(l->p->s->names, keywords[i].spelling);
    Name near = nearest_name(name, candidates, n);
    return near ? keyword_find(near) : NULL;
}

static bool is_name(const Token *token, const char *name) { return token->kind == NAME && !strcmp(token->name, name); }

static bool begins_value(int kind) {
    return kind == NAME || kind == INT || kind == FLOAT || kind == STRING || kind == '(' || kind == '[' || kind == '-';
}

/* What follows a name when it is not the first word of a keyword's statement. */
static bool is_ordinary_use(int next) {
    return next == '=' || next == ',' || next == '.' || next == ':' || next == ON || next == PADDED || next == UNEVEN ||
           next == REPEATED;
}

/* Whether the statement at hand has the shape of the keyword's, by the tokens right behind the word. */
static bool has_shape(const Lines *l, const Keyword *keyword) {
    int one = lines_raw(l, 1)->kind, two = lines_raw(l, 2)->kind, three = lines_raw(l, 3)->kind;
    bool named = one == NAME;
    switch (keyword->token) {
    case KW_IMPORT: return named && (two == NEWLINE || two == '.' || is_name(lines_raw(l, 2), "as"));
    case KW_CONST: return named && two == '=';
    case KW_GPU:
    case KW_CLUSTER:
    case KW_NAMES: return named && two == '{';
    case KW_LAYER: return named && two == '(' && (three == ')' || (three == NAME && lines_raw(l, 4)->kind != '('));
    case KW_MODEL: return named && (two == '{' || two == '=');
    case KW_TRAIN: return one == '{' || (named && two == '{');
    case KW_PLAN: return named && (two == '{' || two == ON);
    case KW_DIM: return named && (two == '=' || two == ',' || two == NEWLINE);
    case KW_FACTORS:
    case KW_MESH: return named && two == '=';
    case KW_INPUT:
    case KW_TARGET:
    case KW_WEIGHT: return named && two == ':';
    case KW_REPEAT: return named && (two == '{' || is_name(lines_raw(l, 2), "as"));
    case KW_IN: return named && (two == '{' || two == INT || two == '.');
    case KW_ELSE: return one == '{' || is_name(lines_raw(l, 1), "if");
    default: return false;
    }
}

static bool block_takes(BlockKind block, StatementPlace place) {
    switch (place) {
    case PLACE_TOP: return block == BLOCK_TOP;
    case PLACE_TENSORS: return block == BLOCK_TENSORS;
    case PLACE_PLAN: return block == BLOCK_PLAN;
    }
    return false;
}

static const char *place_text(StatementPlace place) {
    return place == PLACE_TOP    ? "at the top level of a file"
           : place == PLACE_PLAN ? "in a plan"
                                 : "in a layer or model";
}

static void take_keyword(Lines *l, const Keyword *keyword) {
    l->p->raw.at[l->i].kind = keyword->token;
    l->head = keyword->token;
    l->opens = keyword->block;
    l->needs_block = keyword->block != BLOCK_NONE;
    if (keyword->place == PLACE_TOP) l->lost = false;
}

/* The statement has been reported: the parser passes over it without a word. */
static void take_nothing(Lines *l) {
    l->p->raw.at[l->i].kind = BAD;
    l->p->raw.at[l->i].reported = true;
    l->head = BAD;
}

static void take_misspelt(Lines *l, const Keyword *near) {
    const Token *token = lines_raw(l, 0);
    Diag *d = lines_report(l, "P0007", token, "unknown statement `%s`", token->name);
    diag_help(d, "did you mean `%s`?", near->spelling);
    diag_fix(d, parser_span(l->p, token->lo, token->hi), near->spelling);
    take_keyword(l, near);
}

/* Only declarations stand at the top level. */
static void begin_at_top(Lines *l, const Keyword *keyword) {
    const Token *token = lines_raw(l, 0);
    const Keyword *near = keyword ? NULL : keyword_near(l, token->name, PLACE_TOP);
    if (near && !is_ordinary_use(lines_raw(l, 1)->kind)) {
        take_misspelt(l, near);
        return;
    }
    if (!l->lost) {
        Diag *d;
        if (keyword && has_shape(l, keyword)) {
            d = lines_report(l, "P0008", token, "`%s` cannot stand at the top level of a file", token->name);
            diag_help(d, "it belongs %s", place_text(keyword->place));
        } else {
            d = lines_report(l, "P0007", token, "`%s` begins no declaration", token->name);
            diag_help(d, "a file is made of import, const, gpu, cluster, layer, model, train and plan");
        }
    }
    l->lost = true;
    take_nothing(l);
}

/* In layers and models every statement is a keyword's, an assignment or a call. */
static void begin_in_tensors(Lines *l) {
    const Token *token = lines_raw(l, 0);
    int next = lines_raw(l, 1)->kind;
    bool is_statement = is_ordinary_use(next) || next == '(' || next == NEWLINE || next == '}';
    if (is_statement || !(begins_value(next) || next == '{' || next == BAD)) return;
    const Keyword *near = keyword_near(l, token->name, PLACE_TENSORS);
    if (near) {
        take_misspelt(l, near);
        return;
    }
    Diag *d = lines_report(l, "P0007", token, "unknown statement `%s`", token->name);
    diag_help(d, "a layer or model holds dim, factors, input, target, weight, repeat, if, return, auxiliary, log, "
                 "names and `name = value`");
    take_nothing(l);
}

static void begin_property(Lines *l) {
    Token *token = &l->p->raw.at[l->i];
    int next = lines_raw(l, 1)->kind;
    if (is_ordinary_use(next) || next == '(') return;
    if (lines_block(l) == BLOCK_PLAN && next == NAME && lines_raw(l, 2)->kind == '=') {
        const Keyword *near = keyword_near(l, token->name, PLACE_PLAN);
        if (near && near->token == KW_MESH) {
            take_misspelt(l, near);
            return;
        }
    }
    token->kind = WORD;
    l->head = WORD;
    l->opens = BLOCK_GROUPS;
}

/* Whether the word, a keyword of this block, is used as one. */
static bool is_used_as_keyword(const Lines *l, const Keyword *keyword) {
    int next = lines_raw(l, 1)->kind;
    if (is_ordinary_use(next)) return false;
    if (next != '(') return true;
    return keyword->token == KW_IF || keyword->token == KW_RETURN || keyword->token == KW_AUXILIARY ||
           keyword->token == KW_LOG;
}

void lines_begin_statement(Lines *l) {
    const Token *token = lines_raw(l, 0);
    BlockKind block = lines_block(l);
    if (token->kind != NAME) {
        if (block == BLOCK_TOP && l->lost) take_nothing(l);
        return;
    }
    const Keyword *keyword = keyword_find(token->name);
    bool may_stand =
        keyword && (block_takes(block, keyword->place) || (block == BLOCK_UNKNOWN && keyword->place != PLACE_TOP));
    if (may_stand && is_used_as_keyword(l, keyword)) {
        take_keyword(l, keyword);
        return;
    }
    if (keyword && !block_takes(block, keyword->place) && has_shape(l, keyword)) {
        if (keyword->place == PLACE_TOP) {
            lines_close_blocks(l, parser_span(l->p, token->lo, token->hi),
                               arena_printf(l->p->arena, "`%s` stands here", token->name));
            take_keyword(l, keyword);
            return;
        }
        if (block != BLOCK_TOP) {
            Diag *d = lines_report(l, "P0008", token, "`%s` cannot stand in this block", token->name);
            diag_help(d, "it belongs %s", place_text(keyword->place));
            take_keyword(l, keyword);
            return;
        }
    }
    if (block == BLOCK_TOP)
        begin_at_top(l, keyword);
    else if (block == BLOCK_TENSORS)
        begin_in_tensors(l);
    else
        begin_property(l);
}

bool lines_takes_else(Lines *l, int at) {
    Token *token = &l->p->raw.at[at];
    if (!is_name(token, "else")) return false;
    token->kind = KW_ELSE;
    Token *next = token + 1;
    if (is_name(next, "if")) next->kind = KW_IF;
    return true;
}

static bool ends_value(int kind) {
    return kind == NAME || kind == WORD || kind == INT || kind == FLOAT || kind == STRING || kind == ')' || kind == ']';
}

void lines_inner_word(Lines *l) {
    Token *token = &l->p->raw.at[l->i];
    int before = vec_last(&l->p->tokens).kind, next = lines_raw(l, 1)->kind;
    bool after_value = ends_value(before) && before != WORD;
    if (is_name(token, "as")) {
        if (before == NAME && (l->head == KW_IMPORT || l->head == KW_REPEAT)) token->kind = AS;
    } else if (is_name(token, "like")) {
        if (before == '=' && next == NAME && l->head == KW_DIM) token->kind = LIKE;
    } else if (is_name(token, "and") || is_name(token, "or")) {
        if (after_value && begins_value(next)) token->kind = token->name[0] == 'a' ? AND : OR;
    } else if (is_name(token, "not")) {
        if (!after_value && begins_value(next)) token->kind = NOT;
    }
}
