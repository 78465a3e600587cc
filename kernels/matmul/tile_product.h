/* tile_product.h - one super-block tile (16 rows x 256 columns of a matrix) times a panel of up to 8 columns,
 * or two panels, by one warp: the values v of kernels/abi/arith.h, on the tensor cores for integer weights.
 *
 * INTEGERS  For each block of 32: one mma m16n8k32 of int8 per panel (two m16n8k16 if scales stand per 16),
 * then the float fold of its four sums per lane: rows g and g + 8, columns 2t and 2t + 1 (g = lane / 4,
 * t = lane % 4). The mma starts from the bits of 1.5 * 2^23: its sums, read as floats, are 1.5 * 2^23 + I,
 * exact since |I| < 2^22 (TILE_LARGEST), so no conversion is needed, only a subtraction. If the scale is an
 * integer, subtraction and scaling are one exact fmaf: s * I < 2^24 (arith.h). Where integers come 2^n times
 * too large (tile.h), the mma starts from the bits of 1.5 * 2^(23 - n), whose lowest bit stands for 2^-n: so
 * the sum loses the factor without an instruction.
 *
 * CODES  are looked up: prmt takes four of them, as nibbles of a selector, to four bytes of a table of eight,
 * which is a codebook of three bits; one of four bits takes two of these and a third that chooses by the
 * codes' highest bits.
 *
 * ONE COLUMN  An mma multiplies eight columns, and a single sequence has one. So each block of 32 gets a
 * column of its own, with zeros in the others: eight mma into one accumulator make the sums of all eight
 * blocks, and a lane has those of two blocks, with their scales, instead of eight. Then the blocks are added
 * one after the other, from lane to lane, in the order that arith.h fixes.
 *
 * Reads are of 16 bytes and without bank conflicts: a quarter warp reads 128 neighbouring bytes. Instructions
 * per tile from ptxas 13 for sm_90, and those an SM of an H200 can issue while a tile arrives (4.1 TB/s,
 * 1,980 MHz):
 *
 *            one column   up to 8   far   16   slots
 *     Q4_K        236        358   380  660     587
 *     Q6_K        262        474   460  688     857
 *     Q8_0        133        218   225  427    1110
 *     MXFP4       318        408   420  631     587
 *     CODES       348        554   540  753     607
 *     THREES      239        444   435  838     477
 *     F16, BF16   700       2240  2240         2090
 *     F32         550       1890  1890         4180
 *
 * Two panels share what is read of the weights. Their loop has two blocks a turn, so that a warp waits for
 * its columns, which lie in L2, four times a tile; one far panel's has four (Q2_K and Q5_1: two), so that it
 * waits twice. The figures of far panels are those of their loops and, outside them, about those of near
 * ones.
 *
 * FLOATS  Chains of fmaf over the 256 columns, ascending: lane l has row l % 16 and columns 4 (l / 16) .. + 3
 * of the panel. Of one column a lane has one chain, of 1,024 cycles; while it adds a turn of columns, the
 * next ones are loaded, so that a tile takes 1,250 to 1,300.
 *
 * Thread: all lanes of one warp, with the same arguments except `lane`. */
#pragma once
#include "activation.h"
#include "device/f16.h"

#define TILE_BIAS      0x4b400000 /* bits of TILE_BIASED */
#define TILE_BIASED    12582912.0f
#define TILE_MAX_PANEL 2
#define TILE_LARGEST   (240 * 127 * 32) /* no block's sum is larger: an odd block of Q4_K has up to 16 * 15 */
_Static_assert(TILE_LARGEST < 1 << 22 && 128 * 127 * 32 < 1 << 22, "a float of 1.5 * 2^23 has room for it");

/* Scales of two, four or all blocks, rows g and g + 8: a byte per block (in `min` too) for Q4_K and Q5_K, a
 * byte per half-block where scales stand per 16, 16 bits per block for the others. */
struct tile_scales {
    uint32_t word[2][4], min[2][4]; /* [row] */
};

/* Scale and minimum, for rows g and g + 8, of one block or, for types with scales per 16, half-block. */
struct tile_scale {
    float s[2], min[2];
};

SIMT_INLINE void tile_load4(const SIMT_SHARED char *p, uint32_t out[4])
{
    simt_u4 u = *(const SIMT_SHARED simt_u4 *)p;
    for (uint32_t i = 0; i < 4; i++)
        out[i] = u[i];
}

SIMT_INLINE void tile_load2(const SIMT_SHARED char *p, uint32_t out[2])
{
    uint64_t u = *(const SIMT_SHARED uint64_t *)p;
    out[0] = (uint32_t)u;
    out[1] = (uint32_t)(u >> 32);
}

SIMT_INLINE uint32_t tile_load1(const SIMT_SHARED char *p)
{
    return *(const SIMT_SHARED uint32_t *)p;
}

/* Extracts the 6-bit scales or minimums of four blocks from words of their low four and high two bits, which
 * `low` and `high` have brought to bits 0 and 4 of each byte. */
