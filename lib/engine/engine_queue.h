/* engine_queue.h - requests that wait, in the order in which they are to be admitted: the largest of
 * (priority + seconds waited) first, then first come. All age alike, so the order never changes while they
 * wait, and the list stays sorted by queued_ns - priority seconds. Links lie in the requests.
 * Thread: engine only. */
#pragma once
#include "engine.h"

struct engine_queue {
    struct engine_request *first, *last;
    uint32_t n;
};

void engine_queue_add(struct engine_queue *q, struct engine_request *r); /* queued_ns is set */
void engine_queue_remove(struct engine_queue *q, struct engine_request *r);

/* Whether requests behind r, the first, may be admitted although r has no room: yes for the first
 * ENGINE_PASS_NS since this was asked first, so that a large request neither blocks the small ones nor
 * starves behind them. */
#define ENGINE_PASS_NS 2000000000u
bool engine_queue_may_pass(struct engine_request *r, uint64_t now_ns);
