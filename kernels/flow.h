/* flow.h - how one op waits for another: cumulative counters, in device memory, one per 128-byte line.
 *
 * Producers add 1 when their output is visible; a consumer waits until the counter reaches epoch x arrivals.
 * Counters are never reset and are compared by difference, so they may wrap. A grid barrier is the case in
 * which every block signals and every block waits. Both calls are made by the first n_threads threads of a
 * block (whole warps), which use named barrier FLOW_BAR for it; the others (producer warps) go on.
 *
 * Why it is right: the stores of all n_threads happen before thread 0's release through the barrier; the
 * release is cumulative; the acquire of a later reader sees it; the reader's barrier carries that to its
 * block. A counter may not be read through anything but these two calls while the kernel runs. */
#pragma once
#include "simt.h"

#define FLOW_BAR         1
#define FLOW_ABORT_SPINS 256 /* polls of the counter between two looks at the abort word */

/* "What this block owed is written." */
SIMT_INLINE void flow_signal(SIMT_GLOBAL uint32_t *counter, uint32_t n_threads)
{
    simt_bar_sync(FLOW_BAR, n_threads);
    if (simt_thread() == 0)
        simt_red_release_gpu_add(counter, 1);
}

/* One thread's wait. False: the abort word was set. */
SIMT_INLINE bool flow_poll(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                           const SIMT_GLOBAL uint32_t *abort_word)
{
    uint32_t spins = 0;
    while ((int32_t)(simt_ld_acquire_gpu(counter) - target) < 0)
        if (++spins % FLOW_ABORT_SPINS == 0 && simt_ld_relaxed_gpu(abort_word))
            return false;
    return true;
}

/* Waits until `target` arrivals; all n_threads get the same answer. False: the abort word was set. */
SIMT_INLINE bool flow_wait(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                           const SIMT_GLOBAL uint32_t *abort_word, uint32_t n_threads)
{
    bool stop = false;
    if (simt_thread() == 0)
        stop = !flow_poll(counter, target, abort_word);
    return !simt_bar_or(FLOW_BAR, n_threads, stop);
}

/* The wait of one warp on its own (a producer about to copy what other blocks wrote). */
SIMT_INLINE bool flow_wait_warp(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                                const SIMT_GLOBAL uint32_t *abort_word)
{
    bool go = true;
    if (simt_lane() == 0)
        go = flow_poll(counter, target, abort_word);
    go = simt_ballot(go) == 0xffffffffu;
    simt_syncwarp();
    return go;
}
