/* gemma2.c - Gemma 2: norms before and after attention and feed-forward; scores and logits are capped; every
 * second layer, the first included, sees a window, whose width the first files do not say. */
#include "arch.h"
#include "model/config_reader.h"

#include <math.h>

static int configure(struct config_reader *r, struct model_config *c)
{
    c->embedding_scale = sqrtf((float)c->n_embd);
    if (c->n_layers == 46) /* the 27B alone; no key says so */
        c->kinds[0].scale = 1 / sqrtf((float)c->n_embd / (float)c->n_heads);
    config_factor(r, "attn_logit_softcapping", &c->kinds[0].cap);
    config_factor(r, "final_logit_softcapping", &c->logit_cap);
    c->sliding_window = 0;
    (void)config_windows(r, c, 4096, 2);
    return r->rc;
}

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    return arch_self_attention(b, x, (struct arch_heads){.bias = ARCH_NO_BIAS}, "post_attention_norm");
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, arch_gelu_dense);
}

const struct arch arch_gemma2 = {
    .name = "gemma2", .build = build, .rope = MODEL_ROPE_NEOX, .configure = configure};
