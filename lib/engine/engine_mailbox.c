/* engine_mailbox.c - the mailbox between the callers' threads and the engine's: submitted requests and
 * cancels go in, requests with news come out, and the engine thread sleeps here. `lock` guards all of it. */
#include "engine_private.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <string.h>

#define NAP_NS 20000000ull

/* Wakes the engine thread if it sleeps. Call with lock held. */
static void wake_engine(struct engine *e)
{
    if (e->sleeping)
        pthread_cond_signal(&e->wakeup);
}

/* Call with lock held. */
static void append_ready(struct engine *e, struct engine_request *r)
{
    if (atomic_exchange_explicit(&r->listed, true, memory_order_relaxed))
        return;
    STAILQ_INSERT_TAIL(&e->ready, r, ready);
    e->news = true;
}

void engine_list(struct engine *e, struct engine_request *r)
{
    pthread_mutex_lock(&e->lock);
    append_ready(e, r);
    pthread_mutex_unlock(&e->lock);
}

void engine_list_ended(struct engine *e, struct engine_request *r)
{
    pthread_mutex_lock(&e->lock);
    r->ended = true;
    append_ready(e, r);
    pthread_mutex_unlock(&e->lock);
}

struct engine_request *engine_next(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct engine_request *r = STAILQ_FIRST(&e->ready);
    bool ended = false;
    if (r) {
        STAILQ_REMOVE_HEAD(&e->ready, ready);
        atomic_store_explicit(&r->listed, false, memory_order_relaxed);
        ended = r->ended;
        assert(!ended || r->finish != ENGINE_RUNNING);
    }
    pthread_mutex_unlock(&e->lock);
    /* The state becomes terminal here, not in the engine thread: a caller that sees DONE may free the
     * request, so it must be off the list by then. */
    if (ended)
        atomic_store_explicit(&r->state, ENGINE_DONE, memory_order_release);
    return r;
}

static int check_request(const struct engine *e, const struct engine_request *r, struct error *err)
{
    const struct step_sampling *s = &r->sampling;
    if (r->n_prompt == 0)
        return error_set(err, -EINVAL, "prompt is empty");
    if (r->n_prompt > e->n_ctx || r->max_tokens > e->n_ctx - r->n_prompt)
        return error_set(err, -EINVAL, "prompt of %u tokens and max_tokens %u: the context holds %u",
                         r->n_prompt, r->max_tokens, e->n_ctx);
    if (s->n_bias > STEP_MAX_BIAS)
        return error_set(err, -EINVAL, "logit_bias has %u entries: at most %d", s->n_bias, STEP_MAX_BIAS);
    if (r->n_top > STEP_MAX_TOP || r->n_prompt_top > STEP_MAX_TOP)
        return error_set(err, -EINVAL, "logprobs of %u alternatives: at most %d",
                         r->n_top > r->n_prompt_top ? r->n_top : r->n_prompt_top, STEP_MAX_TOP);
    if (s->penalty_last_n > STEP_MAX_HISTORY)
        return error_set(err, -EINVAL, "penalty_last_n %u: at most %d", s->penalty_last_n, STEP_MAX_HISTORY);
    if (r->pooling && (r->max_tokens || r->next_choice || !engine_n_embedding(e)))
        return error_set(err, -EINVAL, "an embedding: %s",
                         engine_n_embedding(e) ? "nothing is generated behind it, max_tokens is 0"
                                               : "this backend and executor keep no hidden states");
    for (uint32_t i = 0; e->n_vocab && i < r->n_prompt; i++)
        if ((uint32_t)r->prompt[i] >= e->n_vocab)
            return error_set(err, -EINVAL, "prompt token %d is not below %u, the size of the vocabulary",
                             (int)r->prompt[i], e->n_vocab);
    for (uint32_t i = 0; e->n_vocab && i < s->n_bias; i++)
        if ((uint32_t)r->biases[i].token >= e->n_vocab)
            return error_set(err, -EINVAL, "logit_bias: token %d is not below %u, the size of the vocabulary",
                             (int)r->biases[i].token, e->n_vocab);
    return 0;
}

static void check_choices(const struct engine_request *r)
{
    uint32_t n = 1;
    for (const struct engine_request *c = r->next_choice; c; c = c->next_choice, n++) {
        assert(c->n_prompt == r->n_prompt && c->max_tokens == r->max_tokens);
        assert(c->prompt == r->prompt || !memcmp(c->prompt, r->prompt, r->n_prompt * sizeof *r->prompt));
        assert(c->salt == r->salt && c->cache_prompt == r->cache_prompt && !c->want_prompt_logprobs);
        assert(c->sampling.n_bias == r->sampling.n_bias && c->n_top <= STEP_MAX_TOP);
    }
    assert(n <= ENGINE_MAX_CHOICES);
}

uint32_t engine_queue_depth(const struct engine *e, uint32_t n_more)
{
    uint32_t open = atomic_load_explicit(&e->n_open, memory_order_relaxed) + n_more;
    uint32_t held = atomic_load_explicit(&e->n_held, memory_order_relaxed);
    uint32_t beyond = open > e->cfg.n_slots ? open - e->cfg.n_slots : 0;
    held += held ? n_more : 0;
    return held > beyond ? held : beyond;
}

