/* The nearest known name to a mistyped one. */
#include "base/suggest.h"

#include <criterion/criterion.h>
#include <string.h>

static const char *const routes[] = {"generate", "stats", "health", "metrics"};

Test(nearest, swapped_neighbours_are_one_change)
{
    cr_assert_eq(nearest_distance("stast", "stats"), 1);
}

Test(nearest, letter_case_is_no_change)
{
    cr_assert_eq(nearest_distance("Stats", "stats"), 0);
}

Test(nearest, empty_words_are_as_far_as_the_other_is_long)
{
    cr_assert_eq(nearest_distance("", "stats"), 5);
    cr_assert_eq(nearest_distance("stats", ""), 5);
}

Test(nearest, finds_the_closest)
{
    cr_assert_str_eq(nearest("genrate", routes, 4), "generate");
}

Test(nearest, a_word_that_is_far_from_all_has_none)
{
    cr_assert_null(nearest("quantum", routes, 4));
}

Test(nearest, a_very_long_word_is_compared_by_its_beginning)
{
    char word[5000];
    memset(word, 'z', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    cr_assert_eq(nearest_distance(word, "stats"), 127);
}
