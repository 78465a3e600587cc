/* granite.c - Granite 3 and 4 (dense): as Llama, with factors for token rows, branches, scores and logits. */
#include "arch.h"
#include "model/config_reader.h"

static int configure(struct config_reader *r, struct model_config *c)
{
    float divisor = 1;
    bool rotates = true;
    config_factor(r, "embedding_scale", &c->embedding_scale);
    config_factor(r, "residual_scale", &c->residual_scale);
    config_factor(r, "attention.scale", &c->kinds[0].scale);
    config_factor(r, "logit_scale", &divisor);
    config_bool(r, "rope.scaling.finetuned", &rotates);
    c->logit_scale = 1 / divisor;
    if (!rotates)
        c->kinds[0].rope.dim = 0;
    return r->rc;
}

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "attn_norm");
    uint32_t out = arch_heads(b, h, (struct arch_heads){.bias = ARCH_MAY_HAVE_BIAS});
    return arch_residual(b, x, out, "attn_residual");
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "ffn_norm");
    uint32_t out = arch_swiglu(b, h, ARCH_MAY_HAVE_BIAS);
    return arch_residual(b, x, out, "ffn_residual");
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

const struct arch arch_granite = {
    .name = "granite", .build = build, .rope = MODEL_ROPE_NORM, .configure = configure};
