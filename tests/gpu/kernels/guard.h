/* guard.h - the limit of the waits of these kernels: GPU_DEADLINE_NS, or the abort word. The record (enum
 * flow_word) has a line of its own among a kernel's counters. Thread: any device thread. */
#pragma once
#include "device/compute_warps.h"
#include "gpu_kernels.h"

SIMT_INLINE struct flow_guard gpu_guard(uint64_t counters, uint32_t abort_line)
{
    SIMT_GLOBAL uint32_t *lines = GPU_AT(uint32_t, counters);
    return (struct flow_guard){
        .words = lines + abort_line * GPU_LINE, .counters = lines, .deadline_ns = GPU_DEADLINE_NS};
}

/* Waits until `target` arrivals, by all lanes of one warp. False: end. */
SIMT_INLINE bool gpu_wait_warp(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                               const struct flow_guard *guard)
{
    bool go = true;
    if (simt_lane() == 0)
        go = flow_poll(counter, target, guard);
    go = simt_ballot(go) == 0xffffffffu;
    simt_syncwarp();
    return go;
}
