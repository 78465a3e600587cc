/* The values of the weight types. */
#include "gguf/gguf.h"
#include "base/half.h"
#include "gguf/quant.h"
#include "support/models/block_scales.h"
#include "support/models/tensor_bytes.h"
#define RANDOM_SEED 42
#include "support/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the value of the bits of a binary16, from the standard's definition. */
static double half_value(unsigned h)
{
    int exponent = h >> 10 & 31;
    double mantissa = h & 1023, sign = h & 0x8000 ? -1 : 1;
    if (exponent == 31)
        return mantissa == 0 ? sign * INFINITY : NAN;
    return sign * (exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25));
}

Test(half, every_value_becomes_its_exact_float)
{
    for (unsigned h = 0; h < 65536; h++) {
        double expected = half_value(h);
        float f = half_to_float((uint16_t)h);
        if (isnan(expected))
            cr_assert(isnan(f), "%04x", h);
        else
            cr_assert(f == expected && !signbit(f) == !(h & 0x8000), "%04x: %a", h, f);
    }
}

Test(half, every_value_survives_the_way_there_and_back)
{
    for (unsigned h = 0; h < 65536; h++) {
        uint16_t back = half_from_float(half_to_float((uint16_t)h));
        if ((h & 0x7fff) > 0x7c00)
            cr_assert((back & 0x7fff) > 0x7c00, "%04x", h);
        else
            cr_assert_eq(back, h);
    }
}

Test(half, floats_between_two_halves_go_to_the_nearest_and_ties_to_even)
{
    for (unsigned h = 0; h < 0x7bff; h++) { /* all pairs of finite neighbours */
        float below = half_to_float((uint16_t)h), above = half_to_float((uint16_t)(h + 1));
        float middle = below / 2 + above / 2; /* exact: one bit more than a half has */
        unsigned even = h & 1 ? h + 1 : h;
        cr_assert_eq(half_from_float(middle), even, "%04x", h);
        cr_assert_eq(half_from_float(-middle), even | 0x8000);
        cr_assert_eq(half_from_float(nextafterf(middle, 0)), h);
        cr_assert_eq(half_from_float(nextafterf(middle, INFINITY)), h + 1);
    }
}

Test(half, too_large_floats_become_infinity)
{
    cr_assert_eq(half_from_float(65519.99f), 0x7bff);
    cr_assert_eq(half_from_float(65520.0f), 0x7c00);
    cr_assert_eq(half_from_float(-1e30f), 0xfc00);
    cr_assert_eq(half_from_float(INFINITY), 0x7c00);
    cr_assert_eq(half_from_float(NAN) & 0x7e00, 0x7e00);
}

Test(half, bfloat16_is_the_upper_half_of_a_float)
{
    cr_assert_eq(bf16_to_float(0xc049), -3.140625f);
}

/* ---- the block types: each against a walk over the block in the order of its bytes, in double ----
 * expect() receives value, and the magnitude that float rounding is relative to. */

struct sink {
    double value[256], magnitude[256];
};

static void expect(struct sink *s, int i, double product, double offset)
{
    s->value[i] = product + offset;
    s->magnitude[i] = fabs(product) + fabs(offset);
}

static double half_at(const uint8_t *p)
{
    return half_value(p[0] | (unsigned)p[1] << 8);
}

static void walk_q4_0(const uint8_t *p, struct sink *s)
{
    for (int byte = 0; byte < 16; byte++) {
        expect(s, byte, half_at(p) * (p[2 + byte] % 16 - 8), 0);
        expect(s, byte + 16, half_at(p) * (p[2 + byte] / 16 - 8), 0);
    }
}

static void walk_q4_1(const uint8_t *p, struct sink *s)
{
    for (int byte = 0; byte < 16; byte++) {
        expect(s, byte, half_at(p) * (p[4 + byte] % 16), half_at(p + 2));
        expect(s, byte + 16, half_at(p) * (p[4 + byte] / 16), half_at(p + 2));
    }
}

static void walk_q5(const uint8_t *p, struct sink *s, const uint8_t *high, int minus, double min)
{
    uint32_t bits;
    memcpy(&bits, high, 4);
    for (int byte = 0; byte < 16; byte++) {
        int fifth = bits & 1u << byte ? 16 : 0, fifth_above = bits & 1u << (byte + 16) ? 16 : 0;
        expect(s, byte, half_at(p) * (high[4 + byte] % 16 + fifth - minus), min);
        expect(s, byte + 16, half_at(p) * (high[4 + byte] / 16 + fifth_above - minus), min);
    }
}

