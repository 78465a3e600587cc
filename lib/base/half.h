/* half.h - conversions between float and the 16-bit floats of GGUF files and KV caches: IEEE binary16 and
 * bfloat16.
 * Subnormals, infinities and NaNs are kept.
 * Thread: any; all functions are pure. */
#pragma once
#include <stdint.h>
#include <string.h>

static inline float float_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t float_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Converts IEEE binary16 to float. Every value converts exactly. */
static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ff;
    if (exponent == 0) { /* zero and subnormals are multiples of 2^-24 */
        float f = (float)mantissa * 0x1p-24f;
        return float_from_bits(float_to_bits(f) | sign);
    }
    if (exponent == 31)
        return float_from_bits(sign | 0x7f800000u | mantissa << 13);
    return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Converts float to IEEE binary16, rounding to nearest, ties to even. A value too large becomes infinity, a
 * NaN stays a (quiet) NaN. */
static inline uint16_t half_from_float(float f)
{
    uint32_t bits = float_to_bits(f);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000u) /* 65520: halfway between the largest half and the next step */
        return sign | 0x7c00;
    if (magnitude <
        0x38800000u) { /* below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded */
        uint32_t units = float_to_bits(float_from_bits(magnitude) + 0.5f) - float_to_bits(0.5f);
        return (uint16_t)(sign | units);
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}

/* Converts bfloat16, the upper half of a float, to float. */
static inline float bf16_to_float(uint16_t h)
{
    return float_from_bits((uint32_t)h << 16);
}
