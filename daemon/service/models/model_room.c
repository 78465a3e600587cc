#include "model_room.h"

/* True if a is to go rather than b. */
static bool goes_before(const struct model_room_candidate *a, const struct model_room_candidate *b)
{
    if (a->busy != b->busy)
        return b->busy;
    if (a->first != b->first)
        return b->first;
    return a->idle_ns < b->idle_ns;
}

int model_room_choose(const struct model_room_candidate *c, int n, bool any)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (c[i].ready && (any || c[i].fills) && (best < 0 || goes_before(&c[i], &c[best])))
            best = i;
    return best;
}
