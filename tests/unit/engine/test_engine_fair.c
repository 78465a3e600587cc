/* The order of work: each of more sequences than logit rows has its turn, each of several prompts advances,
 * and neither texts nor prompts wait for the others to end. */
#include "support/engine_driver.h"

/* The step in which the slot's row at position `pos` is. */
static uint32_t step_of(const struct rig *rig, uint32_t slot, uint32_t pos)
{
    uint32_t n = atomic_load(&rig->fake->n_log);
    for (uint32_t i = 0; i < n; i++)
        if (rig->fake->log[i].rows_of[slot] && rig->fake->log[i].end_of[slot] > pos)
            return i;
    return n;
}

Test(engine_fair, a_long_prompt_does_not_stop_a_running_text)
{
    struct rig_config c = usual;
    c.max_chunk = 20;
    struct rig *rig = rig_open(c);
    struct engine_request *text = request_new(some_prompt(1), 5, 200),
                          *big = request_new(some_prompt(2), 900, 1);
    text->ignore_eos = true;
    rig_hold(rig, 2);
    submit(rig, text);
    wait_out(rig, text, 2);
    submit(rig, big);
    rig_go(rig);
    wait_done(rig, big);
    for (uint32_t i = 0; i < atomic_load(&rig->fake->n_log); i++) {
        const struct fake_log *l = &rig->fake->log[i];
        if (l->rows_of[big->slot] > 0)
            cr_assert_eq(l->rows_of[text->slot], 1, "step %u", i);
    }
    wait_done(rig, text);
    request_free(text);
    request_free(big);
    rig_close(rig);
}

/* A long prompt beside five texts, on a decoder whose products compute so many rows together. */
static void fill_steps(uint32_t rows_together)
{
    struct rig_config c = usual;
    c.n_slots = 8;
    c.rows_together = rows_together;
    struct rig *rig = rig_open(c);
    struct engine_request *texts[5], *big = request_new(some_prompt(2), 900, 1);
    rig_hold(rig, 0);
    for (uint32_t i = 0; i < 5; i++) {
        texts[i] = request_new(some_prompt(3 + i), 5, 100);
        texts[i]->ignore_eos = true;
        submit(rig, texts[i]);
    }
    submit(rig, big);
    rig_go(rig);
    wait_done(rig, big);
    uint32_t n_chunks = 0, done = 0;
    for (uint32_t i = 0; i < atomic_load(&rig->fake->n_log); i++) {
        const struct fake_log *l = &rig->fake->log[i];
        done += l->rows_of[big->slot];
        if (l->rows_of[big->slot] == 0 || done >= big->n_prompt)
            continue;
        cr_expect_eq(l->n_rows % rows_together, 0, "step %u: %u rows", i, l->n_rows);
        n_chunks++;
    }
    cr_assert_gt(n_chunks, 2);
    check_tokens(big);
    for (uint32_t i = 0; i < 5; i++) {
        wait_done(rig, texts[i]);
        check_tokens(texts[i]);
        request_free(texts[i]);
    }
    request_free(big);
    rig_close(rig);
}

Test(engine_fair, a_step_that_leaves_prompt_for_later_has_no_remainder_for_the_products)
{
    fill_steps(8);
    fill_steps(16);
}

/* Sixteen prompt rows, the fewest, beside fifteen texts are 31: without the remainder one would be left. */
Test(engine_fair, a_prompt_advances_by_eight_rows_or_more_beside_however_many_texts)
{
    struct rig_config c = usual;
    c.n_slots = 16;
    c.rows_together = 16;
    struct rig *rig = rig_open(c);
    struct engine_request *texts[15], *big = request_new(some_prompt(2), 400, 1);
    rig->fake->step_us = rig->fake->row_us = 2000; /* more rows would take too long */
    rig_hold(rig, 0);
    for (uint32_t i = 0; i < 15; i++) {
        texts[i] = request_new(some_prompt(3 + i), 5, 60);
        texts[i]->ignore_eos = true;
        submit(rig, texts[i]);
    }
    submit(rig, big);
    rig_go(rig);
    wait_done(rig, big);
    uint32_t n_short = 0, done = 0;
    for (uint32_t i = 0; i < atomic_load(&rig->fake->n_log); i++) {
        uint32_t n = rig->fake->log[i].rows_of[big->slot];
        done += n;
        if (n == 0 || done >= big->n_prompt)
            continue;
        cr_expect_geq(n, 8, "step %u: %u rows", i, n);
        n_short += n < 32;
    }
    cr_assert_gt(n_short, 2);
    for (uint32_t i = 0; i < 15; i++) {
        wait_done(rig, texts[i]);
        request_free(texts[i]);
    }
    request_free(big);
    rig_close(rig);
}

