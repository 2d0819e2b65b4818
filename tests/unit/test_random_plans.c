/* Random models under random plans (see plan_draw.h). A plan that the compiler takes runs two steps on simulated ranks:
 * in the reference evaluator, in double precision, where its losses and gradient norms equal those of one rank to nine
 * digits, and as kernels, stage by stage, to those of single precision. What it refuses, and what it takes, agrees with
 * a predicate of its own. Every kind of sentence and every pair of kinds has to occur among the plans that are taken.
 *
 * PLAN_SEED=n prints and runs that one; PLAN_COUNT=n runs the first n. */
#include "unit/stage_machine.h"

#include "unit/plan_draw.h"

/* ---- the evaluator ----------------------------------------------------------------------------------------------- */

static const Tensor *tensor_named(const Graph *graph, const char *name) {
    for (int i = 0; i < graph->outputs.n; i++)
        if (strcmp(graph->outputs.at[i].tensor->name, name) == 0) return graph->outputs.at[i].tensor;
    return NULL;
}

static void evaluator_data(Machine *m, const Graph *graph, int64_t micro) {
    for (int i = 0; i < graph->top.nodes.n; i++) {
        const Node *node = graph->top.nodes.at[i];
        if (node->op == OP_INPUT && node->tensor->class == CLASS_DATA) fill_tensor(m, node->tensor, micro);
    }
}

static void evaluator_scalar(Machine *m, const Graph *graph, const char *name, double value) {
    for (int i = 0; graph && i < graph->top.nodes.n; i++) {
        const Node *node = graph->top.nodes.at[i];
        if (node->op == OP_INPUT && strcmp(node->tensor->name, name) == 0) machine_set(m, node->tensor, &value);
    }
}

/* A plan without stages. */
static Losses evaluate(Staged *b) {
    Losses losses = {.eval = NAN};
    Step *step = b->whole;
    Machine *m = machine_new(b->s, &b->plan->mesh);
    Graph *graphs[] = {step->init, step->begin, step->body, step->update};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) evaluator_scalar(m, graphs[i], "lr", 1e-2);
    machine_run(m, step->init, 0, 0, 3);
    for (int k = 1; k <= 2; k++) {
        for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) evaluator_scalar(m, graphs[i], "step", k);
        if (step->begin) machine_run(m, step->begin, 0, k, 3);
        for (int64_t micro = 0; micro < step->micros; micro++) {
            evaluator_data(m, step->body, micro);
            machine_run(m, step->body, micro, k, 3);
        }
        machine_run(m, step->update, 0, k, 3);
        losses.loss[k - 1] = machine_array(m, tensor_named(step->update, "loss"), 0)->at[0];
        losses.norm[k - 1] = machine_array(m, tensor_named(step->update, "grad_norm"), 0)->at[0];
    }
    return losses;
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

typedef struct Reference {
    char *model;
    Losses exact, single;
} Reference;

typedef VEC(Reference) References;

