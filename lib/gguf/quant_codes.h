/* quant_codes.h - the weight types whose values are looked up: MXFP4, NVFP4, the IQ types; and the ternary
 * ones. A weight is a code of at most 4 bits, which a codebook of the type turns into a small integer; a
 * block has integer scales above it, and one float above those:
 *
 *     value = d * unit * scale * codebook[code]
 *
 * The file says the codes of the IQ1 to IQ3 types 4 or 8 at a time, as the index of a point of a grid
 * (quant_grids.c) and signs. quant_read_codes() takes them apart; quant.c and the packers of both backends
 * read these types through it. Thread: any; all functions are pure. Memory: the caller's. Errors: none. */
#pragma once
#include "quant.h"

enum quant_codebook {
    QUANT_CODES_NONE,
    QUANT_CODES_FP4, /* MXFP4, NVFP4: E2M1, doubled */
    QUANT_CODES_IQ4,
    QUANT_CODES_IQ3_XXS,
    QUANT_CODES_IQ3_S,
    QUANT_CODES_IQ2,
    QUANT_CODES_IQ1,
    QUANT_CODES_TERNARY,
};

/* By enum quant_codebook. In the header so that kernels see constants. The upper half has the signs: of IQ1,
 * of the delta, an eighth, by which all of a group's values are moved. */
static const struct quant_codebook_values {
    int8_t value[16];
    uint8_t largest; /* magnitude */
    float unit;
} quant_codebooks[] = {
    [QUANT_CODES_NONE] = {{0}, 0, 0},
    [QUANT_CODES_FP4] = {{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 12, 0.5f},
    [QUANT_CODES_IQ4] = {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 127, 1},
    [QUANT_CODES_IQ3_XXS] = {{4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62},
                             62,
                             0.25f},
    [QUANT_CODES_IQ3_S] = {{1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}, 15, 1},
    [QUANT_CODES_IQ2] = {{8, 25, 43, 0, -8, -25, -43, 0}, 43, 0.125f},
    [QUANT_CODES_IQ1] = {{-7, 1, 9, 0, -9, -1, 7, 0}, 9, 0.125f},
    [QUANT_CODES_TERNARY] = {{-1, 0, 1, 2}, 2, 1},
};

/* Points of 8 values with levels of 2 bits (IQ3: of 4 values with 3 bits), the first value lowest. */
extern const uint16_t quant_grid_iq2_xxs[256], quant_grid_iq2_xs[512], quant_grid_iq2_s[1024];
extern const uint16_t quant_grid_iq3_xxs[256], quant_grid_iq3_s[512], quant_grid_iq1[2048];

/* A block of 256 values, taken apart. */
struct quant_codes {
    uint8_t code[256];
    int8_t scale[16]; /* of 16 values each */
    uint16_t d;       /* f16 */
};

/* The codebook of a type, or QUANT_CODES_NONE. */
uint32_t quant_codebook(uint32_t type);
/* Reads a block of a type whose blocks have 256 values and which has a codebook. */
void quant_read_codes(uint32_t type, const uint8_t *p, struct quant_codes *out);

/* Half the value of MXFP4's scale, 2^(e - 128): a subnormal float for 0 and 1. 255, which the format calls
 * NaN, is an infinity: it reaches the logits. */
static inline float quant_half_e8m0(uint32_t e)
{
    uint32_t bits = e ? e << 23 : 0x00400000u;
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    return f * 0.5f;
}

/* Half the value of NVFP4's scale: unsigned E4M3. */
static inline float quant_half_ue4m3(uint32_t e)
{
    uint32_t bits = (e & 0x7f) << 20;
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    return f * 0x1p119f; /* 2^120 lifts the exponent's bias from 127 to 7, subnormal numbers included */
}

/* The byte of an NVFP4 scale as it is computed with: the format's NaN counts as 0. */
static inline uint8_t quant_ue4m3(uint8_t e)
{
    return e == 0x7f ? 0 : e & 0x7f;
}
