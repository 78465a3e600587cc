/* The matrix products of each instruction set. */
#include "abi/arith.h"
#include "cpu/matmul/matmul.h"
#include "cpu/matmul/matmul_pack.h"
#include "gguf/quant.h"
#include "matmul_tile_model.h"
#include "support/models/block_scales.h"
#include "support/guarded.h"
#include "support/sanitized.h"

#include <errno.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline
#include "cpu/matmul/matmul_fetch.h"

static const uint32_t types[] = {
    QUANT_Q4_K,   QUANT_Q5_K,   QUANT_Q6_K,    QUANT_Q3_K,  QUANT_Q2_K,    QUANT_Q8_0,        QUANT_Q5_0,
    QUANT_Q4_0,   QUANT_Q4_1,   QUANT_Q5_1,    QUANT_F16,   QUANT_BF16,    QUANT_F32,         QUANT_MXFP4,
    QUANT_IQ4_NL, QUANT_IQ4_XS, QUANT_IQ3_XXS, QUANT_IQ3_S, QUANT_IQ2_XXS, QUANT_IQ2_XS,      QUANT_IQ2_S,
    QUANT_IQ1_S,  QUANT_IQ1_M,  QUANT_TQ1_0,   QUANT_TQ2_0, QUANT_NVFP4,   QUANT_NVFP4_SCALED};
#define N_TYPES (sizeof types / sizeof *types)

static const struct matmul_kernels *const tables[] = {
    &matmul_scalar,
#if defined(__x86_64__)
    &matmul_avx2,   &matmul_avxvnni, &matmul_avx512, &matmul_amx, &matmul_tile_model,
#endif
};
#define N_TABLES (sizeof tables / sizeof *tables)

static const uint32_t ks[] = {32, 96, 224, 256, 512, 768, 896, 1024, 4096};
static const uint32_t ns[] = {1, 15, 16, 17, 40};
static const uint32_t columns[] = {1, 2, 3, 4, 5, 7, 8, 9, 33, 96};

static uint64_t seed = 1;

static uint32_t next(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) ^ (uint32_t)(seed >> 11);
}

static float uniform(void)
{
    return (float)(next() % 65536) / 32768.0f - 1.0f;
}

static void *aligned(size_t size)
{
    void *p = guarded_alloc(size);
    cr_assert_not_null(p);
    return p;
}

static uint16_t random_half(bool extreme)
{
    static const uint16_t some[] = {0, 0x8000, 1, 0x7bff, 0xfbff, 0x0400};
    uint16_t h = (uint16_t)(0x1c00 + next() % 0x1800 + (next() % 8 == 0 ? 0x8000 : 0));
    if (extreme && next() % 4 == 0)
        h = some[next() % 6];
    return h;
}

static void random_weights(uint32_t type, uint8_t *w, size_t size, bool extreme)
{
    for (size_t i = 0; i < size; i++)
        w[i] = extreme && next() % 64 == 0 ? (uint8_t)(next() % 2 ? 0xff : 0x80) : (uint8_t)next();
    size_t block = quant_traits(type)->block_size;
    if (quant_traits(type)->block > 1)
        for (size_t i = 0; i < size; i += block)
            block_scales_put(type, w + i, random_half(extreme), random_half(extreme));
    for (size_t i = 0; type == QUANT_F16 && i < size; i += 2)
        memcpy(w + i, &(uint16_t){random_half(extreme)}, 2);
    for (size_t i = 0; (type == QUANT_F32 || type == QUANT_BF16) && i < size; i += block) {
        float f = uniform();
        memcpy(w + i, (uint8_t *)&f + (4 - block), block);
    }
}

static void random_x(float *x, size_t n, bool extreme)
{
    static const float odd[] = {0.0f, -0.0f, 1e30f, -3e38f, 1e-30f, 1e-38f, 1e-42f, INFINITY, NAN};
    float scale = exp2f((float)(next() % 20) - 10.0f);
    for (size_t i = 0; i < n; i++) {
        x[i] = uniform() * scale;
        if (extreme && next() % 16 == 0)
            x[i] = odd[next() % (next() % 8 ? 7 : 9)];
    }
    for (size_t block = 0; extreme && block < n; block += 32) /* of zeros, or of tiny values */
        if (next() % 16 == 0)
            for (size_t i = block; i < block + 32; i++)
                x[i] = next() % 2 ? 0.0f : 1e-33f;
}

