/* matmul_avx512.c - the matrix product on 512-bit vectors with VNNI: 16 rows per vector. */
#include "abi/arith.h"
#include "base/isa.h"
#include "matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>

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

/* arith_quantise() of 16-byte aligned x; sum: of each half. The largest value is found by comparing bits as
 * integers, as there: a NaN is larger than all numbers. */
static inline __attribute__((always_inline)) float quantise_block(const float *x, int8_t *q, int32_t sum[2])
{
    __m512 x0 = _mm512_load_ps(x), x1 = _mm512_load_ps(x + 16);
    __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i m0 = _mm512_and_si512(_mm512_castps_si512(x0), magnitude);
    __m512i m1 = _mm512_and_si512(_mm512_castps_si512(x1), magnitude);
    uint32_t top = _mm512_reduce_max_epu32(_mm512_max_epu32(m0, m1));
    bool finite = top < 0x7f800000u, tiny = top < 0x0d800000u;
    float amax = arith_from_bits(top);
    __m512 inverse = _mm512_set1_ps(finite && !tiny ? 127.0f / amax : 0.0f);
    __mmask16 keep = finite ? 0xffff : 0; /* NaN times 0 is not 0 */
    __m512i q0 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x0, inverse));
    __m512i q1 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x1, inverse));
    __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(q1), _mm512_cvtepi32_epi8(q0));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    __m256i s = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
    sum[0] = _mm256_cvtsi256_si32(s);
    sum[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1));
    return !finite ? arith_from_bits(0x7fc00000u) : tiny ? 0.0f : amax / 127.0f;
}

#include "matmul_quantise_512.h"
#define QUANTISE_SUPER quantise_super_eight

#include "matmul_template.h"

static bool supported(void)
{
    return isa_has(ISA_AVX512);
}

const struct matmul_kernels matmul_avx512 = {
    .name = "avx512vnni",
    .supported = supported,
    .quantise = quantise,
    .run = run,
    .scratch_size = sizeof(struct scratch),
};
#endif
