/* The body's scan and parse, the field tables, and JSON written by hand. */
#include "base/buf.h"
#include "json/json_fields.h"
#include "json/json.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct json_limits roomy = {.max_values = 1000, .max_depth = 64};

static struct api_error refused(const char *text, size_t n, const struct json_limits *limits)
{
    struct api_error err = {0};
    cr_assert_null(json_read(text, n, limits, &err), "%.60s was accepted", text);
    cr_assert_eq(err.status, 400);
    cr_assert_str_eq(err.type, "invalid_request");
    return err;
}

static void refused_with(const char *text, const char *words)
{
    struct api_error err = refused(text, strlen(text), &roomy);
    cr_assert(strstr(err.message, words), "\"%s\" lacks \"%s\"", err.message, words);
}

Test(json, an_object_is_read)
{
    struct api_error err = {0};
    const char *text = "{\"a\": [1, 2, {\"b\": \"c\"}]}";
    json_t *root = json_read(text, strlen(text), &roomy, &err);
    cr_assert_not_null(root, "%s", err.message);
    cr_assert_eq(json_array_size(json_object_get(root, "a")), 3);
    json_decref(root);
}

static void expect_numbers(const char *text, const char *expected)
{
    struct api_error err = {0};
    json_t *root = json_read(text, strlen(text), &roomy, &err);
    cr_assert_not_null(root, "%s: %s", text, err.message);
    char *found = json_dumps(root, JSON_COMPACT);
    cr_assert_str_eq(found, expected);
    free(found);
    json_decref(root);
}

/* JavaScript writes a schema's bounds of 64 bits so. */
Test(json, an_integer_beyond_64_bits_is_a_real)
{
    expect_numbers("{\"minimum\":-9223372036854776000,\"maximum\":18446744073709552000,\"n\":5}",
                   "{\"minimum\":-9.2233720368547758e18,\"maximum\":1.8446744073709552e19,\"n\":5}");
    expect_numbers("{\"a\":[9223372036854775807,-9223372036854775808,9223372036854775808]}",
                   "{\"a\":[9223372036854775807,-9223372036854775808,9.2233720368547758e18]}");
    /* Digits in strings, and numbers that are reals already, stay as they are. */
    expect_numbers("{\"9223372036854775808\":\"\\\"9223372036854775808\",\"a\":9223372036854775808,"
                   "\"b\":12345678901234567890123.5,\"c\":\"\\\\\"}",
                   "{\"9223372036854775808\":\"\\\"9223372036854775808\",\"a\":9.2233720368547758e18,"
                   "\"b\":1.2345678901234568e22,\"c\":\"\\\\\"}");
    expect_numbers("{\"a\":123456789012345678901234567890123456789012345678901234567890}",
                   "{\"a\":1.2345678901234567e59}");
}

Test(json, a_text_with_one_is_still_refused_for_its_other_faults)
{
    refused_with("{\"a\":9223372036854775808,\n\"b\":}", "line 2");
    refused_with("{\"a\":9223372036854775808", "line 1");
    refused_with("{\"a\":\"9223372036854775808", "line 1");
    refused_with("{\"a\":-}", "line 1");
    char huge[400] = "{\"a\":";
    memset(huge + 5, '9', 320);
    strcpy(huge + 325, "}");
    refused_with(huge, "real number overflow");
}

Test(json, malformed_text_is_refused_with_line_and_column)
{
    refused_with("{\"a\": 1,\n \"b\" 2}", "line 2");
    refused_with("{\"a\": 1,\n \"b\" 2}", "column 6");
}

Test(json, an_empty_body_is_refused)
{
    refused_with("", "empty");
}
Test(json, a_body_that_is_no_object_is_refused)
{
    refused_with("[1]", "object");
}
Test(json, a_duplicate_key_is_refused)
{
    refused_with("{\"a\":1,\"a\":2}", "duplicate");
}
Test(json, a_nul_escape_is_refused)
{
    refused_with("{\"a\":\"x\\u0000y\"}", "\\u0000");
}
Test(json, a_lone_high_surrogate_is_refused)
{
    refused_with("{\"a\":\"\\ud83d!\"}", "surrogate");
}
Test(json, two_high_surrogates_are_refused)
{
    refused_with("{\"a\":\"\\ud83d\\ud83d\"}", "surrogate");
}
Test(json, a_lone_low_surrogate_is_refused)
{
    refused_with("{\"a\":\"\\ude00\"}", "surrogate");
}
Test(json, text_after_the_object_is_refused)
{
    refused_with("{} x", "line 1");
}
Test(json, invalid_utf8_is_refused)
{
    refused_with("{\"a\":\"\xff\"}", "line 1");
}
Test(json, an_open_string_is_refused)
{
    refused_with("{\"a\":\"b\\", "line 1");
}

