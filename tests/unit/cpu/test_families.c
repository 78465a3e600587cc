/* Families beside Llama and Qwen: every way to run one gives the same bits. */
#include "support/decoder_run.h"
#include "support/golden.h"
#include "support/models/made_model.h"
#include "support/models/variant.h"
#include "support/sanitized.h"

enum { N_TOKENS = 200, N_LONG = 700, N_VOCAB = 320 };

static const int32_t *text(void)
{
    static int32_t tokens[N_LONG];
    for (uint32_t i = 0, x = 12345; i < N_LONG; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(x >> 16) % 256;
    }
    return tokens;
}

/* In tests/data, or else beside the checkout. */
static const char *path_of(const char *name)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.gguf", HEARTH_TEST_DATA, name);
    if (name[0] == '/')
        (void)snprintf(path, sizeof path, "%s", name);
    else if (access(path, R_OK) != 0 && golden_shared())
        (void)snprintf(path, sizeof path, "%s/%s.gguf", golden_shared(), name);
    return path;
}

/* The logits of the 32 last tokens: earlier ones may have none. */
static void expect_same(const char *name, const float *wanted, struct decoder_run_config c, uint32_t chunk,
                        const char *what)
{
    c.path = path_of(name);
    float *found = decoder_run_logits(&c, text(), N_TOKENS, chunk);
    for (uint32_t i = N_TOKENS - 8; i < N_TOKENS; i++)
        cr_assert_eq(
            memcmp(wanted + (size_t)i * N_VOCAB, found + (size_t)i * N_VOCAB, N_VOCAB * sizeof *found), 0,
            "%s, %s, position %u", name, what, i);
    free(found);
}

static void check_family(const char *name, enum kv_type type)
{
    static unsigned number;
    struct decoder_run_config c = {.path = path_of(name), .kv_type = type};
    float *wanted = decoder_run_logits(&c, text(), N_TOKENS, 25);
    struct decoder_run_config eager = {.kv_type = type, .kind = EXECUTOR_EAGER, .n_threads = 2};
    struct decoder_run_config isa = {.kv_type = type, .isa = "scalar"};
    struct decoder_run_config threads = {.kv_type = type, .n_threads = 3, .page_shift = 3};
    expect_same(name, wanted, eager, 8, "eager");
    if (number++ % SANITIZED_STRIDE(3) == 0) /* the slowest */
        expect_same(name, wanted, isa, 32, "scalar");
    expect_same(name, wanted, threads, 1, "three threads, row by row");
    isa.isa = "avx2";
    if (decoder_run_has_isa("avx2"))
        expect_same(name, wanted, isa, 8, "avx2");
    free(wanted);
}

Test(families, give_the_same_bits_for_each_executor_thread_count_chunk_and_instruction_set)
{
    for (size_t i = 0; i < GOLDEN_N_DATA_FAMILIES; i++)
        check_family(golden_data_families[i], KV_F16);
}

