/* Partitioning against the oracle: a graph on simulated ranks equals the same graph on one rank, conversions included.
 * The expected collectives are counted, so that a change in what is communicated shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "ir/op.h"
#include "partition/partition.h"

static Graph *parse(Session *s, const char *text) {
    int32_t file = session_add_text(s, "case.graph", text, strlen(text));
    Graph *graph = graph_parse(s, file);
    if (!graph) diag_flush(s, stderr, false);
    assert_non_null(graph);
    return graph;
}

/* A layout from words like "data 2: batch; tensor 2: head, seq ring". */
static Layout layout_from(Session *s, const Graph *graph, const char *text) {
    Layout layout = {0};
    char *copy = arena_strndup(s->arena, text, strlen(text)), *save = NULL;
    for (char *axis = strtok_r(copy, ";", &save); axis; axis = strtok_r(NULL, ";", &save)) {
        char name[32], rest[128];
        int size;
        assert_int_equal(sscanf(axis, " %31s %d: %127[^;]", name, &size, rest), 3);
        layout.mesh.axes[layout.mesh.n] = (MeshAxis){.name = intern(s->names, name), .size = size};
        char *inner = NULL;
        for (char *word = strtok_r(rest, ", ", &inner); word; word = strtok_r(NULL, ", ", &inner)) {
            AxisRules *rules = &layout.axes[layout.mesh.n];
            if (strcmp(word, "ring") == 0) { /* of the dimension before it */
                rules->attention = ATTENTION_RING;
                vec_push(s->arena, &rules->balanced, vec_last(&rules->names));
                continue;
            }
            Dim *dim = graph_find_dim(graph, intern(s->names, word));
            assert_non_null(dim);
            vec_push(s->arena, &rules->names, dim);
        }
        layout.mesh.n++;
    }
    return layout;
}

static int count_op(const Region *region, Op op) {
    int n = 0;
    for (int i = 0; i < region->nodes.n; i++) {
        n += region->nodes.at[i]->op == op;
        if (region->nodes.at[i]->region) n += count_op(region->nodes.at[i]->region, op);
    }
    return n;
}

static void fill(Machine *machine, const Graph *graph) {
    uint32_t seed = 1;
    for (int i = 0; i < graph->tensors.n; i++) {
        const Tensor *tensor = graph->tensors.at[i];
        int64_t n = shape_elements(&tensor->shape);
        double *values = malloc(sizeof *values * (size_t)(n + 1));
        for (int64_t k = 0; k < n; k++) {
            seed = seed * 1664525u + 1013904223u;
            values[k] = dtype_is_float(tensor->dtype) ? (double)(seed >> 8) / (1 << 24) - 0.5 : (double)(seed >> 20 & 3);
        }
        machine_set(machine, tensor, values);
        free(values);
    }
}

/* Runs the graph on one rank and, partitioned, on all ranks of the layout; all outputs must agree. Returns the
 * partitioned graph. */
static Graph *check(Session *s, const char *text, const char *axes) {
    Graph *one = parse(s, text), *many = parse(s, text);
    Layout layout = layout_from(s, many, axes);
    graph_partition(many, &layout);
    Text why = {.arena = s->arena};
    if (!graph_verify(many, &why)) {
        Text out = {.arena = s->arena};
        graph_print(many, &out);
        fail_msg("%s\n%s", why.at, out.at);
    }
    Machine *single = machine_new(s, NULL), *ranks = machine_new(s, &layout.mesh);
    fill(single, one);
    fill(ranks, many);
    machine_run(single, one, 0, 1, 7);
    machine_run(ranks, many, 0, 1, 7);
    for (int i = 0; i < one->outputs.n; i++) {
        const Tensor *a = one->outputs.at[i].tensor, *b = many->outputs.at[i].tensor;
        int64_t n = shape_elements(&a->shape);
        double *x = malloc(sizeof *x * (size_t)(n + 1)), *y = malloc(sizeof *y * (size_t)(n + 1));
        machine_get(single, a, x);
        machine_get(ranks, b, y);
        for (int64_t k = 0; k < n; k++)
            if (fabs(x[k] - y[k]) > 1e-9 * (1 + fabs(x[k]))) fail_msg("%s[%lld]: %g on one rank, %g on all", a->name, (long long)k, x[k], y[k]);
        free(x);
        free(y);
    }
    return many;
}