/* Each model is run once. */
static const Reference *reference_of(References *known, Arena *arena, const char *model) {
    for (int i = 0; i < known->n; i++)
        if (strcmp(known->at[i].model, model) == 0) return &known->at[i];
    Staged b;
    if (!staged_build(&b, model, "plan p { }\n")) {
        diag_flush(b.s, stderr, false);
        fail_msg("refused on one rank:\n%s", model);
    }
    Reference made = {.model = arena_printf(arena, "%s", model), .exact = evaluate(&b)};
    made.single = staged_run(&b, "plan p { }\n");
    staged_free(&b);
    vec_push(arena, known, made);
    return &vec_last(known);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

typedef struct Tally {
    int taken, failures, alone[N_KINDS], pairs[N_KINDS][N_KINDS];
} Tally;

static bool near(double got, double want, double tolerance) { return fabs(got - want) <= tolerance * fabs(want); }

static bool equals(const char *what, const Losses *got, const Losses *want, double loss, double norm) {
    bool good = true;
    for (int k = 0; k < 2; k++) {
        if (near(got->loss[k], want->loss[k], loss) && near(got->norm[k], want->norm[k], norm)) continue;
        print_message("%s, step %d: loss %.12g, %.12g on one rank; gradient norm %.12g, %.12g\n", what, k + 1,
                      got->loss[k], want->loss[k], got->norm[k], want->norm[k]);
        good = false;
    }
    return good;
}

static bool run_taken(Staged *b, const char *plan, const Reference *one) {
    bool good = true;
    if (!b->is_pipeline) {
        Losses exact = evaluate(b);
        good = equals("evaluator", &exact, &one->exact, 1e-9, 1e-8);
    }
    Losses kernels = staged_run(b, plan);
    return equals("kernels", &kernels, &one->single, 2e-5, 1e-4) && good;
}

static void run_seed(int seed, bool prints, References *known, Arena *arena, Tally *tally) {
    Drawn d = draw(seed);
    Arena *texts = arena_new();
    char *model = model_text(texts, &d), *plan = plan_text(texts, &d);
    if (prints) printf("%s%s", model, plan);
    Staged b;
    bool taken = staged_build(&b, model, plan), good = taken == legal(&d, model);
    if (!good) {
        diag_flush(b.s, stderr, false);
        print_message("the compiler %s this plan\n", taken ? "takes" : "refuses");
    } else if (taken)
        good = run_taken(&b, plan, reference_of(known, arena, model));
    if (!good) printf("seed %d:\n%s%s", seed, model, plan); /* cmocka cuts long messages */
    tally->failures += !good;
    tally->taken += taken;
    for (int x = 0; x < N_KINDS; x++) {
        tally->alone[x] += taken && d.kinds[x];
        for (int y = 0; y < N_KINDS; y++) tally->pairs[x][y] += d.kinds[x] && d.kinds[y];
    }
    staged_free(&b);
    arena_free(texts);
}

/* Of 2,000 plans: each kind is taken at least 50 times, each pair drawn 20 times (some, such as `ulysses` with
 * `repeated`, have no meaning together: then the refusal is what is tested). */
static void check_tally(const Tally *tally, int count) {
    int rarest = count, rarest_pair = count;
    for (int x = 0; x < N_KINDS; x++) {
        if (tally->alone[x] < rarest) rarest = tally->alone[x];
        if (tally->alone[x] * 40 < count) print_message("`%s` occurred %d times\n", kinds[x].name, tally->alone[x]);
        for (int y = 0; y < x; y++) {
            if (kinds[x].slot && kinds[x].slot == kinds[y].slot) continue;
            if (tally->pairs[x][y] < rarest_pair) rarest_pair = tally->pairs[x][y];
            if (tally->pairs[x][y] * 100 < count)
                print_message("`%s` with `%s` occurred %d times\n", kinds[x].name, kinds[y].name, tally->pairs[x][y]);
        }
    }
    print_message("%d of %d plans accepted; each kind at least %d times, each pair at least %d times\n", tally->taken,
                  count, rarest, rarest_pair);
    assert_true(tally->taken * 10 >= count * 6);
    if (count >= 200) assert_true(rarest * 40 >= count);
    if (count >= 2000) assert_true(rarest_pair * 100 >= count);
}

static void test_random_plans(void **state) {
    (void)state;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *seed = getenv("PLAN_SEED"), *count_text = getenv("PLAN_COUNT");
    int first = seed ? atoi(seed) : 1, count = seed ? 1 : count_text ? atoi(count_text) : 200;
    Arena *arena = arena_new();
    References known = {0};
    Tally tally = {0};
    for (int i = first; i < first + count; i++) run_seed(i, seed, &known, arena, &tally);
    if (!seed) check_tally(&tally, count);
    assert_int_equal(tally.failures, 0);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_plans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
