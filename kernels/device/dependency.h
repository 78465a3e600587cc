/* dependency.h - how one op waits for another: cumulative counters, in device memory, one per 128-byte line.
 *
 * Producers add 1 when their output is visible; a consumer waits until the counter reaches epoch x arrivals.
 * Counters are never reset and are compared by difference, so they may wrap. A grid barrier is the case in
 * which every block signals and every block waits. Both calls are made by the first n_threads threads of a
 * block (whole warps), which use named barrier FLOW_BAR for it; the others (producer warps) go on.
 *
 * Why it is right: the stores of all n_threads happen before thread 0's release through the barrier; the
 * release is cumulative; the acquire of a later reader sees it; the reader's barrier carries that to its
 * block. A counter may not be read through anything but these two calls while the kernel runs.
 *
 * No wait is for ever. Each looks at an abort word from time to time and gives up, with false, when it is not
 * 0, or after its guard's deadline: whoever sees that first leaves a record of what it waited for and sets
 * the word, so that everybody else leaves too. There is no trap: it would take the context along. A thread
 * that was told false goes to the end of the kernel, by way of every barrier that others of its block still
 * meet at (they are told false there: simt_bar_or). */
#pragma once
#include "simt.h"

#define FLOW_BAR 1

/* The abort word and what stands behind it, in device memory; the host clears them before a launch. The
 * record may be read after an acquire of the abort word. */
enum flow_word {
    FLOW_ABORT,   /* why everybody leaves, or 0 */
    FLOW_CLAIMED, /* failures so far: only the first one's record counts */
    FLOW_WHAT,    /* the counter (its distance in words from the guard's first), or FLOW_STAGE + a stage */
    FLOW_VALUE,   /* what it stood at, */
    FLOW_TARGET,  /* and should have reached */
    FLOW_OP,
    FLOW_BLOCK,
    FLOW_WORDS,
};
#define FLOW_STAGE    0x80000000u
#define FLOW_DEADLINE 1 /* the abort word's value after a deadline; others are the kernel's own */

struct flow_guard {
    SIMT_GLOBAL uint32_t *words; /* enum flow_word */
    const SIMT_GLOBAL uint32_t *counters;
    uint64_t deadline_ns; /* of one wait; 0: none */
    uint32_t op;          /* what the thread is at, for the record */
};

/* Makes everybody leave. The first failure is the one that is told. */
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

/* One wait's look at the clock and the abort word; `spins` and `since` are 0 when it begins. */
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

/* "What this block owed is written." */
SIMT_INLINE void flow_signal(SIMT_GLOBAL uint32_t *counter, uint32_t n_threads)
{
    simt_bar_sync(FLOW_BAR, n_threads);
    if (simt_thread() == 0)
        simt_red_release_gpu_add(counter, 1);
}

/* One thread's wait. */
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

/* Waits until `target` arrivals; all n_threads get the same answer. False: leave. */
SIMT_INLINE bool flow_wait(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                           const struct flow_guard *guard, uint32_t n_threads)
{
    bool stop = false;
    if (simt_thread() == 0)
        stop = !flow_poll(counter, target, guard);
    return !simt_bar_or(FLOW_BAR, n_threads, stop);
}

/* The wait of one warp on its own (a producer about to copy what other blocks wrote). */
SIMT_INLINE bool flow_wait_warp(const SIMT_GLOBAL uint32_t *counter, uint32_t target,
                                const struct flow_guard *guard)
{
    bool go = true;
    if (simt_lane() == 0)
        go = flow_poll(counter, target, guard);
    go = simt_ballot(go) == 0xffffffffu;
    simt_syncwarp();
    return go;
}
