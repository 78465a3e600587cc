/* attention.c - the node SOFT_MAX: attention of every row's q over its past in the paged cache.
 *   q, out [n_rows][n_heads * head_dim] f32, q rotated; pages as in kv_tile.h, the rows' own K and V among
 * them; struct attention_args, node_args.h Grouped queries of any ratio, head_dim a multiple of 32, all
 * cache types, online softmax in splits (arith.h). A past has position + 1 tokens, so at least one; the
 * position comes from the step in device memory, and n_ctx or more is refused and reported. Any grid,
 * NODE_ATTEND_THREADS threads, args.attend.work_bytes of shared memory. Floor: K and V of every past once.
 * Must match lib/cpu/attention.c: tests/simt/attend/attending.c. */
#include "attention/attend.h"
#include "node.h"

SIMT_INLINE void attend_rows_of(const struct attention_args *args, const bool general)
{
    struct crew crew = crew_of(simt_n_threads());
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args->step.fault), .op = args->step.node};
    const SIMT_GLOBAL struct step *step = node_step_of(&args->step);
    struct attend a = {.crew = crew, .guard = &guard, .general = general};
    if (!attend_prefetch(&a, &args->attend, step->rows, step->n_rows, false, false) || !attend_phase(&a))
        simt_cp_async_wait(0); /* a block must end with no copy under way */
}

SIMT_KERNEL(attention, struct attention_args, NODE_ATTEND_THREADS, 1)
{
    if (args.general)
        attend_rows_of(&args, true);
    else
        attend_rows_of(&args, false);
}
