/* Fusion: which nodes become one kernel.
 *
 * A loop unit has a domain (dimensions) and possibly reduced dimensions, its inner ones. A node joins the units of its
 * operands when they fit: a map over the whole domain, a map over the rows of a unit that reduces, or a reduction of
 * the domain. Units are merged when a node links several. Joining must not make a cycle: no kernel may have to run both
 * after and before the unit. Afterwards cheap values that would be stored for few readers are inlined there instead. */
#include "kernels/lower.h"

bool node_in_loop(const Node *node) {
    LowerKind lower = op_info(node)->lower;
    return lower == LOWER_MAP || lower == LOWER_REDUCE || lower_is_gather(lower) || lower == LOWER_CACHE;
}

static bool is_random(const Node *node) { return node->op == OP_RANDOM_NORMAL || node->op == OP_RANDOM_UNIFORM; }

/* Made from nothing but scalars and indices: computed wherever it is used. */
bool node_is_generator(const Node *node) {
    if (op_info(node)->lower != LOWER_MAP) return false;
    if (node->n_in == 0 || is_random(node)) return true;
    return (node->op == OP_BROADCAST || node->op == OP_CAST) && node_is_generator(node->in[0]);
}

/* ---- dependencies between units ----------------------------------------------------------------- */

typedef struct Fusion {
    Lowering *l;
    Region *region;
    Phase phase;
    UnitList units;
} Fusion;

static Unit *unit_of(const Node *node) {
    const Value *value = node->mark;
    return value ? value->unit : NULL;
}

/* Whether `from` has to run after a unit marked with the stamp. Units seen under this stamp are not looked at again. */
static bool depends_on_marked(const Fusion *f, Unit *from) {
    if (from->seen == f->l->stamp) return false;
    from->seen = f->l->stamp;
    for (int i = 0; i < from->nodes.n; i++)
        for (int k = 0; k < from->nodes.at[i]->n_in; k++) {
            Unit *unit = unit_of(from->nodes.at[i]->in[k]);
            if (!unit || unit == from) continue;
            if (unit->mark == f->l->stamp || depends_on_marked(f, unit)) return true;
        }
    return false;
}

/* Whether the units marked with the stamp, and `node`, can become one kernel: nothing in between may depend on them. */
static bool can_merge(const Fusion *f, Unit *const *units, int n, const Node *node) {
    for (int u = 0; u <= n; u++) {
        const NodeList *nodes = u < n ? &units[u]->nodes : NULL;
        for (int i = 0; i < (nodes ? nodes->n : 1); i++) {
            const Node *member = nodes ? nodes->at[i] : node;
            for (int k = 0; k < member->n_in; k++) {
                Unit *unit = unit_of(member->in[k]);
                if (unit && unit->mark != f->l->stamp && depends_on_marked(f, unit)) return false;
            }
        }
    }
    return true;
}

/* ---- fitting ------------------------------------------------------------------------------------ */

static bool same_dims(const Shape *a, const Shape *b) { return a->n == b->n && shape_contains(a, b); }

static Shape node_domain(const Node *node) {
    return op_info(node)->lower == LOWER_REDUCE ? node->in[0]->shape : node->shape;
}

/* Row-wise reductions stream along memory; column-wise ones run down it, and do not share a kernel with maps that are
 * better run along it. */
static bool is_column_reduction(const Shape *domain, const Shape *reduced) {
    return reduced->n && domain->n && shape_find(reduced, domain->dims[domain->n - 1]) < 0;
}

/* A reduction of everything is one row, and one row runs on one thread: only what is small may share it. */
static bool is_serial(const Shape *domain, const Shape *reduced) {
    return reduced->n == domain->n && domain->n && shape_elements(domain) > 4096;
}

/* The node whose shape and types the iteration space is. */
static const Node *domain_node(const Node *node) { return op_info(node)->lower == LOWER_REDUCE ? node->in[0] : node; }

