/* matmul_avx512.c - the matrix product on 512-bit vectors with VNNI: 16 rows per vector. */
#include "base/isa.h"
#include "matmul.h"

#if defined(__x86_64__)
#include "matmul_512.h"

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
    .columns = MATMUL_PANEL,
};
#endif
