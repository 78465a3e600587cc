/* Numbers of templates: how they look, the operators and filters that compute with them, and where the 64
 * bits of an integer end. Expected values are Jinja 3.1.6's; where Python's integers would go on, an error.
 */
#include "support/jinja_render.h"

#include <errno.h>
#include <stdio.h>

#define NOTHING "{}"
#define LEAST   "(-9223372036854775807 - 1)" /* the smallest integer; its digits alone are one too many */
#define MOST    "9223372036854775807"

Test(jinja_numbers, numbers_look_as_in_python)
{
    EXPECT_ALL(NOTHING, {"1.0", "1.0"}, {"0.1 + 0.2", "0.30000000000000004"}, {"1e15", "1000000000000000.0"},
               {"1e16", "1e+16"}, {"1.5e-7", "1.5e-07"}, {"0.0001", "0.0001"}, {"0.00001", "1e-05"},
               {"100.0", "100.0"}, {"-2.50", "-2.5"}, {"1e22", "1e+22"}, {"123456.789", "123456.789"});
}

Test(jinja_numbers, arithmetic)
{
    EXPECT_ALL(NOTHING, {"1 + 2 * 3", "7"}, {"(1 + 2) * 3", "9"}, {"7 / 2", "3.5"}, {"7 // 2", "3"},
               {"-7 // 2", "-4"}, {"-7 % 3", "2"}, {"7 % -3", "-2"}, {"-1.5 % 1", "0.5"},
               {"1.0 // 0.1", "9.0"}, {"-0.0 % 10", "0.0"}, {"2 ** 10", "1024"}, {"2 ** -1", "0.5"},
               {"2 ** 3 ** 2", "64"}, {"10 - 2 - 3", "5"}, {"- 3 + 2", "-1"}, {"+3", "3"}, {"-1 | abs", "1"},
               {"'a' + 'b'", "ab"}, {"[1] + [2]", "[1, 2]"}, {"(1,) + (2,)", "(1, 2)"}, {"'ab' * 2", "abab"},
               {"2 * [1]", "[1, 1]"}, {"true + true", "2"}, {"1 ~ 2 ~ 'x' ~ none", "12xNone"},
               {"1 ~ 2 + 'x'", "12x"});
    expect_fails("a\n{{ 1 / 0 }}", NOTHING, -EBADMSG, "line 2: division by zero");
    expect_fails("{{ 'a' + 1 }}", NOTHING, -EBADMSG, "a string + an integer");
}

Test(jinja_numbers, filters_of_numbers)
{
    EXPECT_ALL(NOTHING, {"'12' | int", "12"}, {"'12.7' | int", "12"}, {"'x' | int", "0"},
               {"'x' | int(5)", "5"}, {"3.9 | int", "3"}, {"'1.5' | float", "1.5"}, {"'x' | float", "0.0"},
               {"-5 | abs", "5"}, {"-5.5 | abs", "5.5"}, {"2.5 | round", "2.0"}, {"3.5 | round", "4.0"},
               {"2.567 | round(2)", "2.57"}, {"2.567 | round(1, 'floor')", "2.5"},
               {"2.51 | round(1, 'ceil')", "2.6"}, {"-0.2 | round(0, 'ceil')", "0.0"},
               {"1000000000000000000 | round(11, 'floor')", "1e+18"}, {"3 | round", "3"},
               {"25 | round(-1)", "20"}, {"-35 | round(-1)", "-40"}, {"25.5 | round(-1)", "30.0"},
               {MOST " | round", MOST});
}

