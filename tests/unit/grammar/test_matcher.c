/* The masks of a grammar, against the plain definition: a token is in the mask exactly when its bytes fit. */
#include "grammar/matcher.h"
#include "grammar/regex.h"
#include "schema/schema.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every byte, and tokens that span the parts of a JSON text. */
static const char *const words[] = {
    "\"",      "\",",     "\",\"",     "\":",      "\":\"",     "\": ", "\"}",   "\"]",     "{\"",
    "[\"",     "\": {\"", "},{\"",     "}]",       "name",      "age",  "ame\"", "true",    "false",
    "null",    "alse,",   "12",        "345",      "0.5",       "e+1",  "-1",    ", ",      "\n  ",
    "\n\t",    "hello",   "hel",       "lo\"",     "\\n",       "\\\"", "\\",    "u00",     "é",
    "日本",    "\xe6",    "\x97\xa5",  "\xf0\x9f", "😀",         " a",   "ab",    "abc",     "abab",
    "b\",\"a", "x1",      "a\"",       "b\"",      "a\",\"b\"", "2020", "-0",    "the cat", " sat on",
    "ing",     "\"a\"",   "\"b",       "1,2",      "],[",       "]]",   "yes",   "no",      "maybe",
    "a\":1",   "}}",      "telephone", "ab-ab-ab", "ab:",       "ab,"};
#define N_WORDS  (sizeof words / sizeof *words)
#define N_TOKENS (256 + (int)N_WORDS + 1)
#define END      (N_TOKENS - 1)

static char bytes[256];

static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    (void)context;
    if (token == END)
        return NULL;
    *len = token < 256 ? 1 : (uint32_t)strlen(words[token - 256]);
    return token < 256 ? &bytes[token] : words[token - 256];
}

static struct vocabulary *open_vocabulary(bool warm)
{
    struct vocabulary *v;
    int32_t end = END;
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    cr_assert_eq(vocabulary_open(&v, N_TOKENS, piece, NULL, &end, 1, NULL), 0);
    if (warm)
        cr_assert_eq(vocabulary_warm(v), 0);
    return v;
}

/* True if the mask must have the token, from the text alone: a fresh matcher for each token. */
static bool fits(struct grammar *g, const struct vocabulary *v, const char *text, size_t n, int32_t token)
{
    struct matcher *m;
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, text, n), n);
    bool ok = v->bytes[token] ? matcher_bytes(m, v->bytes[token], v->lens[token]) == v->lens[token]
                              : matcher_can_end(m);
    matcher_close(m);
    return ok;
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Half of the masks are made in parts of a few steps. */
static uint32_t mask_of(struct matcher *m, const struct vocabulary *v, uint32_t *mask, uint32_t seed)
{
    uint32_t n = 0;
    if (seed % 2)
        return matcher_mask(m, v, mask);
    while (!matcher_mask_part(m, v, mask, seed / 2 % 16, &n))
        ;
    return n;
}

/* Each forced byte is the only one that may follow those before it, and there the text cannot end. */
static void check_forced(struct grammar *g, struct matcher *m, const char *text, size_t n)
{
    char forced[8];
    uint32_t n_forced = matcher_forced(m, forced, sizeof forced, MATCHER_WORK);
    struct matcher *other;
    cr_assert_leq(n_forced, sizeof forced);
    for (uint32_t i = 0; i < n_forced; i++)
        for (int b = 0; b < 256; b++) {
            char byte = (char)b;
            cr_assert_eq(matcher_open(&other, g), 0);
            cr_assert_eq(matcher_bytes(other, text, n), n);
            cr_assert_eq(matcher_bytes(other, forced, i), i);
            cr_assert_not(matcher_can_end(other));
            cr_assert_eq(matcher_bytes(other, &byte, 1), byte == forced[i], "byte %d after %.*s%.*s", b,
                         (int)n, text, (int)i, forced);
            matcher_close(other);
        }
}

/* Takes a few tokens that fit, with masks whole and begun, and goes back. */
static void look_ahead(struct matcher *m, const struct vocabulary *v, uint32_t seed)
{
    uint32_t mask[(N_TOKENS + 31) / 32], n;
    cr_assert(matcher_save(m));
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t from = next(&seed) % (N_TOKENS - 1);
        for (uint32_t k = 0; k < N_TOKENS - 1; k++)
            if (matcher_token(m, v, (int32_t)((from + k) % (N_TOKENS - 1))))
                break;
        matcher_mask_part(m, v, mask, next(&seed) % 2 ? 3 : UINT64_MAX, &n);
    }
    matcher_restore(m);
}