SIMT_INLINE uint32_t tile_six_bits(uint32_t low, uint32_t high)
{
    return (low & 0x0f0f0f0fu) | (high & 0x30303030u);
}

/* Reads the scales of all blocks, 16 bytes a row, of a type without minimums of 16 bits. */
SIMT_INLINE void tile_read_all_scales(const uint32_t type, const SIMT_SHARED char *tile, uint32_t lane,
                                      struct tile_scales *s)
{
    const SIMT_SHARED char *at = tile + tile_scales(type) + lane / 4 * TILE_ROW_SCALES;
#pragma unroll
    for (uint32_t row = 0; row < 2; row++, at += 8 * TILE_ROW_SCALES) {
        tile_load4(at, s->word[row]);
        if (type != TILE_Q4_K && type != TILE_Q5_K)
            continue;
        uint32_t high = s->word[row][3];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t low = s->word[row][1 + i];
            s->word[row][i] = tile_six_bits(low, i ? high : high << 4);
            s->min[row][i] = tile_six_bits(low >> 4, i ? high >> 2 : high << 2);
        }
    }
}

/* Reads the scales of two or four blocks: first .. first + n - 1. */
SIMT_INLINE void tile_read_scales(const uint32_t type, const uint32_t n, const SIMT_SHARED char *tile,
                                  uint32_t lane, uint32_t first, struct tile_scales *s)
{
    const SIMT_SHARED char *at = tile + tile_scales(type) + lane / 4 * TILE_ROW_SCALES;
#pragma unroll
    for (uint32_t row = 0; row < 2; row++, at += 8 * TILE_ROW_SCALES) {
        if (type == TILE_Q4_K || type == TILE_Q5_K) {
            uint32_t low = tile_load1(at + 4 + first / 4 * 4) >> first % 4 * 8;
            uint32_t high = tile_load1(at + 12) >> (first / 4 * 4 + first % 4 * 8);
            s->word[row][0] = tile_six_bits(low, high << 4);
            s->min[row][0] = tile_six_bits(low >> 4, high << 2);
        } else if (n == 4) {
            tile_load2(at + 2 * first, s->word[row]);
        } else {
            s->word[row][0] = tile_load1(at + 2 * first);
        }
        if (type == TILE_Q5_1)
            s->min[row][0] = tile_load1(at + TILE_ROWS * TILE_ROW_SCALES + 2 * first);
    }
}

/* Reads {d, dmin} of row g + 8 row, or the part of it that the type has. */
SIMT_INLINE void tile_read_d(const uint32_t type, const SIMT_SHARED char *tile, uint32_t lane, uint32_t row,
                             float *d, float *dmin)
{
    const SIMT_SHARED char *at = tile + tile_scales(type), *after = at + TILE_ROWS * TILE_ROW_SCALES;
    uint32_t r = lane / 4 + 8 * row, both = 0;
    if (type == TILE_Q4_K || type == TILE_Q5_K)
        both = tile_load1(at + r * TILE_ROW_SCALES);
    else if (type == TILE_Q2_K)
        both = tile_load1(after + 4 * r);
    else if (type == TILE_Q6_K)
        both = *(const SIMT_SHARED uint16_t *)(after + 2 * r);
    bool single = type == TILE_NVFP4 || tile_has_book(type);
    *d = single ? arith_from_bits(tile_load1(after + 4 * r)) : f16_to_float(both & 0xffffu);
    *dmin = f16_to_float(both >> 16);
}

/* log2 of the factor by which the integers of a block are too large. */
SIMT_INLINE uint32_t tile_excess(const uint32_t type, const uint32_t block)
{
    if (tile_is_stacked(type))
        return block % 2 * 4;
    return type == TILE_Q6_K ? 2 : type == TILE_Q5_0 ? 3 : type == TILE_Q4_0 ? 4 : 0;
}

/* Returns the bits of 1.5 * 2^(23 - excess), from which the sums of a block's integers start. */
SIMT_INLINE int32_t tile_bias(const uint32_t type, const uint32_t block)
{
    return TILE_BIAS - (int32_t)(tile_excess(type, block) << 23);
}

SIMT_INLINE float tile_biased(const uint32_t type, const uint32_t block)
{
    return arith_from_bits((uint32_t)tile_bias(type, block));
}

