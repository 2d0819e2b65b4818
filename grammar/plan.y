/* The grammar of .plan files: tokens in, syntax tree out. Actions only build nodes.
 *
 * One sort of block holds any statement; the layout has told keywords from names by where they stand, and place.c says
 * what may not stand there. A mistake in a statement is reported once; the parser goes on after the statement, or, when
 * it is in the head of a block, with the block. `WORD` is a name that begins a property (`save every 1000`). */
%define api.pure full
%define api.prefix {plan_}
%define api.location.type {Span}
%define parse.error custom
%define parse.lac full
%locations
%expect 0
%param {Parser *p}

%code requires {
#include "syntax/parse.h"
}

%code {
static int plan_lex(PLAN_STYPE *value, Span *span, Parser *p);
static void plan_error(const Span *span, Parser *p, const char *message);

#define YYMAXDEPTH 2500 /* about 500 nested blocks: the tree is walked by recursion */
#define YYLLOC_DEFAULT(current, rhs, n)                                                                                \
    ((current) = (n) ? (Span){YYRHSLOC(rhs, 1).file, YYRHSLOC(rhs, 1).lo, YYRHSLOC(rhs, n).hi}                         \
                     : (Span){YYRHSLOC(rhs, 0).file, YYRHSLOC(rhs, 0).hi, YYRHSLOC(rhs, 0).hi})

static Arg argument(Name name, Span span, bool is_over, Expr *value) {
    return (Arg){.name = name, .name_span = span, .is_over = is_over, .value = value};
}

static Param parameter(Name name, Span span, TypeExpr type, Expr *arrow_to, Expr *value) {
    return (Param){.name = name, .span = span, .type = type, .arrow_to = arrow_to, .value = value};
}

static TypeExpr type_of(Span span, Name dtype, bool has_dots, const ExprList *dims) {
    TypeExpr type = {.span = span, .dtype = dtype, .has_dots = has_dots, .present = true};
    if (dims) type.dims = *dims;
    return type;
}

static const TypeExpr NO_TYPE;
static const Span NOWHERE;
}

%union {
    const Token *token;
    Name name;
    int how;
    Expr *expr;
    ExprList *exprs;
    Args *args;
    Arg arg;
    Binding binding;
    Bindings *bindings;
    Params *params;
    Param param;
    TypeExpr type;
    RuleWord word;
    Words *words;
    Axes *axes;
    Items *items;
    Stmt *stmt;
    StmtList *stmts;
}

%token END 0 "end of the file"
%token NEWLINE "end of the line"
%token <token> NAME "a name" WORD "a property" INT "a whole number" FLOAT "a number" STRING "a text in quotes"
%token <name> OVER "`over`" ON "`on`" USING "`using`"
%token <name> PADDED "`padded`" UNEVEN "`uneven`" REPEATED "`repeated`" ALONG "`along`"
%token BAD "this character"
%token DOTS "`...`" RANGE "`..`" ARROW "`->`" EQ "`==`" NE "`!=`" LE "`<=`" GE "`>=`" LT "`<`" GT "`>`"
%token AND "`and`" OR "`or`" NOT "`not`" LIKE "`like`" AS "`as`"
%token KW_IMPORT "`import`" KW_CONST "`const`" KW_GPU "`gpu`" KW_CLUSTER "`cluster`"
%token KW_LAYER "`layer`" KW_MODEL "`model`"
%token KW_TRAIN "`train`" KW_PLAN "`plan`" KW_DIM "`dim`" KW_FACTORS "`factors`" KW_INPUT "`input`" KW_TARGET "`target`"
%token KW_WEIGHT "`weight`" KW_REPEAT "`repeat`" KW_IF "`if`" KW_ELSE "`else`" KW_RETURN "`return`"
%token KW_AUXILIARY "`auxiliary`" KW_LOG "`log`" KW_NAMES "`names`" KW_MESH "`mesh`" KW_IN "`in`"
%token '+' "`+`" '-' "`-`" '*' "`*`" '/' "`/`" '=' "`=`" '.' "`.`" ',' "`,`" ':' "`:`"
%token '(' "`(`" ')' "`)`" '[' "`[`" ']' "`]`" '{' "`{`" '}' "`}`"