/* Walks at random through the language; every mask is checked, and every walk can be brought to an end. */
static void walk(struct grammar *g, const struct vocabulary *v, uint32_t seed, unsigned steps)
{
    struct matcher *m;
    uint32_t mask[(N_TOKENS + 31) / 32];
    char text[4096];
    size_t n = 0;
    cr_assert_eq(matcher_open(&m, g), 0);
    for (unsigned i = 0; i < steps && n + 64 < sizeof text; i++) {
        check_forced(g, m, text, n);
        if (i % 2)
            look_ahead(m, v, seed);
        uint32_t n_allowed = mask_of(m, v, mask, next(&seed)), count = 0;
        cr_assert_gt(n_allowed, 0, "a dead end after %.*s", (int)n, text);
        for (int32_t t = 0; t < N_TOKENS; t++) {
            bool in = mask[t / 32] >> (t % 32) & 1;
            count += in;
            cr_assert_eq(in, fits(g, v, text, n, t), "token %d (%s) after %.*s: mask says %d", t,
                         t < 256    ? "byte"
                         : t == END ? "end"
                                    : words[t - 256],
                         (int)n, text, in);
        }
        cr_assert_eq(count, n_allowed);
        int32_t pick = -1;
        for (uint32_t k = next(&seed) % n_allowed + 1; k > 0; k--)
            do
                pick++;
            while (!(mask[pick / 32] >> (pick % 32) & 1));
        cr_assert(matcher_token(m, v, pick));
        if (pick == END)
            break;
        memcpy(text + n, v->bytes[pick], v->lens[pick]);
        n += v->lens[pick];
    }
    matcher_close(m);
}

static void walk_all(struct grammar *g, unsigned walks, unsigned steps)
{
    struct vocabulary *v = open_vocabulary(true);
    for (unsigned i = 0; i < walks; i++)
        walk(g, v, i, steps);
    vocabulary_close(v);
    grammar_unref(g);
}

static struct grammar *of_schema(const char *text)
{
    struct grammar *g = NULL;
    struct error err = {0};
    cr_assert_eq(schema_compile_text(&g, text, strlen(text), &err), 0, "%s", err.text);
    return g;
}

static struct grammar *of_regex(const char *text)
{
    struct grammar *g = NULL;
    struct error err = {0};
    cr_assert_eq(grammar_from_regex(&g, text, strlen(text), &err), 0, "%s", err.text);
    return g;
}

static struct grammar *of_gbnf(const char *text)
{
    struct grammar *g = NULL;
    struct error err = {0};
    cr_assert_eq(grammar_from_gbnf(&g, text, strlen(text), &err), 0, "%s", err.text);
    return g;
}

Test(matcher, bytes_are_forced_up_to_the_first_choice)
{
    static const struct {
        const char *text, *forced;
    } cases[] = {{"{\"k", "ind\":"}, {"{\"kind\":\"x", "yz\""}, {"{\"kind\":\"xyz\"}", ""}, {"", "{"}};
    struct grammar *g = of_schema("{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"xyz\",\"a\"]}},"
                                  "\"required\":[\"kind\"],\"additionalProperties\":false}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct matcher *m;
        char forced[64];
        size_t n = strlen(cases[i].text);
        cr_assert_eq(matcher_open(&m, g), 0);
        cr_assert_eq(matcher_bytes(m, cases[i].text, n), n);
        uint32_t n_forced = matcher_forced(m, forced, sizeof forced, MATCHER_WORK);
        cr_assert_eq(n_forced, strlen(cases[i].forced), "%s: %.*s", cases[i].text, (int)n_forced, forced);
        cr_assert_eq(memcmp(forced, cases[i].forced, n_forced), 0);
        matcher_close(m);
    }
    grammar_unref(g);
}

/* 200 rules that go on alike up to their ends: 200 threads for each forced byte. */
static struct grammar *forced_ambiguously(void)
{
    static char text[65536];
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= \"<\" (r0");
    for (int i = 1; i < 200; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, " | r%d", i);
    n += (size_t)snprintf(text + n, sizeof text - n, ")");
    for (int i = 0; i < 200; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "\nr%d ::= \"", i);
        for (int k = 0; k < 200; k++)
            text[n++] = (char)('a' + k % 26);
        n += (size_t)snprintf(text + n, sizeof text - n, "\" [%c-z]", 'a' + i % 20);
    }
    cr_assert_lt(n, sizeof text);
    return of_gbnf(text);
}

