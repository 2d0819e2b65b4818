/* Operators, from the table: every entry is complete, and every case of every entry is tried for
 *   shape     the graph of the case is inferred, verified, and printed and read back (test_ir)
 *   expansion the composite equals what it expands to
 *   gradient  against central differences in double precision
 *   lowering  the element's loop instructions, interpreted in f32, against the evaluation
 *   precision with 16-bit inputs: types of results and gradients, and both near those of f32
 *   sharding  on 2 and 4 simulated ranks, every dimension cut in turn and every two together, against one rank
 * PLAN_TEST_OP=name runs the cases of one operator. */
#include "graph/graph.h"
#include "ir/loop_math.h"
#include "ir_testing.h"
#include "partition/partition.h"

typedef struct Trial {
    Session *session;
    const OpInfo *info;
    const OpCase *c;
    Graph *graph;
    Graph *written; /* the case as it was parsed: says how inputs are drawn */
} Trial;

static void failed(const Trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void failed(const Trial *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *what = arena_vprintf(t->session->arena, format, args);
    va_end(args);
    diag_flush(t->session, stderr, false);
    fail_msg("%s, case \"%s\": %s\n%s", t->info->name, t->c->what, what,
             t->graph ? testing_print(t->graph) : t->c->graph);
}

static void parse_case(Trial *t) {
    t->graph = NULL;
    t->graph = testing_try_parse(t->session, t->c->graph);
    if (!t->graph) failed(t, "does not parse");
}

static void verify_case(const Trial *t, const char *when) {
    Text why = {.arena = t->session->arena};
    if (!graph_verify(t->graph, &why)) failed(t, "%s: %s", when, why.at);
}

/* Runs `test` on every case, each with a session of its own. */
static void for_each_case(void (*test)(Trial *t)) {
    const char *only = getenv("PLAN_TEST_OP");
    for (int op = 0; op < OP_COUNT; op++) {
        if (only && strcmp(only, op_table[op]->name) != 0) continue;
        for (const OpCase *c = op_table[op]->cases; c && c->what; c++) {
            Trial t = {.session = session_new(), .info = op_table[op], .c = c};
            parse_case(&t);
            t.written = t.graph;
            test(&t);
            if (diag_count(t.session, SEV_ERROR)) failed(&t, "reported an error");
            session_free(t.session);
        }
    }
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static int64_t bound_in_use(const Node *user, const Node *input) {
    const OpInfo *info = op_info(user);
    for (int i = 0; i < op_n_attrs(info); i++) {
        const Shape *dims = &user->attrs[i].dims;
        if (strcmp(info->attrs[i].name, "over") == 0 && dims->n && shape_find(&input->shape, dims->dims[0]) < 0)
            return dims->dims[0]->size;
    }
    return 0;
}

/* Whole numbers that index a dimension are drawn below its size. */
static int64_t integer_bound(const Graph *graph, const Tensor *tensor) {
    int64_t bound = 5;
    for (int i = 0; i < graph->top.nodes.n; i++)
        for (int k = 0; k < graph->top.nodes.at[i]->n_in; k++) {
            const Node *user = graph->top.nodes.at[i], *in = user->in[k];
            if (in->op == OP_INPUT && in->tensor == tensor && bound_in_use(user, in)) bound = bound_in_use(user, in);
        }
    return bound;
}

static bool is_input(const Graph *graph, const Tensor *tensor) {
    for (int i = 0; i < graph->outputs.n; i++)
        if (graph->outputs.at[i].tensor == tensor) return false;
    return true;
}

/* Depends on name and use in the case as written, so that every form of the graph gets the same numbers. */
static double *draw(const Trial *t, const Tensor *tensor) {
    const Tensor *first = graph_find_tensor(t->written, tensor->name);
    uint64_t state = 88172645463325252u;
    for (const char *c = tensor->name; *c; c++) state = state * 31 + (unsigned char)*c;
    int64_t n = shape_elements(&tensor->shape);
    double *values = NEW_N(t->session->arena, double, n);
    double low = t->c->low, high = t->c->high;
    if (low == 0 && high == 0) low = -1, high = 1;
    for (int64_t i = 0; i < n; i++) {
        double u = testing_random(&state);
        if (dtype_is_float(tensor->dtype))
            values[i] = low + (high - low) * u;
        else if (tensor->dtype == DT_BOOL)
            values[i] = u < 0.5;
        else
            values[i] = floor(u * (double)(first ? integer_bound(t->written, first) : 5));
    }
    return values;
}

static Machine *run_case(const Trial *t, const Graph *graph) {
    Machine *machine = machine_new(t->session, graph->mesh);
    for (int i = 0; i < graph->tensors.n; i++)
        if (is_input(graph, graph->tensors.at[i]))
            machine_set(machine, graph->tensors.at[i], draw(t, graph->tensors.at[i]));
    machine_run(machine, graph, graph->micro ? 1 : 0, 7, 1234);
    return machine;
}

static const double *read_tensor(const Trial *t, Machine *machine, const Tensor *tensor) {
    double *values = NEW_N(t->session->arena, double, shape_elements(&tensor->shape));
    machine_get(machine, tensor, values);
    return values;
}

/* Normalised mean square error; infinite when one of them is not a number. */
static double nmse(const double *a, const double *b, int64_t n) {
    double error = 0, norm = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(a[i]) || isnan(b[i])) return INFINITY;
        if (a[i] == b[i]) continue; /* infinities too */
        error += (a[i] - b[i]) * (a[i] - b[i]);
    }
    for (int64_t i = 0; i < n; i++) norm += isinf(a[i]) ? 0 : a[i] * a[i];
    return error / norm;
}

