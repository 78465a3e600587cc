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

const struct arch arch_mistral3 = {.name = "mistral3",
                                   .models = "Ministral 3, Devstral 2",
                                   .build = arch_build_llama,
                                   .rope = MODEL_ROPE_NORM,
                                   .configure = configure};