/* One dear step must not leave every later one at the fewest rows. */
Test(engine_fair, what_a_row_costs_beside_a_text_is_learnt_from_the_fewest_rows_too)
{
    const struct timespec soon = {.tv_nsec = 50000000}, late = {.tv_nsec = 600000000};
    struct rig *rig = rig_open(usual);
    struct engine_request *text = request_new(some_prompt(1), 5, 500),
                          *big = request_new(some_prompt(2), 1000, 1);
    text->ignore_eos = true;
    rig_hold(rig, 2);
    submit(rig, text);
    wait_out(rig, text, 2);
    submit(rig, big);
    nanosleep(&soon, NULL);
    rig_hold(rig, 2); /* what was built before the prompt came */
    nanosleep(&late, NULL);
    rig_go(rig); /* its first step has taken half a second */
    wait_done(rig, big);
    uint32_t fewest = UINT32_MAX, last = 0, done = 0;
    for (uint32_t i = 0; i < atomic_load(&rig->fake->n_log); i++) {
        uint32_t n = rig->fake->log[i].rows_of[big->slot];
        done += n;
        if (n == 0 || done >= big->n_prompt)
            continue;
        fewest = n < fewest ? n : fewest;
        last = n;
    }
    cr_expect_leq(fewest, 16, "%u", fewest);
    cr_expect_gt(last, 16, "%u rows at the end", last);
    wait_done(rig, text);
    request_free(text);
    request_free(big);
    rig_close(rig);
}

/* step_ms is what hardly any step beside a text should exceed, so the average stays well below it. A busy
 * machine makes rows dearer than they are told to be, and steps smaller. */
Test(engine_fair, steps_beside_a_text_are_planned_with_time_to_spare)
{
    const uint32_t row_us = 500, step_ms = 50, most = 1000 * step_ms / row_us * 8 / 10;
    struct rig *rig = rig_open(usual);
    rig->fake->step_us = rig->fake->row_us = row_us;
    struct engine_request *text = request_new(some_prompt(1), 5, 900),
                          *big = request_new(some_prompt(2), 1000, 1);
    text->ignore_eos = true;
    rig_hold(rig, 2);
    submit(rig, text);
    wait_out(rig, text, 2);
    submit(rig, big);
    rig_go(rig);
    wait_done(rig, big);
    check_tokens(big);
    uint32_t n_both = 0, last = step_of(rig, big->slot, big->n_prompt - 1);
    for (uint32_t i = 0; i <= last; i++) {
        const struct fake_log *l = &rig->fake->log[i];
        cr_expect_leq(l->n_rows, most, "step %u: %u rows", i, l->n_rows);
        n_both += l->rows_of[big->slot] && l->rows_of[text->slot];
    }
    cr_assert_gt(n_both, 5, "%u steps had rows of both", n_both);
    engine_cancel(rig->e, text);
    wait_done(rig, text);
    request_free(text);
    request_free(big);
    rig_close(rig);
}

/* A step of texts alone takes longer than step_ms here. Prompts beside them may use as much time again, and
 * do not pay for a whole step with the fewest rows. */
