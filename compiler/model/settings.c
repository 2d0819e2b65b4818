/* `--set NAME=VALUE`: values from the command line.
 *
 * Each value is read as the language reads it, from a source named after the option, so that its mistakes are shown
 * like any other. Whoever resolves a name asks here first; what nobody asked for is an error with the nearest name. */
#include "model/resolve.h"

static const Expr *parse_value(Resolver *r, const Setting *setting) {
    const char *path = arena_printf(r->arena, "--set %s", setting->name);
    const char *text = arena_printf(r->arena, "const value = %s\n", setting->value);
    int32_t file = session_add_text(r->s, path, text, strlen(text));
    const Ast *ast = text_to_ast(r->s, file);
    if (ast->statements.n != 1 || ast->statements.at[0]->kind != STMT_CONST || ast->statements.at[0]->bindings.n != 1) {
        if (diag_count(r->s, SEV_ERROR) == 0)
            diag_error(r->s, "P0134", (Span){0}, "`--set %s=%s` has no readable value", setting->name, setting->value);
        return NULL;
    }
    return ast->statements.at[0]->bindings.at[0].value;
}

void settings_parse(Resolver *r) {
    r->setting_values = NEW_N(r->arena, const Expr *, r->n_settings + 1);
    r->setting_owners = NEW_N(r->arena, const char *, r->n_settings + 1);
    for (int i = 0; i < r->n_settings; i++) {
        Setting *setting = &r->settings[i];
        r->setting_values[i] = parse_value(r, setting);
        setting->used = r->setting_values[i] == NULL; /* reported */
        for (int k = 0; k < i; k++) {
            if (r->settings[k].name != setting->name) continue;
            diag_error(r->s, "P0134", (Span){0}, "`--set %s` is given twice: `%s` and `%s`", setting->name,
                       r->settings[k].value, setting->value);
            setting->used = true;
        }
    }
}

const Expr *setting_find(Resolver *r, const char *name, const char *owner) {
    vec_push(r->arena, &r->settable, intern(r->s->names, name));
    for (int i = 0; i < r->n_settings; i++) {
        if (strcmp(r->settings[i].name, name) != 0 || r->setting_values[i] == NULL) continue;
        if (r->setting_owners[i] != NULL && strcmp(r->setting_owners[i], owner) != 0) {
            diag_error(r->s, "P0134", (Span){0}, "`--set %s` is ambiguous: it names %s and %s", name,
                       r->setting_owners[i], owner);
            return NULL;
        }
        r->setting_owners[i] = owner;
        r->settings[i].used = true;
        return r->setting_values[i];
    }
    return NULL;
}

void settings_finish(Resolver *r) {
    for (int i = 0; i < r->n_settings; i++) {
        const Setting *setting = &r->settings[i];
        if (setting->used) continue;
        Diag *d = diag_error(r->s, "P0133", (Span){0}, "`--set %s=%s` sets nothing: there is no `%s`", setting->name,
                             setting->value, setting->name);
        Name near = nearest_name(setting->name, r->settable.at, r->settable.n);
        if (near != NULL)
            diag_help(d, "did you mean `%s`?", near);
        else
            diag_help(
                d,
                "properties of `train`, dimensions of its model, `mesh.AXIS`, `microbatch` and constants can be set");
    }
}
