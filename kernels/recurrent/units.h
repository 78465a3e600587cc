/* units.h - the work of recurrent layers on a step's rows, in units: a part of a layer's state, which every
 * group has alike, and all rows of a group. A warp has one unit at a time and finds the next one by itself.
 * Its description lies in the warp's room in shared memory, where it takes no registers. Thread: all lanes of
 * a warp, with the same arguments. */
#pragma once
#include "state.h"

struct recurrent_unit {
    uint32_t slot, source; /* the group's state, and the one that it begins with */
    uint32_t first, end;   /* its rows; end: where the next group begins */
    uint32_t begins;       /* with zeros */
    uint32_t saves;        /* the step keeps the group's state behind one of its rows */
    uint32_t at;           /* number of the unit among those of the group */
    uint32_t reserved;
};
_Static_assert(sizeof(struct recurrent_unit) == DELTA_UNIT_BYTES, "recurrent_unit");

/* What a warp works on: a layer's states and rows. */
struct recurrent {
    const struct decoder_states *states;
    const SIMT_GLOBAL struct step *step;
    const struct flow_guard *guard;
    const SIMT_GLOBAL float *in; /* row 0 begins here; 16-byte aligned, as are strides */
    SIMT_GLOBAL float *out;
    uint32_t in_stride, out_stride; /* floats */
    uint32_t n_rows, layer;
    uint32_t n_units;       /* a group has as many */
    SIMT_SHARED char *room; /* the warp's; begins with its unit */
};

SIMT_INLINE SIMT_SHARED struct recurrent_unit *recurrent_unit(const struct recurrent *r)
{
    return (SIMT_SHARED struct recurrent_unit *)r->room;
}

/* Goes `by` units on. False: there is none. */
SIMT_INLINE bool recurrent_seek(const struct recurrent *r, uint32_t by)
{
    SIMT_SHARED struct recurrent_unit *u = recurrent_unit(r);
    uint32_t at = u->at + by, end = u->end;
    bool moves = at >= r->n_units;
    struct state_group g = {0, 0, 0, false};
    SIMT_SMALL_LOOP
    while (at >= r->n_units) {
        uint32_t row = end;
        if (row >= r->n_rows)
            return false;
        end = state_group_end(r->step, r->n_rows, row);
        if (state_group_at(&g, r->states, r->step, row, r->guard))
            at -= r->n_units;
    }
    bool saves = moves && state_saves(r->step, g.slot);
    simt_syncwarp(); /* all lanes have read the unit before */
    if (simt_lane() == 0)
        u->at = at;
    if (simt_lane() == 0 && moves) {
        u->slot = g.slot;
        u->source = g.source;
        u->first = g.first;
        u->end = end;
        u->begins = g.begins;
        u->saves = saves;
    }
    simt_syncwarp();
    return true;
}

/* Finds unit `first` of the step. False: there is none. */
SIMT_INLINE bool recurrent_open(const struct recurrent *r, uint32_t first)
{
    SIMT_SHARED struct recurrent_unit *u = recurrent_unit(r);
    if (simt_lane() == 0)
        u->at = u->end = 0;
    simt_syncwarp();
    return recurrent_seek(r, r->n_units + first);
}
