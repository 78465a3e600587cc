/* matmul_pack.h - the memory layout of packed weights and quantised activations, shared by packing and
 * kernels.
 * Thread: any; all functions are pure. Memory: the caller's. Errors: none.
 *
 * WEIGHTS  A matrix is split into groups of 16 rows, a group into tiles of one super-block (256 columns; the
 * last tile of a row may have fewer blocks of 32). Before a tile stand its d and dmin, 16 f16 each, or its d,
 * 16 f32 (NVFP4); d alone, of f16, stands for two tiles, before the first of them, so that whole tiles are
 * whole cache lines, as whole groups are. A tile has the size that it has in the file, or a few percent more;
 * the types with grids have their codes (quant_codes.h), which take more:
 *   - the scales of all blocks, 16 rows side by side;
 *   - for each block of 32 columns: the 8 steps of 4 columns x 16 rows, a step being 64 bytes (byte 4 r + i =
 *     row r, column 4 t + i), as nibbles (step 2 i in the low, step 2 i + 1 in the high nibbles of vector
 *     i), then 2-bit planes (bits 2 (t % 4) of vector t / 4), then a 1-bit plane (bit t); of 6 bits, every
 *     four steps are three vectors of one step each, whose upper 2 bits are the fourth, lowest first.
 * So a kernel reads all of it in the order of addresses: what is read before its place in memory is a miss
 * that no prefetch is early enough for, and hardware prefetchers lose the stream.
 *
 * Values are stored unsigned, `zero` above their meaning (Q8_0: 128); or they are codes.
 *
 * ACTIVATIONS  Super-block by super-block, first int8, then scales. In each, columns form panels of 8 (the
 * last one may be narrower), and a panel's columns are adjacent: a kernel that multiplies a tile with all
 * columns reads one stream of addresses. Unquantised values, if kept, follow at the end, panel by panel. */
#pragma once
#include "abi/arith.h"
#include "base/half.h"
#include "matmul.h"
#include "gguf/quant.h"
#include "gguf/quant_super.h"

#include <assert.h>
#include <string.h>

#define MATMUL_STEPS        8   /* steps of 4 columns per block of 32 */
#define MATMUL_SUPER_BLOCKS 8   /* blocks per super-block */
#define MATMUL_CHUNK        128 /* columns that share one unpacking of a tile */

enum matmul_kind {
    MATMUL_Q4_K,
    MATMUL_Q5_K,
    MATMUL_Q6_K,
    MATMUL_Q3_K,
    MATMUL_Q2_K,
    MATMUL_Q8_0,
    MATMUL_Q5_0,
    MATMUL_Q4_0,
    MATMUL_Q4_1,
    MATMUL_Q5_1,
    MATMUL_MXFP4,
    MATMUL_IQ4_NL,
    MATMUL_IQ4_XS,
    MATMUL_IQ3_XXS,
    MATMUL_IQ3_S,
    MATMUL_IQ2_XXS,
    MATMUL_IQ2_XS,
    MATMUL_IQ2_S,
    MATMUL_IQ1_S,
    MATMUL_IQ1_M,
    MATMUL_TQ1_0,
    MATMUL_TQ2_0,
    MATMUL_NVFP4,
    MATMUL_F16,
    MATMUL_BF16,
    MATMUL_F32,
    MATMUL_N_KINDS
};

/* Defines how the integer sums of a super-block are folded to its float value (arith.h). */
enum matmul_fold {
    MATMUL_FOLD_K,     /* Q4_K Q5_K: a scale and a minimum per 32, d and dmin */
    MATMUL_FOLD_K32,   /* IQ4_XS and most with grids: a signed scale per 32, d; TQ1_0 TQ2_0: d */
    MATMUL_FOLD_K16,   /* Q6_K Q3_K, IQ2_XS IQ2_S IQ1_M: a signed scale per 16, d */
    MATMUL_FOLD_K16M,  /* Q2_K: a scale and a minimum per 16, d and dmin */
    MATMUL_FOLD_S,     /* Q8_0 Q5_0 Q4_0, IQ4_NL MXFP4: a float scale per 32 */
    MATMUL_FOLD_S16,   /* NVFP4: a float scale per 16, d of f32 */
    MATMUL_FOLD_SM,    /* Q4_1 Q5_1: an f16 scale and minimum per 32 */
    MATMUL_FOLD_FLOAT, /* F32 F16 BF16 */
};

