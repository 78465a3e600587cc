/* The cuda decoder, on the emulated driver, against the recorded float64 references and against the cpu's
 * bits. */
#include "support/decoder_run.h"
#include "support/golden.h"
#include "support/models/made_model.h"
#include "support/models/random_blocks.h"
#include "support/models/split_model.h"
#include "support/models/variant.h"
#include "support/sanitized.h"
#include "support/temporary_dir.h"

/* Bounds: those of the int8 arithmetic on cpu (test_cpu_golden.c). */
#define WORST 0.045
#define MEAN  0.030

/* Sanitizers look at the host's side, and that is the same for each file: they take every fifth, the
 * translated PTX takes every third. */
#ifndef STRIDE
#define STRIDE SANITIZED_STRIDE(5)
#endif

static void check_bounds(const struct golden *g, const float *logits, double worst, double mean)
{
    double sum = 0;
    for (uint32_t pos = 0; pos < g->n_tokens; pos++) {
        const float *row = logits + (size_t)pos * g->n_vocab;
        double error = golden_error(g, pos, row);
        sum += error;
        cr_expect(error <= worst, "%s position %u: error %.4f", g->name, pos, error);
        uint32_t best = 0;
        for (uint32_t i = 1; i < g->n_vocab; i++)
            best = row[i] > row[best] ? i : best;
        if (golden_is_clear(g, pos))
            cr_expect_eq((int32_t)best, g->top[pos][0].token, "%s position %u", g->name, pos);
    }
    cr_expect(sum / g->n_tokens <= mean, "%s: mean error %.4f", g->name, sum / g->n_tokens);
    printf("%s: mean error %.4f\n", g->name, sum / g->n_tokens);
}

static void check_bits(const struct golden *g, const float *expected, const float *got, const char *what)
{
    for (size_t i = 0; i < (size_t)g->n_tokens * g->n_vocab; i++)
        cr_assert(memcmp(&expected[i], &got[i], sizeof *got) == 0,
                  "%s, %s: position %zu, logit %zu is %a, cpu %a", g->name, what, i / g->n_vocab,
                  i % g->n_vocab, (double)got[i], (double)expected[i]);
}

/* Bytes of KV pages: enough for a prompt. The emulator fills all device memory, and that takes time. */
#define KV_MEMORY (4 << 20)

/* Eager launches the nodes' kernels one by one, and graph replays the same launches: models take them in
 * turns, and both with HEARTH_TEST_ALL. */
static bool takes(enum executor_kind kind, unsigned n_before)
{
#ifdef HEARTH_TEST_ALL
    (void)kind;
    (void)n_before;
    return true;
#else
    return kind == EXECUTOR_PERSISTENT || kind == (n_before % 2 ? EXECUTOR_GRAPH : EXECUTOR_EAGER);
#endif
}

/* Every executor that runs the model gives the cpu's bits; the logits of one of them are held to the
 * reference. */
static void check_model(const struct golden *g, double worst, double mean)
{
    static const struct {
        enum executor_kind kind;
        const char *name;
        uint32_t chunk;
    } ways[] = {
        {EXECUTOR_PERSISTENT, "persistent", 32}, {EXECUTOR_EAGER, "eager", 7}, {EXECUTOR_GRAPH, "graph", 13}};
    static unsigned n_before;
    struct decoder_run_config c = {.path = g->model, .n_threads = 2};
    float *expected = decoder_run_logits(&c, g->tokens, g->n_tokens, 32);
    c.ops = &cuda_backend;
    c.libcuda = LIBCUDA;
    c.kv_memory = KV_MEMORY;
    bool checked = false, nodes = golden_is_of_nodes(g->name);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (!takes(ways[i].kind, n_before) || (nodes && ways[i].kind == EXECUTOR_PERSISTENT))
            continue;
        c.kind = ways[i].kind;
        float *logits = decoder_run_logits(&c, g->tokens, g->n_tokens, ways[i].chunk);
        check_bits(g, expected, logits, ways[i].name);
        if (!checked)
            check_bounds(g, logits, worst, mean);
        checked = true;
        free(logits);
    }
    n_before++;
    free(expected);
}

static void check_file(const char *dir, const char *name, double worst, double mean)
{
    struct golden g;
    cr_assert(golden_open(&g, dir, name), "%s/%s", dir, name);
    check_model(&g, worst, mean);
    golden_close(&g);
}

Test(cuda_golden, int8_is_within_the_bounds_and_has_the_cpus_bits_on_every_recorded_file)
{
    for (size_t i = 0; i < GOLDEN_N_DATA; i += STRIDE)
        check_file(HEARTH_TEST_DATA, golden_data_names[i], WORST, MEAN);
}

static void check_family(const char *dir, const char *name)
{
    check_file(dir, name, GOLDEN_FAMILY_WORST,
               strstr(name, "-f16") ? GOLDEN_FAMILY_MEAN_F16 : GOLDEN_FAMILY_MEAN);
}

Test(cuda_golden, so_it_is_on_every_recorded_family)
{
    for (size_t i = 0; i < GOLDEN_N_DATA_FAMILIES; i += STRIDE)
        check_family(HEARTH_TEST_DATA, golden_data_families[i]);
}