Test(matcher, what_is_forced_takes_no_more_memory_than_the_text)
{
    struct grammar *g = forced_ambiguously();
    struct matcher *looks, *reads;
    char forced[256];
    size_t before = grammar_bytes(g);
    cr_assert_eq(matcher_open(&reads, g), 0);
    cr_assert_eq(matcher_bytes(reads, "<", 1), 1);
    cr_assert_eq(matcher_forced(reads, NULL, 0, MATCHER_WORK), 0);
    cr_assert_eq(matcher_open(&looks, g), 0);
    cr_assert_eq(matcher_bytes(looks, "<", 1), 1);
    size_t both = grammar_bytes(g);
    uint32_t n = matcher_forced(looks, forced, sizeof forced, MATCHER_WORK);
    size_t looked = grammar_bytes(g) - both;
    cr_assert_gt(n, 50);
    cr_assert_eq(matcher_bytes(reads, forced, n), n);
    cr_assert_leq(looked, 2 * (grammar_bytes(g) - before), "%zu bytes", looked);
    cr_assert_lt(looked, 100000, "%zu bytes", looked);
    matcher_close(looks);
    matcher_close(reads);
    cr_assert_eq(grammar_bytes(g), before);
    grammar_unref(g);
}

Test(matcher, what_is_forced_is_found_in_few_steps_or_not_at_all)
{
    struct grammar *g = forced_ambiguously();
    struct matcher *m;
    char all[256], few[256];
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, "<", 1), 1);
    uint32_t n = matcher_forced(m, all, sizeof all, MATCHER_WORK), last = 0;
    cr_assert_eq(matcher_forced(m, few, sizeof few, 0), 0);
    for (uint64_t steps = 1000; last < n; steps *= 2) {
        uint32_t now = matcher_forced(m, few, sizeof few, steps);
        cr_assert(now >= last && now <= n && (steps > 1000 || now < n), "%u of %u in %lu", now, n,
                  (unsigned long)steps);
        cr_assert_eq(memcmp(all, few, now), 0);
        cr_assert_not(matcher_has_failed(m));
        last = now;
    }
    cr_assert_eq(matcher_bytes(m, all, n), n);
    matcher_close(m);
    grammar_unref(g);
}

/* One matcher looks ahead in a text whose frames are collected now and then; another only reads it. */
static void check_twins(struct matcher *m, struct matcher *other, const struct vocabulary *v,
                        const char *where)
{
    uint32_t mask[(N_TOKENS + 31) / 32], expected[(N_TOKENS + 31) / 32];
    cr_assert_eq(matcher_mask(m, v, mask), matcher_mask(other, v, expected), "%s", where);
    cr_assert_eq(memcmp(mask, expected, vocabulary_mask_words(v) * sizeof *mask), 0, "%s", where);
    cr_assert_eq(matcher_can_end(m), matcher_can_end(other), "%s", where);
}

Test(matcher, a_look_ahead_in_a_long_text_leaves_it_as_it_was)
{
    struct grammar *g = of_gbnf("root ::= (item \",\")* \".\"\nitem ::= pair | \"(\" inner \")\" | word\n"
                                "inner ::= item (\",\" item)*\npair ::= word word \"!\"\n"
                                "word ::= [a-c] [a-c] \"1\"?");
    struct vocabulary *v = open_vocabulary(true);
    struct matcher *m, *other;
    uint32_t seed = 1;
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_open(&other, g), 0);
    cr_assert_eq(matcher_bytes(m, "(((((", 5), 5);
    cr_assert_eq(matcher_bytes(other, "(((((", 5), 5);
    for (int i = 0; i < 6000; i++) {
        const char *piece = i % 3 ? "ab," : "(caab1!),";
        size_t n = strlen(piece);
        look_ahead(m, v, next(&seed));
        cr_assert_eq(matcher_bytes(m, piece, n), n);
        cr_assert_eq(matcher_bytes(other, piece, n), n);
        if (i % 97 == 0)
            check_twins(m, other, v, "inside");
    }
    cr_assert_eq(matcher_bytes(m, "ab),bc),ca),ab),ab),.", 21),
                 matcher_bytes(other, "ab),bc),ca),ab),ab),.", 21));
    check_twins(m, other, v, "at the end");
    matcher_close(m);
    matcher_close(other);
    vocabulary_close(v);
    grammar_unref(g);
}

