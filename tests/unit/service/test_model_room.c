/* The choice of the loaded model that makes room for another. */
#include "service/models/model_room.h"

#include <criterion/criterion.h>

Test(model_room, the_one_that_fills_a_device_goes_though_another_was_idle_for_longer)
{
    const struct model_room_candidate c[] = {{.ready = true, .idle_ns = 1},
                                             {.ready = true, .fills = true, .busy = true, .idle_ns = 9},
                                             {.idle_ns = 0}};
    cr_assert_eq(model_room_choose(c, 3, false), 1);
    cr_assert_eq(model_room_choose(c, 3, true), 0);
}

Test(model_room, none_goes_where_another_fits_beside_them)
{
    const struct model_room_candidate c[] = {{.ready = true}, {.fills = true}};
    cr_assert_eq(model_room_choose(c, 2, false), -1);
    cr_assert_eq(model_room_choose(c, 0, true), -1);
}

Test(model_room, idle_ones_go_before_busy_ones_and_the_first_last_of_these)
{
    struct model_room_candidate c[] = {{.ready = true, .busy = true, .idle_ns = 1},
                                       {.ready = true, .first = true, .idle_ns = 2},
                                       {.ready = true, .idle_ns = 4},
                                       {.ready = true, .idle_ns = 3}};
    cr_assert_eq(model_room_choose(c, 4, true), 3);
    c[2].ready = c[3].ready = false;
    cr_assert_eq(model_room_choose(c, 4, true), 1);
    c[1].busy = true;
    cr_assert_eq(model_room_choose(c, 4, true), 0);
}
