/* Draws models and plans. In: a seed. Out: the text of a model, the text of a plan, and what the plan says as data,
 * with which a predicate that knows the language's rules, and nothing of the compiler, tells whether it is legal.
 *
 * Every kind of sentence is one line of `kinds`. Seed i aims at one pair of kinds and adds others by chance, so that
 * all pairs occur about equally often, and a single seed can be drawn again by itself. */
#ifndef PLAN_PLAN_DRAW_H
#define PLAN_PLAN_DRAW_H

#include "base/base.h"

#include <stdio.h>

/* ---- kinds of sentences ------------------------------------------------------------------------------------------ */

enum {
    HAS_EXPERTS = 1,
    HAS_TASKS = 2,
    HAS_FEWER_KEYS = 4,
    HAS_SKIP = 8,
    HAS_DROPOUT = 16,
    IS_LLAMA = 32,
    N_MODELS = 64
};

typedef enum KindPlace {
    ON_DATA,    /* last in the list of an axis of its own kind, which may store too */
    STORED,     /* on an axis that is there for something else */
    ON_TENSOR,  /* all on one axis, in any order */
    LAST,       /* on that axis, behind the others */
    ON_CONTEXT, /* an axis of its own */
    ON_PIPE,    /* the pipeline's axis */
    FIRST,      /* before the others on some axis, or on one of its own */
    ON_LAYERS,
    ON_SIZE,
    ON_KEYS, /* a word behind the name of layers, a size, the key heads */
    PROPERTY /* a line by itself */
} KindPlace;

/* Of one slot a plan has at most one kind. */
enum { SLOT_FREE, SLOT_STORAGE, SLOT_SCHEDULE, SLOT_RECOMPUTE };

typedef struct Kind {
    const char *name, *word, *using; /* using: or NULL */
    KindPlace place;
    int slot;
    unsigned wants; /* of the model */
    int pieces;     /* that each rank needs at least: 2 where the work is balanced; chunks of a schedule */
} Kind;

static const Kind kinds[] = {
    {"batch", "batch", .place = ON_DATA},
    {"optimizer", "optimizer", .place = STORED, .slot = SLOT_STORAGE},
    {"gradients", "gradients", .place = STORED, .slot = SLOT_STORAGE},
    {"weights", "weights", .place = STORED, .slot = SLOT_STORAGE},
    {"head", "head", .place = ON_TENSOR},
    {"ffn", "ffn", .place = ON_TENSOR},
    {"vocab", "vocab", .place = ON_TENSOR},
    {"seq last", "seq", .place = LAST},
    {"gather", "seq", "gather", .place = ON_CONTEXT},
    {"ulysses", "seq", "ulysses", .place = ON_CONTEXT},
    {"ring", "seq", "ring", .place = ON_CONTEXT, .pieces = 2},
    {"gpipe", "layers", "gpipe", .place = ON_PIPE, .slot = SLOT_SCHEDULE},
    {"one_f_one_b", "layers", "one_f_one_b", .place = ON_PIPE, .slot = SLOT_SCHEDULE},
    {"zero_bubble", "layers", "zero_bubble", .place = ON_PIPE, .slot = SLOT_SCHEDULE},
    {"interleaved", "layers", "interleaved(chunks = 2)", .place = ON_PIPE, .slot = SLOT_SCHEDULE, .pieces = 2},
    {"uneven layers", NULL, .place = ON_LAYERS},
    {"expert", "expert", .place = FIRST, .wants = HAS_EXPERTS},
    {"task", "task", .place = FIRST, .wants = HAS_TASKS},
    {"padded", NULL, .place = ON_SIZE},
    {"repeated", "kv_head", .place = ON_KEYS, .wants = HAS_FEWER_KEYS},
    {"recompute full", "recompute full", .place = PROPERTY, .slot = SLOT_RECOMPUTE},
    {"recompute attention", "recompute attention", .place = PROPERTY, .slot = SLOT_RECOMPUTE},
    {"recompute one", "recompute mlp", .place = PROPERTY, .slot = SLOT_RECOMPUTE},
    {"microbatch", NULL, .place = PROPERTY},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_PAIRS = N_KINDS * (N_KINDS - 1) / 2 };

