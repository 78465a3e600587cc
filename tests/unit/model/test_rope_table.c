#include "model/model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_CTX 131072

static const float factors[64] = {
    [0 ... 20] = 1, [21] = 1.3f, [22] = 1.9f, [23] = 2.6f, [24] = 3.7f, [25 ... 63] = 8};

static const struct model_config configs[] = {
    {.rope_dim = 128, .rope_base = 1e6, .rope_scale = 1},
    {.rope_dim = 128, .rope_base = 500000, .rope_scale = 1, .rope_factors = factors},
    {.rope_dim = 64, .rope_base = 10000, .rope_scale = 4},
    {.rope_dim = 80, .rope_base = 2, .rope_scale = 0.001},
};
#define N_CONFIGS (sizeof configs / sizeof *configs)

static float *table_of(const struct model_config *c)
{
    float *table = malloc(sizeof(float) * N_CTX * c->rope_dim);
    cr_assert_not_null(table);
    model_rope_table(c, N_CTX, table);
    return table;
}

/* Every 41st position: it shares no factor with a power of two, and a pair's angles fall anywhere. */
Test(rope_table, is_the_long_double_value_rounded_to_f32)
{
    for (size_t n = 0; n < N_CONFIGS; n++) {
        const struct model_config *c = &configs[n];
        float *table = table_of(c);
        for (uint32_t i = 0; i < c->rope_dim / 2; i++) {
            long double f = powl(c->rope_base, -2.0L * i / c->rope_dim) / c->rope_scale;
            f /= c->rope_factors ? c->rope_factors[i] : 1;
            for (uint32_t pos = 0; pos < N_CTX; pos += 41) {
                const float *entry = table + ((size_t)pos * (c->rope_dim / 2) + i) * 2;
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
    const struct model_config *c = &configs[0];
    float *table = table_of(c);
    for (uint32_t i = 0; i < 64; i++) {
        double f = pow(c->rope_base, -2.0 * i / c->rope_dim);
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
        for (size_t i = 0; i < (size_t)N_CTX * configs[n].rope_dim; i++) {
            uint32_t bits;
            memcpy(&bits, &table[i], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3u;
        }
        cr_expect_eq(hash, expected[n], "config %zu: 0x%llx", n, (unsigned long long)hash);
        free(table);
    }
}
