/* words.h - values that say by themselves whether they are there: where an op's output is passed on as words,
 * the next op begins without a hop (dependency.h). A writer stores each value whole, in any order, without a
 * release; a reader loads values until none of them is WORDS_EMPTY.
 *
 * Why it is correct: a word is one 32-bit access, so a reader has either all of a value or none. A
 * word that is there says nothing of other memory: a reader that needs that waits for a counter. What one
 * warp has seen, others of its block see behind a barrier, and those of other blocks behind a hop, if they
 * load it as words too. Between two uses a buffer is emptied: a wait for all blocks lies between its last
 * reader and its emptying, and another between its emptying and its next writer and reader, so that a reader
 * sees no value of an earlier use (lib/cuda/plan_words.c decides where all of this holds, and who empties
 * what).
 *
 * A reader gives up only once the abort word is set (dependency.h), and goes on with values that are never
 * used: no step ends with them, since the I/O warp looks at the abort word behind the end of a step
 * (io_warp.h).
 *
 * Thread: words_end(), words_take4(): all lanes of a warp together; the others: any. */
#pragma once
#include "abi/arith.h"
#include "dependency.h"

/* The bits of a value that is not there: those of a NaN. A value with these bits becomes another NaN. */
#define WORDS_EMPTY UINT32_MAX

/* The word of a value. */
SIMT_INLINE uint32_t words_bits(float v)
{
    uint32_t bits = arith_to_bits(v);
    return bits < WORDS_EMPTY ? bits : WORDS_EMPTY - 1;
}

SIMT_INLINE void words_put(SIMT_GLOBAL float *to, float v)
{
    simt_st_relaxed_gpu((SIMT_GLOBAL uint32_t *)to, words_bits(v));
}

/* Stores bits other than WORDS_EMPTY. */
SIMT_INLINE void words_put_bits(SIMT_GLOBAL float *to, uint32_t bits)
{
    simt_st_relaxed_gpu((SIMT_GLOBAL uint32_t *)to, bits);
}

/* Empties four neighbouring words, between the two waits above. */
SIMT_INLINE void words_empty4(SIMT_GLOBAL float *at)
{
    *(SIMT_GLOBAL simt_u4 *)at = (simt_u4){WORDS_EMPTY, WORDS_EMPTY, WORDS_EMPTY, WORDS_EMPTY};
}

SIMT_INLINE bool words_are_there(simt_u4 v)
{
    uint32_t a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return (a > b ? a : b) < WORDS_EMPTY;
}

/* Returns whether the warp has what it waits for, or has given up; else it looks again. */
SIMT_INLINE bool words_end(bool there, struct flow_patience *patience, const struct flow_guard *guard)
{
    if (simt_ballot(!there) == 0)
        return true;
    return simt_ballot(!flow_patient(guard, patience, FLOW_VALUES, 0, 1)) != 0;
}

/* Returns the bits of four words of each lane, once all of the warp's are there; lanes that pass NULL wait
 * for the others. */
SIMT_INLINE simt_u4 words_take4(const SIMT_GLOBAL float *from, const struct flow_guard *guard)
{
    struct flow_patience patience = {0, 0};
    simt_u4 v = {0, 0, 0, 0};
    do
        if (from)
            v = simt_ld_relaxed_gpu_u4((const SIMT_GLOBAL uint32_t *)from);
    while (!words_end(words_are_there(v), &patience, guard));
    return v;
}
