/* Window pages: what a row sees through them is what its sequence wrote, however they are shared, left behind
 * and taken by others. */
#include "kv/kv_cache.h"
#define RANDOM_SEED 7
#include "support/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define PAGE   KV_PAGE_TOKENS
#define WINDOW 100u /* tokens */
#define ROWS   128u /* most in flight */
#define EACH   6u   /* window pages of a sequence */

enum { N_SEQS = 5, MAX_TOKENS = 20 * PAGE };

static struct kv_cache *open_cache(uint32_t n_pages, uint32_t n_windows)
{
    struct kv_cache *kv = NULL;
    struct kv_cache_config cfg = {.n_pages = n_pages,
                                  .n_seqs = N_SEQS,
                                  .n_ctx = MAX_TOKENS,
                                  .keep = true,
                                  .n_windows = n_windows,
                                  .window = WINDOW};
    cr_assert_eq(kv_windows_of(WINDOW, ROWS), EACH);
    cr_assert_eq(kv_cache_open(&kv, &cfg, NULL), 0);
    return kv;
}

static struct kv_cache_stats stats(const struct kv_cache *kv)
{
    struct kv_cache_stats s;
    kv_cache_stats(kv, &s);
    return s;
}

static const int32_t *numbers(int32_t from)
{
    static int32_t ids[8][MAX_TOKENS];
    static int next;
    int32_t *out = ids[next++ % 8];
    for (int i = 0; i < MAX_TOKENS; i++)
        out[i] = from + i;
    return out;
}

static uint32_t add(struct kv_cache *kv, uint32_t seq, const int32_t *ids, uint32_t n)
{
    struct kv_sequence s = {.prompt = ids, .n_prompt = n, .n_tokens = n, .reuse = true, .publish = true};
    uint32_t n_cached = 0;
    cr_assert_eq(kv_cache_add(kv, seq, &s, &n_cached), 0);
    return n_cached;
}

/* Computes the whole text in steps of ROWS tokens; returns the tokens of the hit. */
static uint32_t fill(struct kv_cache *kv, uint32_t seq, const int32_t *ids, uint32_t n)
{
    uint32_t n_cached = add(kv, seq, ids, n);
    for (uint32_t at = n_cached, end; at < n; at = end) {
        end = n - at < ROWS ? n : at + ROWS;
        kv_cache_grow(kv, seq, end);
        kv_cache_accept(kv, seq, ids + at, end - at);
        cr_assert(kv_cache_check(kv));
        cr_assert_leq(kv_cache_n_windows(kv, seq), EACH);
    }
    return n_cached;
}

Test(kv_windows, a_long_text_holds_the_window_pages_of_its_window)
{
    struct kv_cache *kv = open_cache(40, N_SEQS * EACH);
    fill(kv, 0, numbers(0), MAX_TOKENS);
    cr_assert_eq(stats(kv).used, 20);
    cr_assert_eq(stats(kv).windows_used, kv_cache_n_windows(kv, 0));
    cr_assert_eq(kv_cache_first_window(kv, MAX_TOKENS), 18); /* positions from 1181 on are seen */
    cr_assert_eq(kv_cache_n_windows(kv, 0), 2);
    cr_assert_eq(kv_cache_window(kv, 0, 17), WINDOW_NONE);
    cr_assert_neq(kv_cache_window(kv, 0, 18), WINDOW_NONE);
    kv_cache_end(kv, 0);
    cr_assert_eq(stats(kv).windows_used, 0);
    kv_cache_close(kv);
}

