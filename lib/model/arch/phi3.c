/* phi3.c - Phi-3, 3.5, 4 and 4-mini: as Llama, with halves rotated, in some by the factors of longrope; Q, K
 * and V are one tensor, as are gate and up (model.c finds their parts). */
#include "arch.h"
#include "model/config_reader.h"

/* A window at least as long as the trained context is none. */
static int configure(struct config_reader *r, struct model_config *c)
{
    if (c->sliding_window < c->n_ctx_train)
        c->kinds[0].window = c->sliding_window;
    c->sliding_window = 0;
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

const struct arch arch_phi3 = {
    .name = "phi3", .build = build, .rope = MODEL_ROPE_NEOX, .configure = configure};
