/* sample_layout.h - what host and device share about sampling: its arguments and its memory.
 *
 * A row of logits is read in segments of ARITH_LSE_SEGMENT, and so is its mask, if it has one: a bit for each
 * token that may be sampled, in words of pinned memory that the host has written before the step. The phases
 * of sample.h pass results to one another through the scratch, one part per logit row, in this order:
 *
 *   parts     struct sample_part [n_segments]
 *   bins      u32 [n_segments][SAMPLE_LIMBS][SAMPLE_BINS]
 *   adjusted  float [n_segments * ARITH_LSE_SEGMENT]: after mask, biases, bans, penalties, if there are any
 *   list      float, then u32 [n_segments * ARITH_LSE_SEGMENT]: logits and ids of the tokens still in play
 *
 * Thread: any, host or device; pure functions. */
#pragma once
#include "arith.h"
#include "device_abi.h"

#define SAMPLE_MAX_VOCAB 262144u /* sums of limbs must fit 32 bits; the host refuses larger vocabularies */
#define SAMPLE_BINS      256u
#define SAMPLE_LIMBS     4u /* a bin's number of tokens, then its mass in limbs of 14 bits */

/* Shared memory that the compute warps need while they sample (args.shared.work), for any vocabulary. */
#define SAMPLE_WORK_BYTES 25600u

/* Words of a mask of n_vocab tokens; each begins a line of 128 bytes. */
static inline uint32_t sample_mask_words(uint32_t n_vocab)
{
    return (n_vocab + 1023) / 1024 * 32;
}

/* Arguments of sampling; the parameter of the kernel `argmax` (sample.c). All addresses are device memory
 * except `exported` and `masks`. */
struct sample_args {
    uint64_t step;       /* struct step; constant while blocks read it */
    uint64_t logits;     /* float [n_logits][logits_stride] */
    uint64_t results;    /* struct step_result [n_logits] */
    uint64_t scratch;    /* sample_scratch_bytes() */
    uint64_t exported;   /* float [n_logits][logits_stride], pinned, for rows with STEP_EXPORT; 0: none */
    uint64_t masks;      /* u32 [n_masks][sample_mask_words(n_vocab)], pinned: those of step_logit.mask */
    uint64_t end_tokens; /* i32 [n_end_tokens] */
    struct decoder_slots slots;
    uint32_t n_end_tokens, n_vocab, logits_stride; /* 1 <= n_vocab <= SAMPLE_MAX_VOCAB */
    uint32_t work;                                 /* offset of SAMPLE_WORK_BYTES of shared memory */
    uint32_t n_masks;
};

/* A value and its token. Larger values come first, then smaller ids. id is UINT32_MAX: none. */
struct sample_best {
    float x;
    uint32_t id;
};

/* Result of one segment. */
struct sample_part {
    struct sample_best max;     /* largest of the model's own logits; +inf if one is not finite */
    struct sample_best largest; /* largest after mask, biases, bans and penalties; none if all are -inf */
    struct sample_best score;   /* best score of a draw without lists */
    float sum;                  /* sum of exponentials, if a log-probability is requested */
    uint32_t reserved;
};
_Static_assert(sizeof(struct sample_part) == 32, "sample_part");

static inline uint32_t sample_n_segments(uint32_t n_vocab)
{
    return (n_vocab + ARITH_LSE_SEGMENT - 1) / ARITH_LSE_SEGMENT;
}

/* Offsets inside a row's part of the scratch. */
static inline uint64_t sample_bins_at(uint32_t n_segments)
{
    return (uint64_t)n_segments * sizeof(struct sample_part);
}

static inline uint64_t sample_adjusted_at(uint32_t n_segments)
{
    return sample_bins_at(n_segments) + (uint64_t)n_segments * SAMPLE_LIMBS * SAMPLE_BINS * 4;
}

static inline uint64_t sample_list_at(uint32_t n_segments)
{
    return sample_adjusted_at(n_segments) + (uint64_t)n_segments * ARITH_LSE_SEGMENT * 4;
}

static inline uint64_t sample_row_bytes(uint32_t n_segments)
{
    return sample_list_at(n_segments) + (uint64_t)n_segments * ARITH_LSE_SEGMENT * 8;
}

/* Bytes of scratch for n_logits logit rows (STEP_MAX_LOGITS for a decoder); 2 MB a row for 152,000 tokens.
 * Its initial content does not matter. */
static inline uint64_t sample_scratch_bytes(uint32_t n_vocab, uint32_t n_logits)
{
    return sample_row_bytes(sample_n_segments(n_vocab)) * n_logits;
}
