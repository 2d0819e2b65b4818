/* A diagnostic as people read it:
 *
 *     error[P0301]: `head` (25) does not divide over axis `tensor` (4)
 *       --> gpt2-xl.plan:31:5
 *        |
 *     31 |     head, ffn, vocab, seq on tensor
 *        |     ^^^^ each rank would get 6.25 heads
 *     help: use tensor = 1, 5 or 25
 *
 * Carets stand below the characters they mean whatever the tabs and the width of the characters before them; bytes that
 * would disturb a terminal are shown as U+FFFD. */
#include "base/diag_list.h"

typedef struct Colors {
    const char *severity[4], *bold, *gutter, *help, *off;
} Colors;

static const Colors PLAIN = {{"", "", "", ""}, "", "", "", ""};
static const Colors ANSI = {
    {"\033[1;31m", "\033[1;33m", "\033[1;32m", "\033[1;35m"}, "\033[1m", "\033[1;34m", "\033[1;36m", "\033[0m"};

enum { TAB = 4 };

/* Columns of a terminal that a character takes: 0 for combining marks, 2 for East Asian wide ones and pictures. */
static int character_width(uint32_t code) {
    static const struct {
        uint32_t first, last;
        int width;
    } ranges[] = {
        {0x0300, 0x036f, 0}, {0x200b, 0x200f, 0}, {0xfe00, 0xfe0f, 0},   {0x1100, 0x115f, 2},
        {0x2e80, 0xa4cf, 2}, {0xac00, 0xd7a3, 2}, {0xf900, 0xfaff, 2},   {0xfe30, 0xfe6f, 2},
        {0xff00, 0xff60, 2}, {0xffe0, 0xffe6, 2}, {0x1f300, 0x1faff, 2}, {0x20000, 0x3fffd, 2},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i].first && code <= ranges[i].last) return ranges[i].width;
    return 1;
}

static bool disturbs_terminal(uint32_t code) {
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

/* Adds [at, end) fit for a terminal, when `out` is set, and returns the column reached from column `column` (from 0).
 */
static int add_shown(Text *out, const char *at, const char *end, int column) {
    while (at < end) {
        uint32_t code;
        int n = utf8_decode(at, end, &code);
        if (code == '\t') {
            int blanks = TAB - column % TAB;
            for (int i = 0; out && i < blanks; i++) text_puts(out, " ");
            column += blanks;
        } else if (disturbs_terminal(code) || (code == 0xfffd && n == 1)) {
            if (out) text_puts(out, "\xef\xbf\xbd");
            column++;
        } else {
            if (out) text_add(out, at, (size_t)n);
            column += character_width(code);
        }
        at += n;
    }
    return column;
}

/* Messages quote what the user wrote. */
static void add_words(Text *out, const char *words) { add_shown(out, words, words + strlen(words), 0); }

static int digits(int number) {
    int n = 1;
    for (; number >= 10; number /= 10) n++;
    return n;
}

/* The source line of a span with carets below; a span of several lines is shown by its first. */
static void render_place(const Diag *d, Text *out, Span span, const char *label, const char *caret_color, int gutter,
                         const Colors *c) {
    const SourceFile *file = session_file(d->session, span);
    if (!file) return;
    Place place = session_place(d->session, span);
    const char *line = file->text + file->line_starts[place.line - 1], *end = line, *limit = file->text + file->size;
    while (end < limit && *end != '\n') end++;
    if (end > line && end[-1] == '\r') end--;
    const char *lo = file->text + span.lo, *hi = file->text + span.hi;
    if (lo > end) lo = end;
    if (hi > end) hi = end;

    text_printf(out, "%*s%s-->%s %s:%d:%d\n", gutter, "", c->gutter, c->off, file->path, place.line, place.column);
    text_printf(out, "%*s %s|%s\n", gutter, "", c->gutter, c->off);
    text_printf(out, "%s%*d |%s", c->gutter, gutter, place.line, c->off);
    if (end > line) text_puts(out, " ");
    add_shown(out, line, end, 0);
    int from = add_shown(NULL, line, lo, 0), to = add_shown(NULL, lo, hi, from);
    text_printf(out, "\n%*s %s|%s %*s%s", gutter, "", c->gutter, c->off, from, "", caret_color);
    for (int i = from; i < to || i == from; i++) text_puts(out, "^");
    if (label) text_puts(out, " "), add_words(out, label);
    text_printf(out, "%s\n", c->off);
}

static int gutter_width(const Diag *d) {
    int width = digits(session_place(d->session, d->span).line);
    for (int i = 0; i < d->notes.n; i++) {
        int more = digits(session_place(d->session, d->notes.at[i].span).line);
        if (more > width) width = more;
    }
    return width;
}

void diag_render(const Diag *d, Text *out, bool color) {
    const Colors *c = color ? &ANSI : &PLAIN;
    int gutter = gutter_width(d);
    const char *severity = c->severity[d->severity];
    text_printf(out, "%s%s[%s]%s%s: ", severity, severity_name(d->severity), d->code, c->off, c->bold);
    add_words(out, d->message);
    text_printf(out, "%s\n", c->off);
    render_place(d, out, d->span, d->label, severity, gutter, c);
    for (int i = 0; i < d->notes.n; i++) {
        text_printf(out, "%snote%s: ", c->severity[SEV_NOTE], c->off);
        add_words(out, d->notes.at[i].text);
        text_puts(out, "\n");
        render_place(d, out, d->notes.at[i].span, NULL, c->severity[SEV_NOTE], gutter, c);
    }
    for (int i = 0; i < d->helps.n; i++) {
        text_printf(out, "%shelp%s: ", c->help, c->off);
        add_words(out, d->helps.at[i].text);
        text_puts(out, "\n");
    }
}
