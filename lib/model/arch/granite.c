/* granite.c - Granite 3 and 4, dense and with experts: as Llama, with factors for token rows, branches,
 * scores and logits. The experts may have a shared one. */
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

const struct arch arch_granite = {
    .name = "granite", .build = arch_build_llama, .rope = MODEL_ROPE_NORM, .configure = configure};
const struct arch arch_granitemoe = {.name = "granitemoe",
                                     .build = arch_build_llama,
                                     .rope = MODEL_ROPE_NORM,
                                     .configure = configure,
                                     .gating = ROUTE_SOFTMAX,
                                     .normalise = true,
                                     .wide_experts = true};
