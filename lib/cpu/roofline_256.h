/* roofline_256.h - the loops on 256-bit vectors; dot() comes from the including file. */
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

static double int8(uint64_t n)
{
    __m256i sum[12], w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(-2);
    for (int i = 0; i < 12; i++)
        sum[i] = _mm256_setzero_si256();
    for (uint64_t round = 0; round < n; round++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = dot(sum[i], w, x);
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" ::"x"(sum[i]));
    return (double)n * 12 * 32 * 2;
}
