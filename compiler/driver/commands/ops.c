/* plc ops: the operators of the language from the operator table, or one in full. */
#include "driver/options.h"
#include "ir/op.h"

#include <cjson/cJSON.h>
#include <math.h>

static bool is_shown(const OpInfo *info) { return info && info->language; }

/* "dot(a, b, over = ...)" */
static const char *signature(Session *s, const OpInfo *info) {
    Text text = {.arena = s->arena};
    text_printf(&text, "%s(", info->name);
    const char *comma = "";
    for (int i = 0; i < 6 && info->in[i]; i++, comma = ", ") text_printf(&text, "%s%s", comma, info->in[i]);
    if (info->variadic) {
        text_printf(&text, "%s%s...", comma, info->variadic);
        comma = ", ";
    }
    for (int i = 0; i < 6 && info->attrs[i].name; i++, comma = ", ") {
        const AttrInfo *attr = &info->attrs[i];
        if (attr->hidden) break; /* they come last */
        bool is_over = !strcmp(attr->name, "over");
        text_printf(&text, "%s%s", comma, attr->name);
        if (is_over)
            text_puts(&text, attr->kind == ATTR_DIM ? " DIM" : " (DIMS)");
        else if (attr->kind == ATTR_BOOL && !isnan(attr->standard))
            text_printf(&text, " = %s", attr->standard ? "true" : "false");
        else if ((attr->kind == ATTR_INT || attr->kind == ATTR_FLOAT) && !isnan(attr->standard))
            text_printf(&text, " = %g", attr->standard);
    }
    text_puts(&text, ")");
    return text.at;
}

static void print_json(Session *s, const OpInfo *info) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", info->name);
    cJSON_AddStringToObject(object, "signature", signature(s, info));
    cJSON_AddStringToObject(object, "doc", info->doc ? info->doc : "");
    cJSON_AddStringToObject(object, "dimensions", info->dims ? info->dims : "");
    cJSON_AddStringToObject(object, "family", info->family ? info->family : "");
    cJSON_AddBoolToObject(object, "gradient", info->grad || info->expand);
    char *line = cJSON_PrintUnformatted(object);
    CHECK(line);
    puts(line);
    cJSON_free(line);
    cJSON_Delete(object);
}

static void print_full(Session *s, const OpInfo *info) {
    printf("%s\n    %s\n\n", signature(s, info), info->doc ? info->doc : "");
    if (info->dims) printf("    dimensions  %s\n", info->dims);
    if (info->family) printf("    family      %s\n", info->family);
    if (info->expand)
        puts("    built from  simpler operators, which carry its gradient");
    else
        printf("    gradient    %s\n", info->grad ? "yes" : "none");
    if (!info->language) puts("    not callable from the language: passes of the compiler make it");
}

static int unknown_op(Session *s, const char *name) {
    VEC(Name) names = {0};
    for (int i = 0; i < OP_COUNT; i++)
        if (op_table[i]) vec_push(s->arena, &names, intern(s->names, op_table[i]->name));
    Name near = nearest_name(intern(s->names, name), names.at, names.n);
    fprintf(stderr, "plc: no operator is called `%s`\n", name);
    if (near)
        fprintf(stderr, "help: did you mean `%s`?\n", near);
    else
        fputs("help: `plc ops` lists them\n", stderr);
    return EXIT_USAGE;
}

int command_ops(Session *s, const Options *options) {
    if (options->n_arguments) {
        Op op = op_find(options->arguments[0]);
        if (op == OP_COUNT || !op_table[op]) return unknown_op(s, options->arguments[0]);
        if (options->json)
            print_json(s, op_table[op]);
        else
            print_full(s, op_table[op]);
        return EXIT_DONE;
    }
    int width = 0;
    for (int i = 0; i < OP_COUNT; i++) {
        int length = is_shown(op_table[i]) ? (int)strlen(signature(s, op_table[i])) : 0;
        if (length > width) width = length;
    }
    for (int i = 0; i < OP_COUNT; i++) {
        if (!is_shown(op_table[i])) continue;
        if (options->json)
            print_json(s, op_table[i]);
        else
            printf("%-*s  %s\n", width, signature(s, op_table[i]), op_table[i]->doc ? op_table[i]->doc : "");
    }
    return EXIT_DONE;
}
