/* attend.h - attention of a step's rows over the paged cache, and what comes before it; arith.h has the
 * formulas, attend_layout.h the arguments, kv_tile.h the order inside a tile.
 *
 *   attend_prefetch()       before what the QKV product writes may be read: plans the step's units and begins
 *                           to copy pages that earlier steps wrote
 *   attend_append_phase()   unless lone_rows or ready: heads of q and k normed and rotated in place, K and V
 *                           appended, rows dealt over all blocks. Then a hop (all blocks arrive)
 *   attend_phase()          units (group of rows of one slot, kv head, split) dealt over all blocks; with
 *                           lone_rows the unit of the last split does that row's preparing itself
 *
 * Calls: all threads of the crew, together, in every block, in this order; between them nobody else touches
 * the work area. False: an index of the step was out of range, recorded through the guard; the crew leaves.
 */
#pragma once
#include "attend_layout.h"
#include "crew.h"
#include "step.h"

struct attend {
    struct crew crew;
    const struct flow_guard *guard;
    uint32_t work; /* offset of the work area, where everything else lies */
};

SIMT_INLINE bool attend_prefetch(struct attend *a, const struct crew *crew, const struct flow_guard *guard,
                                 const struct attend_args *in);
SIMT_INLINE void attend_append_phase(struct attend *a);
SIMT_INLINE bool attend_phase(struct attend *a);
