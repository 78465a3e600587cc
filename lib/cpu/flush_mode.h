/* flush_mode.h - x86: from flush_begin() to flush_end() this thread's SSE and AVX arithmetic takes subnormal
 * operands for the zero of their sign, and gives no subnormal results (arith_flush). Put a call that is not
 * inlined between them: the compiler does not know that arithmetic depends on the mode. */
#pragma once
#include <stdint.h>

#include <immintrin.h>

static inline uint32_t flush_begin(void)
{
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040); /* results, operands */
    return mode;
}

static inline void flush_end(uint32_t mode)
{
    _mm_setcsr(mode);
}
