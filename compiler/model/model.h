/* The typed model: everything a .plan file says besides the tensor statements of its models, resolved and checked.
 *
 * Sizes are numbers, units are gone (bytes, bytes/s, Hz, watts, seconds), names are resolved, and every mistake has
 * been reported. Tensor statements stay in the syntax tree until model_to_graph elaborates them. */
#ifndef PLAN_MODEL_H
#define PLAN_MODEL_H

#include "ir/ir.h"
#include "syntax/ast.h"

/* Numbers that may be unknown are NAN when they are. */
typedef struct Gpu {
    Name name; /* "gpus.A100_SXM_80GB" */
    Span span;
    double memory, usable; /* bytes; usable: what a program can allocate */
    double bandwidth;      /* bytes/s */
    double cuda_cores, tensor_cores, rt_cores, sms;
    double clock;                       /* boost, Hz */
    double flops_per_clock;             /* operations of one core in one clock; NAN: 2, a fused multiply-add */
    double fp32_derived;                /* cores x clock x operations in a clock, or NAN */
    double fp32, tf32, fp16, bf16, fp8; /* FLOP/s, dense; fp32 is cores x clock x 2 unless stated */
    double nvlink;                      /* bytes/s for each direction */
    double pcie;                        /* generation */
    double tdp;                         /* W */
    double slots;                       /* width in slots */
    double l2;                          /* bytes */
} Gpu;

typedef struct NodeGroup {
    int64_t nodes, gpus; /* machines, and GPUs in each */
    const Gpu *gpu;
    Span span;
} NodeGroup;

typedef struct Link {
    Name where;     /* "within" or "between" */
    Name kind;      /* "nvlink", "infiniband", ... */
    double rate;    /* bytes/s for a GPU and direction */
    double latency; /* seconds, or NAN */
    Span span;
} Link;

typedef struct Cluster {
    Name name;
    Span span;
    VEC(NodeGroup) groups;
    VEC(Link) links;
    double chassis_slots, node_power; /* NAN when not stated: then those checks are not made */
    int64_t ranks;                    /* GPUs in all */
} Cluster;

typedef struct Dataset {
    enum { DATA_TEXT, DATA_TOKENS, DATA_ARRAYS } kind;
    VEC(const char *) paths;
    struct {
        VEC(Name) names;
        VEC(const char *) paths;
        VEC(Span) spans;
    } columns;
    Name name; /* of a named evaluation set, or NULL */
    Span span;
} Dataset;

typedef struct Rate { /* of learning */
    enum { RATE_CONSTANT, RATE_LINEAR, RATE_COSINE } kind;
    double peak, end;
    int64_t warmup;
} Rate;

/* `bias, norm: weight_decay = 0` */
typedef struct ParameterGroup {
    VEC(Name) words;
    double weight_decay, lr_scale; /* NAN: as the optimizer says */
    Span span;
} ParameterGroup;

typedef struct Optimizer {
    enum { OPT_ADAMW, OPT_SGD } kind;
    Rate rate;
    double beta1, beta2, epsilon, weight_decay, momentum;
    VEC(ParameterGroup) groups;
    Span span;
} Optimizer;

typedef struct Train {
    Name name;
    Span span;
    const Ast *scope;       /* the file that the block stands in */
    const Stmt *model;      /* STMT_MODEL, after following `model A = B(...)`; NULL after a mistake */
    const Ast *model_scope; /* the file that holds it: where names of its body are looked up */
    VEC(Binding)
    model_arguments; /* overridden dimensions, each name once (the outermost wins); values that are
                        constants are EXPR_INT or EXPR_FLOAT, others speak of the model's dimensions */
    Name model_name;
    Span model_span;
    const char *from; /* weights to start from, or NULL */
    Span from_span;
    VEC(Dataset) data; /* one, or one for each index of `data_dim` */
    Name data_dim;     /* `data task = [...]`, or NULL */
    Span data_dim_span;
    VEC(Dataset) validation; /* empty: a share of the data */
    double split;            /* share of the data kept for validation; 0.1 unless stated */
    int64_t batch, steps, seed;
    Span batch_span;
    Optimizer optimizer;
    double clip;                      /* NAN: none */
    int64_t eval_every, eval_batches; /* 0: none */
    int64_t save_every, save_keep;    /* 0: none; keep 0: all */
    const char *save_to;
    VEC(Name) freeze;
    bool freeze_all_but;
} Train;

