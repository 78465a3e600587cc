/* Whether speculation goes on: by what rows cost, on a decoder whose steps take the time they are told. */
#include "engine_driver.h"

/* Of a text that says again what it said, in seven tokens of eight: drafts are right more often than not. */
static struct engine_stats speculate(uint32_t step_us, uint32_t row_us)
{
    struct rig_config c = usual;
    c.speculation = ENGINE_SPECULATE_AUTO;
    c.echo = true;
    c.lazy = 3; /* whether drafts hold the next step back is asked several times a step */
    struct rig *rig = rig_open(c);
    rig->fake->step_us = step_us;
    rig->fake->row_us = row_us;
    struct engine_request *r = request_new(some_prompt(3), 20, 400);
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
    cr_assert_eq(s.draft_requests, 1); /* nobody knows what a row costs before one was tried */
    cr_assert_eq(s.turned_off, 1, "%lu", (unsigned long)s.turned_off);
    cr_assert_lt(s.drafted, 100, "%lu drafted", (unsigned long)s.drafted);
}

Test(engine_worth, rows_that_cost_next_to_nothing_do_not)
{
    struct engine_stats s = speculate(1000, 1);
    cr_assert_eq(s.draft_requests, 1);
    cr_assert_eq(s.turned_off, 0);
    cr_assert(s.accepted > 100 && s.steps_saved == s.accepted, "%lu accepted", (unsigned long)s.accepted);
}
