/* A role's program: its graphs become entries, one after the other on one timeline.
 *
 * The order of the timeline is that of a step, so that what the forward half saves lives from its making to its last
 * use in the backward half and no longer. With several micro-batches in flight the saved values have a copy for each,
 * and live through both halves. */
#include "kernels/lower.h"

/* The value has to last from its action to the end of another. */
static void save_value(Lowering *l, Node *node, Phase until) {
    Value *value = value_new(l, node);
    int copies = l->copies[node_phase(node)][until];
    value->saved = value->stored = true;
    if (until > value->until) value->until = until;
    if (copies > value->copies) value->copies = copies;
    if (node->op != OP_RESULT) return;
    int *out = &value_new(l, node->in[0])->outs_copies[node_attr(node, "index")->integer];
    if (copies > *out) *out = copies;
}

/* Values that a later action of the micro-batch reads. */
static void mark_saved(Lowering *l, Graph *graph) {
    for (int i = 0; i < graph->top.nodes.n; i++) {
        const Node *node = graph->top.nodes.at[i];
        for (int k = 0; k < node->n_in; k++) {
            Phase until = node_phase(node);
            Node *in = node->in[k];
            if (node_phase(in) >= until && in->op != OP_INPUT) continue;
            if (in->op != OP_INPUT && !node_is_generator(in)) save_value(l, in, until);
            while (op_info(in)->lower == LOWER_VIEW) { /* the bytes are the operand's */
                in = in->in[0];
                if (in->op != OP_INPUT && node_phase(in) < until) save_value(l, in, until);
            }
            if (in->op == OP_INPUT && in->tensor->class == CLASS_STAGE && !in->tensor->flights && until == PHASE_W)
                in->tensor->flights = FLIGHTS_DEFERRED; /* the next gradient comes before BW of this one */
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
                if (elements < 256 && !(last && over.n && !rest.n))
                    shape_add(&over, dim), elements *= dim->size;
                else
                    shape_add(&rest, dim);
            }
            if (rest.n) {
                Node *first = NEW(graph->arena, Node);
                *first = *node;
                first->id = graph->n_nodes++;
                first->shape = shape_without(&x->shape, &over);
                first->attrs = NEW_N(graph->arena, AttrValue, 6);
                memcpy(first->attrs, node->attrs, sizeof(AttrValue) * (size_t)op_n_attrs(op_info(node)));
                first->attrs[op_attr_index(op_info(node), "over")].dims = over;
                for (int a = 0; graph->mesh && a < graph->mesh->n;
                     a++) /* a cut dimension that stays is cut in the result */
                    if (x->type[a].kind == AXIS_SHARDED && shape_find(&first->shape, x->type[a].dim) >= 0)
                        first->type[a] = x->type[a];
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

/* ---- transfers between stages ------------------------------------------------------------------- */

static void lower_handover(Lowering *l, const Transfer *t, int axis, HandoverKind kind) {
    static const char *const words[] = {"send to", "receive from", "wait for"};
    Kernel *kernel = lower_kernel(l, KERNEL_TRANSFER,
                                  kind == HANDOVER_SEND   ? "send"
                                  : kind == HANDOVER_RECV ? "recv"
                                                          : "wait",
                                  t->span);
    Handover *h = kernel->handover = NEW(l->arena, Handover);
    Buffer *buffer = lower_tensor(l, t->tensor);
    *h = (Handover){.kind = kind,
                    .axis = axis,
                    .peer = t->peer,
                    .channel = t->channel,
                    .value = t->value,
                    .depth = l->entry_drains || kind == HANDOVER_RECV ? 1 : buffer->flights,
                    .bytes = buffer->bytes};
    h->where =
        arena_printf(l->arena, "%s: %s stage %d", session_where(l->program->session, t->span), words[kind], t->peer);
    if (kind != HANDOVER_WAIT) kernel_add_ref(l, kernel, (BufferRef){.buffer = buffer});
}

static bool transfers(const Step *step, const Transfer *t, TransferWhen when, int chunk) {
    bool once = when == TRANSFER_GRADIENT || when == TRANSFER_WEIGHT;
    return step->n_stages && t->when == when && (once || t->chunk == chunk);
}

static void lower_handovers(Lowering *l, const Step *step, TransferWhen when, int chunk, HandoverKind kind) {
    for (int i = 0; i < step->transfers.n; i++) {
        const Transfer *t = &step->transfers.at[i];
        if (transfers(step, t, when, chunk) && t->sends == (kind != HANDOVER_RECV))
            lower_handover(l, t, step->stage_axis, kind);
    }
}

/* ---- entries ------------------------------------------------------------------------------------ */

static Name entry_name(const Lowering *l, const char *name, int chunk) {
    return intern(l->program->session->names, chunk ? arena_printf(l->arena, "%s.%d", name, chunk) : name);
}

static Entry *open_entry(Lowering *l, const char *name, int chunk) {
    Entry *entry = NEW(l->arena, Entry);
    *entry = (Entry){.name = entry_name(l, name, chunk), .first = *l->position};
    l->entry = entry;
    l->out = &entry->body;
    return entry;
}

static void close_entry(Lowering *l, Entry *entry) {
    entry->last = (*l->position)++;
    if (entry->body.n) vec_push(l->arena, &l->program->entries, *entry);
}

static void lower_graph(Lowering *l, Graph *graph, Phase phase) {
    if (!graph) return;
    l->graph = graph;
    l->phase = phase;
    lower_region(l, &graph->top, phase);
}

static void lower_entry(Lowering *l, const char *name, Graph *graph, Phase phase) {
    if (!graph) return;
    Entry *entry = open_entry(l, name, 0);
    lower_graph(l, graph, phase);
    entry->last = (*l->position)++;
    vec_push(l->arena, &l->program->entries, *entry);
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
        if (tensor->class == CLASS_DATA || tensor->class == CLASS_WEIGHT || tensor->class == CLASS_RESULT)
            lower_tensor(l, tensor);
    }
}

/* What lives between the actions of a step, in whatever order they run. */
static void keep_between(Lowering *l, int first, bool all) {
    for (int i = 0; i < l->program->buffers.n; i++) {
        Buffer *buffer = l->program->buffers.at[i];
        bool handed = buffer->tensor && buffer->tensor->class == CLASS_STAGE;
        bool between = buffer->flights > 1 || handed || (all && buffer->kind == MEM_ACTIVATION);
        if (buffer->persistent || !between || buffer->last < first) continue;
        lower_touch(l, buffer, first);
        lower_touch(l, buffer, *l->position - 1);
    }
}

/* How many micro-batches of a chunk are between the start of one action and the end of another. */
static void count_copies(Lowering *l, const Schedule *schedule, int role, int chunk) {
    for (int from = 0; from < PHASE_COUNT; from++)
        for (int to = from; to < PHASE_COUNT; to++)
            l->copies[from][to] = schedule_copies(schedule, role, chunk, (Phase)from, (Phase)to);
    l->flights = l->copies[PHASE_F][PHASE_W];
}

/* One chunk of a stage: its passes, and what it hands over. */
static void lower_chunk(Lowering *l, const Step *step, const Schedule *schedule, int role, int chunk) {
    bool split = schedule_splits_backward(schedule);
    struct {
        Phase phase;
        TransferWhen when;
        const char *receive, *pass, *send;
    } passes[] = {{PHASE_F, TRANSFER_F, "RECV_F", "F", "SEND_F"},
                  {PHASE_B, TRANSFER_B, "RECV_B", split ? "BI" : "B", "SEND_B"}};
    Graph *body = step->bodies[chunk];
    count_copies(l, schedule, role, chunk);
    mark_saved(l, body);
    for (int i = 0; i < 2; i++) {
        l->graph = body;
        Entry *entry = open_entry(l, passes[i].receive, chunk);
        lower_handovers(l, step, passes[i].when, chunk, HANDOVER_RECV);
        close_entry(l, entry);
        entry = open_entry(l, passes[i].pass, chunk);
        lower_handovers(l, step, passes[i].when, chunk, HANDOVER_WAIT);
        lower_graph(l, body, passes[i].phase);
        entry->last = (*l->position)++;
        vec_push(l->arena, &l->program->entries, *entry);
        entry = open_entry(l, passes[i].send, chunk);
        lower_handovers(l, step, passes[i].when, chunk, HANDOVER_SEND);
        close_entry(l, entry);
    }
    if (!split) return;
    Entry *entry = open_entry(l, "BW", chunk);
    lower_graph(l, body, PHASE_W);
    entry->last = (*l->position)++;
    vec_push(l->arena, &l->program->entries, *entry);
}

/* Gradients go to their homes, the norm is joined, weights are updated and copies of them handed out. */
static void lower_stage_update(Lowering *l, const Step *step) {
    l->graph = step->update;
    Entry *entry = open_entry(l, "update", 0);
    l->entry_drains = true; /* until all is taken */
    for (int chunk = 0; chunk < step->n_chunks; chunk++) {
        lower_handovers(l, step, TRANSFER_F, chunk, HANDOVER_WAIT);
        lower_handovers(l, step, TRANSFER_B, chunk, HANDOVER_WAIT);
    }
    l->entry_drains = false;
    lower_handovers(l, step, TRANSFER_GRADIENT, 0, HANDOVER_SEND);
    lower_handovers(l, step, TRANSFER_GRADIENT, 0, HANDOVER_RECV);
    lower_graph(l, step->update, PHASE_F);
    lower_handovers(l, step, TRANSFER_WEIGHT, 0, HANDOVER_SEND);
    lower_handovers(l, step, TRANSFER_WEIGHT, 0, HANDOVER_RECV);
    close_entry(l, entry);
}

static void lower_stage_eval(Lowering *l, const Step *step) {
    l->flights = 1;
    l->graph = step->evals[0];
    int first = *l->position;
    Entry *entry = open_entry(l, "eval", 0);
    for (int chunk = 0; chunk < step->n_chunks; chunk++) lower_handovers(l, step, TRANSFER_EVAL, chunk, HANDOVER_WAIT);
    for (int chunk = 0; chunk < step->n_chunks; chunk++) {
        l->graph = step->evals[chunk];
        lower_handovers(l, step, TRANSFER_EVAL, chunk, HANDOVER_RECV);
        lower_graph(l, step->evals[chunk], PHASE_F);
        lower_handovers(l, step, TRANSFER_EVAL, chunk, HANDOVER_SEND);
    }
    entry->last = (*l->position)++;
    vec_push(l->arena, &l->program->entries, *entry);
    keep_between(l, first, false);
}

static void prepare_graph(Lowering *l, Graph *graph) {
    if (graph) split_reductions(graph, &graph->top);
    add_tensors(l, graph);
}

RoleProgram *schedule_to_kernels(const Step *step, const Mesh *mesh, const Schedule *schedule, int role) {
    Arena *arena = step->session->arena;
    RoleProgram *program = NEW(arena, RoleProgram);
    *program = (RoleProgram){
        .arena = arena, .session = step->session, .mesh = mesh, .role = role, .scratch_bytes = PRODUCT_SCRATCH_BYTES};
    int position = 0;
    Map tensors = {0};
    Lowering l = {
        .arena = arena, .program = program, .mesh = mesh, .position = &position, .tensors = &tensors, .flights = 1};
    for (int chunk = 0; chunk < schedule->n_chunks; chunk++) {
        int flights = schedule_copies(schedule, role, chunk, PHASE_F, PHASE_W);
        if (flights > l.flights) l.flights = flights;
    }
    Graph *graphs[] = {step->init, step->begin,  step->count, step->total,
                       step->body, step->update, step->eval,  step->decode};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) prepare_graph(&l, graphs[i]);
    for (int chunk = 0; chunk < step->n_chunks; chunk++) {
        prepare_graph(&l, step->bodies[chunk]);
        prepare_graph(&l, step->evals[chunk]);
    }
    lower_entry(&l, "init", step->init, PHASE_F);
    lower_entry(&l, "begin", step->begin, PHASE_F);
    lower_entry(&l, "count", step->count, PHASE_F);
    lower_entry(&l, "total", step->total, PHASE_F);
    int first = position;
    if (step->body) {
        count_copies(&l, schedule, role, 0);
        mark_saved(&l, step->body);
        lower_entry(&l, "F", step->body, PHASE_F);
        lower_entry(&l, "B", step->body, PHASE_B);
    }
    for (int chunk = 0; chunk < step->n_chunks; chunk++) lower_chunk(&l, step, schedule, role, chunk);
    keep_between(&l, first, step->n_chunks > 1 || schedule_splits_backward(schedule));
    if (step->n_stages) {
        lower_stage_update(&l, step);
        lower_stage_eval(&l, step);
    } else {
        lower_entry(&l, "update", step->update, PHASE_F);
        lower_entry(&l, "eval", step->eval, PHASE_F);
    }
    int sampling = position;
    lower_entry(&l, "decode", step->decode, PHASE_F);
    for (int i = 0; i < program->buffers.n; i++) { /* from token to token */
        if (program->buffers.at[i]->kind != MEM_CACHE) continue;
        lower_touch(&l, program->buffers.at[i], sampling);
        lower_touch(&l, program->buffers.at[i], position - 1);
    }
    kernels_overlap(program, schedule, step->n_stages ? step->stage_axis : -1);
    return program;
}
