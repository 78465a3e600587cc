/* clock.c - the frequency of an SM: ticks of its clock over the global timer's nanoseconds, across a wait of
 * spin_ns. See gpu_kernels.h. */
#include "gpu_kernels.h"
#include "device/simt.h"

SIMT_KERNEL(gpu_clock, struct clock_args, 32, 1)
{
    if (simt_thread() != 0)
        return;
    uint64_t begin = simt_globaltimer(), ticks = simt_clock(), now = begin;
    while (now - begin < args.spin_ns) {
        simt_nanosleep(1000);
        now = simt_globaltimer();
    }
    GPU_AT(uint64_t, args.out)[0] = simt_clock() - ticks;
    GPU_AT(uint64_t, args.out)[1] = now - begin;
}
