/* Constrained texts on cuda, beside one that is free: the cpu's tokens and log-probabilities, bit for bit,
 * with every executor, with drafts of what the grammar forces and without. */
#define IDENTITY_PROMPT 20
#define IDENTITY_TOKENS 12
#include "support/constrain_identity.h"

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

static void check(enum executor_kind kind, const char *blocks, const char *sm, bool together,
                  enum engine_speculation speculation)
{
    static struct answer cpu[N_REQUESTS], cuda[N_REQUESTS];
    struct circumstances c = {.isa = "auto", .kv_type = KV_F16, .n_threads = 1, .steps_in_flight = 2};
    struct engine_stats first = constrain_run(MODEL, &c, false, cpu);
    c.kind = kind;
    c.ops = &cuda_backend;
    c.libcuda = LIBCUDA;
    c.speculation = speculation;
    setenv("SIMT_BLOCKS", blocks, 1);
    setenv("SIMT_DEVICE_SM", sm, 1);
    struct engine_stats second = constrain_run(MODEL, &c, together, cuda);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        expect_same(&cpu[i], &cuda[i], MODEL, "constrained on cuda");
    cr_assert_eq(first.completed, second.completed);
    cr_assert_eq(second.forced > 0, speculation == ENGINE_SPECULATE_ALWAYS);
}

Test(cuda_constrain, a_persistent_decoder_gives_the_cpus_tokens, .timeout = 1200)
{
    check(EXECUTOR_PERSISTENT, "3", "90", true, ENGINE_SPECULATE_ALWAYS);
}

Test(cuda_constrain, launches_of_nodes_give_the_cpus_tokens, .timeout = 1200)
{
    check(EXECUTOR_EAGER, "2", "80", false, ENGINE_SPECULATE_OFF);
}

Test(cuda_constrain, a_captured_graph_gives_the_cpus_tokens, .timeout = 1200)
{
    check(EXECUTOR_GRAPH, "2", "90", true, ENGINE_SPECULATE_ALWAYS);
}
