#include "engine_spill.h"
#include "engine_speculate.h"
#include "kv/prefix_disk.h"
#include "model/program.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define DISK_NAP_NS 20000000ull /* sleep between rounds while every running request waits for the disk */

/* ---- state shared by the caller's thread and the engine's ---- */

/* Wakes the engine thread if it sleeps. Call with lock held. */
static void ring(struct engine *e)
{
    if (e->sleeping)
        pthread_cond_signal(&e->bell);
}

/* Call with lock held. */
static void append_ready(struct engine *e, struct engine_request *r)
{
    if (atomic_exchange_explicit(&r->listed, true, memory_order_relaxed))
        return;
    r->next_ready = NULL;
    *e->ready_end = r;
    e->ready_end = &r->next_ready;
    e->news = true;
}

void engine_list(struct engine *e, struct engine_request *r)
{
    pthread_mutex_lock(&e->lock);
    append_ready(e, r);
    pthread_mutex_unlock(&e->lock);
}

struct engine_request *engine_next(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct engine_request *r = e->ready;
    bool ended = false;
    if (r) {
        e->ready = r->next_ready;
        if (!e->ready)
            e->ready_end = &e->ready;
        atomic_store_explicit(&r->listed, false, memory_order_relaxed);
        ended = r->ended;
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
    for (uint32_t i = 0; e->n_vocab && i < r->n_prompt; i++)
        if ((uint32_t)r->prompt[i] >= e->n_vocab)
            return error_set(err, -EINVAL, "prompt token %d: the vocabulary holds %u", (int)r->prompt[i],
                             e->n_vocab);
    for (uint32_t i = 0; e->n_vocab && i < s->n_bias; i++)
        if ((uint32_t)r->biases[i].token >= e->n_vocab)
            return error_set(err, -EINVAL, "logit_bias of token %d: the vocabulary holds %u",
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
    r->next_queued = NULL;
}

/* Appends the choices as one entry of the queue or each by itself. Call with lock held. */
static void append_inbox(struct engine *e, struct engine_request *r, bool together)
{
    for (; r; r = together ? NULL : r->next_choice) {
        *e->inbox_end = r;
        e->inbox_end = &r->next_queued;
    }
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
    if (engine_queue_depth(e, 1) > e->cfg.queue_limit) {
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
    ring(e);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

void engine_cancel(struct engine *e, struct engine_request *r)
{
    atomic_store_explicit(&r->cancelled, true, memory_order_relaxed);
    pthread_mutex_lock(&e->lock);
    e->cancelling = true;
    ring(e);
    pthread_mutex_unlock(&e->lock);
}

void engine_ping(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->pinged = true;
    ring(e);
    pthread_mutex_unlock(&e->lock);
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

uint32_t engine_n_ctx(const struct engine *e)
{
    return e->n_ctx;
}

/* ---- ends of requests ---- */

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

void engine_finish(struct engine *e, struct engine_request *r, enum engine_finish finish, uint64_t now_ns)
{
    r->finish = finish;
    r->done_ns = now_ns;
    count_finish(e, finish);
    atomic_fetch_sub_explicit(&e->n_open, 1, memory_order_relaxed);
    pthread_mutex_lock(&e->lock);
    r->ended = true;
    append_ready(e, r);
    pthread_mutex_unlock(&e->lock);
}

void engine_release(struct engine *e, uint32_t slot)
{
    struct sequence *q = &e->seqs[slot];
    if (!q->busy || q->r || q->last_step > e->retired)
        return;
    kv_cache_end(e->kv, slot);
    q->busy = false;
    e->room = true;
}

void engine_end(struct engine *e, struct sequence *q, enum engine_finish finish, uint64_t now_ns)
{
    struct engine_request *r = q->r;
    q->r = NULL;
    e->n_live--;
    engine_fork_end(e, r->slot, finish, now_ns);
    engine_release(e, r->slot);
    engine_finish(e, r, finish, now_ns);
}

/* Ends an entry of the queue with all its choices. */
static void finish_queued(struct engine *e, struct engine_request *r, enum engine_finish finish,
                          uint64_t now_ns)
{
    engine_queue_remove(&e->queue, r);
    e->room = true;
    for (uint32_t left = r->n_together; left > 0; left--) {
        struct engine_request *next = r->next_choice;
        engine_finish(e, r, finish, now_ns);
        r = next;
    }
}

/* Ends every waiting or running request for which `reason` returns one (not ENGINE_RUNNING). */
static void sweep(struct engine *e,
                  enum engine_finish (*reason)(const struct engine_request *r, bool queued, uint64_t now_ns),
                  uint64_t now_ns)
{
    struct engine_request *next;
    for (struct engine_request *r = e->queue.first; r; r = next) {
        next = r->next_queued;
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

static enum engine_finish if_due(const struct engine_request *r, bool queued, uint64_t now_ns)
{
    if (queued && r->queue_deadline_ns && now_ns >= r->queue_deadline_ns)
        return ENGINE_QUEUE_TIMEOUT;
    if (r->deadline_ns && now_ns >= r->deadline_ns)
        return queued ? ENGINE_QUEUE_TIMEOUT : ENGINE_TIMEOUT;
    return ENGINE_RUNNING;
}

static void note_deadline(struct engine *e, const struct engine_request *r, bool queued)
{
    if (r->deadline_ns && r->deadline_ns < e->next_deadline)
        e->next_deadline = r->deadline_ns;
    if (queued && r->queue_deadline_ns && r->queue_deadline_ns < e->next_deadline)
        e->next_deadline = r->queue_deadline_ns;
}

static void check_deadlines(struct engine *e, uint64_t now_ns)
{
    if (now_ns < e->next_deadline)
        return;
    sweep(e, if_due, now_ns);
    e->next_deadline = UINT64_MAX;
    for (const struct engine_request *r = e->queue.first; r; r = r->next_queued)
        note_deadline(e, r, true);
    for (uint32_t i = 0; i < e->cfg.n_slots; i++)
        if (e->seqs[i].r)
            note_deadline(e, e->seqs[i].r, false);
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

/* ---- steps ---- */

static double ms_between(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e6 : 0;
}

static void blend(double *average, double value)
{
    *average = *average > 0 ? 0.7 * *average + 0.3 * value : value;
}

/* Learns the cost of a finished step, which sizes the next ones. Chunks shorter than the planned ones say
 * little about the cost of a row. The shortest planned ones must count, or a cost that was measured too high
 * would stay. */
static void measure(struct engine *e, const struct flight *f, uint64_t now_ns)
{
    uint64_t start = f->started_ns > e->retired_ns ? f->started_ns : e->retired_ns;
    double ms = ms_between(start, now_ns);
    if (executor_kind(e->x) == EXECUTOR_EAGER)
        ms = (double)f->submit_ns / 1e6;
    engine_draft_measure(e, f, ms, now_ns);
    if (f->n_spans > 0 && f->n_prefill == 0 &&
        (f->n_draft == 0 || e->decode_ms <= 0)) /* n_spans 0: page ops alone */
        blend(&e->decode_ms, ms);
    if (f->n_prefill < (f->n_decode ? ENGINE_LEAST_CHUNK : 16))
        return;
    uint32_t n_rows = f->n_prefill + f->n_decode + f->n_draft;
    if (f->n_decode)
        row_price_learn(&e->beside, n_rows, f->depth, ms);
    else
        blend(&e->prefill_row_ms, ms / n_rows);
}

static bool submit_next(struct engine *e)
{
    struct flight *f = &e->flights[(e->first_flight + e->n_flights) % MAX_FLIGHTS];
    if (!e->built && !engine_build(e, f))
        return false;
    struct error why = {0};
    e->last_id = f->id;
    f->started_ns = clock_ns();
    int rc = executor_submit(e->x, &e->step, &why);
    f->submit_ns = clock_ns() - f->started_ns;
    e->built =
        rc == -EAGAIN && e->n_flights > 0; /* the decoder holds fewer steps than the engine: retry later */
    if (e->built)
        return false;
    if (rc < 0) {
        error_set(&why, rc, "step %llu: submit: %s", (unsigned long long)f->id, strerror(-rc));
        engine_fail(e, &why);
        return false;
    }
    e->n_flights++;
    count(&e->steps, 1);
    return true;
}

static struct flight *find_flight(struct engine *e, uint64_t id)
{
    for (uint32_t i = 0; i < e->n_flights; i++) {
        struct flight *f = &e->flights[(e->first_flight + i) % MAX_FLIGHTS];
        if (f->id == id)
            return f;
    }
    return NULL;
}

static bool keep_result(struct engine *e, const struct step_result *r, struct error *why)
{
    struct flight *f = find_flight(e, r->step);
    if (!f || r->logit_index >= f->n_logits || f->n_results == f->n_logits) {
        error_set(why, -EIO, "the decoder gave a result for logit row %u of step %llu, which is not running",
                  r->logit_index, (unsigned long long)r->step);
        return false;
    }
    f->results[r->logit_index] = *r;
    f->n_results++;
    return true;
}

/* Runs the decoder and retires the finished steps. */
static void poll_steps(struct engine *e)
{
    static_assert(MAX_FLIGHTS * STEP_MAX_LOGITS == 64, "results of all flights");
    struct step_result results[MAX_FLIGHTS * STEP_MAX_LOGITS];
    struct error why = {0};
    uint64_t done = 0;
    int n = executor_poll(e->x, results, MAX_FLIGHTS * STEP_MAX_LOGITS, &done, &why);
    bool ok = n >= 0;
    for (int i = 0; ok && i < n; i++)
        ok = keep_result(e, &results[i], &why);
    while (ok && e->n_flights > 0) {
        struct flight *f = &e->flights[e->first_flight];
        if (f->id > done || f->n_results < f->n_logits)
            break;
        uint64_t now = clock_ns();
        measure(e, f, now);
        e->retired_ns = now;
        e->first_flight = (e->first_flight + 1) % MAX_FLIGHTS;
        e->n_flights--;
        ok = engine_retire(e, f, now, &why);
    }
    if (!ok) {
        error_set(&why, n < 0 ? n : -EIO, "the decoder failed: %s", strerror(n < 0 ? -n : EIO));
        engine_fail(e, &why);
    }
}

/* ---- figures ---- */

void engine_count_tokens(struct engine *e, uint64_t now_ns, uint32_t prompt, uint32_t generated)
{
    uint64_t second = now_ns / 1000000000u + 1; /* 0 marks an unused entry */
    struct rate *rate = &e->rates[second % (RATE_SECONDS + 1)];
    if (atomic_load_explicit(&rate->second, memory_order_relaxed) != second) {
        atomic_store_explicit(&rate->prompt, 0, memory_order_relaxed);
        atomic_store_explicit(&rate->generated, 0, memory_order_relaxed);
        atomic_store_explicit(&rate->second, second, memory_order_relaxed);
    }
    count(&rate->prompt, prompt);
    count(&rate->generated, generated);
    count(&e->prompt_tokens, prompt);
    count(&e->generated_tokens, generated);
}

static void publish_figures(struct engine *e)
{
    struct kv_cache_stats kv;
    kv_cache_stats(e->kv, &kv);
    atomic_store_explicit(&e->pages_used, kv.used, memory_order_relaxed);
    atomic_store_explicit(&e->pages_cached, kv.cached, memory_order_relaxed);
    atomic_store_explicit(&e->n_running, e->n_live, memory_order_relaxed);
}

#define LOAD(field) atomic_load_explicit(&e->field, memory_order_relaxed)

static void add_rates(const struct engine *e, struct engine_stats *out)
{
    uint64_t now = clock_ns(), second = now / 1000000000u + 1, prompt = 0, generated = 0;
    for (uint32_t i = 0; i <= RATE_SECONDS; i++)
        if (LOAD(rates[i].second) + RATE_SECONDS > second) {
            prompt += LOAD(rates[i].prompt);
            generated += LOAD(rates[i].generated);
        }
    double up = (double)(now - e->opened_ns) / 1e9;
    double span = up < 1 ? 1 : up < RATE_SECONDS ? up : RATE_SECONDS;
    out->prompt_tokens_per_s = (double)prompt / span;
    out->tokens_per_s = (double)generated / span;
}

void engine_forget(struct engine *e)
{
    _Atomic uint64_t *const figures[] = {
        &e->completed,     &e->failed,        &e->rejected,         &e->cancelled,      &e->timed_out,
        &e->prompt_tokens, &e->cached_tokens, &e->generated_tokens, &e->steps,          &e->drafted,
        &e->accepted,      &e->draft_steps,   &e->steps_saved,      &e->draft_requests, &e->turned_off};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        atomic_store_explicit(figures[i], 0, memory_order_relaxed);
    for (uint32_t i = 0; i <= RATE_SECONDS; i++)
        atomic_store_explicit(&e->rates[i].second, 0, memory_order_relaxed);
    executor_forget(e->x);
}

static void add_disk(const struct engine *e, struct engine_stats *out)
{
    struct prefix_disk_stats d;
    if (!e->disk)
        return;
    prefix_disk_stats(e->cfg.disk, &d);
    out->has_disk = true;
    out->disk_pages = d.pages;
    out->disk_bytes = d.bytes;
    out->disk_hits = d.hits;
    out->disk_spilled = d.spilled;
    out->disk_errors = d.errors;
}

void engine_stats(const struct engine *e, struct engine_stats *out)
{
    uint32_t open = LOAD(n_open), running = LOAD(n_running);
    *out = (struct engine_stats){.running = running,
                                 .waiting = open > running ? open - running : 0,
                                 .queue_limit = e->cfg.queue_limit,
                                 .completed = LOAD(completed),
                                 .failed = LOAD(failed),
                                 .rejected = LOAD(rejected),
                                 .cancelled = LOAD(cancelled),
                                 .timed_out = LOAD(timed_out),
                                 .prompt_tokens = LOAD(prompt_tokens),
                                 .cached_tokens = LOAD(cached_tokens),
                                 .generated_tokens = LOAD(generated_tokens),
                                 .steps = LOAD(steps),
                                 .speculates = e->draft != NULL,
                                 .drafted = LOAD(drafted),
                                 .accepted = LOAD(accepted),
                                 .draft_steps = LOAD(draft_steps),
                                 .steps_saved = LOAD(steps_saved),
                                 .draft_requests = LOAD(draft_requests),
                                 .turned_off = LOAD(turned_off),
                                 .pages_total = LOAD(pages_total),
                                 .pages_used = LOAD(pages_used),
                                 .pages_cached = LOAD(pages_cached),
                                 .kv_bytes = e->kv_bytes,
                                 .faulted = LOAD(faulted),
                                 .heartbeat_ns = LOAD(heartbeat_ns),
                                 .idle = LOAD(idle) && open == 0};
    add_rates(e, out);
    add_disk(e, out);
}

/* ---- the thread ---- */

struct news {
    struct engine_request *inbox;
    bool cancelling, pinged, closing;
};

/* Sleeps until the bell rings or, unless `forever`, for DISK_NAP_NS at most. Call with lock held. */
static void sleep_until_rung(struct engine *e, bool forever)
{
    uint64_t until = clock_ns() + DISK_NAP_NS;
    const struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    e->sleeping = true;
    if (forever)
        pthread_cond_wait(&e->bell, &e->lock);
    else
        pthread_cond_clockwait(&e->bell, &e->lock, CLOCK_MONOTONIC, &t);
    e->sleeping = false;
}

/* Collects what the other threads have posted; sleeps first when there is no work. */
static struct news wait_for_news(struct engine *e)
{
    bool idle = e->n_live == 0 && e->queue.n == 0 && e->n_flights == 0;
    bool sleep = e->n_flights == 0 && (idle || engine_disk_waits(e)) && !engine_disk_wants_step(e);
    pthread_mutex_lock(&e->lock);
    atomic_store_explicit(&e->idle, idle, memory_order_relaxed);
    while (sleep && !e->inbox && !e->cancelling && !e->pinged && !e->closing) {
        sleep_until_rung(e, idle);
        sleep = idle;
        engine_draft_woken(e, clock_ns());
    }
    struct news n = {
        .inbox = e->inbox, .cancelling = e->cancelling, .pinged = e->pinged, .closing = e->closing};
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    e->cancelling = e->pinged = false;
    if (n.inbox)
        atomic_store_explicit(&e->idle, false, memory_order_relaxed);
    pthread_mutex_unlock(&e->lock);
    return n;
}

static void take_inbox(struct engine *e, struct engine_request *inbox)
{
    for (struct engine_request *r = inbox, *next; r; r = next) {
        next = r->next_queued;
        engine_queue_add(&e->queue, r);
        note_deadline(e, r, true);
        e->room = true;
    }
}

static void wake(struct engine *e)
{
    if (e->news && e->cfg.wake) {
        e->cfg.wake(e->cfg.context);
        sched_yield(); /* on cpu this thread computes, maybe on the CPU that the woken one needs */
    }
    e->news = false;
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    for (;;) {
        struct news news = wait_for_news(e);
        uint64_t now = clock_ns();
        atomic_store_explicit(&e->heartbeat_ns, now, memory_order_relaxed);
        take_inbox(e, news.inbox);
        if (news.closing && !e->closing_ns)
            e->closing_ns = now;
        if (news.closing)
            sweep(e, always_cancelled, now);
        else if (news.cancelling)
            sweep(e, if_cancelled, now);
        if (e->faulted)
            sweep(e, always_fault, now);
        check_deadlines(e, now);
        engine_disk_move(e, now);
        engine_admit(e, now);
        publish_figures(e);
        while (!e->faulted && e->n_flights < e->cfg.steps_in_flight && !engine_draft_holds(e) &&
               submit_next(e))
            ;
        wake(e); /* requests that were cancelled or have started are reported before the step */
        if (e->n_flights > 0 || (news.pinged && !e->faulted)) /* a ping checks an idle device, too */
            poll_steps(e);
        publish_figures(e);
        wake(e);
        if (news.closing && e->n_flights == 0 && !engine_disk_lingers(e, now)) {
            if (!e->faulted)
                executor_park(e->x); /* the executor may stay open without an engine */
            return NULL;
        }
    }
}

/* ---- open and close ---- */

static int configure(struct engine *e, const struct engine_config *cfg, struct error *err)
{
    struct backend_info info;
    executor_info(e->x, &info);
    if (cfg->n_slots == 0 || cfg->n_slots > STEP_MAX_SLOTS)
        return error_set(err, -EINVAL, "slots %u: 1 to %d", cfg->n_slots, STEP_MAX_SLOTS);
    if (cfg->steps_in_flight < 1 || cfg->steps_in_flight > MAX_FLIGHTS)
        return error_set(err, -EINVAL, "steps_in_flight %u: 1 or 2", cfg->steps_in_flight);
    if (info.n_pages == 0 || info.max_rows == 0)
        return error_set(err, -EINVAL, "backend %s has no KV pages", info.name);
    e->cfg = *cfg;
    e->n_pages = info.n_pages;
    e->shares_pages = info.shares_pages;
    e->cfg.prefix_cache = cfg->prefix_cache && info.shares_pages;
    if (cfg->step_ms == 0)
        e->cfg.step_ms = info.default_step_ms;
    uint64_t room = (uint64_t)info.n_pages * KV_PAGE_TOKENS;
    e->n_ctx = cfg->n_ctx < room ? cfg->n_ctx : (uint32_t)room;
    if (e->n_ctx < 2)
        return error_set(err, -EINVAL, "n_ctx %u: at least 2, a token of prompt and one of text", e->n_ctx);
    e->max_rows = info.max_rows < STEP_MAX_ROWS ? info.max_rows : STEP_MAX_ROWS;
    e->n_vocab = executor_program(e->x) ? executor_program(e->x)->n_vocab : 0;
    e->kv_bytes = info.n_pages * (uint64_t)kv_page_size(&info.kv);
    e->pages_total = info.n_pages;
    e->last_id = e->retired = info.steps; /* an earlier engine may have used the executor */
    struct kv_cache_config kv = {
        .n_pages = info.n_pages, .n_seqs = cfg->n_slots, .n_ctx = e->n_ctx, .max_hit = ENGINE_MAX_HIT};
    int rc = engine_disk_open(e, err);
    kv.keep = e->disk != NULL;
    return rc < 0 ? rc : kv_cache_open(&e->kv, &kv, err);
}

static int take_memory(struct engine *e, struct error *err)
{
    e->seqs = calloc(e->cfg.n_slots, sizeof *e->seqs);
    e->order = calloc(e->cfg.n_slots, sizeof *e->order);
    e->end_tokens = calloc(e->cfg.n_end_tokens + 1, sizeof *e->end_tokens);
    if (!e->seqs || !e->order || !e->end_tokens)
        return error_set(err, -ENOMEM, "no memory for %u slots", e->cfg.n_slots);
    if (e->cfg.n_end_tokens)
        memcpy(e->end_tokens, e->cfg.end_tokens, e->cfg.n_end_tokens * sizeof *e->end_tokens);
    e->cfg.end_tokens = e->end_tokens;
    return engine_draft_open(e, err);
}

/* Blocks all signals in the new thread: the event loop handles them. */
static int start_thread(struct engine *e, struct error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&e->thread, NULL, engine_main, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return error_set(err, -rc, "engine thread: %s", strerror(rc));
    pthread_setname_np(e->thread, "engine");
    return 0;
}

static void engine_free(struct engine *e)
{
    engine_disk_close(e); /* first: the disk's thread rings the bell */
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->bell);
    engine_draft_close(e);
    kv_cache_close(e->kv);
    free(e->seqs);
    free(e->order);
    free(e->end_tokens);
    free(e);
}

int engine_open(struct engine **out, struct executor *x, const struct engine_config *cfg, struct error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, -ENOMEM, "no memory for the engine");
    e->x = x;
    e->inbox_end = &e->inbox;
    e->ready_end = &e->ready;
    e->next_deadline = UINT64_MAX;
    e->opened_ns = clock_ns();
    e->heartbeat_ns = e->opened_ns;
    e->idle = true;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->bell, NULL);
    int rc = configure(e, cfg, err);
    if (rc == 0)
        rc = take_memory(e, err);
    if (rc == 0)
        rc = start_thread(e, err);
    if (rc < 0) {
        engine_free(e);
        return rc;
    }
    *out = e;
    return 0;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    ring(e);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    while (engine_next(e))
        ;
    engine_free(e);
}
