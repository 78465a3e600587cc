/* The promise in the large, kept by cuda: the request alone on the cpu, the slow way, is the reference; in
 * all circumstances the engine on the cuda decoder gives the same tokens and log-probabilities, bit for bit.
 */
#define IDENTITY_PROMPT 70
#define IDENTITY_TOKENS 10
#include "support/draft_identity.h"
#include "support/sanitized.h"

static const struct {
    const char *what, *blocks, *sm;
    struct circumstances c;
} cases[] = {
    {"two steps in flight", "3", "90", {.steps_in_flight = 2}},
    {"one block, sm_80", "1", "80", {.steps_in_flight = 1}},
    {"four blocks beside seven others", "4", "90", {.steps_in_flight = 2, .n_neighbours = 7}},
    {"beside seven others, one step, sm_80", "2", "80", {.steps_in_flight = 1, .n_neighbours = 7}},
    {"chunks of 1", "2", "90", {.steps_in_flight = 2, .max_chunk = 1}},
    {"chunks of 7", "3", "90", {.steps_in_flight = 1, .max_chunk = 7}},
    {"after a prefix hit beside three others in chunks of 7",
     "3",
     "90",
     {.steps_in_flight = 2, .after_hit = true, .n_neighbours = 3, .max_chunk = 7}},
    {"eager", "2", "90", {.kind = EXECUTOR_EAGER, .steps_in_flight = 2, .n_neighbours = 3}},
    {"graph", "3", "80", {.kind = EXECUTOR_GRAPH, .steps_in_flight = 2, .n_neighbours = 3}},
};

/* Each circumstance meets one of two models, with --all both. Sanitizers look at the host's side, which most
 * of these circumstances share: they take every fourth, the translated PTX takes every third. */
#ifndef STRIDE
#define STRIDE SAMPLED_STRIDE(2, 4)
#endif

/* In every stride-th of the circumstances; the type of the cache chooses the first. */
static void check_model(const char *path, enum kv_type kv_type, size_t stride)
{
    static struct answer alone, other;
    struct circumstances slow = {.kv_type = kv_type, .isa = "scalar", .n_threads = 1, .steps_in_flight = 1};
    cr_assert(ask(path, slow, &alone));
    for (size_t i = (size_t)kv_type % stride; i < sizeof cases / sizeof *cases; i += stride) {
        struct circumstances c = cases[i].c;
        c.kv_type = kv_type;
        c.isa = "auto";
        c.ops = &cuda_backend;
        c.libcuda = LIBCUDA;
        setenv("SIMT_BLOCKS", cases[i].blocks, 1);
        setenv("SIMT_DEVICE_SM", cases[i].sm, 1);
        cr_assert(ask(path, c, &other));
        expect_same(&alone, &other, path, cases[i].what);
    }
}

Test(cuda_identity, qwen3_q4_k_m_gives_the_cpus_bits_in_all_circumstances, .timeout = 1200)
{
    check_model(HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", KV_F16, STRIDE);
}

Test(cuda_identity, llama3_q4_k_m_with_a_q8_0_cache_gives_the_cpus_bits_in_all_circumstances, .timeout = 1200)
{
    check_model(HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf", KV_Q8_0, STRIDE);
}

Test(cuda_identity, qwen2_q5_0_with_a_bf16_cache_gives_the_cpus_bits_in_circumstances_of_each_kind,
     .timeout = 1200)
{
    check_model(HEARTH_TEST_DATA "/tiny-qwen2-odd-s13-q5_0.gguf", KV_BF16, 3);
}

Test(cuda_identity, a_mixture_of_experts_gives_the_cpus_bits_in_all_circumstances, .timeout = 1200)
{
    check_model(HEARTH_TEST_DATA "/tiny-qwen3moe-s32-q4_k_m.gguf", KV_F16, STRIDE);
}

Test(cuda_identity, drafts_change_nothing, .timeout = 1200)
{
    static const struct {
        uint32_t n_words, steps_in_flight;
        const char *blocks, *sm;
        enum executor_kind kind;
    } runs[] = {{1, 2, "3", "90", EXECUTOR_PERSISTENT},
                {2, 1, "2", "80", EXECUTOR_PERSISTENT},
                {3, 2, "2", "90", EXECUTOR_GRAPH}};
    uint64_t drafted = 0, accepted = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct circumstances c = {.kind = runs[i].kind,
                                  .kv_type = i == 0   ? KV_Q8_0
                                             : i == 1 ? KV_BF16
                                                      : KV_F16,
                                  .isa = "auto",
                                  .ops = &cuda_backend,
                                  .libcuda = LIBCUDA,
                                  .steps_in_flight = runs[i].steps_in_flight};
        setenv("SIMT_BLOCKS", runs[i].blocks, 1);
        setenv("SIMT_DEVICE_SM", runs[i].sm, 1);
        struct engine_stats s =
            check_drafts(HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", c, runs[i].n_words, i < 2);
        drafted += s.drafted;
        accepted += s.accepted;
    }
    cr_assert(accepted > 10 && drafted > accepted + 10, "%lu drafted, %lu accepted", (unsigned long)drafted,
              (unsigned long)accepted);
}