struct product { /* one weight times one input, on one table */
    struct matmul_matrix m;
    struct matmul_input in;
    uint8_t *weights;
    float *x, *gain; /* gain NULL: none */
    uint32_t n_columns;
};

static void product_open(struct product *p, uint32_t type, uint32_t n, uint32_t k, uint32_t n_columns,
                         bool extreme)
{
    size_t size = quant_size(type, (size_t)n * k), pack = matmul_pack_size(type, n, k);
    cr_assert_gt(pack, 0);
    *p = (struct product){.n_columns = n_columns};
    p->weights = aligned(size);
    random_weights(type, p->weights, size, extreme);
    block_factors_put(type, p->weights, n, k);
    uint8_t *packed = aligned(pack);
    matmul_matrix_set(&p->m, type, n, k, packed);
    uint32_t middle = next() % (p->m.n_groups + 1);
    matmul_pack(type, n, k, (uint8_t *)p->weights + middle * MATMUL_ROWS * quant_size(type, k), packed,
                middle, p->m.n_groups);
    matmul_pack(type, n, k, p->weights, packed, 0, middle);
    p->x = aligned(sizeof(float) * k * n_columns);
    random_x(p->x, (size_t)k * n_columns, extreme);
    p->gain = next() % 2 ? aligned(sizeof(float) * k) : NULL;
    for (uint32_t i = 0; p->gain && i < k; i++)
        p->gain[i] = 1.0f + uniform() * 0.5f;
    p->in = (struct matmul_input){.k = k,
                                  .n_columns = n_columns,
                                  .data = aligned(matmul_input_size(k, n_columns)),
                                  .next = next() % 2 ? packed : NULL};
}

static void product_close(struct product *p)
{
    guarded_free(p->weights);
    guarded_free((void *)p->m.data);
    guarded_free(p->x);
    guarded_free(p->gain);
    guarded_free(p->in.data);
}

/* Quantises on the table and multiplies, the groups cut at random places; out is [n_columns][n + 3]. */
static void product_run(struct product *p, const struct matmul_kernels *table, float *out)
{
    size_t stride = p->m.n + 3;
    for (size_t i = 0; i < stride * p->n_columns; i++)
        out[i] = -7.0f;
    memset(p->in.data, 0xa5, matmul_input_size(p->in.k, p->in.n_columns));
    for (uint32_t panel = 0; panel < matmul_input_panels(&p->in); panel++) {
        const float *x[MATMUL_PANEL];
        for (uint32_t c = 0, column = panel * MATMUL_PANEL; c < MATMUL_PANEL && column < p->n_columns; c++)
            x[c] = p->x + (size_t)column++ * p->in.k;
        for (uint32_t first = 0, last, end = matmul_input_supers(&p->in); first < end; first = last) {
            last = first + 1 + next() % (end - first);
            table->quantise(&p->in, panel, first, last, x, p->gain, matmul_is_float(&p->m));
        }
    }
    void *scratch = aligned(table->scratch_size);
    memset(scratch, 0xff, table->scratch_size); /* NaNs, should one be read before it is written */
    for (uint32_t first = 0, last; first < p->m.n_groups; first = last) {
        last = first + 1 + next() % (p->m.n_groups - first);
        table->run(&p->m, &p->in, first, last, out + first * MATMUL_ROWS, stride, scratch);
    }
    guarded_free(scratch);
#if defined(__x86_64__)
    cr_assert(!matmul_tile_model_live(), "run() leaves no tiles for the system to save");
#endif
}

/* Same bits; any NaN equals any NaN. */
static void expect_same(const float *a, const float *b, size_t n, const char *what, uint32_t type,
                        const struct product *p)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) && !(isnan(a[i]) && isnan(b[i])))
            cr_assert_fail("%s %s n %u k %u columns %u: element %zu is %a, not %a", what, quant_name(type),
                           p->m.n, p->m.k, p->n_columns, i, (double)b[i], (double)a[i]);
}

