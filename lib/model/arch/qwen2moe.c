/* qwen2moe.c - Qwen 1.5 and 2 with experts: Qwen 2's attention; an expert's weight is its softmax over all
 * experts, not normalised, and a shared expert with a gate of its own computes every row. */
#include "arch.h"

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    return arch_self_attention(b, x, (struct arch_heads){.bias = ARCH_BIAS}, NULL);
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
