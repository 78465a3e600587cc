/* matmul_512.h - the 512-bit vector operations that matmul_template.h and matmul_tiles.h use.
 * Thread: any; all functions are pure. */
#include "abi/arith.h"

#include <immintrin.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline))

#define LANES          16
#define PANEL_COLUMNS  8
#define PANEL_UNPACKS  1
#define DIRECT_COLUMNS 8
#define PAIR_SUMS      0

#define vi            __m512i
#define vf            __m512
#define vi_set(x)     _mm512_set1_epi32(x)
#define vi_set8(x)    _mm512_set1_epi8(x)
#define vi_and        _mm512_and_si512
#define vi_or         _mm512_or_si512
#define vi_xor        _mm512_xor_si512
#define vi_add        _mm512_add_epi32
#define vi_add8       _mm512_add_epi8
#define vi_load(p)    _mm512_loadu_si512(p)
#define vi_store      _mm512_store_si512
#define vi_max        _mm512_max_epi32
#define vi_lookup     _mm512_shuffle_epi8
#define vi_sll        _mm512_slli_epi32
#define vi_srl        _mm512_srli_epi32
#define vi_u8x(p)     _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vi_s8x(p)     _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vi_sixteen(p) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vf_zero       _mm512_setzero_ps
#define vf_set(x)     _mm512_set1_ps(x)
#define vf_bits       _mm512_castsi512_ps
#define vf_of         _mm512_cvtepi32_ps
#define vf_load       _mm512_load_ps
#define vf_loadu(p)   _mm512_loadu_ps(p)
#define vf_store      _mm512_store_ps
#define vf_storeu     _mm512_storeu_ps
#define vf_bcast(p)   _mm512_set1_ps(*(p))
#define vf_add        _mm512_add_ps
#define vf_mul        _mm512_mul_ps
#define vf_fma        _mm512_fmadd_ps
#define vf_fms        _mm512_fmsub_ps
#define vf_half(p)    _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define vf_bf16(p)                                                                                           \
    _mm512_castsi512_ps(_mm512_slli_epi32(                                                                   \
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(p))), 16))
#define vi_bcast(p) _mm512_set1_epi32(load_i32(p))
#define dot         _mm512_dpbusd_epi32

static inline int load_i32(const void *p)
{
    int v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

/* Shifts left by n bits (right if negative). The caller masks off bits that cross bytes. */
static inline __attribute__((always_inline)) __m512i vi_shift(__m512i v, int n)
{
    return n >= 0 ? _mm512_slli_epi16(v, (unsigned)n) : _mm512_srli_epi16(v, (unsigned)-n);
}

/* Spreads nibbles to bytes, 16 at a time: the low ones, then the high ones. The caller masks off the upper
 * halves. */
static inline __attribute__((always_inline)) __m512i vi_nibbles(const uint8_t *p)
{
    __m512i v = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)p));
    v = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), v);
    return _mm512_srlv_epi32(v, _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4));
}
