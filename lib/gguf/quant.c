#include "quant.h"
#include "base/half.h"
#include "quant_codes.h"

#include <assert.h>
#include <stdbool.h>

static const struct quant_traits traits_of[] = {
    [QUANT_F32] = {"F32", 1, 4},
    [QUANT_F16] = {"F16", 1, 2},
    [QUANT_BF16] = {"BF16", 1, 2},
    [QUANT_Q4_0] = {"Q4_0", 32, 18},
    [QUANT_Q4_1] = {"Q4_1", 32, 20},
    [QUANT_Q5_0] = {"Q5_0", 32, 22},
    [QUANT_Q5_1] = {"Q5_1", 32, 24},
    [QUANT_Q8_0] = {"Q8_0", 32, 34},
    [QUANT_Q2_K] = {"Q2_K", 256, 84},
    [QUANT_Q3_K] = {"Q3_K", 256, 110},
    [QUANT_Q4_K] = {"Q4_K", 256, 144},
    [QUANT_Q5_K] = {"Q5_K", 256, 176},
    [QUANT_Q6_K] = {"Q6_K", 256, 210},
    [QUANT_IQ2_XXS] = {"IQ2_XXS", 256, 66},
    [QUANT_IQ2_XS] = {"IQ2_XS", 256, 74},
    [QUANT_IQ3_XXS] = {"IQ3_XXS", 256, 98},
    [QUANT_IQ1_S] = {"IQ1_S", 256, 50},
    [QUANT_IQ4_NL] = {"IQ4_NL", 32, 18},
    [QUANT_IQ3_S] = {"IQ3_S", 256, 110},
    [QUANT_IQ2_S] = {"IQ2_S", 256, 82},
    [QUANT_IQ4_XS] = {"IQ4_XS", 256, 136},
    [QUANT_IQ1_M] = {"IQ1_M", 256, 56},
    [QUANT_TQ1_0] = {"TQ1_0", 256, 54},
    [QUANT_TQ2_0] = {"TQ2_0", 256, 66},
    [QUANT_MXFP4] = {"MXFP4", 32, 17},
    [QUANT_NVFP4] = {"NVFP4", 64, 36},
    [QUANT_NVFP4_SCALED] = {"NVFP4", 64, 40},
};

/* Every type number of the format, including withdrawn ones, which old files still have. */
static const char *const names[] = {
    "F32",      "F16",      "Q4_0",    "Q4_1",  "Q4_2",       "Q4_3",       "Q5_0",       "Q5_1",
    "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",       "Q5_K",       "Q6_K",       "Q8_K",
    "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL",     "IQ3_S",      "IQ2_S",      "IQ4_XS",
    "I8",       "I16",      "I32",     "I64",   "F64",        "IQ1_M",      "BF16",       "Q4_0_4_4",
    "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",
    "NVFP4",    "Q1_0",     "Q2_0",
};

const struct quant_traits *quant_traits(uint32_t type)
{
    if (type >= sizeof traits_of / sizeof *traits_of || !traits_of[type].name)
        return NULL;
    return &traits_of[type];
}

const char *quant_name(uint32_t type)
{
    if (type == QUANT_NVFP4_SCALED)
        return traits_of[type].name;
    return type < sizeof names / sizeof *names ? names[type] : "?";
}

size_t quant_size(uint32_t type, size_t n)
{
    const struct quant_traits *t = quant_traits(type);
    assert(!t || n % t->block == 0); /* the rest of a block would be lost */
    return t ? n / t->block * t->block_size : 0;
}

static uint16_t read_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float read_half(const uint8_t *p)
{
    return half_to_float(read_u16(p));
}

static void unpack_f16(const uint8_t *p, float *out)
{
    *out = read_half(p);
}

static void unpack_bf16(const uint8_t *p, float *out)
{
    *out = bf16_to_float(read_u16(p));
}

