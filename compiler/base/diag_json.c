/* Diagnostics for editors and scripts: one JSON object a line, with the fields of rustc's --error-format=json. */
#include "base/diag_list.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

/* cJSON copies bytes as they are, so what is not UTF-8 is replaced first. */
static void add_string(Session *s, cJSON *object, const char *key, const char *text, size_t length) {
    Text clean = {.arena = s->arena};
    text_puts(&clean, "");
    for (const char *at = text, *end = text + length; at < end;) {
        uint32_t code;
        int n = utf8_decode(at, end, &code);
        if ((code == 0xfffd && n == 1) || !code)
            text_puts(&clean, "\xef\xbf\xbd");
        else
            text_add(&clean, at, (size_t)n);
        at += n;
    }
    cJSON_AddStringToObject(object, key, clean.at);
}

static void add_text(Session *s, cJSON *object, const char *key, const char *text) {
    if (text)
        add_string(s, object, key, text, strlen(text));
    else
        cJSON_AddNullToObject(object, key);
}

static int characters(const char *at, const char *end) {
    int n = 0;
    uint32_t code;
    for (; at < end; n++) at += utf8_decode(at, end, &code);
    return n;
}

/* The lines that the span touches, each with the part that is meant (columns from 1, the end excluded). */
static void add_lines(Session *s, cJSON *lines, const SourceFile *file, Span span, int first, int last) {
    for (int line = first; line <= last && line < first + 8; line++) {
        const char *start = file->text + file->line_starts[line - 1], *end = start, *limit = file->text + file->size;
        while (end < limit && *end != '\n') end++;
        const char *lo = line == first ? file->text + span.lo : start, *hi = line == last ? file->text + span.hi : end;
        cJSON *entry = cJSON_CreateObject();
        add_string(s, entry, "text", start, (size_t)(end - start));
        cJSON_AddNumberToObject(entry, "highlight_start", characters(start, lo) + 1);
        cJSON_AddNumberToObject(entry, "highlight_end", characters(start, hi) + 1);
        cJSON_AddItemToArray(lines, entry);
    }
}

static void add_span(Session *s, cJSON *spans, Span span, bool is_primary, const char *label, const char *replacement) {
    const SourceFile *file = session_file(s, span);
    if (!file) return;
    Place from = session_place(s, span), to = session_place(s, (Span){span.file, span.hi, span.hi});
    cJSON *object = cJSON_CreateObject();
    add_text(s, object, "file_name", file->real_path);
    cJSON_AddNumberToObject(object, "byte_start", span.lo);
    cJSON_AddNumberToObject(object, "byte_end", span.hi);
    cJSON_AddNumberToObject(object, "line_start", from.line);
    cJSON_AddNumberToObject(object, "line_end", to.line);
    cJSON_AddNumberToObject(object, "column_start", from.column);
    cJSON_AddNumberToObject(object, "column_end", to.column);
    cJSON_AddBoolToObject(object, "is_primary", is_primary);
    add_lines(s, cJSON_AddArrayToObject(object, "text"), file, span, from.line, to.line);
    add_text(s, object, "label", label);
    add_text(s, object, "suggested_replacement", replacement);
    add_text(s, object, "suggestion_applicability", replacement ? "MachineApplicable" : NULL);
    cJSON_AddNullToObject(object, "expansion");
    cJSON_AddItemToArray(spans, object);
}

static void add_child(Session *s, cJSON *children, const char *level, const DiagChild *child) {
    cJSON *object = cJSON_CreateObject();
    add_text(s, object, "message", child->text);
    cJSON_AddNullToObject(object, "code");
    cJSON_AddStringToObject(object, "level", level);
    add_span(s, cJSON_AddArrayToObject(object, "spans"), child->span, true, NULL, child->replacement);
    cJSON_AddArrayToObject(object, "children");
    cJSON_AddNullToObject(object, "rendered");
    cJSON_AddItemToArray(children, object);
}

static cJSON *diag_to_json(Session *s, const Diag *d) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "$message_type", "diagnostic");
    add_text(s, object, "message", d->message);
    cJSON *code = cJSON_AddObjectToObject(object, "code");
    cJSON_AddStringToObject(code, "code", d->code);
    cJSON_AddNullToObject(code, "explanation");
    cJSON_AddStringToObject(object, "level", severity_name(d->severity));
    add_span(s, cJSON_AddArrayToObject(object, "spans"), d->span, true, d->label, NULL);
    cJSON *children = cJSON_AddArrayToObject(object, "children");
    for (int i = 0; i < d->notes.n; i++) add_child(s, children, "note", &d->notes.at[i]);
    for (int i = 0; i < d->helps.n; i++) add_child(s, children, "help", &d->helps.at[i]);
    for (int i = 0; i < d->fixes.n; i++) {
        DiagChild fix = d->fixes.at[i];
        fix.text = "replace by this";
        add_child(s, children, "help", &fix);
    }
    Text rendered = {.arena = s->arena};
    diag_render(d, &rendered, false);
    add_text(s, object, "rendered", rendered.at);
    return object;
}

void diag_flush_json(Session *s, FILE *out) {
    diag_sort(s);
    for (int i = 0; i < s->diags.n; i++) {
        cJSON *object = diag_to_json(s, s->diags.at[i]);
        char *line = cJSON_PrintUnformatted(object);
        CHECK(line);
        fprintf(out, "%s\n", line);
        cJSON_free(line);
        cJSON_Delete(object);
    }
    s->diags.n = 0;
    fflush(out);
}