static void walk_q5_0(const uint8_t *p, struct sink *s)
{
    walk_q5(p, s, p + 2, 16, 0);
}

static void walk_q5_1(const uint8_t *p, struct sink *s)
{
    walk_q5(p, s, p + 4, 0, half_at(p + 2));
}

static void walk_q8_0(const uint8_t *p, struct sink *s)
{
    for (int i = 0; i < 32; i++)
        expect(s, i, half_at(p) * (p[2 + i] < 128 ? p[2 + i] : p[2 + i] - 256), 0);
}

static void walk_q2_k(const uint8_t *p, struct sink *s)
{
    const uint8_t *q = p + 16;
    int i = 0, group = 0;
    for (int half = 0; half < 2; half++, q += 32) {
        for (int plane = 1; plane < 256; plane *= 4) {
            for (int side = 0; side < 2; side++, group++) {
                for (int byte = 0; byte < 16; byte++, i++)
                    expect(s, i, half_at(p + 80) * (p[group] % 16) * (q[16 * side + byte] / plane % 4),
                           -half_at(p + 82) * (p[group] / 16));
            }
        }
    }
}

/* The sixteen scales as three words of four bytes: low nibbles in the first two, pairs of high bits in the
 * last. */
static void q3_k_scales(const uint8_t *packed, int *scales)
{
    for (int i = 0; i < 4; i++) {
        scales[i] = packed[i] % 16 + 16 * (packed[8 + i] & 3);
        scales[i + 4] = packed[4 + i] % 16 + 16 * (packed[8 + i] / 4 & 3);
        scales[i + 8] = packed[i] / 16 + 16 * (packed[8 + i] / 16 & 3);
        scales[i + 12] = packed[4 + i] / 16 + 16 * (packed[8 + i] / 64);
    }
}

static void walk_q3_k(const uint8_t *p, struct sink *s)
{
    const uint8_t *q = p + 32;
    int scales[16], i = 0, mask = 1;
    q3_k_scales(p + 96, scales);
    for (int half = 0; half < 2; half++, q += 32) {
        for (int plane = 1; plane < 256; plane *= 4, mask *= 2) {
            for (int byte = 0; byte < 32; byte++, i++) {
                int value = q[byte] / plane % 4 - (p[byte] & mask ? 0 : 4);
                expect(s, i, half_at(p + 108) * (scales[i / 16] - 32) * value, 0);
            }
        }
    }
}

static void k_scales(const uint8_t *packed, int *scales, int *mins)
{
    for (int i = 0; i < 4; i++) {
        scales[i] = packed[i] % 64;
        mins[i] = packed[i + 4] % 64;
        scales[i + 4] = packed[i + 8] % 16 + packed[i] / 64 * 16;
        mins[i + 4] = packed[i + 8] / 16 + packed[i + 4] / 64 * 16;
    }
}

static void walk_q4_k(const uint8_t *p, struct sink *s)
{
    int scales[8], mins[8];
    k_scales(p + 4, scales, mins);
    for (int byte = 0; byte < 128; byte++) {
        int run = byte / 32 * 2, i = run * 32 + byte % 32;
        expect(s, i, half_at(p) * scales[run] * (p[16 + byte] % 16), -half_at(p + 2) * mins[run]);
        run++;
        expect(s, i + 32, half_at(p) * scales[run] * (p[16 + byte] / 16), -half_at(p + 2) * mins[run]);
    }
}

static void walk_q5_k(const uint8_t *p, struct sink *s)
{
    int scales[8], mins[8];
    const uint8_t *high = p + 16, *low = p + 48;
    k_scales(p + 4, scales, mins);
    for (int byte = 0; byte < 128; byte++) {
        int run = byte / 32 * 2, i = run * 32 + byte % 32;
        int value = low[byte] % 16 + (high[byte % 32] & 1 << run ? 16 : 0);
        expect(s, i, half_at(p) * scales[run] * value, -half_at(p + 2) * mins[run]);
        run++;
        value = low[byte] / 16 + (high[byte % 32] & 1 << run ? 16 : 0);
        expect(s, i + 32, half_at(p) * scales[run] * value, -half_at(p + 2) * mins[run]);
    }
}