Test(cuda_golden, and_on_the_families_beside_the_checkout)
{
    const char *dir = golden_shared();
    if (!dir) {
        printf("SKIP test_cuda_golden shared-golden: ../shared/golden is not here\n");
        return;
    }
    for (size_t i = 0; i < GOLDEN_N_SHARED_FAMILIES; i += STRIDE)
        if (!strstr(golden_shared_families[i], "-f16"))
            check_family(dir, golden_shared_families[i]);
}

Test(cuda_golden, int8_is_within_the_bounds_on_the_files_beside_the_checkout)
{
    const char *dir = golden_shared();
    if (!dir) {
        printf("SKIP test_cuda_golden shared-golden: ../shared/golden is not here\n");
        return;
    }
    for (size_t i = 0; i < GOLDEN_N_SHARED; i += STRIDE)
        if (!strstr(golden_shared_names[i], "-f16"))
            check_file(dir, golden_shared_names[i], WORST, MEAN);
}

Test(cuda_golden, f16_weights_stay_within_two_thousandths)
{
    const char *dir = golden_shared();
    if (!dir) {
        printf("SKIP test_cuda_golden shared-golden: ../shared/golden is not here\n");
        return;
    }
    check_file(dir, "tiny-qwen3-s11-f16", 2e-3, 2e-3);
}

Test(cuda_golden, so_is_a_bf16_cache)
{
    struct golden g;
    cr_assert(golden_open(&g, HEARTH_TEST_DATA, golden_data_names[0]));
    struct decoder_run_config c = {.path = g.model, .kv_type = KV_BF16, .n_threads = 2};
    float *expected = decoder_run_logits(&c, g.tokens, g.n_tokens, 32);
    c.ops = &cuda_backend;
    c.libcuda = LIBCUDA;
    float *logits = decoder_run_logits(&c, g.tokens, g.n_tokens, 13);
    check_bits(&g, expected, logits, "a bf16 cache");
    check_bounds(&g, logits, WORST, MEAN);
    free(expected);
    free(logits);
    golden_close(&g);
}

/* --- models of other float types, against the float oracle --- */

/* The eight best of a position's logits. */
static void find_top(struct golden *g, uint32_t pos)
{
    const float *row = g->logits + (size_t)pos * g->n_vocab;
    double lse = golden_log_sum_exp(row, g->n_vocab);
    for (uint32_t j = 0; j < GOLDEN_TOP; j++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < g->n_vocab; i++) {
            bool taken = false;
            for (uint32_t k = 0; k < j; k++)
                taken = taken || (uint32_t)g->top[pos][k].token == i;
            if (!taken && (best == UINT32_MAX || row[i] > row[best]))
                best = i;
        }
        g->top[pos][j] = (struct golden_top){(int32_t)best, (double)row[best], (double)row[best] - lse};
    }
}

/* As if recorded: what the exact arithmetic of the cpu makes of a model, which test_reference holds to 2e-3.
 */
static void make_golden(struct golden *g, const char *quant)
{
    char path[64];
    *g = (struct golden){.float_weights = true, .n_vocab = 512, .n_tokens = 48};
    made_model("tiny-qwen3", quant, path);
    (void)snprintf(g->name, sizeof g->name, "tiny-qwen3 %s", quant);
    (void)snprintf(g->model, sizeof g->model, "%s", path);
    for (uint32_t i = 0; i < g->n_tokens; i++)
        g->tokens[i] = (int32_t)(i * 37 + 11) % 500;
    struct decoder_run_config c = {
        .path = path, .kind = EXECUTOR_EAGER, .arithmetic = BACKEND_EXACT, .n_threads = 2};
    g->logits = decoder_run_logits(&c, g->tokens, g->n_tokens, 32);
    for (uint32_t pos = 0; pos < g->n_tokens; pos++)
        find_top(g, pos);
}

Test(cuda_golden, whole_models_of_floats_choose_as_the_oracle_does)
{
    static const char *const types[] = {"f16", "bf16"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct golden g;
        make_golden(&g, types[i]);
        check_model(&g, 2e-3, 2e-3);
        unlink(g.model);
        golden_close(&g);
    }
}

/* An executor gives the cpu's bits on a model without a reference. */
static void compare(struct golden *g, const char *path, enum executor_kind kind, const char *name)
{
    for (uint32_t i = 0; i < g->n_tokens; i++)
        g->tokens[i] = (int32_t)(i * 37 + 11) % (int32_t)(g->n_vocab - 12);
    struct decoder_run_config c = {.path = path, .n_threads = 2};
    float *expected = decoder_run_logits(&c, g->tokens, g->n_tokens, 32);
    c.ops = &cuda_backend;
    c.libcuda = LIBCUDA;
    c.kv_memory = KV_MEMORY;
    c.kind = kind;
    float *logits = decoder_run_logits(&c, g->tokens, g->n_tokens, 7);
    check_bits(g, expected, logits, name);
    free(expected);
    free(logits);
}

