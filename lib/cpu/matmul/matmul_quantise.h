/* matmul_quantise.h - quantises activations block by block, for one vector width.
 * Included once per instruction set, after the vector operations of matmul_template.h and
 *   quantise_block(x, q, sum)   arith_quantise() of 32 aligned values; sum: of each half of q
 * Thread: any; members of a team write disjoint super-blocks. */
#pragma once
#include "matmul_pack.h"

#define INLINE static inline __attribute__((always_inline))

/* Quantises block j of column c of a panel, from x[] * gain[] of that block. */
static void quantise_one(const struct matmul_panel *p, uint32_t c, uint32_t j, const float *x,
                         const float *gain)
{
    float v[ARITH_BLOCK] __attribute__((aligned(64)));
    int8_t q[ARITH_BLOCK] __attribute__((aligned(64)));
    int32_t sum[2];
    for (uint32_t i = 0; i < ARITH_BLOCK; i += LANES) {
        vf from = vf_loadu(x + i);
        vf_store(v + i, gain ? vf_mul(from, vf_loadu(gain + i)) : from);
    }
    float a = quantise_block(v, q, sum);
    matmul_panel_put(p, c, j, a, q, sum[0], sum[1]);
#if PAIR_SUMS
    p->n16[2 * j * p->width + c] = (int32_t)((uint32_t)-sum[1] << 16 | ((uint32_t)-sum[0] & 0xffff));
#endif
}

/* Quantises a super-block of all columns of a panel; k is its first value. */
static void quantise_super(const struct matmul_panel *p, uint32_t n_blocks, size_t k, const float *const *x,
                           const float *gain)
{
    for (uint32_t c = 0; c < p->width; c++)
        for (uint32_t j = 0; j < n_blocks; j++) {
            size_t at = k + j * ARITH_BLOCK;
            quantise_one(p, c, j, x[c] + at, gain ? gain + at : NULL);
        }
}

/* Stores the unquantised values of a super-block. */
static void keep_floats(const struct matmul_panel *p, uint32_t n, size_t k, const float *const *x,
                        const float *gain)
{
    for (uint32_t c = 0; c < p->width; c++)
        for (uint32_t i = 0; i < n; i++)
            p->x[i * p->width + c] = gain ? x[c][k + i] * gain[k + i] : x[c][k + i];
}
