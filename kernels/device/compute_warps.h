/* compute_warps.h - the threads of a block that compute: 0..n_threads-1, whole warps. In the persistent
 * decoder the producer and border warps come after them; in a kernel of one graph node the crew is what its
 * launch says. Every function of kernels/ that takes a crew is called by all its threads, together. */
#pragma once
#include "dependency.h"

struct crew {
    uint32_t n_threads, n_warps;
};

SIMT_INLINE struct crew crew_of(uint32_t n_threads)
{
    return (struct crew){n_threads, n_threads / SIMT_LANES};
}

/* Orders the crew's accesses to shared and global memory among themselves. */
#define crew_sync(crew) simt_bar_sync(FLOW_BAR, (crew)->n_threads)

/* The same, and tells all whether any thread brought p != 0: where one that was told to leave tells the
 * others. */
#define crew_any(crew, p) simt_bar_or(FLOW_BAR, (crew)->n_threads, p)
