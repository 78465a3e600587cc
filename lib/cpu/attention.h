/* attention.h - attention of a step's rows over the paged cache, and what comes before it.
 * Rows of one sequence that stand together share the reading of its pages: they form a group, and one unit of
 * work is (group, kv head), with all query heads of that kv head. Bits do not depend on the grouping
 * (kernels/abi/arith.h). Thread: plan by member 0; the rest by any member, each with its own scratch. */
#pragma once
#include "base/error.h"
#include "cpu/ops/ops.h"
#include "rows.h"
#include "slots.h"
#include "abi/step.h"

/* Of the elements inside a tile (ops.h), as backend_info.kv_order says it: another order, another number. */
#define ATTEND_KV_ORDER "cpu 3"

struct attend_group {
    uint32_t first, n;    /* rows of the step */
    uint32_t first_split; /* its first among those of all groups */
};

struct attend {
    const struct ops *ops;
    struct kv_layout kv;
    uint8_t *pages; /* the cache */
    struct ops_order order;
    uint32_t n_heads, ratio, max_rows_per_group, max_splits;
    uint32_t rope_dim;
    bool neox;
    const float *cosines, *sines; /* [n_ctx][rope_dim / 2] */

    /* Of the step that runs. */
    const struct step *step;
    const struct slots *slots;
    uint32_t n_groups;
    uint32_t n_splits; /* of all groups together, when single splits are dealt, else 0 */
    bool lone_rows;    /* no two rows of one sequence: a row's attention may follow its own append at once */
    struct attend_group groups[STEP_MAX_ROWS];

    /* Folds of single splits, [n_heads][n_splits]. */
    struct ops_fold *shared_folds;
    float *shared_outs;
};

struct attend_scratch {
    float *scaled; /* [max queries][padded head_dim]: queries as ops.query() makes them */
    struct ops_query *queries;
    struct ops_fold *folds;
    float *outs; /* of the folds */
};

/* Fills what follows from the shape; the caller has set ops, kv, pages, n_heads and the RoPE fields. */
void attend_open(struct attend *a, uint32_t n_ctx);
size_t attend_scratch_size(const struct attend *a);
void attend_scratch_set(const struct attend *a, struct attend_scratch *s, void *memory);

/* What dealing single splits to a team of n_members needs beside the members' own scratch. */
size_t attend_shared_size(const struct attend *a, uint32_t n_members);
void attend_shared_set(struct attend *a, uint32_t n_members, void *memory);

/* Cuts a step into groups. Where few long rows would leave members idle, single splits are dealt instead:
 * n_splits > 0, and attend_split() and attend_merge() take the place of attend_group(), with a barrier
 * between them. */
void attend_plan(struct attend *a, const struct step *step, const struct slots *slots, uint32_t n_members);

/* Rotates n_heads heads of row `row`, which lie at x. */
void attend_rope(const struct attend *a, uint32_t row, float *x, uint32_t n_heads);
/* Writes K and V of one head of row `row` to the cache. */
void attend_append(const struct attend *a, uint32_t layer, uint32_t row, uint32_t kv_head, const float *k,
                   const float *v);
/* Asks memory for what the next attend_append() writes to. */
void attend_fetch(const struct attend *a, uint32_t layer, uint32_t row, uint32_t kv_head);
/* All query heads of `kv_head` for the rows of a group: q and out [n_heads * head_dim] per row. */
void attend_group(const struct attend *a, struct attend_scratch *s, uint32_t layer, uint32_t group,
                  uint32_t kv_head, float scale, struct rows q, struct rows out);
/* Split `split` (of n_splits) of its row, and then a row's sum over its splits. */
void attend_split(const struct attend *a, struct attend_scratch *s, uint32_t layer, uint32_t split,
                  uint32_t kv_head, float scale, struct rows q);
void attend_merge(const struct attend *a, uint32_t group, uint32_t kv_head, struct rows out);