uint32_t engine_at_once(const struct engine *e)
{
    uint32_t held = atomic_load_explicit(&e->n_held, memory_order_relaxed);
    uint32_t running = atomic_load_explicit(&e->n_running, memory_order_relaxed);
    return held && running ? running : e->cfg.n_slots;
}

static void reset(struct engine_request *r, uint64_t now_ns)
{
    atomic_store_explicit(&r->n_out, 0, memory_order_relaxed);
    atomic_store_explicit(&r->n_prompt_done, 0, memory_order_relaxed);
    atomic_store_explicit(&r->state, ENGINE_QUEUED, memory_order_relaxed);
    atomic_store_explicit(&r->cancelled, false, memory_order_relaxed);
    atomic_store_explicit(&r->listed, false, memory_order_relaxed);
    r->ended = false;
    r->finish = ENGINE_RUNNING;
    r->n_cached = 0;
    r->queued_ns = now_ns;
    r->started_ns = r->first_ns = r->done_ns = 0;
    r->slot = NO_SLOT;
    r->n_together = 1;
}

/* Appends the choices as one entry of the queue or each by itself. Call with lock held. */
static void append_inbox(struct engine *e, struct engine_request *r, bool together)
{
    for (; r; r = together ? NULL : r->next_choice)
        STAILQ_INSERT_TAIL(&e->inbox, r, submitted);
}

int engine_submit(struct engine *e, struct engine_request *r, struct error *err)
{
    uint64_t now_ns = clock_ns();
    uint32_t n = 0;
    int rc = check_request(e, r, err);
    if (rc < 0)
        return rc;
    check_choices(r);
    for (const struct engine_request *c = r; c; c = c->next_choice)
        n++;
    if (atomic_load(&e->faulted))
        return error_set(err, -EIO, "the decoder has failed");
    if (!r->begun && engine_queue_depth(e, 1) > e->cfg.queue_limit) {
        count(&e->rejected, n);
        return error_set(err, -EAGAIN, "the queue is full: %u requests wait", e->cfg.queue_limit);
    }
    atomic_fetch_add_explicit(&e->n_open, n, memory_order_relaxed);
    for (struct engine_request *c = r; c; c = c->next_choice)
        reset(c, now_ns);
    bool together = engine_can_fork(e, r, n);
    r->n_together = together ? n : 1;
    pthread_mutex_lock(&e->lock);
    append_inbox(e, r, together);
    wake_engine(e);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

void engine_cancel(struct engine *e, struct engine_request *r)
{
    atomic_store_explicit(&r->cancelled, true, memory_order_relaxed);
    pthread_mutex_lock(&e->lock);
    e->cancelling = true;
    wake_engine(e);
    pthread_mutex_unlock(&e->lock);
}

void engine_ping(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->pinged = true;
    wake_engine(e);
    pthread_mutex_unlock(&e->lock);
}

void engine_ask_to_close(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    wake_engine(e);
    pthread_mutex_unlock(&e->lock);
}

/* Sleeps until it is woken or the time has come; UINT64_MAX: never. Call with lock held. */
static void sleep_until_woken(struct engine *e, uint64_t until)
{
    const struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    e->sleeping = true;
    if (until == UINT64_MAX)
        pthread_cond_wait(&e->wakeup, &e->lock);
    else
        pthread_cond_clockwait(&e->wakeup, &e->lock, CLOCK_MONOTONIC, &t);
    e->sleeping = false;
}

static bool has_mail(const struct engine *e)
{
    return !STAILQ_EMPTY(&e->inbox) || e->cancelling || e->closing;
}

bool engine_has_mail(void *engine)
{
    struct engine *e = engine;
    pthread_mutex_lock(&e->lock);
    bool has = has_mail(e);
    pthread_mutex_unlock(&e->lock);
    return has;
}

struct engine_news engine_wait(struct engine *e, bool idle, bool sleep)
{
    bool slept = false;
    uint64_t until = idle ? e->idle_at_ns : clock_ns() + NAP_NS;
    pthread_mutex_lock(&e->lock);
    atomic_store_explicit(&e->idle, idle, memory_order_relaxed);
    while (sleep && !has_mail(e) && !e->pinged) {
        sleep_until_woken(e, until);
        slept = true;
        sleep = idle && clock_ns() < until;
    }
    struct engine_news n = {.inbox = STAILQ_FIRST(&e->inbox),
                            .cancelling = e->cancelling,
                            .pinged = e->pinged,
                            .closing = e->closing,
                            .slept = slept};
    STAILQ_INIT(&e->inbox);
    e->cancelling = e->pinged = false;
    if (n.inbox)
        atomic_store_explicit(&e->idle, false, memory_order_relaxed);
    pthread_mutex_unlock(&e->lock);
    return n;
}

void engine_wake(struct engine *e)
{
    if (e->news && e->cfg.wake) {
        engine_times_tell(e);
        e->cfg.wake(e->cfg.context);
        sched_yield(); /* on cpu this thread computes, maybe on the CPU that the woken one needs */
        engine_times_back(e);
    }
    e->news = false;
}
