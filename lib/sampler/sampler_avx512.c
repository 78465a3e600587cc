/* sampler_avx512.c - the sampler's loops compiled for AVX-512. */
#if defined(__AVX512F__)
#define SAMPLER_LOOPS sampler_loops_avx512
#define SAMPLER_ISA   "avx512"
#include "sampler_template.h"
#else
extern int sampler_avx512_is_not_for_this_processor; /* ISO C forbids an empty file */
#endif