static void same_bits(uint32_t type, uint32_t n, uint32_t k, uint32_t n_columns, bool extreme)
{
    struct product p;
    product_open(&p, type, n, k, n_columns, extreme);
    size_t size = (size_t)(n + 3) * n_columns;
    float *want = aligned(sizeof(float) * size), *got = aligned(sizeof(float) * size);
    product_run(&p, &matmul_scalar, want);
    for (size_t t = 1; t < N_TABLES; t++)
        if (tables[t]->supported()) {
            product_run(&p, tables[t], got);
            expect_same(want, got, size, tables[t]->name, type, &p);
        }
    guarded_free(want);
    guarded_free(got);
    product_close(&p);
}

static bool fits(uint32_t type, uint32_t k)
{
    return k % quant_traits(type)->block == 0;
}

/* Without --all a third of the shapes, of each type another. */
static void every_shape(bool extreme, uint32_t largest_k)
{
    uint32_t number = 0;
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t k = 0; k < sizeof ks / sizeof *ks; k++)
            for (size_t n = 0; n < sizeof ns / sizeof *ns; n++)
                for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
                    if ((number++ + t) % SAMPLED_STRIDE(3, 7) == 0 && fits(types[t], ks[k]) &&
                        ks[k] <= largest_k && (uint64_t)ks[k] * ns[n] * columns[c] <= 1024 * 40 * 33)
                        same_bits(types[t], ns[n], ks[k], columns[c], extreme);
}

/* Every test that goes through the instruction sets leaves out those this CPU lacks; here that is said, once.
 */
Test(matmul, instruction_sets_that_go_untested_here_are_named)
{
    for (size_t t = 1; t < N_TABLES; t++)
        if (!tables[t]->supported())
            printf("SKIP isa %s: this CPU lacks it\n", tables[t]->name);
    cr_assert(matmul_scalar.supported());
}

Test(matmul, every_instruction_set_gives_the_bits_of_the_scalar_kernel)
{
    every_shape(false, 4096);
}

Test(matmul, extreme_scales_and_activations_keep_the_bits_equal)
{
    every_shape(true, 512);
}

/* All values of a weight at one end of what the type can hold, all activations at one end of int8: sums of
 * fewer bits than 32 are largest there. */
static void same_bits_at_the_ends(uint32_t type, uint8_t fill, float x, uint32_t n_columns)
{
    struct product p;
    product_open(&p, type, 17, 512, n_columns, false);
    size_t size = quant_size(type, 17 * 512), row = (size_t)17 + 3;
    memset(p.weights, fill, size);
    size_t block = quant_traits(type)->block_size;
    for (size_t i = 0; i < size; i += block)
        block_scales_put(type, p.weights + i, random_half(false), random_half(false));
    for (size_t i = 0; type == QUANT_Q6_K && i < size; i += block)
        for (size_t s = 192; s < 208; s++)
            p.weights[i + s] = next() % 4 ? 0x7f : 0x80;
    matmul_pack(type, 17, 512, p.weights, (void *)p.m.data, 0, p.m.n_groups);
    for (size_t i = 0; i < (size_t)512 * n_columns; i++)
        p.x[i] = next() % 64 ? x : -x;
    float *want = aligned(sizeof(float) * row * n_columns), *got = aligned(sizeof(float) * row * n_columns);
    product_run(&p, &matmul_scalar, want);
    for (size_t t = 1; t < N_TABLES; t++)
        if (tables[t]->supported()) {
            product_run(&p, tables[t], got);
            expect_same(want, got, row * n_columns, tables[t]->name, type, &p);
        }
    guarded_free(want);
    guarded_free(got);
    product_close(&p);
}

Test(matmul, the_largest_sums_keep_the_bits_equal)
{
    static const uint8_t fills[] = {0x00, 0x7f, 0x80, 0xff};
    static const uint32_t widths[] = {1, 2, 4, 6, 9};
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t f = 0; quant_traits(types[t])->block > 1 && f < 4; f++)
            for (size_t c = f % SANITIZED_STRIDE(3); c < 10; c += SANITIZED_STRIDE(3))
                same_bits_at_the_ends(types[t], fills[f], c % 2 ? 1.0f : -1.0f, widths[c / 2]);
}

