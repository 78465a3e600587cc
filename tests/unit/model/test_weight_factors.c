/* Matrices with a factor of their own in the file ("X.scale" beside "X.weight"). */
#include "base/half.h"
#include "support/decoder_run.h"
#include "support/models/random_blocks.h"
#include "support/models/variant_model.h"

#include <errno.h>
#include <math.h>

#define QWEN3    "tiny-qwen3-s11-q8_0"
#define MOE      "tiny-qwen3moe-s32-q4_k_m"
#define DEEPSEEK "tiny-deepseek2-s74-f16"
enum { N_TOKENS = 40, MAX_EDITS = 128 };

#define WITH_BYTES(tensor, n_type, n_cols, n_rows, n_experts, data)                                          \
    {                                                                                                        \
        .kind = VARIANT_TENSOR, .name = tensor, .u32 = n_type, .cols = n_cols, .rows = n_rows,               \
        .experts = n_experts, .bytes = data                                                                  \
    }

/* Reads a weight in pieces of all sizes; the caller frees it. */
static void *read_in_pieces(const struct model *m, uint32_t index)
{
    struct error err = {0};
    const struct weight *w = model_weight(m, index);
    char *found = malloc(w->size);
    for (size_t at = 0, n = 2; at < w->size; at += n, n = n * 3 + 1) {
        n = w->size - at < n ? w->size - at : n;
        cr_assert_eq(model_read_weight(m, index, at, found + at, n, &err), 0, "%s", err.text);
    }
    return found;
}

/* Each value is that of the file, times its expert's factor, as F16. */
static void expect_halves(const struct weight *w, const uint16_t *found, const void *bytes,
                          const float *factors, size_t n_factors)
{
    size_t n = (size_t)w->n * w->k;
    float *values = malloc(n * sizeof *values);
    cr_assert(w->type == QUANT_F16 && w->size == n * 2);
    quant_dequantise(w->stored, bytes, values, n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(found[i], half_from_float(values[i] * factors[i / (n / n_factors)]), "%s %zu", w->name,
                     i);
    free(values);
}

/* Each block is that of the file, behind its expert's factor. */
static void expect_blocks(const struct weight *w, const char *found, const char *bytes, const float *factors,
                          size_t n_factors)
{
    size_t n = (size_t)w->n * w->k / 64;
    cr_assert(w->type == QUANT_NVFP4_SCALED && w->size == n * 40);
    for (size_t i = 0; i < n; i++) {
        cr_assert_arr_eq(found + 40 * i, &factors[i / (n / n_factors)], sizeof *factors, "%s %zu", w->name,
                         i);
        cr_assert_arr_eq(found + 40 * i + 4, bytes + 36 * i, 36, "%s %zu", w->name, i);
    }
}

static void factors_are_read(uint32_t type)
{
    enum { COLS = 256, ROWS = 32, EXPERTS = 6 };
    size_t size = quant_size(type, (size_t)COLS * ROWS * EXPERTS);
    void *blocks = malloc(size);
    struct random_blocks random;
    random_blocks_init(&random, type, 1, 7);
    random_blocks_fill(&random, blocks, (size_t)COLS * ROWS * EXPERTS);
    const float factors[EXPERTS] = {0.5f, -3, 0x1p-12f, 1, 0.3f, 7};
    for (size_t n = 1; n <= EXPERTS; n += EXPERTS - 1) { /* one, or one an expert */
        struct error err = {0};
        struct model *m = NULL;
        int rc = open_edited(&m, MOE,
                             EDITS(WITH_BYTES("blk.1.ffn_up_exps.weight", type, COLS, ROWS, EXPERTS, blocks),
                                   WITH_BYTES("blk.1.ffn_up_exps.scale", QUANT_F32, n, 1, 1, factors)),
                             &err);
        cr_assert_eq(rc, 0, "%s", err.text);
        uint32_t index = model_find_weight(m, "blk.1.ffn_up_exps.weight");
        void *found = read_in_pieces(m, index);
        (type == QUANT_NVFP4 ? expect_blocks(model_weight(m, index), found, blocks, factors, n)
                             : expect_halves(model_weight(m, index), found, blocks, factors, n));
        free(found);
        model_close(m);
    }
    free(blocks);
}

Test(weight_factors, of_a_matrix_and_of_each_expert_are_read_with_the_weight)
{
    factors_are_read(QUANT_NVFP4);
    factors_are_read(QUANT_MXFP4);
}

struct halved_file { /* edits, and what they point to */
    struct variant_edit edits[MAX_EDITS];
    char names[MAX_EDITS][64];
    uint16_t *halves[MAX_EDITS];
    size_t n;
};

static const float twos[64] = {[0 ... 63] = 2};

/* Halves an F16 matrix, and adds its factor 2, for each expert where the file has experts there. */
static void halve(struct halved_file *f, const struct gguf *g, const struct gguf_tensor *t)
{
    bool experts = strstr(t->name, "_exps.");
    cr_assert(f->n + 2 <= MAX_EDITS && t->ne[2] <= 64);
    uint16_t *halves = f->halves[f->n] = tensor_bytes(g, t);
    for (size_t i = 0; i < t->size / 2; i++)
        halves[i] = half_from_float(half_to_float(halves[i]) / 2);
    (void)snprintf(f->names[f->n], sizeof f->names[0], "%s", t->name);
    (void)snprintf(f->names[f->n + 1], sizeof f->names[0], "%.*s.scale", (int)(strlen(t->name) - 7), t->name);
    const struct variant_edit edits[] = {
        WITH_BYTES(f->names[f->n], QUANT_F16, t->ne[0], t->ne[1], t->ne[2], halves),
        WITH_BYTES(f->names[f->n + 1], QUANT_F32, experts ? t->ne[2] : 1, 1, 1, twos)};
    f->edits[f->n++] = edits[0];
    f->edits[f->n++] = edits[1];
}

/* Subnormal values lose a bit by halving: the tiny model has none that its logits show. */
Test(weight_factors, halved_weights_times_two_give_the_logits_of_the_whole_ones)
{
    static struct halved_file f;
    char path[64];
    struct error err = {0};
    struct gguf *g = NULL;
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 37 + 11) % 256;
    cr_assert_eq(gguf_open(&g, HEARTH_TEST_DATA "/" DEEPSEEK ".gguf", &err), 0, "%s", err.text);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (t->type == QUANT_F16 && t->ne[1] > 1 && strncmp(t->name, "token_embd", 10) != 0)
            halve(&f, g, t);
    }
    gguf_close(g);
    cr_assert_gt(f.n, 40);
    variant_write(path, DEEPSEEK, f.edits, f.n);
    struct decoder_run_config c = {.n_threads = 2, .path = HEARTH_TEST_DATA "/" DEEPSEEK ".gguf"};
    float *wanted = decoder_run_logits(&c, tokens, N_TOKENS, 16);
    c.path = path;
    float *found = decoder_run_logits(&c, tokens, N_TOKENS, 16);
    for (size_t i = 0; i < N_TOKENS * 320; i++)
        cr_assert_float_eq(wanted[i], found[i], 1e-3f, "%zu: %g, %g", i, (double)wanted[i], (double)found[i]);
    free(wanted);
    free(found);
    unlink(path);
    for (size_t i = 0; i < f.n; i++)
        free(f.halves[i]);
}

