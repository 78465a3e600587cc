/* quant.h - the weight types of GGUF files: block sizes, names and dequantisation.
 * Every kernel is tested against quant_dequantise(). Layouts are ggml's, little endian. The enum's numbers
 * are the file format's. Thread: any; the functions are pure. Memory: they allocate nothing; the caller owns
 * `src` and `out`, and the names are static. */
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
    QUANT_IQ2_XXS = 16,
    QUANT_IQ2_XS = 17,
    QUANT_IQ3_XXS = 18,
    QUANT_IQ1_S = 19,
    QUANT_IQ4_NL = 20,
    QUANT_IQ3_S = 21,
    QUANT_IQ2_S = 22,
    QUANT_IQ4_XS = 23,
    QUANT_IQ1_M = 29,
    QUANT_BF16 = 30,
    QUANT_TQ1_0 = 34,
    QUANT_TQ2_0 = 35,
    QUANT_MXFP4 = 39,
    QUANT_NVFP4 = 40,
    /* No type of files: NVFP4 whose matrix, or whose expert, has a factor of its own in the file (model.h). A
     * block is the factor, f32, and the file's block. */
    QUANT_NVFP4_SCALED = 64,
};

struct quant_traits {
    const char *name;    /* "Q4_K" */
    uint32_t block;      /* values per block: 1, 32, 64 or 256 */
    uint32_t block_size; /* bytes per block */
};

/* Returns NULL for a type that Hearth does not compute with. */
const struct quant_traits *quant_traits(uint32_t type);

/* Returns the name of any type of the format ("IQ4_XS"), for messages; "?" for an unknown number. */
const char *quant_name(uint32_t type);

/* Returns the bytes of n values, or 0 when the type is unknown. n must be a multiple of the type's block. */
size_t quant_size(uint32_t type, size_t n);

/* Writes the values of n packed weights to out[0..n). n must be a multiple of the type's block, and the type
 * must have traits. `src` needs no alignment. */
void quant_dequantise(uint32_t type, const void *src, float *out, size_t n);
