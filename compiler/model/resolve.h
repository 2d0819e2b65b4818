/* Inside compiler/model only: what the files of this folder share while they turn a syntax tree into a Program.
 *
 * A FileScope is one parsed file with its names; a Resolver is the work in progress. Values of properties and constants
 * are Quantities: numbers with a unit, or text. Everything reports its own mistakes and returns false (or `ok` false)
 * afterwards, so that a caller never reports the same mistake again. */
#ifndef PLAN_RESOLVE_H
#define PLAN_RESOLVE_H

#include "model/model.h"

/* ---- quantities ---------------------------------------------------------------------------------------------- */

/* Exponents of the base units. Hz is 1/s; a bit is an eighth of a byte. */
typedef struct Unit {
    int bytes, seconds, watts, flops;
} Unit;

static const Unit UNIT_NONE = {0, 0, 0, 0}, UNIT_BYTES = {1, 0, 0, 0}, UNIT_RATE = {1, -1, 0, 0},
                  UNIT_HZ = {0, -1, 0, 0}, UNIT_WATTS = {0, 0, 1, 0}, UNIT_SECONDS = {0, 1, 0, 0},
                  UNIT_FLOPS = {0, -1, 0, 1};

typedef struct Quantity {
    bool ok;         /* false: the mistake has been reported */
    bool is_integer; /* then `integer` is exact and `value` the same number */
    double value;    /* in base units */
    int64_t integer;
    Unit unit;
    const char *text; /* of a string; then nothing else counts */
} Quantity;

/* Looks a unit's spelling up ("GB/s"): its factor to base units. False when there is no such unit. */
bool unit_find(const char *spelling, Unit *unit, double *factor);
bool unit_equal(Unit a, Unit b);
/* "bytes/s", "a number" ...: for messages. */
const char *unit_text(Arena *arena, Unit unit);
/* The spellings one by one, NULL after the last: for nearest names. */
const char *unit_spelling(int index);

/* ---- files and names ----------------------------------------------------------------------------------------- */

typedef struct FileScope FileScope;

typedef struct Import {
    Name name;       /* as used: the alias when there is one */
    FileScope *file; /* NULL when it could not be loaded: uses of it are silent */
    Span span;
    bool used;
} Import;

typedef struct Constant {
    const Binding *binding;
    Quantity value;
    enum { CONSTANT_NEW, CONSTANT_BUSY, CONSTANT_DONE } state;
} Constant;

struct FileScope {
    const Ast *ast;
    Name stem;          /* "gpus" of "gpus.plan": how other files' GPUs and clusters are named in messages */
    const char *path;   /* canonical: tells files apart */
    const char *folder; /* as the user's paths lead there, with its slash: messages show paths that begin so */
    bool loading;       /* its imports are being loaded: meeting it again is a cycle */
    bool is_main;
    Map imports;   /* Name -> Import * */
    Map names;     /* Name -> const Stmt *: gpu, cluster, layer, model; and the const statement of a constant */
    Map constants; /* Name -> Constant * */
    Map gpus;      /* Name -> Gpu * */
    Map clusters;  /* Name -> Cluster * */
};

typedef struct Resolver {
    Session *s;
    Arena *arena;
    Program *program;
    FileScope *main;
    Setting *settings;
    int n_settings;
    const Expr **setting_values; /* parsed, one for each setting; NULL when unreadable */
    const char **setting_owners; /* who took it; NULL: nobody yet */
    VEC(Name) settable;          /* every name that --set could have meant, for nearest names */
    Map unknown;                 /* dotted names reported as unknown: once each */
    bool incomplete;             /* the main file has syntax errors: what is missing from it proves nothing */
} Resolver;

/* Loads the file that `ast` is, and everything that it imports. */
FileScope *scope_load(Resolver *r, const Ast *ast, const char *path, bool is_main); /* `path` as the user gave it */
/* The scope of the file that a tree was read from. */
FileScope *scope_of(const Program *program, const Ast *ast);
/* Marks every import that an expression of the file names, and warns of the others. */
void scope_check_imports(Resolver *r, FileScope *scope);

/* What a (possibly dotted) name stands for; the scope it was found in through `found`. Reports unknown names with the
 * nearest name of kind `kind`, and names of another kind; NULL then. `word`: what is looked for, for messages. */
const Stmt *scope_find(Resolver *r, FileScope *scope, const Expr *name, StmtKind kind, FileScope **found);
/* The same without a word. */
const Stmt *scope_peek(const FileScope *scope, const Expr *name, FileScope **found);
/* "pod" or "gpus.A100_SXM_80GB", from a name expression; NULL when it is none. */
const char *expr_dotted(Arena *arena, const Expr *e);
bool expr_is_word(const Expr *e, const char *word);

