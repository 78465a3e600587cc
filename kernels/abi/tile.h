/* tile.h - layout of weights and activations in device memory: what lib/cuda/pack.c writes, what products
 * read, and the sizes that the host plans with. It uses no device words: both sides include it.
 *
 * WEIGHTS  A matrix [n, k] is cut into tiles of 16 rows, a tile into super-block tiles of 256 columns, which
 * lie one after the other in the order (tile, super), each of tile_super_bytes(type). Rows beyond n and
 * columns beyond k are zero: values, scales and minimums, so that their blocks add nothing to a fold (a fold
 * starts at +0 and cannot become -0, so adding +-0 leaves every bit as it is).
 *
 * The values of an integer type are in the order of the A fragments of mma.m16n8k32 (simt.h): word r of lane
 * l = 4 g + t in block j has, in byte i, row g + 8 (r & 1), column 32 j + 16 (r >> 1) + 4 t + i. A value's
 * bits are split over planes, so that a lane reads 16 bytes at a time, neighbouring lanes read neighbouring
 * bytes, and one AND (at most with a shift) brings four values into place:
 *
 *   bytes   (8 bits)  [block 8][lane 32]: words 0..3                                              4096 bytes
 *   nibbles (4 bits)  [pair of blocks 4][lane 32]: for both blocks, words 0 | 2 << 4, 1 | 3 << 4  2048 bytes
 *   stacked (4 bits)  [pair of blocks 4][lane 32]: words 0..3, the even block's | the odd's << 4  2048 bytes
 *   pairs   (2 bits)  [half 2][lane 32][block of the half 4]: word r in bits 2r, 2r+1 of a byte   1024 bytes
 *   bits    (1 bit)   [lane 32][pair of blocks 4]: word r of block 2 p + e in bit 4 e + r          512 bytes
 *
 * Signed types (Q6_K, Q5_0, Q4_0) hold value - zero in two's complement: the upper four bits in the nibble,
 * the rest in the smaller plane. A product puts it at the top of a byte, which multiplies it by 4, 8 or 16;
 * tile_product.h says how the sum loses this factor. Unsigned types have the low four bits in the nibble.
 * Stacked nibbles need no shift: a product leaves an odd block's in place, 16 times too large.
 *
 * Types with a codebook hold codes. A lane looks four of them up at once, so they lie in adjacent nibbles of
 * a word: code i of word r in block 2 p + e is nibble q % 8 of word q / 8, where q = 16 e + 4 r + i.
 *
 *   codes   (4 bits)  [pair p 4][lane 32][word 4]                                                  2048 bytes
 *   threes  (3 bits)  [word 3][lane 32][pair p 4]: the nibbles' highest bits have word 3, bit b of its codes
 *                     in word b                                                                    1536 bytes
 *
 *   type   planes            then, by row of 16                                             bytes bits/weight
 *   Q4_K   stacked           {d, dmin f16; 12 bytes of 6-bit scales and minimums, below}     2304   4.5
 *   Q5_K   nibbles, bits     the same                                                        2816   5.5
 *   Q6_K   nibbles, pairs    16 int8 scales; then d f16 of all rows                          3360   6.5625
 *   Q2_K   pairs             16 bytes scale | min << 4; then {d, dmin f16} of all rows       1344   2.625
 *   Q8_0   bytes             8 f16 scales, by block                                          4352   8.5
 *   Q5_0   nibbles, bits     8 f16 scales                                                    2816   5.5
 *   Q4_0   nibbles           8 f16 scales                                                    2304   4.5
 *   Q5_1   nibbles, bits     8 f16 scales; then of all rows 8 f16 minimums                   3072   6
 *   MXFP4  codes             8 bf16 scales: powers of two beyond f16                         2304   4.5
 *   IQ4_NL codes             8 f16 scales                                                    2304   4.5
 *   NVFP4  codes             16 scales of type E4M3, halved when read; then d f32 of all rows 2368   4.625
 *   CODES  codes             16 int8 scales; then d f32 of all rows; then the codebook       2384   4.66
 *   THREES threes            the same                                                        1872   3.66
 *   F16    [column / 8][row 16][column % 8]                                                  8192   16
 *   BF16   the same                                                                          8192   16
 *   F32    [column / 4][row 16][column % 4]                                                 16384   32
 *
 * The 6-bit scales s and minimums m of Q4_K and Q5_K: byte i (0..3) of word h (0, 1) holds the low four bits,
 * s | m << 4, of block 4 h + i; byte i of word 2 holds the high two bits, s | m << 2, of block i, then of
 * block 4 + i. So each half of a tile has its scales in two words.
 *
 * The codebook of CODES and THREES is 16 int8 by code (THREES: 8); d has its unit (quant_codes.h) as a
 * factor. So GGUF's IQ4_XS, IQ3_S and IQ3_XXS become CODES, and IQ2_*, IQ1_* and TQ*, which have at most
 * eight values, THREES. Q3_K becomes Q6_K, Q4_1 becomes Q5_1: the same formula over wider values; a router's
 * F32 becomes BF16 where that holds every value. No bit of a result changes.
 *
 * ACTIVATIONS  of up to 8 columns (rows of a step) lie in a panel, super-block after super-block, each of
 * activation_super_bytes():
 *   integers  [pair of blocks 4][column][lane t 4]: 16 bytes, the B fragments {b0, b1} of both blocks
 *   scales    [block 8][column]: {a, b} f32: the block's scale, and a * (float)(sum of its integers); the
 *             number of columns here is rounded up to even
 *   floats    [column of W / 4][column][4]: x unquantised, only if a float type needs it
 * Blocks beyond k are zero. In shared memory a panel is as wide as it has columns, and in global memory that
 * of shared columns (product_is_shared()); others there always 8, one panel after the other.
 *
 * Units: bytes. Thread: any, host or device; pure functions. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define TILE_ROWS    16
#define TILE_COLUMNS 256 /* columns of a super-block */

