/* Reading the text form of graphs: words, numbers, dimensions, types (parse_words.c), for the statements of parse.c.
 * The first thing that does not fit is reported; after that every function returns at once, with something harmless. */
#ifndef PLAN_IR_PARSE_H
#define PLAN_IR_PARSE_H

#include "ir/op.h"

typedef struct GraphText {
    Session *session;
    int32_t file;
    const char *text;
    int32_t at;
    bool failed;
    Graph *graph;
    Builder b;
    Map values; /* Name -> Node * */
    struct {
        Tensor *tensor;
        Name of;
        Span span;
    } * ofs; /* `of` may name a later tensor */
    int n_ofs, cap_ofs;
    VEC(Node *) nexts;
    VEC(Node *) stacks;
} GraphText;

/* Reports that `expected` does not stand at `lo`. */
void gtext_fail(GraphText *p, int32_t lo, const char *expected);
/* Blanks and comments; with `lines`, also newlines and semicolons. */
void gtext_skip(GraphText *p, bool lines);
bool gtext_peek(GraphText *p, const char *token);
bool gtext_accept(GraphText *p, const char *token);
void gtext_expect(GraphText *p, const char *token);
/* A separator in a list: newlines may follow it. */
bool gtext_accept_comma(GraphText *p);
bool gtext_is_word(char c);
bool gtext_word_follows(GraphText *p);
Name gtext_read_word(GraphText *p, const char *expected);
/* A keyword: the whole word, not a prefix of another. */
bool gtext_accept_word(GraphText *p, const char *word);
double gtext_read_number(GraphText *p);
/* Whole numbers that a double holds exactly. */
int64_t gtext_read_integer(GraphText *p);
Dim *gtext_read_dim(GraphText *p);
Shape gtext_read_dims(GraphText *p, const char *open, const char *close);
void gtext_declare_dims(GraphText *p);
void gtext_declare_mesh(GraphText *p);
DType gtext_read_dtype(GraphText *p);
int gtext_read_keyword(GraphText *p, const char *const *words, int n, const char *expected);
/* `f32[a, b] {axis: type, ...}` */
OutType gtext_read_type(GraphText *p);
void gtext_declare_tensor(GraphText *p);
Tensor *gtext_read_tensor(GraphText *p);
Span gtext_span(const GraphText *p, int32_t lo);

#endif
