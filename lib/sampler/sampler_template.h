/* sampler_template.h - the source of the loops in sampler_loops.h.
 * Included once per instruction set, with SAMPLER_LOOPS the table's name and SAMPLER_ISA the set's; the
 * compiler vectorises it.
 * Thread: any; all functions are pure. */
#include "abi/arith.h"
#include "sampler_loops.h"

static void loop_weights(const float *restrict x, uint32_t n, float max, float *restrict w)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = arith_exp2((x[i] - max) * ARITH_LOG2E);
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

const struct sampler_loops SAMPLER_LOOPS = {
    .name = SAMPLER_ISA, .weights = loop_weights, .sum_weights = loop_sum_weights, .scores = loop_scores};
