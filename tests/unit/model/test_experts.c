/* The choice of experts, the keys of their models, and their ops in the program. */
#include "abi/route.h"
#include "model/program.h"
#include "model/graph.h"
#include "support/models/made_model.h"
#include "support/models/variant_model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QWEN3MOE "tiny-qwen3moe-s32-q4_k_m"
#define QWEN2MOE "tiny-qwen2moe-s82-q4_k_m"
#define GLM4MOE  "tiny-glm4moe-s72-q4_k_m"
#define DEEPSEEK "tiny-deepseek2-s74-f16"
#define GPTOSS   "tiny-gptoss-s34-mxfp4"

static struct route_rule rule(uint16_t n_experts, uint16_t n_used, enum route_gating gating, bool normalise)
{
    return (struct route_rule){.n_experts = n_experts,
                               .n_used = n_used,
                               .n_groups = 1,
                               .n_groups_used = 1,
                               .gating = (uint16_t)gating,
                               .normalise = normalise,
                               .scale = 1};
}

static void expect_chosen(const float *out, const uint32_t *expected, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        cr_expect_eq((uint32_t)out[i], expected[i], "expert %u is %g, expected %u", i, (double)out[i],
                     expected[i]);
}

Test(route, the_largest_are_chosen_and_listed_ascending)
{
    struct route_rule r = rule(6, 3, ROUTE_SOFTMAX, true);
    const float logits[6] = {0.5f, 3, -1, 2, 2.5f, 0};
    float out[6];
    route_row(&r, logits, NULL, out);
    expect_chosen(out, (const uint32_t[]){1, 3, 4}, 3);
    double sum = exp(3) + exp(2) + exp(2.5);
    cr_expect_float_eq(out[3], exp(3) / sum, 1e-6);
    cr_expect_float_eq(out[4], exp(2) / sum, 1e-6);
    cr_expect_float_eq(out[5], exp(2.5) / sum, 1e-6);
}

Test(route, of_equals_the_lowest_number_wins)
{
    struct route_rule r = rule(40, 3, ROUTE_SOFTMAX, true);
    float logits[40] = {0}, out[6];
    logits[37] = 1;
    route_row(&r, logits, NULL, out);
    expect_chosen(out, (const uint32_t[]){0, 1, 37}, 3);
    r.gating = ROUTE_SIGMOID;
    route_row(&r, logits, NULL, out);
    expect_chosen(out, (const uint32_t[]){0, 1, 37}, 3);
}

Test(route, without_normalising_a_weight_is_the_share_of_all_experts)
{
    struct route_rule r = rule(4, 1, ROUTE_SOFTMAX, false);
    const float logits[4] = {0, 1, 0, 0};
    float out[2];
    r.scale = 2;
    route_row(&r, logits, NULL, out);
    cr_expect_float_eq(out[1], 2 * exp(1) / (3 + exp(1)), 1e-6);
}

Test(route, a_bias_moves_the_choice_and_not_the_weight)
{
    struct route_rule r = rule(4, 2, ROUTE_SIGMOID, false);
    const float logits[4] = {2, 1, 0, -1}, bias[4] = {0, 0, 0, 5};
    float out[4];
    route_row(&r, logits, bias, out);
    expect_chosen(out, (const uint32_t[]){0, 3}, 2);
    cr_expect_float_eq(out[2], 1 / (1 + exp(-2)), 1e-6);
    cr_expect_float_eq(out[3], 1 / (1 + exp(1)), 1e-6);
}

Test(route, weights_that_are_almost_zero_are_divided_by_no_less_than_2_to_the_minus_14)
{
    struct route_rule r = rule(2, 1, ROUTE_SIGMOID, true);
    const float logits[2] = {-20, -21};
    float out[2];
    route_row(&r, logits, NULL, out);
    cr_expect_float_eq(out[1], exp(-20) * 16384, 1e-9);
}

Test(route, a_group_counts_by_its_two_best)
{
    struct route_rule r = rule(8, 2, ROUTE_SIGMOID, false);
    const float logits[8] = {9, -9, -9, -9, 1, 1, 1, -9}; /* one best expert; a better pair */
    float out[4];
    r.n_groups = 2;
    r.n_groups_used = 1;
    route_row(&r, logits, NULL, out);
    expect_chosen(out, (const uint32_t[]){4, 5}, 2);
    r.n_groups_used = 2;
    route_row(&r, logits, NULL, out);
    expect_chosen(out, (const uint32_t[]){0, 4}, 2);
}

