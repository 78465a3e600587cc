/* roofline_avxvnni.c - the loops of roofline.c on 256-bit vectors with VNNI. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "roofline_256.h"

/* 12 accumulators beside two operands; see roofline_avx512.c. */
static double int8(uint64_t n)
{
    __m256i sum[12], w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(-2);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) {
        sum[i] = _mm256_setzero_si256();
        __asm__ volatile("" : "+x"(sum[i]));
    }
    for (uint64_t round = 0; round < n; round++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = _mm256_dpbusd_avx_epi32(sum[i], w, x);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" ::"x"(sum[i]));
    return (double)n * 12 * 32 * 2;
}

const struct roofline_loops roofline_avxvnni = {read, int8, f32};
#endif
