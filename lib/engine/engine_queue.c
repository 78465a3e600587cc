#include "engine_queue.h"

void engine_queue_add(struct engine_queue *q, struct engine_request *r)
{
    r->order = (int64_t)r->queued_ns - (int64_t)r->priority * 1000000000;
    r->blocked_ns = 0;
    struct engine_request *before = q->last;
    while (before && before->order > r->order)
        before = before->prev_queued;
    r->prev_queued = before;
    r->next_queued = before ? before->next_queued : q->first;
    *(before ? &before->next_queued : &q->first) = r;
    *(r->next_queued ? &r->next_queued->prev_queued : &q->last) = r;
    q->n++;
}

void engine_queue_remove(struct engine_queue *q, struct engine_request *r)
{
    *(r->prev_queued ? &r->prev_queued->next_queued : &q->first) = r->next_queued;
    *(r->next_queued ? &r->next_queued->prev_queued : &q->last) = r->prev_queued;
    r->next_queued = r->prev_queued = NULL;
    q->n--;
}

bool engine_queue_may_pass(struct engine_request *r, uint64_t now_ns)
{
    if (r->blocked_ns == 0)
        r->blocked_ns = now_ns;
    return now_ns - r->blocked_ns < ENGINE_PASS_NS;
}