Test(engine_fair, prompts_beside_slow_texts_get_as_much_time_as_the_texts)
{
    const uint32_t step_us = 60000, row_us = 500; /* 48 rows make 0.7 of 120 ms; 16 are the fewest */
    struct rig *rig = rig_open(usual);
    rig->fake->step_us = step_us;
    rig->fake->row_us = row_us;
    struct engine_request *text = request_new(some_prompt(1), 5, 900),
                          *big = request_new(some_prompt(2), 1000, 1);
    text->ignore_eos = true;
    submit(rig, text);
    wait_out(rig, text, 4);
    submit(rig, big);
    wait_done(rig, big);
    check_tokens(big);
    uint32_t most = 0, n_both = 0, last = step_of(rig, big->slot, big->n_prompt - 1);
    for (uint32_t i = 0; i < last; i++) {
        uint32_t n = rig->fake->log[i].rows_of[big->slot];
        n_both += n && rig->fake->log[i].rows_of[text->slot];
        if (n_both > 6) /* the cost of a row is known by then */
            most = n > most ? n : most;
    }
    cr_assert_gt(most, 24, "%u rows at most in %u steps", most, n_both);
    engine_cancel(rig->e, text);
    wait_done(rig, text);
    request_free(text);
    request_free(big);
    rig_close(rig);
}

Test(engine_fair, a_short_prompt_does_not_wait_for_a_long_one)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *big = request_new(some_prompt(2), 1000, 1),
                          *small = request_new(some_prompt(3), 10, 1);
    rig_hold(rig, 1);
    submit(rig, big);
    for (uint64_t since = clock_ns(); atomic_load(&big->n_prompt_done) == 0;)
        wait_a_little(since);
    submit(rig, small);
    rig_hold(rig, 4);
    wait_done(rig, small);
    cr_assert_neq(state_of(big), ENGINE_DONE);
    check_tokens(small);
    rig_go(rig);
    wait_done(rig, big);
    check_tokens(big);
    request_free(big);
    request_free(small);
    rig_close(rig);
}

/* Steps of the big prompt beside others, all of them prefill; in each it must have half of the rows at least.
 */
static uint32_t check_halves(const struct rig *rig, const struct engine_request *big)
{
    uint32_t n_shared = 0;
    for (uint32_t i = 0; i < atomic_load(&rig->fake->n_log); i++) {
        const struct fake_log *l = &rig->fake->log[i];
        uint32_t n = l->rows_of[big->slot];
        if (i > step_of(rig, big->slot, big->n_prompt - 1) || l->n_rows == n)
            continue;
        n_shared++;
        cr_expect(2 * n >= l->n_rows || l->end_of[big->slot] == big->n_prompt, "step %u: %u rows of %u", i, n,
                  l->n_rows);
    }
    return n_shared;
}

Test(engine_fair, the_oldest_prompt_has_half_of_the_rows_beside_a_stream_of_short_ones)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *big = request_new(some_prompt(2), 1000, 1), *small[20];
    rig_hold(rig, 0);
    submit(rig, big);
    for (uint32_t i = 0; i < 20; i++) {
        small[i] = request_new(some_prompt(50 + i), 90, 1);
        submit(rig, small[i]);
    }
    rig_go(rig);
    wait_done(rig, big);
    check_tokens(big);
    for (uint32_t i = 0; i < 20; i++) {
        wait_done(rig, small[i]);
        check_tokens(small[i]);
        request_free(small[i]);
    }
    uint32_t n_shared = check_halves(rig, big);
    cr_assert_gt(n_shared, 5, "%u steps had rows of both", n_shared);
    request_free(big);
    rig_close(rig);
}

/* A row takes a 50th of step_ms, but a prompt alone has as many as pay for reading the weights. */
static void expect_passes(uint32_t rows)
{
    struct rig_config c = usual;
    c.rows_of_a_pass = rows;
    struct rig *rig = rig_open(c);
    struct engine_request *big = request_new(some_prompt(2), 900, 1);
    rig->fake->step_us = rig->fake->row_us = 1000;
    submit(rig, big);
    wait_done(rig, big);
    check_tokens(big);
    uint32_t done = 0, n_steps = 0;
    for (uint32_t i = 0; done + 2 * rows < big->n_prompt; i++) {
        const struct fake_log *l = &rig->fake->log[i];
        cr_assert_eq(l->rows_of[big->slot], rows, "step %u: %u rows", i, l->rows_of[big->slot]);
        done += rows;
        n_steps++;
    }
    cr_assert_gt(n_steps, 5);
    request_free(big);
    rig_close(rig);
}

