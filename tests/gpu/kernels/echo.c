/* echo.c - round trips between host and device, and how evenly steps run beside them. See gpu_kernels.h.
 * n_crew compute threads and an I/O warp per block. The compute warps run n_steps steps of n_barriers grid
 * barriers each, and block 0 records the time of each; its I/O warp meanwhile echoes `asked` into
 * `answered`. */
#include "guard.h"

static SIMT_GLOBAL uint32_t *word(const struct echo_args *args, enum echo_word which)
{
    return GPU_AT(uint32_t, args->counters) + which * GPU_LINE;
}

static void walk(const struct echo_args *args)
{
    struct flow_guard guard = gpu_guard(args->counters, ECHO_GUARD);
    uint32_t target = 0;
    bool notes = simt_block() == 0 && simt_thread() == 0;
    for (uint32_t step = 0; step < args->n_steps; step++) {
        uint64_t start = notes ? simt_globaltimer() : 0;
        for (uint32_t i = 0; i < args->n_barriers; i++) {
            target += simt_n_blocks();
            flow_signal(word(args, ECHO_ARRIVED), args->n_crew);
            if (!flow_wait(word(args, ECHO_ARRIVED), target, &guard, args->n_crew))
                return;
        }
        if (notes)
            GPU_AT(uint64_t, args->times)[step] = simt_globaltimer() - start;
    }
    if (notes && args->n_steps)
        simt_st_release_gpu(word(args, ECHO_FINISHED), 1);
}

static void answer(const struct echo_args *args)
{
    SIMT_GLOBAL struct echo_host *host = GPU_AT(struct echo_host, args->host);
    uint64_t n_polls = 0, start = simt_globaltimer();
    for (uint32_t answered = 0;;) {
        uint32_t asked = simt_ld_acquire_sys(&host->asked);
        n_polls++;
        if (asked != answered) {
            answered = asked;
            simt_st_release_sys(&host->answered, answered);
        } else if (args->n_steps ? simt_ld_relaxed_gpu(word(args, ECHO_FINISHED)) ||
                                       simt_ld_relaxed_gpu(word(args, ECHO_GUARD))
                                 : n_polls % 16 == 0 && simt_ld_relaxed_sys(&host->stop)) {
            break;
        }
    }
    GPU_AT(uint64_t, args->polls)[0] = n_polls;
    GPU_AT(uint64_t, args->polls)[1] = simt_globaltimer() - start;
}

SIMT_KERNEL(gpu_echo, struct echo_args, DECODER_MAX_THREADS, 1)
{
    if (simt_thread() < args.n_crew)
        walk(&args);
    else if (simt_block() == 0 && simt_lane() == 0 && args.polls_host)
        answer(&args);
}
