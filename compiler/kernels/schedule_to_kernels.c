/* A role's program: its graphs become entries, one after the other on one timeline.
 *
 * The order of the timeline is that of a step, so that what the forward half saves lives from its making to its last use
 * in the backward half and no longer. With several micro-batches in flight the saved values have a copy for each, and
 * live through both halves. */
#include "kernels/lower.h"

/* Values of the forward half that the backward half reads. */
static void mark_saved(Lowering *l, Graph *graph) {
    for (int i = 0; i < graph->top.nodes.n; i++) {
        Node *node = graph->top.nodes.at[i];
        if (!node->backward) continue;
        for (int k = 0; k < node->n_in; k++) {
            Node *in = node->in[k];
            if (in->backward || in->op == OP_INPUT || node_is_generator(in)) continue;
            Value *value = value_new(l, in);
            value->saved = value->stored = true;
            if (in->op == OP_RESULT) value_new(l, in->in[0])->outs_saved[node_attr(in, "index")->integer] = true;
            if (op_info(in)->lower == LOWER_VIEW) /* the bytes are the operand's */
                for (Node *x = in->in[0]; !x->backward && x->op != OP_INPUT; x = x->in[0]) {
                    value_new(l, x)->saved = value_new(l, x)->stored = true;
                    if (op_info(x)->lower != LOWER_VIEW) break;
                }
        }
    }
}

/* A sum of very many elements into few is made in two: first along the last dimensions, then of those sums. So its
 * rows can be shared out to threads, and the order of additions stays the same for any number of them. */
static void split_reductions(Graph *graph, Region *region) {
    NodeList nodes = {0};
    for (int i = 0; i < region->nodes.n; i++) {
        Node *node = region->nodes.at[i];
        if (node->region) split_reductions(graph, node->region);
        const Node *x = node->n_in ? node->in[0] : NULL;
        bool splits = op_info(node)->lower == LOWER_REDUCE && x->shape.n >= 2 && shape_elements(&node->shape) < 16 &&
                      shape_elements(&x->shape) > 8192 && shape_find(&node->shape, x->shape.dims[x->shape.n - 1]) < 0;
        if (splits) {
            Shape over = {0}, rest = {0};
            int64_t elements = 1;
            for (int k = x->shape.n - 1; k >= 0; k--) {
                Dim *dim = x->shape.dims[k];
                if (shape_find(&node->shape, dim) >= 0) continue;
                bool last = k == 0 || (k == 1 && shape_find(&node->shape, x->shape.dims[0]) >= 0);
                if (elements < 256 && !(last && over.n && !rest.n)) shape_add(&over, dim), elements *= dim->size;
                else shape_add(&rest, dim);
            }
            if (rest.n) {
                Node *first = NEW(graph->arena, Node);
                *first = *node;
                first->id = graph->n_nodes++;
                first->shape = shape_without(&x->shape, &over);
                first->attrs = NEW_N(graph->arena, AttrValue, 6);
                memcpy(first->attrs, node->attrs, sizeof(AttrValue) * (size_t)op_n_attrs(op_info(node)));
                first->attrs[op_attr_index(op_info(node), "over")].dims = over;
                for (int a = 0; graph->mesh && a < graph->mesh->n; a++) /* a cut dimension that stays is cut in the result */
                    if (x->type[a].kind == AXIS_SHARDED && shape_find(&first->shape, x->type[a].dim) >= 0) first->type[a] = x->type[a];
                vec_push(graph->arena, &nodes, first);
                AttrValue *attrs = NEW_N(graph->arena, AttrValue, 6);
                memcpy(attrs, node->attrs, sizeof(AttrValue) * (size_t)op_n_attrs(op_info(node)));
                attrs[op_attr_index(op_info(node), "over")].dims = shape_without(&first->shape, &node->shape);
                node->attrs = attrs;
                Node **in = NEW(graph->arena, Node *);
                in[0] = first;
                node->in = in;
            }
        }
        vec_push(graph->arena, &nodes, node);
    }
    region->nodes = nodes;
}

static void lower_entry(Lowering *l, const char *name, Graph *graph, bool backward) {
    if (!graph) return;
    Entry entry = {.name = intern(graph->session->names, name), .first = *l->position};
    l->graph = graph;
    l->backward = backward;
    l->entry = &entry;
    l->out = &entry.body;
    lower_region(l, &graph->top, backward);
    entry.last = (*l->position)++;
    vec_push(l->arena, &l->program->entries, entry);
}

static void clear_marks(Region *region) {
    for (int i = 0; i < region->params.n; i++) region->params.at[i]->mark = NULL;
    for (int i = 0; i < region->nodes.n; i++) {
        region->nodes.at[i]->mark = NULL;
        if (region->nodes.at[i]->region) clear_marks(region->nodes.at[i]->region);
    }
}

/* What the runtime reads or writes exists even where no kernel touches it. */
static void add_tensors(Lowering *l, Graph *graph) {
    if (!graph) return;
    l->graph = graph;
    clear_marks(&graph->top);
    for (int i = 0; i < graph->tensors.n; i++) {
        Tensor *tensor = graph->tensors.at[i];
        if (tensor->class == CLASS_DATA || tensor->class == CLASS_WEIGHT || tensor->class == CLASS_RESULT) lower_tensor(l, tensor);
    }
}

RoleProgram *schedule_to_kernels(const Step *step, const Mesh *mesh, const Schedule *schedule, int role) {
    Arena *arena = step->session->arena;
    RoleProgram *program = NEW(arena, RoleProgram);
    *program = (RoleProgram){.arena = arena, .session = step->session, .mesh = mesh, .role = role,
                             .scratch_bytes = PRODUCT_SCRATCH_BYTES};
    int position = 0;
    Map tensors = {0};
    Lowering l = {.arena = arena, .program = program, .mesh = mesh, .position = &position, .tensors = &tensors,
                  .flights = schedule_in_flight(schedule, role, 0)};
    if (l.flights < 1) l.flights = 1;
    Graph *graphs[] = {step->init, step->begin, step->count, step->total, step->body, step->update, step->eval, step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        if (graphs[i]) split_reductions(graphs[i], &graphs[i]->top);
        add_tensors(&l, graphs[i]);
    }
    lower_entry(&l, "init", step->init, false);
    lower_entry(&l, "begin", step->begin, false);
    lower_entry(&l, "count", step->count, false);
    lower_entry(&l, "total", step->total, false);
    int first = position;
    mark_saved(&l, step->body);
    lower_entry(&l, "F", step->body, false);
    lower_entry(&l, "B", step->body, true);
    if (l.flights > 1)
        for (int i = 0; i < program->buffers.n; i++) {
            Buffer *buffer = program->buffers.at[i];
            if (buffer->flights == 1 || buffer->persistent) continue;
            lower_touch(&l, buffer, first);
            lower_touch(&l, buffer, position - 1);
        }
    lower_entry(&l, "update", step->update, false);
    lower_entry(&l, "eval", step->eval, false);
    int sampling = position;
    lower_entry(&l, "decode", step->decode, false);
    for (int i = 0; i < program->buffers.n; i++) { /* from token to token */
        if (program->buffers.at[i]->kind != MEM_CACHE) continue;
        lower_touch(&l, program->buffers.at[i], sampling);
        lower_touch(&l, program->buffers.at[i], position - 1);
    }
    return program;
}
