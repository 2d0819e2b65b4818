/* The text form of a schedule, and its checks.
 *
 *     schedule one_f_one_b roles 1 chunks 1 micros 2
 *     role 0: BEGIN 0F0 0B0 0F1 0B1 OPT
 *
 * An action of a micro-batch is written chunk, kind, micro-batch, as PyTorch's pipelining writes its tables. A send
 * that waits until it is received has a `!` behind it. */
#include "schedule/schedule.h"

#include <ctype.h>

static const char *const action_text[] = {
#define ACTION(NAME, text, doc) text,
#include "schedule/actions.def"
#undef ACTION
};

static bool action_sends(const Action *a) { return a->kind == ACTION_SEND_F || a->kind == ACTION_SEND_B; }

void action_print(const Action *action, Text *out) {
    if (action->micro < 0)
        text_puts(out, action_text[action->kind]);
    else
        text_printf(out, "%d%s%d%s", action->chunk, action_text[action->kind], action->micro,
                    action_sends(action) && !action->stream ? "!" : "");
}

void schedule_print(const Schedule *schedule, Text *out) {
    text_printf(out, "schedule %s roles %d chunks %d micros %d\n", schedule->name, schedule->n_roles,
                schedule->n_chunks, schedule->n_micro);
    for (int r = 0; r < schedule->n_roles; r++) {
        text_printf(out, "role %d:", r);
        for (int i = 0; i < schedule->roles[r].actions.n; i++) {
            const Action *action = &schedule->roles[r].actions.at[i];
            text_puts(out, " ");
            action_print(action, out);
        }
        text_puts(out, "\n");
    }
}

/* ---- parsing ------------------------------------------------------------------------------------------------- */

typedef struct Reader {
    Session *session;
    int32_t file;
    const char *text, *at;
} Reader;

static Span reader_span(const Reader *r, const char *from, const char *to) {
    return (Span){r->file, (int32_t)(from - r->text), (int32_t)(to - r->text)};
}

/* The next word on this line, or an empty one at its end. */
static const char *reader_word(Reader *r, size_t *length) {
    while (*r->at == ',' || (*r->at != '\n' && isspace((unsigned char)*r->at))) r->at++;
    const char *start = r->at;
    while (*r->at && !isspace((unsigned char)*r->at) && *r->at != ',') r->at++;
    *length = (size_t)(r->at - start);
    return start;
}

static bool word_is(const char *word, size_t n, const char *text) {
    return strlen(text) == n && memcmp(word, text, n) == 0;
}

enum { MOST_CHUNKS_AND_MICROS = 1 << 24 };

/* The digits at `*at`; a number that no schedule can have when they are too many. */
static int read_number(const char **at, const char *end) {
    int64_t number = 0;
    while (*at < end && isdigit((unsigned char)**at)) {
        number = number * 10 + (*(*at)++ - '0');
        if (number > MOST_CHUNKS_AND_MICROS) number = MOST_CHUNKS_AND_MICROS;
    }
    return (int)number;
}

static bool read_action(Reader *r, const char *word, size_t n, Action *action) {
    const char *at = word, *end = word + n;
    *action = (Action){.micro = -1, .peer = -1, .span = reader_span(r, word, end)};
    action->chunk = read_number(&at, end);
    bool has_chunk = at > word;
    const char *kind = at;
    while (at < end && (isalpha((unsigned char)*at) || *at == '_')) at++;
    size_t kind_length = (size_t)(at - kind);
    if (at < end) { action->micro = read_number(&at, end); }
    for (int k = 0; k < ACTION_COUNT_; k++)
        if (word_is(kind, kind_length, action_text[k])) {
            action->kind = (ActionKind)k;
            bool waits = at + 1 == end && *at == '!' && action_sends(action);
            action->stream = action_sends(action) && !waits;
            if (at + waits == end && has_chunk == (action->micro >= 0)) return true;
        }
    Diag *d = diag_error(r->session, "P0701", reader_span(r, word, end), "`%.*s` is not an action", (int)n, word);
    diag_help(d, "an action is written like `0F3`: chunk, kind, micro-batch; or `OPT`, once a step");
    return false;
}