/* The logits of a mixture whose experts are NVFP4, with factors or without. */
static float *logits_of_experts(const uint8_t *blocks, const float *factors, const int32_t *tokens)
{
    const struct variant_edit edits[] = {
        WITH_BYTES("blk.1.ffn_up_exps.weight", QUANT_NVFP4, 256, 32, 6, blocks),
        WITH_BYTES("blk.1.ffn_gate_exps.weight", QUANT_NVFP4, 256, 32, 6, blocks),
        WITH_BYTES("blk.1.ffn_up_exps.scale", QUANT_F32, 6, 1, 1, factors),
        WITH_BYTES("blk.1.ffn_gate_exps.scale", QUANT_F32, 1, 1, 1, factors)};
    char path[64];
    variant_write(path, MOE, edits, factors ? 4 : 2);
    struct decoder_run_config c = {.n_threads = 2, .path = path};
    float *logits = decoder_run_logits(&c, tokens, N_TOKENS, 16);
    unlink(path);
    return logits;
}

/* A power of two moves between a block's scales, whose exponents begin in bit 3, and the factor. */
Test(weight_factors, of_two_with_halved_scales_of_nvfp4_give_the_same_bits)
{
    enum { N = 256 * 32 * 6, BLOCK = 36 };
    uint8_t *whole = malloc(N / 64 * BLOCK), *halved = malloc(N / 64 * BLOCK);
    int32_t tokens[N_TOKENS];
    struct random_blocks random;
    random_blocks_init(&random, QUANT_NVFP4, 0.1f, 7);
    random_blocks_fill(&random, whole, N);
    memcpy(halved, whole, N / 64 * BLOCK);
    for (size_t i = 0; i < N / 64 * BLOCK; i += BLOCK)
        for (size_t s = i; s < i + 4; s++) {
            cr_assert_geq(whole[s], 16, "it has no half among normal numbers");
            halved[s] = (uint8_t)(whole[s] - 8);
        }
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 37 + 11) % 256;
    float *wanted = logits_of_experts(whole, NULL, tokens), *found = logits_of_experts(halved, twos, tokens);
    cr_assert_arr_eq(wanted, found, N_TOKENS * 320 * sizeof *wanted);
    free(found);
    found = logits_of_experts(halved, (const float[6]){2, 2, 2, 2, 2, 1}, tokens);
    cr_assert_arr_neq(wanted, found, N_TOKENS * 320 * sizeof *wanted);
    free(wanted);
    free(found);
    free(whole);
    free(halved);
}

Test(weight_factors, that_are_none_are_refused_by_name)
{
    const float zero = 0, none = NAN, large = 1e6f, three[] = {1, 1, 1};
    refused(QWEN3, -EBADMSG, "blk.1.attn_q.scale has 0",
            EDITS(WITH_BYTES("blk.1.attn_q.scale", QUANT_F32, 1, 1, 1, &zero)));
    refused(QWEN3, -EBADMSG, "blk.1.attn_q.scale has nan",
            EDITS(WITH_BYTES("blk.1.attn_q.scale", QUANT_F32, 1, 1, 1, &none)));
    refused(QWEN3, -ENOTSUP, "blk.1.attn_q.scale is not supported",
            EDITS(WITH_BYTES("blk.1.attn_q.scale", QUANT_F32, 3, 1, 1, three)));
    refused(QWEN3, -ENOTSUP, "token_embd.scale is not supported",
            EDITS(WITH_BYTES("token_embd.scale", QUANT_F32, 1, 1, 1, three)));
    struct error err = {0};
    struct model *m = NULL;
    int rc =
        open_edited(&m, QWEN3, EDITS(WITH_BYTES("blk.1.attn_q.scale", QUANT_F32, 1, 1, 1, &large)), &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    uint32_t index = model_find_weight(m, "blk.1.attn_q.weight");
    void *bytes = malloc(model_weight(m, index)->size);
    cr_assert_eq(model_read_weight(m, index, 0, bytes, model_weight(m, index)->size, &err), -ENOTSUP);
    cr_assert_not_null(strstr(err.text, "blk.1.attn_q.weight times its factor 1e+06"), "%s", err.text);
    free(bytes);
    model_close(m);
}
