/* grid_barrier.c - see toys.h. */
#include "toys.h"
#include "device/dependency.h"

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
        flow_signal(args.counter, GRID_BARRIER_THREADS);
        if (!flow_wait(args.counter, (2 * r + 2) * n, &guard, GRID_BARRIER_THREADS))
            return;
    }
    args.out[block * GRID_BARRIER_THREADS + t] = sum;
}
