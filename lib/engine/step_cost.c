#include "step_cost.h"

#include <math.h>

#define SHARE 0.5 /* part of the error that one step corrects */

/* The smallest change of both costs that explains the share: each is corrected by its part of the step. So
 * the cost of depth is kept while short prompts come, and the cost of a row while long ones do. */
void row_price_learn(struct row_price *p, double rows, double depth, double ms)
{
    if (rows <= 0)
        return;
    if (p->row_ms <= 0) {
        p->row_ms = ms / rows; /* the row gets all: too much for the next prompt's start, not too little */
        return;
    }
    double wrong = SHARE * (ms - p->row_ms * rows - p->depth_ms * depth) / (rows * rows + depth * depth);
    /* A row's cost never reaches zero: the next step would have as many rows as it can hold. */
    p->row_ms = fmax(p->row_ms + wrong * rows, p->row_ms / 2);
    p->depth_ms = fmax(p->depth_ms + wrong * depth, 0);
}

/* n rows from position s on cost n (row_ms + (s + n / 2) depth_ms), in units of depth. Solves that for n. */
double row_price_rows(const struct row_price *p, double ms, uint32_t start)
{
    double first = p->row_ms + p->depth_ms * start / ROW_PRICE_DEPTH, growth = p->depth_ms / ROW_PRICE_DEPTH;
    if (ms <= 0 || first <= 0)
        return 0;
    return 2 * ms / (first + sqrt(first * first + 2 * growth * ms));
}
