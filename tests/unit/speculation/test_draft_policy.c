/* The rule by which drafts are worth their rows, with costs and odds given. */
#include "speculation/draft_policy.h"

#include <criterion/criterion.h>

/* A device on which a row more costs `slope` of a step, up to `knee` rows nothing. */
static double device_ms(uint32_t n_rows, uint32_t knee, double slope)
{
    return 10 * (1 + (n_rows > knee ? slope * (n_rows - knee) : 0));
}

static struct draft_costs costs_of(uint32_t knee, double slope)
{
    struct draft_costs c = {0};
    for (uint32_t i = 0; i < 5 * STEP_MAX_LOGITS; i++)
        draft_costs_note(&c, 1 + i / 5, 1, device_ms(1 + i / 5, knee, slope));
    for (uint32_t n = 1; n <= STEP_MAX_LOGITS; n++)
        draft_costs_note(&c, n, 0, device_ms(n, knee, slope));
    return c;
}

static struct draft_odds odds_of(float p)
{
    struct draft_odds o = {0};
    for (uint32_t i = 0; i < DRAFT_CLASSES; i++) {
        o.tries[i] = 1000;
        o.hits[i] = 1000 * p;
    }
    return o;
}

/* Tokens that one text alone drafts when every token is right with probability p. */
static uint32_t plan_alone(const struct draft_costs *c, float p)
{
    struct draft_odds odds = odds_of(p);
    struct draft_step step = {.n_rows = 1, .n_max = 31};
    struct draft_chain chain = {.odds = &odds, .length = 8, .n_max = DRAFT_MAX};
    uint32_t n = draft_plan(c, &odds, &step, &chain, 1);
    cr_assert_eq(n, chain.n);
    return n;
}

Test(draft, rows_that_cost_nothing_are_taken_whatever_the_odds)
{
    struct draft_costs c = costs_of(32, 0);
    cr_assert_eq(plan_alone(&c, 0.9f), DRAFT_MAX);
    cr_assert_gt(plan_alone(&c, 0.2f), 0);
}

Test(draft, rows_that_cost_a_step_each_are_never_taken)
{
    struct draft_costs c = costs_of(1, 1);
    cr_assert_eq(plan_alone(&c, 0.95f), 0);
}

Test(draft, as_many_as_pay)
{
    struct draft_costs free_to_four = costs_of(4, 0.5), dear = costs_of(1, 0.2);
    cr_assert_eq(plan_alone(&free_to_four, 0.6f), 3);
    cr_assert_eq(plan_alone(&dear, 0.05f), 0);
    uint32_t few = plan_alone(&dear, 0.5f), more = plan_alone(&dear, 0.8f), most = plan_alone(&dear, 0.98f);
    cr_assert(few > 0 && few < more && more < most, "%u, %u, %u", few, more, most);
}

/* Expected tokens per millisecond with n drafts. */
static double rate_of(uint32_t n, double p, double slope)
{
    double tokens = 1, reach = p;
    for (uint32_t i = 0; i < n; i++, reach *= p)
        tokens += reach;
    return tokens / device_ms(1 + n, 3, slope);
}

Test(draft, no_other_number_of_drafts_is_better)
{
    for (int slope = 0; slope < 10; slope++)
        for (int percent = 5; percent < 100; percent += 5) {
            struct draft_costs c = costs_of(3, slope * 0.1);
            uint32_t n = plan_alone(&c, (float)percent / 100);
            double rate = rate_of(n, percent * 0.01, slope * 0.1) * (n ? 1 : 1.03);
            for (uint32_t other = 0; other <= DRAFT_MAX; other++)
                cr_assert_geq(rate * 1.0001, rate_of(other, percent * 0.01, slope * 0.1),
                              "%d %%, %d: %u, not %u", percent, slope, n, other);
        }
}

Test(draft, the_likelier_text_gets_the_rows)
{
    struct draft_costs c = costs_of(1, 0.1);
    struct draft_odds good = odds_of(0.95f), bad = odds_of(0.1f);
    struct draft_step step = {.n_rows = 2, .n_max = 30};
    struct draft_chain chains[] = {{.odds = &bad, .length = 2, .n_max = DRAFT_MAX},
                                   {.odds = &good, .length = 2, .n_max = DRAFT_MAX}};
    draft_plan(&c, &bad, &step, chains, 2);
    cr_assert(chains[0].n == 0 && chains[1].n > 4, "%u, %u", chains[0].n, chains[1].n);
}

