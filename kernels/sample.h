/* sample.h - from logits to struct step_result, to the bit what lib/sampler.h says and lib/cpu/choose.c does.
 *
 * Three phases; the caller orders them (a grid hop between two, all blocks arriving):
 *
 *   sample_segments()   units (logit row, segment) over all blocks
 *   hop                 counter 1
 *   sample_draws_any()  no: results are next, no second hop. All blocks get the same answer
 *   sample_draw()       units (logit row, segment) over all blocks, of rows that are sampled
 *   hop                 counter 2
 *   sample_results()    rows over blocks: row i is block i % n_blocks's; it writes results[i]
 *
 * Before the first all logits of the step lie in memory, and slots, biases and histories are as the step left
 * them (the border's work). Nothing is carried from one phase to the next in shared memory or registers: the
 * work area may be used for other things between them, after a crew_sync.
 *
 * Calls: all threads of the crew, together, in every block, also where it has no unit. They begin with a
 * crew_sync before they use the work area. A row whose indices are out of range gets STEP_RESULT_NOT_FINITE.
 */
#pragma once
#include "crew.h"
#include "sample_layout.h"
#include "step.h"

struct sample {
    struct sample_args in;
    SIMT_SHARED char *work; /* SAMPLE_WORK_BYTES */
};

/* What the persistent decoder samples in a step; `step` is its device copy. */
SIMT_INLINE struct sample sample_of(const struct decoder_args *args, uint64_t step, SIMT_SHARED char *work);

SIMT_INLINE void sample_segments(const struct sample *s, const struct crew *crew, uint32_t block,
                                 uint32_t n_blocks);
SIMT_INLINE bool sample_draws_any(const struct sample *s, const struct crew *crew);
SIMT_INLINE void sample_draw(const struct sample *s, const struct crew *crew, uint32_t block,
                             uint32_t n_blocks);
SIMT_INLINE void sample_results(const struct sample *s, const struct crew *crew, uint32_t block,
                                uint32_t n_blocks);
