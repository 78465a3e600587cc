/* trace.h - the times of one step: what each member of a decoder did in each op of the program. Members are
 * the threads of the cpu's team, or the blocks of the cuda kernel.
 *
 * A member's mark of an op lasts from the end of its previous op to its own end of this one. The waits inside
 * are in order and do not overlap: first for the other members' previous op, then for phases of this one; the
 * rest is work. Times are ns of one clock for all members; those of blocks, whose clocks differ, are aligned
 * by the device's global timer, to less than its resolution (32 ns on sm_90, 1 us on sm_80).
 * Thread: a mark has one writer, its member. Memory: trace_open() allocates it. */
#pragma once
#include "base/error.h"

#include <stdint.h>

#define TRACE_WAITS 6 /* of one op; further ones count as work */

struct trace_mark {
    uint64_t begin_ns, end_ns; /* end 0: the op did not run */
    uint64_t wait_ns[TRACE_WAITS][2];
    uint32_t n_waits;
};

struct trace {
    uint64_t step; /* id of the step */
    uint32_t n_members, n_ops;
    struct trace_mark *marks; /* [n_members][n_ops]; NULL: closed */
    /* When the border of a device was about to publish the step, and when it had seen its end; between them
     * the words that cross PCIe play no part. Both 0: there is no border. */
    uint64_t ready_ns, ended_ns;
};

int trace_open(struct trace *t, uint32_t n_members, uint32_t n_ops, struct error *err); /* or -ENOMEM */
void trace_close(struct trace *t);                                                      /* NULL is fine */

static inline struct trace_mark *trace_mark(const struct trace *t, uint32_t member, uint32_t op)
{
    return &t->marks[(uint64_t)member * t->n_ops + op];
}

static inline void trace_wait(struct trace_mark *m, uint64_t begin_ns, uint64_t end_ns)
{
    if (m->n_waits == TRACE_WAITS)
        return;
    m->wait_ns[m->n_waits][0] = begin_ns;
    m->wait_ns[m->n_waits++][1] = end_ns;
}

/* Returns the ns of all waits of a mark. */
uint64_t trace_waited(const struct trace_mark *m);
