/* Weights packed into the GPU's tiles, and read back. */
#include "cuda/pack.h"
#include "base/half.h"
#include "gguf/quant_codes.h"
#include "support/models/block_scales.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/device_abi.h"

static const uint32_t types[] = {
    QUANT_Q4_K,    QUANT_Q5_K,   QUANT_Q6_K,  QUANT_Q3_K,  QUANT_Q2_K,  QUANT_Q8_0,        QUANT_Q5_0,
    QUANT_Q4_0,    QUANT_Q4_1,   QUANT_Q5_1,  QUANT_F16,   QUANT_BF16,  QUANT_F32,         QUANT_MXFP4,
    QUANT_IQ4_NL,  QUANT_IQ3_S,  QUANT_TQ1_0, QUANT_TQ2_0, QUANT_NVFP4, QUANT_IQ4_XS,      QUANT_IQ3_XXS,
    QUANT_IQ2_XXS, QUANT_IQ2_XS, QUANT_IQ2_S, QUANT_IQ1_S, QUANT_IQ1_M, QUANT_NVFP4_SCALED};
#define N_TYPES (sizeof types / sizeof *types)

static uint64_t state = 1;

static uint32_t next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) ^ (uint32_t)(state >> 11);
}

/* --- a reader of tiles, written from tile.h --- */

static uint32_t read_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static float read_half(const uint8_t *p)
{
    return half_to_float((uint16_t)read_u16(p));
}

/* The value of code number q of lane `lane` in block j. */
static int32_t coded(uint32_t type, const uint8_t *tile, uint32_t lane, uint32_t j, uint32_t q)
{
    uint32_t codebook = type == TILE_IQ4_NL ? QUANT_CODES_IQ4 : QUANT_CODES_FP4, code = 0;
    q += j % 2 * 16;
    if (type != TILE_THREES)
        code = tile[j / 2 * 512 + lane * 16 + q / 2] >> q % 2 * 4 & 15;
    else if (q < 24)
        code = tile[q / 8 * 512 + lane * 16 + j / 2 * 4 + q % 8 / 2] >> q % 2 * 4 & 7;
    else
        for (uint32_t b = 0; b < 3; b++)
            code |= (tile[b * 512 + lane * 16 + j / 2 * 4 + q % 8 / 2] >> (q % 2 * 4 + 3) & 1u) << b;
    return tile_has_book(type) ? (int8_t)tile[tile_super_bytes(type) - 16 + code]
                               : quant_codebooks[codebook].value[code];
}

/* The stored bits of a value, of an integer type; two's complement where the type is signed. */
static int32_t stored(uint32_t type, const uint8_t *tile, uint32_t row, uint32_t column)
{
    uint32_t lane = row % 8 * 4 + column % 16 / 4, byte = column % 4, j = column / 32;
    uint32_t r = (row >= 8 ? 1 : 0) + (column % 32 >= 16 ? 2 : 0);
    if (type == TILE_Q8_0)
        return (int8_t)tile[j * 512 + lane * 16 + r * 4 + byte];
    if (tile_is_coded(type))
        return coded(type, tile, lane, j, r * 4 + byte);
    if (type == TILE_Q4_K)
        return tile[j / 2 * 512 + lane * 16 + r * 4 + byte] >> j % 2 * 4 & 15;
    uint32_t nibble = 0, small = 0, n_small = 0;
    const uint8_t *at = tile;
    if (type != TILE_Q2_K) {
        nibble = at[j / 2 * 512 + lane * 16 + j % 2 * 8 + (r & 1) * 4 + byte] >> (r >= 2 ? 4 : 0) & 15;
        at += 2048;
    }
    if (type == TILE_Q6_K || type == TILE_Q2_K) {
        small = at[j / 4 * 512 + lane * 16 + j % 4 * 4 + byte] >> 2 * r & 3;
        n_small = 2;
    } else if (type == TILE_Q5_K || type == TILE_Q5_0 || type == TILE_Q5_1) {
        small = at[lane * 16 + j / 2 * 4 + byte] >> (j % 2 * 4 + r) & 1;
        n_small = 1;
    }
    if (type == TILE_Q6_K || type == TILE_Q5_0 || type == TILE_Q4_0)
        return ((int32_t)(nibble << n_small | small) ^ (8 << n_small)) - (8 << n_small);
    return (int32_t)(type == TILE_Q2_K ? small : nibble | small << 4);
}

static void six_bits(const uint8_t *p, uint32_t j, uint32_t *scale, uint32_t *min)
{
    uint32_t low = p[j], high = p[8 + j % 4] >> j / 4 * 4;
    *scale = (low & 15) | (high & 3) << 4;
    *min = low >> 4 | (high >> 2 & 3) << 4;
}