static void walk_q6_k(const uint8_t *p, struct sink *s)
{
    const uint8_t *low = p, *high = p + 128;
    const int8_t *scales = (const int8_t *)p + 192;
    double d = half_at(p + 208);
    for (int half = 0; half < 2; half++, low += 64, high += 32, scales += 8) {
        for (int l = 0; l < 32; l++) {
            int i = 128 * half + l;
            expect(s, i, d * scales[l / 16] * (low[l] % 16 + high[l] % 4 * 16 - 32), 0);
            expect(s, i + 32, d * scales[2 + l / 16] * (low[l + 32] % 16 + high[l] / 4 % 4 * 16 - 32), 0);
            expect(s, i + 64, d * scales[4 + l / 16] * (low[l] / 16 + high[l] / 16 % 4 * 16 - 32), 0);
            expect(s, i + 96, d * scales[6 + l / 16] * (low[l + 32] / 16 + high[l] / 64 * 16 - 32), 0);
        }
    }
}

static const struct {
    uint32_t type, block, block_size;
    int d, dmin; /* offsets of the halves; -1: none */
    void (*walk)(const uint8_t *, struct sink *);
} layouts[] = {
    {QUANT_Q4_0, 32, 18, 0, -1, walk_q4_0},     {QUANT_Q4_1, 32, 20, 0, 2, walk_q4_1},
    {QUANT_Q5_0, 32, 22, 0, -1, walk_q5_0},     {QUANT_Q5_1, 32, 24, 0, 2, walk_q5_1},
    {QUANT_Q8_0, 32, 34, 0, -1, walk_q8_0},     {QUANT_Q2_K, 256, 84, 80, 82, walk_q2_k},
    {QUANT_Q3_K, 256, 110, 108, -1, walk_q3_k}, {QUANT_Q4_K, 256, 144, 0, 2, walk_q4_k},
    {QUANT_Q5_K, 256, 176, 0, 2, walk_q5_k},    {QUANT_Q6_K, 256, 210, 208, -1, walk_q6_k},
};
#define N_LAYOUTS (sizeof layouts / sizeof *layouts)

/* Any finite half: subnormal and negative scales are legal too. */
static void random_half(uint8_t *p)
{
    unsigned h = random_u32() & 0xffff;
    if ((h & 0x7c00) == 0x7c00)
        h &= 0x83ff;
    memcpy(p, &(uint16_t){(uint16_t)h}, 2);
}

static void check_random_blocks(uint32_t type)
{
    size_t k = 0;
    while (layouts[k].type != type)
        k++;
    for (int round = 0; round < 500; round++) {
        uint8_t block[1 + 256];
        uint8_t *p = block + round % 2; /* alignment is not asked for */
        float out[256];
        struct sink s;
        for (size_t i = 0; i < layouts[k].block_size; i++)
            p[i] = (uint8_t)random_u32();
        random_half(p + layouts[k].d);
        if (layouts[k].dmin >= 0)
            random_half(p + layouts[k].dmin);
        layouts[k].walk(p, &s);
        quant_dequantise(type, p, out, layouts[k].block);
        for (size_t i = 0; i < layouts[k].block; i++)
            cr_assert(fabs((double)out[i] - s.value[i]) <= 0x1p-22 * s.magnitude[i],
                      "value %zu: %g, expected %g", i, (double)out[i], s.value[i]);
    }
}

Test(quant, q4_0_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q4_0);
}
Test(quant, q4_1_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q4_1);
}
Test(quant, q5_0_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q5_0);
}
Test(quant, q5_1_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q5_1);
}
Test(quant, q8_0_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q8_0);
}
Test(quant, q2_k_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q2_K);
}
Test(quant, q3_k_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q3_K);
}
Test(quant, q4_k_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q4_K);
}
Test(quant, q5_k_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q5_K);
}
Test(quant, q6_k_blocks_have_their_values)
{
    check_random_blocks(QUANT_Q6_K);
}

