/* attend_grid.h - kernel attend_grid: the phases of attend.h over a grid, in the persistent decoder's order:
 * a few steps of one or more layers, separated by hops. Before a layer every block writes a share of its q, k
 * and v, and behind a step it copies a share of the results away, as the products around an attention do. All
 * layers of a step are the same one; those after the first take up its plan.
 * Thread: filled by the host before the launch. */
#pragma once
#include "abi/attend_layout.h"

#define ATTEND_GRID_CREW 256

struct attend_grid_args {
    struct attend_args attend;
    uint64_t rows;        /* struct step_row [n_steps][max_rows] */
    uint64_t n_rows;      /* u32 [n_steps] */
    uint64_t lone;        /* u32 [n_steps] */
    uint64_t source;      /* float [n_steps][max_rows][in_stride] */
    uint64_t results;     /* float [n_steps][max_rows][out_stride] */
    uint64_t counters;    /* u32 [3][DECODER_LINE] */
    uint64_t guard;       /* enum flow_word */
    uint64_t deadline_ns; /* the longest wait; 0: no limit */
    uint32_t n_steps, n_layers;
    uint32_t general; /* 1: the general attention */
    uint32_t lost;    /* 1 + a block that leaves before it attends; 0: none */
};
