/* The second half of the formatter: aligns the cells of lines and joins them to text. */
#include "syntax/print.h"

static int characters(const char *text, size_t bytes) {
    int n = 0;
    uint32_t code;
    for (const char *at = text, *end = text + bytes; at < end; n++) at += utf8_decode(at, end, &code);
    return n;
}

static int cell_width(const PrintLine *line, int cell) { return characters(line->cells[cell].at, line->cells[cell].n); }

/* ---- columns of statements ---- */

typedef struct Run {
    VEC(int) lines;
} Run;

static void run_finish(PrintLines *lines, Run *run) {
    for (int cell = 0; cell + 1 < MOST_CELLS; cell++) {
        int widest = 0;
        for (int i = 0; i < run->lines.n; i++) {
            const PrintLine *line = &lines->at.at[run->lines.at[i]];
            if (line->n_cells > cell + 1 && cell_width(line, cell) > widest) widest = cell_width(line, cell);
        }
        for (int i = 0; i < run->lines.n; i++) {
            PrintLine *line = &lines->at.at[run->lines.at[i]];
            if (line->n_cells > cell + 1) line->pad[cell] = widest - cell_width(line, cell) + 1;
        }
    }
    run->lines.n = 0;
}

/* A run goes on at its depth, also past a nested block, until a blank line, a comment or a statement of another class.
 */
static void align_statements(PrintLines *lines) {
    VEC(Run) runs = {0};
    for (int i = 0; i < lines->at.n; i++) {
        const PrintLine *line = &lines->at.at[i];
        if (line->sort == LINE_GOES_ON) continue;
        while (runs.n <= line->depth) vec_push(lines->arena, &runs, (Run){0});
        for (int deeper = line->depth + 1; deeper < runs.n; deeper++) run_finish(lines, &runs.at[deeper]);
        if (line->sort == LINE_CLOSES) continue;
        Run *run = &runs.at[line->depth];
        bool same = run->lines.n && lines->at.at[run->lines.at[0]].class == line->class;
        if (!same || line->blanks_before || line->sort == LINE_COMMENT) run_finish(lines, run);
        if (line->sort == LINE_STATEMENT && line->class != LINE_OTHER) vec_push(lines->arena, &run->lines, i);
    }
    for (int depth = 0; depth < runs.n; depth++) run_finish(lines, &runs.at[depth]);
}

/* ---- text ---- */

static int offset_of(const PrintLine *line, int cell) {
    int offset = line->indent;
    for (int i = 0; i < cell; i++) offset += cell_width(line, i) + line->pad[i];
    return offset;
}

static void find_indents(PrintLines *lines) {
    for (int i = 0; i < lines->at.n; i++) {
        PrintLine *line = &lines->at.at[i];
        line->indent = line->depth * INDENT;
        if (line->has_anchor) {
            const PrintLine *opening = &lines->at.at[line->anchor.line];
            if (line->anchor.ends_line)
                line->indent = opening->indent + (line->closes_anchor ? 0 : INDENT);
            else
                line->indent =
                    offset_of(opening, line->anchor.cell) + line->anchor.offset + (line->closes_anchor ? 0 : 1);
        } else if (line->sort == LINE_GOES_ON) {
            line->indent += INDENT;
        }
    }
}

static int line_width(const PrintLine *line) {
    return line->n_cells ? offset_of(line, line->n_cells - 1) + cell_width(line, line->n_cells - 1) : 0;
}

/* Where the comments behind neighbouring lines begin: two blanks behind the longest of them. */
static int comment_column(const PrintLines *lines, int i) {
    int from = i, to = i, widest = 0;
    const PrintLine *at = lines->at.at;
    while (from > 0 && at[from - 1].comment && at[from - 1].sort != LINE_COMMENT && !at[from].blanks_before) from--;
    while (to + 1 < lines->at.n && at[to + 1].comment && at[to + 1].sort != LINE_COMMENT && !at[to + 1].blanks_before)
        to++;
    for (int k = from; k <= to; k++)
        if (line_width(&at[k]) > widest) widest = line_width(&at[k]);
    return widest + 2;
}

static void add_line(const PrintLines *lines, int i, Text *out) {
    const PrintLine *line = &lines->at.at[i];
    for (int blank = 0; blank < line->blanks_before; blank++) text_puts(out, "\n");
    text_printf(out, "%*s", line->indent, "");
    for (int cell = 0; cell < line->n_cells; cell++) {
        text_add(out, line->cells[cell].at, line->cells[cell].n);
        if (cell + 1 < line->n_cells) text_printf(out, "%*s", line->pad[cell], "");
    }
    if (line->comment) {
        int blanks = line->sort == LINE_COMMENT ? 0 : comment_column(lines, i) - line_width(line);
        text_printf(out, "%*s%s", blanks, "", line->comment);
    }
    text_puts(out, "\n");
}

const char *lines_to_text(PrintLines *lines) {
    Text out = {.arena = lines->arena};
    text_puts(&out, "");
    align_statements(lines);
    find_indents(lines);
    for (int i = 0; i < lines->at.n; i++) add_line(lines, i, &out);
    return out.at;
}
