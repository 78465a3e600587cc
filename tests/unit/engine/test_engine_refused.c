/* Drafts that were refused: their rows are computed again, and nothing of them is left behind. */
#include "support/engine_driver.h"

enum { N_TEXTS = 3, N_PROMPT = 100, N_TOKENS = 400, N_TURN = N_PROMPT + N_TOKENS + 20 };

/* Steps behind which rows on both sides of a page's end were taken back: the next step begins before it. */
static uint32_t n_refused_across_pages(const struct fake *f, uint32_t slot)
{
    uint32_t n = 0, end = 0;
    for (uint32_t i = 0; i < atomic_load(&f->n_log); i++) {
        const struct fake_log *l = &f->log[i];
        if (l->rows_of[slot] == 0)
            continue;
        uint32_t start = l->end_of[slot] - l->rows_of[slot];
        n += start / KV_PAGE_TOKENS < end / KV_PAGE_TOKENS;
        end = l->end_of[slot];
    }
    return n;
}

/* The next turn finds every full page of prompt and answer, under the tokens that it has, and goes on as if
 * it had computed them. */
static void check_next_turn(struct rig *rig, const struct engine_request *first)
{
    int32_t turn[N_TURN];
    memcpy(turn, first->prompt, N_PROMPT * sizeof *turn);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        turn[N_PROMPT + i] = first->out[i].token;
    memcpy(turn + N_PROMPT + N_TOKENS, some_prompt(5), 20 * sizeof *turn);
    struct engine_request *r = request_new(turn, N_TURN, 50);
    r->ignore_eos = true;
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    uint32_t n_computed = N_PROMPT + N_TOKENS - 1; /* the last token was not */
    cr_expect_eq(r->n_cached, n_computed / KV_PAGE_TOKENS * KV_PAGE_TOKENS, "%u cached", r->n_cached);
    request_free(r);
}

Test(engine_refused, the_next_turn_finds_the_pages_of_a_text_whose_drafts_were_refused)
{
    struct rig_config c = usual;
    c.speculation = ENGINE_SPECULATE_ALWAYS;
    c.echo = true;
    struct rig *rig = rig_open(c);
    struct engine_request *r[N_TEXTS];
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        r[i] = request_new(some_prompt(1000 + i), N_PROMPT, N_TOKENS);
        r[i]->ignore_eos = true;
        submit(rig, r[i]);
    }
    uint32_t n_across = 0;
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        wait_done(rig, r[i]);
        check_tokens(r[i]);
        n_across += n_refused_across_pages(rig->fake, r[i]->slot);
    }
    cr_expect_geq(n_across, 3, "%u drafts refused across pages", n_across);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        check_next_turn(rig, r[i]);
        request_free(r[i]);
    }
    rig_close(rig);
}
