/* activation.h - the columns of a product: rows of a step, times a norm's gain, quantised into panels (tile.h
 * has their layout), and 1/rms beside them.
 *
 * A warp quantises 128 values of a row at a time: lane l has values 4 (l % 8) .. + 3 of block l / 8. Eight
 * lanes find a block's largest magnitude and its sum by shuffles; each then has one word of the block's B
 * fragments. Reads of a row (and gain) are 16 bytes a lane, 512 contiguous bytes a warp. About 180
 * instructions per 128 values, a division of floats among them.
 *
 * Rows are float, 16-byte aligned, k a multiple of 32.
 * Thread: activation_quantise(), activation_chunk(), activation_await() and activation_rms_inverse(): all
 * lanes of one warp; the others: any thread. */
#pragma once
#include "abi/arith.h"
#include "device/simt.h"
#include "device/words.h"
#include "abi/tile.h"

/* A panel: near, in the block's shared memory, or far, in global memory; every caller passes a constant for
 * which it is. */
struct activation {
    SIMT_SHARED char *near;
    SIMT_GLOBAL char *far;
    uint32_t width; /* columns of the layout */
    uint32_t forms; /* enum activation_form */
    uint32_t scales_at, floats_at, super_bytes;
    uint32_t far_at; /* bytes from `far` on */
    uint32_t second; /* far: bytes from this panel to the one that is multiplied beside it */
};

SIMT_INLINE struct activation activation_at(SIMT_SHARED char *near, SIMT_GLOBAL char *far, uint32_t width,
                                            uint32_t forms)
{
    return (struct activation){near,
                               far,
                               width,
                               forms,
                               activation_scales_at(width, forms),
                               activation_floats_at(width, forms),
                               activation_super_bytes(width, forms),
                               0,
                               0};
}

SIMT_INLINE void activation_put(const struct activation *a, bool is_far, uint32_t offset, uint32_t v)
{
    if (is_far)
        *(SIMT_GLOBAL uint32_t *)(a->far + offset) = v;
    else
        *(SIMT_SHARED uint32_t *)(a->near + offset) = v;
}

SIMT_INLINE void activation_put4(const struct activation *a, bool is_far, uint32_t offset, const float v[4])
{
    simt_u4 u = {arith_to_bits(v[0]), arith_to_bits(v[1]), arith_to_bits(v[2]), arith_to_bits(v[3])};
    if (is_far)
        *(SIMT_GLOBAL simt_u4 *)(a->far + offset) = u;
    else
        *(SIMT_SHARED simt_u4 *)(a->near + offset) = u;
}

SIMT_INLINE void activation_get4(const struct activation *a, bool is_far, uint32_t offset, uint32_t out[4])
{
    simt_u4 u;
    if (is_far)
        u = *(const SIMT_GLOBAL simt_u4 *)(a->far + offset);
    else
        u = *(const SIMT_SHARED simt_u4 *)(a->near + offset);
    for (uint32_t i = 0; i < 4; i++)
        out[i] = u[i];
}

/* Loads four words of a far panel, `more` bytes behind offset `at`. */
SIMT_INLINE void activation_far4(const struct activation *a, uint32_t at, const uint32_t more,
                                 uint32_t out[4])
{
    simt_u4 u = *(const SIMT_GLOBAL simt_u4 *)(a->far + (size_t)at + more);
    for (uint32_t i = 0; i < 4; i++)
        out[i] = u[i];
}

/* v = four neighbouring values, of which x has the bits, times their gains if there are any. */
SIMT_INLINE void activation_scale(simt_u4 x, const SIMT_GLOBAL float *gain, uint32_t i, float v[4])
{
    for (uint32_t e = 0; e < 4; e++)
        v[e] = arith_from_bits(x[e]);
    if (!gain)
        return;
    simt_u4 bits = *(const SIMT_GLOBAL simt_u4 *)(gain + i);
    for (uint32_t e = 0; e < 4; e++)
        v[e] = v[e] * arith_from_bits(bits[e]);
}

/* Loads four neighbouring values of a row, times their gains; 0 beyond k; a missing word gives a NaN. */
SIMT_INLINE void activation_load(const SIMT_GLOBAL float *x, const SIMT_GLOBAL float *gain, uint32_t k,
                                 uint32_t i, bool words, float v[4])
{
    for (uint32_t e = 0; e < 4; e++)
        v[e] = 0;
    if (i >= k)
        return;
    simt_u4 bits;
    if (words)
        bits = simt_ld_relaxed_gpu_u4((const SIMT_GLOBAL uint32_t *)(x + i));
    else
        bits = *(const SIMT_GLOBAL simt_u4 *)(x + i);
    activation_scale(bits, gain, i, v);
}

/* Waits, by a whole warp, until the values that activation_load() loaded from words are there: each lane
 * loads its own again while one of the warp's is missing. */
SIMT_INLINE void activation_await(const SIMT_GLOBAL float *x, const SIMT_GLOBAL float *gain, uint32_t k,
                                  uint32_t i, const struct flow_guard *guard, float v[4])
{
    bool numbers = v[0] == v[0] && v[1] == v[1] && v[2] == v[2] && v[3] == v[3];
    if (simt_ballot(!numbers) == 0)
        return;
    simt_u4 bits = words_take4(i < k ? x + i : NULL, guard);
    if (i < k)
        activation_scale(bits, gain, i, v);
}

/* The factors by which a block of values is quantised, as arith_quantise() has them. */
struct activation_by {
    float inverse, scale;
    bool finite;
};