/* Outputs of two forms of the case; NMSE at most `bound`. */
static void compare_outputs(Trial *t, const Graph *a, const Graph *b, double bound, const char *what) {
    Machine *one = run_case(t, a), *other = run_case(t, b);
    for (int i = 0; i < t->graph->outputs.n; i++) {
        const Tensor *tensor = a->outputs.at[i].tensor;
        double error = nmse(read_tensor(t, one, tensor), read_tensor(t, other, b->outputs.at[i].tensor),
                            shape_elements(&tensor->shape));
        if (!(error <= bound)) failed(t, "%s: output %d differs, NMSE %g", what, i, error);
    }
}

/* ---- completeness ------------------------------------------------------------------------------------------------ */

static void test_complete(void **state) {
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        const OpInfo *info = op_table[op];
        if (!info->doc || !*info->doc || !info->family) fail_msg("%s has no documentation", info->name);
        bool composite = info->expand || info->expand_results;
        if (!info->grad && !composite && !info->no_grad) fail_msg("%s has no gradient and does not say so", info->name);
        if (info->grad && info->no_grad) fail_msg("%s has a gradient and says that it has none", info->name);
        if ((info->lower == LOWER_EXPAND) != composite) fail_msg("%s: expand and lowering disagree", info->name);
        if ((info->lower == LOWER_MAP) != (info->emit != NULL)) fail_msg("%s: emit and lowering disagree", info->name);
        if (info->lower == LOWER_NONE && !info->eval) continue; /* handled by the passes */
        if (!info->eval) fail_msg("%s has no evaluation", info->name);
        if (!info->cases || !info->cases[0].what) fail_msg("%s has no cases", info->name);
        if (info->lower != LOWER_NONE && !info->dims) fail_msg("%s has no dimension string", info->name);
    }
}

static bool uses_op(const Region *region, Op op) {
    for (int i = 0; i < region->nodes.n; i++) {
        const Node *node = region->nodes.at[i];
        if (node->op == op || (node->region && uses_op(node->region, op))) return true;
    }
    return false;
}

static void try_shape(Trial *t) {
    verify_case(t, "as written");
    if (!uses_op(&t->graph->top, t->info->op)) failed(t, "does not use the operator");
    if (t->graph->outputs.n == 0) failed(t, "has no output");
    run_case(t, t->graph);
}

static void test_shapes(void **state) {
    (void)state;
    for_each_case(try_shape);
}

/* ---- expansion --------------------------------------------------------------------------------------------------- */

static void try_expansion(Trial *t) {
    if (t->graph->mesh) return;
    parse_case(t);
    graph_simplify(t->graph);
    verify_case(t, "simplified");
    if ((t->info->expand || t->info->expand_results) && uses_op(&t->graph->top, t->info->op))
        failed(t, "is not expanded");
    compare_outputs(t, t->written, t->graph, 1e-20, "simplified");
}

