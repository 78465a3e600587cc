/* JSON schemas as grammars: which texts they accept, and what is refused by name. */
#include "grammar/matcher.h"
#include "schema/schema.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool accepts(const char *schema, const char *text)
{
    struct grammar *g = NULL;
    struct matcher *m;
    struct error err = {0};
    int rc = schema_compile_text(&g, schema, strlen(schema), &err);
    if (rc == -EDOM)
        return false;
    cr_assert_eq(rc, 0, "%s: %s", schema, err.text);
    cr_assert_eq(matcher_open(&m, g), 0);
    bool all = matcher_bytes(m, text, strlen(text)) == strlen(text) && matcher_can_end(m);
    matcher_close(m);
    grammar_unref(g);
    return all;
}

static void check(const char *schema, const char *const *valid, const char *const *invalid)
{
    for (; *valid; valid++)
        cr_expect(accepts(schema, *valid), "%s must accept %s", schema, *valid);
    for (; *invalid; invalid++)
        cr_expect_not(accepts(schema, *invalid), "%s must refuse %s", schema, *invalid);
}
#define TEXTS(...)                                                                                           \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        __VA_ARGS__ __VA_OPT__(, ) NULL                                                                      \
    }

Test(schema, numbers_are_bounded_digit_by_digit)
{
    check("{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
          TEXTS("0", "-9007199254740991", "9007199254740991", "5"),
          TEXTS("9007199254740992", "-9007199254740992", "1.5", "01", "1e3"));
    check("{\"exclusiveMinimum\":-0.25,\"maximum\":12.5}", TEXTS("0", "-0", "-0.2", "12.50", "9.99"),
          TEXTS("-0.25", "-0.250", "12.51", "13", "100"));
    check("{\"type\":\"number\",\"multipleOf\":0.01}", TEXTS("1.25", "3", "-0.5", "1.250"),
          TEXTS("1.255", "0.001"));
    check("{\"type\":\"integer\",\"multipleOf\":7}", TEXTS("0", "49", "-14"), TEXTS("1", "48", "7.5"));
}

/* JSON Schema takes 1.0 for an integer; a client's integer type does not. */
Test(schema, integers_are_digits)
{
    static const char *const schemas[] = {"{\"type\":\"integer\"}",
                                          "{\"type\":\"integer\",\"minimum\":1}",
                                          "{\"type\":\"number\",\"multipleOf\":7}",
                                          "{\"const\":7}",
                                          "{\"enum\":[1,7,9]}",
                                          "{\"enum\":[7.0]}"};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        check(schemas[i], TEXTS("7"), TEXTS("7.0", "7.", "7e0", "-0", "07"));
    check("{\"type\":\"integer\"}", TEXTS("0", "-1"), TEXTS("-0", "-0.0"));
    check("{\"const\":0}", TEXTS("0"), TEXTS("-0", "0.0"));
    check("{\"type\":[\"integer\",\"string\"]}", TEXTS("7", "\"7.0\""), TEXTS("7.0"));
    check("{\"anyOf\":[{\"type\":\"integer\"},{\"const\":2.5}]}", TEXTS("7", "2.5"), TEXTS("2.4"));
    check("{\"items\":{\"type\":\"integer\"},\"uniqueItems\":true,\"type\":\"array\"}", TEXTS("[7,1]"),
          TEXTS("[7.0]"));
}

/* A number that a model has begun to write comes to an end, in digits before and behind the point and in
 * exponents. */
