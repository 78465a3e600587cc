/* grid_barrier.c - see toys.h. */
#include "toys.h"
#include "device/dependency.h"

/* All blocks arrive; the first one sees them and raises the flag, for which the others wait. One side of each
 * is ordered by a fence, the other by its own order. */
static void meet_by_flag(SIMT_GLOBAL uint32_t *counter, SIMT_GLOBAL uint32_t *flag, uint32_t n_arrivals)
{
    simt_bar_sync(FLOW_BAR, GRID_BARRIER_THREADS);
    if (simt_thread() == 0) {
        simt_fence_acq_rel_gpu();
        simt_red_relaxed_gpu_add(counter, 1);
        if (simt_block() == 0) {
            while (simt_ld_acquire_gpu(counter) < n_arrivals) {
            }
            simt_st_release_gpu(flag, n_arrivals);
        } else {
            while (simt_ld_relaxed_gpu(flag) < n_arrivals) {
            }
            simt_fence_acq_rel_gpu();
        }
    }
    simt_bar_sync(FLOW_BAR, GRID_BARRIER_THREADS);
}

SIMT_KERNEL(grid_barrier, struct grid_barrier_args, GRID_BARRIER_THREADS, 1)
{
    uint32_t t = simt_thread(), block = simt_block(), n = simt_n_blocks(), sum = 0;
    uint32_t neighbour = (block + 1) % n * GRID_BARRIER_THREADS + (t * 7 + 3) % GRID_BARRIER_THREADS;
    struct flow_guard guard = {.words = args.words, .counters = args.counter};
    for (uint32_t r = 0; r < args.rounds; r++) {
        args.cells[block * GRID_BARRIER_THREADS + t] = r * 1000 + block * 100 + t;
        flow_signal(args.counter, GRID_BARRIER_THREADS);
        if (!flow_wait(args.counter, (2 * r + 1) * n, &guard, GRID_BARRIER_THREADS))
            return;
        sum += args.cells[neighbour];
        meet_by_flag(args.counter, args.counter + 1, (2 * r + 2) * n);
    }
    args.out[block * GRID_BARRIER_THREADS + t] = sum;
}