/* Every shape; of the hints, which only fetch, one or with --all three in turn, so that each meets every
 * table, shape and type; distances from none to beyond the matrix. */
static void variants_same_bits(uint32_t type, uint32_t n, uint32_t k, uint32_t n_columns)
{
    static const uint32_t distances[] = {0, 64, 4352, 1000000};
    struct product p;
    product_open(&p, type, n, k, n_columns, false);
    size_t size = (size_t)(n + 3) * n_columns;
    float *want = aligned(sizeof(float) * size), *got = aligned(sizeof(float) * size);
    product_run(&p, &matmul_scalar, want);
    for (size_t t = 0; t < N_TABLES; t++)
        for (uint32_t shape = 0; tables[t]->supported() && shape < MATMUL_N_SHAPES; shape++)
            for (uint32_t i = 0; i < 3; i += SAMPLED_STRIDE(3, 3)) {
                p.in.variant = (struct matmul_variant){.shape = (uint8_t)shape,
                                                       .hint = (uint8_t)(next() % MATMUL_N_HINTS),
                                                       .ahead = distances[next() % 4]};
                product_run(&p, tables[t], got);
                expect_same(want, got, size, tables[t]->name, type, &p);
            }
    guarded_free(want);
    guarded_free(got);
    product_close(&p);
}

Test(matmul, every_variant_gives_the_same_bits)
{
    static const uint32_t widths[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 33, 130};
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t c = 0; c < sizeof widths / sizeof *widths; c++) {
            variants_same_bits(types[t], 40, 512, widths[c]);
            if (fits(types[t], 224))
                variants_same_bits(types[t], 17, 224, widths[c]);
        }
}

Test(matmul, more_columns_than_a_chunk_keep_the_bits_equal)
{
    for (size_t t = 0; t < N_TYPES; t++)
        same_bits(types[t], 17, 256, 300, false);
}

Test(matmul, a_column_does_not_depend_on_its_neighbours)
{
    for (size_t t = 0; t < N_TYPES; t++) {
        struct product all, one;
        product_open(&all, types[t], 33, 512, 19, false);
        one = all;
        one.n_columns = one.in.n_columns = 1;
        float *many = aligned(sizeof(float) * 36 * 19), *single = aligned(sizeof(float) * 36);
        const struct matmul_kernels *table = matmul_find("auto");
        product_run(&all, table, many);
        for (uint32_t c = 0; c < 19; c += 2) {
            one.x = all.x + c * 512;
            product_run(&one, table, single);
            expect_same(many + c * 36, single, 33, table->name, types[t], &one);
        }
        guarded_free(many);
        guarded_free(single);
        product_close(&all);
    }
}

/* Weights as the reference dequantises them, activations as arith_quantise() leaves them, in double. */
static double exact(const struct product *p, uint32_t row, uint32_t column, double *magnitude)
{
    float w[1024];
    double sum = 0;
    size_t row_size = quant_size(p->m.type, p->m.k);
    quant_dequantise(p->m.type, p->weights + row * row_size, w, p->m.k);
    for (uint32_t j = 0; j < p->m.k; j += ARITH_BLOCK) {
        float v[ARITH_BLOCK];
        int8_t q[ARITH_BLOCK];
        for (int i = 0; i < ARITH_BLOCK; i++)
            v[i] = p->x[(size_t)column * p->m.k + j + i] * (p->gain ? p->gain[j + i] : 1.0f);
        float a = arith_quantise(v, q);
        for (int i = 0; i < ARITH_BLOCK; i++) {
            double x = matmul_is_float(&p->m) ? (double)v[i] : (double)a * q[i];
            sum += w[j + i] * x;
            *magnitude += fabs(w[j + i] * x);
        }
    }
    return sum;
}

