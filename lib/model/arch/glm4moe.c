/* glm4moe.c - GLM 4.5, 4.6 and 4.7: Q, K and V have biases, Q and K norms in the larger models; the norm
 * before the feed-forward is called post_attention_norm. The first layers are dense; in the others sigmoids
 * choose the experts, with a bias, and a shared expert computes every row. */
#include "arch.h"

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    const struct model_config *c = model_config(b->m);
    uint32_t kv = c->n_kv_heads * c->head_dim;
    uint32_t h = arch_norm(b, x, "attn_norm");
    uint32_t q = arch_linear(b, h, c->n_heads * c->head_dim, ARCH_BIAS, "attn_q");
    uint32_t k = arch_linear(b, h, kv, ARCH_BIAS, "attn_k");
    uint32_t v = arch_linear(b, h, kv, ARCH_BIAS, "attn_v");
    q = arch_may_head_norm(b, q, "attn_q_norm");
    k = arch_may_head_norm(b, k, "attn_k_norm");
    q = arch_rope(b, q, "q_rope");
    k = arch_rope(b, k, "k_rope");
    uint32_t heads = arch_attention(b, q, k, v);
    uint32_t out = arch_linear(b, heads, c->n_embd, ARCH_NO_BIAS, "attn_output");
    return arch_add(b, x, out, "attn_residual");
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "post_attention_norm");
    if (b->layer >= model_config(b->m)->experts.n_dense)
        return arch_experts(b, x, h, ARCH_CHOICE_BIAS);
    return arch_add(b, x, arch_swiglu(b, h, ARCH_NO_BIAS), "ffn_residual");
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, feed_forward);
}

const struct arch arch_glm4moe = {
    .name = "glm4moe", .build = build, .rope = MODEL_ROPE_NEOX, .gating = ROUTE_SIGMOID};
