/* The engine over a fake backend: requests to steps and back, cancel, deadlines, ends. */
#include "support/engine_driver.h"
#include "engine/engine_queue.h"

#include <unistd.h>

/* ---- one request ---- */

Test(engine, a_request_gives_the_tokens_of_its_sequence)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(5), 200, 50);
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    cr_assert_eq(r->n_cached, 0);
    cr_assert(r->queued_ns <= r->started_ns && r->started_ns <= r->first_ns && r->first_ns <= r->done_ns);
    request_free(r);
    rig_close(rig);
}

Test(engine, max_tokens_zero_only_fills_the_cache)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(5), 200, 0),
                          *again = request_new(some_prompt(5), 200, 9);
    submit(rig, r);
    wait_done(rig, r);
    cr_assert_eq(r->finish, ENGINE_LENGTH);
    cr_assert_eq(n_out(r), 0);
    cr_assert_eq(r->first_ns, 0);
    cr_assert_eq(atomic_load(&r->n_prompt_done), 200);
    submit(rig, again);
    wait_done(rig, again);
    cr_assert_eq(again->n_cached, 192);
    check_tokens(again);
    request_free(r);
    request_free(again);
    rig_close(rig);
}

Test(engine, an_end_token_is_reported_and_is_the_last)
{
    struct rig *rig = rig_open(usual);
    uint32_t n_ended = 0;
    for (uint32_t from = 0; from < 20; from++) {
        struct engine_request *r = request_new(some_prompt(from * 10), 3, 900);
        submit(rig, r);
        wait_done(rig, r);
        check_tokens(r);
        n_ended += r->finish == ENGINE_EOS;
        request_free(r);
    }
    cr_assert_gt(n_ended, 5);
    rig_close(rig);
}

Test(engine, end_tokens_are_banned_when_ignored_or_before_min_tokens)
{
    struct rig *rig = rig_open(usual);
    for (int min = 0; min < 2; min++) {
        struct engine_request *r = request_new(some_prompt(1), 3, 1000);
        r->ignore_eos = !min;
        r->min_tokens = min ? 1000 : 0;
        submit(rig, r);
        wait_done(rig, r);
        check_tokens(r);
        cr_assert_eq(r->finish, ENGINE_LENGTH);
        cr_assert_eq(n_out(r), 1000);
        request_free(r);
    }
    rig_close(rig);
}

Test(engine, a_stop_id_ends_the_text_also_when_end_tokens_are_ignored)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(1), 3, 100);
    int32_t tokens[100];
    enum engine_finish finish;
    r->ignore_eos = true;
    expected_tokens(r, tokens, &finish);
    r->stop_ids = &tokens[40];
    r->n_stop_ids = 1;
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    cr_assert_eq(r->finish, ENGINE_EOS);
    cr_assert_eq(n_out(r), 41);
    request_free(r);
    rig_close(rig);
}

Test(engine, log_probabilities_arrive_for_prompt_and_tokens)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(1), 150, 30);
    r->want_logprobs = r->want_prompt_logprobs = true;
    r->n_top = 3;
    r->n_prompt_top = 5;
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    request_free(r);
    rig_close(rig);
}

Test(engine, a_context_is_used_to_its_last_token)
{
    struct rig_config c = usual;
    c.n_pages = 16;
    struct rig *rig = rig_open(c);
    struct engine_request *r = request_new(some_prompt(1), 1000, 24);
    r->ignore_eos = true;
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    cr_assert_eq(n_out(r), 24);
    request_free(r);
    rig_close(rig);
}

/* ---- what is refused ---- */

static void check_refused(struct rig *rig, struct engine_request *r, int code, const char *words)
{
    struct error err = {0};
    cr_assert_eq(engine_submit(rig->e, r, &err), code);
    cr_assert(strstr(err.text, words), "%s", err.text);
}

