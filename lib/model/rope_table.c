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

#define LN2 0.69314718055994530942
#define PI  3.14159265358979323846

/* YaRN (Peng et al., 2023): pairs below `low` keep their angle, those from `high` on are divided by the
 * scale, between them a ramp. A pair's place is the one whose wave turns `beta` times within the original
 * context. */
struct yarn {
    double low, high;
};

static double whole_below(double x)
{
    double n = (double)(int64_t)x;
    return n > x ? n - 1 : n;
}

static double yarn_place(const struct model_rotation *r, double beta)
{
    return r->dim * log2_of(r->n_ctx_original / (beta * 2 * PI)) / (2 * log2_of(r->base));
}

static struct yarn yarn_of(const struct model_rotation *r)
{
    double low = whole_below(yarn_place(r, r->beta_fast)), high = -whole_below(-yarn_place(r, r->beta_slow));
    low = low > 0 ? low : 0;
    high = high < r->dim - 1 ? high : r->dim - 1;
    return (struct yarn){low, high};
}

/* The part of pair i's angle that is not divided. */
static double yarn_keep(const struct yarn *y, uint32_t i)
{
    double width = y->high - y->low > 0.001 ? y->high - y->low : 0.001, t = (i - y->low) / width;
    return t < 0 ? 1 : t > 1 ? 0 : 1 - t;
}

/* The factor of cosines and sines: it is in queries and in keys, so scores grow by its square. */
static double magnitude_of(const struct model_rotation *r)
{
    if (!r->yarn || r->scale <= 1)
        return r->magnitude;
    double log = 0.1 * LN2 * log2_of(r->scale);
    return r->magnitude * (1 + log) / (1 + (r->log_multiplier > 0 ? r->log_multiplier * log : 0));
}

double model_yarn_growth(double scale, double k)
{
    return scale > 1 ? 1 + 0.1 * k * LN2 * log2_of(scale) : 1;
}

/* The angle between one position and the next, in units of 2^-64 turns: whole turns drop out, and large
 * angles need no reduction, because position * step wraps around as the angle does. */
static uint64_t step_of(const struct model_rotation *r, const struct yarn *y, const float *factors,
                        uint32_t i)
{
    double whole = exp2_of(-2.0 * i / r->dim * log2_of(r->base)), frequency = whole / r->scale;
    if (r->yarn)
        frequency = whole * yarn_keep(y, i) + frequency * (1 - yarn_keep(y, i));
    if (factors)
        frequency /= (double)factors[i];
    double turns = frequency * 0.15915494309189533577; /* 1 / 2 pi */
    if (!(turns < 0x1p52))
        return 0; /* whole turns only */
    return (uint64_t)((turns - (double)(uint64_t)turns) * 0x1p64);
}

/* Cosine and sine of an angle in units of 2^-64 turns, absolute error below 1e-15: the Taylor series within
 * an eighth of a turn around the nearest quarter. */
static void turn(uint64_t angle, double magnitude, float *cosine, float *sine)
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
    *cosine = (float)(((quarter + 1) & 2 ? -x : x) * magnitude);
    *sine = (float)((quarter & 2 ? -y : y) * magnitude);
}

bool model_takes_long_factors(const struct model_rotation *r, uint32_t n_ctx)
{
    return r->long_factors && n_ctx > r->n_ctx_original;
}

void model_rope_table(const struct model_rotation *r, uint32_t n_ctx, float *out)
{
    uint64_t step[MODEL_MAX_HEAD_DIM / 2];
    uint32_t pairs = r->dim / 2;
    assert(pairs <= MODEL_MAX_HEAD_DIM / 2);
    const float *factors = model_takes_long_factors(r, n_ctx) ? r->long_factors : r->factors;
    struct yarn y = {0};
    if (r->yarn)
        y = yarn_of(r);
    for (uint32_t i = 0; i < pairs; i++)
        step[i] = step_of(r, &y, factors, i);
    double magnitude = magnitude_of(r);
    for (uint32_t pos = 0; pos < n_ctx; pos++)
        for (uint32_t i = 0; i < pairs; i++, out += 2)
            turn(pos * step[i], magnitude, &out[0], &out[1]);
}

float model_temperature(const struct model_attention *a, uint32_t pos)
{
    uint32_t steps = a->temperature_step ? pos / a->temperature_step : 0;
    return (float)(1 + (double)a->temperature * LN2 * log2_of(1.0 + steps));
}
