/* matmul_fold.h - folds the integer sums of a super-block to its value (arith.h), and writes the output; for
 * one vector width, shared by matmul_template.h and matmul_tiles.h.
 * Thread: any; all functions are pure. */
#include "matmul_unpack.h"

#define ROW_VECTORS (MATMUL_ROWS / LANES) /* row vectors per group */
struct scratch {
    struct expanded e[2];
    float total[2][MATMUL_CHUNK][2][LANES]; /* [half of K][column][row vector][lane] */
};

/* The scaled sum of block `slot` of e, s[j] * I[j] (arith.h), from the sums of its halves, or from `low`
 * alone. */
INLINE vf scaled(uint32_t kind, const struct expanded *e, uint32_t slot, vi low, vi high)
{
    if (PAIR_SUMS && has_whole_scales(kind))
        return vf_of(low);
    if (has_halves(kind))
        return vf_fma(vf_load(e->scale[2 * slot + 1]), vf_of(high),
                      vf_mul(vf_load(e->scale[2 * slot]), vf_of(low)));
    return vf_mul(vf_load(e->scale[slot]), vf_of(low));
}

/* The value of a super-block from its chains (arith.h). */
INLINE vf super_value(uint32_t fold, vf c, vf m, const struct expanded *e)
{
    if (fold == MATMUL_FOLD_K || fold == MATMUL_FOLD_K16M)
        return vf_fms(vf_load(e->d), c, vf_mul(vf_load(e->dmin), m));
    if (fold == MATMUL_FOLD_K16 || fold == MATMUL_FOLD_K32 || fold == MATMUL_FOLD_S16)
        return vf_mul(vf_load(e->d), c);
    return fold == MATMUL_FOLD_SM ? vf_add(c, m) : c;
}

/* The number of minima of a block. */
INLINE uint32_t minima_of(uint32_t fold)
{
    return fold == MATMUL_FOLD_K16M ? 2 : fold == MATMUL_FOLD_K || fold == MATMUL_FOLD_SM ? 1 : 0;
}

#if !PAIR_SUMS
/* The chain of minima of one column over n_blocks blocks. */
INLINE vf minima(uint32_t fold, const struct expanded *e, const struct matmul_panel *p, uint32_t column,
                 uint32_t n_blocks)
{
    vf m = vf_zero();
    if (fold == MATMUL_FOLD_K || fold == MATMUL_FOLD_SM)
        for (uint32_t j = 0; j < n_blocks; j++)
            m = vf_fma(vf_bcast(p->b + j * p->width + column), vf_load(e->min[j]), m);
    if (fold == MATMUL_FOLD_K16M)
        for (uint32_t i = 0; i < 2 * n_blocks; i++)
            m = vf_fma(vf_bcast(p->b16 + i * p->width + column), vf_load(e->min[i]), m);
    return m;
}
#endif

/* Expands the scales of the blocks of a row vector's tile, which begin at p. */
INLINE void expand_scales(uint32_t kind, const uint8_t *p, uint32_t n_blocks, uint32_t o,
                          const uint8_t bytes[2][MATMUL_SUPER_BLOCKS * MATMUL_ROWS], struct expanded *e)
{
    if (has_whole_scales(kind)) /* these types always have whole super-blocks */
#pragma GCC unroll 8
        for (uint32_t j = 0; j < MATMUL_SUPER_BLOCKS; j++)
            expand_block_scales(kind, p, MATMUL_SUPER_BLOCKS, o, j, bytes, j, e);
    else
        for (uint32_t j = 0; j < n_blocks; j++)
            expand_block_scales(kind, p, n_blocks, o, j, bytes, j, e);
}

/* Stores rows [row, row + LANES) of one column at `out`; rows beyond n are not written. */
INLINE void put(const struct matmul_matrix *m, uint32_t row, float *out, vf v)
{
    if (row + LANES <= m->n) {
        vf_storeu(out, v);
        return;
    }
    float lanes[LANES] __attribute__((aligned(64)));
    vf_store(lanes, v);
    for (uint32_t l = 0; row + l < m->n && l < LANES; l++)
        out[l] = lanes[l];
}

/* Writes the output of a chunk: half 0 + half 1 of K, for the groups g .. g + n_groups - 1 of the row
 * vectors; `out` is the first row of group g. */
static void put_chunk(const struct matmul_matrix *m, uint32_t g, uint32_t n_groups, uint32_t chunk,
                      uint32_t end, float *out, size_t stride, const struct scratch *s)
{
    for (uint32_t column = chunk; column < end; column++)
        for (uint32_t r = 0; r < n_groups * ROW_VECTORS; r++) {
            const float *t0 = s->total[0][column - chunk][r], *t1 = s->total[1][column - chunk][r];
            put(m, g * MATMUL_ROWS + r * LANES, out + column * stride + r * LANES,
                vf_add(vf_load(t0), vf_load(t1)));
        }
}
