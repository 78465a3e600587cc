/* Random models of mkmodel: shapes, mixes of types, vocabularies. */
#include "support/models/random_blocks.h"
#include "gguf/gguf.h"
#include "support/models/tensor_bytes.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Runs the mkmodel that was built beside this program; its file's name into `path`. Returns its exit status.
 */
static int make(const char *arguments, char path[64])
{
    char self[512], command[1200];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    cr_assert_gt(n, 0);
    self[n] = 0;
    *strrchr(self, '/') = 0;
    strcpy(path, "/tmp/hearth-mkmodel-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    (void)snprintf(command, sizeof command, "%s/mkmodel %s --out %s 2>/dev/null", self, arguments, path);
    return system(command);
}

/* The model is opened and its file removed: it can still be read. */
static struct gguf *made(const char *arguments)
{
    char path[64];
    struct error err = {0};
    struct gguf *g = NULL;
    cr_assert_eq(make(arguments, path), 0, "mkmodel %s", arguments);
    int rc = gguf_open(&g, path, &err);
    unlink(path);
    cr_assert_eq(rc, 0, "%s", err.text);
    return g;
}

static uint32_t u32(const struct gguf *g, const char *key)
{
    uint32_t v = 0;
    cr_assert_eq(gguf_get_u32(g, key, &v, NULL), 0, "%s", key);
    return v;
}

static const char *type_of(const struct gguf *g, const char *tensor)
{
    const struct gguf_tensor *t = gguf_find_tensor(g, tensor);
    cr_assert_not_null(t, "%s", tensor);
    return quant_name(t->type);
}

Test(random_blocks, every_type_has_mean_0_and_the_root_mean_square_asked_for)
{
    const uint32_t types[] = {0,  1,  2,  3,  6,  7,  8,  10, 11, 12, 13, 14, 16,
                              17, 18, 19, 20, 21, 22, 23, 29, 30, 34, 35, 39, 40};
    enum { N = 1 << 18 };
    uint8_t *packed = malloc(4 * N);
    float *values = malloc(N * sizeof *values);
    cr_assert(packed && values);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        struct random_blocks r;
        double sum = 0, squares = 0;
        random_blocks_init(&r, types[k], 0.02f, 9);
        random_blocks_fill(&r, packed, N);
        quant_dequantise(types[k], packed, values, N);
        for (size_t i = 0; i < N; i++) {
            sum += (double)values[i];
            squares += (double)values[i] * (double)values[i];
        }
        cr_assert(fabs(sqrt(squares / N) / 0.02 - 1) < 0.03, "%s: %g", quant_name(types[k]),
                  sqrt(squares / N));
        cr_assert(fabs(sum / N / 0.02) < 0.03, "%s: %g", quant_name(types[k]), sum / N);
    }
    free(packed);
    free(values);
}

Test(mkmodel, every_small_model_opens_in_every_mix)
{
    const char *shapes[] = {"tiny-qwen3",     "tiny-qwen3-tied", "tiny-qwen2",
                            "tiny-qwen2-odd", "tiny-llama",      "tiny-llama3"};
    const char *mixes[] = {"f32",    "f16",   "bf16",   "q4_0",   "q4_1",    "q5_0",   "q5_1",
                           "q8_0",   "q2_k",  "q3_k_m", "q4_k_s", "q4_k_m",  "q5_k_m", "q6_k",
                           "mxfp4",  "nvfp4", "iq4_nl", "iq4_xs", "iq3_xxs", "iq3_s",  "iq2_xxs",
                           "iq2_xs", "iq2_s", "iq1_s",  "iq1_m",  "tq1_0",   "tq2_0"};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (size_t k = 0; k < sizeof mixes / sizeof *mixes; k++) {
            char arguments[128];
            (void)snprintf(arguments, sizeof arguments, "--shape %s --quant %s", shapes[s], mixes[k]);
            struct gguf *g = made(arguments);
            for (size_t i = 0; i < gguf_n_tensors(g); i++)
                cr_assert_gt(gguf_tensor_at(g, i)->size, 0);
            gguf_close(g);
        }
    }
}

Test(mkmodel, q4_k_m_gives_more_bits_to_some_layers)
{
    struct gguf *g = made("--shape tiny-qwen3-deep --quant q4_k_m"); /* 16 layers */
    for (int i = 0; i < 16; i++) {
        char name[64];
        bool more = i < 2 || i >= 14 || i % 3 == 1;
        (void)snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
        cr_assert_str_eq(type_of(g, name), more ? "Q6_K" : "Q4_K", "%s", name);
        (void)snprintf(name, sizeof name, "blk.%d.ffn_down.weight", i);
        cr_assert_str_eq(type_of(g, name), more ? "Q6_K" : "Q4_K", "%s", name);
        (void)snprintf(name, sizeof name, "blk.%d.ffn_up.weight", i);
        cr_assert_str_eq(type_of(g, name), "Q4_K");
    }
    cr_assert_str_eq(type_of(g, "token_embd.weight"), "Q6_K");
    cr_assert_str_eq(type_of(g, "blk.3.attn_q_norm.weight"), "F32");
    cr_assert_null(gguf_find_tensor(g, "output.weight"));
    gguf_close(g);
}