%type <stmts> statements block
%type <stmt> statement import declaration tensor_statement plan_statement property if
%type <expr> expression dotted range_end how optional_value arrow_side
%type <exprs> expressions optional_expressions dims
%type <arg> argument
%type <args> arguments optional_arguments
%type <binding> binding dimension
%type <bindings> bindings dimensions
%type <param> parameter
%type <params> parameters optional_parameters
%type <type> type type_brackets
%type <word> word
%type <words> words
%type <axes> axes
%type <items> items optional_items

%precedence ITEM /* what could go on as an expression does not begin the next item of a property */
%left OR
%left AND
%precedence NOT
%nonassoc EQ NE LT LE GT GE
%nonassoc RANGE
%left '+' '-'
%left '*' '/'
%precedence UNARY
%precedence ALONG
%precedence '('

%%

file: statements END { p->ast->statements = *$1; }

statements:
    %empty                            { $$ = NEW(p->arena, StmtList); }
  | statements statement NEWLINE      { $$ = stmts_add(p, $1, $2); }
  | statements error NEWLINE          { $$ = $1; yyerrok; }
  | statements error block NEWLINE    { $$ = $1; }

block: '{' block_open statements '}'  { $$ = $3; }
block_open: %empty                    { yyerrok; }

statement: import | declaration | tensor_statement | plan_statement | property | if

/* ---- the top level ---- */

import:
    KW_IMPORT dotted                  { $$ = stmt_import(p, @$, $2); }
  | KW_IMPORT dotted AS NAME          { $$ = stmt_import(p, @$, $2); stmt_alias($$, $4, @4); }

declaration:
    KW_CONST bindings                 { $$ = stmt_bindings(p, STMT_CONST, @$, $2); }
  | KW_GPU NAME block                 { $$ = stmt_new(p, STMT_GPU, @$, $2->name, @2); stmt_body($$, $3); }
  | KW_CLUSTER NAME block             { $$ = stmt_new(p, STMT_CLUSTER, @$, $2->name, @2); stmt_body($$, $3); }
  | KW_LAYER NAME '(' optional_parameters ')' block
          { $$ = stmt_new(p, STMT_LAYER, @$, $2->name, @2); stmt_params($$, $4); stmt_body($$, $6); }
  | KW_MODEL NAME block               { $$ = stmt_new(p, STMT_MODEL, @$, $2->name, @2); stmt_body($$, $3); }
  | KW_MODEL NAME '(' optional_parameters ')' block
          { $$ = stmt_new(p, STMT_MODEL, @$, $2->name, @2); stmt_params($$, $4); stmt_body($$, $6); }
  | KW_MODEL NAME '=' expression      { $$ = stmt_new(p, STMT_MODEL, @$, $2->name, @2); $$->value = $4; }
  | KW_TRAIN block                    { $$ = stmt_new(p, STMT_TRAIN, @$, NULL, NOWHERE); stmt_body($$, $2); }
  | KW_TRAIN NAME block               { $$ = stmt_new(p, STMT_TRAIN, @$, $2->name, @2); stmt_body($$, $3); }
  | KW_PLAN NAME block                { $$ = stmt_new(p, STMT_PLAN, @$, $2->name, @2); stmt_body($$, $3); }
  | KW_PLAN NAME ON dotted block
          { $$ = stmt_new(p, STMT_PLAN, @$, $2->name, @2); $$->value = $4; stmt_body($$, $5); }

optional_parameters: %empty { $$ = NEW(p->arena, Params); } | parameters
parameters:
    parameter                         { $$ = params_add(p, NULL, $1); }
  | parameters ',' parameter          { $$ = params_add(p, $1, $3); }
parameter:
    NAME optional_value               { $$ = parameter($1->name, @1, NO_TYPE, NULL, $2); }
  | NAME ':' type optional_value      { $$ = parameter($1->name, @1, $3, NULL, $4); }
  | NAME ARROW arrow_side             { $$ = parameter($1->name, @1, NO_TYPE, $3, NULL); }
arrow_side:
    NAME                              { $$ = expr_name(p, @1, $1->name); }
  | '(' expressions ')'               { $$ = expr_list(p, EXPR_TUPLE, @$, $2); }
optional_value: %empty { $$ = NULL; } | '=' expression { $$ = $2; }

/* ---- layers and models ---- */

