/* Reads a schedule: our own text form (schedule.c prints it), or a table of PyTorch's pipelining.
 *
 *     schedule one_f_one_b roles 1 chunks 1 micros 2
 *     role 0: BEGIN 0F0 0B0 0F1 0B1 OPT
 *
 * An action of a micro-batch is written chunk, kind, micro-batch; a send that waits until it is received has a `!`
 * behind it. PyTorch's form (torch.distributed.pipelining, `_load_csv`) has a line for each rank and in it cells like
 * `0F0`, `1B2`, `1I2`, `1W2`; its first number counts the stages of the whole model, empty cells are idle time, and
 *   - `I` is BI and `W` is BW; a `B` that has a `W` for the same micro-batch is BI (as older versions write it), one
 *     without is the whole backward pass;
 *   - UNSHARD, RESHARD and REDUCE_GRAD follow from the plan here: they are left out.
 * What a table leaves out is added: the transfers when it has none, and what is done once a step. */
#include "schedule/schedules.h"

#include <ctype.h>

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

enum { MOST_CHUNKS_AND_MICROS = 1 << 24, MOST_ROLES = 1 << 12 };

/* The digits at `*at`; a number that no schedule can have when they are too many. */
static int read_number(const char **at, const char *end) {
    int64_t number = 0;
    while (*at < end && isdigit((unsigned char)**at)) {
        number = number * 10 + (*(*at)++ - '0');
        if (number > MOST_CHUNKS_AND_MICROS) number = MOST_CHUNKS_AND_MICROS;
    }
    return (int)number;
}

/* ---- our own form --------------------------------------------------------------------------------------------- */

static bool action_sends(ActionKind kind) { return kind == ACTION_SEND_F || kind == ACTION_SEND_B; }

static void refuse_action(Reader *r, const char *word, size_t n) {
    Diag *d = diag_error(r->session, "P0701", reader_span(r, word, word + n), "`%.*s` is not an action", (int)n, word);
    diag_help(d, "an action is written like `0F3`: chunk, kind, micro-batch; or `OPT`, once a step");
}

/* The parts of a word like `0SEND_F3!`; false when it has other ones. */
typedef struct Cell {
    int number, micro; /* micro -1: none */
    bool has_number, waits;
    const char *kind;
    size_t kind_length;
} Cell;

static bool read_cell(const char *word, size_t n, Cell *cell) {
    const char *at = word, *end = word + n;
    *cell = (Cell){.micro = -1};
    cell->number = read_number(&at, end);
    cell->has_number = at > word;
    cell->kind = at;
    while (at < end && (isalpha((unsigned char)*at) || *at == '_')) at++;
    cell->kind_length = (size_t)(at - cell->kind);
    if (at < end && isdigit((unsigned char)*at)) cell->micro = read_number(&at, end);
    cell->waits = at + 1 == end && *at == '!';
    return at + cell->waits == end;
}

static bool read_action(Reader *r, const char *word, size_t n, Action *action) {
    Cell cell;
    bool good = read_cell(word, n, &cell);
    *action = (Action){.chunk = cell.number, .micro = cell.micro, .peer = -1, .span = reader_span(r, word, word + n)};
    for (int k = 0; good && k < ACTION_COUNT_; k++) {
        if (!word_is(cell.kind, cell.kind_length, action_text((ActionKind)k))) continue;
        action->kind = (ActionKind)k;
        action->stream = action_sends(action->kind) && !cell.waits;
        if (cell.has_number == (cell.micro >= 0) && (!cell.waits || action_sends(action->kind))) return true;
    }
    refuse_action(r, word, n);
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
    good = good && values[0] <= MOST_ROLES && (int64_t)values[0] * values[1] * values[2] <= MOST_CHUNKS_AND_MICROS;
    if (good) return schedule_new(r->session, r->session->arena, name, values[0], values[1], values[2]);
    Diag *d = diag_error(r->session, "P0702", reader_span(r, r->text, r->at), "this is not a schedule");
    diag_help(d, "the first line is like `schedule one_f_one_b roles 1 chunks 1 micros 4`, or the file is a table of "
                 "PyTorch's pipelining: a line for each rank, with cells like `0F0`");
    return NULL;
}

/* `role 3:`; false, reported, when there is no such role. */
static bool read_role(Reader *r, const Schedule *schedule, int *role) {
    size_t n;
    const char *word = reader_word(r, &n), *digits = word;
    *role = read_number(&digits, word + n);
    if (digits > word && *role < schedule->n_roles) return true;
    diag_error(r->session, "P0702", reader_span(r, word, word + n), "there is no role `%.*s`", (int)n, word);
    return false;
}