enum tile_type {
    TILE_NONE,
    TILE_Q4_K,
    TILE_Q5_K,
    TILE_Q6_K,
    TILE_Q2_K,
    TILE_Q8_0,
    TILE_Q5_0,
    TILE_Q4_0,
    TILE_Q5_1,
    TILE_MXFP4,
    TILE_IQ4_NL,
    TILE_NVFP4,
    TILE_CODES,
    TILE_THREES,
    TILE_F16,
    TILE_BF16,
    TILE_F32,
    TILE_N_TYPES
};

#define TILE_BYTES_PLANE  4096
#define TILE_NIBBLE_PLANE 2048
#define TILE_PAIR_PLANE   1024
#define TILE_BIT_PLANE    512
#define TILE_CODE_PLANE   2048
#define TILE_THREE_PLANE  1536
#define TILE_ROW_SCALES   16 /* bytes per row of scales (of minimums) in every integer type */

static inline bool tile_has_nibbles(uint32_t type)
{
    return type == TILE_Q4_K || type == TILE_Q5_K || type == TILE_Q6_K || type == TILE_Q5_0 ||
           type == TILE_Q4_0 || type == TILE_Q5_1;
}

/* A byte of the nibbles' plane has values of two blocks. */
static inline bool tile_is_stacked(uint32_t type)
{
    return type == TILE_Q4_K;
}

static inline bool tile_has_pairs(uint32_t type)
{
    return type == TILE_Q6_K || type == TILE_Q2_K;
}

static inline bool tile_has_bits(uint32_t type)
{
    return type == TILE_Q5_K || type == TILE_Q5_0 || type == TILE_Q5_1;
}

/* Codes of 4 bits. */
static inline bool tile_has_codes(uint32_t type)
{
    return type == TILE_MXFP4 || type == TILE_IQ4_NL || type == TILE_NVFP4 || type == TILE_CODES;
}

static inline bool tile_is_coded(uint32_t type)
{
    return tile_has_codes(type) || type == TILE_THREES;
}