Test(jinja_numbers, integers_have_64_bits)
{
    static const char *const large[] = {MOST " + 1",
                                        LEAST " - 1",
                                        MOST " * 2",
                                        "-" LEAST,
                                        LEAST " | abs",
                                        LEAST " // -1",
                                        "2 ** 63",
                                        "(-3) ** 63",
                                        LEAST " * -1",
                                        "[" MOST ", 1] | sum",
                                        "1e19 | int",
                                        "-1e400 | int",
                                        "'1e19' | int",
                                        "('9' * 80) | int",
                                        "'-9223372036854775809' | int",
                                        "'%d' % 1e19",
                                        "'%d' % 1e400",
                                        "'{:d}'.format(1e30)",
                                        MOST " | round(-1)",
                                        LEAST " | round(-3)"};
    EXPECT_ALL(NOTHING, {LEAST, "-9223372036854775808"}, {LEAST " // 1", "-9223372036854775808"},
               {LEAST " % -1", "0"}, {LEAST " % 10", "2"}, {LEAST " / -1", "9.223372036854776e+18"},
               {"(-2) ** 63", "-9223372036854775808"}, {"(-1) ** " MOST, "-1"},
               {LEAST " is divisibleby(-1)", "True"}, {MOST " | int", MOST}, {"'" MOST "' | int", MOST},
               {"9.223372036854774e18 | int", "9223372036854773760"}, {"(1e400 - 1e400) | int(7)", "7"},
               {"'nan' | int(7)", "7"}, {"'1e400' | int(7)", "7"}, {"'12\\0' | int(7)", "7"},
               {"1234567890123456785 | round(-1)", "1234567890123456780"},
               {LEAST " | round(-15)", "-9223000000000000000"});
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        char template[100];
        snprintf(template, sizeof template, "{{ %s }}", large[i]);
        expect_fails(template, NOTHING, -EBADMSG, "64 bits");
    }
    expect_fails("{{ '%x' % -1 }}", NOTHING, -EBADMSG, "%x needs an integer of 0 or more");
    expect_fails("{{ '%x' % 1.0 }}", NOTHING, -EBADMSG, "%x needs an integer");
    expect_fails("{{ 0 ** -1 }}", NOTHING, -EBADMSG, "no finite number");
    expect_fails("{{ 10.0 ** 400 }}", NOTHING, -EBADMSG, "no finite number");
    expect_fails("{{ 1e308 | round(1, 'ceil') }}", NOTHING, -EBADMSG, "not finite");
}

/* As Python has it: a negative count is no limit, whichever it is. */
Test(jinja_numbers, counts_and_bounds_may_be_any_integer)
{
    EXPECT_ALL(NOTHING, {"'aba'.replace('a', 'x', " LEAST ")", "xbx"},
               {"'aba'.replace('a', 'x', " MOST ")", "xbx"}, {"'aba' | replace('a', 'x', " LEAST ")", "xbx"},
               {"'aba' | replace('a', 'x', none)", "xbx"}, {"'aba' | replace('a', 'x', true)", "xba"},
               {"'a,b'.split(',', " LEAST ")", "['a', 'b']"}, {"'a,b'.rsplit(',', " LEAST ")", "['a', 'b']"},
               {"'a b'.split(none, " LEAST ")", "['a', 'b']"},
               {"'a b'.rsplit(none, " LEAST ")", "['a', 'b']"}, {"'a b'.split(none, " MOST ")", "['a', 'b']"},
               {"'a b'.split(none, 0)", "['a b']"}, {"'a,b'.rsplit(',', 0)", "['a,b']"},
               {"'abc'[" LEAST ":" MOST "]", "abc"}, {"'abc'[::" LEAST "]", "c"}, {"'abc'[::" MOST "]", "a"},
               {"[1, 2][" MOST "::" LEAST "]", "[2]"}, {"[1, 2][" LEAST "]", ""}, {"'ab'[" LEAST "]", ""},
               {"range(" LEAST ", " MOST ", " MOST ") | list | length", "3"},
               {"range(" MOST ", " LEAST ", " LEAST ") | list", "[" MOST ", -1]"}, {"'ab' * " LEAST, ""},
               {"'a' | indent(" LEAST ", true)", "a"});
    expect_fails("{{ 'a' | indent(" MOST ") }}", NOTHING, -EBADMSG, "more than 100");
    expect_fails("{{ 1 | round(" LEAST ") }}", NOTHING, -EBADMSG, "15 digits");
    expect_fails("{{ 'a' * " MOST " }}", NOTHING, -ELOOP, "operations");
    expect_fails("{{ range(" MOST ") }}", NOTHING, -ELOOP, "operations");
}
