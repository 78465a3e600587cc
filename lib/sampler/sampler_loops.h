/* sampler_loops.h - the sampler's loops over many values, compiled once per instruction set, with the same
 * bits.
 * Their source is sampler_template.h; sampler.c has the plain ones and selects by CPUID.
 * Thread: any; the tables are constant, the loops pure. Memory: none is allocated. */
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
    /* the sum of these weights over lanes, as sampler_norm() folds a segment */
    float (*sum_weights)(const float *x, uint32_t n, float max);
    /* score[i] = (x[i] - max) / temperature + arith_gumbel(seed, position, id[i]) */
    void (*scores)(const float *x, const uint32_t *id, uint32_t n, const struct sampler_noise *noise,
                   float *score);
};

extern const struct sampler_loops sampler_loops_plain, sampler_loops_avx2, sampler_loops_avx512;
/* The fastest loops that this processor supports. */
const struct sampler_loops *sampler_loops_best(void);
/* The loops number `index`, slowest first; NULL beyond the last that this processor supports. For tests. */
const struct sampler_loops *sampler_loops_at(uint32_t index);
