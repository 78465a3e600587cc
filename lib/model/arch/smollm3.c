/* smollm3.c - SmolLM 3: as Llama, but every fourth layer does not rotate. */
#include "arch.h"
#include "model/config_reader.h"

/* No key says so. */
static int configure(struct config_reader *r, struct model_config *c)
{
    c->n_kinds = 2;
    c->kinds[1] = c->kinds[0];
    c->kinds[1].rope.dim = 0;
    for (uint32_t i = 3; i < c->n_layers; i += 4)
        c->layers[i].kind = 1;
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

const struct arch arch_smollm3 = {
    .name = "smollm3", .build = build, .rope = MODEL_ROPE_NORM, .configure = configure};