/* Codebooks of which no recorded file is here. */
Test(cuda_golden, models_of_every_codebook_have_the_cpus_bits)
{
    static const char *const types[] = {"iq4_xs", "iq3_s", "iq2_xs", "iq2_s",
                                        "iq1_m",  "tq1_0", "tq2_0",  "nvfp4"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i += STRIDE) {
        struct golden g = {.n_vocab = 512, .n_tokens = 12};
        char path[64];
        made_model("tiny-qwen3", types[i], path);
        (void)snprintf(g.name, sizeof g.name, "tiny-qwen3 %s", types[i]);
        compare(&g, path, EXECUTOR_PERSISTENT, "persistent");
        unlink(path);
    }
}

/* More experts than rows that are read together: their biases have a row each. And branches of experts beside
 * dense ones, whose choice is made from another norm. */
Test(cuda_golden, made_mixtures_have_the_cpus_bits)
{
    static const struct {
        const char *shape, *quant;
        uint32_t n_vocab;
    } cases[] = {{"tiny-gpt-oss-24", "mxfp4", 512}, {"tiny-gemma4moe", "q4_0", 320}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct golden g = {.n_vocab = cases[i].n_vocab, .n_tokens = 20};
        char path[64];
        made_model(cases[i].shape, cases[i].quant, path);
        (void)snprintf(g.name, sizeof g.name, "%s", cases[i].shape);
        compare(&g, path, EXECUTOR_PERSISTENT, "persistent");
        compare(&g, path, EXECUTOR_EAGER, "eager");
        unlink(path);
    }
}

/* The cpu's bits of parts are those of the whole file (test_gguf_parts.c), as is the refusal without one. */
Test(cuda_golden, a_model_in_several_files_has_the_cpus_bits)
{
    struct golden g = {.name = "three parts", .n_vocab = 512, .n_tokens = 6};
    char first[512], *dir = temporary_dir();
    split_model(HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", dir, 3, first);
    compare(&g, first, EXECUTOR_PERSISTENT, "persistent");
    temporary_dir_remove(dir);
}

/* NVFP4 keeps its type, others are read as F16. */
Test(cuda_golden, matrices_with_factors_have_the_cpus_bits)
{
    static const float factors[] = {0.5f, 2, -1, 3, 0.25f, 1};
    enum { COLS = 256, ROWS = 32, EXPERTS = 6 };
    static uint8_t blocks[COLS * ROWS * EXPERTS / 64 * 36];
    struct random_blocks random;
    random_blocks_init(&random, QUANT_NVFP4, 0.1f, 7);
    random_blocks_fill(&random, blocks, (size_t)COLS * ROWS * EXPERTS);
    const struct variant_edit edits[] = {
        {VARIANT_TENSOR, "blk.1.ffn_gate_exps.weight", QUANT_NVFP4, .cols = COLS, .rows = ROWS,
         .experts = EXPERTS, .bytes = blocks},
        {VARIANT_TENSOR, "blk.1.ffn_gate_exps.scale", QUANT_F32, .cols = 6, .rows = 1, .bytes = factors},

        {VARIANT_TENSOR, "blk.0.attn_q.scale", QUANT_F32, .cols = 1, .rows = 1, .bytes = factors},
        {VARIANT_TENSOR, "blk.1.attn_output.scale", QUANT_F32, .cols = 1, .rows = 1, .bytes = factors},
        {VARIANT_TENSOR, "blk.0.ffn_up_exps.scale", QUANT_F32, .cols = 6, .rows = 1, .bytes = factors},
        {VARIANT_TENSOR, "blk.1.ffn_down_exps.scale", QUANT_F32, .cols = 6, .rows = 1, .bytes = factors},
    };
    struct golden g = {.name = "factors", .n_vocab = 320, .n_tokens = 8};
    char path[64];
    variant_write(path, "tiny-qwen3moe-s32-q4_k_m", edits, sizeof edits / sizeof *edits);
    compare(&g, path, EXECUTOR_PERSISTENT, "persistent");
    compare(&g, path, EXECUTOR_EAGER, "eager");
    unlink(path);
}

/* One layer's router is packed as BF16, the other's as the F32 that it is; rows are multiplied alone and
 * together. */
Test(cuda_golden, routers_that_bf16_holds_have_the_cpus_bits)
{
    enum { COLS = 256, EXPERTS = 6 };
    static float router[COLS * EXPERTS];
    for (uint32_t i = 0; i < COLS * EXPERTS; i++)
        router[i] = (float)((int)(i * i * 7 % 255) - 127) * 0x1p-9f;
    const struct variant_edit edit = {VARIANT_TENSOR,  "blk.0.ffn_gate_inp.weight",
                                      QUANT_F32,       .cols = COLS,
                                      .rows = EXPERTS, .bytes = router};
    struct golden g = {.name = "router", .n_vocab = 320, .n_tokens = 8};
    char path[64];
    variant_write(path, "tiny-qwen3moe-s32-q4_k_m", &edit, 1);
    compare(&g, path, EXECUTOR_PERSISTENT, "persistent");
    compare(&g, path, EXECUTOR_EAGER, "eager");
    unlink(path);
}
