/* step_gate.h - gates: one passes a word at a time from the compute warps to the producer warp of the same
 * block: what the producer must know of a step before it may fetch more. The step gate has a step's number of
 * logits, the experts' gate (experts/mixture.h) its number of rows, once their experts are chosen. All waits
 * are guarded (dependency.h).
 * The spare words of a gate hold what the compute warps keep of an op: enum gate_again and gate_quiet.
 * Thread: gate_put(), gate_drained(): one compute thread; the first waits only if the producer has not taken
 * the word before, the second until it has taken the last one. The others: all lanes of the producer warp. */
#pragma once
#include "abi/device_abi.h"
#include "weight_ring.h"

enum gate_word {
    GATE_WORD,
    GATE_PUT,                /* number of words so far; only the compute thread uses this and the next */
    GATE_STEPS,              /* of the step gate: steps that the compute warps have begun */
    GATE_AGAIN = GATE_STEPS, /* of the experts' gate: enum gate_again */
    GATE_QUIET,              /* of gate i % 2: enum gate_quiet of op i (interpreter.h) */
};

/* What is left of an op that is called several times. */
enum gate_again {
    GATE_ENDS,
    GATE_GOES_ON, /* units of it */
    GATE_CHOSEN,  /* all but the choice of its experts */
};

/* How an op ends. */
enum gate_quiet {
    GATE_LOUD,  /* with a signal */
    GATE_MUTE,  /* without */
    GATE_LATER, /* the next op signals it, beside its own work */
};

enum gate_of { GATE_STEP, GATE_EXPERTS, GATE_N };
_Static_assert(GATE_N == DECODER_N_GATES, "room for them");

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

/* A block's gate, behind the mbarriers of its ring. */
SIMT_INLINE struct gate gate_of(const struct decoder_args *args, enum gate_of which)
{
    const struct decoder_shared *s = &args->shared;
    return gate_at(s->mbarriers + s->n_stages * 16 + which * DECODER_GATE_BYTES + simt_opaque(0));
}

/* Called as ring_open() is. No copy arrives at these mbarriers, so no fence is needed. */
SIMT_INLINE void gate_open(const struct gate *g)
{
    if (simt_thread() != 0)
        return;
    simt_mbar_init(g->full, 1);
    simt_mbar_init(g->empty, 1);
    g->word[GATE_PUT] = g->word[GATE_STEPS] = g->word[GATE_QUIET] = 0;
}

/* Waits until the producer has taken every word, by compute thread 0. False: end. */
SIMT_INLINE bool gate_drained(const struct gate *g, const struct flow_guard *guard)
{
    return ring_wait(g->empty, ~g->word[GATE_PUT] & 1, guard, FLOW_GATE);
}

/* Passes a word, by compute thread 0. False: end. */
SIMT_INLINE bool gate_put(const struct gate *g, uint32_t word, const struct flow_guard *guard)
{
    if (!gate_drained(g, guard))
        return false;
    g->word[GATE_WORD] = word;
    simt_mbar_arrive(g->full);
    g->word[GATE_PUT]++;
    return true;
}

/* Waits until a word is there, which stays until gate_take(), by one warp. False: end. */
SIMT_INLINE bool gate_await(const struct gate *g, const struct flow_guard *guard)
{
    bool go = ring_wait(g->full, g->parity, guard, FLOW_GATE);
    return simt_ballot(go) == 0xffffffffu;
}

/* Tells the compute warps that the word, and what it stands for, is read. */
SIMT_INLINE void gate_take(struct gate *g)
{
    simt_syncwarp(); /* all lanes have read */
    if (simt_lane() == 0)
        simt_mbar_arrive(g->empty);
    g->parity ^= 1;
}

/* Receives a word, by one warp. False: end. */
SIMT_INLINE bool gate_get(struct gate *g, uint32_t *word, const struct flow_guard *guard)
{
    if (!gate_await(g, guard))
        return false;
    *word = g->word[GATE_WORD];
    gate_take(g);
    return true;
}
