/* driver_kernels.h - kernels that the emulated driver's test launches. Thread: filled by the host before the
 * launch. */
#pragma once
#include <stdint.h>

#define DRIVER_KERNEL_THREADS 64

/* cells[i] = cells[i] * factor + add, for i < n. Any number of blocks, of up to 64 threads in whole warps. */
struct scale_args {
    uint64_t cells; /* u32 [n] */
    uint32_t n, factor, add;
};

/* Echo: reads each number that the host writes, adds 1, answers, until ECHO_STOP. Blocks other than 0 wait
 * for block 0. */
struct echo_args {
    uint64_t words; /* struct echo_words, pinned */
    uint64_t ended; /* u32, device memory: block 0 has ended */
};
struct echo_words {
    uint32_t request, pad0[31]; /* host; 0: none yet, ECHO_STOP: end */
    uint32_t answer, pad1[31];  /* device */
    uint32_t time, pad2[31];    /* device: microseconds of its timer at the last answer */
};
#define ECHO_STOP 0xffffffffu

/* Waits for a counter that is never signalled. */
struct wait_args {
    uint64_t counter; /* u32, device memory */
};

/* A block of more than the decoder's size: sums over its lanes and over all threads of the grid, `rounds`
 * times. */
#define WIDE_THREADS 576
struct wide_args {
    uint64_t counter; /* u32, zeroed */
    uint64_t sums;    /* u32 [rounds], zeroed: of thread numbers over the whole grid */
    uint64_t guard;   /* u32 [FLOW_WORDS], zeroed */
    uint32_t rounds;
};