Test(engine, a_request_that_can_never_run_is_refused_with_words)
{
    struct rig_config c = usual;
    c.n_pages = 4; /* less than n_ctx */
    struct rig *rig = rig_open(c);
    cr_assert_eq(engine_n_ctx(rig->e), 256);
    struct engine_request *r = request_new(some_prompt(0), 200, 57);
    check_refused(rig, r, -EINVAL, "256");
    r->max_tokens = 10;
    r->sampling.n_bias = STEP_MAX_BIAS + 1;
    check_refused(rig, r, -EINVAL, "logit_bias");
    r->sampling.n_bias = 0;
    r->sampling.penalty_last_n = STEP_MAX_HISTORY + 1;
    check_refused(rig, r, -EINVAL, "penalty_last_n");
    r->sampling.penalty_last_n = 0;
    r->n_prompt_top = STEP_MAX_TOP + 1;
    check_refused(rig, r, -EINVAL, "logprobs");
    r->n_prompt_top = 0;
    r->n_prompt = 0;
    check_refused(rig, r, -EINVAL, "empty");
    request_free(r);
    rig_close(rig);
}

Test(engine, a_full_queue_refuses_and_slots_do_not_count_as_queue)
{
    struct rig_config c = usual;
    c.n_slots = 2;
    c.queue_limit = 3;
    struct rig *rig = rig_open(c);
    struct engine_request *r[6];
    rig_hold(rig, 0);
    for (int i = 0; i < 6; i++) {
        r[i] = request_new(some_prompt((uint32_t)i), 5, 5);
        if (i < 5)
            submit(rig, r[i]);
        else
            check_refused(rig, r[i], -EAGAIN, "full");
    }
    cr_assert_eq(rig_stats(rig).rejected, 1);
    rig_go(rig);
    for (int i = 0; i < 5; i++)
        wait_done(rig, r[i]);
    submit(rig, r[5]);
    wait_done(rig, r[5]);
    for (int i = 0; i < 6; i++)
        request_free(r[i]);
    rig_close(rig);
}

/* Waits until the engine has looked; else the test's time ends it. */
static void wait_at_once(struct rig *rig, uint32_t n)
{
    while (engine_at_once(rig->e) != n)
        usleep(1000);
}

Test(engine, so_many_run_at_once_as_there_are_slots_or_as_find_memory)
{
    struct rig_config c = usual;
    c.n_slots = 4;
    c.n_pages = 16; /* one context */
    struct rig *rig = rig_open(c);
    struct engine_request *a = request_new(some_prompt(1), 5, 1000),
                          *b = request_new(some_prompt(2), 5, 1000);
    a->ignore_eos = b->ignore_eos = true;
    rig_hold(rig, 1);
    submit(rig, a);
    wait_out(rig, a, 1);
    cr_assert_eq(engine_at_once(rig->e), 4, "one runs, and others may");
    submit(rig, b);
    wait_at_once(rig, 1);
    engine_cancel(rig->e, b);
    wait_done(rig, b);
    wait_at_once(rig, 4); /* none waits for memory */
    engine_cancel(rig->e, a);
    wait_done(rig, a);
    rig_go(rig);
    request_free(a);
    request_free(b);
    rig_close(rig);
}

/* ---- cancel and deadlines ---- */

Test(engine, a_queued_request_can_be_cancelled)
{
    struct rig_config c = usual;
    c.n_slots = 1;
    struct rig *rig = rig_open(c);
    struct engine_request *a = request_new(some_prompt(1), 5, 50), *b = request_new(some_prompt(2), 5, 50);
    rig_hold(rig, 0);
    submit(rig, a);
    submit(rig, b);
    engine_cancel(rig->e, b);
    wait_done(rig, b); /* although the decoder does not move */
    cr_assert_eq(b->finish, ENGINE_CANCELLED);
    cr_assert_eq(b->started_ns, 0);
    rig_go(rig);
    wait_done(rig, a);
    check_tokens(a);
    request_free(a);
    request_free(b);
    rig_close(rig);
}

Test(engine, a_request_in_prefill_can_be_cancelled)
{
    struct rig_config c = usual;
    c.max_chunk = 10;
    struct rig *rig = rig_open(c);
    struct engine_request *r = request_new(some_prompt(1), 900, 50);
    rig_hold(rig, 3);
    submit(rig, r);
    for (uint64_t since = clock_ns(); atomic_load(&r->n_prompt_done) < 30;)
        wait_a_little(since);
    engine_cancel(rig->e, r);
    wait_done(rig, r);
    cr_assert_eq(r->finish, ENGINE_CANCELLED);
    cr_assert_eq(n_out(r), 0);
    rig_go(rig);
    wait_idle(rig);
    cr_assert_eq(rig_stats(rig).pages_used, 0);
    cr_assert_leq(atomic_load(&rig->fake->n_rows), 50); /* at most the two steps in flight came after */
    request_free(r);
    rig_close(rig);
}