/* The codebook lies in the tile. */
static inline bool tile_has_book(uint32_t type)
{
    return type == TILE_CODES || type == TILE_THREES;
}

/* Scales stand per 16 values, not per 32. */
static inline bool tile_is_halved(uint32_t type)
{
    return tile_has_pairs(type) || tile_has_book(type) || type == TILE_NVFP4;
}

static inline bool tile_is_float(uint32_t type)
{
    return type >= TILE_F16;
}

/* Offset of the plane of pairs or of bits: behind the nibbles. */
static inline uint32_t tile_small_plane(uint32_t type)
{
    return tile_has_nibbles(type) ? TILE_NIBBLE_PLANE : 0;
}

/* Offset of an integer type's scales: behind its planes. */
static inline uint32_t tile_scales(uint32_t type)
{
    if (type == TILE_Q8_0)
        return TILE_BYTES_PLANE;
    if (tile_has_codes(type))
        return TILE_CODE_PLANE;
    if (type == TILE_THREES)
        return TILE_THREE_PLANE;
    return tile_small_plane(type) + (tile_has_pairs(type)  ? TILE_PAIR_PLANE
                                     : tile_has_bits(type) ? TILE_BIT_PLANE
                                                           : 0);
}

/* Offset of the codebook in a tile that has one. */
static inline uint32_t tile_book(uint32_t type)
{
    return tile_scales(type) + TILE_ROWS * (TILE_ROW_SCALES + 4);
}

/* Word i (0..3) of the codebook of a type whose tiles have none: the values of codes 4 i .. + 3, the first in
 * the lowest byte. E2M1 doubled for MXFP4 and NVFP4, the table of IQ4_NL. */
static inline uint32_t tile_fixed_book(uint32_t type, uint32_t i)
{
    if (type == TILE_IQ4_NL)
        return i == 0 ? 0xbfad9881u : i == 1 ? 0xf6eaddcfu : i == 2 ? 0x26190d01u : 0x71594535u;
    return i == 0 ? 0x03020100u : i == 1 ? 0x0c080604u : i == 2 ? 0xfdfeff00u : 0xf4f8fafcu;
}

/* Bytes of a super-block tile: a multiple of 16. */
static inline uint32_t tile_super_bytes(uint32_t type)
{
    if (tile_is_float(type))
        return TILE_ROWS * TILE_COLUMNS * (type == TILE_F32 ? 4 : 2);
    uint32_t more = type == TILE_Q6_K     ? 2 * TILE_ROWS
                    : type == TILE_Q2_K   ? 4 * TILE_ROWS
                    : type == TILE_NVFP4  ? 4 * TILE_ROWS
                    : tile_has_book(type) ? 5 * TILE_ROWS
                                          : 0;
    return tile_scales(type) + TILE_ROWS * TILE_ROW_SCALES * (type == TILE_Q5_1 ? 2 : 1) + more;
}
#define TILE_MAX_SUPER_BYTES 16384 /* F32: the least that a stage must hold */

static inline uint32_t tile_supers(uint32_t k)
{
    return (k + TILE_COLUMNS - 1) / TILE_COLUMNS;
}

#define ACTIVATION_COLUMNS 8   /* columns of a panel: N of the mma */
#define ACTIVATION_CHUNK   128 /* values that a warp quantises at a time */

enum activation_form { ACTIVATION_INTEGERS = 1, ACTIVATION_FLOATS = 2 };

/* The form of activations that a product with tiles of this type reads. */
static inline uint32_t activation_form(uint32_t type)
{
    return tile_is_float(type) ? ACTIVATION_FLOATS : ACTIVATION_INTEGERS;
}

/* Offsets in a super-block of a panel of `width` columns; `forms` is a set of enum activation_form. */
static inline uint32_t activation_scales_at(uint32_t width, uint32_t forms)
{
    return forms & ACTIVATION_INTEGERS ? width * TILE_COLUMNS : 0;
}

