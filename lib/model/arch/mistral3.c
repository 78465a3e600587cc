/* mistral3.c - Ministral 3, Devstral 2: as Llama, with YaRN, and queries that grow with the logarithm of the
 * position. */
#include "arch.h"
#include "model/config_reader.h"

static int configure(struct config_reader *r, struct model_config *c)
{
    struct model_attention *kind = &c->kinds[0];
    config_yarn(r, &kind->rope);
    config_factor(r, "attention.temperature_scale", &kind->temperature);
    kind->temperature_step = kind->rope.n_ctx_original;
    return r->rc;
}

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "attn_norm");
    uint32_t out = arch_heads(b, h, (struct arch_heads){.bias = ARCH_MAY_HAVE_BIAS});
    return arch_add(b, x, out, "attn_residual");
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "ffn_norm");
    uint32_t out = arch_swiglu(b, h, ARCH_MAY_HAVE_BIAS);
    return arch_add(b, x, out, "ffn_residual");
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    struct arch_builder b = {.m = m, .g = g, .err = err};
    uint32_t x = arch_embed(&b);
    for (b.layer = 0; b.layer < model_config(m)->n_layers; b.layer++) {
        x = attention(&b, x);
        x = feed_forward(&b, x);
    }
    return arch_end(&b, x);
}

const struct arch arch_mistral3 = {
    .name = "mistral3", .build = build, .rope = MODEL_ROPE_NORM, .configure = configure};
