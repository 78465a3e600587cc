/* quant_codes.c - takes the blocks of the types with codebooks apart (quant_codes.h). */
#include "quant_codes.h"

#include <assert.h>
#include <string.h>

static uint32_t read_u16(const uint8_t *p)
{
    return (uint32_t)(p[0] | p[1] << 8);
}

static uint32_t read_u32(const uint8_t *p)
{
    return read_u16(p) | read_u16(p + 2) << 16;
}

/* Writes the codes of a point of n values: the level of each, `bits` wide, below its bit of `signs`. */
static void put_point(uint8_t *code, uint32_t point, int n, int bits, uint32_t signs)
{
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)((point >> bits * i & ((1u << bits) - 1)) | (signs >> i & 1) << bits);
}

/* Eight signs from the index of seven: the eighth makes their number even. */
static uint32_t even_signs(uint32_t index)
{
    return index | (uint32_t)(__builtin_popcount(index) & 1) << 7;
}

static void put_scales(struct quant_codes *out, int block, uint32_t first, uint32_t second)
{
    out->scale[2 * block] = (int8_t)(2 * first + 1);
    out->scale[2 * block + 1] = (int8_t)(2 * second + 1);
}

/* d; for each 32 values four indices, then a word of four times seven signs and a scale. */
static void read_iq2_xxs(const uint8_t *p, struct quant_codes *out)
{
    out->d = (uint16_t)read_u16(p);
    for (int b = 0; b < 8; b++) {
        const uint8_t *q = p + 2 + 8 * b;
        uint32_t word = read_u32(q + 4);
        for (int l = 0; l < 4; l++)
            put_point(out->code + 32 * b + 8 * l, quant_grid_iq2_xxs[q[l]], 8, 2,
                      even_signs(word >> 7 * l & 127));
        put_scales(out, b, word >> 28, word >> 28);
    }
}

/* d; 32 words of an index and seven signs; a scale per 16 values. */
static void read_iq2_xs(const uint8_t *p, struct quant_codes *out)
{
    out->d = (uint16_t)read_u16(p);
    for (int i = 0; i < 32; i++) {
        uint32_t word = read_u16(p + 2 + 2 * i);
        put_point(out->code + 8 * i, quant_grid_iq2_xs[word & 511], 8, 2, even_signs(word >> 9));
    }
    for (int b = 0; b < 8; b++)
        put_scales(out, b, p[66 + b] & 15, p[66 + b] >> 4);
}

/* d; 32 indices; 32 bytes of signs; the indices' two high bits; a scale per 16 values. */
static void read_iq2_s(const uint8_t *p, struct quant_codes *out)
{
    out->d = (uint16_t)read_u16(p);
    for (int i = 0; i < 32; i++) {
        uint32_t high = p[66 + i / 4] >> 2 * (i % 4) & 3u;
        put_point(out->code + 8 * i, quant_grid_iq2_s[p[2 + i] | high << 8], 8, 2, p[34 + i]);
    }
    for (int b = 0; b < 8; b++)
        put_scales(out, b, p[74 + b] & 15, p[74 + b] >> 4);
}

/* d; 64 indices; for each 32 values a word of four times seven signs and a scale. */
static void read_iq3_xxs(const uint8_t *p, struct quant_codes *out)
{
    out->d = (uint16_t)read_u16(p);
    for (int b = 0; b < 8; b++) {
        uint32_t word = read_u32(p + 66 + 4 * b);
        for (int i = 0; i < 8; i++)
            put_point(out->code + 32 * b + 4 * i, quant_grid_iq3_xxs[p[2 + 8 * b + i]], 4, 3,
                      even_signs(word >> 7 * (i / 2) & 127) >> 4 * (i % 2));
        put_scales(out, b, word >> 28, word >> 28);
    }
}

/* d; 64 indices; their ninth bits; 32 bytes of signs; a scale per 32 values. */
static void read_iq3_s(const uint8_t *p, struct quant_codes *out)
{
    out->d = (uint16_t)read_u16(p);
    for (int i = 0; i < 64; i++) {
        uint32_t high = p[66 + i / 8] >> i % 8 & 1u;
        put_point(out->code + 4 * i, quant_grid_iq3_s[p[2 + i] | high << 8], 4, 3,
                  (uint32_t)p[74 + i / 2] >> 4 * (i % 2));
    }
    for (int b = 0; b < 8; b++) {
        uint32_t scale = p[106 + b / 2] >> 4 * (b % 2) & 15u;
        put_scales(out, b, scale, scale);
    }
}

/* d; 32 indices; for each 32 values a word: four times three high bits, a scale, the sign of delta. */
static void read_iq1_s(const uint8_t *p, struct quant_codes *out)
{
    out->d = (uint16_t)read_u16(p);
    for (int b = 0; b < 8; b++) {
        uint32_t word = read_u16(p + 34 + 2 * b);
        for (int l = 0; l < 4; l++)
            put_point(out->code + 32 * b + 8 * l, quant_grid_iq1[p[2 + 4 * b + l] | (word >> 3 * l & 7) << 8],
                      8, 2, word >> 15 ? 255 : 0);
        put_scales(out, b, word >> 12 & 7, word >> 12 & 7);
    }
}

