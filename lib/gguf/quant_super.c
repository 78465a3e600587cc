#include "quant_super.h"

#include <stdbool.h>
#include <string.h>

#define BLOCK 32

/* Reads the 6-bit scales and minima of Q4_K and Q5_K:
 * 12 bytes for 8 of each. */
static void read_scales_k(const uint8_t *p, struct quant_super *s)
{
    for (int j = 0; j < 4; j++) {
        s->scale[j] = p[j] & 63;
        s->min[j] = p[j + 4] & 63;
        s->scale[j + 4] = (int8_t)((p[j + 8] & 15) | (p[j] >> 6) << 4);
        s->min[j + 4] = (uint8_t)((p[j + 8] >> 4) | (p[j + 4] >> 6) << 4);
    }
}

static void read_q4_k(const uint8_t *p, struct quant_super *s)
{
    memcpy(&s->d, p, 2);
    memcpy(&s->dmin, p + 2, 2);
    read_scales_k(p + 4, s);
    const uint8_t *q = p + 16;
    for (int c = 0; c < 4; c++)
        for (int l = 0; l < 32; l++) {
            s->q[64 * c + l] = q[32 * c + l] & 15;
            s->q[64 * c + 32 + l] = q[32 * c + l] >> 4;
        }
}

static void read_q5_k(const uint8_t *p, struct quant_super *s)
{
    memcpy(&s->d, p, 2);
    memcpy(&s->dmin, p + 2, 2);
    read_scales_k(p + 4, s);
    const uint8_t *high = p + 16, *q = p + 48;
    for (int c = 0; c < 4; c++)
        for (int l = 0; l < 32; l++) {
            s->q[64 * c + l] = (uint8_t)((q[32 * c + l] & 15) | (high[l] >> (2 * c) & 1) << 4);
            s->q[64 * c + 32 + l] = (uint8_t)((q[32 * c + l] >> 4) | (high[l] >> (2 * c + 1) & 1) << 4);
        }
}

