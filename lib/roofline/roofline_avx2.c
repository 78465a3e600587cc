/* roofline_avx2.c - the loops of roofline.c on 256-bit vectors without VNNI. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "roofline_256.h"

/* Sums eight pairs of products in 16 bits before they are widened, as many as weights of 4 bits allow: the
 * maximum of this instruction set. (A loop that widened every pair reached half of it on a Zen 3.) The empty
 * asm keeps the products, which are all equal, inside the loop and in the order that needs one register per
 * sum. */
static double int8(uint64_t n)
{
    __m256i sum[4], pairs[4], w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(-2), one = _mm256_set1_epi16(1);
    for (int i = 0; i < 4; i++)
        sum[i] = _mm256_setzero_si256();
    for (uint64_t round = 0; round < n; round++) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            pairs[i] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int step = 0; step < 8; step++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                __asm__ volatile("" : "+x"(x));
                pairs[i] = _mm256_add_epi16(pairs[i], _mm256_maddubs_epi16(w, x));
                __asm__ volatile("" : "+x"(pairs[i]));
            }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs[i], one));
    }
    for (int i = 0; i < 4; i++)
        __asm__ volatile("" ::"x"(sum[i]));
    return (double)n * 8 * 4 * 32 * 2;
}

const struct roofline_loops roofline_avx2 = {read, int8, f32};
#endif