struct matmul_traits {
    uint8_t type; /* enum quant_type */
    uint8_t fold; /* enum matmul_fold */
    uint8_t bits; /* bits of a stored value: 8, or a sum of 4, 2 and 1; floats: 16 or 32 */
    /* Stored value minus its meaning. For codes: the offset that kernels of unsigned pairs add to their
     * meaning; 0: they multiply signed values. With integer scales: a power of two. */
    uint8_t zero;
    uint16_t scale_size;  /* bytes of scales per block and 16 rows */
    uint16_t global_size; /* bytes of d and dmin per 16 rows */
    uint8_t codes;        /* enum quant_codebook: stored values are codes */
};
/* Defined in the header so that kernels instantiated for a kind see constants. */
static const struct matmul_traits matmul_traits[MATMUL_N_KINDS] = {
    [MATMUL_Q4_K] = {QUANT_Q4_K, MATMUL_FOLD_K, 4, 0, 24, 64},
    [MATMUL_Q5_K] = {QUANT_Q5_K, MATMUL_FOLD_K, 5, 0, 24, 64},
    [MATMUL_Q6_K] = {QUANT_Q6_K, MATMUL_FOLD_K16, 6, 32, 32, 32},
    [MATMUL_Q3_K] = {QUANT_Q3_K, MATMUL_FOLD_K16, 3, 4, 24, 32},
    [MATMUL_Q2_K] = {QUANT_Q2_K, MATMUL_FOLD_K16M, 2, 0, 32, 64},
    [MATMUL_Q8_0] = {QUANT_Q8_0, MATMUL_FOLD_S, 8, 128, 32, 0},
    [MATMUL_Q5_0] = {QUANT_Q5_0, MATMUL_FOLD_S, 5, 16, 32, 0},
    [MATMUL_Q4_0] = {QUANT_Q4_0, MATMUL_FOLD_S, 4, 8, 32, 0},
    [MATMUL_Q4_1] = {QUANT_Q4_1, MATMUL_FOLD_SM, 4, 0, 64, 0},
    [MATMUL_Q5_1] = {QUANT_Q5_1, MATMUL_FOLD_SM, 5, 0, 64, 0},
    [MATMUL_MXFP4] = {QUANT_MXFP4, MATMUL_FOLD_S, 4, 12, 16, 0, QUANT_CODES_FP4},
    [MATMUL_IQ4_NL] = {QUANT_IQ4_NL, MATMUL_FOLD_S, 4, 0, 32, 0, QUANT_CODES_IQ4},
    [MATMUL_IQ4_XS] = {QUANT_IQ4_XS, MATMUL_FOLD_K32, 4, 0, 16, 32, QUANT_CODES_IQ4},
    [MATMUL_IQ3_XXS] = {QUANT_IQ3_XXS, MATMUL_FOLD_K32, 4, 64, 16, 32, QUANT_CODES_IQ3_XXS},
    [MATMUL_IQ3_S] = {QUANT_IQ3_S, MATMUL_FOLD_K32, 4, 16, 16, 32, QUANT_CODES_IQ3_S},
    [MATMUL_IQ2_XXS] = {QUANT_IQ2_XXS, MATMUL_FOLD_K32, 3, 64, 16, 32, QUANT_CODES_IQ2},
    [MATMUL_IQ2_XS] = {QUANT_IQ2_XS, MATMUL_FOLD_K16, 3, 64, 32, 32, QUANT_CODES_IQ2},
    [MATMUL_IQ2_S] = {QUANT_IQ2_S, MATMUL_FOLD_K16, 3, 64, 32, 32, QUANT_CODES_IQ2},
    [MATMUL_IQ1_S] = {QUANT_IQ1_S, MATMUL_FOLD_K32, 3, 16, 16, 32, QUANT_CODES_IQ1},
    [MATMUL_IQ1_M] = {QUANT_IQ1_M, MATMUL_FOLD_K16, 3, 16, 32, 32, QUANT_CODES_IQ1},
    [MATMUL_TQ1_0] = {QUANT_TQ1_0, MATMUL_FOLD_K32, 2, 1, 0, 32, QUANT_CODES_NONE},
    [MATMUL_TQ2_0] = {QUANT_TQ2_0, MATMUL_FOLD_K32, 2, 1, 0, 32, QUANT_CODES_NONE},
    [MATMUL_NVFP4] = {QUANT_NVFP4, MATMUL_FOLD_S16, 4, 16, 32, 64, QUANT_CODES_FP4},
    [MATMUL_F16] = {QUANT_F16, MATMUL_FOLD_FLOAT, 16, 0, 0, 0},
    [MATMUL_BF16] = {QUANT_BF16, MATMUL_FOLD_FLOAT, 16, 0, 0, 0},
    [MATMUL_F32] = {QUANT_F32, MATMUL_FOLD_FLOAT, 32, 0, 0, 0},
};

