/* matmul_quantise_512.h - quantises activations eight blocks of 32 values at a time, on 512-bit vectors: a
 * number per block (largest value, scale, sums) becomes a lane of a vector.
 * The eight are block j of eight columns, or all blocks of one column's super-block. The bits are those of
 * quantise_block(), which serves blocks with values that are not finite.
 * Thread: as matmul_quantise.h. */
#pragma once
#include "matmul_quantise.h"

#define EIGHT 8
static_assert(EIGHT == MATMUL_PANEL && EIGHT == MATMUL_SUPER_BLOCKS,
              "eight blocks are a panel's or a super-block's");

struct eight_source { /* block i is x[i][0..31] * gain[i][0..31] */
    const float *x[EIGHT], *gain[EIGHT];
    bool has_gain;
};

struct eight {
    __m512i q[4];     /* [two steps][block]: 4 int8 each */
    __m512i pairs[4]; /* two blocks each, in the order of eight_narrow() */
    __m256i sum[2];   /* [block], of each half */
    __m256 a;         /* [block] */
};

INLINE __m512 eight_load(const struct eight_source *s, int block, int i)
{
    __m512 v = _mm512_loadu_ps(s->x[block] + i);
    return s->has_gain ? _mm512_mul_ps(v, _mm512_loadu_ps(s->gain[block] + i)) : v;
}

/* Lane i of the result: the largest of the 16 lanes of m[i]. Halves fold onto each other, and two vectors
 * become one. */
INLINE __m256i eight_largest(__m512i m[EIGHT])
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        m[i] = _mm512_max_epu32(_mm512_shuffle_i64x2(m[2 * i], m[2 * i + 1], 0x44),
                                _mm512_shuffle_i64x2(m[2 * i], m[2 * i + 1], 0xee));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        m[i] = _mm512_max_epu32(_mm512_shuffle_i64x2(m[2 * i], m[2 * i + 1], 0x88),
                                _mm512_shuffle_i64x2(m[2 * i], m[2 * i + 1], 0xdd));
    __m512i v = _mm512_max_epu32(_mm512_unpacklo_epi64(m[0], m[1]), _mm512_unpackhi_epi64(m[0], m[1]));
    v = _mm512_max_epu32(v, _mm512_shuffle_epi32(v, 0xb1));
    __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, v));
}

INLINE __m256i eight_tops(const struct eight_source *s)
{
    __m512i m[EIGHT], magnitude = _mm512_set1_epi32(0x7fffffff);
#pragma GCC unroll 8
    for (int i = 0; i < EIGHT; i++)
        m[i] = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(eight_load(s, i, 0)), magnitude),
                                _mm512_and_si512(_mm512_castps_si512(eight_load(s, i, 16)), magnitude));
    return eight_largest(m);
}

/* Multiplies two blocks and rounds them to bytes: dwords of 4 values, in 128-bit lane i those of steps i and
 * 4 + i of the first block, then of the second. */
INLINE __m512i eight_narrow(const struct eight_source *s, const float *inverse, int block)
{
    __m512i v[2];
#pragma GCC unroll 2
    for (int b = 0; b < 2; b++) {
        __m512 factor = _mm512_set1_ps(inverse[block + b]);
        v[b] = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(eight_load(s, block + b, 0), factor)),
                                  _mm512_cvtps_epi32(_mm512_mul_ps(eight_load(s, block + b, 16), factor)));
    }
    return _mm512_packs_epi16(v[0], v[1]);
}

/* Every second dword of a and b: the even or the odd ones of each 128-bit lane. */
#define EIGHT_PICK(a, b, which)                                                                              \
    _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), which))

/* Transposes blocks of steps to steps of blocks, for one half of the steps, and sums them. */
INLINE void eight_turn(struct eight *e, int half, __m512i low, __m512i high)
{
    __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), ones = _mm512_set1_epi8(1);
    e->q[2 * half] = _mm512_permutex2var_epi64(low, first, high);
    e->q[2 * half + 1] = _mm512_permutex2var_epi64(low, second, high);
    __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, e->q[2 * half]);
    sum = _mm512_dpbusd_epi32(sum, ones, e->q[2 * half + 1]);
    e->sum[half] = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
}

/* Quantises eight blocks. False if a value is not finite. */
INLINE bool eight_quantise(const struct eight_source *s, struct eight *e)
{
    __m256i top = eight_tops(s);
    if (_mm256_cmpge_epu32_mask(top, _mm256_set1_epi32(0x7f800000)))
        return false;
    __mmask8 is_normal = _mm256_cmpge_epu32_mask(top, _mm256_set1_epi32(0x0d800000));
    __m256 amax = _mm256_castsi256_ps(top), full = _mm256_set1_ps(127.0f);
    float inverse[EIGHT] __attribute__((aligned(32)));
    _mm256_store_ps(inverse, _mm256_maskz_div_ps(is_normal, full, amax));
    e->a = _mm256_maskz_div_ps(is_normal, amax, full);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        e->pairs[i] = eight_narrow(s, inverse, 2 * i);
    const __m512i *p = e->pairs;
    eight_turn(e, 0, EIGHT_PICK(p[0], p[1], 0x88), EIGHT_PICK(p[2], p[3], 0x88));
    eight_turn(e, 1, EIGHT_PICK(p[0], p[1], 0xdd), EIGHT_PICK(p[2], p[3], 0xdd));
    return true;
}

