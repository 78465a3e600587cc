/* phi3.c - Phi-3, 3.5, 4 and 4-mini: as Llama, with halves rotated, in some by the factors of longrope; Q, K
 * and V are one tensor, as are gate and up (weight_parts.c finds their parts). */
#include "arch.h"
#include "model/config_reader.h"

/* All layers have the window, as in the trained model. One at least as long as the trained context is none:
 * such files say 262144 (128k contexts) or 0 (Phi-4). */
static int configure(struct config_reader *r, struct model_config *c)
{
    if (c->sliding_window < c->n_ctx_train)
        c->kinds[0].window = c->sliding_window;
    c->sliding_window = 0;
    return r->rc;
}

const struct arch arch_phi3 = {.name = "phi3",
                               .models = "and Phi-4",
                               .build = arch_build_llama,
                               .rope = MODEL_ROPE_NEOX,
                               .configure = configure};
