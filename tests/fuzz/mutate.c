/* Mistakes of one token: every token of every example and library file is deleted, doubled and misspelt, and checked.
 *
 * In: .plan files. A library file with layers or models is checked as a user's copy, both through a file of
 * tests/fuzz/library that uses it and alone. Out: a line a file, a count of what stayed legal for each reason, and every mutation
 * that broke the promise: 1 to 3 errors, never a crash or a hang, the first error on the line of the mistake or on the
 * next line that holds text, and for a misspelt name its suggestion. Exceptions are rules of this file, and are counted.
 *
 *     mutate SOURCE_ROOT WORK_FOLDER [--list] [FILE...]
 */
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "front.h"
#include "syntax/parse.h"

#include "plan_parser.h"

typedef enum Slip { DELETED, DOUBLED, MISSPELT, N_SLIPS } Slip;
static const char *const slip_names[] = {"deleted", "doubled", "misspelt"};

enum { MOST_REASONS = 64, MOST_ERRORS = 3, SECONDS_EACH = 20, LONGEST = 200 };

typedef struct Count {
    char reason[LONGEST];
    int n;
} Count;

/* Shared between the parent and the children that do the checking. */
typedef struct Shared {
    int at; /* the mutation in work: token * N_SLIPS + slip */
    int checked, failed, accepted;
    Count legal[MOST_REASONS], exceptions[MOST_REASONS];
} Shared;

typedef struct Work {
    Shared *shared;
    const char *library; /* the folder of the standard library */
    const char *main_path, *main_text;
    size_t main_size;
    const char *name;  /* of the mutated file, for messages */
    const char *inner; /* the mutated file in the library's copy, or NULL when the main file is the mutated one */
    char *text;
    size_t size;
    Token *tokens; /* without newlines */
    int n_tokens;
    int32_t *line_starts;
    int n_lines;
    bool list;
} Work;

/* One mutated text. */
typedef struct Mutation {
    const Work *work;
    Slip slip;
    int token, line;
    char *text;
    size_t size;
    char word[LONGEST], wrong[LONGEST]; /* the token, and how it is misspelt */
} Mutation;

/* ---- mutating ----------------------------------------------------------------------------------------------------------- */

static bool is_word(int kind) { return kind == NAME || (kind >= OVER && kind <= ALONG); }

/* A common slip of the fingers: two letters swapped, or one changed where they are equal. */
static void misspell(char *word) {
    size_t n = strlen(word), at = n / 2;
    while (at > 0 && (word[at] == word[at - 1] || word[at] == '_' || word[at - 1] == '_')) at--;
    if (n >= 4 && at > 0) {
        char swapped = word[at];
        word[at] = word[at - 1];
        word[at - 1] = swapped;
    } else {
        word[n] = word[n - 1];
        word[n + 1] = 0;
    }
}

static bool mutate(const Work *work, int index, Mutation *m) {
    const Token *token = &work->tokens[index / N_SLIPS];
    *m = (Mutation){.work = work, .slip = (Slip)(index % N_SLIPS), .token = index / N_SLIPS};
    int length = token->hi - token->lo;
    if (m->slip == MISSPELT && (!is_word(token->kind) || length < 2)) return false;
    snprintf(m->word, sizeof m->word, "%.*s", length, work->text + token->lo);
    snprintf(m->wrong, sizeof m->wrong, "%s", m->word);
    misspell(m->wrong);
    while (m->line < work->n_lines && work->line_starts[m->line] <= token->lo) m->line++;
    FILE *out = open_memstream(&m->text, &m->size);
    fwrite(work->text, 1, (size_t)token->lo, out);
    if (m->slip == DOUBLED) fprintf(out, "%.*s %.*s", length, work->text + token->lo, length, work->text + token->lo);
    if (m->slip == MISSPELT) fputs(m->wrong, out);
    fwrite(work->text + token->hi, 1, work->size - (size_t)token->hi, out);
    fclose(out);
    return true;
}

/* ---- words of messages --------------------------------------------------------------------------------------------------- */

