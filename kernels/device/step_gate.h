/* step_gate.h - the step gate: passes one word at a time from the compute warps to the producer warp of the
 * same block: what the producer must know of a step before it may fetch more. All waits are guarded
 * (dependency.h).
 * Thread: gate_put(): one compute thread; it waits only if the producer has not read the word before.
 * gate_get(): all lanes of the producer warp. */
#pragma once
#include "abi/device_abi.h"
#include "weight_ring.h"

enum gate_word {
    GATE_WORD,
    GATE_PUT,   /* number of words so far; only the compute thread uses this and the next */
    GATE_STEPS, /* steps that the compute warps have begun */
};

struct gate {
    SIMT_SHARED uint64_t *full, *empty;
    SIMT_SHARED uint32_t *word; /* enum gate_word */
    uint32_t parity;            /* parity of the producer's next word */
};

/* A gate at `offset` in shared memory, DECODER_GATE_BYTES long. */
SIMT_INLINE struct gate gate_at(uint32_t offset)
{
    SIMT_SHARED uint64_t *full = simt_carve(offset, DECODER_GATE_BYTES);
    return (struct gate){.full = full, .empty = full + 1, .word = (SIMT_SHARED uint32_t *)(full + 2)};
}

/* Called as ring_open() is. No copy arrives at these mbarriers, so no fence is needed. */
SIMT_INLINE void gate_open(const struct gate *g)
{
    if (simt_thread() != 0)
        return;
    simt_mbar_init(g->full, 1);
    simt_mbar_init(g->empty, 1);
    g->word[GATE_PUT] = g->word[GATE_STEPS] = 0;
}

/* Passes a word, by compute thread 0. False: end. */
SIMT_INLINE bool gate_put(const struct gate *g, uint32_t word, const struct flow_guard *guard)
{
    if (!ring_wait(g->empty, ~g->word[GATE_PUT] & 1, guard, 0))
        return false;
    g->word[GATE_WORD] = word;
    simt_mbar_arrive(g->full);
    g->word[GATE_PUT]++;
    return true;
}

/* Receives a word, by one warp. False: end. */
SIMT_INLINE bool gate_get(struct gate *g, uint32_t *word, const struct flow_guard *guard)
{
    bool go = ring_wait(g->full, g->parity, guard, 0);
    if (simt_ballot(go) != 0xffffffffu)
        return false;
    *word = g->word[GATE_WORD];
    simt_syncwarp(); /* all lanes have read */
    if (simt_lane() == 0)
        simt_mbar_arrive(g->empty);
    g->parity ^= 1;
    return true;
}
