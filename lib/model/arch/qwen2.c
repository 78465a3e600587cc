/* qwen2.c - Qwen 2 and 2.5: Q, K and V have biases; RoPE rotates element i with element i + rope_dim/2 of a
 * head. */
#include "arch.h"

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    return arch_self_attention(b, x, (struct arch_heads){.bias = ARCH_BIAS}, NULL);
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, arch_dense);
}

const struct arch arch_qwen2 = {
    .name = "qwen2", .models = "and Qwen 2.5", .build = build, .rope = MODEL_ROPE_NEOX};
