/* step_cost.h - a cost model of a step's rows, fitted to measured steps: a constant per row, and more the
 * deeper the row stands in its sequence, whose keys and values it reads.
 * One average cost would lag behind a long prompt, each of whose chunks costs more than the one before, and
 * steps would get longer than planned.
 *
 * Thread: one at a time (the engine). Memory: plain values, none is allocated. Errors: none. */
#pragma once
#include <stdint.h>

/* The positions in one unit of depth: reading so many keys and values costs about what the rest of a row
 * does. */
#define ROW_PRICE_DEPTH 4096.0

/* All zero: nothing is known. */
struct row_price {
    double row_ms;   /* ms per row at position 0 */
    double depth_ms; /* further ms per unit of depth */
};

/* Corrects the model: `rows` rows, whose positions sum to `depth` units, took ms. */
void row_price_learn(struct row_price *p, double rows, double depth, double ms);

/* The number of rows from position `start` on that take ms; 0 if ms is not positive or nothing is known. */
double row_price_rows(const struct row_price *p, double ms, uint32_t start);
