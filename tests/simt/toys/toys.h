/* toys.h - toy kernels with the decoder's synchronisation patterns, one pattern each, for the emulator's own
 * tests. All buffers are device memory, zeroed before the launch unless noted.
 * Thread: filled by the host before the launch. */
#pragma once
#include "device/dependency.h"

/* grid_barrier.c: each round all blocks write, meet, read a neighbour, meet. */
#define GRID_BARRIER_THREADS 64
struct grid_barrier_args {
    SIMT_GLOBAL uint32_t *cells;           /* [n_blocks][threads] */
    SIMT_GLOBAL uint32_t *out;             /* [n_blocks][threads]: sum over rounds of the values read */
    SIMT_GLOBAL uint32_t *counter, *words; /* words: dependency.h */
    uint32_t rounds;
};

/* flag_hop.c: each block has a part of every head; the last block to arrive merges the parts and raises a
 * flag. */
#define FLAG_HOP_THREADS 64
#define FLAG_HOP_HEADS   3
struct flag_hop_args {
    SIMT_GLOBAL uint32_t *parts;           /* [heads][n_blocks][threads] */
    SIMT_GLOBAL uint32_t *merged;          /* [heads][threads] */
    SIMT_GLOBAL uint32_t *out;             /* [n_blocks][threads] */
    SIMT_GLOBAL uint32_t *tickets, *flags; /* [heads] */
    SIMT_GLOBAL uint32_t *words;           /* dependency.h */
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

/* mma_tiles.c: one warp multiplies tiles and copies them one ahead. */
#define MMA_TILES_BYTES  768 /* a [16][32] u8, then b [8][32] s8 (columns) */
#define MMA_TILES_SHARED (2 * MMA_TILES_BYTES)
struct mma_tiles_args {
    const SIMT_GLOBAL char *tiles; /* [n_blocks][n_tiles][tile bytes], read-only */
    SIMT_GLOBAL int32_t *c;        /* [n_blocks][16][8]: sum of the products */
    SIMT_GLOBAL int32_t
        *sums; /* [n_blocks]: sum of all of c; [n_blocks + block]: bit per lane whose c[0] is odd */
    uint32_t n_tiles;
};

/* hand_off.c: two blocks pass a message back and forth, one way by release and acquire, the other way by
 * fences. */
struct hand_off_args {
    SIMT_GLOBAL uint32_t *there, *back; /* [32]: messages */
    SIMT_GLOBAL uint32_t *flags;        /* [2] */
    SIMT_GLOBAL uint32_t *out;          /* [32] */
    uint32_t rounds;
};