static Schedule *read_header(Reader *r) {
    size_t n;
    const char *word = reader_word(r, &n);
    bool good = word_is(word, n, "schedule");
    const char *name = reader_word(r, &n);
    name = intern_n(r->session->names, name, n);
    static const char *const keys[] = {"roles", "chunks", "micros"};
    int values[3];
    for (int i = 0; i < 3; i++) {
        word = reader_word(r, &n);
        good = good && word_is(word, n, keys[i]);
        word = reader_word(r, &n);
        const char *digits = word;
        values[i] = read_number(&digits, word + n);
        good = good && digits == word + n && values[i] > 0 && values[i] < 1 << 20;
    }
    good = good && (int64_t)values[0] * values[1] * values[2] <= MOST_CHUNKS_AND_MICROS;
    if (good) return schedule_new(r->session, r->session->arena, name, values[0], values[1], values[2]);
    diag_help(diag_error(r->session, "P0702", reader_span(r, r->text, r->at), "this is not a schedule"),
                  "the first line is like `schedule one_f_one_b roles 1 chunks 1 micros 4`");
    return NULL;
}

Schedule *schedule_parse(Session *s, int32_t file) {
    const SourceFile *source = session_file(s, (Span){file, 0, 0});
    Reader r = {.session = s, .file = file, .text = source->text, .at = source->text};
    Schedule *schedule = read_header(&r);
    if (!schedule) return NULL;
    bool good = true;
    int role = -1;
    while (*r.at) {
        if (*r.at == '\n') {
            r.at++;
            continue;
        }
        size_t n;
        const char *word = reader_word(&r, &n);
        if (n == 0) continue;
        if (word_is(word, n, "role")) {
            word = reader_word(&r, &n);
            const char *digits = word;
            role = read_number(&digits, word + n);
            if (role < 0 || role >= schedule->n_roles) {
                diag_error(s, "P0702", reader_span(&r, word, word + n), "there is no role `%.*s`", (int)n, word);
                return NULL;
            }
            continue;
        }
        Action action;
        if (role < 0 || !read_action(&r, word, n, &action))
            good = false;
        else
            vec_push(s->arena, &schedule->roles[role].actions, action);
    }
    return good && schedule_verify(schedule, (Span){file, 0, 0}) ? schedule : NULL;
}

/* ---- checks ---------------------------------------------------------------------------------------------------- */

/* Which passes of a micro-batch through a chunk have been seen. */
enum { SEEN_F = 1, SEEN_B = 2, SEEN_W = 4 };

typedef struct PassRule {
    ActionKind kind;
    int is, after; /* SEEN_ */
    const char *needs;
} PassRule;

static const PassRule pass_rules[] = {{ACTION_F, SEEN_F, 0, NULL},
                                      {ACTION_B, SEEN_B | SEEN_W, SEEN_F, "forward pass"},
                                      {ACTION_BI, SEEN_B, SEEN_F, "forward pass"},
                                      {ACTION_BW, SEEN_W, SEEN_B, "backward pass"}};

static const PassRule *rule_of(ActionKind kind) {
    for (size_t i = 0; i < sizeof pass_rules / sizeof *pass_rules; i++)
        if (pass_rules[i].kind == kind) return &pass_rules[i];
    return NULL;
}

/* Where an action stands in its file; the rule's place for one that a generator has made. */
static Span action_span(const Action *a, Span span) { return a->span.file ? a->span : span; }

static const char *action_name(const Schedule *schedule, const Action *a) {
    Text text = {.arena = schedule->arena};
    action_print(a, &text);
    return text.at;
}

/* A pass: once, after what it needs, before the update. */
static bool verify_pass(const Schedule *schedule, int role, const Action *a, int *seen, bool updated, Span span) {
    const PassRule *rule = rule_of(a->kind);
    if (!rule) return true;
    const char *wrong = NULL;
    if (*seen & rule->is)
        wrong = "stands twice";
    else if ((*seen & rule->after) != rule->after)
        wrong = arena_printf(schedule->arena, "stands before its %s `%d%s%d`", rule->needs, a->chunk,
                             action_text[rule->after == SEEN_F ? ACTION_F : ACTION_BI], a->micro);
    else if (updated)
        wrong = "stands after the update `OPT`";
    *seen |= rule->is;
    if (wrong)
        diag_error(schedule->session, "P0704", action_span(a, span), "role %d: `%s` %s", role, action_name(schedule, a),
                   wrong);
    return !wrong;
}

