/* sampler_loops.h - the sampler's loops over many values, once per instruction set, all of the same bits.
 * sampler_template.h is their source; sampler.c holds the plain ones and chooses by CPUID. */
#pragma once
#include <stdint.h>

struct sampler_noise {
    float max, temperature;
    uint64_t seed;
    uint32_t position;
};

struct sampler_loops {
    const char *name;
    /* w[i] = arith_exp2((x[i] - max) * ARITH_LOG2E) */
    void (*weights)(const float *x, uint32_t n, float max, float *w);
    /* The sum of these over lanes, as sampler_norm() folds a segment. */
    float (*sum_weights)(const float *x, uint32_t n, float max);
    /* score[i] = (x[i] - max) / temperature + arith_gumbel(seed, position, id[i]) */
    void (*scores)(const float *x, const uint32_t *id, uint32_t n, const struct sampler_noise *noise,
                   float *score);
};

extern const struct sampler_loops sampler_loops_plain, sampler_loops_avx2, sampler_loops_avx512;
/* The fastest this processor has. */
const struct sampler_loops *sampler_loops_best(void);
/* Number `index`, slowest first, or NULL behind the last one this processor has: for tests. */
const struct sampler_loops *sampler_loops_at(uint32_t index);
