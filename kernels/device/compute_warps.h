/* compute_warps.h - the compute warps of a block: threads 0..n_threads-1, whole warps. In the persistent
 * decoder the producer warp and the I/O warp come after them; in a kernel of one graph node the launch sets
 * their number.
 * Thread: all compute threads of a block call every function that takes a `crew`, together. */
#pragma once
#include "dependency.h"

struct crew {
    uint32_t n_threads, n_warps;
};

SIMT_INLINE struct crew crew_of(uint32_t n_threads)
{
    return (struct crew){n_threads, n_threads / SIMT_LANES};
}

/* Barrier of the compute warps; orders their accesses to shared and global memory among themselves. */
#define crew_sync(crew) simt_bar_sync(FLOW_BAR, (crew)->n_threads)

/* The same barrier; also tells all threads whether any passed p != 0: a thread whose wait failed so informs
 * the others. */
#define crew_any(crew, p) simt_bar_or(FLOW_BAR, (crew)->n_threads, p)
