/* quant.h - the weight types of GGUF files: their block geometry and their meaning as floats.
 * Dequantisation is the reference that every kernel is tested against. Layouts are ggml's (little endian).
 * Numbers of the enum are those of the file format. Thread: all functions are pure. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum quant_type {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q2_K = 10,
    QUANT_Q3_K = 11,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_BF16 = 30,
};

struct quant_traits {
    const char *name;    /* "Q4_K" */
    uint32_t block;      /* values per block: 1, 32 or 256 */
    uint32_t block_size; /* bytes per block */
};

/* NULL when the type is not one Hearth computes with. */
const struct quant_traits *quant_traits(uint32_t type);

/* The name of any type number the format knows ("IQ4_XS"), for error messages; "?" for unknown numbers. */
const char *quant_name(uint32_t type);

/* Bytes of `n` values (n must be a multiple of the block), or 0 when the type is unknown. */
size_t quant_size(uint32_t type, size_t n);

/* out[0..n) = the values of n packed weights; n a multiple of the type's block, type known. `src` needs no
 * alignment. */
void quant_dequantise(uint32_t type, const void *src, float *out, size_t n);