static Schedule *read_text(Reader *r) {
    Schedule *schedule = read_header(r);
    if (!schedule) return NULL;
    bool good = true;
    int role = -1;
    while (*r->at) {
        if (*r->at == '\n') {
            r->at++;
            continue;
        }
        size_t n;
        const char *word = reader_word(r, &n);
        if (n == 0) continue;
        if (word_is(word, n, "role")) {
            if (!read_role(r, schedule, &role)) return NULL;
            schedule->roles[role].span = reader_span(r, word, r->at);
            continue;
        }
        Action action;
        if (role < 0 || !read_action(r, word, n, &action))
            good = false;
        else
            vec_push(r->session->arena, &schedule->roles[role].actions, action);
    }
    return good ? schedule : NULL;
}

/* ---- PyTorch's form ------------------------------------------------------------------------------------------- */

static const struct {
    const char *text;
    ActionKind kind; /* ACTION_COUNT_: left out */
} torch_kinds[] = {{"F", ACTION_F},
                   {"B", ACTION_B},
                   {"I", ACTION_BI},
                   {"W", ACTION_BW},
                   {"SEND_F", ACTION_SEND_F},
                   {"RECV_F", ACTION_RECV_F},
                   {"SEND_B", ACTION_SEND_B},
                   {"RECV_B", ACTION_RECV_B},
                   {"UNSHARD", ACTION_COUNT_},
                   {"RESHARD", ACTION_COUNT_},
                   {"REDUCE_GRAD", ACTION_COUNT_}};

/* Into `action`, its chunk still the stage of the whole model. */
static bool read_torch_cell(Reader *r, const char *word, size_t n, Action *action) {
    Cell cell;
    bool good = read_cell(word, n, &cell) && cell.has_number && !cell.waits;
    for (size_t k = 0; good && k < sizeof torch_kinds / sizeof *torch_kinds; k++) {
        if (!word_is(cell.kind, cell.kind_length, torch_kinds[k].text)) continue;
        *action = (Action){.kind = torch_kinds[k].kind,
                           .chunk = cell.number,
                           .micro = cell.micro,
                           .peer = -1,
                           .stream = action_sends(torch_kinds[k].kind),
                           .span = reader_span(r, word, word + n)};
        if (action->kind == ACTION_COUNT_ || cell.micro >= 0) return true;
    }
    refuse_action(r, word, n);
    return false;
}

typedef VEC(RoleSchedule) Rows;

static bool read_rows(Reader *r, Rows *rows) {
    bool good = true;
    while (*r->at) {
        RoleSchedule row = {.span = reader_span(r, r->at, r->at)};
        while (*r->at && *r->at != '\n') {
            size_t n;
            const char *word = reader_word(r, &n);
            Action action;
            if (n == 0 || word_is(word, n, "None")) continue;
            if (!read_torch_cell(r, word, n, &action))
                good = false;
            else if (action.kind != ACTION_COUNT_)
                vec_push(r->session->arena, &row.actions, action);
        }
        if (*r->at == '\n') r->at++;
        if (row.actions.n) vec_push(r->session->arena, rows, row);
    }
    return good;
}

/* Stage s of the model is chunk s / n of rank s mod n. */
static bool place_stages(Session *s, Rows *rows) {
    for (int r = 0; r < rows->n; r++)
        for (int i = 0; i < rows->at[r].actions.n; i++) {
            Action *a = &rows->at[r].actions.at[i];
            int stage = a->chunk;
            a->chunk = stage / rows->n;
            if (stage % rows->n == r) continue;
            Diag *d = diag_error(s, "P0721", a->span, "stage %d stands on rank %d, and a plan has it on rank %d", stage,
                                 r, stage % rows->n);
            diag_help(d, "stage s of n ranks belongs to rank s mod n; a table that turns back at the last rank (ZBV, "
                         "DualPipe) has no plan yet");
            return false;
        }
    return true;
}

