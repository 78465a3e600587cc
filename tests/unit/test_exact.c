#include "golden.h"
#include "cpu/exact.h"
#include "executor.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static struct step step; /* too large for a stack */

struct oracle {
    struct model *m;
    struct graph *g;
    struct exact *x;
};

static struct oracle oracle_open(const char *path, uint32_t n_slots, uint32_t n_ctx)
{
    struct oracle o = {0};
    struct error err = {0};
    cr_assert_eq(model_open(&o.m, path, &err), 0, "%s", err.text);
    cr_assert_eq(graph_open(&o.g, o.m, &err), 0, "%s", err.text);
    cr_assert_eq(exact_open(&o.x, o.g, n_slots, n_ctx, &err), 0, "%s", err.text);
    return o;
}

static void oracle_close(struct oracle *o)
{
    exact_close(o->x);
    graph_close(o->g);
    model_close(o->m);
}

static int dispatch(void *x, uint32_t node, struct error *err)
{
    return exact_dispatch(x, node, err);
}

static int run(struct oracle *o, struct error *err)
{
    int rc = exact_begin(o->x, &step, err);
    return rc < 0 ? rc : executor_walk(o->g, &(struct executor_walk){dispatch, o->x, NULL}, err);
}

/* A step of the tokens at positions [from, to) of one slot, all with logits. */
static void fill_step(const int32_t *tokens, uint32_t slot, uint32_t from, uint32_t to)
{
    memset(&step, 0, sizeof step);
    for (uint32_t pos = from; pos < to; pos++) {
        uint32_t i = step.n_rows++;
        step.rows[i] = (struct step_row){slot, pos, tokens[pos], 0, (uint16_t)i};
        step.logits[i] = (struct step_logit){(uint16_t)i, 0, -1, STEP_EXPORT, 0};
        step.n_logits++;
    }
}

static void check_golden(const char *dir, const char *name)
{
    struct golden g;
    struct error err = {0};
    cr_assert(golden_open(&g, dir, name), "%s/%s", dir, name);
    struct oracle o = oracle_open(g.model, 1, 2048);
    double worst = 0, mean = 0;
    for (uint32_t pos = 0; pos < g.n_tokens; pos += 16) {
        fill_step(g.tokens, 0, pos, pos + 16);
        cr_assert_gt(run(&o, &err), 0, "%s", err.text);
        for (uint32_t i = 0; i < 16; i++) {
            double e = golden_error(&g, pos + i, exact_logits(o.x, i));
            cr_expect(e < 2e-3, "%s position %u: %g", name, pos + i, e);
            worst = e > worst ? e : worst;
            mean += e / g.n_tokens;
        }
    }
    printf("exact %-24s worst %.2e mean %.2e\n", name, worst, mean);
    oracle_close(&o);
    golden_close(&g);
}

Test(exact, agrees_with_the_recorded_logits)
{
    for (size_t i = 0; i < GOLDEN_N_DATA; i++)
        check_golden(HEARTH_TEST_DATA, golden_data_names[i]);
}

Test(exact, agrees_with_all_recorded_logits_beside_the_checkout)
{
    const char *dir = golden_shared();
    if (!dir) {
        printf("SKIP test_exact shared-golden: ../shared/golden is not here\n");
        fflush(stdout);
        cr_skip_test("../shared/golden is not here");
    }
    for (size_t i = 0; i < GOLDEN_N_SHARED; i++)
        check_golden(dir, golden_shared_names[i]);
}
