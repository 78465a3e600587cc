/* glm4moe.c - GLM 4.5, 4.6 and 4.7, Solar Open: Q, K and V have biases (not Solar's), Q and K norms in the
 * larger models; the norm before the feed-forward is called post_attention_norm. The first layers are dense;
 * in the others sigmoids choose the experts, with a bias, and a shared expert computes every row. */
#include "arch.h"

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    return arch_self_attention(b, x, (struct arch_heads){.bias = ARCH_MAY_HAVE_BIAS, .may_be_normed = true},
                               NULL);
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

const struct arch arch_glm4moe = {.name = "glm4moe",
                                  .models = "GLM 4.5 to 4.7",
                                  .build = build,
                                  .rope = MODEL_ROPE_NEOX,
                                  .gating = ROUTE_SIGMOID};