/* The types with codebooks: a hash of the values of 400 random blocks as ggml's reference computes them. */
static const struct {
    uint32_t type, block, block_size;
    uint64_t hash;
} coded[] = {
    {QUANT_IQ2_XXS, 256, 66, 0xcfdac9f4edeec449u}, {QUANT_IQ2_XS, 256, 74, 0x65339ba41ec0b6e5u},
    {QUANT_IQ3_XXS, 256, 98, 0x4f90c9ee99c215b5u}, {QUANT_IQ1_S, 256, 50, 0xafa37aad4c5b6ba5u},
    {QUANT_IQ4_NL, 32, 18, 0x6bab01f8c71f5925u},   {QUANT_IQ3_S, 256, 110, 0x4027a6486d2dcfa5u},
    {QUANT_IQ2_S, 256, 82, 0x630341e2d8de8ce1u},   {QUANT_IQ4_XS, 256, 136, 0x6fcbbb28ec63b197u},
    {QUANT_IQ1_M, 256, 56, 0x2dad19f19792b085u},   {QUANT_TQ1_0, 256, 54, 0x84501aa24c592325u},
    {QUANT_TQ2_0, 256, 66, 0xa0c9818c46e8e325u},   {QUANT_MXFP4, 32, 17, 0x39069d22d5910b25u},
    {QUANT_NVFP4, 64, 36, 0x1008a9538e5ff325u},
};
#define N_CODED (sizeof coded / sizeof *coded)

static uint64_t hash_of_blocks(uint32_t type)
{
    uint64_t state = 1, h = 0xcbf29ce484222325u;
    const struct quant_traits *t = quant_traits(type);
    for (int round = 0; round < 400; round++) {
        uint8_t block[256];
        float out[256];
        for (uint32_t i = 0; i < t->block_size; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            block[i] = (uint8_t)(state >> 40);
        }
        block_scales_put(type, block, (uint16_t)((block[0] | block[1] << 8) & 0xbfff), 0);
        quant_dequantise(type, block, out, t->block);
        for (uint32_t i = 0; i < t->block; i++) {
            uint32_t bits;
            memcpy(&bits, &(float){out[i] + 0.0f}, sizeof bits); /* zeros have no sign */
            h = (h ^ bits) * 0x100000001b3u;
        }
    }
    return h;
}

Test(quant, blocks_with_codebooks_have_the_values_of_another_implementation)
{
    for (size_t k = 0; k < N_CODED; k++)
        cr_assert_eq(hash_of_blocks(coded[k].type), coded[k].hash, "%s", quant_name(coded[k].type));
}

Test(quant, the_scale_of_mxfp4_is_subnormal_at_the_low_end_and_infinite_at_the_high_one)
{
    const uint8_t codes[] = {0, 1, 2, 254, 255};
    const float values[] = {0x1p-128f, 0x1p-127f, 0x1p-126f, 0x1p126f, INFINITY};
    for (int i = 0; i < 5; i++) {
        uint8_t block[17] = {codes[i], 1}; /* code 1 is a half */
        float out[32];
        quant_dequantise(QUANT_MXFP4, block, out, 32);
        cr_assert(out[0] == values[i], "%u: %a", codes[i], (double)out[0]);
    }
}

Test(quant, every_block_of_a_run_is_unpacked_in_its_place)
{
    for (size_t k = 0; k < N_LAYOUTS; k++) {
        uint8_t packed[3 * 256] = {0};
        float run[3 * 256], one[256];
        size_t block = layouts[k].block, size = layouts[k].block_size;
        for (size_t i = 0; i < 3 * size; i++)
            packed[i] = (uint8_t)random_u32();
        for (size_t b = 0; b < 3; b++) {
            packed[b * size + (size_t)layouts[k].d + 1] &= 0x3f; /* finite scales */
            if (layouts[k].dmin >= 0)
                packed[b * size + (size_t)layouts[k].dmin + 1] &= 0x3f;
        }
        quant_dequantise(layouts[k].type, packed, run, 3 * block);
        for (size_t b = 0; b < 3; b++) {
            quant_dequantise(layouts[k].type, packed + b * size, one, block);
            cr_assert_eq(memcmp(one, run + b * block, block * sizeof *one), 0, "%s",
                         quant_name(layouts[k].type));
        }
    }
}

