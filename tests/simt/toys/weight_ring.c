/* weight_ring.c - see toys.h. */
#include "toys.h"
#include "flow.h"
#include "ring.h"

static void produce(const struct weight_ring_args *args, const struct ring *ring)
{
    struct ring_place at = {0, 0};
    uint32_t block = simt_block(), n = simt_n_blocks();
    const SIMT_GLOBAL char *next =
        args->weights + (size_t)block * args->rounds * WEIGHT_RING_STREAM * WEIGHT_RING_BYTES;
    for (uint32_t r = 0; r < args->rounds; r++) {
        for (uint32_t i = 0; i < WEIGHT_RING_STREAM; i++, next += WEIGHT_RING_BYTES)
            ring_fill(ring, &at, next, WEIGHT_RING_BYTES);
        if (r == 0)
            continue;
        if (!flow_wait_warp(args->counter, r * n, args->abort_word))
            return;
        uint32_t segment = (r - 1) % 2 * n + (block + 1) % n;
        ring_fill(ring, &at, args->segments + segment * WEIGHT_RING_BYTES, WEIGHT_RING_BYTES);
    }
}

static uint32_t take(const struct ring *ring, struct ring_place *at)
{
    const SIMT_SHARED simt_u4 *stage = (const SIMT_SHARED simt_u4 *)ring_take(ring, at);
    simt_u4 w = stage[simt_thread()];
    ring_give(ring, at);
    return w[0] + w[1] * 5 + w[2] * 7 + w[3] * 11;
}

static void consume(const struct weight_ring_args *args, const struct ring *ring)
{
    struct ring_place at = {0, 0};
    uint32_t t = simt_thread(), block = simt_block(), n = simt_n_blocks(), sum = 0;
    for (uint32_t r = 0; r < args->rounds; r++) {
        for (uint32_t i = 0; i < WEIGHT_RING_STREAM; i++)
            sum = sum * 3 + take(ring, &at);
        if (r > 0) { /* the reader of our segment of two rounds ago has signalled */
            if (!flow_wait(args->counter, r * n, args->abort_word, WEIGHT_RING_CONSUMERS))
                return;
            sum = sum * 3 + take(ring, &at);
        }
        SIMT_GLOBAL simt_u4 *mine =
            (SIMT_GLOBAL simt_u4 *)(args->segments + (r % 2 * n + block) * WEIGHT_RING_BYTES);
        mine[t] = (simt_u4){sum, sum + 1, sum + 2, sum + 3};
        simt_fence_proxy_async();
        flow_signal(args->counter, WEIGHT_RING_CONSUMERS);
    }
    args->out[block * WEIGHT_RING_CONSUMERS + t] = sum;
}

SIMT_KERNEL(weight_ring, struct weight_ring_args, WEIGHT_RING_THREADS, 1)
{
    struct ring ring;
    ring_open(&ring, 0, WEIGHT_RING_STAGES * WEIGHT_RING_BYTES, WEIGHT_RING_STAGES, WEIGHT_RING_BYTES,
              WEIGHT_RING_CONSUMERS / SIMT_LANES);
    simt_bar_sync(0, WEIGHT_RING_THREADS);
    if (simt_thread() < WEIGHT_RING_CONSUMERS)
        consume(&args, &ring);
    else
        produce(&args, &ring);
}