/* Extracts the scales of block i, or of its half-block h for types with scales per 16. */
SIMT_INLINE void tile_scale_of(const uint32_t type, const struct tile_scales *s, uint32_t i, uint32_t h,
                               struct tile_scale *out)
{
#pragma unroll
    for (uint32_t row = 0; row < 2; row++) {
        out->min[row] = 0;
        if (type == TILE_Q4_K || type == TILE_Q5_K) {
            out->s[row] = (float)(s->word[row][i / 4] >> 8 * (i % 4) & 0xffu);
            out->min[row] = (float)(s->min[row][i / 4] >> 8 * (i % 4) & 0xffu);
        } else if (type == TILE_Q6_K || tile_has_book(type)) { /* shifted as a whole word: extending a byte's
                                           sign takes three instructions more */
            out->s[row] = (float)((int32_t)(s->word[row][i / 2] << (24 - 16 * (i % 2) - 8 * h)) >> 24);
        } else if (type == TILE_Q2_K) {
            uint32_t byte = s->word[row][i / 2] >> (16 * (i % 2) + 8 * h);
            out->s[row] = (float)(byte & 15);
            out->min[row] = (float)(byte >> 4 & 15);
        } else if (type == TILE_NVFP4) { /* E4M3, halved: 2^119 lifts the exponent's bias from 127 to 8 */
            uint32_t byte = s->word[row][i / 2] >> (16 * (i % 2) + 8 * h) & 0xffu;
            out->s[row] = arith_from_bits(byte << 20) * 0x1p119f;
        } else {
            uint32_t bits = s->word[row][i / 2] >> 16 * (i % 2) & 0xffffu;
            out->s[row] = type == TILE_MXFP4 ? arith_from_bits(bits << 16) : f16_to_float(bits);
            if (type == TILE_Q5_1)
                out->min[row] = f16_to_float(s->min[row][i / 2] >> 16 * (i % 2) & 0xffffu);
        }
    }
}

/* Moves bit `bit` of every byte of `w` to bit `to` and applies `mask`. */
SIMT_INLINE uint32_t tile_move(uint32_t w, uint32_t bit, uint32_t to, uint32_t mask)
{
    return (bit > to ? w >> (bit - to) : w << (to - bit)) & mask;
}

/* The A fragment of block 2 p + e, from the nibbles of pair p and the smaller plane's word for that block. */
SIMT_INLINE void tile_unpack(const uint32_t type, const uint32_t nibbles[4], uint32_t small, uint32_t e,
                             uint32_t a[4])
{
    bool high = type == TILE_Q6_K || type == TILE_Q5_0 || type == TILE_Q4_0;
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
        uint32_t w = 0;
        if (tile_is_stacked(type))
            w = nibbles[r] & (e ? 0xf0f0f0f0u : 0x0f0f0f0fu);
        else if (tile_has_nibbles(type) && high)
            w = (r < 2 ? nibbles[2 * e + r] << 4 : nibbles[2 * e + r - 2]) & 0xf0f0f0f0u;
        else if (tile_has_nibbles(type))
            w = (r < 2 ? nibbles[2 * e + r] : nibbles[2 * e + r - 2] >> 4) & 0x0f0f0f0fu;
        if (type == TILE_Q6_K)
            w |= tile_move(small, 2 * r, 2, 0x0c0c0c0cu);
        if (type == TILE_Q2_K)
            w = small >> 2 * r & 0x03030303u;
        if (type == TILE_Q5_0)
            w |= tile_move(small, 4 * e + r, 3, 0x08080808u);
        if (type == TILE_Q5_K || type == TILE_Q5_1)
            w |= tile_move(small, 4 * e + r, 4, 0x10101010u);
        a[r] = w;
    }
}

/* --- codes --- */

SIMT_INLINE void tile_read_book(const uint32_t type, const SIMT_SHARED char *tile, uint32_t book[4])
{
    if (tile_has_book(type))
        tile_load4(tile + tile_book(type), book);
    for (uint32_t i = 0; !tile_has_book(type) && i < 4; i++)
        book[i] = tile_fixed_book(type, i);
}

/* The codes of pair p of blocks, from this lane's words of the three planes: three bits in each nibble. */
SIMT_INLINE void tile_unpack_threes(const uint32_t w[3][4], uint32_t p, uint32_t codes[4])
{
    for (uint32_t i = 0; i < 3; i++)
        codes[i] = w[i][p] & 0x77777777u;
    codes[3] = (w[0][p] >> 3 & 0x11111111u) | (w[1][p] >> 2 & 0x22222222u) | (w[2][p] >> 1 & 0x44444444u);
}

/* The A fragment of a block from its two words of codes: the values of codes of three bits are in the lower
 * half of the codebook; of four bits bit 3 chooses between both halves' values. */
SIMT_INLINE void tile_look_up(const uint32_t type, const uint32_t book[4], const uint32_t codes[2],
                              uint32_t a[4])
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t low = codes[i] & 0x77777777u, upper = (codes[i] >> 1 & 0x44444444u) | 0x32103210u;
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t v = simt_permute(book[0], book[1], low >> 16 * h);
            if (type != TILE_THREES)
                v = simt_permute(v, simt_permute(book[2], book[3], low >> 16 * h), upper >> 16 * h);
            a[2 * i + h] = v;
        }
    }
}

/* B fragments and scales of one block of a panel: this lane's columns. */
struct tile_column {
    uint32_t b[2];
    float a[2], sum[2]; /* by column: the scale, and scale * sum of integers */
};

/* Starts the sums of a block, or of a pair of blocks that share a lane's fragment (one column). */
SIMT_INLINE void tile_clear(const uint32_t type, const uint32_t even, const uint32_t odd, int32_t c[4])
{
    for (uint32_t i = 0; i < 4; i++)
        c[i] = tile_bias(type, i % 2 ? odd : even);
}