/* Callers share a frame, so that one that lies below others may have been made after them. */
Test(matcher, a_long_text_keeps_frames_that_later_ones_call)
{
    struct grammar *g = of_gbnf("root ::= item+ \".\"\nitem ::= word \"1\" | outer \"2\" | \"(\" root \")\"\n"
                                "outer ::= inner \"3\"\ninner ::= word \"4\"\nword ::= \"a\" more \"c\"\n"
                                "more ::= \"b\" | \"(\" root \")\"");
    struct matcher *m;
    cr_assert_eq(matcher_open(&m, g), 0);
    for (int i = 0; i < 20000; i++) {
        const char *piece = i % 2 ? "abc432" : "abc1";
        size_t n = strlen(piece);
        cr_assert_eq(matcher_bytes(m, piece, n), n, "%d", i);
    }
    matcher_close(m);
    grammar_unref(g);
}

Test(matcher, looks_ahead_give_back_what_they_take)
{
    struct grammar *g = of_gbnf("root ::= item+\nitem ::= pair | \"(\" root \")\"\npair ::= word word\n"
                                "word ::= [a-c] [0-9]? ");
    struct vocabulary *v = open_vocabulary(true);
    struct matcher *m;
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, "((ab(", 5), 5);
    for (uint32_t i = 0; i < 100; i++)
        look_ahead(m, v, i);
    size_t before = grammar_bytes(g);
    for (uint32_t i = 0; i < 3000; i++)
        look_ahead(m, v, i % 100);
    cr_assert_eq(grammar_bytes(g), before);
    cr_assert_not(matcher_has_failed(m));
    cr_assert_eq(matcher_bytes(m, "ab))", 4), 4);
    matcher_close(m);
    vocabulary_close(v);
    grammar_unref(g);
}

Test(matcher, the_longest_token_of_a_text_is_found)
{
    struct vocabulary *v = open_vocabulary(false);
    int32_t token = vocabulary_longest(v, "name\":\"", 7);
    cr_assert_eq(v->lens[token], 4);
    cr_assert_eq(memcmp(v->bytes[token], "name", 4), 0);
    cr_assert_eq(v->lens[vocabulary_longest(v, "name", 3)], 1, "nam is no token");
    cr_assert_eq(vocabulary_longest(v, "~", 1), '~');
    cr_assert_eq(vocabulary_longest(v, "", 0), -1);
    vocabulary_close(v);
}

static const char *byte_and_word(const void *context, int32_t token, uint32_t *len)
{
    (void)context;
    *len = token == 2 ? 2 : 1;
    return token == 1 ? "b" : token == 2 ? "{a" : "{";
}

/* A tokenizer that falls back to bytes has them before its own words: models write the latter. */
Test(matcher, of_equal_tokens_the_longest_is_the_last)
{
    struct vocabulary *v;
    cr_assert_eq(vocabulary_open(&v, 5, byte_and_word, NULL, NULL, 0, NULL), 0);
    cr_assert_eq(vocabulary_longest(v, "{b", 2), 4);
    cr_assert_eq(vocabulary_longest(v, "{a", 2), 2);
    cr_assert_eq(vocabulary_longest(v, "b", 1), 1);
    vocabulary_close(v);
}

Test(matcher, masks_of_a_regex_are_what_fits)
{
    walk_all(of_regex("(ab|[a-z]{2,5} )*\\d{2}(é|日.)?"), 20, 12);
}

Test(matcher, masks_of_a_choice_are_what_fits)
{
    struct grammar *g;
    const char *texts[] = {"yes", "no", "maybe", "ab", "abc"};
    size_t lens[] = {3, 2, 5, 2, 3};
    cr_assert_eq(grammar_from_choice(&g, texts, lens, 5, NULL), 0);
    walk_all(g, 10, 6);
}

Test(matcher, masks_of_any_json_are_what_fits)
{
    walk_all(of_schema("{}"), 30, 14);
}

Test(matcher, masks_of_bounded_strings_are_what_fits)
{
    walk_all(
        of_schema("{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":2,"
                  "\"maxLength\":"
                  "5},\"age\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":345}},\"required\":[\"name\"],"
                  "\"maxProperties\":3}"),
        30, 20);
}

Test(matcher, masks_of_patterns_are_what_fits)
{
    walk_all(of_schema("{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a[bc]*$"
                       "\"},{\"type\":"
                       "\"string\",\"maxLength\":3},{\"const\":\"日本\"}]},\"minItems\":2,\"maxItems\":4}"),
             20, 14);
}

