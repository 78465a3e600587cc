/* io_check.h - checks that every index of a step is in range. The host has checked it too
 * (lib/backend/step_check.c); this check keeps a damaged ring from causing an access out of bounds.
 * Thread: all lanes of the I/O warp, on the device's copy of the step. */
#pragma once
#include "device/interpreter.h"

/* A lane's first finding; `what` 0: none. */
struct border_fault {
    uint32_t what, value, limit; /* enum decoder_range; the value, and the limit it must be below */
};

SIMT_INLINE void border_below(struct border_fault *f, uint32_t what, uint32_t value, uint32_t limit)
{
    if (value < limit || f->what)
        return;
    f->what = what;
    f->value = value;
    f->limit = limit;
}

/* Checks `offset` + `n` entries of an array of `limit`. */
SIMT_INLINE void border_inside(struct border_fault *f, uint32_t what, uint32_t offset, uint32_t n,
                               uint32_t limit)
{
    border_below(f, what, offset, limit + 1);
    border_below(f, what, n, limit + 1);
    if (!f->what)
        border_below(f, what, offset + n, limit + 1);
}

SIMT_INLINE void border_check_counts(struct border_fault *f, const struct decoder_args *a,
                                     const SIMT_GLOBAL struct step *s)
{
    uint32_t rows = a->buffers.max_rows < STEP_MAX_ROWS ? a->buffers.max_rows : STEP_MAX_ROWS;
    border_below(f, DECODER_RANGE_COUNT, s->n_rows, rows + 1);
    border_below(f, DECODER_RANGE_COUNT, s->n_logits, STEP_MAX_LOGITS + 1);
    border_below(f, DECODER_RANGE_COUNT, s->n_edits, STEP_MAX_EDITS + 1);
    border_below(f, DECODER_RANGE_COUNT, s->n_page_ops, STEP_MAX_PAGE_OPS + 1);
    border_below(f, DECODER_RANGE_COUNT, s->n_slots, STEP_MAX_LOGITS + 1);
    border_below(f, DECODER_RANGE_COUNT, s->n_biases, STEP_MAX_BIAS + 1);
    border_below(f, DECODER_RANGE_COUNT, s->n_history, STEP_MAX_HISTORY + 1);
}

/* Checks an op on a recurrent state. */
SIMT_INLINE void border_check_state_op(struct border_fault *f, const struct decoder_args *a,
                                       const SIMT_GLOBAL struct step_page_op *op)
{
    const struct decoder_states *s = &a->states;
    size_t page_bytes = kv_page_size(&a->layout);
    bool loads = op->kind == STEP_STATE_LOAD;
    border_below(f, DECODER_RANGE_PAGE_OP, op->kind - STEP_PAGE_COPY, STEP_STATE_IMPORT);
    border_below(f, DECODER_RANGE_PAGE_OP, op->page, loads ? s->n_slots : s->n_states);
    if (op->kind < STEP_STATE_EXPORT) {
        border_below(f, DECODER_RANGE_PAGE_OP, op->from, loads ? s->n_states : s->n_slots);
        return;
    }
    bool fits =
        page_bytes <= a->transfer_bytes && (size_t)op->host_offset * 64 <= a->transfer_bytes - page_bytes;
    border_below(f, DECODER_RANGE_PAGE_OP, op->from, op->from * page_bytes < s->bytes ? UINT32_MAX : 0);
    border_below(f, DECODER_RANGE_PAGE_OP, op->host_offset, fits ? UINT32_MAX : 0);
}

SIMT_INLINE void border_check_page_op(struct border_fault *f, const struct decoder_args *a,
                                      const SIMT_GLOBAL struct step_page_op *op)
{
    uint32_t n_pages = a->slots.n_pages, n_windows = a->slots.n_windows, window = op->page >= n_pages;
    if (a->states.n_states && op->kind > STEP_PAGE_ZERO) {
        border_check_state_op(f, a, op);
        return;
    }
    border_below(f, DECODER_RANGE_PAGE_OP, op->kind - STEP_PAGE_COPY, STEP_PAGE_ZERO);
    border_below(f, DECODER_RANGE_PAGE_OP, op->page, n_pages + n_windows);
    if (op->kind == STEP_PAGE_COPY && window)
        border_below(f, DECODER_RANGE_PAGE_OP, op->from - n_pages, n_windows);
    else if (op->kind == STEP_PAGE_COPY)
        border_below(f, DECODER_RANGE_PAGE_OP, op->from, n_pages);
    if (op->kind != STEP_PAGE_EXPORT && op->kind != STEP_PAGE_IMPORT)
        return;
    size_t size = window ? a->window_bytes : a->page_bytes;
    bool fits = size <= a->transfer_bytes && (size_t)op->host_offset * 64 <= a->transfer_bytes - size;
    border_below(f, DECODER_RANGE_PAGE_OP, op->host_offset, fits ? UINT32_MAX : 0);
}

