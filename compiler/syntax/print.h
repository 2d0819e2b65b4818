/* Inside the formatter: lines of cells, made by ast_print.c and put together by print_lines.c. */
#ifndef PLAN_PRINT_H
#define PLAN_PRINT_H

#include "syntax/parse.h"

/* Statements of one class that follow each other have their cells aligned. */
typedef enum LineClass {
    LINE_OTHER,
    LINE_ASSIGN,
    LINE_DIM,
    LINE_ALIAS,
    LINE_TENSOR,
    LINE_RULE,
    LINE_PROPERTY
} LineClass;
typedef enum LineSort { LINE_STATEMENT, LINE_GOES_ON, LINE_CLOSES, LINE_COMMENT } LineSort;

enum { MOST_CELLS = 4, INDENT = 4 };

/* Where a bracket stands that a later line aligns to. */
typedef struct Anchor {
    int line, cell;
    int offset;     /* in characters from the beginning of the cell */
    bool ends_line; /* nothing behind it on its line */
} Anchor;

typedef struct PrintLine {
    LineSort sort;
    LineClass class;
    int depth, blanks_before;
    Text cells[MOST_CELLS];
    int n_cells, pad[MOST_CELLS]; /* pad: blanks behind a cell */
    const char *comment;          /* behind it, or NULL */
    bool has_anchor;              /* LINE_GOES_ON: inside a bracket */
    Anchor anchor;
    bool closes_anchor; /* begins with the bracket's other half */
    int indent;         /* filled while printing */
} PrintLine;

typedef struct PrintLines {
    Arena *arena;
    VEC(PrintLine) at;
} PrintLines;

/* Aligns the cells and returns the text. */
const char *lines_to_text(PrintLines *lines);

#endif