Test(engine, a_request_in_decode_can_be_cancelled_and_computes_two_more_steps_at_most)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(1), 10, 900);
    r->ignore_eos = true;
    rig_hold(rig, 5);
    submit(rig, r);
    wait_out(rig, r, 5);
    engine_cancel(rig->e, r);
    wait_done(rig, r);
    cr_assert_eq(r->finish, ENGINE_CANCELLED);
    check_tokens(r);
    rig_go(rig);
    wait_idle(rig);
    cr_assert_leq(atomic_load(&rig->fake->n_log), 5 + 2);
    cr_assert_eq(rig_stats(rig).pages_used, 0);
    cr_assert_eq(rig_stats(rig).cancelled, 1);
    request_free(r);
    rig_close(rig);
}

Test(engine, pages_return_only_when_the_last_step_naming_them_has_retired)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(1), 10, 900);
    r->ignore_eos = true;
    rig_hold(rig, 2);
    submit(rig, r);
    wait_out(rig, r, 2);
    engine_cancel(rig->e, r);
    wait_done(rig, r);
    cr_assert_eq(rig_stats(rig).pages_used, 1);
    cr_assert_not(rig_stats(rig).idle);
    rig_go(rig);
    wait_idle(rig);
    cr_assert_eq(rig_stats(rig).pages_used, 0);
    request_free(r);
    rig_close(rig);
}

Test(engine, cancelling_twice_or_after_the_end_changes_nothing)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(1), 10, 5);
    r->ignore_eos = true;
    submit(rig, r);
    wait_done(rig, r);
    engine_cancel(rig->e, r);
    engine_cancel(rig->e, r);
    cr_assert_eq(r->finish, ENGINE_LENGTH);
    cr_assert_null(engine_next(rig->e));
    request_free(r);
    rig_close(rig);
}

Test(engine, a_deadline_ends_a_running_request_with_the_tokens_it_has)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(1), 10, 900);
    r->ignore_eos = true;
    rig_hold(rig, 3);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    r->deadline_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + 50000000;
    submit(rig, r);
    wait_done(rig, r);
    cr_assert(r->finish == ENGINE_TIMEOUT || r->finish == ENGINE_QUEUE_TIMEOUT);
    cr_assert_geq(r->done_ns, r->deadline_ns);
    cr_assert_leq(n_out(r), 3);
    check_tokens(r);
    rig_go(rig);
    request_free(r);
    rig_close(rig);
}

Test(engine, a_queue_deadline_ends_a_waiting_request_only)
{
    struct rig_config c = usual;
    c.n_slots = 1;
    struct rig *rig = rig_open(c);
    struct engine_request *a = request_new(some_prompt(1), 5, 50), *b = request_new(some_prompt(2), 5, 50);
    rig_hold(rig, 1);
    submit(rig, a);
    wait_out(rig, a, 1);
    a->queue_deadline_ns = 0;
    b->queue_deadline_ns = 1; /* long past */
    submit(rig, b);
    wait_done(rig, b);
    cr_assert_eq(b->finish, ENGINE_QUEUE_TIMEOUT);
    cr_assert_eq(rig_stats(rig).timed_out, 1);
    rig_go(rig);
    wait_done(rig, a);
    check_tokens(a);
    request_free(a);
    request_free(b);
    rig_close(rig);
}

Test(engine, closing_ends_what_runs_and_what_waits)
{
    struct rig_config c = usual;
    c.n_slots = 1;
    struct rig *rig = rig_open(c);
    struct engine_request *r[3];
    rig_hold(rig, 2);
    for (int i = 0; i < 3; i++) {
        r[i] = request_new(some_prompt((uint32_t)i), 5, 500);
        r[i]->ignore_eos = true;
        submit(rig, r[i]);
    }
    wait_out(rig, r[0], 2);
    rig_go(rig);
    rig_close(rig);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(state_of(r[i]), ENGINE_DONE);
        cr_assert(r[i]->finish == ENGINE_CANCELLED || (i == 0 && r[i]->finish == ENGINE_LENGTH));
        request_free(r[i]);
    }
}

