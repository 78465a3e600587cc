/* draw_round.h - which texts draw their token first, and how long a round of draws lasts beside steps.
 * A step waits for the draws of a round until its time is over, and then for those that have begun.
 *
 * Thread: draw_round_goes_on() any, one round at a time; the others are pure. Memory: plain values, none is
 * allocated. Errors: none. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The key of a text's turn, smallest first, in ns: the longest waiting first; but a text whose last draw was
 * cheap goes before dear ones. since_ns: its draw has waited since then; cost_ns: what its last draw took. */
uint64_t draw_turn(uint64_t since_ns, uint64_t cost_ns);

/* Returns the length of a round in ns: asked_ns or, where that is 0, 4 ms or as long as a step of texts
 * takes, whichever is longer. decode_ms: what such a step takes, 0: unknown. */
uint64_t draw_round_time(uint64_t asked_ns, double decode_ms);

struct draw_round {
    uint64_t time_ns;          /* how long it lasts */
    _Atomic uint64_t until_ns; /* 0: no thread has begun */
};

/* Call before each draw: true if the round has time left. The first call begins its time: the wait for the
 * team, which the decoder of another model may have for a step, is none of it. */
bool draw_round_goes_on(struct draw_round *r, uint64_t now_ns);
