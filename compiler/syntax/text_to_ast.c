/* Text to syntax tree: lexer, layout, parser, and the check of what stands where.
 *
 * In: a file of the session. Out: its tree, of all that could be read; every mistake of syntax has been reported. */
#include "syntax/parse.h"

Ast *text_to_ast(Session *s, int32_t file) {
    const SourceFile *source = session_file(s, (Span){file, 0, 0});
    CHECK(source);
    Ast *ast = NEW(s->arena, Ast);
    ast->session = s;
    ast->file = file;
    Parser p = {.s = s, .arena = s->arena, .file = file, .text = source->text, .size = source->size, .ast = ast};
    lex_file(&p);
    lines_make(&p);
    plan_parse(&p);
    place_check(&p);
    return ast;
}
