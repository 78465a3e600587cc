/* hand_off.c - see toys.h. */
#include "toys.h"

static void wait_acquire(const SIMT_GLOBAL uint32_t *flag, uint32_t value)
{
    if (simt_lane() == 0)
        while (simt_ld_acquire_gpu(flag) != value) {
        }
    simt_syncwarp();
}

static void wait_fence(const SIMT_GLOBAL uint32_t *flag, uint32_t value)
{
    if (simt_lane() == 0) {
        while (simt_ld_relaxed_gpu(flag) != value) {
        }
        simt_fence_acq_rel_gpu();
    }
    simt_syncwarp();
}

static void ping(const struct hand_off_args *args)
{
    uint32_t lane = simt_lane(), x = lane;
    for (uint32_t r = 1; r <= args->rounds; r++) {
        args->there[lane] = x + r;
        simt_syncwarp();
        if (lane == 0)
            simt_st_release_gpu(&args->flags[0], r);
        wait_fence(&args->flags[1], r);
        x = args->back[31 - lane];
    }
    args->out[lane] = x;
}

static void pong(const struct hand_off_args *args)
{
    uint32_t lane = simt_lane();
    for (uint32_t r = 1; r <= args->rounds; r++) {
        wait_acquire(&args->flags[0], r);
        args->back[lane] = args->there[31 - lane] * 2;
        simt_syncwarp();
        if (lane == 0) {
            simt_fence_acq_rel_gpu();
            simt_st_relaxed_gpu(&args->flags[1], r);
        }
    }
}

SIMT_KERNEL(hand_off, struct hand_off_args, SIMT_LANES, 1)
{
    if (simt_block() == 0)
        ping(&args);
    else
        pong(&args);
}