Test(mkmodel, the_smaller_mixes_follow_their_own_rules)
{
    struct gguf *g = made("--shape tiny-qwen3-deep --quant q3_k_m"); /* 4 heads share one key head */
    cr_assert_str_eq(type_of(g, "blk.1.attn_v.weight"), "Q5_K");
    cr_assert_str_eq(type_of(g, "blk.2.attn_v.weight"), "Q4_K");
    cr_assert_str_eq(type_of(g, "blk.0.ffn_down.weight"), "Q5_K");
    cr_assert_str_eq(type_of(g, "blk.1.ffn_down.weight"), "Q4_K");
    cr_assert_str_eq(type_of(g, "blk.1.attn_output.weight"), "Q4_K");
    cr_assert_str_eq(type_of(g, "blk.1.attn_q.weight"), "Q3_K");
    gguf_close(g);
    g = made("--shape tiny-qwen3-deep --quant q2_k");
    cr_assert_str_eq(type_of(g, "blk.1.attn_v.weight"), "Q4_K");
    cr_assert_str_eq(type_of(g, "blk.1.ffn_down.weight"), "Q3_K");
    cr_assert_str_eq(type_of(g, "blk.1.attn_q.weight"), "Q2_K");
    gguf_close(g);
    g = made("--shape tiny-qwen3-deep --quant q4_k_s");
    cr_assert_str_eq(type_of(g, "blk.3.attn_v.weight"), "Q5_K");
    cr_assert_str_eq(type_of(g, "blk.4.attn_v.weight"), "Q4_K");
    cr_assert_str_eq(type_of(g, "blk.1.ffn_down.weight"), "Q5_K");
    cr_assert_str_eq(type_of(g, "blk.2.ffn_down.weight"), "Q4_K");
    gguf_close(g);
}

Test(mkmodel, experts_are_one_tensor_and_layers_can_be_cut)
{
    struct gguf *g = made("--shape tiny-qwen3moe --quant q4_k_m --layers 1");
    const struct gguf_tensor *t = gguf_find_tensor(g, "blk.0.ffn_down_exps.weight");
    cr_assert(t && t->ne[0] == 160 && t->ne[1] == 256 && t->ne[2] == 8);
    cr_assert_str_eq(type_of(g, "blk.0.ffn_gate_inp.weight"), "F32");
    cr_assert_eq(u32(g, "qwen3moe.block_count"), 1);
    cr_assert_null(gguf_find_tensor(g, "blk.1.attn_q.weight"));
    gguf_close(g);
}

Test(mkmodel, gpt_oss_has_experts_of_mxfp4_beside_q8_0)
{
    struct gguf *g = made("--shape tiny-gpt-oss --quant mxfp4");
    cr_assert_str_eq(type_of(g, "blk.0.ffn_down_exps.weight"), "MXFP4");
    cr_assert_str_eq(type_of(g, "blk.0.ffn_down_exps.bias"), "F32");
    cr_assert_str_eq(type_of(g, "blk.0.attn_q.weight"), "Q8_0");
    cr_assert_str_eq(type_of(g, "token_embd.weight"), "Q8_0");
    gguf_close(g);
}

Test(mkmodel, rows_that_k_types_do_not_divide_take_a_smaller_block)
{
    struct gguf *g = made("--shape tiny-qwen2-odd --quant q4_k_m"); /* rows of 224 and 608; 2 layers */
    cr_assert_str_eq(type_of(g, "blk.0.attn_q.weight"), "Q5_0");
    cr_assert_str_eq(type_of(g, "blk.1.ffn_down.weight"), "Q8_0");
    cr_assert_str_eq(type_of(g, "token_embd.weight"), "Q8_0");
    gguf_close(g);
    g = made("--shape tiny-qwen2-odd --quant q2_k");
    cr_assert_str_eq(type_of(g, "blk.0.attn_q.weight"), "IQ4_NL");
    gguf_close(g);
}

Test(mkmodel, the_same_seed_gives_the_same_bytes_and_another_seed_others)
{
    struct gguf *a = made("--shape tiny-qwen2 --quant q4_k_m --seed 5");
    struct gguf *b = made("--shape tiny-qwen2 --quant q4_k_m --seed 5");
    struct gguf *c = made("--shape tiny-qwen2 --quant q4_k_m --seed 6");
    cr_assert_eq(gguf_n_tensors(a), gguf_n_tensors(b));
    for (size_t i = 0; i < gguf_n_tensors(a); i++) {
        const struct gguf_tensor *x = gguf_tensor_at(a, i), *y = gguf_tensor_at(b, i),
                                 *z = gguf_tensor_at(c, i);
        void *of_x = tensor_bytes(a, x), *of_y = tensor_bytes(b, y), *of_z = tensor_bytes(c, z);
        cr_assert_eq(memcmp(of_x, of_y, x->size), 0, "%s", x->name);
        cr_assert_neq(memcmp(of_x, of_z, x->size), 0, "%s", x->name);
        free(of_x);
        free(of_y);
        free(of_z);
    }
    gguf_close(a);
    gguf_close(b);
    gguf_close(c);
}