/* ---- failures ---- */

Test(engine, a_decoder_fault_ends_every_request_and_refuses_new_ones)
{
    struct rig_config c = usual;
    c.n_slots = 2;
    struct rig *rig = rig_open(c);
    struct engine_request *r[4];
    struct error why = {0};
    cr_assert_not(engine_fault(rig->e, &why));
    rig->fake->fail_at = 5;
    rig_hold(rig, 0);
    for (int i = 0; i < 4; i++) {
        r[i] = request_new(some_prompt((uint32_t)i), 5, 100);
        r[i]->ignore_eos = true;
        submit(rig, r[i]);
    }
    rig_go(rig);
    for (int i = 0; i < 4; i++) {
        wait_done(rig, r[i]);
        cr_assert_eq(r[i]->finish, ENGINE_FAULT);
        check_tokens(r[i]);
    }
    cr_assert(engine_fault(rig->e, &why));
    cr_assert(strstr(why.text, "told to fail"), "%s", why.text);
    check_refused(rig, r[0], -EIO, "failed");
    cr_assert(rig_stats(rig).faulted);
    for (int i = 0; i < 4; i++)
        request_free(r[i]);
    rig_close(rig);
}

Test(engine, a_decoder_that_answers_one_row_twice_and_another_not_is_at_fault)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r[2];
    struct error why = {0};
    rig->fake->twice_at = 6;
    rig_hold(rig, 0);
    for (int i = 0; i < 2; i++) {
        r[i] = request_new(some_prompt((uint32_t)i), 5, 100);
        r[i]->ignore_eos = true;
        submit(rig, r[i]);
    }
    rig_go(rig);
    for (int i = 0; i < 2; i++) {
        wait_done(rig, r[i]);
        cr_expect_eq(r[i]->finish, ENGINE_FAULT);
        check_tokens(r[i]);
    }
    cr_assert(engine_fault(rig->e, &why));
    cr_expect(strstr(why.text, "the decoder returned token"), "%s", why.text);
    for (int i = 0; i < 2; i++)
        request_free(r[i]);
    rig_close(rig);
}

Test(engine, logits_that_are_not_finite_fail_their_request_only)
{
    struct rig *rig = rig_open(usual);
    int32_t poison[70];
    memcpy(poison, some_prompt(9), sizeof poison);
    poison[33] = FAKE_POISON;
    struct engine_request *good = request_new(some_prompt(1), 50, 60), *bad = request_new(poison, 70, 60);
    submit(rig, good);
    submit(rig, bad);
    wait_done(rig, bad);
    wait_done(rig, good);
    cr_assert_eq(bad->finish, ENGINE_NOT_FINITE);
    cr_assert_eq(n_out(bad), 0);
    check_tokens(good);
    cr_assert_eq(rig_stats(rig).failed, 1);
    request_free(good);
    request_free(bad);
    rig_close(rig);
}

/* ---- prefix sharing ---- */

static uint32_t cached_of(struct rig *rig, const int32_t *prompt, uint32_t n, uint64_t salt, bool share)
{
    struct engine_request *r = request_new(prompt, n, 5);
    r->salt = salt;
    r->cache_prompt = share;
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    uint32_t n_cached = r->n_cached;
    request_free(r);
    return n_cached;
}

Test(engine, a_backend_that_cannot_share_pages_gets_no_prefix_hits)
{
    struct rig_config c = usual;
    c.alone = true;
    struct rig *rig = rig_open(c);
    const int32_t *prompt = some_prompt(1);
    cr_assert_eq(cached_of(rig, prompt, 200, 0, true), 0);
    cr_assert_eq(cached_of(rig, prompt, 200, 0, true), 0);
    rig_close(rig);
}

