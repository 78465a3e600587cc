/* engine_end.c - ends requests: by token, length, cancel, deadline or fault. Releases their slots and
 * pages. */
#include "engine_private.h"

#include <assert.h>
#include <errno.h>

static bool is_end_token(const struct engine *e, int32_t token)
{
    uint32_t low = 0, high = e->cfg.n_end_tokens;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (e->end_tokens[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low < e->cfg.n_end_tokens && e->end_tokens[low] == token;
}

bool engine_ends(const struct engine *e, const struct engine_request *r, int32_t token, uint32_t n)
{
    if (n < r->min_tokens)
        return false;
    if (!r->ignore_eos && is_end_token(e, token))
        return true;
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == token)
            return true;
    return false;
}

static void count_finish(struct engine *e, enum engine_finish finish)
{
    switch (finish) {
    case ENGINE_EOS:
    case ENGINE_LENGTH:
        count(&e->completed, 1);
        break;
    case ENGINE_CANCELLED:
        count(&e->cancelled, 1);
        break;
    case ENGINE_TIMEOUT:
    case ENGINE_QUEUE_TIMEOUT:
        count(&e->timed_out, 1);
        break;
    default:
        count(&e->failed, 1);
    }
}

static void finish_request(struct engine *e, struct engine_request *r, enum engine_finish finish,
                           uint64_t now_ns)
{
    assert(r->finish == ENGINE_RUNNING && finish != ENGINE_RUNNING); /* once */
    r->finish = finish;
    r->done_ns = now_ns;
    count_finish(e, finish);
    atomic_fetch_sub_explicit(&e->n_open, 1, memory_order_relaxed);
    engine_list_ended(e, r);
}

void engine_release(struct engine *e, uint32_t slot)
{
    struct sequence *q = &e->seqs[slot];
    if (!q->busy || q->r || q->last_step > e->retired)
        return;
    engine_states_end(e, q);
    kv_cache_end(e->kv, slot);
    q->busy = false;
    e->room = true;
}

/* The request in `slot` has ended: a waiting choice no longer waits, and the choices that waited for a first
 * one end with it. */
static void end_choices(struct engine *e, uint32_t slot, enum engine_finish finish, uint64_t now_ns)
{
    struct sequence *q = &e->seqs[slot];
    assert(q->first == NO_SLOT || e->seqs[q->first].n_waiting > 0);
    if (q->first != NO_SLOT)
        e->seqs[q->first].n_waiting--;
    q->first = NO_SLOT;
    for (uint32_t i = 0; i < e->cfg.n_slots && q->n_waiting; i++)
        if (e->seqs[i].r && e->seqs[i].first == slot)
            engine_end(e, &e->seqs[i], finish, now_ns);
}

void engine_end(struct engine *e, struct sequence *q, enum engine_finish finish, uint64_t now_ns)
{
    struct engine_request *r = q->r;
    assert(r && q == &e->seqs[r->slot] && e->n_live > 0);
    if (r->banned) /* what is held back is no part of a banned string any more */
        engine_publish_text(e, r, engine_n_text(r), now_ns);
    q->r = NULL;
    e->n_live--;
    end_choices(e, r->slot, finish, now_ns);
    engine_release(e, r->slot);
    finish_request(e, r, finish, now_ns);
}

/* Ends an entry of the queue with all its choices. */
static void finish_queued(struct engine *e, struct engine_request *r, enum engine_finish finish,
                          uint64_t now_ns)
{
    engine_queue_remove(&e->queue, r);
    e->room = true;
    for (uint32_t left = r->n_together; left > 0; left--) {
        struct engine_request *next = r->next_choice;
        finish_request(e, r, finish, now_ns);
        r = next;
    }
}

/* Ends every waiting or running request for which `reason` returns one (not ENGINE_RUNNING). */
static void sweep(struct engine *e,
                  enum engine_finish (*reason)(const struct engine_request *r, bool queued, uint64_t now_ns),
                  uint64_t now_ns)
{
    struct engine_request *next;
    for (struct engine_request *r = TAILQ_FIRST(&e->queue.requests); r; r = next) {
        next = TAILQ_NEXT(r, queued);
        enum engine_finish finish = reason(r, true, now_ns);
        if (finish != ENGINE_RUNNING)
            finish_queued(e, r, finish, now_ns);
    }
    for (uint32_t i = 0; i < e->cfg.n_slots; i++) {
        enum engine_finish finish = e->seqs[i].r ? reason(e->seqs[i].r, false, now_ns) : ENGINE_RUNNING;
        if (finish != ENGINE_RUNNING)
            engine_end(e, &e->seqs[i], finish, now_ns);
    }
}

static enum engine_finish if_cancelled(const struct engine_request *r, bool queued, uint64_t now_ns)
{
    (void)queued, (void)now_ns;
    return atomic_load_explicit(&r->cancelled, memory_order_relaxed) ? ENGINE_CANCELLED : ENGINE_RUNNING;
}

static enum engine_finish always_cancelled(const struct engine_request *r, bool queued, uint64_t now_ns)
{
    (void)r, (void)queued, (void)now_ns;
    return ENGINE_CANCELLED;
}

static enum engine_finish always_fault(const struct engine_request *r, bool queued, uint64_t now_ns)
{
    (void)r, (void)queued, (void)now_ns;
    return ENGINE_FAULT;
}

void engine_end_all(struct engine *e, enum engine_finish finish, uint64_t now_ns)
{
    assert(finish == ENGINE_CANCELLED || finish == ENGINE_FAULT);
    sweep(e, finish == ENGINE_CANCELLED ? always_cancelled : always_fault, now_ns);
}

void engine_end_cancelled(struct engine *e, uint64_t now_ns)
{
    sweep(e, if_cancelled, now_ns);
}

static enum engine_finish if_due(const struct engine_request *r, bool queued, uint64_t now_ns)
{
    if (queued && r->queue_deadline_ns && now_ns >= r->queue_deadline_ns)
        return ENGINE_QUEUE_TIMEOUT;
    if (r->deadline_ns && now_ns >= r->deadline_ns)
        return queued ? ENGINE_QUEUE_TIMEOUT : ENGINE_TIMEOUT;
    return ENGINE_RUNNING;
}

void engine_note_deadline(struct engine *e, const struct engine_request *r, bool queued)
{
    if (r->deadline_ns && r->deadline_ns < e->next_deadline)
        e->next_deadline = r->deadline_ns;
    if (queued && r->queue_deadline_ns && r->queue_deadline_ns < e->next_deadline)
        e->next_deadline = r->queue_deadline_ns;
}

void engine_end_due(struct engine *e, uint64_t now_ns)
{
    if (now_ns < e->next_deadline)
        return;
    sweep(e, if_due, now_ns);
    e->next_deadline = UINT64_MAX;
    const struct engine_request *r;
    TAILQ_FOREACH(r, &e->queue.requests, queued)
        engine_note_deadline(e, r, true);
    for (uint32_t i = 0; i < e->cfg.n_slots; i++)
        if (e->seqs[i].r)
            engine_note_deadline(e, e->seqs[i].r, false);
}

void engine_fail(struct engine *e, const struct error *why)
{
    pthread_mutex_lock(&e->lock);
    error_set(&e->fault, why->code ? why->code : -EIO, "%s", why->code ? why->text : "decoder failed");
    pthread_mutex_unlock(&e->lock);
    atomic_store(&e->faulted, true);
    e->n_flights = 0; /* they will never retire */
    e->built = false;
    e->retired = e->last_id;
    for (uint32_t i = 0; i < e->cfg.n_slots; i++)
        engine_release(e, i);
    sweep(e, always_fault, clock_ns());
}

bool engine_fault(const struct engine *e, struct error *out)
{
    struct engine *guarded = (struct engine *)e;
    if (!atomic_load(&e->faulted))
        return false;
    pthread_mutex_lock(&guarded->lock);
    *out = e->fault;
    pthread_mutex_unlock(&guarded->lock);
    return true;
}
