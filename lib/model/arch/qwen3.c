/* qwen3.c - Qwen 3 (dense): no biases; every head of Q and K is normalised by itself before RoPE, which
 * rotates element i with element i + rope_dim/2. A head may be wider than n_embd / n_heads. */
#include "arch.h"

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "attn_norm");
    uint32_t out = arch_heads(b, h, (struct arch_heads){.bias = ARCH_NO_BIAS, .normed = true});
    return arch_add(b, x, out, "attn_residual");
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "ffn_norm");
    uint32_t out = arch_swiglu(b, h, ARCH_NO_BIAS);
    return arch_add(b, x, out, "ffn_residual");
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, feed_forward);
}

const struct arch arch_qwen3 = {.name = "qwen3", .build = build, .rope = MODEL_ROPE_NEOX};
