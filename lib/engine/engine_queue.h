/* engine_queue.h - the queue of waiting requests, in order of admission: the largest (priority + seconds
 * waited) first, then first come.
 * All requests age alike, so the order never changes while they wait, and the list stays sorted by queued_ns
 * - priority seconds.
 * Thread: engine only. Memory: the links lie in the requests. */
#pragma once
#include "engine.h"

struct engine_queue {
    TAILQ_HEAD(engine_requests, engine_request) requests;
    uint32_t n;
};

void engine_queue_open(struct engine_queue *q);                          /* empty */
void engine_queue_add(struct engine_queue *q, struct engine_request *r); /* queued_ns is set */
void engine_queue_remove(struct engine_queue *q, struct engine_request *r);

/* True if requests behind r, the first, may be admitted although r has no room: for ENGINE_PASS_NS from the
 * first such call, so that a large request neither blocks the small ones nor starves behind them. */
#define ENGINE_PASS_NS 2000000000u
bool engine_queue_may_pass(struct engine_request *r, uint64_t now_ns);
