/* sample_grid.h - sampling as in the persistent decoder, without the rest of it: several blocks, compute
 * warps beside a warp that takes no part, hops between the phases. Thread: filled by the host before the
 * launch. */
#pragma once
#include "abi/sample_layout.h"

#define SAMPLE_GRID_CREW     256 /* most compute threads; one warp more is launched */
#define SAMPLE_GRID_COUNTERS 2

struct sample_grid_args {
    struct sample_args in;
    uint64_t counters; /* u32 [SAMPLE_GRID_COUNTERS], DECODER_LINE apart; zero */
    uint64_t guard;    /* u32 [FLOW_WORDS], zero */
};
