#include "engine_private.h"

#define MAX_LOOK 32 /* requests of the queue looked at beyond those that start */

static uint32_t find_slot(const struct engine *e)
{
    uint32_t slot = 0;
    while (slot < e->cfg.n_slots && e->seqs[slot].busy)
        slot++;
    return slot;
}

static uint32_t common_prefix(const struct engine_request *a, const struct engine_request *b)
{
    uint32_t max = a->n_prompt < b->n_prompt ? a->n_prompt : b->n_prompt, n = 0;
    while (n < max && a->prompt[n] == b->prompt[n])
        n++;
    return n;
}

/* Whether a running request is about to leave a page of r's beginning that r would have to compute now: then
 * waiting is the shorter way, and the prompt of many choices is computed once. It ends with the other's
 * prefill at the latest. */
static bool worth_waiting(const struct engine *e, const struct engine_request *r, uint32_t n_cached)
{
    for (uint32_t i = 0; i < e->cfg.n_slots; i++) {
        const struct sequence *q = &e->seqs[i];
        if (!q->r || q->r == r || !q->r->cache_prompt || q->r->salt != r->salt || q->n_done >= q->r->n_prompt)
            continue;
        uint32_t shared = common_prefix(q->r, r);
        shared = shared < r->n_prompt - 1 ? shared : r->n_prompt - 1;
        shared = shared / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
        if (shared > n_cached && q->n_done < shared)
            return true;
    }
    return false;
}

enum outcome { STARTED, NO_ROOM, LATER };

static enum outcome start(struct engine *e, struct engine_request *r, uint32_t slot, uint64_t now_ns)
{
    bool share = e->cfg.prefix_cache && r->cache_prompt;
    struct kv_sequence s = {.prompt = r->prompt,
                            .n_prompt = r->n_prompt,
                            .n_tokens = r->n_prompt + r->max_tokens,
                            .salt = r->salt,
                            .reuse = share && !r->want_prompt_logprobs,
                            .publish = share};
    uint32_t n_cached;
    if (kv_cache_add(e->kv, slot, &s, &n_cached) < 0)
        return NO_ROOM;
    if (s.reuse && worth_waiting(e, r, n_cached)) {
        kv_cache_end(e->kv, slot);
        return LATER;
    }
    engine_queue_remove(&e->queue, r);
    e->seqs[slot] = (struct sequence){.r = r,
                                      .busy = true,
                                      .fresh = true,
                                      .n_rows = n_cached,
                                      .n_done = n_cached,
                                      .admitted = ++e->n_admitted};
    r->slot = slot;
    r->n_cached = n_cached;
    r->started_ns = now_ns;
    e->n_live++;
    count(&e->prompt_tokens, n_cached);
    count(&e->cached_tokens, n_cached);
    atomic_store_explicit(&r->n_prompt_done, n_cached, memory_order_release);
    atomic_store_explicit(&r->state, ENGINE_PREFILL, memory_order_release);
    engine_list(e, r);
    return STARTED;
}

void engine_admit(struct engine *e, uint64_t now_ns)
{
    if (!e->room)
        return;
    e->room = false;
    uint32_t slot = find_slot(e), looked = 0;
    struct engine_request *r = e->queue.first, *next;
    for (; r && slot < e->cfg.n_slots && looked < MAX_LOOK; r = next) {
        next = r->next_queued;
        bool head = r == e->queue.first;
        enum outcome outcome = start(e, r, slot, now_ns);
        if (outcome == STARTED)
            slot = find_slot(e);
        else
            looked++;
        if (outcome == NO_ROOM && head && !engine_queue_may_pass(r, now_ns))
            break;
    }
    atomic_store_explicit(&e->n_held, e->queue.n, memory_order_relaxed);
}