Test(engine_fair, a_prompt_alone_has_the_rows_that_pay_for_a_pass_over_the_weights)
{
    expect_passes(64);
    expect_passes(96);
}

/* Side by side, both would be done as late as the second one is now. */
Test(engine_fair, of_equal_prompts_the_older_is_done_before_the_other_begins)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *text = request_new(some_prompt(1), 5, 900), *prompts[3];
    text->ignore_eos = true;
    rig_hold(rig, 2);
    submit(rig, text);
    wait_out(rig, text, 2);
    for (uint32_t i = 0; i < 3; i++) {
        prompts[i] = request_new(some_prompt(2 + i), 600, 1);
        submit(rig, prompts[i]);
    }
    rig_go(rig);
    for (uint32_t i = 0; i < 3; i++) {
        wait_done(rig, prompts[i]);
        check_tokens(prompts[i]);
    }
    for (uint32_t i = 0; i + 1 < 3; i++)
        cr_expect_leq(step_of(rig, prompts[i]->slot, prompts[i]->n_prompt - 1),
                      step_of(rig, prompts[i + 1]->slot, 0), "prompt %u", i);
    engine_cancel(rig->e, text);
    wait_done(rig, text);
    for (uint32_t i = 0; i < 3; i++)
        request_free(prompts[i]);
    request_free(text);
    rig_close(rig);
}

/* Nothing is known of a row's price yet: 64 of them are what a step takes. */
Test(engine_fair, a_prompt_that_two_steps_would_finish_is_finished_in_one)
{
    static const uint32_t chunks[][2] = {{128, 0}, {129, 64}};
    for (int i = 0; i < 2; i++) {
        struct rig *rig = rig_open(usual);
        struct engine_request *r = request_new(some_prompt(1), chunks[i][0], 1);
        submit(rig, r);
        wait_done(rig, r);
        check_tokens(r);
        uint32_t first = chunks[i][1] ? chunks[i][1] : r->n_prompt;
        cr_expect_eq(rig->fake->log[0].n_rows, first, "%u rows of %u", rig->fake->log[0].n_rows, r->n_prompt);
        cr_expect_eq(step_of(rig, r->slot, r->n_prompt - 1), first < r->n_prompt);
        request_free(r);
        rig_close(rig);
    }
}

Test(engine_fair, a_large_request_lets_small_ones_pass_while_it_has_no_room)
{
    struct rig_config c = usual;
    c.n_pages = 8;
    c.n_ctx = 512;
    struct rig *rig = rig_open(c);
    struct engine_request *a = request_new(some_prompt(1), 10, 300),
                          *big = request_new(some_prompt(2), 100, 400),
                          *small = request_new(some_prompt(3), 10, 10);
    a->ignore_eos = true;
    rig_hold(rig, 2);
    submit(rig, a);
    wait_out(rig, a, 2);
    submit(rig, big);
    submit(rig, small);
    rig_hold(rig, 30);
    wait_done(rig, small);
    check_tokens(small);
    cr_assert_eq(state_of(big), ENGINE_QUEUED);
    rig_go(rig);
    wait_done(rig, big);
    wait_done(rig, a);
    check_tokens(big);
    request_free(a);
    request_free(big);
    request_free(small);
    rig_close(rig);
}

/* ---- logit rows ---- */

enum { N_TURNS = 80, TURN_TOKENS = 120 };

/* Steps [from, to) one after the other without a row of the slot, at most. */
static uint32_t longest_wait(const struct rig *rig, uint32_t slot, uint32_t from, uint32_t to)
{
    uint32_t longest = 0, wait = 0;
    for (uint32_t i = from; i < to; i++) {
        wait = rig->fake->log[i].rows_of[slot] ? 0 : wait + 1;
        longest = wait > longest ? wait : longest;
    }
    return longest;
}

