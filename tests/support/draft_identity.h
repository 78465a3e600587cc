/* draft_identity.h - six requests without drafts on the cpu, and with drafts in given circumstances: the same
 * bits. Biases limit the answers to a few words, which soon repeat: so drafts are right, wrong at once, and
 * wrong after a while. */
#pragma once
#include "identity.h"

enum { N_DRAFTING = 6, MAX_WORDS = 6 };

/* All at once, or one after the other. */
static inline void ask_all(struct rig *rig, struct answer *a, bool together)
{
    for (uint32_t i = 0; i < N_DRAFTING; i++) {
        cr_assert_eq(engine_submit(rig->e, &a[i].r, NULL), 0);
        if (!together)
            wait_done(rig, &a[i]);
    }
    for (uint32_t i = 0; i < N_DRAFTING; i++)
        wait_done(rig, &a[i]);
}

/* Answers of n_words words, and now and then of a token that ends some of them. The prompt ends with the same
 * words. */
static inline void limit_words(struct answer *a, uint32_t n_words)
{
    static const struct step_bias words[1 + MAX_WORDS] = {{6, 57},   {11, 60}, {30, 60}, {77, 60},
                                                          {100, 60}, {42, 60}, {60, 60}};
    a->r.biases = words;
    a->r.sampling.n_bias = 1 + n_words;
    for (uint32_t i = 0; i < 8; i++)
        a->prompt[a->r.n_prompt - 1 - i] = words[1 + i * i % n_words].token;
}

/* Different in all that a draft could get wrong. */
static inline void prepare_all(struct answer *a, uint32_t n_vocab, uint32_t n_words)
{
    static const int32_t stops[] = {5, 9, 13, 17, 21, 25};
    for (uint32_t i = 0; i < N_DRAFTING; i++) {
        prepare(&a[i], n_vocab, i);
        limit_words(&a[i], n_words);
        a[i].r.sampling.penalty_last_n = 8 * i;
        a[i].r.sampling.frequency_penalty = 0.1f * (float)i;
        a[i].r.max_tokens = i == 4 ? 3 : i == 5 ? 2 : a[i].r.max_tokens;
        a[i].r.min_tokens = 5 * i;
        a[i].r.ignore_eos = i == 1;
        a[i].r.stop_ids = stops;
        a[i].r.n_stop_ids = i % 2 ? 6 : 0;
    }
}

/* The figures of the drafts in circumstances c. With one word all drafts are right. */
static inline struct engine_stats check_drafts(const char *path, struct circumstances c, uint32_t n_words,
                                               bool together)
{
    static struct answer plain[N_DRAFTING], drafted[N_DRAFTING];
    static const int32_t ends[] = {2, 3, 4, 6, 7, 8};
    struct circumstances slow = {.kv_type = c.kv_type, .isa = "auto", .n_threads = 1, .steps_in_flight = 1};
    struct rig rig;
    struct engine_stats s;
    slow.speculation = ENGINE_SPECULATE_OFF;
    cr_assert(rig_open(&rig, path, &slow, ends, 6));
    prepare_all(plain, rig.n_vocab, n_words);
    ask_all(&rig, plain, false);
    engine_stats(rig.e, &s);
    cr_assert(!s.speculates && s.drafted == 0);
    rig_close(&rig);
    c.speculation = ENGINE_SPECULATE_ALWAYS;
    cr_assert(rig_open(&rig, path, &c, ends, 6));
    prepare_all(drafted, rig.n_vocab, n_words);
    ask_all(&rig, drafted, together);
    for (uint32_t i = 0; i < N_DRAFTING; i++) {
        expect_same(&plain[i], &drafted[i], path, "with drafts");
        cr_assert_eq(plain[i].r.finish, drafted[i].r.finish);
    }
    engine_stats(rig.e, &s);
    rig_close(&rig);
    cr_assert(s.speculates && s.accepted <= s.drafted && s.steps_saved <= s.accepted);
    return s;
}