/* Adds a block's products. Stacked nibbles reach to 240, which is no signed byte. */
SIMT_INLINE void tile_mma(const uint32_t type, int32_t c[4], const uint32_t a[4], const uint32_t b[2])
{
    if (tile_is_stacked(type))
        simt_mma_u8s8(c, a, b);
    else
        simt_mma_s8s8(c, a, b);
}

/* A block's sum of integers, times the scale: exact if the scale is an integer, else rounded once. */
SIMT_INLINE float tile_scaled32(const uint32_t type, const uint32_t block, int32_t dot, float scale)
{
    float sum = arith_from_bits((uint32_t)dot), biased = tile_biased(type, block);
    if (type == TILE_Q4_K || type == TILE_Q5_K)
        return __builtin_fmaf(sum, scale, -biased * scale);
    return scale * (sum - biased);
}

/* The same of both halves of a block with scales per 16; all of these steps are exact. */
SIMT_INLINE float tile_scaled16(const uint32_t type, int32_t dot0, int32_t dot1, float scale0, float scale1)
{
    float biased = tile_biased(type, 0);
    float f = __builtin_fmaf(arith_from_bits((uint32_t)dot0), scale0, -biased * scale0);
    return __builtin_fmaf(arith_from_bits((uint32_t)dot1) - biased, scale1, f);
}

/* Adds one block to c and m; scales per 32. i: row i / 2, column i % 2. */
SIMT_INLINE void tile_fold32(const uint32_t type, const uint32_t block, const uint32_t a[4],
                             const struct tile_scale *s, const struct tile_column *x, float c[4], float m[4])
{
    int32_t dot[4];
    tile_clear(type, block, block, dot);
    tile_mma(type, dot, a, x->b);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        c[i] = __builtin_fmaf(x->a[i % 2], tile_scaled32(type, block, dot[i], s->s[i / 2]), c[i]);
        if (type == TILE_Q4_K || type == TILE_Q5_K || type == TILE_Q5_1)
            m[i] = __builtin_fmaf(x->sum[i % 2], s->min[i / 2], m[i]);
    }
}

/* The same with scales per 16. The minimums of Q2_K stand per 16 too; an mma with ones
 * computes the sums that they multiply. */
SIMT_INLINE void tile_fold16(const uint32_t type, const uint32_t a[4], const struct tile_scale s[2],
                             const struct tile_column *x, float c[4], float m[4])
{
    uint32_t ones[2] = {0x01010101u, 0x01010101u};
    int32_t dot[2][4], sums[2][4];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        tile_clear(type, 0, 0, dot[h]);
        simt_mma16_s8s8(dot[h], a + 2 * h, x->b[h]);
        if (type == TILE_Q2_K) {
            tile_clear(type, 0, 0, sums[h]);
            simt_mma16_s8s8(sums[h], ones, x->b[h]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float f = tile_scaled16(type, dot[0][i], dot[1][i], s[0].s[i / 2], s[1].s[i / 2]);
        c[i] = __builtin_fmaf(x->a[i % 2], f, c[i]);
        for (uint32_t h = 0; type == TILE_Q2_K && h < 2; h++) {
            float b = x->a[i % 2] * (arith_from_bits((uint32_t)sums[h][i]) - TILE_BIASED);
            m[i] = __builtin_fmaf(b, s[h].min[i / 2], m[i]);
        }
    }
}

SIMT_INLINE float tile_value(const uint32_t type, float d, float dmin, float c, float m)
{
    if (type == TILE_Q4_K || type == TILE_Q5_K || type == TILE_Q2_K)
        return __builtin_fmaf(d, c, -(dmin * m));
    if (type == TILE_Q6_K || type == TILE_NVFP4 || tile_has_book(type))
        return d * c;
    return type == TILE_Q5_1 ? c + m : c;
}

/* Takes up the fragments and scales of block e of a pair. */
SIMT_INLINE void tile_take_column(struct tile_column *to, const uint32_t b[4], const uint32_t s[4],
                                  const uint32_t e)
{
    for (uint32_t i = 0; i < 2; i++) {
        to->b[i] = b[2 * e + i];
        to->a[i] = arith_from_bits(s[2 * i]);
        to->sum[i] = arith_from_bits(s[2 * i + 1]);
    }
}

/* A lane's place in a near panel: the fragments of column g of a pair of blocks, and the scales of columns
 * 2t, 2t + 1 of a block. If the panel is narrower, the lane reads other columns again, without a branch;
 * their sums are not used. */
struct tile_near {
    const SIMT_SHARED char *integers, *scales;
    uint32_t pair_bytes, block_bytes;
};

SIMT_INLINE struct tile_near tile_near_at(const struct activation *x, uint32_t lane, uint32_t super)
{
    uint32_t g = lane / 4, t = lane % 4, c = t;
    const SIMT_SHARED char *base = x->near + super * x->super_bytes;
    g = g < x->width ? g : x->width - 1;
    c = 2 * c < x->width ? c : (x->width - 1) / 2;
    return (struct tile_near){base + g * 64 + t * 16, base + x->width * TILE_COLUMNS + c * 16, x->width * 64,
                              (x->width + 1) / 2 * 16};
}

/* Reads this lane's part of a pair of blocks and goes on to the next. */
SIMT_INLINE void tile_near_columns(struct tile_near *at, struct tile_column out[2])
{
    uint32_t b[4], s[4];
    tile_load4(at->integers, b);
    at->integers += at->pair_bytes;
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        tile_load4(at->scales, s);
        at->scales += at->block_bytes;
        tile_take_column(&out[e], b, s, e);
    }
}

