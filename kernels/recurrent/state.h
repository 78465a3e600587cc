/* state.h - the states of recurrent layers in device memory (abi/delta.h), and the rows that advance them.
 * A group is the adjacent rows of a slot. It begins with a state of zeros at position 0, else with that of
 * its slot, or with another one that the step loads (STEP_STATE_LOAD); behind any of its rows the step may
 * keep a copy (STEP_STATE_SAVE). Threads of one group share its state by parts: each reads, changes and
 * copies its own part alone, so that nothing orders them. step_check() has seen to it that no state is saved
 * that another group reads. Thread: any; every function is of one thread. Errors: an index out of range is
 * reported by flow_fail(), and the rows or the copy are left out. */
#pragma once
#include "abi/device_abi.h"
#include "device/dependency.h"

#define STATE_NONE UINT32_MAX

struct state_group {
    uint32_t slot, first; /* first row of the step */
    uint32_t source;      /* the state that it begins with */
    bool begins;          /* at position 0: with zeros */
};

/* Describes the group whose first row is `row`; false: its slot or the state that it loads does not exist. */
SIMT_INLINE bool state_group_at(struct state_group *g, const struct decoder_states *s,
                                const SIMT_GLOBAL struct step *step, uint32_t row,
                                const struct flow_guard *guard)
{
    uint32_t slot = step->rows[row].slot;
    if (slot >= s->n_slots) {
        flow_fail(guard, DECODER_RANGE, DECODER_RANGE_ROW, slot, s->n_slots);
        return false;
    }
    *g = (struct state_group){.slot = slot, .first = row, .source = slot, .begins = step->rows[row].pos == 0};
    SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < step->n_page_ops; i++)
        if (step->page_ops[i].kind == STEP_STATE_LOAD && step->page_ops[i].page == slot)
            g->source = step->page_ops[i].from;
    if (g->source < s->n_states)
        return true;
    flow_fail(guard, DECODER_RANGE, DECODER_RANGE_PAGE_OP, g->source, s->n_states);
    return false;
}

/* The next state that is saved behind `row`, by operations *op and later ones; *op moves on. STATE_NONE:
 * there is no more. */
SIMT_INLINE uint32_t state_next_save(const struct decoder_states *s, const SIMT_GLOBAL struct step *step,
                                     uint32_t row, uint32_t *op, const struct flow_guard *guard)
{
    while (*op < step->n_page_ops) {
        const SIMT_GLOBAL struct step_page_op *o = &step->page_ops[(*op)++];
        if (o->kind != STEP_STATE_SAVE || o->from != step->rows[row].slot ||
            o->host_offset != step->rows[row].pos)
            continue;
        if (o->page < s->n_states)
            return o->page;
        flow_fail(guard, DECODER_RANGE, DECODER_RANGE_PAGE_OP, o->page, s->n_states);
    }
    return STATE_NONE;
}

/* The row behind the group of row `first`, by one whole warp. */
SIMT_INLINE uint32_t state_group_end(const SIMT_GLOBAL struct step *step, uint32_t n_rows, uint32_t first)
{
    uint32_t slot = step->rows[first].slot;
    SIMT_SMALL_LOOP
    for (uint32_t base = first + 1; base < n_rows; base += SIMT_LANES) {
        uint32_t row = base + simt_lane();
        uint32_t others = simt_ballot(row < n_rows && step->rows[row].slot != slot);
        if (others)
            return base + (uint32_t)__builtin_ctz(others);
    }
    return n_rows;
}

/* True if the step keeps a state of the slot, by one whole warp. */
SIMT_INLINE bool state_saves(const SIMT_GLOBAL struct step *step, uint32_t slot)
{
    uint32_t n = step->n_page_ops;
    bool saves = false;
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_lane(); i < n; i += SIMT_LANES)
        saves = saves || (step->page_ops[i].kind == STEP_STATE_SAVE && step->page_ops[i].from == slot);
    return simt_ballot(saves) != 0;
}

/* State `number` of a layer. */
SIMT_INLINE SIMT_GLOBAL float *state_at(const struct decoder_states *s, uint32_t number, uint32_t layer)
{
    return DECODER_AT(float, s->data) + ((size_t)number * s->n_layers + layer) * s->layer_floats;
}
