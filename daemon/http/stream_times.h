/* stream_times.h - for measurements: when the loop took each token of streams from the engine, and when their
 * bytes were handed to libmicrohttpd. A server keeps them when it is told to (server_keep_times()). Thread:
 * loop; others read once it has ended. Memory: the caller's. */
#pragma once
#include "base/clock.h"

#include <stddef.h>
#include <stdint.h>

struct stream_taken { /* CLOCK_MONOTONIC, ns */
    uint64_t turn_ns; /* the loop's turn in which it was taken began */
    uint64_t taken_ns;
};

struct stream_handed {
    uint64_t n_bytes; /* length of all streams' bodies so far */
    uint64_t ns;
};

struct stream_times {
    struct stream_taken *taken;       /* [room], by token */
    struct stream_handed *handed;     /* [room], by hand-over */
    uint32_t room, n_taken, n_handed; /* what has no room is not kept */
    uint64_t turn_ns, n_bytes;
};

/* Each of these does nothing where t is NULL. */
static inline void stream_times_turn(struct stream_times *t)
{
    if (t)
        t->turn_ns = clock_ns();
}

static inline void stream_times_take(struct stream_times *t, uint32_t n, uint64_t now_ns)
{
    for (; t && n > 0 && t->n_taken < t->room; n--)
        t->taken[t->n_taken++] = (struct stream_taken){t->turn_ns, now_ns};
}

static inline void stream_times_hand(struct stream_times *t, size_t n)
{
    if (!t)
        return;
    t->n_bytes += n;
    if (t->n_handed < t->room)
        t->handed[t->n_handed++] = (struct stream_handed){t->n_bytes, clock_ns()};
}
