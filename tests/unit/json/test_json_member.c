/* A member of a JSON object is found without parsing the rest. */
#include "json/json_member.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const char *s)
{
    static char out[16];
    return json_member_text(s, strlen(s), "model", out, sizeof out) ? out : NULL;
}

Test(json_member, text_is_found_wherever_it_stands)
{
    cr_assert_str_eq(text_of("{\"model\":\"a\"}"), "a");
    cr_assert_str_eq(text_of(" {\n\"x\" : [1,{\"model\":\"no\"}], \"model\" :\t\"b\" , \"y\":2}"), "b");
    cr_assert_str_eq(text_of("{\"x\":\"\\\"model\\\":\\\"no\\\"\",\"model\":\"c\"}"), "c");
    cr_assert_str_eq(text_of("{\"x\":\"\\\\\",\"model\":\"d\\u0065\"}"), "de");
}

Test(json_member, what_is_not_there_is_not_found)
{
    static const char *const none[] = {"",
                                       "[]",
                                       "\"model\"",
                                       "{",
                                       "{}",
                                       "{\"model\"",
                                       "{\"model\":",
                                       "{\"model\":\"a",
                                       "{\"a\":1,}",
                                       "{\"model\":null}",
                                       "{\"model\":7}",
                                       "{\"a\":{\"model\":\"x\"}}",
                                       "{\"models\":\"x\"}",
                                       "{\"a\":\"model\"}",
                                       "{\"a\\"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cr_assert_null(text_of(none[i]), "%s", none[i]);
}

Test(json_member, a_text_that_is_no_name_is_a_question_mark)
{
    cr_assert_str_eq(text_of("{\"model\":\"0123456789abcdef\"}"), "?");
    cr_assert_str_eq(text_of("{\"model\":\"\\ud800\"}"), "?");
    cr_assert_str_eq(text_of("{\"model\":\"a\\u0000b\"}"), "?");
}

Test(json_member, numbers_are_read_and_others_are_missing)
{
    const char *s = "{\"a\":12.5,\"b\":\"3\",\"c\":-1}";
    cr_assert_eq(json_member_number(s, strlen(s), "a", 7), 12.5);
    cr_assert_eq(json_member_number(s, strlen(s), "b", 7), 7);
    cr_assert_eq(json_member_number(s, strlen(s), "c", 7), -1);
    cr_assert_eq(json_member_number(s, strlen(s), "d", 7), 7);
}

/* Read past an end shows under ASan: each cut is a block of its own. */
Test(json_member, a_text_cut_anywhere_is_read_to_its_end_and_not_further)
{
    const char *s = "{\"a\":[\"\\\"\",{\"b\":null}],\"model\":\"x\\\\\",\"c\":1}";
    for (size_t n = 0; n < strlen(s); n++) {
        char *cut = malloc(n ? n : 1), out[8];
        memcpy(cut, s, n);
        if (json_member_text(cut, n, "model", out, sizeof out))
            cr_assert_str_eq(out, "x\\");
        json_member_number(cut, n, "c", 0);
        free(cut);
    }
}

Test(json_member, a_name_may_be_written_with_escapes)
{
    static const char body[] = "{\"\\u006dode\":1,\"m\\u006f\\u0064el\":\"x\",\"\\\"model\":\"y\"}";
    char out[8];
    cr_assert(json_member_text(body, sizeof body - 1, "model", out, sizeof out));
    cr_assert_str_eq(out, "x");
    cr_assert_not(json_member_text("{\"m\\u00zz\":\"x\"}", 15, "model", out, sizeof out));
}
