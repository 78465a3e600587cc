/* weight_ring.h - the weight ring: stages of shared memory that a producer warp fills ahead of the consumer
 * warps of its block.
 *
 * Each stage has two mbarriers. `full` ends a phase when the copy has landed, `empty` when every consumer
 * warp has released the stage. ring_fill() waits for `empty` only, so the stream runs n_stages ahead of
 * whatever the consumers wait for. A consumer warp calls ring_take(), reads, calls ring_give(), in the order
 * of the fills. With ring_await_given() a consumer that is ahead of others waits for what these have
 * written: what a warp wrote before it gave a stage back, the others see then. One copy has at most
 * stage_bytes, a multiple of 16, from a 16-byte aligned address. sm_90: one lane issues a bulk copy; sm_80:
 * each lane issues 16 bytes at a time (cp.async).
 *
 * The waits of ring_fill(), ring_take() and ring_await_given() are guarded (dependency.h) and give all lanes
 * of the warp one result; a warp that got false reads nothing and goes to its next barrier, where it informs
 * the other compute warps. A producer that ends calls ring_close() first: a block may not end while copies
 * into its shared memory are under way.
 *
 * What the producer's lane 0 wrote before a fill, the consumers see once they have taken the stage.
 *
 * A source that this kernel writes must be ordered before the fill (an acquire by every lane that copies),
 * and on sm_90 its writers call simt_fence_proxy_async() before their release. Weights are never written: no
 * wait.
 *
 * Thread: ring_fill() and ring_close(): all lanes of the producer warp; ring_take(), ring_await_given() and
 * ring_give(): all lanes of a consumer warp. */
#pragma once
#include "dependency.h"

#if SIMT_SM >= 90
#define RING_FULL_ARRIVALS 1
#define RING_PAUSE_NS      0 /* an mbarrier test sleeps by itself */
#else
#define RING_FULL_ARRIVALS (SIMT_LANES + 1) /* the copies', which release nothing else, and lane 0's */
#define RING_PAUSE_NS      64               /* between two tests; the pause lasts at most twice this */
#endif
#define RING_SPINS 32 /* tests before the first pause, about a microsecond */

struct ring {
    SIMT_SHARED char *stages;
    SIMT_SHARED uint64_t *full, *empty; /* [n_stages] */
    uint32_t n_stages, stage_bytes;
};

/* A warp's place in the ring, in one word that the compute warps carry through all ops; starts as {0}. */
struct ring_place {
    uint32_t turns; /* lower half: twice the stage, and 1 in every second round; upper half: number of stages
                       passed, modulo 2^16 */
};

SIMT_INLINE uint32_t ring_stage_of(const struct ring_place *at)
{
    return at->turns % 65536 / 2;
}

SIMT_INLINE uint32_t ring_passed(const struct ring_place *at)
{
    return at->turns / 65536;
}

SIMT_INLINE uint32_t ring_parity_of(const struct ring_place *at)
{
    return at->turns % 2;
}

/* A ring in shared memory: n_stages x stage_bytes at stage_offset, n_stages x 16 for the mbarriers at
 * mbar_offset. */
SIMT_INLINE struct ring ring_at(uint32_t stage_offset, uint32_t mbar_offset, uint32_t n_stages,
                                uint32_t stage_bytes)
{
    struct ring r = {.stages = simt_carve(stage_offset, n_stages * stage_bytes),
                     .full = simt_carve(mbar_offset, n_stages * 16),
                     .n_stages = n_stages,
                     .stage_bytes = stage_bytes};
    r.empty = r.full + n_stages;
    return r;
}

/* Called by all threads of the block; a simt_bar_sync of the whole block must follow. */
SIMT_INLINE void ring_open(struct ring *r, uint32_t stage_offset, uint32_t mbar_offset, uint32_t n_stages,
                           uint32_t stage_bytes, uint32_t n_consumer_warps)
{
    *r = ring_at(stage_offset, mbar_offset, n_stages, stage_bytes);
    if (simt_thread() != 0)
        return;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        simt_mbar_init(&r->full[i], RING_FULL_ARRIVALS);
        simt_mbar_init(&r->empty[i], n_consumer_warps);
    }
    simt_fence_mbar_init();
}