static void test_expansions(void **state) {
    (void)state;
    for_each_case(try_expansion);
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

/* Adds the output "target": the sum of all float outputs, each element with a weight of its own. */
static void add_target(Trial *t) {
    Graph *graph = t->graph;
    Builder b = {.graph = graph, .region = &graph->top};
    Node *target = build_const(&b, DT_F64, 0);
    for (int i = 0, n = graph->outputs.n; i < n; i++) {
        Node *value = graph->outputs.at[i].value;
        if (!dtype_is_float(value->dtype)) continue;
        Name name = intern(t->session->names, arena_printf(t->session->arena, "weights of %d", i));
        Tensor *weights = graph_add_tensor(graph, name, CLASS_DATA, DT_F64, value->shape, (Span){0});
        Node *weighted = build_binary(&b, OP_MUL, build_cast(&b, value, DT_F64), build_input(&b, weights));
        target = build_binary(&b, OP_ADD, target, build_reduce(&b, OP_SUM, weighted, &value->shape));
    }
    Tensor *tensor =
        graph_add_tensor(graph, intern(t->session->names, "target"), CLASS_RESULT, DT_F64, target->shape, (Span){0});
    graph_add_output(graph, tensor, target, false);
}

static double target_at(Machine *machine, const Graph *graph, const Tensor *input, const double *values) {
    double result;
    machine_set(machine, input, values);
    machine_run(machine, graph, graph->micro ? 1 : 0, 7, 1234);
    machine_get(machine, graph->outputs.at[graph->outputs.n - 1].tensor, &result);
    return result;
}

static double *numeric_gradient(Trial *t, const Graph *graph, const Tensor *input) {
    Machine *machine = run_case(t, graph);
    double *values = draw(t, input);
    int64_t n = shape_elements(&input->shape);
    double *gradient = NEW_N(t->session->arena, double, n);
    const double h = t->c->tolerance != 0 ? 0.25 : 1e-5; /* a case that rounds needs wide steps */
    for (int64_t i = 0; i < n; i++) {
        double x = values[i];
        values[i] = x + h;
        double above = target_at(machine, graph, input, values);
        values[i] = x - h;
        double below = target_at(machine, graph, input, values);
        values[i] = x;
        gradient[i] = (above - below) / (2 * h);
    }
    return gradient;
}

static void compare_gradient(Trial *t, const Tensor *input, const double *taken, const double *numeric) {
    int64_t n = shape_elements(&input->shape);
    double largest = 1e-3;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(numeric[i]));
    double tolerance = t->c->tolerance != 0 ? t->c->tolerance : 1e-6;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(taken[i] - numeric[i]) <= tolerance * largest))
            failed(t, "gradient of %s[%lld] is %.10g, differences give %.10g", input->name, (long long)i, taken[i],
                   numeric[i]);
}

static void try_gradient(Trial *t) {
    if (t->info->no_grad || t->graph->mesh) return;
    add_target(t);
    Graph *written = t->graph;
    parse_case(t);
    add_target(t);
    Graph *graph = t->graph;
    graph_simplify(graph);
    Tensor *inputs[16];
    int n = 0;
    for (int i = 0; i < graph->tensors.n; i++) {
        Tensor *tensor = graph->tensors.at[i];
        if (is_input(graph, tensor) && tensor->dtype == DT_F32 && n < 16) inputs[n++] = tensor;
    }
    Node *gradients[16] = {NULL};
    graph_to_grad(graph, graph->outputs.at[graph->outputs.n - 1].value, inputs, n, NULL, gradients);
    Tensor *results[16];
    for (int i = 0; i < n; i++) {
        if (!gradients[i]) continue;
        Name name = intern(t->session->names, arena_printf(t->session->arena, "gradient of %s", inputs[i]->name));
        results[i] = graph_add_tensor(graph, name, CLASS_GRADIENT, gradients[i]->dtype, gradients[i]->shape, (Span){0});
        graph_add_output(graph, results[i], gradients[i], false);
        if (!shape_equal(&gradients[i]->shape, &inputs[i]->shape))
            failed(t, "gradient of %s has another shape", inputs[i]->name);
    }
    verify_case(t, "with gradients");
    Machine *machine = run_case(t, graph);
    for (int i = 0; i < n; i++) {
        const Tensor *input = graph_find_tensor(written, inputs[i]->name);
        const double *zero = NEW_N(t->session->arena, double, shape_elements(&input->shape));
        const double *taken = gradients[i] ? read_tensor(t, machine, results[i]) : zero;
        compare_gradient(t, inputs[i], taken, numeric_gradient(t, written, input));
    }
}

