/* Speculation on real models: with any drafts, right or wrong, tokens, log-probabilities and
 * ends are the bits that come without. The answers repeat a few words: so drafts are right, wrong at once,
 * and wrong after a while. */
#include "support/draft_identity.h"

static const char *const models[] = {
    HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf",
    HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen2-odd-s13-q5_0.gguf"};

static void check_model(const char *path)
{
    static const uint32_t n_words[] = {1, 2, 3, 6};
    uint64_t drafted = 0, accepted = 0, saved = 0;
    for (int i = 0; i < 8; i++) {
        struct circumstances c = {.kv_type = (enum kv_type)(i % KV_N_TYPES),
                                  .kind = i == 3 ? EXECUTOR_EAGER : EXECUTOR_PERSISTENT,
                                  .isa = "auto",
                                  .n_threads = 1 + (uint32_t)i % 2,
                                  .steps_in_flight = 1 + (uint32_t)i / 2 % 2};
        struct engine_stats s = check_drafts(path, c, n_words[i / 2], i % 2);
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
