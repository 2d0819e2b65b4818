/* The inside of a diagnostic, shared by the parts of base that build, print and export them. */
#ifndef PLAN_DIAG_LIST_H
#define PLAN_DIAG_LIST_H

#include "base/base.h"

typedef struct DiagChild {
    Span span; /* file 0: none */
    const char *text, *replacement;
} DiagChild;

struct Diag {
    Session *session;
    Severity severity;
    const char *code, *message, *label;
    Span span;
    int order;
    VEC(DiagChild) notes, helps, fixes;
};

enum { MOST_SHOWN = 20 };

/* Sorts what was reported by file and position, what belongs to no place last, and equal places as they were reported.
 */
void diag_sort(Session *s);
/* The diagnostic as people read it. */
void diag_render(const Diag *d, Text *out, bool color);
const char *severity_name(Severity severity);

#endif
