/* Pages of the KV cache: sequences, forks, shared prefixes, snapshots, eviction. */
#include "kv/kv_cache.h"
#include "base/hash.h"
#define RANDOM_SEED 11
#include "support/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE KV_PAGE_TOKENS

static struct kv_cache *open_cache(uint32_t n_pages)
{
    struct kv_cache *kv = NULL;
    struct kv_cache_config cfg = {.n_pages = n_pages, .n_seqs = 4, .n_ctx = 16 * PAGE, .keep = true};
    cr_assert_eq(kv_cache_open(&kv, &cfg, NULL), 0);
    return kv;
}

/* ids[i] = i, with `salt` added: a prompt of its own per salt. */
static const int32_t *numbers(int32_t from)
{
    static int32_t ids[8][16 * PAGE];
    static int next;
    int32_t *out = ids[next++ % 8];
    for (int i = 0; i < 16 * PAGE; i++)
        out[i] = from + i;
    return out;
}

static uint32_t add(struct kv_cache *kv, uint32_t seq, const int32_t *prompt, uint32_t n_prompt)
{
    struct kv_sequence s = {
        .prompt = prompt, .n_prompt = n_prompt, .n_tokens = n_prompt, .reuse = true, .publish = true};
    uint32_t n_cached = 0;
    cr_assert_eq(kv_cache_add(kv, seq, &s, &n_cached), 0);
    return n_cached;
}

/* Computes the whole prompt from what is cached on. */
static uint32_t add_and_fill(struct kv_cache *kv, uint32_t seq, const int32_t *prompt, uint32_t n_prompt)
{
    uint32_t n_cached = add(kv, seq, prompt, n_prompt);
    kv_cache_grow(kv, seq, n_prompt);
    kv_cache_accept(kv, seq, prompt + n_cached, n_prompt - n_cached);
    cr_assert(kv_cache_check(kv));
    return n_cached;
}

static struct kv_cache_stats stats(const struct kv_cache *kv)
{
    struct kv_cache_stats s;
    kv_cache_stats(kv, &s);
    return s;
}

Test(kv_cache, a_full_page_is_shared_with_a_later_sequence)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    cr_assert_eq(add_and_fill(kv, 0, ids, 3 * PAGE + 5), 0);
    cr_assert_eq(add_and_fill(kv, 1, ids, 3 * PAGE + 9), 3 * PAGE);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(kv_cache_page(kv, 0, i), kv_cache_page(kv, 1, i));
    cr_assert_neq(kv_cache_page(kv, 0, 3), kv_cache_page(kv, 1, 3));
    cr_assert_eq(stats(kv).used, 5);
    kv_cache_close(kv);
}

Test(kv_cache, pages_outlive_their_sequence)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    add_and_fill(kv, 0, ids, 2 * PAGE + 1);
    kv_cache_end(kv, 0);
    cr_assert_eq(stats(kv).cached, 2);
    cr_assert_eq(stats(kv).used, 0);
    cr_assert_eq(add(kv, 1, ids, 2 * PAGE + 1), 2 * PAGE);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_cache, the_last_prompt_token_is_never_part_of_a_hit)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    add_and_fill(kv, 0, ids, 2 * PAGE);
    kv_cache_end(kv, 0);
    cr_assert_eq(add(kv, 0, ids, 2 * PAGE), PAGE);
    kv_cache_close(kv);
}

Test(kv_cache, a_page_is_not_shared_before_all_its_tokens_are_accepted)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    add(kv, 0, ids, 2 * PAGE);
    kv_cache_grow(kv, 0, 2 * PAGE);
    kv_cache_accept(kv, 0, ids, PAGE - 1);
    cr_assert_eq(add(kv, 1, ids, 2 * PAGE), 0);
    kv_cache_accept(kv, 0, ids + PAGE - 1, 1);
    cr_assert_eq(add(kv, 2, ids, 2 * PAGE), PAGE);
    kv_cache_close(kv);
}

