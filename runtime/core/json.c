/* A recursive-descent reader of JSON (RFC 8259), and text that grows for writing it. */
#include "core/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 64

typedef struct Parser {
    const char *at;
    int depth;
} Parser;

static PrtJson *parse_value(Parser *p);

static void blanks(Parser *p) {
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r') p->at++;
}

static bool word(Parser *p, const char *text) {
    size_t n = strlen(text);
    if (strncmp(p->at, text, n)) return false;
    p->at += n;
    return true;
}

/* Four hexadecimal digits, or -1. */
static long hex4(const char *at) {
    long value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static size_t put_utf8(char *out, long c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return (size_t)n;
}

/* After "\u": the character, with the second half of a surrogate pair; -1: bad. */
static long unicode(Parser *p) {
    long c = hex4(p->at);
    if (c < 0) return -1;
    p->at += 4;
    if (c >= 0xdc00 && c <= 0xdfff) return -1;
    if (c < 0xd800 || c > 0xdbff) return c;
    if (p->at[0] != '\\' || p->at[1] != 'u') return -1;
    long low = hex4(p->at + 2);
    if (low < 0xdc00 || low > 0xdfff) return -1;
    p->at += 6;
    return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

static char *parse_text(Parser *p) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (*p->at != '"') return NULL;
    const char *end = p->at + 1;
    while (*end && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
    if (!*end) return NULL;
    char *text = malloc((size_t)(end - p->at)), *out = text;
    if (!text) return NULL;
    p->at++;
    bool ok = true;
    while (ok && *p->at != '"') {
        unsigned char c = (unsigned char)*p->at++;
        ok = c >= 0x20;
        if (c != '\\') {
            *out++ = (char)c;
            continue;
        }
        char kind = *p->at++;
        const char *found = kind ? strchr(from, kind) : NULL;
        if (found) {
            *out++ = to[found - from];
        } else {
            long value = kind == 'u' ? unicode(p) : -1;
            ok = value > 0; /* no NUL inside of a text */
            if (ok) out += put_utf8(out, value);
        }
    }
    *out = 0;
    if (ok) {
        p->at++;
        return text;
    }
    free(text);
    return NULL;
}

static bool digits(const char **at) {
    const char *start = *at;
    while (**at >= '0' && **at <= '9') ++*at;
    return *at > start;
}

static bool parse_number(Parser *p, PrtJson *value) {
    const char *at = p->at;
    if (*at == '-') at++;
    if (*at == '0')
        at++;
    else if (!digits(&at))
        return false;
    if (*at == '.' && (at++, !digits(&at))) return false;
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        if (!digits(&at)) return false;
    }
    value->kind = PRT_JSON_NUMBER;
    value->number = strtod(p->at, NULL);
    p->at = at;
    return true;
}

static bool parse_items(Parser *p, PrtJson *value, char end) {
    PrtJson **last = &value->first;
    p->at++;
    blanks(p);
    if (*p->at == end) {
        p->at++;
        return true;
    }
    for (;;) {
        char *name = NULL;
        if (end == '}') {
            blanks(p);
            name = parse_text(p);
            if (!name) return false;
            blanks(p);
            if (*p->at++ != ':') {
                free(name);
                p->at--;
                return false;
            }
        }
        PrtJson *item = parse_value(p);
        if (!item) {
            free(name);
            return false;
        }
        item->name = name;
        *last = item;
        last = &item->next;
        blanks(p);
        if (*p->at == end) {
            p->at++;
            return true;
        }
        if (*p->at != ',') return false;
        p->at++;
    }
}

static PrtJson *parse_value(Parser *p) {
    if (p->depth == DEEPEST) return NULL;
    p->depth++;
    blanks(p);
    PrtJson *value = calloc(1, sizeof *value);
    bool ok = value != NULL;
    if (ok && *p->at == '{') {
        value->kind = PRT_JSON_OBJECT;
        ok = parse_items(p, value, '}');
    } else if (ok && *p->at == '[') {
        value->kind = PRT_JSON_LIST;
        ok = parse_items(p, value, ']');
    } else if (ok && *p->at == '"') {
        value->kind = PRT_JSON_TEXT;
        value->text = parse_text(p);
        ok = value->text != NULL;
    } else if (ok && !word(p, "null")) {
        value->kind = PRT_JSON_BOOL;
        value->truth = word(p, "true");
        ok = value->truth || word(p, "false") || parse_number(p, value);
    }
    p->depth--;
    if (ok) return value;
    prt_json_free(value);
    return NULL;
}

PrtJson *prt_json_parse(const char *text) {
    Parser parser = {.at = text};
    PrtJson *value = parse_value(&parser);
    blanks(&parser);
    if (!value || !*parser.at) return value;
    prt_json_free(value);
    return NULL;
}

void prt_json_free(PrtJson *value) {
    while (value) {
        PrtJson *next = value->next;
        prt_json_free(value->first);
        free(value->text);
        free(value->name);
        free(value);
        value = next;
    }
}

bool prt_json_is(const PrtJson *value, PrtJsonKind kind) { return value && value->kind == kind; }

const PrtJson *prt_json_get(const PrtJson *object, const char *name) {
    const PrtJson *item;
    if (!prt_json_is(object, PRT_JSON_OBJECT)) return NULL;
    PRT_JSON_EACH(item, object) {
        if (!strcmp(item->name, name)) return item;
    }
    return NULL;
}

const PrtJson *prt_json_at(const PrtJson *list, int index) {
    const PrtJson *item;
    PRT_JSON_EACH(item, list) {
        if (index-- == 0) return item;
    }
    return NULL;
}

int prt_json_size(const PrtJson *list) {
    const PrtJson *item;
    int n = 0;
    PRT_JSON_EACH(item, list) n++;
    return n;
}

const char *prt_json_text(const PrtJson *value) { return prt_json_is(value, PRT_JSON_TEXT) ? value->text : NULL; }

static bool text_room(PrtText *text, size_t more) {
    if (text->n + more + 1 <= text->room) return true;
    size_t room = text->room ? 2 * text->room : 1024;
    while (room < text->n + more + 1) room *= 2;
    char *data = realloc(text->data, room);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->room = room;
    return true;
}

void prt_text_add(PrtText *text, const char *format, ...) {
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    int n = vsnprintf(NULL, 0, format, list);
    if (n >= 0 && !text->failed && text_room(text, (size_t)n)) {
        vsnprintf(text->data + text->n, (size_t)n + 1, format, again);
        text->n += (size_t)n;
    }
    va_end(again);
    va_end(list);
}

void prt_text_quote(PrtText *text, const char *string) {
    prt_text_add(text, "\"");
    for (const unsigned char *c = (const unsigned char *)string; *c; c++) {
        if (*c == '"' || *c == '\\')
            prt_text_add(text, "\\%c", *c);
        else if (*c < 0x20)
            prt_text_add(text, "\\u%04x", *c);
        else
            prt_text_add(text, "%c", *c);
    }
    prt_text_add(text, "\"");
}
