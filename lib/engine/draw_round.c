#include "draw_round.h"

#define LEAST_NS 4000000 /* of a round, where a step of texts takes less */
#define DEAR_NS  8       /* what a draw of 1 ns lets others go first, in ns */

uint64_t draw_turn(uint64_t since_ns, uint64_t cost_ns)
{
    return since_ns + DEAR_NS * cost_ns;
}

uint64_t draw_round_time(uint64_t asked_ns, double decode_ms)
{
    uint64_t step = (uint64_t)(decode_ms * 1e6);
    if (asked_ns)
        return asked_ns;
    return step > LEAST_NS ? step : LEAST_NS;
}

bool draw_round_goes_on(struct draw_round *r, uint64_t now_ns)
{
    uint64_t until = 0;
    if (atomic_compare_exchange_strong_explicit(&r->until_ns, &until, now_ns + r->time_ns,
                                                memory_order_relaxed, memory_order_relaxed))
        return true;
    return now_ns < until;
}