Test(kv_cache, different_salts_share_nothing)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    add_and_fill(kv, 0, ids, 2 * PAGE);
    struct kv_sequence s = {
        .prompt = ids, .n_prompt = 2 * PAGE, .n_tokens = 2 * PAGE, .salt = 1, .reuse = true, .publish = true};
    uint32_t n_cached;
    cr_assert_eq(kv_cache_add(kv, 1, &s, &n_cached), 0);
    cr_assert_eq(n_cached, 0);
    kv_cache_close(kv);
}

Test(kv_cache, a_sequence_that_does_not_share_neither_reads_nor_leaves_pages)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    struct kv_sequence s = {.prompt = ids, .n_prompt = 2 * PAGE, .n_tokens = 2 * PAGE};
    uint32_t n_cached;
    cr_assert_eq(kv_cache_add(kv, 0, &s, &n_cached), 0);
    kv_cache_grow(kv, 0, 2 * PAGE);
    kv_cache_accept(kv, 0, ids, 2 * PAGE);
    cr_assert_eq(add(kv, 1, ids, 2 * PAGE), 0);
    kv_cache_end(kv, 0);
    cr_assert_eq(stats(kv).cached, 0);
    kv_cache_close(kv);
}

Test(kv_cache, the_same_page_after_another_parent_is_another_page)
{
    struct kv_cache *kv = open_cache(8);
    int32_t a[3 * PAGE], b[3 * PAGE];
    memcpy(a, numbers(0), sizeof a);
    memcpy(b, numbers(0), sizeof b);
    b[0] = 999;
    add_and_fill(kv, 0, a, 3 * PAGE);
    cr_assert_eq(add_and_fill(kv, 1, b, 3 * PAGE), 0);
    kv_cache_close(kv);
}

Test(kv_cache, a_request_is_refused_when_its_pages_are_promised_to_others)
{
    struct kv_cache *kv = open_cache(4);
    struct kv_sequence s = {.prompt = numbers(0), .n_prompt = 1, .n_tokens = 3 * PAGE};
    uint32_t n_cached;
    cr_assert_eq(kv_cache_add(kv, 0, &s, &n_cached), 0); /* nothing taken yet, all of it promised */
    cr_assert_eq(stats(kv).used, 0);
    s.n_tokens = PAGE + 1;
    cr_assert_eq(kv_cache_add(kv, 1, &s, &n_cached), -ENOSPC);
    s.n_tokens = PAGE;
    cr_assert_eq(kv_cache_add(kv, 1, &s, &n_cached), 0);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_cache, cached_pages_are_given_up_when_they_are_needed)
{
    struct kv_cache *kv = open_cache(4);
    add_and_fill(kv, 0, numbers(0), 4 * PAGE);
    kv_cache_end(kv, 0);
    cr_assert_eq(stats(kv).cached, 4);
    add_and_fill(kv, 0, numbers(5000), 4 * PAGE);
    cr_assert_eq(stats(kv).used, 4);
    cr_assert_eq(stats(kv).cached, 0);
    kv_cache_close(kv);
}

Test(kv_cache, a_page_that_a_hit_would_use_is_not_counted_as_room_for_the_rest)
{
    struct kv_cache *kv = open_cache(4);
    const int32_t *ids = numbers(0);
    add_and_fill(kv, 0, ids, 3 * PAGE + 1);
    kv_cache_end(kv, 0); /* three cached, one free */
    struct kv_sequence s = {.prompt = ids, .n_prompt = 3 * PAGE + 1, .n_tokens = 5 * PAGE, .reuse = true};
    uint32_t n_cached;
    cr_assert_eq(kv_cache_add(kv, 0, &s, &n_cached), -ENOSPC);
    cr_assert_eq(stats(kv).cached, 3);
    s.n_tokens = 4 * PAGE;
    cr_assert_eq(kv_cache_add(kv, 0, &s, &n_cached), 0);
    kv_cache_grow(kv, 0, 4 * PAGE);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_cache, the_least_recently_released_leaf_goes_first)
{
    struct kv_cache *kv = open_cache(6);
    const int32_t *a = numbers(0), *b = numbers(5000);
    add_and_fill(kv, 0, a, 2 * PAGE + 1);
    kv_cache_end(kv, 0);
    add_and_fill(kv, 0, b, 2 * PAGE + 1);
    kv_cache_end(kv, 0); /* cached: two of a (older), two of b; free: two */
    add_and_fill(kv, 1, numbers(9000), 3 * PAGE);
    cr_assert_eq(add(kv, 0, a, 2 * PAGE + 1), PAGE); /* its second page went, not its first */
    kv_cache_end(kv, 0);
    cr_assert_eq(add(kv, 2, b, 2 * PAGE + 1), 2 * PAGE);
    kv_cache_close(kv);
}