static void count(Count *counts, const char *reason) {
    for (int i = 0; i < MOST_REASONS; i++) {
        if (counts[i].n && strcmp(counts[i].reason, reason)) continue;
        snprintf(counts[i].reason, LONGEST, "%s", reason);
        counts[i].n++;
        return;
    }
}

static void show(const Mutation *m, const char *what) {
    const Work *work = m->work;
    int32_t lo = work->line_starts[m->line - 1];
    int length = (int)strcspn(work->text + lo, "\n");
    printf("%s:%d:%d: `%s` %s: %s\n    %.*s\n", work->name, m->line, work->tokens[m->token].lo - lo + 1, m->word, slip_names[m->slip], what,
           length, work->text + lo);
}

static void print_errors(Session *s) { diag_flush(s, stdout, false); }

/* The first line after `line` (from 1) that has a token. */
static int next_text_line(const Work *work, int line) {
    for (int i = 0; i < work->n_tokens; i++) {
        int at = 1;
        while (at < work->n_lines && work->line_starts[at] <= work->tokens[i].lo) at++;
        if (at > line) return at;
    }
    return work->n_lines;
}

static bool speaks_of(const Diag *d, const char *word) {
    char quoted[LONGEST + 4];
    for (int i = 0; i < d->helps.n; i++) {
        const char *help = d->helps.at[i].text;
        snprintf(quoted, sizeof quoted, "`%s`", word);
        if (strstr(help, quoted)) return true;
        snprintf(quoted, sizeof quoted, ".%s`", word); /* `nn.mlp` */
        if (strstr(help, quoted)) return true;
        snprintf(quoted, sizeof quoted, "`%s.", word);
        if (strstr(help, quoted)) return true;
    }
    return false;
}

static bool in_mutated_file(const Work *work, Session *s, Span span) {
    const SourceFile *file = session_file(s, span);
    return file && (!work->inner || strcmp(file->real_path, work->inner) == 0);
}

static const Token *token_at(const Work *work, int i) {
    static const Token none = {.kind = END};
    return i >= 0 && i < work->n_tokens ? &work->tokens[i] : &none;
}

static bool token_is(const Work *work, int i, const char *text) {
    const Token *token = token_at(work, i);
    size_t n = strlen(text);
    return (size_t)(token->hi - token->lo) == n && !memcmp(work->text + token->lo, text, n);
}

/* ---- what may stay legal, and why ---------------------------------------------------------------------------------------- */

/* How often a word stands in the file as it was. */
static int times_in_file(const Work *work, const char *word) {
    int n = 0;
    for (int i = 0; i < work->n_tokens; i++) n += token_is(work, i, word);
    return n;
}

/* Whether the token is in the header of a layer: between its name and its brace. */
static bool in_header(const Mutation *m) {
    for (int i = m->token; i >= 0; i--) {
        if (token_is(m->work, i, "layer")) return true;
        if (token_is(m->work, i, "{") || token_is(m->work, i, "}")) return false;
    }
    return false;
}

/* Whether the token's line begins with `word`. */
static bool in_statement(const Mutation *m, const char *word) {
    const Work *work = m->work;
    for (int i = m->token; i >= 0 && work->tokens[i].lo >= work->line_starts[m->line - 1]; i--)
        if (work->tokens[i].column >= 0) return token_is(work, i, word);
    return false;
}

