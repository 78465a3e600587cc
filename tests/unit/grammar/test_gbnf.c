/* GBNF grammars: the texts of loops, which become automata where they can, and what is refused. */
#include "support/grammar_text.h"

#include <errno.h>
#include <stdio.h>

/* 256 bytes, and 256 pairs of letters. */
static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    static char bytes[512][2];
    (void)context;
    *len = token < 256 ? 1 : 2;
    bytes[token][0] = token < 256 ? (char)token : (char)('a' + token / 16 % 16);
    bytes[token][1] = (char)('a' + token % 16);
    return bytes[token];
}

#define CHAR                                                                                                 \
    "\nchar ::= [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" hex{4})\nhex ::= [0-9a-fA-F]\n"

static const struct grammar_case cases[] = {
    {"root ::= \"\\\"\" char* \"\\\"\"" CHAR,
     {"\"\"", "\"a\"", "\"é日😀\"", "\"\\n\\u00e9\"", "\"a\\\"b\""},
     {"\"", "\"\n\"", "\"\\x\"", "\"\\u00e\"", "\"a\"b\""}},
    {"root ::= \"\\\"\" char{2,3} \"\\\"\"" CHAR, {"\"ab\"", "\"\\n\\u0041c\""}, {"\"a\"", "\"abcd\""}},
    {"root ::= ([a-c] \"-\"?)+ \".\"", {"a.", "a-b-c.", "abc-."}, {".", "-a.", "a--b.", "a"}},
    {"root ::= (\"a\" | \"b\"\n  | \"c\" [0-9]{2})* \"!\"",
     {"!", "abc12!", "c00c01!"},
     {"c1!", "c123!", "ab"}},
    {"root ::= word*\nword ::= first\n  | \"x\" [yz]* # of two lines\nfirst ::= [ab]",
     {"", "abx", "xyzza", "xx"},
     {"y", "ay"}},
    {"root ::= item{2,}\nitem ::= \"(\" root? \")\" | .", {"ab", "(ab)c", "((()))x"}, {"a", ""}},
    {"root ::= ((\"a\"{2}){2})+ \"b\"?", {"aaaa", "aaaaaaaab"}, {"aaa", "aaaaaa", "b"}},
    {"root ::= [a-z]{0} \"x\"", {"x"}, {"ax", ""}},
    {"root ::= ([a-z]+ \" \")* [0-9]", {"1", "ab c 2"}, {"ab1", " 1"}},
    {"root ::= \"\" [é-ü]+", {"é", "ëü"}, {"", "a", "ý"}},
};

Test(gbnf, loops_have_the_texts_of_their_elements)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_texts(&cases[i]);
}

/* A rule that ends with a call to itself is a list, not a nest: it may be longer than frames are deep. */
Test(gbnf, lists_that_end_with_themselves_have_any_length)
{
    static const char grammar[] = "root ::= \"[\" items ws \"]\"\nitems ::= ([0-9]) | [0-9] (\",\" items)\n"
                                  "ws ::= ([ \\n] ws)?";
    static char text[4 * GRAMMAR_MAX_DEPTH + 16];
    struct grammar *g = NULL;
    size_t n = 0;
    cr_assert_eq(grammar_from_gbnf(&g, grammar, strlen(grammar), NULL), 0);
    text[n++] = '[';
    for (int i = 0; i < GRAMMAR_MAX_DEPTH + 2; i++) {
        text[n++] = '1';
        text[n++] = i <= GRAMMAR_MAX_DEPTH ? ',' : ' ';
    }
    memset(text + n, ' ', GRAMMAR_MAX_DEPTH + 2);
    n += GRAMMAR_MAX_DEPTH + 2;
    text[n] = ']';
    cr_expect(accepts(g, text));
    text[n] = ',';
    cr_expect_not(accepts(g, text));
    grammar_unref(g);
}