Test(kv_cache, a_twin_keeps_its_own_pages_and_publishes_no_more)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    add(kv, 0, ids, 2 * PAGE);
    add(kv, 1, ids, 3 * PAGE);
    kv_cache_grow(kv, 0, 2 * PAGE);
    kv_cache_grow(kv, 1, 3 * PAGE);
    kv_cache_accept(kv, 0, ids, 2 * PAGE);
    kv_cache_accept(kv, 1, ids, 3 * PAGE);
    cr_assert(kv_cache_check(kv));
    kv_cache_end(kv, 0);
    kv_cache_end(kv, 1);
    cr_assert(kv_cache_check(kv));
    cr_assert_eq(stats(kv).cached, 2);
    kv_cache_close(kv);
}

/* ---- forks ---- */

static struct kv_sequence prompt_of(const int32_t *ids, uint32_t n_prompt, uint32_t n_tokens)
{
    return (struct kv_sequence){
        .prompt = ids, .n_prompt = n_prompt, .n_tokens = n_tokens, .reuse = true, .publish = true};
}

Test(kv_cache, a_fork_shares_the_full_pages_and_copies_the_partial_one)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    struct kv_sequence s = prompt_of(ids, 2 * PAGE + 10, 3 * PAGE);
    uint32_t from, n_cached;
    cr_assert_eq(kv_cache_add(kv, 0, &s, &n_cached), 0);
    cr_assert_eq(kv_cache_add_fork(kv, 1, &s), 0);
    cr_assert_eq(stats(kv).reserved, 3 + 1);
    kv_cache_grow(kv, 0, 2 * PAGE + 10);
    cr_assert(kv_cache_fork(kv, 1, 0, 2 * PAGE + 10, &from));
    kv_cache_grow(kv, 1, 2 * PAGE + 10);
    cr_assert(kv_cache_check(kv));
    cr_assert_eq(from, kv_cache_page(kv, 0, 2));
    cr_assert_neq(from, kv_cache_page(kv, 1, 2));
    for (uint32_t i = 0; i < 2; i++)
        cr_assert_eq(kv_cache_page(kv, 0, i), kv_cache_page(kv, 1, i));
    cr_assert_eq(stats(kv).used, 4);
    kv_cache_end(kv, 0); /* what is to be copied stays */
    cr_assert_eq(stats(kv).used, 4);
    cr_assert(kv_cache_check(kv));
    kv_cache_end(kv, 1);
    cr_assert_eq(stats(kv).used + stats(kv).reserved, 0);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_cache, a_fork_that_ends_with_a_full_page_computes_that_page_s_last_token_in_a_copy)
{
    struct kv_cache *kv = open_cache(8);
    const int32_t *ids = numbers(0);
    struct kv_sequence s = prompt_of(ids, 2 * PAGE, 2 * PAGE + 1);
    uint32_t from, n_cached;
    cr_assert_eq(kv_cache_add(kv, 0, &s, &n_cached), 0);
    cr_assert_eq(kv_cache_add_fork(kv, 1, &s), 0);
    kv_cache_grow(kv, 0, 2 * PAGE - 1);
    cr_assert(kv_cache_fork(kv, 1, 0, 2 * PAGE, &from));
    cr_assert_eq(from, kv_cache_page(kv, 0, 1));
    s = prompt_of(ids + 1, 2 * PAGE + 1, 2 * PAGE + 1); /* the last token begins a page: nothing to copy */
    cr_assert_eq(kv_cache_add(kv, 2, &s, &n_cached), 0);
    cr_assert_eq(kv_cache_add_fork(kv, 3, &s), -ENOSPC);
    kv_cache_end(kv, 1);
    kv_cache_end(kv, 0);
    cr_assert_eq(kv_cache_add_fork(kv, 3, &s), 0);
    kv_cache_grow(kv, 2, 2 * PAGE);
    cr_assert_not(kv_cache_fork(kv, 3, 2, 2 * PAGE + 1, &from));
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_cache, a_fork_leaves_pages_behind_those_that_the_first_has_published)
{
    struct kv_cache *kv = open_cache(12);
    const int32_t *ids = numbers(0);
    int32_t other[3 * PAGE];
    struct kv_sequence s = prompt_of(ids, PAGE + 10, 3 * PAGE);
    uint32_t from, n_cached;
    memcpy(other, ids, sizeof other);
    other[PAGE + 10] = 7777;
    cr_assert_eq(kv_cache_add(kv, 0, &s, &n_cached), 0);
    cr_assert_eq(kv_cache_add_fork(kv, 1, &s), 0);
    kv_cache_grow(kv, 0, PAGE + 10);
    kv_cache_fork(kv, 1, 0, PAGE + 10, &from);
    kv_cache_accept(kv, 0, ids, PAGE + 10);
    kv_cache_grow(kv, 1, 3 * PAGE);
    kv_cache_accept(kv, 1, other + PAGE, 2 * PAGE);
    kv_cache_end(kv, 0);
    kv_cache_end(kv, 1);
    cr_assert(kv_cache_check(kv));
    cr_assert_eq(add(kv, 0, other, 3 * PAGE + 1), 3 * PAGE);
    cr_assert_eq(add(kv, 1, ids, 3 * PAGE + 1), PAGE);
    kv_cache_close(kv);
}

