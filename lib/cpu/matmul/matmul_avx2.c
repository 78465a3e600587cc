/* matmul_avx2.c - the matrix product on 256-bit vectors: 8 rows per vector. */
#include "base/isa.h"
#include "matmul.h"

#if defined(__x86_64__)
#define PAIR_SUMS 1
#include "matmul_256.h"

/* Products of u8 and s8, summed in pairs. Q8_0 and IQ4, which are signed here, multiply |w| by x with w's
 * sign: at most 2 * 128 * 127 = 32,512. */
static inline __attribute__((always_inline)) __m256i products(bool is_signed, __m256i w, __m256i x)
{
    return is_signed ? _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w))
                     : _mm256_maddubs_epi16(w, x);
}
/* Keeps the additions in order: a compiler that may reorder them keeps all products until then, more than
 * there are registers. */
static inline __attribute__((always_inline)) __m256i pairs_add(__m256i sum, __m256i pairs)
{
    sum = _mm256_add_epi16(sum, pairs);
    __asm__("" : "+x"(sum));
    return sum;
}

static inline __attribute__((always_inline)) __m256i pairs_sum(__m256i sum, __m256i pairs, __m256i by)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, by));
    __asm__("" : "+x"(sum));
    return sum;
}
#define pairs_of(kind, w, x)                                                                                 \
    products(matmul_traits[kind].bits == 8 || (matmul_traits[kind].codes && !matmul_traits[kind].zero), w, x)
#define pairs_widen _mm256_madd_epi16

#include "matmul_quantise.h"
#define QUANTISE_SUPER quantise_super

#include "matmul_template.h"

static bool supported(void)
{
    return isa_has(ISA_AVX2);
}

const struct matmul_kernels matmul_avx2 = {
    .name = "avx2",
    .supported = supported,
    .quantise = quantise,
    .run = run,
    .scratch_size = sizeof(struct scratch),
    .columns = MATMUL_PANEL,
};
#endif