SIMT_INLINE void border_check_slot(struct border_fault *f, const struct decoder_args *a,
                                   const SIMT_GLOBAL struct step *s, const SIMT_GLOBAL struct step_slot *slot)
{
    border_below(f, DECODER_RANGE_SLOT, slot->slot, a->slots.n_slots);
    border_below(f, DECODER_RANGE_SLOT, slot->start, a->slots.n_ctx);
    border_below(f, DECODER_RANGE_SLOT, slot->n_history, slot->start + 1);
    border_inside(f, DECODER_RANGE_SLOT, slot->history_offset, slot->n_history, s->n_history);
    border_inside(f, DECODER_RANGE_SLOT, slot->sampling.bias_offset, slot->sampling.n_bias, s->n_biases);
}

SIMT_INLINE void border_check_logit(struct border_fault *f, const struct decoder_args *a,
                                    const SIMT_GLOBAL struct step *s, uint32_t i)
{
    const SIMT_GLOBAL struct step_logit *logit = &s->logits[i];
    border_below(f, DECODER_RANGE_LOGIT, logit->row, s->n_rows);
    border_below(f, DECODER_RANGE_LOGIT, logit->n_top, STEP_MAX_TOP + 1);
    border_below(f, DECODER_RANGE_LOGIT, logit->mask, DECODER_MASKS + 1);
    if (logit->target != -1)
        border_below(f, DECODER_RANGE_TOKEN, (uint32_t)logit->target, a->buffers.n_vocab);
    if (logit->row < s->n_rows && s->rows[logit->row].logit_index != i)
        border_below(f, DECODER_RANGE_LOGIT, i, 0);
}

SIMT_INLINE void border_check_row(struct border_fault *f, const struct decoder_args *a,
                                  const SIMT_GLOBAL struct step *s, const SIMT_GLOBAL struct step_row *row)
{
    border_below(f, DECODER_RANGE_ROW, row->slot, a->slots.n_slots);
    border_below(f, DECODER_RANGE_ROW, row->pos, a->slots.n_ctx);
    if (row->token != STEP_LAST_SAMPLED)
        border_below(f, DECODER_RANGE_TOKEN, (uint32_t)row->token, a->buffers.n_vocab);
    if (row->logit_index != STEP_NO_LOGITS)
        border_below(f, DECODER_RANGE_ROW, row->logit_index, s->n_logits);
}

/* Checks the arrays; their counts are in range. */
SIMT_INLINE void border_check_arrays(struct border_fault *f, const struct decoder_args *a,
                                     const SIMT_GLOBAL struct step *s)
{
    uint32_t lane = simt_lane();
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < s->n_page_ops; i += SIMT_LANES)
        border_check_page_op(f, a, &s->page_ops[i]);
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < s->n_edits; i += SIMT_LANES) {
        border_below(f, DECODER_RANGE_EDIT, s->edits[i].slot, a->slots.n_slots);
        border_below(f, DECODER_RANGE_EDIT, s->edits[i].index, a->slots.pages_per_slot);
        border_below(f, DECODER_RANGE_EDIT, s->edits[i].page, a->slots.n_pages);
        if (a->slots.n_windows && s->edits[i].window)
            border_below(f, DECODER_RANGE_EDIT, s->edits[i].window - a->slots.n_pages, a->slots.n_windows);
    }
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < s->n_slots; i += SIMT_LANES)
        border_check_slot(f, a, s, &s->slots[i]);
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < s->n_biases; i += SIMT_LANES)
        border_below(f, DECODER_RANGE_TOKEN, (uint32_t)s->biases[i].token, a->buffers.n_vocab);
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < s->n_history; i += SIMT_LANES)
        border_below(f, DECODER_RANGE_TOKEN, (uint32_t)s->history[i], a->buffers.n_vocab);
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < s->n_logits; i += SIMT_LANES)
        border_check_logit(f, a, s, i);
    SIMT_SMALL_LOOP
    for (uint32_t i = lane; i < s->n_rows; i += SIMT_LANES)
        border_check_row(f, a, s, &s->rows[i]);
}

/* Returns whether no two rows share a slot; all lanes get the result. Slots are in range; lane l tracks slots
 * l, l + 32, ... */
SIMT_INLINE bool border_lone_rows(const SIMT_GLOBAL struct step *s)
{
    uint32_t seen = 0, twice = 0;
    SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < s->n_rows; i++) {
        uint32_t slot = s->rows[i].slot, bit = slot % SIMT_LANES == simt_lane() ? 1u << slot / SIMT_LANES : 0;
        twice |= seen & bit;
        seen |= bit;
    }
    return simt_ballot(twice != 0) == 0;
}
_Static_assert(STEP_MAX_SLOTS <= 32 * SIMT_LANES, "a bit for each slot of a lane");
