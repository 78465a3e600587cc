/* selftest.c - tests the basis of every product and fold with known answers. See gpu_kernels.h. One warp per
 * tile: the fragments of m16n8k32 as in simt.h, unsigned and signed, and of m16n8k16 on the tile's first
 * half; then the largest and the smallest of 32 words. One thread per input: IEEE operations that a flush to
 * zero, a fused product or an approximate division would change, the flush where the rules have it, the
 * functions of arith.h, both directions of f16, and the dot product of four bytes. Must match
 * tests/gpu/parts/part_selftest.c in every bit. */
#include "gpu_kernels.h"
#include "device/f16.h"

static void multiply(const SIMT_GLOBAL char *tile, SIMT_GLOBAL int32_t *out)
{
    const SIMT_GLOBAL uint32_t *a = (const SIMT_GLOBAL uint32_t *)tile, *b = a + 16 * 8; /* rows of 8 words */
    const SIMT_GLOBAL int32_t *c = (const SIMT_GLOBAL int32_t *)(b + 8 * 8);
    uint32_t g = simt_lane() / 4, t = simt_lane() % 4, at = g * 8 + t * 2;
    uint32_t fa[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    uint32_t fb[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
    int32_t u[4] = {c[at], c[at + 1], c[at + 64], c[at + 65]}, s[4] = {u[0], u[1], u[2], u[3]};
    int32_t h[4] = {u[0], u[1], u[2], u[3]};
    simt_mma_u8s8(u, fa, fb);
    simt_mma_s8s8(s, fa, fb);
    simt_mma16_s8s8(h, fa, fb[0]);
    out[at] = u[0], out[at + 1] = u[1], out[at + 64] = u[2], out[at + 65] = u[3];
    out += 128;
    out[at] = s[0], out[at + 1] = s[1], out[at + 64] = s[2], out[at + 65] = s[3];
    out += 128;
    out[at] = h[0], out[at + 1] = h[1], out[at + 64] = h[2], out[at + 65] = h[3];
    out += 128;
    out[simt_lane()] = (int32_t)simt_redux_max_u32(a[simt_lane()]);
    out[32 + simt_lane()] = (int32_t)simt_redux_min_u32(a[simt_lane()]);
}

static void compute(const struct selftest_args *args, uint32_t i)
{
    const SIMT_GLOBAL uint32_t *in = GPU_AT(const uint32_t, args->inputs);
    uint32_t n = args->n_inputs;
    float x = arith_from_bits(in[i]), y = arith_from_bits(in[n + i]), z = arith_from_bits(in[2 * n + i]);
    float magnitude = arith_from_bits(in[i] & 0x7fffffffu);
    float r[SELFTEST_N_FLOATS] = {
        [SELFTEST_FMA] = __builtin_fmaf(x, y, z),
        [SELFTEST_DIVIDE] = x / y,
        [SELFTEST_ROOT] = __builtin_sqrtf(magnitude),
        [SELFTEST_PRODUCT] = x * y + z, /* two roundings */
        [SELFTEST_ROUND] = __builtin_rintf(x),
        [SELFTEST_EXP2] = arith_exp2(z),
        [SELFTEST_LOG2] = arith_log2(magnitude),
        [SELFTEST_SILU] = arith_silu(z),
        [SELFTEST_TO_HALF] = arith_from_bits(f16_from_float(x)),
        [SELFTEST_FROM_HALF] = f16_to_float(in[n + i] & 0xffffu),
        [SELFTEST_FLUSHED] = arith_fma_flushed(x, y, z),
        [SELFTEST_DP4A] = arith_from_bits((uint32_t)simt_dp4a(in[i], in[n + i], (int32_t)in[2 * n + i])),
    };
#pragma clang loop unroll(full)
    for (uint32_t k = 0; k < SELFTEST_N_FLOATS; k++)
        GPU_AT(uint32_t, args->results)[k * n + i] = arith_to_bits(r[k]);
}

SIMT_KERNEL(gpu_selftest, struct selftest_args, SELFTEST_THREADS, 1)
{
    uint32_t warps = simt_n_threads() / SIMT_LANES;
    for (uint32_t i = simt_block() * warps + simt_warp(); i < args.n_tiles; i += simt_n_blocks() * warps)
        multiply(GPU_AT(const char, args.tiles) + i * SELFTEST_TILE_BYTES,
                 GPU_AT(int32_t, args.answers) + i * SELFTEST_ANSWERS);
    for (uint32_t i = simt_block() * simt_n_threads() + simt_thread(); i < args.n_inputs;
         i += simt_n_blocks() * simt_n_threads())
        compute(&args, i);
}