Test(schema, numbers_have_no_endless_digits)
{
    static const char *const schemas[] = {"{\"type\":\"number\"}", "{\"minimum\":-1,\"type\":\"number\"}",
                                          "{\"type\":\"integer\"}",
                                          "{\"multipleOf\":0.5,\"type\":\"number\"}", "{\"const\":3}"};
    char zeros[80] = "3.", digits[80];
    memset(zeros + 2, '0', 32);
    memset(digits, '1', 64);
    zeros[34] = digits[64] = 0;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        bool digits_alone = i == 2 || i == 4;
        check(schemas[i], TEXTS("3"), TEXTS("3.", "-"));
        cr_expect_neq(accepts(schemas[i], "3.0"), digits_alone, "%s", schemas[i]);
        cr_expect_neq(accepts(schemas[i], zeros), digits_alone, "%s", schemas[i]);
        cr_expect(i == 4 || accepts(schemas[i], digits), "%s", schemas[i]);
        strcat(zeros, "0");
        strcat(digits, "1");
        cr_expect_not(accepts(schemas[i], zeros), "%s", schemas[i]);
        cr_expect_not(accepts(schemas[i], digits), "%s", schemas[i]);
        zeros[34] = digits[64] = 0;
    }
    check("{\"type\":\"number\"}", TEXTS("1e308", "-1.5E-300"), TEXTS("1e0001"));
    check("{\"items\":{\"type\":\"number\"}}", TEXTS("[1,2.5,-3e4]", "[1.0]"), TEXTS("[1.]"));
}

Test(schema, strings_count_characters_and_match_decoded)
{
    check("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
          TEXTS("\"ab\"", "\"日本語\"", "\"\\u00e9\\n\"", "\"😀😀\""),
          TEXTS("\"a\"", "\"abcd\"", "\"日本語x\""));
    check("{\"type\":\"string\",\"pattern\":\"^\\\"a\\\\\\\\$\"}", TEXTS("\"\\\"a\\\\\""),
          TEXTS("\"a\"", "\"\\\"a\""));
    check("{\"pattern\":\"b\"}", TEXTS("\"abc\"", "1", "{}"), TEXTS("\"ac\""));
    check("{\"type\":\"string\",\"maxLength\":524288}", TEXTS("\"\""), TEXTS("1"));
}

Test(schema, members_come_in_order_and_whitespace_is_bounded)
{
    const char *schema =
        "{\"properties\":{\"b\":{\"type\":\"integer\"},\"a\":{\"type\":\"null\"}},\"required\":[\"a\"]}";
    check(schema,
          TEXTS("{\"b\":1,\"a\":null}", "{\"a\":null}", "{\"b\": 1, \"a\": null}",
                "{\n  \"a\": null,\n  \"x\": [1]\n}"),
          TEXTS("{\"a\":null,\"b\":1}", "{\"b\":1}", "{\"x\":1,\"a\":null}", "{  \"a\":null}",
                "{\"a\":null} "));
}

Test(schema, alternatives_exclude_each_other_where_they_must)
{
    check("{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", TEXTS("1", "2.5", "\"a\""),
          TEXTS("3", "1.5"));
    check("{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"x\"},\"v\":{\"type\":\"integer\"}},\"required\":["
          "\"k\",\"v\"]},{"
          "\"properties\":{\"k\":{\"const\":\"y\"},\"v\":{\"type\":\"string\"}},\"required\":[\"k\",\"v\"]}],"
          "\"type\":\"object\"}",
          TEXTS("{\"k\":\"x\",\"v\":1}", "{\"k\":\"y\",\"v\":\"s\"}"),
          TEXTS("{\"k\":\"x\",\"v\":\"s\"}", "{\"k\":\"z\",\"v\":1}"));
    check("{\"not\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}",
          TEXTS("{\"a\":1}", "1"), TEXTS("{}", "{\"a\":\"s\"}", "{\"b\":1}"));
    check("{\"type\":\"object\",\"if\":{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},\"then\":{"
          "\"required\":[\"b\"]},"
          "\"else\":{\"maxProperties\":1}}",
          TEXTS("{\"a\":1,\"b\":2}", "{\"a\":2}", "{}"), TEXTS("{\"a\":1}", "{\"a\":2,\"b\":1}"));
}