/* ---- what is drawn ----------------------------------------------------------------------------------------------- */

typedef struct Rng {
    uint64_t state;
} Rng;

static int pick(Rng *r, int n) {
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((r->state >> 33) % (uint64_t)n);
}

typedef struct ModelSizes {
    int batch, seq, head, kv_head, ffn, vocab, layers, expert, task;
} ModelSizes;

/* Most of what is drawn divides; the last rows are there to be refused. */
static const ModelSizes size_rows[] = {{8, 8, 4, 2, 16, 16, 4, 4, 2},  {8, 16, 4, 1, 16, 12, 4, 4, 2},
                                       {16, 8, 4, 2, 8, 16, 4, 8, 2},  {8, 8, 4, 2, 16, 9, 4, 4, 2},
                                       {12, 12, 6, 3, 12, 9, 3, 6, 2}, {4, 6, 2, 1, 10, 8, 5, 3, 2}};

typedef enum How { PLAIN, PADDED, UNEVEN, REPEATED } How;
enum { MAX_WORDS = 8, MAX_AXES = 6, MAX_RANKS = 16 };

typedef struct Word {
    const char *dim, *using;
    How how;
    int pieces;
    int shares[MAX_RANKS], n_shares; /* UNEVEN */
} Word;

typedef struct Axis {
    int size, n, n_stored;
    Word words[MAX_WORDS];
    const char *stored[4];
} Axis;

typedef struct Drawn {
    unsigned model; /* HAS_* */
    ModelSizes sizes;
    bool kinds[N_KINDS];
    int n, micro; /* micro 0: not stated */
    Axis axes[MAX_AXES + 1];
    const char *recompute; /* or NULL */
} Drawn;