static inline uint32_t activation_floats_at(uint32_t width, uint32_t forms)
{
    return activation_scales_at(width, forms) + (forms & ACTIVATION_INTEGERS ? (width + 1) / 2 * 128 : 0);
}

static inline uint32_t activation_super_bytes(uint32_t width, uint32_t forms)
{
    return activation_floats_at(width, forms) + (forms & ACTIVATION_FLOATS ? width * TILE_COLUMNS * 4 : 0);
}

/* Bytes of a panel of `width` columns of k values. */
static inline uint32_t activation_panel_bytes(uint32_t width, uint32_t k, uint32_t forms)
{
    return tile_supers(k) * activation_super_bytes(width, forms);
}

/* Bytes of decoder_buffers.activations that a wide product needs. */
static inline uint64_t activation_buffer_bytes(uint32_t n_columns, uint32_t k, uint32_t forms)
{
    uint32_t n_panels = (n_columns + ACTIVATION_COLUMNS - 1) / ACTIVATION_COLUMNS;
    return (uint64_t)n_panels * activation_panel_bytes(ACTIVATION_COLUMNS, k, forms);
}

/* PRODUCTS  A product is wide if it reads its columns from global memory, where all blocks together quantised
 * them: when there are more columns than a panel has, or a panel does not fit a block's work area. */
static inline bool product_is_wide(uint32_t n_columns, uint32_t k, uint32_t forms, uint32_t work_bytes)
{
    return n_columns > ACTIVATION_COLUMNS || activation_panel_bytes(n_columns, k, forms) > work_bytes;
}

/* True if all blocks quantise the columns of a narrow product together, in a phase, and each copies them: of
 * several columns, when the warps of a block would have four chunks each or more (kernels/PREDICTIONS.md). */
static inline bool product_is_shared(uint32_t n_columns, uint32_t k, uint32_t n_warps)
{
    return n_columns > 1 && n_columns * tile_supers(k) * (TILE_COLUMNS / ACTIVATION_CHUNK) >= 4 * n_warps;
}

#define PRODUCT_WIDE (2 * ACTIVATION_COLUMNS) /* columns of a chunk of a wide product */
#define PRODUCT_CHUNK_SUMS                                                                                   \
    2048u /* bytes of a block's sums of a chunk, if its warps share stages by columns */

static inline uint32_t product_chunks(uint32_t n_columns)
{
    return (n_columns + PRODUCT_WIDE - 1) / PRODUCT_WIDE;
}

/* True if a block's warps share the stages of a wide product by columns (matmul/product_wide.h). By count
 * that is faster from five chunks on for 14 warps, even if a block has two tiles. */
static inline bool product_is_by_columns(uint32_t n_columns, uint32_t n_warps, uint32_t work_bytes)
{
    uint32_t n_chunks = product_chunks(n_columns);
    return n_chunks > 1 && n_chunks * 3 > n_warps && n_chunks * PRODUCT_CHUNK_SUMS <= work_bytes;
}

#define PRODUCT_PANEL (TILE_ROWS * ACTIVATION_COLUMNS) /* values of a super-block in one full panel */
#define PRODUCT_PARTS 3u /* the fold area has so many, which stages fill in turn: product_run_narrow() */

/* decoder_shared.fold_bytes, if a stage has up to `supers` super-blocks: two descriptions of a product (one
 * for the compute warps, one for the producer), the labels of stages, a narrow product's sums between stages,
 * and the values of a stage: of 8 columns in each part, of a wide product's 16 once. */
#define PRODUCT_VALUES_AT (2 * 384 + 256 + 1024)
static inline uint32_t product_fold_bytes(uint32_t supers)
{
    return PRODUCT_VALUES_AT + PRODUCT_PARTS * supers * PRODUCT_PANEL * 4;
}

/* Least decoder_shared.work_bytes: a wide product's sums between stages. */
static inline uint32_t product_work_bytes(uint32_t max_rows)
{
    return max_rows * 2 * TILE_ROWS * 4;
}
