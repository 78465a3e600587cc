/* Foreign text for the log, the service manager and terminals: nothing in it is obeyed, all of it is shown.
 */
#include "base/escape.h"
#include "base/utf8.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char *escaped(const char *text, enum escape_style style)
{
    static char out[512];
    size_t n = 0;
    cr_assert(escape_append(out, sizeof out, &n, text, strlen(text), style));
    out[n] = '\0';
    return out;
}

Test(escape, what_a_line_or_a_terminal_obeys_is_escaped)
{
    static const struct {
        const char *text, *line;
    } cases[] = {
        {"plain \"text\" \\ é €", "plain \"text\" \\ é €"},
        {"a\nREADY=1\rb\tc", "a\\x0aREADY=1\\x0db\\x09c"},
        {"\x1b[2J\x7f\x07", "\\x1b[2J\\x7f\\x07"},
        {"C1 raw \x9b 2J", "C1 raw \\x9b 2J"},
        {"C1 \xc2\x9b 2J \xc2\x85", "C1 \\u009b 2J \\u0085"},
        {"no UTF-8 \xff\xe2\x82\xc0\x80", "no UTF-8 \\xff\\xe2\\x82\\xc0\\x80"},
        {"surrogate \xed\xa0\x80", "surrogate \\xed\\xa0\\x80"},
        {"\xe2\x80\xae"
         "fdp.exe\xe2\x80\xac",
         "\\u202efdp.exe\\u202c"},
        {"\xe2\x81\xa6x\xe2\x81\xa9\xd8\x9c\xe2\x80\x8f", "\\u2066x\\u2069\\u061c\\u200f"},
        {"\xe2\x80\xa8\xe2\x80\xa9", "\\u2028\\u2029"},
        {"\xef\xbb\xbfname\xe2\x80\x8b\xe2\x81\xa0\xc2\xad", "\\ufeffname\\u200b\\u2060\\u00ad"},
        {"tags \xf3\xa0\x80\x81\xf3\xa0\x81\xbf", "tags \\U000e0001\\U000e007f"},
        {"joined \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac",
         "joined \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_str_eq(escaped(cases[i].text, ESCAPE_LINE), cases[i].line);
}

Test(escape, each_style_escapes_what_its_place_needs)
{
    cr_assert_str_eq(escaped("\"\\\n\t", ESCAPE_QUOTED), "\\\"\\\\\\x0a\\x09");
    cr_assert_str_eq(escaped("\"\\\n\xff\xc2\x9b", ESCAPE_JSON), "\\\"\\\\\\u000a\\u00ff\\u009b");
    cr_assert_str_eq(escaped("\xf3\xa0\x80\x81", ESCAPE_JSON), "\\udb40\\udc01");
    cr_assert_str_eq(escaped("a\n\tb\r\x1b\xc2\x9b", ESCAPE_TEXT), "a\n\tb\\x0d\\x1b\\u009b");
}

/* Every byte and every pair of bytes: the result is UTF-8 in which nothing is obeyed. */
Test(escape, no_bytes_get_through)
{
    for (unsigned bytes = 0; bytes < 65536; bytes++) {
        const char text[3] = {(char)(bytes >> 8), (char)bytes};
        char out[32];
        size_t n = 0;
        cr_assert(escape_append(out, sizeof out, &n, text, 2, ESCAPE_LINE));
        for (size_t i = 0, length; i < n; i += length) {
            length = utf8_char(out + i, n - i);
            cr_assert(length && !utf8_is_obeyed(utf8_code(out + i, length)), "%04x", bytes);
        }
    }
}

Test(escape, text_is_cut_between_characters)
{
    char out[8];
    cr_assert_str_eq(escape_line(out, sizeof out, "abcd\x1b"), "abcd");
    cr_assert_str_eq(escape_line(out, sizeof out,
                                 "abc\x1b"
                                 "d"),
                     "abc\\x1b");
    cr_assert_str_eq(escape_line(out, sizeof out, "abcde€"), "abcde");
    cr_assert_str_eq(escape_line(out, 1, "abc"), "");
}

Test(escape, what_is_printed_is_the_same)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    escape_print(f, "a\0\x1b\n", 4, ESCAPE_TEXT);
    fclose(f);
    cr_assert_str_eq(text, "a\\x00\\x1b\n");
    free(text);
}
