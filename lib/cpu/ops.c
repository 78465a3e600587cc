#include "ops.h"

#include <string.h>

const struct ops *ops_find(const char *matmul_name)
{
#if defined(__x86_64__)
    if (strncmp(matmul_name, "avx512", 6) == 0)
        return &ops_avx512;
    if (strncmp(matmul_name, "avx", 3) == 0)
        return &ops_avx2;
#endif
    (void)matmul_name;
    return &ops_scalar;
}
