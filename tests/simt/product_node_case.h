/* product_node_case.h - the kernels of the nodes MUL_MAT and EMBED equal the cpu in every bit, on a random
 * shape, grid and step; and they tell what is out of range instead of touching it. */
#pragma once
#include "emulator.h"

struct product_node {
    uint64_t seed; /* everything follows from it */
    uint32_t sm;
    bool small; /* few warps and short rows, for runs in great number */
    uint32_t k; /* 0: any up to 3,072; a multiple of 256. Then the first value of every row is a huge one. */
};

/* A wrong result is a report too. 0, or -1 with the report. */
int product_node_multiply(const struct product_node *of, int mute, struct simt_report *report);
/* bad: with a token out of range among them. */
int product_node_gather(const struct product_node *of, bool bad, int mute, struct simt_report *report);
