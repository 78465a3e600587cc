#if defined(__x86_64__)
#include <immintrin.h>

#define dot _mm256_dpbusd_avx_epi32
#include "roofline_256.h"

const struct roofline_loops roofline_avxvnni = {read, int8};
#endif
