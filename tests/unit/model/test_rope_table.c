/* RoPE's table, against long doubles and the C library. */
#include "model/model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_CTX 131072

static const float factors[64] = {
    [0 ... 20] = 1, [21] = 1.3f, [22] = 1.9f, [23] = 2.6f, [24] = 3.7f, [25 ... 63] = 8};

static const struct model_rotation configs[] = {
    {.dim = 128, .base = 1e6, .magnitude = 1, .scale = 1},
    {.dim = 128, .base = 500000, .magnitude = 1, .scale = 1, .factors = factors},
    {.dim = 64, .base = 10000, .magnitude = 1, .scale = 4},
    {.dim = 80, .base = 2, .magnitude = 1, .scale = 0.001},
};
#define N_CONFIGS (sizeof configs / sizeof *configs)

static float *table_of(const struct model_rotation *c)
{
    float *table = malloc(sizeof(float) * N_CTX * c->dim);
    cr_assert_not_null(table);
    model_rope_table(c, N_CTX, table);
    return table;
}

/* Every 41st position: it shares no factor with a power of two, and a pair's angles fall anywhere. */
Test(rope_table, is_the_long_double_value_rounded_to_f32)
{
    for (size_t n = 0; n < N_CONFIGS; n++) {
        const struct model_rotation *c = &configs[n];
        float *table = table_of(c);
        for (uint32_t i = 0; i < c->dim / 2; i++) {
            long double f = powl(c->base, -2.0L * i / c->dim) / c->scale;
            f /= c->factors ? c->factors[i] : 1;
            for (uint32_t pos = 0; pos < N_CTX; pos += 41) {
                const float *entry = table + ((size_t)pos * (c->dim / 2) + i) * 2;
                /* Half a unit in the last place of values up to 1, and what doubles lose of large angles. */
                long double bound = 0x1p-25L + 0x1p-52L * (1 + pos * f);
                cr_assert(fabsl((long double)entry[0] - cosl(pos * f)) <= bound, "config %zu pair %u pos %u",
                          n, i, pos);
                cr_assert(fabsl((long double)entry[1] - sinl(pos * f)) <= bound, "config %zu pair %u pos %u",
                          n, i, pos);
            }
        }
        free(table);
    }
}

Test(rope_table, agrees_with_the_c_library_in_double)
{
    const struct model_rotation *c = &configs[0];
    float *table = table_of(c);
    for (uint32_t i = 0; i < 64; i++) {
        double f = pow(c->base, -2.0 * i / c->dim);
        for (uint32_t pos = 0; pos < N_CTX; pos += 7) {
            cr_assert_float_eq(table[(pos * 64 + i) * 2], cos(pos * f), 1e-7);
            cr_assert_float_eq(table[(pos * 64 + i) * 2 + 1], sin(pos * f), 1e-7);
        }
    }
    free(table);
}

/* A change of one bit anywhere, by a compiler or a machine, changes what a decoder says. */
Test(rope_table, has_these_bits_everywhere)
{
    static const uint64_t expected[N_CONFIGS] = {0xf41a3fc73d2ed61du, 0xff221834ae41be14u,
                                                 0xfe40570ab1638198u, 0xae19ae2ad603703au};
    for (size_t n = 0; n < N_CONFIGS; n++) {
        float *table = table_of(&configs[n]);
        uint64_t hash = 0xcbf29ce484222325u;
        for (size_t i = 0; i < (size_t)N_CTX * configs[n].dim; i++) {
            uint32_t bits;
            memcpy(&bits, &table[i], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3u;
        }
        cr_expect_eq(hash, expected[n], "config %zu: 0x%llx", n, (unsigned long long)hash);
        free(table);
    }
}

/* The formulas of YaRN in the C library's doubles. */
Test(rope_table, of_yarn_is_the_formula_in_double)
{
    const struct model_rotation r = {.dim = 64,
                                     .base = 150000,
                                     .scale = 32,
                                     .magnitude = 1,
                                     .yarn = true,
                                     .beta_fast = 32,
                                     .beta_slow = 1,
                                     .n_ctx_original = 4096};
    static float table[5000 * 64];
    model_rope_table(&r, 5000, table);
    double low = floor(64 * log(4096 / (32 * 2 * acos(-1))) / (2 * log(150000)));
    double high = ceil(64 * log(4096 / (2 * acos(-1))) / (2 * log(150000))), m = 1 + 0.1 * log(32);
    cr_assert(low > 0 && high < 63);
    for (uint32_t i = 0; i < 32; i++) {
        double f = pow(150000, -2.0 * i / 64), t = (i - low) / (high - low);
        double keep = 1 - fmin(1, fmax(0, t));
        f = f * keep + f / 32 * (1 - keep);
        for (uint32_t pos = 0; pos < 5000; pos += 13) {
            cr_assert_float_eq(table[(pos * 32 + i) * 2], m * cos(pos * f), 3e-7);
            cr_assert_float_eq(table[(pos * 32 + i) * 2 + 1], m * sin(pos * f), 3e-7);
        }
    }
}

Test(rope_table, a_log_multiplier_of_1_cancels_the_magnitude_of_yarn)
{
    struct model_rotation r = {.dim = 8,
                               .base = 1e6,
                               .scale = 16,
                               .magnitude = 1,
                               .yarn = true,
                               .beta_fast = 32,
                               .beta_slow = 1,
                               .log_multiplier = 1,
                               .n_ctx_original = 16384};
    float table[8];
    model_rope_table(&r, 1, table);
    cr_assert_eq(table[0], 1);
    r.log_multiplier = 0;
    model_rope_table(&r, 1, table);
    cr_assert_float_eq(table[0], 1 + 0.1 * log(16), 1e-7);
}

Test(rope_table, a_context_above_the_original_takes_the_long_factors)
{
    const float short_factors[2] = {1, 1}, long_factors[2] = {2, 4};
    const struct model_rotation r = {.dim = 4,
                                     .base = 10000,
                                     .scale = 1,
                                     .magnitude = 1.19,
                                     .n_ctx_original = 32,
                                     .factors = short_factors,
                                     .long_factors = long_factors};
    float table[33 * 4];
    model_rope_table(&r, 32, table);
    cr_assert_float_eq(table[31 * 4], 1.19 * cos(31), 1e-6);
    model_rope_table(&r, 33, table);
    cr_assert_float_eq(table[31 * 4], 1.19 * cos(31.0 / 2), 1e-6);
    cr_assert_not(model_takes_long_factors(&r, 32));
    cr_assert(model_takes_long_factors(&r, 33), "keys of the two are kept apart on disk");
}

Test(rope_table, temperature_grows_with_the_logarithm_of_whole_steps)
{
    const struct model_attention a = {.temperature = 0.1f, .temperature_step = 16};
    cr_assert_eq(model_temperature(&a, 15), 1);
    cr_assert_float_eq(model_temperature(&a, 16), 1 + 0.1 * log(2), 1e-7);
    cr_assert_float_eq(model_temperature(&a, 1000), 1 + 0.1 * log(1 + 62), 1e-6);
}
