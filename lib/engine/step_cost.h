/* step_cost.h - what a row of a step costs, learnt from steps: so much, and more the deeper it stands in its
 * sequence, whose keys and values it reads. One average price lags behind a long prompt, each of whose chunks
 * is dearer than the one before, and steps get longer than planned.
 *
 * Plain values, no memory, no errors. Thread: the owner's. */
#pragma once
#include <stdint.h>

#define ROW_PRICE_DEPTH                                                                                      \
    4096.0 /* positions that are one unit of depth: about where reading costs what the rest does */

/* All zero: nothing known. */
struct row_price {
    double row_ms;   /* at position 0 */
    double depth_ms; /* more, per unit of depth */
};

/* `rows` rows, whose positions are together `depth` units, took ms. */
void row_price_learn(struct row_price *p, double rows, double depth, double ms);

/* How many rows from position `start` on are had for ms; 0 when there are none, or nothing is known. */
double row_price_rows(const struct row_price *p, double ms, uint32_t start);