/* The same of a far panel, for the pair of blocks first + more. Addresses are sums of one that is the same
 * for the whole grid, an offset of 32 bits and a constant: pointers would take twice the registers. */
SIMT_INLINE void tile_far_columns(const struct activation *x, const uint32_t panel, uint32_t lane,
                                  uint32_t super, uint32_t first, const uint32_t more,
                                  struct tile_column out[2])
{
    uint32_t base = x->far_at + super * x->super_bytes + panel * x->second, b[4], s[4];
    uint32_t integers = base + first * ARITH_BLOCK * ACTIVATION_COLUMNS + lane * 16;
    uint32_t scales =
        base + ACTIVATION_COLUMNS * TILE_COLUMNS + first * ACTIVATION_COLUMNS * 8 + lane % 4 * 16;
    activation_far4(x, integers, more * ARITH_BLOCK * ACTIVATION_COLUMNS, b);
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        activation_far4(x, scales, (more + e) * ACTIVATION_COLUMNS * 8, s);
        tile_take_column(&out[e], b, s, e);
    }
}

/* This lane's words of the smaller planes, and of those of THREES. */
struct tile_small {
    uint32_t word[4];      /* pairs: by block; bits: by pair of blocks */
    uint32_t threes[3][4]; /* by pair of blocks */
};

/* Reads this lane's words of blocks first .. first + n - 1; n: tile_turn(). */
SIMT_INLINE void tile_read_small(const uint32_t type, const uint32_t n, const SIMT_SHARED char *tile,
                                 uint32_t lane, uint32_t first, struct tile_small *out)
{
    const SIMT_SHARED char *plane = tile + tile_small_plane(type) + lane * 16;
#pragma unroll
    for (uint32_t i = 0; type == TILE_THREES && i < 3; i++)
        if (n == 4)
            tile_load2(plane + i * 512 + first * 2, out->threes[i]);
        else
            out->threes[i][0] = tile_load1(plane + i * 512 + first * 2);
    if (tile_has_pairs(type) && n == 4)
        tile_load4(plane + first / 4 * 512, out->word);
    else if (tile_has_pairs(type))
        tile_load2(plane + first / 4 * 512 + first % 4 * 4, out->word);
    else if (tile_has_bits(type) && n == 8)
        tile_load4(plane, out->word);
    else if (tile_has_bits(type) && n == 4)
        tile_load2(plane + first * 2, out->word);
    else if (tile_has_bits(type))
        out->word[0] = tile_load1(plane + first * 2);
}

/* Adds blocks first .. first + n - 1 of a tile to c and m of n_panels panels, the first of which is number
 * `panel`. n: tile_turn(). near: the next blocks' columns, unless the panels are far. */
SIMT_INLINE void tile_multiply_blocks(const uint32_t type, const uint32_t panel, const uint32_t n_panels,
                                      const uint32_t n, struct tile_near *near, const SIMT_SHARED char *tile,
                                      uint32_t lane, const struct activation *x, uint32_t super,
                                      uint32_t first, float c[TILE_MAX_PANEL][4], float m[TILE_MAX_PANEL][4])
{
    uint32_t book[4];
    struct tile_small small = {.word = {0}};
    struct tile_scales scales;
    if (n == 8)
        tile_read_all_scales(type, tile, lane, &scales);
    else
        tile_read_scales(type, n, tile, lane, first, &scales);
    if (tile_is_coded(type))
        tile_read_book(type, tile, book);
    tile_read_small(type, n, tile, lane, first, &small);
#pragma unroll
    for (uint32_t pair = 0; pair < n / 2; pair++) {
        struct tile_column columns[TILE_MAX_PANEL][2];
        uint32_t nibbles[4] = {0};
        if (tile_has_nibbles(type) || tile_has_codes(type))
            tile_load4(tile + (first / 2 + pair) * 512 + lane * 16, nibbles);
        if (type == TILE_THREES)
            tile_unpack_threes(small.threes, pair, nibbles);
#pragma unroll
        for (uint32_t p = 0; p < n_panels; p++)
            if (near)
                tile_near_columns(near, columns[p]);
            else
                tile_far_columns(x, panel + p, lane, super, first, 2 * pair, columns[p]);
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t a[4], i = 2 * pair + e;
            struct tile_scale s[2];
            if (type == TILE_Q8_0)
                tile_load4(tile + (first + i) * 512 + lane * 16, a);
            else if (tile_is_coded(type))
                tile_look_up(type, book, nibbles + 2 * e, a);
            else
                tile_unpack(type, nibbles, small.word[tile_has_pairs(type) ? i : pair], e, a);
            tile_scale_of(type, &scales, i, 0, &s[0]);
            if (tile_is_halved(type))
                tile_scale_of(type, &scales, i, 1, &s[1]);
#pragma unroll
            for (uint32_t p = 0; p < n_panels; p++)
                if (tile_is_halved(type))
                    tile_fold16(type, a, s, &columns[p][e], c[p], m[p]);
                else
                    tile_fold32(type, e, a, s, &columns[p][e], c[p], m[p]);
        }
    }
}