/* One value, in the order of operations of quant_dequantise(). */
static float value(uint32_t type, const uint8_t *tile, uint32_t row, uint32_t column)
{
    uint32_t j = column / 32, bits;
    float f;
    if (type == TILE_F32) {
        memcpy(&f, tile + (column / 4 * 16 + row) * 16 + column % 4 * 4, 4);
        return f;
    }
    if (type == TILE_F16 || type == TILE_BF16) {
        bits = read_u16(tile + (column / 8 * 16 + row) * 16 + column % 8 * 2);
        return type == TILE_F16 ? half_to_float((uint16_t)bits) : bf16_to_float((uint16_t)bits);
    }
    float q = (float)stored(type, tile, row, column);
    const uint8_t *scales = tile + tile_super_bytes(type), *mine;
    switch (type) {
    case TILE_Q4_K:
    case TILE_Q5_K: {
        uint32_t scale, min;
        mine = scales - 256 + row * 16;
        six_bits(mine + 4, j, &scale, &min);
        return read_half(mine) * (float)scale * q - read_half(mine + 2) * (float)min;
    }
    case TILE_Q6_K:
        mine = scales - 32 - 256 + row * 16;
        return read_half(scales - 32 + 2 * row) * (float)(int8_t)mine[column / 16] * q;
    case TILE_Q2_K:
        mine = scales - 64 - 256 + row * 16;
        return read_half(scales - 64 + 4 * row) * (float)(mine[column / 16] & 15) * q -
               read_half(scales - 64 + 4 * row + 2) * (float)(mine[column / 16] >> 4);
    case TILE_Q5_1:
        mine = scales - 512 + row * 16;
        return read_half(mine + 2 * j) * q + read_half(mine + 256 + 2 * j);
    case TILE_CODES:
    case TILE_THREES:
        memcpy(&f, scales - 80 + 4 * row, 4);
        return f * (float)(int8_t)scales[-80 - 256 + (int)(row * 16 + column / 16)] * q;
    case TILE_NVFP4:
        memcpy(&f, scales - 64 + 4 * row, 4);
        return f * quant_half_ue4m3(scales[-64 - 256 + (int)(row * 16 + column / 16)]) * q;
    case TILE_MXFP4:
        mine = scales - 256 + row * 16;
        return bf16_to_float((uint16_t)read_u16(mine + 2 * j)) * q;
    default:
        mine = scales - 256 + row * 16;
        return read_half(mine + 2 * j) * q;
    }
}

/* --- the tests --- */

static void random_weights(uint32_t type, uint8_t *w, size_t size)
{
    for (size_t i = 0; i < size; i++)
        w[i] = (uint8_t)next();
    /* Infinite and NaN scales would make NaNs of every sign: exponents are kept below. */
    size_t step = type == QUANT_F32 ? 4 : 2;
    if (type == QUANT_F32 || type == QUANT_BF16 || type == QUANT_F16)
        for (size_t i = step - 1; i < size; i += step)
            w[i] &= 0xbf;
    size_t block = quant_traits(type)->block_size;
    for (size_t i = 0; block > 4 && i < size; i += block)
        block_scales_put(type, w + i, (uint16_t)(next() & 0xbfff), (uint16_t)(next() & 0xbfff));
    for (size_t i = 0; type == QUANT_MXFP4 && i < size; i += 17 * 5) /* the ends of the exponents too */
        w[i] = next() % 2 ? (uint8_t)(next() % 3) : 254;
}

/* as_bf16: the floats are BF16's, and packed as such. */
static void check(uint32_t type, uint32_t n, uint32_t k, bool as_bf16)
{
    size_t row_size = quant_size(type, k);
    uint8_t *src = malloc(row_size * n);
    float *want = malloc(k * sizeof *want);
    struct decoder_matrix m;
    cr_assert_eq(cuda_pack_layout(type, n, k, &m, NULL), 0);
    if (as_bf16)
        cuda_pack_as_bf16(&m);
    uint8_t *tiles = malloc(cuda_pack_size(&m));
    cr_assert(src && want && tiles);
    memset(tiles, 0xa5, cuda_pack_size(&m));
    random_weights(type, src, row_size * n);
    block_factors_put(type, src, n, k);
    for (size_t i = 0; as_bf16 && i < row_size * n; i += 4)
        src[i] = src[i + 1] = 0;
    uint32_t middle = m.n_tiles / 2;
    cuda_pack(type, &m, src + middle * 16 * row_size, tiles + (size_t)middle * m.n_supers * m.super_bytes,
              middle, m.n_tiles);
    cuda_pack(type, &m, src, tiles, 0, middle);
    for (uint32_t row = 0; row < m.n_tiles * 16; row++) {
        if (row < n)
            quant_dequantise(type, src + row * row_size, want, k);
        for (uint32_t column = 0; column < m.n_supers * 256; column++) {
            const uint8_t *tile = tiles + ((size_t)row / 16 * m.n_supers + column / 256) * m.super_bytes;
            float have = value(m.type, tile, row % 16, column % 256);
            float wanted = row < n && column < k ? want[column] : 0.0f;
            cr_assert(memcmp(&have, &wanted, 4) == 0 ||
                          (have == 0 && wanted == 0 && (row >= n || column >= k)),
                      "%s [%u, %u] at %u, %u: %a, not %a", quant_traits(type)->name, n, k, row, column,
                      (double)have, (double)wanted);
        }
    }
    free(src);
    free(want);
    free(tiles);
}