/* By logits the first group's two would have the larger sum, by probabilities the second's. */
Test(route, without_a_bias_a_group_counts_by_probabilities)
{
    struct route_rule r = rule(4, 1, ROUTE_SOFTMAX, true);
    const float logits[4] = {1, 1, 2, -9};
    float out[2];
    r.n_groups = 2;
    r.n_groups_used = 1;
    route_row(&r, logits, NULL, out);
    expect_chosen(out, (const uint32_t[]){2}, 1);
    r.gating = ROUTE_SIGMOID;
    route_row(&r, logits, NULL, out);
    expect_chosen(out, (const uint32_t[]){0}, 1);
}

Test(route, logits_that_are_no_numbers_give_valid_experts_and_weights_that_are_none)
{
    struct route_rule r = rule(8, 3, ROUTE_SOFTMAX, true);
    float logits[8], out[6];
    for (uint32_t e = 0; e < 8; e++)
        logits[e] = NAN;
    route_row(&r, logits, NULL, out);
    expect_chosen(out, (const uint32_t[]){0, 1, 2}, 3);
    cr_expect(isnan(out[3]) && isnan(out[4]) && isnan(out[5]));
}

Test(experts, keys_that_contradict_one_another_are_refused_by_name)
{
    refused(QWEN3MOE, -EBADMSG, "expert_used_count is 7", EDITS(SET_U32("qwen3moe.expert_used_count", 7)));
    refused(QWEN3MOE, -EBADMSG, "expert_used_count is missing",
            EDITS(DROP_KEY("qwen3moe.expert_used_count")));
    refused(QWEN3MOE, -EBADMSG, "expert_count is 0", EDITS(SET_U32("qwen3moe.expert_count", 0)));
    refused(QWEN3MOE, -ENOTSUP, "expert_count is 513", EDITS(SET_U32("qwen3moe.expert_count", 513)));
    refused(QWEN3MOE, -ENOTSUP, "expert_gating_func is 4", EDITS(SET_U32("qwen3moe.expert_gating_func", 4)));
    refused(QWEN3MOE, -EBADMSG, "expert_group_count is 4", EDITS(SET_U32("qwen3moe.expert_group_count", 4)));
    refused(QWEN3MOE, -EBADMSG, "expert_group_used_count is 3",
            EDITS(SET_U32("qwen3moe.expert_group_count", 2), SET_U32("qwen3moe.expert_group_used_count", 3)));
    refused(QWEN3MOE, -EBADMSG, "expert_weights_scale is -1",
            EDITS(SET_F32("qwen3moe.expert_weights_scale", -1)));
    refused(QWEN3MOE, -EBADMSG, "ffn_gate_exps.weight has shape [256, 32, 6, 1], expected [256, 64, 6, 1]",
            EDITS(SET_U32("qwen3moe.expert_feed_forward_length", 64)));
    refused(GLM4MOE, -EBADMSG, "nextn_predict_layers is 4",
            EDITS(SET_U32("glm4moe.nextn_predict_layers", 4)));
    refused(GLM4MOE, -EBADMSG, "exp_probs_b.bias is missing", EDITS(DROP_TENSOR("blk.1.exp_probs_b.bias")));
    refused(QWEN2MOE, -EBADMSG, "ffn_gate_inp_shexp.weight is missing",
            EDITS(DROP_TENSOR("blk.0.ffn_gate_inp_shexp.weight")));
    refused(QWEN2MOE, -EBADMSG, "output.weight is missing", EDITS(DROP_TENSOR("output.weight")));
}

Test(experts, what_gpt_oss_adds_is_required)
{
    refused(GPTOSS, -EBADMSG, "output.weight is missing", EDITS(DROP_TENSOR("output.weight")));
    refused(GPTOSS, -EBADMSG, "attn_sinks.weight is missing", EDITS(DROP_TENSOR("blk.1.attn_sinks.weight")));
    refused(GPTOSS, -EBADMSG, "attn_output.bias is missing", EDITS(DROP_TENSOR("blk.3.attn_output.bias")));
    refused(GPTOSS, -EBADMSG, "ffn_gate_inp.bias is missing", EDITS(DROP_TENSOR("blk.0.ffn_gate_inp.bias")));
    refused(GPTOSS, -EBADMSG, "ffn_down_exps.bias is missing",
            EDITS(DROP_TENSOR("blk.0.ffn_down_exps.bias")));
    refused(GPTOSS, -EBADMSG, "attention.sliding_window is missing",
            EDITS(DROP_KEY("gpt-oss.attention.sliding_window")));
}

