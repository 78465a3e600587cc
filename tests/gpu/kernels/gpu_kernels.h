/* gpu_kernels.h - the kernels that measure and test a GPU: their parameters, for host and device. Addresses
 * are uint64_t, as in kernels/abi/device_abi.h. Words that several blocks poll stand GPU_LINE apart; the host
 * clears them before a launch and they count up from there; the line of FLOW_WORDS after them records why a
 * grid gave up. The number of compute threads is a parameter, so that a few small blocks in the emulator run
 * the same code; a GPU gets the decoder's.
 *
 *   first     the decoder's skeleton: ring echo, weight ring, grid barrier, park, abort; computes nothing
 *   selftest  the basis of the arithmetic: mma fragments, rounding, arith.h's functions
 *   copy      fills, reads and copies memory: the ceilings of everything else
 *   stream    the weight ring alone (E1): continuous, with grid barriers beside it, or stopped by them
 *   hop       one block to the next, and all to all (E2)
 *   echo      host to device and back, and how evenly steps run while both sides poll (E3)
 *   product   the decoder's matrix product, repeated, with nothing to wait for (E4)
 *   clock     ticks of an SM against the global timer
 *   idle      a grid that waits for the host and sleeps for a given time between two polls (E5, E6)
 *
 * Thread: the host fills these before a launch; kernels only read them. */
#pragma once
#include "abi/device_abi.h"

#include <stdint.h>

#define GPU_AT(type, address) ((SIMT_GLOBAL type *)(uintptr_t)(address))
#define GPU_LINE              32            /* u32: 128 bytes */
#define GPU_DEADLINE_NS       5000000000ull /* longest wait; after it the grid gives up */

/* ---- first ---- */

enum first_stop { FIRST_RUN, FIRST_DRAIN, FIRST_ABORT };
enum first_word { FIRST_PUBLISHED, FIRST_ARRIVED, FIRST_DONE, FIRST_LEAVE, FIRST_GUARD, FIRST_N_WORDS };

struct first_host { /* pinned; the host's and the device's words, 128 bytes apart */
    uint32_t asked, key, stop, pad0[29];
    uint32_t answered, answer, left, wrong, pad1[28];
};
_Static_assert(sizeof(struct first_host) == 256, "first_host");

struct first_args {
    uint64_t host;     /* struct first_host */
    uint64_t words;    /* u32 [n_blocks][n_pieces * piece_bytes / 4] */
    uint64_t marks;    /* u32 [2][n_blocks] */
    uint64_t total;    /* u32 [2]: sum of all words over all steps; number of wrong marks */
    uint64_t counters; /* u32 [FIRST_N_WORDS][GPU_LINE] */
    uint32_t n_pieces, piece_bytes, n_stages, n_crew;
    uint32_t launch, park_us;
    uint32_t missing; /* the block that stays away from the barrier; >= n_blocks: none */
    uint32_t first_step;
};
#define FIRST_SHARED(n_stages, piece_bytes) ((n_stages) * ((piece_bytes) + 16))

/* ---- selftest ---- */

enum selftest_float { /* rows of `results` */
                      SELFTEST_FMA,
                      SELFTEST_DIVIDE,
                      SELFTEST_ROOT,
                      SELFTEST_PRODUCT,
                      SELFTEST_ROUND,
                      SELFTEST_EXP2,
                      SELFTEST_LOG2,
                      SELFTEST_SILU,
                      SELFTEST_TO_HALF,
                      SELFTEST_FROM_HALF,
                      SELFTEST_FLUSHED,
                      SELFTEST_DP4A,
                      SELFTEST_N_FLOATS,
};
#define SELFTEST_THREADS 128

struct selftest_args {
    uint64_t tiles;   /* n_tiles x { A [16][32] bytes, B [8 columns][32] bytes, C i32 [16][8] } */
    uint64_t answers; /* i32 [n_tiles]: [3: u8s8, s8s8, s8s8 of k 0..15][16][8]; [2: largest, smallest][32]
                         of A's first 32 words, unsigned, from each lane */
    uint64_t inputs;  /* u32 [3][n_inputs]: the bits of x, y, z */
    uint64_t results; /* u32 [SELFTEST_N_FLOATS][n_inputs] */
    uint32_t n_tiles, n_inputs;
};
#define SELFTEST_TILE_BYTES (16 * 32 + 8 * 32 + 16 * 8 * 4)
#define SELFTEST_ANSWERS    (3 * 16 * 8 + 2 * 32) /* answers of one tile */

/* ---- copy ---- */

#define COPY_THREADS 512
#define COPY_AHEAD   8                           /* loads of 16 bytes that a thread has in flight */
#define COPY_CHUNK   (COPY_AHEAD * COPY_THREADS) /* 16-byte words that a block copies at a time */
struct copy_args {
    uint64_t to, from; /* 16-byte words; read: `to` is u32 [n_blocks][COPY_THREADS], a sum per thread */
    uint64_t n_words;  /* a multiple of COPY_CHUNK */
};

