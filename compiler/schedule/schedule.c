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

const char *action_name(ActionKind kind) { return action_text[kind]; }

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
    *action = (Action){.micro = -1, .peer = -1};
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

static bool read_header(Reader *r, Schedule *schedule) {
    size_t n;
    const char *word = reader_word(r, &n);
    bool good = word_is(word, n, "schedule");
    const char *name = reader_word(r, &n);
    schedule->name = intern_n(r->session->names, name, n);
    struct {
        const char *key;
        int *value;
    } fields[] = {{"roles", &schedule->n_roles}, {"chunks", &schedule->n_chunks}, {"micros", &schedule->n_micro}};
    for (int i = 0; i < 3; i++) {
        word = reader_word(r, &n);
        good = good && word_is(word, n, fields[i].key);
        word = reader_word(r, &n);
        const char *digits = word;
        *fields[i].value = read_number(&digits, word + n);
        good = good && digits == word + n && *fields[i].value > 0 && *fields[i].value < 1 << 20;
    }
    good = good && (int64_t)schedule->n_chunks * schedule->n_micro <= MOST_CHUNKS_AND_MICROS;
    if (!good)
        diag_help(diag_error(r->session, "P0702", reader_span(r, r->text, r->at), "this is not a schedule"),
                  "the first line is like `schedule one_f_one_b roles 1 chunks 1 micros 4`");
    return good;
}

Schedule *schedule_parse(Session *s, int32_t file) {
    const SourceFile *source = session_file(s, (Span){file, 0, 0});
    Reader r = {.session = s, .file = file, .text = source->text, .at = source->text};
    Schedule *schedule = NEW(s->arena, Schedule);
    schedule->session = s, schedule->arena = s->arena;
    if (!read_header(&r, schedule)) return NULL;
    schedule->roles = NEW_N(s->arena, RoleSchedule, schedule->n_roles);
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

typedef struct Seen {
    int forward, backward; /* position + 1, or 0 */
} Seen;

static bool verify_role(const Schedule *schedule, int role, Span span) {
    const RoleSchedule *list = &schedule->roles[role];
    Seen *seen = NEW_N(schedule->arena, Seen, schedule->n_chunks * schedule->n_micro);
    int updates = 0;
    bool good = true;
    for (int i = 0; i < list->actions.n; i++) {
        const Action *a = &list->actions.at[i];
        const char *text = action_text[a->kind];
        if (a->chunk >= schedule->n_chunks || a->micro >= schedule->n_micro) {
            diag_error(schedule->session, "P0703", span, "role %d: `%d%s%d` is outside %d chunks and %d micro-batches",
                       role, a->chunk, text, a->micro, schedule->n_chunks, schedule->n_micro);
            return false;
        }
        updates += a->kind == ACTION_OPT;
        if (a->micro < 0) continue;
        Seen *s = &seen[a->chunk * schedule->n_micro + a->micro];
        bool is_backward = a->kind == ACTION_B || a->kind == ACTION_BI, is_forward = a->kind == ACTION_F;
        if ((is_forward && s->forward) || (is_backward && s->backward)) {
            diag_error(schedule->session, "P0704", span, "role %d: `%d%s%d` stands twice", role, a->chunk, text,
                       a->micro);
            good = false;
        }
        if (is_backward && !s->forward) {
            diag_error(schedule->session, "P0704", span, "role %d: `%d%s%d` stands before its forward pass `%dF%d`",
                       role, a->chunk, text, a->micro, a->chunk, a->micro);
            good = false;
        }
        if (updates && (is_forward || is_backward)) {
            diag_error(schedule->session, "P0704", span, "role %d: `%d%s%d` stands after the update `OPT`", role,
                       a->chunk, text, a->micro);
            good = false;
        }
        if (is_forward) s->forward = i + 1;
        if (is_backward) s->backward = i + 1;
    }
    for (int k = 0; k < schedule->n_chunks * schedule->n_micro && good; k++)
        if (!seen[k].forward || !seen[k].backward) {
            diag_error(schedule->session, "P0705", span, "role %d: micro-batch %d of chunk %d has no %s pass", role,
                       k % schedule->n_micro, k / schedule->n_micro, seen[k].forward ? "backward" : "forward");
            good = false;
        }
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

int schedule_in_flight(const Schedule *schedule, int role, int chunk) {
    int now = 0, most = 0;
    const RoleSchedule *list = &schedule->roles[role];
    for (int i = 0; i < list->actions.n; i++) {
        const Action *a = &list->actions.at[i];
        if (a->micro < 0 || a->chunk != chunk) continue;
        if (a->kind == ACTION_F && ++now > most) most = now;
        if (a->kind == ACTION_B || a->kind == ACTION_BW) now--;
    }
    return most;
}
