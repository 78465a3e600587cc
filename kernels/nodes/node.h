/* node.h - rows and work of the kernels of single graph nodes; node_args.h has their parameters.
 * Thread: any device thread; the node_deal functions divide the work of the whole grid. */
#pragma once
#include "device/dependency.h"
#include "abi/node_args.h"

SIMT_INLINE const SIMT_GLOBAL struct step *node_step_of(const struct node_step *s)
{
    return DECODER_AT(const struct step, s->step);
}

/* Reports that an index of the step is out of range. */
SIMT_INLINE void node_fail(const struct node_step *s, uint32_t what, uint32_t value, uint32_t limit)
{
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, s->fault), .op = s->node};
    flow_fail(&guard, DECODER_RANGE, what, value, limit);
}

/* Number of rows that the node computes; 0, and a report, if the step has more than allowed. */
SIMT_INLINE uint32_t node_n_rows(const struct node_step *s)
{
    uint32_t n = s->head ? node_step_of(s)->n_logits : node_step_of(s)->n_rows;
    uint32_t most = s->head ? STEP_MAX_LOGITS : STEP_MAX_ROWS_CUDA;
    if (n <= most)
        return n;
    if (simt_thread() == 0)
        node_fail(s, DECODER_RANGE_COUNT, n, most);
    return 0;
}

SIMT_INLINE SIMT_GLOBAL float *node_row(const struct node_rows *rows, uint32_t i)
{
    return DECODER_AT(float, rows->data) + (size_t)i * rows->stride;
}

/* Returns the row of a value that row i of the node reads; row 0, and a report, if that is out of range. */
SIMT_INLINE uint32_t node_input(const struct node_step *s, const struct node_rows *rows, uint32_t i)
{
    if (!rows->gathered)
        return i;
    uint32_t row = node_step_of(s)->logits[i].row, n = node_step_of(s)->n_rows;
    if (row < n)
        return row;
    node_fail(s, DECODER_RANGE_LOGIT, row, n);
    return 0;
}

/* A deal of `width` items of each row among the threads of the grid. */
struct node_deal {
    uint32_t row, at; /* the current item, valid while row < n_rows */
    uint32_t n_rows, width;
};

SIMT_INLINE struct node_deal node_deal_from(uint32_t n_rows, uint32_t width, uint32_t first)
{
    return (struct node_deal){.row = first / width, .at = first % width, .n_rows = n_rows, .width = width};
}

SIMT_INLINE struct node_deal node_deal(uint32_t n_rows, uint32_t width)
{
    return node_deal_from(n_rows, width, simt_block() * simt_n_threads() + simt_thread());
}

/* The same among the warps of the grid. */
SIMT_INLINE struct node_deal node_deal_warps(uint32_t n_rows, uint32_t width)
{
    return node_deal_from(n_rows, width, simt_block() * (simt_n_threads() / SIMT_LANES) + simt_warp());
}

SIMT_INLINE bool node_more(const struct node_deal *d)
{
    return d->row < d->n_rows;
}

SIMT_INLINE void node_next_by(struct node_deal *d, uint32_t step)
{
    uint32_t at = d->at + step;
    d->row += at / d->width;
    d->at = at % d->width;
}

SIMT_INLINE void node_next(struct node_deal *d)
{
    node_next_by(d, simt_n_blocks() * simt_n_threads());
}

SIMT_INLINE void node_next_warp(struct node_deal *d)
{
    node_next_by(d, simt_n_blocks() * (simt_n_threads() / SIMT_LANES));
}
