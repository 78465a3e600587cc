#include "step_cost.h"

#include <math.h>

#define SHARE 0.5 /* of what a price was wrong by, that one step corrects */

/* The smallest change of both prices that explains the share: each answers for the part of the step that it
 * priced. What was learnt of the depth stays while short prompts come, and the other way round. */
void row_price_learn(struct row_price *p, double rows, double depth, double ms)
{
    if (rows <= 0)
        return;
    if (p->row_ms <= 0) {
        p->row_ms = ms / rows; /* all of it: too dear at the start of the next prompt, and not too cheap */
        return;
    }
    double wrong = SHARE * (ms - p->row_ms * rows - p->depth_ms * depth) / (rows * rows + depth * depth);
    /* A row is never for nothing, or the next step would have as many as there is room for. */
    p->row_ms = fmax(p->row_ms + wrong * rows, p->row_ms / 2);
    p->depth_ms = fmax(p->depth_ms + wrong * depth, 0);
}

/* n rows from s on cost n (row_ms + (s + n / 2) depth_ms), by units. */
double row_price_rows(const struct row_price *p, double ms, uint32_t start)
{
    double first = p->row_ms + p->depth_ms * start / ROW_PRICE_DEPTH, growth = p->depth_ms / ROW_PRICE_DEPTH;
    if (ms <= 0 || first <= 0)
        return 0;
    return 2 * ms / (first + sqrt(first * first + 2 * growth * ms));
}
