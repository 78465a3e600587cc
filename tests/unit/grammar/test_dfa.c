/* Automata of regular expressions: the least that there are, so that equal languages have equal automata. */
#include "grammar/dfa.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct dfa *compile(struct dfa_workshop *shop, struct arena *arena, const char *pattern)
{
    const struct dfa *a = NULL;
    *shop = (struct dfa_workshop){
        .arena = arena, .max_states = GRAMMAR_MAX_DFA, .work = GRAMMAR_WORK, .seed = 0x5eed};
    cr_assert_eq(regex_compile(shop, pattern, strlen(pattern), REGEX_WHOLE, &a, NULL), 0, "%s", pattern);
    return a;
}

static bool equal(const struct dfa *a, const struct dfa *b)
{
    return a->n_states == b->n_states && !memcmp(a->first, b->first, (a->n_states + 1) * sizeof *a->first) &&
           !memcmp(a->accept, b->accept, a->n_states * sizeof *a->accept) &&
           !memcmp(a->edges, b->edges, a->first[a->n_states] * sizeof *a->edges);
}

static bool same(const char *p, const char *q)
{
    struct arena arenas[2] = {0};
    struct dfa_workshop shops[2];
    bool is = equal(compile(&shops[0], &arenas[0], p), compile(&shops[1], &arenas[1], q));
    arena_close(&arenas[0]);
    arena_close(&arenas[1]);
    return is;
}

/* Chains that may end at every link, chains that end at their last, cycles before and behind them. */
Test(dfa, equal_languages_have_equal_automata)
{
    static const char *const pairs[][2] = {
        {"[0-9]{1,64}", "[0-9]|[0-9]{2}[0-9]{0,62}"},
        {"(?:abc|xbc)d{0,40}", "[ax]bc(?:d{0,20}){2}"},
        {"a*", "(?:aa*)?"},
        {"(?:ab|cb)*e", "(?:[ac]b)*e"},
        {"x{3,}", "xxx+"},
        {"(?:a|b)*abb", "[ab]*abb"},
        {"-?(?:0|[1-9][0-9]{0,30})(?:\\.[0-9]{1,9})?", "(?:|-)(?:[1-9][0-9]{0,30}|0)(?:|\\.[0-9][0-9]{0,8})"},
        {"(?:name|game|fame)s?", "(?:[nfg]ames?)"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        cr_expect(same(pairs[i][0], pairs[i][1]), "%s and %s", pairs[i][0], pairs[i][1]);
}

Test(dfa, languages_that_differ_have_automata_that_differ)
{
    static const char *const pairs[][2] = {
        {"[0-9]{1,64}", "[0-9]{1,65}"}, {"a{3}", "a{0,3}"}, {"a{2,4}b", "a{2,4}b?"},
        {"(?:ab)*", "(?:ab)+"},         {"x|yz", "y|xz"},   {"(?:a|b)*abb", "(?:a|b)*aba"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        cr_expect(!same(pairs[i][0], pairs[i][1]), "%s and %s", pairs[i][0], pairs[i][1]);
}

Test(dfa, no_state_is_more_than_is_needed)
{
    static const struct {
        const char *pattern;
        uint32_t n;
    } cases[] = {
        {"[0-9]{1,64}", 65}, {"abcdef|bbcdef|cbcdef", 7}, {"(?:a|b)*abb", 4}, {"a{5}", 6},
        {"[a-z]*", 1},       {"(?:a|ab|abc)d?", 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct dfa_workshop shop;
        const struct dfa *a = compile(&shop, &arena, cases[i].pattern);
        cr_expect_eq(a->n_states, cases[i].n, "%s: %u", cases[i].pattern, a->n_states);
        arena_close(&arena);
    }
}