Test(json, a_nul_byte_is_refused)
{
    struct api_error err = refused("{\"a\":\"b\0c\"}", 11, &roomy);
    cr_assert(strstr(err.message, "NUL"));
    refused("{\0}", 3, &roomy);
}

Test(json, escapes_that_are_no_character_are_mended_in_place)
{
    static const char *const cases[][2] = {
        {"a\\u0000b", "a\\ufffdb"},
        {"\\ud83d", "\\ufffd"},
        {"\\uDE00\\ud83d!", "\\ufffd\\ufffd!"},
        {"\\ud83d\\ude00", "\\ud83d\\ude00"},
        {"\\ud83d\\ud83d\\ude00", "\\ufffd\\ud83d\\ude00"},
        {"\\\\u0000 \\\\\\u0000", "\\\\u0000 \\\\\\ufffd"},
        {"\\u00", "\\u00"},
        {"\\uxxxx\\n\\", "\\uxxxx\\n\\"},
        {"\\u0001", "\\u0001"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i][0]);
        char *text = malloc(n); /* no byte behind it may be read */
        memcpy(text, cases[i][0], n);
        json_mend_escapes(text, n);
        cr_assert_eq(memcmp(text, cases[i][1], n), 0, "%s: %.*s", cases[i][0], (int)n, text);
        free(text);
    }
}

Test(json, a_surrogate_pair_is_one_character)
{
    struct api_error err = {0};
    const char *text = "{\"a\":\"\\ud83d\\ude00\"}";
    json_t *root = json_read(text, strlen(text), &roomy, &err);
    cr_assert_not_null(root, "%s", err.message);
    cr_assert_str_eq(json_string_value(json_object_get(root, "a")), "\xf0\x9f\x98\x80");
    json_decref(root);
}

Test(json, an_escaped_backslash_before_u_is_no_escape)
{
    struct api_error err = {0};
    const char *text = "{\"a\":\"\\\\ud83d\"}";
    json_t *root = json_read(text, strlen(text), &roomy, &err);
    cr_assert_not_null(root, "%s", err.message);
    json_decref(root);
}

Test(json, values_are_counted_before_parsing)
{
    struct json_limits limits = {.max_values = 5, .max_depth = 64};
    struct api_error err = {0};
    cr_assert_eq(json_scan("{\"a\":[1,2,3]}", 13, &limits, &err), 0, "%s", err.message);
    cr_assert_eq(json_scan("{\"a\":[1,2,3,4,5]}", 17, &limits, &err), -1);
    cr_assert(strstr(err.message, "more than 5 values"), "%s", err.message);
}

/* True if the words about too many values are left to the caller. */
static bool is_over(const char *text)
{
    struct json_list list = {.name = "p", .max = 3};
    struct json_limits limits = {.max_values = 8, .max_depth = 64, .list = &list};
    struct api_error err = {0};
    int rc = json_scan(text, strlen(text), &limits, &err);
    cr_assert_eq(rc < 0, list.over || err.status, "%s", text);
    cr_assert(!list.over || !err.status, "%s", text);
    return list.over;
}

Test(json, a_list_that_is_most_of_too_many_values_is_told_apart)
{
    cr_assert(is_over("{\"p\":[1,2,3,4,5,6,7,8,9]}"));
    cr_assert(is_over("{\"a\":\"b\",\"p\" : [[1,2,3,4,5,6,7,8,9]]}"));
    cr_assert(is_over("{\"p\":[\"q\",2,3,4,5,6,7,8,9]}"));
    cr_assert(!is_over("{\"p\":[1,2,3,4,5]}"), "it is too long, but not too many values");
    cr_assert(!is_over("{\"q\":[1,2,3,4,5,6,7,8,9]}"));
    cr_assert(!is_over("{\"p\":[1,2],\"q\":[1,2,3,4,5,6,7,8,9]}"));
    cr_assert(!is_over("{\"q\":[1,2,3,4,5],\"p\":[1,2]}"), "the other one is most of them");
    cr_assert(!is_over("{\"a\":{\"p\":[1,2,3,4,5,6,7,8,9]}}"), "not the body's own");
}