static const char *legal_reason(const Mutation *m) {
    const Work *work = m->work;
    static const char *const declaring[] = {"gpu", "cluster", "model", "layer", "const"};
    bool declares = false;
    for (size_t i = 0; i < sizeof declaring / sizeof *declaring; i++) declares |= token_is(work, m->token - 1, declaring[i]);
    bool names_a_plan = token_is(work, m->token - 1, "plan") || token_is(work, m->token - 1, "train");
    if (m->slip == MISSPELT && names_a_plan) return "a plan may have any name";
    if (m->slip == MISSPELT && declares && times_in_file(work, m->word) == 1) return "a declaration that nothing in the file uses may have any name";
    if (m->slip == DOUBLED && !strcmp(m->word, "train")) return "`train train { }` gives the training run a name";
    if (m->slip == DELETED && token_at(work, m->token)->kind == NAME && token_is(work, m->token + 1, "("))
        return "a call without the function's name is the value in brackets";
    if (m->slip == MISSPELT && in_header(m)) return "a layer's header may give a dimension of the caller another name";
    if (m->slip == DELETED && token_is(work, m->token + 1, "-")) return "without its left operand a difference turns the sign";
    if (m->slip == DOUBLED && !strcmp(m->word, "-")) return "a second minus sign turns the sign";
    if (m->slip == DELETED && in_header(m) && !strcmp(m->word, "int")) return "a parameter need not say that it holds ints";
    if (m->slip == DELETED && token_is(work, m->token - 1, "[") && token_is(work, m->token + 1, "]")) return "a weight may be a single number";
    if (m->slip == DELETED && !strcmp(m->word, "like")) return "without `like` a dimension of the same size";
    if (m->slip == DELETED && !strcmp(m->word, "dim")) return "without `dim` a size is a number, which a layer takes as well";
    if (m->slip == DELETED && (!strcmp(m->word, "batches") || !strcmp(m->word, "slots"))) return "a word that may be left out";
    return NULL;
}

/* ---- where else the first error may be, and why --------------------------------------------------------------------------- */

/* The line of the brace that a closing brace closes. */
static int opening_line(const Work *work, int closing) {
    int depth = 0, line = 0;
    for (int i = closing; i >= 0; i--) {
        if (token_is(work, i, "}")) depth++;
        if (token_is(work, i, "{") && --depth == 0) {
            while (line < work->n_lines && work->line_starts[line] <= work->tokens[i].lo) line++;
            return line;
        }
    }
    return 0;
}

static bool notes_line(Session *s, int line) {
    for (int i = 0; i < s->diags.n; i++)
        for (int k = 0; k < s->diags.at[i]->notes.n; k++)
            if (s->diags.at[i]->notes.at[k].span.file && session_place(s, s->diags.at[i]->notes.at[k].span).line == line) return true;
    return false;
}

static int letters_apart(const char *a, const char *b) {
    int n = 0;
    if (strlen(a) != strlen(b)) return LONGEST;
    for (; *a; a++, b++) n += *a != *b;
    return n;
}

/* "did you mean `x`?", where x is another name of the file, or one letter away from what was written. */
static bool suggests_other(const Mutation *m, const Diag *first) {
    char name[LONGEST];
    for (int i = 0; i < first->helps.n; i++)
        if (sscanf(first->helps.at[i].text, "did you mean `%199[^`]`?", name) == 1 && (times_in_file(m->work, name) > 0 || letters_apart(name, m->word) == 1))
            return true;
    return false;
}

static const char *place_reason(const Mutation *m, Session *s, const Diag *first) {
    const char *text = session_file(s, first->span)->text + first->span.lo, *use = strstr(text, m->word);
    bool at_use = use && use - text < first->span.hi - first->span.lo;
    if (m->slip == DELETED && !strcmp(m->word, "}") && notes_line(s, opening_line(m->work, m->token)))
        return "a deleted brace shows at the first statement that cannot stand there, with a note at the opening one";
    if (m->slip == MISSPELT && (speaks_of(first, m->wrong) || suggests_other(m, first)) && at_use) return "a misspelt declaration shows at its first use";
    if (m->slip == DELETED && !strcmp(m->word, "dim")) return "a size that is no dimension shows at the rule that names it";
    if (m->slip == DELETED && token_is(m->work, m->token - 1, "[") && token_is(m->work, m->token + 1, "]"))
        return "a weight that is a single number shows where a dimension is wanted";
    if (m->slip == DELETED && !strcmp(m->word, "like")) return "what is no second name for the same positions shows at its use";
    if (m->slip == DELETED && !strcmp(m->word, ",") && token_at(m->work, m->token + 1)->column >= 0)
        return "without the comma a line is a statement of its own, and shows where its name is used";
    if (in_header(m) || in_statement(m, "return")) return "what a layer takes and returns shows at its call";
    return NULL;
}