static inline uint32_t matmul_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The bytes of the values of one block of 32 columns x 16 rows. */
static inline size_t matmul_block_size(const struct matmul_traits *t)
{
    return (size_t)t->bits * (ARITH_BLOCK * MATMUL_ROWS / 8);
}

static inline size_t matmul_tile_size(const struct matmul_traits *t, uint32_t n_blocks)
{
    return n_blocks * (matmul_block_size(t) + t->scale_size);
}

/* The offset of block j in a tile of n_blocks, behind the scales of all. */
static inline size_t matmul_block_at(const struct matmul_traits *t, uint32_t n_blocks, uint32_t j)
{
    return n_blocks * (size_t)t->scale_size + j * matmul_block_size(t);
}

/* The bytes for d and dmin of n tiles: whole cache lines. */
static inline size_t matmul_globals_size(const struct matmul_traits *t, uint32_t n)
{
    return ((size_t)n * t->global_size + 63) / 64 * 64;
}

static inline uint32_t matmul_n_super(uint32_t k)
{
    return (k + ARITH_SUPER - 1) / ARITH_SUPER;
}

/* The number of whole blocks in super-block `super` of a row of k values. */
static inline uint32_t matmul_n_blocks(uint32_t k, uint32_t super)
{
    return matmul_min(MATMUL_SUPER_BLOCKS, k / ARITH_BLOCK - super * MATMUL_SUPER_BLOCKS);
}

/* The number of values in super-block `super` of a row of k values: of floats, whose last block may be short.
 */
static inline uint32_t matmul_n_values(uint32_t k, uint32_t super)
{
    return matmul_min(ARITH_SUPER, k - super * ARITH_SUPER);
}

/* The number of super-blocks in the first half of the row. */
static inline uint32_t matmul_half(uint32_t n_super)
{
    return (n_super + 1) / 2;
}

static inline const uint8_t *matmul_tile(const struct matmul_matrix *m, uint32_t group, uint32_t super)
{
    const struct matmul_traits *t = &matmul_traits[m->kind];
    return m->data + group * m->group_size + matmul_globals_size(t, super + 1) +
           super * matmul_tile_size(t, MATMUL_SUPER_BLOCKS);
}

/* The address of d and dmin of a tile. */
static inline const uint8_t *matmul_globals(const struct matmul_matrix *m, uint32_t group, uint32_t super)
{
    size_t size = matmul_traits[m->kind].global_size;
    uint32_t behind = size == 32 ? super % 2 : 0; /* the first of the tiles that share its line */
    return matmul_tile(m, group, super - behind) - (size ? 64 : 0) + behind * size;
}

/* The factor of a super-block: d, in the unit of its values. */
static inline float matmul_unit(uint32_t kind)
{
    const struct matmul_traits *t = &matmul_traits[kind];
    return t->codes && t->fold != MATMUL_FOLD_S && t->fold != MATMUL_FOLD_S16 ? quant_codebooks[t->codes].unit
                                                                              : 1.0f;
}

