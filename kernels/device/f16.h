/* f16.h - 16-bit floats on host and device, bit for bit as in lib/base/half.h: to nearest, ties to even,
 * subnormals kept, NaN stays a quiet NaN with the upper bits of its payload. A device has instructions for
 * it.
 * Thread: any; pure functions. */
#pragma once
#include "abi/arith.h"
#include "simt.h"

#ifdef __NVPTX__

/* Converts the low 16 bits. */
SIMT_INLINE float f16_to_float(uint32_t bits)
{
    union {
        uint16_t u;
        _Float16 h;
    } v = {.u = (uint16_t)bits};
    return (float)v.h;
}

SIMT_INLINE uint32_t f16_from_float(float f)
{
    union {
        _Float16 h;
        uint16_t u;
    } v = {.h = (_Float16)f};
    uint32_t bits = arith_to_bits(f); /* the instruction's NaN has another payload */
    return f == f ? v.u : (bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu);
}

#else /* the host's compiler would call its library, which may be absent */

SIMT_INLINE float f16_to_float(uint32_t bits)
{
    uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ffu;
    if (exponent == 31)
        return arith_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent)
        return arith_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    return arith_from_bits(sign | arith_to_bits((float)mantissa * 0x1p-24f));
}

SIMT_INLINE uint32_t f16_from_float(float f)
{
    uint32_t bits = arith_to_bits(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return sign | 0x7e00u | (magnitude >> 13 & 0x3ffu);
    if (magnitude >= 0x477ff000u) /* 65520: halfway between the largest and the next step */
        return sign | 0x7c00u;
    if (magnitude >= 0x38800000u) /* 2^-14 */
        return sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    /* The addition rounds: it leaves units of 2^-24 in the low bits of a number just above 0.5. */
    return sign | (arith_to_bits(arith_from_bits(magnitude) + 0.5f) - 0x3f000000u);
}

#endif
