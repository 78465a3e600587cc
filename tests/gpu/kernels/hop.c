/* hop.c - the cost of signalling another block. See gpu_kernels.h. HOP_CHAIN: a token visits all blocks
 * n_rounds times; each passes it on with flow_signal() to a flow_wait(): n_rounds * n_blocks hops.
 * HOP_BARRIER: all blocks signal one counter and wait for all, n_rounds times. With n_crew 32 it is the bare
 * signal. */
#include "guard.h"

static uint32_t chain(const struct hop_args *args, SIMT_GLOBAL uint32_t *counters,
                      const struct flow_guard *guard)
{
    uint32_t block = simt_block(), n = simt_n_blocks(), next = block + 1 < n ? block + 1 : 0, round = 0;
    for (; round < args->n_rounds; round++) {
        bool starts = block == 0 && round == 0;
        if (!starts &&
            !flow_wait(counters + block * GPU_LINE, block == 0 ? round : round + 1, guard, args->n_crew))
            break;
        flow_signal(counters + next * GPU_LINE, args->n_crew);
    }
    return round;
}

static uint32_t barriers(const struct hop_args *args, SIMT_GLOBAL uint32_t *counters,
                         const struct flow_guard *guard)
{
    uint32_t n = simt_n_blocks(), round = 0;
    for (; round < args->n_rounds; round++) {
        flow_signal(counters, args->n_crew);
        if (!flow_wait(counters, (round + 1) * n, guard, args->n_crew))
            break;
    }
    return round;
}

SIMT_KERNEL(gpu_hop, struct hop_args, DECODER_MAX_CREW, 1)
{
    SIMT_GLOBAL uint32_t *counters = GPU_AT(uint32_t, args.counters);
    struct flow_guard guard = gpu_guard(args.counters, simt_n_blocks());
    uint32_t rounds =
        args.mode == HOP_CHAIN ? chain(&args, counters, &guard) : barriers(&args, counters, &guard);
    if (simt_thread() == 0)
        GPU_AT(uint32_t, args.out)[simt_block()] = rounds;
}
