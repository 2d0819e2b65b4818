/* The graph: text form, inference and its messages, the verifier, meshes and extents, the evaluator. */
#include "ir_testing.h"

static int setup(void **state) {
    *state = session_new();
    return 0;
}

static int teardown(void **state) {
    session_free(*state);
    return 0;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static const char *const full_text =
    "graph body micro {\n"
    "    mesh data = 2, tensor = 2\n"
    "    dim batch = 4 batch\n"
    "    dim seq = 8\n"
    "    dim key = 8 like seq\n"
    "    dim head = 4 factors (kv_head, group)\n"
    "    dim kv_head = 2\n"
    "    dim group = 2\n"
    "    dim layers = 3\n"
    "    dim now = 1 position\n"
    "    tensor x: data f32[batch, head] {data: sharded(batch), tensor: sharded(head)}\n"
    "    tensor layers.w: weight f32[layers, head] {tensor: sharded(head)} group norm gain\n"
    "    tensor m: moment f32[layers, head] {tensor: sharded(head)} of layers.w frozen\n"
    "    tensor \"odd name!\": result f32[batch] {data: sharded(batch)}\n"
    "    %0 = input x : f32[batch, head] {data: sharded(batch), tensor: sharded(head)}\n"
    "    %1 = input layers.w : f32[layers, head] {tensor: sharded(head)}\n"
    "    %2 = const(value = 0.1, dtype = f32) : f32[]\n"
    "    %3 = repeat layers descending (\n"
    "        %4 = carry %0 : f32[batch, head] {data: sharded(batch), tensor: sharded(head)},\n"
    "        %5 = slice %1 : f32[head] {tensor: sharded(head)},\n"
    "        %6 = capture %2 : f32[]) {\n"
    "        %7 = layer_index() : i32[]\n"
    "        %8 = mul(%4, %5) : f32[batch, head] {data: sharded(batch), tensor: sharded(head)} as scaled\n"
    "        %9 = mul(%8, %6) : f32[batch, head] {data: sharded(batch), tensor: sharded(head)} backward\n"
    "        next %9\n"
    "        stack %7\n"
    "    } : f32[batch, head] {data: sharded(batch), tensor: sharded(head)}, i32[layers]\n"
    "    %10 = result(%3, index = 0) : f32[batch, head] {data: sharded(batch), tensor: sharded(head)}\n"
    "    %11 = vector(values = [0.5, -1e-30], dim = group, dtype = f32) : f32[group]\n"
    "    %12 = sum(%10, over = [head]) : f32[batch] {data: sharded(batch), tensor: partial(sum)}\n"
    "    %13 = all_reduce(%12, axis = 1, reduce = 0) : f32[batch] {data: sharded(batch)}\n"
    "    output \"odd name!\" += %13\n"
    "}\n";

static void test_round_trip(void **state) {
    Graph *graph = testing_parse(*state, full_text);
    testing_verify(graph);
    assert_string_equal(testing_print(graph), full_text);
    assert_string_equal(testing_print(testing_parse(*state, testing_print(graph))), full_text);
}

static void test_every_case_round_trips(void **state) {
    int n = 0;
    for (int op = 0; op < OP_COUNT; op++)
        for (const OpCase *c = op_table[op]->cases; c && c->what; c++, n++) {
            Graph *graph = testing_parse(*state, c->graph);
            testing_verify(graph);
            const char *text = testing_print(graph);
            assert_string_equal(testing_print(testing_parse(*state, text)), text);
        }
    assert_true(n > 100);
}

static void test_short_forms(void **state) {
    Graph *graph =
        testing_parse(*state, "graph g { dim a = 2; tensor x: f32[a]; %y = exp(@x) # twice\n output %y; output %y }");
    assert_int_equal(graph->outputs.n, 2);
    assert_string_equal(graph->outputs.at[1].tensor->name, "out1");
    assert_int_equal(graph->top.nodes.n, 2);
}

static void assert_refused(Session *session, const char *text, const char *code, const char *words) {
    int before = diag_count(session, SEV_ERROR);
    if (testing_try_parse(session, text)) fail_msg("accepted: %s", text);
    assert_int_equal(diag_count(session, SEV_ERROR), before + 1);
    char *rendered = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&rendered, &size);
    diag_flush(session, out, false);
    fclose(out);
    if (!strstr(rendered, code) || !strstr(rendered, words)) fail_msg("expected %s, %s in:\n%s", code, words, rendered);
    free(rendered);
}