typedef enum Storage { STORAGE_NONE, STORAGE_WEIGHTS, STORAGE_GRADIENTS, STORAGE_OPTIMIZER } Storage;

/* One word of one sentence. */
typedef struct Rule {
    Name what; /* dimension name as written ("head", "mlp.hidden"), or NULL for storage */
    Storage storage;
    int axis; /* index in the mesh */
    int how;  /* RuleWord.how */
    VEC(int64_t) uneven;
    const Expr *using; /* or NULL */
    Name using_name;   /* "ring", "interleaved", ... or NULL */
    int64_t chunks;    /* of interleaved */
    const char *table; /* of table: the file, seen from the plan's folder */
    Span span, statement, axis_span;
    Span using_span;
    const Stmt *in; /* the narrowing block, or NULL */
    int block;      /* of a storage rule that a block narrows: its bit in Tensor.blocks, from 1; 0: none */
} Rule;

/* Of fp16: what the loss is multiplied by at first; it doubles after so many steps without an overflow. */
typedef struct LossScale {
    double start;
    int64_t grow_every;
} LossScale;

typedef struct Plan {
    Name name;
    Span span;
    const Cluster *cluster; /* NULL: this machine */
    Mesh mesh;
    VEC(Rule) rules;
    int64_t microbatch; /* sequences per rank and micro-batch; 0: not stated */
    Span microbatch_span;
    Name precision; /* "fp32" unless stated */
    Span precision_span;
    LossScale scale;         /* of fp16 */
    VEC(Name) recompute;     /* layers, calls, repeats, tensors; "full"; empty: nothing */
    int64_t recompute_every; /* keep every n-th layer's carry alone; 0: not stated */
    Span recompute_span;
    int64_t threads; /* of a rank; 0: this machine's cores shared out */
    Span auto_span;  /* of an `auto`, when there is one: a choice left to the planner */
    bool refused;    /* the checks found a mistake */
    bool broken;     /* a rule or the mesh had a mistake: what is missing proves nothing */
} Plan;

typedef struct Program {
    Session *session;
    const Ast *ast;
    VEC(const Ast *) imports;
    Map imported;                  /* import name -> const Ast * */
    VEC(struct FileScope *) files; /* the file itself first; see resolve.h */
    Map constants;                 /* name -> double * */
    VEC(Gpu *) gpus;
    VEC(Cluster *) clusters;
    VEC(const Stmt *) layers, models;
    Train *train; /* NULL when the file has none */
    VEC(Plan *) plans;
    bool incomplete; /* syntax errors, or an import that failed: a name that is missing may have been declared there */
} Program;

/* `--set NAME=VALUE` */
typedef struct Setting {
    Name name;
    const char *value;
    bool used;
} Setting;

/* Resolves and checks a parsed file. Reports everything it can; returns NULL only when nothing could be made. */
Program *ast_to_model(Session *s, const Ast *ast, Setting *settings, int n_settings);

/* Finds a layer by (possibly dotted) name. `scope` is the file it is used in. NULL when unknown. */
const Stmt *program_find_layer(const Program *program, const Ast *scope, const Expr *name, const Ast **found_in);
/* The imports of a file: the name it calls each by -> const Ast *. */
Map program_imports(const Program *program, const Ast *scope);

/* Once the dimensions of the model are known: rule words that match nothing, divisibility with all legal sizes, the
 * batch against mesh and micro-batch, storage rules, axes that repeat work. `dims` are those of the model,
 * which is `whole` when it has no errors: else what a plan names may be missing because of them. Reports for every
 * plan. What the compiler does not build yet is told apart by plan_unbuilt. */
void plan_check(Session *s, const Train *train, const Plan *plan, Dim *const *dims, int n_dims, bool whole);
/* The first thing in the plan that is checked but not built, for P9000; NULL when all is built. */
const char *plan_unbuilt(const Plan *plan, Span *where);
/* The same for the training run. */
const char *train_unbuilt(const Train *train, Span *where);

/* Prints the resolved model (--emit model). */
void program_print(const Program *program, Text *out);

#endif