static Schedule *read_torch(Reader *r) {
    Session *s = r->session;
    Rows rows = {0};
    if (!read_rows(r, &rows)) return NULL;
    int64_t chunks = 0, micros = 0;
    if (rows.n > MOST_ROLES || !place_stages(s, &rows)) return NULL;
    for (int k = 0; k < rows.n; k++)
        for (int i = 0; i < rows.at[k].actions.n; i++) {
            const Action *a = &rows.at[k].actions.at[i];
            if (a->chunk >= chunks) chunks = a->chunk + 1;
            if (a->micro >= micros) micros = a->micro + 1;
        }
    if (rows.n == 0 || rows.n * chunks * micros > MOST_CHUNKS_AND_MICROS) {
        diag_error(s, "P0702", (Span){r->file, 0, 0}, "this is not a schedule");
        return NULL;
    }
    Schedule *schedule = schedule_new(s, s->arena, "table", rows.n, (int)chunks, (int)micros);
    memcpy(schedule->roles, rows.at, sizeof *rows.at * (size_t)rows.n);
    return schedule;
}

/* ---- what is left out ------------------------------------------------------------------------------------------ */

static bool has_kind(const Schedule *schedule, ActionKind from, ActionKind to) {
    for (int r = 0; r < schedule->n_roles; r++)
        for (int i = 0; i < schedule->roles[r].actions.n; i++) {
            ActionKind kind = schedule->roles[r].actions.at[i].kind;
            if (kind >= from && kind <= to) return true;
        }
    return false;
}

/* Backward passes in halves where there is one in halves: a whole one is BI and at once BW. With one stage nothing
 * waits for BI, so halves are joined. */
static void split_passes(Schedule *schedule) {
    Arena *arena = schedule->arena;
    if (!has_kind(schedule, ACTION_BI, ACTION_BW)) return;
    for (int r = 0; r < schedule->n_roles; r++) {
        const RoleSchedule *list = &schedule->roles[r];
        RoleSchedule made = {.span = list->span};
        bool *has_half = NEW_N(arena, bool, schedule->n_chunks * schedule->n_micro);
        for (int i = 0; i < list->actions.n; i++) {
            const Action *a = &list->actions.at[i];
            bool inside = a->micro >= 0 && a->micro < schedule->n_micro && a->chunk < schedule->n_chunks;
            if (a->kind == ACTION_BW && inside) has_half[a->chunk * schedule->n_micro + a->micro] = true;
        }
        for (int i = 0; i < list->actions.n; i++) {
            Action a = list->actions.at[i];
            bool inside = a.micro >= 0 && a.micro < schedule->n_micro && a.chunk < schedule->n_chunks;
            bool whole = a.kind == ACTION_B && inside && !has_half[a.chunk * schedule->n_micro + a.micro];
            if (a.kind == ACTION_B) a.kind = ACTION_BI;
            if (schedule->n_roles == 1 && a.kind == ACTION_BI) continue;
            if (schedule->n_roles == 1 && a.kind == ACTION_BW) a.kind = ACTION_B;
            vec_push(arena, &made.actions, a);
            a.kind = ACTION_BW;
            if (whole) vec_push(arena, &made.actions, a);
        }
        schedule->roles[r] = made;
    }
}

void schedule_complete(Schedule *schedule, ScheduleParts parts) {
    bool has_transfers = has_kind(schedule, ACTION_SEND_F, ACTION_RECV_B),
         has_once = has_kind(schedule, ACTION_OPT, ACTION_OPT);
    for (int r = 0; r < schedule->n_roles && !has_once; r++) {
        RoleSchedule passes = schedule->roles[r];
        schedule->roles[r].actions.n = schedule->roles[r].actions.cap = 0;
        schedule->roles[r].actions.at = NULL;
        schedule_open_role(schedule, r, parts);
        for (int i = 0; i < passes.actions.n; i++)
            vec_push(schedule->arena, &schedule->roles[r].actions, passes.actions.at[i]);
        schedule_push(schedule, r, ACTION_OPT, 0, -1);
    }
    if (!has_transfers) schedule_add_transfers(schedule);
}

Schedule *schedule_read(Session *s, int32_t file) {
    const SourceFile *source = session_file(s, (Span){file, 0, 0});
    Reader r = {.session = s, .file = file, .text = source->text, .at = source->text};
    while (isspace((unsigned char)*r.at) || *r.at == ',') r.at++;
    bool torch = isdigit((unsigned char)*r.at);
    r.at = r.text;
    Schedule *schedule = torch ? read_torch(&r) : read_text(&r);
    if (schedule) split_passes(schedule);
    return schedule;
}

Schedule *schedule_parse(Session *s, int32_t file) {
    Schedule *schedule = schedule_read(s, file);
    if (!schedule) return NULL;
    schedule_complete(schedule, (ScheduleParts){0});
    return schedule_verify(schedule, (Span){file, 0, 0}) ? schedule : NULL;
}
