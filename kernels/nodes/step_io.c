/* step_io.c - the I/O warp's work around a step (io_warp.h), as two kernels around the launches of single
 * graph nodes. Both take struct decoder_args, which are the same in every step: `published` counts the steps,
 * and the host clears it once; there is one staged step (staged_stride 0) and one set of results on the
 * device, since launches follow one another.
 *
 * step_begin, one block: copies and checks the step, does its page ops, applies edits and settings, resolves
 * tokens. step_end, one warp: stores what slots sampled, copies results to the pinned ring, releases
 * `completed`; or reports why there are none.
 *
 * Floor: a page op reads and writes a page, by one block. Tested by whole steps with edits and page ops, each
 * result against lib/cpu: tests/cuda/test_cuda_twin.c, eager and graph. */
#include "persistent/io_warp.h"
#include "persistent/page_ops.h"

#define BEGIN_THREADS 256

SIMT_INLINE struct border open_border(const struct decoder_args *args, uint32_t number)
{
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args->abort_word),
                               .counters = DECODER_AT(const uint32_t, args->counters),
                               .op = WALK_NOTHING};
    struct border b;
    border_open(&b, args, &guard);
    b.copied = b.published = b.ended = b.answered = number;
    return b;
}

SIMT_KERNEL(step_begin, struct decoder_args, BEGIN_THREADS, 1)
{
    uint32_t number = *DECODER_AT(const uint32_t, args.published);
    struct border b = open_border(&args, number);
    SIMT_GLOBAL struct step *step = border_step(&b, number);
    bool bad = false;
    simt_bar_sync(FLOW_BAR, BEGIN_THREADS); /* all have read the number */
    if (simt_warp() == 0) {
        border_copy(&b);
        border_publish(&b);
        bad = b.published == number;
    }
    if (!simt_bar_or(FLOW_BAR, BEGIN_THREADS, bad)) {
        pages_move(&args, step, simt_thread(), BEGIN_THREADS);
        return;
    }
    if (simt_thread() == 0) /* the nodes then have nothing to do */
        step->n_rows = step->n_logits = 0;
}

/* Stores the token that each slot sampled: the next step may refer to it. */
SIMT_INLINE void keep_sampled(const struct decoder_args *args, const SIMT_GLOBAL struct step *s,
                              const SIMT_GLOBAL struct step_result *results)
{
    SIMT_GLOBAL int32_t *last = DECODER_AT(int32_t, args->slots.last_sampled);
    for (uint32_t i = 0; i < s->n_logits; i++)
        if (s->logits[i].target < 0)
            last[s->rows[s->logits[i].row].slot] = results[i].token;
}

SIMT_KERNEL(step_end, struct decoder_args, SIMT_LANES, 1)
{
    uint32_t number = *DECODER_AT(const uint32_t, args.published) - 1;
    struct border b = open_border(&args, number);
    const SIMT_GLOBAL struct step *s = border_step(&b, number);
    const SIMT_GLOBAL struct step_result *results =
        DECODER_AT(const struct step_result, args.buffers.results);
    if (b.guard.words[FLOW_ABORT]) {
        border_tell(&b);
        return;
    }
    border_copy_array(border_results(&b, args.results, number), results, s->n_logits * sizeof *results);
    simt_syncwarp();
    if (simt_lane() != 0)
        return;
    keep_sampled(&args, s, results);
    simt_st_relaxed_sys(&b.control->heartbeat, number + 1);
    simt_st_release_sys(&b.control->completed, number + 1);
}
