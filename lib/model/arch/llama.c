/* llama.c - Llama 2 and 3, Mistral, SmolLM2, TinyLlama: RoPE rotates pairs of neighbours (the converter
 * permutes the rows of Q and K for that), scaled by the factors of rope_freqs.weight if the file has them. */
#include "arch.h"

const struct arch arch_llama = {.name = "llama",
                                .models = "Llama 2 and 3, Mistral, SmolLM2, TinyLlama",
                                .build = arch_build_llama,
                                .rope = MODEL_ROPE_NORM};
