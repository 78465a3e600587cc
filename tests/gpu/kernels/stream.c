/* stream.c - read bandwidth of the weight ring without computation. See gpu_kernels.h. One block per SM:
 * n_crew compute threads and a producer warp. The compute threads read only 16 bytes each of a stage, so that
 * the copies are the limit: n_rounds * n_chunks * chunk_bytes bytes. Must match stream_expected() in
 * tests/gpu/parts/part_stream.c. */
#include "guard.h"
#include "device/weight_ring.h"

static SIMT_GLOBAL uint32_t *barrier(const struct stream_args *args)
{
    return GPU_AT(uint32_t, args->counters);
}

/* False: end. */
static bool fill_all(const struct stream_args *args, const struct ring *ring, struct ring_place *at,
                     const struct flow_guard *guard)
{
    uint32_t n = simt_n_blocks(), n_bursts = 0;
    for (uint32_t round = 0; round < args->n_rounds; round++)
        for (uint32_t i = simt_block(), in_burst = 0; i < args->n_chunks; i += n) {
            const SIMT_GLOBAL char *chunk = GPU_AT(const char, args->data) + (size_t)i * args->chunk_bytes;
            if (!ring_fill(ring, at, chunk, args->chunk_bytes, guard))
                return false;
            if (++in_burst < args->burst)
                continue;
            in_burst = 0;
            n_bursts++;
            if (args->mode == STREAM_STOPPED && !gpu_wait_warp(barrier(args), n_bursts * n, guard))
                return false;
        }
    return true;
}

/* Consumes one burst. False: end. */
static bool take_burst(const struct stream_args *args, const struct ring *ring, struct ring_place *at,
                       const struct flow_guard *guard, uint32_t *sum)
{
    struct crew crew = crew_of(args->n_crew);
    uint32_t mine = simt_thread() % (args->chunk_bytes / 16);
    bool go = true;
    for (uint32_t i = 0; i < args->burst && go; i++) {
        go = ring_take(ring, at, guard);
        if (!go)
            break;
        simt_u4 v = ((const SIMT_SHARED simt_u4 *)ring_stage(ring, at))[mine];
        *sum += v[0] ^ v[1] ^ v[2] ^ v[3];
        ring_give(ring, at);
    }
    return !crew_any(&crew, !go);
}

static void consume(const struct stream_args *args, const struct ring *ring, const struct flow_guard *guard)
{
    struct ring_place at = {0};
    uint32_t n = simt_n_blocks(), sum = 0;
    uint32_t n_bursts = args->n_chunks / n / args->burst * args->n_rounds;
    for (uint32_t i = 1; i <= n_bursts; i++) {
        if (!take_burst(args, ring, &at, guard, &sum))
            return;
        if (args->mode == STREAM_CONTINUOUS)
            continue;
        flow_signal(barrier(args), args->n_crew);
        if (!flow_wait(barrier(args), i * n, guard, args->n_crew))
            return;
    }
    GPU_AT(uint32_t, args->sums)[simt_block() * args->n_crew + simt_thread()] = sum;
}

SIMT_KERNEL(gpu_stream, struct stream_args, DECODER_MAX_THREADS, 1)
{
    struct flow_guard guard = gpu_guard(args.counters, 1);
    struct ring_place at = {0};
    struct ring ring;
    ring_open(&ring, 0, args.n_stages * args.chunk_bytes, args.n_stages, args.chunk_bytes,
              args.n_crew / SIMT_LANES);
    simt_bar_sync(0, simt_n_threads());
    if (simt_thread() < args.n_crew) {
        consume(&args, &ring, &guard);
    } else {
        fill_all(&args, &ring, &at, &guard);
        ring_close(&ring, &at);
    }
}