Test(kv_windows, a_text_is_continued_from_its_end)
{
    struct kv_cache *kv = open_cache(60, N_SEQS * EACH);
    const int32_t *ids = numbers(0);
    fill(kv, 0, ids, 10 * PAGE + 3);
    kv_cache_end(kv, 0);
    cr_assert_eq(add(kv, 1, ids, 12 * PAGE), 10 * PAGE);
    cr_assert_eq(kv_cache_window(kv, 1, 7), WINDOW_NONE);
    cr_assert_neq(kv_cache_window(kv, 1, 8), WINDOW_NONE); /* the first row sees positions from 541 on */
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

/* A long text leaves the middle of the prompt behind, whose window pages serve it again. */
Test(kv_windows, a_hit_ends_where_its_window_pages_are_there)
{
    struct kv_cache *kv = open_cache(90, N_SEQS * EACH);
    const int32_t *ids = numbers(0);
    fill(kv, 0, ids, MAX_TOKENS);
    fill(kv, 4, numbers(90000), MAX_TOKENS);
    cr_assert_eq(add(kv, 1, ids, 10 * PAGE + 1), 0, "the window page of page 9 was taken again");
    kv_cache_end(kv, 1);
    cr_assert_eq(fill(kv, 1, ids, MAX_TOKENS), 19 * PAGE);
    kv_cache_close(kv);
}

Test(kv_windows, a_page_that_is_computed_again_gets_its_window_page_back)
{
    struct kv_cache *kv = open_cache(90, N_SEQS * EACH);
    const int32_t *ids = numbers(0);
    fill(kv, 0, ids, MAX_TOKENS);
    kv_cache_end(kv, 0);
    fill(kv, 4, numbers(90000), MAX_TOKENS);
    cr_assert_eq(fill(kv, 1, ids, 6 * PAGE + 1), 0);
    uint32_t cached = stats(kv).cached;
    kv_cache_end(kv, 1);
    cr_assert_eq(stats(kv).cached, cached, "an equal page is published once");
    cr_assert_eq(add(kv, 2, ids, 6 * PAGE + 1), 6 * PAGE);
    cr_assert(kv_cache_check(kv));
    kv_cache_close(kv);
}

Test(kv_windows, what_a_second_text_needed_is_taken_last)
{
    struct kv_cache *kv = open_cache(120, N_SEQS * EACH);
    int32_t long_text[MAX_TOKENS];
    const int32_t *prompt = numbers(0);
    fill(kv, 0, prompt, 3 * PAGE + 1);
    kv_cache_end(kv, 0);
    memcpy(long_text, numbers(50000), sizeof long_text);
    memcpy(long_text, prompt, (size_t)3 * PAGE * sizeof *prompt);
    cr_assert_eq(fill(kv, 0, long_text, MAX_TOKENS), 3 * PAGE);
    fill(kv, 1, numbers(100000), MAX_TOKENS);
    cr_assert_eq(add(kv, 2, prompt, 3 * PAGE + 1), 3 * PAGE);
    kv_cache_close(kv);
}

Test(kv_windows, an_import_has_the_window_pages_of_its_end_alone)
{
    struct kv_cache *kv = open_cache(60, N_SEQS * EACH);
    const int32_t *ids = numbers(0);
    add(kv, 0, ids, 12 * PAGE);
    for (uint32_t i = 0; i < 10; i++)
        kv_cache_grow_import(kv, 0, i, i >= kv_cache_first_window(kv, 10 * PAGE));
    cr_assert_eq(kv_cache_n_windows(kv, 0), 2);
    kv_cache_accept(kv, 0, ids, 10 * PAGE);
    cr_assert(kv_cache_check(kv));
    cr_assert_eq(kv_cache_window_of(kv, kv_cache_page(kv, 0, 7)), WINDOW_NONE);
    cr_assert_eq(kv_cache_window_of(kv, kv_cache_page(kv, 0, 8)), kv_cache_window(kv, 0, 8));
    cr_assert_eq(add(kv, 1, ids, 12 * PAGE), 10 * PAGE);
    kv_cache_close(kv);
}

Test(kv_windows, a_failed_import_is_computed)
{
    struct kv_cache *kv = open_cache(60, N_SEQS * EACH);
    const int32_t *ids = numbers(0);
    add(kv, 0, ids, 12 * PAGE);
    for (uint32_t i = 0; i < 10; i++)
        kv_cache_grow_import(kv, 0, i, i >= 8);
    kv_cache_import_failed(kv, 0);
    cr_assert_eq(stats(kv).windows_used, 0);
    kv_cache_grow(kv, 0, ROWS);
    kv_cache_accept(kv, 0, ids, ROWS);
    cr_assert(kv_cache_check(kv));
    cr_assert_neq(kv_cache_window(kv, 0, 1), WINDOW_NONE);
    kv_cache_close(kv);
}

/* ---- random life ---- */

struct shadow {
    bool live;
    int32_t ids[MAX_TOKENS];
    uint32_t n_prompt, n_tokens, n_accepted;
};

static int32_t content[N_SEQS * EACH][PAGE];
static uint32_t n_hits, n_long_hits;

static void check_content(const struct kv_cache *kv, const struct shadow *shadow)
{
    for (uint32_t s = 0; s < N_SEQS; s++) {
        const struct shadow *q = &shadow[s];
        uint32_t from = q->n_accepted >= WINDOW ? q->n_accepted + 1 - WINDOW : 0;
        for (uint32_t i = from; q->live && i < q->n_accepted; i++)
            cr_assert_eq(content[kv_cache_window(kv, s, i / PAGE)][i % PAGE], q->ids[i]);
    }
}

static void random_add(struct kv_cache *kv, struct shadow *q, uint32_t seq)
{
    uint32_t n_cached = 0;
    int32_t id = 0;
    q->n_tokens = 1 + random_below(MAX_TOKENS);
    q->n_prompt = 1 + random_below(q->n_tokens);
    for (uint32_t i = 0; i < q->n_tokens; i++) { /* few different pages, so that prefixes meet */
        id = i % PAGE == 0 ? (int32_t)(i / PAGE * 2 + (random_below(6) == 0)) : id;
        q->ids[i] = id;
    }
    struct kv_sequence s = {.prompt = q->ids, .n_prompt = q->n_prompt, .n_tokens = q->n_tokens};
    s.reuse = s.publish = random_below(8) > 0;
    if (kv_cache_add(kv, seq, &s, &n_cached) < 0)
        return;
    n_hits += n_cached > 0;
    n_long_hits += n_cached > WINDOW;
    q->live = true;
    q->n_accepted = n_cached;
}

static void random_progress(struct kv_cache *kv, struct shadow *q, uint32_t seq, uint32_t most)
{
    uint32_t left = most - q->n_accepted, n = random_below((left < ROWS ? left : ROWS) + 1);
    kv_cache_grow(kv, seq, q->n_accepted + n);
    for (uint32_t i = q->n_accepted; i < q->n_accepted + n; i++)
        content[kv_cache_window(kv, seq, i / PAGE)][i % PAGE] = q->ids[i];
    kv_cache_accept(kv, seq, q->ids + q->n_accepted, n);
    q->n_accepted += n;
}

/* Two sequences of one prompt: the first computes it, then the second goes on in its own way. */
static void random_fork(struct kv_cache *kv, struct shadow *shadow, uint32_t of, uint32_t seq)
{
    struct shadow *q = &shadow[seq], *first = &shadow[of];
    uint32_t from, end = first->n_prompt - 1;
    struct kv_sequence s = {
        .prompt = first->ids, .n_prompt = first->n_prompt, .n_tokens = first->n_tokens, .publish = true};
    if (first->n_accepted > end || kv_cache_add_fork(kv, seq, &s) < 0)
        return;
    while (first->n_accepted < end)
        random_progress(kv, first, of, end);
    *q = *first;
    kv_cache_fork(kv, seq, of, q->n_prompt, &from);
    kv_cache_grow(kv, seq, q->n_prompt);
    uint32_t window = kv_cache_copied_window(kv, seq);
    cr_assert_eq(window != WINDOW_NONE, end % PAGE != 0);
    if (window != WINDOW_NONE)
        memcpy(content[kv_cache_window(kv, seq, end / PAGE)], content[window], sizeof *content);
    kv_cache_accept(kv, seq, q->ids + end / PAGE * PAGE, end % PAGE);
    for (uint32_t i = q->n_prompt; i < q->n_tokens; i++)
        q->ids[i] = (int32_t)(1000 + seq * 10 + random_below(2));
}

static void live(struct kv_cache *kv, struct shadow *shadow)
{
    uint32_t seq = random_below(N_SEQS), other = random_below(N_SEQS);
    struct shadow *q = &shadow[seq];
    if (!q->live)
        random_add(kv, q, seq);
    else if (!shadow[other].live && random_below(2))
        random_fork(kv, shadow, seq, other);
    else if (random_below(12) > 0)
        random_progress(kv, q, seq, q->n_tokens);
    else {
        kv_cache_end(kv, seq);
        q->live = false;
    }
}

static void random_life(uint32_t n_pages)
{
    static struct shadow shadow[N_SEQS];
    struct kv_cache *kv = open_cache(n_pages, N_SEQS * EACH);
    memset(shadow, 0, sizeof shadow);
    for (int round = 0; round < 4000; round++) {
        live(kv, shadow);
        cr_assert(kv_cache_check(kv), "round %d", round);
        check_content(kv, shadow);
        for (uint32_t s = 0; s < N_SEQS; s++)
            cr_assert(!shadow[s].live || kv_cache_n_windows(kv, s) <= EACH);
    }
    for (uint32_t s = 0; s < N_SEQS; s++)
        if (shadow[s].live)
            kv_cache_end(kv, s);
    cr_assert(kv_cache_check(kv));
    cr_assert_eq(stats(kv).windows_used, 0);
    kv_cache_close(kv);
}

Test(kv_windows, rows_see_what_their_sequence_wrote_in_little_room)
{
    random_life(21);
    cr_assert_gt(n_hits, 20);
}

Test(kv_windows, rows_see_what_their_sequence_wrote_in_much_room)
{
    random_life(100);
    cr_assert_gt(n_hits, 100);
    cr_assert_gt(n_long_hits, 30);
}