Test(json, commas_and_brackets_inside_strings_are_not_counted)
{
    struct json_limits limits = {.max_values = 2, .max_depth = 1};
    struct api_error err = {0};
    const char *text = "{\"a\":\"[[[,,,,{{{\\\"[,\"}";
    cr_assert_eq(json_scan(text, strlen(text), &limits, &err), 0, "%s", err.message);
}

Test(json, a_megabyte_of_brackets_is_refused_by_depth)
{
    size_t n = 1 << 20;
    char *text = malloc(n);
    memset(text, '[', n);
    struct api_error err = refused(text, n, &roomy);
    cr_assert(strstr(err.message, "nested deeper than 64"), "%s", err.message);
    free(text);
}

/* --- fields --- */

struct sample {
    bool flag, has_count;
    uint32_t count;
    int32_t level;
    uint64_t seed;
    float heat;
};
#define AT(f) offsetof(struct sample, f)
static const struct field rows[] = {
    {.name = "flag", .kind = FIELD_BOOL, .offset = AT(flag)},
    {.name = "count", .kind = FIELD_U32, .offset = AT(count), .max = 100, .given = AT(has_count)},
    {.name = "level", .kind = FIELD_I32, .offset = AT(level), .min = -100, .max = 100},
    {.name = "seed", .kind = FIELD_U64, .offset = AT(seed), .max = 9007199254740991.0},
    {.name = "temperature", .kind = FIELD_FLOAT, .offset = AT(heat), .max = 2},
    {.name = "only", .kind = FIELD_U32, .offset = AT(count), .min = 1, .max = 1},
    {.name = "label", .kind = FIELD_IGNORED},
    {0},
};

static int read_sample(const char *text, struct sample *out, struct api_error *err, bool ignore)
{
    const struct field *tables[] = {rows};
    struct field_reader reader = {.out = out, .err = err, .ignore_unknown = ignore};
    json_t *root = json_loads(text, 0, NULL);
    cr_assert_not_null(root, "%s", text);
    int rc = fields_read(&reader, root, tables, 1);
    json_decref(root);
    return rc;
}

static void field_refused(const char *text, const char *param, const char *words)
{
    struct sample s = {0};
    struct api_error err = {0};
    cr_assert_eq(read_sample(text, &s, &err, false), -1);
    cr_assert_eq(err.status, 400);
    cr_assert_str_eq(err.param, param);
    cr_assert_str_eq(err.message, words);
}

Test(fields, every_kind_reaches_its_place)
{
    struct sample s = {0};
    struct api_error err = {0};
    cr_assert_eq(read_sample("{\"flag\":true,\"count\":7,\"level\":-3,\"seed\":9007199254740991,"
                             "\"temperature\":0.5,\"label\":{}}",
                             &s, &err, false),
                 0, "%s", err.message);
    cr_assert(s.flag && s.has_count && s.count == 7 && s.level == -3 && s.seed == 9007199254740991u);
    cr_assert_float_eq(s.heat, 0.5f, 0);
}

Test(fields, null_is_the_same_as_absent)
{
    struct sample s = {.count = 9};
    struct api_error err = {0};
    cr_assert_eq(read_sample("{\"count\":null,\"temperature\":null}", &s, &err, false), 0);
    cr_assert(s.count == 9 && !s.has_count);
}

Test(fields, a_number_without_a_fraction_is_an_integer)
{
    struct sample s = {0};
    struct api_error err = {0};
    cr_assert_eq(read_sample("{\"count\":64.0}", &s, &err, false), 0, "%s", err.message);
    cr_assert_eq(s.count, 64);
    field_refused("{\"count\":1.5}", "count", "count must be an integer (got 1.5)");
}

