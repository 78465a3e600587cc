/* The cost of rows, learnt from steps: prompts whose every chunk is as long as the price says, and what it
 * took. */
#include "engine/step_cost.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>

#define PROMPT  32000
#define STEP_MS 40.0
#define MOST    512.0

struct machine {
    double row_ms, depth_ms;
};

static double cost(const struct machine *m, double rows, double start, double *depth)
{
    *depth = rows * (start + rows / 2) / ROW_PRICE_DEPTH;
    return m->row_ms * rows + m->depth_ms * *depth;
}

/* The longest step of a prompt, without its first `free_steps`. */
static double longest_step(struct row_price *p, const struct machine *m, int free_steps)
{
    double longest = 0, depth;
    int step = 0;
    for (double start = 0; start < PROMPT; step++) {
        double rows = row_price_rows(p, STEP_MS, (uint32_t)start);
        rows = floor(fmin(rows > 0 ? rows : 64, fmin(MOST, PROMPT - start)));
        double ms = cost(m, rows, start, &depth);
        row_price_learn(p, rows, depth, ms);
        if (step >= free_steps)
            longest = fmax(longest, ms);
        start += rows;
    }
    return longest;
}

Test(row_price, steps_hold_their_time_at_every_depth)
{
    static const struct machine machines[] = {{0.02, 0.028}, {0.2, 0.028}, {0.05, 0.01}, {1, 0.05}};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        struct row_price p = {0};
        double longest = longest_step(&p, &machines[i], 1);
        cr_expect(le(dbl, longest, 1.08 * STEP_MS), "machine %zu", i);
        /* And what was learnt deep in one prompt is good for the start of the next. */
        longest = longest_step(&p, &machines[i], 0);
        cr_expect(le(dbl, longest, 1.08 * STEP_MS), "machine %zu, once more", i);
    }
}

Test(row_price, a_machine_that_changes_is_followed)
{
    struct row_price p = {0};
    struct machine m = {0.2, 0.03};
    longest_step(&p, &m, 0);
    m = (struct machine){0.4, 0.06};
    cr_expect(le(dbl, longest_step(&p, &m, 10), 1.08 * STEP_MS));
}

Test(row_price, nothing_known_and_no_time_buy_nothing)
{
    struct row_price p = {0};
    cr_expect(eq(dbl, row_price_rows(&p, STEP_MS, 0), 0));
    row_price_learn(&p, 0, 0, 1);
    cr_expect(eq(dbl, row_price_rows(&p, STEP_MS, 0), 0));
    row_price_learn(&p, 10, 0, 20);
    cr_expect(eq(dbl, row_price_rows(&p, 0, 0), 0));
    cr_expect(eq(dbl, row_price_rows(&p, 10, 0), 5));
}

/* Each row of a chunk stands deeper than the one before it. */
Test(row_price, rows_cost_the_time_they_are_had_for)
{
    static const struct machine machines[] = {{1, 0}, {0.01, 1}, {0.2, 0.028}, {1, 50}};
    static const uint32_t starts[] = {0, 100, 4096, 30000};
    for (size_t i = 0; i < 16; i++) {
        const struct machine *m = &machines[i / 4];
        struct row_price p = {.row_ms = m->row_ms, .depth_ms = m->depth_ms};
        double depth, rows = row_price_rows(&p, STEP_MS, starts[i % 4]);
        cr_expect(epsilon_eq(dbl, cost(m, rows, starts[i % 4], &depth), STEP_MS, 1e-9), "%zu", i);
    }
}

Test(row_price, a_price_stays_above_nothing)
{
    struct row_price p = {0};
    row_price_learn(&p, 10, 0, 20);
    for (int i = 0; i < 100; i++)
        row_price_learn(&p, 10, 100, 0);
    cr_expect(gt(dbl, p.row_ms, 0));
    cr_expect(ge(dbl, p.depth_ms, 0));
}
