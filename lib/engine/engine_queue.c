#include "engine_queue.h"

#include <assert.h>

void engine_queue_open(struct engine_queue *q)
{
    *q = (struct engine_queue){0};
    TAILQ_INIT(&q->requests);
}

void engine_queue_add(struct engine_queue *q, struct engine_request *r)
{
    struct engine_request *before;
    r->order = (int64_t)r->queued_ns - (int64_t)r->priority * 1000000000;
    r->blocked_ns = 0;
    TAILQ_FOREACH_REVERSE(before, &q->requests, engine_requests, queued)
        if (before->order <= r->order)
            break;
    if (before)
        TAILQ_INSERT_AFTER(&q->requests, before, r, queued);
    else
        TAILQ_INSERT_HEAD(&q->requests, r, queued);
    q->n++;
}

void engine_queue_remove(struct engine_queue *q, struct engine_request *r)
{
    assert(q->n > 0);
    TAILQ_REMOVE(&q->requests, r, queued);
    q->n--;
}

bool engine_queue_may_pass(struct engine_request *r, uint64_t now_ns)
{
    if (r->blocked_ns == 0)
        r->blocked_ns = now_ns;
    return now_ns - r->blocked_ns < ENGINE_PASS_NS;
}
