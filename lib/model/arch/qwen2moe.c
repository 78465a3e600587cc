/* qwen2moe.c - Qwen 1.5 and 2 with experts: Qwen 2's attention; an expert's weight is its softmax over all
 * experts, not normalised, and a shared expert with a gate of its own computes every row. */
#include "arch.h"

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    const struct model_config *c = model_config(b->m);
    uint32_t kv = c->n_kv_heads * c->head_dim;
    uint32_t h = arch_norm(b, x, "attn_norm");
    uint32_t q = arch_linear(b, h, c->n_heads * c->head_dim, ARCH_BIAS, "attn_q");
    uint32_t k = arch_linear(b, h, kv, ARCH_BIAS, "attn_k");
    uint32_t v = arch_linear(b, h, kv, ARCH_BIAS, "attn_v");
    q = arch_rope(b, q, "q_rope");
    k = arch_rope(b, k, "k_rope");
    uint32_t heads = arch_attention(b, q, k, v);
    uint32_t out = arch_linear(b, heads, c->n_embd, ARCH_NO_BIAS, "attn_output");
    return arch_add(b, x, out, "attn_residual");
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    return arch_experts(b, x, arch_norm(b, x, "ffn_norm"), ARCH_SHARED_GATE);
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, feed_forward);
}

const struct arch arch_qwen2moe = {
    .name = "qwen2moe", .build = build, .rope = MODEL_ROPE_NEOX, .gating = ROUTE_SOFTMAX, .untied = true};
