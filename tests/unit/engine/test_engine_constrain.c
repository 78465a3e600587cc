/* Masks of constrained texts beside other texts: the others go on however long a mask takes. */
#include "engine/engine_private.h"
#include "engine/engine_speculate.h"
#include "grammar/matcher_private.h"
#include "speculation/draft_policy.h"
#include "support/engine_driver.h"

#include <stdio.h>
#include <string.h>

#define N_TOKENS 5000
#define LEN      60 /* bytes of a token: the trie has 300,000 nodes, as one of 150,000 usual tokens */

static char pieces[N_TOKENS][LEN];

static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    (void)context;
    *len = LEN;
    return pieces[token];
}

static struct vocabulary *long_words(void)
{
    struct vocabulary *v;
    uint32_t seed = 1;
    for (int i = 0; i < N_TOKENS; i++)
        for (int k = 0; k < LEN; k++) {
            seed = seed * 1664525u + 1013904223u;
            pieces[i][k] = (char)('a' + (seed >> 16) % 26);
        }
    cr_assert_eq(vocabulary_open(&v, N_TOKENS, piece, NULL, NULL, 0, NULL), 0);
    return v;
}

/* 400 rules with one language: a mask takes all the steps that it may, about 20 million, and fails. */
static struct matcher *ambiguous(void)
{
    static char text[32768];
    struct grammar *g = NULL;
    struct matcher *m = NULL;
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= r0");
    for (int i = 1; i < 400; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, " | r%d", i);
    for (int i = 0; i < 400; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "\nr%d ::= [a-z] r%d \"i\" | \"!\"", i, i);
    cr_assert_eq(grammar_from_gbnf(&g, text, n, NULL), 0);
    cr_assert_eq(matcher_open(&m, g), 0);
    grammar_unref(g);
    return m;
}

static struct matcher *one_word(void)
{
    static const char text[] = "root ::= [a-z]{60}";
    struct grammar *g = NULL;
    struct matcher *m = NULL;
    cr_assert_eq(grammar_from_gbnf(&g, text, strlen(text), NULL), 0);
    cr_assert_eq(matcher_open(&m, g), 0);
    grammar_unref(g);
    return m;
}

/* Steps of the log with a row of slot 0 from the first with a row of slot 1 to the last. */
static uint32_t steps_between(const struct fake *f)
{
    uint32_t n = 0, found = 0;
    for (uint32_t i = 0, end = atomic_load(&f->n_log); i < end; i++) {
        n += found > 0 || f->log[i].rows_of[1] ? f->log[i].rows_of[0] > 0 : 0;
        if (f->log[i].rows_of[1])
            found = n;
    }
    return found;
}

Test(engine_constrain, a_long_mask_is_made_between_the_steps_of_others)
{
    struct rig *rig = rig_open(usual);
    struct vocabulary *v = long_words();
    struct engine_request *other = request_new(some_prompt(1), 3, 900),
                          *slow = request_new(some_prompt(2), 3, 5);
    rig->e->mask_words = vocabulary_mask_words(v); /* the fake decoder has none */
    rig->e->masks = calloc(usual.n_slots * rig->e->mask_words, sizeof *rig->e->masks);
    other->ignore_eos = true;
    slow->vocabulary = v;
    slow->constraint = ambiguous();
    rig_hold(rig, 2);
    submit(rig, other);
    wait_out(rig, other, 2);
    submit(rig, slow); /* before the other text can have ended */
    rig_go(rig);
    wait_done(rig, slow);
    cr_assert_eq(slow->finish, ENGINE_STUCK);
    cr_assert(matcher_is_ambiguous(slow->constraint));
    wait_done(rig, other);
    check_tokens(other);
    cr_assert_geq(steps_between(rig->fake), 3, "%u steps", steps_between(rig->fake));
    matcher_close(slow->constraint);
    request_free(other);
    request_free(slow);
    rig_close(rig);
    vocabulary_close(v);
}

/* Its matcher goes with half a mask. */
Test(engine_constrain, a_text_is_cancelled_while_its_mask_is_made)
{
    struct rig *rig = rig_open(usual);
    struct vocabulary *v = long_words();
    struct engine_request *slow = request_new(some_prompt(2), 3, 5);
    rig->e->mask_words = vocabulary_mask_words(v);
    rig->e->masks = calloc(usual.n_slots * rig->e->mask_words, sizeof *rig->e->masks);
    slow->vocabulary = v;
    slow->constraint = ambiguous();
    submit(rig, slow);
    for (uint64_t since = clock_ns(); state_of(slow) != ENGINE_PREFILL;)
        wait_a_little(since);
    engine_cancel(rig->e, slow);
    wait_done(rig, slow);
    cr_assert(slow->finish == ENGINE_CANCELLED || slow->finish == ENGINE_STUCK);
    matcher_close(slow->constraint);
    request_free(slow);
    rig_close(rig);
    vocabulary_close(v);
}

