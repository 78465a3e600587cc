/* attention.h - attention of a step's rows over the paged cache, with RoPE and the appending of keys and
 * values.
 * Adjacent rows of one sequence form a group, which reads the sequence's pages once. One unit of work is
 * (group, kv head), with all query heads of that kv head. The bits do not depend on the grouping
 * (kernels/abi/arith.h).
 * Thread: open and plan by member 0; the rest by any member, each with its own scratch. Memory: the caller's,
 * sized by the functions below. Errors: none; step_check() has checked every index. */
#pragma once
#include "base/error.h"
#include "cpu/ops/ops.h"
#include "rows.h"
#include "slots.h"
#include "abi/step.h"

/* backend_info.kv_order: the order of the elements inside a tile (ops.h). Change the number with the
 * order. */
#define ATTEND_KV_ORDER "cpu 3"

struct team;

struct attend_group {
    uint32_t first, n;    /* rows of the step */
    uint32_t first_split; /* its first split, counted over all groups */
};

/* One for each kind of attention of a model. */
struct attend {
    const struct ops *ops;
    struct kv_layout kv; /* `layer` below is the number of a layer's cache in it */
    uint8_t *pages;      /* the cache */
    bool windowed;       /* it is that of the window pages */
    bool by_floats;      /* pages are folded by ops->fold_by_floats; attend_open() leaves it as it is */
    struct ops_order order;
    uint32_t n_heads, ratio, max_rows_per_group, max_splits;
    uint32_t rope_dim;
    bool neox;
    const float *cosines, *sines; /* [n_ctx][rope_dim / 2] */
    uint32_t window;              /* tokens that a row sees, its own included; 0: all */
    float cap;                    /* of the scores; 0: none */
    const float *temperatures;    /* [n_ctx]: factor of the queries by position; or NULL */

    /* State of the step that runs. */
    const struct step *step;
    const struct slots *slots;
    uint32_t n_groups;
    uint32_t n_splits; /* of all groups together if single splits are dealt, else 0 */
    bool lone_rows;    /* no two rows of one sequence: a row may attend right after its own append */
    struct attend_group groups[STEP_MAX_ROWS];

    /* The folds of single splits, [n_heads][n_splits]. */
    struct ops_fold *shared_folds;
    float *shared_outs;
};

struct attend_scratch {
    float *scaled; /* [max queries][padded head_dim]: queries in the form of ops.query() */
    struct ops_query *queries;
    struct ops_fold *folds;
    float *outs; /* [folds][padded head_dim] */
};

/* Sets the fields that follow from the shape; the caller has set ops, kv, pages, n_heads and the RoPE
 * fields. */
void attend_open(struct attend *a, uint32_t n_ctx);
size_t attend_scratch_size(const struct attend *a);
void attend_scratch_set(const struct attend *a, struct attend_scratch *s, void *memory);

/* The memory, in bytes, that dealing single splits to a team of n_members needs beside the members' own
 * scratch. */
size_t attend_shared_size(const struct attend *a, uint32_t n_members);
void attend_shared_set(struct attend *a, uint32_t n_members, void *memory);

/* Cuts a step into groups. Where a few long rows would leave members idle, it sets n_splits > 0 to deal
 * single splits. Then attend_split() and attend_merge() replace attend_group(), with a barrier between
 * them. */
void attend_plan(struct attend *a, const struct step *step, const struct slots *slots, uint32_t n_members);

/* Rotates n_heads heads of row `row`, stored at x, where the kind rotates. */
void attend_rope(const struct attend *a, uint32_t row, float *x, uint32_t n_heads);
/* Writes K and V of one head of row `row` to the cache, unless they are there (STEP_ROW_CACHED). */
void attend_append(const struct attend *a, uint32_t layer, uint32_t row, uint32_t kv_head, const float *k,
                   const float *v);
/* Prefetches the memory that attend_append() of this row and head will write. */
void attend_fetch(const struct attend *a, uint32_t layer, uint32_t row, uint32_t kv_head);
/* An attention: its cache, the factor of its scores, and its sinks [n_heads] or NULL. */
struct attend_layer {
    uint32_t layer;
    float scale;
    const float *sinks;
};
/* Computes all query heads of `kv_head` for the rows of a group: q and out [n_heads * head_dim] per row. */
void attend_group(const struct attend *a, struct attend_scratch *s, const struct attend_layer *layer,
                  uint32_t group, uint32_t kv_head, struct rows q, struct rows out);
/* attend_split() folds split number `split` (of n_splits) of its row; attend_merge() sums a row over its
 * splits. */
void attend_split(const struct attend *a, struct attend_scratch *s, const struct attend_layer *layer,
                  uint32_t split, uint32_t kv_head, struct rows q);
void attend_merge(const struct attend *a, const struct attend_layer *layer, uint32_t group, uint32_t kv_head,
                  struct rows out);
/* Both for all splits and groups, dealt to the team. Every member calls it, with its own scratch. */
void attend_splits(const struct attend *a, struct team *team, uint32_t member, struct attend_scratch *s,
                   const struct attend_layer *layer, struct rows q, struct rows out);
