/* Several choices of one prompt: the prompt is computed once, each choice's tokens are those it would have
 * alone, and each ends by itself. */
#include "support/engine_driver.h"

#define MAX ENGINE_MAX_CHOICES

/* n linked requests of one prompt with seeds 0, 1, ... */
static void choices_new(struct engine_request **r, uint32_t n, uint32_t n_prompt, uint32_t max_tokens)
{
    r[0] = request_new(some_prompt(5), n_prompt, max_tokens);
    for (uint32_t i = 1; i < n; i++) {
        r[i] = request_new(r[0]->prompt, n_prompt, max_tokens);
        r[i]->sampling.seed = i;
        r[i - 1]->next_choice = r[i];
    }
}

static void choices_free(struct engine_request **r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        request_free(r[i]);
}

static void wait_all(struct rig *rig, struct engine_request **r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        wait_done(rig, r[i]);
}

static void check_once(uint32_t n_prompt, bool cache)
{
    struct rig_config c = usual;
    c.n_slots = MAX;
    struct rig *rig = rig_open(c);
    struct engine_request *r[MAX];
    choices_new(r, MAX, n_prompt, 30);
    for (uint32_t i = 0; i < MAX; i++) {
        r[i]->ignore_eos = true;
        r[i]->cache_prompt = cache;
    }
    submit(rig, r[0]);
    wait_all(rig, r, MAX);
    wait_idle(rig);
    for (uint32_t i = 0; i < MAX; i++) {
        check_tokens(r[i]);
        cr_assert_eq(atomic_load(&r[i]->n_prompt_done), n_prompt);
    }
    /* The prompt, its last token again for every further choice, and the tokens but the last, which no row
     * computes further (rows of the steps in flight at the end aside: a length is known beforehand). */
    cr_assert_eq(atomic_load(&rig->fake->n_rows), n_prompt + MAX - 1 + MAX * 29, "prompt of %u", n_prompt);
    cr_assert_eq(atomic_load(&rig->fake->n_copies), (n_prompt - 1) % KV_PAGE_TOKENS ? MAX - 1 : 0);
    cr_assert_eq(rig_stats(rig).prompt_tokens, n_prompt);
    cr_assert_eq(rig_stats(rig).pages_used, 0);
    choices_free(r, MAX);
    rig_close(rig);
}

Test(choices, the_prompt_is_computed_once_and_every_text_is_as_it_would_be_alone)
{
    const uint32_t lengths[] = {1, 2, 63, 64, 65, 66, 127, 128, 129, 500};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_once(lengths[i], true);
        check_once(lengths[i], false);
    }
}

Test(choices, a_prompt_in_the_cache_is_not_computed_again)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *before = request_new(some_prompt(5), 200, 5), *r[3];
    submit(rig, before);
    wait_done(rig, before);
    choices_new(r, 3, 200, 20);
    submit(rig, r[0]);
    wait_all(rig, r, 3);
    cr_assert_eq(r[0]->n_cached, 192);
    cr_assert_eq(r[1]->n_cached, 0);
    for (int i = 0; i < 3; i++)
        check_tokens(r[i]);
    request_free(before);
    choices_free(r, 3);
    rig_close(rig);
}

Test(choices, log_probabilities_and_penalties_are_of_each_choice)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r[3];
    choices_new(r, 3, 150, 40);
    r[0]->want_prompt_logprobs = true;
    for (int i = 0; i < 3; i++) {
        r[i]->want_logprobs = true;
        r[i]->n_top = 2;
        r[i]->sampling.presence_penalty = 1; /* the decoder compares the history with its pages */
        r[i]->sampling.penalty_last_n = 100;
    }
    submit(rig, r[0]);
    wait_all(rig, r, 3);
    for (int i = 0; i < 3; i++)
        check_tokens(r[i]);
    choices_free(r, 3);
    rig_close(rig);
}

Test(choices, max_tokens_zero_ends_all_of_them)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r[4];
    choices_new(r, 4, 100, 0);
    submit(rig, r[0]);
    wait_all(rig, r, 4);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(r[i]->finish, ENGINE_LENGTH);
    choices_free(r, 4);
    rig_close(rig);
}

Test(choices, without_shared_pages_each_computes_the_prompt)
{
    struct rig_config c = usual;
    c.alone = true;
    struct rig *rig = rig_open(c);
    struct engine_request *r[3];
    choices_new(r, 3, 200, 20);
    for (int i = 0; i < 3; i++)
        r[i]->ignore_eos = true;
    submit(rig, r[0]);
    wait_all(rig, r, 3);
    for (int i = 0; i < 3; i++)
        check_tokens(r[i]);
    cr_assert_eq(atomic_load(&rig->fake->n_rows), 3 * (200 + 19));
    choices_free(r, 3);
    rig_close(rig);
}

Test(choices, more_of_them_than_slots_or_pages_come_one_after_the_other)
{
    for (uint32_t n_slots = 1; n_slots <= 8; n_slots += 7) {
        struct rig_config c = usual;
        c.n_slots = n_slots;
        c.n_pages = 8; /* one choice takes four */
        c.n_ctx = 512;
        c.queue_limit = 2; /* less than the choices beyond the slots: they come in together all the same */
        struct rig *rig = rig_open(c);
        struct engine_request *r[MAX];
        choices_new(r, MAX, 100, 150);
        submit(rig, r[0]);
        wait_all(rig, r, MAX);
        for (int i = 0; i < MAX; i++)
            check_tokens(r[i]);
        choices_free(r, MAX);
        rig_close(rig);
    }
}

