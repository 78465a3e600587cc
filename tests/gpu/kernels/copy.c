/* copy.c - fills, reads and copies memory as fast as plain loads and stores can. See gpu_kernels.h. Any grid
 * of COPY_THREADS threads; n_words is a multiple of COPY_CHUNK. */
#include "gpu_kernels.h"
#include "device/simt.h"

/* Word i of 32 bits is copy_pattern(i) of tests/gpu/parts/part_copy.c. */
SIMT_KERNEL(gpu_fill, struct copy_args, COPY_THREADS, 2)
{
    SIMT_GLOBAL simt_u4 *to = GPU_AT(simt_u4, args.to);
    for (uint64_t i = (uint64_t)simt_block() * COPY_THREADS + simt_thread(); i < args.n_words;
         i += (uint64_t)simt_n_blocks() * COPY_THREADS) {
        uint32_t k = (uint32_t)i * 4;
        simt_u4 v = {k, k + 1, k + 2, k + 3};
        v *= 2654435761u;
        to[i] = v ^ (v >> 15);
    }
}

SIMT_KERNEL(gpu_read, struct copy_args, COPY_THREADS, 2)
{
    const SIMT_GLOBAL simt_u4 *from = GPU_AT(const simt_u4, args.from) + simt_thread();
    simt_u4 sum = {0, 0, 0, 0};
    for (uint64_t i = (uint64_t)simt_block() * COPY_CHUNK; i < args.n_words;
         i += (uint64_t)simt_n_blocks() * COPY_CHUNK) {
        simt_u4 v[COPY_AHEAD];
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < COPY_AHEAD; j++)
            v[j] = from[i + j * COPY_THREADS];
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < COPY_AHEAD; j++)
            sum += v[j];
    }
    GPU_AT(uint32_t, args.to)
    [simt_block() * COPY_THREADS + simt_thread()] = sum[0] + sum[1] + sum[2] + sum[3];
}

SIMT_KERNEL(gpu_move, struct copy_args, COPY_THREADS, 2)
{
    SIMT_GLOBAL simt_u4 *to = GPU_AT(simt_u4, args.to) + simt_thread();
    const SIMT_GLOBAL simt_u4 *from = GPU_AT(const simt_u4, args.from) + simt_thread();
    for (uint64_t i = (uint64_t)simt_block() * COPY_CHUNK; i < args.n_words;
         i += (uint64_t)simt_n_blocks() * COPY_CHUNK) {
        simt_u4 v[COPY_AHEAD];
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < COPY_AHEAD; j++)
            v[j] = from[i + j * COPY_THREADS];
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < COPY_AHEAD; j++)
            to[i + j * COPY_THREADS] = v[j];
    }
}