/* ---- judging ------------------------------------------------------------------------------------------------------------ */

static void judge(const Mutation *m, Session *s) {
    const Work *work = m->work;
    const Diag *first = NULL;
    int errors = diag_count(s, SEV_ERROR);
    diag_sort(s);
    for (int inside = 1; inside >= 0; inside--) /* the mutated file goes first */
        for (int i = 0; i < s->diags.n && !first; i++)
            if (s->diags.at[i]->severity == SEV_ERROR && (!inside || in_mutated_file(work, s, s->diags.at[i]->span))) first = s->diags.at[i];
    work->shared->checked++;
    if (!errors) {
        const char *reason = legal_reason(m);
        work->shared->accepted++;
        if (reason) count(work->shared->legal, reason);
        else work->shared->failed++;
        if (!reason || work->list) show(m, reason ? reason : "ACCEPTED, for no known reason");
        return;
    }
    char why[LONGEST] = "";
    bool suggested = m->slip != MISSPELT;
    for (int i = 0; i < s->diags.n && !suggested; i++) suggested = speaks_of(s->diags.at[i], m->word) || speaks_of(s->diags.at[i], m->wrong);
    Place place = session_place(s, first->span);
    bool right_file = in_mutated_file(work, s, first->span);
    bool right_line = right_file && (place.line == m->line || place.line == next_text_line(work, m->line));
    if (!suggested && suggests_other(m, first)) {
        count(work->shared->exceptions, "another name of the file is as near as the misspelt one, and is suggested");
        suggested = true;
    }
    if (errors > MOST_ERRORS) snprintf(why, sizeof why, "%d ERRORS", errors);
    else if (!suggested) snprintf(why, sizeof why, "NO SUGGESTION");
    else if (!right_line) {
        const char *reason = place_reason(m, s, first);
        if (reason) count(work->shared->exceptions, reason);
        else snprintf(why, sizeof why, "FIRST ERROR at line %d%s", place.line, right_file ? "" : " of another file");
    }
    if (!*why) return;
    work->shared->failed++;
    show(m, why);
    print_errors(s);
}

/* ---- running ------------------------------------------------------------------------------------------------------------ */

static void write_file(const char *path, const char *text, size_t size) {
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(text, 1, size, out) != size || fclose(out)) {
        fprintf(stderr, "cannot write %s\n", path);
        _Exit(2);
    }
}

static void check_one(const Work *work, int index) {
    Mutation m;
    if (!mutate(work, index, &m)) return;
    Session *s;
    alarm(SECONDS_EACH);
    if (work->inner) {
        write_file(work->inner, m.text, m.size);
        front_check(&s, work->library, work->main_path, work->main_text, work->main_size);
        if (!diag_count(s, SEV_ERROR)) {
            session_free(s);
            front_check(&s, work->library, work->inner, m.text, m.size);
        }
    } else
        front_check(&s, work->library, work->main_path, m.text, m.size);
    judge(&m, s);
    session_free(s);
    free(m.text);
}

/* The mutations from `from` on, in a child; returns where it died, or the number of mutations. */
static int run_child(const Work *work, int from) {
    int n = work->n_tokens * N_SLIPS, status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        for (work->shared->at = from; work->shared->at < n; work->shared->at++) check_one(work, work->shared->at);
        fflush(stdout);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0) {
        perror("fork");
        exit(2);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return n;
    Mutation m;
    char what[LONGEST];
    if (!WIFSIGNALED(status)) snprintf(what, sizeof what, "THE COMPILER EXITED with %d", WEXITSTATUS(status));
    else if (WTERMSIG(status) == SIGALRM) snprintf(what, sizeof what, "HANG: more than %d seconds", SECONDS_EACH);
    else snprintf(what, sizeof what, "CRASH by signal %d", WTERMSIG(status));
    mutate(work, work->shared->at, &m);
    show(&m, what);
    work->shared->failed++;
    return work->shared->at;
}