/* A dear token is counted in the time of the next mask, so eight of them do not hold up a step. */
Test(engine_constrain, a_token_is_read_when_the_next_mask_is_made)
{
    struct rig *rig = rig_open(usual);
    struct vocabulary *v = long_words();
    struct engine_request *last = request_new(some_prompt(1), 3, 1), *all = request_new(some_prompt(2), 3, 5);
    rig->e->mask_words = vocabulary_mask_words(v);
    rig->e->masks = calloc(usual.n_slots * rig->e->mask_words, sizeof *rig->e->masks);
    last->vocabulary = all->vocabulary = v;
    last->constraint = one_word();
    all->constraint = one_word();
    submit(rig, last);
    wait_done(rig, last);
    cr_assert_eq(last->finish, ENGINE_LENGTH);
    cr_assert_not(matcher_can_end(last->constraint), "no mask follows the last token");
    submit(rig, all);
    wait_done(rig, all);
    cr_assert_eq(all->finish, ENGINE_STUCK, "nothing follows one word");
    cr_assert_eq(all->n_out, 1);
    cr_assert(matcher_can_end(all->constraint));
    matcher_close(last->constraint);
    matcher_close(all->constraint);
    request_free(last);
    request_free(all);
    rig_close(rig);
    vocabulary_close(v);
}

/* An engine of one sequence whose next three tokens are forced, without its thread. */
static struct engine *open_forced(struct vocabulary *v, enum engine_speculation speculation)
{
    struct engine *e = calloc(1, sizeof *e);
    struct grammar *g = NULL;
    char text[LEN * 4];
    uint32_t n;
    snprintf(text, sizeof text, "root ::= [a-z]{60} \"%.60s%.60s%.60s\"", pieces[7], pieces[8], pieces[9]);
    e->cfg.n_slots = 1;
    e->cfg.speculation = speculation;
    e->n_ctx = 64;
    e->max_rows = STEP_MAX_LOGITS;
    e->n_masks = 1 + STEP_MAX_LOGITS;
    e->mask_words = vocabulary_mask_words(v);
    e->masks = calloc((size_t)e->n_masks * e->mask_words, sizeof *e->masks);
    e->seqs = calloc(1, sizeof *e->seqs);
    cr_assert_eq(engine_draft_open(e, NULL), 0);
    struct engine_request *r = e->seqs[0].r = request_new(some_prompt(1), 3, 9);
    cr_assert_eq(grammar_from_gbnf(&g, text, strlen(text), NULL), 0);
    cr_assert_eq(matcher_open(&r->constraint, g), 0);
    grammar_unref(g);
    r->vocabulary = v;
    cr_assert(matcher_token(r->constraint, v, 3));
    cr_assert(matcher_mask_part(r->constraint, v, e->masks, UINT64_MAX, &n));
    atomic_store(&r->n_out, 1);
    e->seqs[0].n_rows = r->n_prompt;
    e->seqs[0].n_samples = e->seqs[0].n_taken = e->seqs[0].mask = 1;
    e->seqs[0].masked = true;
    return e;
}

static void close_forced(struct engine *e)
{
    matcher_close(e->seqs[0].r->constraint);
    request_free(e->seqs[0].r);
    engine_draft_close(e);
    free(e->seqs);
    free(e->masks);
    free(e);
}

Test(engine_constrain, masks_behind_drafts_end_with_the_time_of_the_step)
{
    struct vocabulary *v = long_words();
    struct engine *e = open_forced(v, ENGINE_SPECULATE_ALWAYS);
    int32_t tokens[DRAFT_MAX];
    cr_assert_eq(engine_constrain_forced(e, 0, tokens, DRAFT_MAX), 3);
    cr_assert(tokens[0] == 7 && tokens[1] == 8 && tokens[2] == 9);
    cr_assert_eq(engine_constrain_ahead(e, 0, tokens, 3), 0, "the time of no step has begun");
    cr_assert_eq(e->n_ahead, 0);
    cr_assert_gt(atomic_load(&e->heartbeat_ns), 0);
    e->masks_until_ns = UINT64_MAX;
    cr_assert_geq(engine_constrain_ahead(e, 0, tokens, 3), 2, "behind the last may be no mask");
    close_forced(e);
    vocabulary_close(v);
}

/* Looking for forced tokens takes long, so it is not done for drafts that no plan would send. */
Test(engine_constrain, what_is_forced_is_looked_for_where_drafts_pay_and_once)
{
    struct vocabulary *v = long_words();
    struct engine *e = open_forced(v, ENGINE_SPECULATE_AUTO);
    uint32_t turn = e->seqs[0].r->constraint->turn;
    e->masks_until_ns = UINT64_MAX;
    cr_assert_eq(engine_draft_plan(e, STEP_MAX_LOGITS), 0, "no cost is known");
    cr_assert_eq(e->seqs[0].r->constraint->turn, turn);
    close_forced(e);
    e = open_forced(v, ENGINE_SPECULATE_ALWAYS);
    cr_assert_eq(engine_draft_plan(e, STEP_MAX_LOGITS), 0, "there is no time");
    e->masks_until_ns = UINT64_MAX;
    cr_assert_eq(engine_draft_plan(e, STEP_MAX_LOGITS), 3);
    turn = e->seqs[0].r->constraint->turn;
    cr_assert_eq(engine_draft_plan(e, STEP_MAX_LOGITS), 3);
    cr_assert_eq(e->seqs[0].r->constraint->turn, turn, "they are known");
    close_forced(e);
    vocabulary_close(v);
}
