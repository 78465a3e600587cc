/* engine_admit.c - admission: queues new requests, and moves requests from the queue into slots, in order,
 * once pages for all their tokens are reserved. */
#include "engine_spill.h"
#include "sampler/banned.h"

#include <assert.h>

#define MAX_LOOK 32 /* queued requests examined per call, besides those that start */

/* Finds up to n free slots. Returns their number, and the slots in `out`. */
static uint32_t find_slots(const struct engine *e, uint32_t n, uint32_t *out)
{
    uint32_t found = 0;
    for (uint32_t slot = 0; slot < e->cfg.n_slots && found < n; slot++)
        if (!e->seqs[slot].busy)
            out[found++] = slot;
    return found;
}

static uint32_t common_prefix(const struct engine_request *a, const struct engine_request *b)
{
    uint32_t max = a->n_prompt < b->n_prompt ? a->n_prompt : b->n_prompt, n = 0;
    while (n < max && a->prompt[n] == b->prompt[n])
        n++;
    return n;
}

/* True if a running request is about to publish a page of r's prefix that r would otherwise compute now, with
 * the recurrent state behind it. Waiting is then shorter, and a prompt with many choices is computed once.
 * The wait ends with the other request's prefill at the latest. n_cached: tokens that r need not compute now.
 */
static bool worth_waiting(struct engine *e, const struct engine_request *r, uint32_t n_cached)
{
    for (uint32_t i = 0; i < e->cfg.n_slots; i++) {
        struct sequence *q = &e->seqs[i];
        if (!q->r || q->r == r || !q->r->cache_prompt || q->r->salt != r->salt || q->n_done >= q->r->n_prompt)
            continue;
        uint32_t shared = common_prefix(q->r, r);
        shared = shared < r->n_prompt - 1 ? shared : r->n_prompt - 1;
        shared = shared / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
        if (shared > n_cached && q->n_done < shared && (!e->recurrent || engine_states_keep(e, q, shared)))
            return true;
    }
    return false;
}

enum outcome { STARTED, NO_ROOM, LATER };

static void give_up(struct engine *e, const uint32_t *slots, uint32_t n)
{
    while (n > 0)
        kv_cache_end(e->kv, slots[--n]);
}

/* Reserves pages for all n choices, or for none of them. */
static bool reserve(struct engine *e, const struct kv_sequence *s, const uint32_t *slots, uint32_t n,
                    uint32_t *n_cached)
{
    if (kv_cache_add(e->kv, slots[0], s, n_cached) < 0)
        return false;
    for (uint32_t i = 1; i < n; i++)
        if (kv_cache_add_fork(e->kv, slots[i], s) < 0) {
            give_up(e, slots, i);
            return false;
        }
    return true;
}

static struct sequence *seat(struct engine *e, struct engine_request *r, uint32_t slot, uint64_t now_ns)
{
    assert(!e->seqs[slot].busy && e->n_live < e->cfg.n_slots);
    e->seqs[slot] = (struct sequence){.r = r,
                                      .busy = true,
                                      .fresh = true,
                                      .admitted = ++e->n_admitted,
                                      .first = NO_SLOT,
                                      .backup = SNAPSHOT_NONE,
                                      .restore_snapshot = SNAPSHOT_NONE};
    r->slot = slot;
    if (r->banned)
        banned_begin(r->banned, e->max_rows, r->max_tokens);
    r->started_ns = now_ns;
    e->n_live++;
    return &e->seqs[slot];
}

/* Publishes that the request has started. A choice that was cancelled in the queue behind the first ends at
 * once. */
static void announce(struct engine *e, struct engine_request *r, uint32_t n_cached, uint64_t now_ns)
{
    atomic_store_explicit(&r->n_prompt_done, n_cached, memory_order_release);
    atomic_store_explicit(&r->state, ENGINE_PREFILL, memory_order_release);
    if (atomic_load_explicit(&r->cancelled, memory_order_relaxed))
        engine_end(e, &e->seqs[r->slot], ENGINE_CANCELLED, now_ns);
    else
        engine_list(e, r);
}

static void seat_all(struct engine *e, struct engine_request *r, const uint32_t *slots, uint32_t n_shared,
                     bool share, uint64_t now_ns)
{
    uint32_t n = r->n_together;
    struct engine_request *choices[ENGINE_MAX_CHOICES];
    struct sequence *first = seat(e, r, slots[0], now_ns);
    uint32_t n_cached = engine_states_begin(e, slots[0], n_shared, share);
    first->n_rows = first->n_done = r->n_cached = n_cached;
    count(&e->prompt_tokens, n_cached);
    count(&e->cached_tokens, n_cached);
    first->n_waiting = n - 1;
    choices[0] = r;
    engine_disk_begin(e, slots[0], now_ns);
    for (uint32_t i = 1; i < n; i++) {
        choices[i] = choices[i - 1]->next_choice;
        assert(choices[i]);
        seat(e, choices[i], slots[i], now_ns)->first = slots[0];
    }
    for (uint32_t i = n; i-- > 0;) /* the first choice last: its end would end the others */
        announce(e, choices[i], i ? 0 : n_cached, now_ns);
}

static enum outcome start(struct engine *e, struct engine_request *r, uint64_t now_ns)
{
    uint32_t slots[ENGINE_MAX_CHOICES], n_shared, n_cached;
    if (find_slots(e, r->n_together, slots) < r->n_together)
        return NO_ROOM;
    bool share = e->cfg.prefix_cache && r->cache_prompt;
    struct kv_sequence s = {.prompt = r->prompt,
                            .n_prompt = r->n_prompt,
                            .n_tokens = r->n_prompt + r->max_tokens,
                            .salt = r->salt,
                            .reuse = share && engine_reuses(r),
                            .publish = share};
    if (!reserve(e, &s, slots, r->n_together, &n_shared))
        return NO_ROOM;
    n_cached = n_shared;
    if (e->recurrent)
        kv_cache_snapshot(e->kv, slots[0], &n_cached);
    if (s.reuse && worth_waiting(e, r, n_cached)) {
        give_up(e, slots, r->n_together);
        return LATER;
    }
    engine_queue_remove(&e->queue, r);
    seat_all(e, r, slots, n_shared, share, now_ns);
    return STARTED;
}

void engine_enqueue(struct engine *e, struct engine_request *inbox)
{
    for (struct engine_request *r = inbox, *next; r; r = next) {
        next = STAILQ_NEXT(r, submitted);
        engine_queue_add(&e->queue, r);
        engine_note_deadline(e, r, true);
        e->room = true;
    }
}

void engine_admit(struct engine *e, uint64_t now_ns)
{
    if (!e->room)
        return;
    e->room = false;
    uint32_t slot, looked = 0;
    struct engine_request *r = TAILQ_FIRST(&e->queue.requests), *next;
    for (; r && find_slots(e, 1, &slot) && looked < MAX_LOOK; r = next) {
        next = TAILQ_NEXT(r, queued);
        bool head = r == TAILQ_FIRST(&e->queue.requests);
        enum outcome outcome = start(e, r, now_ns);
        looked += outcome != STARTED;
        if (outcome == NO_ROOM && head && !engine_queue_may_pass(r, now_ns))
            break;
    }
    atomic_store_explicit(&e->n_held, e->queue.n, memory_order_relaxed);
}
