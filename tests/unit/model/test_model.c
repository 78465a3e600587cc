/* A model's configuration from its file: what is read, and what is refused in which words. */
#include "support/failing_alloc.h"
#include "model/graph.h"
#include "model/model.h"
#include "support/models/variant_model.h"

#include <errno.h>
#include <math.h>

#define LLAMA  "tiny-llama3-s15-q4_k_m"
#define QWEN2  "tiny-qwen2-odd-s13-q5_0"
#define QWEN3  "tiny-qwen3-s11-q8_0"
#define MOE    "tiny-qwen3moe-s32-q4_k_m"
#define GEMMA2 "tiny-gemma2-s78-q4_k_m"
#define GPTOSS "tiny-gptoss-s34-mxfp4"
#define GEMMA3 "tiny-gemma3-s38-q4_0"
#define GEMMA4 "tiny-gemma4-d-s55-q4_0"

static struct model *tiny(const char *name)
{
    char path[512];
    struct error err = {0};
    struct model *m = NULL;
    (void)snprintf(path, sizeof path, "%s/%s.gguf", HEARTH_TEST_DATA, name);
    cr_assert_eq(model_open(&m, path, &err), 0, "%s", err.text);
    return m;
}

Test(model, reads_the_numbers_of_a_llama)
{
    struct model *m = tiny(LLAMA);
    const struct model_config *c = model_config(m);
    cr_assert_str_eq(c->arch, "llama");
    cr_assert_str_eq(c->name, "random-tiny-llama3");
    cr_assert_str_eq(c->quantization, "Q4_K_M");
    cr_assert(c->n_layers == 2 && c->n_embd == 256 && c->n_ff == 512 && c->n_vocab == 512);
    cr_assert(c->n_heads == 4 && c->n_kv_heads == 2 && c->head_dim == 64 && c->n_ctx_train == 2048);
    cr_assert(c->rope == MODEL_ROPE_NORM && c->kinds[0].rope.dim == 64 && c->kinds[0].rope.base == 500000 &&
              c->kinds[0].rope.scale == 1);
    cr_assert_not_null(c->kinds[0].rope.factors);
    cr_assert(c->tied);
    cr_assert_eq(c->n_params, 1312032u);
    model_close(m);
}

Test(model, reads_the_numbers_of_a_qwen2_whose_rows_are_no_multiple_of_256)
{
    struct model *m = tiny(QWEN2);
    const struct model_config *c = model_config(m);
    cr_assert_str_eq(c->arch, "qwen2");
    cr_assert(c->n_embd == 224 && c->n_ff == 608 && c->n_heads == 7 && c->n_kv_heads == 1 &&
              c->head_dim == 32);
    cr_assert(c->rope == MODEL_ROPE_NEOX && c->kinds[0].rope.dim == 32 && c->tied &&
              !c->kinds[0].rope.factors);
    model_close(m);
}

Test(model, reads_the_numbers_of_a_qwen3_with_its_own_output_weight)
{
    struct model *m = tiny(QWEN3);
    const struct model_config *c = model_config(m);
    cr_assert_str_eq(c->arch, "qwen3");
    cr_assert_str_eq(c->quantization, "Q8_0");
    cr_assert(!c->tied && c->n_layers == 3 && c->head_dim == 64);
    cr_assert_float_eq(c->norm_eps, 1e-6f, 1e-12);
    const struct weight *w = model_weight(m, model_find_weight(m, "blk.2.ffn_down.weight"));
    cr_assert(w && w->n == 256 && w->k == 512 && w->type == QUANT_Q8_0 && w->size == 256 * 512 / 32 * 34);
    model_close(m);
}

Test(model, takes_the_head_length_from_the_embedding_when_no_key_says_it)
{
    struct model *m =
        edited(LLAMA, EDITS(DROP_KEY("llama.attention.key_length"), DROP_KEY("llama.attention.value_length"),
                            DROP_KEY("llama.rope.dimension_count")));
    cr_assert_eq(model_config(m)->head_dim, 64);
    cr_assert_eq(model_config(m)->kinds[0].rope.dim, 64);
    model_close(m);
}