/* Whether the rank holds the same part of each dimension that both have: a partial value of whole rows and a cut one
 * are not of one loop. */
static bool same_parts(const Lowering *l, const Node *a, const Node *b) {
    for (int i = 0; i < a->shape.n; i++)
        if (shape_find(&b->shape, a->shape.dims[i]) >= 0 &&
            lower_extent(l, a, a->shape.dims[i]) != lower_extent(l, b, a->shape.dims[i]))
            return false;
    return true;
}

static bool fits(const Lowering *l, const Unit *unit, const Node *node) {
    if (unit->kind != UNIT_LOOP || !same_parts(l, unit->like, domain_node(node))) return false;
    Shape domain = node_domain(node);
    if (op_info(node)->lower == LOWER_REDUCE) {
        Shape reduced = shape_without(&domain, &node->shape);
        if (!same_dims(&unit->domain, &domain)) return false;
        if (unit->reduced.n) return same_dims(&unit->reduced, &reduced);
        return !is_serial(&domain, &reduced) && !is_column_reduction(&unit->domain, &reduced);
    }
    if (same_dims(&unit->domain, &domain))
        return !is_column_reduction(&unit->domain, &unit->reduced) && !is_serial(&domain, &unit->reduced);
    if (!unit->reduced.n) return false;
    Shape rows = shape_without(&unit->domain, &unit->reduced);
    return same_dims(&rows, &domain);
}

static bool same_space(const Lowering *l, const Unit *a, const Unit *b) {
    if (!same_dims(&a->domain, &b->domain) || !same_parts(l, a->like, b->like)) return false;
    if (a->reduced.n && b->reduced.n) return same_dims(&a->reduced, &b->reduced);
    const Shape *reduced = a->reduced.n ? &a->reduced : &b->reduced;
    return !is_column_reduction(&a->domain, reduced);
}

static Unit *unit_new(Fusion *f, UnitKind kind, Node *node) {
    Unit *unit = NEW(f->l->arena, Unit);
    *unit = (Unit){.kind = kind, .id = node->id, .domain = node_domain(node), .like = domain_node(node)};
    if (kind == UNIT_LOOP && op_info(node)->lower == LOWER_REDUCE)
        unit->reduced = shape_without(&unit->domain, &node->shape);
    vec_push(f->l->arena, &f->units, unit);
    return unit;
}

static void unit_add(Fusion *f, Unit *unit, Node *node) {
    vec_push(f->l->arena, &unit->nodes, node);
    value_of(node)->unit = unit;
    if (op_info(node)->lower == LOWER_REDUCE) unit->reduced = shape_without(&unit->domain, &node->shape);
}

static void unit_merge(Fusion *f, Unit *into, Unit *from) {
    for (int i = 0; i < from->nodes.n; i++) unit_add(f, into, from->nodes.at[i]);
    from->merged = true;
    from->nodes.n = 0;
}

static void place_loop_node(Fusion *f, Node *node) {
    Unit *joined[16];
    int n = 0;
    for (int k = 0; k < node->n_in && n < 16; k++) {
        Unit *unit = unit_of(node->in[k]);
        if (!unit || !fits(f->l, unit, node)) continue;
        bool known = false, apart = false;
        for (int i = 0; i < n; i++) known |= joined[i] == unit, apart |= !same_space(f->l, joined[i], unit);
        if (known || apart) continue;
        joined[n++] = unit;
        f->l->stamp++;
        for (int i = 0; i < n; i++) joined[i]->mark = f->l->stamp;
        if (!can_merge(f, joined, n, node)) n--;
    }
    if (n == 0) {
        unit_add(f, unit_new(f, UNIT_LOOP, node), node);
        return;
    }
    for (int i = 1; i < n; i++) unit_merge(f, joined[0], joined[i]);
    unit_add(f, joined[0], node);
}