SIMT_INLINE void ring_next(const struct ring *r, struct ring_place *at)
{
    at->turns += 65536 + 2;
    if (ring_stage_of(at) == r->n_stages)
        at->turns = (at->turns & 0xffff0000u) | (ring_parity_of(at) ^ 1);
}

/* Polls one mbarrier; `what` is for the failure record. A long wait pauses: waiting warps share the
 * schedulers with warps that still compute, and a producer waits as long as no step comes. */
SIMT_INLINE bool ring_wait(SIMT_SHARED uint64_t *mbar, uint32_t parity, const struct flow_guard *guard,
                           uint32_t what)
{
    struct flow_patience patience = {0, 0};
    while (!simt_mbar_try_wait(mbar, parity)) {
        if (!flow_patient(guard, &patience, what, parity, 0))
            return false;
        if (RING_PAUSE_NS && patience.spins >= RING_SPINS)
            simt_nanosleep(RING_PAUSE_NS);
    }
    return true;
}

/* Copies `bytes` from src into the next stage. False: end; nothing was copied. */
SIMT_INLINE bool ring_fill(const struct ring *r, struct ring_place *at, const SIMT_GLOBAL char *src,
                           uint32_t bytes, const struct flow_guard *guard)
{
    SIMT_SHARED char *dst = r->stages + ring_stage_of(at) * r->stage_bytes;
    SIMT_SHARED uint64_t *full = &r->full[ring_stage_of(at)];
    bool go = true;
#if SIMT_SM >= 90
    if (simt_lane() == 0)
        go = ring_wait(&r->empty[ring_stage_of(at)], ring_parity_of(at) ^ 1, guard,
                       FLOW_STAGE + ring_stage_of(at));
    if (simt_ballot(go) != 0xffffffffu)
        return false;
    if (simt_lane() == 0) {
        simt_mbar_arrive_expect_tx(full, bytes);
        simt_bulk_copy(dst, src, bytes, full);
    }
#else
    go = ring_wait(&r->empty[ring_stage_of(at)], ring_parity_of(at) ^ 1, guard,
                   FLOW_STAGE + ring_stage_of(at));
    if (simt_ballot(go) != 0xffffffffu)
        return false;
    for (uint32_t i = simt_lane() * 16; i < bytes; i += SIMT_LANES * 16)
        simt_cp_async16(dst + i, src + i);
    simt_cp_async_arrive(full);
    if (simt_lane() == 0)
        simt_mbar_arrive(full);
#endif
    ring_next(r, at);
    return true;
}

/* Waits until the stage's bytes have landed. False: end. */
SIMT_INLINE bool ring_take(const struct ring *r, const struct ring_place *at, const struct flow_guard *guard)
{
    bool go =
        ring_wait(&r->full[ring_stage_of(at)], ring_parity_of(at), guard, FLOW_STAGE + ring_stage_of(at));
    return simt_ballot(go) == 0xffffffffu;
}

/* Waits until all consumer warps have given back the stage before the one that this warp has taken. False:
 * end. */
SIMT_INLINE bool ring_await_given(const struct ring *r, const struct ring_place *at,
                                  const struct flow_guard *guard)
{
    uint32_t stage = ring_stage_of(at), parity = ring_parity_of(at);
    if (stage == 0) {
        stage = r->n_stages;
        parity ^= 1;
    }
    bool go = ring_wait(&r->empty[stage - 1], parity, guard, FLOW_STAGE + stage - 1);
    return simt_ballot(go) == 0xffffffffu;
}

SIMT_INLINE const SIMT_SHARED char *ring_stage(const struct ring *r, const struct ring_place *at)
{
    return r->stages + ring_stage_of(at) * r->stage_bytes;
}

SIMT_INLINE void ring_give(const struct ring *r, struct ring_place *at)
{
    simt_syncwarp(); /* all lanes have read */
    if (simt_lane() == 0)
        simt_mbar_arrive(&r->empty[ring_stage_of(at)]);
    ring_next(r, at);
}

/* The producer's last call: waits until every copy it began has ended, consumed or not. */
SIMT_INLINE void ring_close(const struct ring *r, const struct ring_place *at)
{
    for (uint32_t i = 0; i < r->n_stages; i++) {
        /* Parity of the last fill, if any. */
        uint32_t parity = i < ring_stage_of(at) ? ring_parity_of(at) : ring_parity_of(at) ^ 1;
        while (!simt_mbar_try_wait(&r->full[i], parity)) {
        }
    }
}