tensor_statement:
    KW_DIM dimensions                 { $$ = stmt_bindings(p, STMT_DIM, @$, $2); }
  | KW_FACTORS NAME '=' expression    { $$ = stmt_new(p, STMT_FACTORS, @$, $2->name, @2); $$->value = $4; }
  | KW_INPUT NAME ':' type optional_value
          { $$ = stmt_new(p, STMT_INPUT, @$, $2->name, @2); $$->type = $4; $$->value = $5; }
  | KW_TARGET NAME ':' type optional_value
          { $$ = stmt_new(p, STMT_TARGET, @$, $2->name, @2); $$->type = $4; $$->value = $5; }
  | KW_WEIGHT NAME ':' type optional_value
          { $$ = stmt_new(p, STMT_WEIGHT, @$, $2->name, @2); $$->type = $4; $$->value = $5; }
  | KW_REPEAT NAME block              { $$ = stmt_new(p, STMT_REPEAT, @$, $2->name, @2); stmt_body($$, $3); }
  | KW_REPEAT NAME AS NAME block
          { $$ = stmt_new(p, STMT_REPEAT, @$, $2->name, @2); stmt_alias($$, $4, @4); stmt_body($$, $5); }
  | KW_RETURN expression              { $$ = stmt_valued(p, STMT_RETURN, @$, $2); }
  | KW_AUXILIARY expression           { $$ = stmt_valued(p, STMT_AUXILIARY, @$, $2); }
  | KW_LOG expression                 { $$ = stmt_valued(p, STMT_LOG, @$, $2); }
  | KW_NAMES NAME block               { $$ = stmt_new(p, STMT_NAMES, @$, $2->name, @2); stmt_body($$, $3); }
  | words '=' expression              { $$ = stmt_assign(p, @$, $1, $3); }
  | dotted '(' optional_arguments ')' { $$ = stmt_valued(p, STMT_EXPR, @$, expr_call(p, @$, $1, $3)); }

if:
    KW_IF expression block            { $$ = stmt_valued(p, STMT_IF, @$, $2); stmt_body($$, $3); }
  | KW_IF expression block KW_ELSE block
          { $$ = stmt_valued(p, STMT_IF, @$, $2); stmt_body($$, $3); $$->otherwise = *$5; }
  | KW_IF expression block KW_ELSE if
          { $$ = stmt_valued(p, STMT_IF, @$, $2); stmt_body($$, $3); $$->otherwise = *stmts_add(p, NULL, $5); }

dimensions:
    dimension                         { $$ = bindings_add(p, NULL, $1); }
  | dimensions ',' dimension          { $$ = bindings_add(p, $1, $3); }
dimension:
    NAME optional_value               { $$ = (Binding){$1->name, @1, false, $2}; }
  | NAME '=' LIKE dotted              { $$ = (Binding){$1->name, @1, true, $4}; }

type:
    type_brackets
  | NAME type_brackets                { $$ = $2; $$.dtype = $1->name; $$.span = @$; }
type_brackets:
    '[' ']'                           { $$ = type_of(@$, NULL, false, NULL); }
  | '[' DOTS ']'                      { $$ = type_of(@$, NULL, true, NULL); }
  | '[' dims ']'                      { $$ = type_of(@$, NULL, false, $2); }
  | '[' DOTS ',' dims ']'             { $$ = type_of(@$, NULL, true, $4); }
dims:
    dotted                            { $$ = exprs_add(p, NULL, $1); }
  | dims ',' dotted                   { $$ = exprs_add(p, $1, $3); }

/* ---- plans ---- */

plan_statement:
    KW_MESH bindings                  { $$ = stmt_bindings(p, STMT_MESH, @$, $2); }
  | words ON axes                     { $$ = stmt_rule(p, @$, $1, $3, NULL); }
  | words ON axes USING how           { $$ = stmt_rule(p, @$, $1, $3, $5); }
  | KW_IN dotted block                { $$ = stmt_valued(p, STMT_IN, @$, $2); stmt_body($$, $3); }
  | KW_IN dotted range_end block      { $$ = stmt_valued(p, STMT_IN, @$, $2); $$->range = $3; stmt_body($$, $4); }
