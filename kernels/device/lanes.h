/* lanes.h - sums over a warp's lanes in the order of arith.h (LANES).
 * Thread: all 32 lanes of a warp call with the same arguments, but for the value that a lane adds. */
#pragma once
#include "simt.h"

/* Sums over lanes by the xor tree; every lane gets the sum. */
SIMT_INLINE float lanes_sum(float v)
{
    for (uint32_t w = SIMT_LANES / 2; w; w /= 2)
        v = v + simt_shfl_xor_f32(v, w);
    return v;
}

/* arith_rms_inverse() of n floats, any n. */
SIMT_INLINE float lanes_rms_inverse(const SIMT_GLOBAL float *x, uint32_t n, float eps)
{
    float v = 0.0f;
    for (uint32_t i = simt_lane(); i < n; i += SIMT_LANES)
        v = __builtin_fmaf(x[i], x[i], v);
    return 1.0f / __builtin_sqrtf(lanes_sum(v) / (float)n + eps);
}
