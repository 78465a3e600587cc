/* Drafts of constrained texts, whose bytes the grammar forces: the same tokens and log-probabilities as
 * without them, in fewer steps. */
#include "support/constrain_identity.h"
#include "support/models/made_model.h"

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

static void check(const char *path, bool together, enum engine_speculation speculation)
{
    static struct answer plain[N_REQUESTS], forced[N_REQUESTS];
    struct circumstances c = {.isa = "auto",
                              .kv_type = KV_F16,
                              .n_threads = 2,
                              .steps_in_flight = 2,
                              .speculation = ENGINE_SPECULATE_OFF};
    struct engine_stats without = constrain_run(path, &c, false, plain);
    c.speculation = speculation;
    struct engine_stats with = constrain_run(path, &c, together, forced);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        expect_same(&plain[i], &forced[i], path, "with forced drafts");
    cr_assert_eq(without.forced, 0);
    cr_assert_leq(with.forced, with.accepted);
    if (speculation != ENGINE_SPECULATE_ALWAYS)
        return;
    cr_assert_gt(with.forced, 20, "%lu forced", (unsigned long)with.forced);
    cr_assert_gt(with.steps_saved, 20);
    cr_assert_lt(with.steps + 20, without.steps, "%lu steps, %lu without", (unsigned long)with.steps,
                 (unsigned long)without.steps);
}

Test(engine_forced, one_after_the_other_they_take_fewer_steps)
{
    check(MODEL, false, ENGINE_SPECULATE_ALWAYS);
}

Test(engine_forced, at_once_they_take_fewer_steps)
{
    check(MODEL, true, ENGINE_SPECULATE_ALWAYS);
}

Test(engine_forced, where_they_need_not_pay_the_tokens_are_the_same)
{
    check(MODEL, true, ENGINE_SPECULATE_AUTO);
}

/* Wrong ones take a state back. */
Test(engine_forced, of_a_recurrent_model_they_take_fewer_steps)
{
    char path[64];
    made_model("tiny-qwen35moe", "q4_k_m", path);
    check(path, true, ENGINE_SPECULATE_ALWAYS);
    unlink(path);
}
