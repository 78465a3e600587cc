/* gemma3.c - Gemma 3: norms before and after attention and feed-forward; every head of Q and K is normalised;
 * five of six layers see a window and rotate by a base of their own, without the scaling of the full layers.
 */
#include "arch.h"
#include "model/config_reader.h"

#include <math.h>

static int configure(struct config_reader *r, struct model_config *c)
{
    struct model_attention *full = &c->kinds[0], *window = &c->kinds[1];
    float base = 10000;
    c->embedding_scale = sqrtf((float)c->n_embd);
    if (c->n_layers == 62) /* the 27B alone; no key says so */
        full->scale = 1 / sqrtf((float)c->n_embd / (float)c->n_heads);
    config_factor(r, "final_logit_softcapping", &c->logit_cap);
    config_factor(r, "rope.freq_base_swa", &base);
    c->sliding_window = 0;
    if (config_windows(r, c, 0, 6)) {
        window->rope.base = (double)base;
        window->rope.scale = 1;
    }
    return r->rc;
}

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    return arch_self_attention(b, x, (struct arch_heads){.normed = true}, "post_attention_norm");
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    return arch_build_layers(m, g, err, attention, arch_gelu_dense);
}

const struct arch arch_gemma3 = {
    .name = "gemma3", .build = build, .rope = MODEL_ROPE_NEOX, .configure = configure};