Test(kv_cache, a_fork_of_a_first_that_ended_before_it_published_leaves_nothing)
{
    struct kv_cache *kv = open_cache(12);
    const int32_t *ids = numbers(0);
    struct kv_sequence s = prompt_of(ids, PAGE + 10, 3 * PAGE);
    uint32_t from, n_cached;
    cr_assert_eq(kv_cache_add(kv, 0, &s, &n_cached), 0);
    cr_assert_eq(kv_cache_add_fork(kv, 1, &s), 0);
    kv_cache_grow(kv, 0, PAGE + 10);
    kv_cache_fork(kv, 1, 0, PAGE + 10, &from);
    kv_cache_end(kv, 0);
    kv_cache_grow(kv, 1, 3 * PAGE);
    kv_cache_accept(kv, 1, ids + PAGE, 2 * PAGE);
    cr_assert(kv_cache_check(kv));
    kv_cache_end(kv, 1);
    cr_assert_eq(stats(kv).cached + stats(kv).used, 0);
    kv_cache_close(kv);
}

/* ---- pages worth keeping ---- */

/* The next one is page `index` of the prompt, and its name says so; seen to. */
static void expect_keep(struct kv_cache *kv, bool all, const int32_t *prompt, uint32_t index)
{
    struct kv_page_name name;
    struct kv_key key = kv_key_of_salt(0), parent = key;
    uint32_t page;
    for (uint32_t i = 0; i <= index; i++) {
        parent = key;
        key = kv_key_next(parent, prompt + (size_t)i * PAGE);
    }
    cr_assert(kv_cache_keep(kv, all, &page, &name));
    cr_assert_eq(memcmp(name.ids, prompt + (size_t)index * PAGE, sizeof name.ids), 0, "not page %u", index);
    cr_assert(name.salt == 0 && memcmp(&name.key, &key, sizeof key) == 0);
    cr_assert_eq(memcmp(&name.parent, &parent, sizeof parent), 0);
    kv_cache_kept(kv, page);
    cr_assert(kv_cache_check(kv));
}

static void expect_nothing_to_keep(const struct kv_cache *kv, bool all)
{
    struct kv_page_name name;
    uint32_t page;
    cr_assert_not(kv_cache_keep(kv, all, &page, &name));
}