Test(mkmodel, a_real_shape_has_the_real_hyper_parameters)
{
    struct gguf *g = made("--shape qwen2.5-0.5b --quant q2_k --n-ctx 4096");
    const struct gguf_tensor *t = gguf_find_tensor(g, "blk.23.ffn_down.weight");
    cr_assert(t && t->ne[0] == 4864 && t->ne[1] == 896);
    cr_assert_eq(u32(g, "qwen2.block_count"), 24);
    cr_assert_eq(u32(g, "qwen2.attention.head_count"), 14);
    cr_assert_eq(u32(g, "qwen2.attention.head_count_kv"), 2);
    cr_assert_eq(u32(g, "qwen2.context_length"), 4096);
    cr_assert_eq(gguf_find_tensor(g, "token_embd.weight")->ne[1], 151936);
    cr_assert_eq(gguf_find_tensor(g, "blk.0.attn_k.bias")->ne[0], 128);
    gguf_close(g);
}

Test(mkmodel, llama_3_shapes_slow_down_long_waves_as_the_converter_does)
{
    struct gguf *ours = made("--shape tiny-llama3 --quant f16"), *theirs = NULL;
    cr_assert_eq(gguf_open(&theirs, HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf", NULL), 0);
    const struct gguf_tensor *a = gguf_find_tensor(ours, "rope_freqs.weight");
    const struct gguf_tensor *b = gguf_find_tensor(theirs, "rope_freqs.weight");
    cr_assert(a && b && a->ne[0] == 32 && b->ne[0] == 32 && a->type == QUANT_F32);
    float *x = tensor_bytes(ours, a), *y = tensor_bytes(theirs, b);
    for (int i = 0; i < 32; i++)
        cr_assert(fabsf(x[i] - y[i]) <= 1e-5f * y[i], "%d: %g, expected %g", i, (double)x[i], (double)y[i]);
    free(x);
    free(y);
    gguf_close(ours);
    gguf_close(theirs);
}

Test(mkmodel, made_up_tokens_are_unique_and_every_merge_makes_one)
{
    struct gguf *g = made("--shape tiny-qwen3 --quant q2_k");
    const struct gguf_value *tokens, *merges;
    struct gguf_str all[512], s;
    size_t cursor = 0, n = 0, n_merges = 0;
    cr_assert_eq(gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STR, &tokens, NULL), 0);
    cr_assert_eq(gguf_get_array(g, "tokenizer.ggml.merges", GGUF_STR, &merges, NULL), 0);
    cr_assert_eq(tokens->n, 512);
    while (gguf_next_str(tokens, &cursor, &s)) {
        for (size_t i = 0; i < n; i++)
            cr_assert(all[i].len != s.len || memcmp(all[i].s, s.s, s.len) != 0, "token %zu", n);
        all[n++] = s;
    }
    for (cursor = 0; gguf_next_str(merges, &cursor, &s); n_merges++) {
        char joined[32];
        size_t space = (size_t)((const char *)memchr(s.s, ' ', s.len) - s.s);
        memcpy(joined, s.s, space);
        memcpy(joined + space, s.s + space + 1, s.len - space - 1);
        struct gguf_str token = all[256 + n_merges];
        cr_assert(token.len == s.len - 1 && memcmp(token.s, joined, token.len) == 0);
    }
    cr_assert_eq(n_merges, 512 - 256 - 3);
    gguf_close(g);
}

Test(mkmodel, a_given_tokenizer_is_copied_and_padded_to_the_shape)
{
    struct gguf *g =
        made("--shape tiny-qwen3 --quant q8_0 --tokenizer " HEARTH_TEST_DATA "/tiny-qwen2-odd-s13-q5_0.gguf");
    const struct gguf_value *tokens, *types; /* 384 of the tokenizer, 512 of the shape */
    struct gguf_str s = {0};
    size_t cursor = 0;
    cr_assert_eq(gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STR, &tokens, NULL), 0);
    cr_assert_eq(gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &types, NULL), 0);
    cr_assert_eq(tokens->n, 512);
    while (gguf_next_str(tokens, &cursor, &s))
        ;
    cr_assert(s.len == 8 && memcmp(s.s, "[PAD511]", 8) == 0);
    cr_assert_eq(gguf_item_i32(types, 511), 5);
    cr_assert_eq(u32(g, "tokenizer.ggml.eos_token_id"), 381);
    gguf_close(g);
    g = made("--shape tiny-qwen2-odd --quant q8_0 --tokenizer " HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf");
    cr_assert_eq(gguf_find_tensor(g, "token_embd.weight")->ne[1], 512); /* the tokenizer's is the larger */
    gguf_close(g);
}

Test(mkmodel, unknown_arguments_are_refused)
{
    const char *arguments[] = {"--shape nope --quant q8_0", "--shape tiny-qwen3 --quant nope",
                               "--shape tiny-qwen3",
                               "--shape tiny-qwen3 --quant f16 --tokenizer /nonexistent", "--what"};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        char path[64];
        cr_assert_neq(make(arguments[i], path), 0, "%s", arguments[i]);
        unlink(path);
    }
}