static void read_q6_k(const uint8_t *p, struct quant_super *s)
{
    for (int c = 0; c < 2; c++) {
        const uint8_t *low = p + 64 * c, *high = p + 128 + 32 * c;
        uint8_t *q = s->q + 128 * c;
        for (int l = 0; l < 32; l++) {
            q[l] = (uint8_t)((low[l] & 15) | (high[l] & 3) << 4);
            q[l + 32] = (uint8_t)((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4);
            q[l + 64] = (uint8_t)((low[l] >> 4) | (high[l] >> 4 & 3) << 4);
            q[l + 96] = (uint8_t)((low[l + 32] >> 4) | (high[l] >> 6) << 4);
        }
    }
    memcpy(s->scale, p + 192, 16);
    memcpy(&s->d, p + 208, 2);
}

static void read_q3_k(const uint8_t *p, struct quant_super *s)
{
    const uint8_t *high = p, *low = p + 32, *scales = p + 96;
    for (int c = 0; c < 2; c++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++)
                s->q[128 * c + 32 * j + l] =
                    (uint8_t)((low[32 * c + l] >> (2 * j) & 3) | (high[l] >> (4 * c + j) & 1) << 2);
    for (int i = 0; i < 16; i++) {
        int nibble = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
        s->scale[i] = (int8_t)((nibble | (scales[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32);
    }
    memcpy(&s->d, p + 108, 2);
}

static void read_q2_k(const uint8_t *p, struct quant_super *s)
{
    for (int i = 0; i < 16; i++) {
        s->scale[i] = p[i] & 15;
        s->min[i] = p[i] >> 4;
    }
    for (int c = 0; c < 2; c++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++)
                s->q[128 * c + 32 * j + l] = p[16 + 32 * c + l] >> (2 * j) & 3;
    memcpy(&s->d, p + 80, 2);
    memcpy(&s->dmin, p + 82, 2);
}

static void read_nibbles(const uint8_t *p, const uint8_t *high, uint8_t *q)
{
    uint32_t bits = 0;
    if (high)
        memcpy(&bits, high, 4);
    for (int l = 0; l < 16; l++) {
        q[l] = (uint8_t)((p[l] & 15) | (bits >> l & 1) << 4);
        q[l + 16] = (uint8_t)((p[l] >> 4) | (bits >> (l + 16) & 1) << 4);
    }
}

/* Blocks of 64 values: four scales, and eight bytes of codes for each; before them the factor, if they have
 * one. */
static void read_nvfp4(uint32_t type, const uint8_t *p, uint32_t n_blocks, struct quant_super *s)
{
    uint32_t size = quant_traits(type)->block_size;
    s->factor = 1;
    if (type == QUANT_NVFP4_SCALED) {
        memcpy(&s->factor, p, sizeof s->factor);
        p += sizeof s->factor;
    }
    for (uint32_t i = 0; i < 2 * n_blocks; i++) {
        const uint8_t *block = p + i / 4 * size, *codes = block + 4 + i % 4 * 8;
        s->scale[i] = (int8_t)quant_ue4m3(block[i % 4]);
        for (uint32_t l = 0; l < 8; l++) {
            s->q[16 * i + l] = codes[l] & 15;
            s->q[16 * i + 8 + l] = codes[l] >> 4;
        }
    }
}

/* Blocks of 256 values with a codebook. */
static void read_coded(uint32_t type, const uint8_t *p, struct quant_super *s)
{
    struct quant_codes c;
    bool per_16 = type == QUANT_IQ2_XS || type == QUANT_IQ2_S || type == QUANT_IQ1_M;
    quant_read_codes(type, p, &c);
    memcpy(s->q, c.code, sizeof s->q);
    for (uint32_t i = 0; i < 16; i++)
        s->scale[i] = per_16 ? c.scale[i] : c.scale[2 * i % 16];
    s->d = c.d;
}

/* Reads block j of a super-block, for the types with blocks of 32. */
static void read_block(uint32_t type, const uint8_t *p, uint32_t j, struct quant_super *s)
{
    uint8_t *q = s->q + j * BLOCK;
    if (type == QUANT_MXFP4) {
        s->s[j] = p[0];
        read_nibbles(p + 1, NULL, q);
        return;
    }
    memcpy(&s->s[j], p, 2);
    if (type == QUANT_Q4_1 || type == QUANT_Q5_1)
        memcpy(&s->m[j], p + 2, 2);
    if (type == QUANT_Q8_0)
        for (int l = 0; l < BLOCK; l++)
            q[l] = p[2 + l] ^ 0x80;
    else if (type == QUANT_Q5_0)
        read_nibbles(p + 6, p + 2, q);
    else if (type == QUANT_Q5_1)
        read_nibbles(p + 8, p + 4, q);
    else
        read_nibbles(p + (type == QUANT_Q4_1 ? 4 : 2), NULL, q);
}

void quant_super_read(uint32_t type, const uint8_t *p, uint32_t n_blocks, struct quant_super *s)
{
    const struct quant_traits *t = quant_traits(type);
    if (quant_codebook(type) && t->block == QUANT_SUPER) {
        read_coded(type, p, s);
        return;
    }
    switch (type) {
    case QUANT_NVFP4:
    case QUANT_NVFP4_SCALED:
        read_nvfp4(type, p, n_blocks, s);
        break;
    case QUANT_Q4_K:
        read_q4_k(p, s);
        break;
    case QUANT_Q5_K:
        read_q5_k(p, s);
        break;
    case QUANT_Q6_K:
        read_q6_k(p, s);
        break;
    case QUANT_Q3_K:
        read_q3_k(p, s);
        break;
    case QUANT_Q2_K:
        read_q2_k(p, s);
        break;
    default:
        for (uint32_t j = 0; j < n_blocks; j++)
            read_block(type, p + j * t->block_size, j, s);
    }
}

int32_t quant_super_value(uint32_t type, uint32_t stored)
{
    switch (type) {
    case QUANT_Q3_K:
        return (int32_t)stored - 4;
    case QUANT_Q4_0:
        return (int32_t)stored - 8;
    case QUANT_Q5_0:
        return (int32_t)stored - 16;
    case QUANT_Q6_K:
        return (int32_t)stored - 32;
    case QUANT_Q8_0:
        return (int32_t)stored - 128;
    default:
        return quant_codebook(type) ? quant_codebooks[quant_codebook(type)].value[stored & 15]
                                    : (int32_t)stored;
    }
}

float quant_super_scale(uint32_t type, const struct quant_super *s, uint32_t j)
{
    return type == QUANT_MXFP4 ? quant_half_e8m0(s->s[j]) : half_to_float(s->s[j]);
}
