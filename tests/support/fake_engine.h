/* fake_engine.h - an engine of the test's own behind engine.h: it says what the test tells it to, one token
 * per millisecond, on the loop's thread; a deadline ends a request no earlier than its script. It defines the
 * functions the HTTP side calls, so the real one is not linked. */
#pragma once
#include "engine/engine.h"
#include "service/server.h"

#include <string.h>
#include <time.h>

#define FAKE_MAX       64
#define FAKE_EMBEDDING 8 /* width of its vectors */

static struct fake {
    uint32_t n_ctx;
    _Atomic bool hold;              /* nothing leaves the queue */
    _Atomic int submit_error;       /* what engine_submit returns */
    enum engine_finish finish;      /* after the script */
    enum engine_finish last_choice; /* the same, of the last choice; ENGINE_RUNNING: as `finish` */
    int32_t script[256];            /* tokens every request gets, again from the first after the last */
    uint32_t n_script;
    uint32_t n_at_once; /* tokens a millisecond; 0: one */
    uint32_t n_cached;  /* tokens of every prompt, found before the first of its text */
    struct engine_request *live[FAKE_MAX];
    struct engine_request *news[FAKE_MAX];
    unsigned n_live, n_news;
    _Atomic unsigned n_submitted, n_cancelled, n_tokens;
    struct engine_request last; /* a copy of the newest request's input */
    int32_t last_prompt[64];
    uint64_t salts[FAKE_MAX]; /* of the requests in the order they came */
    struct server *server;
    uv_timer_t timer;
} fake;

static uint64_t fake_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int engine_submit(struct engine *e, struct engine_request *r, struct error *err)
{
    (void)e;
    if (fake.submit_error && !r->begun)
        return error_set(err, fake.submit_error, "said no");
    fake.salts[fake.n_submitted++ % FAKE_MAX] = r->salt;
    memcpy(&fake.last, r, sizeof fake.last);
    memcpy(fake.last_prompt, r->prompt, (r->n_prompt < 64 ? r->n_prompt : 64) * sizeof *r->prompt);
    for (; r; r = r->next_choice) {
        r->queued_ns = fake_now();
        r->n_cached = fake.n_cached;
        atomic_store(&r->state, ENGINE_QUEUED);
        fake.live[fake.n_live++] = r;
    }
    return 0;
}

uint32_t engine_n_embedding(const struct engine *e)
{
    (void)e;
    return FAKE_EMBEDDING;
}

void engine_cancel(struct engine *e, struct engine_request *r)
{
    (void)e;
    if (!atomic_exchange(&r->cancelled, true))
        fake.n_cancelled++;
}

static void fake_news(struct engine_request *r)
{
    if (!atomic_exchange(&r->listed, true))
        fake.news[fake.n_news++] = r;
}

static void fake_end(unsigned i, enum engine_finish finish)
{
    struct engine_request *r = fake.live[i];
    r->finish = finish;
    r->done_ns = fake_now();
    atomic_store(&r->state, ENGINE_DONE);
    fake_news(r);
    fake.live[i] = fake.live[--fake.n_live];
}

static void fake_add(struct engine_request *r, uint32_t n)
{
    r->out[n] = (struct engine_token){.token = fake.script[n % 256], .logprob = -0.5f};
    for (uint32_t k = 0; k < r->n_top; k++)
        r->top[n * r->n_top + k] = (struct step_top){.token = (int32_t)k, .logprob = -1.0f - (float)k};
    if (!n)
        r->first_ns = fake_now();
    atomic_store(&r->n_out, n + 1);
    fake.n_tokens++;
}

static void fake_token(unsigned i)
{
    struct engine_request *r = fake.live[i];
    uint32_t n = r->n_out, end = n + (fake.n_at_once ? fake.n_at_once : 1);
    if (n < fake.n_script && n < r->max_tokens) {
        for (; n < end && n < fake.n_script && n < r->max_tokens; n++)
            fake_add(r, n);
        fake_news(r);
    } else if (n == r->max_tokens) {
        for (uint32_t k = 0; r->pooling && k < FAKE_EMBEDDING; k++)
            r->embedding[k] = (float)r->prompt[0] + (float)(k * r->n_prompt);
        fake_end(i, ENGINE_LENGTH);
    } else if (fake.last_choice != ENGINE_RUNNING && !r->next_choice) {
        fake_end(i, fake.last_choice);
    } else if (fake.finish != ENGINE_RUNNING) {
        fake_end(i, fake.finish);
    }
}

static void fake_tick(uv_timer_t *timer)
{
    (void)timer;
    for (unsigned i = fake.n_live; i-- > 0;) {
        struct engine_request *r = fake.live[i];
        uint64_t now = fake_now();
        if (r->cancelled) {
            fake_end(i, ENGINE_CANCELLED);
        } else if (fake.hold && r->queue_deadline_ns && now > r->queue_deadline_ns) {
            fake_end(i, ENGINE_QUEUE_TIMEOUT);
        } else if (r->deadline_ns && now > r->deadline_ns && (fake.hold || r->n_out >= fake.n_script)) {
            fake_end(i, ENGINE_TIMEOUT);
        } else if (!fake.hold) {
            if (!r->started_ns)
                r->started_ns = now;
            atomic_store(&r->state, ENGINE_DECODE);
            fake_token(i);
        }
    }
    if (fake.n_news)
        server_wake(fake.server);
}

struct engine_request *engine_next(struct engine *e)
{
    (void)e;
    if (!fake.n_news)
        return NULL;
    struct engine_request *r = fake.news[--fake.n_news];
    atomic_store(&r->listed, false);
    return r;
}

void engine_stats(const struct engine *e, struct engine_stats *out)
{
    (void)e;
    *out = (struct engine_stats){0};
    for (unsigned i = 0; i < fake.n_live; i++)
        *(fake.live[i]->state == ENGINE_QUEUED ? &out->waiting : &out->running) += 1;
}

/* It has slots for all, but none while it holds. */
uint32_t engine_queue_depth(const struct engine *e, uint32_t n_more)
{
    struct engine_stats stats;
    engine_stats(e, &stats);
    return fake.hold ? stats.waiting + n_more : 0;
}

uint32_t engine_at_once(const struct engine *e)
{
    (void)e;
    return 1;
}

bool engine_fault(const struct engine *e, struct error *out)
{
    (void)e;
    error_set(out, -EIO, "the decoder is gone");
    return true;
}

uint64_t engine_draw_bytes(const struct engine *e)
{
    (void)e;
    return 1 << 20;
}

uint32_t engine_n_ctx(const struct engine *e)
{
    (void)e;
    return fake.n_ctx;
}
