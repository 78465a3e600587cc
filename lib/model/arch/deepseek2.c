/* deepseek2.c - DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash: all heads attend to one compressed row per
 * token (MLA), whose matrices are absorbed: attn_k_b moves a query to the compressed space, attn_v_b moves
 * what it has gathered back. Older files have both in attn_kv_b (weight_parts.c). The first layers are dense,
 * and all are where a model has no experts; in the others experts are chosen, perhaps in groups, perhaps with
 * a bias, and shared experts compute every row. */
#include "arch.h"
#include "model/config_reader.h"

#include <errno.h>
#include <math.h>

#define GLM_VOCABULARY 154880 /* tokens of GLM 4.5 and later */

/* The key is a tenth of the multiplier. With it the cosines and sines of YaRN keep their size; scores alone
 * grow. */
static void configure_scores(struct config_reader *r, struct model_attention *kind, uint32_t key_length)
{
    float tenth = 0;
    double growth = 1;
    config_factor(r, "rope.scaling.yarn_log_multiplier", &tenth);
    if (kind->rope.yarn && tenth > 0) {
        kind->rope.log_multiplier = 1;
        growth = model_yarn_growth(kind->rope.scale, (double)tenth * 10);
    }
    kind->scale = (float)(growth * growth / sqrt(key_length));
}

/* Lengths of a head's keys and values. Older files do not absorb the matrices (attn_kv_b): their lengths are
 * those of the heads, not of the cache, which Hearth keeps compressed all the same. */
static uint32_t read_lengths(struct config_reader *r, struct model_config *c)
{
    struct model_latent *l = &c->latent;
    uint32_t key_length = 0;
    config_u32(r, "attention.key_length_mla", &key_length);
    config_u32(r, "attention.value_length_mla", &l->value_dim);
    bool absorbed = key_length || l->value_dim;
    config_need_u32(r, absorbed ? "attention.key_length_mla" : "attention.key_length", &key_length);
    config_need_u32(r, absorbed ? "attention.value_length_mla" : "attention.value_length", &l->value_dim);
    if (!absorbed && l->rank < MODEL_MAX_HEAD_DIM &&
        l->rank + c->kinds[0].rope.dim <= MODEL_MAX_HEAD_DIM) { /* else they contradict one another */
        c->head_dim = c->kinds[0].head_dim = l->rank + c->kinds[0].rope.dim;
        c->n_kv_heads = c->kinds[0].n_kv_heads = 1;
    }
    return key_length;
}

/* GLM 4.7 Flash chooses by sigmoids, which its first files do not say; its vocabulary tells it from DeepSeek
 * V2, whose files have no expert_gating_func either. */
static void configure_gating(struct config_reader *r, struct model_config *c)
{
    const struct gguf_value *tokens = gguf_find(r->g, "tokenizer.ggml.tokens");
    uint32_t gating = 0, n_vocab = tokens && tokens->type == GGUF_ARR ? (uint32_t)tokens->n : 0;
    config_u32(r, "vocab_size", &n_vocab);
    config_u32(r, "expert_gating_func", &gating);
    if (gating == 0 && n_vocab == GLM_VOCABULARY)
        c->experts.gating = ROUTE_SIGMOID;
}

static int configure(struct config_reader *r, struct model_config *c)
{
    struct model_latent *l = &c->latent;
    configure_gating(r, c);
    config_need_u32(r, "attention.kv_lora_rank", &l->rank);
    uint32_t key_length = read_lengths(r, c);
    config_u32(r, "attention.q_lora_rank", &l->q_rank);
    if (r->rc < 0)
        return r->rc;
    l->rotated = c->kinds[0].rope.dim;
    if (l->rotated >= key_length || l->rank != c->head_dim - l->rotated || c->n_kv_heads != 1)
        return config_fail(
            r, -EBADMSG,
            "%s.attention: %u key/value heads of %u, %u of them rotated and %u compressed, keys "
            "of %u, contradict one another",
            r->arch, c->n_kv_heads, c->head_dim, l->rotated, l->rank, key_length);
    if (c->n_heads > ROUTE_MAX_EXPERTS || l->value_dim > MODEL_MAX_HEAD_DIM ||
        key_length > MODEL_MAX_HEAD_DIM)
        return config_fail(r, -ENOTSUP,
                           "%u heads with keys of %u and values of %u are not supported (%u of %u)",
                           c->n_heads, key_length, l->value_dim, ROUTE_MAX_EXPERTS, MODEL_MAX_HEAD_DIM);
    l->key_dim = key_length - l->rotated;
    configure_scores(r, &c->kinds[0], key_length);
    return r->rc;
}

/* Queries [rotated | rank] of each head. */
static uint32_t queries(struct arch_builder *b, uint32_t h)
{
    const struct model_config *c = model_config(b->m);
    const struct model_latent *l = &c->latent;
    uint32_t width = c->n_heads * (l->key_dim + l->rotated), q;
    if (l->q_rank) {
        q = arch_linear(b, h, l->q_rank, ARCH_NO_BIAS, "attn_q_a");
        q = arch_linear(b, arch_norm(b, q, "attn_q_a_norm"), width, ARCH_NO_BIAS, "attn_q_b");
    } else {
        q = arch_linear(b, h, width, ARCH_NO_BIAS, "attn_q");
    }
    struct arch_head_product absorb = {.n_heads = c->n_heads, .n = l->rank, .k = l->key_dim};
    return arch_rope(b, arch_head_linear(b, q, absorb, "attn_k_b"), "q_rope");
}

/* The token's row of the cache, [rotated | rank]: it is key and value. */
static uint32_t cached_row(struct arch_builder *b, uint32_t h)
{
    const struct model_latent *l = &model_config(b->m)->latent;
    uint32_t row = arch_linear(b, h, l->rank, ARCH_NO_BIAS, "attn_kv_a");
    uint32_t rotated = arch_linear(b, h, l->rotated, ARCH_NO_BIAS, "attn_k_rope");
    row = arch_norm(b, row, "attn_kv_a_norm");
    return arch_rope(b, arch_join(b, rotated, row, "kv_row"), "k_rope");
}

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    const struct model_config *c = model_config(b->m);
    const struct model_latent *l = &c->latent;
    uint32_t h = arch_norm(b, x, "attn_norm");
    uint32_t q = queries(b, h), row = cached_row(b, h);
    uint32_t out = arch_attention(b, q, row, row);
    struct arch_head_product values = {
        .n_heads = c->n_heads, .n = l->value_dim, .k = l->rank, .col = l->rotated};
    out = arch_head_linear(b, out, values, "attn_v_b");
    return arch_add(b, x, arch_linear(b, out, c->n_embd, ARCH_NO_BIAS, "attn_output"), "attn_residual");
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "ffn_norm");
    const struct model_experts *e = &model_config(b->m)->experts;
    if (e->n_experts && b->layer >= e->n_dense)
        return arch_experts(b, x, h, arch_has(b, "exp_probs_b.bias") ? ARCH_CHOICE_BIAS : 0);
    return arch_add(b, x, arch_swiglu(b, h, ARCH_NO_BIAS), "ffn_residual");
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, feed_forward);
}

const struct arch arch_deepseek2 = {.name = "deepseek2",
                                    .models = "DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash",
                                    .build = build,
                                    .rope = MODEL_ROPE_NORM,
                                    .configure = configure,
                                    .gating = ROUTE_SOFTMAX,
                                    .may_have_experts = true,
                                    .latent = true};
