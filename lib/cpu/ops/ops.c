#include "ops.h"
#include "base/isa.h"

#include <string.h>

const struct ops *ops_find(const char *matmul_name)
{
#if defined(__x86_64__)
    if (strncmp(matmul_name, "avx512", 6) == 0 || strcmp(matmul_name, "amx") == 0)
        return isa_has(ISA_AVX512_BF16) ? &ops_bf16_avx512 : &ops_avx512;
    if (strncmp(matmul_name, "avx", 3) == 0)
        return &ops_avx2;
#endif
    (void)matmul_name;
    return &ops_scalar;
}

void ops_order_set(struct ops_order *order, uint32_t head_dim)
{
    uint32_t n = 0;
    for (uint32_t leaf = 0; leaf < 32; leaf++) {
        uint32_t lane = 0;
        for (uint32_t bit = 0; bit < 5; bit++)
            lane |= (leaf >> bit & 1) << (4 - bit);
        order->start[leaf] = (uint16_t)n;
        for (uint32_t d = lane; d < head_dim; d += 32)
            order->dims[n++] = (uint16_t)d;
    }
    order->start[32] = (uint16_t)n;
}