/* 32 values: d, then 16 bytes whose low nibbles are the first 16 values. */
static void unpack_q4_0(const uint8_t *p, float *out)
{
    float d = read_half(p);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((p[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
    }
}

/* 32 values: d, minimum, 16 bytes. */
static void unpack_q4_1(const uint8_t *p, float *out)
{
    float d = read_half(p), min = read_half(p + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(p[4 + i] & 15) + min;
        out[i + 16] = d * (float)(p[4 + i] >> 4) + min;
    }
}

/* Returns five-bit value i of Q5_0 or Q5_1; bit i of `high` is its fifth bit. */
static int five_bits(const uint8_t *high, const uint8_t *low, int i)
{
    int nibble = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
    return nibble | (high[i / 8] >> (i % 8) & 1) << 4;
}

/* 32 values: d, 4 bytes of fifth bits, 16 bytes of nibbles. */
static void unpack_q5_0(const uint8_t *p, float *out)
{
    float d = read_half(p);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(five_bits(p + 2, p + 6, i) - 16);
}

/* 32 values: d, minimum, 4 bytes of fifth bits, 16 bytes of nibbles. */
static void unpack_q5_1(const uint8_t *p, float *out)
{
    float d = read_half(p), min = read_half(p + 2);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)five_bits(p + 4, p + 8, i) + min;
}

/* 32 values: d, 32 signed bytes. */
static void unpack_q8_0(const uint8_t *p, float *out)
{
    float d = read_half(p);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)p[2 + i];
}

/* Returns two-bit value i of a K type's block of 256 values. Each half of 128 has 32 bytes that hold four
 * runs of 32 values; run r lies in bits 2r and 2r+1. */
static int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

/* 256 values: 16 bytes of scale (low nibble) and minimum (high nibble), one per 16 values; 64 bytes of
 * two-bit values; d, dmin. */
static void unpack_q2_k(const uint8_t *p, float *out)
{
    float d = read_half(p + 80), dmin = read_half(p + 82);
    for (int i = 0; i < 256; i++) {
        float scale = d * (float)(p[i / 16] & 15), min = dmin * (float)(p[i / 16] >> 4);
        out[i] = scale * (float)two_bits(p + 16, i) - min;
    }
}

/* 256 values: 32 bytes of third bits (a clear bit means -4), 64 bytes of two-bit values, 12 bytes of six-bit
 * scales, d. */
static void unpack_q3_k(const uint8_t *p, float *out)
{
    const uint8_t *packed = p + 96;
    float d = read_half(p + 108);
    for (int i = 0; i < 256; i++) {
        int s = i / 16;
        int low = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4;
        int high = packed[8 + s % 4] >> (s / 4 * 2) & 3;
        int minus = p[i % 32] >> (i / 32) & 1 ? 0 : 4;
        out[i] = d * (float)((low | high << 4) - 32) * (float)(two_bits(p + 32, i) - minus);
    }
}

/* Unpacks scale and minimum s (0..7) of Q4_K and Q5_K, six bits each, from 12 bytes. */
static void scale_and_min(const uint8_t *packed, int s, int *scale, int *min)
{
    if (s < 4) {
        *scale = packed[s] & 63;
        *min = packed[s + 4] & 63;
    } else {
        *scale = (packed[s + 4] & 15) | packed[s - 4] >> 6 << 4;
        *min = packed[s + 4] >> 4 | packed[s] >> 6 << 4;
    }
}

/* 256 values of Q4_K: d, dmin, 12 bytes of scales, 128 bytes of nibbles. Q5_K has 32 bytes of fifth bits
 * before the nibbles. One scale per 32 values; 32 bytes of `low` hold two runs of 32, the first in the low
 * nibbles. */
static void unpack_q45_k(const uint8_t *p, const uint8_t *high, const uint8_t *low, float *out)
{
    float d = read_half(p), dmin = read_half(p + 2);
    for (int s = 0; s < 8; s++, out += 32) {
        int scale, min;
        scale_and_min(p + 4, s, &scale, &min);
        float step = d * (float)scale, offset = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int q = low[s / 2 * 32 + i] >> (s % 2 * 4) & 15;
            if (high)
                q |= (high[i] >> s & 1) << 4;
            out[i] = step * (float)q - offset;
        }
    }
}

static void unpack_q4_k(const uint8_t *p, float *out)
{
    unpack_q45_k(p, NULL, p + 16, out);
}

static void unpack_q5_k(const uint8_t *p, float *out)
{
    unpack_q45_k(p, p + 16, p + 48, out);
}

/* 256 values: 128 bytes of nibbles, 64 bytes of two high bits, 16 signed scales (one per 16 values), d. In
 * each half of 128, 64 bytes have values 0..63 in their low nibbles and 64..127 in their high nibbles. */
