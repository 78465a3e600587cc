/* qwen3.c - Qwen 3 (dense): no biases; every head of Q and K is normalised by itself before RoPE, which
 * rotates element i with element i + rope_dim/2. A head may be wider than n_embd / n_heads. */
#include "arch.h"

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    return arch_self_attention(b, x, (struct arch_heads){.normed = true}, NULL);
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, arch_dense);
}

const struct arch arch_qwen3 = {.name = "qwen3", .build = build, .rope = MODEL_ROPE_NEOX};
