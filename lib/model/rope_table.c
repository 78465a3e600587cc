/* rope_table.c - the rotation table, computed with the basic operations of doubles and integers only:
 * logarithms, powers, sines and cosines of a C library differ in the last bit between versions and
 * processors. */
#include "model.h"

#include <assert.h>
#include <float.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif
static_assert(FLT_EVAL_METHOD == 0, "every operation rounds to the width of its type");

/* log2 of a positive normal number, relative error below 1e-15: x = 2^e * m with m in [sqrt(1/2), sqrt(2)),
 * then the atanh series in s = (m-1)/(m+1), |s| < 0.172. */
static double log2_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t e = (int64_t)(bits - 0x3fe6a09e667f3bcdu) >> 52;
    bits -= (uint64_t)e << 52;
    memcpy(&x, &bits, sizeof x);
    double s = (x - 1) / (x + 1), z = s * s, sum = 0;
    for (int k = 25; k > 0; k -= 2)
        sum = sum * z + 1.0 / k;
    return (double)e + 2 * s * sum * 1.4426950408889634074;
}

/* 2^x for |x| < 1000, relative error below 1e-15: the Taylor series around the nearest integer. */
static double exp2_of(double x)
{
    int64_t n = (int64_t)(x < 0 ? x - 0.5 : x + 0.5);
    double f = (x - (double)n) * 0.69314718055994530942, sum = 1;
    for (int k = 16; k > 0; k--)
        sum = 1 + sum * f / k;
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* The angle between one position and the next, in units of 2^-64 turns: whole turns drop out, and large
 * angles need no reduction, because position * step wraps around as the angle does. */
static uint64_t step_of(const struct model_config *c, uint32_t i)
{
    double frequency = exp2_of(-2.0 * i / c->rope_dim * log2_of(c->rope_base)) / c->rope_scale;
    if (c->rope_factors)
        frequency /= (double)c->rope_factors[i];
    double turns = frequency * 0.15915494309189533577; /* 1 / 2 pi */
    if (!(turns < 0x1p52))
        return 0; /* whole turns only */
    return (uint64_t)((turns - (double)(uint64_t)turns) * 0x1p64);
}

/* Cosine and sine of an angle in units of 2^-64 turns, absolute error below 1e-15: the Taylor series within
 * an eighth of a turn around the nearest quarter. */
static void turn(uint64_t angle, float *cosine, float *sine)
{
    uint64_t quarter = (angle + ((uint64_t)1 << 61)) >> 62;
    double r = (double)(int64_t)(angle - (quarter << 62)) * (6.28318530717958647693 * 0x1p-64), z = r * r;
    double s = -1 / 1307674368000.0; /* 15!, 13!, ... */
    s = s * z + 1 / 6227020800.0;
    s = s * z - 1 / 39916800.0;
    s = s * z + 1 / 362880.0;
    s = s * z - 1 / 5040.0;
    s = s * z + 1 / 120.0;
    s = s * z - 1 / 6.0;
    s = r + r * z * s;
    double c = 1 / 20922789888000.0; /* 16!, 14!, ... */
    c = c * z - 1 / 87178291200.0;
    c = c * z + 1 / 479001600.0;
    c = c * z - 1 / 3628800.0;
    c = c * z + 1 / 40320.0;
    c = c * z - 1 / 720.0;
    c = c * z + 1 / 24.0;
    c = c * z - 1 / 2.0;
    c = 1 + c * z;
    double x = quarter & 1 ? s : c, y = quarter & 1 ? c : s;
    *cosine = (float)((quarter + 1) & 2 ? -x : x);
    *sine = (float)(quarter & 2 ? -y : y);
}

void model_rope_table(const struct model_config *c, uint32_t n_ctx, float *out)
{
    uint64_t step[MODEL_MAX_HEAD_DIM / 2];
    uint32_t pairs = c->rope_dim / 2;
    assert(pairs <= MODEL_MAX_HEAD_DIM / 2);
    for (uint32_t i = 0; i < pairs; i++)
        step[i] = step_of(c, i);
    for (uint32_t pos = 0; pos < n_ctx; pos++)
        for (uint32_t i = 0; i < pairs; i++, out += 2)
            turn(pos * step[i], &out[0], &out[1]);
}