Test(matcher, masks_of_unique_items_are_what_fits)
{
    walk_all(of_schema("{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":{\"enum\":[\"a\","
                       "\"b\",\"ab\",1,12,"
                       "null,\"é\"]}}"),
             30, 16);
    walk_all(of_schema("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}"), 10, 14);
    walk_all(of_schema("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"pattern\":"
                       "\"^[ab]{0,40}$\"}}"),
             20, 20);
    walk_all(
        of_schema("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":[\"string\",\"boolean\"],"
                  "\"pattern\":\"^(a|b[ab]?|x.*)$\"}}"),
        20, 24);
    walk_all(
        of_schema(
            "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":3,\"items\":{\"enum\":[1,\"b\",null]}}"),
        40, 20);
}

/* At the beginning of an item every earlier one may still be repeated. */
Test(matcher, an_item_of_a_long_array_may_begin_as_all_others)
{
    struct vocabulary *v = open_vocabulary(true);
    struct grammar *g =
        of_schema("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}");
    uint32_t mask[(N_TOKENS + 31) / 32];
    struct matcher *m;
    char item[64];
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, "[\"\"", 3), 3);
    for (int i = 0; i < 1000; i++) {
        size_t n = (size_t)snprintf(item, sizeof item, ",\"item %d of a long array\"", i);
        cr_assert_eq(matcher_bytes(m, item, n), n);
    }
    cr_assert_eq(matcher_bytes(m, ",\"", 2), 2);
    cr_assert_gt(matcher_mask(m, v, mask), 0);
    cr_assert_not(matcher_has_failed(m));
    matcher_close(m);
    vocabulary_close(v);
    grammar_unref(g);
}

/* "a" and "b" are used; an item that begins with x has no end of texts. */
Test(matcher, an_item_is_not_begun_that_could_only_be_an_earlier_one)
{
    struct matcher *m;
    struct grammar *g = of_schema("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\","
                                  "\"pattern\":\"^(a|b|x.*)$\"}}");
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, "[\"a\",\"b\",\"", 10), 10);
    cr_assert_eq(matcher_bytes(m, "a", 1), 0);
    cr_assert_eq(matcher_bytes(m, "x", 1), 1);
    cr_assert_eq(matcher_bytes(m, "\",\"x", 4), 4);
    matcher_close(m);
    grammar_unref(g);
}

Test(matcher, masks_of_recursion_are_what_fits)
{
    walk_all(
        of_schema("{\"$ref\":\"#/$defs/"
                  "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"x1\"},"
                  "\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"name\"],"
                  "\"additionalProperties\":false}}}"),
        20, 16);
}

enum { N_PLAIN = N_TOKENS - 1 + 16 * 26 + 40 }; /* the last 40 are there twice */

/* Mostly plain words, so that most of a mask is that of a string, or of the state before. */
static const char *plain_piece(const void *context, int32_t token, uint32_t *len)
{
    static char pairs[16 * 26][3];
    int pair = (token - END) % (16 * 26);
    if (token < END)
        return piece(context, token, len);
    pairs[pair][0] = (char)('a' + pair / 26);
    pairs[pair][1] = (char)('a' + pair % 26);
    *len = 2;
    return pairs[pair];
}

static void check_mask(struct grammar *g, const struct vocabulary *v, const char *text)
{
    uint32_t mask[(N_PLAIN + 31) / 32];
    struct matcher *m;
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, text, strlen(text)), strlen(text));
    matcher_mask(m, v, mask);
    for (int32_t t = 0; t < (int32_t)v->n_tokens; t++)
        cr_assert_eq(mask[t / 32] >> (t % 32) & 1, fits(g, v, text, strlen(text), t),
                     "token %d (%.*s) after %s", t, (int)v->lens[t], v->bytes[t], text);
    matcher_close(m);
}

static struct vocabulary *open_plain(void)
{
    struct vocabulary *v;
    for (int b = 0; b < 256; b++)
        bytes[b] = (char)b;
    cr_assert_eq(vocabulary_open(&v, N_PLAIN, plain_piece, NULL, NULL, 0, NULL), 0);
    cr_assert_eq(vocabulary_warm(v), 0);
    return v;
}

static struct grammar *of_pattern(const char *pattern)
{
    char schema[200];
    snprintf(schema, sizeof schema, "{\"type\":\"string\",\"pattern\":\"%s\"}", pattern);
    return of_schema(schema);
}