Test(matmul, the_scalar_kernel_agrees_with_a_product_in_double_precision)
{
    for (size_t t = 0; t < N_TYPES; t++)
        for (uint32_t k = 224; k <= 1024; k += 32) {
            if (!fits(types[t], k))
                continue;
            struct product p;
            product_open(&p, types[t], 17, k, 3, false);
            float out[20 * 3];
            product_run(&p, &matmul_scalar, out);
            for (uint32_t c = 0; c < 3; c++)
                for (uint32_t row = 0; row < 17; row++) {
                    double magnitude = 0, want = exact(&p, row, c, &magnitude);
                    cr_assert_leq(fabs(out[c * 20 + row] - want), 4e-6 * magnitude, "%s k %u: %g, not %g",
                                  quant_name(types[t]), k, (double)out[c * 20 + row], want);
                }
            product_close(&p);
        }
}

Test(matmul, a_row_of_a_packed_matrix_is_the_row_of_the_file)
{
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
            if (!fits(types[t], ks[k]))
                continue;
            struct product p;
            product_open(&p, types[t], 37, ks[k], 1, true);
            float want[4096], got[4096];
            for (uint32_t row = 0; row < 37; row++) {
                quant_dequantise(types[t], p.weights + row * quant_size(types[t], ks[k]), want, ks[k]);
                matmul_row(&p.m, row, got);
                expect_same(want, got, ks[k], "matmul_row", types[t], &p);
            }
            product_close(&p);
        }
}

Test(matmul, rows_beyond_the_last_are_not_written)
{
    for (size_t t = 0; t < N_TABLES; t++) {
        if (!tables[t]->supported())
            continue;
        struct product p;
        float out[20 * 9];
        product_open(&p, QUANT_Q4_K, 17, 256, 9, false);
        product_run(&p, tables[t], out);
        for (uint32_t c = 0; c < 9; c++)
            for (uint32_t row = 17; row < 20; row++)
                cr_assert_eq(out[c * 20 + row], -7.0f);
        product_close(&p);
    }
}

Test(matmul, an_infinite_activation_spoils_its_own_column_only)
{
    const struct matmul_kernels *table = matmul_find(NULL);
    struct product p;
    float out[19 * 12];
    product_open(&p, QUANT_Q6_K, 16, 256, 12, false);
    p.x[5 * 256 + 100] = INFINITY;
    product_run(&p, table, out);
    for (uint32_t c = 0; c < 12; c++)
        for (uint32_t row = 0; row < 16; row++)
            cr_assert_eq(isnan(out[c * 19 + row]), c == 5);
    product_close(&p);
}

/* The types with codes: bits per weight of 512 columns by 32 rows. */
static double packed_bits(uint32_t type)
{
    switch (type) {
    case QUANT_MXFP4:
        return 4.25;
    case QUANT_IQ4_XS:
    case QUANT_IQ3_XXS:
    case QUANT_IQ3_S:
        return 4.25 + 0.0625;
    case QUANT_IQ2_XXS:
    case QUANT_IQ1_S:
        return 3.25 + 0.0625;
    case QUANT_IQ2_XS:
    case QUANT_IQ2_S:
    case QUANT_IQ1_M:
        return 3.5 + 0.0625;
    case QUANT_TQ1_0:
    case QUANT_TQ2_0:
        return 2 + 0.0625;
    case QUANT_NVFP4:
    case QUANT_NVFP4_SCALED:
        return 4.5 + 0.125;
    default:
        return (double)quant_size(type, 256) * 8 / 256;
    }
}

Test(matmul, a_pack_of_whole_groups_is_as_large_as_the_file_or_as_its_codes)
{
    for (size_t t = 0; t < N_TYPES; t++)
        cr_assert_eq((double)matmul_pack_size(types[t], 32, 512), packed_bits(types[t]) * 32 * 512 / 8, "%s",
                     quant_name(types[t]));
}

/* The parts of a group, in the order in which kernels read them, leave no gap: hardware prefetchers follow.
 */
