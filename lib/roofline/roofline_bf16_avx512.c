/* roofline_bf16_avx512.c - bf16 dot products on 512-bit vectors: the unit of attention over a bf16 cache. */
#include "roofline_loops.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

/* 12 accumulators: the latency of 6 times two per cycle. */
static double bf16(uint64_t n)
{
    __m512 sum[12];
    __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) {
        sum[i] = _mm512_setzero_ps();
        __asm__ volatile("" : "+v"(sum[i]));
    }
    for (uint64_t round = 0; round < n; round++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], x, x);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" ::"v"(sum[i]));
    return (double)n * 12 * 32 * 2;
}

double (*const roofline_bf16)(uint64_t n) = bf16;
#else
double (*const roofline_bf16)(uint64_t n) = 0;
#endif
