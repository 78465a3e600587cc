/* roofline_avx512.c - the loops of roofline.c on 512-bit vectors with VNNI. */
#include "roofline_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>

static uint64_t read(const void *p, size_t size)
{
    __m512i sum[8];
    for (int i = 0; i < 8; i++)
        sum[i] = _mm512_setzero_si512();
    for (const char *at = p, *end = at + size; at < end; at += 512)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(at + 64 * i));
    for (int i = 1; i < 8; i++)
        sum[0] = _mm512_xor_si512(sum[0], sum[i]);
    return (uint64_t)_mm512_reduce_add_epi64(sum[0]);
}

/* 16 accumulators: more than latency (5) times two per cycle. Every loop over them is unrolled, because
 * otherwise gcc keeps the array in memory too, with stores in every round; and the compiler must not know
 * that they start equal, or it merges them into one. tests/checks/roofline.sh checks the compiled loop. */
static double int8(uint64_t n)
{
    __m512i sum[16], w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(-2);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        sum[i] = _mm512_setzero_si512();
        __asm__ volatile("" : "+v"(sum[i]));
    }
    for (uint64_t round = 0; round < n; round++)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], w, x);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        __asm__ volatile("" ::"v"(sum[i]));
    return (double)n * 16 * 64 * 2;
}

static double f32(uint64_t n)
{
    __m512 sum[12], x = _mm512_set1_ps(0.5f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) {
        sum[i] = _mm512_setzero_ps();
        __asm__ volatile("" : "+v"(sum[i]));
    }
    for (uint64_t round = 0; round < n; round++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = _mm512_fmadd_ps(sum[i], x, x);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" ::"v"(sum[i]));
    return (double)n * 12 * 16 * 2;
}

const struct roofline_loops roofline_avx512 = {read, int8, f32};
#endif