Test(quant, plain_floats_are_read_as_they_are)
{
    const float f32[3] = {1.5f, -0.0f, 1e-40f};
    const uint16_t f16[3] = {0x3c00, 0x0001, 0xfbff}, bf16[3] = {0x3f80, 0xc000, 0x0001};
    float out[3];
    quant_dequantise(QUANT_F32, f32, out, 3);
    cr_assert_eq(memcmp(out, f32, sizeof f32), 0);
    quant_dequantise(QUANT_F16, f16, out, 3);
    cr_assert(out[0] == 1 && out[1] == 0x1p-24f && out[2] == -65504);
    quant_dequantise(QUANT_BF16, bf16, out, 3);
    cr_assert(out[0] == 1 && out[1] == -2 && out[2] == 0x1p-133f);
}

Test(quant, geometry_is_that_of_the_file_format)
{
    for (size_t k = 0; k < N_LAYOUTS; k++) {
        const struct quant_traits *t = quant_traits(layouts[k].type);
        cr_assert_not_null(t);
        cr_assert_eq(t->block, layouts[k].block);
        cr_assert_eq(t->block_size, layouts[k].block_size);
        cr_assert_eq(quant_size(layouts[k].type, 4 * t->block), 4 * (size_t)t->block_size);
        cr_assert_str_eq(t->name, quant_name(layouts[k].type));
    }
    for (size_t k = 0; k < N_CODED; k++) {
        const struct quant_traits *t = quant_traits(coded[k].type);
        cr_assert(t && t->block == coded[k].block && t->block_size == coded[k].block_size);
        cr_assert_str_eq(t->name, quant_name(coded[k].type));
    }
    cr_assert_eq(quant_size(QUANT_F32, 7), 28);
    cr_assert_eq(quant_size(QUANT_F16, 7), 14);
    cr_assert_eq(quant_size(QUANT_BF16, 7), 14);
}

Test(quant, types_that_are_not_computed_with_have_a_name_but_no_traits)
{
    const uint32_t types[] = {4, 9, 15, 24, 28, 36, 41, 42};
    const char *names[] = {"Q4_2", "Q8_1", "Q8_K", "I8", "F64", "IQ4_NL_4_4", "Q1_0", "Q2_0"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        cr_assert_null(quant_traits(types[i]));
        cr_assert_eq(quant_size(types[i], 256), 0);
        cr_assert_str_eq(quant_name(types[i]), names[i]);
    }
    cr_assert_null(quant_traits(UINT32_MAX));
    cr_assert_str_eq(quant_name(UINT32_MAX), "?");
}

/* The relative difference of two tensors' values, as root mean squares. */
static double difference(const struct gguf *ga, const struct gguf_tensor *a, const struct gguf *gb,
                         const struct gguf_tensor *b)
{
    void *of_a = tensor_bytes(ga, a), *of_b = tensor_bytes(gb, b);
    size_t n = a->ne[0] * a->ne[1];
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    double squares = 0, differences = 0;
    cr_assert(x && y);
    quant_dequantise(a->type, of_a, x, n);
    quant_dequantise(b->type, of_b, y, n);
    for (size_t i = 0; i < n; i++) {
        squares += (double)y[i] * (double)y[i];
        differences += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    }
    free(of_a);
    free(of_b);
    free(x);
    free(y);
    return sqrt(differences / squares);
}

Test(quant, a_model_quantised_elsewhere_has_the_same_weights_in_q4_k_and_q6_k_as_in_q8_0)
{
    struct gguf *coarse = NULL, *fine = NULL;
    size_t n_q4 = 0, n_q6 = 0;
    cr_assert_eq(gguf_open(&coarse, HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", NULL), 0);
    cr_assert_eq(gguf_open(&fine, HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf", NULL), 0);
    for (size_t i = 0; i < gguf_n_tensors(coarse); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(coarse, i);
        double d = difference(coarse, t, fine, gguf_find_tensor(fine, t->name));
        cr_assert_lt(d,
                     t->type == QUANT_Q4_K   ? 0.1
                     : t->type == QUANT_Q6_K ? 0.03
                                             : 1e-9,
                     "%s: %g", t->name, d);
        n_q4 += t->type == QUANT_Q4_K;
        n_q6 += t->type == QUANT_Q6_K;
    }
    cr_assert(n_q4 > 0 && n_q6 > 0);
    gguf_close(coarse);
    gguf_close(fine);
}
