/* quant_super.h - a super-block of 256 weights, taken apart: the form between a file's blocks and the tiles
 * that the packers of both backends write. Thread: any; all functions are pure. Memory: the caller's. Errors:
 * none. */
#pragma once
#include "base/half.h"
#include "quant_codes.h"

#define QUANT_SUPER 256 /* values */

struct quant_super {
    uint8_t q[QUANT_SUPER]; /* stored values: unsigned, or codes; see quant_super_value() */
    int8_t scale[16]; /* K types and those with codebooks: per 32 or per 16; NVFP4: per 16, as in the file */
    uint8_t min[16];
    uint16_t d, dmin;    /* K types, f16 */
    uint16_t s[8], m[8]; /* others: scale (f16; MXFP4: exponent) and minimum (f16) of a block of 32 */
    float factor;        /* NVFP4: of all its values; 1 where the file has none */
};

/* Reads n_blocks blocks of 32 values, at most 8, of one row; integer types only. Fields beyond n_blocks do
 * not change. */
void quant_super_read(uint32_t type, const uint8_t *p, uint32_t n_blocks, struct quant_super *out);
/* Returns the integer that a stored value stands for. */
int32_t quant_super_value(uint32_t type, uint32_t stored);
/* Returns the scale of block j, of the types with float scales per 32. */
float quant_super_scale(uint32_t type, const struct quant_super *s, uint32_t j);