range_end:
    INT                               { $$ = expr_literal(p, EXPR_INT, @1, $1); }
  | INT RANGE expression
          { $$ = expr_pair(p, EXPR_RANGE, @$, expr_literal(p, EXPR_INT, @1, $1), 0, @2, $3); }
how:
    dotted
  | dotted '(' optional_arguments ')' { $$ = expr_call(p, @$, $1, $3); }
words:
    word                              { $$ = words_add(p, NULL, $1); }
  | words ',' word                    { $$ = words_add(p, $1, $3); }
word:
    dotted                            { $$ = (RuleWord){.what = $1, .how = STORE_PLAIN, .how_span = NOWHERE}; }
  | dotted PADDED                     { $$ = (RuleWord){.what = $1, .how = STORE_PADDED, .how_span = @2}; }
  | dotted REPEATED                   { $$ = (RuleWord){.what = $1, .how = STORE_REPEATED, .how_span = @2}; }
  | dotted UNEVEN '(' expressions ')'
          { $$ = (RuleWord){.what = $1, .how = STORE_UNEVEN, .how_span = @2, .sizes = *$4}; }
axes:
    NAME                              { $$ = axes_add(p, NULL, $1->name, @1); }
  | axes ',' NAME                     { $$ = axes_add(p, $1, $3->name, @3); }

/* ---- properties ---- */

property:
    WORD optional_items               { $$ = stmt_property(p, @$, $1->name, @1, $2); }
  | WORD optional_items block         { $$ = stmt_property(p, @$, $1->name, @1, $2); stmt_body($$, $3); }
  | words ':' bindings                { $$ = stmt_group(p, @$, $1, $3); }

optional_items: %empty { $$ = NEW(p->arena, Items); } | items
items:
    expression             %prec ITEM { $$ = items_add(p, NULL, $1); }
  | binding                           { $$ = items_bind(p, NULL, $1); }
  | items expression       %prec ITEM { $$ = items_add(p, $1, $2); }
  | items ',' expression   %prec ITEM { $$ = items_add(p, $1, $3); }
  | items binding                     { $$ = items_bind(p, $1, $2); }
  | items ',' binding                 { $$ = items_bind(p, $1, $3); }
  | items ON                          { $$ = items_add(p, $1, expr_name(p, @2, $2)); }
  | items USING                       { $$ = items_add(p, $1, expr_name(p, @2, $2)); }

bindings:
    binding                           { $$ = bindings_add(p, NULL, $1); }
  | bindings ',' binding              { $$ = bindings_add(p, $1, $3); }
binding: NAME '=' expression %prec ITEM { $$ = (Binding){$1->name, @1, false, $3}; }

/* ---- expressions ---- */

dotted:
    NAME                              { $$ = expr_name(p, @$, $1->name); }
  | dotted '.' NAME                   { $$ = expr_member(p, @$, $1, $3->name, @3); }

expression:
    dotted                 %prec ITEM
  | INT                               { $$ = expr_literal(p, EXPR_INT, @$, $1); }
  | FLOAT                             { $$ = expr_literal(p, EXPR_FLOAT, @$, $1); }
  | STRING                            { $$ = expr_literal(p, EXPR_STRING, @$, $1); }
  | '(' ')'                           { $$ = expr_list(p, EXPR_TUPLE, @$, NULL); }
  | '(' expressions ')'               { $$ = expr_group(p, @$, $2); }
  | '[' optional_expressions ']'      { $$ = expr_list(p, EXPR_LIST, @$, $2); }
  | dotted '(' optional_arguments ')' { $$ = expr_call(p, @$, $1, $3); }
  | expression ALONG dotted           { $$ = expr_pair(p, EXPR_ALONG, @$, $1, 0, @2, $3); }
  | '-' expression       %prec UNARY  { $$ = expr_unary(p, @$, '-', @1, $2); }
  | NOT expression                    { $$ = expr_unary(p, @$, '!', @1, $2); }
  | expression '+' expression         { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_ADD, @2, $3); }
  | expression '-' expression         { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_SUB, @2, $3); }
  | expression '*' expression         { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_MUL, @2, $3); }
  | expression '/' expression         { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_DIV, @2, $3); }
  | expression EQ expression          { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_EQ, @2, $3); }
  | expression NE expression          { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_NE, @2, $3); }
  | expression LT expression          { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_LT, @2, $3); }
  | expression LE expression          { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_LE, @2, $3); }
  | expression GT expression          { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_GT, @2, $3); }
  | expression GE expression          { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_GE, @2, $3); }
  | expression AND expression         { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_AND, @2, $3); }
  | expression OR expression          { $$ = expr_pair(p, EXPR_BINARY, @$, $1, BIN_OR, @2, $3); }
  | expression RANGE expression       { $$ = expr_pair(p, EXPR_RANGE, @$, $1, 0, @2, $3); }