static void unpack_q6_k(const uint8_t *p, float *out)
{
    float d = read_half(p + 208);
    for (int i = 0; i < 256; i++) {
        int nibble = p[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        int q = (nibble | two_bits(p + 128, i) << 4) - 32;
        out[i] = d * (float)(int8_t)p[192 + i / 16] * (float)q;
    }
}

/* n values, the first n / 2 in the low nibbles. */
static void unpack_codes(uint32_t codebook, float d, const uint8_t *p, int n, float *out)
{
    const int8_t *value = quant_codebooks[codebook].value;
    for (int i = 0; i < n / 2; i++) {
        out[i] = d * (float)value[p[i] & 15];
        out[i + n / 2] = d * (float)value[p[i] >> 4];
    }
}

/* 32 values: d, 16 bytes of codes. */
static void unpack_iq4_nl(const uint8_t *p, float *out)
{
    unpack_codes(QUANT_CODES_IQ4, read_half(p), p + 2, 32, out);
}

/* 32 values: an exponent, 16 bytes of codes. */
static void unpack_mxfp4(const uint8_t *p, float *out)
{
    unpack_codes(QUANT_CODES_FP4, quant_half_e8m0(p[0]), p + 1, 32, out);
}

/* 64 values: four scales, one per 16 values, and the 8 bytes of codes of each. */
static void unpack_nvfp4_by(float factor, const uint8_t *p, float *out)
{
    for (int i = 0; i < 4; i++)
        unpack_codes(QUANT_CODES_FP4, factor * quant_half_ue4m3(quant_ue4m3(p[i])), p + 4 + 8 * i, 16,
                     out + 16 * i);
}

static void unpack_nvfp4(const uint8_t *p, float *out)
{
    unpack_nvfp4_by(1, p, out);
}

static void unpack_nvfp4_scaled(const uint8_t *p, float *out)
{
    float factor;
    memcpy(&factor, p, sizeof factor);
    unpack_nvfp4_by(factor, p + sizeof factor, out);
}

/* 256 values of a type with a codebook. Every product is exact: d has 11 bits, a scale 5, a value 7. */
static void unpack_coded(uint32_t type, const uint8_t *p, float *out)
{
    const struct quant_codebook_values *codebook = &quant_codebooks[quant_codebook(type)];
    struct quant_codes c;
    quant_read_codes(type, p, &c);
    float d = half_to_float(c.d) * codebook->unit;
    for (int i = 0; i < 256; i++)
        out[i] = d * (float)c.scale[i / 16] * (float)codebook->value[c.code[i]];
}

static void (*const unpack_of[])(const uint8_t *, float *) = {
    [QUANT_F16] = unpack_f16,       [QUANT_BF16] = unpack_bf16,
    [QUANT_Q4_0] = unpack_q4_0,     [QUANT_Q4_1] = unpack_q4_1,
    [QUANT_Q5_0] = unpack_q5_0,     [QUANT_Q5_1] = unpack_q5_1,
    [QUANT_Q8_0] = unpack_q8_0,     [QUANT_Q2_K] = unpack_q2_k,
    [QUANT_Q3_K] = unpack_q3_k,     [QUANT_Q4_K] = unpack_q4_k,
    [QUANT_Q5_K] = unpack_q5_k,     [QUANT_Q6_K] = unpack_q6_k,
    [QUANT_IQ4_NL] = unpack_iq4_nl, [QUANT_MXFP4] = unpack_mxfp4,
    [QUANT_NVFP4] = unpack_nvfp4,   [QUANT_NVFP4_SCALED] = unpack_nvfp4_scaled,
};

void quant_dequantise(uint32_t type, const void *src, float *out, size_t n)
{
    const struct quant_traits *t = quant_traits(type);
    assert(t && n % t->block == 0);
    if (type == QUANT_F32) {
        memcpy(out, src, n * sizeof *out);
        return;
    }
    const uint8_t *p = src;
    bool coded = quant_codebook(type) && t->block == 256;
    for (size_t i = 0; i < n; i += t->block, p += t->block_size)
        if (coded)
            unpack_coded(type, p, out + i);
        else
            unpack_of[type](p, out + i);
}