/* ---- values -------------------------------------------------------------------------------------------------- */

Quantity quantity_eval(Resolver *r, FileScope *scope, const Expr *e);
/* Whether quantity_eval would succeed without a message. */
bool quantity_try(Resolver *r, FileScope *scope, const Expr *e, Quantity *out);
/* "a whole number", "text", "a size in bytes": what an expression is, for messages. */
const char *quantity_type(Arena *arena, const Quantity *q);

/* Each evaluates `e` as the value of `what` ("`batch`") and reports a wrong type with both types. */
bool take_integer(Resolver *r, FileScope *scope, const char *what, const Expr *e, int64_t least, int64_t *out);
bool take_number(Resolver *r, FileScope *scope, const char *what, const Expr *e, double *out);
bool take_unit(Resolver *r, FileScope *scope, const char *what, const Expr *e, Unit unit, double *out);
bool take_text(Resolver *r, FileScope *scope, const char *what, const Expr *e, const char **out);
bool take_name(Resolver *r, const char *what, const Expr *e, Name *out);

/* ---- blocks of properties ------------------------------------------------------------------------------------- */

/* The values of a property, whichever way it is written: `memory 80 GB` or `memory = 80 GB`. */
typedef struct Property {
    Name name;
    Span name_span, span;
    Expr *const *items;
    int n;
    const Stmt *stmt;
} Property;
bool property_read(Arena *arena, const Stmt *stmt, Property *out);
/* Reports when the property has not exactly one value. */
bool property_single(Resolver *r, const Property *p);
/* The same; a second value that resembles `word`, which may stand there, gets that suggestion. */
bool property_single_and(Resolver *r, const Property *p, const char *word);
/* "did you mean" when `e` is nearly `word`. */
void help_word(Diag *d, const Expr *e, const char *word);
/* An unknown property of a block (`kind`: "gpu"), with the nearest of the known ones. */
void property_unknown(Resolver *r, const char *kind, const Property *p, const char *const *known, int n);
/* True the first time; reports the second. `seen`: Name -> Stmt. */
bool property_once(Resolver *r, Map *seen, const Property *p);
/* A statement that a block cannot hold. */
void block_refuse(Resolver *r, const char *kind, const Stmt *stmt);

/* ---- the parts ------------------------------------------------------------------------------------------------ */

/* The properties of a GPU, one by one: for printing and for tests. */
int gpu_field_count(void);
const char *gpu_field_name(int index);
double gpu_field_value(const Gpu *gpu, int index);

Gpu *gpu_resolve(Resolver *r, FileScope *scope, const Stmt *stmt);
Cluster *cluster_resolve(Resolver *r, FileScope *scope, const Stmt *stmt);
void train_resolve(Resolver *r, FileScope *scope, const Stmt *stmt);
bool dataset_resolve(Resolver *r, FileScope *scope, const Expr *e, Dataset *out);
/* False when its block holds what belongs elsewhere: a brace is missing. */
bool optimizer_resolve(Resolver *r, FileScope *scope, const Stmt *stmt, Optimizer *out);
void plan_resolve(Resolver *r, FileScope *scope, const Stmt *stmt);
bool using_is_schedule(Name name);
/* "head on tensor" */
const char *rule_text(Arena *arena, const Plan *plan, const Rule *rule);
/* `model A = B(layers = 24)` of the file itself, whether a run trains it or not. */
void models_check(Resolver *r);
/* `model X`, `model X(layers = 2)`: follows `model A = B(...)`. */
void train_resolve_model(Resolver *r, FileScope *scope, const Expr *e, Train *train);

/* ---- --set ---------------------------------------------------------------------------------------------------- */

void settings_parse(Resolver *r);
/* The value that --set gives to `name` ("batch", "mesh.data"), or NULL; notes the name as one that can be set. `owner`
 * says whose it is: a name that two owners answer to is reported as ambiguous. */
const Expr *setting_find(Resolver *r, const char *name, const char *owner);
/* Errors for settings that nothing took. */
void settings_finish(Resolver *r);

/* ---- messages ------------------------------------------------------------------------------------------------- */

/* Adds "did you mean" when a candidate is near, else the list of all when it is short. */
void help_nearest(Resolver *r, Diag *d, Name word, const Name *candidates, int n, Span fix);
/* "a, b or c" */
const char *list_text(Arena *arena, const char *const *words, int n, const char *last);
/* "1, 2, 5 or 10" */
const char *numbers_text(Arena *arena, const int64_t *numbers, int n, const char *last);

#endif