expressions:
    expression                        { $$ = exprs_add(p, NULL, $1); }
  | expressions ',' expression        { $$ = exprs_add(p, $1, $3); }
optional_expressions: %empty { $$ = NULL; } | expressions

optional_arguments: %empty { $$ = NULL; } | arguments
arguments:
    argument                          { $$ = args_add(p, NULL, $1); }
  | arguments ',' argument            { $$ = args_add(p, $1, $3); }
argument:
    expression                        { $$ = argument(NULL, NOWHERE, false, $1); }
  | expression ARROW expression
          { $$ = argument(NULL, NOWHERE, false, expr_pair(p, EXPR_ARROW, @$, $1, 0, @2, $3)); }
  | NAME '=' expression               { $$ = argument($1->name, @1, false, $3); }
  | OVER dotted                       { $$ = argument($1, @1, true, $2); }
  | OVER '(' expressions ')'          { $$ = argument($1, @1, true, expr_group(p, span_join(@2, @4), $3)); }

%%

/* The next token; after a mistake, the next one from which the statements can go on. */
static int plan_lex(PLAN_STYPE *value, Span *span, Parser *p) {
    if (p->skipping) parser_skip(p);
    const Token *token = &p->tokens.at[p->next];
    p->last = p->next;
    if (token->kind != END) p->next++;
    *span = parser_span(p, token->lo, token->hi);
    if (token->kind >= OVER && token->kind <= ALONG)
        value->name = token->name;
    else
        value->token = token;
    return token->kind;
}

static void plan_error(const Span *span, Parser *p, const char *message) {
    (void)message; /* the only one left with custom messages is "memory exhausted" */
    report_too_deep(p, *span);
}

static bool is_one_of(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name)) names++;
    return *names;
}

/* What the parser could take here, in words: everything that begins a value is "a value", and operators, which could
 * follow almost anywhere, are left out. */
static int yyreport_syntax_error(const yypcontext_t *context, Parser *p) {
    static const char *const operators[] = {"`+`", "`-`", "`*`", "`/`", "`==`", "`!=`", "`<`", "`<=`", "`>`", "`>=`",
                                            "`and`", "`or`", "`along`", "`..`", "`->`", NULL};
    static const char *const values[] = {"a name", "a whole number", "a number", "a text in quotes", "`not`", "`-`",
                                         "`(`", "`[`", NULL};
    static const char *const goes_on[] = {"`.`", "`(`", "`=`", "`:`", "`padded`", "`uneven`", "`repeated`", NULL};
    yysymbol_kind_t kinds[YYNTOKENS];
    int n = yypcontext_expected_tokens(context, kinds, YYNTOKENS);
    bool whole_number = false, name = false, assignment = false, rule = false;
    for (int i = 0; i < n; i++) {
        whole_number |= kinds[i] == YYSYMBOL_INT;
        name |= kinds[i] == YYSYMBOL_NAME;
        rule |= kinds[i] == YYSYMBOL_ON;
        assignment |= !strcmp(yysymbol_name(kinds[i]), "`=`");
    }
    bool value = whole_number && name;
    Expected expected = {.n = 0};
    if (assignment && rule) expected = (Expected){{"`=`", "`on`"}, 2};
    if (value) expected.what[expected.n++] = "a value";
    /* First what ends or parts; only when there is none of that, what merely goes on. */
    for (int pass = 0; pass < 2 && !expected.n; pass++)
        for (int i = 0; i < n && expected.n <= MOST_EXPECTED; i++) {
            const char *what = yysymbol_name(kinds[i]);
            if (is_one_of(what, operators) || (value && is_one_of(what, values))) continue;
            if (!pass && !value && is_one_of(what, goes_on)) continue;
            expected.what[expected.n++] = what;
        }
    report_syntax_error(p, *yypcontext_location(context), &expected);
    return 0;
}