static void test_bad_text(void **state) {
    static const char *const texts[][2] = {
        {"", "`graph`"},
        {"graph", "the graph's name"},
        {"graph g {", "mesh, dim, tensor"},
        {"graph g { dim a }", "`=`"},
        {"graph g { dim a = 1.5 }", "a whole number"},
        {"graph g { dim a = 0 }", "at least 1"},
        {"graph g { dim a = 1e300 }", "a whole number"},
        {"graph g { dim a = 2; dim a = 3 }", "not declared yet"},
        {"graph g { dim a = 4 factors (b, c) }", "is declared"},
        {"graph g { tensor x: f33[] }", "a type"},
        {"graph g { tensor x: f32[b] }", "declared above"},
        {"graph g { dim a = 2; tensor x: f32[a, a] }", "each once"},
        {"graph g { tensor x: f32[]; tensor x: f32[] }", "not declared yet"},
        {"graph g { %0 = input x }", "a tensor"},
        {"graph g { %0 = no_such_operator() }", "an operator"},
        {"graph g { tensor x: f32[]; %0 = add(@x) }", "2 operands"},
        {"graph g { tensor x: f32[]; %0 = exp(%1) }", "defined above"},
        {"graph g { tensor x: f32[]; %0 = exp(@x); %0 = exp(@x) }", "not defined yet"},
        {"graph g { tensor x: f32[]; %0 = sum(@x) }", "attribute `over`"},
        {"graph g { tensor x: f32[]; %0 = sum(@x, under = []) }", "an attribute"},
        {"graph g { tensor x: f32[]; %0 = exp(@x) : i32[] }", "f32[]"},
        {"graph g { tensor x: f32[]; %0 = result(@x, index = 0) }", "index of a result"},
        {"graph g { %0 = layer_index() }", "inside a repeat"},
        {"graph g { dim l = 2; tensor x: f32[]; %0 = repeat l (%1 = carry @x) { %2 = exp(%1) } }", "one `next`"},
        {"graph g { dim l = 2; tensor x: f32[]; %0 = repeat l (%1 = slice @x) { } }", "first dimension"},
        {"graph g { tensor x: f32[]; output y = @x }", "declared above"},
        {"graph g { %0 = ramp(dim = none) }", "a dimension"},
        {"graph g { } more", "the end of the text"},
        {"graph g { tensor x: f32[] of y }", "a tensor of this graph"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_refused(*state, texts[i][0], "P0090", texts[i][1]);
}

/* Every text that is cut short is refused, without a crash. */
static void test_truncated_text(void **state) {
    for (size_t n = 0; n + 2 < strlen(full_text); n++) {
        char *part = arena_strndup(((Session *)*state)->arena, full_text, n);
        if (testing_try_parse(*state, part)) fail_msg("accepted after %d bytes", (int)n);
    }
}

/* Random bytes changed, removed and doubled: refused or accepted, never a crash; what is accepted prints and verifies
 * or is refused by the verifier. */
static void test_mangled_text(void **state) {
    (void)state;
    uint64_t random = 7;
    static const char letters[] = "%@(){}[]=,:;#\"\n aeirst019.-+";
    for (int round = 0; round < 4000; round++) {
        Session *session = session_new();
        size_t n = strlen(full_text);
        char *text = arena_alloc(session->arena, 2 * n + 8);
        memcpy(text, full_text, n);
        for (int edits = 1 + round % 3; edits; edits--) {
            size_t at = (size_t)(testing_random(&random) * (double)n),
                   length = 1 + (size_t)(testing_random(&random) * 12);
            if (length > n - at) length = n - at;
            int kind = (int)(testing_random(&random) * 3);
            if (kind == 0) text[at] = letters[(int)(testing_random(&random) * (double)(sizeof letters - 1))];
            if (kind == 1) memmove(text + at, text + at + length, n - at - length), n -= length;
            if (kind == 2 && n + length < 2 * strlen(full_text))
                memmove(text + at + length, text + at, n - at), n += length;
        }
        Graph *graph = graph_parse(session, session_add_text(session, "mangled", text, n));
        if (graph) {
            Text why = {.arena = session->arena};
            testing_print(graph);
            graph_verify(graph, &why);
        } else if (diag_count(session, SEV_ERROR) != 1) {
            diag_flush(session, stderr, false);
            fail_msg("not exactly one error");
        }
        session_free(session);
    }
}

/* ---- inference --------------------------------------------------------------------------------------------------- */

static void assert_shape(Session *session, const char *statement, const char *expected) {
    char text[600];
    snprintf(text, sizeof text,
             "graph g { dim a = 2, b = 3, c = 4, h = 4 factors (k, q), k = 2, q = 2\n"
             "tensor ab: f32[a, b]; tensor ba: f32[b, a]; tensor b1: f32[b]; tensor abc: f32[a, b, c]; tensor bc: "
             "f32[b, c]\n"
             "tensor i: i32[b, a]; tensor ah: f32[a, h]; tensor s: f32[]; %%0 = %s; output %%0 }",
             statement);
    Graph *graph = testing_parse(session, text);
    const Node *node = graph->outputs.at[0].value;
    char shown[100];
    snprintf(shown, sizeof shown, "%s%s", dtype_name[node->dtype], shape_text(session->arena, &node->shape));
    assert_string_equal(shown, expected);
}

static void test_shapes(void **state) {
    assert_shape(*state, "add(@ab, @ba)", "f32[a, b]");
    assert_shape(*state, "add(@b1, @ba)", "f32[b, a]");
    assert_shape(*state, "add(@ba, @abc)", "f32[a, b, c]");
    assert_shape(*state, "mul(@s, @s)", "f32[]");
    assert_shape(*state, "lt(@b1, @ab)", "bool[a, b]");
    assert_shape(*state, "sum(@abc, over = [b])", "f32[a, c]");
    assert_shape(*state, "dot(@ab, @bc, over = [b])", "f32[a, c]");
    assert_shape(*state, "broadcast(@b1, dims = [c, b, a])", "f32[c, b, a]");
    assert_shape(*state, "cast(@i, dtype = f32)", "f32[b, a]");
    assert_shape(*state, "split(@ah, dim = h)", "f32[a, k, q]");
    assert_shape(*state, "rename(@ah, from = h, to = c)", "f32[a, c]");
    assert_shape(*state, "ramp(dim = c)", "i32[c]");
}

static void test_refused_operands(void **state) {
#define HEAD                                                                                                           \
    "graph g { dim a = 2, b = 3, c = 2 like a, h = 4 factors (k, q), k = 2, q = 2; tensor x: f32[a]; tensor y: "       \
    "f32[b]\n"                                                                                                         \
    "tensor i: i32[a]; tensor xc: f32[a, c]; tensor qk: f32[q, k]\n"
    assert_refused(*state, HEAD "%0 = add(@x, @y) }", "P0201", "[a] and [b]");
    assert_refused(*state, HEAD "%0 = broadcast(@x, dims = [b]) }", "P0201", "cannot be broadcast");
    assert_refused(*state, HEAD "%0 = add(@x, @i) }", "P0202", "f32 and i32");
    assert_refused(*state, HEAD "%0 = sum(@x, over = [b]) }", "P0203", "`b`");
    assert_refused(*state, HEAD "%0 = exp(@i) }", "P0204", "i32");
    assert_refused(*state, HEAD "%0 = and(@x, @x) }", "P0204", "f32");
    assert_refused(*state, HEAD "%0 = select(@x, @x, @x) }", "P0204", "condition");
    assert_refused(*state, HEAD "%0 = rename(@x, from = a, to = b) }", "P0205", "(2)");
    assert_refused(*state, HEAD "%0 = rename(@xc, from = a, to = c) }", "P0205", "already");
    assert_refused(*state, HEAD "%0 = split(@x, dim = a) }", "P0205", "factors");
    assert_refused(*state, HEAD "%0 = join(@qk, dim = h) }", "P0205", "order");
    assert_refused(*state, HEAD "%0 = repeat b (%1 = carry @x) { %2 = sum(%1, over = [a]); next %2 } }", "P0207", "[]");
    assert_refused(*state, HEAD "%0 = repeat a (%1 = capture @x) { stack %1 } }", "P0209", "inside a repeat over `a`");
    assert_refused(*state, HEAD "%0 = vector(values = [1, 2], dim = b) }", "P0208", "size 3");
#undef HEAD
}

static void test_poison_is_silent(void **state) {
    Session *session = *state;
    Graph *graph = testing_parse(session, "graph g { dim a = 2, b = 3; tensor x: f32[a]; tensor y: f32[b] }");
    Builder b = {.graph = graph, .region = &graph->top};
    Node *x = build_input(&b, graph->tensors.at[0]), *y = build_input(&b, graph->tensors.at[1]);
    Node *bad = build_binary(&b, OP_ADD, x, y);
    assert_int_equal(bad->op, OP_POISON);
    Node *worse = build_binary(&b, OP_MUL, build_unary(&b, OP_EXP, bad), build_fit(&b, bad, &x->shape));
    assert_int_equal(worse->op, OP_POISON);
    assert_int_equal(diag_count(session, SEV_ERROR), 1);
}

static void test_iteration(void **state) {
    Graph *graph = testing_parse(*state, "graph g { dim a = 2, b = 3, c = 5; tensor x: f32[a, b]; tensor y: f32[b, c]\n"
                                         "%0 = dot(@x, @y, over = [b]); %1 = exp(%0); output %1 }");
    const Node *dot = graph->outputs.at[0].value->in[0];
    Iteration it = op_iteration(dot);
    assert_int_equal(it.n, 3);
    assert_int_equal(it.single, 3);
    assert_int_equal(it.joint, 0);
    assert_string_equal(it.letters[1].dim->name, "b");
    assert_int_equal(it.letters[1].kind, LETTER_SUM);
    assert_int_equal(it.letters[2].kind, LETTER_PARALLEL);
    assert_true(op_flops(dot) == 2 * 2 * 3 * 5);
    assert_true(op_bytes(dot) == 4 * (6 + 15 + 10));
}

/* ---- verifier ---------------------------------------------------------------------------------------------------- */

static void assert_broken(const Graph *graph, const char *words) {
    Text why = {.arena = graph->arena};
    if (graph_verify(graph, &why)) fail_msg("accepted, but expected `%s`", words);
    if (!strstr(why.at, words)) fail_msg("expected `%s` in: %s", words, why.at);
}

static Node *repeat_of(Graph *graph) {
    for (int i = 0; i < graph->top.nodes.n; i++)
        if (graph->top.nodes.at[i]->op == OP_REPEAT) return graph->top.nodes.at[i];
    return NULL;
}

static void test_verifier(void **state) {
#define BREAK(words, ...)                                                                                              \
    do {                                                                                                               \
        Graph *graph = testing_parse(*state, full_text);                                                               \
        Node **top = graph->top.nodes.at, *repeat = repeat_of(graph), **body = repeat->region->nodes.at;               \
        Region *region = repeat->region;                                                                               \
        (void)top, (void)body, (void)region;                                                                           \
        __VA_ARGS__;                                                                                                   \
        assert_broken(graph, words);                                                                                   \
    } while (0)
    Node *swap;
    BREAK("not defined before", swap = body[1]; body[1] = body[2]; body[2] = swap);
    BREAK("another region", body[2]->in[1] = top[2]);
    BREAK("used twice", top[1]->id = top[0]->id);
    BREAK("but the operator gives", body[1]->dtype = DT_I32);
    BREAK("but the operator gives", top[5]->shape.n = 0);
    BREAK("stands twice in", body[1]->shape.dims[1] = body[1]->shape.dims[0]);
    BREAK("refuses", top[6]->attrs[0].dims.dims[0] = graph->dims.at[1]);
    BREAK("poison", body[1]->op = OP_POISON);
    BREAK("is a tuple", top[6]->in[0] = repeat);
    BREAK("no result 7", top[4]->attrs[0].integer = 7);
    BREAK("not its own", region->owner = top[0]);
    BREAK("carries", region->n_slices = 2);
    BREAK("parameters", region->results.n = 1);
    BREAK("does not stand in it", region->results.at[0] = top[0]);
    BREAK("on axis data the operator does not make", body[1]->type[0].kind = AXIS_REPLICATED);
    BREAK("on axis tensor the operator does not make", top[6]->type[1].kind = AXIS_REPLICATED);
    BREAK("there is no axis", top[7]->attrs[0].integer = 5);
    BREAK("that it lacks", top[7]->type[0].dim = graph->dims.at[1]);
    BREAK("do not divide", ((MeshAxis *)&graph->mesh->axes[0])->size = 3);
    BREAK("input and tensor", graph->tensors.at[0]->type[0] = (AxisType){0});
    BREAK("output", graph->outputs.at[0].tensor->dtype = DT_I32);
    BREAK("output", graph->outputs.at[0].value = repeat);
    BREAK("stands twice", graph->dims.at[1]->name = graph->dims.at[0]->name);
    BREAK("factors of head", graph->dims.at[4]->size = 3);
    BREAK("tensor x stands twice", graph->tensors.at[1]->name = graph->tensors.at[0]->name);
#undef BREAK
    assert_int_equal(diag_count(*state, SEV_ERROR), 0); /* its inferences report nothing to the user */
}

/* ---- meshes and extents ------------------------------------------------------------------------------------------ */

static void test_mesh(void **state) {
    (void)state;
    Mesh mesh = {.axes = {{.name = "a", .size = 2}, {.name = "b", .size = 3}, {.name = "c", .size = 4}}, .n = 3};
    assert_int_equal(mesh_ranks(&mesh), 24);
    for (int64_t rank = 0; rank < 24; rank++) {
        int64_t a = mesh_coordinate(&mesh, rank, 0), b = mesh_coordinate(&mesh, rank, 1),
                c = mesh_coordinate(&mesh, rank, 2);
        assert_int_equal((a * 3 + b) * 4 + c, rank);
        assert_true(a < 2 && b < 3 && c < 4);
    }
}

/* What local and logical indices say of a dimension that several axes cut, against a list that is cut as they do. */
static void test_positions(void **state) {
    (void)state;
    Mesh mesh = {.axes = {{.name = "a", .size = 3}, {.name = "b", .size = 2}}, .n = 2};
    Dim seq = {.name = "seq", .size = 48};
    for (int which = 0; which < 16; which++) {
        AxisType type[MAX_MESH] = {{.kind = AXIS_SHARDED, .dim = &seq}, {.kind = AXIS_SHARDED, .dim = &seq}};
        for (int a = 0; a < 2; a++) type[a].layout = which >> a & 1 ? LAYOUT_BALANCED : LAYOUT_BLOCK, type[a].turn = which >> (2 + a) & 1;
        int held[48] = {0};
        for (int64_t rank = 0; rank < 6; rank++) {
            int64_t at[48], n = 48;
            for (int64_t i = 0; i < n; i++) at[i] = i;
            for (int k = 0; k < 4; k++) { /* what is balanced cuts first */
                int a = k % 2;
                bool balanced = type[a].layout == LAYOUT_BALANCED;
                if (balanced != (k < 2)) continue;
                int64_t size = mesh.axes[a].size, pieces = balanced ? 2 * size : size, unit = n / pieces, kept = 0;
                int64_t me = (mesh_coordinate(&mesh, rank, a) + size - type[a].turn) % size;
                for (int64_t i = 0; i < n; i++)
                    if (i / unit == me || (balanced && i / unit == pieces - 1 - me)) at[kept++] = at[i];
                n = kept;
            }
            assert_int_equal(local_extent(&mesh, type, &seq), n);
            for (int64_t i = 0; i < n; i++) {
                assert_int_equal(local_to_logical(&mesh, type, &seq, rank, i), at[i]);
                assert_int_equal(logical_to_local(&mesh, type, &seq, rank, at[i]), i);
                held[at[i]]++;
            }
        }
        for (int i = 0; i < 48; i++) assert_int_equal(held[i], 1);
    }
    assert_true(cut_is_inside((AxisType){.layout = LAYOUT_BLOCK}, 0, (AxisType){.layout = LAYOUT_BALANCED}, 1));
    assert_false(cut_is_inside((AxisType){.layout = LAYOUT_BLOCK}, 0, (AxisType){.layout = LAYOUT_BLOCK}, 1));
    DimCut cuts[] = {{.parts = 3, .layout = LAYOUT_BALANCED}, {.parts = 2}, {.parts = 5, .layout = LAYOUT_BALANCED}};
    assert_int_equal(cuts_multiple(cuts, 1), 6);
    assert_int_equal(cuts_multiple(cuts, 2), 6);
    assert_int_equal(cuts_multiple(cuts + 1, 2), 20);
    assert_int_equal(cuts_multiple(cuts, 3), 60);
}

static void test_extents(void **state) {
    Graph *graph = testing_parse(*state, full_text);
    const Mesh *mesh = graph->mesh;
    Dim *batch = graph->dims.at[0], *head = graph->dims.at[3], *kv = graph->dims.at[4], *group = graph->dims.at[5];
    AxisType both[MAX_MESH] = {{.kind = AXIS_SHARDED, .dim = batch}, {.kind = AXIS_SHARDED, .dim = batch}};
    AxisType heads[MAX_MESH] = {{.kind = AXIS_REPLICATED}, {.kind = AXIS_SHARDED, .dim = head}};
    for (int64_t rank = 0; rank < 4; rank++) {
        assert_int_equal(local_extent(mesh, both, batch), 1);
        assert_int_equal(local_offset(mesh, both, batch, rank), rank); /* outermost axis first */
        assert_int_equal(local_offset(mesh, heads, head, rank), 2 * (rank % 2));
        assert_int_equal(local_offset(mesh, heads, kv, rank), rank % 2);
        assert_int_equal(local_offset(mesh, heads, group, rank), 0);
    }
    assert_int_equal(local_extent(mesh, heads, head), 2);
    assert_int_equal(local_extent(mesh, heads, kv), 1);
    assert_int_equal(local_extent(mesh, heads, group), 2);
    assert_int_equal(local_extent(NULL, heads, head), 4);
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

/* Carry, slice, capture, index and stacked values; both directions. */
static void test_repeat(void **state) {
    for (int descending = 0; descending < 2; descending++) {
        char text[700];
        snprintf(text, sizeof text,
                 "graph g { dim layers = 3, a = 2; tensor x: f32[a]; tensor w: weight f32[layers, a]; tensor s: f32[]\n"
                 "%%r = repeat layers%s (%%x = carry @x, %%w = slice @w, %%s = capture @s) {\n"
                 "  %%i = layer_index(); %%f = cast(%%i, dtype = f32); %%y = mul(%%x, %%s); %%z = add(%%y, %%w)\n"
                 "  %%q = add(%%z, %%f); next %%q; stack %%x; stack %%f }\n"
                 "%%0 = result(%%r, index = 0); %%1 = result(%%r, index = 1); %%2 = result(%%r, index = 2)\n"
                 "output %%0; output %%1; output %%2 }",
                 descending ? " descending" : "");
        Session *session = *state;
        Graph *graph = testing_parse(session, text);
        testing_verify(graph);
        Machine *machine = machine_new(session, NULL);
        const double x[2] = {1, 2}, w[6] = {1, 2, 3, 4, 5, 6}, s = 2;
        machine_set(machine, graph->tensors.at[0], x);
        machine_set(machine, graph->tensors.at[1], w);
        machine_set(machine, graph->tensors.at[2], &s);
        machine_run(machine, graph, 0, 1, 1);
        double last[2], seen[6], index[3], carry[2] = {1, 2};
        for (int i = 0; i < 3; i++)
            machine_get(machine, graph->outputs.at[i].tensor, i == 0 ? last : i == 1 ? seen : index);
        for (int step = 0; step < 3; step++) {
            int layer = descending ? 2 - step : step;
            assert_true(index[layer] == layer);
            for (int k = 0; k < 2; k++) {
                assert_true(seen[layer * 2 + k] == carry[k]);
                carry[k] = carry[k] * 2 + w[layer * 2 + k] + layer;
            }
        }
        assert_true(last[0] == carry[0] && last[1] == carry[1]);
    }
}

/* Carries advance together, and repeats nest. */
static void test_nested_repeat(void **state) {
    Graph *graph =
        testing_parse(*state, "graph g { dim n = 5, m = 2; tensor x: f32[]; tensor y: f32[]\n"
                              "%r = repeat m (%p = carry @x, %q = carry @y) {\n"
                              "  %s = repeat n (%a = carry %p, %b = carry %q) { %c = add(%a, %b); next %b; next %c }\n"
                              "  %u = result(%s, index = 0); %v = result(%s, index = 1); next %u; next %v }\n"
                              "%0 = result(%r, index = 0); %1 = result(%r, index = 1); output %0; output %1 }");
    testing_verify(graph);
    Machine *machine = machine_new(*state, NULL);
    const double zero = 0, one = 1;
    machine_set(machine, graph->tensors.at[0], &zero);
    machine_set(machine, graph->tensors.at[1], &one);
    machine_run(machine, graph, 0, 1, 1);
    double a, b;
    machine_get(machine, graph->outputs.at[0].tensor, &a);
    machine_get(machine, graph->outputs.at[1].tensor, &b);
    assert_true(a == 55 && b == 89); /* Fibonacci */
    const char *text = testing_print(graph);
    assert_string_equal(testing_print(testing_parse(*state, text)), text);
}

/* A product whose contracted dimension is cut on one axis and a free one on the other. */
static void test_ranks(void **state) {
    Session *session = *state;
    Graph *graph = testing_parse(
        session,
        "graph g { mesh data = 2, tensor = 4; dim a = 4, k = 8, n = 3\n"
        "tensor x: f32[a, k] {data: sharded(a), tensor: sharded(k)}; tensor w: weight f32[k, n] {tensor: sharded(k)}\n"
        "%x = input x; %w = input w\n"
        "%0 = dot(%x, %w, over = [k]) : f32[a, n] {data: sharded(a), tensor: partial(sum)}\n"
        "%1 = all_reduce(%0, axis = 1) : f32[a, n] {data: sharded(a)}\n"
        "%2 = reduce_scatter(%0, axis = 1, dim = a) : f32[a, n] {data: sharded(a), tensor: sharded(a)}\n"
        "output %0; output %1 }");
    Graph *plain =
        testing_parse(session, "graph g { dim a = 4, k = 8, n = 3; tensor x: f32[a, k]; tensor w: weight f32[k, n]\n"
                               "%0 = dot(@x, @w, over = [k]); output %0 }");
    assert_broken(graph, "do not divide"); /* 2 x 4 parts of a */
    graph->top.nodes.n--;
    testing_verify(graph);
    Machine *ranks = machine_new(session, graph->mesh), *one = machine_new(session, NULL);
    double x[32], w[24], expected[12], partial[12], reduced[12];
    for (int i = 0; i < 32; i++) x[i] = i % 7 - 3;
    for (int i = 0; i < 24; i++) w[i] = i % 5 - 2;
    Machine *const machines[] = {ranks, one};
    Graph *const graphs[] = {graph, plain};
    for (int i = 0; i < 2; i++) {
        machine_set(machines[i], graphs[i]->tensors.at[0], x);
        machine_set(machines[i], graphs[i]->tensors.at[1], w);
        machine_run(machines[i], graphs[i], 0, 1, 1);
    }
    machine_get(one, plain->outputs.at[0].tensor, expected);
    machine_get(ranks, graph->outputs.at[0].tensor, partial);
    machine_get(ranks, graph->outputs.at[1].tensor, reduced);
    assert_memory_equal(expected, partial, sizeof expected);
    assert_memory_equal(expected, reduced, sizeof expected);
    assert_int_equal(machine_array(ranks, graph->tensors.at[0], 5)->n, 4);
}

/* Random bits and ramps depend on logical positions: not on ranks, not on the size of a micro-batch. */
static void test_random_positions(void **state) {
    Session *session = *state;
    static const char *const body =
        "tensor seed: scalar i32[]; tensor step: scalar i32[]; %s = input seed; %t = input step\n";
    double whole[48], part[24];
    Text texts[3] = {{.arena = session->arena}, {.arena = session->arena}, {.arena = session->arena}};
    text_printf(&texts[0],
                "graph g micro { dim c = 3, batch = 8 batch, n = 2; %s%%0 = random_normal(%%s, %%t, key = 9, dims = "
                "[c, batch, n]); output %%0 }",
                body);
    text_printf(&texts[1],
                "graph g micro { dim c = 3, batch = 4 batch, n = 2; %s%%0 = random_normal(%%s, %%t, key = 9, dims = "
                "[c, batch, n]); output %%0 }",
                body);
    text_printf(&texts[2],
                "graph g micro { mesh data = 2, tensor = 2; dim c = 3, batch = 4 batch, n = 2; %s"
                "%%0 = random_normal(%%s, %%t, key = 9, dims = [c, batch, n]) : f32[c, batch, n] {data: "
                "sharded(batch), tensor: sharded(n)}; output %%0 }",
                body);
    Graph *graph = testing_parse(session, texts[0].at);
    Machine *machine = machine_new(session, NULL);
    machine_run(machine, graph, 0, 3, 42);
    machine_get(machine, graph->outputs.at[0].tensor, whole);
    for (int variant = 1; variant < 3; variant++)
        for (int micro = 0; micro < 2; micro++) {
            graph = testing_parse(session, texts[variant].at);
            machine = machine_new(session, graph->mesh);
            testing_verify(graph);
            machine_run(machine, graph, micro, 3, 42);
            machine_get(machine, graph->outputs.at[0].tensor, part);
            for (int c = 0; c < 3; c++)
                for (int i = 0; i < 8; i++) assert_true(part[c * 8 + i] == whole[c * 16 + micro * 8 + i]);
        }
    machine_run(machine, graph, 0, 4, 42); /* another step, another draw */
    machine_get(machine, graph->outputs.at[0].tensor, part);
    assert_true(part[0] != whole[0]);
}

static void test_random_distribution(void **state) {
    Session *session = *state;
    Graph *graph = testing_parse(session, "graph g { dim a = 200, b = 100; tensor seed: scalar i32[]; %s = input seed\n"
                                          "%0 = random_normal(%s, key = 1, dims = [a, b]); %1 = random_uniform(%s, key "
                                          "= 2, dims = [a, b]); output %0; output %1 }");
    Machine *machine = machine_new(session, NULL);
    machine_run(machine, graph, 0, 0, 7);
    double *x = NEW_N(session->arena, double, 20000);
    const double mean_of[2] = {0, 0.5}, variance_of[2] = {1, 1.0 / 12};
    for (int k = 0; k < 2; k++) {
        machine_get(machine, graph->outputs.at[k].tensor, x);
        double mean = 0, variance = 0, neighbours = 0;
        for (int i = 0; i < 20000; i++) mean += x[i] / 20000;
        for (int i = 0; i < 20000; i++) variance += (x[i] - mean) * (x[i] - mean) / 20000;
        for (int i = 1; i < 20000; i++) neighbours += (x[i] - mean) * (x[i - 1] - mean) / variance / 20000;
        assert_true(fabs(mean - mean_of[k]) < 0.03 && fabs(variance / variance_of[k] - 1) < 0.05);
        assert_true(fabs(neighbours) < 0.03);
        if (k)
            for (int i = 0; i < 20000; i++) assert_true(x[i] >= 0 && x[i] < 1);
    }
}

static void test_accumulate(void **state) {
    Session *session = *state;
    Graph *graph = testing_parse(session, "graph g micro { tensor t: gradient f32[]; tensor micro: scalar i32[]\n"
                                          "%0 = cast(@micro, dtype = f32); output t += %0 }");
    Machine *machine = machine_new(session, NULL);
    for (int micro = 0; micro < 5; micro++) machine_run(machine, graph, micro, 1, 1);
    double total;
    machine_get(machine, graph->tensors.at[0], &total);
    assert_true(total == 10);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void test_table(void **state) {
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        assert_int_equal(op_table[op]->op, op);
        assert_int_equal(op_find(op_table[op]->name), op);
        if (op) assert_true(strcmp(op_table[op - 1]->name, op_table[op]->name) < 0);
    }
    assert_int_equal(op_find("nothing"), OP_COUNT);
    assert_int_equal(op_find(""), OP_COUNT);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_table),       TEST(test_round_trip),       TEST(test_every_case_round_trips),
        TEST(test_short_forms), TEST(test_bad_text),         TEST(test_truncated_text),
        TEST(test_shapes),      TEST(test_refused_operands), TEST(test_poison_is_silent),
        TEST(test_iteration),   TEST(test_verifier),         TEST(test_mesh),
        TEST(test_extents),     TEST(test_positions),        TEST(test_repeat),           TEST(test_nested_repeat),
        TEST(test_ranks),       TEST(test_random_positions), TEST(test_random_distribution),
        TEST(test_accumulate),  TEST(test_mangled_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
