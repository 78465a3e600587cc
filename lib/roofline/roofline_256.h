/* roofline_256.h - the read loop of roofline.c on 256-bit vectors.
 * Thread: any; pure. */
#include "roofline_loops.h"

static uint64_t read(const void *p, size_t size)
{
    __m256i sum[8];
    for (int i = 0; i < 8; i++)
        sum[i] = _mm256_setzero_si256();
    for (const char *at = p, *end = at + size; at < end; at += 256)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            sum[i] =
                _mm256_xor_si256(sum[i], _mm256_load_si256((const __m256i *)(const void *)(at + 32 * i)));
    for (int i = 1; i < 8; i++)
        sum[0] = _mm256_xor_si256(sum[0], sum[i]);
    return (uint64_t)_mm256_extract_epi64(sum[0], 0);
}

static double f32(uint64_t n)
{
    __m256 sum[12], x = _mm256_set1_ps(0.5f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) {
        sum[i] = _mm256_setzero_ps();
        __asm__ volatile("" : "+x"(sum[i]));
    }
    for (uint64_t round = 0; round < n; round++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = _mm256_fmadd_ps(sum[i], x, x);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" ::"x"(sum[i]));
    return (double)n * 12 * 8 * 2;
}
