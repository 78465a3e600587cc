/* gptoss.c - gpt-oss 20B and 120B: biases everywhere, attention with sinks, every other layer sees a window;
 * the norm before the feed-forward is called post_attention_norm; experts with a clamped SwiGLU, chosen by
 * their softmax. */
#include "arch.h"
#include "model/config_reader.h"

#include <errno.h>

static int configure(struct config_reader *r, struct model_config *c)
{
    c->sliding_window = 0;
    if (!config_windows(r, c, 0, 2))
        config_fail(r, -EBADMSG, "key %s.attention.sliding_window is missing", r->arch);
    return r->rc;
}

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    return arch_self_attention(
        b, x, (struct arch_heads){.bias = ARCH_BIAS, .output_bias = ARCH_BIAS, .sinks = true}, NULL);
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "post_attention_norm");
    return arch_experts(b, x, h, ARCH_EXPERT_BIAS | ARCH_CLAMPED);
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, feed_forward);
}

const struct arch arch_gptoss = {.name = "gpt-oss",
                                 .build = build,
                                 .rope = MODEL_ROPE_NEOX,
                                 .configure = configure,
                                 .gating = ROUTE_SOFTMAX,
                                 .normalise = true,
                                 .untied = true};
