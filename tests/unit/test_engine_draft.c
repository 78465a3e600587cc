/* Speculation on real models: whatever is drafted and whatever becomes of it, tokens, log-probabilities and
 * ends are the bits that come without. What is drafted is the answer itself, known from a first run, with
 * some of its tokens exchanged: so drafts are right, wrong at once, and wrong after a while. */
#include "identity.h"

static const char *const models[] = {
    HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf",
    HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen2-odd-s13-q5_0.gguf"};

enum { N = 6 };

/* All at once, or one after the other. */
static void ask_all(struct rig *rig, struct answer *a, bool together)
{
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(engine_submit(rig->e, &a[i].r, NULL), 0);
        if (!together)
            wait_done(rig, &a[i]);
    }
    for (uint32_t i = 0; i < N; i++)
        wait_done(rig, &a[i]);
}

/* Different in all that a draft could get wrong. */
static void prepare_all(struct answer *a, uint32_t n_vocab)
{
    static const int32_t stops[] = {5, 9, 13, 17, 21, 25};
    for (uint32_t i = 0; i < N; i++) {
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
static void set_hint(struct answer *a, const struct answer *known, int32_t *hint, uint32_t wrong)
{
    uint32_t n = atomic_load(&known->r.n_out);
    memcpy(hint, a->r.prompt + a->r.n_prompt - 3, 3 * sizeof *hint);
    for (uint32_t i = 0; i < n; i++)
        hint[3 + i] = i % wrong == wrong - 1 ? 1 : known->out[i].token;
    a->r.hint = hint;
    a->r.n_hint = 3 + n;
}

static struct engine_stats check(const char *path, struct circumstances c, uint32_t wrong, bool together)
{
    static struct answer plain[N], drafted[N];
    static int32_t hints[N][3 + N_TOKENS];
    static const int32_t ends[] = {2, 3, 4, 6, 7, 8};
    struct rig rig;
    struct engine_stats s;
    c.speculation = ENGINE_SPECULATE_OFF;
    cr_assert(rig_open(&rig, path, &c, ends, 6));
    prepare_all(plain, rig.n_vocab);
    ask_all(&rig, plain, false);
    engine_stats(rig.e, &s);
    cr_assert(!s.speculates && s.drafted == 0);
    rig_close(&rig);
    c.speculation = ENGINE_SPECULATE_ALWAYS;
    cr_assert(rig_open(&rig, path, &c, ends, 6));
    prepare_all(drafted, rig.n_vocab);
    for (uint32_t i = 0; i < N; i++)
        set_hint(&drafted[i], &plain[i], hints[i], wrong);
    ask_all(&rig, drafted, together);
    for (uint32_t i = 0; i < N; i++) {
        expect_same(&plain[i], &drafted[i], path, "with drafts");
        cr_assert_eq(plain[i].r.finish, drafted[i].r.finish);
    }
    engine_stats(rig.e, &s);
    rig_close(&rig);
    return s;
}

static void check_model(const char *path)
{
    static const uint32_t wrong[] = {1000, 7, 4, 3};
    uint64_t drafted = 0, accepted = 0, saved = 0;
    for (int i = 0; i < 8; i++) {
        struct circumstances c = {.kv_type = i % 3 ? KV_F16 : KV_Q8_0,
                                  .kind = i == 3 ? EXECUTOR_EAGER : EXECUTOR_PERSISTENT,
                                  .isa = "auto",
                                  .n_threads = 1 + (uint32_t)i % 2,
                                  .steps_in_flight = 1 + (uint32_t)i / 2 % 2};
        struct engine_stats s = check(path, c, wrong[i / 2], i % 2);
        cr_assert(s.speculates && s.drafted > 10 && s.draft_requests > 1, "%d: %lu drafted by %lu", i,
                  (unsigned long)s.drafted, (unsigned long)s.draft_requests);
        drafted += s.drafted;
        accepted += s.accepted;
        saved += s.steps_saved;
    }
    cr_assert(accepted > 100 && drafted > accepted + 100 && saved > 50 && saved <= accepted,
              "%lu drafted, %lu accepted, %lu saved", (unsigned long)drafted, (unsigned long)accepted,
              (unsigned long)saved);
}

Test(engine_draft, qwen3_q4_k_m_says_the_same_with_drafts)
{
    check_model(models[0]);
}

Test(engine_draft, qwen3_q8_0_says_the_same_with_drafts)
{
    check_model(models[1]);
}

Test(engine_draft, llama3_q4_k_m_says_the_same_with_drafts)
{
    check_model(models[2]);
}

Test(engine_draft, qwen2_q5_0_says_the_same_with_drafts)
{
    check_model(models[3]);
}