Test(schema, arrays_count_differ_and_contain)
{
    check("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":1000,"
          "\"uniqueItems\":true}",
          TEXTS("[1]", "[1,2,12]"), TEXTS("[]", "[1,1]", "[1,2,1]"));
    check("{\"type\":\"array\",\"contains\":{\"type\":\"string\"},\"minContains\":2,\"maxItems\":4}",
          TEXTS("[\"a\",1,\"b\"]"), TEXTS("[\"a\",1]", "[1,2,3]", "[\"a\",\"b\",1,2,3]"));
    check("{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}", TEXTS("[]", "[1]", "[1,2]"),
          TEXTS("[2]", "[1,2,3]"));
}

Test(schema, recursion_goes_as_deep_as_its_limit_and_comes_back)
{
    const char *schema = "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}";
    char text[402] = "";
    check(schema, TEXTS("[]", "[[],[[]]]"), TEXTS("[1]", "[[}"));
    memset(text, '[', 60);
    memset(text + 60, ']', 60);
    cr_assert(accepts(schema, text));
    memset(text, '[', 200);
    memset(text + 200, ']', 200);
    cr_assert_not(accepts(schema, text));
}

static void refuses(const char *schema, int code, const char *keyword, const char *path)
{
    struct grammar *g = NULL;
    struct error err = {0};
    char place[128];
    snprintf(place, sizeof place, "%s at %s%s", keyword, path,
             code == -EINVAL ? ": " : " cannot be enforced");
    cr_expect_eq(schema_compile_text(&g, schema, strlen(schema), &err), code, "%s: %s", schema, err.text);
    cr_expect(!strncmp(err.text, place, strlen(place)), "%s", err.text);
    grammar_unref(g);
}

Test(schema, what_is_not_held_is_named_with_its_path)
{
    refuses("{\"properties\":{\"a\":{\"items\":{},\"uniqueItems\":true}}}", -ENOTSUP, "uniqueItems",
            "#/properties/a");
    refuses("{\"items\":{\"pattern\":\"(?<=a)b\"}}", -ENOTSUP, "pattern", "#/items");
    refuses("{\"anyOf\":[{\"$ref\":\"http://example.com/x\"}]}", -ENOTSUP, "$ref", "#/anyOf/0");
    refuses("{\"multipleOf\":0.123456789}", -ENOTSUP, "multipleOf", "#");
    refuses("{\"$ref\":\"#\"}", -ENOTSUP, "$ref", "#");
    refuses("{\"properties\":{\"a\":{\"type\":\"intger\"}}}", -EINVAL, "type", "#/properties/a");
    refuses("{\"minLength\":-1}", -EINVAL, "minLength", "#");
    refuses("{\"pattern\":\"(a|b)*a(a|b){40}\"}", -E2BIG, "pattern", "#");
}

