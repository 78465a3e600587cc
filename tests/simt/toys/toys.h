/* toys.h - toy kernels with the decoder's synchronisation patterns, one pattern each, for the emulator's own
 * tests. All buffers are device memory, zeroed before the launch unless noted.
 * Thread: filled by the host before the launch. */
#pragma once
#include "device/dependency.h"

/* grid_barrier.c: each round all blocks write, meet, read a neighbour, meet: the first time as in
 * dependency.h, the second time by fences and a flag, as no kernel does. */
#define GRID_BARRIER_THREADS 64
struct grid_barrier_args {
    SIMT_GLOBAL uint32_t *cells;           /* [n_blocks][threads] */
    SIMT_GLOBAL uint32_t *out;             /* [n_blocks][threads]: sum over rounds of the values read */
    SIMT_GLOBAL uint32_t *counter, *words; /* [2]: the flag follows the counter; words: dependency.h */
    uint32_t rounds;
};

/* weight_ring.c: a producer warp streams weights and, each round, what the next block wrote in the previous
 * round. */
#define WEIGHT_RING_THREADS   96 /* two consumer warps, then the producer */
#define WEIGHT_RING_CONSUMERS 64
#define WEIGHT_RING_STAGES    3
#define WEIGHT_RING_BYTES     1024 /* bytes per stage: 16 for each consumer thread */
#define WEIGHT_RING_STREAM    4    /* stages of weights per round */
#define WEIGHT_RING_SHARED    (WEIGHT_RING_STAGES * (WEIGHT_RING_BYTES + 16))
struct weight_ring_args {
    const SIMT_GLOBAL char *weights;       /* [n_blocks][rounds][stream][stage bytes], read-only */
    SIMT_GLOBAL char *segments;            /* [2][n_blocks][stage bytes] */
    SIMT_GLOBAL uint32_t *out;             /* [n_blocks][consumers] */
    SIMT_GLOBAL uint32_t *counter, *words; /* words: dependency.h */
    uint32_t rounds;
};