static int size_of(const Drawn *d, const char *dim) {
    const ModelSizes *s = &d->sizes;
    const struct {
        const char *name;
        int size;
    } dims[] = {{"batch", s->batch},
                {"seq", s->seq},
                {"head", s->head},
                {"ffn", s->ffn},
                {"vocab", s->vocab},
                {"layers", s->layers},
                {"expert", d->model & HAS_EXPERTS ? s->expert : 0},
                {"task", d->model & HAS_TASKS ? s->task : 0},
                {"kv_head", d->model & HAS_FEWER_KEYS ? s->kv_head : 0}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        if (strcmp(dims[i].name, dim) == 0) return dims[i].size;
    return 0;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static void add_word(Axis *axis, int at, Word word) {
    for (int i = axis->n; i > at; i--) axis->words[i] = axis->words[i - 1];
    axis->words[at] = word;
    axis->n++;
}

static Axis *new_axis(Drawn *d, Rng *r) {
    Axis *axis = &d->axes[d->n < MAX_AXES ? d->n++ : MAX_AXES];
    *axis = (Axis){.size = pick(r, 10) ? 2 : pick(r, 3) ? 4 : 3};
    return axis;
}

static bool chosen(const Drawn *d, int kind) {
    if (d->kinds[kind]) return true;
    for (int k = 0; k < N_KINDS; k++)
        if (d->kinds[k] && kinds[k].slot && kinds[k].slot == kinds[kind].slot) return true;
    return false;
}

/* One of the kinds of a place, when there is none yet. */
static void need_place(Drawn *d, Rng *r, KindPlace place, const char *word) {
    int first = pick(r, N_KINDS);
    for (int i = 0; i < N_KINDS; i++)
        if (d->kinds[i] && kinds[i].place == place && (!word || strcmp(kinds[i].word, word) == 0)) return;
    for (int i = 0; i < N_KINDS; i++) {
        int k = (first + i) % N_KINDS;
        if (kinds[k].place != place || (word && strcmp(kinds[k].word, word) != 0) || chosen(d, k)) continue;
        d->kinds[k] = true;
        return;
    }
}

/* The pair that seed i is for; false when no plan has both. */
static bool pair_of(int index, int *x, int *y) {
    *y = 1;
    while (index >= *y) index -= (*y)++;
    *x = index;
    return !kinds[*x].slot || kinds[*x].slot != kinds[*y].slot;
}

static void choose_kinds(Drawn *d, Rng *r, int seed, int more) {
    int x = 0, y = 0;
    if (pair_of((int)((int64_t)seed * 7919 % N_PAIRS), &x, &y)) d->kinds[y] = true;
    d->kinds[x] = true;
    for (int i = 0; i < more; i++) {
        int k = pick(r, N_KINDS);
        if (!chosen(d, k)) d->kinds[k] = true;
    }
    for (int k = 0; k < N_KINDS; k++) {
        if (!d->kinds[k]) continue;
        if (kinds[k].place == ON_LAYERS) need_place(d, r, ON_PIPE, NULL);
        if (kinds[k].place == ON_KEYS) need_place(d, r, ON_TENSOR, "head");
        if (kinds[k].place == ON_SIZE) need_place(d, r, ON_TENSOR, pick(r, 2) ? "vocab" : "ffn");
        d->model |= kinds[k].wants;
    }
}

static void draw_axes(Drawn *d, Rng *r) {
    Axis *tensor = NULL;
    for (int k = 0; k < N_KINDS; k++) {
        if (!d->kinds[k]) continue;
        Word word = {.dim = kinds[k].word, .using = kinds[k].using, .pieces = kinds[k].pieces};
        KindPlace place = kinds[k].place;
        if (place == ON_DATA || place == ON_CONTEXT || place == ON_PIPE) add_word(new_axis(d, r), 0, word);
        if (place == ON_DATA && !pick(r, 6)) add_word(new_axis(d, r), 0, word);
        if (place != ON_TENSOR && place != LAST) continue;
        if (!tensor) tensor = new_axis(d, r);
        add_word(tensor, place == LAST ? tensor->n : pick(r, tensor->n + 1), word);
    }
    for (int k = 0; k < N_KINDS; k++) /* `expert, batch on data`, or an axis of its own */
        if (d->kinds[k] && kinds[k].place == FIRST) {
            Axis *axis = d->n && pick(r, 4) ? &d->axes[pick(r, d->n)] : new_axis(d, r);
            if (axis->n && strcmp(axis->words[0].dim, "layers") == 0) axis = new_axis(d, r);
            add_word(axis, 0, (Word){.dim = kinds[k].word});
        }
}

static bool has_pipe(const Axis *axis) { return axis->n && strcmp(axis->words[0].dim, "layers") == 0; }

static void draw_storage(Drawn *d, Rng *r) {
    for (int k = 0; k < N_KINDS; k++) {
        if (!d->kinds[k] || kinds[k].place != STORED) continue;
        Axis *on = NULL;
        for (int i = 0; i < d->n; i++) {
            Axis *axis = &d->axes[i];
            bool data = axis->n && strcmp(axis->words[axis->n - 1].dim, "batch") == 0;
            if (!axis->n_stored && !has_pipe(axis) && (!on || data || !pick(r, 3))) on = axis;
        }
        if (!on) {
            on = new_axis(d, r);
            add_word(on, 0, (Word){.dim = "batch"});
        }
        on->stored[on->n_stored++] = kinds[k].word;
    }
}

/* Layers for each chunk: any, that sum up. */
static void draw_shares(Rng *r, Word *word, int parts, int layers) {
    word->n_shares = parts;
    for (int i = 0; i < layers; i++) word->shares[pick(r, parts)]++;
    if (!pick(r, 12)) word->shares[0]++; /* one too many */
}

static void draw_hows(Drawn *d, Rng *r) {
    for (int k = 0; k < N_KINDS; k++) {
        if (!d->kinds[k]) continue;
        for (int a = 0; a < d->n; a++)
            for (int i = 0; i < d->axes[a].n; i++) {
                Axis *axis = &d->axes[a];
                Word *word = &axis->words[i];
                if (kinds[k].place == ON_LAYERS && strcmp(word->dim, "layers") == 0 && word->how == PLAIN) {
                    word->how = UNEVEN;
                    draw_shares(r, word, axis->size * (word->pieces ? word->pieces : 1), d->sizes.layers);
                }
                if (kinds[k].place == ON_SIZE && (strcmp(word->dim, "vocab") == 0 || strcmp(word->dim, "ffn") == 0))
                    word->how = PADDED;
                if (kinds[k].place != ON_KEYS || strcmp(word->dim, "head") != 0) continue;
                if (pick(r, 8)) axis->size = d->sizes.head / d->sizes.kv_head >= 2 ? 2 * d->sizes.kv_head : 2;
                add_word(axis, ++i, (Word){.dim = "kv_head", .how = REPEATED});
            }
    }
}

static int ranks_of(const Drawn *d) {
    int ranks = d->n < MAX_AXES ? 1 : MAX_RANKS + 1;
    for (int a = 0; a < d->n; a++) ranks *= d->axes[a].size;
    return ranks;
}

static int parts_of(const Drawn *d, const char *dim) {
    int parts = 1;
    for (int a = 0; a < d->n; a++)
        for (int i = 0; i < d->axes[a].n; i++)
            if (strcmp(d->axes[a].words[i].dim, dim) == 0) parts *= d->axes[a].size;
    return parts;
}

static const char *mlp_word(const Drawn *d) {
    return d->model & HAS_EXPERTS ? "recompute moe" : d->model & IS_LLAMA ? "recompute gated_mlp" : "recompute mlp";
}

/* A micro-batch that divides, and gives an interleaved schedule what it wants, most of the time. */
static void draw_properties(Drawn *d, Rng *r) {
    int batch = d->sizes.batch / parts_of(d, "batch"), wanted = 0;
    for (int a = 0; a < d->n; a++)
        if (has_pipe(&d->axes[a]) && d->axes[a].words[0].pieces) wanted = d->axes[a].size;
    for (int k = 0; k < N_KINDS; k++) {
        if (!d->kinds[k] || kinds[k].place != PROPERTY) continue;
        if (kinds[k].word)
            d->recompute = strstr(kinds[k].word, "mlp") && pick(r, 10) ? mlp_word(d) : kinds[k].word;
        else
            d->micro = 1 + pick(r, 2);
    }
    if (!wanted || !pick(r, 10)) return;
    for (int micro = 2; micro > 0; micro--)
        if (batch % (micro * wanted) == 0) {
            d->micro = micro;
            break;
        }
    for (int k = 0; k < N_KINDS; k++)
        if (kinds[k].place == PROPERTY && !kinds[k].word && d->micro) d->kinds[k] = true;
}

static Drawn draw(int seed) {
    for (int more = 7;; more--) {
        Rng r = {.state = (uint64_t)seed * 2654435761u};
        Drawn d = {.model = (unsigned)pick(&r, N_MODELS) & ~(unsigned)(HAS_EXPERTS | HAS_TASKS)};
        if (!pick(&r, 3)) d.model |= pick(&r, 2) ? HAS_EXPERTS : HAS_TASKS;
        choose_kinds(&d, &r, seed, more > 0 ? pick(&r, more) : 0);
        if (!pick(&r, 20)) d.model &= ~(unsigned)(HAS_EXPERTS | HAS_TASKS | HAS_FEWER_KEYS);
        d.sizes = size_rows[pick(&r, pick(&r, 5) ? 4 : 6)];
        draw_axes(&d, &r);
        draw_storage(&d, &r);
        draw_hows(&d, &r);
        for (int a = d.n - 1; a > 0; a--) { /* the mesh in any order */
            int b = pick(&r, a + 1);
            Axis axis = d.axes[a];
            d.axes[a] = d.axes[b], d.axes[b] = axis;
        }
        draw_properties(&d, &r);
        if (ranks_of(&d) <= MAX_RANKS || more < -20) return d;
    }
}

/* ---- the predicate: the language's rules, independent of the compiler -------------------------------------------- */

static bool word_is_legal(const Drawn *d, const Axis *axis, const Word *word) {
    int size = size_of(d, word->dim), parts = 1, sum = 0;
    if (!size) return false; /* the model has no such dimension */
    for (int i = 0; i < word->n_shares; i++) sum += word->shares[i];
    if (word->how == UNEVEN) return sum == size;
    if (word->how == PADDED) return true;
    if (word->how == REPEATED) return size < axis->size && axis->size % size == 0;
    for (int round = 0; round < 2; round++) /* what needs pieces is cut first */
        for (int a = 0; a < d->n; a++)
            for (int i = 0; i < d->axes[a].n; i++) {
                const Word *other = &d->axes[a].words[i];
                if (strcmp(other->dim, word->dim) != 0 || (other->pieces == 0) != round) continue;
                parts *= d->axes[a].size;
                if (size % (parts * (other->pieces ? other->pieces : 1))) return false;
            }
    if (strcmp(word->dim, "batch") == 0 && d->micro) parts *= d->micro;
    return size % parts == 0;
}

static bool legal(const Drawn *d, const char *model) {
    int keys = d->model & HAS_FEWER_KEYS ? d->sizes.kv_head : d->sizes.head, heads = parts_of(d, "head"), ulysses = 1;
    int micros = d->sizes.batch / parts_of(d, "batch") / (d->micro ? d->micro : d->sizes.batch / parts_of(d, "batch"));
    if (d->micro && d->sizes.batch % (parts_of(d, "batch") * d->micro)) return false;
    for (int a = 0; a < d->n; a++)
        for (int i = 0; i < d->axes[a].n; i++) {
            const Word *word = &d->axes[a].words[i];
            if (!word_is_legal(d, &d->axes[a], word)) return false;
            if (word->how == REPEATED) keys = heads; /* as many copies as parts */
            if (word->using && strcmp(word->using, "ulysses") == 0) ulysses *= d->axes[a].size;
            if (word->pieces && has_pipe(&d->axes[a]) && micros % d->axes[a].size) return false;
        }
    if (d->sizes.head % heads || keys % (heads * ulysses)) return false; /* a head of keys is never cut */
    char call[64] = "nn.";
    if (!d->recompute || strstr(d->recompute, "full")) return true;
    snprintf(call, sizeof call, "nn.%s(", d->recompute + strlen("recompute "));
    return strstr(model, call) != NULL; /* the layer is called */
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */

/* A large epsilon: where a gradient is nothing but rounding, Adam's step would be of the size of the rate. */
static char *model_text(Arena *arena, const Drawn *d) {
    Text t = {.arena = arena};
    const ModelSizes *s = &d->sizes;
    bool llama = d->model & IS_LLAMA, tasks = d->model & HAS_TASKS;
    const char *norm = llama ? "rms_norm" : "layer_norm", *sets = tasks ? "task, " : "";
    const char *open = d->model & HAS_DROPOUT ? "dropout(" : "(", *shut = d->model & HAS_DROPOUT ? ", 0.1)" : ")";
    text_printf(&t,
                "import nn\nmodel M {\n dim layers = %d, embed = %d, head = %d, ffn = %d, vocab = %d, seq = %d, "
                "positions = %d\n"
                " dim head_dim = embed / head\n",
                s->layers, 2 * s->head, s->head, s->ffn, s->vocab, s->seq, s->seq);
    if (d->model & HAS_EXPERTS) text_printf(&t, " dim expert = %d\n", s->expert);
    if (d->model & HAS_FEWER_KEYS) text_printf(&t, " dim kv_head = %d\n", s->kv_head);
    if (tasks) text_printf(&t, " dim task = %d\n", s->task);
    text_printf(&t,
                " input tokens: int[%sbatch, seq]\n target labels: int[%sbatch, seq] = next(tokens)\n"
                " weight table: [vocab, embed] = normal(0.2)\n",
                sets, sets);
    if (!llama) text_puts(&t, " weight places: [positions, embed] = normal(0.2)\n");
    text_printf(&t, " x = %slookup(table, tokens)%s%s\n", open, llama ? "" : " + lookup(places, position(tokens))",
                shut);
    if (d->model & HAS_SKIP) text_puts(&t, " first = x\n");
    text_printf(
        &t, " repeat layers {\n  x = x + nn.attention(nn.%s(x, embed), embed -> (head, head_dim)%s, causal = true%s)\n",
        norm, d->model & HAS_FEWER_KEYS ? ", kv_head" : "", llama ? ", theta = 10000" : "");
    if (d->model & HAS_EXPERTS)
        text_printf(&t,
                    "  x = x + %snn.moe(nn.%s(x, embed), embed -> ffn, expert, capacity = %s, z_loss = 0.01, deviation "
                    "= 0.3)%s\n }\n",
                    open, norm, d->model & HAS_SKIP ? "0.75" : "none", shut);
    else
        text_printf(&t, "  x = x + %snn.%s(nn.%s(x, embed), embed -> ffn, %s)%s\n }\n", open,
                    llama ? "gated_mlp" : "mlp", norm, llama ? "silu" : "gelu", shut);
    if (tasks) text_puts(&t, " weight own: [task, embed, vocab] = normal(0.2)\n");
    text_printf(&t, " logits = dot(nn.%s(x%s, embed), %s, over embed)\n", norm, d->model & HAS_SKIP ? " + first" : "",
                tasks ? "own" : "table");
    if (tasks)
        text_puts(&t, " each = cross_entropy(logits, labels, over vocab)\n loss = sum([0.7, 0.3] along task * "
                      "mean(each, over (batch, seq)), over task)\n}\n");
    else
        text_puts(&t, " loss = cross_entropy(logits, labels, over vocab)\n}\n");
    text_printf(&t,
                "train {\n model M\n data %s\n batch %d\n steps 10\n optimizer adamw(lr = constant(1e-2), epsilon = "
                "1e-5, weight_decay = 0.1)\n clip 1.0\n seed 3\n}\n",
                tasks ? "task = [text(\"x\"), text(\"y\")]" : "text(\"x\")", s->batch);
    return t.at;
}

static void word_text(Text *t, const Word *word) {
    text_puts(t, word->dim);
    if (word->how == PADDED) text_puts(t, " padded");
    if (word->how == REPEATED) text_puts(t, " repeated");
    for (int i = 0; i < word->n_shares; i++)
        text_printf(t, "%s%d%s", i ? ", " : " uneven(", word->shares[i], i + 1 < word->n_shares ? "" : ")");
}

static char *plan_text(Arena *arena, const Drawn *d) {
    Text t = {.arena = arena};
    text_puts(&t, "plan p {\n");
    for (int a = 0; a < d->n; a++)
        text_printf(&t, "%s a%d = %d%s", a ? "," : " mesh", a, d->axes[a].size, a + 1 < d->n ? "" : "\n");
    for (int a = 0; a < d->n; a++) {
        const Axis *axis = &d->axes[a];
        for (int i = 0; i < axis->n; i++) {
            text_puts(&t, i ? ", " : " ");
            word_text(&t, &axis->words[i]);
        }
        text_printf(&t, " on a%d%s%s\n", a, axis->words[axis->n - 1].using ? " using " : "",
                    axis->words[axis->n - 1].using ? axis->words[axis->n - 1].using : "");
        for (int i = 0; i < axis->n_stored; i++) text_printf(&t, " %s on a%d\n", axis->stored[i], a);
    }
    if (d->micro) text_printf(&t, " microbatch %d\n", d->micro);
    if (d->recompute) text_printf(&t, " %s\n", d->recompute);
    text_puts(&t, "}\n");
    return t.at;
}

#endif