#define MLP                                                                                                                               \
    "graph mlp {\n"                                                                                                                       \
    " dim batch = 4\n dim seq = 8\n dim embed = 8\n dim ffn = 16\n"                                                                       \
    " tensor x: data f32[batch, seq, embed]\n tensor up: weight f32[embed, ffn]\n tensor down: weight f32[ffn, embed]\n"                  \
    " tensor y: result f32[batch, seq, embed]\n tensor g: result f32[ffn, embed]\n"                                                       \
    " %0 = input x\n %1 = input up\n %2 = input down\n"                                                                                   \
    " %3 = dot(%0, %1, over = [embed], order = [])\n %4 = tanh(%3)\n"                                                                     \
    " %5 = dot(%4, %2, over = [ffn], order = [])\n %6 = add(%0, %5)\n"                                                                    \
    " %7 = dot(%4, %5, over = [batch, seq], order = [])\n"                                                                                \
    " output y = %6\n output g = %7\n}\n"

/* A product cut along its contracted dimension gives a partial sum, joined once. */
static void test_contracted(void **state) {
    (void)state;
    Session *s = session_new();
    Graph *g = check(s, MLP, "data 2: batch; tensor 2: ffn");
    assert_true(count_op(&g->top, OP_ALL_REDUCE) >= 1);
    assert_int_equal(count_op(&g->top, OP_ALL_TO_ALL), 0);
    session_free(s);
}

/* With `seq` last in the list the same product ends in a reduce-scatter, and its input is gathered. */
static void test_sequence(void **state) {
    (void)state;
    Session *s = session_new();
    Graph *g = check(s, MLP, "tensor 2: ffn, seq");
    assert_true(count_op(&g->top, OP_REDUCE_SCATTER) >= 1);
    assert_true(count_op(&g->top, OP_ALL_GATHER) >= 1);
    session_free(s);
}

static void test_meshes(void **state) {
    (void)state;
    static const char *const meshes[] = {"data 2: batch", "data 4: batch", "tensor 4: ffn", "a 2: ffn; b 2: ffn", "a 2: embed", "a 2: seq; b 2: batch",
                                         "a 2: batch; b 2: ffn, seq", "a 4: ffn, seq; b 2: batch"};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        Session *s = session_new();
        check(s, MLP, meshes[i]);
        session_free(s);
    }
}

/* One rank of an axis of size 1 needs no communication. */
static void test_no_communication(void **state) {
    (void)state;
    Session *s = session_new();
    Graph *g = check(s,
                     "graph rows {\n dim batch = 8 batch\n dim embed = 4\n tensor x: data f32[batch, embed]\n tensor y: weight f32[batch, embed]\n"
                     " %0 = input x\n %1 = exp(%0)\n %2 = sum(%1, over = [embed])\n %3 = div(%1, %2)\n output y = %3\n}\n",
                     "data 4: batch");
    static const Op collectives[] = {OP_ALL_REDUCE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_TO_ALL, OP_SHARD};
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++) assert_int_equal(count_op(&g->top, collectives[i]), 0);
    session_free(s);
}

/* A lookup in a table cut along its rows: each rank gives what it holds, the sum is the whole. */
static void test_lookup(void **state) {
    (void)state;
    Session *s = session_new();
    check(s,
          "graph table {\n dim batch = 4\n dim vocab = 4\n dim embed = 4\n tensor t: weight f32[vocab, embed]\n tensor i: data i32[batch]\n"
          " tensor y: result f32[batch, embed]\n %0 = input t\n %1 = input i\n %2 = lookup(%0, %1, over = [vocab])\n output y = %2\n}\n",
          "tensor 2: vocab");
    session_free(s);
}

/* Keys and values are passed n - 1 times in either half, their gradients n times; on two axes, as on one of their product
 * but for the way home. Nothing is gathered. */