/* Tokens and lines of the text as written. */
static void read_tokens(Work *work, Session *s) {
    int32_t file = session_add_text(s, work->name, work->text, work->size);
    Parser p = {.s = s, .arena = s->arena, .file = file, .text = s->files.at[file - 1].text, .size = s->files.at[file - 1].size};
    lex_file(&p);
    work->tokens = NEW_N(s->arena, Token, p.raw.n);
    for (int i = 0; i < p.raw.n; i++)
        if (p.raw.at[i].kind != NEWLINE && p.raw.at[i].kind != END) work->tokens[work->n_tokens++] = p.raw.at[i];
    work->line_starts = s->files.at[file - 1].line_starts;
    work->n_lines = s->files.at[file - 1].n_lines;
}

static void run_file(Work *work) {
    int failed = work->shared->failed, checked = work->shared->checked, accepted = work->shared->accepted;
    Session *s = session_new();
    read_tokens(work, s);
    for (int at = 0; at < work->n_tokens * N_SLIPS; at++) at = run_child(work, at);
    printf("%s: %d tokens, %d mutations, %d legal, %d failed\n", work->name, work->n_tokens, work->shared->checked - checked,
           work->shared->accepted - accepted, work->shared->failed - failed);
    session_free(s);
}

/* A file that stands alone, or (under tests/fuzz/library/X.plan) what checks stdlib/X.plan. */
static void run_path(Shared *shared, const char *root, const char *work_folder, const char *path, bool list) {
    char full[1024], inner[1024], library[1024], driver[1024];
    snprintf(full, sizeof full, "%s/%s", root, path);
    Work work = {.shared = shared, .name = path, .main_path = full, .list = list};
    work.text = front_read(full, &work.size);
    snprintf(library, sizeof library, "%s/stdlib", root);
    const char *base = strrchr(path, '/');
    snprintf(driver, sizeof driver, "%s/tests/fuzz/library/use_%s", root, base ? base + 1 : path);
    if (strncmp(path, "stdlib/", 7) == 0 && access(driver, R_OK) == 0) {
        char command[4096];
        snprintf(command, sizeof command, "rm -rf '%s' && mkdir -p '%s/models'", work_folder, work_folder);
        if (system(command)) exit(2);
        snprintf(inner, sizeof inner, "%s/%s", work_folder, path + strlen("stdlib/"));
        work.inner = inner;
        work.main_text = front_read(driver, &work.main_size);
        snprintf(driver, sizeof driver, "%s/main.plan", work_folder);
        work.main_path = driver;
        write_file(inner, work.text, work.size);
    }
    work.library = library;
    Session *s;
    if (work.inner) front_check(&s, work.library, work.main_path, work.main_text, work.main_size);
    else front_check(&s, work.library, work.main_path, work.text, work.size);
    if (diag_count(s, SEV_ERROR)) {
        printf("%s: has errors before any mutation\n", path);
        print_errors(s);
        shared->failed++;
    } else
        run_file(&work);
    session_free(s);
    free(work.text);
}

static void print_counts(const char *what, const Count *counts) {
    printf("\n%s\n", what);
    for (int i = 0; i < MOST_REASONS && counts[i].n; i++) printf("%7d  %s\n", counts[i].n, counts[i].reason);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fputs("usage: mutate SOURCE_ROOT WORK_FOLDER [--list] FILE...\n", stderr);
        return 2;
    }
    Shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    bool list = strcmp(argv[3], "--list") == 0;
    for (int i = 3 + list; i < argc; i++) run_path(shared, argv[1], argv[2], argv[i], list);
    print_counts("still legal, because", shared->legal);
    print_counts("first error elsewhere, because", shared->exceptions);
    printf("\n%d mutations, %d failed\n", shared->checked, shared->failed);
    return shared->failed ? 1 : 0;
}