/* The first files of GLM 4.7 Flash have no key of their sigmoids. */
Test(experts, of_glms_vocabulary_are_chosen_by_sigmoids_without_a_key)
{
    static const struct {
        uint32_t n_vocab, gating;
    } cases[] = {{154880, ROUTE_SIGMOID}, {102400, ROUTE_SOFTMAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *m = edited(DEEPSEEK, EDITS(DROP_KEY("deepseek2.expert_gating_func"),
                                                 SET_U32("deepseek2.vocab_size", cases[i].n_vocab)));
        cr_assert_eq(model_config(m)->experts.gating, cases[i].gating);
        model_close(m);
    }
    struct model *m = edited(
        DEEPSEEK, EDITS(SET_U32("deepseek2.expert_gating_func", 1), SET_U32("deepseek2.vocab_size", 154880)));
    cr_assert_eq(model_config(m)->experts.gating, (uint32_t)ROUTE_SOFTMAX);
    model_close(m);
}

Test(experts, of_deepseek2_may_be_missing)
{
    struct model *m =
        edited(DEEPSEEK, EDITS(DROP_KEY("deepseek2.expert_count"), SET_U32("deepseek2.block_count", 1)));
    cr_assert_eq(model_config(m)->experts.n_experts, 0);
    model_close(m);
    refused(DEEPSEEK, -EBADMSG, "blk.1.ffn_gate.weight is missing",
            EDITS(DROP_KEY("deepseek2.expert_count")));
}

/* An array of widths has 0 for layers without a dense part. */
Test(experts, of_layers_without_a_dense_width_have_their_own)
{
    static const uint32_t widths[] = {256, 0, 0, 0};
    struct variant_edit edits[] = {
        {.kind = VARIANT_I32S, .name = "glm4moe.feed_forward_length", .u32 = 4, .bytes = widths}};
    struct model *m = edited(GLM4MOE, edits, 1);
    cr_assert(model_config(m)->layers[0].n_ff == 256 && model_config(m)->experts.n_ff == 32);
    model_close(m);
    refused(GLM4MOE, -EBADMSG, "glm4moe.feed_forward_length is missing or 0",
            EDITS(SET_U32("glm4moe.feed_forward_length", 0), DROP_KEY("glm4moe.expert_feed_forward_length")));
}

Test(experts, of_glm4moe_go_with_attention_without_biases)
{
    struct model *m =
        edited(GLM4MOE, EDITS(DROP_TENSOR("blk.0.attn_q.bias"), DROP_TENSOR("blk.0.attn_k.bias"),
                              DROP_TENSOR("blk.0.attn_v.bias")));
    cr_assert_eq(model_find_weight(m, "blk.0.attn_q.bias"), MODEL_NO_WEIGHT);
    model_close(m);
}

Test(experts, what_deepseek2_says_of_its_compressed_rows_must_agree)
{
    refused(DEEPSEEK, -EBADMSG, "attention.kv_lora_rank is missing",
            EDITS(DROP_KEY("deepseek2.attention.kv_lora_rank")));
    refused(DEEPSEEK, -EBADMSG, "attention.key_length_mla is missing",
            EDITS(DROP_KEY("deepseek2.attention.key_length_mla")));
    refused(DEEPSEEK, -EBADMSG, "contradict one another",
            EDITS(SET_U32("deepseek2.attention.kv_lora_rank", 48)));
    refused(DEEPSEEK, -EBADMSG, "contradict one another",
            EDITS(SET_U32("deepseek2.attention.key_length_mla", 16)));
    refused(DEEPSEEK, -EBADMSG, "contradict one another",
            EDITS(SET_U32("deepseek2.attention.head_count_kv", 2)));
    refused(DEEPSEEK, -ENOTSUP, "values of 1024 are not supported",
            EDITS(SET_U32("deepseek2.attention.value_length_mla", 1024)));
    refused(DEEPSEEK, -EBADMSG, "attn_kv_a.weight is missing",
            EDITS(DROP_TENSOR("blk.1.attn_kv_a_mqa.weight")));
    refused(DEEPSEEK, -EBADMSG, "attn_v_b.weight has shape [64, 32, 4, 1], expected [64, 16, 4, 1]",
            EDITS(SET_U32("deepseek2.attention.value_length_mla", 16)));
}

Test(experts, a_width_without_a_key_is_a_part_of_the_dense_one)
{
    struct model *m = NULL;
    struct error err = {0};
    cr_assert_eq(open_edited(&m, QWEN3MOE,
                             EDITS(SET_U32("qwen3moe.feed_forward_length", 96),
                                   DROP_KEY("qwen3moe.expert_feed_forward_length")),
                             &err),
                 0, "%s", err.text);
    cr_assert_eq(model_config(m)->experts.n_ff, 32);
    model_close(m);
}

/* The opcodes and epilogues of a layer's feed-forward in the program of a file. */
static void expect_ops(const char *base, const char *expected)
{
    struct error err = {0};
    struct model *m = NULL;
    struct graph *g = NULL;
    struct program *p = NULL;
    char path[512];
    (void)snprintf(path, sizeof path, HEARTH_TEST_DATA "/%s.gguf", base);
    cr_assert_eq(model_open(&m, path, &err), 0, "%s", err.text);
    cr_assert_eq(graph_open(&g, m, &err), 0, "%s", err.text);
    cr_assert_eq(program_open(&p, g, &err), 0, "%s", err.text);
    char found[400] = "";
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (g->nodes[p->ops[i].node].layer == 1 && !(p->ops[i].flags & PROGRAM_HEAD)) {
            size_t used = strlen(found);
            (void)snprintf(found + used, sizeof found - used, "%s%u%s ",
                           program_opcode_name(p->ops[i].opcode), p->ops[i].epilogue,
                           p->ops[i].flags & PROGRAM_GATED ? "g" : "");
        }
    cr_expect_str_eq(found, expected);
    program_close(p);
    graph_close(g);
    model_close(m);
}

Test(experts, a_layer_becomes_the_router_the_choice_and_two_products)
{
    expect_ops(QWEN3MOE, "MATMUL0 ATTEND0 MATMUL1 MATMUL0 ROUTE0 EXPERTS2 EXPERTS1 ");
    expect_ops(QWEN2MOE, "MATMUL0 ATTEND0 MATMUL1 MATMUL0 ROUTE0 EXPERTS2 MATMUL2 EXPERTS1 MATMUL1g ");
    expect_ops(GPTOSS, "MATMUL0 ATTEND0 MATMUL1 MATMUL0 ROUTE0 EXPERTS3 EXPERTS1 ");
    expect_ops(DEEPSEEK,
               "MATMUL0 MATMUL0 HEADS0 JOIN0 ATTEND0 HEADS0 MATMUL1 MATMUL0 ROUTE0 EXPERTS2 MATMUL2 "
               "EXPERTS1 MATMUL1 ");
    expect_ops(GLM4MOE, "MATMUL0 ATTEND0 MATMUL1 MATMUL0 ROUTE0 EXPERTS2 MATMUL2 EXPERTS1 MATMUL1 ");
}

/* Bytes [at, at + n) of a weight are those of the tensor from expert's slab to expert's slab. */
static void expect_slabs(const struct model *m, const char *name, size_t first_row)
{
    const struct weight *w = model_weight(m, model_find_weight(m, name));
    cr_assert_not_null(w);
    const struct gguf_tensor *t = gguf_tensor_at(model_gguf(m), w->tensor);
    size_t slab = w->size / w->n_experts, row = w->size / w->n;
    uint8_t *found = malloc(w->size), *whole = malloc(t->size);
    cr_assert_eq(gguf_read(model_gguf(m), t, 0, whole, t->size, NULL), 0);
    for (size_t at = 0, n = 1; at < w->size; at += n, n = n * 3 + 7) { /* pieces across experts too */
        n = w->size - at < n ? w->size - at : n;
        cr_assert_eq(model_read_weight(m, model_find_weight(m, name), at, found + at, n, NULL), 0);
    }
    for (uint32_t e = 0; e < w->n_experts; e++)
        cr_assert_eq(memcmp(found + e * slab, whole + e * 2 * slab + first_row * row, slab), 0,
                     "%s, expert %u", name, e);
    free(found);
    free(whole);
}

Test(experts, gate_and_up_in_one_tensor_are_read_slab_by_slab)
{
    char path[64];
    struct error err = {0};
    struct model *m = NULL;
    made_model("tiny-gemma4moe", "q4_0", path);
    int rc = model_open(&m, path, &err);
    unlink(path);
    cr_assert_eq(rc, 0, "%s", err.text);
    expect_slabs(m, "blk.1.ffn_gate_exps.weight", 0);
    expect_slabs(m, "blk.1.ffn_up_exps.weight", model_config(m)->experts.n_ff);
    model_close(m);
}
