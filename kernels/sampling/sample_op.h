/* sample_op.h - the op SAMPLE of the persistent decoder: the phases of sample.h and the hops between them.
 * Blocks without a result row skip the last hop.
 * Thread: all compute threads of every block, together. */
#pragma once
#include "sample.h"
#include "device/interpreter.h"

SIMT_INLINE struct sample sample_of(const struct walk *w)
{
    const struct decoder_args *a = w->args;
    return (struct sample){
        .in = {.step = (uint64_t)(uintptr_t)w->step,
               .logits = a->buffers.logits,
               .results =
                   a->buffers.results + (uint64_t)w->result * STEP_MAX_LOGITS * sizeof(struct step_result),
               .scratch = a->buffers.sample,
               .exported = a->exported,
               .masks = a->masks,
               .end_tokens = a->end_tokens,
               .slots = a->slots,
               .n_end_tokens = a->n_end_tokens,
               .n_vocab = a->buffers.n_vocab,
               .logits_stride = a->buffers.logits_stride,
               .n_masks = DECODER_MASKS},
        .work = walk_work(w),
    };
}

SIMT_INLINE bool sample_op(struct walk *w)
{
    struct sample s = sample_of(w);
    uint32_t block = simt_block(), n_blocks = simt_n_blocks();
    /* The step, the slots and the masks, which no op writes, are read before the wait. */
    bool draws = sample_draws_any(&s, &w->crew);
    struct sample_row row = sample_prepare_unit(&s, &w->crew, block);
    if (!walk_wait(w))
        return false;
    sample_segments(&s, &w->crew, block, n_blocks, row);
    walk_signal(w, 1);
    if (draws) {
        if (!walk_wait_for(w, 1))
            return false;
        sample_draw(&s, &w->crew, block, n_blocks);
        walk_signal(w, 2);
    }
    if (block >= sample_n_rows(&s))
        return true;
    row = sample_row_of(&s, block);
    if (!walk_wait_for(w, draws ? 2 : 1))
        return false;
    sample_results(&s, &w->crew, block, n_blocks, row);
    return true;
}