/* Reads row `row` of super-block `super` of an integer matrix. */
void matmul_tile_read(const struct matmul_matrix *m, uint32_t row, uint32_t super, struct quant_super *out);
/* Returns value `column` of row `row` of a float tile. */
float matmul_tile_float(uint32_t kind, const uint8_t *tile, uint32_t row, uint32_t column);

/* Super-block `super` of the columns [8 p, 8 p + width) of an input. Arrays are [index][width]; blocks j and
 * values k count from the start of the super-block. */
struct matmul_panel {
    uint32_t width;
    int8_t *q;  /* [k/4][width][4] */
    float *a;   /* [j]: scale */
    float *b;   /* [j]: scale * sum of the block's int8 */
    float *b16; /* [2 j + half]: the same of half-blocks */
    int32_t *n; /* [j]: -128 * sum of the block's int8: the start of sums over values with zero 128 */
    /* [2 j + half]: -32 * sum of the half-block's int8: the start of sums with zero 32. Kernels that sum
     * pairs store at [2 j] the negative of both sums, 16 bits each. */
    int32_t *n16;
    float *x; /* [k]: unquantised */
};

/* Per column and super-block: the number of scales and sums, and the bytes of all. */
#define MATMUL_COLUMN_SCALES (MATMUL_SUPER_BLOCKS * 7)
#define MATMUL_COLUMN_SUPER  (ARITH_SUPER + MATMUL_COLUMN_SCALES * 4)

static inline struct matmul_panel matmul_panel(const struct matmul_input *in, uint32_t p, uint32_t super)
{
    uint32_t first = p * MATMUL_PANEL, w = matmul_min(MATMUL_PANEL, in->n_columns - first);
    size_t quantised = (size_t)matmul_n_super(in->k) * in->n_columns * MATMUL_COLUMN_SUPER;
    struct matmul_panel v = {.width = w};
    int8_t *base = (int8_t *)in->data + (size_t)super * in->n_columns * MATMUL_COLUMN_SUPER;
    v.q = base + (size_t)first * ARITH_SUPER;
    v.a =
        (float *)(void *)(base + (size_t)in->n_columns * ARITH_SUPER) + (size_t)first * MATMUL_COLUMN_SCALES;
    v.b = v.a + MATMUL_SUPER_BLOCKS * w;
    v.b16 = v.b + MATMUL_SUPER_BLOCKS * w;
    v.n = (int32_t *)(void *)(v.b16 + 2 * MATMUL_SUPER_BLOCKS * w);
    v.n16 = v.n + MATMUL_SUPER_BLOCKS * w;
    v.x = (float *)(void *)((int8_t *)in->data + quantised);
    v.x += (size_t)in->k * first + (size_t)super * ARITH_SUPER * w;
    return v;
}

/* Moves from one whole panel to the next. */
static inline void matmul_panel_next(struct matmul_panel *p)
{
    size_t scales = (size_t)MATMUL_PANEL * MATMUL_COLUMN_SCALES;
    p->q += (size_t)MATMUL_PANEL * ARITH_SUPER;
    p->a += scales;
    p->b += scales;
    p->b16 += scales;
    p->n += scales;
    p->n16 += scales;
}

/* Writes block j of a column, which the caller has quantised, to its place in a panel. */
static inline void matmul_panel_put(const struct matmul_panel *p, uint32_t column, uint32_t j, float a,
                                    const int8_t q[ARITH_BLOCK], int32_t sum0, int32_t sum1)
{
    uint32_t w = p->width;
    int8_t *to = p->q + (j * MATMUL_STEPS * w + column) * 4;
    for (uint32_t t = 0; t < MATMUL_STEPS; t++)
        memcpy(to + (size_t)t * w * 4, q + t * 4, 4);
    p->a[j * w + column] = a;
    p->b[j * w + column] = a * (float)(sum0 + sum1);
    p->b16[2 * j * w + column] = a * (float)sum0;
    p->b16[(2 * j + 1) * w + column] = a * (float)sum1;
    p->n[j * w + column] = -128 * (sum0 + sum1);
    p->n16[2 * j * w + column] = -32 * sum0;
    p->n16[(2 * j + 1) * w + column] = -32 * sum1;
}
