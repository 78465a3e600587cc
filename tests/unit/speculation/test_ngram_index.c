/* The tokens that an index expects next, against a search through all that came before. */
#include "speculation/ngram_index.h"
#include "support/random.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static struct lookup index_of(uint32_t capacity, uint32_t n_max, const int32_t *tokens, uint32_t n)
{
    struct lookup l;
    cr_assert_eq(lookup_open(&l, capacity, NULL), 0);
    lookup_begin(&l, n_max);
    lookup_feed(&l, tokens, n);
    return l;
}

static void add(struct lookup *l, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        lookup_add(l, tokens[i]);
}

Test(lookup, what_followed_the_same_tokens_is_expected)
{
    static const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8}, text[] = {90, 3, 4, 5};
    struct lookup l = index_of(20, 20, prompt, 8);
    int32_t draft[3];
    add(&l, text, 4);
    cr_assert(l.expects && l.length == 3);
    lookup_draft(&l, draft, 3);
    cr_assert(draft[0] == 6 && draft[1] == 7 && draft[2] == 8);
    lookup_close(&l);
}

Test(lookup, nothing_is_expected_of_a_prompt_alone_or_of_what_never_came)
{
    static const int32_t prompt[] = {1, 2, 3, 1, 2, 3}, text[] = {50, 51, 52};
    struct lookup l = index_of(20, 20, prompt, 6);
    cr_assert_not(l.expects);
    add(&l, text, 3);
    cr_assert_not(l.expects);
    lookup_close(&l);
}

Test(lookup, two_tokens_are_enough_when_three_are_not_found)
{
    static const int32_t prompt[] = {1, 2, 3, 4}, text[] = {9, 2, 3};
    struct lookup l = index_of(20, 20, prompt, 4);
    add(&l, text, 3);
    cr_assert(l.expects && l.length == 2 && l.tokens[l.source] == 4);
    lookup_close(&l);
}

Test(lookup, the_longest_common_past_wins_and_then_the_latest)
{
    static const int32_t prompt[] = {7, 1, 2, 3, 10, 8, 1, 2, 3, 11, 1, 2, 3, 12}, text[] = {7, 1, 2, 3},
                         other[] = {99, 1, 2, 3};
    struct lookup l = index_of(40, 40, prompt, 14);
    add(&l, text, 4);
    cr_assert(l.length == 4 && l.tokens[l.source] == 10);
    add(&l, other, 4);
    cr_assert(l.length == 3 && l.source == 18, "place %u", l.source); /* behind `text` */
    lookup_close(&l);
}

Test(lookup, a_loop_is_drafted_beyond_its_end)
{
    static const int32_t text[] = {5, 6, 7, 5, 6, 7, 5, 6};
    struct lookup l = index_of(20, 20, text, 3);
    int32_t draft[7];
    add(&l, text + 3, 5);
    lookup_draft(&l, draft, 7);
    for (uint32_t i = 0; i < 7; i++)
        cr_assert_eq(draft[i], 5 + (int32_t)(i + 2) % 3);
    lookup_close(&l);
}

Test(lookup, a_long_quotation_goes_on_behind_one_other_token)
{
    int32_t prompt[30];
    for (int i = 0; i < 30; i++)
        prompt[i] = 100 + i;
    struct lookup l = index_of(100, 100, prompt, 30);
    add(&l, prompt, 12);
    cr_assert_eq(l.length, 12);
    lookup_add(&l, 1);
    cr_assert(l.expects && l.length == 0 && l.tokens[l.source] == 113);
    lookup_add(&l, 113);
    cr_assert(l.expects && l.length == 1 && l.tokens[l.source] == 114);
    lookup_add(&l, 2); /* the second one in so short a time ends it */
    cr_assert_not(l.expects);
    lookup_close(&l);
}

Test(lookup, beyond_its_end_nothing_is_kept_and_a_new_sequence_begins_empty)
{
    static const int32_t text[] = {1, 2, 3, 1, 2, 3, 1, 2, 3};
    struct lookup l = index_of(100, 6, text, 9);
    cr_assert_eq(l.n, 6);
    add(&l, text, 9);
    cr_assert(l.n == 6 && !l.expects);
    lookup_begin(&l, 100);
    add(&l, text, 3);
    cr_assert_not(l.expects);
    lookup_close(&l);
}

/* ---- against the slow way ---- */

static uint32_t common(const int32_t *tokens, uint32_t n, uint32_t place)
{
    uint32_t length = 0;
    while (length < LOOKUP_LONGEST && length < place && tokens[place - 1 - length] == tokens[n - 1 - length])
        length++;
    return length;
}

/* The source is a place before the end, its common past what it says (but behind an exchanged token); and
 * there is one where three tokens have occurred before. */
static void check_source(const struct lookup *l)
{
    bool found = false;
    for (uint32_t place = 3; place < l->n && !found; place++)
        found = common(l->tokens, l->n, place) >= 3;
    cr_assert(l->expects || !found, "at %u", l->n);
    if (!l->expects)
        return;
    uint32_t length = common(l->tokens, l->n, l->source);
    cr_assert(l->source > 0 && l->source < l->n);
    cr_assert(length == l->length || (l->length < 32 && length >= l->length), "at %u: %u, not %u", l->n,
              l->length, length);
}

Test(lookup, of_any_text_the_source_has_the_past_it_says)
{
    uint32_t n_expected = 0;
    for (random_state = 1; random_state < 40; random_state++) {
        uint64_t seed = random_state;
        uint32_t n_vocab = 2 + random_below(30), n_prompt = random_below(100),
                 n_max = n_prompt + random_below(400);
        int32_t tokens[500];
        for (uint32_t i = 0; i < n_max; i++)
            tokens[i] = i > 20 && random_below(8) ? tokens[i - 1 - random_below(2) * 13]
                                                  : (int32_t)random_below(n_vocab);
        struct lookup l = index_of(500, n_max, tokens, n_prompt);
        for (uint32_t i = n_prompt; i < n_max; i++) {
            lookup_add(&l, tokens[i]);
            check_source(&l);
            n_expected += l.expects;
        }
        cr_assert_eq(memcmp(l.tokens, tokens, n_max * sizeof *tokens), 0);
        lookup_close(&l);
        random_state = seed;
    }
    cr_assert_gt(n_expected, 1000);
}
