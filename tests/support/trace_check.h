/* trace_check.h - what must hold of a trace, on every backend: it is complete and in order. */
#pragma once
#include "backend/trace.h"

#include <criterion/criterion.h>

/* A member's ops follow one another, each with its waits inside, in order. Returns the number of waits. */
static inline uint32_t trace_check_member(const struct trace *t, uint32_t member)
{
    uint64_t before = 0;
    uint32_t n_waits = 0;
    for (uint32_t i = 0; i < t->n_ops; i++) {
        const struct trace_mark *m = trace_mark(t, member, i);
        cr_assert(m->begin_ns >= before && m->begin_ns > 0 && m->end_ns >= m->begin_ns,
                  "member %u, op %u: %llu to %llu, before %llu", member, i, (unsigned long long)m->begin_ns,
                  (unsigned long long)m->end_ns, (unsigned long long)before);
        cr_assert_leq(trace_waited(m), m->end_ns - m->begin_ns);
        for (uint32_t k = 0, at = 0; k < m->n_waits; k++, at = 1)
            cr_assert(m->wait_ns[k][0] >= (at ? m->wait_ns[k - 1][1] : m->begin_ns) &&
                          m->wait_ns[k][1] >= m->wait_ns[k][0] && m->wait_ns[k][1] <= m->end_ns,
                      "member %u, op %u, wait %u", member, i, k);
        n_waits += m->n_waits;
        before = m->end_ns;
    }
    return n_waits;
}

/* n_waiting: ops that wait at least once. */
static inline void trace_check(const struct trace *t, uint64_t step, uint32_t n_members, uint32_t n_ops,
                               uint32_t n_waiting)
{
    cr_assert(t->step == step && t->n_members == n_members && t->n_ops == n_ops,
              "step %llu, %u members, %u ops", (unsigned long long)t->step, t->n_members, t->n_ops);
    for (uint32_t i = 0; i < n_members; i++)
        cr_assert_geq(trace_check_member(t, i), n_waiting);
}