/* Blocks that are taken at a time: all, whose scales are then read once; four of far columns, which wait in
 * registers, and of types with two scales a block; two of two panels, of Q2_K, which has two minimums a
 * block, and of Q5_1, whose minimums stand in words of their own. More would need more registers than a block
 * of 512 threads has (128 each); other warps hide the cost of the loop. */
SIMT_INLINE uint32_t tile_turn(const uint32_t type, const uint32_t n_panels, const bool is_far)
{
    if (n_panels > 1 || type == TILE_Q2_K || type == TILE_Q5_1)
        return 2;
    return is_far || tile_is_halved(type) ? 4 : 8;
}

/* Panels that share a loop. Q2_K's minimums stand per 16, and THREES has three planes: of these two panels
 * need more registers than there are. */
SIMT_INLINE uint32_t tile_at_once(const uint32_t type, const uint32_t n_panels)
{
    return type == TILE_Q2_K || type == TILE_THREES ? 1 : n_panels;
}

/* v[p][i]: row g + 8 (i / 2), column 2t + i % 2 of panel p. Several panels are far. */
SIMT_INLINE void tile_multiply(const uint32_t type, const uint32_t n_panels, const bool is_far,
                               const SIMT_SHARED char *tile, uint32_t lane, const struct activation *x,
                               uint32_t super, float v[TILE_MAX_PANEL][4])
{
    const uint32_t n = tile_turn(type, n_panels, is_far), at_once = tile_at_once(type, n_panels);
    float c[TILE_MAX_PANEL][4] = {{0}}, m[TILE_MAX_PANEL][4] = {{0}};
    struct tile_near near;
    if (!is_far)
        near = tile_near_at(x, lane, super);
#pragma unroll
    for (uint32_t p = 0; p < n_panels; p += at_once)
#pragma clang loop unroll(disable)
        for (uint32_t first = 0; first < TILE_COLUMNS / ARITH_BLOCK; first += n)
            tile_multiply_blocks(type, p, at_once, n, is_far ? NULL : &near, tile, lane, x, super,
                                 n == 8 ? 0 : simt_opaque(first), c + p, m + p);
#pragma unroll
    for (uint32_t row = 0; row < 2; row++) {
        float d, dmin;
        tile_read_d(type, tile, lane, row, &d, &dmin);
#pragma unroll
        for (uint32_t p = 0; p < n_panels; p++)
            for (uint32_t i = 2 * row; i < 2 * row + 2; i++)
                v[p][i] = tile_value(type, d, dmin, c[p][i], m[p][i]);
    }
}

/* --- a single column --- */

/* A lane's two blocks, 2 p and 2 p + 1 with p = 3 - t: the scales of rows g and g + 8. */
SIMT_INLINE void tile_read_own_scales(const uint32_t type, const SIMT_SHARED char *tile, uint32_t lane,
                                      struct tile_scales *s)
{
    uint32_t p = 3 - lane % 4, in_word = p % 2 * 16;
    const SIMT_SHARED char *at = tile + tile_scales(type) + lane / 4 * TILE_ROW_SCALES;
#pragma unroll
    for (uint32_t row = 0; row < 2; row++, at += 8 * TILE_ROW_SCALES) {
        if (type == TILE_Q4_K || type == TILE_Q5_K) {
            uint32_t low = tile_load1(at + 4 + p / 2 * 4) >> in_word;
            uint32_t high = tile_load1(at + 12) >> (in_word + p / 2 * 4);
            s->word[row][0] = (low & 0x0f0f0f0fu) | (high << 4 & 0x30303030u);
            s->min[row][0] = (low >> 4 & 0x0f0f0f0fu) | (high << 2 & 0x30303030u);
        } else {
            s->word[row][0] = tile_load1(at + 4 * p);
        }
        if (type == TILE_Q5_1)
            s->min[row][0] = tile_load1(at + TILE_ROWS * TILE_ROW_SCALES + 4 * p);
    }
}

/* All eight blocks of a tile times one column: dot[0][i], dot[1][i] (the halves of a block with scales per
 * 16, else dot[0] alone) is row g + 8 (i / 2), block 2 (3 - t) + i % 2. Block j's integers stand in column
 * j ^ 6 of the B fragments, zeros in the others, so that eight products into one accumulator are eight
 * sums. */