Test(draft, limits_hold)
{
    struct draft_costs c = costs_of(32, 0);
    struct draft_odds good = odds_of(1);
    struct draft_step step = {.n_rows = 2, .n_max = 5, .always = true};
    struct draft_chain chains[] = {{.odds = &good, .length = 9, .n_max = 2}, {.odds = &good, .length = 9}};
    cr_assert_eq(draft_plan(&c, &good, &step, chains, 2), 2);
    cr_assert(chains[0].n == 2 && chains[1].n == 0);
    chains[1].n_max = DRAFT_MAX;
    cr_assert_eq(draft_plan(&c, &good, &step, chains, 2), 5);
}

Test(draft, an_untried_length_is_tried_in_steps)
{
    struct draft_costs c = {0};
    cr_assert_eq(plan_alone(&c, 1), 0, "without the cost of a plain step nothing is known");
    draft_costs_note(&c, 1, 0, 10);
    static const uint32_t expected[] = {1, 3, 7, 15};
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t n = plan_alone(&c, 1);
        cr_assert_eq(n, expected[i], "%u", n);
        draft_costs_note(&c, 1 + n, n, 10);
    }
}

Test(draft, what_was_too_dear_is_forgotten_and_tried_again)
{
    struct draft_costs c = {0};
    uint32_t n_tries = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        uint32_t n = plan_alone(&c, 0.9f);
        draft_costs_note(&c, 1 + n, n, n ? 30 : 10);
        n_tries += n > 0;
    }
    cr_assert(n_tries >= 5 && n_tries <= 8, "%u", n_tries);
}

Test(draft, the_cost_of_a_plain_step_is_looked_at_again_and_again)
{
    struct draft_costs c = {0};
    uint32_t n_plain = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t n = plan_alone(&c, 0.9f);
        draft_costs_note(&c, 1 + n, n, n ? 11 : 10);
        n_plain += n == 0;
    }
    cr_assert(n_plain >= 10 && n_plain <= 30, "%u", n_plain);
}

Test(draft, a_hiccup_changes_little)
{
    struct draft_costs c = costs_of(32, 0);
    draft_costs_note(&c, 1, 0, 500);
    cr_assert_lt(draft_cost_plain(&c, 1), 13);
    draft_costs_note(&c, 5, 4, 500);
    cr_assert_gt(plan_alone(&c, 0.9f), 0);
}

Test(draft, beside_prefill_its_price_counts)
{
    struct draft_costs c = {0};
    struct draft_odds odds = odds_of(0.8f);
    struct draft_chain chain = {.odds = &odds, .length = 5, .n_max = DRAFT_MAX};
    struct draft_step step = {.n_rows = 1, .n_max = 20, .base_ms = 35, .row_ms = 0.3};
    cr_assert_gt(draft_plan(&c, &odds, &step, &chain, 1), 5);
    step.row_ms = 40;
    cr_assert_eq(draft_plan(&c, &odds, &step, &chain, 1), 0);
}

Test(draft, odds_of_one_text_stand_on_those_of_all_and_follow_what_happens)
{
    struct draft_odds all, own = {0};
    draft_odds_open(&all);
    cr_assert_lt(draft_odds_of(&own, &all, 2), draft_odds_of(&own, &all, 20));
    float before = draft_odds_of(&own, &all, 5);
    for (int i = 0; i < 30; i++)
        draft_odds_note(&own, 5, false, 24);
    cr_assert_lt(draft_odds_of(&own, &all, 5), before / 3);
    cr_assert_eq(draft_odds_of(&own, &all, 20), draft_odds_of(&(struct draft_odds){0}, &all, 20));
    for (int i = 0; i < 30; i++)
        draft_odds_note(&own, 5, true, 24);
    cr_assert_gt(draft_odds_of(&own, &all, 5), 0.65f);
}