static void expect_in_order(uint32_t type, uint32_t k)
{
    struct matmul_matrix m;
    uint8_t *start = aligned(matmul_pack_size(type, 16, k));
    matmul_matrix_set(&m, type, 16, k, start);
    const struct matmul_traits *t = &matmul_traits[m.kind];
    size_t at = 0;
    for (uint32_t super = 0; super < matmul_n_super(k); super++) {
        size_t globals = (size_t)(matmul_globals(&m, 0, super) - start);
        size_t tile = (size_t)(matmul_tile(&m, 0, super) - start);
        uint32_t n = matmul_n_blocks(k, super);
        bool own_line = t->global_size == 64 || super % 2 == 0;
        if (t->global_size && own_line) {
            cr_assert_eq(globals, at, "%s, %u values, d of %u", quant_name(type), k, super);
            at += 64;
        } else if (t->global_size)
            cr_assert_eq(globals, (size_t)(matmul_globals(&m, 0, super - 1) - start) + 32);
        cr_assert_eq(tile, at, "%s, %u values, tile %u", quant_name(type), k, super);
        cr_assert_eq(tile % 64, 0);
        cr_assert_eq(matmul_block_at(t, n, 0), n * (size_t)t->scale_size);
        cr_assert_eq(matmul_block_at(t, n, n), matmul_tile_size(t, n));
        at += matmul_tile_size(t, n);
    }
    cr_assert(at <= m.group_size && m.group_size < at + 64, "%s, %u values", quant_name(type), k);
    guarded_free(start);
}

Test(matmul, a_group_is_read_in_the_order_of_memory)
{
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
            if (quant_traits(types[t])->block > 1 && fits(types[t], ks[i]))
                expect_in_order(types[t], ks[i]);
}

Test(matmul, weights_behind_a_jump_are_fetched_even_without_a_hint)
{
    struct matmul_matrix m;
    static const uint8_t start[1], next[1];
    matmul_matrix_set(&m, QUANT_Q8_0, 64, 512, start);
    struct matmul_input in = {.k = 512, .n_columns = 1};
    const size_t tile = m.group_size / 2;
    struct fetched f = ahead_of(m.kind, &m, &in, 2, 3, 1, 1, tile, MATMUL_HINT_NONE);
    cr_assert_eq(f.at, (uintptr_t)start + 3 * m.group_size, "they follow in memory");
    cr_assert_eq(f.hint, MATMUL_HINT_NONE);
    in.next = next;
    f = ahead_of(m.kind, &m, &in, 2, 3, 0, 1, tile, MATMUL_HINT_NONE);
    cr_assert_eq(f.at, (uintptr_t)start + 2 * m.group_size + tile, "still of this run");
    cr_assert_eq(f.hint, MATMUL_HINT_NONE);
    f = ahead_of(m.kind, &m, &in, 2, 3, 1, 1, tile + 128, MATMUL_HINT_NONE);
    cr_assert_eq(f.at, (uintptr_t)next + 128);
    cr_assert_eq(f.hint, MATMUL_HINT_T1);
    cr_assert_eq(ahead_of(m.kind, &m, &in, 2, 3, 1, 1, tile, MATMUL_HINT_NTA).hint, MATMUL_HINT_NTA);
}

Test(matmul, a_row_that_is_not_whole_blocks_is_refused_with_words)
{
    struct error err = {0};
    cr_assert_eq(matmul_check_weight(QUANT_Q8_0, 16, 40, &err), -ENOTSUP);
    cr_assert_not_null(strstr(err.text, "multiples of 32"));
    err = (struct error){0};
    cr_assert_eq(matmul_check_weight(QUANT_Q4_K, 16, 224, &err), -ENOTSUP);
    cr_assert_not_null(strstr(err.text, "multiples of 256"));
}

Test(matmul, an_unknown_weight_type_is_refused_by_name)
{
    struct error err = {0};
    cr_assert_eq(matmul_check_weight(41, 16, 256, &err), -ENOTSUP);
    cr_assert_not_null(strstr(err.text, "Q1_0"));
}

Test(matmul, an_unknown_instruction_set_is_refused)
{
    struct error err = {0};
    cr_assert_null(matmul_find("altivec"));
    cr_assert_eq(matmul_check_isa("altivec", &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "altivec"));
    cr_assert_eq(matmul_find("scalar"), &matmul_scalar);
}
