/* product_node_case.h - checks that the kernels of the nodes MUL_MAT, MUL_MAT_ID, MUL_MAT_HEADS and EMBED
 * equal the cpu in every bit, on a random shape, grid and step, and that they report an index out of range
 * instead of using it. Thread: one per case. */
#pragma once
#include "simt/emulator/emulator.h"

struct product_node {
    uint64_t seed; /* everything follows from it */
    uint32_t sm;
    bool small; /* few warps and short rows, for many runs */
    uint32_t k; /* 0: any up to 3,072; else a multiple of 256, and the first value of every row is huge */
};

/* A wrong result is a report too. Returns 0, or -1 with the report. */
int product_node_multiply(const struct product_node *of, int mute, struct simt_report *report);
int product_node_route(const struct product_node *of, int mute, struct simt_report *report); /* MUL_MAT_ID */
int product_node_parts(const struct product_node *of, int mute,
                       struct simt_report *report); /* MUL_MAT_HEADS */
/* bad: one token is out of range. */
int product_node_gather(const struct product_node *of, bool bad, int mute, struct simt_report *report);
