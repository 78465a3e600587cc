/* Which unread reply goes first. Time is an argument. */
#include "http/unread.h"

#include <criterion/criterion.h>

#define S     1000000000ull
#define SMALL 4096
#define LARGE (2 * UNREAD_LARGE)

static struct unread u;

static void begin(void)
{
    unread_open(&u);
}

TestSuite(unread, .init = begin);

Test(unread, of_one_kind_the_longest_unread_goes_first)
{
    struct unread_reply a = {0}, b = {0};
    unread_set(&u, &a, SMALL, 1 * S);
    unread_set(&u, &b, SMALL, 2 * S);
    cr_assert_eq(unread_first(&u, NULL, 9 * S), &a);
    cr_assert_eq(unread_first(&u, &a, 9 * S), &b);
    unread_set(&u, &a, SMALL, 3 * S); /* it moved */
    cr_assert_eq(unread_first(&u, NULL, 9 * S), &b);
}

Test(unread, what_was_just_written_stays_while_there_is_a_large_one)
{
    struct unread_reply figures = {0}, large = {0};
    unread_set(&u, &figures, SMALL, 10 * S);
    unread_set(&u, &large, LARGE, 10 * S + 1); /* being read: it moved last */
    cr_assert_eq(unread_first(&u, NULL, 10 * S + 2), &large);
}

Test(unread, what_nobody_reads_goes_before_what_is_being_read)
{
    struct unread_reply old = {0}, large = {0};
    unread_set(&u, &old, SMALL, 10 * S);
    unread_set(&u, &large, LARGE, 20 * S);
    cr_assert_eq(unread_first(&u, NULL, 20 * S), &old);
    cr_assert_eq(unread_first(&u, &large, 20 * S), &old);
}

Test(unread, bytes_are_those_of_what_is_there)
{
    struct unread_reply a = {0}, b = {0};
    unread_set(&u, &a, SMALL, S);
    unread_set(&u, &b, LARGE, S);
    cr_assert_eq(u.n_bytes, SMALL + LARGE);
    unread_set(&u, &b, SMALL, 2 * S);
    cr_assert_eq(u.n_bytes, 2 * SMALL);
    unread_set(&u, &a, 0, 2 * S);
    unread_set(&u, &a, 0, 2 * S);
    cr_assert_eq(u.n_bytes, SMALL);
    cr_assert_eq(unread_first(&u, NULL, 3 * S), &b);
    unread_set(&u, &b, 0, 3 * S);
    cr_assert_null(unread_first(&u, NULL, 3 * S));
}
