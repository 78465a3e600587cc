/* dependency.h - dependency counters: how one op waits for another. They are cumulative and lie in device
 * memory, one per 128-byte line.
 *
 * A writer adds 1 when its output is visible; a reader waits until the counter reaches epoch x arrivals.
 * Counters are never reset and are compared by difference, so they may wrap. In a grid barrier every block
 * signals and every block waits. The first n_threads threads of a block (whole warps) make both calls and use
 * named barrier FLOW_BAR for it; other warps (the producer) continue.
 *
 * Why it is correct: all n_threads' stores happen before thread 0's release, through the barrier; the release
 * is cumulative; a later reader's acquire sees it; the reader's barrier passes that on to its block. While
 * the kernel runs, only these two calls may read a counter.
 *
 * No wait lasts for ever. Each looks at an abort word from time to time and returns false when the word is
 * not 0, or when the guard's deadline has passed: the first thread that sees a deadline pass records what it
 * waited for and sets the word, so that all others end too. There is no trap: it would destroy the context. A
 * thread whose wait returned false goes to the end of the kernel and passes every barrier at which other
 * threads of its block still wait (simt_bar_or tells them there). A thread that gave up a wait for words
 * (words.h) goes on to its op's next wait instead. */
#pragma once
#include "abi/failure.h"
#include "simt.h"

#define FLOW_BAR 1

#define FLOW_DEADLINE 1 /* abort word's value after a deadline; other values belong to the kernel */

struct flow_guard {
    SIMT_GLOBAL uint32_t *words; /* enum flow_word */
    const SIMT_GLOBAL uint32_t *counters;
    uint64_t deadline_ns; /* deadline of one wait; 0: none */
    uint32_t op;          /* the op that the thread runs, for the record */
};

/* Makes all threads end. Only the first failure is recorded. */
SIMT_INLINE void flow_fail(const struct flow_guard *guard, uint32_t why, uint32_t what, uint32_t value,
                           uint32_t target)
{
    SIMT_GLOBAL uint32_t *w = guard->words;
    if (simt_atom_relaxed_gpu_add(&w[FLOW_CLAIMED], 1) != 0)
        return;
    w[FLOW_WHAT] = what;
    w[FLOW_VALUE] = value;
    w[FLOW_TARGET] = target;
    w[FLOW_OP] = guard->op;
    w[FLOW_BLOCK] = simt_block();
    simt_st_release_gpu(&w[FLOW_ABORT], why);
}

/* The last time that one wait read the clock and the abort word; `spins` and `since` are 0 when it begins. */
struct flow_patience {
    uint32_t spins;
    uint64_t since;
};

/* Called at every turn of a wait. False: give up. */
SIMT_INLINE bool flow_patient(const struct flow_guard *guard, struct flow_patience *p, uint32_t what,
                              uint32_t value, uint32_t target)
{
    if (++p->spins % SIMT_LOOK_SPINS)
        return true;
    if (simt_ld_relaxed_gpu(&guard->words[FLOW_ABORT]))
        return false;
    if (!guard->deadline_ns)
        return true;
    uint64_t now = simt_globaltimer();
    if (!p->since)
        p->since = now;
    if (now - p->since < guard->deadline_ns)
        return true;
    flow_fail(guard, FLOW_DEADLINE, what, value, target);
    return false;
}

/* Signals that this block's output is written, by the first n_threads threads. */
SIMT_INLINE void flow_signal(SIMT_GLOBAL uint32_t *counter, uint32_t n_threads)
{
    simt_bar_sync(FLOW_BAR, n_threads);
    if (simt_thread() == 0)
        simt_red_release_gpu_add(counter, 1);
}

/* Waits, by one thread. */
SIMT_INLINE bool flow_poll(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                           const struct flow_guard *guard)
{
    struct flow_patience patience = {0, 0};
    for (;;) {
        uint32_t value = simt_ld_acquire_gpu(counter);
        if ((int32_t)(value - target) >= 0)
            return true;
        if (!flow_patient(guard, &patience, (uint32_t)(counter - guard->counters), value, target))
            return false;
    }
}

/* Waits until `target` arrivals; all n_threads get the same result. False: end. */
SIMT_INLINE bool flow_wait(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                           const struct flow_guard *guard, uint32_t n_threads)
{
    bool stop = false;
    if (simt_thread() == 0)
        stop = !flow_poll(counter, target, guard);
    return !simt_bar_or(FLOW_BAR, n_threads, stop);
}
