/* draft_identity.h - six requests without drafts on the cpu, and with drafts in given circumstances: the same
 * bits. What is drafted is the answer itself, with some of its tokens exchanged: so drafts are right, wrong
 * at once, and wrong after a while. */
#pragma once
#include "identity.h"

enum { N_DRAFTING = 6 };

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

/* Different in all that a draft could get wrong. */
static inline void prepare_all(struct answer *a, uint32_t n_vocab)
{
    static const int32_t stops[] = {5, 9, 13, 17, 21, 25};
    for (uint32_t i = 0; i < N_DRAFTING; i++) {
        prepare(&a[i], n_vocab, i);
        a[i].r.sampling.penalty_last_n = 8 * i;
        a[i].r.sampling.frequency_penalty = 0.1f * (float)i;
        a[i].r.max_tokens = i == 4 ? 3 : i == 5 ? 2 : a[i].r.max_tokens;
        a[i].r.min_tokens = 5 * i;
        a[i].r.ignore_eos = i == 1;
        a[i].r.stop_ids = stops;
        a[i].r.n_stop_ids = i % 2 ? 6 : 0;
    }
}

/* The answer with every `wrong`th token exchanged, behind what leads to it. */
static inline void set_hint(struct answer *a, const struct answer *known, int32_t *hint, uint32_t wrong)
{
    uint32_t n = atomic_load(&known->r.n_out);
    memcpy(hint, a->r.prompt + a->r.n_prompt - 3, 3 * sizeof *hint);
    for (uint32_t i = 0; i < n; i++)
        hint[3 + i] = i % wrong == wrong - 1 ? 1 : known->out[i].token;
    a->r.hint = hint;
    a->r.n_hint = 3 + n;
}

/* What the drafts of c came to. Every `wrong`th token of them is none that comes. */
static inline struct engine_stats check_drafts(const char *path, struct circumstances c, uint32_t wrong,
                                               bool together)
{
    static struct answer plain[N_DRAFTING], drafted[N_DRAFTING];
    static int32_t hints[N_DRAFTING][3 + N_TOKENS];
    static const int32_t ends[] = {2, 3, 4, 6, 7, 8};
    struct circumstances slow = {.kv_type = c.kv_type, .isa = "auto", .n_threads = 1, .steps_in_flight = 1};
    struct rig rig;
    struct engine_stats s;
    slow.speculation = ENGINE_SPECULATE_OFF;
    cr_assert(rig_open(&rig, path, &slow, ends, 6));
    prepare_all(plain, rig.n_vocab);
    ask_all(&rig, plain, false);
    engine_stats(rig.e, &s);
    cr_assert(!s.speculates && s.drafted == 0);
    rig_close(&rig);
    c.speculation = ENGINE_SPECULATE_ALWAYS;
    cr_assert(rig_open(&rig, path, &c, ends, 6));
    prepare_all(drafted, rig.n_vocab);
    for (uint32_t i = 0; i < N_DRAFTING; i++)
        set_hint(&drafted[i], &plain[i], hints[i], wrong);
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