Test(choices, they_start_only_when_there_are_slots_and_pages_for_all)
{
    struct rig_config c = usual;
    c.n_pages = 12;
    c.n_ctx = 768;
    struct rig *rig = rig_open(c);
    struct engine_request *a = request_new(some_prompt(1), 10, 300), *r[3];
    a->ignore_eos = true; /* holds five pages of twelve: seven are left */
    rig_hold(rig, 2);
    submit(rig, a);
    wait_out(rig, a, 2);
    choices_new(r, 3, 100, 150); /* 4 + 3 + 3 */
    submit(rig, r[0]);
    rig_hold(rig, 20);
    wait_out(rig, a, 15);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(state_of(r[i]), ENGINE_QUEUED);
    rig_go(rig);
    wait_done(rig, a);
    wait_all(rig, r, 3);
    for (int i = 0; i < 3; i++)
        check_tokens(r[i]);
    request_free(a);
    choices_free(r, 3);
    rig_close(rig);
}

/* ---- ends ---- */

Test(choices, the_first_one_s_end_leaves_the_others_their_pages)
{
    struct rig_config c = usual;
    c.n_pages = 10;
    c.n_ctx = 640;
    struct rig *rig = rig_open(c);
    struct engine_request *r[4], *next = request_new(some_prompt(9), 100, 100);
    choices_new(r, 4, 100, 60);
    int32_t tokens[61];
    enum engine_finish finish;
    for (int i = 0; i < 4; i++)
        r[i]->ignore_eos = true;
    expected_tokens(r[0], tokens, &finish);
    r[0]->stop_ids = tokens; /* ends with its first token, while the others' copies are in flight */
    r[0]->n_stop_ids = 1;
    next->ignore_eos = true;
    submit(rig, r[0]);
    submit(rig, next); /* takes what becomes free */
    wait_all(rig, r, 4);
    wait_done(rig, next);
    cr_assert_eq(n_out(r[0]), 1);
    for (int i = 0; i < 4; i++)
        check_tokens(r[i]);
    check_tokens(next);
    wait_idle(rig);
    cr_assert_eq(rig_stats(rig).pages_used, 0);
    choices_free(r, 4);
    request_free(next);
    rig_close(rig);
}

Test(choices, one_of_them_can_be_cancelled_alone)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r[3];
    choices_new(r, 3, 100, 500);
    for (int i = 0; i < 3; i++)
        r[i]->ignore_eos = true;
    rig_hold(rig, 10);
    submit(rig, r[0]);
    wait_out(rig, r[2], 3);
    engine_cancel(rig->e, r[1]);
    wait_done(rig, r[1]);
    rig_go(rig);
    wait_all(rig, r, 3);
    cr_assert_eq(r[1]->finish, ENGINE_CANCELLED);
    cr_assert_eq(n_out(r[0]), 500);
    for (int i = 0; i < 3; i++)
        check_tokens(r[i]);
    choices_free(r, 3);
    rig_close(rig);
}

Test(choices, until_the_prompt_is_computed_they_end_with_the_first)
{
    struct rig_config c = usual;
    c.max_chunk = 10;
    struct rig *rig = rig_open(c);
    struct engine_request *r[3];
    choices_new(r, 3, 900, 50);
    rig_hold(rig, 3);
    submit(rig, r[0]);
    for (uint64_t since = clock_ns(); atomic_load(&r[0]->n_prompt_done) < 30;)
        wait_a_little(since);
    engine_cancel(rig->e, r[1]);
    wait_done(rig, r[1]);
    cr_assert_neq(state_of(r[2]), ENGINE_DONE);
    engine_cancel(rig->e, r[0]);
    wait_all(rig, r, 3);
    rig_go(rig);
    wait_idle(rig);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(r[i]->finish, ENGINE_CANCELLED);
    cr_assert_eq(rig_stats(rig).pages_used, 0);
    cr_assert_leq(atomic_load(&rig->fake->n_rows), 50); /* the steps in flight */
    choices_free(r, 3);
    rig_close(rig);
}

Test(choices, in_the_queue_they_end_with_the_first)
{
    struct rig_config c = usual;
    c.n_slots = 3;
    struct rig *rig = rig_open(c);
    struct engine_request *a = request_new(some_prompt(1), 5, 50), *r[3];
    choices_new(r, 3, 100, 50);
    rig_hold(rig, 0);
    submit(rig, a);
    submit(rig, r[0]);
    engine_cancel(rig->e, r[0]);
    wait_all(rig, r, 3);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(r[i]->finish, ENGINE_CANCELLED);
    rig_go(rig);
    wait_done(rig, a);
    check_tokens(a);
    request_free(a);
    choices_free(r, 3);
    rig_close(rig);
}

Test(choices, a_prompt_whose_logits_are_not_finite_fails_all_of_them)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r[3], *good = request_new(some_prompt(3), 50, 20);
    choices_new(r, 3, 100, 50);
    for (int i = 0; i < 3; i++)
        ((int32_t *)r[i]->prompt)[33] = FAKE_POISON;
    submit(rig, r[0]);
    submit(rig, good);
    wait_all(rig, r, 3);
    wait_done(rig, good);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(r[i]->finish, ENGINE_NOT_FINITE);
    check_tokens(good);
    request_free(good);
    choices_free(r, 3);
    rig_close(rig);
}