Test(cuda_pack, packed_values_are_those_of_the_file_and_padding_is_zero)
{
    static const uint32_t ns[] = {1, 16, 37}, ks[] = {32, 256, 288, 512, 1024, 16, 264};
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (uint32_t i = 0; i < 3; i++)
            for (uint32_t j = 0; j < 7; j++)
                if (ks[j] % quant_traits(types[t])->block == 0)
                    check(types[t], ns[i], ks[j], false);
}

Test(cuda_pack, floats_that_bf16_holds_are_packed_in_half_the_bytes)
{
    struct decoder_matrix m, half;
    for (uint32_t n = 1; n < 40; n += 18)
        for (uint32_t k = 16; k <= 1024; k += 248)
            check(QUANT_F32, n, k, true);
    cr_assert_eq(cuda_pack_layout(QUANT_F32, 37, 264, &m, NULL), 0);
    cr_assert_eq(cuda_pack_layout(QUANT_BF16, 37, 264, &half, NULL), 0);
    cuda_pack_as_bf16(&m);
    cr_assert_eq(memcmp(&m, &half, sizeof m), 0);
}

/* Each bit below BF16's, in each value, those of infinities, NaNs and subnormals too. */
Test(cuda_pack, one_bit_below_bf16_keeps_floats_as_they_are)
{
    static const uint32_t tops[] = {0x3f800000u, 0, 0x80000000u, 0x7f800000u, 0xffc00000u, 0x00010000u};
    uint32_t values[5];
    for (uint32_t t = 0; t < sizeof tops / sizeof *tops; t++) {
        for (uint32_t i = 0; i < 5; i++)
            values[i] = tops[t];
        cr_assert(cuda_pack_is_bf16(values, 5));
        for (uint32_t i = 0; i < 5; i++)
            for (uint32_t bit = 0; bit < 16; bit++) {
                values[i] ^= 1u << bit;
                cr_assert_not(cuda_pack_is_bf16(values, 5), "value %u, bit %u", i, bit);
                cr_assert_eq(cuda_pack_is_bf16(values, i), true);
                values[i] ^= 1u << bit;
            }
    }
}

/* Every type that files are computed with, as README.md says. */
Test(cuda_pack, all_types_of_the_readme_are_packed)
{
    FILE *f = fopen(HEARTH_SOURCE_DIR "/README.md", "re");
    static char text[1 << 16];
    cr_assert_not_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    (void)fclose(f);
    const char *list = strstr(text, "Weights, on either:");
    cr_assert_not_null(list);
    uint32_t n = 0;
    for (uint32_t type = 0; type < 64; type++) {
        struct decoder_matrix m;
        if (!quant_traits(type))
            continue;
        n++;
        const char *name = quant_traits(type)->name, *at = strstr(list, name);
        cr_expect(at && strcspn(at, " .\n") == strlen(name), "README.md does not say %s", name);
        cr_expect_eq(cuda_pack_layout(type, 16, 256, &m, NULL), 0, "%s", name);
    }
    cr_expect_eq(n, N_TYPES - 1, "all but NVFP4_SCALED are types of files");
}

Test(cuda_pack, tiles_are_whole_copies_of_16_bytes)
{
    for (uint32_t type = TILE_Q4_K; type < TILE_N_TYPES; type++) {
        cr_assert_eq(tile_super_bytes(type) % 16, 0);
        cr_assert_leq(tile_super_bytes(type), TILE_MAX_SUPER_BYTES);
    }
}

Test(cuda_pack, rows_that_are_no_whole_blocks_are_refused_by_name)
{
    struct decoder_matrix m;
    struct error err = {0};
    cr_assert_eq(cuda_pack_layout(QUANT_Q4_K, 16, 288, &m, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "Q4_K") && strstr(err.text, "288"));
    err = (struct error){0};
    cr_assert_eq(cuda_pack_layout(QUANT_F16, 16, 36, &m, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "F16") && strstr(err.text, "36"));
    cr_assert_eq(cuda_pack_layout(QUANT_F16, 16, 16, &m, NULL), 0);
}

Test(cuda_pack, types_that_cannot_be_multiplied_are_refused_by_name)
{
    struct decoder_matrix m;
    struct error err = {0};
    cr_assert_eq(cuda_pack_layout(24, 16, 256, &m, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "I8"));
}