/* 32 indices; for each a nibble, three high bits and the sign of delta; four words, each of four scales of
 * three bits and a nibble of d. */
static void read_iq1_m(const uint8_t *p, struct quant_codes *out)
{
    uint32_t d = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t nibble = p[32 + i / 2] >> 4 * (i % 2) & 15u;
        put_point(out->code + 8 * i, quant_grid_iq1[p[i] | (nibble & 7) << 8], 8, 2, nibble >> 3 ? 255 : 0);
    }
    for (int b = 0; b < 8; b++) {
        uint32_t word = read_u16(p + 48 + b / 2 * 2);
        put_scales(out, b, word >> 6 * (b % 2) & 7, word >> (6 * (b % 2) + 3) & 7);
        d |= (word >> 12) << b / 2 * 4;
    }
    out->d = (uint16_t)d;
}

/* d; the high two bits of the scales; their low nibbles; 16 bytes of codes for each 32 values, the first 16
 * low. */
static void read_iq4_xs(const uint8_t *p, struct quant_codes *out)
{
    out->d = (uint16_t)read_u16(p);
    for (int b = 0; b < 8; b++) {
        uint32_t low = p[4 + b / 2] >> 4 * (b % 2) & 15u, high = read_u16(p + 2) >> 2 * b & 3;
        out->scale[2 * b] = out->scale[2 * b + 1] = (int8_t)((int)(low | high << 4) - 32);
        for (int i = 0; i < 16; i++) {
            out->code[32 * b + i] = p[8 + 16 * b + i] & 15;
            out->code[32 * b + 16 + i] = p[8 + 16 * b + i] >> 4;
        }
    }
}

/* Trit n of a byte: the byte is the number's fraction of 243, in 256ths, rounded up. */
static uint8_t trit(uint8_t byte, int n)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (uint8_t)((uint8_t)(byte * power[n]) * 3 >> 8);
}

/* 48 bytes of five trits and 4 of four, d. The first trits of 32 bytes come first, then their second ones. */
static void read_tq1_0(const uint8_t *p, struct quant_codes *out)
{
    for (int i = 0; i < 160; i++)
        out->code[i] = trit(p[i % 32], i / 32);
    for (int i = 0; i < 80; i++)
        out->code[160 + i] = trit(p[32 + i % 16], i / 16);
    for (int i = 0; i < 16; i++)
        out->code[240 + i] = trit(p[48 + i % 4], i / 4);
    memset(out->scale, 1, sizeof out->scale);
    out->d = (uint16_t)read_u16(p + 52);
}

/* 64 bytes of four values each, d: two groups of 32 bytes, whose lowest bits come first. */
static void read_tq2_0(const uint8_t *p, struct quant_codes *out)
{
    for (int i = 0; i < 256; i++)
        out->code[i] = p[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
    memset(out->scale, 1, sizeof out->scale);
    out->d = (uint16_t)read_u16(p + 64);
}

static const struct {
    uint8_t codebook;
    void (*read)(const uint8_t *p, struct quant_codes *out); /* NULL: smaller blocks */
} readers[] = {
    [QUANT_IQ2_XXS] = {QUANT_CODES_IQ2, read_iq2_xxs},
    [QUANT_IQ2_XS] = {QUANT_CODES_IQ2, read_iq2_xs},
    [QUANT_IQ3_XXS] = {QUANT_CODES_IQ3_XXS, read_iq3_xxs},
    [QUANT_IQ1_S] = {QUANT_CODES_IQ1, read_iq1_s},
    [QUANT_IQ4_NL] = {QUANT_CODES_IQ4, NULL},
    [QUANT_IQ3_S] = {QUANT_CODES_IQ3_S, read_iq3_s},
    [QUANT_IQ2_S] = {QUANT_CODES_IQ2, read_iq2_s},
    [QUANT_IQ4_XS] = {QUANT_CODES_IQ4, read_iq4_xs},
    [QUANT_IQ1_M] = {QUANT_CODES_IQ1, read_iq1_m},
    [QUANT_TQ1_0] = {QUANT_CODES_TERNARY, read_tq1_0},
    [QUANT_TQ2_0] = {QUANT_CODES_TERNARY, read_tq2_0},
    [QUANT_MXFP4] = {QUANT_CODES_FP4, NULL},
    [QUANT_NVFP4] = {QUANT_CODES_FP4, NULL},
    [QUANT_NVFP4_SCALED] = {QUANT_CODES_FP4, NULL},
};

uint32_t quant_codebook(uint32_t type)
{
    return type < sizeof readers / sizeof *readers ? readers[type].codebook : QUANT_CODES_NONE;
}

void quant_read_codes(uint32_t type, const uint8_t *p, struct quant_codes *out)
{
    assert(quant_codebook(type) && readers[type].read);
    readers[type].read(p, out);
}
