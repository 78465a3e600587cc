/* sampler_loops.h - the sampler's loops over many values, compiled once per instruction set, with the same
 * bits.
 * Their source is sampler_template.h; sampler.c has the plain ones and selects by CPUID.
 * Thread: any; the tables are constant, the loops pure. Memory: none is allocated. */
#pragma once
#include <stdint.h>

struct sampler_input;

struct sampler_noise {
    float max, temperature;
    uint64_t seed;
    uint32_t position;
};

/* Keys from `high` down to `low` in n_buckets; every product with `stretch` is a normal number. */
struct sampler_range {
    float low, high, stretch, scale;
    uint32_t n_buckets;
};

struct sampler_loops {
    const char *name;
    /* w[i] = arith_exp2((x[i] - max) * ARITH_LOG2E) */
    void (*weights)(const float *x, uint32_t n, float max, float *w);
    /* mass[i] = trunc(w[i] * 2^40) of these; added to *total, and times the distance from max to *surprise,
     * of those that have a mass (sampler.h). */
    void (*masses)(const float *x, uint32_t n, float max, uint64_t *mass, uint64_t *total,
                   uint64_t *surprise);
    /* key[i] = -|(max - x[i]) - mean| */
    void (*nearness)(const float *x, uint32_t n, float max, float mean, float *key);
    /* The bucket of each key, larger keys in smaller ones; n_buckets of a key outside the range. */
    void (*buckets)(const float *key, uint32_t n, const struct sampler_range *range, uint32_t *bucket);
    /* The number of keys in bucket b; they lower *low and raise *high. */
    uint32_t (*bounds)(const float *key, const uint32_t *bucket, uint32_t n, uint32_t b, float *low,
                       float *high);
    /* The sum of these over lanes, as sampler_norm() folds a segment. */
    float (*sum_weights)(const float *x, uint32_t n, float max);
    /* score[i] = (x[i] - max) / temperature + arith_gumbel(seed, position, id[i]) */
    void (*scores)(const float *x, const uint32_t *id, uint32_t n, const struct sampler_noise *noise,
                   float *score);
    /* The number of values of arith_gumbel() that are greater, of the 2^23 it can have, or as many as that: 0
     * is the greatest. */
    void (*ranks)(const uint32_t *id, uint32_t n, const struct sampler_noise *noise, uint32_t *rank);
};

extern const struct sampler_loops sampler_loops_plain, sampler_loops_avx2, sampler_loops_avx512;
/* The fastest loops that this processor supports. */
const struct sampler_loops *sampler_loops_best(void);
/* The loops number `index`, slowest first; NULL beyond the last that this processor supports. For tests. */
const struct sampler_loops *sampler_loops_at(uint32_t index);
/* sampler_pick() with these loops. For tests. */
int32_t sampler_pick_with(const struct sampler_loops *loops, const struct sampler_input *in, void *scratch);
