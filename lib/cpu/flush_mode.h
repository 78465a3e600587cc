/* flush_mode.h - flush-to-zero mode of SSE and AVX arithmetic on x86 (arith_flush).
 * Between flush_begin() and flush_end() the calling thread reads a subnormal operand as the zero of its sign,
 * and gets no subnormal results. Put a call that is not inlined between them: the compiler does not know that
 * arithmetic depends on the mode.
 * Thread: any; the mode belongs to the calling thread. */
#pragma once
#include <stdint.h>

#include <immintrin.h>

static inline uint32_t flush_begin(void)
{
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040); /* flush results and operands */
    return mode;
}

static inline void flush_end(uint32_t mode)
{
    _mm_setcsr(mode);
}
