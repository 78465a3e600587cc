/* qwen3next.c - Qwen 3 Next: as Qwen 3.5 with experts, but the value heads that share a key head are
 * adjacent, and one tensor has the products of step sizes and decays. */
#include "arch.h"
#include "model/config_reader.h"

static int configure(struct config_reader *r, struct model_config *c)
{
    c->delta.adjacent = true;
    return arch_configure_hybrid(r, c);
}

const struct arch arch_qwen3next = {.name = "qwen3next",
                                    .build = arch_build_hybrid,
                                    .rope = MODEL_ROPE_NEOX,
                                    .configure = configure,
                                    .gating = ROUTE_SOFTMAX,
                                    .normalise = true};
