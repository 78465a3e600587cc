/* sampler_template.h - the source of the loops in sampler_loops.h.
 * Included once per instruction set, with SAMPLER_LOOPS the table's name and SAMPLER_ISA the set's; the
 * compiler vectorises it.
 * Thread: any; all functions are pure. */
#include "abi/arith.h"
#include "sampler_loops.h"

#include <stdbool.h>

static void loop_weights(const float *restrict x, uint32_t n, float max, float *restrict w)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = arith_exp2((x[i] - max) * ARITH_LOG2E);
}

/* trunc(v * 2^40) of 0 <= v <= 1, without a conversion to 64 bits, which few instruction sets have for many
 * values at once. */
static inline uint64_t loop_fixed(float v)
{
    uint32_t bits = arith_to_bits(v), down = 127 - (bits >> 23);
    uint64_t mantissa = (bits & 0x7fffff) | 0x800000;
    return (mantissa << 17) >> (down < 63 ? down : 63);
}

static void loop_masses(const float *restrict x, uint32_t n, float max, uint64_t *restrict mass,
                        uint64_t *restrict total, uint64_t *restrict surprise)
{
    uint64_t sum = 0, distances = 0;
    for (uint32_t i = 0; i < n; i++) {
        float w = arith_exp2((x[i] - max) * ARITH_LOG2E);
        uint64_t m = loop_fixed(w), d = loop_fixed(w * (max - x[i]));
        mass[i] = m;
        sum += m;
        distances += m ? d : 0;
    }
    *total += sum;
    *surprise += distances;
}

static void loop_nearness(const float *restrict x, uint32_t n, float max, float mean, float *restrict key)
{
    for (uint32_t i = 0; i < n; i++) {
        float d = (max - x[i]) - mean;
        key[i] = d < 0.0f ? d : -d;
    }
}

static void loop_buckets(const float *restrict key, uint32_t n, const struct sampler_range *range,
                         uint32_t *restrict bucket)
{
    struct sampler_range r = *range;
    float high = r.high * r.stretch, last = (float)(int32_t)(r.n_buckets - 1);
    for (uint32_t i = 0; i < n; i++) {
        float down = (high - key[i] * r.stretch) * r.scale;
        bool inside = (key[i] >= r.low) & (key[i] <= r.high);
        down = down < last ? down : last;
        down = inside ? down : last + 1.0f;
        bucket[i] = (uint32_t)(int32_t)down;
    }
}

/* Lane by lane: a smallest and a largest have no order. */
static uint32_t loop_bounds(const float *restrict key, const uint32_t *restrict bucket, uint32_t n,
                            uint32_t b, float *restrict low, float *restrict high)
{
    float least[ARITH_LANES], most[ARITH_LANES];
    uint32_t count = 0, i = 0;
    for (uint32_t l = 0; l < ARITH_LANES; l++) {
        least[l] = *low;
        most[l] = *high;
    }
    for (; i + ARITH_LANES <= n; i += ARITH_LANES)
        for (uint32_t l = 0; l < ARITH_LANES; l++) {
            bool in = bucket[i + l] == b;
            float k = key[i + l], small = in ? k : least[l], large = in ? k : most[l];
            count += in;
            least[l] = small < least[l] ? small : least[l];
            most[l] = large > most[l] ? large : most[l];
        }
    for (uint32_t l = 0; i + l < n; l++)
        if (bucket[i + l] == b) {
            count++;
            least[l] = key[i + l] < least[l] ? key[i + l] : least[l];
            most[l] = key[i + l] > most[l] ? key[i + l] : most[l];
        }
    for (uint32_t l = 0; l < ARITH_LANES && count; l++) {
        *low = least[l] < *low ? least[l] : *low;
        *high = most[l] > *high ? most[l] : *high;
    }
    return count;
}

static float loop_sum_weights(const float *x, uint32_t n, float max)
{
    float v[ARITH_LANES] = {0};
    uint32_t i = 0;
    for (; i + ARITH_LANES <= n; i += ARITH_LANES)
        for (uint32_t l = 0; l < ARITH_LANES; l++)
            v[l] = v[l] + arith_exp2((x[i + l] - max) * ARITH_LOG2E);
    for (uint32_t l = 0; i + l < n; l++)
        v[l] = v[l] + arith_exp2((x[i + l] - max) * ARITH_LOG2E);
    return arith_tree(v);
}

static void loop_scores(const float *restrict x, const uint32_t *restrict id, uint32_t n,
                        const struct sampler_noise *noise, float *restrict score)
{
    struct sampler_noise k = *noise;
    for (uint32_t i = 0; i < n; i++)
        score[i] = (x[i] - k.max) / k.temperature + arith_gumbel(k.seed, k.position, id[i]);
}

static uint32_t rank_of(uint32_t bits)
{
    return ~bits >> 9;
}

static void loop_some_ranks(const uint32_t *restrict id, uint32_t n, uint64_t seed, uint32_t position,
                            uint32_t *restrict rank)
{
    for (uint32_t i = 0; i < n; i++)
        rank[i] = rank_of(arith_gumbel_bits(seed, position, id[i]));
}

/* Four tokens in a row share a counter. */
static void loop_row_ranks(uint32_t first, uint32_t n, uint64_t seed, uint32_t position,
                           uint32_t *restrict rank)
{
    uint32_t words[4][16], n_quads = n / 4;
    for (uint32_t q = 0; q < n_quads; q++) {
        uint32_t r[4];
        arith_philox(seed, position, first / 4 + q, r);
        for (int k = 0; k < 4; k++)
            words[k][q] = r[k];
    }
    for (uint32_t q = 0; q < n_quads; q++)
        for (int k = 0; k < 4; k++)
            rank[4 * q + (uint32_t)k] = rank_of(words[k][q]);
}

static void loop_ranks(const uint32_t *id, uint32_t n, const struct sampler_noise *noise, uint32_t *rank)
{
    bool in_row = n && n <= 64 && id[0] % 4 == 0 && n % 4 == 0;
    uint32_t apart = 0;
    for (uint32_t i = 0; i < n; i++)
        apart |= id[i] ^ (id[0] + i);
    if (in_row && !apart)
        loop_row_ranks(id[0], n, noise->seed, noise->position, rank);
    else
        loop_some_ranks(id, n, noise->seed, noise->position, rank);
}

const struct sampler_loops SAMPLER_LOOPS = {.name = SAMPLER_ISA,
                                            .weights = loop_weights,
                                            .masses = loop_masses,
                                            .nearness = loop_nearness,
                                            .buckets = loop_buckets,
                                            .bounds = loop_bounds,
                                            .sum_weights = loop_sum_weights,
                                            .scores = loop_scores,
                                            .ranks = loop_ranks};