static void test_gradients(void **state) {
    (void)state;
    for_each_case(try_gradient);
}

/* ---- lowering ---------------------------------------------------------------------------------------------------- */

typedef struct Memory {
    LoopMemory kind;
    void *bytes;
} Memory;

static Memory memory_of(const Trial *t, DType dtype, const double *values, int64_t n) {
    Memory memory = {.kind = dtype == DT_I32    ? LOOP_MEM_I32
                             : dtype == DT_BOOL ? LOOP_MEM_U8
                             : dtype == DT_BF16 ? LOOP_MEM_BF16
                                                : LOOP_MEM_F32};
    memory.bytes = NEW_N(t->session->arena, int32_t, n);
    for (int64_t i = 0; i < n && values; i++) {
        if (memory.kind == LOOP_MEM_I32)
            ((int32_t *)memory.bytes)[i] = (int32_t)(int64_t)values[i];
        else if (memory.kind == LOOP_MEM_U8)
            ((uint8_t *)memory.bytes)[i] = values[i] != 0;
        else if (memory.kind == LOOP_MEM_BF16)
            ((uint16_t *)memory.bytes)[i] = loop_to_bf16((float)values[i]);
        else
            ((float *)memory.bytes)[i] = (float)values[i];
    }
    return memory;
}

static double memory_at(Memory memory, int64_t i) {
    if (memory.kind == LOOP_MEM_I32) return ((int32_t *)memory.bytes)[i];
    if (memory.kind == LOOP_MEM_BF16) return (double)loop_from_bf16(((uint16_t *)memory.bytes)[i]);
    return memory.kind == LOOP_MEM_U8 ? ((uint8_t *)memory.bytes)[i] : (double)((float *)memory.bytes)[i];
}

/* The elements of `value` at the points of `node`'s result. */
static LoopAccess access_to(const Node *node, const Node *value, int pointer, LoopMemory memory) {
    LoopAccess access = {.pointer = pointer, .memory = memory};
    int64_t stride = 1;
    for (int d = value->shape.n - 1; d >= 0; d--) {
        int axis = shape_find(&node->shape, value->shape.dims[d]);
        if (axis >= 0) access.stride[axis] = stride;
        stride *= value->shape.dims[d]->size;
    }
    return access;
}

/* One loop for one node: loads, the operator's instructions, a store. */
static Loop *loop_of(const Trial *t, const Node *node, const Memory *memories) {
    int64_t extent[MAX_RANK + 1];
    for (int d = 0; d < node->shape.n; d++) extent[d] = node->shape.dims[d]->size;
    Loop *loop = loop_new(t->session->arena, "case", extent, node->shape.n, node->shape.n);
    LoopBuilder b = {.arena = t->session->arena, .loop = loop};
    loop_begin_pass(&b, true);
    LoopValue in[16 + MAX_RANK];
    for (int i = 0; i < node->n_in; i++) in[i] = loop_load(&b, access_to(node, node->in[i], i, memories[i].kind));
    for (int d = 0; d < node->shape.n; d++) {
        in[node->n_in + d] = t->info->reads_index ? loop_index(&b, d) : -1;
        int64_t start = node->shape.dims[d]->is_batch ? node->shape.dims[d]->size : 0; /* micro-batch 1 */
        if (t->info->reads_index && start)
            in[node->n_in + d] = loop_emit(&b, LOOP_IADD, in[node->n_in + d], loop_const_i(&b, start), -1);
    }
    LoopValue result = t->info->emit(&b, node, in);
    loop_store(&b, access_to(node, node, node->n_in, memories[node->n_in].kind), result);
    loop->n_pointers = node->n_in + 1;
    return loop;
}

static Tensor *watch(const Trial *t, Node *node) {
    Name name =
        intern(t->session->names, arena_printf(t->session->arena, "value %d.%d", node->id, t->graph->outputs.n));
    Tensor *tensor = graph_add_tensor(t->graph, name, CLASS_RESULT, node->dtype, node->shape, (Span){0});
    graph_add_output(t->graph, tensor, node, false);
    return tensor;
}

