/* Clusters: `cluster NAME { ... }` to machines, links and the checks that buyers make by hand.
 *
 * In: the block. Out: a Cluster with its groups of equal machines (they may differ), the links within and between them,
 * and, where stated, the width of a chassis in slots and the power budget of a machine. What a stated check needs and
 * no one has stated is said, never guessed. */
#include <math.h>

#include "model/resolve.h"

static const char *const cluster_properties[] = {"nodes", "link", "chassis", "power"};
enum { N_PROPERTIES = sizeof cluster_properties / sizeof cluster_properties[0] };

typedef struct ClusterReader {
    Resolver *r;
    FileScope *scope;
    Cluster *cluster;
    Span chassis_span, power_span;
    bool broken; /* a mistake in `nodes` was reported: the number of ranks means nothing */
} ClusterReader;

/* ---- nodes 2 of 8 * gpus.A100_SXM_80GB --------------------------------------------------------------------------- */

static const Gpu *find_gpu(ClusterReader *c, const Expr *e) {
    FileScope *found = NULL;
    const Stmt *stmt = scope_find(c->r, c->scope, e, STMT_GPU, &found);
    return stmt == NULL ? NULL : map_get(&found->gpus, stmt->name);
}

static void nodes_refuse(ClusterReader *c, const Property *p) {
    Diag *d = diag_error(c->r->s, "P0132", p->n > 1 ? p->items[1]->span : p->name_span, "`nodes` cannot be read");
    if (p->n == 3) help_word(d, p->items[1], "of");
    diag_help(d, "write `nodes 2 of 8 * gpus.A100_SXM_80GB`: machines, GPUs in each, and which");
    c->broken = true;
}

static void read_nodes(ClusterReader *c, const Property *p) {
    NodeGroup group = {.nodes = 1, .gpus = 1, .span = p->span};
    const Expr *what = p->n > 0 ? p->items[p->n - 1] : NULL;
    bool counted = p->n == 3 && expr_is_word(p->items[1], "of");
    if (!counted && p->n != 1) {
        nodes_refuse(c, p);
        return;
    }
    bool ok = !counted || take_integer(c->r, c->scope, "nodes", p->items[0], 1, &group.nodes);
    if (what->kind == EXPR_BINARY && what->op == BIN_MUL) {
        ok &= take_integer(c->r, c->scope, "GPUs in a node", what->args.at[0], 1, &group.gpus);
        what = what->args.at[1];
    }
    group.gpu = find_gpu(c, what);
    if (!ok || group.gpu == NULL) {
        c->broken = true;
        return;
    }
    enum { MOST_NODES = 1 << 20, MOST_GPUS = 1 << 10 };
    if (group.nodes > MOST_NODES || group.gpus > MOST_GPUS) {
        diag_error(c->r->s, "P0129", p->span, "at most %d machines of at most %d GPUs are possible", (int)MOST_NODES,
                   (int)MOST_GPUS);
        c->broken = true;
        return;
    }
    vec_push(c->r->arena, &c->cluster->groups, group);
    c->cluster->ranks += group.nodes * group.gpus;
}

/* ---- link within node nvlink 300 GB/s [5 us] ---------------------------------------------------- */

static void link_refuse(ClusterReader *c, Span span, const char *why) {
    Diag *d = diag_error(c->r->s, "P0132", span, "%s", why);
    diag_help(d, "write `link within node nvlink 300 GB/s` or `link between nodes infiniband 200 Gb/s`; a latency may "
                 "follow: `5 us`");
}

static void check_link_twice(ClusterReader *c, const Link *link) {
    for (int i = 0; i < c->cluster->links.n; i++) {
        const Link *other = &c->cluster->links.at[i];
        if (other->where != link->where || other->kind != link->kind) continue;
        Diag *d = diag_error(c->r->s, "P0131", link->span, "link `%s` %s is stated twice", link->kind, link->where);
        diag_note(d, other->span, "first here");
        return;
    }
}

static const char *const link_places[] = {"within", "between"}, *const link_nodes[] = {"node", "nodes"},
                         *const link_kinds[] = {"nvlink", "nvswitch", "infinity_fabric", "pcie", "ethernet",
                                                "roce",   "efa",      "infiniband"};

/* Takes the next word when it is one of `words`. A near miss gets its suggestion. */
static Name take_word(ClusterReader *c, const Property *p, int at, const char *const *words, int n, const char *why) {
    const Expr *e = at < p->n ? p->items[at] : NULL;
    for (int i = 0; e != NULL && i < n; i++)
        if (expr_is_word(e, words[i])) return e->name;
    if (e != NULL && e->kind == EXPR_ERROR) return NULL;
    Name near = e != NULL && e->kind == EXPR_NAME ? nearest_name(e->name, words, n) : NULL;
    if (near == NULL) {
        link_refuse(c, e != NULL ? e->span : p->name_span, why);
        return NULL;
    }
    Diag *d = diag_error(c->r->s, "P0132", e->span, "%s", why);
    diag_help(d, "did you mean `%s`?", near);
    diag_fix(d, e->span, near);
    return NULL;
}