/* ---- what is stored, what is inlined ------------------------------------------------------------ */

typedef struct Uses {
    int loops, others; /* units that read it */
} Uses;

/* Loops can compute what they read; everything else reads memory. */
static void count_use(const Node *operand, const Unit *reader) {
    Value *value = operand->mark;
    if (value && value->unit != reader && reader->kind != UNIT_LOOP) value->stored = true;
}

/* For each value of the region, the nodes of units that read it. */
static void list_readers(Fusion *f) {
    for (int i = 0; i < f->region->nodes.n; i++) {
        Value *value = f->region->nodes.at[i]->mark;
        if (value) value->readers.n = 0; /* they were those of the other half */
    }
    for (int u = 0; u < f->units.n; u++) {
        const NodeList *nodes = &f->units.at[u]->nodes;
        for (int i = 0; i < nodes->n; i++)
            for (int k = 0; k < nodes->at[i]->n_in; k++) {
                Value *value = nodes->at[i]->in[k]->mark;
                if (value) vec_push(f->l->arena, &value->readers, nodes->at[i]);
            }
    }
}

/* Readers of a value outside its unit. */
static Uses uses_of(Fusion *f, const Value *value) {
    Uses uses = {0};
    f->l->stamp++;
    for (int i = 0; i < value->readers.n; i++) {
        Unit *unit = unit_of(value->readers.at[i]);
        if (!unit || unit == value->unit || unit->seen == f->l->stamp) continue; /* no unit: it was inlined */
        unit->seen = f->l->stamp;
        if (unit->kind == UNIT_LOOP)
            uses.loops++;
        else
            uses.others++;
    }
    return uses;
}

/* Whether every reader runs over all the value's dimensions. */
static bool readers_cover(const Fusion *f, const Value *value) {
    for (int i = 0; i < value->readers.n; i++) {
        const Unit *unit = unit_of(value->readers.at[i]);
        if (unit && unit != value->unit &&
            !(unit->kind == UNIT_LOOP && shape_contains(&unit->domain, &value->node->shape) &&
              same_parts(f->l, unit->like, value->node)))
            return false;
    }
    return true;
}

/* Distinct stored values that computing this one reads, through what is inlined; `work` adds up its operators. */
static void count_leaves(const Node *node, Map *leaves, Arena *arena, double *work) {
    *work += op_info(node)->flops > 0 ? op_info(node)->flops : 1;
    for (int k = 0; k < node->n_in; k++) {
        Value *value = node->in[k]->mark;
        if (value && value->generator)
            *work += is_random(node->in[k]) ? 20 : 0;
        else if (value && value->inlined)
            count_leaves(node->in[k], leaves, arena, work);
        else
            map_put(arena, leaves, node->in[k], node->in[k]);
    }
}

/* A value that only loops read is computed again in each of them when that moves no more memory than storing it. */
static void decide_inline(Fusion *f, Node *node) {
    Value *value = value_of(node);
    if (op_info(node)->lower != LOWER_MAP || value->stored || value->generator) return;
    Uses uses = uses_of(f, value);
    if (uses.loops == 0 || uses.others || !readers_cover(f, value)) return;
    Map leaves = {0};
    double work = 0;
    count_leaves(node, &leaves, f->l->arena, &work);
    for (int i = 0; i < leaves.n; i++) { /* a row value of this unit would have to be stored in turn */
        const Node *leaf = leaves.entries[i].key;
        if (unit_of(leaf) == value->unit && value->unit->nodes.n > 1 && !value_of(leaf)->stored) return;
    }
    int again = uses.loops * leaves.n, store = 1 + uses.loops + leaves.n;
    if (again > store || work * uses.loops > 30) return;
    value->inlined = true;
    Unit *unit = value->unit;
    int kept = 0;
    for (int i = 0; i < unit->nodes.n; i++)
        if (unit->nodes.at[i] != node) unit->nodes.at[kept++] = unit->nodes.at[i];
    unit->nodes.n = kept;
    if (kept == 0) unit->merged = true;
    value->unit = NULL;
}