/* ---- stream ---- */

enum stream_mode {
    STREAM_CONTINUOUS,
    STREAM_BARRIERS, /* compute warps meet after every burst; producers continue */
    STREAM_STOPPED,  /* producers wait for the barriers too */
    STREAM_N_MODES,
};
struct stream_args {
    uint64_t data;     /* [n_chunks][chunk_bytes]: chunk i belongs to block i % n_blocks */
    uint64_t sums;     /* u32 [n_blocks][n_crew] */
    uint64_t counters; /* u32 [2][GPU_LINE]: barrier, then flow_word */
    uint32_t n_chunks; /* a multiple of n_blocks */
    uint32_t chunk_bytes, n_stages, n_crew;
    uint32_t burst; /* chunks of a block between two barriers; divides n_chunks / n_blocks */
    uint32_t mode, n_rounds;
};

/* ---- hop ---- */

enum hop_mode { HOP_CHAIN, HOP_BARRIER, HOP_PACKET };
struct hop_args {
    /* u32 [3 * n_blocks + 1][GPU_LINE]: a counter per block, flow_word, then per block a word that ends its
     * streaming threads and a packet. */
    uint64_t counters;
    uint64_t out; /* u32 [2][n_blocks]: rounds seen; turns of the streaming threads */
    /* The threads behind n_crew, HOP_STREAMERS of them or none, read this memory meanwhile. */
    uint64_t traffic, n_words; /* 16-byte words, a multiple of n_blocks * HOP_TURN */
    uint32_t n_rounds, n_crew, mode, reserved;
};
#define HOP_STREAMERS 64
#define HOP_AHEAD     16                          /* loads of 16 bytes that a thread has in flight */
#define HOP_TURN      (HOP_STREAMERS * HOP_AHEAD) /* words of a turn of a block */

/* ---- echo ---- */

enum echo_word { ECHO_ARRIVED, ECHO_FINISHED, ECHO_GUARD, ECHO_N_WORDS };
struct echo_host { /* pinned */
    uint32_t asked, stop, pad0[30];
    uint32_t answered, pad1[31];
};
struct echo_args {
    uint64_t host;                /* struct echo_host */
    uint64_t counters;            /* u32 [ECHO_N_WORDS][GPU_LINE] */
    uint64_t times;               /* u64 [n_steps]: block 0's clock, ns */
    uint64_t polls;               /* u64 [2]: number of polls of host memory, and their time in ns */
    uint32_t n_steps, n_barriers; /* n_steps 0: only the echo, until the host says stop */
    uint32_t n_crew;
    uint32_t polls_host; /* block 0's I/O warp polls host memory while the steps run */
};

/* ---- product ---- */

/* Words of product_loop_args.counters. PRODUCT_BY_COLUMNS: the warps have shared stages by columns. */
enum product_word { PRODUCT_GUARD, PRODUCT_MET, PRODUCT_BY_COLUMNS, PRODUCT_N_WORDS };

struct product_loop_args {
    uint64_t tiles;    /* [n_copies] matrices of copy_bytes, in tile.h's layout */
    uint64_t in, out;  /* float [n_columns][k], [n_columns][n] */
    uint64_t panels;   /* wide products: activation_buffer_bytes(n_columns, k) */
    uint64_t factors;  /* wide products: float [n_columns] */
    uint64_t counters; /* u32 [PRODUCT_N_WORDS][GPU_LINE] */
    uint64_t copy_bytes;
    struct decoder_shared shared;
    uint32_t type, n, k, n_tiles, super_bytes;    /* enum tile_type */
    uint32_t n_groups, group_tiles, stage_supers; /* schedule.h */
    uint32_t n_columns;                           /* 1 to 256 */
    uint32_t n_copies, n_rounds, n_crew;
    uint32_t quantises; /* quantise before every product, as the decoder does; else once */
    uint32_t reserved;
};

/* ---- clock ---- */

struct clock_args {
    uint64_t out; /* u64 [2]: ticks of the SM, nanoseconds */
    uint64_t spin_ns;
};

/* ---- idle ---- */

struct idle_host { /* pinned */
    uint32_t stop, pad0[31];
    uint32_t running, left, pad1[30];
};
struct idle_args {
    uint64_t host; /* struct idle_host */
    uint64_t
        counters;   /* u32 [2][GPU_LINE]: mirror of `stop` for the other blocks, blocks that have started */
    uint64_t polls; /* u64 [2]: number of block 0's polls of host memory, and their time in ns */
    uint32_t sleep_ns, mirror_ns;
};
#define IDLE_THREADS 512