Test(model, without_a_name_is_called_by_its_file_and_without_a_file_type_by_its_commonest_weight)
{
    struct model *m = edited(QWEN3, EDITS(DROP_KEY("general.name"), DROP_KEY("general.file_type")));
    cr_assert_eq(strncmp(model_config(m)->name, "hearth-variant-", 15), 0, "%s", model_config(m)->name);
    cr_assert_str_eq(model_config(m)->quantization, "Q8_0");
    model_close(m);
}

Test(model, name_is_text_whatever_the_file_says)
{
    struct model *m = edited(QWEN3, EDITS(SET_STR("general.name", "K\xc3\xa4se\x1b \xff!\xc2\x9b")));
    cr_assert_str_eq(model_config(m)->name, "K\xc3\xa4se? ?!?");
    model_close(m);
    char longer[200] = "";
    while (strlen(longer) < 150)
        strcat(longer, "\xe2\x82\xac"); /* three bytes each: 127 is no multiple */
    m = edited(QWEN3, EDITS(SET_STR("general.name", longer)));
    cr_assert_eq(strlen(model_config(m)->name), 126);
    model_close(m);
}

Test(model, missing_file_is_enoent)
{
    struct error err = {0};
    struct model *m = NULL;
    cr_assert_eq(model_open(&m, "/nonexistent/x.gguf", &err), -ENOENT);
    cr_assert_not_null(strstr(err.text, "/nonexistent/x.gguf"));
}

Test(model, refuses_another_architecture_and_says_which_it_knows)
{
    refused(LLAMA, -ENOTSUP, "\"mamba\"", EDITS(SET_STR("general.architecture", "mamba")));
    refused(LLAMA, -ENOTSUP, "gpt-oss, granite, granitemoe, mistral3, phi3",
            EDITS(SET_STR("general.architecture", "mamba")));
    refused(LLAMA, -EBADMSG, "general.architecture", EDITS(DROP_KEY("general.architecture")));
}

Test(model, names_a_missing_tensor)
{
    refused(QWEN3, -EBADMSG, "blk.1.attn_k_norm.weight is missing",
            EDITS(DROP_TENSOR("blk.1.attn_k_norm.weight")));
    refused(QWEN2, -EBADMSG, "blk.0.attn_v.bias is missing", EDITS(DROP_TENSOR("blk.0.attn_v.bias")));
    refused(LLAMA, -EBADMSG, "token_embd.weight is missing", EDITS(DROP_TENSOR("token_embd.weight")));
    refused(LLAMA, -EBADMSG, "output_norm.weight is missing", EDITS(DROP_TENSOR("output_norm.weight")));
}

Test(model, names_a_tensor_of_the_wrong_shape_with_found_and_expected)
{
    refused(QWEN3, -EBADMSG, "blk.2.attn_k.weight has shape [256, 96, 1, 1], expected [256, 128, 1, 1]",
            EDITS(SET_TENSOR("blk.2.attn_k.weight", QUANT_Q8_0, 256, 96)));
    refused(LLAMA, -EBADMSG, "rope_freqs.weight has shape [16, 1, 1, 1], expected [32, 1, 1, 1]",
            EDITS(SET_TENSOR("rope_freqs.weight", QUANT_F32, 16, 1)));
    refused(QWEN2, -EBADMSG, "blk.0.attn_q.bias has shape [225, 1, 1, 1]",
            EDITS(SET_TENSOR("blk.0.attn_q.bias", QUANT_F32, 225, 1)));
}