/* Passed over it would leave a grammar that is looser than the schema. */
Test(schema, a_keyword_of_another_type_is_refused)
{
    static const char *const wrong[][2] = {{"properties", "[]"},
                                           {"properties", "true"},
                                           {"patternProperties", "[]"},
                                           {"required", "\"a\""},
                                           {"required", "[1]"},
                                           {"required", "{}"},
                                           {"dependentRequired", "{\"a\":true}"},
                                           {"dependentRequired", "{\"a\":[1]}"},
                                           {"dependentSchemas", "[]"},
                                           {"dependencies", "[]"},
                                           {"dependencies", "{\"a\":[{}]}"},
                                           {"allOf", "{}"},
                                           {"anyOf", "{\"type\":\"null\"}"},
                                           {"oneOf", "\"null\""},
                                           {"prefixItems", "{}"},
                                           {"uniqueItems", "1"},
                                           {"format", "[\"date\"]"},
                                           {"minimum", "true"},
                                           {"maximum", "\"3\""},
                                           {"exclusiveMinimum", "\"3\""},
                                           {"multipleOf", "\"3\""},
                                           {"minItems", "\"3\""},
                                           {"maxProperties", "-1"},
                                           {"pattern", "1"},
                                           {"enum", "\"a\""},
                                           {"$ref", "1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char schema[128];
        snprintf(schema, sizeof schema, "{\"properties\":{\"x\":{\"%s\":%s}}}", wrong[i][0], wrong[i][1]);
        refuses(schema, -EINVAL, wrong[i][0], "#/properties/x");
    }
    refuses("{\"$schema\":7}", -EINVAL, "$schema", "#");
    refuses("{\"required\":true}", -ENOTSUP, "required", "#");
    check("{\"minimum\":3,\"exclusiveMinimum\":true}", TEXTS("4"), TEXTS("3"));
}

/* Its target is that of the outermost resource on the way, which a grammar of nodes does not know. */
Test(schema, a_recursive_reference_is_refused_where_its_target_depends_on_the_way)
{
#define TREE(id) "\"$id\":\"" id "\",\"$recursiveAnchor\":true"
    refuses("{\"$schema\":\"https://json-schema.org/draft/2019-09/schema\"," TREE(
                "http://x/strict") ",\"$ref\":"
                                   "\"tree\",\"unevaluatedProperties\":false,\"$defs\":{\"t\":{" TREE(
                                       "tree") ",\"type\":\"object\","
                                               "\"properties\":{\"sub\":{\"$recursiveRef\":\"#\"}}}}}",
            -ENOTSUP, "$recursiveRef", "#/$defs/t/properties/sub");
    check("{\"$schema\":\"https://json-schema.org/draft/2019-09/schema\",\"type\":\"object\",\"properties\":{"
          "\"sub\":{\"$recursiveRef\":\"#\"}},\"additionalProperties\":false}",
          TEXTS("{}", "{\"sub\":{\"sub\":{}}}"), TEXTS("{\"sub\":1}", "{\"sub\":{\"x\":1}}"));
}

/* No text has so many: a count beyond 32 bits must not wrap. */
Test(schema, counts_of_billions_are_no_bounds)
{
    check("{\"items\":{\"type\":\"null\"},\"contains\":{},\"maxContains\":4294967295}", TEXTS("[null]"),
          TEXTS("[]"));
    cr_assert_not(accepts("{\"type\":\"array\",\"not\":{\"contains\":{\"type\":\"null\"},\"minContains\":0,"
                          "\"maxContains\":4294967295}}",
                          "[null]"));
    check("{\"type\":\"array\",\"maxItems\":5000000000}", TEXTS("[]", "[1]"), TEXTS("1"));
    refuses("{\"type\":\"array\",\"contains\":{\"type\":\"null\"},\"minContains\":4294967295}", -ENOTSUP,
            "contains", "#");
}

/* n copies of `part` with their numbers, between two texts. */
static char *many(const char *before, const char *part, const char *after, unsigned n)
{
    size_t room = strlen(before) + strlen(after) + n * (strlen(part) + 16) + 1, len;
    char *s = malloc(room);
    len = (size_t)sprintf(s, "%s", before);
    for (unsigned i = 0; i < n; i++)
        len += (size_t)sprintf(s + len, part, i, i);
    sprintf(s + len, "%s", after);
    return s;
}

/* Hostile schemas end in bounded work, compiled or refused; the limits are counts, so this does not depend on
 * the machine. */
Test(schema, deep_wide_and_recursive_schemas_are_bounded, .timeout = 120)
{
    char *all[] = {
        many("", "{\"items\":", "1", 150),
        many("{\"properties\":{", "\"k%u\":{\"type\":\"string\",\"pattern\":\"^a{1,200}b%u\"},", "\"z\":{}}}",
             2000),
        many("{\"anyOf\":[", "{\"required\":[\"k%u\",\"j%u\"]},", "{}]}", 3000),
        many("{\"allOf\":[", "{\"anyOf\":[{\"required\":[\"a%u\"]},{\"required\":[\"b%u\"]}]},", "{}]}", 60),
        many("{\"oneOf\":[", "{\"properties\":{\"a%u\":{\"$ref\":\"#\"},\"b%u\":{\"$ref\":\"#\"}}},", "{}]}",
             60),
        many("{\"properties\":{", "\"member number %u\":{},", "\"z\":{}}}", 30000),
        many("{\"$defs\":{", "\"d%u\":{\"$id\":\"http://x/%u\"},", "\"z\":{}}}", 20000),
        many("{\"allOf\":[", "{\"$ref\":\"#anchor%u\"},{\"$anchor\":\"anchor%u\"},", "{}]}", 30000),
        many("{\"patternProperties\":{", "\"a%u.*b%u.*c\":{\"type\":\"string\"},", "\"x\":{}}}", 40)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct grammar *g = NULL;
        struct error err = {0};
        int rc = schema_compile_text(&g, all[i], strlen(all[i]), &err);
        cr_expect(rc == 0 || err.text[0]);
        grammar_unref(g);
        free(all[i]);
    }
}

static uint32_t n_states(const char *schema)
{
    struct grammar *g;
    cr_assert_eq(schema_compile_text(&g, schema, strlen(schema), NULL), 0);
    uint32_t n = g->n_states;
    grammar_unref(g);
    return n;
}

/* A name of labels of `len` letters, the last of `last`, as JSON. */
static const char *host_of(int n, int len, int last)
{
    static char text[512];
    char *at = text;
    *at++ = '"';
    for (int i = 0; i < n; i++) {
        int m = i + 1 < n ? len : last;
        memset(at, 'a', (size_t)m);
        at += m;
        *at++ = i + 1 < n ? '.' : '"';
    }
    *at = '\0';
    return text;
}

Test(schema, a_hostname_is_no_longer_than_names_may_be)
{
#define HOST "{\"type\":\"string\",\"format\":\"hostname\"}"
    cr_assert(accepts(HOST, host_of(4, 63, 61)), "253 characters");
    cr_assert_not(accepts(HOST, host_of(4, 63, 62)), "254");
    cr_assert_not(accepts(HOST, host_of(1, 1, 64)), "a label of 64");
    cr_assert(accepts(HOST, host_of(10, 24, 24)));
    cr_assert(accepts(HOST, host_of(9, 3, 1)));
    cr_assert_not(accepts(HOST, host_of(11, 24, 24)));
}

#define EMAIL "{\"type\":\"string\",\"format\":\"email\"}"
Test(schema, the_domain_of_an_address_has_a_dot)
{
    cr_assert(accepts(EMAIL, "\"joe.bloggs~1@mail.example.com\""));
    cr_assert(accepts(EMAIL, "\"a@b.c\""));
    cr_assert_not(accepts(EMAIL, "\"a@b\""));
    cr_assert_not(accepts(EMAIL, "\"a@b.\""));
    cr_assert_not(accepts(EMAIL, "\"a..b@c.d\""));
}

Test(schema, the_29th_of_february_is_in_leap_years_alone)
{
    check("{\"type\":\"string\",\"format\":\"date\"}",
          TEXTS("\"2024-02-29\"", "\"2000-02-29\"", "\"0000-02-29\"", "\"2023-02-28\"", "\"1900-12-31\""),
          TEXTS("\"2023-02-29\"", "\"1900-02-29\"", "\"2022-02-29\"", "\"2024-02-30\"", "\"2024-00-01\""));
    check("{\"type\":\"string\",\"format\":\"date-time\"}", TEXTS("\"2024-02-29T00:00:00Z\""),
          TEXTS("\"2100-02-29T00:00:00Z\""));
}

#define URI "{\"type\":\"string\",\"format\":\"uri\"}"

/* So the masks of one are those of the other. */
Test(schema, strings_of_one_language_share_their_states)
{
    uint32_t one = n_states("{\"type\":\"object\",\"properties\":{\"a\":" URI
                            "},\"additionalProperties\":false}"),
             four =
                 n_states("{\"type\":\"object\",\"properties\":{\"a\":" URI ",\"b\":" URI ",\"c\":" URI
                          ",\"d\":{\"type\":\"array\",\"items\":" URI "}},\"additionalProperties\":false}");
    cr_assert_gt(one, 50);
    cr_assert_lt(four, 2 * one, "%u states for one, %u for four", one, four);
}