static void compare_lowering(Trial *t, Node *node) {
    Tensor *tensors[16];
    for (int i = 0; i < node->n_in; i++) tensors[i] = watch(t, node->in[i]);
    tensors[node->n_in] = watch(t, node);
    Machine *machine = run_case(t, t->graph);
    Memory memories[16];
    void *pointers[16];
    for (int i = 0; i <= node->n_in; i++) {
        const double *values = i < node->n_in ? read_tensor(t, machine, tensors[i]) : NULL;
        memories[i] = memory_of(t, tensors[i]->dtype, values, shape_elements(&tensors[i]->shape));
        pointers[i] = memories[i].bytes;
    }
    Loop *loop = loop_of(t, node, memories);
    Text why = {.arena = t->session->arena};
    if (!loop_verify(loop, &why)) failed(t, "loop: %s", why.at);
    loop_interpret(loop, pointers, 0, loop_rows(loop));
    int64_t n = shape_elements(&node->shape);
    double *lowered = NEW_N(t->session->arena, double, n);
    for (int64_t i = 0; i < n; i++) lowered[i] = memory_at(memories[node->n_in], i);
    double error = nmse(read_tensor(t, machine, tensors[node->n_in]), lowered, n);
    double bound = dtype_is_float(node->dtype) ? 1e-12 : 0; /* f32 rounds to 6e-8: squared 4e-15 */
    if (!(error <= bound)) failed(t, "lowered: NMSE %g", error);
}

/* Nodes of a repeat's body are left to the tests of whole programs. */
static void try_lowering(Trial *t) {
    if (t->info->lower != LOWER_MAP || t->graph->mesh) return;
    for (int i = 0, n = t->graph->top.nodes.n; i < n; i++)
        if (t->graph->top.nodes.at[i]->op == t->info->op) compare_lowering(t, t->graph->top.nodes.at[i]);
}

static void test_lowerings(void **state) {
    (void)state;
    for_each_case(try_lowering);
}

/* ---- 16 bits ----------------------------------------------------------------------------------------------------- */

/* The case with its f32 inputs in another type. */
static const char *with_inputs(const Trial *t, const char *dtype) {
    Text text = {.arena = t->session->arena};
    const char *at = t->c->graph;
    for (const char *found; (found = strstr(at, ": f32[")) != NULL; at = found + 5)
        text_printf(&text, "%.*s: %s", (int)(found - at), at, dtype);
    text_printf(&text, "%s", at);
    return text.at;
}

/* The graph with gradients of all inputs as outputs; the number of outputs before them. */
static int add_gradients(Trial *t, DType dtype) {
    Graph *graph = t->graph;
    add_target(t);
    graph_simplify(graph);
    Tensor *inputs[16];
    Node *gradients[16] = {NULL};
    int n = 0, before = graph->outputs.n;
    for (int i = 0; i < graph->tensors.n; i++) {
        Tensor *tensor = graph->tensors.at[i];
        if (is_input(graph, tensor) && tensor->dtype == dtype && tensor->class != CLASS_SCALAR && n < 16)
            inputs[n++] = tensor;
    }
    graph_to_grad(graph, graph->outputs.at[before - 1].value, inputs, n, NULL, gradients);
    for (int i = 0; i < n; i++) {
        Builder b = {.graph = graph, .region = &graph->top};
        Node *value = gradients[i] ? gradients[i] : build_broadcast(&b, build_const(&b, dtype, 0), &inputs[i]->shape);
        Name name = intern(t->session->names, arena_printf(t->session->arena, "gradient of %s", inputs[i]->name));
        graph_add_output(graph, graph_add_tensor(graph, name, CLASS_GRADIENT, value->dtype, value->shape, (Span){0}),
                         value, false);
    }
    verify_case(t, "with gradients");
    return before;
}