static void mark_stored(Fusion *f) {
    for (int u = 0; u < f->units.n; u++) {
        Unit *unit = f->units.at[u];
        if (unit->merged) continue;
        for (int i = 0; i < unit->nodes.n; i++)
            for (int k = 0; k < unit->nodes.at[i]->n_in; k++) count_use(unit->nodes.at[i]->in[k], unit);
    }
    for (int i = 0; i < f->region->results.n; i++) value_of(f->region->results.at[i])->stored = true;
    if (!f->region->parent)
        for (int i = 0; i < f->l->graph->outputs.n; i++) {
            Value *value = f->l->graph->outputs.at[i].value->mark;
            if (value) value->stored = true;
        }
}

/* After inlining: what loops read from another unit has to be stored. */
static void store_crossing(Fusion *f, const Node *node, const Unit *reader) {
    for (int k = 0; k < node->n_in; k++) {
        Value *value = node->in[k]->mark;
        if (!value) continue;
        if (value->inlined || value->generator)
            store_crossing(f, node->in[k], reader);
        else if (value->unit != reader)
            value->stored = true;
    }
}

/* ---- order -------------------------------------------------------------------------------------- */

static void visit_inputs(Fusion *f, const Node *node, Unit *unit, UnitList *order);

static void visit(Fusion *f, Unit *unit, UnitList *order) {
    if (unit->done) return;
    unit->done = true;
    for (int i = 0; i < unit->nodes.n; i++) visit_inputs(f, unit->nodes.at[i], unit, order);
    vec_push(f->l->arena, order, unit);
}

static void visit_inputs(Fusion *f, const Node *node, Unit *unit, UnitList *order) {
    for (int k = 0; k < node->n_in; k++) {
        Value *value = node->in[k]->mark;
        if (!value) continue;
        if (value->inlined || value->generator) visit_inputs(f, node->in[k], unit, order);
        if (value->unit && value->unit != unit) visit(f, value->unit, order);
    }
}

UnitList region_to_units(Lowering *l, Region *region, Phase phase) {
    Fusion f = {.l = l, .region = region, .phase = phase};
    for (int i = 0; i < region->nodes.n; i++) {
        Node *node = region->nodes.at[i];
        if (!region->parent && node_phase(node) != phase && node->op != OP_INPUT) continue;
        Value *value = value_new(l, node);
        value->generator = node_is_generator(node);
        if (node->op == OP_INPUT || value->generator || node->op == OP_LAYER_INDEX) continue;
        if (node_in_loop(node))
            place_loop_node(&f, node);
        else
            unit_add(&f, unit_new(&f, UNIT_NODE, node), node);
    }
    mark_stored(&f);
    list_readers(&f);
    for (int i = region->nodes.n - 1; i >= 0; i--) {
        Node *node = region->nodes.at[i];
        if (node->mark && value_of(node)->unit && node_in_loop(node) && !value_of(node)->saved) decide_inline(&f, node);
    }
    for (int u = 0; u < f.units.n; u++)
        for (int i = 0; i < f.units.at[u]->nodes.n; i++) store_crossing(&f, f.units.at[u]->nodes.at[i], f.units.at[u]);
    /* A generator that a product, a result or an output reads is stored after all, by a unit of its own. */
    for (int i = 0; i < region->nodes.n; i++) {
        Node *node = region->nodes.at[i];
        if (!node->mark || !value_of(node)->generator || !value_of(node)->stored || value_of(node)->unit) continue;
        unit_add(&f, unit_new(&f, UNIT_LOOP, node), node);
    }
    UnitList order = {0};
    for (int u = 0; u < f.units.n; u++)
        if (!f.units.at[u]->merged) visit(&f, f.units.at[u], &order);
    return order;
}
