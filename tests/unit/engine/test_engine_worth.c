/* The worth of speculation, and whether it goes on: by what rows cost, on a decoder whose steps take the
 * time they are told; and where all drafts are sent that have room. */
#include "support/engine_driver.h"

/* A text that repeats itself in seven tokens of eight: drafts are right more often than not. */
static struct engine_stats speculate(uint32_t step_us, uint32_t row_us)
{
    struct rig_config c = usual;
    c.speculation = ENGINE_SPECULATE_AUTO;
    c.echo = true;
    c.lazy = 3; /* whether drafts hold the next step back is asked several times a step */
    struct rig *rig = rig_open(c);
    rig->fake->step_us = step_us;
    rig->fake->row_us = row_us;
    struct engine_request *r = request_new(some_prompt(3), 20, 250);
    r->ignore_eos = true;
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    struct engine_stats s = rig_stats(rig);
    request_free(r);
    rig_close(rig);
    return s;
}

Test(engine_worth, rows_that_cost_a_step_each_turn_a_request_off)
{
    struct engine_stats s = speculate(1000, 1000);
    cr_assert_eq(s.draft_requests, 1); /* the cost of a row is unknown before one was tried */
    cr_assert_eq(s.turned_off, 1, "%lu", (unsigned long)s.turned_off);
    cr_assert_lt(s.drafted, 100, "%lu drafted", (unsigned long)s.drafted);
}

Test(engine_worth, rows_that_cost_next_to_nothing_do_not)
{
    struct engine_stats s = speculate(10000, 10); /* long beside what a busy machine adds */
    cr_assert_eq(s.draft_requests, 1);
    cr_assert_eq(s.turned_off, 0);
    cr_assert(s.accepted > 50 && s.steps_saved == s.accepted, "%lu accepted", (unsigned long)s.accepted);
}

enum { N_TOKENS = 900 };

static struct rig *open_always(uint32_t n_slots)
{
    struct rig_config c = usual;
    c.n_slots = n_slots;
    c.n_pages = 200;
    c.speculation = ENGINE_SPECULATE_ALWAYS;
    c.echo = true;
    return rig_open(c);
}

/* Tokens that drafts gave the request in step i, by the row with which its next step begins. */
static uint32_t n_given(const struct rig *rig, const struct engine_request *r, uint32_t i)
{
    const struct fake_log *log = rig->fake->log;
    uint32_t slot = r->slot, start = log[i].end_of[slot] - log[i].rows_of[slot],
             n = atomic_load(&rig->fake->n_log);
    if (log[i].rows_of[slot] == 0 || start < r->n_prompt)
        return 0;
    for (uint32_t next = i + 1; next < n; next++)
        if (log[next].rows_of[slot])
            return log[next].end_of[slot] - log[next].rows_of[slot] - start - 1;
    return r->n_prompt + N_TOKENS - 1 - start - 1;
}

Test(engine_worth, a_step_in_which_several_texts_gain_saves_what_the_one_gains_that_gains_most)
{
    struct rig *rig = open_always(2);
    struct engine_request *r[2];
    for (uint32_t i = 0; i < 2; i++) {
        r[i] = request_new(some_prompt(10 + i), 20, N_TOKENS);
        r[i]->ignore_eos = true;
        submit(rig, r[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        wait_done(rig, r[i]);
        check_tokens(r[i]);
    }
    uint64_t n_accepted = 0, n_saved = 0, n_both = 0;
    for (uint32_t i = 0; i < atomic_load(&rig->fake->n_log); i++) {
        uint32_t a = n_given(rig, r[0], i), b = n_given(rig, r[1], i);
        n_accepted += a + b;
        n_saved += a > b ? a : b;
        n_both += a && b;
    }
    struct engine_stats s = rig_stats(rig);
    cr_assert_gt(n_both, 10, "%lu steps in which both gained", (unsigned long)n_both);
    cr_expect_eq(s.accepted, n_accepted, "%lu, not %lu", (unsigned long)s.accepted,
                 (unsigned long)n_accepted);
    cr_expect_eq(s.steps_saved, n_saved, "%lu, not %lu", (unsigned long)s.steps_saved,
                 (unsigned long)n_saved);
    request_free(r[0]);
    request_free(r[1]);
    rig_close(rig);
}

/* Eight texts want more rows than there are, and where one's next token is hardly known the others have them:
 * now and then it cannot afford a draft, and then again it can. */
Test(engine_worth, drafts_that_are_not_worth_it_now_and_then_turn_no_request_off)
{
    struct rig *rig = open_always(ENGINE_MAX_CHOICES);
    struct engine_request *r[ENGINE_MAX_CHOICES];
    for (uint32_t i = 0; i < ENGINE_MAX_CHOICES; i++) { /* all start in the same step */
        r[i] = request_new(some_prompt(10), 20, N_TOKENS);
        r[i]->ignore_eos = true;
        r[i]->sampling.seed = i;
        if (i)
            r[i - 1]->next_choice = r[i];
    }
    submit(rig, r[0]);
    for (uint32_t i = 0; i < ENGINE_MAX_CHOICES; i++) {
        wait_done(rig, r[i]);
        check_tokens(r[i]);
    }
    struct engine_stats s = rig_stats(rig);
    cr_expect_eq(s.draft_requests, ENGINE_MAX_CHOICES);
    cr_expect_eq(s.turned_off, 0, "%lu", (unsigned long)s.turned_off);
    for (uint32_t i = 0; i < ENGINE_MAX_CHOICES; i++)
        request_free(r[i]);
    rig_close(rig);
}
