/* block_scales.h - the float scales of a block of weights, for tests that fill the rest with random bits:
 * random scales would mostly be huge, infinite or NaN. Thread: any; pure. */
#pragma once
#include "gguf/quant.h"

#include <stdint.h>
#include <string.h>

/* Offsets in a block of d and dmin, or of what has their place; -1: none, or not a float of 16 bits. */
struct block_scales {
    int d, dmin;
};

static inline struct block_scales block_scales(uint32_t type)
{
    switch (type) {
    case QUANT_Q4_0:
    case QUANT_Q5_0:
    case QUANT_Q8_0:
    case QUANT_IQ4_NL:
    case QUANT_IQ4_XS:
    case QUANT_IQ3_XXS:
    case QUANT_IQ3_S:
    case QUANT_IQ2_XXS:
    case QUANT_IQ2_XS:
    case QUANT_IQ2_S:
    case QUANT_IQ1_S:
        return (struct block_scales){0, -1};
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
        return (struct block_scales){0, 2};
    case QUANT_Q2_K:
        return (struct block_scales){80, 82};
    case QUANT_Q3_K:
        return (struct block_scales){108, -1};
    case QUANT_Q6_K:
        return (struct block_scales){208, -1};
    case QUANT_TQ1_0:
        return (struct block_scales){52, -1};
    case QUANT_TQ2_0:
        return (struct block_scales){64, -1};
    default:
        return (struct block_scales){-1, -1};
    }
}

/* Writes d and dmin, f16, to their places. MXFP4 takes d's exponent, the ends of its range for d's; IQ1_M has
 * d's bits in four nibbles. NVFP4 has no scale that is not finite: its bytes stay, and its factor, if it has
 * one, becomes 1. */
static inline void block_scales_put(uint32_t type, uint8_t *block, uint16_t d, uint16_t dmin)
{
    struct block_scales at = block_scales(type);
    if (at.d >= 0)
        memcpy(block + at.d, &d, 2);
    if (at.dmin >= 0)
        memcpy(block + at.dmin, &dmin, 2);
    uint32_t exponent = d >> 10 & 31;
    if (type == QUANT_MXFP4)
        block[0] = (uint8_t)(d == 0 ? 0 : d == 1 ? 1 : d == 0x7bff ? 254 : exponent + 113);
    if (type == QUANT_NVFP4_SCALED)
        memcpy(block, &(float){1}, 4);
    for (int i = 0; type == QUANT_IQ1_M && i < 4; i++)
        block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (d >> 4 * i & 15) << 4);
}

/* Gives each row of a matrix of NVFP4_SCALED another factor; a file has the same for all rows of a matrix or
 * an expert. Other types stay as they are. */
static inline void block_factors_put(uint32_t type, uint8_t *rows, size_t n, size_t k)
{
    const struct quant_traits *t = quant_traits(type);
    size_t blocks = k / t->block;
    for (size_t i = 0; type == QUANT_NVFP4_SCALED && i < n * blocks; i++) {
        float factor = (float)(i / blocks % 7 + 1) * (i / blocks % 2 ? -0.3f : 0.3f);
        memcpy(rows + i * t->block_size, &factor, sizeof factor);
    }
}