Test(kv_cache, pages_that_no_sequence_holds_are_worth_keeping_once_those_of_the_latest_first)
{
    struct kv_cache *kv = open_cache(16);
    const int32_t *a = numbers(0), *b = numbers(5000);
    add_and_fill(kv, 0, a, 3 * PAGE + 5);
    add_and_fill(kv, 1, b, 2 * PAGE);
    expect_nothing_to_keep(kv, true);
    kv_cache_end(kv, 0);
    expect_nothing_to_keep(kv, false);
    kv_cache_end(kv, 1);
    for (uint32_t i = 0; i < 2; i++)
        expect_keep(kv, true, b, i);
    for (uint32_t i = 0; i < 3; i++)
        expect_keep(kv, true, a, i);
    expect_nothing_to_keep(kv, true);
    kv_cache_close(kv);
}

Test(kv_cache, pages_that_are_hit_are_worth_keeping_at_once_and_again)
{
    struct kv_cache *kv = open_cache(16);
    const int32_t *a = numbers(0), *b = numbers(5000);
    add_and_fill(kv, 0, b, 2 * PAGE);
    kv_cache_end(kv, 0);
    add_and_fill(kv, 0, a, 3 * PAGE);
    for (int hit = 0; hit < 2; hit++) {
        cr_assert_eq(add_and_fill(kv, 1, a, 3 * PAGE), 2 * PAGE);
        for (uint32_t i = 0; i < 2; i++)
            expect_keep(kv, true, a, i);
        expect_nothing_to_keep(kv, false);
        kv_cache_end(kv, 1);
    }
    kv_cache_end(kv, 0);
    expect_keep(kv, true, a, 2); /* its others have been seen to */
    expect_keep(kv, true, b, 0);
    kv_cache_close(kv);
}

Test(kv_cache, an_evicted_page_is_not_worth_keeping_any_more)
{
    struct kv_cache *kv = open_cache(4);
    const int32_t *a = numbers(0), *b = numbers(5000);
    add_and_fill(kv, 0, a, 3 * PAGE);
    kv_cache_end(kv, 0);
    add_and_fill(kv, 0, b, 3 * PAGE);
    expect_keep(kv, true, a, 0); /* the last of a's that is left */
    expect_nothing_to_keep(kv, true);
    kv_cache_close(kv);
}

/* ---- snapshots of recurrent states ---- */

static struct kv_cache *open_recurrent(uint32_t n_snapshots)
{
    struct kv_cache *kv = NULL;
    struct kv_cache_config cfg = {.n_pages = 20, .n_seqs = 4, .n_ctx = 16 * PAGE, .n_snapshots = n_snapshots};
    cr_assert_eq(kv_cache_open(&kv, &cfg, NULL), 0);
    return kv;
}

static void keep_behind(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens)
{
    uint32_t i = kv_cache_take_snapshot(kv);
    cr_assert_neq(i, SNAPSHOT_NONE);
    cr_assert(kv_cache_keep_snapshot(kv, seq, n_tokens, i));
    cr_assert(kv_cache_check(kv));
}

static uint32_t state_of(struct kv_cache *kv, uint32_t seq)
{
    uint32_t n;
    (void)kv_cache_snapshot(kv, seq, &n);
    return n;
}

Test(kv_cache, a_sequence_begins_with_the_last_snapshot_of_the_pages_it_shares)
{
    struct kv_cache *kv = open_recurrent(3);
    const int32_t *prompt = numbers(0);
    add_and_fill(kv, 0, prompt, 5 * PAGE);
    keep_behind(kv, 0, PAGE);
    keep_behind(kv, 0, 3 * PAGE);
    cr_assert_eq(add(kv, 1, prompt, 5 * PAGE), 4 * PAGE);
    cr_assert_eq(state_of(kv, 1), 3 * PAGE);
    cr_assert_eq(add(kv, 2, prompt, 3 * PAGE), 2 * PAGE);
    cr_assert_eq(state_of(kv, 2), PAGE);
    cr_assert_eq(add(kv, 3, numbers(9), 3 * PAGE), 0);
    cr_assert_eq(state_of(kv, 3), 0);
    kv_cache_close(kv);
}

