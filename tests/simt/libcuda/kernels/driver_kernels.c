/* driver_kernels.c - see driver_kernels.h. */
#include "driver_kernels.h"
#include "device/dependency.h"

SIMT_KERNEL(scale_cells, struct scale_args, DRIVER_KERNEL_THREADS, 1)
{
    SIMT_GLOBAL uint32_t *cells = (SIMT_GLOBAL uint32_t *)(uintptr_t)args.cells;
    uint32_t step = simt_n_blocks() * simt_n_threads();
    for (uint32_t i = simt_block() * simt_n_threads() + simt_thread(); i < args.n; i += step)
        cells[i] = cells[i] * args.factor + args.add;
}

static void answer_requests(SIMT_GLOBAL struct echo_words *words)
{
    uint32_t last = 0;
    for (;;) {
        uint32_t request = simt_ld_acquire_sys(&words->request);
        if (request == ECHO_STOP)
            return;
        if (request == last) {
            simt_nanosleep(1000);
            continue;
        }
        last = request;
        simt_st_relaxed_sys(&words->time, (uint32_t)(simt_globaltimer() / 1000));
        simt_st_release_sys(&words->answer, request + 1);
    }
}

SIMT_KERNEL(echo, struct echo_args, DRIVER_KERNEL_THREADS, 1)
{
    SIMT_GLOBAL uint32_t *ended = (SIMT_GLOBAL uint32_t *)(uintptr_t)args.ended;
    if (simt_thread() == 0 && simt_block() == 0) {
        answer_requests((SIMT_GLOBAL struct echo_words *)(uintptr_t)args.words);
        simt_st_release_gpu(ended, 1);
    } else if (simt_thread() == 0) {
        while (!simt_ld_acquire_gpu(ended))
            simt_nanosleep(1000);
    }
    simt_bar_sync(0, simt_n_threads());
}

SIMT_KERNEL(wait_for_ever, struct wait_args, DRIVER_KERNEL_THREADS, 1)
{
    SIMT_GLOBAL uint32_t *counter = (SIMT_GLOBAL uint32_t *)(uintptr_t)args.counter;
    while (!simt_ld_acquire_gpu(counter)) {
    }
}

/* All blocks write the same words, and nothing says in which order. */
SIMT_KERNEL(race, struct scale_args, DRIVER_KERNEL_THREADS, 1)
{
    SIMT_GLOBAL uint32_t *cells = (SIMT_GLOBAL uint32_t *)(uintptr_t)args.cells;
    cells[simt_thread()] = simt_block();
}

SIMT_KERNEL(wide, struct wide_args, WIDE_THREADS, 1)
{
    SIMT_GLOBAL uint32_t *counter = (SIMT_GLOBAL uint32_t *)(uintptr_t)args.counter,
                         *sums = (SIMT_GLOBAL uint32_t *)(uintptr_t)args.sums;
    struct flow_guard guard = {.words = (SIMT_GLOBAL uint32_t *)(uintptr_t)args.guard, .counters = counter};
    for (uint32_t r = 0; r < args.rounds; r++) {
        uint32_t sum = simt_thread() * (r + 1);
        for (uint32_t i = SIMT_LANES / 2; i; i /= 2)
            sum += simt_shfl_xor_u32(sum, i);
        if (simt_lane() == 0)
            simt_red_relaxed_gpu_add(&sums[r], sum);
        flow_signal(counter, simt_n_threads());
        if (!flow_wait(counter, (r + 1) * simt_n_blocks(), &guard, simt_n_threads()))
            return;
    }
}