/* Frames as deep as the limit of memos, and as that of all texts. */
Test(matcher, masks_in_deep_frames_are_what_fits)
{
    struct vocabulary *v = open_vocabulary(true);
    struct grammar *g = of_gbnf(
        "root ::= value\nvalue ::= (\"[\" ws (value (\",\" ws value)*)? \"]\" | [a-z]+) ws\nws ::= [ \\n]*");
    for (int depth = 0; depth < GRAMMAR_MAX_DEPTH + 2; depth++) {
        char text[GRAMMAR_MAX_DEPTH + 8];
        if (depth > 4 && abs(depth - GRAMMAR_MAX_DEPTH / 2) > 5 && depth < GRAMMAR_MAX_DEPTH - 8)
            continue;
        struct matcher *m;
        memset(text, '[', sizeof text);
        memcpy(text + depth, "a ", 3);
        cr_assert_eq(matcher_open(&m, g), 0);
        size_t n = matcher_bytes(m, text, strlen(text)); /* in the deepest frame no letter fits */
        matcher_close(m);
        for (int less = 0; less < 3; less++) {
            text[n - (n > 0 && less > 0)] = 0;
            n = strlen(text);
            check_mask(g, v, text);
        }
    }
    grammar_unref(g);
    vocabulary_close(v);
}

/* Each mask begins with a remembered one, from which the tokens that do not fit here are taken. */
Test(matcher, masks_that_begin_with_another_are_what_fits)
{
    static const char *const patterns[] = {"^(y.[a-z]*!|x[^a][a-z]*!|[^xy])*$",
                                           "^(y[^b-d][a-z]*!|x.{1,9}!|z[^é日][^a]*!|[^xyz])*$"};
    static const char *const texts[] = {"\"", "\"y", "\"x", "\"ya", "\"xb", "\"y!x", "\"xb!y"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        for (size_t first = 0; first < sizeof texts / sizeof *texts; first++) {
            struct grammar *g = of_pattern(patterns[i]);
            struct vocabulary *v = open_plain();
            check_mask(g, v, texts[first]);
            for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
                check_mask(g, v, texts[k]);
            grammar_unref(g);
            vocabulary_close(v);
        }
}

/* Characters that repeat, with and without a bound: the mask begins with the tokens of such characters. */
Test(matcher, masks_of_runs_are_what_fits)
{
    static const char *const patterns[] = {"^[a-p]+$",
                                           "^[b-z]*$",
                                           "^[a-z0-9-]{1,5}$",
                                           "^[a-z]{4}$",
                                           "^[^a]*$",
                                           "^.+$",
                                           "^[^\\\\u0000-\\\\u001f]{2,40}$",
                                           "^[a-z]+( [a-z]+)*$",
                                           "^([a-z]|é)*$",
                                           "^[a-z日]*[0-9]$",
                                           "^[A-Za-z][a-z]*$",
                                           "^([a-z][a-z])*$",
                                           "^[^é]{0,3}$",
                                           "^[a-z\\\\u00c0-\\\\u00e8\\\\u0100-\\\\u07ff]*$",
                                           "^[\\\\u0080-\\\\uffff]*a*$",
                                           "^[ -~]*\\\\n?$"};
    static const char *const texts[] = {"\"", "\"b", "\"bc", "\"bcd", "\"b c", "\"日", "\"é", "\"b\xe6"};
    unsigned n_checked = 0;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            struct matcher *m;
            struct grammar *g = of_pattern(patterns[i]);
            struct vocabulary *v = open_plain();
            cr_assert_eq(matcher_open(&m, g), 0);
            bool fit = matcher_bytes(m, texts[k], strlen(texts[k])) == strlen(texts[k]);
            matcher_close(m);
            if (fit) {
                check_mask(g, v, texts[k]);
                n_checked++;
            }
            grammar_unref(g);
            vocabulary_close(v);
        }
    cr_assert_geq(n_checked, 60, "%u", n_checked);
}

enum { N_MANY = 1600000 }; /* a mask has 200 KB */

static const char *few_piece(const void *context, int32_t token, uint32_t *len)
{
    return token < END ? piece(context, token, len) : NULL;
}

/* 58 states, whose masks take more than the 8 MB that a grammar keeps: those of long ago make room for new
 * ones, and each is made from what is remembered, in a few parts. */