/* The numbers that matmul_panel_put() stores beside q, of eight blocks. */
struct eight_scales {
    __m256 b, b16[2];
    __m256i n, n16[2];
};

INLINE struct eight_scales eight_scales(const struct eight *e)
{
    struct eight_scales s;
    __m256i sum = _mm256_add_epi32(e->sum[0], e->sum[1]), zero = _mm256_setzero_si256();
    s.b = _mm256_mul_ps(e->a, _mm256_cvtepi32_ps(sum));
    s.n = _mm256_sub_epi32(zero, _mm256_slli_epi32(sum, 7));
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        s.b16[h] = _mm256_mul_ps(e->a, _mm256_cvtepi32_ps(e->sum[h]));
        s.n16[h] = _mm256_sub_epi32(zero, _mm256_slli_epi32(e->sum[h], 5));
    }
    return s;
}

/* Writes block j of the columns of a panel. */
INLINE void eight_put_columns(const struct matmul_panel *p, uint32_t j, const struct eight *e)
{
    uint32_t w = p->width;
    __mmask8 mask = (__mmask8)((1u << w) - 1);
    struct eight_scales s = eight_scales(e);
    int8_t *q = p->q + (size_t)j * MATMUL_STEPS * w * 4;
#pragma GCC unroll 4
    for (size_t t = 0; t < 4; t++)
        if (w == EIGHT)
            _mm512_storeu_si512(q + t * 64, e->q[t]);
        else {
            _mm256_mask_storeu_epi32(q + 2 * t * w * 4, mask, _mm512_castsi512_si256(e->q[t]));
            _mm256_mask_storeu_epi32(q + (2 * t + 1) * w * 4, mask, _mm512_extracti64x4_epi64(e->q[t], 1));
        }
    _mm256_mask_storeu_ps(p->a + j * w, mask, e->a);
    _mm256_mask_storeu_ps(p->b + j * w, mask, s.b);
    _mm256_mask_storeu_epi32(p->n + j * w, mask, s.n);
#pragma GCC unroll 2
    for (uint32_t h = 0; h < 2; h++) {
        _mm256_mask_storeu_ps(p->b16 + (2 * j + h) * w, mask, s.b16[h]);
        _mm256_mask_storeu_epi32(p->n16 + (2 * j + h) * w, mask, s.n16[h]);
    }
}

/* Writes all blocks of the only column of a panel. */
INLINE void eight_put_blocks(const struct matmul_panel *p, const struct eight *e)
{
    __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i in_turn = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    struct eight_scales s = eight_scales(e);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(p->q + (size_t)i * 64, _mm512_permutexvar_epi32(in_order, e->pairs[i]));
    _mm256_storeu_ps(p->a, e->a);
    _mm256_storeu_ps(p->b, s.b);
    _mm256_storeu_si256((__m256i *)(void *)p->n, s.n);
    _mm512_storeu_ps(p->b16, _mm512_permutex2var_ps(_mm512_castps256_ps512(s.b16[0]), in_turn,
                                                    _mm512_castps256_ps512(s.b16[1])));
    _mm512_storeu_si512(p->n16, _mm512_permutex2var_epi32(_mm512_castsi256_si512(s.n16[0]), in_turn,
                                                          _mm512_castsi256_si512(s.n16[1])));
}

INLINE bool eight_block(const struct matmul_panel *p, uint32_t j, size_t k, const float *const *x,
                        const float *gain)
{
    struct eight_source s = {.has_gain = gain};
    struct eight e;
    for (uint32_t i = 0; i < EIGHT; i++) { /* a narrow panel repeats its last column */
        s.x[i] = x[i < p->width ? i : p->width - 1] + k;
        s.gain[i] = gain ? gain + k : NULL;
        /* Prefetches a super-block ahead: rows lie apart, and each read of one is short. */
        __builtin_prefetch((const void *)((uintptr_t)s.x[i] + 1024));
        __builtin_prefetch((const void *)((uintptr_t)s.x[i] + 1088));
    }
    if (!eight_quantise(&s, &e))
        return false;
    eight_put_columns(p, j, &e);
    return true;
}

/* n_blocks may be fewer than eight: the last block is repeated. */
INLINE bool eight_super(const struct matmul_panel *p, uint32_t n_blocks, const float *x, const float *gain)
{
    struct eight_source s = {.has_gain = gain};
    struct eight e;
    for (uint32_t i = 0; i < EIGHT; i++) {
        size_t at = (size_t)matmul_min(i, n_blocks - 1) * ARITH_BLOCK;
        s.x[i] = x + at;
        s.gain[i] = gain ? gain + at : NULL;
    }
    if (!eight_quantise(&s, &e))
        return false;
    eight_put_blocks(p, &e);
    return true;
}

static void quantise_super_eight(const struct matmul_panel *p, uint32_t n_blocks, size_t k,
                                 const float *const *x, const float *gain)
{
    if (p->width == 1) {
        if (!eight_super(p, n_blocks, x[0] + k, gain ? gain + k : NULL))
            quantise_super(p, n_blocks, k, x, gain);
        return;
    }
    for (uint32_t j = 0; j < n_blocks; j++, k += ARITH_BLOCK)
        if (!eight_block(p, j, k, x, gain))
            for (uint32_t c = 0; c < p->width; c++)
                quantise_one(p, c, j, x[c] + k, gain ? gain + k : NULL);
}