Test(engine, a_prefix_is_found_again_and_only_under_the_same_salt)
{
    struct rig *rig = rig_open(usual);
    const int32_t *prompt = some_prompt(1);
    cr_assert_eq(cached_of(rig, prompt, 200, 1, true), 0);
    cr_assert_eq(cached_of(rig, prompt, 200, 2, true), 0);
    cr_assert_eq(cached_of(rig, prompt, 200, 1, true), 192);
    cr_assert_eq(cached_of(rig, prompt, 130, 1, true), 128);
    cr_assert_eq(cached_of(rig, prompt, 128, 1, true), 64); /* the last token is always computed */
    rig_close(rig);
}

Test(engine, cache_prompt_false_neither_reads_nor_leaves_pages)
{
    struct rig *rig = rig_open(usual);
    const int32_t *prompt = some_prompt(1);
    cr_assert_eq(cached_of(rig, prompt, 200, 0, false), 0);
    cr_assert_eq(cached_of(rig, prompt, 200, 0, true), 0);
    cr_assert_eq(cached_of(rig, prompt, 200, 0, false), 0);
    rig_close(rig);
}

Test(engine, without_a_prefix_cache_nothing_is_found)
{
    struct rig_config c = usual;
    c.prefix_cache = false;
    struct rig *rig = rig_open(c);
    const int32_t *prompt = some_prompt(1);
    cr_assert_eq(cached_of(rig, prompt, 200, 0, true), 0);
    cr_assert_eq(cached_of(rig, prompt, 200, 0, true), 0);
    rig_close(rig);
}

Test(engine, prompt_log_probabilities_read_no_hits)
{
    struct rig *rig = rig_open(usual);
    const int32_t *prompt = some_prompt(1);
    cached_of(rig, prompt, 200, 0, true);
    struct engine_request *r = request_new(prompt, 200, 5);
    r->want_prompt_logprobs = true;
    submit(rig, r);
    wait_done(rig, r);
    cr_assert_eq(r->n_cached, 0);
    check_tokens(r);
    request_free(r);
    rig_close(rig);
}

Test(engine, an_answer_is_part_of_the_prefix_of_the_next_turn)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(1), 100, 100);
    int32_t turn[220];
    r->ignore_eos = true;
    submit(rig, r);
    wait_done(rig, r);
    memcpy(turn, r->prompt, 100 * sizeof *turn);
    for (int i = 0; i < 100; i++)
        turn[100 + i] = r->out[i].token;
    memcpy(turn + 200, some_prompt(3), 20 * sizeof *turn);
    cr_assert_eq(cached_of(rig, turn, 220, 0, true), 192);
    request_free(r);
    rig_close(rig);
}

Test(engine, equal_prompts_sent_at_once_are_computed_once)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r[4];
    for (uint32_t i = 0; i < 4; i++) {
        r[i] = request_new(some_prompt(1), 300, 20);
        r[i]->sampling.seed = i;
        submit(rig, r[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        wait_done(rig, r[i]);
        check_tokens(r[i]);
        cr_assert_eq(r[i]->n_cached, i ? 256 : 0);
        request_free(r[i]);
    }
    rig_close(rig);
}

Test(engine, penalties_get_the_history_of_a_prefix_hit)
{
    struct rig *rig = rig_open(usual);
    const int32_t *prompt = some_prompt(1);
    cached_of(rig, prompt, 200, 0, true);
    struct engine_request *r = request_new(prompt, 200, 5);
    r->sampling.presence_penalty = 1; /* the decoder compares the history with its pages */
    r->sampling.penalty_last_n = 100;
    submit(rig, r);
    wait_done(rig, r);
    cr_assert_eq(r->n_cached, 192);
    check_tokens(r);
    request_free(r);
    rig_close(rig);
}

/* ---- a decoder with less room ---- */

Test(engine, a_decoder_that_holds_fewer_steps_than_asked_is_asked_again)
{
    struct rig *rig = rig_open(usual);
    rig->fake->ring_size = 1;
    struct engine_request *a = request_new(some_prompt(1), 300, 40), *b = request_new(some_prompt(2), 30, 40);
    submit(rig, a);
    submit(rig, b);
    wait_done(rig, a);
    wait_done(rig, b);
    check_tokens(a);
    check_tokens(b);
    request_free(a);
    request_free(b);
    rig_close(rig);
}

/* ---- signs of life ---- */

Test(engine, an_idle_engine_answers_a_ping)
{
    struct rig *rig = rig_open(usual);
    uint64_t before = rig_stats(rig).heartbeat_ns;
    engine_ping(rig->e);
    for (uint64_t since = clock_ns(); rig_stats(rig).heartbeat_ns == before;)
        wait_a_little(since);
    cr_assert(rig_stats(rig).idle);
    rig_close(rig);
}

Test(engine, an_idle_engine_that_is_asked_sees_that_its_device_is_lost)
{
    struct rig *rig = rig_open(usual);
    struct error err = {0};
    atomic_store(&rig->fake->lost, true);
    engine_ping(rig->e);
    for (uint64_t since = clock_ns(); !engine_fault(rig->e, &err);)
        wait_a_little(since);
    cr_assert_str_eq(err.text, "the fake device is lost");
    rig_close(rig);
}

Test(engine, an_idle_engine_does_nothing_until_it_is_asked)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *r = request_new(some_prompt(1), 10, 5);
    submit(rig, r);
    wait_done(rig, r);
    wait_idle(rig);
    uint64_t before = 0;
    for (int i = 0; i < 100 && rig_stats(rig).heartbeat_ns != before;
         i++) { /* it may still be on its way there */
        before = rig_stats(rig).heartbeat_ns;
        nanosleep(&(struct timespec){.tv_nsec = 100000000},
                  NULL); /* a loop that polls would beat meanwhile */
    }
    cr_assert_eq(rig_stats(rig).heartbeat_ns, before);
    request_free(r);
    rig_close(rig);
}