Test(engine_fair, more_sequences_than_logit_rows_take_turns)
{
    struct rig_config c = usual;
    c.n_slots = N_TURNS;
    c.n_pages = 400;
    c.speculation = ENGINE_SPECULATE_OFF; /* a row each */
    struct rig *rig = rig_open(c);
    struct engine_request *r[N_TURNS];
    uint32_t from = 0, to = UINT32_MAX; /* steps in which all of them want a row */
    rig_hold(rig, 0);
    for (uint32_t i = 0; i < N_TURNS; i++) {
        r[i] = request_new(some_prompt(i), 5 + i, TURN_TOKENS);
        r[i]->ignore_eos = true;
        submit(rig, r[i]);
    }
    rig_go(rig);
    for (uint32_t i = 0; i < N_TURNS; i++) {
        wait_done(rig, r[i]);
        check_tokens(r[i]);
        uint32_t begun = 1 + step_of(rig, r[i]->slot, r[i]->n_prompt - 1);
        uint32_t ended = step_of(rig, r[i]->slot, r[i]->n_prompt + TURN_TOKENS - 2);
        from = begun > from ? begun : from;
        to = ended < to ? ended : to;
    }
    cr_assert_gt(to, from + 30, "steps %u to %u", from, to);
    for (uint32_t i = 0; i < N_TURNS; i++) {
        uint32_t wait = longest_wait(rig, r[i]->slot, from, to);
        cr_expect_lt(wait, (N_TURNS + STEP_MAX_LOGITS - 1) / STEP_MAX_LOGITS, "slot %u waited for %u steps",
                     r[i]->slot, wait);
        request_free(r[i]);
    }
    rig_close(rig);
}

/* Lets the decoder do one more step. */
static void let_step(struct rig *rig)
{
    uint32_t n = atomic_load(&rig->fake->n_log);
    rig_hold(rig, 1);
    for (uint64_t since = clock_ns(); atomic_load(&rig->fake->n_log) == n;)
        wait_a_little(since);
}

/* A prompt that arrives while texts fill the step gets a logit row for its last token at once, not when a
 * text ends. */
Test(engine_fair, a_prompt_begins_its_text_while_others_want_all_logit_rows)
{
    struct rig_config c = usual;
    c.n_slots = STEP_MAX_LOGITS + 1;
    c.n_pages = 200;
    c.speculation = ENGINE_SPECULATE_OFF;
    struct rig *rig = rig_open(c);
    struct engine_request *texts[STEP_MAX_LOGITS], *prompt = request_new(some_prompt(900), 10, 1);
    rig_hold(rig, 0);
    for (uint32_t i = 0; i < STEP_MAX_LOGITS; i++) {
        texts[i] = request_new(some_prompt(i), 3, 200);
        texts[i]->ignore_eos = true;
        submit(rig, texts[i]);
    }
    for (uint32_t i = 0; i < STEP_MAX_LOGITS; i++)
        while (n_out(texts[i]) == 0)
            let_step(rig);
    submit(rig, prompt);
    rig_go(rig);
    wait_done(rig, prompt);
    check_tokens(prompt);
    uint32_t first = step_of(rig, prompt->slot, 0), last = step_of(rig, prompt->slot, 9);
    cr_expect_eq(last, first, "begun in step %u, ended in step %u", first, last);
    cr_expect_gt(rig->fake->log[first].n_rows, STEP_MAX_LOGITS); /* texts beside it */
    for (uint32_t i = 0; i < STEP_MAX_LOGITS; i++) {
        wait_done(rig, texts[i]);
        check_tokens(texts[i]);
        cr_expect_gt(step_of(rig, texts[i]->slot, 3 + 200 - 2), last);
        request_free(texts[i]);
    }
    request_free(prompt);
    rig_close(rig);
}