/* Without an automaton every mask of a string would be a walk of all tokens. */
Test(gbnf, the_masks_of_a_string_are_remembered)
{
    static const char grammar[] = "root ::= \"\\\"\" char* \"\\\"\" ws\nws ::= [ \\n]*" CHAR;
    struct vocabulary *v;
    uint32_t mask[16], n, n_parts = 1;
    struct grammar *g = NULL;
    struct matcher *m;
    cr_assert_eq(grammar_from_gbnf(&g, grammar, strlen(grammar), NULL), 0);
    cr_assert_eq(vocabulary_open(&v, 512, piece, NULL, NULL, 0, NULL), 0);
    cr_assert_eq(matcher_open(&m, g), 0);
    cr_assert_eq(matcher_bytes(m, "\"a", 2), 2);
    uint32_t n_first = matcher_mask(m, v, mask);
    cr_assert_eq(n_first, 95 + (0xf4 - 0xc2 + 1) + 256, "%u", n_first); /* ASCII, first bytes, pairs */
    cr_assert_eq(matcher_bytes(m, "b", 1), 1);
    while (!matcher_mask_part(m, v, mask, 1, &n))
        n_parts++;
    cr_assert_eq(n, n_first);
    cr_assert_lt(n_parts, 300, "%u: the first bytes, for the closing quote", n_parts);
    matcher_close(m);
    grammar_unref(g);
    vocabulary_close(v);
}

Test(gbnf, what_is_no_grammar_is_refused_by_its_place)
{
    expect_refused("root ::= a*", -EINVAL, "line 1, column 11: there is no rule a");
    expect_refused("root ::= ([a-z]*", -EINVAL, "a group without )");
    expect_refused("root ::= [z-a]*", -EINVAL, "a range that runs backwards");
    expect_refused("root ::= a\na ::= a* \"x\"", -ENOTSUP, "left recursion: rule a");
    expect_refused("root ::= \"a\"{3,2}", -EINVAL, "a repetition whose end is before its beginning");
}

/* Automata of loops take a share of a compilation's work; the others are built without. */
Test(gbnf, many_loops_of_large_automata_are_held)
{
    static char text[1 << 20];
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= r0\n");
    for (int i = 0; i < 4000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "r%d ::= (r%d? [ab]* \"a\" [ab]{%d})* \"%d\"\n", i,
                              i + 1, 5 + i % 9, i);
    n += (size_t)snprintf(text + n, sizeof text - n, "r4000 ::= \"x\"\n");
    struct grammar *g = NULL;
    struct error err = {0};
    int rc = grammar_from_gbnf(&g, text, n, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    grammar_unref(g);
}

/* A loop whose automaton is too large, or costs too much to look for, stays what it was. */
Test(gbnf, loops_without_an_automaton_are_held)
{
    static char text[1 << 20];
    static const char large[] = "root ::= ([ab]* \"a\" [ab]{11})* \"c\"";
    struct grammar *g = NULL;
    struct error err = {0};
    cr_assert_eq(grammar_from_gbnf(&g, large, strlen(large), &err), 0, "%s", err.text);
    cr_expect(accepts(g, "bbabbbbbbbbbbbc"));
    cr_expect_not(accepts(g, "abbbbbbbbbbc"));
    grammar_unref(g);
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= x0\nr ::= %400000s\n\"a\"\n", "");
    for (int i = 0; i < 200; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "x%d ::= (", i);
        for (int k = 0; k < 600; k++)
            n += (size_t)snprintf(text + n, sizeof text - n, "r ");
        n += (size_t)snprintf(text + n, sizeof text - n, ")+ \"!\"\n");
    }
    cr_assert_eq(grammar_from_gbnf(&g, text, n, &err), 0, "%s", err.text);
    grammar_unref(g);
}

/* The class, read for each repetition, uses up the work that a loop may take. The fault is in other rules. */
Test(gbnf, a_loop_without_an_automaton_leaves_later_failures_their_words)
{
    static char text[1 << 16];
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= [^");
    for (unsigned code = 0x100; code < 0x100 + 4000; code += 2)
        n += (size_t)snprintf(text + n, sizeof text - n, "\\u%04x", code);
    (void)snprintf(text + n, sizeof text - n, "]{480} a\na ::= b\nb ::= a \"x\"\n");
    expect_refused(text, -ENOTSUP, "left recursion");
}

Test(gbnf, rules_are_counted)
{
    static char text[1 << 20];
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= \"x\"\n");
    for (int i = 0; i < 16384; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "r%d ::= \"x\"\n", i);
    expect_refused(text, -E2BIG, "more than 16384 rules");
    text[n - strlen("r16383 ::= \"x\"\n")] = '\0';
    struct grammar *g = NULL;
    cr_expect_eq(grammar_from_gbnf(&g, text, strlen(text), NULL), 0);
    grammar_unref(g);
}