/* top: the largest bits of the block's values, without their signs. */
SIMT_INLINE struct activation_by activation_by(uint32_t top)
{
    bool finite = top < 0x7f800000u, tiny = top < 0x0d800000u;
    float amax = arith_from_bits(top);
    return (struct activation_by){finite && !tiny ? 127.0f / amax : 0.0f,
                                  !finite ? arith_from_bits(0x7fc00000u)
                                  : tiny  ? 0.0f
                                          : arith_over_127(amax),
                                  finite};
}

SIMT_INLINE int32_t activation_integer(const struct activation_by *by, float v)
{
    return by->finite ? (int32_t)__builtin_rintf(v * by->inverse) : 0;
}

/* arith_quantise() by eight lanes with four values each. Returns the lane's word; sets the block's scale and
 * sum. */
SIMT_INLINE uint32_t activation_quantise(const float v[4], float *scale, int32_t *sum)
{
    uint32_t top = 0, word = 0;
    for (uint32_t e = 0; e < 4; e++) {
        uint32_t bits = arith_to_bits(v[e]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    for (uint32_t mask = 1; mask < 8; mask *= 2) {
        uint32_t other = simt_shfl_xor_u32(top, mask);
        top = other > top ? other : top;
    }
    struct activation_by by = activation_by(top);
    int32_t own = 0;
    for (uint32_t e = 0; e < 4; e++) {
        int32_t q = activation_integer(&by, v[e]);
        own += q;
        word |= (uint32_t)(q & 0xff) << 8 * e;
    }
    for (uint32_t mask = 1; mask < 8; mask *= 2)
        own += (int32_t)simt_shfl_xor_u32((uint32_t)own, mask);
    *sum = own;
    *scale = by.scale;
    return word;
}

/* Index of the first of this lane's four values of a chunk. */
SIMT_INLINE uint32_t activation_index(uint32_t chunk)
{
    return chunk * ACTIVATION_CHUNK + simt_lane() * 4;
}

/* Quantises values [128 chunk, + 128) of a row, of which this lane has v, into column `column` of a panel, by
 * a whole warp; chunks reach to the end of the last super-block. The last column of an odd width also clears
 * the scales of the unused column beside it. */
SIMT_INLINE void activation_chunk(const struct activation *a, const bool is_far, uint32_t column,
                                  const float v[4], uint32_t chunk)
{
    uint32_t lane = simt_opaque(simt_lane()), part = lane % 8, i = activation_index(chunk);
    uint32_t base = i / TILE_COLUMNS * a->super_bytes, j = i % TILE_COLUMNS / ARITH_BLOCK;
    if (a->forms & ACTIVATION_INTEGERS) {
        float scale;
        int32_t sum;
        uint32_t word = activation_quantise(v, &scale, &sum);
        uint32_t at = (j / 2 * a->width + column) * 64 + part % 4 * 16 + j % 2 * 8 + part / 4 * 4;
        activation_put(a, is_far, base + at, word);
        uint32_t even = (a->width + 1) / 2 * 2, own = part < 2 ? column : column + 1;
        if (part < 2 || (part < 4 && own == a->width && own < even)) {
            float s = part >= 2 ? 0.0f : part == 0 ? scale : scale * (float)sum;
            activation_put(a, is_far, base + a->scales_at + (j * even + own) * 8 + part % 2 * 4,
                           arith_to_bits(s));
        }
    }
    if (a->forms & ACTIVATION_FLOATS)
        activation_put4(a, is_far, base + a->floats_at + (i % TILE_COLUMNS / 4 * a->width + column) * 16, v);
}

SIMT_INLINE uint32_t activation_n_chunks(uint32_t k)
{
    return tile_supers(k) * (TILE_COLUMNS / ACTIVATION_CHUNK);
}

#define ACTIVATION_AHEAD 32 /* loads in flight: registers are free here, and memory latency is long */

SIMT_INLINE float activation_get(const SIMT_GLOBAL float *x, bool words)
{
    return words ? arith_from_bits(simt_ld_relaxed_gpu((const SIMT_GLOBAL uint32_t *)x)) : *x;
}

/* arith_rms_inverse() of a row, by a whole warp; every lane gets it. Lane l folds l, l + 32, ...: a chain of
 * k / 32 fused multiply-adds, for which other warps wait. words: the row is words, all of which the block has
 * seen or waited for. */
SIMT_INLINE float activation_rms_inverse(const SIMT_GLOBAL float *x, uint32_t k, float eps, const bool words)
{
    float v = 0;
    const SIMT_GLOBAL float *mine = x + simt_opaque(simt_lane());
    uint32_t n = k / ARITH_LANES, i = 0;
    SIMT_SMALL_LOOP
    for (; i + ACTIVATION_AHEAD <= n; i += ACTIVATION_AHEAD) {
        float ahead[ACTIVATION_AHEAD];
#pragma unroll
        for (uint32_t e = 0; e < ACTIVATION_AHEAD; e++)
            ahead[e] = activation_get(mine + (i + e) * ARITH_LANES, words);
#pragma unroll
        for (uint32_t e = 0; e < ACTIVATION_AHEAD; e++)
            v = __builtin_fmaf(ahead[e], ahead[e], v);
    }
    for (; i < n; i++) {
        float one = activation_get(mine + i * ARITH_LANES, words);
        v = __builtin_fmaf(one, one, v);
    }
    for (uint32_t mask = ARITH_LANES / 2; mask; mask /= 2)
        v = v + simt_shfl_xor_f32(v, mask);
    return 1.0f / __builtin_sqrtf(v / (float)k + eps);
}