/* Operators that compute in f32 get f32 operands from the precision pass. */
static void try_precision(Trial *t) {
    bool full = t->info->precision == PRECISION_FULL || t->info->precision == PRECISION_INSIDE;
    if (full || t->info->no_grad || t->graph->mesh || t->c->high > 10 || strstr(t->c->graph, "dtype = ")) return;
    static const struct {
        const char *name;
        DType dtype;
        double bound; /* of the NMSE: the square of a few roundings */
    } types[] = {{"bf16", DT_BF16, 1e-2}, {"f16", DT_F16, 2e-4}};
    int before = add_gradients(t, DT_F32);
    const Graph *exact = t->graph;
    Machine *one = run_case(t, exact);
    for (size_t k = 0; k < 2; k++) {
        const char *text = with_inputs(t, types[k].name);
        int errors = diag_count(t->session, SEV_ERROR);
        t->graph = testing_try_parse(t->session, text);
        if (!t->graph || diag_count(t->session, SEV_ERROR) > errors) failed(t, "does not take %s", types[k].name);
        add_gradients(t, types[k].dtype);
        Machine *other = run_case(t, t->graph);
        assert_int_equal(exact->outputs.n, t->graph->outputs.n);
        for (int i = 0; i < exact->outputs.n; i++) {
            const Tensor *tensor = exact->outputs.at[i].tensor, *narrow = t->graph->outputs.at[i].tensor;
            bool sum = i == before - 1; /* the target, where much cancels */
            if (sum || !dtype_is_float(tensor->dtype)) continue;
            double error =
                nmse(read_tensor(t, one, tensor), read_tensor(t, other, narrow), shape_elements(&tensor->shape));
            if (!(error <= types[k].bound))
                failed(t, "in %s: `%s` differs, NMSE %g", types[k].name, tensor->name, error);
        }
    }
}

static void test_precisions(void **state) {
    (void)state;
    for_each_case(try_precision);
}

/* ---- sharding ---------------------------------------------------------------------------------------------------- */

/* Whether an axis (or two) of so many parts in all can cut the dimension, down to its leftmost factors. */
static bool can_cut(const Region *region, const Dim *dim, int64_t parts) {
    for (const Dim *part = dim; part; part = part->n_factors ? part->factors[0] : NULL)
        if (part->size % parts) return false;
    for (int i = 0; i < region->nodes.n; i++) { /* the dimension of a repeat is run through, not cut */
        const Region *inner = region->nodes.at[i]->region;
        if (inner && (inner->dim == dim || !can_cut(inner, dim, parts))) return false;
    }
    return true;
}

/* The case with dims[i] cut over axis i. */
static void compare_sharded(Trial *t, const int *dims, const int64_t *sizes, int n) {
    parse_case(t);
    graph_simplify(t->graph);
    Layout layout = {.mesh = {.n = n}};
    char what[120] = "";
    for (int i = 0; i < n; i++) {
        Dim *dim = t->graph->dims.at[dims[i]];
        layout.mesh.axes[i] = (MeshAxis){.name = intern(t->session->names, i ? "second" : "first"), .size = sizes[i]};
        vec_push(t->session->arena, &layout.axes[i].names, dim);
        snprintf(what + strlen(what), sizeof what - strlen(what), "`%s` on %d ranks ", dim->name, (int)sizes[i]);
    }
    graph_partition(t->graph, &layout);
    verify_case(t, what);
    compare_outputs(t, t->written, t->graph, 1e-24, what);
}

static void try_sharding(Trial *t) {
    const Graph *written = t->written;
    if (written->mesh) return;
    for (int first = 0; first < written->dims.n; first++) {
        for (int64_t ranks = 2; ranks <= 4; ranks *= 2)
            if (can_cut(&written->top, written->dims.at[first], ranks)) compare_sharded(t, &first, &ranks, 1);
        for (int second = 0; second < written->dims.n; second++) {
            const Dim *a = written->dims.at[first], *b = written->dims.at[second];
            int64_t parts = dim_is_cut_by(a, b) ? 4 : 2;
            if (!can_cut(&written->top, a, parts) || !can_cut(&written->top, b, parts)) continue;
            compare_sharded(t, (int[]){first, second}, (int64_t[]){2, 2}, 2);
        }
    }
}

static void test_shardings(void **state) {
    (void)state;
    for_each_case(try_sharding);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete),   cmocka_unit_test(test_shapes),    cmocka_unit_test(test_expansions),
        cmocka_unit_test(test_gradients),  cmocka_unit_test(test_lowerings), cmocka_unit_test(test_shardings),
        cmocka_unit_test(test_precisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
