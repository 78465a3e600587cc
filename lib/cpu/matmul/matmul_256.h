/* matmul_256.h - the 256-bit vector operations that matmul_template.h uses; the including file defines dot().
 * Thread: any; all functions are pure. */
#include "abi/arith.h"

#include <immintrin.h>
#include <stdbool.h>

#define LANES          8
#define PANEL_COLUMNS  4
#define PANEL_UNPACKS  0
#define DIRECT_COLUMNS 4

#define vi             __m256i
#define vf             __m256
#define vi_set(x)      _mm256_set1_epi32(x)
#define vi_set8(x)     _mm256_set1_epi8(x)
#define vi_and         _mm256_and_si256
#define vi_or          _mm256_or_si256
#define vi_xor         _mm256_xor_si256
#define vi_add         _mm256_add_epi32
#define vi_add8        _mm256_add_epi8
#define vi_load(p)     _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define vi_store(p, v) _mm256_store_si256((__m256i *)(void *)(p), v)
#define vi_max         _mm256_max_epi32
#define vi_lookup      _mm256_shuffle_epi8
#define vi_sll         _mm256_slli_epi32
#define vi_srl(v, n)   _mm256_srli_epi32(v, (int)(n))
#define vi_u8x(p)      _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#define vi_s8x(p)      _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#define vi_sixteen(p)  _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vf_zero        _mm256_setzero_ps
#define vf_set(x)      _mm256_set1_ps(x)
#define vf_bits        _mm256_castsi256_ps
#define vf_of          _mm256_cvtepi32_ps
#define vf_load        _mm256_load_ps
#define vf_loadu(p)    _mm256_loadu_ps((const float *)(const void *)(p))
#define vf_store       _mm256_store_ps
#define vf_storeu      _mm256_storeu_ps
#define vf_bcast(p)    _mm256_set1_ps(*(p))
#define vf_add         _mm256_add_ps
#define vf_mul         _mm256_mul_ps
#define vf_fma         _mm256_fmadd_ps
#define vf_fms         _mm256_fmsub_ps
#define vf_half(p)     _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vf_bf16(p)                                                                                           \
    _mm256_castsi256_ps(                                                                                     \
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))), 16))
#define vi_bcast(p)   _mm256_set1_epi32(load_i32(p))
#define vi_set16(x)   _mm256_set1_epi16(x)
#define vi_pair(a, b) _mm256_blend_epi16(a, b, 0xaa) /* the lower halves of a, the upper halves of b */

static inline int load_i32(const void *p)
{
    int v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

/* Shifts left by n bits (right if negative). The caller masks off bits that cross bytes. */
static inline __attribute__((always_inline)) __m256i vi_shift(__m256i v, int n)
{
    return n >= 0 ? _mm256_slli_epi16(v, n) : _mm256_srli_epi16(v, -n);
}

/* Spreads nibbles to bytes: 16 low nibbles, then their 16 high ones. The caller masks off the upper
 * halves. */
static inline __attribute__((always_inline)) __m256i vi_nibbles(const uint8_t *p)
{
    __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_srlv_epi32(v, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
}

/* Copies the lower half of each 32-bit number to both halves. */
static inline __attribute__((always_inline)) __m256i vi_twice(__m256i v)
{
    const __m128i twice = _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(twice));
}

/* arith_quantise() of 32-byte aligned x; sum: of each half. The largest value is found by comparing bits as
 * integers, as there: a NaN is larger than all numbers. */
static inline __attribute__((always_inline)) float quantise_block(const float *x, int8_t *q, int32_t sum[2])
{
    __m256i top4 = _mm256_setzero_si256(), magnitude = _mm256_set1_epi32(0x7fffffff), v[4];
    for (int i = 0; i < 4; i++)
        top4 = _mm256_max_epi32(top4,
                                _mm256_and_si256(_mm256_castps_si256(_mm256_load_ps(x + 8 * i)), magnitude));
    __m128i top2 = _mm_max_epi32(_mm256_castsi256_si128(top4), _mm256_extracti128_si256(top4, 1));
    top2 = _mm_max_epi32(top2, _mm_shuffle_epi32(top2, 0x4e));
    top2 = _mm_max_epi32(top2, _mm_shuffle_epi32(top2, 0xb1));
    uint32_t top = (uint32_t)_mm_cvtsi128_si32(top2);
    bool finite = top < 0x7f800000u, tiny = top < 0x0d800000u;
    float amax = arith_from_bits(top);
    __m256 inverse = _mm256_set1_ps(finite && !tiny ? 127.0f / amax : 0.0f);
    for (int i = 0; i < 4; i++)
        v[i] = finite ? _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(x + 8 * i), inverse)) : vi_set(0);
    for (int h = 0; h < 2; h++) {
        __m256i s = _mm256_add_epi32(v[2 * h], v[2 * h + 1]);
        __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
        sum[h] = _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
    }
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    return !finite ? arith_from_bits(0x7fc00000u) : tiny ? 0.0f : amax / 127.0f;
}