static void read_link(ClusterReader *c, const Property *p) {
    Link link = {.latency = NAN, .span = p->span};
    int at = 0;
    link.where = take_word(c, p, at++, link_places, 2, "a link is `within` a node or `between` nodes");
    if (link.where == NULL || take_word(c, p, at++, link_nodes, 2, "`node` or `nodes` is missing") == NULL) return;
    link.kind = take_word(
        c, p, at++, link_kinds, (int)(sizeof link_kinds / sizeof link_kinds[0]),
        "the link is of no known kind: nvlink, nvswitch, infinity_fabric, pcie, ethernet, roce, efa or infiniband");
    if (link.kind == NULL) return;
    if (at >= p->n) {
        link_refuse(c, p->name_span, "the link has no rate");
        return;
    }
    if (!take_unit(c->r, c->scope, "link", p->items[at++], UNIT_RATE, &link.rate)) return;
    if (at < p->n && expr_is_word(p->items[at], "latency")) at++;
    if (at < p->n && !take_unit(c->r, c->scope, "latency", p->items[at++], UNIT_SECONDS, &link.latency)) return;
    if (at < p->n) {
        link_refuse(c, p->items[at]->span, "nothing more can follow");
        return;
    }
    if (!(link.rate > 0)) {
        diag_error(c->r->s, "P0129", p->span, "the rate of a link must be more than 0");
        return;
    }
    check_link_twice(c, &link);
    vec_push(c->r->arena, &c->cluster->links, link);
}

/* ---- the buyers' checks ------------------------------------------------------------------------- */

static void say_unknown(ClusterReader *c, const NodeGroup *group, Span span, const char *property, const char *check) {
    Diag *d = diag_note_alone(c->r->s, "P0605", span, "%s is not checked: `%s` of `%s` is unknown", check, property,
                              group->gpu->name);
    diag_note(d, group->gpu->span, "the GPU is described here");
    diag_help(d, "state `%s` there, or leave the check out", property);
}

static void check_chassis(ClusterReader *c, const NodeGroup *group) {
    double have = c->cluster->chassis_slots, need = (double)group->gpus * group->gpu->slots;
    if (isnan(have)) return;
    if (isnan(need)) {
        say_unknown(c, group, c->chassis_span, "slots", "the chassis");
        return;
    }
    if (need <= have) return;
    Diag *d = diag_error(c->r->s, "P0603", group->span, "%lld GPUs of %g slots need %g, and the chassis has %g",
                         (long long)group->gpus, group->gpu->slots, need, have);
    diag_note(d, c->chassis_span, "the chassis is stated here");
    if (group->gpu->slots <= have)
        diag_help(d, "%lld of them fit in a machine", (long long)floor(have / group->gpu->slots));
}

static void check_power(ClusterReader *c, const NodeGroup *group) {
    double have = c->cluster->node_power, need = (double)group->gpus * group->gpu->tdp;
    if (isnan(have)) return;
    if (isnan(need)) {
        say_unknown(c, group, c->power_span, "tdp", "the power budget");
        return;
    }
    if (need <= have) return;
    Diag *d = diag_error(c->r->s, "P0604", group->span, "%lld GPUs of %g W draw %g W, and the machine has %g W",
                         (long long)group->gpus, group->gpu->tdp, need, have);
    diag_note(d, c->power_span, "the power budget is stated here");
    if (group->gpu->tdp <= have)
        diag_help(d, "%lld of them stay within it, before anything else in the machine",
                  (long long)floor(have / group->gpu->tdp));
}

/* ---- the block ---------------------------------------------------------------------------------- */

static void read_property(ClusterReader *c, Map *seen, Property *p) {
    if (strcmp(p->name, "nodes") == 0)
        read_nodes(c, p);
    else if (strcmp(p->name, "link") == 0)
        read_link(c, p);
    else if (strcmp(p->name, "chassis") == 0) {
        if (p->n == 2 && expr_is_word(p->items[1], "slots")) p->n = 1;
        if (property_once(c->r, seen, p) && property_single_and(c->r, p, "slots") &&
            take_number(c->r, c->scope, "chassis", p->items[0], &c->cluster->chassis_slots))
            c->chassis_span = p->span;
    } else if (strcmp(p->name, "power") == 0) {
        if (property_once(c->r, seen, p) && property_single(c->r, p) &&
            take_unit(c->r, c->scope, "power", p->items[0], UNIT_WATTS, &c->cluster->node_power))
            c->power_span = p->span;
    } else {
        property_unknown(c->r, "cluster", p, cluster_properties, N_PROPERTIES);
        c->broken = true; /* a misspelt `nodes` must not also be a missing one */
    }
}

Cluster *cluster_resolve(Resolver *r, FileScope *scope, const Stmt *stmt) {
    Cluster *cluster = NEW(r->arena, Cluster);
    cluster->name =
        scope->is_main ? stmt->name : intern(r->s->names, arena_printf(r->arena, "%s.%s", scope->stem, stmt->name));
    cluster->span = stmt->name_span;
    cluster->chassis_slots = cluster->node_power = NAN;
    ClusterReader c = {.r = r, .scope = scope, .cluster = cluster};
    Map seen = {0};
    for (int i = 0; i < stmt->body.n; i++) {
        Property p;
        if (property_read(r->arena, stmt->body.at[i], &p))
            read_property(&c, &seen, &p);
        else
            block_refuse(r, "cluster", stmt->body.at[i]);
    }
    if (c.broken || (r->incomplete && scope->is_main && cluster->groups.n == 0)) {
        cluster->ranks = 0; /* unknown: nothing is checked against it */
        return cluster;
    }
    if (cluster->groups.n == 0) {
        Diag *d = diag_error(r->s, "P0606", stmt->name_span, "cluster `%s` has no nodes", stmt->name);
        diag_help(d, "write `nodes 2 of 8 * gpus.A100_SXM_80GB` in it");
    }
    for (int i = 0; i < cluster->groups.n; i++) {
        check_chassis(&c, &cluster->groups.at[i]);
        check_power(&c, &cluster->groups.at[i]);
    }
    return cluster;
}