Test(fields, what_is_out_of_range_is_named_with_limits_and_value)
{
    field_refused("{\"temperature\":7}", "temperature", "temperature must be between 0 and 2 (got 7)");
    field_refused("{\"temperature\":-0.1}", "temperature", "temperature must be between 0 and 2 (got -0.1)");
    field_refused("{\"level\":-101}", "level", "level must be between -100 and 100 (got -101)");
    field_refused("{\"seed\":9007199254740992}", "seed",
                  "seed must be between 0 and 9007199254740991 (got 9007199254740992)");
    field_refused("{\"only\":3}", "only", "only must be 1 (got 3)");
    field_refused("{\"count\":1e300}", "count", "count must be between 0 and 100 (got 1e+300)");
}

Test(fields, a_wrong_type_is_named_without_quoting_text)
{
    field_refused("{\"temperature\":\"hot\"}", "temperature", "temperature must be a number (got a string)");
    field_refused("{\"flag\":1}", "flag", "flag must be true or false (got 1)");
    field_refused("{\"count\":[]}", "count", "count must be an integer (got an empty array)");
    field_refused("{\"count\":true}", "count", "count must be an integer (got true)");
}

Test(fields, an_unknown_field_is_named_with_the_one_that_may_be_meant)
{
    field_refused("{\"temprature\":1}", "temprature",
                  "unknown field \"temprature\" (did you mean \"temperature\"?)");
    field_refused("{\"zzzzzz\":1}", "zzzzzz",
                  "unknown field \"zzzzzz\" (known: flag, count, level, seed, temperature, only, label)");
}

Test(fields, unknown_fields_can_be_let_through)
{
    struct sample s = {0};
    struct api_error err = {0};
    cr_assert_eq(read_sample("{\"zzzzzz\":1,\"count\":2}", &s, &err, true), 0);
    cr_assert_eq(s.count, 2);
}

/* --- writing --- */

static void written(const char *bytes, size_t n, const char *json)
{
    struct arena a = {0};
    struct buf b = {.arena = &a};
    json_put_string(&b, bytes, n);
    cr_assert(b.len == strlen(json) && !memcmp(b.p, json, b.len), "%.*s, not %s", (int)b.len, b.p, json);
    arena_close(&a);
}

Test(writer, strings_are_escaped)
{
    written("a\"b\\c\n\t\r\b\f\x01\x7f", 12, "\"a\\\"b\\\\c\\n\\t\\r\\b\\f\\u0001\\u007f\"");
    written("\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\"");
    written("", 0, "\"\"");
    written("a\0b", 3, "\"a\\u0000b\"");
}

Test(writer, invalid_utf8_becomes_the_replacement_character)
{
    written("a\xff", 2, "\"a\xef\xbf\xbd\"");
    written("\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\"");
    written("\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

Test(writer, numbers_that_are_not_finite_become_null)
{
    struct arena a = {0};
    struct buf b = {.arena = &a};
    json_put_number(&b, NAN, 7);
    json_put_number(&b, -INFINITY, 7);
    json_put_ms(&b, INFINITY);
    json_put_int(&b, INT64_MIN);
    cr_assert(!memcmp(b.p, "nullnullnull-9223372036854775808", 32));
    arena_close(&a);
}

Test(writer, every_byte_pair_gives_a_string_that_parses)
{
    for (int hi = 0; hi < 256; hi++) {
        struct arena a = {0};
        struct buf b = {.arena = &a};
        for (int lo = 0; lo < 256; lo++) {
            char pair[] = {(char)hi, (char)lo};
            b.len = 0;
            json_put_string(&b, pair, 2);
            json_t *back = json_loadb(b.p, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            cr_assert_not_null(back, "%02x %02x", hi, lo);
            json_decref(back);
        }
        arena_close(&a);
    }
}

Test(arena, a_large_piece_grows_and_keeps_its_bytes)
{
    struct arena a = {0};
    char *p = arena_copy(&a, "hello", 5);
    for (size_t n = 6; n < 1u << 20; n *= 2)
        cr_assert_not_null(p = arena_grow(&a, p, n, n * 2));
    cr_assert_str_eq(p, "hello");
    arena_close(&a);
}

Test(arena, an_overflowing_array_is_refused)
{
    struct arena a = {0};
    cr_assert_null(arena_array(&a, SIZE_MAX / 2, 16));
    arena_close(&a);
}
