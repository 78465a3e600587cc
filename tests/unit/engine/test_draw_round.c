/* The order of draws, and how long steps wait for them. */
#include "engine/draw_round.h"

#include <criterion/criterion.h>

#define MS 1000000ull

Test(draw_round, a_round_lasts_as_asked_else_a_step_and_4_ms_at_least)
{
    cr_expect_eq(draw_round_time(0, 0), 4 * MS);
    cr_expect_eq(draw_round_time(0, 1.5), 4 * MS);
    cr_expect_eq(draw_round_time(0, 50), 50 * MS);
    cr_expect_eq(draw_round_time(1, 50), 1);
    cr_expect_eq(draw_round_time(90 * MS, 50), 90 * MS);
}

Test(draw_round, the_longest_waiting_draws_first_unless_its_draws_are_dear)
{
    cr_expect_lt(draw_turn(1000, 0), draw_turn(1001, 0));
    cr_expect_lt(draw_turn(1000, 50), draw_turn(1001, 50));
    cr_expect_lt(draw_turn(1070, 0), draw_turn(1000, 10), "70 ns later, but 10 ns cheaper");
    cr_expect_gt(draw_turn(1090, 0), draw_turn(1000, 10), "no draw waits for cheaper ones for ever");
}

/* The first thread may begin long after the round was opened: it waited for the team. */
Test(draw_round, its_time_begins_with_the_first_draw)
{
    struct draw_round r = {.time_ns = 4 * MS};
    cr_expect(draw_round_goes_on(&r, 900 * MS));
    cr_expect(draw_round_goes_on(&r, 900 * MS + 1));
    cr_expect(draw_round_goes_on(&r, 904 * MS - 1));
    cr_expect_not(draw_round_goes_on(&r, 904 * MS));
    cr_expect_not(draw_round_goes_on(&r, 950 * MS));
}
