/* matmul_avx2.c - the matrix product on 256-bit vectors: 8 rows per vector. */
#include "matmul.h"

#if defined(__x86_64__)
#define BYTE_ZERO 0
#include "matmul_256.h"

/* acc + the sums of four u8*s8. vpmaddubsw adds two products in 16 bits, so both must fit 15: values are at
 * most 63, and Q8_0, which is signed here, multiplies |w| by x with w's sign: 2 * 128 * 127 = 32,512. */
static inline __attribute__((always_inline)) __m256i dot4(bool is_signed, __m256i acc, __m256i w, __m256i x)
{
    __m256i pairs = is_signed ? _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w))
                              : _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#define dot(kind, acc, w, x) dot4(matmul_traits[kind].bits == 8, acc, w, x)

#include "matmul_quantise.h"
#define QUANTISE_SUPER quantise_super

#include "matmul_template.h"

static bool supported(void)
{
    return has_avx2(false);
}

const struct matmul_kernels matmul_avx2 = {
    .name = "avx2",
    .supported = supported,
    .quantise = quantise,
    .run = run,
    .scratch_size = sizeof(struct scratch),
};
#endif
