/* ops_bf16_avx512.c - the operations of ops.h on vectors of 16 floats, for CPUs with bf16 dot products. */
#if defined(__AVX512BF16__)
#include "ops_avx512.c"
#else
extern const int ops_bf16_avx512_is_not_built;
const int ops_bf16_avx512_is_not_built = 1;
#endif
