/* sampler_avx2.c - the sampler's loops compiled for AVX2. */
#if defined(__AVX2__)
#define SAMPLER_LOOPS sampler_loops_avx2
#define SAMPLER_ISA   "avx2"
#include "sampler_template.h"
#else
extern int sampler_avx2_is_not_for_this_processor; /* ISO C forbids an empty file */
#endif
