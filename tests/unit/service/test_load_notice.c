/* Notices of a load to the service manager. Time is an argument. */
#include "service/models/load_notice.h"

#include <criterion/criterion.h>

#define MS 1000000ull

Test(load_notice, the_beginning_is_said)
{
    struct load_notice n = {.percent = UINT32_MAX};
    cr_assert(load_notice_due(&n, 0, 0, 100 * MS));
    cr_assert_not(load_notice_due(&n, 0, 0, 200 * MS));
}

Test(load_notice, every_percent_is_said_once)
{
    struct load_notice n = {.percent = UINT32_MAX};
    load_notice_due(&n, 0.105, 1, 100 * MS);
    cr_assert(load_notice_due(&n, 0.111, 2, 200 * MS));
    cr_assert_not(load_notice_due(&n, 0.119, 3, 300 * MS));
    cr_assert_eq(n.percent, 11);
}

Test(load_notice, within_one_percent_it_is_said_every_few_seconds_that_it_moves)
{
    struct load_notice n = {.percent = UINT32_MAX};
    load_notice_due(&n, 0.5, 1, 0);
    cr_assert_not(load_notice_due(&n, 0.5, 2, (LOAD_NOTICE_MS - 1) * MS));
    cr_assert(load_notice_due(&n, 0.5, 3, LOAD_NOTICE_MS * MS));
    cr_assert_not(load_notice_due(&n, 0.5, 4, (LOAD_NOTICE_MS + 100) * MS));
    cr_assert(load_notice_due(&n, 0.5, 5, 2 * LOAD_NOTICE_MS * MS));
}

Test(load_notice, a_load_that_stands_still_is_not_said)
{
    struct load_notice n = {.percent = UINT32_MAX};
    load_notice_due(&n, 0.5, 7, 0);
    cr_assert_not(load_notice_due(&n, 0.5, 7, 10 * LOAD_NOTICE_MS * MS));
}