/* What is missing of the passes. */
static bool verify_complete(const Schedule *schedule, int role, const int *seen, Span span) {
    static const char *const names[] = {"forward pass", "backward pass", "pass for gradients of weights `BW`"};
    bool good = true;
    for (int k = 0; k < schedule->n_chunks * schedule->n_micro; k++)
        for (int i = 0; i < 3; i++) {
            if (seen[k] & 1 << i) continue;
            diag_error(schedule->session, "P0705", span, "role %d: micro-batch %d of chunk %d has no %s", role,
                       k % schedule->n_micro, k / schedule->n_micro, names[i]);
            good = false;
            break;
        }
    return good;
}

static bool verify_role(const Schedule *schedule, int role, Span span) {
    const RoleSchedule *list = &schedule->roles[role];
    int *seen = NEW_N(schedule->arena, int, schedule->n_chunks * schedule->n_micro), updates = 0;
    bool good = true;
    for (int i = 0; i < list->actions.n; i++) {
        const Action *a = &list->actions.at[i];
        if (a->chunk >= schedule->n_chunks || a->micro >= schedule->n_micro) {
            diag_error(schedule->session, "P0703", action_span(a, span),
                       "role %d: `%s` is outside %d chunks and %d micro-batches", role, action_name(schedule, a),
                       schedule->n_chunks, schedule->n_micro);
            return false;
        }
        updates += a->kind == ACTION_OPT;
        if (a->micro < 0) continue;
        good = verify_pass(schedule, role, a, &seen[a->chunk * schedule->n_micro + a->micro], updates, span) && good;
    }
    good = good && verify_complete(schedule, role, seen, span);
    if (good && updates != 1) {
        diag_error(schedule->session, "P0705", span, "role %d: the update `OPT` stands %d times, not once", role,
                   updates);
        good = false;
    }
    return good;
}

bool schedule_verify(const Schedule *schedule, Span span) {
    bool good = true;
    for (int r = 0; r < schedule->n_roles; r++) good = verify_role(schedule, r, span) && good;
    return good && schedule_progress(schedule, span);
}

/* ---- what is live ---------------------------------------------------------------------------------------------- */

bool schedule_splits_backward(const Schedule *schedule) {
    for (int r = 0; r < schedule->n_roles; r++)
        for (int i = 0; i < schedule->roles[r].actions.n; i++)
            if (schedule->roles[r].actions.at[i].kind == ACTION_BW) return true;
    return false;
}

int schedule_in_flight(const Schedule *schedule, int role, int chunk) {
    bool split = schedule_splits_backward(schedule);
    int now = 0, most = 0;
    const RoleSchedule *list = &schedule->roles[role];
    for (int i = 0; i < list->actions.n; i++) {
        const Action *a = &list->actions.at[i];
        if (a->micro < 0 || a->chunk != chunk) continue;
        if (a->kind == ACTION_F && ++now > most) most = now;
        if (a->kind == (split ? ACTION_BW : ACTION_B)) now--;
    }
    return most;
}

/* What a value waits for: the first of the two kinds of action; received values are there earlier. */
static bool opens(const Action *a, Phase phase) {
    if (phase == PHASE_F) return a->kind == ACTION_F || a->kind == ACTION_RECV_F;
    if (phase == PHASE_B) return a->kind == ACTION_B || a->kind == ACTION_BI || a->kind == ACTION_RECV_B;
    return a->kind == ACTION_BW;
}

static bool closes(const Action *a, Phase phase, bool split) {
    if (phase == PHASE_F) return a->kind == ACTION_F;
    return a->kind == (!split ? ACTION_B : phase == PHASE_B ? ACTION_BI : ACTION_BW);
}

/* Whether n copies are enough. holder: of each copy, 1 + micro-batch, or 0. */
static bool copies_do(const RoleSchedule *list, int chunk, Phase from, Phase to, bool split, int n, int *holder) {
    memset(holder, 0, sizeof *holder * (size_t)n);
    for (int i = 0; i < list->actions.n; i++) {
        const Action *a = &list->actions.at[i];
        if (a->micro < 0 || a->chunk != chunk) continue;
        int *held = &holder[a->micro % n];
        if (opens(a, from)) {
            if (*held && *held != 1 + a->micro) return false;
            *held = 1 + a->micro;
        }
        if (closes(a, to, split) && *held == 1 + a->micro) *held = 0;
    }
    return true;
}

int schedule_copies(const Schedule *schedule, int role, int chunk, Phase from, Phase to) {
    int n = 1, *holder = NEW_N(schedule->arena, int, schedule->n_micro + 1);
    bool split = schedule_splits_backward(schedule);
    while (n < schedule->n_micro && !copies_do(&schedule->roles[role], chunk, from, to, split, n, holder)) n++;
    return n;
}
