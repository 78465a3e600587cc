/* mixture_layout.h - memory of mixtures of experts in the persistent decoder (experts/mixture.h); all
 * mixtures of a program share it.
 *
 * A row's column for one of its chosen experts has a *place* among those of the step: there stand the
 * expert's gated product of the row, and then its result. Rows taken one by one have place row * n_used + u
 * for expert u of the row's choice. Rows that are gathered have the places of an expert one after the other,
 * rows and experts ascending, each expert's from a multiple of ACTIVATION_COLUMNS on, so that they are panels
 * of a wide product. Places between are nobody's.
 *
 * Thread: any, host or device; pure functions. */
#pragma once
#include "device_abi.h"
#include "tile.h"

#include <stdint.h>

/* An expert's columns of a step whose rows are gathered. */
struct mixture_unit {
    uint32_t expert, place; /* the first of its places */
    uint32_t n_columns, reserved;
};

/* Of the mixture whose rows were gathered last. */
struct mixture_list {
    uint32_t n_units; /* experts that any row has chosen, ascending */
    uint32_t n_places;
    uint32_t reserved[2];
    uint32_t count[ROUTE_MAX_EXPERTS]; /* rows that have chosen the expert */
    struct mixture_unit units[ROUTE_MAX_EXPERTS];
};

/* True if a step's rows are gathered: from two rows an expert on, by their mean. An expert's weights are then
 * read once for all its rows, else once for each; but a product of far columns reads as many bytes of them
 * from L2 as of weights (and of more than 8 columns issues three times as many instructions a tile as one of
 * a column), and gathering takes more hops. */
static inline bool mixture_gathers(uint32_t n_rows, uint32_t n_used, uint32_t n_experts)
{
    return n_rows * n_used >= 2 * n_experts;
}

#define MIXTURE_OWN_EXPERTS 256 /* the most of them among which blocks choose for themselves: choose.h */
#define MIXTURE_OWN_ROWS    (DECODER_MAX_CREW / 32) /* and the most rows: one for each compute warp */

/* True if each block makes the choices of a mixture's rows for itself, [n_rows][2 n_used] f32 in its shared
 * memory. Then no block waits for another one's: ROUTE does nothing, and the gated EXPERTS op behind it waits
 * for the router's product. All blocks do the same work meanwhile, a warp for each row, so that it takes as
 * long as that of one row. A second turn of the warps would take as long as the hop that is saved. */
static inline bool mixture_is_own(uint32_t flags, uint32_t n_rows, uint32_t n_used, uint32_t n_experts)
{
    return flags & PROGRAM_CHOOSES && n_experts <= MIXTURE_OWN_EXPERTS && n_rows <= MIXTURE_OWN_ROWS &&
           n_rows * n_used <= DECODER_CHOICE_BYTES / 8 && !mixture_gathers(n_rows, n_used, n_experts);
}

/* Places of the columns of n_heads heads whose products are wide: head after head has its rows, from a
 * multiple of ACTIVATION_COLUMNS on. */
static inline uint64_t mixture_head_places(uint32_t n_rows, uint32_t n_heads)
{
    return (uint64_t)((n_rows + ACTIVATION_COLUMNS - 1) / ACTIVATION_COLUMNS * ACTIVATION_COLUMNS) * n_heads;
}

/* Most places of a step. */
static inline uint64_t mixture_places(uint32_t max_rows, uint32_t n_used, uint32_t n_experts)
{
    uint64_t all = (uint64_t)max_rows * n_used, touched = all < n_experts ? all : n_experts;
    return all + touched * (ACTIVATION_COLUMNS - 1);
}