Test(families, beside_the_checkout_give_the_same_bits_too)
{
    static const char *const names[] = {"tiny-phi3-s52-q4_k_m", "tiny-smollm3-s67-f16",
                                        "tiny-granitemoe-s64-q4_k_m"};
    if (!golden_shared()) {
        printf("SKIP test_families shared-golden: ../shared/golden is not here\n");
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_family(names[i], KV_F16);
}

Test(families, give_the_same_bits_over_each_cache_type)
{
    check_family("tiny-gemma2-s78-q4_k_m", KV_Q8_0);
    check_family("tiny-gemma2-s78-q4_k_m", KV_BF16);
    check_family("tiny-gemma4-e-s54-f16", KV_Q8_0);
    check_family("tiny-gemma4-d-s55-q4_0", KV_BF16);
    check_family("tiny-gptoss-s34-mxfp4", KV_Q8_0);
    check_family("tiny-deepseek2-s74-f16", KV_Q8_0);
    check_family("tiny-deepseek2-s74-f16", KV_BF16);
}

/* A row beyond 512 tokens alone has its splits dealt to the members. */
static void check_long(const char *name)
{
    struct decoder_run r[2];
    const struct decoder_run_config c = {.path = path_of(name), .n_threads = 1, .n_ctx = 1024};
    const struct decoder_run_config two = {
        .path = c.path, .n_threads = 4, .n_ctx = 1024, .kind = EXECUTOR_PERSISTENT};
    decoder_run_open(&r[0], &c);
    decoder_run_open(&r[1], &two);
    for (uint32_t pos = 0; pos < N_LONG; pos += pos < 640 ? 64 : 1) {
        uint32_t n = pos < 640 ? 64 : 1, index = 0;
        for (int i = 0; i < 2; i++) {
            for (uint32_t j = 0; j < n; j++)
                index = decoder_run_row(&r[i], 0, pos + j, text()[pos + j], j + 1 == n);
            decoder_run_step(&r[i]);
        }
        const float *a = executor_logits(r[0].x, index), *b = executor_logits(r[1].x, index);
        cr_assert(a && b);
        cr_assert_eq(memcmp(a, b, N_VOCAB * sizeof *a), 0, "%s, position %u", name, pos + n - 1);
    }
    decoder_run_close(&r[0]);
    decoder_run_close(&r[1]);
}

Test(families, give_the_same_bits_when_splits_are_dealt_one_by_one)
{
    check_long("tiny-gemma3-s38-q4_0");
    check_long("tiny-gemma4-e-s54-f16");
    check_long("tiny-gptoss-s34-mxfp4");
    check_long("tiny-deepseek2-s74-f16");
}

/* The first n positions stay near those of exact, also far behind the window, where whole pages fall out of
 * it.
 */
static void check_exact(const char *name, double bound, uint32_t n)
{
    struct decoder_run_config c = {.path = path_of(name)};
    float *found = decoder_run_logits(&c, text(), N_TOKENS, 25);
    c.kind = EXECUTOR_EAGER;
    c.arithmetic = BACKEND_EXACT;
    float *exact = decoder_run_logits(&c, text(), N_TOKENS, 25);
    for (uint32_t i = 0; i < n; i++) {
        double error = 0, size = 0;
        for (uint32_t j = 0; j < N_VOCAB; j++) {
            double a = (double)found[i * N_VOCAB + j], b = (double)exact[i * N_VOCAB + j];
            error += (a - b) * (a - b);
            size += b * b;
        }
        cr_assert(sqrt(error / size) < bound, "%s, position %u: %g", name, i, sqrt(error / size));
    }
    free(found);
    free(exact);
}

Test(families, with_windows_agree_with_exact_far_behind_them)
{
    check_exact("tiny-gemma4-e-s54-f16", 6e-3, N_TOKENS);
}

Test(families, gemma4_with_experts_gives_the_same_bits_and_agrees_with_exact)
{
    char path[64];
    made_model("tiny-gemma4moe", "f16", path);
    check_family(path, KV_F16);
    check_exact(path, 2e-2, 100); /* further on a choice near the border falls the other way */
    unlink(path);
    made_model("tiny-gemma4moe", "q4_0", path);
    check_family(path, KV_F16);
    unlink(path);
}

/* Groups are then chosen by probabilities alone. */
Test(families, choose_groups_without_a_bias_as_exact_does)
{
    char path[64];
    variant_write(path, "tiny-deepseek2-s74-f16",
                  EDITS(DROP_TENSOR("blk.1.exp_probs_b.bias"), DROP_TENSOR("blk.2.exp_probs_b.bias")));
    check_exact(path, 2e-2, 48);
    unlink(path);
}

/* The golden files have a second product for the queries. */
Test(families, deepseek_lite_whose_queries_are_one_product_gives_the_same_bits_and_agrees_with_exact)
{
    char path[64];
    made_model("tiny-deepseek-lite", "f16", path);
    check_family(path, KV_F16);
    check_exact(path, 2e-2, 48);
    unlink(path);
}
