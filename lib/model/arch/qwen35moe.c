/* qwen35moe.c - Qwen 3.5 and 3.6 with experts: the layers of qwen35.c; the feed-forward is a mixture of
 * experts with a gated shared one. */
#include "arch.h"

const struct arch arch_qwen35moe = {.name = "qwen35moe",
                                    .build = arch_build_hybrid,
                                    .rope = MODEL_ROPE_NEOX,
                                    .configure = arch_configure_hybrid,
                                    .gating = ROUTE_SOFTMAX,
                                    .normalise = true};