Test(matcher, masks_that_were_used_long_ago_are_forgotten)
{
    struct vocabulary *v;
    struct matcher *m;
    char text[64] = "\"";
    uint32_t *mask = calloc(N_MANY / 32 + 1, sizeof *mask);
    struct grammar *g = of_pattern("^[a-z]{58}$");
    for (int b = 0; b < 256; b++)
        bytes[b] = (char)b;
    cr_assert_eq(vocabulary_open(&v, N_MANY, few_piece, NULL, NULL, 0, NULL), 0);
    cr_assert_eq(vocabulary_warm(v), 0);
    for (int round = 0; round < 2; round++)
        for (size_t n = 1; n < 59; n++) {
            uint32_t n_allowed, n_parts = 1;
            memset(text + 1, 'a', n - 1);
            text[n] = 0;
            cr_assert_eq(matcher_open(&m, g), 0);
            cr_assert_eq(matcher_bytes(m, text, n), n);
            while (!matcher_mask_part(m, v, mask, 1, &n_allowed))
                n_parts++;
            cr_assert_leq(n_parts, 8, "%u parts after %zu bytes", n_parts, n);
            for (int32_t t = 0; t < END; t++)
                cr_assert_eq(mask[t / 32] >> (t % 32) & 1, fits(g, v, text, n, t), "token %d after %s", t,
                             text);
            cr_assert_leq(grammar_bytes(g), 9 << 20);
            matcher_close(m);
        }
    cr_assert_geq(grammar_bytes(g), 8 << 20);
    grammar_unref(g);
    vocabulary_close(v);
    free(mask);
}

/* Space at the end of rules and before calls, names that may end anywhere, lists that end with themselves,
 * rules with several callers, counts, ambiguity: what may follow depends on one frame, on several, or on all.
 */
static const char *const framed[] = {
    "root ::= (item \", \"){1,3} item\n"
    "item ::= [a-c]+ | \"(\" root \")\" | \"\\\"\" [^\"]{0,3} \"\\\"\"",
    "root ::= value\nvalue ::= (object | array | string | number | \"true\" | \"null\") ws\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\"\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? \"]\"\n"
    "string ::= \"\\\"\" ([^\"\\\\] | \"\\\\\" [\"\\\\n])* \"\\\"\" ws\n"
    "number ::= \"-\"? [0-9]+ (\".\" [0-9]+)?\nws ::= [ \\t\\n]*",
    "root ::= \"[\" items \"]\"\nitems ::= item ws | item ws \",\" ws items\n"
    "item ::= [a-z0-9]+ | root\nws ::= ([ \\n] ws)?",
    "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] ws term)*\n"
    "term ::= name | \"(\" ws expr \")\" ws\nname ::= [a-z] [a-z0-9_]* ws\nws ::= [ \\t]*",
    "root ::= a | b | c\na ::= word \",\" root | word\nb ::= word \":\" (root | word)\n"
    "c ::= \"[\" root \"]\" (\"]\" | root)?\nword ::= [a-z]+ | word2\n"
    "word2 ::= \"\\\"\" [a-z]* \"\\\"\"",
    "root ::= (pair \", \")* pair\npair ::= name{1,2} \"\\\"\" root? \"\\\"\" name*\n"
    "name ::= [a-n]+ \" \"?",
    "root ::= text \"\\n\" root | text\ntext ::= word (\" \" word)*\n"
    "word ::= [a-zé]+ | [0-9]+ \".\"? [0-9]* | \"(\" text \")\"",
};

Test(matcher, masks_of_gbnf_are_what_fits)
{
    for (size_t i = 0; i < sizeof framed / sizeof *framed; i++)
        walk_all(of_gbnf(framed[i]), 10, 16);
}

/* 400 rules with one language: every byte of the trie is taken by all of their threads. The grammar is too
 * large for memos of frames, which would take one thread after the other. */
static void write_ambiguous(char *out, size_t room)
{
    size_t n = (size_t)snprintf(out, room, "root ::= r0");
    for (int i = 1; i < 400; i++)
        n += (size_t)snprintf(out + n, room - n, " | r%d", i);
    n += (size_t)snprintf(out + n, room - n, " | \"%0*d\"", 20000, 0);
    for (int i = 0; i < 400; i++)
        n += (size_t)snprintf(out + n, room - n, "\nr%d ::= [a-z] r%d \"i\" | \"!\"", i, i);
    cr_assert_lt(n, room);
}

Test(matcher, a_mask_that_takes_too_many_steps_fails)
{
    static char text[65536];
    uint32_t mask[(N_TOKENS + 31) / 32];
    struct matcher *m;
    write_ambiguous(text, sizeof text);
    struct grammar *g = of_gbnf(text);
    struct vocabulary *v = open_vocabulary(true);
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_mask(m, v, mask), 0);
    cr_assert(matcher_has_failed(m));
    cr_assert(matcher_is_ambiguous(m));
    cr_assert_not(matcher_token(m, v, 'a'));
    cr_assert_eq(matcher_bytes(m, "a", 1), 0);
    matcher_close(m);
    cr_assert_eq(matcher_open(&m, g), 0, "the next text begins with all of its steps");
    cr_assert_eq(matcher_bytes(m, "a!i", 3), 3);
    cr_assert_not(matcher_has_failed(m));
    matcher_close(m);
    grammar_unref(g);
    vocabulary_close(v);
}