Test(engine, figures_add_up)
{
    struct rig *rig = rig_open(usual);
    const int32_t *prompt = some_prompt(1);
    cached_of(rig, prompt, 200, 0, true);
    cached_of(rig, prompt, 200, 0, true);
    wait_idle(rig);
    struct engine_stats s = rig_stats(rig);
    cr_assert_eq(s.completed, 2);
    cr_assert_eq(s.prompt_tokens, 400);
    cr_assert_eq(s.cached_tokens, 192);
    cr_assert(s.generated_tokens > 0 && s.generated_tokens <= 10);
    cr_assert_eq(s.pages_total, 64);
    cr_assert_eq(s.pages_cached, 3);
    cr_assert_eq(s.running + s.waiting, 0);
    cr_assert_gt(s.tokens_per_s, 0);
    rig_close(rig);
}

/* ---- the queue ---- */

Test(engine_queue, larger_priority_goes_first_and_equals_in_order)
{
    struct engine_queue q;
    engine_queue_open(&q);
    struct engine_request r[4] = {{.priority = 0, .queued_ns = 1000},
                                  {.priority = 0, .queued_ns = 1001},
                                  {.priority = 5, .queued_ns = 1002},
                                  {.priority = -5, .queued_ns = 1003}};
    const int expected[] = {2, 0, 1, 3};
    for (int i = 3; i >= 0; i--)
        engine_queue_add(&q, &r[i]);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(TAILQ_FIRST(&q.requests), &r[expected[i]]);
        engine_queue_remove(&q, TAILQ_FIRST(&q.requests));
    }
    cr_assert_eq(q.n, 0);
    cr_assert(TAILQ_EMPTY(&q.requests));
}

Test(engine_queue, a_second_of_waiting_is_worth_one_priority)
{
    struct engine_queue q;
    engine_queue_open(&q);
    struct engine_request old = {.priority = 0, .queued_ns = 1},
                          young = {.priority = 3, .queued_ns = 2999999999u},
                          later = {.priority = 3, .queued_ns = 3000000002u};
    engine_queue_add(&q, &young);
    engine_queue_add(&q, &later);
    engine_queue_add(&q, &old);
    cr_assert_eq(TAILQ_FIRST(&q.requests), &young);
    cr_assert_eq(TAILQ_NEXT(&young, queued), &old);
    cr_assert_eq(TAILQ_LAST(&q.requests, engine_requests), &later);
}

Test(engine_queue, who_has_no_room_is_passed_for_two_seconds_only)
{
    struct engine_request r = {0};
    cr_assert(engine_queue_may_pass(&r, 500));
    cr_assert(engine_queue_may_pass(&r, 500 + ENGINE_PASS_NS - 1));
    cr_assert_not(engine_queue_may_pass(&r, 500 + ENGINE_PASS_NS));
}
