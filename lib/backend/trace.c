#include "trace.h"

#include <errno.h>
#include <stdlib.h>

int trace_open(struct trace *t, uint32_t n_members, uint32_t n_ops, struct error *err)
{
    *t = (struct trace){.n_members = n_members, .n_ops = n_ops};
    t->marks = calloc((size_t)n_members * n_ops, sizeof *t->marks);
    return t->marks ? 0 : error_set(err, -ENOMEM, "the trace of %u ops: out of memory", n_ops);
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    free(t->marks);
    *t = (struct trace){0};
}

uint64_t trace_waited(const struct trace_mark *m)
{
    uint64_t ns = 0;
    for (uint32_t i = 0; i < m->n_waits; i++)
        ns += m->wait_ns[i][1] - m->wait_ns[i][0];
    return ns;
}