/* A part of a mask, a token, the mask whole: dropped parts leave nothing behind. */
Test(matcher, a_token_drops_a_mask_that_is_being_made)
{
    uint32_t mask[(N_TOKENS + 31) / 32], n;
    struct grammar *g = of_schema("{\"items\":{\"enum\":[\"a\",\"ab\",\"abc\"]},\"type\":\"array\","
                                  "\"uniqueItems\":true}");
    struct vocabulary *v = open_vocabulary(true);
    struct matcher *m;
    for (uint64_t steps = 0; steps < 400; steps += 7) {
        size_t before = grammar_bytes(g);
        cr_assert_eq(matcher_open(&m, g), 0);
        cr_assert_eq(matcher_bytes(m, "[\"a\",", 5), 5);
        matcher_mask_part(m, v, mask, steps, &n);
        cr_assert(matcher_token(m, v, '"'));
        matcher_mask(m, v, mask);
        for (int32_t t = 0; t < N_TOKENS; t++)
            cr_assert_eq(mask[t / 32] >> (t % 32) & 1, fits(g, v, "[\"a\",\"", 6, t), "token %d", t);
        cr_assert_gt(grammar_bytes(g), before);
        matcher_mask_part(m, v, mask, steps, &n);
        matcher_close(m);
        if (steps)
            cr_assert_eq(grammar_bytes(g), before, "a matcher gives all back");
    }
    grammar_unref(g);
    vocabulary_close(v);
}

Test(matcher, a_pattern_may_hold_a_zero_byte)
{
    struct grammar *g = NULL;
    struct matcher *m;
    cr_assert_eq(grammar_from_regex(&g, "a\0+[\0]", 6, NULL), 0);
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, "a\0\0\0", 4), 4);
    cr_assert(matcher_can_end(m));
    matcher_close(m);
    grammar_unref(g);
}

/* Rules are found by name at once; searched one by one these would take minutes. */
Test(matcher, a_grammar_of_many_rules_and_uses_is_compiled)
{
    enum { RULES = 16000, USES = 60000 };
    char *text = malloc(64 * RULES + 16 * USES), *at = text + sprintf(text, "root ::= r0");
    struct grammar *g = NULL;
    struct error err = {0};
    for (int i = 0; i < USES; i++)
        at += sprintf(at, " r%d", RULES - 1 - i % 100);
    for (int i = 0; i < RULES; i++)
        at += sprintf(at, "\nr%d ::= \"a\"", i);
    cr_assert_eq(grammar_from_gbnf(&g, text, (size_t)(at - text), &err), 0, "%s", err.text);
    grammar_unref(g);
    free(text);
}

static void compile(struct dfa_workshop *shop, struct arena *arena, uint64_t seed, const struct dfa **out)
{
    static const char pattern[] = "(?:[a-f]{2,9}|x(?:yz|y|z{3})*|\\p{Lu}-\\d+)(?:ab|[b-d]{3})*e";
    *shop = (struct dfa_workshop){
        .arena = arena, .max_states = GRAMMAR_MAX_DFA, .work = GRAMMAR_WORK, .seed = seed};
    cr_assert_eq(regex_compile(shop, pattern, sizeof pattern - 1, REGEX_WHOLE, out, NULL), 0);
}

/* The seed keeps a client from preparing collisions; which patterns fit the budget must not hang on it. */
Test(matcher, automata_and_their_work_do_not_depend_on_the_seed_of_hashes)
{
    struct arena first_arena = {0};
    struct dfa_workshop first;
    const struct dfa *a;
    compile(&first, &first_arena, 0, &a);
    cr_assert_gt(a->n_states, 20);
    for (uint64_t seed = 1; seed < 20; seed++) {
        struct arena arena = {0};
        struct dfa_workshop shop;
        const struct dfa *b;
        compile(&shop, &arena, seed * 0x0123456789abcdefu, &b);
        cr_assert_eq(shop.work, first.work);
        cr_assert_eq(b->n_states, a->n_states);
        cr_assert_arr_eq(b->first, a->first, (a->n_states + 1) * sizeof *a->first);
        cr_assert_arr_eq(b->accept, a->accept, a->n_states * sizeof *a->accept);
        cr_assert_arr_eq(b->edges, a->edges, a->first[a->n_states] * sizeof *a->edges);
        arena_close(&arena);
    }
    arena_close(&first_arena);
}
