/* Helpers of tests that work on graphs in text form: parse, fill inputs, run on simulated ranks, read outputs. */
#ifndef PLAN_TESTS_IR_TESTING_H
#define PLAN_TESTS_IR_TESTING_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ir/op.h"

/* NULL when the text is refused; then the session holds the diagnostics. */
static inline Graph *testing_try_parse(Session *session, const char *text) {
    return graph_parse(session, session_add_text(session, "test.graph", text, strlen(text)));
}

static inline Graph *testing_parse(Session *session, const char *text) {
    Graph *graph = testing_try_parse(session, text);
    if (!graph) {
        diag_flush(session, stderr, false);
        fail_msg("a graph does not parse");
    }
    return graph;
}

static inline const char *testing_print(const Graph *graph) {
    Text text = {.arena = graph->arena};
    graph_print(graph, &text);
    return text.at;
}

static inline void testing_verify(const Graph *graph) {
    Text why = {.arena = graph->arena};
    if (!graph_verify(graph, &why)) fail_msg("%s\n%s", why.at, testing_print(graph));
}

static inline double testing_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static inline const double *testing_run(Session *session, const Graph *graph, const char *input, const double *values,
                                        const char *output) {
    Machine *machine = machine_new(session, graph->mesh);
    if (input) machine_set(machine, graph_find_tensor(graph, intern(session->names, input)), values);
    machine_run(machine, graph, 0, 1, 1);
    Tensor *tensor = graph_find_tensor(graph, intern(session->names, output));
    assert_non_null(tensor);
    double *result = NEW_N(session->arena, double, shape_elements(&tensor->shape));
    machine_get(machine, tensor, result);
    return result;
}

#endif