Test(model, names_a_tensor_whose_type_is_not_computed_with)
{
    refused(QWEN3, -ENOTSUP, "blk.0.ffn_up.weight has type Q1_0",
            EDITS(SET_TENSOR("blk.0.ffn_up.weight", 41, 256, 512)));
    refused(QWEN3, -ENOTSUP, "blk.0.attn_norm.weight is a vector of type F16",
            EDITS(SET_TENSOR("blk.0.attn_norm.weight", QUANT_F16, 256, 1)));
}

Test(model, ignores_tensors_it_has_no_use_for)
{
    struct model *m = edited(QWEN3, EDITS(SET_TENSOR("mtp.thing.weight", 41, 256, 4)));
    cr_assert_neq(model_find_weight(m, "mtp.thing.weight"), MODEL_NO_WEIGHT);
    model_close(m);
}

Test(model, refuses_a_tensor_without_which_the_result_would_be_another_models)
{
    static const struct {
        const char *tensor;
        uint32_t cols;
    } cases[] = {{"blk.1.attn_q.bias", 256},         {"blk.2.attn_sinks.weight", 4},
                 {"blk.0.attn_norm.bias", 256},      {"blk.0.ffn_down.bias", 256},
                 {"output_norm.bias", 256},          {"token_embd_norm.weight", 256},
                 {"blk.0.post_ffw_norm.weight", 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(QWEN3, -ENOTSUP, cases[i].tensor,
                EDITS(SET_TENSOR(cases[i].tensor, QUANT_F32, cases[i].cols, 1)));
    struct model *m = edited(LLAMA, EDITS(SET_TENSOR("blk.1.attn_q.bias", QUANT_F32, 256, 1))); /* its own */
    model_close(m);
    m = edited(QWEN3, EDITS(SET_TENSOR("blk.1.attn_q.input_scale", QUANT_F32, 1, 1),
                            SET_TENSOR("blk.3.attn_q.bias", QUANT_F32, 256, 1), /* behind the last layer */
                            SET_TENSOR("blk.1.attn_rot_embd.inv_freq", QUANT_F32, 32, 1)));
    model_close(m);
}

Test(model, refuses_rope_scaling_kinds_by_name_and_knows_linear)
{
    refused(LLAMA, -ENOTSUP, "llama.rope.scaling.type is \"su\"",
            EDITS(SET_STR("llama.rope.scaling.type", "su")));
    refused(LLAMA, -EBADMSG, "rope_factors_long.weight is missing",
            EDITS(SET_STR("llama.rope.scaling.type", "longrope")));
    struct model *m = edited(
        LLAMA, EDITS(SET_STR("llama.rope.scaling.type", "linear"), SET_F32("llama.rope.scaling.factor", 4)));
    cr_assert_eq(model_config(m)->kinds[0].rope.scale, 4.0);
    model_close(m);
    m = edited(LLAMA,
               EDITS(SET_STR("llama.rope.scaling.type", "none"), SET_F32("llama.rope.scaling.factor", 4)));
    cr_assert_eq(model_config(m)->kinds[0].rope.scale, 1.0);
    model_close(m);
    m = edited(LLAMA, EDITS(SET_F32("llama.rope.scale_linear", 2)));
    cr_assert_eq(model_config(m)->kinds[0].rope.scale, 2.0);
    model_close(m);
    refused(LLAMA, -EBADMSG, "rope.scaling.factor", EDITS(SET_F32("llama.rope.scaling.factor", -1)));
}

Test(model, refuses_numbers_that_contradict_themselves)
{
    refused(QWEN3, -EBADMSG, "4 attention heads cannot share 3",
            EDITS(SET_U32("qwen3.attention.head_count_kv", 3)));
    refused(QWEN3, -EBADMSG, "qwen3.block_count is 0", EDITS(SET_U32("qwen3.block_count", 0)));
    refused(QWEN3, -EBADMSG, "qwen3.embedding_length is missing", EDITS(DROP_KEY("qwen3.embedding_length")));
    refused(QWEN3, -EBADMSG, "layer_norm_rms_epsilon",
            EDITS(DROP_KEY("qwen3.attention.layer_norm_rms_epsilon")));
    refused(QWEN3, -EBADMSG, "layer_norm_rms_epsilon",
            EDITS(SET_F32("qwen3.attention.layer_norm_rms_epsilon", NAN)));
    refused(QWEN3, -EBADMSG, "rope.dimension_count is 66", EDITS(SET_U32("qwen3.rope.dimension_count", 66)));
    refused(QWEN3, -EBADMSG, "rope.dimension_count is 31", EDITS(SET_U32("qwen3.rope.dimension_count", 31)));
    refused(QWEN3, -EBADMSG, "blk.3.attn_norm.weight is missing", EDITS(SET_U32("qwen3.block_count", 4)));
}

Test(model, names_key_value_and_limit_of_heads_windows_and_experts)
{
    refused(QWEN3, -EBADMSG, "qwen3.attention.head_count_kv is 0",
            EDITS(SET_U32("qwen3.attention.head_count_kv", 0)));
    refused(QWEN3, -ENOTSUP,
            "qwen3.attention.value_length is 32: keys of length 64 beside values of length 32",
            EDITS(SET_U32("qwen3.attention.value_length", 32)));
    refused(QWEN3, -ENOTSUP, "qwen3.attention.key_length: head length 33",
            EDITS(SET_U32("qwen3.attention.key_length", 33), SET_U32("qwen3.attention.value_length", 33)));
    refused(GEMMA3, -ENOTSUP, "gemma3.attention.key_length_swa = 32 is not supported",
            EDITS(SET_U32("gemma3.attention.key_length_swa", 32)));
    refused(GEMMA3, -ENOTSUP, "gemma3.rope.dimension_count_swa = 16 is not supported",
            EDITS(SET_U32("gemma3.rope.dimension_count_swa", 16)));
    refused(GEMMA3, -EBADMSG, "gemma3.attention.sliding_window_pattern is 0",
            EDITS(SET_U32("gemma3.attention.sliding_window_pattern", 0)));
    refused(GEMMA3, -EBADMSG, "gemma3.rope.freq_base is 1, expected more than 1 with yarn",
            EDITS(SET_STR("gemma3.rope.scaling.type", "yarn"), SET_F32("gemma3.rope.freq_base", 1)));
    refused(GEMMA3, -EBADMSG, "gemma3.rope.freq_base_swa is 1, expected more than 1 with yarn",
            EDITS(SET_STR("gemma3.rope.scaling.type", "yarn"), SET_F32("gemma3.rope.freq_base_swa", 1)));
    refused(GEMMA4, -EBADMSG, "gemma4.attention.sliding_window_pattern is missing",
            EDITS(DROP_KEY("gemma4.attention.sliding_window_pattern")));
    refused(MOE, -EBADMSG, "qwen3moe.expert_used_count is 7 of 6 experts",
            EDITS(SET_U32("qwen3moe.expert_used_count", 7)));
    refused(MOE, -EBADMSG, "qwen3moe.expert_group_count is 4, expected a divisor of 6 experts",
            EDITS(SET_U32("qwen3moe.expert_group_count", 4)));
    refused(MOE, -EBADMSG, "qwen3moe.expert_group_used_count is 4 of 3 groups",
            EDITS(SET_U32("qwen3moe.expert_group_count", 3), SET_U32("qwen3moe.expert_group_used_count", 4)));
}

static struct model *with_widths(struct error *err, int *rc, const int32_t *widths)
{
    struct model *m = NULL;
    *rc = open_edited(
        &m, MOE,
        EDITS(
            {.kind = VARIANT_I32S, .name = "qwen3moe.expert_feed_forward_length", .u32 = 3, .bytes = widths}),
        err);
    return m;
}

Test(model, takes_the_experts_width_from_an_array_of_layers_if_it_is_one)
{
    int rc;
    struct error err = {0};
    struct model *m = with_widths(&err, &rc, (const int32_t[]){0, 32, 32}); /* 0: a dense layer has none */
    cr_assert_eq(rc, 0, "%s", err.text);
    cr_assert_eq(model_config(m)->experts.n_ff, 32);
    model_close(m);
    (void)with_widths(&err, &rc, (const int32_t[]){32, 64, 32});
    cr_assert_eq(rc, -ENOTSUP);
    cr_assert_not_null(strstr(err.text, "qwen3moe.expert_feed_forward_length is 32 and 64"), "%s", err.text);
}

Test(model, refuses_what_it_does_not_compute_with_words)
{
    refused(LLAMA, -ENOTSUP, "llama.expert_count is 8", EDITS(SET_U32("llama.expert_count", 8)));
    refused(QWEN3, -ENOTSUP, "head length 640 is not supported",
            EDITS(SET_U32("qwen3.attention.key_length", 640), SET_U32("qwen3.attention.value_length", 640)));
    refused(QWEN3, -ENOTSUP, "qwen3.block_count is 300: at most 256 layers are supported",
            EDITS(SET_U32("qwen3.block_count", 300)));
}

Test(model, refuses_keys_that_would_change_what_it_computes)
{
    refused(LLAMA, -ENOTSUP, "llama.logit_scale = 16", EDITS(SET_F32("llama.logit_scale", 16)));
    refused(LLAMA, -ENOTSUP, "llama.attention.scale = 1", EDITS(SET_F32("llama.attention.scale", 1)));
    refused(LLAMA, -ENOTSUP, "softcapping = 30", EDITS(SET_F32("llama.final_logit_softcapping", 30)));
    refused(LLAMA, -ENOTSUP, "llama.attention.output_scale = 2",
            EDITS(SET_F32("llama.attention.output_scale", 2)));
    refused(QWEN3, -ENOTSUP, "qwen3.attention.shared_kv_layers = 1",
            EDITS(SET_U32("qwen3.attention.shared_kv_layers", 1)));
    refused(QWEN3, -ENOTSUP, "qwen3.embedding_length_per_layer_input = 32",
            EDITS(SET_U32("qwen3.embedding_length_per_layer_input", 32)));
    refused(QWEN3, -ENOTSUP, "qwen3.use_parallel_residual = true",
            EDITS(SET_BOOL("qwen3.use_parallel_residual", 1)));
    refused(QWEN3, -ENOTSUP, "qwen3.swiglu_clamp_exp is not supported",
            EDITS(SET_F32("qwen3.swiglu_clamp_exp", 7)));
    model_close(
        edited(LLAMA, EDITS(SET_F32("llama.attention.scale", 0.125f), SET_F32("llama.logit_scale", 1))));
}

#define DATA(name) HEARTH_TEST_DATA "/" name ".gguf"

static struct model *data_model(const char *path)
{
    struct model *m = NULL;
    struct error err = {0};
    cr_assert_eq(model_open(&m, path, &err), 0, "%s", err.text);
    return m;
}

Test(model, of_gemma3_has_windows_in_five_of_six_layers_with_a_rotation_of_their_own)
{
    struct model *m = data_model(DATA("tiny-gemma3-s38-q4_0"));
    const struct model_config *c = model_config(m);
    cr_assert(c->n_kinds == 2 && c->kinds[0].window == 0 && c->kinds[1].window > 0);
    cr_assert(c->kinds[0].rope.base == 1e6);
    cr_assert(c->kinds[1].rope.base == 1e4 && c->kinds[1].rope.scale == 1);
    for (uint32_t i = 0; i < c->n_layers; i++)
        cr_assert_eq(c->layers[i].kind, i % 6 < 5);
    cr_assert_eq(c->kinds[0].n_caches + c->kinds[1].n_caches, c->n_layers);
    model_close(m);
}

/* The first files of Gemma 2 do not say how wide its windows are. */
Test(model, of_gemma2_has_windows_of_4096_tokens_without_a_key)
{
    struct model *m = edited(GEMMA2, EDITS(DROP_KEY("gemma2.attention.sliding_window")));
    const struct model_config *c = model_config(m);
    cr_assert(c->n_kinds == 2 && c->kinds[0].window == 0 && c->kinds[1].window == 4096);
    for (uint32_t i = 0; i < c->n_layers; i++)
        cr_assert_eq(c->layers[i].kind, i % 2 == 0);
    model_close(m);
    m = edited(GEMMA2, EDITS(SET_U32("gemma2.attention.sliding_window", 0)));
    cr_assert_eq(model_config(m)->n_kinds, 1);
    model_close(m);
}

Test(model, rotates_behind_windows_by_the_base_of_the_file)
{
    struct model *m = edited(GEMMA2, EDITS(SET_F32("gemma2.rope.freq_base_swa", 2000)));
    cr_assert(model_config(m)->kinds[0].rope.base == 10000 && model_config(m)->kinds[1].rope.base == 2000);
    model_close(m);
    m = edited(GPTOSS, EDITS(SET_F32("gpt-oss.rope.freq_base_swa", 2000)));
    cr_assert(model_config(m)->kinds[0].rope.base == 150000 && model_config(m)->kinds[1].rope.base == 2000);
    model_close(m);
    m = edited(GPTOSS, EDITS(DROP_KEY("gpt-oss.rope.scaling.type")));
    cr_assert(model_config(m)->kinds[1].rope.base == 150000);
    model_close(m);
}

Test(model, of_gemma4_shares_caches_among_the_last_layers_of_a_kind)
{
    struct model *m = data_model(DATA("tiny-gemma4-e-s54-f16"));
    const struct model_config *c = model_config(m);
    static const uint32_t kinds[] = {1, 1, 0, 1, 1, 0}, caches[] = {0, 1, 0, 1, 1, 0};
    for (uint32_t i = 0; i < c->n_layers; i++)
        cr_assert(c->layers[i].kind == kinds[i] && c->layers[i].cache == caches[i], "layer %u", i);
    struct kv_layout full = model_kv_layout(c, 0, KV_F16), window = model_kv_layout(c, 1, KV_F16);
    cr_assert_eq(full.n_layers, 1);
    cr_assert_eq(window.n_layers, 2);
    cr_assert_eq(window.at, kv_part_size(&full));
    cr_assert_eq(kv_page_size(&full), kv_part_size(&full) + kv_part_size(&window));
    cr_assert_eq(kv_page_size(&full), kv_page_size(&window));
    model_close(m);
}

Test(model, of_phi3_has_the_parts_of_its_fused_tensors)
{
    const char *path = HEARTH_SOURCE_DIR "/../shared/golden/tiny-phi3-s52-q4_k_m.gguf";
    if (access(path, R_OK) != 0) {
        printf("SKIP test_model shared-golden: ../shared/golden is not here\n");
        return;
    }
    struct model *m = data_model(path);
    const struct model_config *c = model_config(m);
    const struct weight *q = model_weight(m, model_find_weight(m, "blk.1.attn_q.weight"));
    const struct weight *v = model_weight(m, model_find_weight(m, "blk.1.attn_v.weight"));
    const struct weight *up = model_weight(m, model_find_weight(m, "blk.1.ffn_up.weight"));
    cr_assert(q && v && up && q->tensor == v->tensor);
    cr_assert_eq(q->n, c->n_heads * c->head_dim);
    cr_assert_eq(q->rows[0].first, 0);
    cr_assert_eq(v->rows[0].first + v->n, gguf_tensor_at(model_gguf(m), v->tensor)->ne[1]);
    cr_assert_eq(up->n, c->n_ff);
    cr_assert_eq(up->rows[0].first, up->n);
    model_close(m);
}

Test(model, keeps_huge_counts_from_overflowing)
{
    refused(QWEN3, -ENOTSUP, "is larger than", EDITS(SET_U32("qwen3.feed_forward_length", UINT32_MAX)));
    refused(
        QWEN3, -ENOTSUP, "is larger than",
        EDITS(SET_U32("qwen3.attention.head_count", 1u << 30), SET_U32("qwen3.attention.head_count_kv", 1)));
}

Test(model, of_llama_takes_biases_where_the_file_has_them)
{
    struct model *m = edited(LLAMA, EDITS(SET_TENSOR("blk.1.attn_output.bias", QUANT_F32, 256, 1)));
    struct graph *g = NULL;
    uint32_t n_biases = 0, bias = model_find_weight(m, "blk.1.attn_output.bias");
    cr_assert_eq(graph_open(&g, m, NULL), 0);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        n_biases += g->nodes[i].bias != MODEL_NO_WEIGHT;
        cr_assert(g->nodes[i].bias != bias || strcmp(g->nodes[i].name, "blk.1.attn_output") == 0);
    }
    cr_assert_eq(n_biases, 1);
    graph_close(g);
    model_close(m);
}

Test(model, tells_how_far_a_sliding_window_looks_back)
{
    struct model *m = edited(LLAMA, EDITS(SET_U32("llama.attention.sliding_window", 512)));
    cr_assert_eq(model_config(m)->sliding_window, 512);
    model_close(m);
}

Test(model, hash_changes_with_a_key_and_with_the_sum_of_the_weights_and_with_nothing_else)
{
    struct model *a = tiny(QWEN3), *b = tiny(QWEN3);
    struct model *key = edited(QWEN3, EDITS(SET_F32("qwen3.rope.freq_base", 10001)));
    cr_assert_eq(model_hash(a, 5), model_hash(b, 5));
    cr_assert_neq(model_hash(a, 5), model_hash(a, 6));
    cr_assert_neq(model_hash(a, 5), model_hash(key, 5));
    model_close(a);
    model_close(b);
    model_close(key);
}

Test(model, hash_changes_with_the_factors_of_the_rotation)
{
    struct model *a = tiny(LLAMA), *b = edited(LLAMA, EDITS(FLIP_TENSOR("rope_freqs.weight")));
    cr_assert_neq(model_hash(a, 5), model_hash(b, 5));
    model_close(a);
    model_close(b);
}

Test(model, rope_table_turns_by_position_over_scale_and_factor)
{
    const float factors[2] = {1, 8};
    struct model_rotation c = {.dim = 4, .base = 10000, .scale = 2, .magnitude = 1, .factors = factors};
    float table[100 * 4];
    model_rope_table(&c, 100, table);
    cr_assert(table[0] == 1 && table[1] == 0 && table[2] == 1 && table[3] == 0);
    cr_assert_float_eq(table[99 * 4 + 0], cos(99.0 / 2), 1e-7);
    cr_assert_float_eq(table[99 * 4 + 1], sin(99.0 / 2), 1e-7);
    cr_assert_float_eq(table[99 * 4 + 2], cos(99.0 / 2 / 100 / 8), 1e-7);
    cr_assert_float_eq(table[99 * 4 + 3], sin(99.0 / 2 / 100 / 8), 1e-7);
}

Test(model, open_survives_every_allocation_failing)
{
    long n = 0;
    for (int rc = -ENOMEM; rc < 0; n++) {
        struct error err = {0};
        struct model *m = NULL;
        fail_alloc_after(n);
        rc = model_open(&m, HEARTH_TEST_DATA "/" QWEN3 ".gguf", &err);
        fail_alloc_never();
        cr_assert(rc == 0 || (rc == -ENOMEM && !m), "allocation %ld: %d %s", n, rc, err.text);
        model_close(m);
    }
    cr_assert_gt(n, 4);
}
