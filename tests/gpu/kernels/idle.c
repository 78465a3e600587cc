/* idle.c - a waiting grid: block 0 polls host memory, the others its mirror. See gpu_kernels.h. It reports in
 * host memory when all blocks have started, and ends once `stop` is set. The launch requests all shared
 * memory, as the decoder's does, so that no other kernel fits beside it. */
#include "gpu_kernels.h"
#include "device/simt.h"

static void look_at_host(const struct idle_args *args, SIMT_GLOBAL uint32_t *counters)
{
    SIMT_GLOBAL struct idle_host *host = GPU_AT(struct idle_host, args->host);
    uint64_t n_polls = 0, start = simt_globaltimer();
    while (simt_ld_acquire_gpu(counters + GPU_LINE) != simt_n_blocks()) {
    }
    simt_st_release_sys(&host->running, 1);
    for (; !simt_ld_acquire_sys(&host->stop); n_polls++)
        if (args->sleep_ns)
            simt_nanosleep(args->sleep_ns);
    simt_st_release_gpu(counters, 1);
    GPU_AT(uint64_t, args->polls)[0] = n_polls;
    GPU_AT(uint64_t, args->polls)[1] = simt_globaltimer() - start;
    simt_st_release_sys(&host->left, 1);
}

SIMT_KERNEL(gpu_idle, struct idle_args, IDLE_THREADS, 1)
{
    SIMT_GLOBAL uint32_t *counters = GPU_AT(uint32_t, args.counters);
    if (simt_thread() == 0) {
        simt_red_release_gpu_add(counters + GPU_LINE, 1);
        if (simt_block() == 0)
            look_at_host(&args, counters);
        while (simt_block() != 0 && !simt_ld_acquire_gpu(counters))
            if (args.mirror_ns)
                simt_nanosleep(args.mirror_ns);
    }
    simt_bar_sync(0, simt_n_threads());
}
