/* sample_grid.h - sampling as the persistent decoder does it, without the rest of the decoder: several
 * blocks, a crew beside a warp that takes no part, hops between the phases. */
#pragma once
#include "abi/sample_layout.h"

#define SAMPLE_GRID_CREW     256 /* threads at most; a warp more is launched */
#define SAMPLE_GRID_COUNTERS 2

struct sample_grid_args {
    struct sample_args in;
    uint64_t counters; /* u32 [SAMPLE_GRID_COUNTERS], DECODER_LINE apart; zero */
    uint64_t guard;    /* u32 [FLOW_WORDS], zero */
};
