/* hop.c - the cost of signalling another block. See gpu_kernels.h. HOP_CHAIN: a token visits all blocks
 * n_rounds times; each passes it on with flow_signal() to a flow_wait(): n_rounds * n_blocks hops.
 * HOP_BARRIER: all blocks signal one counter and wait for all, n_rounds times. With n_crew 32 it is the bare
 * signal. HOP_PACKET: the chain again, but what moves is 8 bytes {f32, u32 epoch}, stored and loaded relaxed
 * as one access (PTX ISA 8.0, 9.7.8: accesses of up to 64 bits are single-copy atomic), so that the value
 * needs no fence and no second load. Beside each mode HOP_STREAMERS threads may stream memory, as the
 * decoder's producer does. */
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

SIMT_INLINE uint64_t packet_of(float value, uint32_t epoch)
{
    union {
        float value;
        uint32_t bits;
    } u = {.value = value};
    return (uint64_t)epoch << 32 | u.bits;
}

/* Returns whether the packet of this epoch came with the value that the hops before it made. */
static bool take_packet(const SIMT_GLOBAL uint64_t *at, uint32_t epoch, uint32_t n_hops,
                        const struct flow_guard *guard)
{
    struct flow_patience patience = {0, 0};
    for (;;) {
        uint64_t packet = simt_ld_relaxed_gpu_u64(at);
        if ((uint32_t)(packet >> 32) == epoch)
            return packet == packet_of((float)n_hops, epoch);
        if (!flow_patient(guard, &patience, 0, (uint32_t)(packet >> 32), epoch))
            return false;
    }
}

/* All threads of the crew take the packet for themselves; the first passes it on. */
static uint32_t packets(const struct hop_args *args, SIMT_GLOBAL uint32_t *counters,
                        const struct flow_guard *guard)
{
    uint32_t block = simt_block(), n = simt_n_blocks(), next = block + 1 < n ? block + 1 : 0, round = 0;
    SIMT_GLOBAL uint32_t *lines = counters + (2 * n + 1) * GPU_LINE;
    const SIMT_GLOBAL uint64_t *mine = (const SIMT_GLOBAL uint64_t *)(lines + block * GPU_LINE);
    SIMT_GLOBAL uint64_t *other = (SIMT_GLOBAL uint64_t *)(lines + next * GPU_LINE);
    for (; round < args->n_rounds; round++) {
        uint32_t hops = round * n + block;
        bool starts = hops == 0;
        bool lost = !starts && !take_packet(mine, block == 0 ? round : round + 1, hops, guard);
        /* The place is written again only after all threads have read it. */
        if (simt_bar_or(FLOW_BAR, args->n_crew, lost))
            break;
        if (simt_thread() == 0)
            simt_st_relaxed_gpu_u64(other, packet_of((float)(hops + 1), round + 1));
    }
    return round;
}

/* Reads memory until the crew has ended. */
static void stream(const struct hop_args *args, const SIMT_GLOBAL uint32_t *done)
{
    const SIMT_GLOBAL simt_u4 *from = GPU_AT(const simt_u4, args->traffic);
    uint32_t lane = simt_thread() - args->n_crew, turns = 0;
    simt_u4 sum = {0, 0, 0, 0};
    for (uint64_t at = (uint64_t)simt_block() * HOP_TURN; !simt_ld_relaxed_gpu(done); turns++) {
        simt_u4 v[HOP_AHEAD];
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < HOP_AHEAD; j++)
            v[j] = from[at + j * HOP_STREAMERS + lane];
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < HOP_AHEAD; j++)
            sum ^= v[j];
        at += (uint64_t)simt_n_blocks() * HOP_TURN;
        at = at < args->n_words ? at : (uint64_t)simt_block() * HOP_TURN;
    }
    /* Uses the sum, so that the loads stay. The memory is all zeros. */
    if (lane == 0)
        GPU_AT(uint32_t, args->out)
    [simt_n_blocks() + simt_block()] = turns + ((sum[0] ^ sum[1] ^ sum[2] ^ sum[3]) == 0xffffffffu);
}

static uint32_t hop(const struct hop_args *args, SIMT_GLOBAL uint32_t *counters,
                    const struct flow_guard *guard)
{
    switch (args->mode) {
    case HOP_CHAIN:
        return chain(args, counters, guard);
    case HOP_PACKET:
        return packets(args, counters, guard);
    default:
        return barriers(args, counters, guard);
    }
}

SIMT_KERNEL(gpu_hop, struct hop_args, DECODER_MAX_THREADS, 1)
{
    SIMT_GLOBAL uint32_t *counters = GPU_AT(uint32_t, args.counters);
    SIMT_GLOBAL uint32_t *done = counters + (simt_n_blocks() + 1 + simt_block()) * GPU_LINE;
    if (simt_thread() >= args.n_crew) {
        stream(&args, done);
        return;
    }
    struct flow_guard guard = gpu_guard(args.counters, simt_n_blocks());
    uint32_t rounds = hop(&args, counters, &guard);
    if (simt_thread() == 0) {
        GPU_AT(uint32_t, args.out)[simt_block()] = rounds;
        simt_st_relaxed_gpu(done, 1);
    }
}
