/* qwen3moe.c - Qwen 3 with experts: Qwen 3's attention; the feed-forward of every layer is a mixture of
 * experts, whose weights are the softmax over the chosen ones. */
#include "arch.h"

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    return arch_self_attention(b, x, (struct arch_heads){.normed = true}, NULL);
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    return arch_experts(b, x, arch_norm(b, x, "ffn_norm"), 0);
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, feed_forward);
}

const struct arch arch_qwen3moe = {
    .name = "qwen3moe", .build = build, .rope = MODEL_ROPE_NEOX, .gating = ROUTE_SOFTMAX, .normalise = true};
