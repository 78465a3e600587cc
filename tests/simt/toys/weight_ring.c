/* weight_ring.c - see toys.h. */
#include "toys.h"
#include "device/weight_ring.h"

/* The producer's wait, by its whole warp. False: end. */
SIMT_INLINE bool wait_warp(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                           const struct flow_guard *guard)
{
    bool go = true;
    if (simt_lane() == 0)
        go = flow_poll(counter, target, guard);
    go = simt_ballot(go) == 0xffffffffu;
    simt_syncwarp();
    return go;
}

/* False: leave. */
static bool stream(const struct weight_ring_args *args, const struct ring *ring, struct ring_place *at,
                   const struct flow_guard *guard)
{
    uint32_t block = simt_block(), n = simt_n_blocks();
    const SIMT_GLOBAL char *next =
        args->weights + (size_t)block * args->rounds * WEIGHT_RING_STREAM * WEIGHT_RING_BYTES;
    for (uint32_t r = 0; r < args->rounds; r++) {
        for (uint32_t i = 0; i < WEIGHT_RING_STREAM; i++, next += WEIGHT_RING_BYTES)
            if (!ring_fill(ring, at, next, WEIGHT_RING_BYTES, guard))
                return false;
        if (r == 0)
            continue;
        if (!wait_warp(args->counter, r * n, guard))
            return false;
        uint32_t segment = (r - 1) % 2 * n + (block + 1) % n;
        if (!ring_fill(ring, at, args->segments + segment * WEIGHT_RING_BYTES, WEIGHT_RING_BYTES, guard))
            return false;
    }
    return true;
}

static void produce(const struct weight_ring_args *args, const struct ring *ring,
                    const struct flow_guard *guard)
{
    struct ring_place at = {0};
    if (stream(args, ring, &at, guard))
        ring_fill(ring, &at, args->weights, WEIGHT_RING_BYTES, guard); /* which no warp takes */
    ring_close(ring, &at);
}

/* Adds what this thread finds in the next stages. False: leave. */
static bool take(const struct ring *ring, struct ring_place *at, uint32_t n_stages, uint32_t *sum,
                 const struct flow_guard *guard)
{
    bool go = true;
    for (uint32_t i = 0; i < n_stages && go; i++) {
        go = ring_take(ring, at, guard);
        if (!go)
            break;
        simt_u4 w = ((const SIMT_SHARED simt_u4 *)ring_stage(ring, at))[simt_thread()];
        ring_give(ring, at);
        *sum = *sum * 3 + w[0] + w[1] * 5 + w[2] * 7 + w[3] * 11;
    }
    return !simt_bar_or(FLOW_BAR, WEIGHT_RING_CONSUMERS, !go);
}

static void consume(const struct weight_ring_args *args, const struct ring *ring,
                    const struct flow_guard *guard)
{
    struct ring_place at = {0};
    uint32_t t = simt_thread(), block = simt_block(), n = simt_n_blocks(), sum = 0;
    for (uint32_t r = 0; r < args->rounds; r++) {
        if (!take(ring, &at, WEIGHT_RING_STREAM, &sum, guard))
            return;
        if (r > 0) { /* the reader of our segment of two rounds ago has signalled */
            if (!flow_wait(args->counter, r * n, guard, WEIGHT_RING_CONSUMERS) ||
                !take(ring, &at, 1, &sum, guard))
                return;
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
    struct flow_guard guard = {.words = args.words, .counters = args.counter};
    ring_open(&ring, 0, WEIGHT_RING_STAGES * WEIGHT_RING_BYTES, WEIGHT_RING_STAGES, WEIGHT_RING_BYTES,
              WEIGHT_RING_CONSUMERS / SIMT_LANES);
    simt_bar_sync(0, WEIGHT_RING_THREADS);
    if (simt_thread() < WEIGHT_RING_CONSUMERS)
        consume(&args, &ring, &guard);
    else
        produce(&args, &ring, &guard);
}
