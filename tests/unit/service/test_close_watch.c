/* The daemon's watch over a close that takes long. */
#include "service/close_watch.h"

#include <criterion/criterion.h>

static void stand_still(struct close_watch *w, uint64_t moves, int n)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(close_watch_look(w, moves), CLOSE_STILL);
}

Test(close_watch, a_close_that_moves_now_and_then_never_hangs)
{
    struct close_watch w = {0};
    for (uint64_t moves = 1; moves < 5; moves++) {
        cr_assert_eq(close_watch_look(&w, moves), CLOSE_MOVED);
        stand_still(&w, moves, CLOSE_STILL_MOST - 1);
    }
}

Test(close_watch, one_that_stands_still_for_long_hangs)
{
    struct close_watch w = {0};
    close_watch_look(&w, 7);
    stand_still(&w, 7, CLOSE_STILL_MOST - 1);
    cr_assert_eq(close_watch_look(&w, 7), CLOSE_HANGS);
}

Test(close_watch, so_does_one_that_never_moved)
{
    struct close_watch w = {0};
    stand_still(&w, 0, CLOSE_STILL_MOST - 1);
    cr_assert_eq(close_watch_look(&w, 0), CLOSE_HANGS);
}