Test(kv_cache, the_snapshot_used_least_recently_makes_room_but_none_that_a_sequence_holds)
{
    struct kv_cache *kv = open_recurrent(2);
    const int32_t *prompt = numbers(0);
    add_and_fill(kv, 0, prompt, 5 * PAGE);
    keep_behind(kv, 0, PAGE);
    keep_behind(kv, 0, 2 * PAGE);
    add(kv, 1, prompt, PAGE + 1); /* holds the first */
    keep_behind(kv, 0, 3 * PAGE); /* takes the second */
    cr_assert_eq(stats(kv).snapshots, 2);
    add(kv, 2, prompt, 3 * PAGE); /* holds the first, too */
    cr_assert_eq(state_of(kv, 2), PAGE);
    add(kv, 3, prompt, 5 * PAGE); /* holds the third */
    cr_assert_eq(state_of(kv, 3), 3 * PAGE);
    cr_assert_eq(kv_cache_take_snapshot(kv), SNAPSHOT_NONE);
    kv_cache_end(kv, 3);
    cr_assert_neq(kv_cache_take_snapshot(kv), SNAPSHOT_NONE);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_cache, a_snapshot_ends_with_its_page_and_one_page_has_one)
{
    struct kv_cache *kv = open_recurrent(2);
    add_and_fill(kv, 0, numbers(0), 5 * PAGE);
    keep_behind(kv, 0, 5 * PAGE);
    uint32_t i = kv_cache_take_snapshot(kv);
    cr_assert(!kv_cache_keep_snapshot(kv, 0, 5 * PAGE, i)); /* it has one */
    cr_assert_eq(kv_cache_take_snapshot(kv), i);            /* and this one is free */
    kv_cache_drop_snapshot(kv, i);
    kv_cache_end(kv, 0);
    add_and_fill(kv, 1, numbers(100), 16 * PAGE);
    cr_assert_eq(stats(kv).snapshots, 0);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

/* A snapshot whose bytes are read elsewhere is not written, though its page is gone. */
Test(kv_cache, a_held_snapshot_outlives_its_page)
{
    struct kv_cache *kv = open_recurrent(1);
    struct kv_page_name name;
    add_and_fill(kv, 0, numbers(0), 5 * PAGE);
    keep_behind(kv, 0, 5 * PAGE);
    cr_assert(kv_cache_snapshot_name(kv, 0, &name));
    struct kv_key key = kv_cache_key(kv, 0);
    cr_assert_eq(memcmp(&name.key, &key, sizeof key), 0);
    kv_cache_hold_snapshot(kv, 0);
    kv_cache_end(kv, 0);
    add_and_fill(kv, 1, numbers(100), 16 * PAGE);
    cr_assert(!kv_cache_snapshot_name(kv, 0, &name));
    cr_assert_eq(kv_cache_take_snapshot(kv), SNAPSHOT_NONE);
    kv_cache_release_snapshot(kv, 0);
    cr_assert_eq(kv_cache_take_snapshot(kv), 0);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_cache, a_sequence_may_begin_again_with_a_later_snapshot)
{
    struct kv_cache *kv = open_recurrent(2);
    const int32_t *prompt = numbers(0);
    uint32_t n;
    add_and_fill(kv, 0, prompt, 5 * PAGE);
    keep_behind(kv, 0, PAGE);
    add(kv, 1, prompt, 5 * PAGE);
    keep_behind(kv, 0, 3 * PAGE);
    cr_assert_eq(state_of(kv, 1), PAGE);
    cr_assert_neq(kv_cache_begin_again(kv, 1, &n), SNAPSHOT_NONE);
    cr_assert_eq(n, 3 * PAGE);
    kv_cache_forget_snapshot(kv, 0, 3 * PAGE); /* it is in use */
    cr_assert_eq(stats(kv).snapshots, 2);
    kv_cache_end(kv, 1);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_cache, forgets_a_snapshot_with_which_no_sequence_began)
{
    struct kv_cache *kv = open_recurrent(2);
    const int32_t *prompt = numbers(0);
    add_and_fill(kv, 0, prompt, 5 * PAGE);
    keep_behind(kv, 0, PAGE);
    keep_behind(kv, 0, 2 * PAGE);
    add(kv, 1, prompt, PAGE + 1);
    kv_cache_forget_snapshot(kv, 0, PAGE);
    kv_cache_forget_snapshot(kv, 0, 2 * PAGE);
    kv_cache_forget_snapshot(kv, 0, 3 * PAGE);
    cr_assert_eq(stats(kv).snapshots, 1);
    add(kv, 2, prompt, 5 * PAGE);
    cr_assert_eq(state_of(kv, 2), PAGE);
    kv_cache_close(kv);
}

/* ---- random life: what is read through the page lists is always what the sequence wrote ---- */

enum { N_SEQS = 6, MAX_TOKENS = 9 * PAGE };

struct shadow {
    bool live;
    int32_t ids[MAX_TOKENS];
    uint32_t n_prompt, n_tokens, n_accepted;
    bool publish;
    uint64_t salt;
};

static int32_t page_content[64][PAGE];

static void check_content(const struct kv_cache *kv, const struct shadow *shadow)
{
    for (uint32_t s = 0; s < N_SEQS; s++)
        for (uint32_t i = 0; shadow[s].live && i < shadow[s].n_accepted; i++)
            cr_assert_eq(page_content[kv_cache_page(kv, s, i / PAGE)][i % PAGE], shadow[s].ids[i]);
}

enum { N_SNAPSHOTS = 3 };
static uint64_t snapshot_content[N_SNAPSHOTS];

/* Stands for the state behind n tokens. */
static uint64_t state_behind(const int32_t *ids, uint32_t n)
{
    return hash_bytes(n, ids, n * sizeof *ids);
}

static void check_snapshot(const struct kv_cache *kv, const struct shadow *q, uint32_t seq, uint32_t n_cached)
{
    uint32_t n, i = kv_cache_snapshot(kv, seq, &n);
    cr_assert_leq(n, n_cached);
    cr_assert_eq(i == SNAPSHOT_NONE, n == 0);
    cr_assert(n == 0 || snapshot_content[i] == state_behind(q->ids, n));
}

static void random_snapshot(struct kv_cache *kv, const struct shadow *q, uint32_t seq)
{
    uint32_t n = random_below(q->n_accepted / PAGE + 1) * PAGE;
    uint32_t i = n ? kv_cache_take_snapshot(kv) : SNAPSHOT_NONE;
    if (i == SNAPSHOT_NONE)
        return;
    snapshot_content[i] = state_behind(q->ids, n);
    if (random_below(4) == 0)
        kv_cache_drop_snapshot(kv, i);
    else if (kv_cache_keep_snapshot(kv, seq, n, i) && random_below(4) == 0)
        kv_cache_forget_snapshot(kv, seq, n);
}

static void random_add(struct kv_cache *kv, struct shadow *q, uint32_t seq)
{
    uint32_t n_cached = 0, n_prompt;
    q->n_tokens = 1 + random_below(MAX_TOKENS);
    n_prompt = 1 + random_below(q->n_tokens);
    int32_t id = 0;
    for (uint32_t i = 0; i < q->n_tokens; i++) { /* few different pages, so that prefixes meet */
        id = i % PAGE == 0 ? (int32_t)random_below(2) : id;
        q->ids[i] = id;
    }
    struct kv_sequence s = {.prompt = q->ids,
                            .n_prompt = n_prompt,
                            .n_tokens = q->n_tokens,
                            .salt = random_below(4) == 0,
                            .reuse = random_below(5) > 0};
    s.publish = s.reuse || random_below(2);
    if (kv_cache_add(kv, seq, &s, &n_cached) == 0) {
        cr_assert(s.reuse || n_cached == 0);
        cr_assert_leq(n_cached, n_prompt - 1);
        check_snapshot(kv, q, seq, n_cached);
        q->live = true;
        q->n_accepted = n_cached;
        q->n_prompt = n_prompt;
        q->publish = s.publish;
        q->salt = s.salt;
    }
}

/* Goes on from another's prompt, in its own way. */
static bool random_fork(struct kv_cache *kv, struct shadow *shadow, uint32_t seq)
{
    uint32_t of = random_below(N_SEQS), from;
    struct shadow *q = &shadow[seq], *first = &shadow[of];
    if (!first->live || first->n_accepted + 1 < first->n_prompt)
        return false;
    *q = *first;
    struct kv_sequence s = {.prompt = q->ids,
                            .n_prompt = q->n_prompt,
                            .n_tokens = q->n_tokens,
                            .salt = q->salt,
                            .publish = q->publish};
    q->live = kv_cache_add_fork(kv, seq, &s) == 0;
    if (!q->live)
        return true;
    q->n_accepted = (q->n_prompt - 1) / PAGE * PAGE;
    bool copy = kv_cache_fork(kv, seq, of, q->n_prompt, &from);
    check_snapshot(kv, q, seq, q->n_accepted);
    kv_cache_grow(kv, seq, q->n_prompt);
    if (copy)
        memcpy(page_content[kv_cache_page(kv, seq, q->n_accepted / PAGE)], page_content[from],
               sizeof *page_content);
    kv_cache_accept(kv, seq, q->ids + q->n_accepted, q->n_prompt - 1 - q->n_accepted);
    q->n_accepted = q->n_prompt - 1;
    for (uint32_t i = q->n_prompt; i < q->n_tokens; i++)
        q->ids[i] = (int32_t)(seq * 10 + random_below(2));
    return true;
}

static void random_progress(struct kv_cache *kv, struct shadow *q, uint32_t seq)
{
    uint32_t n = random_below(q->n_tokens - q->n_accepted + 1);
    kv_cache_grow(kv, seq, q->n_accepted + n);
    for (uint32_t i = q->n_accepted; i < q->n_accepted + n; i++)
        page_content[kv_cache_page(kv, seq, i / PAGE)][i % PAGE] = q->ids[i];
    kv_cache_accept(kv, seq, q->ids + q->n_accepted, n);
    q->n_accepted += n;
}

/* A page that is worth keeping holds the tokens of its name. */
static void random_keep(struct kv_cache *kv)
{
    struct kv_page_name name;
    uint32_t page;
    if (!kv_cache_keep(kv, random_below(2), &page, &name))
        return;
    cr_assert_eq(memcmp(page_content[page], name.ids, sizeof name.ids), 0);
    struct kv_key key = kv_key_next(name.parent, name.ids);
    cr_assert_eq(memcmp(&name.key, &key, sizeof key), 0);
    if (random_below(2))
        kv_cache_kept(kv, page);
}

static void random_life(uint32_t n_pages)
{
    static struct shadow shadow[N_SEQS];
    struct kv_cache *kv = NULL;
    struct kv_cache_config cfg = {
        .n_pages = n_pages, .n_seqs = N_SEQS, .n_ctx = MAX_TOKENS, .keep = true, .n_snapshots = N_SNAPSHOTS};
    cr_assert_eq(kv_cache_open(&kv, &cfg, NULL), 0);
    memset(shadow, 0, sizeof shadow);
    for (int round = 0; round < 3000; round++) {
        uint32_t seq = random_below(N_SEQS);
        struct shadow *q = &shadow[seq];
        if (!q->live) {
            if (random_below(2) || !random_fork(kv, shadow, seq))
                random_add(kv, q, seq);
        } else if (random_below(4) > 0) {
            random_progress(kv, q, seq);
            random_snapshot(kv, q, seq);
        } else {
            kv_cache_end(kv, seq);
            q->live = false;
        }
        random_keep(kv);
        cr_assert(kv_cache_check(kv), "round %d", round);
        check_content(kv, shadow);
    }
    for (uint32_t s = 0; s < N_SEQS; s++)
        if (shadow[s].live)
            kv_cache_end(kv, s);
    cr_assert(kv_cache_check(kv));
    cr_assert_eq(stats(kv).used, 0);
    cr_assert_eq(stats(kv).reserved, 0);
    kv_cache_close(kv);
}

Test(kv_cache, invariants_hold_through_a_random_life_in_little_room)
{
    random_life(9);
}

Test(kv_cache, invariants_hold_through_a_random_life_in_much_room)
{
    random_life(40);
}