static void test_ring(void **state) {
    (void)state;
    static const char *const attention =
        "graph ring {\n dim batch = 2\n dim seq = 16\n dim key = 16 like seq\n dim head = 4\n dim width = 3\n"
        " tensor q: data f32[batch, seq, head, width]\n tensor k: data f32[batch, seq, head, width]\n tensor v: data f32[batch, seq, head, width]\n"
        " tensor d: data f32[batch, seq, head, width]\n tensor y: result f32[batch, seq, head, width]\n tensor dq: result f32[batch, seq, head, width]\n"
        " tensor dk: result f32[batch, key, head, width]\n tensor dv: result f32[batch, key, head, width]\n"
        " %0 = input q\n %1 = input k\n %2 = input v\n %3 = rename(%1, from = seq, to = key)\n %4 = rename(%2, from = seq, to = key)\n"
        " %5 = attend(%0, %3, %4, over = [key], causal = true)\n %6 = result(%5, index = 0)\n %7 = result(%5, index = 1)\n %8 = input d\n"
        " %9 = attend_grad(%0, %3, %4, %6, %7, %8, over = [key], causal = true, width = width)\n"
        " %10 = result(%9, index = 0)\n %11 = result(%9, index = 1)\n %12 = result(%9, index = 2)\n"
        " output y = %6\n output dq = %10\n output dk = %11\n output dv = %12\n}\n";
    static const struct {
        const char *axes;
        int passes;
    } cases[] = {{"a 2: seq ring", 2 + 2 + 4},
                 {"a 4: seq ring", 6 + 6 + 8},
                 {"a 8: seq ring", 14 + 14 + 16},
                 {"a 2: seq ring; b 2: head", 2 + 2 + 4},
                 {"b 2: batch; a 4: seq ring", 6 + 6 + 8},
                 {"a 2: seq ring; b 2: seq ring", 6 + 6 + 8},
                 {"a 1: seq ring", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Session *s = session_new();
        Graph *g = check(s, attention, cases[i].axes);
        assert_int_equal(count_op(&g->top, OP_PASS), cases[i].passes);
        session_free(s);
    }
}

/* A dimension cut by two axes becomes another one on both: one exchange, the parts in the order of the mesh. */
static void test_joint_exchange(void **state) {
    (void)state;
    static const char exchange[] =
        "graph moe {\n dim batch = 8\n dim expert = 16\n dim slot = 3\n dim in = 5\n dim out = 4\n"
        " tensor x: data f32[batch, expert, slot, in]\n tensor w: weight f32[expert, in, out]\n"
        " tensor b: weight f32[batch, expert, slot, out]\n tensor y: result f32[batch, slot, out]\n"
        " %0 = input x\n %1 = input w\n %2 = input b\n %3 = dot(%0, %1, over = [in], order = [])\n"
        " %4 = mul(%3, %2)\n %5 = sum(%4, over = [expert])\n output y = %5\n}\n";
    static const char *const layouts[] = {"data 2: batch, expert; ep 2: batch, expert", "data 4: batch, expert; ep 2: batch, expert",
                                          "data 2: batch, expert; tensor 2: out; ep 2: batch, expert",
                                          "a 2: batch, expert; b 2: batch, expert; c 2: batch, expert"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        Session *s = session_new();
        Graph *g = check(s, exchange, layouts[i]);
        int exchanges = 0;
        for (int k = 0; k < g->top.nodes.n; k++) {
            const Node *node = g->top.nodes.at[k];
            assert_true(node->op != OP_ALL_GATHER || node->shape.n < 4); /* the result alone */
            if (node->op != OP_ALL_TO_ALL) continue;
            assert_true(node_attr(node, "outer")->integer != 0);
            exchanges++;
        }
        assert_true(exchanges > 0);
        session_free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_contracted), cmocka_unit_test(test_sequence), cmocka_unit_test(test_meshes),
                                       cmocka_unit_test(test_no_communication), cmocka_unit_test(test_lookup),
                                       cmocka_unit_test(test_ring), cmocka_unit_test(test_joint_exchange)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
