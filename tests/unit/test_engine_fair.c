/* Who runs when: of more sequences than logit rows each has its turn, of several prompts each gets on, and
 * neither texts nor prompts wait for the others to end. */
#include "engine_driver.h"

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

Test(engine_fair, a_step_that_leaves_prompt_for_later_has_no_rest_of_eight_rows)
{
    struct rig_config c = usual;
    c.n_slots = 8;
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
        cr_expect_eq(l->n_rows % 8, 0, "step %u: %u rows", i, l->n_rows);
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

Test(engine_fair, a_short_prompt_does_not_wait_for_a_long_one)
{
    struct rig *rig = rig_open(usual);
    struct engine_request *big = request_new(some_prompt(2), 1000, 1),
                          *small = request_new(some_prompt(3), 10, 1);
    rig_hold(rig, 1);
    submit(rig, big);
    while (atomic_load(&big->n_prompt_done) == 0)
        sched_yield();
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

Test(engine_fair, more_sequences_than_logit_rows_take_turns)
{
    struct rig_config c = usual;
    c.n_slots = 80;
    c.n_pages = 200;
    struct rig *rig = rig_open(c);
    struct engine_request *r[80];
    for (uint32_t i = 0; i < 80; i++) {
        r[i] = request_new(some_prompt(i), 5 + i, 30);
        submit(rig, r[i]);
    }
    for (uint32_t i = 0; i < 80; i++) {
        wait_done(rig, r[i]);
        check_tokens(r[i]);
        request_free(r[i]);
    }
    rig_close(rig);
}
