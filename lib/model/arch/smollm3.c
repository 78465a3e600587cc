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

const struct arch arch_smollm3 = {
    .name = "smollm3", .build = arch_build_llama, .rope = MODEL_ROPE_NORM, .configure = configure};