SIMT_INLINE void tile_dots(const uint32_t type, const SIMT_SHARED char *tile, uint32_t lane,
                           const struct activation *x, uint32_t base, int32_t dot[2][4])
{
    uint32_t mine = lane / 4 ^ 6, own[2], small[4] = {0}, nibbles[4] = {0}, book[4], threes[3][4];
    const SIMT_SHARED char *plane = tile + tile_small_plane(type) + lane * 16;
    if (tile_is_coded(type))
        tile_read_book(type, tile, book);
    for (uint32_t i = 0; type == TILE_THREES && i < 3; i++)
        tile_load4(tile + i * 512 + lane * 16, threes[i]);
    tile_clear(type, 0, 1, dot[0]);
    tile_clear(type, 0, 1, dot[1]);
    tile_load2(x->near + base + mine / 2 * 64 + mine % 2 * 8 + lane % 4 * 16, own);
#pragma unroll
    for (uint32_t j = 0; j < TILE_COLUMNS / ARITH_BLOCK; j++) {
        uint32_t a[4], b[2] = {mine == j ? own[0] : 0, mine == j ? own[1] : 0};
        if (tile_has_pairs(type) ? j % 4 == 0 : tile_has_bits(type) && j == 0)
            tile_load4(plane + j / 4 * 512, small);
        if ((tile_has_nibbles(type) || tile_has_codes(type)) && j % 2 == 0)
            tile_load4(tile + j / 2 * 512 + lane * 16, nibbles);
        else if (type == TILE_THREES && j % 2 == 0)
            tile_unpack_threes(threes, j / 2, nibbles);
        if (type == TILE_Q8_0)
            tile_load4(tile + j * 512 + lane * 16, a);
        else if (tile_is_coded(type))
            tile_look_up(type, book, nibbles + 2 * (j % 2), a);
        else
            tile_unpack(type, nibbles, small[tile_has_pairs(type) ? j % 4 : j / 2], j % 2, a);
        if (tile_is_halved(type)) {
            simt_mma16_s8s8(dot[0], a, b[0]);
            simt_mma16_s8s8(dot[1], a + 2, b[1]);
        } else {
            tile_mma(type, dot[0], a, b);
        }
    }
}

/* Adds this lane's two blocks to the sums of the lane above, which has the two before them, in four turns:
 * after turn i the lanes with t = 3 - i have theirs, and lane t = 0 has all at the end. Other lanes' sums are
 * of no use. */
SIMT_INLINE void tile_chain(const float u[2], const float w[2][2], float sum[2])
{
    sum[0] = sum[1] = 0;
#pragma unroll
    for (uint32_t turn = 0; turn < 4; turn++)
#pragma unroll
        for (uint32_t row = 0; row < 2; row++) {
            if (turn) /* 3 -> 2 -> 1 -> 0 */
                sum[row] = simt_shfl_xor_f32(sum[row], turn == 2 ? 3 : 1);
            sum[row] = __builtin_fmaf(u[0], w[row][0], sum[row]);
            sum[row] = __builtin_fmaf(u[1], w[row][1], sum[row]);
        }
}

/* The products of a tile of integers and a near panel of one column, for rows g and g + 8; valid in the lanes
 * with t = 0. Not for Q2_K, whose minimums stand per 16. */
SIMT_INLINE void tile_multiply_one(const uint32_t type, const SIMT_SHARED char *tile, uint32_t lane,
                                   const struct activation *x, uint32_t super, float v[2])
{
    uint32_t base = super * x->super_bytes, p = 3 - lane % 4;
    struct tile_scales scales;
    struct tile_scale s[2];
    float a[2], sum[2], f[2][2], least[2][2], c[2], m[2] = {0, 0};
    int32_t dot[2][4];
    tile_dots(type, tile, lane, x, base, dot);
    tile_read_own_scales(type, tile, lane, &scales);
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        uint32_t both[2];
        tile_load2(x->near + base + TILE_COLUMNS + (2 * p + e) * 16, both);
        a[e] = arith_from_bits(both[0]);
        sum[e] = arith_from_bits(both[1]);
        tile_scale_of(type, &scales, e, 0, &s[0]);
        if (tile_is_halved(type))
            tile_scale_of(type, &scales, e, 1, &s[1]);
#pragma unroll
        for (uint32_t row = 0; row < 2; row++) {
            uint32_t i = 2 * row + e;
            f[row][e] = tile_is_halved(type)
                            ? tile_scaled16(type, dot[0][i], dot[1][i], s[0].s[row], s[1].s[row])
                            : tile_scaled32(type, e, dot[0][i], s[0].s[row]);
            least[row][e] = s[0].min[row];
        }
    }
    tile_chain(a, f, c);
    if (type == TILE_Q4_K || type == TILE_Q5_K || type == TILE_Q5_1)
        tile_chain(sum, least, m);
