#if defined(__x86_64__)
#include <immintrin.h>

/* What the kernel does for one product; the empty asm keeps the constant part inside the loop. */
static inline __m256i dot(__m256i sum, __m256i w, __m256i x)
{
    __asm__ volatile("" : "+x"(x));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}

#include "roofline_256.h"

const struct roofline_loops roofline_avx2 = {read, int8};
#endif