#pragma unroll
    for (uint32_t row = 0; row < 2; row++) {
        float d, dmin;
        tile_read_d(type, tile, lane, row, &d, &dmin);
        v[row] = tile_value(type, d, dmin, c[row], m[row]);
    }
}

/* --- floats --- */

/* Loads weights `quad` (of 4 columns) of this lane's row. */
SIMT_INLINE void tile_float_weights(const uint32_t type, const SIMT_SHARED char *tile, uint32_t row,
                                    uint32_t quad, float w[4])
{
    if (type == TILE_F32) {
        uint32_t bits[4];
        tile_load4(tile + (quad * TILE_ROWS + row) * 16, bits);
        for (uint32_t i = 0; i < 4; i++)
            w[i] = arith_from_bits(bits[i]);
        return;
    }
    const SIMT_SHARED uint64_t *at =
        (const SIMT_SHARED uint64_t *)(tile + (quad / 2 * TILE_ROWS + row) * 16 + quad % 2 * 8);
    uint64_t bits = *at;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t h = (uint32_t)(bits >> 16 * i) & 0xffffu;
        w[i] = type == TILE_F16 ? f16_to_float(h) : arith_from_bits(h << 16);
    }
}

/* v[i]: row lane % 16, column 4 (lane / 16) + i of one panel. */
SIMT_INLINE void tile_multiply_floats(const uint32_t type, const bool is_far, const SIMT_SHARED char *tile,
                                      uint32_t lane, const struct activation *x, uint32_t super, float v[4])
{
    uint32_t first = lane / TILE_ROWS * 4, at[4];
    uint32_t base = (is_far ? x->far_at : 0) + super * x->super_bytes + x->floats_at;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        at[i] = base + (first + i < x->width ? first + i : x->width - 1) * 16;
        v[i] = 0;
    }
#pragma clang loop unroll_count(2)
    for (uint32_t quad = 0; quad < TILE_COLUMNS / 4; quad++) {
        float w[4];
        tile_float_weights(type, tile, lane % TILE_ROWS, quad, w);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t u[4];
            activation_get4(x, is_far, at[i] + quad * x->width * 16, u);
            for (uint32_t e = 0; e < 4; e++)
                v[i] = __builtin_fmaf(w[e], arith_from_bits(u[e]), v[i]);
        }
    }
}

/* Some neighbouring columns of this lane's row of a tile, and of the only column of a panel. */
struct tile_floats {
    uint32_t w[16], x[16];
};

/* Columns whose weights a lane loads together: those of two loads. */
SIMT_INLINE uint32_t tile_float_turn(const uint32_t type)
{
    return type == TILE_F32 ? 8 : 16;
}

/* Loads a turn of columns, from `column` on. */
SIMT_INLINE void tile_ask_floats(const uint32_t type, const SIMT_SHARED char *row, const SIMT_SHARED char *x,
                                 uint32_t column, struct tile_floats *f)
{
    const uint32_t n = tile_float_turn(type);
#pragma unroll
    for (uint32_t i = 0; i < n; i += 4)
        tile_load4(x + (column + i) * 4, f->x + i);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        tile_load4(row + (column / (n / 2) + i) * TILE_ROWS * 16, f->w + 4 * i);
}

/* Returns c with a turn of columns added, ascending. */
SIMT_INLINE float tile_add_floats(const uint32_t type, const struct tile_floats *f, float c)
{
#pragma unroll
    for (uint32_t i = 0; i < tile_float_turn(type); i++) {
        uint32_t bits = f->w[type == TILE_F32 ? i : i / 2], upper = i % 2 ? bits & 0xffff0000u : bits << 16;
        float w = arith_from_bits(type == TILE_F32 ? bits : upper);
        c = __builtin_fmaf(type == TILE_F16 ? f16_to_float(upper >> 16) : w, arith_from_bits(f->x[i]), c);
    }
    return c;
}

/* The products of a tile of floats and a near panel of one column, for row lane % 16: one chain, a turn of
 * which is loaded while the turn before is added. */
SIMT_INLINE float tile_multiply_one_float(const uint32_t type, const SIMT_SHARED char *tile, uint32_t lane,
                                          const struct activation *x, uint32_t super)
{
    const SIMT_SHARED char *row = tile + lane % TILE_ROWS * 16;
    const SIMT_SHARED char *at = x->near + super * x->super_bytes + x->floats_at;
    const uint32_t n = tile_float_turn(type);
    struct tile_floats even, odd;
    float c = 0;
    tile_ask_floats(type, row, at, 0, &even);
    SIMT_SMALL_LOOP
    for (uint32_t column = 0; column < TILE_COLUMNS - 2 * n; column += 2 * n) {
        tile_ask_floats(type, row, at, column + n, &odd);
        c = tile_add_floats(type, &even, c);
        tile_ask_floats(type, row, at, column + 2 * n, &even);
        c = tile_add_floats(type, &odd, c);
    }
    tile_ask_floats(type, row, at, TILE_COLUMNS - n, &odd);
    return tile_add_floats(type, &odd, tile_add_floats(type, &even, c));
}
